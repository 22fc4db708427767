"""Checksums against the package xxhash, unchecked blocks against plain Python loops, one kernel against the other."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardex.errors import RangeError, RowError
from shardex.kernel import Segments, gather, numpy_kernel, set_threads, unchecked_ranges
from shardex.kernel.gather import unchecked_rows
from tests.kernel.test_gather import edges

kernel: Any = sys.modules.get("shardex.kernel._gather")
compiled = pytest.mark.skipif(kernel is None, reason="the C kernel is not compiled")

DATA = np.random.default_rng(0).bytes(1 << 20)


def expected_sums(data: bytes, begins: Any, sizes: Any) -> list[int]:
    return [low_half(data[a : a + n]) for a, n in zip(begins.tolist(), sizes.tolist(), strict=True)]


def low_half(data: bytes) -> int:
    return xxh3_64_intdigest(data) & 0xFFFFFFFF


def flagged(seed: int) -> NDArray[np.uint8]:
    """Return flags of 600 blocks, some of them set."""
    return np.random.default_rng(seed).integers(0, 2, 600, np.uint8)


# -- checksums ----------------------------------------------------------------------------------------------------


def test_inputs_of_every_length_up_to_two_thousand_bytes() -> None:
    sizes = np.arange(2001)
    begins = np.random.default_rng(1).integers(0, 1 << 18, len(sizes))  # also addresses that are not aligned
    assert gather.checksums(DATA, begins, sizes).tolist() == expected_sums(DATA, begins, sizes)


@given(st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(2000, 1 << 18)), max_size=8))
def test_longer_inputs(ranges: list[tuple[int, int]]) -> None:
    begins, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
    sums = gather.checksums(DATA, begins, sizes)
    assert sums.tolist() == expected_sums(DATA, begins, sizes)
    assert gather.first_difference(DATA, begins, sizes, sums) == -1


def test_whole_sums_are_compared_if_they_have_64_bits() -> None:
    begins, sizes = np.array([0, 5, 9]), np.array([5, 4, 3000])
    pairs = zip(begins.tolist(), sizes.tolist(), strict=True)
    sums = np.array([xxh3_64_intdigest(DATA[a : a + n]) for a, n in pairs], np.uint64)
    assert gather.first_difference(DATA, begins, sizes, sums) == -1
    sums[1] ^= np.uint64(1 << 40)  # the low half is right
    assert gather.first_difference(DATA, begins, sizes, sums) == 1


@pytest.mark.parametrize("count", [1, 4])
def test_first_difference_is_the_first_with_any_number_of_threads(count: int) -> None:
    begins = np.arange(0, len(DATA), 16 << 10)
    sizes = np.full(len(begins), 16 << 10)
    set_threads(count)
    try:
        sums = gather.checksums(DATA, begins, sizes)
        assert sums.tolist() == expected_sums(DATA, begins, sizes)
        for wrong in ([63], [0, 63], [7, 8, 40], list(range(64))):
            changed = sums.copy()
            changed[wrong] += 1
            changed.flags.writeable = False
            assert gather.first_difference(DATA, begins, sizes, changed) == wrong[0]
    finally:
        set_threads(None)


def test_every_flipped_bit_of_a_block_is_found() -> None:
    block = bytearray(DATA[:1100])
    sums = gather.checksums(bytes(block), [0], [len(block)])
    for at in range(len(block)):
        block[at] ^= 1 << at % 8
        assert gather.first_difference(block, [0], [len(block)], sums) == 0
        block[at] ^= 1 << at % 8


def test_ranges_of_several_buffers() -> None:
    table = Segments(2, lambda number: table.put(number, DATA[number * 1000 : number * 1000 + 700]))
    sums = gather.checksums(table, [5, 0, 1], [600, 0, 699], which=[1, 0, 0])
    assert sums.tolist() == [low_half(one) for one in (DATA[1005:1605], b"", DATA[1:700])]
    assert gather.first_difference(table, [5, 1, 1], [600, 0, 699], sums, which=[1, 0, 0]) == -1


@pytest.mark.parametrize(("begin", "size"), [(-1, 1), (0, -1), (7, 0), (0, 7), (3, 4), (2**63 - 1, 1), (1, 2**63 - 1)])
def test_range_outside_the_buffer_raises(begin: int, size: int) -> None:
    with pytest.raises(RangeError, match="range 1 of the request is not"):
        gather.checksums(b"abcdef", [0, begin], [6, size])
    with pytest.raises(RangeError, match="range 1 of the request is not"):
        gather.first_difference(b"abcdef", [0, begin], [6, size], [0, 0])


def test_arrays_of_wrong_length_raise() -> None:
    with pytest.raises(RangeError, match="sums: expected 2 numbers, got 1"):
        gather.first_difference(b"abcdef", [0, 1], [1, 1], [5])
    with pytest.raises(RangeError, match="expected which, begin and length of one size"):
        gather.checksums(b"abcdef", [0, 1], [1])
    with pytest.raises(RowError, match="row 0 of the request lies outside the data"):
        gather.checksums(Segments.of(b"abcdef"), [0], [1], which=[1])


# -- unchecked blocks ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=5),
    st.integers(0, 99),
    st.integers(0, 4),
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans()),
    st.data(),
)
def test_blocks_of_rows(
    buffers: list[tuple[int, int]], seed: int, shift: int, sizes: tuple[int, int, bool], data: st.DataObject
) -> None:
    width, items, bits = sizes
    origin: list[int] = []
    starts = [0]
    for gap, count in buffers:
        origin.append(origin[-1] + gap + (count + 2) * width if origin else gap)
        starts.append(starts[-1] + count)
    wanted = data.draw(st.lists(st.integers(0, starts[-1] - 1), max_size=20)) if starts[-1] else []
    expected = set()
    for row in wanted:
        number = max(k for k in range(len(buffers)) if starts[k] <= row)
        first, behind = ((row - starts[number] + more) * width * (1 if bits else 8) for more in (0, items))
        expected |= {(origin[number] + bit // 8) >> shift for bit in range(first, behind)}
    flags, (first_bytes, begins, rows) = flagged(seed), (np.array(one, np.int64) for one in (origin, starts, wanted))
    found = unchecked_rows(flags, shift, first_bytes, begins, rows, width, items=items, bits=bits)
    assert found.tolist() == sorted(block for block in expected if not flags[block])


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(0, 99),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 60)), max_size=20),
)
def test_blocks_of_ranges(origin: list[int], seed: int, shift: int, ranges: list[tuple[int, int, int]]) -> None:
    inside = [(which % len(origin), begin, length) for which, begin, length in ranges]
    expected = {(origin[w] + byte) >> shift for w, begin, length in inside for byte in range(begin, begin + length)}
    which, begin, length = np.array(inside, np.int64).reshape(-1, 3).T
    flags = flagged(seed)
    found = unchecked_ranges(flags, shift, np.array(origin), which, begin, length)
    assert found.tolist() == sorted(block for block in expected if not flags[block])


def test_flags_that_are_set_later_are_seen() -> None:
    flags, origin, starts, rows = np.zeros(1000, np.uint8), np.array([0]), np.array([0, 1000]), np.arange(1000)[::-1]
    for _ in range(3):
        blocks = unchecked_rows(flags, 3, origin, starts, rows, 8)
        assert blocks.tolist() == np.flatnonzero(flags == 0).tolist()
        flags[blocks[::2]] = 1


def test_rows_and_blocks_outside_raise() -> None:
    flags, starts, rows = np.zeros(4, np.uint8), np.array([0, 2, 4]), np.array([0, 3])
    assert unchecked_rows(flags, 2, np.array([0, 8]), starts, rows, 4).tolist() == [0, 3]
    for row in (-1, 4, 2**63 - 1):
        with pytest.raises(RowError, match="row 1 of the request lies outside the data"):
            unchecked_rows(flags, 2, np.array([0, 8]), starts, np.array([0, row]), 4)
    for origin in (-1, -(2**63), 12, 2**63 - 1):
        with pytest.raises(RangeError, match="range 1 of the request lies outside the blocks"):
            unchecked_rows(flags, 2, np.array([0, origin]), starts, rows, 4)


@compiled
@given(
    st.lists(st.one_of(st.integers(0, 50), edges), max_size=3),
    st.lists(st.one_of(st.integers(0, 9), edges), max_size=4),
    st.lists(st.one_of(st.integers(0, 9), edges), max_size=4),
    st.integers(-1, 64),
    st.tuples(st.one_of(st.integers(0, 70), edges), st.one_of(st.integers(0, 3), edges)),
)
def test_kernels_agree_on_rows(
    origin: list[int], more: list[int], rows: list[int], shift: int, sizes: tuple[int, int]
) -> None:
    numbers = [np.array(one, np.int64) for one in (origin, [0, *sorted(more)], rows)]
    found: list[Any] = []
    for module in (kernel, numpy_kernel):
        try:
            found.append(module.unchecked_rows(flagged(0)[:40], shift, *numbers, *sizes))
        except (IndexError, ValueError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


@compiled
@given(
    st.lists(st.one_of(st.integers(0, 50), edges), max_size=3),
    st.lists(st.tuples(*[st.one_of(st.integers(0, 3), edges)] * 3), max_size=4),
    st.integers(-1, 64),
)
def test_kernels_agree_on_ranges(origin: list[int], ranges: list[tuple[int, int, int]], shift: int) -> None:
    triples = [one.copy() for one in np.array(ranges, np.int64).reshape(-1, 3).T]
    found: list[Any] = []
    for module in (kernel, numpy_kernel):
        try:
            found.append(module.unchecked_ranges(flagged(0)[:40], shift, np.array(origin, np.int64), *triples))
        except (IndexError, ValueError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]
