"""The format data_forager: a folder as data-forager has it, with its index, opened by what it holds and written.

Reading is left to `tokens` and `jsonl`, which recognise such folders themselves. Arrays of numbers are written as files
of tokens in ``tokenized-samples``: arrays of one length with ``sample_schema.json``, a single array of any length in
files whose extension is its dtype (``.u16``). Other samples are written as JSON Lines. The index is as the package
writes it, with relative paths.
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
from shardex.formats.data_forager import NAMES, TABLE, ArraySpec, SampleSchema
from shardex.formats.data_forager_index import ENTRIES_AT_ONCE, IndexTable
from shardex.formats.join_shards import JoinShards
from shardex.formats.jsonl import format as jsonl
from shardex.formats.jsonl.lines import JSON_LINES, refuse_bytes, refuse_lost_shape, shaped_fields, to_json
from shardex.formats.registry import Format, ShardRows
from shardex.formats.sample_writer import SeriesWriter, ShardSeries, check_shard_options
from shardex.formats.tokens import format as tokens
from shardex.formats.tokens.files import array_fields, is_array, number_dtype

_FOLDER = "tokenized-samples"
_INDEX = r"file_location\.txt|sample_locations\.bin|sample_schema\.json|shardex\.json"
_OWNED = rf"index/({_INDEX})|{_FOLDER}/[^/]+|[^/]+\.jsonl"
_EXTENSIONS = {np.dtype(name).name: extension for extension, name in tokens.DTYPES.items()}


def recognise(files: Files) -> int:
    """Return 0: `tokens` and `jsonl` recognise folders of data-forager, by the files that the index names."""
    return 0


def open(
    files: Files,
    *,
    schema: Features | None = None,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
    trust_paths: bool = False,
) -> ShardRows:
    """Open a folder with an index of data-forager: JSON lines, tokens, or arrays of tokens."""
    names = data_forager.listed_files(files)
    if names is None:
        raise UnknownFormatError(f"{files}: expected a folder with {NAMES} and {TABLE}, got none")
    if data_forager.has_schema(files) or not all(name.lower().endswith(JSON_LINES) for name in names):
        return tokens.open(files, schema=schema, dtype=dtype, window=window, field=field, trust_paths=trust_paths)
    return jsonl.open(files, schema=schema, trust_paths=trust_paths)


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
        refuse_bytes(features)
        super().__init__(path, features, mode, "", lambda number: f"{prefix}-{number:05d}.jsonl", shard_size)
        self._shaped = shaped_fields(features)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        for name, feature in self._shaped.items():
            refuse_lost_shape(sample[name], feature, name)
        return to_json(sample) + b"\n"


FORMAT = Format(
    "data_forager",
    recognise,
    open,
    create,
    JoinShards(_OWNED, ".bin", publish_last=(NAMES, TABLE)),
    part_format="arrow",
)
