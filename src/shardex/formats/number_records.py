"""Records of numbers in files of other tools: where they lie (`PlacedRecords`), and how they are written.

`nanogpt` and `npy` read files in which the places of records are arithmetic: a header, and then records of one
size, or one record that is the whole file. `NumberWriter` writes the arrays of one field one after another;
`HeadedShards` are files that begin with a header, which is complete when their last record is written.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, RowError, SchemaError, UnknownFormatError
from shardex.features import Features
from shardex.files import Files, IndexedFile, Stage
from shardex.formats.number_rows import NumberRows, array_fields, is_array, number_dtype
from shardex.formats.sample_writer import SeriesWriter, ShardSeries
from shardex.kernel import Columns, Integers, Ragged, digest
from shardex.sources import ByteRange, Source, Stat

_UNLIMITED = 1 << 62


def data_files(files: Files, extension: str) -> Files:
    """Return the files with this extension; a file that is named may have any."""
    found = files.having(extension)
    if files.folder and not found.paths:
        raise UnknownFormatError(f"{files}: expected files that end in {extension}, got {len(files.paths)} others")
    return found if found.paths else files


def first_bytes(source: Source, path: str, count: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter."""
    return bytes(source.read(path, [ByteRange(0, min(count, source.stat(path).size))])[0])


class PlacedRecords:
    """Locations of records by arithmetic: file k has `counts[k]` records of `widths[k]` bytes, from `begins[k]` on.

    `stamp` is added to the fingerprint: it stands for everything else that the records depend on.
    """

    def __init__(
        self,
        files: Files,
        stats: Sequence[Stat],
        begins: Sequence[int],
        widths: Sequence[int],
        counts: Sequence[int],
        stamp: Any = None,
    ) -> None:
        known = zip(files.paths, stats, counts, strict=True)
        self.files = tuple(IndexedFile(path, stat.size, stat.tag, rows) for path, stat, rows in known)
        self._begins, self._widths = np.array(begins, np.int64), np.array(widths, np.int64)
        self._starts: Integers = np.cumsum([0, *counts], dtype=np.int64)
        self._firsts: list[int] = self._starts.tolist()
        plain = [(file.path, file.size, file.tag, file.rows) for file in self.files]
        self.fingerprint = digest(plain, list(begins), list(widths), stamp)

    def __len__(self) -> int:
        return self._firsts[-1]

    def file(self, rows: Integers) -> Integers:
        """Return the number of the file that holds each row."""
        return np.searchsorted(self._starts, rows, "right") - 1

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            self._refuse(int(rows.max() if rows.max() >= len(self) else rows.min()))
        which = self.file(rows)
        width = self._widths[which]
        return which, self._begins[which] + (rows - self._starts[which]) * width, width

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row."""
        if not 0 <= row < len(self):
            self._refuse(row)
        which = bisect.bisect_right(self._firsts, row) - 1
        width = int(self._widths[which])
        return which, int(self._begins[which]) + (row - self._firsts[which]) * width, width

    def lengths(self) -> Integers:
        """Return the length of every row, in bytes."""
        return np.repeat(self._widths, np.diff(self._starts))

    def _refuse(self, row: int) -> None:
        raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")


@dataclass(frozen=True)
class NumberFile:
    """The numbers of one file: `count` of them, from the byte `begin` on."""

    begin: int
    count: int
    dtype: np.dtype[Any]


def stream_rows(
    files: Files, stats: Sequence[Stat], found: Sequence[NumberFile], window: int | None, field: str
) -> NumberRows:
    """Return the rows of streams of numbers: windows, or without `window` one sample for each file."""
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    dtype = same_dtype(files, [one.dtype for one in found])
    counts = [1 if window is None else one.count // window for one in found]
    widths = [(one.count if window is None else window) * dtype.itemsize for one in found]
    places = PlacedRecords(files, stats, [one.begin for one in found], widths, counts, dtype.name)
    return NumberRows(files, places, {field: dtype}, window)


def same_dtype(files: Files, dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of all files; raise an error if they differ."""
    for number, dtype in enumerate(dtypes):
        if dtype != dtypes[0]:
            raise SchemaError(f"{files.name(number)}: expected {dtypes[0]}, as in {files.name(0)}, got {dtype}")
    return dtypes[0]


def field_and_window(
    files: Files, schema: Features | None, dtype: np.dtype[Any], window: int | None
) -> tuple[str | None, int | None]:
    """Return the name and the length of the array that a schema names, which must be of this dtype."""
    if schema is None:
        return None, window
    dtypes, size = array_fields(Features.of(schema))
    if list(dtypes.values()) != [dtype.name]:
        raise SchemaError(f"{files}: expected one array of {dtype}, got {schema}")
    return next(iter(dtypes)), window or size


# -- writing --------------------------------------------------------------------------------------------------


class HeadedShards(ShardSeries):
    """Numbered files that begin with a header of `width` bytes.

    `header` returns its first bytes, less than 512, for a number of records and of bytes after it; the others are zero.
    """

    def __init__(
        self,
        stage: Stage,
        name: Callable[[int], str],
        first: int,
        size: int,
        header: Callable[[int, int], bytes],
        width: int,
    ) -> None:
        super().__init__(stage, name, first, size=size)
        self._header, self._blank = header, bytes(width)

    def flush(self, end: bytes = b"") -> None:
        """Write the buffered records; before the first ones the place of the header."""
        if not self._written and not (self._pieces and self._pieces[0] is self._blank):
            self._pieces.insert(0, self._blank)
        super().flush(end)

    def finish(self) -> None:
        """Complete the current file, and write its header."""
        super().finish()
        head = self._header(self.rows, self._written - len(self._blank))
        self._stage.place.overwrite_start(self.path, head)


class NumberWriter(SeriesWriter):
    """Writes the arrays of samples of one field one after another, as numbers of one dtype.

    `dtypes` are those that the files can hold; `dtype` is the one to write, by default that of the field. Integers are
    converted if they fit. Subclasses set `_shards`.
    """

    def __init__(
        self, path: str, features: Features, mode: str, owned: str, dtype: str | None, dtypes: Collection[str]
    ) -> None:
        if len(features) != 1:
            raise SchemaError(
                f"expected exactly one field, an array of one dimension, got {features}; choose it with select()"
            )
        known, self.size = array_fields(features)
        """Length of each array; None if it varies."""
        ((self.field, given),) = known.items()
        self.dtype, self._given = number_dtype(given if dtype is None else dtype), np.dtype(given)
        if self.dtype.name not in dtypes:
            raise SchemaError(
                f"expected numbers of {', '.join(dtypes)}, which these files can hold, got {self.dtype}"
                + (f"; convert them with dtype={advised!r}" if (advised := _integers_for(self._given, dtypes)) else "")
            )
        if self.dtype != self._given and (self.dtype.kind not in "iu" or self._given.kind not in "iu"):
            raise SchemaError(f"expected integers to convert to dtype={dtype!r}, got {features}")
        super().__init__(path, mode, features, owned)

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        array: Any = sample.get(self.field)
        known = is_array(array, self._given) and len(sample) == 1
        return sample if known and self.size in (None, len(array)) else super()._fit(sample)

    def _encode(self, sample: Mapping[str, Any]) -> Any:
        array = sample[self.field]
        return array if self.dtype == self._given else self._converted(array)

    def _converted(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return integers in the dtype to write; raise an error for one that does not fit."""
        limits = np.iinfo(self.dtype)
        for most in (array.min(), array.max()) if len(array) else ():
            if not limits.min <= int(most) <= limits.max:
                raise SchemaError(
                    f"expected numbers from {limits.min} to {limits.max} for {self.dtype}, got {most} "
                    f"- at field {self.field}"
                )
        return array.astype(self.dtype)

    def _store(self, record: Any) -> None:
        self._shards.write(record.tobytes())

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: the files are the same as if they were appended one by one."""
        self._check_open()
        column = columns.data.get(self.field)
        ragged = isinstance(column, Ragged) and column.dtype == self._given and column.ndim == 1
        if len(columns.data) != 1 or not ragged or self.size is not None or self.dtype != self._given:
            for sample in columns.to_samples():
                self.append(sample)
            return
        assert isinstance(column, Ragged)
        values = column.values
        for begin, end in pairwise(column.offsets.tolist()):
            self._store(values[begin:end])
            self._samples += 1


def _integers_for(given: np.dtype[Any], dtypes: Collection[str]) -> str | None:
    """Return the dtype to convert integers to: of the same size, else the largest.

    >>> _integers_for(np.dtype("uint32"), ["uint8", "int32", "int64"]), _integers_for(np.dtype("float32"), ["uint16"])
    ('int32', None)
    """
    known = sorted((np.dtype(name) for name in dtypes if np.dtype(name).kind in "iu"), key=lambda one: one.itemsize)
    if given.kind not in "iu" or not known:
        return None
    return next((one for one in known if one.itemsize == given.itemsize), known[-1]).name


def shard_limit(shard_size: int | None, default: int = _UNLIMITED) -> int:
    """Return the bytes at which a new file begins."""
    return default if shard_size is None else shard_size
