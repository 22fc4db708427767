"""The format data_forager: a folder as data-forager has it, with its index, opened by what it holds and written.

The rows are those of `jsonl` and `tokens`, at the places that the index says, or `SampleArrayRows`. Arrays of numbers
are written as files of tokens in ``tokenized-samples``: arrays of one length with ``sample_schema.json``, one array of
any length in files whose extension is its dtype (``.u16``). Other samples are written as JSON Lines. The index has
relative paths, as the package writes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, SchemaError, UnknownFormatError
from shardex.features import Array, Features
from shardex.files import Files
from shardex.formats import data_forager
from shardex.formats.data_forager import NAMES, SCHEMA, TABLE, ArraySpec, ForagerIndex, SampleSchema
from shardex.formats.data_forager_index import ENTRIES_AT_ONCE, RECORD, IndexRecord, IndexTable
from shardex.formats.join_shards import JoinShards
from shardex.formats.json_text import JsonEncoder
from shardex.formats.jsonl.format import check_decode, rows_of_lines
from shardex.formats.jsonl.writer import JSON_LINES
from shardex.formats.registry import Format, ShardRows
from shardex.formats.sample_writer import SeriesWriter, ShardSeries, check_shard_options
from shardex.formats.tokens.files import array_fields, is_array, number_dtype
from shardex.formats.tokens.format import DTYPES, NumberRows, NumberWindowRows, checked_dtype, dtype_of_names

_FOLDER = "tokenized-samples"
_INDEX = r"file_location\.txt|sample_locations\.bin|sample_schema\.json|shardex\.json"
_OWNED = rf"index/({_INDEX})|{_FOLDER}/[^/]+|[^/]+\.jsonl"
_EXTENSIONS = {np.dtype(name).name: extension for extension, name in DTYPES.items()}


def recognise(files: Files) -> int:
    """Recognise a folder with an index."""
    return 2 * (data_forager.listed_files(files) is not None)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    decode: str | None = None,
    infer_from: str | None = None,
    rebuild: bool = False,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
    trust_paths: bool = False,
) -> ShardRows:
    """Open the samples that the index locates: JSON lines, tokens, or several arrays of tokens.

    `decode`, `infer_from` and `rebuild` are options of lines, as `jsonl` has them; `dtype`, `window` and `field` of
    tokens, as `tokens` has them. ``trust_paths=True`` allows the index to name files outside the folder.
    """
    names = data_forager.listed_files(files)
    if names is None:
        raise UnknownFormatError(f"{files}: expected a folder with {NAMES} and {TABLE}, got none")
    of_lines = {"decode": decode, "infer_from": infer_from}
    of_tokens = {"dtype": dtype, "window": window, "field": field}
    if data_forager.has_schema(files):
        _refuse_options(files, f"{SCHEMA} names the arrays of a sample", **of_tokens, **of_lines)
        return data_forager.open_arrays(files, schema=schema, trust_paths=trust_paths)
    data, index = data_forager.open_index(files, trust_paths=trust_paths)
    if all(name.lower().endswith(JSON_LINES) for name in names):
        _refuse_options(files, f"{NAMES} names JSON lines", **of_tokens)
        check_decode(decode := decode or "json")
        return rows_of_lines(data, index, schema, decode, infer_from, rebuild=rebuild)
    _refuse_options(files, f"{NAMES} names files of tokens", **of_lines)
    return _token_rows(files, data, index, schema, dtype, window, field)


def _refuse_options(files: Files, reason: str, **options: Any) -> None:
    """Raise an error for options that samples of this kind do not have."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{files}: expected no {name}, because {reason}, got {name}={value!r}")


def _token_rows(
    files: Files,
    data: Files,
    index: ForagerIndex,
    schema: Features | None,
    dtype: str | None,
    window: int | None,
    field: str | None,
) -> NumberWindowRows | NumberRows:
    if schema is not None:
        dtypes, size = array_fields(Features.of(schema))
        (name, given), *others = dtypes.items()
        if others:
            raise SchemaError(f"{files}: expected one array, as there is no {SCHEMA}, got {schema}")
        field, dtype, window = field or name, dtype or given, window or size
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    record = IndexRecord.read(files.source, f"index/{RECORD}") if f"index/{RECORD}" in files.paths else None
    recorded = None if record is None else record.dtype
    known, origin = (dtype_of_names(data), "their extension") if recorded is None else (recorded, f"index/{RECORD}")
    arrays = {field or "tokens": checked_dtype(data, dtype, known, origin)}
    if window is not None:
        return NumberWindowRows(data, arrays, window)
    size = index.same_length()
    return NumberRows(data, index, arrays, None if size is None else size // next(iter(arrays.values())).itemsize)


# -- writing --------------------------------------------------------------------------------------------------


def create(
    path: str, features: Features, *, mode: str = "create", prefix: str = "part", shard_size: int = 1 << 30
) -> SeriesWriter:
    """Return a writer of a folder that data-forager reads; the features decide whether it holds tokens or lines."""
    check_shard_options(1, shard_size, prefix)
    if mode == "append":
        raise ArgumentError(
            'expected mode "create" or "overwrite", got "append": folders of data-forager cannot be appended to'
        )
    features = Features.of(features)
    kinds = (isinstance(one, Array) and len(one.shape or ()) == 1 for one in features.values())
    writer = _TokenWriter if features and all(kinds) else _LineWriter
    return writer(path, features, mode, prefix, shard_size)


class _ForagerWriter(SeriesWriter):
    """Writes records to a series of files, and the place of each to the index."""

    def __init__(
        self, path: str, features: Features, mode: str, folder: str, name: Callable[[int], str], shard_size: int
    ) -> None:
        super().__init__(path, mode, features, _OWNED, publish_last=(NAMES, TABLE))
        with self._abort_on_error():
            self._table = IndexTable(self._stage, "index")
            if folder:
                os.makedirs(self._stage.place.path(folder))
            self._shards = ShardSeries(self._stage, name, size=shard_size)
        self._name = name

    def _store(self, record: Any) -> None:
        table, shards = self._table, self._shards
        if len(table.entries) >= 3 * ENTRIES_AT_ONCE:
            table.flush()
        shards.write(record)
        table.entries.extend((shards.number, shards.size - len(record), len(record)))

    def _finish(self) -> None:
        super()._finish()
        for number in range(self._shards.number + 1):
            self._table.number(self._name(number))
        self._table.finish(self._schema())

    def _schema(self) -> SampleSchema | None:
        """Return the arrays of a sample, if they are described."""
        return None


class _TokenWriter(_ForagerWriter):
    """Writes the arrays of a sample one after another."""

    def __init__(self, path: str, features: Features, mode: str, prefix: str, shard_size: int) -> None:
        dtypes, size = array_fields(features)
        kinds = {name: number_dtype(dtype) for name, dtype in dtypes.items()}
        if size is None and len(kinds) > 1:
            raise SchemaError(
                f"expected one array, or several of one length, as a sample of data-forager has, got {features}; make "
                "some with windows() or pack()"
            )
        if size == 0:
            raise SchemaError(f"expected arrays of at least one number, got {features}")
        extension = ".bin"
        if size is None:
            (only,) = kinds.values()
            extension = _EXTENSIONS.get(only.name, "")
        if not extension:
            raise SchemaError(f"expected numbers of {', '.join(_EXTENSIONS)}, got {features}")

        def name(number: int) -> str:
            return f"{_FOLDER}/{prefix}-{number:05d}-tokenized-samples{extension}"

        super().__init__(path, features, mode, _FOLDER, name, shard_size)
        self._size, self._kinds = size, kinds

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        arrays: list[Any] = [sample.get(name) for name in self._kinds]
        known = len(sample) == len(arrays) and all(map(is_array, arrays, self._kinds.values()))
        return sample if known and all(self._size in (None, len(one)) for one in arrays) else super()._fit(sample)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return b"".join(sample[name].tobytes() for name in self._kinds)

    def _schema(self) -> SampleSchema | None:
        if self._size is None:
            return None
        arrays, end = [], 0
        for name, dtype in self._kinds.items():
            arrays.append(ArraySpec(name, dtype.name, end))
            end += self._size * dtype.itemsize
        return SampleSchema(self._size, arrays, end)


class _LineWriter(_ForagerWriter):
    """Writes samples as JSON lines."""

    def __init__(self, path: str, features: Features, mode: str, prefix: str, shard_size: int) -> None:
        self._to_json = JsonEncoder(features)
        super().__init__(path, features, mode, "", lambda number: f"{prefix}-{number:05d}.jsonl", shard_size)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return self._to_json(sample) + b"\n"


FORMAT = Format(
    open,
    create,
    JoinShards(_OWNED, ".bin", publish_last=(NAMES, TABLE)),
    part_format="arrow",
    only_arrays=True,
)
