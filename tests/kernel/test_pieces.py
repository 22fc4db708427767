"""Kernel functions for samples made of pieces: copies to given places, pieces, bins, groups; against plain loops.

Like test_gather.py, the suite tests the kernel in use, and compares the two kernels with each other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import RangeError, RowError
from shardex.kernel import Ranges, Segments, numpy_kernel, set_threads
from shardex.kernel import buffers as segments
from shardex.kernel.buffers import KERNEL
from shardex.kernel.packing import PieceTable, best_fit, cut_pieces, fill_gaps, fit_in_order

compiled = pytest.mark.skipif(KERNEL != "c", reason="compares with the C kernel")
kernel: Any = segments.kernel
edges = st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63)])


# -- copies to given places --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 5), st.integers(0, 3)), max_size=12))
def test_ranges_are_copied_to_their_places(pieces: list[tuple[int, int, int]]) -> None:
    data = bytes(range(1, 21))
    expected, targets = bytearray(), []
    for begin, length, gap in pieces:
        expected += bytes(gap)
        targets.append(len(expected))
        expected += data[begin : begin + length]
    out = np.zeros(len(expected), np.uint8)
    begins, lengths, _ = np.array(pieces, np.int64).reshape(-1, 3).T
    backwards = slice(None, None, -1)  # targets need not ascend
    for some in (slice(None), backwards):
        out[:] = 0
        where = np.zeros(len(pieces), np.int64), begins[some], lengths[some]
        Ranges(Segments.of(data), *where).copy_to(out, np.array(targets, np.int64)[some])
        assert out.tobytes() == bytes(expected)


def test_neighbours_in_the_data_that_are_no_neighbours_in_the_output() -> None:
    out = np.zeros(8, np.uint8)
    Ranges(Segments.of(b"abcd"), [0, 0], [0, 2], [2, 2]).copy_to(out, np.array([5, 1]))
    assert out.tobytes() == b"\x00cd\x00\x00ab\x00"


@pytest.mark.parametrize("target", [-1, 7, 2**63 - 1, -(2**63)])
def test_places_outside_the_output_raise_and_nothing_is_copied(target: int) -> None:
    out = np.full(8, 0xAA, np.uint8)
    with pytest.raises(RangeError, match="range 1 of the request does not fit the output"):
        Ranges(Segments.of(b"abcd"), [0, 0], [0, 2], [2, 2]).copy_to(out, np.array([0, target]))
    assert (out == 0xAA).all()


def test_large_copies_by_several_threads() -> None:
    set_threads(4)
    data = np.random.default_rng(0).integers(0, 256, 20 << 20).astype(np.uint8)
    begin = np.arange(0, data.size, 1 << 12)
    order = np.random.default_rng(1).permutation(len(begin))
    out = np.zeros(data.size, np.uint8)
    zeros = np.zeros(len(begin), np.int64)
    Ranges(Segments.of(data), zeros, begin[order], zeros + (1 << 12)).copy_to(out, begin[order])
    set_threads(None)
    assert (out == data).all()


# -- pieces of samples -------------------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=6)
"""First interval of each sample, and how many it has."""


def table_of(sizes: list[int], samples: list[tuple[int, int]], step: int) -> PieceTable:
    starts = np.cumsum([0, *sizes])
    first = np.array([min(a, len(sizes)) for a, _ in samples], np.int64)
    behind = np.minimum(first + np.array([count for _, count in samples], np.int64), len(sizes))
    return PieceTable(starts[:-1], starts[1:], first, behind, step)


@given(st.lists(st.integers(0, 6), max_size=8), spans, st.integers(1, 9), st.booleans(), st.data())
def test_pieces_fill_their_samples(
    sizes: list[int], samples: list[tuple[int, int]], width: int, steps: bool, data: st.DataObject
) -> None:
    table = table_of(sizes, samples, width * steps)
    rows = data.draw(st.lists(st.sampled_from(range(len(samples))), max_size=6)) if samples else []
    found = cut_pieces(table, rows, width, ids=True, positions=True, bounds=True)
    expected, ids, positions, bounds = [], [], [], []
    for k, row in enumerate(rows):
        inside: list[tuple[int, int]] = []
        ends = [0]
        for entry in range(table.firsts[row], table.behinds[row]):
            begin = max(table.begins[entry], row * table.step)
            length = min(table.ends[entry] - begin, width - len(inside))
            if length > 0:
                expected.append((begin, length, width * k + len(inside)))
                inside += [(len(ends), position) for position in range(length)]
                ends.append(len(inside))
        bounds.append(ends + [width] * (len(inside) < width))
        inside += [(0, 0)] * (width - len(inside))
        ids += [number for number, _ in inside]
        positions += [position for _, position in inside]
    places = (found.begin, found.length, found.target)
    assert list(zip(*(one.tolist() for one in places), strict=True)) == expected
    assert found.ids.tolist() == ids and found.positions.tolist() == positions
    assert {one.dtype for one in (found.ids, found.positions, found.bounds)} == {np.dtype(np.int32)}
    assert [found.bounds[a:b].tolist() for a, b in pairwise(found.offsets.tolist())] == bounds


@given(st.lists(st.integers(0, 6), max_size=8), spans, st.integers(1, 9))
def test_only_what_is_asked_for_is_made(sizes: list[int], samples: list[tuple[int, int]], width: int) -> None:
    table, rows = table_of(sizes, samples, 0), np.arange(len(samples))
    whole = cut_pieces(table, rows, width, ids=True, positions=True, bounds=True)
    for name in ("ids", "positions", "bounds"):
        wanted = {one: one == name for one in ("ids", "positions", "bounds")}
        some = cut_pieces(table, rows, width, **wanted)
        for field in ("begin", "length", "target", name):
            assert np.array_equal(getattr(some, field), getattr(whole, field))
        assert all(not getattr(some, other).size for other in wanted if other != name)


@pytest.mark.parametrize(
    ("first", "behind", "row", "width", "error"),
    [
        (-1, 0, 0, 9, RowError),
        (2, 1, 0, 9, RowError),
        (0, 3, 0, 9, RowError),
        (0, 2, 1, 9, RowError),
        (0, 2, -1, 9, RowError),
        (0, 2, 0, 0, RangeError),
    ],
)
def test_pieces_outside_raise(first: int, behind: int, row: int, width: int, error: type[Exception]) -> None:
    starts = np.array([0, 2, 5])
    table = PieceTable(starts[:-1], starts[1:], np.array([first]), np.array([behind]))
    with pytest.raises(error):
        cut_pieces(table, [row], width, ids=False, positions=False, bounds=False)


@compiled
@given(
    st.lists(st.tuples(st.one_of(st.integers(0, 9), edges), st.one_of(st.integers(0, 9), edges)), max_size=4),
    st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), max_size=3),
    st.lists(st.one_of(st.integers(-1, 3), edges), max_size=3),
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans(), st.integers(0, 4), st.integers(0, 3)),
)
def test_kernels_agree_on_pieces(
    table: list[tuple[int, int]], samples: list[tuple[int, int]], rows: list[int], sizes: tuple[int, ...]
) -> None:
    room, ends, marked, width, step = sizes
    tables = [*np.array(table, np.int64).reshape(-1, 2).T.copy(), *np.array(samples, np.int64).reshape(-1, 2).T.copy()]
    found: list[Any] = []
    for module in (kernel, numpy_kernel):
        places = [np.zeros(room, np.int64) for _ in range(3)]
        marks = [np.zeros(len(rows) * width * marked, np.int32) for _ in range(2)]
        bounds, offsets = np.zeros(ends, np.int32), np.zeros(len(rows) + 1, np.int64)
        outputs: tuple[Any, ...] = (*places, *marks, bounds, offsets)
        try:
            made = module.pieces(*tables, np.array(rows, np.int64), step, width, *outputs, 1)
            found.append((made, *(one.tolist() for one in outputs)))
        except (ValueError, IndexError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


def test_elements_are_marked_by_several_threads() -> None:
    ends = np.cumsum(np.random.default_rng(0).integers(0, 900, 4000))
    firsts = np.arange(0, 4000, 8)
    table = PieceTable(np.append(0, ends[:-1]), ends, firsts, np.minimum(firsts + 8, 4000))
    found = []
    for count in (1, 4):
        set_threads(count)
        found.append(cut_pieces(table, np.arange(500)[::-1], 2048, ids=True, positions=True, bounds=True))
    set_threads(None)
    assert all((one == other).all() for one, other in zip(*found, strict=True))
    ids, positions = (one.reshape(500, 2048) for one in (found[0].ids, found[0].positions))
    assert (ids[:, 1:] >= ids[:, :-1])[ids[:, 1:] > 0].all() and (np.diff(positions)[np.diff(ids) == 0] <= 1).all()


# -- gaps --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=9),
    st.integers(0, 3),
    st.sampled_from(["uint8", "int16", "int32", "float32", "int64", "float64"]),
)
def test_gaps_are_filled_and_runs_are_kept(runs: list[tuple[int, int]], rest: int, dtype: str) -> None:
    expected: list[int] = []
    targets = []
    for gap, length in runs:
        expected += [99] * gap
        targets.append(len(expected))
        expected += range(length)
    expected += [99] * rest
    out = np.array([0 if one == 99 else one for one in expected], dtype)
    fill_gaps(out, np.array(targets, np.int64), np.array([length for _, length in runs], np.int64), 99)
    assert out.tolist() == expected


@compiled
@given(st.lists(st.tuples(st.one_of(st.integers(0, 9), edges), st.one_of(st.integers(0, 4), edges)), max_size=4))
def test_kernels_agree_on_gaps(runs: list[tuple[int, int]]) -> None:
    target, length = np.array(runs, np.int64).reshape(-1, 2).T.copy()
    found = []
    for module in (kernel, numpy_kernel):
        out = np.full(10, -7, np.int16)
        try:
            found.append((module.gaps(target, length, b"ab", out), out.tolist()))
        except ValueError as error:
            found.append((str(error), out.tolist()))
    assert found[0] == found[1]


def test_gaps_of_wrong_items_raise() -> None:
    with pytest.raises(RangeError, match="value: expected 1, 2, 4 or 8 bytes, got 16"):
        fill_gaps(np.zeros(3, np.complex128), np.array([0]), np.array([1]), 0)
    with pytest.raises(RangeError, match="range 1 of the request does not fit the output"):
        fill_gaps(np.zeros(3), np.array([1, 1]), np.array([1, 1]), 0)


# -- best fit ----------------------------------------------------------------------------------------------------


def best_fit_by_search(sizes: list[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing as in a textbook: search all bins for the least room."""
    rooms: list[int] = []
    items: list[list[int]] = []
    changed: list[int] = []
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        fitting = [b for b, room in enumerate(rooms) if room >= sizes[k]]
        if fitting:
            least = min(rooms[b] for b in fitting)
            into = max((b for b in fitting if rooms[b] == least), key=lambda b: changed[b])
        else:
            into = len(rooms)
            rooms.append(capacity)
            items.append([])
            changed.append(0)
        rooms[into] -= sizes[k]
        items[into].append(k)
        changed[into] = sum(map(len, items))
    return sorted(sorted(some) for some in items)


@given(st.integers(1, 300), st.data())
def test_bins_are_those_of_best_fit_decreasing(capacity: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=40))
    order, offsets = best_fit(np.array(sizes, np.int64), capacity)
    assert [order[a:b].tolist() for a, b in pairwise(offsets.tolist())] == best_fit_by_search(sizes, capacity)


@compiled
@given(st.sampled_from([1, 63, 64, 65, 4095, 4096, 4097, 300_000]), st.data())
def test_kernels_agree_on_bins(capacity: int, data: st.DataObject) -> None:
    near = st.integers(max(1, capacity // 2 - 2), capacity)
    sizes = np.array(data.draw(st.lists(st.one_of(near, st.integers(1, capacity)), max_size=40)), np.int64)
    found = []
    for module in (kernel, numpy_kernel):
        bins, order = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
        found.append((module.best_fit(sizes, capacity, bins, order), bins.tolist(), order.tolist()))
    assert found[0] == found[1]


def test_a_capacity_beyond_all_items_takes_no_memory() -> None:
    assert best_fit(np.array([5, 3]), 1 << 50)[1].tolist() == [0, 2]
    assert best_fit(np.array([], np.int64), 1 << 50)[1].tolist() == [0]


@pytest.mark.parametrize(("sizes", "capacity"), [([0], 3), ([4, 4], 3), ([-1, 9], 3), ([1], 0)])
def test_sizes_that_fit_no_bin_raise(sizes: list[int], capacity: int) -> None:
    with pytest.raises(RangeError, match="best_fit: expected"):
        best_fit(np.array(sizes), capacity)


# -- groups that fit ----------------------------------------------------------------------------------------------


def cost(some: list[int], padded: bool) -> int:
    return len(some) * max(some) if padded else sum(some)


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(9, 40), st.none() | st.integers(1, 8),
       st.none() | st.integers(1, 12), st.booleans())  # fmt: skip
def test_groups_take_the_next_items_as_long_as_they_fit(
    sizes: list[int], limit: int, most: int | None, run: int | None, padded: bool
) -> None:
    expected, first = [], 0
    for k in range(1, len(sizes) + 1):
        ends = k == len(sizes) or (run is not None and k % run == 0) or k - first == most
        if ends or cost(sizes[first : k + 1], padded) > limit:
            expected.append(k)
            first = k
    assert fit_in_order(np.array(sizes, np.int64), limit, most=most, run=run, padded=padded).tolist() == expected


@compiled
@given(
    st.lists(st.integers(1, 2**62) | edges, max_size=8),
    st.integers(1, 2**62) | edges,
    st.integers(1, 9) | edges,
    st.integers(1, 9) | edges,
    st.booleans(),
)
def test_kernels_agree_on_groups(sizes: list[int], limit: int, most: int, run: int, padded: bool) -> None:
    found = []
    for module in (kernel, numpy_kernel):
        ends = np.full(len(sizes), -1, np.int64)
        try:
            count = module.fit_in_order(np.array(sizes, np.int64), run, limit, most, padded, ends)
            found.append([count, *ends[:count].tolist()])
        except ValueError as error:
            found.append([str(error)])
    assert found[0] == found[1]


def test_an_item_above_the_limit_raises() -> None:
    with pytest.raises(RangeError, match="fit_in_order: expected sizes from 1 to 5, got 6 at 2"):
        fit_in_order(np.array([1, 2, 6]), 5)
    assert fit_in_order(np.array([1, 2, 6]), 1 << 70).tolist() == [3]
    assert fit_in_order(np.empty(0, np.int64), 5).tolist() == []
