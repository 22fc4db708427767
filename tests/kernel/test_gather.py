"""The copy kernel against plain Python loops.

All but the last part goes through `shardex.kernel.gather`, so the suite tests the C kernel, and the numpy kernel when
it is run again with SHARDEX_KERNEL=numpy. The last part compares the two with each other.
"""

from __future__ import annotations

import io
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.errors import RangeError, RowError, ShardexError, TruncatedShardError
from shardex.kernel import (
    Integers,
    Ranges,
    Segments,
    gather,
    locate,
    numpy_kernel,
    row_ranges,
    set_threads,
    take,
    value_reader,
)
from shardex.kernel import buffers as segments
from shardex.kernel.buffers import KERNEL
from shardex.sources import LocalSource
from tests.resident_pages import PAGE, become_resident, evict, resident_pages

Triple = tuple[int, int, int]
Words = NDArray[np.uint64]

MOST = 2**63 - 1
FORMS: dict[str, Callable[[Ranges], Any]] = {
    "packed": Ranges.packed,
    "padded": Ranges.padded,
    "bytes": Ranges.bytes,
    "text": Ranges.text,
    "views": Ranges.views,
}

buffers = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


def lazy(contents: list[bytes]) -> tuple[Segments, list[int]]:
    """Return a table without open segments, and the list of the segments that it opens."""
    opened: list[int] = []

    def opener(number: int) -> None:
        opened.append(number)
        table.put(number, contents[number])

    table = Segments(len(contents), opener)
    return table, opened


def ranges_of(table: Segments, triples: list[Triple]) -> Ranges:
    columns = np.array(triples, np.int64).reshape(-1, 3).T
    return Ranges(table, *columns)


def needed(triples: list[Triple]) -> list[int]:
    return sorted({number for number, _, _ in triples})


@st.composite
def triples_in(draw: st.DrawFn, contents: list[bytes]) -> Triple:
    number = draw(st.integers(0, len(contents) - 1))
    begin = draw(st.integers(0, len(contents[number])))
    return number, begin, draw(st.integers(0, len(contents[number]) - begin))


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[bytes], list[Triple], list[bytes]]:
    """Draw buffers, ranges in them, and the content of each range."""
    contents = draw(buffers)
    triples = draw(st.lists(triples_in(contents), max_size=30))
    return contents, triples, [contents[number][begin : begin + length] for number, begin, length in triples]


# -- ranges ---------------------------------------------------------------------------------------------------


@given(requests())
def test_packed_puts_ranges_end_to_end(request: tuple[list[bytes], list[Triple], list[bytes]]) -> None:
    contents, triples, expected = request
    table, opened = lazy(contents)
    data, offsets = ranges_of(table, triples).packed()
    assert data.tobytes() == b"".join(expected)
    assert offsets.tolist() == [0, *accumulate(map(len, expected))]
    assert sorted(opened) == needed(triples)


@given(requests(), st.integers(0, 9))
def test_padded_fills_rows_with_zeros(request: tuple[list[bytes], list[Triple], list[bytes]], more: int) -> None:
    contents, triples, expected = request
    longest = max(map(len, expected), default=0)
    for stride in (None, longest + more):
        table, opened = lazy(contents)
        rows = ranges_of(table, triples).padded(stride)
        width = longest if stride is None else stride
        assert rows.shape == (len(triples), width)
        assert [row.tobytes() for row in rows] == [value.ljust(width, b"\0") for value in expected]
        assert sorted(opened) == needed(triples)


@given(requests())
def test_bytes_and_views_hold_each_range(request: tuple[list[bytes], list[Triple], list[bytes]]) -> None:
    contents, triples, expected = request
    for form in (Ranges.bytes, Ranges.views):
        table, opened = lazy(contents)
        values = form(ranges_of(table, triples))
        assert [bytes(value) for value in values] == expected
        assert sorted(opened) == needed(triples)


@given(st.lists(st.lists(st.text(max_size=30), max_size=8), min_size=1, max_size=4), st.randoms())
def test_text_decodes_each_range(pieces: list[list[str]], random: Any) -> None:
    encoded = [[piece.encode() for piece in segment] for segment in pieces]
    table, _ = lazy([b"".join(segment) for segment in encoded])
    known = [
        ((number, len(b"".join(segment[:k])), len(segment[k])), pieces[number][k])
        for number, segment in enumerate(encoded)
        for k in range(len(segment))
    ]
    chosen = random.choices(known, k=20) if known else []
    assert ranges_of(table, [triple for triple, _ in chosen]).text() == [text for _, text in chosen]


def test_short_texts_of_one_hash_slot_are_distinguished() -> None:
    words = [f"{k:02x}" for k in range(256)] + ["é", "日本", "", "x" * 23, "x" * 24, "x" * 25]
    data = "".join(words).encode()
    lengths = [len(word.encode()) for word in words]
    begins = [0, *accumulate(lengths)][:-1]
    order = [*range(len(words)), *reversed(range(len(words)))]
    table = Segments.of(data)
    assert Ranges(table, [0] * len(order), [begins[k] for k in order], [lengths[k] for k in order]).text() == [
        words[k] for k in order
    ]


@pytest.mark.parametrize("bad", [b"\xff", b"abc\xc3", b"\xed\xa0\x80", b"x" * 30 + b"\x80"])
def test_invalid_utf8_raises(bad: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        Ranges(Segments.of(b"fine" + bad), [0, 0], [0, 4], [4, len(bad)]).text()


def test_views_are_read_only_and_copy_nothing() -> None:
    data = bytearray(b"abcdef")
    (view,) = Ranges(Segments.of(data), [0], [1], [3]).views()
    data[1] = ord("X")
    assert view.readonly
    assert bytes(view) == b"Xcd"


def test_indexing_selects_ranges() -> None:
    ranges = Ranges(Segments.of(b"abcdef"), [0, 0, 0], [0, 2, 4], [2, 2, 2])
    assert len(ranges) == 3
    assert ranges[1:].bytes() == [b"cd", b"ef"]
    assert ranges[np.array([2, 0])].bytes() == [b"ef", b"ab"]


# -- wrong ranges ---------------------------------------------------------------------------------------------

WRONG = [
    (0, -1, 2),
    (0, 0, -1),
    (0, -5, -5),
    (0, 0, 11),
    (0, 10, 1),
    (0, 11, 0),
    (0, MOST, 1),
    (0, 1, MOST),
    (0, MOST, MOST),
    (0, MOST - 1, 2 << 20),
    (0, -(2**63), 2**62),
    (0, 2**62, 2**62),
    (0, -(2**63), -(2**63)),
    (1, 0, 1),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", WRONG)
def test_range_outside_its_segment_raises(form: str, wrong: Triple) -> None:
    table = Segments(2, name="file {}".format)
    table.put(0, b"0123456789")
    table.put(1, b"")
    with pytest.raises(
        RangeError, match=f"file {wrong[0]}, {'0' if wrong[0] else '10'} bytes: .* range 1 of the request"
    ):
        FORMS[form](ranges_of(table, [(0, 2, 3), wrong]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [-1, 1, -(2**63), MOST])
def test_unknown_segment_raises(form: str, number: int) -> None:
    with pytest.raises(RowError):
        FORMS[form](ranges_of(Segments.of(b"0123456789"), [(0, 0, 1), (number, 0, 1)]))


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_different_length_raise(form: str) -> None:
    with pytest.raises(RangeError, match="of one size"):
        FORMS[form](Ranges(Segments.of(b"abc"), [0, 0], [0], [1, 1]))


@pytest.mark.parametrize("form", FORMS)
def test_huge_length_raises_before_memory_is_allocated(form: str) -> None:
    for triples in ([(0, 0, 3 << 30)], [(0, 0, 1 << 20)] * 4096, [(0, 0, 2**62)] * 4):
        tracemalloc.start()
        try:
            with pytest.raises(RangeError):
                FORMS[form](ranges_of(Segments.of(bytes(1024)), triples))
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


edges = st.one_of(
    st.integers(-3, 45),
    st.sampled_from([MOST, MOST - 1, -(2**63), 2**62, -(2**62), 2**32]),
    st.integers(-(2**63), MOST),
)


@given(
    buffers, st.lists(st.tuples(st.integers(0, 5), edges, edges), max_size=6), st.integers(-1, 50), st.integers(0, 99)
)
def test_arbitrary_ranges_give_bytes_or_an_error_and_unchanged_output(
    contents: list[bytes], triples: list[Triple], stride: int, room: int
) -> None:
    table, _ = lazy(contents)
    ranges, out = ranges_of(table, triples), np.full(room, 0xAA, np.uint8)
    inside = all(
        number < len(contents) and begin >= 0 <= length and begin + length <= len(contents[number])
        for number, begin, length in triples
    )
    values = [contents[number][begin : begin + length] for number, begin, length in triples] if inside else []
    expected = b"".join(values if stride < 0 else [value.ljust(stride, b"\0") for value in values])
    fits = len(expected) == room and all(len(value) <= stride or stride < 0 for value in values)
    try:
        table.call(segments.kernel.ranges, (ranges.which, ranges.begin, ranges.length, out, stride, 1))
    except (RowError, RangeError):
        assert not (inside and fits)
        assert (out == 0xAA).all()
    else:
        assert (inside, fits) == (True, True)
        assert out.tobytes() == expected


@pytest.mark.parametrize(("stride", "room"), [(-1, 4), (-1, 6), (3, 5), (3, 7), (2, 4), (2**62, 8), (2**62, 0), (0, 0)])
def test_output_of_wrong_size_raises(stride: int, room: int) -> None:
    ranges, out = Ranges(Segments.of(b"abcdef"), [0, 0], [0, 2], [2, 3]), np.full(room, 0xAA, np.uint8)
    with pytest.raises(RangeError, match="does not fit the output"):
        ranges.segments.call(segments.kernel.ranges, (ranges.which, ranges.begin, ranges.length, out, stride, 1))
    assert (out == 0xAA).all()


# -- take -----------------------------------------------------------------------------------------------------


@st.composite
def tables_of_rows(draw: st.DrawFn) -> tuple[int, list[list[bytes]], list[int]]:
    """Draw a width, rows of that width by segment, and the rows to take."""
    width = draw(st.one_of(st.integers(0, 17), st.sampled_from([64, 100, 700])))
    counts = draw(st.one_of(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.just([4] * 7)))
    data = np.random.default_rng(draw(st.integers(0, 99))).bytes(width * sum(counts))
    rows = [data[k * width : (k + 1) * width] for k in range(sum(counts))]
    ends = [0, *accumulate(counts)]
    wanted = draw(st.lists(st.integers(0, sum(counts) - 1), max_size=40)) if sum(counts) else []
    return width, [rows[a:b] for a, b in pairwise(ends)], wanted


@given(tables_of_rows(), st.binary(max_size=3))
def test_take_copies_rows(case: tuple[int, list[list[bytes]], list[int]], tail: bytes) -> None:
    width, segments, wanted = case
    table, opened = lazy([b"".join(rows) + tail for rows in segments])
    starts = np.array([0, *accumulate(map(len, segments))])
    out = np.full(len(wanted) * width, 0xAA, np.uint8)
    take(table, starts, np.array(wanted, np.int64), width, out)
    rows = [row for segment in segments for row in segment]
    assert out.tobytes() == b"".join(rows[k] for k in wanted)
    assert sorted(opened) == sorted({int(np.searchsorted(starts, k, "right")) - 1 for k in wanted})


@given(
    st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), max_size=6),
    st.integers(0, 20),
    st.lists(st.integers(0, 30)),
)
def test_adjacent_rows_and_ranges(runs: list[tuple[int, int]], width: int, cuts: list[int]) -> None:
    contents = [bytes(range(k * 10, k * 10 + 10)) * width for k in range(3)]  # three segments of ten rows
    table, _ = lazy(contents)
    rows = [row for first, count in runs for row in range(first, min(first + count, 30))]
    take(table, np.arange(4) * 10, np.array(rows, np.int64), width, out := np.empty(len(rows) * width, np.uint8))
    whole = b"".join(contents)
    assert out.tobytes() == b"".join(whole[row * width : (row + 1) * width] for row in rows)
    ends = sorted({0, 10 * width, *(cut * width // 3 for cut in cuts if cut <= 30)})
    triples = [(number, begin, end - begin) for number in range(3) for begin, end in pairwise([0, *ends])]
    assert ranges_of(table, triples).packed()[0].tobytes() == whole


@pytest.mark.parametrize("row", [-1, 4, -(2**63), MOST])
def test_take_row_outside_raises(row: int) -> None:
    out = np.full(2, 0xAA, np.uint8)
    with pytest.raises(RowError, match="row 1 of the request lies outside"):
        take(Segments.of(b"abcd"), np.array([0, 4]), np.array([0, row]), 1, out)
    assert (out == 0xAA).all()


@pytest.mark.parametrize("room", [0, 3, 5])
def test_take_into_output_of_wrong_size_raises(room: int) -> None:
    out = np.full(room, 0xAA, np.uint8)
    with pytest.raises(RangeError, match=f"expected 2 rows of 2 bytes, got {room} bytes"):
        take(Segments.of(b"abcd"), np.array([0, 2]), np.array([0, 1]), 2, out)
    assert (out == 0xAA).all()


@pytest.mark.parametrize(("size", "first"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_take_from_truncated_segment_raises(size: int, first: int) -> None:
    out = np.full(4, 0xAA, np.uint8)
    with pytest.raises(RangeError, match=f"segment 0, {size} bytes: .* range {first} of the request"):
        take(Segments.of(b"abcd"[:size]), np.array([0, 2]), np.array([0, 1]), 2, out)
    assert (out == 0xAA).all()


@given(
    st.lists(edges, max_size=5),
    st.lists(st.one_of(st.integers(0, 9), edges), min_size=1, max_size=5),
    st.integers(0, 9),
    st.sampled_from([4, 8]),
)
def test_arbitrary_starts_never_read_outside(starts: list[int], rows: list[int], width: int, offset_width: int) -> None:
    table = Segments(len(starts), lambda number: table.put(number, bytes(range(10, 30))))
    numbers, wanted = np.array([0, *starts], np.int64), np.array(rows, np.int64)
    out = np.full(len(rows) * width, 0xAA, np.uint8)
    try:
        take(table, numbers, wanted, width, out)
    except ShardexError:
        assert (out == 0xAA).all()
    else:
        assert ((out >= 10) & (out < 30)).all()
    with suppress(ShardexError):
        locate(table, numbers, wanted, offset_width, 1, Segments(len(starts)))


@pytest.mark.parametrize("starts", [[], [0], [1, 4], [0, 2, 4]])
def test_starts_of_wrong_length_raise(starts: list[int]) -> None:
    with pytest.raises(RangeError, match="starts"):
        take(Segments.of(b"abcd"), np.array(starts, np.int64), np.array([0]), 1, np.empty(1, np.uint8))


def unaligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same numbers at an unaligned address."""
    return np.frombuffer(bytearray(b"x" + array.tobytes()), np.uint8)[1:].view(array.dtype)


@pytest.mark.parametrize(
    "spelled",
    [
        lambda rows: rows.tolist(),
        lambda rows: rows.astype(np.int32),
        lambda rows: rows.astype(np.uint8),
        lambda rows: rows.astype(">i8"),
        lambda rows: np.repeat(rows, 2)[::2],
        unaligned,
    ],
)
def test_integers_of_any_memory_layout(spelled: Callable[[Integers], Any]) -> None:
    data, rows, starts = Segments.of(b"abcdef"), np.array([5, 0, 3]), np.array([0, 6])
    take(data, spelled(starts), spelled(rows), 1, out := np.empty(3, np.uint8))
    assert out.tobytes() == b"fad"
    zeros, ones = np.zeros(3, np.int64), np.ones(3, np.int64)
    assert Ranges(data, spelled(zeros), spelled(rows), spelled(ones)).bytes() == [b"f", b"a", b"d"]
    offsets = Segments.of(np.arange(7))
    assert locate(offsets, spelled(starts), spelled(rows), 8, 1, data).bytes() == [b"f", b"a", b"d"]


# -- locate ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=5),
    st.integers(0, 7),
    st.sampled_from([np.int32, np.int64]),
    st.integers(1, 8),
    st.booleans(),
    st.data(),
)
def test_locate_finds_ranges_by_offsets(
    lengths: list[list[int]], first: int, dtype: type[np.signedinteger[Any]], item: int, odd: bool, data: st.DataObject
) -> None:
    ends = [[first, *(first + end for end in accumulate(segment))] for segment in lengths]
    arrays = [np.array(segment, dtype) for segment in ends]
    table = Segments(len(lengths), lambda number: table.put(number, (unaligned if odd else np.copy)(arrays[number])))
    starts = np.array([0, *accumulate(map(len, lengths))])
    rows = data.draw(st.lists(st.integers(0, int(starts[-1]) - 1), max_size=20)) if starts[-1] else []
    ranges = locate(table, starts, np.array(rows, np.int64), arrays[0].itemsize, item, table)
    known = [
        (number, begin * item, (end - begin) * item)
        for number, segment in enumerate(ends)
        for begin, end in pairwise(segment)
    ]
    found = zip(ranges.which.tolist(), ranges.begin.tolist(), ranges.length.tolist(), strict=True)
    assert list(found) == [known[row] for row in rows]


@pytest.mark.parametrize(
    "offsets",
    [[0, 3, 2], [0, -1, 2], [-1, 0, 2], [5, 0, 2], [MOST, 0, 0], [0, MOST, MOST], [-(2**63), MOST, MOST]],
)
def test_descending_or_too_large_offsets_raise(offsets: list[int]) -> None:
    table = Segments.of(np.array(offsets, np.int64))
    with pytest.raises(RangeError, match=r"segment 0, 24 bytes: expected offsets that rise from 0"):
        locate(table, np.array([0, 2]), np.array([0, 1]), 8, 4, table)


@pytest.mark.parametrize("row", [-1, 2, MOST])
def test_locate_row_outside_raises(row: int) -> None:
    table = Segments.of(np.zeros(3, np.int64))
    with pytest.raises(RowError):
        locate(table, np.array([0, 2]), np.array([row]), 8, 1, table)


@pytest.mark.parametrize("size", [0, 1, 8, 15])
def test_locate_with_too_few_offsets_raises(size: int) -> None:
    table = Segments.of(bytes(size))
    with pytest.raises(RangeError, match="inside it, range 0"):
        locate(table, np.array([0, 1]), np.array([0]), 8, 1, table)


@pytest.mark.parametrize(("width", "item"), [(2, 1), (0, 1), (16, 1), (8, 0), (8, -4)])
def test_locate_with_wrong_sizes_raises(width: int, item: int) -> None:
    table = Segments.of(bytes(64))
    with pytest.raises(RangeError, match="4 or 8 bytes"):
        locate(table, np.array([0, 1]), np.array([0]), width, item, table)


# -- large copies, by several threads ----------------------------------------------------------------------------


@pytest.fixture
def four_threads() -> Iterator[None]:
    set_threads(4)
    yield
    set_threads(None)


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("width", [1, 2, 4, 8, 12, 1000])
def test_take_with_threads(width: int) -> None:
    random = np.random.default_rng(width)
    arrays = [random.integers(0, 256, (900 + k, width), np.uint8) for k in range(4)]
    table = Segments(4, lambda number: table.put(number, arrays[number]))
    starts = np.array([0, *accumulate(map(len, arrays))])
    rows = random.integers(0, starts[-1], (4 << 20) // width + 1000)
    out = np.empty((len(rows), width), np.uint8)
    take(table, starts, rows, width, out)
    assert np.array_equal(out, np.concatenate(arrays)[rows])


@pytest.mark.usefixtures("four_threads")
def test_large_bytes_with_threads() -> None:
    data = np.random.default_rng(0).bytes(1 << 20)
    for shortest, longest in ((0, 5000), (1024, 1025), (60_000, 90_000)):  # below and above the size for threads
        sizes = np.random.default_rng(1).integers(shortest, longest, 600)
        begins = np.random.default_rng(2).integers(0, len(data) - longest, 600)
        values = Ranges(Segments.of(data), np.zeros(600, np.int64), begins, sizes).bytes()
        assert values == [data[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]


@pytest.mark.usefixtures("four_threads")
def test_ranges_with_threads() -> None:
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 256, 50_000, np.uint8) for _ in range(10)]
    table = Segments(10, lambda number: table.put(number, arrays[number]))
    ranges = Ranges(
        table, random.integers(0, 10, 3000), random.integers(0, 40_000, 3000), random.integers(0, 5000, 3000)
    )
    triples = list(zip(ranges.which.tolist(), ranges.begin.tolist(), ranges.length.tolist(), strict=True))
    expected = [arrays[number][begin : begin + length].tobytes() for number, begin, length in triples]
    data, offsets = ranges.packed()
    assert len(data) > 4 << 20
    assert data.tobytes() == b"".join(expected)
    assert offsets[-1] == len(data)
    assert ranges.padded().tobytes() == b"".join(value.ljust(int(ranges.length.max()), b"\0") for value in expected)


# -- lines ----------------------------------------------------------------------------------------------------


LINES = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"\t \x0b\x0c", b"\x1c", b"a", b"bc", b"\n\n", b"x" * 9]), max_size=40
).map(b"".join)


def lines_by_hand(data: bytes) -> list[tuple[int, int]]:
    """Offset and length of each line, the last one without newline included."""
    found, at = [], 0
    for line in io.BytesIO(data):
        kept = line.removesuffix(b"\n")
        found.append((at, len(kept.removesuffix(b"\r") if line.endswith(b"\n") else kept)))
        at += len(line)
    return found


@given(LINES, st.booleans(), st.sampled_from([np.uint32, np.uint64]), st.integers(0, 1 << 31))
def test_lines_have_no_line_ends(data: bytes, skip_blank: bool, dtype: Any, base: int) -> None:
    offset, length = np.zeros(len(data) + 1, dtype), np.zeros(len(data) + 1, np.uint32)
    expected = [(at + base, size) for at, size in lines_by_hand(data) if not skip_blank or data[at : at + size].strip()]
    count, then = gather.find_lines(data, 0, len(data), offset, length, whole=True, skip_blank=skip_blank, base=base)
    assert list(zip(offset[:count].tolist(), length[:count].tolist(), strict=True)) == expected
    assert then == len(data)
    assert gather.count_newlines(data) == data.count(b"\n")


def test_search_ends_early_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_kernel, "_BLOCK", 3)
    data, offset, length = b"one\n\n \nthree\nfo", np.zeros(2, np.uint32), np.zeros(2, np.uint32)
    assert gather.find_lines(data, 0, 15, offset, length, whole=False) == (2, 5)  # no room
    assert gather.find_lines(data, 5, 15, offset, length, whole=False) == (2, 13)
    assert gather.find_lines(data, 13, 15, offset, length, whole=False) == (0, 13)  # no end
    assert gather.find_lines(data, 13, 15, offset, length, whole=True) == (1, 15)
    assert gather.find_lines(data, 4, 7, offset, length, whole=True, skip_blank=True) == (0, 7)
    assert gather.find_lines(data, 4, 8, offset, length, whole=True, skip_blank=True) == (1, 13)  # it begins before 8
    assert (offset[0], length[0]) == (7, 5)
    assert gather.find_lines(data, 0, 15, offset, length, whole=True, longest=2) == (0, 0)
    assert gather.find_lines(data, 4, 15, offset, length, whole=True, skip_blank=True, longest=4) == (0, 7)
    assert gather.find_lines(b"", 0, 0, offset, length, whole=True) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": -1}, "expected 0 <= at <= stop <= 3"),
        ({"at": 3, "stop": 2}, "expected 0 <= at <= stop <= 3"),
        ({"stop": 4}, "expected 0 <= at <= stop <= 3"),
        ({"base": -1}, "expected lengths and offsets that fit"),
        ({"base": (1 << 32) - 3}, "expected lengths and offsets that fit"),
        ({"longest": 1 << 32}, "expected lengths and offsets that fit"),
        ({"offset": np.zeros(2, np.uint32)}, "expected as many aligned items of 4 or 8 bytes as lengths"),
    ],
)
def test_lines_outside_raise(arguments: dict[str, Any], message: str) -> None:
    outputs = {"offset": np.zeros(3, np.uint32), "length": np.zeros(3, np.uint32)}
    with pytest.raises(ValueError, match=message):
        gather.find_lines(b"a\nb", **{"at": 0, "stop": 3, "whole": True, **outputs, **arguments})


# -- permutations ---------------------------------------------------------------------------------------------


@st.composite
def keys(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> dict[str, Any]:
    """Draw arguments of `permute`; `inverse` are the multipliers of the inverse permutation."""
    size = draw(sizes)
    bits = min(64, max(1, (size - 1).bit_length()) + draw(st.integers(0, 1)))
    rounds = draw(st.integers(0, 6))
    words = st.lists(st.integers(0, 2**bits - 1), min_size=rounds, max_size=rounds)
    multiply = [word | 1 for word in draw(words)]
    return {
        "size": size,
        "multiply": np.array(multiply, np.uint64),
        "inverse": np.array([pow(word, -1, 2**bits) for word in multiply], np.uint64),
        "add": np.array(draw(words), np.uint64),
        "shift": draw(st.integers((bits + 1) // 2, min(63, bits + 1))),
        "mask": 2**bits - 1,
    }


def there(key: dict[str, Any], positions: Integers) -> Integers:
    return gather.permute(key["size"], key["multiply"], key["add"], key["shift"], key["mask"], positions)


def back(key: dict[str, Any], rows: Integers) -> Integers:
    return gather.permute(key["size"], key["inverse"], key["add"], key["shift"], key["mask"], rows, inverse=True)


def by_hand(key: dict[str, Any], position: int) -> int:
    x = position
    while True:
        for multiply, add in zip(key["multiply"].tolist(), key["add"].tolist(), strict=True):
            x = (x * multiply + add) & key["mask"]
            x ^= x >> key["shift"]
        if x < key["size"]:
            return x


@given(keys(st.integers(1, 300)))
def test_permute_is_a_bijection_with_an_inverse(key: dict[str, Any]) -> None:
    positions = np.arange(key["size"])
    rows = there(key, positions)
    assert rows.tolist() == [by_hand(key, k) for k in range(key["size"])]
    assert sorted(rows.tolist()) == positions.tolist()
    assert back(key, rows).tolist() == there(key, back(key, positions)).tolist() == positions.tolist()


@given(keys(st.integers(2**40, MOST)), st.lists(st.integers(0, MOST), max_size=20))
def test_permute_large_sizes(key: dict[str, Any], numbers: list[int]) -> None:
    positions = np.array([number % key["size"] for number in numbers], np.int64)
    rows = there(key, positions)
    assert rows.tolist() == [by_hand(key, k) for k in positions.tolist()]
    assert back(key, rows).tolist() == positions.tolist()


def test_permute_without_positions() -> None:
    one = np.ones(1, np.uint64)
    assert gather.permute(0, one, one, 1, 0, np.empty(0, np.int64)).tolist() == []
    with pytest.raises(RowError):
        gather.permute(0, one, one, 1, 0, np.zeros(1, np.int64))


@pytest.mark.parametrize("position", [-1, 10, MOST])
def test_permute_position_outside_raises(position: int) -> None:
    with pytest.raises(RowError, match="row 1 of the request"):
        gather.permute(10, np.ones(1, np.uint64), np.zeros(1, np.uint64), 2, 15, np.array([0, position]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"multiply": np.array([2], np.uint64)},
        {"add": np.zeros(2, np.uint64)},
        {"shift": 0},
        {"shift": 1},
        {"shift": 64},
        {"mask": 7},
        {"mask": 14},
    ],
)
def test_invalid_keys_raise(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"multiply": np.ones(1, np.uint64), "add": np.ones(1, np.uint64), "shift": 2, "mask": 15}
    with pytest.raises(ValueError, match="permute: expected odd multipliers"):
        gather.permute(10, **right | wrong, positions=np.arange(10))


# -- C and numpy kernel -------------------------------------------------------------------------------------------

kernel: Any = sys.modules.get("shardex.kernel._gather")
compiled = pytest.mark.skipif(kernel is None, reason="the C kernel is not compiled")


def answers(
    name: str, table: Segments, *arguments: Any, outputs: list[NDArray[Any]], after: tuple[Any, ...] = ()
) -> Any:
    """Return what both kernels return or raise and what they wrote; asserts that it is the same."""
    found = []
    for module, first in ((kernel, (table.address, table.size)), (numpy_kernel, (table,))):
        written = [np.copy(output) for output in outputs]
        try:
            answer = getattr(module, name)(*first, *arguments, *written, *after)
        except (IndexError, ValueError) as error:
            answer, written = (type(error), error.args[1:]), []
        found.append((answer, [output.tolist() for output in written]))
    assert found[0] == found[1]
    return found[0]


one_wrong = st.one_of(st.none(), st.tuples(st.integers(-2, 8), edges, edges))


@compiled
@given(requests(), one_wrong, st.integers(-1, 45), st.integers(0, 60), st.booleans())
def test_kernels_agree_on_ranges(
    request: tuple[list[bytes], list[Triple], list[bytes]], wrong: Triple | None, stride: int, room: int, closed: bool
) -> None:
    contents, triples, expected = request
    table, _ = lazy(contents)
    for number in range(closed, len(contents)):
        table.open(number)
    ranges = ranges_of(table, triples if wrong is None or closed else [*triples, wrong])
    if wrong is None and room % 2:
        room = sum(map(len, expected)) if stride < 0 else stride * len(triples)
    numbers = (ranges.which, ranges.begin, ranges.length)
    answers("ranges", table, *numbers, outputs=[np.zeros(room, np.uint8)], after=(stride, 1))
    answers("values", table, *numbers, False, 1, outputs=[])
    answers("values", table, *numbers, True, 1, outputs=[])


@compiled
@given(tables_of_rows(), edges)
def test_kernels_agree_on_rows(case: tuple[int, list[list[bytes]], list[int]], row: int) -> None:
    width, segments, wanted = case
    table, _ = lazy([b"".join(rows) for rows in segments])
    for number in range(len(segments)):
        table.open(number)
    starts = np.array([0, *accumulate(map(len, segments))])
    for some in (wanted, [*wanted, row]):
        rows = np.array(some, np.int64)
        out = np.zeros(len(rows) * width, np.uint8)
        answers("fixed", table, starts, rows, width, outputs=[out], after=(1,))
        triple = [np.zeros(len(rows), np.int64) for _ in range(3)]
        answers("locate", table, starts, rows[:1], 4, 3, outputs=[one[:1] for one in triple])


@compiled
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 3)), min_size=1, max_size=5),
    st.tuples(st.integers(0, 20), st.integers(0, 30), st.sampled_from([4, 8]), st.integers(0, 9)),
    st.lists(st.tuples(st.integers(0, 40), st.one_of(st.integers(-3, 60), edges)), max_size=2),
)
def test_kernels_agree_on_consecutive_rows(
    segments: list[tuple[int, int]], sizes: tuple[int, int, int, int], wrong: list[tuple[int, int]]
) -> None:
    """Segments may be too short or too long, and have offsets that do not rise."""
    first, count, width, start = sizes
    starts = np.array([0, *accumulate(rows for rows, _ in segments)])
    table, kind = Segments(len(segments)), np.int32 if width == 4 else np.int64
    offsets = np.arange(start, start + 60)
    for at, value in wrong:
        offsets[at] = np.clip(value, np.iinfo(kind).min, np.iinfo(kind).max)
    for number, (size, more) in enumerate(segments):
        table.put(number, offsets[number : number + max(0, size + 1 + more)].astype(kind))
    rows = np.arange(first, min(first + count, int(starts[-1])))
    answers("fixed", table, starts, rows, width, outputs=[np.zeros(len(rows) * width, np.uint8)], after=(1,))
    found = answers("locate", table, starts, rows, width, 3, outputs=[np.zeros(len(rows), np.int64) for _ in range(3)])
    if found[0] == -1:
        take(table, starts, rows, width, out := np.empty(len(rows), kind))
        assert (out * 3).tolist() == found[1][1]


@compiled
@given(keys(st.integers(1, 2**40)), st.lists(st.integers(0, 2**40), max_size=20), st.booleans())
def test_kernels_agree_on_permutations(key: dict[str, Any], numbers: list[int], inverse: bool) -> None:
    positions, multiply = np.array(numbers, np.int64) % key["size"], key["inverse" if inverse else "multiply"]
    found = []
    for module in (kernel, numpy_kernel):
        out = np.empty(len(positions), np.int64)
        module.permute(key["size"], multiply, key["add"], key["shift"], key["mask"], positions, out, inverse, 1)
        found.append(out.tolist())
    assert found[0] == found[1]


@compiled
@given(LINES, st.data())
def test_kernels_agree_on_lines(data: bytes, draw: st.DataObject) -> None:
    at, stop = (draw.draw(st.integers(-1, len(data) + 1)) for _ in range(2))
    whole, skip_blank = draw.draw(st.booleans()), draw.draw(st.booleans())
    longest, room, block = (draw.draw(st.integers(0, 9)) for _ in range(3))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_kernel, "_BLOCK", block + 1)
        for module in (kernel, numpy_kernel):
            offset, length = np.zeros(room, np.uint64), np.zeros(room, np.uint32)
            try:
                answer = module.lines(data, at, stop, whole, skip_blank, longest, 5, offset, length)
                found.append((answer, offset.tolist(), length.tolist()))
            except ValueError as error:
                found.append((str(error), [], []))
            assert module.newlines(data) == data.count(b"\n")
    assert found[0] == found[1]


# -- one value --------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=9), min_size=1, max_size=9), st.sampled_from([4, 8]))
def test_value_reader_gives_what_locate_finds(texts: list[str], width: int) -> None:
    raw = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, raw)]).astype(np.int32 if width == 4 else np.int64)
    offsets, values = Segments.of(ends), Segments.of(b"".join(raw))
    assert [value_reader(offsets, values, 0, width, text=True)(k) for k in range(len(texts))] == texts
    assert [value_reader(offsets, values, 0, width, text=False)(k) for k in range(len(texts))] == raw


@pytest.mark.skipif(KERNEL != "c", reason="the numpy kernel leaves these checks to numpy")
@pytest.mark.parametrize(
    ("ends", "row"), [([0, 2], 1), ([0, 2], -1), ([0, 2], 2**64 - 1), ([0, 9], 0), ([2, 0], 0), ([-1, 2], 0), ([], 0)]
)
def test_value_reader_raises_for_rows_and_offsets_outside(ends: list[int], row: int) -> None:
    get = value_reader(Segments.of(np.array(ends, np.int64)), Segments.of(b"ab"), 0, 8, text=False)
    with pytest.raises((IndexError, ValueError, OverflowError)):
        get(row)


# -- advice -----------------------------------------------------------------------------------------------------------

both_kernels = pytest.mark.parametrize(
    "module", [pytest.param(kernel, marks=compiled), numpy_kernel], ids=["c", "numpy"]
)


def advise(module: Any, ranges: Ranges, gap: int = 0, most: int = 1 << 30, threads: int = 2) -> int:
    table = ranges.segments
    first = (table,) if module is numpy_kernel else (table.address, table.size)
    return int(module.advise(*first, ranges.which, ranges.begin, ranges.length, gap, most, threads))


def cold_file(folder: Path, pages: int) -> tuple[Path, Segments]:
    path = folder / "data"
    path.write_bytes(bytes(pages * PAGE))
    table = Segments.of(LocalSource(folder).map("data"))
    evict(path)
    return path, table


@both_kernels
@pytest.mark.parametrize(
    ("gap", "most", "expected"),
    [
        (0, 1 << 30, [3, 5, 6, 39, 40]),
        (PAGE, 1 << 30, [3, 4, 5, 6, 39, 40]),
        (PAGE - 1, 1 << 30, [3, 5, 6, 39, 40]),
        (0, 2 * PAGE + 1, [3, 5]),
        (100 * PAGE, 1 << 30, list(range(3, 41))),
    ],
)
def test_advise_reads_pages(module: Any, disk_path: Path, gap: int, most: int, expected: list[int]) -> None:
    path, table = cold_file(disk_path, 4096)
    triples = [(0, 40 * PAGE - 1, 2), (0, 3 * PAGE + 5, 10), (0, 6 * PAGE, 1), (0, 5 * PAGE, PAGE), (0, 3 * PAGE, 0)]
    assert advise(module, ranges_of(table, triples), gap, most) == -1
    assert become_resident(path, expected, lambda: advise(module, ranges_of(table, triples), gap, most))
    assert not resident_pages(path)[64:].any()


@both_kernels
def test_advise_skips_missing_segments_and_ranges_outside(module: Any, disk_path: Path) -> None:
    path, data = cold_file(disk_path, 256)
    table = Segments(3)
    table.put(1, data.open(0))
    inside, size = (1, 7 * PAGE, 1), 256 * PAGE
    outside = [(1, size, 1), (1, 0, size + 1), (1, -1, 9), (1, 0, -9), (1, MOST, MOST), (1, size - 5, MOST)]
    ranges = ranges_of(table, [*outside, (-1, 0, 1), (3, 0, 1), (0, 0, 1), (2, 0, 0), inside])
    assert advise(module, ranges) == -1
    assert become_resident(path, [7], lambda: advise(module, ranges))
    assert resident_pages(path).sum() == 1


@both_kernels
def test_advise_last_page_of_a_file(module: Any, disk_path: Path) -> None:
    path = disk_path / "data"
    path.write_bytes(bytes(PAGE + 1))
    table = Segments.of(LocalSource(disk_path).map("data"))
    evict(path)
    ranges = ranges_of(table, [(0, PAGE, 1)])
    assert advise(module, ranges, gap=1 << 20) == -1
    assert become_resident(path, [1], lambda: advise(module, ranges, gap=1 << 20))


@both_kernels
@given(requests(), one_wrong, st.integers(0, 2**40), st.integers(0, 2**40))
def test_advise_memory_without_file_does_nothing(
    module: Any, request: tuple[list[bytes], list[Triple], list[bytes]], wrong: Triple | None, gap: int, most: int
) -> None:
    contents, triples, expected = request
    table, opened = lazy(contents)
    for number in range(0, len(contents), 2):
        table.open(number)
    before = list(opened)
    assert advise(module, ranges_of(table, triples if wrong is None else [*triples, wrong]), gap, most) == -1
    assert opened == before
    assert ranges_of(table, triples).bytes() == expected


@both_kernels
@pytest.mark.parametrize(("gap", "most"), [(-1, 0), (0, -1)])
def test_advise_with_wrong_limits_raises(module: Any, gap: int, most: int) -> None:
    with pytest.raises(ValueError, match="advise: expected a gap"):
        advise(module, ranges_of(Segments.of(b"abc"), []), gap, most)


@both_kernels
def test_advise_arrays_of_different_length_raise(module: Any) -> None:
    ranges = ranges_of(Segments.of(b"abc"), [(0, 0, 1)])
    ranges.length = ranges.length[:0]
    with pytest.raises(ValueError, match="of one size"):
        advise(module, ranges)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40)), max_size=20), st.integers(0, 30))
def test_pages_of_the_numpy_kernel(ranges: list[tuple[int, int]], gap: int) -> None:
    table = Segments.of(bytes(200))
    table.address[0] = 1000
    begin, length = np.array(ranges, np.int64).reshape(-1, 2).T
    found = list(numpy_kernel._pages(table, np.zeros(len(ranges), np.int64), begin, length, 8, gap))
    wanted = {page for a, n in ranges for page in range((1000 + a) // 8, (1000 + a + n - 1) // 8 + 1)}
    assert wanted <= {page for a, b in found for page in range(a // 8, b // 8)}
    assert all(a // 8 in wanted and b // 8 - 1 in wanted for a, b in found)
    assert all(later - end > gap for (_, end), (later, _) in pairwise(found))
    if not gap:
        assert sum(b - a for a, b in found) == 8 * len(wanted)


def test_advise_opens_segments_that_can_be_opened(disk_path: Path) -> None:
    path, data = cold_file(disk_path, 256)

    def opener(number: int) -> None:
        if number == 1:
            raise TruncatedShardError("too short")
        table.put(number, data.open(0))

    table = Segments(4, opener)
    ranges = ranges_of(table, [(1, 0, 9), (2, 9 * PAGE, 9), (-5, 0, 1), (4, 0, 1)])
    assert become_resident(path, [9], ranges.advise)
    assert list(table.buffers) == [2]
    with pytest.raises(TruncatedShardError):
        ranges_of(table, [(1, 0, 9)]).bytes()


@both_kernels
def test_advise_releases_the_gil(module: Any) -> None:
    table = Segments.of(bytes(1 << 20))
    many = Ranges(table, np.zeros(1 << 16, np.int64), np.arange(1 << 16) * 16, np.ones(1 << 16, np.int64))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: advise(module, many), range(8))) == {-1}


@given(tables_of_rows())
def test_row_ranges_are_what_take_copies(case: tuple[int, list[list[bytes]], list[int]]) -> None:
    width, segments, wanted = case
    table, _ = lazy([b"".join(rows) for rows in segments])
    starts = np.array([0, *accumulate(map(len, segments))])
    every = [row for rows in segments for row in rows]
    assert row_ranges(table, starts, np.array(wanted, np.int64), width).bytes() == [every[row] for row in wanted]


def test_concat_ranges() -> None:
    table = Segments.of(b"abcdef")
    one, other = (np.array([0]), np.array([1]), np.array([2])), (np.array([0, 0]), np.array([0, 5]), np.array([1, 1]))
    assert Ranges.concat(table, [one, other]).text() == ["bc", "a", "f"]
    assert len(Ranges.concat(table, [])) == 0
