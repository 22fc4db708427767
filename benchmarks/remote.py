"""Reading ranges of an object: `ObjectSource.read` beside raw obstore, the same ranges in the same run.

    .venv/bin/python benchmarks/remote.py                                  # starts SeaweedFS on this machine
    .venv/bin/python benchmarks/remote.py --url s3://bucket/scratch        # any storage that shardex.storage or the
                                                                           # environment describes

Ways take turns (A B C A B C), figures are medians, ratios hold inside one run only. Raw obstore is taken three ways;
shardex is compared with the best of them: `get_ranges` (ten requests at once, merges what lies within 1 MiB), and
`get_range` for each range in 16 or 32 threads. Server and client share the machine unless --url is given.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardex.sources import ByteRange, storage
from shardex.sources.object_store import ObjectSource

SIZE = 256 << 20
Way = Callable[[list[ByteRange]], Any]


@contextmanager
def seaweed_port() -> Iterator[int]:
    """SeaweedFS as the tests start it, with more volumes; its port."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.servers import KEY, SECRET, weed_command
    from tests.servers.keeper import shared_server

    command = weed_command()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,  # the server may still write when it ends
        shared_server(Path(folder) / "weed", lambda at, ports: [*command(at, ports), "-volume.max=100"]) as port,
    ):
        keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
        storage("s3://bench", endpoint=f"http://127.0.0.1:{port}", allow_http=True, **keys)
        yield port


@contextmanager
def seaweed() -> Iterator[str]:
    """A folder of SeaweedFS."""
    with seaweed_port():
        yield "s3://bench/remote"


def workloads() -> Iterator[tuple[str, list[ByteRange]]]:
    """Names and ranges."""
    random = np.random.default_rng(0)
    for name, count, length in (("64 KiB, random", 400, 64 << 10), ("1 MiB, random", 60, 1 << 20)):
        yield name, [ByteRange(int(begin), length) for begin in random.integers(0, SIZE - length, count)]
    yield "4 KiB, every 64 KiB", [ByteRange(begin, 4096) for begin in range(0, 32 << 20, 64 << 10)]
    yield "32 MiB, in order", [ByteRange(begin, 32 << 20) for begin in range(0, 128 << 20, 32 << 20)]


def ways(place: ObjectSource, path: str) -> dict[str, Way]:
    """What is compared."""
    import obstore

    store: Any = place._connect(path)._store
    key = place._key(path)
    pools = {count: ThreadPoolExecutor(count) for count in (16, 32)}

    def merged(ranges: list[ByteRange]) -> Any:
        starts, ends = [one.begin for one in ranges], [one.end for one in ranges]
        return obstore.get_ranges(store, key, starts=starts, ends=ends)

    def single(pool: ThreadPoolExecutor, ranges: list[ByteRange]) -> Any:
        return list(pool.map(lambda one: obstore.get_range(store, key, start=one.begin, end=one.end), ranges))

    raw = {
        f"obstore, {count} threads": (lambda ranges, pool=pool: single(pool, ranges)) for count, pool in pools.items()
    }
    return {"shardex": lambda ranges: place.read(path, ranges), "obstore.get_ranges": merged, **raw}


def measure(place: ObjectSource, path: str, repetitions: int) -> None:
    for name, ranges in workloads():
        compared = ways(place, path)
        expected = [bytes(one) for one in compared["obstore.get_ranges"](ranges)]
        assert [bytes(one) for one in compared["shardex"](ranges)] == expected
        taken: dict[str, list[float]] = {way: [] for way in compared}
        before = place.traffic.requests
        for _ in range(repetitions):
            for way, read in compared.items():
                begin = time.perf_counter()
                read(ranges)
                taken[way].append(time.perf_counter() - begin)
        middle = {way: statistics.median(times) for way, times in taken.items()}
        best = min(value for way, value in middle.items() if way != "shardex")
        wanted = sum(one.length for one in ranges) / 1e6
        requests = (place.traffic.requests - before) // repetitions
        share = best / middle["shardex"]
        print(f"\n{name}: {len(ranges)} ranges, shardex sends {requests} requests, {share:.0%} of the best")
        for way, value in middle.items():
            print(f"  {way:22s} {wanted / value:8.0f} MB/s  {value * 1e3:8.1f} ms")


def gaps(place: ObjectSource, path: str, repetitions: int) -> None:
    """What it costs to read over a gap instead of asking twice: which gap is best at which distance."""
    print("\nms to read 128 ranges of 4 KiB that lie so far apart, when gaps up to so much are read over:")
    choices = [0, 64 << 10, 256 << 10, 512 << 10, 1 << 20]
    print("  apart  " + "".join(f"{gap >> 10:>8} KiB" for gap in choices))
    for apart in (32 << 10, 128 << 10, 384 << 10, 768 << 10):
        ranges = [ByteRange(number * apart, 4096) for number in range(128)]
        taken: dict[int, list[float]] = {gap: [] for gap in choices}
        for _ in range(repetitions):
            for gap in choices:
                place.gap = gap
                begin = time.perf_counter()
                place.read(path, ranges)
                taken[gap].append(time.perf_counter() - begin)
        print(f"  {apart >> 10:>4} KiB" + "".join(f"{statistics.median(taken[gap]) * 1e3:12.0f}" for gap in choices))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a folder to write a file of 256 MiB in, which is removed in the end")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--gaps", action="store_true", help="also measure which gaps are worth reading over")
    options = parser.parse_args()
    with ExitStack() as servers:
        place = ObjectSource(options.url or servers.enter_context(seaweed()))
        path = f"{os.getpid()}.bin"
        place.put(path, np.random.default_rng(1).bytes(SIZE))
        try:
            measure(place, path, options.repetitions)
            if options.gaps:
                gaps(place, path, options.repetitions)
        finally:
            place.remove(path)


if __name__ == "__main__":
    main()
