"""Values sent through shared buffers are unchanged; a buffer is reused only when its last array is gone."""

from __future__ import annotations

import functools
import gc
import mmap
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.kernel import MISSING, Columns, Ragged
from shardex.workers.shared_arena import Arena, MappedBuffers, dump_value, pack


class Pair:
    """An arena and the receiving side of it in one process."""

    def __init__(self, limit: int = 64) -> None:
        self.arena, self.buffers = Arena(limit), MappedBuffers()

    def send(self, value: Any) -> Any:
        place = self.arena.place(pack(value))
        assert place is not None
        number, spans, fd = place
        for old in self.arena.take_dropped():
            self.buffers.drop(old)
        if fd is not None:
            self.buffers.open(number, fd)
        return self.buffers.read(number, spans)

    def free_unused(self) -> list[int]:
        """Free the buffers whose arrays are gone; returns their numbers."""
        freed = [self.buffers.freed.popleft() for _ in range(len(self.buffers.freed))]
        for number in freed:
            self.arena.free(number)
        return freed


@pytest.fixture
def pair() -> Pair:
    return Pair()


def is_shared(array: Any) -> bool:
    """Return whether the memory of an array is a mapped buffer."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap.mmap)


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


LARGE = np.arange(6000, dtype=np.float32).reshape(30, 20, 10)
ARRAYS = {
    "C order": LARGE,
    "Fortran order": np.asfortranarray(LARGE),
    "transposed": LARGE.transpose(1, 0, 2),
    "with gaps": LARGE[::2, :, ::3],
    "reversed": LARGE[::-1],
    "broadcast": np.broadcast_to(LARGE[0], (5, 20, 10)),
    "read-only": frozen(LARGE.copy()),
    "small read-only": frozen(np.arange(3)),
    "bytes swapped": LARGE.astype(">f4"),
    "structured": np.zeros(500, [("a", "i4"), ("b", "f8", (3,))]),
    "small": np.arange(3),
    "one number": np.array(5.0),
    "empty": np.zeros(0, np.int8),
    "without columns": np.zeros((1000, 0)),
    "without rows": np.zeros((0, 1000), np.uint16),
    "dates": np.arange(1000).astype("M8[s]"),
    "text": np.array(["a", "bcd"] * 500),
    "bool": np.ones(5000, np.bool_),
    "complex": np.ones(500, np.complex64),
    "objects": np.array([None, "text", 3] * 500, object),
    "objects with gaps": np.array([None, "text", 3] * 500, object)[::2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_unchanged(pair: Pair, name: str) -> None:
    array = ARRAYS[name]
    for value in (pair.send({"a": [array]})["a"][0], pickle.loads(dump_value(array))):
        assert (value.dtype, value.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(value, array)
        assert value.flags.writeable == (array.flags.writeable or name == "broadcast")


@pytest.mark.parametrize("name", ["C order", "Fortran order", "with gaps", "structured", "complex"])
def test_large_arrays_are_aligned_writable_views(pair: Pair, name: str) -> None:
    array = pair.send([b"some bytes", ARRAYS[name]])[1]
    assert is_shared(array)
    assert array.ctypes.data % 64 == 0
    array[...] = 1
    assert (array == np.ones_like(array)).all()


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "text",
        "text" * 9999,
        b"bytes" * 9999,
        [],
        {"a": {"b": [1, (2.5, None)]}},
        {1, 2},
        range(3),
        signal.SIGINT,
    ],
)
def test_plain_values_are_unchanged_and_leave_their_buffer_free(pair: Pair, value: Any) -> None:
    again = pair.send(value)
    assert again == value and type(again) is type(value)
    assert pair.free_unused() == [1], "nothing keeps the buffer in use"


def test_columns_are_unchanged(pair: Pair) -> None:
    ragged = Ragged.from_arrays([np.arange(n, dtype=np.float32) for n in (700, 0, 900)])
    shaped = Ragged.from_arrays([np.ones((2, 3)), np.ones((4, 5)), np.ones((0, 2))])
    sent = Columns({"x": np.arange(3), "r": ragged, "s": shaped, "t": ["a", None, MISSING]})
    got = pair.send(sent)
    assert (len(got), got.names) == (3, ["x", "r", "s", "t"])
    assert got["t"][2] is MISSING
    assert [row.tolist() for row in got["r"]] == [row.tolist() for row in ragged]
    assert [row.tolist() for row in got["s"]] == [row.tolist() for row in shaped]


def test_exception_as_value_keeps_its_array_shared(pair: Pair) -> None:
    error = pair.send(KeyError("a", np.arange(1000)))
    assert type(error) is KeyError and error.args[0] == "a" and is_shared(error.args[1])


def test_local_functions_and_classes(pair: Pair) -> None:
    class Local:
        x = np.arange(1000)

    assert type(pair.send(Local())) is Local, "the same class, since this process knows it"
    assert pair.send(lambda x: x + 1)(1) == 2


@pytest.mark.parametrize("name", ["float32", "float64", "int64", "uint8", "bool", "complex64", "bfloat16"])
@pytest.mark.parametrize("shape", [(40, 50), (2,), (), (0,), (3, 0)])
def test_tensors_are_unchanged(pair: Pair, name: str, shape: tuple[int, ...]) -> None:
    import torch

    dtype = getattr(torch, name)
    tensor = torch.ones(shape).to(dtype)
    again = pair.send({"t": tensor})["t"]
    assert type(again) is torch.Tensor
    assert (again.dtype, again.shape) == (dtype, shape)
    assert torch.equal(again, tensor)
    assert again.is_contiguous()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_tensor_keeps_its_buffer_in_use(pair: Pair, name: str) -> None:
    import torch

    tensor = pair.send(torch.ones(5000).to(getattr(torch, name)))
    tensor += 1
    row = tensor[7:9]
    del tensor
    assert pair.free_unused() == []
    assert row.tolist() == [2, 2]
    del row
    assert pair.free_unused() == [1]


def test_tensors_without_numpy_equivalent(pair: Pair) -> None:
    import torch

    leaf = torch.ones(1000, requires_grad=True)
    sparse = torch.eye(40).to_sparse()
    channels_last = torch.ones(2, 3, 20, 20).to(memory_format=torch.channels_last)
    conjugate = torch.full((1000,), 1 + 2j).conj()
    named = torch.ones(1000)
    named.origin = "here"  # type: ignore[attr-defined]
    got = pair.send([leaf, sparse, channels_last, conjugate, torch.nn.Parameter(torch.ones(3)), named])
    assert got[0].requires_grad and torch.equal(got[0], leaf)
    assert got[1].is_sparse and torch.equal(got[1].to_dense(), torch.eye(40))
    assert got[2].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got[3], conjugate)
    assert type(got[4]) is torch.nn.Parameter
    assert got[5].origin == "here"


def test_buffer_is_reused_when_its_last_array_is_gone(pair: Pair) -> None:
    value = pair.send({"a": np.zeros(1000), "b": np.ones(1000)})
    address = value["a"].ctypes.data
    part = value["b"][10:20].reshape(2, 5)
    view = memoryview(part)
    del value, part
    assert pair.free_unused() == []
    other = pair.send(np.full(1000, 7.0))
    assert view.tobytes() == np.ones(10).tobytes()
    del view
    assert pair.free_unused() == [1]
    again = pair.send(np.full(1000, 8.0))
    assert abs(again.ctypes.data - address) < mmap.PAGESIZE
    assert (other == 7).all()


def test_last_array_may_be_deleted_in_another_thread(pair: Pair) -> None:
    held = [pair.send(np.zeros(1000)) for _ in range(10)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert sorted(pair.free_unused()) == list(range(1, 11))


def test_array_in_reference_cycle_frees_its_buffer(pair: Pair) -> None:
    value = {"a": pair.send(np.zeros(1000))}
    value["me"] = value
    del value
    gc.collect()
    assert pair.free_unused() == [1]


def test_smallest_sufficient_buffer_is_reused(pair: Pair) -> None:
    values = [pair.send(np.zeros(size, np.uint8)) for size in (4 << 20, 1 << 20, 2 << 20)]
    del values
    assert sorted(pair.free_unused()) == [1, 2, 3]
    for size, number in (((1 << 20) + 1, 2), (3 << 20, 3), (5000, 1)):
        place = pair.arena.place(pack(np.zeros(size, np.uint8)))
        assert place is not None and (place[0], place[2]) == (number, None)


def mapped_bytes() -> int:
    """Bytes of shared buffers that this process has mapped."""
    maps = Path("/proc/self/maps").read_text()
    ranges = [line.split()[0].split("-") for line in maps.splitlines() if "memfd:shardex" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_too_small_buffers_are_unmapped_on_both_sides(pair: Pair) -> None:
    gc.collect()
    before = mapped_bytes()
    for power in range(16, 25):
        pair.send(np.zeros(1 << power, np.uint8))
        pair.free_unused()
        assert mapped_bytes() - before == 2 * (2 << power)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_trim_drops_free_buffers(pair: Pair) -> None:
    gc.collect()
    before = mapped_bytes()
    held = [pair.send(np.zeros(100_000)) for _ in range(20)]
    held.clear()
    pair.free_unused()
    pair.arena.trim(3)
    for number in pair.arena.take_dropped():
        pair.buffers.drop(number)
    assert mapped_bytes() - before == 2 * 3 * (1 << 20)


def test_place_returns_none_at_the_limit() -> None:
    pair = Pair(limit=2)
    held = [pair.send(np.zeros(1000)) for _ in range(2)]
    assert pair.arena.place(pack(np.zeros(1000))) is None
    held.pop()
    pair.free_unused()
    assert pair.send(np.ones(1000)).sum() == 1000


@pytest.fixture
def _no_files_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = os.dup(0)
    os.close(least)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_no_files_left")
def test_place_returns_none_without_file_descriptors() -> None:
    assert Arena(limit=4).place(pack(np.zeros(1000))) is None


def test_temporary_files_replace_memfd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pair = Pair()
    array = pair.send(LARGE)
    assert is_shared(array) and (array == LARGE).all()
    assert list(tmp_path.iterdir()) == []


def test_functions_with_a_cache_can_be_sent() -> None:
    @functools.lru_cache(maxsize=7, typed=True)
    def double(x: int) -> int:
        return 2 * x

    copy = pickle.loads(dump_value(lambda x: (double(x), double.cache_parameters())))
    assert copy(3) == (6, {"maxsize": 7, "typed": True})
