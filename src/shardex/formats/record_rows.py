"""Rows whose samples are byte ranges of files: the common code of tar, JSON Lines, text, CSV and numbers.

File, offset and length of a row come from `Locations`: an `Index` that shardex made, a table that another tool made
(`MappedIndex`), or arithmetic. `RecordRows` turns rows into `Ranges` of the mapped files; a format decodes them into
columns. `DictRows` does that for records that decode to one dict each. A file that changed since it was indexed raises
an error when it is first mapped.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from shardex.columns import check_fields
from shardex.errors import (
    FieldError,
    FormatError,
    RowError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
)
from shardex.features import Features, Inferred, conversions
from shardex.files import Files, IndexedFile
from shardex.formats.record_fields import (
    KeyScan,
    MakeDecoder,
    RecordFields,
    check_infer_from,
    float_fields,
    inferred_column,
    integers_to_floats,
    record_fields,
)
from shardex.formats.registry import ShardRows
from shardex.kernel import MISSING, Bytes, Columns, Integers, Ranges, Segments, take
from shardex.rows import media_in

_INFER_FROM = 16


def map_files(
    files: Files, indexed: Sequence[IndexedFile], check: Callable[[int], None] = lambda number: None
) -> Segments:
    """Return a buffer table of the files. A file is mapped when it is first read, and must still be the one indexed.

    `check` is called with the number of a file before it is mapped.
    """

    def open_file(number: int) -> memoryview:
        check(number)
        file, data = indexed[number], files.source.map(files.paths[number])
        if len(data) < file.size:
            raise TruncatedShardError(
                f"{files.name(number)}: expected {file.size} bytes as when it was indexed, got {len(data)}"
            )
        if not file.is_unchanged(files.source.stat(files.paths[number]), files.source):
            raise StaleIndexError(
                f"{files.name(number)}: expected the file that was indexed, got another of its name; open it again"
            )
        return data

    return files.source.buffer_table(files.paths, open_file)


class MappedIndex(ABC):
    """Locations in a file that another tool wrote, with three numbers for each row; it is mapped, not copied.

    `table` is the file of this name; `kind` is the type of the numbers, as `struct` names it; `data` are the data
    files. Subclasses set `_stamp`, which identifies the content of the file.
    """

    _stamp: tuple[Any, ...]

    def __init__(self, name: str, table: Segments, kind: str, data: Files) -> None:
        self.name = name
        self._table = table
        self._layout, self._dtype = struct.Struct(f"<3{kind}"), np.dtype(f"<{kind}")
        self._width, self._data = self._layout.size, data
        size, width = self._table.open(0).size, self._width
        if size % width:
            raise FormatError(
                f"{self.name}: expected {width} bytes for each sample, got {size} bytes, which end in a partial entry; "
                f"make the index again, or cut it to {size // width * width} bytes to read the samples before"
            )
        self._starts: Integers = np.array([0, size // width], np.int64)
        stats = zip(data.paths, data.stats(), strict=True)
        self.files = tuple(IndexedFile(path, stat.size, stat.tag, 0) for path, stat in stats)
        self._sizes: Integers = np.array([file.size for file in self.files], np.int64)

    def __len__(self) -> int:
        return int(self._starts[1])

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the index, the data files, their sizes or times change."""
        plain = repr((*self._stamp, [(file.path, file.size, file.tag) for file in self.files]))
        return hashlib.sha256(plain.encode(errors="surrogateescape")).hexdigest()[:16]

    def file(self, rows: Integers) -> Integers:
        """Return the number of the file that holds each row."""
        return self.locate(rows)[0]

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row, checked against the files."""
        out = np.empty((len(rows), 3), self._dtype)
        take(self._table, self._starts, rows, self._width, out)
        return self._checked(rows, *(np.ascontiguousarray(column, np.int64) for column in out.T))

    @abstractmethod
    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row, checked against the file."""

    @abstractmethod
    def _checked(self, rows: Integers, *entries: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of rows, whose entries in the file are the three numbers of `entries`."""

    def lengths(self) -> Integers:
        """Return the length of every row, in bytes."""
        return self.locate(np.arange(len(self)))[2]

    def _entry(self, row: int) -> tuple[int, ...]:
        """Return the numbers of one entry."""
        if not 0 <= row < len(self):
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        return self._layout.unpack(self._table.slice(0, row * self._width, (row + 1) * self._width).data)


class Locations(Protocol):
    """Gives file, offset and length of each row: an `Index`, a `MappedIndex`, or locations that a format computes."""

    @property
    def files(self) -> tuple[IndexedFile, ...]:
        """State of the data files when they were located."""

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the locations or the data files change."""

    def __len__(self) -> int:
        """Number of rows."""

    def file(self, rows: Integers) -> Integers:
        """Return the number of the file that holds each row."""

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row; raise for rows outside."""

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row."""

    def lengths(self) -> Integers:
        """Return the length of every row, in bytes."""


class RecordRows(ShardRows):
    """Rows that are byte ranges of files. Subclasses add `features` and `read`."""

    def __init__(self, files: Files, index: Locations) -> None:
        self.files = files
        self.index = index
        self.data = map_files(files, index.files)

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the indexed files, their sizes or times change."""
        return self.index.fingerprint

    def shard_names(self) -> list[str]:
        """Paths of the files, as error messages show them."""
        return [self.files.name(number) for number in range(len(self.files.paths))]

    @cached_property
    def _field_names(self) -> list[str]:
        return list(self.features)

    def ranges(self, rows: Integers) -> Ranges:
        """Return the byte ranges of these rows."""
        return Ranges(self.data, *self.index.locate(rows))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the bytes of these rows."""
        with suppress(ShardexError):
            self.needed_ranges(rows, fields).advise()

    def needed_ranges(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """Return the byte ranges that a read of these rows and fields needs."""
        return self.ranges(rows)

    def hold(self, rows: Integers, fields: Sequence[str] | None) -> Any:
        """Fetch the bytes of all these fields at once if the files are remote.

        They stay available as long as the returned object lives.
        """
        return self.needed_ranges(rows, fields).hold() if self.data.closable else None

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds each row."""
        return [self.files.name(number) for number in self.index.file(rows).tolist()]

    def record(self, row: int) -> Bytes:
        """Return the bytes of one row, not copied."""
        number, first, size = self.index.at(row)
        data = self.data.slice(number, first, first + size)
        if data.size != size:
            raise TruncatedShardError(
                f"{self.files.name(number)}: expected bytes {first} to {first + size} for sample {row}, "
                f"got a file of {self.data.open(number).size} bytes"
            )
        return data

    def location(self, row: int) -> str:
        """Path of the file that holds a row (subclasses: and the place in it), for error messages."""
        return self.files.name(int(self.index.file(np.array([row]))[0]))

    def _where(self, rows: Integers) -> Callable[[int], str]:
        """Return a function that returns the location of the k-th of these rows."""
        return lambda k: self.location(int(rows[k]))


class DictRows(RecordRows):
    """Rows whose records decode to one dict of fields each; any other value becomes the field `value_field`.

    Records are decoded by `_decode`. If that raises one of `_decode_errors`, `_decode_or_explain` tries again and
    raises an error that names the place. Without a schema, the fields are the keys of all records (`record_fields`);
    a key that a record lacks is None in it.
    """

    _decode: Callable[[bytes], Any]
    _decode_errors: tuple[type[Exception], ...]
    _make_decoder: MakeDecoder | None = None
    """Makes decoders for the scan of all keys; None if records are no JSON and no MessagePack."""
    rebuild = False
    """True to find the fields again, although they were saved."""

    def __init__(
        self,
        files: Files,
        index: Locations,
        schema: Features | None,
        value_field: str,
        format: str,
        infer_from: str | None = None,
    ) -> None:
        super().__init__(files, index)
        check_infer_from(infer_from)
        self._schema, self._value_field, self._format, self._infer_from = schema, value_field, format, infer_from

    @abstractmethod
    def _decode_or_explain(self, record: bytes, row: int) -> Any:
        """Decode a record for which `_decode` raised an error, or raise an error that names the place."""

    # -- fields ------------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> Features:
        """The schema, or without one the keys of all records."""
        if self._schema is not None:
            return self._schema
        return self._found.features(self._value_field) if self._found else self._features_of_first()

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with media in the schema: keys that are found in records have none."""
        return () if self._schema is None else media_in(self._schema)

    @cached_property
    def _found(self) -> RecordFields | None:
        """The keys of all records; None if there is a schema, or if the records have none."""
        if self._schema is not None or self._make_decoder is None:
            return None
        return record_fields(self, self._format, self._infer_from, rebuild=self.rebuild)

    def key_scan(self) -> KeyScan:
        """Return a scan without records."""
        assert self._make_decoder is not None
        return KeyScan(self._make_decoder, self._sample_or_none)

    def scan_keys(self, rows: Integers, scan: KeyScan) -> None:
        """Add the keys of these records; those that cannot be read are skipped, as a read of them raises the error."""
        try:
            scan.add(self.ranges(rows).bytes())
        except FormatError:
            for row in rows.tolist():
                with suppress(FormatError):
                    scan.add([self.record(row).tobytes()])

    def _sample_or_none(self, record: bytes) -> dict[str, Any] | None:
        try:
            value = self._decode_or_explain(record, -1)
        except ShardexError:  # a read of the record raises it, with its place
            return None
        return value if type(value) is dict else {self._value_field: value}

    def _features_of_first(self) -> Features:
        rows = np.arange(min(len(self), _INFER_FROM))
        return Inferred.or_json(self._samples(self.ranges(rows).bytes(), rows)).features if len(rows) else Features({})

    @cached_property
    def sampled_rows(self) -> int | None:
        """Number of records from which the fields were found; None if they are known otherwise, or all were read."""
        return self._found.rows if self._found is not None and not self._found.complete else None

    @cached_property
    def _float_fields(self) -> list[str]:
        return float_fields(self.features)

    @cached_property
    def _final_length(self) -> int:
        """Number of fields if a record that has all of them is a sample, but for integers among floats; else -1."""
        found = self._found
        final = found is not None and found.complete and not found.as_map
        return len(self._field_names) if final else -1

    @cached_property
    def _as_map(self) -> bool:
        return self._found is not None and self._found.as_map

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Decode these records."""
        names = self._checked(fields)
        if not len(rows):
            return conversions.to_columns({n: [] for n in names}, 0, self.features, str)
        values = self._read_values(rows, names, fields is None)
        if self._schema is not None or self._found is None:
            return conversions.to_columns(values, len(rows), self._schema, self._where(rows))
        return self._inferred_columns(values, rows)

    def _read_values(self, rows: Integers, names: list[str], every: bool) -> Mapping[str, list[Any]]:
        """Return the values of these fields; `every` says that all fields are asked for."""
        return self._values(self.ranges(rows).bytes(), rows, names, every)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode one record."""
        record = self.record(row).tobytes()
        try:
            value = self._decode(record)
        except self._decode_errors:
            value = self._decode_or_explain(record, row)
        if fields is None and type(value) is dict and len(value) == self._final_length:
            if self._float_fields:
                integers_to_floats(value, self._float_fields)
            return value
        sample = value if type(value) is dict and not self._as_map else {self._value_field: value}
        if self._schema is not None or self._found is None:
            return conversions.to_sample(sample, self._checked(fields), self._schema, lambda _: self.location(row))
        return self._inferred_sample(sample, row, fields)

    def _inferred_sample(self, sample: dict[str, Any], row: int, fields: Sequence[str] | None) -> dict[str, Any]:
        """Return the fields of a record; a key that it lacks is None, an integer in a field of floats a float."""
        if fields is None and self.sampled_rows is not None:
            self._refuse_new_keys([sample], np.array([row]))
        names = self._field_names if fields is None else self._checked(fields)
        if fields is not None or len(sample) < len(names):
            sample = {name: sample.get(name) for name in names}
        integers_to_floats(sample, self._float_fields)
        if self.sampled_rows is not None:
            self._inferred_columns({name: [value] for name, value in sample.items()}, np.array([row]))
        return sample

    def _inferred_columns(self, values: Mapping[str, list[Any]], rows: Integers) -> Columns:
        """Return values as columns of the features that were found.

        They fit, unless only a sample was read, or a damaged record was left out when the fields were found.
        """
        if self.sampled_rows is not None:
            self._check_values(values, rows)
        try:
            found = {name: inferred_column(column, self.features[name]) for name, column in values.items()}
        except (TypeError, ValueError, OverflowError):
            self._check_values(values, rows)
            raise
        return Columns(found, len(rows))

    def _check_values(self, values: Mapping[str, list[Any]], rows: Integers) -> None:
        for name, column in values.items():
            if not all(map(self.features[name].fits_unchanged(), column)):
                self._refuse_misfits(column, name, rows)

    def _refuse_misfits(self, column: list[Any], name: str, rows: Integers) -> None:
        """Raise for a value that does not fit the feature; integers fit a float."""
        try:
            conversions.to_columns({name: column}, len(rows), self.features, self._where(rows))
        except SchemaError as error:
            raise SchemaError(f"{error}; {self._remedy}") from None

    def _refuse_new_keys(self, samples: list[dict[str, Any]], rows: Integers) -> None:
        known = self.features.keys()
        for sample, row in zip(samples, rows.tolist(), strict=True):
            if new := next((name for name in sample if name not in known), None):
                raise SchemaError(
                    f"{self.location(row)}: expected the fields {', '.join(known)}, got {new!r} too; {self._remedy}"
                )

    @property
    def _remedy(self) -> str:
        return (
            f"the fields were found in {self.sampled_rows} of {len(self)} samples: "
            'open with infer_from="all" to read all of them once, or name the fields with schema='
        )

    def _checked(self, fields: Sequence[str] | None) -> list[str]:
        """Return the fields to read."""
        try:
            return check_fields(self._field_names, fields)
        except FieldError as error:
            if self._schema is None and self.sampled_rows is not None:
                raise FieldError(f"{error}; {self._remedy}") from None
            raise

    def _samples(self, records: list[bytes], rows: Integers) -> list[dict[str, Any]]:
        try:
            values = list(map(self._decode, records))
        except self._decode_errors:
            values = [self._decode_or_explain(one, row) for one, row in zip(records, rows.tolist(), strict=True)]
        as_map = self._schema is None and self._as_map
        return [value if type(value) is dict and not as_map else {self._value_field: value} for value in values]

    def _values(self, records: list[bytes], rows: Integers, names: list[str], every: bool) -> Mapping[str, list[Any]]:
        """Return the values of these fields, as a list for each; `every`: they are all fields, refuse other keys."""
        samples = self._samples(records, rows)
        if every and self._schema is None and self.sampled_rows is not None:
            self._refuse_new_keys(samples, rows)
        missing = None if self._schema is None else MISSING
        return {name: [sample.get(name, missing) for sample in samples] for name in names}
