"""Opening data as a `Dataset`: files of any format, rows objects, lists of samples. `index` also writes an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from shardex.dataset.dataset import Dataset
from shardex.dataset.layers import TypedRows
from shardex.dataset.typed_views import check_type, features_wanted_by
from shardex.errors import SchemaError
from shardex.files import What
from shardex.formats import open_rows
from shardex.rows import AbstractRows, ListRows, Rows
from shardex.samples import PackableSample, T_co, fields_of
from shardex.schema import Features

__all__ = ["index", "open"]

Given = What | Rows | Sequence[Any]


@overload
def open(
    what: Given, sample_type: type[T_co], *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset[T_co]: ...


@overload
def open(
    what: Given, sample_type: None = None, *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset: ...


def open(
    what: Any, sample_type: Any = None, *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset[Any]:
    """Open shards of any format as a dataset: a folder, a file, a glob, a brace pattern, a list of files, an address.

    What lies elsewhere (``s3://bucket/train-{000..099}.tar``) is read by ranges and kept in a cache: `cache` names its
    folder (False: in memory), `cache_limit` its size ("50 GB"), and `access` is "auto", "ranged" or "whole".

    `sample_type`, a class made by `packable`, is what samples shall be. `format` says which format it is where the
    names do not; `schema` how to decode what the data leaves open; the other options are the format's own. Rows
    objects and lists of samples are taken as they are.

    >>> ds = open([{"x": 1}, {"x": 2}])
    >>> len(ds), ds[-1]
    (2, DictSample(x=2))
    """
    rows = _rows_of(what, sample_type, format, schema, options)
    opened: Dataset[Any] = rows if isinstance(rows, Dataset) else Dataset(rows)
    return opened if sample_type is None else opened.as_type(sample_type)


def _rows_of(what: Any, sample_type: Any, format: str | None, schema: Any, options: dict[str, Any]) -> Any:
    """The rows; where files leave open what is in them, read as the type of the samples says."""
    if sample_type is not None:
        check_type(sample_type)
    samples = isinstance(what, list | tuple) and len(what) > 0 and all(isinstance(one, _SAMPLES) for one in what)
    if samples or (isinstance(what, Rows) and not isinstance(what, Sequence)):
        if format is not None or schema is not None or options:
            raise SchemaError("expected no format, schema or options for samples that are there already, got some")
        return _rows_of_samples(what) if samples else what
    if schema is not None:
        options["schema"] = Features.of(schema)
    return open_rows(what, format, wanted=features_wanted_by(sample_type), **options)


_SAMPLES = (Mapping, PackableSample)


def _rows_of_samples(samples: Sequence[Any]) -> AbstractRows:
    """Typed if all are of one class."""
    kinds = {type(one) for one in samples}
    if any(issubclass(kind, PackableSample) for kind in kinds):
        rows = ListRows([fields_of(one) for one in samples])
        return TypedRows(rows, kinds.pop()) if len(kinds) == 1 else rows
    return ListRows(samples)


def index(
    what: What,
    attributes: Sequence[str] = (),
    *,
    format: str | None = None,
    schema: Any = None,
    checksums: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Open shards, and keep beside them what later opens of the same files find by themselves.

    `attributes` are keys of JSON Lines, or of any JSON in the samples of tars: their values are taken out of the
    samples once, now, so that `where` and `sql` need not decode them; files that change are decoded again.
    With `checksums` every block of the files is checked from now on when it is first touched; a file that changes is
    an error until they are made anew.

    >>> import os, tempfile; path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> with __builtins__["open"](path, "w") as file:
    ...     _ = file.write('{"lang": "de", "text": "..."}\\n{"lang": "en", "text": "..."}\\n')
    >>> ds = index(path, attributes=["lang"])
    >>> len(ds.where("lang = 'de'"))
    1
    """
    asked = {"attributes": attributes or None, "checksums": checksums or None, "progress": progress}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return open(what, format=format, schema=schema, **given, **options)
