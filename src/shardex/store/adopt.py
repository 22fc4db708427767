"""Fields beside shards that are not ours: `adopt` makes a dataset of them without a copy, which can then be edited.

A score or an embedding for somebody else's tars lies in a folder of our own, one file per field, joined by row,
versioned and droppable like any other field. The shards themselves are only read, and if they change it is noticed.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import AlreadyExistsError, SchemaError
from shardex.files import What, check_mode, display_name
from shardex.formats import ShardRows
from shardex.sources import place_of
from shardex.store.commit import counted
from shardex.store.manifest import Foreign, Fragment, Manifest, publish

__all__ = ["adopt"]


def adopt(
    what: What, beside: str | os.PathLike[str], *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset:
    """Make a dataset whose samples stay in the shards they are in; `edit` adds fields, which lie in `beside`.

    `what`, `format`, `schema` and the other options are those of `open`; both may be addresses. Open the new dataset
    with `trust_paths=True`: its manifest names files outside its own folder, which nobody should read who does not know
    where it came from.

    >>> import tempfile, shardex as sx; base = tempfile.mkdtemp()
    >>> _ = sx.write(base + "/corpus", [{"text": "a b"}, {"text": "c"}], format="jsonl")
    >>> ds = adopt(base + "/corpus", base + "/beside")
    >>> with sx.edit(base + "/beside", trust_paths=True) as tx:
    ...     tx.add_field("words", "int64", lambda sample: len(sample.text.split()))
    >>> list(sx.open(base + "/beside", trust_paths=True))
    [DictSample(text='a b', words=2), DictSample(text='c', words=1)]
    """
    shards = open_dataset(what, format=format, schema=schema, **options)
    rows = shards.rows
    if not isinstance(rows, ShardRows):
        raise SchemaError(f"expected shards in files, got {type(rows).__name__}")
    place = place_of(beside)
    check_mode(place, "create")
    opened, features = rows.opened, rows.features
    given = opened.what if isinstance(opened.what, str) else list(opened.what)
    if signed := [one for one in ([given] if isinstance(given, str) else given) if display_name(one) != one]:
        raise SchemaError(
            f"expected addresses that may be kept in a manifest, got one with a secret: {display_name(signed[0])}"
        )
    kept = {name: value.to_json() if name == "schema" else value for name, value in opened.options.items()}
    foreign = Foreign(given, opened.format, kept, rows.fingerprint, {name: name for name in features})
    fragment = Fragment(len(rows), [], foreign=foreign)
    words = f"adopt: {counted(len(rows), 'sample')} of {opened.format}"
    manifest = Manifest(len(rows), features.to_json(), [fragment], ids=len(rows), change=words)
    if not publish(place, 1, manifest):
        raise AlreadyExistsError(errno.EEXIST, "another writer has created a dataset here meanwhile", place.url)
    return open_dataset(place.url, trust_paths=True)
