"""Parquet files: row groups are decoded as they are needed (`arrow.DecodedTable`), and written with page checksums.

A row group is the smallest unit that can be read: a random read decodes a whole group, a pass in order decodes each
group once. Page checksums are verified where a file has them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardex.columns import CACHE_BYTES, BatchBuilder, DecodedTable, DecodeLimit, Table, arrow_types, number_array
from shardex.errors import ArgumentError, FormatError, SchemaError, ShardexError, storage_errors
from shardex.features import (
    Array,
    Decimal,
    Feature,
    Features,
    Media,
    Struct,
    arrow_schema,
    features_of_arrow,
    told_apart,
    unwrap_optional,
)
from shardex.files import Files, StagedWriter
from shardex.formats.join_shards import JoinShards
from shardex.formats.parquet.pages import DecodedSize, decoded_size, delta_bytes, repeated_bytes
from shardex.formats.parquet.partitions import PartitionRows, folder_values
from shardex.formats.registry import Format
from shardex.formats.signatures import FORMATS
from shardex.formats.table_rows import TableRows, fetch_footers, file_reader, files_digest, ranges_at
from shardex.kernel import Columns, Ranges
from shardex.sources import LocalSource

__all__ = [
    "FORMAT",
]

GROUP_BYTES = 64 << 20
"""Maximum bytes of a row group, even if it has fewer rows than `row_group_rows`."""
_PROBE_BYTES, _REMOTE_PROBE_BYTES = 64 << 20, 4 << 20
"""Bytes of nested columns that are decoded at most to find out where they have nulls."""
_EXTENSIONS = FORMATS["parquet"].extensions
_OWNED = r".*\.(parquet|pq)"
_MAGIC = (b"PAR1", b"PARE")
"""The end of a Parquet file: plain, or with an encrypted footer."""


def open(
    files: Files,
    *,
    schema: Features | None = None,
    cache_bytes: int = CACHE_BYTES,
    max_decoded_bytes: int | str | None = None,
) -> TableRows:
    """Open the rows of Parquet files; at most `cache_bytes` of decoded groups are cached.

    Names of folders such as ``year=2024`` are fields too (see `partitions`).

    A group whose columns would take more than `max_decoded_bytes` raises an error (see `DecodeLimit`).
    """
    files = files.having(*_EXTENSIONS) if files.folder else files
    groups = _Groups(files, DecodeLimit(max_decoded_bytes))
    values = {n: texts for n, texts in folder_values(files.paths).items() if n not in groups.schema.names}
    declared = Features({} if schema is None else Features.of(schema))
    partitions = PartitionRows(values, groups.rows_of_files, declared)
    declared = Features({name: feature for name, feature in declared.items() if name not in values})
    ours = b"shardex" in (groups.schema.metadata or {})
    typed = features_of_arrow(groups.schema, declared)
    media = {name for name, feature in typed.items() if isinstance(unwrap_optional(feature), Media)}
    features = typed if ours else features_of_arrow(groups.schema, declared, groups.nulls(media))
    table = DecodedTable(
        features,
        groups.schema,
        groups.rows,
        groups.decode,
        groups.name,
        cache_bytes,
        groups.extents,
        groups.evicts,
        groups.limit,
        groups.encoded_bytes,
        file_reader(files),
    )
    tables: list[Table] = [table, partitions] if values else [table]
    every = Features({**features, **partitions.features})
    return TableRows(tables, groups.rows_of_files, every, groups.digest, groups.files)


class _Groups:
    """The row groups of all files."""

    def __init__(self, files: Files, limit: DecodeLimit) -> None:
        if not files.paths:
            raise FormatError(f"{files}: expected at least one Parquet file, got none")
        self.digest = files_digest(files)
        self.files = [files.name(number) for number in range(len(files.paths))]
        self.limit = limit
        self._small: set[tuple[int, int]] = set()
        """Groups and leaf columns that were found to be small enough to decode."""
        self._open: dict[int, pq.ParquetFile] = {}
        self._data = files.source.buffer_table(files.paths, close_file=self._close_file)
        self.evicts = self._data.evicts
        data = [self._data.open(number) for number in range(len(self.files))]
        self.encoded_bytes = sum(one.size for one in data)
        fetch_footers(self._data, [one.size for one in data], self._footer_size)
        readers = [_reader(one, name) for one, name in zip(data, self.files, strict=True)]
        self._metadata = [reader.metadata for reader in readers]
        self._columns = [column.path for column in readers[0].schema]
        self._leaves: dict[str, list[int]] = {}
        """Numbers of the leaf columns of each field that was read."""
        self.schema: pa.Schema = readers[0].schema_arrow
        for name, reader in zip(self.files, readers, strict=True):
            if (found := arrow_types.schema_text(reader.schema_arrow)) != (
                expected := arrow_types.schema_text(self.schema)
            ):
                raise FormatError(f"{name}: expected the schema of the first file ({expected}), got {found}")
        if not self.evicts:
            self._open.update(enumerate(readers))
        self._places = [(n, group) for n, one in enumerate(self._metadata) for group in range(one.num_row_groups)]
        self.rows = [self._metadata[n].row_group(group).num_rows for n, group in self._places]
        self.rows_of_files = [0] * len(self.files)
        for (number, _), rows in zip(self._places, self.rows, strict=True):
            if rows < 0:
                raise FormatError(f"{self.files[number]}: expected row groups with rows, got one of {rows}")
            self.rows_of_files[number] += rows
        for number, rows in enumerate(self.rows_of_files):  # each row takes at least a byte when it is read
            self.limit.check(rows, data[number].size, self.files[number])

    def _close_file(self, number: int) -> None:
        self._open.pop(number, None)

    def _footer_size(self, number: int) -> int:
        """Return the size of the footer in the last bytes of a file; in a file that is no Parquet it is any number."""
        size = self._data.open(number).size
        tail = self._data.slice(number, max(0, size - 8), size).tobytes()
        return 8 + int.from_bytes(tail[:4], "little") if tail[4:] in _MAGIC else 0

    def _reader(self, number: int) -> pq.ParquetFile:
        if (reader := self._open.get(number)) is None:
            reader = _reader(self._data.open(number), self.files[number], self._metadata[number])
            self._open[number] = reader
        return reader

    def name(self, number: int) -> str:
        """File and number of a group, for error messages."""
        file, group = self._places[number]
        return f"{self.files[file]}, row group {group}"

    def decode(self, number: int, names: list[str]) -> pa.Table:
        """Decode these columns of a group."""
        held = self.extents([number], names).hold()
        table = self._small_table(number, names)
        del held
        return table

    def _small_table(self, number: int, names: list[str]) -> pa.Table:
        """Decode columns of a group; raise an error if they take too much memory. Each is looked at once."""
        file, group = self._places[number]
        leaves = [leaf for name in names for leaf in self._leaves[name]]
        if not self._small.issuperset((number, leaf) for leaf in leaves):
            metadata, where = self._metadata[file].row_group(group), self.name(number)
            encoded = sum(metadata.column(leaf).total_compressed_size for leaf in leaves)
            sizes = {self._columns[leaf]: self._decoded_size(file, metadata, leaf, where) for leaf in leaves}
            sure, most = (sum(getattr(size, name) for size in sizes.values()) for name in ("sure", "most"))
            self.limit.check(sure, encoded, where)
            table = self._measured(number, names, sizes, sure, encoded) if most > self.limit.allowed(encoded) else None
            self._small.update((number, leaf) for leaf in leaves)
            if table is not None:
                return table
        return self._reader(file).read_row_group(group, columns=names)

    def _measured(
        self, number: int, names: list[str], sizes: dict[str, DecodedSize], sure: int, encoded: int
    ) -> pa.Table | None:
        """Measure columns that repeat long values; return them if they could be decoded on the way."""
        file, group = self._places[number]
        delta = delta_bytes(self._reader(file), group, sizes, self.limit.allowed(encoded))
        self.limit.check(sure + delta, encoded, self.name(number))
        repeats = [path for path, size in sizes.items() if size.most > size.sure and not size.longest_delta]
        reader = _reader(self._data.open(file), self.files[file], self._metadata[file], repeats)
        table = reader.read_row_group(group, columns=names)
        self.limit.check(sure + delta + repeated_bytes(table), encoded, self.name(number))
        if any(pa.types.is_nested(field.type) for field in table.schema):
            return None
        return table.cast(pa.schema([self.schema.field(name) for name in table.column_names]))

    def _decoded_size(self, file: int, metadata: pq.RowGroupMetaData, leaf: int, where: str) -> DecodedSize:
        column, kind = metadata.column(leaf), self._metadata[file].schema.column(leaf)
        begin, length = _chunk(column)
        data = self._data.open(file).data[begin : begin + length]
        width = {"BYTE_ARRAY": None, "FIXED_LEN_BYTE_ARRAY": max(kind.length, 1)}.get(kind.physical_type, 8)
        try:
            size = decoded_size(data, column.num_values, width)
        except IndexError:
            raise FormatError(
                f"{where}, column {kind.path}: expected the header of a page, got something else"
            ) from None
        rows = metadata.num_rows * (width or 4) if not kind.max_repetition_level else 0
        return DecodedSize(max(size.sure, rows), max(size.most, rows), size.longest_delta)

    def extents(self, numbers: Iterable[int], names: Collection[str]) -> Ranges:
        """Return the byte ranges of these columns of groups."""
        for name in (name for name in names if name not in self._leaves):
            self._leaves[name] = [k for k, path in enumerate(self._columns) if _below(path, name)]
        leaves = [k for name in names for k in self._leaves[name]]
        return ranges_at(self._data, [place for number in numbers for place in self._extents_of(number, leaves)])

    def _extents_of(self, number: int, leaves: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        file, group = self._places[number]
        metadata = self._metadata[file].row_group(group)
        for column in map(metadata.column, leaves):
            yield file, *_chunk(column)

    def nulls(self, media: Collection[str]) -> set[arrow_types.Path]:
        """Return the columns, and parts inside them, that have nulls; where that is not known, those that may have.

        The statistics of a nested column count nulls at all depths and empty lists together. To tell them apart, its
        row groups that have some are decoded, up to a limit; beyond it, lists of numbers count as without nulls. Fields
        of `media` have no nulls if none of their bytes are null: whether a path is null does not matter.
        """
        found: set[arrow_types.Path] = set()
        left = _REMOTE_PROBE_BYTES if self.evicts else _PROBE_BYTES
        for field in self.schema:
            leaf = f"{field.name}.bytes" if field.name in media and pa.types.is_struct(field.type) else field.name
            leaves = [k for k, path in enumerate(self._columns) if _below(path, leaf)]
            groups = [number for number in range(len(self._places)) if self._may_have_nulls(number, leaves)]
            possible = set(arrow_types.nullable_paths(field))
            if not groups or not possible:
                continue
            if possible == {(field.name,)}:
                found |= possible
                continue
            for number in groups:
                left -= self._stated_size(number, leaves)
                if left < 0 or (known := self._probe(number, field.name)) is None:
                    found |= {path for path in possible if not arrow_types.is_number_item(field, path)}
                    break
                found |= known
        return found

    def _may_have_nulls(self, number: int, leaves: Iterable[int]) -> bool:
        file, group = self._places[number]
        columns = map(self._metadata[file].row_group(group).column, leaves)
        statistics = (column.statistics for column in columns)
        return any(one is None or not one.has_null_count or one.null_count for one in statistics)

    def _stated_size(self, number: int, leaves: Iterable[int]) -> int:
        file, group = self._places[number]
        columns = map(self._metadata[file].row_group(group).column, leaves)
        return sum(column.total_uncompressed_size for column in columns)

    def _probe(self, number: int, name: str) -> set[arrow_types.Path] | None:
        """Return the paths of a column that have nulls in a group; None if it cannot be read, which a read reports."""
        try:
            column = self.decode(number, [name]).column(name)
            column.validate(full=True)
        except (pa.ArrowException, OSError, ShardexError):
            return None
        return arrow_types.null_paths(name, column.chunks)


def _chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return offset and length of the pages of a column chunk."""
    begins = [begin for begin in (column.dictionary_page_offset, column.data_page_offset) if begin]
    return min(begins, default=0), column.total_compressed_size


def _below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _reader(
    data: Any, name: str, metadata: pq.FileMetaData | None = None, as_dictionaries: Collection[str] = ()
) -> pq.ParquetFile:
    try:
        # Reading ahead (pre_buffer) is not thread-safe, and the file is mapped anyway.
        reader = pq.ParquetFile(
            pa.BufferReader(pa.py_buffer(data)),
            metadata=metadata,
            read_dictionary=list(as_dictionaries),
            pre_buffer=False,
            page_checksum_verification=True,
        )
        arrow_types.check_column_names(reader.schema_arrow)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"{name}: expected a Parquet file, got something else: {error}") from None
    return reader


# -- writing ----------------------------------------------------------------------------------------------------


def not_in_parquet(feature: Feature) -> str | None:
    """Return what a feature has inside that Parquet cannot represent; `None` if it has nothing like that.

    >>> not_in_parquet(Struct({})), not_in_parquet(Decimal(5, 2))
    ('struct of () without elements', None)
    """
    for _, inner in feature.nested(""):
        empty = isinstance(inner, Array) and inner.dtype is not None and inner.fixed and 0 in (inner.shape or ())
        if empty or (isinstance(inner, Struct) and not inner.fields):
            return f"{inner} without elements"
        if isinstance(inner, Decimal) and not 0 <= inner.scale <= inner.precision:
            return f"{inner}, whose scale is not between 0 and its precision,"
    return None


_NULL_LISTS = int(pa.__version__.partition(".")[0]) >= 26
"""Whether this version of Arrow writes fixed-size lists that are null, and reads them back."""


def _written_field(field: pa.Field, inside: bool = False) -> pa.Field:
    return field.with_type(_written_type(field.type, inside or (field.nullable and not _NULL_LISTS)))


def _written_type(kind: pa.DataType, inside: bool) -> pa.DataType:
    """Return the type to write: fixed-size lists in structs become lists, which Arrow can read back below a null."""
    if pa.types.is_struct(kind):
        return pa.struct([_written_field(field, inside=True) for field in kind])
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind)):
        return kind
    item = _written_field(kind.value_field, inside)
    return pa.large_list(item) if inside or pa.types.is_large_list(kind) else pa.list_(item, kind.list_size)


class ParquetWriter(StagedWriter):
    """Writes ``part-00000.parquet`` and so on; a row group ends at `row_group_rows` rows or 64 MiB."""

    _file: pq.ParquetWriter | None = None
    """The shard that is being written."""
    _sink: pa.OSFile
    """The file of that shard."""

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str,
        shard_rows: int = 1_000_000,
        row_group_rows: int = 8192,
        compression: str = "zstd",
    ) -> None:
        if shard_rows < 1 or row_group_rows < 1:
            raise ArgumentError(
                f"expected shards and row groups of at least 1 row, got {shard_rows} and {row_group_rows}"
            )
        for name, feature in features.items():
            if (unfit := not_in_parquet(feature)) is not None:
                raise SchemaError(
                    f"expected values that Parquet can hold, got {unfit} - at field {name}; arrow can hold them"
                )
        super().__init__(path, mode, _OWNED)
        with self._abort_on_error():
            self._refuse_other_fields(features)
            self._number = self._stage.next_number("part", ".parquet")
            self._builder = BatchBuilder(features, arrow_schema(features))
            kinds = [_written_field(field) for field in self._builder.schema]
            self._schema = pa.schema(kinds, metadata=self._builder.schema.metadata)
        self._shard_rows, self._group_rows, self._compression = shard_rows, row_group_rows, compression
        self._rows = 0
        """Rows in the current shard, without those of the builder."""

    def _refuse_other_fields(self, features: Features) -> None:
        """Raise an error if existing files have other fields: all files of a dataset have one schema."""
        for path in self._stage.existing:
            if path.lower().endswith(_EXTENSIONS):
                full = os.path.join(self.path, path)
                found = features_of_arrow(_reader(LocalSource(self.path).map(path), full).schema_arrow)
                if found != features:
                    has, got = told_apart(found, features)
                    raise SchemaError(f"{full}: expected the fields it has ({has}), got {got}")
                return

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample."""
        if self._closed:
            self._check_open()
        self._builder.append(sample)
        rows = self._builder.rows
        full = rows >= self._group_rows or self._rows + rows >= self._shard_rows
        if full or (rows & 15 == 0 and self._builder.nbytes >= GROUP_BYTES):
            with self._abort_on_error():
                self._flush()

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: the files are the same as if they were appended one by one."""
        self._check_open()
        builder, encoded, begin = self._builder, self._builder.encode(columns), 0
        with self._abort_on_error():
            while begin < len(columns):
                room = min(self._group_rows, self._shard_rows - self._rows)
                enough = int(np.searchsorted(encoded.sizes, encoded.sizes[begin] + GROUP_BYTES - builder.nbytes))
                by_size = -(-(builder.rows + max(1, enough - begin)) // 16) * 16
                full = min(room, by_size)
                end = min(begin + full - builder.rows, len(columns))
                builder.add(encoded, begin, end)
                if builder.rows == full:
                    self._flush()
                begin = end
            if builder.rows and len(columns):
                builder.copy_last(encoded)

    def _flush(self) -> None:
        target = self._stage.place.path(f"part-{self._number:05d}.parquet")
        with storage_errors(target, "write"):
            if self._file is None:
                self._sink = pa.OSFile(os.fsencode(target), "wb")  # as bytes: a path may be no UTF-8
                self._file = pq.ParquetWriter(
                    self._sink, self._schema, compression=self._compression, write_page_checksum=True
                )
            self._rows += self._builder.rows
            batch = arrow_types.with_schema(self._builder.finish(), self._schema)
            # `take` leaves out the values of lists that are null, which older versions of Arrow refuse to write.
            self._file.write_batch(batch if _NULL_LISTS else batch.take(number_array(np.arange(len(batch)))))
            if self._rows >= self._shard_rows:
                self._finish_file()

    def _finish_file(self) -> None:
        if self._file is not None:
            file, self._file, self._rows = self._file, None, 0
            self._number += 1
            with closing(self._sink):
                file.close()

    def _finish(self) -> None:
        # An empty dataset is one file without rows, which stores the fields.
        if self._builder.rows or not self._builder.finished:
            self._flush()
        with storage_errors(self.path, "write"):
            self._finish_file()

    def _discard(self) -> None:
        with suppress(OSError, pa.ArrowException):  # closing writes, and the disk may be full
            self._finish_file()
        super()._discard()


FORMAT = Format(open, ParquetWriter, JoinShards(_OWNED, ".parquet"), stores_schema=True, self_describing=True)
