"""Parses records of CSV files as Arrow columns (`CsvParser`), and finds the type of each column (`CellScan`).

Types are found by Arrow's inference, block by block, over all records: bool, int64, float64, dates and times in ISO
8601, or text. A number that float64 or int64 cannot hold makes a column text, so that no value is changed. An empty
cell is a missing value; in a column of text, a quoted empty cell is the empty text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from shardex.errors import SchemaError
from shardex.features import (
    ClassLabel,
    Decimal,
    Feature,
    Features,
    Json,
    Optional,
    Text,
    TimeFeature,
    Value,
    unwrap_optional,
)
from shardex.formats.csv.records import Dialect
from shardex.formats.lines import TO_UTF8
from shardex.formats.record_fields import Kinds, feature_of_kinds

TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_THREADS_FROM = 1 << 20
"""Bytes from which on columns are converted by several threads."""
_EXACT, _DIGITS = 1 << 53, 1000
"""Largest number up to which float64 has all integers; digits up to which Python converts texts."""
_INTEGER = r"^\s*[+-]?[0-9]+\s*$"


def refuse_features(features: Mapping[str, Feature]) -> None:
    """Raise an error for features whose values a cell cannot hold."""
    for name, feature in features.items():
        inner = unwrap_optional(feature)
        is_number = isinstance(inner, Value) and np.dtype(inner.dtype).kind in "biuf"
        if not is_number and not isinstance(inner, Text | ClassLabel | TimeFeature | Decimal):
            raise SchemaError(
                f"expected a feature that a cell of a CSV file can hold (numbers, text, bool, dates and times), got "
                f'{feature} - at field {name}; choose another format, such as "jsonl" or "arrow"'
            )


def feature_of_cells(kinds: Sequence[str]) -> Feature:
    """Return the feature that fits all cells of these kinds.

    >>> str(feature_of_cells(["int", "null"])), str(feature_of_cells(["bool", "int"])), str(feature_of_cells([]))
    ('int64 or none', 'text', 'text')
    """
    feature = feature_of_kinds(kinds)
    if unwrap_optional(feature) != Json():
        return feature
    return Optional(Text()) if feature.optional else Text()


def cell_type(feature: Feature) -> pa.DataType:
    """Return the Arrow type as which the cells of a field are parsed."""
    inner = unwrap_optional(feature)
    if not isinstance(inner, Value):
        return pa.large_string()
    return pa.float32() if inner.dtype == "float16" else inner.arrow_type()


@dataclass(frozen=True)
class CsvParser:
    """Parses records: `columns` are the names of all cells, `missing` texts of cells that have no value."""

    dialect: Dialect
    columns: tuple[str, ...]
    missing: tuple[str, ...] = ("",)

    def parse(
        self, data: Any, types: Mapping[str, pa.DataType], *, quoted_missing: bool = False, skip: Any = None
    ) -> pa.Table:
        """Return these columns of records that end in newlines; raises `pa.ArrowInvalid`.

        With `quoted_missing` a quoted cell may be missing, too. `skip` is the `invalid_row_handler` of Arrow.
        """
        return self._read(data, types, list(types), quoted_missing, skip, threads=skip is None)

    def infer(self, data: Any, include: Sequence[str] | None = None, *, quoted_missing: bool = False) -> pa.Table:
        """Return columns with the types that Arrow infers."""
        return self._read(data, None, include, quoted_missing, None, threads=True)

    def _read(
        self, data: Any, types: Any, include: Sequence[str] | None, quoted_missing: bool, skip: Any, *, threads: bool
    ) -> pa.Table:
        buffer = pa.py_buffer(data)
        return csv.read_csv(
            pa.BufferReader(buffer),
            csv.ReadOptions(
                use_threads=threads and buffer.size >= _THREADS_FROM,
                block_size=buffer.size + 1,
                column_names=list(self.columns),
            ),
            csv.ParseOptions(
                delimiter=self.dialect.delimiter,
                quote_char=self.dialect.quote or False,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            csv.ConvertOptions(
                column_types=types,
                null_values=list(self.missing),
                strings_can_be_null=True,
                quoted_strings_can_be_null=quoted_missing,
                true_values=list(TRUE),
                false_values=list(FALSE),
                include_columns=include,
            ),
        )

    def problem(self, record: bytes) -> str | None:
        """Say what is wrong with a record: expected and found; None if it can be parsed."""
        try:
            cells = self.dialect.cells(record.decode())
        except UnicodeDecodeError as error:
            return f"expected UTF-8, got {record[:60]!r}: {error.reason} in column {error.start + 1}; {TO_UTF8}"
        if len(cells) != len(self.columns):
            names = ", ".join(self.columns)
            return f"expected {len(self.columns)} cells ({names}), got {len(cells)}: {record[:60]!r}"
        if self.dialect.has_bare_return(record.decode()):
            return f"expected carriage returns in quotes only, got {record[:60]!r}"
        if self.dialect.quote and any(cell.startswith(self.dialect.quote) for cell, quoted in cells if not quoted):
            return f"expected a quote that ends each quoted cell, got {record[:60]!r}"
        return None


@dataclass(frozen=True)
class WrongRecords:
    """Says which records cannot be parsed.

    >>> WrongRecords(CsvParser(Dialect(), ("a", "b")))([b"1,2", b"1", b'1,"2']).tolist()
    [False, True, True]
    """

    parser: CsvParser

    @property
    def what(self) -> str:
        """What is expected of a record."""
        return f"records of {len(self.parser.columns)} cells"

    def __call__(self, lines: list[bytes]) -> NDArray[np.bool_]:
        """Return for each record whether it is wrong: by one call of Arrow, or one by one if quotes join records."""
        wrong = self._by_arrow(lines)
        return np.array([self.parser.problem(line) is not None for line in lines]) if wrong is None else wrong

    def _by_arrow(self, lines: list[bytes]) -> NDArray[np.bool_] | None:
        # A quote that is not closed joins its record with the next one; after the last one there is one more.
        end = self.parser.dialect.delimiter.join("x" * len(self.parser.columns)).encode()
        data = b"\n".join([*lines, end, b""])
        numbers: list[int] = []

        def skip(row: Any) -> str:
            numbers.append(row.number - 1)
            return "skip"

        try:
            data.decode()
            rows = self.parser.parse(data, {self.parser.columns[0]: pa.large_string()}, skip=skip).num_rows
        except (UnicodeDecodeError, pa.ArrowInvalid):
            return None
        if rows + len(numbers) != len(lines) + 1 or b"\r" in data:
            return None
        wrong = np.zeros(len(lines), np.bool_)
        wrong[numbers] = True
        return wrong


@dataclass
class CellScan:
    """Kinds of the cells of the records that were added, as `record_fields` joins and saves them.

    >>> scan = CellScan(CsvParser(Dialect(), ("a", "b")))
    >>> scan.add(b"1,x\\n2.5,\\n"); scan.kinds
    {'a': ['float'], 'b': ['null', 'text']}
    """

    parser: CsvParser
    rows: int = 0
    found: dict[str, set[str]] = field(default_factory=dict)

    @property
    def kinds(self) -> Kinds:
        """For each column the kinds of its cells."""
        return {name: sorted(kinds) for name, kinds in self.found.items()}

    @property
    def seen(self) -> bool:
        """True if there were records."""
        return self.rows > 0

    def add(self, data: bytes | memoryview) -> None:
        """Add records; raises `pa.ArrowInvalid` if one is wrong."""
        if not len(data):
            return
        table = self.parser.infer(data)
        kinds = {name: self._kinds(table.column(name), data, name) for name in table.column_names}
        texts = [name for name, some in kinds.items() if "text" in some]
        if texts and self.parser.dialect.quote and re.search(re.escape(self.parser.dialect.quote).encode() * 2, data):
            # Quoted empty cells are missing numbers, unless the column has other text.
            again = self.parser.infer(data, texts, quoted_missing=True)
            found = {name: self._kinds(again.column(name), data, name) for name in texts}
            kinds |= {name: some for name, some in found.items() if "text" not in some}
        for name, some in kinds.items():
            self.found.setdefault(name, set()).update(some)
        self.rows += table.num_rows

    def _kinds(self, column: pa.ChunkedArray, data: bytes | memoryview, name: str) -> set[str]:
        kinds = {"null"} if column.null_count else set()
        if pa.types.is_null(column.type):
            return kinds
        if pa.types.is_boolean(column.type):
            return kinds | {"bool"}
        if pa.types.is_integer(column.type):
            return kinds | self._integer_kinds(column, data, name)
        if pa.types.is_temporal(column.type):
            return kinds | {_kind_of_times(column)}
        if not pa.types.is_floating(column.type):
            return kinds | {"text"}
        if pc.all(pc.less(pc.abs(column), float(_EXACT))).as_py():  # not if there is NaN or infinity
            return kinds | {"float"}
        texts = self._texts(data, name)
        whole = texts.filter(pc.match_substring_regex(texts, _INTEGER))
        large = [one for one in map(str.strip, whole.to_pylist()) if len(one) > _DIGITS or abs(int(one)) > _EXACT]
        return kinds | {"float"} | ({"big"} if large else set())

    def _integer_kinds(self, column: pa.ChunkedArray, data: bytes | memoryview, name: str) -> set[str]:
        if re.search(rb"0[xX]", data):  # Arrow reads hexadecimal numbers, but they may be names
            texts = self._texts(data, name)
            if not pc.all(pc.match_substring_regex(texts, _INTEGER)).as_py():
                return {"text"}
        extremes = pc.min_max(column)
        is_exact = extremes["min"].as_py() >= -_EXACT and extremes["max"].as_py() <= _EXACT
        return {"int"} if is_exact else {"long"}

    def _texts(self, data: bytes | memoryview, name: str) -> pa.ChunkedArray:
        """Return the cells of one column that have a value, as text."""
        types = {name: pa.large_string()}
        return self.parser.parse(data, types, quoted_missing=True).column(0).drop_null()


def _kind_of_times(column: pa.ChunkedArray) -> str:
    """Return the kind of cells that Arrow has read as dates or times: "text" if Python cannot hold them all."""
    if pa.types.is_time(column.type) or pc.min(pc.year(column)).as_py() < 1:
        return "text"
    if pa.types.is_date(column.type):
        return "date"
    small = column.type.unit == "ns" and pc.any(pc.not_equal(pc.nanosecond(column), 0)).as_py()
    return "text" if small and column.type.tz else "nano" if small else "instant" if column.type.tz else "time"


def fields_of(kinds: Kinds, columns: Sequence[str]) -> Features:
    """Return the features of all columns."""
    return Features({name: feature_of_cells(kinds.get(name, ())) for name in columns})
