"""Pooled memory is reused, but never while a view of it exists."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import pooled_empty
from shardex.kernel.buffers import KERNEL, kernel

LARGE = 1 << 20
pooled = pytest.mark.skipif(KERNEL != "c", reason="the pool belongs to the C kernel")


@pytest.fixture(autouse=True)
def fresh() -> None:
    if KERNEL == "c":
        kernel.clear_memory()


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


@given(st.lists(st.integers(0, 300), min_size=1, max_size=3), st.sampled_from(["uint8", "float32", "<M8[s]", "bool"]))
def test_arrays_have_shape_and_dtype_like_numpy_empty(shape: list[int], dtype: str) -> None:
    array = pooled_empty(tuple(shape), dtype)
    assert array.shape == tuple(shape) and array.dtype == np.dtype(dtype)
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned


@pooled
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


@pooled
def test_much_too_large_pieces_are_not_used_for_small_arrays() -> None:
    large = pooled_empty((16 * LARGE,), np.uint8)
    where = address(large)
    del large
    small = pooled_empty((LARGE,), np.uint8)
    assert address(small) != where
    assert address(pooled_empty((16 * LARGE,), np.uint8)) == where


@pooled
def test_number_of_free_pieces_is_bounded() -> None:
    arrays = [pooled_empty((LARGE,), np.uint8) for _ in range(50)]
    del arrays
    assert len(kernel.clear_memory()) == 8


@pooled
def test_bytes_of_free_pieces_are_bounded() -> None:
    arrays = [pooled_empty((100 * LARGE,), np.uint8) for _ in range(5)]
    small = pooled_empty((LARGE,), np.uint8)
    where = address(arrays[-1])
    del small
    while arrays:
        del arrays[0]
    again = pooled_empty((100 * LARGE,), np.uint8)
    assert address(again) == where
    del again
    assert 100 * LARGE <= sum(kernel.clear_memory()) <= 256 << 20
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


@pooled
def test_sizes_that_no_memory_has_raise() -> None:
    for size in (-1, 1 << 62):
        with pytest.raises(MemoryError):
            kernel.memory(size)
    with pytest.raises(TypeError, match="cannot create"):
        type(kernel.memory(1))()
