"""The project's own benchmark: shardex, a few peers and the limit of the machine on the same data, in one run.

    make bench                                   # prints the tables
    .venv/bin/python benchmarks/run.py --workload series --peers shardex,limit

Each figure is the median of interleaved repetitions (A B C A B C), everything in the page cache. Ratios hold inside
one run only. A peer that is not installed is left out. What is measured: writing a tenth of the data, one open with the
first sample, random samples, random batches of 256, a pass in order, a fully shuffled pass; then the line index and an
index of 100 million samples.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import indexes
import numpy as np
from data import SIZES, Source
from peers import PEERS, Peer

NEEDS = {"lmdb": "lmdb", "h5py": "h5py", "hf-datasets": "datasets"}
BUDGET = 0.7
OPERATIONS = ("write/s", "open ms", "get/s", "batch 256/s", "in order/s", "shuffled/s")


def rate(steps: Iterator[int]) -> float:
    """Samples per second of an iterator of counts, the first step and everything after the budget left out."""
    next(steps)
    start, count = time.perf_counter(), 0
    for step in steps:
        count += step
        if time.perf_counter() - start > BUDGET:
            break
    return count / (time.perf_counter() - start)


def gets(peer: Peer, seed: int) -> Iterator[int]:
    rows = np.random.default_rng(seed).integers(0, peer.count, 1_000_000).tolist()
    for start in range(0, len(rows), 32):
        for row in rows[start : start + 32]:
            peer.get(row)
        yield 32


def batches(peer: Peer, seed: int) -> Iterator[int]:
    random = np.random.default_rng(seed)
    while True:
        peer.batch(random.integers(0, peer.count, 256))
        yield 256


def again_and_again(pass_once: Callable[[], Iterator[Any]], size: int) -> Iterator[int]:
    for _ in itertools.count():
        for _ in pass_once():
            yield size


def measure(peer: Peer, part: Source, seed: int) -> dict[str, float]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        type(peer)(peer.workload, Path(folder) / "part").build(part)
        found["write/s"] = len(part) / (time.perf_counter() - start)
    start = time.perf_counter()
    peer.open()
    peer.get(peer.count // 2)
    found["open ms"] = 1e3 * (time.perf_counter() - start)
    found["get/s"] = rate(gets(peer, seed))
    found["batch 256/s"] = rate(batches(peer, seed))
    found["in order/s"] = rate(again_and_again(peer.sequential, 1024))
    found["shuffled/s"] = rate(again_and_again(lambda: peer.epoch(seed, 256), 256))
    return found


def compare(workload: str, names: list[str], repetitions: int, folder: Path) -> dict[str, dict[str, float]]:
    source = Source(workload, SIZES[workload])
    part = Source(workload, SIZES[workload] // 10)
    peers: dict[str, Peer] = {}
    for name in names:
        try:
            peer = PEERS[name](workload, folder / workload / name)
            peer.build(source)
            peers[name] = peer
        except NotImplementedError as error:
            print(f"  {name} is left out of {workload}: {error}")
    results: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for seed in range(repetitions):
        for name, peer in peers.items():
            results[name].append(measure(peer, part, seed))
    return {name: {op: statistics.median(r[op] for r in runs) for op in OPERATIONS} for name, runs in results.items()}


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| | " + " | ".join(OPERATIONS) + " |", "|---|" + "---|" * len(OPERATIONS)]
    for name, row in results.items():
        lines.append(f"| {name} | " + " | ".join(human(row[op]) for op in OPERATIONS) + " |")
    return "\n".join(lines)


def human(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=",".join(SIZES))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    names = [n for n in asked.peers.split(",") if n not in NEEDS or importlib.util.find_spec(NEEDS[n])]
    with tempfile.TemporaryDirectory() as folder:
        for workload in asked.workload.split(","):
            print(f"\n### {workload}: {SIZES[workload]} samples\n", flush=True)
            print(table(compare(workload, names, asked.repetitions, Path(folder))), flush=True)
        print("\n### indexes\n")
        print(indexes.report(Path(folder)))


if __name__ == "__main__":
    main()
