"""Shuffled reads from a cold disk, with and without announcing them (`Dataset.advise`, `shardex.loader.read_ahead`).

    .venv/bin/python benchmarks/coldread.py --folder /some/disk/scratch            # the table
    .venv/bin/python benchmarks/coldread.py --folder /some/disk/scratch --more     # and what else was tried
    .venv/bin/python benchmarks/coldread.py --folder /some/disk/scratch --batches  # first batches of 256, with peers

Makes datasets of about --gib each below the folder (not in tmpfs), and before every measurement drops them from the
page cache: the mappings let go of their pages, then the files of theirs, and `mincore` tells whether that worked. A
read is what a pass over a dataset reads at once: about 1 MiB, or a batch of 256. Figures are medians over --repetitions
rounds in which all ways take turns, each round with other rows. "opened" is a native dataset whose batches were all
checked before: what remains of an epoch over data that do not fit into memory. The datasets are removed in the end.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coldbatches
import numpy as np
from pagecache import advise, drop, in_memory

import shardex as sx
from shardex.kernel import gather
from shardex.loader.read_ahead import AdviceThread, ReadAhead
from shardex.loader.stats import TimeSpent
from shardex.order import Shuffle

BATCH = 256
SERIES = {
    "history": sx.Array("float32", (100,)),
    "target": sx.Array("float32", (50,)),
    "length": "int32",
    "source": str,
}

Reads = list[np.ndarray]
Way = Callable[[sx.Dataset, Reads], TimeSpent]


# -- the data -------------------------------------------------------------------------------------------------


@dataclass
class Workload:
    """Samples of one kind; `width` is about how many bytes each has."""

    name: str
    width: int
    reads: int
    make: Callable[[str, int], None]
    opened: bool = False

    @property
    def rows_at_once(self) -> int:
        return max(BATCH, (1 << 20) // self.width // BATCH * BATCH)


def make_series(folder: str, size: int) -> None:
    random = np.random.default_rng(1)
    history, target = random.random((4096, 100), np.float32), random.random((4096, 50), np.float32)
    samples = (
        {"history": history[k % 4096], "target": target[k % 4096], "length": k, "source": f"source {k % 7}"}
        for k in range(size // 620)
    )
    sx.write(folder, samples, SERIES, progress=False)


def make_large(folder: str, size: int) -> None:
    random = np.random.default_rng(2)
    arrays = random.random((64, 25_600), np.float32)
    samples = ({"x": arrays[k % 64], "k": k} for k in range(size // 102_400))
    sx.write(folder, samples, {"x": sx.Array("float32", (25_600,)), "k": int}, progress=False)


def make_tokens(folder: str, size: int) -> None:
    random = np.random.default_rng(3)
    tokens = random.integers(0, 50_000, (4096, 1024), np.uint16)
    samples = ({"tokens": tokens[k % 4096]} for k in range(size // 2048))
    sx.write(folder, samples, {"tokens": sx.Array("uint16", (1024,))}, format="tokens", progress=False)


def make_tar(folder: str, size: int) -> None:
    random = np.random.default_rng(4)
    images = [random.bytes(int(n)) for n in random.integers(10_000, 30_000, 256)]
    samples = ({"jpg": images[k % 256], "cls": k % 10} for k in range(size // 21_500))
    sx.write(folder, samples, {"jpg": bytes, "cls": int}, format="tar", progress=False)


WORKLOADS = [
    Workload("series, 600 B", 620, 12, make_series),
    Workload("series, opened", 620, 12, make_series, opened=True),
    Workload("arrays, 100 kB", 102_408, 20, make_large),
    Workload("arrays, opened", 102_408, 20, make_large, opened=True),
    Workload("tokens, 2 KiB", 2048, 40, make_tokens),
    Workload("tar, 20 kB", 20_000, 30, make_tar),
]


# -- ways to read ---------------------------------------------------------------------------------------------


def plain(ds: sx.Dataset, reads: Reads) -> TimeSpent:
    spent = TimeSpent()
    for rows in reads:
        with spent.reading():
            ds.read(rows)
    return spent


def same_thread(ds: sx.Dataset, reads: Reads) -> TimeSpent:
    """Announced just before it is read."""
    spent = TimeSpent()
    for rows in reads:
        with spent.reading():
            ds.advise(rows)
            ds.read(rows)
    return spent


def ahead(depth: int, threads: int = 1) -> Way:
    """Always announced, so many reads ahead."""

    def way(ds: sx.Dataset, reads: Reads) -> TimeSpent:
        spent, helpers = TimeSpent(), [AdviceThread(ds.advise, depth + 1) for _ in range(threads)]
        for number, rows in enumerate(reads[:depth]):
            helpers[number % threads].plan(rows)
        for number, rows in enumerate(reads):
            if number + depth < len(reads):
                helpers[(number + depth) % threads].plan(reads[number + depth])
            with spent.reading():
                helpers[number % threads].ensure_announced(rows)
                ds.read(rows)
        for helper in helpers:
            helper.close()
        return spent

    return way


def read_ahead(ds: sx.Dataset, reads: Reads) -> TimeSpent:
    """As a loader does it: announced where reads turn out to be cold."""
    total, reader = TimeSpent(), ReadAhead(iter(reads), ds.advise)
    while (rows := reader.next()) is not None:
        spent = TimeSpent()
        with spent.reading():
            ds.read(rows)
        reader.note(spent.faults)
        total.add(spent)
    reader.close()
    return total


def by_pread(threads: int) -> Way:
    """The same bytes by system calls of many threads, nothing decoded: for formats whose samples are ranges."""

    def way(ds: sx.Dataset, reads: Reads) -> TimeSpent:
        rows: Any = ds.rows
        handles = [os.open(path, os.O_RDONLY) for path in rows.shard_names()]
        spent = TimeSpent()
        with ThreadPoolExecutor(threads) as pool:
            for some in reads:
                found = touched(rows, some)
                triples = list(zip(found.which.tolist(), found.begin.tolist(), found.length.tolist(), strict=True))

                def work(part: list[tuple[int, int, int]]) -> None:
                    for which, begin, length in part:
                        os.pread(handles[which], length, begin)

                with spent.reading():
                    list(pool.map(work, [triples[k::threads] for k in range(threads)]))
        for handle in handles:
            os.close(handle)
        return spent

    return way


def touched(rows: Any, some: np.ndarray) -> gather.Ranges:
    if hasattr(rows, "touched"):
        return rows.touched(some, ["jpg"])
    return gather.spread(rows.data, rows.starts, some, rows.window * rows.dtype.itemsize)


WAYS: dict[str, Way] = {
    "plain": plain,
    "same thread": same_thread,
    "ahead 1": ahead(1),
    "ahead 4": ahead(4),
    "ahead 16": ahead(16),
    "ahead 64": ahead(64),
    "read_ahead": read_ahead,
}
MORE: dict[str, Way] = {
    "plain, MADV_RANDOM": plain,
    "ahead 16, MADV_RANDOM": ahead(16),
    "ahead 16, 2 threads": ahead(16, threads=2),
    "ahead 16, gap 0": ahead(16),
    "ahead 16, gap 16 KiB": ahead(16),
    "ahead 16, gap 256 KiB": ahead(16),
}
PREAD: dict[str, Way] = {"pread, 8 threads": by_pread(8), "pread, 32 threads": by_pread(32)}
GAPS = {"ahead 16, gap 0": 0, "ahead 16, gap 16 KiB": 16 << 10, "ahead 16, gap 256 KiB": 256 << 10}


# -- measuring ------------------------------------------------------------------------------------------------


def measure(work: Workload, ds: sx.Dataset, name: str, way: Way, seed: int) -> tuple[float, int, float]:
    """Seconds, major page faults, and the share of the data that is in memory afterwards."""
    rows = Shuffle(len(ds), seed).rows(np.arange(min(len(ds), work.reads * work.rows_at_once)))
    reads = np.array_split(rows, max(1, len(rows) // work.rows_at_once))
    folder = str(ds.rows.opened.what)  # type: ignore[attr-defined]
    ds.advise(np.arange(0, len(ds), len(ds) // 1000))  # maps all files
    read_around(folder, on="MADV_RANDOM" not in name)
    drop(folder)
    usual, gather._GAP = gather._GAP, GAPS.get(name, gather._GAP)
    begin = time.perf_counter()
    spent = way(ds, reads)
    seconds = time.perf_counter() - begin
    gather._GAP = usual
    return seconds, spent.faults, in_memory(folder)


def read_around(folder: str, on: bool) -> None:
    """Whether the system reads what lies around a page that it has to fetch."""
    advise(folder, mmap.MADV_NORMAL if on else mmap.MADV_RANDOM)


def report(work: Workload, folder: str, ways: dict[str, Way], repetitions: int) -> None:
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in ways}
    ds = sx.open(folder)
    if work.opened:
        ds.read(np.arange(0, len(ds), max(1, (1 << 20) // work.width)))
    names = list(ways)
    for seed in range(repetitions):
        turn = seed % len(names)  # the disk may remember what the way before has read
        for name in names[turn:] + names[:turn]:
            if not work.opened:
                ds = sx.open(folder)
            found[name].append(measure(work, ds, name, ways[name], seed))
    count = min(len(ds), work.reads * work.rows_at_once)
    base = statistics.median(seconds for seconds, _, _ in found["plain"])
    print(f"\n### {work.name}: {count:,} of {len(ds):,} samples, {work.rows_at_once} a read\n")
    print("| | rows/s | MB/s | factor | spread | major faults | in memory after |\n|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        times, faults, left = zip(*runs, strict=True)
        middle = statistics.median(times)
        spread = (max(times) - min(times)) / middle
        print(
            f"| {name} | {count / middle:,.0f} | {count * work.width / middle / 1e6:,.1f} | {base / middle:.1f} "
            f"| {spread:.0%} | {statistics.median(faults):,.0f} | {statistics.median(left):.0%} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    parser.add_argument("--more", action="store_true", help="also what did not help")
    parser.add_argument("--batches", action="store_true", help="first batches of random rows, beside peers")
    coldbatches.add_arguments(parser)
    asked = parser.parse_args()
    if asked.batches:
        coldbatches.compare(asked)
        return
    wanted = [work for work in WORKLOADS if work.name.startswith(asked.only)]
    for make, group in itertools.groupby(wanted, key=lambda work: work.make):
        with tempfile.TemporaryDirectory(prefix="coldread-", dir=asked.folder) as scratch:
            folder = os.path.join(scratch, "data")
            make(folder, int(asked.gib * (1 << 30)))
            sx.open(folder)  # makes the index, if it needs one
            pread = PREAD if make in (make_tokens, make_tar) else {}
            for work in group:
                report(work, folder, {**WAYS, **MORE, **pread} if asked.more else WAYS, asked.repetitions)


if __name__ == "__main__":
    main()
