"""Parquet files: row groups decoded as they are needed and kept while there is room, only the columns asked for.

A row group is the smallest thing that can be read, so random reads cost a group each; a pass in order decodes every
group once. Decoded columns of a few groups are kept (least recently used go first), the file itself is only mapped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shardex.builder import BatchBuilder
from shardex.columns import Columns
from shardex.errors import FormatError, SchemaError
from shardex.format import ShardRows
from shardex.gather import Integers
from shardex.layout import column_of, features_of_arrow
from shardex.rows import check_fields
from shardex.schema import Array, Features
from shardex.shards import Files
from shardex.staging import Stage

__all__ = ["ParquetRows", "ParquetWriter", "create", "open", "recognise"]

_EXTENSIONS = (".parquet", ".pq")
_CACHE_BYTES = 256 << 20


def recognise(files: Files) -> bool:
    """Files named as Parquet."""
    return bool(files.having(*_EXTENSIONS).paths)


def open(files: Files, *, schema: Features | None = None, cache_bytes: int = _CACHE_BYTES) -> ParquetRows:
    """The rows of Parquet files; `cache_bytes` bounds what is kept decoded."""
    return ParquetRows(files.having(*_EXTENSIONS) if files.folder else files, schema, cache_bytes)


class ParquetRows(ShardRows):
    """Rows of row groups, one after another."""

    def __init__(self, files: Files, told: Features | None, cache_bytes: int) -> None:
        if not files.paths:
            raise FormatError(f"{files}: expected at least one Parquet file, got none")
        self.files = files
        self._readers = [_reader(files, number) for number in range(len(files.paths))]
        self.schema = self._readers[0].schema_arrow
        for number, reader in enumerate(self._readers):
            if not reader.schema_arrow.equals(self.schema):
                raise FormatError(f"{files.name(number)}: expected the schema of the first file, got {reader.schema_arrow}")
        self._groups = [(n, g) for n, reader in enumerate(self._readers) for g in range(reader.num_row_groups)]
        counts = [self._readers[n].metadata.row_group(g).num_rows for n, g in self._groups]
        self.starts: Integers = np.cumsum([0, *counts], dtype=np.int64)
        own = features_of_arrow(self.schema)
        self._features = own if told is None else Features({n: told[n] if n in told else f for n, f in own.items()})
        self._cache: OrderedDict[tuple[int, str], pa.Array] = OrderedDict()
        self._cache_bytes, self._cached = cache_bytes, 0

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        return self._features

    @property
    def fingerprint(self) -> str:
        """Names the files, their sizes and times."""
        stats = [(path, self.files.source.stat(path)) for path in self.files.paths]
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode([[path, stat.size, stat.tag] for path, stat in stats]))

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        return [self.files.name(number) for number in range(len(self.files.paths))]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Rows grouped by row group, each group decoded once."""
        names = check_fields(list(self._features), fields)
        if not len(rows):
            empty = self.schema.empty_table()
            return Columns({name: column_of(empty.column(name), self._features[name]) for name in names}, 0)
        group_of = np.searchsorted(self.starts, rows, "right") - 1
        parts, places = [], []
        for group in np.unique(group_of).tolist():
            here = np.flatnonzero(group_of == group)
            local = pa.array(rows[here] - self.starts[group])
            arrays = self._arrays(group, names)
            parts.append(Columns({n: column_of(arrays[n].take(local), self._features[n]) for n in names}, len(here)))
            places.append(here)
        return Columns.scatter(parts, places)

    def _arrays(self, group: int, names: Sequence[str]) -> dict[str, pa.Array]:
        missing = [name for name in dict.fromkeys(names) if (group, name) not in self._cache]
        found = {name: self._cache[group, name] for name in names if name not in missing}
        if missing:
            found |= self._decode(group, missing)
        for name, array in found.items():
            self._keep((group, name), array)
        return found

    def _decode(self, group: int, names: list[str]) -> dict[str, pa.Array]:
        number, local = self._groups[group]
        try:
            table = self._readers[number].read_row_group(local, columns=names)
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.files.name(number)}: expected row group {local}, got bytes that Parquet refuses: {error}") from None
        if table.num_rows != int(self.starts[group + 1] - self.starts[group]):
            raise FormatError(f"{self.files.name(number)}: expected {self.starts[group + 1] - self.starts[group]} rows in row group {local}, got {table.num_rows}")
        return {name: _one(table.column(name)) for name in names}

    def _keep(self, key: tuple[int, str], array: pa.Array) -> None:
        if key not in self._cache:
            self._cached += array.nbytes
        self._cache[key] = array
        self._cache.move_to_end(key)
        while self._cached > self._cache_bytes and len(self._cache) > 1:
            _, old = self._cache.popitem(last=False)
            self._cached -= old.nbytes


def _reader(files: Files, number: int) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(pa.py_buffer(files.source.map(files.paths[number]))))
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{files.name(number)}: expected a Parquet file, got something else: {error}") from None


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


# -- writing ----------------------------------------------------------------------------------------------------


def create(
    path: str,
    features: Features,
    *,
    mode: str,
    shard_rows: int = 1_000_000,
    row_group_rows: int = 8192,
    compression: str = "zstd",
) -> ParquetWriter:
    """Begin a folder of Parquet files."""
    if shard_rows < 1 or row_group_rows < 1:
        raise SchemaError(f"expected shards and row groups of at least 1 row, got {shard_rows} and {row_group_rows}")
    for name, feature in features.items():
        if isinstance(feature, Array) and feature.fixed and 0 in (feature.shape or ()):
            raise SchemaError(f"expected arrays that Parquet can hold, got {feature} without elements - at field {name}")
    return ParquetWriter(Stage(path, mode), features, shard_rows, row_group_rows, compression)


class ParquetWriter:
    """Writes `part-00000.parquet`, ... aside and publishes them at the end."""

    def __init__(self, stage: Stage, features: Features, shard_rows: int, row_group_rows: int, compression: str) -> None:
        self._stage = stage
        self._builder = BatchBuilder(features)
        self._shard_rows, self._group_rows, self._compression = shard_rows, row_group_rows, compression
        self._number = stage.next_number("part", ".parquet")
        self._file: pq.ParquetWriter | None = None
        self._rows = 0

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample."""
        self._builder.append(sample)
        if self._builder.rows >= self._group_rows or self._rows + self._builder.rows >= self._shard_rows:
            self._flush()

    def _flush(self) -> None:
        if self._file is None:
            target = self._stage.place.path(f"part-{self._number:05d}.parquet")
            self._file = pq.ParquetWriter(target, self._builder.schema, compression=self._compression)
            self._number += 1
        self._rows += self._builder.rows
        self._file.write_batch(self._builder.finish())
        if self._rows >= self._shard_rows:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._rows = None, 0

    def close(self) -> None:
        """Publish the files; an empty dataset is one empty file, so that its fields are known."""
        if self._builder.rows or not self._builder.finished:
            self._flush()
        self._finish_file()
        self._stage.publish()

    def abort(self) -> None:
        """Remove what was written aside."""
        self._finish_file()
        self._stage.discard()
