"""The first shuffled epoch, with all checks, beside later ones and the limit of the machine: series, tokens, ragged.

    .venv/bin/python benchmarks/epochs.py --folder /some/disk/scratch

Samples of `data.py`, --times as many as `run.py` has, in batches of 256, all files in the page cache. Each measurement
is a process of its own: it opens the dataset, reads one epoch, then two more, of which the better counts. "limit" is
flat files indexed with numpy in one thread, without checks (`peers.py`); its later epochs are the 100 %. "one thread"
is shardex without the threads of its kernel. The ways take turns; figures are medians of --repetitions. "CPU" is per
second of CPU time instead of the clock, for a machine that does other things too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data import SIZES, Source
from peers import PEERS, Peer

BATCH = 256
WAYS = {"shardex": "shardex", "shardex, one thread": "shardex", "limit": "limit"}


def peer_of(way: str, workload: str, scratch: str) -> Peer:
    return PEERS[WAYS[way]](workload, Path(scratch) / workload / WAYS[way])


def measure(way: str, workload: str, scratch: str, seed: int) -> None:
    """Print samples per second, of the clock and of CPU time: of the first epoch, and of the better of two later."""
    if way == "shardex, one thread":
        from shardex.kernel import set_threads

        set_threads(1)
    peer = peer_of(way, workload, scratch)
    peer.open()
    found = []
    for number in range(3):
        begin, spent = time.perf_counter(), time.process_time()
        for _ in peer.epoch(10 * seed + number, BATCH):
            pass
        found.append((peer.count / (time.perf_counter() - begin), peer.count / (time.process_time() - spent)))
    first, later = found[0], (max(one[0] for one in found[1:]), max(one[1] for one in found[1:]))
    print(json.dumps([*first, *later]))


def compare(workload: str, scratch: str, times: float, repetitions: int) -> None:
    """Print the table of one workload."""
    count = int(SIZES[workload] * times)
    for way in ("shardex", "limit"):
        peer_of(way, workload, scratch).build(Source(workload, count))
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for seed in range(repetitions):
        for way in WAYS:
            command = [sys.executable, __file__, "--measure", way, workload, scratch, str(seed)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
    middle = {way: [statistics.median(column) for column in zip(*runs, strict=True)] for way, runs in found.items()}
    limit = middle["limit"]
    print(f"\n### {workload}: {count:,} samples\n")
    print("| k samples/s | first epoch | of the limit | later | of the limit | CPU: first | of the limit | later |")
    print("|---|---|---|---|---|---|---|---|")
    for way, (first, first_cpu, later, later_cpu) in middle.items():
        clock = f"{first / 1e3:,.0f} | {first / limit[2]:.0%} | {later / 1e3:,.0f} | {later / limit[2]:.0%}"
        print(f"| {way} | {clock} | {first_cpu / 1e3:,.0f} | {first_cpu / limit[3]:.0%} | {later_cpu / 1e3:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--workload", default=",".join(SIZES))
    parser.add_argument("--times", type=float, default=4)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        way, workload, scratch, seed = asked.measure
        measure(way, workload, scratch, int(seed))
        return
    for workload in asked.workload.split(","):
        with tempfile.TemporaryDirectory(prefix="epochs-", dir=asked.folder) as scratch:
            compare(workload, scratch, asked.times, asked.repetitions)


if __name__ == "__main__":
    main()
