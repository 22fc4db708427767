"""A file that a thread writes has all bytes in order; errors are raised by a later call, and buffers are released."""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.kernel import file_writer, set_threads

SIZE = 3 << 20


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    set_threads(2)
    yield
    set_threads(None)


def writer_of(descriptor: int, most: int = 8 << 20) -> Any:
    writer = file_writer(descriptor, most, 1 << 20)
    if writer is None:
        pytest.skip("the C kernel is not used")
    return writer


@pytest.mark.parametrize("most", [0, 1 << 20, 1 << 30])
def test_all_bytes_are_written_in_order(tmp_path: Path, most: int) -> None:
    parts = [np.random.default_rng(seed).bytes(seed * 54321) for seed in range(40)]
    with open(tmp_path / "a", "wb") as file:
        writer = writer_of(file.fileno(), most)
        for begin in range(0, 40, 5):
            writer.write([memoryview(part) for part in parts[begin : begin + 5]])
        writer.drain()
        assert (tmp_path / "a").read_bytes() == b"".join(parts)
        writer.close()


def test_close_writes_what_waits(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        writer = writer_of(file.fileno())
        writer.write([bytes(SIZE)] * 2)
        writer.close()
        assert os.fstat(file.fileno()).st_size == 2 * SIZE
        with pytest.raises(ValueError, match="closed"):
            writer.write([b"a"])
        writer.close()


def test_the_file_may_be_closed_while_bytes_wait(tmp_path: Path) -> None:
    for _ in range(20):
        with open(tmp_path / "a", "wb") as file:
            writer = writer_of(file.fileno())
            writer.write([bytes(1 << 20)] * 4)
        with open(tmp_path / "b", "wb") as other:  # has the number that the closed file had
            del writer
            other.write(b"hello")
        assert (tmp_path / "b").read_bytes() == b"hello" and (tmp_path / "a").stat().st_size == 4 << 20


def test_buffers_are_released(tmp_path: Path) -> None:
    array = np.zeros(SIZE, np.uint8)
    with open(tmp_path / "a", "wb") as file:
        writer, before = writer_of(file.fileno()), sys.getrefcount(array)
        writer.write([array, array])
        writer.drain()
        assert sys.getrefcount(array) == before
        writer.write([array])
        del writer  # ends the thread
        assert sys.getrefcount(array) == before
        assert os.fstat(file.fileno()).st_size == 3 * SIZE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_every_later_call_raises_the_error() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        writer = writer_of(file.fileno(), 0)
        for _ in range(2):
            with pytest.raises(OSError, match="No space") as caught:
                writer.write([bytes(SIZE)])
            assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            writer.drain()
        writer.close()


def test_wrong_arguments(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        writer = writer_of(file.fileno())
        for wrong in ["text", ["text"], [b"a", None]]:
            with pytest.raises(TypeError):
                writer.write(wrong)
        writer.close()


def _use_in_child(writer: Any, results: Any) -> None:
    try:
        writer.write([b"child"])
    except ValueError as error:
        results.put(str(error))
    writer.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_cannot_use_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with open(tmp_path / "a", "wb") as file:
        writer, results = writer_of(file.fileno()), context.SimpleQueue()
        child = context.Process(target=_use_in_child, args=(writer, results))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert results.get() == "expected the process that opened the file"
        writer.write([b"parent"])
        writer.close()
        assert (tmp_path / "a").read_bytes() == b"parent"


def test_no_thread_if_only_one_may_run(tmp_path: Path) -> None:
    set_threads(1)
    with open(tmp_path / "a", "wb") as file:
        assert file_writer(file.fileno(), 1, 1) is None
