"""Records of CSV files: ends of records with quotes of all kinds, in pieces, and cells."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError, FormatError
from shardex.formats.csv import records as csv_records
from shardex.formats.csv.cells import CsvParser
from shardex.formats.csv.records import CsvScanner, Dialect, first_record
from shardex.sources import ByteRange
from shardex.sources.memory import MemorySource


def records(data: bytes, dialect: Dialect | None = None, **options: Any) -> list[bytes]:
    scan = CsvScanner(dialect or Dialect(), options.pop("header", None), **options).scan(MemorySource({"a": data}), "a")
    pairs = zip(scan["offset"].tolist(), scan["length"].tolist(), strict=True)
    return [data[offset : offset + length] for offset, length in pairs]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b"\n", []),
        (b"\xef\xbb\xbf", []),
        (b"1,2", [b"1,2"]),
        (b"1,2\n3,4\n", [b"1,2", b"3,4"]),
        (b"1,2\r\n\r\n  \n3,4", [b"1,2", b"3,4"]),
        (b"\xef\xbb\xbf\n1,2\n", [b"1,2"]),
        (b'\xef\xbb\xbf"1",2\n', [b'"1",2']),
        (b'"a\nb",1\n2,"c\n\n,"\n', [b'"a\nb",1', b'2,"c\n\n,"']),
        (b'"a""\n""b",1\n2,3\n', [b'"a""\n""b",1', b"2,3"]),
        (b'"",""\n"",""\n', [b'"",""', b'"",""']),
        (b'5" pipe,1\n6",2\n', [b'5" pipe,1', b'6",2']),
        (b'5" x 3",1\n"a\nb",2\n', [b'5" x 3",1', b'"a\nb",2']),
        (b'a"",1\n"b",2\n', [b'a"",1', b'"b",2']),
        (b'"a"b"c",1\n"d\n",2\n', [b'"a"b"c",1', b'"d\n",2']),
        (b'"a" "b",1\n2,3\n', [b'"a" "b",1', b"2,3"]),
        (b",\n,\n", [b",", b","]),
        (b'""""\n"\n"\n', [b'""""', b'"\n"']),
        (b"a,b\r", [b"a,b\r"]),
        (b'"\r\n"\r\n1', [b'"\r\n"', b"1"]),
    ],
)
def test_records_of_all_kinds_are_found(data: bytes, found: list[bytes]) -> None:
    assert records(data) == found


def test_a_line_of_tabs_is_a_record_of_a_tsv() -> None:
    tabs = Dialect("\t")
    assert records(b"a\tb\tc\n\t\t\n \n\t1\t\n", tabs) == [b"a\tb\tc", b"\t\t", b"\t1\t"]
    assert first_record(MemorySource({"a": b"\n\t\n1\t2\n"}), "a", tabs) == "\t"


def test_without_quotes_each_line_is_a_record() -> None:
    assert records(b'"a\nb",1\n', Dialect(quote="")) == [b'"a', b'b",1']
    assert records(b"'a\nb';1\n", Dialect(";", "'")) == [b"'a\nb';1"]


def test_a_quote_that_is_not_closed() -> None:
    data = b'1,2\n"3\n4",5\n6,"7\n8,9\n'
    with pytest.raises(FormatError, match=r"a, line 4: expected a quote that ends the cell b'\"7.n8,9.n', got the end"):
        records(data)
    assert records(data, lenient=True) == [b"1,2", b'"3\n4",5', b'6,"7', b"8,9"]


CELLS = st.text(st.sampled_from('a",\n\r \té'), max_size=5)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_records_of_the_standard_library(rows: list[list[str]], end: str, every: bool) -> None:
    """Any piece size finds what the csv module wrote, and the cells are those that it and Arrow read."""
    if end == "\n" and not every:  # the module does not quote carriage returns then
        rows = [[cell.replace("\r", "") for cell in row] for row in rows]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL).writerows(rows)
    data = text.getvalue().encode()
    whole = records(data)
    for size in (1, 2, 3, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csv_records, "_PIECE", size)
            assert records(data) == whole
    assert [[cell for cell, _ in Dialect().cells(one.decode())] for one in whole] == rows
    if whole:
        kinds = dict.fromkeys("xy", pa.large_string())
        table = CsvParser(Dialect(), ("x", "y"), ()).parse(b"".join(one + b"\n" for one in whole), kinds)
        assert [list(row.values()) for row in table.to_pylist()] == rows


@given(st.text(st.sampled_from('a",\n'), max_size=12))
def test_quotes_in_any_place_are_read_as_arrow_reads_them(text: str) -> None:
    data = text.encode()
    try:
        found = records(data)
    except FormatError:
        return  # a quote that is not closed
    for record in found:
        cells = Dialect().cells(record.decode())
        kinds = dict.fromkeys(map(str, range(len(cells))), pa.large_string())
        table = CsvParser(Dialect(), tuple(kinds), ()).parse(record + b"\n", kinds)
        assert [cell for cell, _ in cells] == list(table.to_pylist()[0].values()) and table.num_rows == 1


@given(st.text(st.sampled_from('a",\n\r '), max_size=24), st.integers(1, 9))
def test_parts_that_are_joined_are_the_same_as_a_serial_scan(text: str, size: int) -> None:
    source, scanner = (
        MemorySource({"a": b"\xef\xbb\xbfh,i\n" + text.encode()}),
        CsvScanner(Dialect(), None, lenient=True),
    )
    total, whole = source.stat("a").size, scanner.scan(source, "a")
    cuts = [0, *range(3 + size, total, size), total]
    parts = [ByteRange(a, b - a) for a, b in pairwise(cuts)]
    joined = scanner.join(source, "a", [scanner.scan_range(source, "a", part) for part in parts])
    assert all(np.array_equal(joined[name], whole[name]) for name in whole)


def test_the_header_is_left_out_and_must_be_the_same() -> None:
    assert records(b"\nx,y\n1,2\n", header=("x", "y")) == [b"1,2"]
    assert records(b'"x\n",y\n1,2\n', header=("x\n", "y")) == [b"1,2"]
    with pytest.raises(FormatError, match="a: expected the columns x, y as in the first file, got y, x; open"):
        records(b"y,x\n1,2\n", header=("x", "y"))
    with pytest.raises(FormatError, match="expected the columns x, y as in the first file, got 1, 2") as caught:
        records(b"1,2\r" * 100_000, header=("x", "y"))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b"", None),
        (b"\r\n \n", None),
        (b"\xef\xbb\xbfa,b", "a,b"),
        (b'"a"', '"a"'),
        (b'a,"b"', 'a,"b"'),
        (b'\n"a\n,b"\r\nc', '"a\n,b"'),
        (b"x" * 300 + b"\n" + b"y" * 300, "x" * 300),
        (b'"' + b"x\n" * 300 + b'"\n1', '"' + "x\n" * 300 + '"'),
        (b'a,b\n"' + b"x" * 300, "a,b"),
    ],
)
def test_first_record(data: bytes, first: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_records, "_HEAD", 8)
    assert first_record(MemorySource({"a": data}), "a", Dialect()) == first


@pytest.mark.parametrize("options", [{"delimiter": ""}, {"delimiter": ",,"}, {"delimiter": "é"}, {"quote": "\n"}])
def test_wrong_signs_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="expected one ASCII character for the option"):
        Dialect(**options)
    with pytest.raises(ArgumentError, match="expected a delimiter other than the quote"):
        Dialect('"')
