"""`open`: files of any format, and samples and tables in memory as a `Dataset`; `index` also stores columns for SQL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from shardex import catalog, layers
from shardex import dataset as room
from shardex.dataset.dataset import Dataset
from shardex.dataset.views import source_rows
from shardex.errors import ArgumentError, StaleIndexError
from shardex.features import Features
from shardex.files import What, display_name
from shardex.formats import ShardRows, open_rows
from shardex.layers import TypedRows, media_decoded
from shardex.rows import AbstractRows, AdaptedRows, Rows
from shardex.samples import T_co, fields_of, is_sample_class

if TYPE_CHECKING:
    from shardex.dataset.from_table import ArrowStream, HubDataset
    from shardex.workers import ExecutorLike

    Data: TypeAlias = What | Rows | Sequence[Any] | Mapping[str, Any] | ArrowStream | HubDataset
    """Argument of `open`: paths, rows, a list of samples, columns by name, or a table of another tool."""


@overload
def open(
    what: Data, sample_type: type[T_co], *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset[T_co]: ...


@overload
def open(
    what: Data, sample_type: None = None, *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset: ...


def open(
    what: Any, sample_type: Any = None, *, format: str | None = None, schema: Any = None, **options: Any
) -> Dataset[Any]:
    """Open data as a dataset: a folder, a file, a glob, a brace pattern, a list of files, a URL, or data in memory.

    Data in memory is a list of samples, a dict of columns, a pandas or polars DataFrame, a pyarrow table or batch, a
    DuckDB relation, another object with ``__arrow_c_stream__``, a Hugging Face dataset, or rows (see `Rows`). Tables
    are not copied. A Hugging Face dataset keeps its features and its order; formats and transforms are ignored.

    ``"@corpus"``, ``"@team/corpus@3"`` and ``"@corpus:stable"`` are names in a catalog (`Catalog`): the newest version,
    one by its number, one by its tag. A dict that ``ds.reference()`` has returned opens that dataset. Both raise
    `StaleIndexError` if the data have changed since they were registered. (A local path that begins with "@" is
    written ``"./@path"``.)

    Remote files (``s3://bucket/train-{000..099}.tar``) are read by ranges and cached: `cache` is the folder (False: in
    memory), `cache_limit` its size ("50 GB"), and `access` is "auto", "ranged" or "whole". Compressed files (``.gz``,
    ``.zst``, ``.bz2``, ``.xz``, ``.zip``) are read like plain ones: `compressed` is "access_points", "copy" (a
    decompressed one in the cache), or None for access points where there are some.

    `sample_type`, a class made by `packable` or a dataclass, is the type of the samples. Pass `format` if file names
    do not show it, and `schema` if files do not store one, or for features that the types of an Arrow table do not
    determine; other options are those of the format.

    >>> ds = open([{"x": 1}, {"x": 2}])
    >>> len(ds), ds[-1]
    (2, DictSample(x=2))
    >>> open({"x": [1, 2], "name": ["a", "b"]})[0]
    DictSample(x=1, name='a')
    """
    if catalog.is_reference(what):
        return _open_registered(what, sample_type, format, schema, options)
    rows = _rows_of(what, sample_type, format, schema, options)
    opened: Dataset[Any] = rows if isinstance(rows, Dataset) else Dataset(media_decoded(_abstract(rows)))
    return opened if sample_type is None else opened.as_type(sample_type)


def _rows_of(what: Any, sample_type: Any, format: str | None, schema: Any, options: dict[str, Any]) -> Any:
    """Return the rows; files that store no schema are read with that of the sample type."""
    if sample_type is not None:
        layers.check_type(sample_type)
    in_memory = _in_memory(what, schema)
    if in_memory is not None:
        if format is not None or options or (schema is not None and not room.is_table(what)):
            raise ArgumentError(
                "expected no format, schema or options with rows or samples in memory, got some; "
                "write(path, samples, schema) stores samples with a schema"
            )
        return in_memory
    if not isinstance(what, str | os.PathLike | list | tuple):
        raise ArgumentError(
            "expected paths, or data in memory: samples in a list, columns in a dict, a DataFrame, a table or a "
            f"Hugging Face dataset, got {type(what).__name__}{_advice(what)}"
        )
    if schema is not None:
        options["schema"] = Features.of(schema)
    wanted = None if sample_type is None else layers.features_wanted_by(sample_type)
    return open_rows(what, format, wanted=wanted, **options)


def _open_registered(
    what: Any, sample_type: Any, format: str | None, schema: Any, options: dict[str, Any]
) -> Dataset[Any]:
    """Open what a name in a catalog or a reference stands for, and compare the data with what was registered."""
    found = catalog.resolve(what, options.pop("trusted", None))
    content = found.content
    if format not in (None, content.format):
        raise ArgumentError(f"{found.label}: expected no format, or {content.format} as it has, got {format!r}")
    given = {**content.open_options, **options, **({} if schema is None else {"schema": schema})}
    untrusted = {} if found.trusted else {"trusted": False}
    typed = sample_type if content.fields is None else None
    opened: Dataset[Any] = open(content.what, typed, format=content.format, **given, **untrusted)
    rows = source_rows(opened.rows)
    assert isinstance(rows, ShardRows)
    known = room.references.fingerprint_of(rows)
    if known != content.fingerprint and not content.fingerprint.startswith(catalog.UNKNOWN):
        raise StaleIndexError(
            f"{found.label}: expected the data that were registered (fingerprint {content.fingerprint}, "
            f"{content.samples} samples), got others (fingerprint {known}, {len(rows)} samples) in "
            f"{display_name(content.what)}; register them as a new version, or open them by their path"
        )
    room.references.mark(opened, found.name, found.version)
    if content.fields is not None:
        opened = opened.select(content.fields)
        return opened if sample_type is None else opened.as_type(sample_type)
    return opened


def _abstract(rows: Rows) -> AbstractRows:
    return rows if isinstance(rows, AbstractRows) else AdaptedRows(rows)


def _in_memory(what: Any, schema: Any) -> Any:
    """Return rows of data that is in memory, None for files."""
    if isinstance(what, list | tuple) and len(what) > 0 and all(map(_is_sample, what)):
        return _rows_of_samples(what)
    if isinstance(what, Rows) and callable(what.read) and not isinstance(what, Sequence):  # not a column named "read"
        return what
    if isinstance(what, str | os.PathLike):
        return None
    if room.is_table(what):
        return room.from_table(what, schema)
    return room.from_columns(what) if isinstance(what, Mapping) else None


def _advice(what: Any) -> str:
    """Return what to do with data that is not a dataset."""
    if callable(getattr(what, "collect", None)):
        return ": call collect() first"
    if hasattr(what, "__array__"):
        return ": name it, {'x': array}"
    if type(what).__module__.startswith("shardex.compat."):
        return ": open its files, sx.open(path), or of typed samples sx.open(path, Class)"
    if isinstance(what, Iterable):
        return ", which has no random access: store it with write(path, samples) alone, or make a list of it"
    return ""


def _is_sample(one: Any) -> bool:
    return isinstance(one, Mapping) or is_sample_class(type(one))


def _rows_of_samples(samples: Sequence[Any]) -> AbstractRows:
    """Return rows of a list of samples, typed if all are of one class."""
    kinds = {type(one) for one in samples}
    if any(map(is_sample_class, kinds)):
        rows = room.ListRows([fields_of(one) for one in samples])
        return TypedRows(rows, kinds.pop()) if len(kinds) == 1 else rows
    return room.ListRows(samples)


def index(
    what: What,
    attributes: Sequence[str] = (),
    *,
    format: str | None = None,
    schema: Any = None,
    checksums: bool = False,
    workers: int | None = None,
    executor: ExecutorLike = None,
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Open shards, and store their index, extracted columns or checksums, which later opens of the same files use.

    `attributes` are keys of JSON Lines, or of JSON in the samples of tars: their values are extracted once, now, so
    that `where` and `sql` need not decode the samples; files that change are extracted again.
    With `checksums`, every block of the files is verified from now on when it is first read; a changed file
    raises an error until its checksums are computed again.

    Files are read one by one in this process, in threads or in processes, as suits the format. `workers` is the number
    of processes to use instead (1: this process). `executor` runs them elsewhere: "ray", an address of Ray, or an
    executor of `concurrent.futures`. What is stored is the same.

    >>> import os, tempfile; path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> with __builtins__["open"](path, "w") as file:
    ...     _ = file.write('{"lang": "de", "text": "..."}\\n{"lang": "en", "text": "..."}\\n')
    >>> ds = index(path, attributes=["lang"])
    >>> len(ds.where("lang = 'de'"))
    1
    """
    own: dict[str, Any] = {"attributes": attributes or None, "checksums": checksums or None, "progress": progress}
    own |= {"workers": workers, "executor": executor}
    options |= {name: value for name, value in own.items() if value is not None}
    return open(what, format=format, schema=schema, **options)
