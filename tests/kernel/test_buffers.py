"""`Segments`: when segments are opened, by one thread or several, and which buffers they take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import shardex
from shardex.errors import RangeError, TruncatedShardError
from shardex.kernel import Ranges, Segments, take
from tests.kernel.test_gather import FORMS, lazy


def test_needed_segments_are_opened_once() -> None:
    table, opened = lazy([bytes([k]) * 3 for k in range(100)])
    ranges = Ranges(table, [70, 3, 70, 3], [0, 0, 1, 2], [1, 1, 2, 1])
    assert ranges.bytes() == [b"F", b"\3", b"FF", b"\3"]
    assert ranges.packed()[0].tobytes() == b"F\3FF\3"
    take(table, np.arange(101) * 3, np.array([9, 12]), 1, out := np.empty(2, np.uint8))
    assert out.tolist() == [3, 4]
    assert opened == [70, 3, 4]


def test_empty_segment_can_be_open() -> None:
    table, opened = lazy([b"", b"x"])
    for _ in range(2):
        assert Ranges(table, [0, 1], [0, 0], [0, 1]).bytes() == [b"", b"x"]
    assert opened == [0, 1]


def test_opener_that_opens_nothing_raises() -> None:
    with pytest.raises(RangeError, match="segment 0: expected its opener to open it"):
        Ranges(Segments(1, lambda number: None), [0], [0], [1]).bytes()
    with pytest.raises(RangeError, match="expected segment 0 to be open"):
        Ranges(Segments(1), [0], [0], [1]).bytes()


def test_error_of_an_opener_is_raised_unchanged() -> None:
    def opener(number: int) -> None:
        raise TruncatedShardError("too short")

    for form in FORMS.values():
        with pytest.raises(TruncatedShardError, match="too short"):
            form(Ranges(Segments(1, opener), [0], [0], [1]))


def test_put_does_not_replace_an_open_segment() -> None:
    table = Segments.of(b"first")
    table.put(0, b"other bytes")
    assert Ranges(table, [0], [0], [5]).bytes() == [b"first"]


def test_threads_open_the_same_segments() -> None:
    contents = [bytes([k]) * 4096 for k in range(32)]
    barrier = threading.Barrier(8, timeout=60)

    def opener(number: int) -> None:
        time.sleep(0.0005)
        table.put(number, bytearray(contents[number]))  # each opening has a buffer of its own

    table = Segments(len(contents), opener)

    def work(seed: int) -> bool:
        which = np.random.default_rng(seed).integers(0, len(contents), 500)
        barrier.wait()
        return Ranges(table, which, which, np.full(500, 4000)).bytes() == [contents[k][:4000] for k in which]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("dtype", ["?", "i1", "<f2", ">f4", "c16", "M8[s]", "U3", "S2", "i4,f8"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_buffers_of_any_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert Ranges(Segments.of(array), [0], [0], [array.nbytes]).bytes() == [array.tobytes()]
    out = np.ones(shape, dtype)
    take(Segments.of(array), np.array([0, 1]), np.zeros(1, np.int64), out.nbytes, out)
    assert out.tobytes() == array.tobytes()


def test_noncontiguous_buffer_raises() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        Segments.of(np.zeros((3, 4), order="F"))


MISSING = """
import subprocess, sys
sys.modules["shardex.kernel._gather"] = None  # as if it was not built
from shardex.kernel import KERNEL
import shardex.kernel.gather
print(KERNEL)
if len(sys.argv) < 3:
    sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1], sys.argv[1], "of a worker"]))
"""


@pytest.mark.parametrize(("wanted", "warnings"), [("", 1), ("c", 1), ("numpy", 0)])
def test_a_kernel_that_is_not_built_is_told_once(wanted: str, warnings: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING, MISSING],
        env={**os.environ, "SHARDEX_KERNEL": wanted},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "numpy\n" * 2)
    assert done.stderr.count("the C kernel of shardex is not built") == warnings


def test_kernels_run_on_older_versions_than_the_one_that_builds_them() -> None:
    """The formats with `#` of `PyArg_ParseTuple`, built with Python 3.13, are refused by 3.11 and 3.12."""
    package = Path(shardex.__file__).parent
    found = [
        path.name
        for path in package.glob("*/*.c")
        if re.search(r'(?:Parse\w*|BuildValue)\([^;"]*"[^":;]*#', path.read_text())
    ]
    assert len(list(package.glob("*/*.c"))) > 3 and found == []
