"""CSV and TSV files: each record is a sample, each column a field.

`CsvScanner` finds the records once and an `Index` stores their offsets; then each record is a byte range. A read
gathers the bytes of its records and parses them by one call of Arrow; a single sample of plain cells is split in
Python. Without a schema, the type of each column is found in all records (`cells`) and saved as the fields of JSON
lines are. `CsvWriter` writes shards with a header each.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from shardex.columns import check_fields, decode_array
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import ClassLabel, Date, Duration, Feature, Features, Text, Timestamp, Value, unwrap_optional
from shardex.files import Files, Index
from shardex.formats.csv.cells import (
    FALSE,
    TRUE,
    CellScan,
    CsvParser,
    WrongRecords,
    cell_type,
    fields_of,
    refuse_features,
)
from shardex.formats.csv.records import TABS, CsvScanner, Dialect, delimiter_of, first_record
from shardex.formats.join_shards import JoinShards
from shardex.formats.lines import NumberedLines, check_bad_lines, data_files, index_of_right_lines
from shardex.formats.record_fields import RecordFields, check_infer_from, record_fields
from shardex.formats.registry import Format
from shardex.formats.sample_writer import SeriesWriter, ShardSeries
from shardex.kernel import Column, Columns, Integers, Masked
from shardex.sources import place_of
from shardex.workers import ExecutorLike

__all__ = [
    "FORMAT",
    "CsvRows",
    "open",
]

_MOST_BYTES = 1 << 30
"""Bytes that are parsed at once; Arrow takes less than 2 GiB."""
EXTENSION = ".csv"
EXTENSIONS = (EXTENSION, *TABS)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    quote: str = '"',
    missing: Sequence[str] | None = None,
    infer_from: str | None = None,
    bad_lines: str = "raise",
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> CsvRows:
    """Open the records of these files; the first one of each file names the columns, unless `header` is False.

    `names` are names of the columns instead of those in the files (without both: ``f0``, ``f1``, ...). `delimiter` is a
    tab for `.tsv` and a comma for other files, or a semicolon, tab or bar that the first records have instead; an empty
    `quote` means that quotes are text. Cells that are empty or one of the texts in `missing` have no value. Without a
    schema, types are found in "all" records or in a "sample" (`infer_from`), by default in all up to 2 GiB.
    ``bad_lines="skip"`` leaves out records with a wrong number of cells.
    """
    check_bad_lines(bad_lines)
    files = data_files(files, EXTENSIONS)
    dialect = Dialect(delimiter_of(files, quote) if delimiter is None else delimiter, quote)
    given = None if names is None else _checked_texts("names", names)
    found, columns = _columns(files, dialect, header, given)
    parser = CsvParser(dialect, columns, ("", *_checked_texts("missing", missing or ())))
    scanner = CsvScanner(dialect, found if header else None, lenient=bad_lines == "skip")
    how: Any = {"rebuild": rebuild, "progress": progress, "workers": workers, "executor": executor}
    if bad_lines == "skip" and columns:
        index = index_of_right_lines(files, scanner, WrongRecords(parser), **how)
    else:
        index = Index.of(files, scanner, **how)
    rows = CsvRows(files, index, parser, None if schema is None else Features.of(schema), infer_from)
    rows.rebuild = rebuild
    return rows


def _checked_texts(option: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(one, str) for one in given):
        raise ArgumentError(f"expected a list of texts for the option {option}, got {given!r}")
    return tuple(given)


def _columns(
    files: Files, dialect: Dialect, header: bool, names: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in the first record of the files, and the names of the columns."""
    records = (first_record(files.source, path, dialect) for path in files.paths)
    first = next((record for record in records if record is not None), None)
    if first is None:
        return (), names or ()
    found = dialect.column_names(first)
    own = found if header else tuple(f"f{number}" for number in range(len(found)))
    if "\r" in first and any("\r" in name for name in found):
        raise FormatError(
            f"{files.name(0)}: expected lines that end in newlines, got carriage returns; convert the file"
        )
    columns = own if names is None else names
    if len(columns) != len(own):
        raise ArgumentError(f"{files}: expected names for {len(own)} columns, got {len(columns)}")
    if len(set(columns)) < len(columns):
        double = next(name for name in columns if columns.count(name) > 1)
        raise SchemaError(
            f"{files}: expected columns with different names, got {double!r} twice; name them with names=[...]"
        )
    return found, columns


class CsvRows(NumberedLines):
    """Samples that are records of CSV files."""

    in_python = False
    rebuild = False
    """True to find the types again, although they were saved."""

    def __init__(
        self, files: Files, index: Index, parser: CsvParser, schema: Features | None, infer_from: str | None
    ) -> None:
        super().__init__(files, index)
        check_infer_from(infer_from)
        self._parser, self._schema, self._infer_from = parser, schema, infer_from
        self._sizes: Integers = np.array([file.size for file in index.files], np.int64)
        self._apart = False
        """True if cells of text and other cells are parsed one after the other."""
        if schema is not None:
            refuse_features(schema)
            for name, feature in schema.items():
                if name not in parser.columns and not feature.optional:
                    found = ", ".join(parser.columns)
                    raise SchemaError(f"{files}: expected a column {name}, got {found} - at field {name}")

    # -- fields ------------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> Features:
        """The schema, or without one the columns, with the types of all their cells."""
        if self._schema is not None:
            return self._schema
        return fields_of(self._found.kinds if self._found else {}, self._parser.columns)

    @property
    def media_fields(self) -> Sequence[str]:
        """None: cells are text."""
        return ()

    @cached_property
    def _found(self) -> RecordFields | None:
        if self._schema is not None:
            return None
        options = repr((self._parser.dialect, self._parser.columns, self._parser.missing))
        return record_fields(self, "csv", self._infer_from, options=options, rebuild=self.rebuild)

    def key_scan(self) -> CellScan:
        """Return a scan without records."""
        return CellScan(self._parser)

    def scan_keys(self, rows: Integers, scan: CellScan) -> None:
        """Add the cells of these records; wrong ones are left out, a read of them raises."""
        try:
            scan.add(self._gathered(rows))
        except pa.ArrowInvalid:
            right = (one for one in self.ranges(rows).bytes() if self._parser.problem(one) is None)
            scan.add(b"\n".join([*right, b""]))

    @cached_property
    def sampled_rows(self) -> int | None:
        """Number of records in which the types were found; None if they are known otherwise, or all were read."""
        return self._found.rows if self._found is not None and not self._found.complete else None

    def _checked(self, fields: Sequence[str] | None) -> list[str]:
        return check_fields(list(self.features), fields)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Parse these records."""
        names = self._checked(fields)
        if not len(rows) or not names:
            features = self.features.items()
            return Columns({n: f.fit_column([], str, n, stored=False) for n, f in features if n in names}, len(rows))
        table = self._table(rows, names)
        return Columns({name: self._column(table, name, rows) for name in names}, len(rows))

    def _gathered(self, rows: Integers) -> Any:
        """Return the bytes of these records, each with an end of line."""
        ranges = self.ranges(rows)
        if (ranges.begin + ranges.length < self._sizes[ranges.which]).all():
            ranges.length += 1  # a newline or a carriage return
            return ranges.packed()[0]
        return b"\n".join([*ranges.bytes(), b""])

    def _table(self, rows: Integers, names: Sequence[str]) -> pa.Table:
        types = {name: cell_type(self.features[name]) for name in names if name in self._parser.columns}
        if not types:
            return pa.table({})
        if len(rows) > 1 and int(self.index.locate(rows)[2].sum()) + len(rows) > _MOST_BYTES:
            half = len(rows) // 2
            return pa.concat_tables([self._table(rows[:half], names), self._table(rows[half:], names)])
        data = self._gathered(rows)
        try:
            table = self._parsed(data, types)
        except pa.ArrowInvalid as error:
            self._explain(rows, types, error)
        if table.num_rows != len(rows):
            self._explain(rows, types, f"{table.num_rows} records instead of {len(rows)}")
        return table

    def _parsed(self, data: Any, types: Mapping[str, pa.DataType]) -> pa.Table:
        if not self._apart:
            try:
                return self._parser.parse(data, types)
            except pa.ArrowInvalid:  # a quoted empty cell in a column of numbers is missing, one of text is not
                table = self._parsed_apart(data, types)
                self._apart = True
                return table
        return self._parsed_apart(data, types)

    def _parsed_apart(self, data: Any, types: Mapping[str, pa.DataType]) -> pa.Table:
        texts = {name: kind for name, kind in types.items() if kind == pa.large_string()}
        others = {name: kind for name, kind in types.items() if name not in texts}
        found: dict[str, pa.ChunkedArray] = {}
        for some, quoted_missing in ((texts, False), (others, True)):
            if some:
                table = self._parser.parse(data, some, quoted_missing=quoted_missing)
                found |= dict(zip(table.column_names, table.columns, strict=True))
        return pa.table(found)

    def _column(self, table: pa.Table, name: str, rows: Integers) -> Column:
        feature = self.features[name]
        if name not in table.column_names:
            return feature.fit_column([None] * len(rows), str, name, stored=True)
        inner, array = unwrap_optional(feature), table.column(name).combine_chunks()
        if isinstance(inner, Text) and not feature.optional and self._schema is not None:
            array = array.fill_null("")
        if array.null_count and not feature.optional:
            row = int(rows[int(np.argmin(array.is_valid().to_numpy(zero_copy_only=False)))])
            raise SchemaError(
                f"{self.location(row)}: expected {feature}, got an empty cell - at field {name}"
                f"{self._remedy or '; declare it as one that may be missing, such as float | None'}"
            )
        if isinstance(inner, Value | Text):
            return _writable(decode_array(array, feature), inner)
        if isinstance(inner, Date | Timestamp):
            with suppress(pa.ArrowInvalid):  # texts that are no ISO 8601, for an error that names the row
                return _writable(decode_array(array.cast(feature.arrow_type()), feature), inner)
        values = [_plain(text, inner) for text in array.to_pylist()]
        return feature.fit_column(values, self._where(rows), name, stored=True)

    # -- single samples ----------------------------------------------------------------------------------------

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Parse one record."""
        found = {}
        try:
            cells = self._cells(self.record(row).tobytes().decode())
            for name in self._field_names if fields is None else self._checked(fields):
                number, convert = self._converters[name]
                found[name] = convert(*cells[number])
        except ValueError:  # not so simple, or wrong
            return self.read(np.array([row]), fields).sample(0)
        return found

    def _cells(self, record: str) -> Sequence[tuple[str, bool]]:
        """Return the cells of a record, and whether they were quoted; ValueError if there are too many or few."""
        dialect = self._parser.dialect
        if not dialect.quote or dialect.quote not in record:
            cells = [(cell, False) for cell in record.split(dialect.delimiter)]
        else:
            cells = dialect.cells(record)
        if len(cells) != len(self._parser.columns) or "\r" in record:
            raise ValueError
        return cells

    @cached_property
    def _converters(self) -> dict[str, tuple[int, Convert]]:
        """For each field the number of its cell, and a function that converts it or raises ValueError."""
        numbers = {name: number for number, name in enumerate(self._parser.columns)}
        missing, empty = frozenset(self._parser.missing), self._schema is not None
        return {
            name: (numbers[name], _converter(feature, missing, empty)) if name in numbers else (0, _nothing)
            for name, feature in self.features.items()
        }

    # -- errors ------------------------------------------------------------------------------------------------

    def _explain(self, rows: Integers, types: Mapping[str, pa.DataType], error: object) -> NoReturn:
        """Raise an error that names the record and the cell that cannot be parsed."""
        for row in rows.tolist():
            record = self.record(row).tobytes()
            if (problem := self._parser.problem(record)) is not None:
                raise FormatError(
                    f'{self.location(row)}: {problem}; repair or remove the line, or open with bad_lines="skip"'
                ) from None
            for name, kind in types.items():
                try:
                    found = self._parsed_apart(record + b"\n", {name: kind}).num_rows
                except pa.ArrowInvalid:
                    found = 0
                if found != 1:
                    shown = self._parser.dialect.cells(record.decode())[self._parser.columns.index(name)][0]
                    raise SchemaError(
                        f"{self.location(row)}: expected {self.features[name]}, got {shown[:60]!r} - at field {name}"
                        f"{self._remedy}"
                    ) from None
        raise FormatError(f"{self.files}: expected records of CSV, got others: {error}") from None

    @property
    def _remedy(self) -> str:
        if self.sampled_rows is None:
            return ""
        return (
            f"; the types were found in {self.sampled_rows} of {len(self)} samples: "
            'open with infer_from="all" to read all of them once, or name the fields with schema='
        )


def _writable(column: Column, feature: Feature) -> Column:
    """Return numbers and times in memory of their own, in the dtype of the feature."""
    if isinstance(column, Masked):
        return Masked(_writable(column.column, feature), column.mask)
    return np.array(column, getattr(feature, "dtype", None), subok=True) if isinstance(column, np.ndarray) else column


Convert = Callable[[str, bool], Any]
"""Returns the value of a cell that was quoted or not; raises ValueError if Arrow must decide."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?")
_BOOLS = {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}


def _whole(cell: str) -> int:
    if _WHOLE.fullmatch(cell) is None:
        raise ValueError
    return int(cell)


def _number(cell: str) -> float:
    if _NUMBER.fullmatch(cell) is None:
        raise ValueError
    return float(cell)


def _bool(cell: str) -> bool:
    if (found := _BOOLS.get(cell)) is None:
        raise ValueError
    return found


def _date(cell: str) -> dt.date:
    if _DATE.fullmatch(cell) is None:
        raise ValueError
    return dt.date.fromisoformat(cell)


def _time(cell: str) -> dt.datetime:
    if _TIME.fullmatch(cell) is None:
        raise ValueError
    return dt.datetime.fromisoformat(cell)


def _instant(cell: str) -> dt.datetime:
    if not cell.endswith("Z"):
        raise ValueError
    return _time(cell[:-1]).replace(tzinfo=dt.UTC)


def _general(cell: str) -> Any:
    raise ValueError


def _nothing(cell: str, quoted: bool) -> None:
    return None


_CONVERTERS: dict[Feature, Callable[[str], Any]] = {
    Value("int64"): _whole,
    Value("float64"): _number,
    Value("bool"): _bool,
    Date(): _date,
    Timestamp(): _time,
    Timestamp(zone="UTC"): _instant,
}


def _converter(feature: Feature, missing: frozenset[str], empty: bool) -> Convert:
    """Return the function that converts the cells of a field.

    `empty`: a missing text of a field that is not optional is the empty text.
    """
    optional = feature.optional
    if isinstance(unwrap_optional(feature), Text):

        def text(cell: str, quoted: bool) -> str | None:
            if quoted or cell not in missing:
                return cell
            if not optional and not empty:
                raise ValueError
            return None if optional else ""

        return text
    inner = _CONVERTERS.get(unwrap_optional(feature), _general)
    return lambda cell, quoted: None if optional and cell in missing else inner(cell)


def _plain(text: str | None, feature: Feature) -> Any:
    """Return the value of a cell as JSON holds it: a number for spans of time and for numbers of classes."""
    is_number = isinstance(feature, Duration) or (isinstance(feature, ClassLabel) and text not in feature.names)
    return int(text) if text is not None and is_number and re.fullmatch(r"-?[0-9]+", text) else text


# -- writing --------------------------------------------------------------------------------------------------

_OWNED = r"[^/]+-\d{5,}\.csv"
"""Regular expression of the files that the writer makes: overwriting must not remove other tables."""
_TO_QUOTE = re.compile(r'[",\n\r]|^\s|\s$|^$|^\ufeff')


class CsvWriter(SeriesWriter):
    """Writes samples as records of ``part-00000.csv`` and so on, which begin with the names of the fields.

    Text is quoted if another reading could change it. A missing value is an empty cell.
    """

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        shard_rows: int = 1_000_000,
        shard_size: int = 256 << 20,
        prefix: str = "part",
    ) -> None:
        if not features:
            raise SchemaError("expected at least one field for the format csv, got none")
        refuse_features(features)
        self._cells = [(name, _cell_writer(feature)) for name, feature in features.items()]
        options: Any = {"prefix": prefix, "extension": EXTENSION, "rows": shard_rows, "size": shard_size}
        super().__init__(path, mode, features, _OWNED, **options)

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        header = _joined([_quoted(field) for field in self._features])
        return ShardSeries(self._stage, name, first, rows=rows, size=size, begin=header)

    def _check_existing(self) -> None:
        place, fields = place_of(self.path), tuple(self._features)
        for path in (path for path in self._stage.existing if path.lower().endswith(EXTENSION)):
            if (record := first_record(place, path, Dialect())) is None:
                continue
            if (found := Dialect().column_names(record)) != fields:
                raise SchemaError(
                    f"{self.path}: expected the fields {', '.join(found)} to append, as in {path}, got "
                    f"{', '.join(fields)}"
                )
            return

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        cells = ["" if (value := sample[name]) is None else write(value) for name, write in self._cells]
        if cells == [""]:
            cells = [self._cell_of_nothing()]
        return _joined(cells)

    def _cell_of_nothing(self) -> str:
        """Return the cell of a sample without values; an empty line would be no sample."""
        (feature,) = self._features.values()
        if isinstance(unwrap_optional(feature), Value):
            return '""'  # a missing number, if it is quoted too
        (name,) = self._features
        raise SchemaError(
            f"expected a value, got None - at field {name}; the line of a sample without values would be blank: "
            "write another field too"
        )


def _joined(cells: Sequence[str]) -> bytes:
    try:
        return ",".join(cells).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise SchemaError(f"expected text that UTF-8 can hold, got {error.object[:60]!r}: {error.reason}") from None


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _cell_writer(feature: Feature) -> Callable[[Any], str]:
    """Return the function that writes a value that is not None."""
    inner = unwrap_optional(feature)
    if isinstance(inner, Text):
        return _quoted
    if not isinstance(inner, Value):
        return lambda value: _quoted(str(value))
    if inner.dtype == "bool":
        return lambda value: "true" if value else "false"
    return (lambda value: repr(float(value))) if inner.dtype.startswith("float") else (lambda value: str(int(value)))


FORMAT = Format(open, CsvWriter, JoinShards(_OWNED, EXTENSION))
