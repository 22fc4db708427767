"""`adopt`: makes a native dataset over shards of another format, so that fields can be added without copying them.

New fields, such as a score or an embedding, are stored in the folder of the new dataset, one file per field, joined by
row, versioned and removable like any other field. The shards are never modified; if they change, reading raises an
error.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import AddressError, AlreadyExistsError, ArgumentError
from shardex.files import What, check_mode, display_name
from shardex.formats import ShardRows
from shardex.native import Foreign, Fragment, FragmentList, Manifest, commit, publish
from shardex.sources import check_untrusted, credentials, place_of


def adopt(
    what: What, beside: str | os.PathLike[str], *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset:
    """Create a dataset in the folder `beside` whose samples stay in their shards; `edit` adds fields to it.

    `what`, `format`, `schema` and the other options are those of `open`; `what` and `beside` may be URLs. Open the new
    dataset with `trust_paths=True`: its manifest names files outside its own folder, so only read it if you trust where
    it came from.

    >>> import tempfile, shardex as sx; base = tempfile.mkdtemp()
    >>> _ = sx.write(base + "/corpus", [{"text": "a b"}, {"text": "c"}], format="jsonl")
    >>> ds = adopt(base + "/corpus", base + "/beside")
    >>> with sx.edit(base + "/beside", trust_paths=True) as tx:
    ...     tx.add_field("words", "int64", lambda sample: len(sample.text.split()))
    >>> list(sx.open(base + "/beside", trust_paths=True))
    [DictSample(text='a b', words=2), DictSample(text='c', words=1)]
    """
    shards = open_dataset(what, format=format, schema=schema, **options).stored
    rows = shards.rows
    if not isinstance(rows, ShardRows):
        raise ArgumentError(f"expected shards in files, got {type(rows).__name__}")
    place = place_of(beside)
    check_mode(place, "create", remedy="name a folder that does not exist")
    opened, features = rows.opened, rows.features
    target = opened.what if isinstance(opened.what, str) else list(opened.what)
    if signed := [one for one in ([target] if isinstance(target, str) else target) if display_name(one) != one]:
        raise ArgumentError(
            f"expected URLs that may be stored in a manifest, got one with a secret: {display_name(signed[0])}"
        )
    for one in [target] if isinstance(target, str) else target:
        if one.startswith(("http://", "https://")) and not credentials.has_credentials(one):
            try:
                check_untrusted(one)
            except AddressError as error:
                raise AddressError(
                    f"{error}: URLs in a manifest are opened as those of others are; copy the shards to a folder or a "
                    "bucket, or set headers or a token for this server with sx.storage, here and wherever it is opened"
                ) from None
    kept = {name: value.to_json() if name == "schema" else value for name, value in opened.options.items()}
    foreign = Foreign(target, opened.format, kept, rows.fingerprint, {name: name for name in features})
    fragment = Fragment(len(rows), [], foreign=foreign)
    words = f"adopt: {commit.counted(len(rows), 'sample')} of {opened.format}"
    manifest = Manifest(len(rows), features.to_json(), FragmentList([fragment]), ids=len(rows), change=words)
    if not publish(place, 1, manifest):
        raise AlreadyExistsError(errno.EEXIST, "another writer has created a dataset here meanwhile", place.url)
    return open_dataset(place.url, trust_paths=True)
