"""How fast lines are indexed, and what it costs to open an index of 100 million samples."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HUGE = 100_000_000

_OPEN = """
import sys, time, numpy as np
from shardex.files import Index
from shardex.sources.local import LocalSource
from shardex.order import Shuffle
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) / 1024
np.empty(1); before = anonymous(); start = time.perf_counter()
index = Index(LocalSource(sys.argv[1]).map(sys.argv[2]), sys.argv[2])
opened = time.perf_counter()
rows = Shuffle(len(index), 1).rows(np.arange(256))
offsets = index.read("offset", rows[:1])
first = time.perf_counter()
index.read("offset", rows)
print(len(index), (opened - start) * 1e3, (first - opened) * 1e3, anonymous() - before)
"""


def report(folder: Path) -> str:
    """Two lines of figures."""
    return f"{lines(folder)}\n{huge(folder)}"


def lines(folder: Path) -> str:
    """Index a file of lines, next to `wc -l` on the same file."""
    from shardex.formats.jsonl.lines import LineScanner

    from shardex.sources import LocalSource

    line = b'{"id": 1, "text": "' + b"word " * 75 + b'"}\n'
    (folder / "lines.jsonl").write_bytes(line * (200_000_000 // len(line)))
    size = (folder / "lines.jsonl").stat().st_size / 1e6

    def timed(run: object) -> float:
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            run()  # type: ignore[operator]
            best = min(best, time.perf_counter() - start)
        return size / best

    ours = timed(lambda: LineScanner(skip_blank=True).scan(LocalSource(folder), "lines.jsonl"))
    theirs = timed(
        lambda: subprocess.run(["wc", "-l", str(folder / "lines.jsonl")], stdout=subprocess.DEVNULL, check=True)
    )
    return f"line index of {size:.0f} MB, one thread: {ours:.0f} MB/s; `wc -l`: {theirs:.0f} MB/s"


def huge(folder: Path) -> str:
    """Write an index of 100 million made-up lines, then open it in a fresh process."""
    from shardex.files import Files
    from shardex.files.sample_index import encode
    from shardex.sources import LocalSource, Stat

    offsets = np.arange(HUGE, dtype=np.uint64) * np.uint64(400)
    scan = {"offset": offsets, "length": np.full(HUGE, 399, np.uint32)}
    files = Files(LocalSource(folder), ("a.jsonl",), "a.jsonl")
    data = encode("made up", files, [Stat(HUGE * 400, "0")], [scan]).encode()
    LocalSource(folder).put("huge.arrow", data)
    del offsets, scan
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(folder), "huge.arrow"], capture_output=True, text=True, check=True
    )
    count, opened, first, grown = map(float, done.stdout.split())
    return (
        f"index of {count / 1e6:.0f} M samples, {len(data) / count:.1f} bytes a sample: opened in {opened:.1f} ms, "
        f"first sample located {first:.1f} ms later, {grown:.1f} MB of memory after 256 random samples"
    )
