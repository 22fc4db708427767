"""A table over many data files with checksums: opens a file when one of its rows is first read, checks what it reads.

Opening a file fills the buffer tables of all readers at once from the table of the file: no Arrow object is made, and
no batch is read. `block_checks` fetches and checks the blocks that a read touches. A sample of a batch is read like a
batch of one row at first; when a few of them were read, the fields of the batch are checked and get getters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import storage_array
from shardex.columns.arrow_values import no_file
from shardex.columns.block_checks import CheckedFiles, address_of
from shardex.columns.buffer_layout import Layout, RowSlices, array_of, column_layouts
from shardex.columns.field_readers import Chunks, Getter
from shardex.columns.fields import Field, check_fields
from shardex.columns.file_blocks import CheckedFile, FileSizes, OpenedFile, distinct
from shardex.columns.mapped_table import MappedTable
from shardex.errors import ChecksumError, FormatError, RangeError
from shardex.kernel import Bytes, Column, Columns, Integers, Ranges, Segments

_FIRST_SAMPLES = 3
_FIRST_SAMPLES_REMOTE = 16
"""Samples of a batch that are read on their own, before its fields are checked as a whole."""

_LOOKED_AT = 4
"""Rows of a read of which it is found out whether they are in memory."""

_QUIET_READS = 16
"""Reads that check no block before it is found out whether their fields have any left."""

OpenFile = Callable[[int], tuple[CheckedFile, Mapping[str, str]] | None]
"""Returns a file, with the column of each field; None for rows that have no values."""


class CheckedTable(MappedTable):
    """Some fields of the rows of files one after another. `mapped` is a table of the files that fetches ranges.

    `known` are the sizes of the files, `open_file` opens one of them. `name` names a file that is not open. If `mapped`
    is in a cache that evicts files, that calls `close_file`.
    """

    def __init__(
        self,
        features: Mapping[str, Field],
        schema: pa.Schema,
        known: FileSizes,
        open_file: OpenFile,
        mapped: Segments,
    ) -> None:
        self._open_file = open_file
        self._columns: dict[int, Mapping[str, str]] = {}
        self._files = files = CheckedFiles(known, self._opened, mapped)
        chunks = Chunks(files.starts, self._put_buffers, self._name, mapped.evicts, self._array)
        self._set_up(features, schema, chunks, no_file)
        count, tables = len(self._starts) - 1, chunks.all_segments
        self._address = np.zeros((len(tables), count), np.uint64)
        self._size = np.zeros((len(tables), count), np.uint64)
        self._origin = np.zeros((len(tables), count), np.int64)
        for k, segments in enumerate(tables):
            segments.set_guard(files, files.calls, self._address[k], self._size[k], self._origin[k])
        files.attach, files.detach = self._attach, self._detach
        self._numbers: dict[int, _Numbers] = {}
        self._last: tuple[pa.Schema, Mapping[str, str], _Numbers] | None = None
        """Schema and columns of the file that was opened last: most files have the same."""
        self._bits: dict[int, Bytes] = {}
        """Bits of rows that all have a value, or of which none has one, by file; they are alive as long as this."""
        self._arrays: dict[tuple[str, int], pa.Array] = {}
        self._reads = np.zeros(count, np.uint8)
        """How many samples of each batch were read on their own."""
        self._some_getters: dict[int, dict[str, Getter]] = {}
        self._damaged: set[int] = set()
        """Batches with damaged blocks: each sample is read on its own."""
        self._checked_fields: set[str] = set()
        """Fields of which all blocks are checked; see `_are_checked`."""
        self._left_before, self._quiet_reads, self._quiet_needed = -1, 0, _QUIET_READS

    # -- opening -----------------------------------------------------------------------------------------------

    def _opened(self, number: int) -> CheckedFile | None:
        if (found := self._open_file(number)) is None:
            return None
        file, self._columns[number] = found
        return file

    def _name(self, chunk: int) -> str:
        number = self._files.file_of(chunk)
        opened = self._files.opened.get(number)
        where = "" if opened is None else f"{opened.file.where}, "
        return f"{where}batch {chunk - int(self._files.first_chunk[number])}"

    def _attach(self, number: int) -> None:
        """Fill the buffer tables with the buffers of all batches of a file."""
        files = self._files
        first, behind = int(files.first_chunk[number]), int(files.first_chunk[number + 1])
        if (opened := files.map(number)) is None:
            self._attach_nothing(number, first)
            return
        numbers = self._numbers_of(number, opened)
        begins, sizes = opened.table.buffers[:, numbers.buffers].T
        origins = files.origins(number) + begins
        with files.exclusive():
            data = opened.data
            address = begins.astype(np.uint64) + np.uint64(0 if data is None else address_of(data))
            suspect = ~sizes.any(axis=0)
            if opened.table.nulls.any():
                suspect |= self._null_fields(opened, numbers).any(axis=0)
            for k in numbers.validity:
                if len(missing := np.flatnonzero(sizes[k] == 0)):
                    bits = self._filled_bits(number, int(opened.table.rows.max()), 255)
                    address[k, missing], sizes[k, missing] = address_of(bits), bits.size
                    origins[k, missing] = files.nowhere
            self._size[:, first:behind] = sizes
            self._origin[:, first:behind] = origins
            self._starts[first:behind] = files.starts[first:behind].tolist()
            if suspect.any():
                address[:, suspect] = 0
            if data is not None:
                self._address[:, first:behind] = address

    def _attach_nothing(self, number: int, chunk: int) -> None:
        """Fill the buffer tables for rows without values."""
        required = [name for name, feature in self.features.items() if not feature.nullable]
        if required and self._files.known.rows[number]:
            raise FormatError(f"{self._name(chunk)}: expected a value in every row, got nulls - at field {required[0]}")
        bits = self._filled_bits(number, int(self._files.known.rows[number]), 0)
        for segments in self._chunks.all_segments:
            segments.origin[chunk] = self._files.nowhere
            segments.put(chunk, bits if segments in self._chunks.validity else b"")

    def _filled_bits(self, number: int, rows: int, value: int) -> Bytes:
        if number not in self._bits:
            bits = np.zeros(rows // 8 + 1, np.uint8)  # takes no memory until it is read
            self._bits.setdefault(number, np.full_like(bits, value) if value else bits)
        return self._bits[number]

    def _numbers_of(self, number: int, opened: OpenedFile) -> _Numbers:
        """Return which buffers of a file fill the tables; its nulls are checked when it is opened."""
        if (found := self._numbers.get(number)) is not None:
            return found
        schema, columns = opened.file.schema, self._columns[number]
        last = self._last  # once: another thread may set it to that of another schema
        if last is None or last[0] is not schema or last[1] != columns:
            last = self._last = schema, columns, self._find_numbers(schema, columns)
        found, table = last[2], opened.table
        shape = table.buffers.shape[1], table.nulls.shape[1]
        if shape != (found.all_buffers, found.all_nodes):
            expected = f"{found.all_buffers} buffers of {found.all_nodes} arrays"
            raise FormatError(f"{opened.file.where}: expected {expected} in each batch, got {shape[0]} of {shape[1]}")
        if table.nulls.any():
            for name, layout in found.layouts.items():
                self._readers[name].note_nulls(layout, table.nulls)
        self._numbers[number] = found
        return found

    def _find_numbers(self, schema: pa.Schema, columns: Mapping[str, str]) -> _Numbers:
        layouts = column_layouts(schema)
        of_field = {name: layouts[columns.get(name, name)] for name in self.features}
        pairs = [pair for name, reader in self._readers.items() for pair in reader.tables(of_field[name])]
        number_of = {id(segments): number for segments, number in pairs}
        tables = self._chunks.all_segments
        every = [part for layout in layouts.values() for part in layout.all()]
        return _Numbers(
            of_field,
            [number_of[id(segments)] for segments in tables],
            [k for k, segments in enumerate(tables) if segments in self._chunks.validity],
            sum(part.own_buffers for part in every),
            len(every),
        )

    def _null_fields(self, opened: OpenedFile, numbers: _Numbers) -> NDArray[np.bool_]:
        """Return which fields have nulls, but are not optional, in each batch of a file."""
        required = [name for name, feature in self.features.items() if not feature.nullable]
        return (opened.table.nulls[:, [numbers.layouts[name].node for name in required]] > 0).T

    def _check_nulls(
        self, chunk: int, opened: OpenedFile, numbers: _Numbers, batch: int, names: Iterable[str] | None = None
    ) -> None:
        for name in self.features if names is None else names:
            nulls = opened.table.nulls[batch, numbers.layouts[name].node]
            if nulls and not self.features[name].nullable:
                raise FormatError(f"{self._name(chunk)}: expected a value in every row, got nulls - at field {name}")

    def _put_buffers(self, chunk: int) -> None:
        """Set the buffers of a batch in all tables, for getters and views; its file is mapped again if necessary."""
        files, number = self._files, self._files.file_of(chunk)
        if not files.is_open[number]:
            files.open_files(np.array([number]))
        if (opened := files.opened[number]) is None:
            return
        data, batch = files.data(number), chunk - int(files.first_chunk[number])
        numbers = self._numbers_of(number, opened)
        spans = opened.table.buffers[batch, numbers.buffers]
        if not self._address[:, chunk].any():
            files.check_batch(number, batch)
            self._check_nulls(chunk, opened, numbers, batch)
        with files.exclusive():
            if opened.data is not data:
                return
            for k, (segments, (begin, size)) in enumerate(zip(self._chunks.all_segments, spans.tolist(), strict=True)):
                missing = not size and k in numbers.validity
                segments.put(chunk, self._bits[number] if missing else data[begin : begin + size])

    def _detach(self, number: int) -> None:
        """Drop every view of the bytes of a file; the cache evicts it."""
        first, behind = (int(self._files.first_chunk[number + k]) for k in (0, 1))
        self._address[:, first:behind] = 0
        for segments in self._chunks.all_segments:
            for chunk in range(first, behind):
                segments.buffers.pop(chunk, None)
        self._getters[first:behind] = [None] * (behind - first)
        for chunk in range(first, behind):
            self._some_getters.pop(chunk, None)
            self._damaged.discard(chunk)
        for key in [key for key in list(self._arrays) if first <= key[1] < behind]:
            self._arrays.pop(key, None)
        self._reads[first:behind] = 0

    def close_file(self, number: int) -> None:
        """Release a file that the cache evicts; it is mapped again when it is read."""
        self._files.close_file(number)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return these fields of these rows."""
        fields = list(self._features) if fields is None else fields
        try:
            return super().read(rows, fields)
        except ChecksumError:
            if len(self._existing(rows)) < len(rows) or not any(self._readers[name].through_arrow for name in fields):
                raise
            self._files.open_rows(rows)  # raises again if a file cannot be opened
            return Columns({name: self._read_apart(rows, name) for name in fields}, len(rows))
        except (RangeError, UnicodeDecodeError):
            self._validate(rows, fields)
            raise

    def read_views(self, rows: Integers, fields: Sequence[str] | None, views: Collection[str]) -> Columns:
        """Return these fields of these rows; values of bytes in the fields `views` are views of files if possible."""
        try:
            return super().read_views(rows, fields, views)
        except ChecksumError:  # maybe of a block that these rows do not need
            return self.read(rows, fields)

    def _read_apart(self, rows: Integers, name: str) -> Column:
        """Return a field of these rows, in batches of which other rows are damaged."""
        reader = self._readers[name]
        if not reader.through_arrow:
            return reader.read(rows)
        slices = [self._slice(name, row) for row in rows.tolist()]
        found = pa.concat_arrays(slices) if slices else pa.nulls(0, self._kinds[name])
        chunks = Chunks(np.array([0, len(rows)]), print, lambda _: f"rows {rows.min()} to {rows.max()}")
        feature: Field = self.features[name]
        alone = feature.reader(name, self._kinds[name], chunks, no_file)
        alone.attach(0, storage_array(found))
        return alone.read(np.arange(len(rows)))

    def _slice(self, name: str, row: int) -> pa.Array:
        """Return a field of one row as a valid array, made of the bytes that it needs."""
        chunk = int(self._chunks.of(np.array([row]))[0])
        files, number = self._files, self._files.file_of(chunk)
        if (opened := files.opened[number]) is None:
            return pa.nulls(1, self._kinds[name])
        batch, at = chunk - int(files.first_chunk[number]), row - int(self._chunks.starts[chunk])

        def read(begin: int, end: int) -> Bytes:
            span = np.array([[[begin, end - begin]]])
            while True:
                closes = files.closes
                held = files.hold_checked(files.unchecked(number, np.array([batch]), span))
                found = files.data(number)[begin:end].copy()
                del held
                if files.closes == closes:  # otherwise bytes may have been evicted after their check
                    return found

        numbers = self._numbers_of(number, opened)
        self._check_nulls(chunk, opened, numbers, batch, [name])
        slices = RowSlices(opened.table.buffers[batch], read)
        layout = numbers.layouts[name]
        return _validated(lambda: slices.array(layout, at, at + 1), f"{self._name(chunk)}, sample {row}, field {name}")

    def _validate(self, rows: Integers, fields: Sequence[str]) -> None:
        """Raise an error that names the batch if its checksums are right, but not its values."""
        for chunk in distinct(self._chunks.of(rows)).tolist():
            for name in fields:
                self._array(name, chunk)

    def _prepare(self, rows: Integers, fields: Sequence[str]) -> Any:
        """Open the files of rows; fetch and check what is read of remote or cold ones in two round trips."""
        files = self._files
        if not files.all_open:
            files.open_rows(rows)
        if not fields or not files.left or self._are_checked(fields):
            return None
        if not self._evicts and not files.announces:
            self._look_at_some(rows, fields)
        if not (self._evicts or files.announces):
            return None
        rows = self._existing(rows)
        with suppress(ChecksumError):  # maybe of a block that is not read, such as that of a null
            return [files.hold_checked(blocks) for blocks in self._blocks_to_read(rows, fields)]
        return None

    def _are_checked(self, fields: Sequence[str]) -> bool:
        """Return whether all blocks of these fields are known to be checked, while some of other fields are not.

        It is found out when no block was checked for some reads, each time after twice as many.
        """
        if self._checked_fields.issuperset(fields):
            return True
        files = self._files
        if files.left != self._left_before or files.lock is not None or not files.all_open:
            self._left_before, self._quiet_reads = files.left, 0
            return False
        self._quiet_reads += 1
        if self._quiet_reads < self._quiet_needed + len(files.opened):
            return False
        self._quiet_reads, self._quiet_needed = 0, 2 * self._quiet_needed
        for name in fields:
            if name not in self._checked_fields and self._drop_guards(name):
                self._checked_fields.add(name)
        return self._checked_fields.issuperset(fields)

    def _drop_guards(self, name: str) -> bool:
        """Read a field without looking at blocks from now on if all of them are checked; return whether they are."""
        reader, used = self._readers[name], set[Segments]()
        if reader.through_arrow:
            return False
        for number, opened in self._files.opened.items():
            if opened is not None:
                tables = list(reader.tables(self._numbers_of(number, opened).layouts[name]))
                spans = opened.table.buffers[:, [buffer for _, buffer in tables]]
                if len(self._files.unchecked(number, np.arange(len(spans)), spans)):
                    return False
                used.update(segments for segments, _ in tables)
        for segments in used:
            segments.drop_guard()
        return True

    def _existing(self, rows: Integers) -> Integers:
        return rows[(rows >= 0) & (rows < self._length)]

    def _look_at_some(self, rows: Integers, fields: Sequence[str]) -> None:
        """Find out from the first field of a few rows whether blocks are in memory, or have to be announced."""
        some = self._existing(rows[:: -(-len(rows) // _LOOKED_AT) or 1])
        for ranges in self._readers[fields[0]].first_ranges(some)[:1]:
            self._files.announce_if_cold(self._unchecked(ranges))

    def _blocks_to_read(self, rows: Integers, fields: Sequence[str]) -> Iterator[Integers]:
        """Yield the blocks of offsets and of values of one width, then, when they are checked, all others."""
        readers = [self._readers[name] for name in fields]
        whole = [name for name in fields if self._readers[name].through_arrow]
        chunks = distinct(self._chunks.of(rows)) if whole else rows[:0]
        first = [ranges for reader in readers for ranges in reader.first_ranges(rows)]
        yield _joined([*map(self._unchecked, first), self._unchecked_columns(whole, chunks)])
        yield _joined([self._unchecked(ranges) for reader in readers for ranges in reader.then_ranges(rows)])

    def _unchecked(self, ranges: Ranges) -> Integers:
        return ranges.segments.unchecked(ranges, self._files)

    def _unchecked_columns(self, names: Sequence[str], chunks: Integers) -> Integers:
        """Return the blocks of whole columns of batches of open files."""
        files, found = self._files, [_NO_BLOCKS]
        numbers = np.searchsorted(files.first_chunk, chunks, "right") - 1
        for number in distinct(numbers).tolist() if names else ():
            if (opened := files.opened[number]) is not None:
                batches = chunks[numbers == number] - files.first_chunk[number]
                layouts = self._numbers_of(number, opened).layouts
                wanted = [b for name in names for part in layouts[name].all() for b in part.buffer_numbers]
                found.append(files.unchecked(number, batches, opened.table.buffers[batches][:, wanted]))
        return _joined(found)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start to read the blocks of these rows; waits for offsets, which come first."""
        fields = list(self._features) if fields is None else fields
        self._files.open_rows(rows)
        for name in fields:
            reader = self._readers[name]
            if reader.through_arrow:
                blocks = self._unchecked_columns([name], distinct(self._chunks.of(rows)))
                self._files.advise(blocks)
        every = [self._readers[name] for name in fields]
        for ranges in [ranges for reader in every for ranges in reader.first_ranges(rows)]:
            ranges.advise()
        for reader in every:
            for ranges in reader.then_ranges(rows):
                ranges.advise()

    def _array(self, name: str, chunk: int) -> pa.Array:
        """Return a field of a batch as an Arrow array, checked and validated."""
        if (found := self._arrays.get((name, chunk))) is not None:
            return found
        files, number = self._files, self._files.file_of(chunk)
        if not files.is_open[number]:
            files.open_files(np.array([number]))
        if (opened := files.opened[number]) is None:
            return pa.nulls(self._chunks.rows_in(chunk), self._kinds[name])
        numbers, batch = self._numbers_of(number, opened), chunk - int(files.first_chunk[number])
        layout, table, where = numbers.layouts[name], opened.table, self._name(chunk)
        while True:
            closes = files.closes
            held = files.hold_checked(self._unchecked_columns([name], np.array([chunk])))
            data = files.data(number)
            array = _valid_array(layout, int(table.rows[batch]), data, table.buffers[batch], table.nulls[batch], where)
            if array.null_count:
                self._check_nulls(chunk, opened, numbers, batch, [name])
            del held
            with files.exclusive():
                if files.closes == closes:  # otherwise bytes may have been evicted after their check
                    self._arrays[name, chunk] = array
                    return array

    def _open_all(self, name: str) -> None:
        files = self._files
        if not files.all_open:
            files.open_files(np.flatnonzero(~files.is_open))
        if files.left:
            held = files.hold_checked(self._unchecked_columns([name], np.arange(len(self._getters))))
            del held

    # -- samples -----------------------------------------------------------------------------------------------

    def _first_sample(self, row: int, fields: Sequence[str] | None) -> dict[str, Any]:
        """Return one row of a batch that does not have all getters."""
        self._files.open_rows(np.array([row]))
        chunk = bisect_right(self._starts, row) - 1
        names = check_fields(list(self.features), fields)
        getters = self._some_getters.get(chunk)
        if getters is None or not all(name in getters for name in names):
            limit = _FIRST_SAMPLES_REMOTE if self._evicts else _FIRST_SAMPLES
            unchecked = bool(len(self._unchecked_columns(names, np.array([chunk]))))
            if unchecked and (self._reads[chunk] < limit or chunk in self._damaged):
                self._reads[chunk] = min(limit, self._reads[chunk] + 1)
                return _read_only(self.read(np.array([row]), names).sample(0))
            getters = None
        try:
            getters = getters or self._make_getters(chunk, names)
            return {name: getters[name](row - self._starts[chunk]) for name in names}
        except ChecksumError:  # maybe of a block that this row does not need
            self._damaged.add(chunk)
            return _read_only(self.read(np.array([row]), names).sample(0))
        except (ValueError, IndexError) as error:
            raise self._bad_value(chunk, row, error) from None

    def _make_getters(self, chunk: int, names: Sequence[str]) -> dict[str, Getter]:
        """Check the fields of a batch and return getters of them, and of those that it had before."""
        files = self._files
        while True:
            closes = files.closes
            held = files.hold_checked(self._unchecked_columns(names, np.array([chunk])))
            made = {name: self._readers[name].getter(chunk) for name in names}
            del held
            with files.exclusive():
                if files.closes != closes:  # bytes may have been evicted after their check
                    continue
                getters = self._some_getters[chunk] = self._some_getters.get(chunk, {}) | made
                if len(getters) == len(self.features):
                    self._getters[chunk] = {name: getters[name] for name in self.features}
                return getters


class _Numbers(NamedTuple):
    """Which buffers of the batches of a file fill the tables of a `CheckedTable`."""

    layouts: dict[str, Layout]
    """Of each field."""
    buffers: list[int]
    """Number of the buffer of each table."""
    validity: list[int]
    """Tables of validity bits."""
    all_buffers: int
    all_nodes: int


_NO_BLOCKS: Integers = np.empty(0, np.int64)


def _joined(blocks: Sequence[Integers]) -> Integers:
    some = [one for one in blocks if len(one)]
    return distinct(np.concatenate(some)) if len(some) > 1 else some[0] if some else _NO_BLOCKS


def _valid_array(layout: Layout, rows: int, data: Bytes, buffers: Integers, nulls: Integers, where: str) -> pa.Array:
    def buffer(number: int) -> Bytes:
        begin, size = buffers[number].tolist()  # those of a column: a batch may have many others
        return data[begin : begin + size]

    return _validated(lambda: array_of(layout, rows, buffer, nulls), where)


def _validated(make: Callable[[], pa.Array], where: str) -> pa.Array:
    try:
        array = make()
        array.validate(full=True)
    except ChecksumError:
        raise
    except (pa.ArrowException, FormatError) as error:
        raise FormatError(f"{where}: expected valid Arrow data, got a damaged batch: {error}") from None
    return array


def _read_only(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with read-only arrays, as those of getters are."""
    for value in sample.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return sample
