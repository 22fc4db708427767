"""Threads of the kernel: how many, the same results with any number of them, forks, and the end of a process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.errors import ArgumentError, RowError
from shardex.kernel import Ranges, Segments, cores, set_threads, take, threads
from shardex.kernel.buffers import KERNEL
from shardex.kernel.threads import _quota
from shardex.order import Shuffle
from shardex.workers import start_executor

WIDTH, COUNT = 1000, 4000
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, WIDTH), np.uint8)

compiled = pytest.mark.skipif(KERNEL != "c", reason="only the C kernel has threads")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    set_threads(None)


def taken(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    out = np.empty((len(rows), WIDTH), np.uint8)
    take(Segments.of(DATA.reshape(-1)), np.array([0, COUNT]), rows, WIDTH, out)
    return out


def is_right(seed: int) -> bool:
    """Copy rows, packed and padded ranges, and ranges at places, each of some megabytes; compare with numpy."""
    chance = np.random.default_rng(seed)
    rows = chance.integers(0, COUNT, 3000)
    length = chance.integers(0, WIDTH + 1, len(rows))
    ranges = Ranges(Segments.of(DATA.reshape(-1)), np.zeros(len(rows), np.int64), rows * WIDTH, length)
    kept = np.arange(WIDTH) < length[:, None]
    expected, ends = DATA[rows], np.cumsum(length)
    packed, _ = ranges.packed()
    placed = np.empty(int(ends[-1]), np.uint8)
    ranges.copy_to(placed, ends - length)
    return (
        np.array_equal(taken(rows), expected)
        and np.array_equal(packed, expected[kept])
        and np.array_equal(placed, expected[kept])
        and np.array_equal(ranges.padded(WIDTH), np.where(kept, expected, 0))
    )


@pytest.mark.parametrize("count", [1, 2, 3, 8, 100])
def test_results_do_not_depend_on_the_number_of_threads(count: int) -> None:
    set_threads(count)
    assert all(map(is_right, range(5)))


def test_calls_of_several_threads_at_the_same_time() -> None:
    set_threads(4)
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(is_right, range(60)))


def run(code: str, **environment: str) -> str:
    text = f"from tests.kernel.test_threads import *\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@compiled
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")
def test_threads_are_started_once_and_take_no_signals() -> None:
    code = """
set_threads(3)
before = set(os.listdir("/proc/self/task"))
assert all(map(is_right, range(20)))
new = set(os.listdir("/proc/self/task")) - before
lines = [line for one in new for line in open(f"/proc/self/task/{one}/status")]
blocked = [line.split()[1] for line in lines if line.startswith("SigBlk")]
print(len(new), all(int(mask, 16) & (1 << 1) for mask in blocked))
"""
    assert run(code) == "2 True"


@compiled
def test_a_forked_process_copies_while_others_of_its_parent_do() -> None:
    code = """
import threading
set_threads(3)
stop = threading.Event()
def work():
    while not stop.is_set():
        taken(np.arange(COUNT))
others = [threading.Thread(target=work) for _ in range(2)]
for one in others: one.start()
codes = []
for number in range(20):
    if (child := os.fork()) == 0:
        set_threads(3)
        os._exit(0 if is_right(number) else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
for one in others: one.join()
print(set(codes))
"""
    assert run(code) == "{0}"


def test_number_of_threads() -> None:
    set_threads(None)
    assert threads() == int(os.environ.get("SHARDEX_THREADS") or cores())
    set_threads(3)
    assert threads() == 3
    with pytest.raises(ArgumentError, match="expected at least 1 thread, got 0"):
        set_threads(0)
    assert run("print(threads())", SHARDEX_THREADS="5") == "5"
    for wrong in ("0", "many", "-1"):
        message = run("try: threads()\nexcept ArgumentError as error: print(error)", SHARDEX_THREADS=wrong)
        assert message == f"expected SHARDEX_THREADS to be a number of threads from 1 on, got {wrong!r}"


@pytest.mark.parametrize(
    ("text", "count"),
    [("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1), ("max 100000", None), ("", None), (None, None)],
)
def test_limit_of_a_container(tmp_path: Path, text: str | None, count: int | None) -> None:
    (tmp_path / "cgroup").write_text("1:cpu:/other\n0::/job/one\n")
    (tmp_path / "job" / "one").mkdir(parents=True)
    if text is not None:
        (tmp_path / "job" / "one" / "cpu.max").write_text(text + "\n")
    assert _quota(str(tmp_path), str(tmp_path / "cgroup")) == count
    (tmp_path / "cgroup").write_text("1:cpu:/\n")
    assert _quota(str(tmp_path), str(tmp_path / "cgroup")) is None


def count_threads(_: Any = None) -> int:
    return threads()


def test_worker_processes_use_one_thread() -> None:
    set_threads(4)
    with closing(start_executor(count_threads, executor="processes", workers=1)) as pool:
        assert pool.result(pool.submit(None)) == 1
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(1) as processes:  # daemons, as the workers of a DataLoader
            assert processes.apply(count_threads) == 1


def test_permutations_are_the_same_with_several_threads() -> None:
    positions = np.arange(100_000)[::-1].copy()
    set_threads(1)
    try:
        expected = Shuffle(1_000_003, 7).rows(positions)
        set_threads(4)
        assert np.array_equal(Shuffle(1_000_003, 7).rows(positions), expected)
    finally:
        set_threads(None)
    with pytest.raises(RowError):
        Shuffle(50_000, 7).rows(positions)
