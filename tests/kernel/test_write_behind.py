"""A file that a thread writes has all bytes in order and the right checksums; errors are raised by a later call."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import BlockWriter, set_threads
from shardex.kernel.buffers import KERNEL
from shardex.kernel.write_behind import FileWriter
from tests.waiting import becomes_true

SIZE = 3 << 20


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    set_threads(2)
    yield
    set_threads(None)


def writer_of(descriptor: int, most: int = 8 << 20, block: int = 4096) -> Any:
    if FileWriter is None or KERNEL == "numpy":
        pytest.skip("the C kernel is not used")
    return FileWriter(descriptor, most, 1 << 20, block)


def sums_of(calls: list[list[bytes]], block: int) -> list[int]:
    """Return the checksums of what calls of `write` get, as the format document says it."""
    sums, at = list[int](), 0
    for parts in calls:
        data = b"".join(parts)
        cuts = [0, *range(-at % block or block, len(data), block), len(data)]
        pieces = [data[begin:end] for begin, end in pairwise(cuts)] if data else []
        sums += [xxhash.xxh3_64_intdigest(piece) & 0xFFFFFFFF for piece in pieces]
        at += len(data)
    return sums


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


def test_many_small_parts_and_empty_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    calls = [[random.bytes(int(size)) for size in random.integers(0, 3000, 700)] for _ in range(8)]
    calls += [[], [b""], [b"", b"end", b""]]
    with open(tmp_path / "a", "wb") as file:
        writer = writer_of(file.fileno())
        for parts in calls:
            writer.write(parts)
        assert np.frombuffer(writer.checksums(), np.uint32).tolist() == sums_of(calls, 4096)
        assert (tmp_path / "a").read_bytes() == b"".join(part for parts in calls for part in parts)
        writer.close()


def test_bytes_wait_until_they_reach_a_multiple_of_1_mib(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        writer = writer_of(file.fileno())
        writer.write([bytes(1000), bytes(SIZE)])
        assert becomes_true(lambda: os.fstat(file.fileno()).st_size >= SIZE)
        assert os.fstat(file.fileno()).st_size == SIZE
        writer.drain()
        assert os.fstat(file.fileno()).st_size == 1000 + SIZE
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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_buffers_are_released_after_an_error() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        writer, later = writer_of(file.fileno()), np.zeros(10, np.uint8)
        with suppress(OSError):  # it may be raised only by the next call
            writer.write([bytes(SIZE)])
        with pytest.raises(OSError, match="No space"):
            writer.drain()
        before = sys.getrefcount(later)
        with pytest.raises(OSError, match="No space"):
            writer.write([later])

        def is_released() -> bool:
            with suppress(OSError):
                writer.write([])
            return sys.getrefcount(later) == before

        assert becomes_true(is_released)
        writer.close()


def test_threads_that_write_and_close_at_the_same_time(tmp_path: Path) -> None:
    for number in range(100):
        with open(tmp_path / str(number), "wb") as file:
            writer, accepted = writer_of(file.fileno()), list[int]()

            def write(writer: Any = writer, accepted: list[int] = accepted) -> None:
                with suppress(ValueError):  # it is closed
                    while True:
                        writer.write([bytes(1000)])
                        accepted.append(1000)

            threads = [threading.Thread(target=write) for _ in range(2)]
            threads += [threading.Thread(target=writer.close) for _ in range(2)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        assert (tmp_path / str(number)).stat().st_size == sum(accepted)


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


@given(st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=5), st.integers(1, 130))
def test_checksums_of_blocks_with_and_without_a_thread(sizes: list[list[int]], block: int) -> None:
    numbers = np.random.default_rng(1)
    calls = [[numbers.bytes(size) for size in call] for call in sizes]
    expected = sums_of(calls, block)
    with tempfile.TemporaryFile() as file:
        writer = BlockWriter(file, block, later=True)
        for call in calls:
            writer.write(call)
        assert writer.checksums().tolist() == expected
        assert writer.size == sum(map(sum, sizes))
        writer.close()
    with tempfile.TemporaryFile() as file:
        thread = writer_of(file.fileno(), block=block)
        for call in calls:
            thread.write(call)
        assert np.frombuffer(thread.checksums(), np.uint32).tolist() == expected
        thread.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_large_buffers(tmp_path: Path, threads: int) -> None:
    set_threads(threads)
    numbers = np.random.default_rng(2)
    calls = [
        [numbers.bytes(500), numbers.bytes(SIZE + 77)],
        [numbers.bytes(SIZE), numbers.bytes(3)],
        [numbers.bytes(9)],
    ]
    with open(tmp_path / "a", "wb") as file:
        writer = BlockWriter(file, 4096, later=True)
        for call in calls:
            writer.write([memoryview(part) for part in call])
        assert threads == 2 or writer._thread is None
        assert writer.checksums().tolist() == sums_of(calls, 4096)
        writer.write([b"end"])
        writer.wait()
        writer.close()
    assert (tmp_path / "a").read_bytes() == b"".join(map(b"".join, calls)) + b"end"


def test_without_later_everything_is_written_at_once(tmp_path: Path) -> None:
    data = bytearray(SIZE)
    with open(tmp_path / "a", "wb", buffering=0) as file:
        writer = BlockWriter(file, 4096)
        writer.write([data])
        data[:] = b"x" * SIZE
        assert (tmp_path / "a").read_bytes() == bytes(SIZE)
        writer.wait()
        writer.close()


@pytest.mark.parametrize("block", [0, -1, (1 << 20) + 1])
def test_wrong_sizes_of_blocks(tmp_path: Path, block: int) -> None:
    with open(tmp_path / "a", "wb") as file, pytest.raises(ValueError, match="blocks"):
        writer_of(file.fileno(), block=block)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_error_of_the_first_call_stays() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        writer_of(file.fileno()).close()  # skips without C
        writer = BlockWriter(file, 4096, later=True)
        with suppress(OSError):  # raised here, or by the next call
            writer.write([bytes(2 * SIZE)])
        for call in (writer.wait, writer.checksums, lambda: writer.write([bytes(SIZE)])):
            with pytest.raises(OSError, match="No space"):
                call()
        writer.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_writer_that_is_given_up_keeps_the_error_of_the_caller() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        writer_of(file.fileno()).close()
        with pytest.raises(TypeError, match="bytes-like"):  # while its thread has another error
            writer_of(file.fileno()).write([bytes(SIZE), 5])


_BUS_ERROR = """
import faulthandler, os, sys
import numpy as np
from shardex.kernel import BlockWriter, set_threads
faulthandler.enable()
set_threads(2)
data = np.memmap(sys.argv[1], np.uint8, "w+", shape=4 << 20)
os.truncate(sys.argv[1], 4096)
with open(os.devnull, "wb") as file:
    writer = BlockWriter(file, 4096, later=True)
    writer.write([data])
    writer.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs bus errors")
def test_a_bus_error_of_the_thread_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _BUS_ERROR, str(tmp_path / "a")]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0"}  # a sanitizer reports it by itself
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in found.stderr
