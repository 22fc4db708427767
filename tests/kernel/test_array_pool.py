"""Pooled memory is reused, but never while a view of it exists."""

from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import array_pool as pool
from shardex.kernel import pooled_empty

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_free", deque(maxlen=8))


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


@given(st.lists(st.integers(0, 300), min_size=1, max_size=3), st.sampled_from(["uint8", "float32", "<M8[s]", "bool"]))
def test_arrays_have_shape_and_dtype_like_numpy_empty(shape: list[int], dtype: str) -> None:
    array = pooled_empty(tuple(shape), dtype)
    assert array.shape == tuple(shape) and array.dtype == np.dtype(dtype)
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned


def test_memory_is_reused_after_the_last_view() -> None:
    first = pooled_empty((LARGE,), np.uint8)
    where = address(first)
    del first
    assert address(pooled_empty((LARGE // 2,), np.float16)) == where


def test_view_keeps_memory_in_use() -> None:
    first = pooled_empty((LARGE // 4,), np.int32)
    first[:] = 7
    view = first.reshape(2, -1)[1:, ::3].view(np.uint32)
    del first
    gc.collect()
    others = [pooled_empty((LARGE // 4,), np.int32) for _ in range(10)]
    for other in others:
        other[:] = 0
    assert (view == 7).all()


def test_much_too_large_pieces_are_not_used_for_small_arrays() -> None:
    large = pooled_empty((16 * LARGE,), np.uint8)
    where = address(large)
    del large
    small = pooled_empty((LARGE,), np.uint8)
    assert address(small) != where
    assert address(pooled_empty((16 * LARGE,), np.uint8)) == where


def test_number_of_free_pieces_is_bounded() -> None:
    arrays = [pooled_empty((LARGE,), np.uint8) for _ in range(50)]
    del arrays
    assert len(pool._free) == 8


def test_bytes_of_free_pieces_are_bounded() -> None:
    arrays = [pooled_empty((100 * LARGE,), np.uint8) for _ in range(5)]
    small = pooled_empty((LARGE,), np.uint8)
    where = address(arrays[-1])
    del small
    while arrays:
        del arrays[0]
    assert sum(piece.size for piece in pool._free) <= 256 << 20
    assert address(pooled_empty((100 * LARGE,), np.uint8)) == where
    assert pooled_empty((257 * LARGE,), np.uint8).base is None


def test_threads_never_share_a_piece() -> None:
    wrong = []

    def work(mark: int) -> None:
        for _ in range(300):
            array = pooled_empty((LARGE,), np.uint8)
            array[::4096] = mark
            if not (array[::4096] == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
