"""Epochs over a dataset in S3: shuffled batches beside raw obstore on the same ranges, then again from the cache.

    .venv/bin/python benchmarks/far.py               # starts SeaweedFS on this machine
    .venv/bin/python benchmarks/far.py --rows 1000   # random rows of 1 KB: requests and bytes, beside other readers

The data is a tar of --samples images of about 30 KB, and the same samples as a dataset of shardex's own. Raw obstore
reads the members of each batch of the tar by `get_ranges`, or the files of the dataset whole, in the same order, in the
same run; shardex reads batches by `Dataset.shuffled` with an empty cache, then again with what is there. Server and
client share the machine. Figures are medians of --repetitions.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farrows
import numpy as np
from remote import seaweed

import shardex as sx
from shardex.order import Shuffle
from shardex.sources import CachedSource
from shardex.sources.object_store import ObjectSource

BATCH = 256


def write(place: ObjectSource, folder: Path, samples: int) -> None:
    """The tar and the dataset, here and there."""
    random = np.random.default_rng(0)
    images = [{"jpg": random.bytes(int(size))} for size in random.integers(20_000, 40_000, samples)]
    sx.write(folder / "tar", images, {"jpg": bytes}, format="tar", progress=False)
    sx.write(folder / "own", images, {"jpg": bytes}, progress=False)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".shardex" not in path.parts:
            place.put(path.relative_to(folder).as_posix(), path.read_bytes())


def raw_ranges(place: ObjectSource, path: str, begin: Any, length: Any, seed: int) -> Callable[[], None]:
    """The members of each batch, by obstore itself."""
    import obstore

    store: Any = place._connect(path)._store
    key, order = place._key(path), Shuffle(len(begin), seed)

    def run() -> None:
        for at in range(0, len(order), BATCH):
            rows = order.rows(np.arange(at, min(at + BATCH, len(order))))
            starts, ends = begin[rows].tolist(), (begin[rows] + length[rows]).tolist()
            obstore.get_ranges(store, key, starts=starts, ends=ends)

    return run


def raw_whole(place: ObjectSource, paths: list[str]) -> Callable[[], None]:
    """The files of the dataset, by obstore itself."""
    import obstore

    def run() -> None:
        for path in paths:
            store: Any = place._connect(path)._store
            memoryview(obstore.get(store, place._key(path)).bytes())

    return run


def epoch(ds: sx.Dataset, seed: int) -> None:
    """All samples in batches."""
    for _ in ds.shuffled(BATCH, seed=seed):
        pass


def timed(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def compare(name: str, url: str, near: sx.Dataset, raw: Callable[[], None], repetitions: int, size: float) -> None:
    """One line: the first epoch, its share of raw obstore, and later epochs beside local ones."""
    taken: dict[str, list[float]] = {"raw": [], "first": [], "again": [], "local": []}
    for number in range(repetitions):
        with tempfile.TemporaryDirectory() as cache:
            sx.open(url, cache=cache)  # an index, if it needs one
            ds = sx.open(url, cache=cache, access="ranged").stored
            taken["raw"].append(timed(raw))
            taken["first"].append(timed(lambda ds=ds: epoch(ds, 1)))  # type: ignore[misc]
            taken["again"].append(timed(lambda ds=ds, seed=number: epoch(ds, seed)))  # type: ignore[misc]
            taken["local"].append(timed(lambda seed=number: epoch(near, seed)))  # type: ignore[misc]
    middle = {way: statistics.median(times) for way, times in taken.items()}
    print(
        f"{name}: first epoch {size / middle['first']:.0f} MB/s, {middle['raw'] / middle['first']:.0%} of raw obstore "
        f"({size / middle['raw']:.0f} MB/s); again {size / middle['again']:.0f} MB/s, local "
        f"{size / middle['local']:.0f} MB/s"
    )


def requests(url: str) -> str:
    """How many requests the index and one epoch take."""
    with tempfile.TemporaryDirectory() as cache:
        before = {id(one) for one in sources(url)}
        ds = sx.open(url, cache=cache, access="ranged").stored
        (remote,) = (one.remote for one in sources(url) if id(one) not in before)
        indexed = remote.traffic.requests, remote.traffic.bytes_read
        epoch(ds, 1)
        asked, read = remote.traffic.requests - indexed[0], remote.traffic.bytes_read - indexed[1]
        return (
            f"opening {indexed[0]} requests and {indexed[1] / 1e6:.1f} MB, an epoch {asked} requests and "
            f"{read / 1e6:.0f} MB"
        )


def sources(url: str) -> list[Any]:
    """The sources that are open at an address; a dataset does not show its own."""
    return [one for one in gc.get_objects() if isinstance(one, CachedSource) and one.remote.url == url]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cache", help="where caches are made; a disk that is slower than the store shows")
    farrows.add_arguments(parser)
    given = parser.parse_args()
    tempfile.tempdir = given.cache
    if given.rows:
        farrows.compare(given)
        return
    with seaweed() as url, tempfile.TemporaryDirectory() as scratch:
        folder, place = Path(scratch), ObjectSource(f"{url}/far")
        write(place, folder, given.samples)
        near = sx.open(folder / "tar").stored  # the bytes of images that cannot be decoded
        index: Any = near.rows.index  # type: ignore[attr-defined]
        rows, (tar,) = np.arange(len(near)), place.paths("tar/")
        start, offset, length = (index.read(name, rows) for name in ("start", "jpg.offset", "jpg.length"))
        size = float(length.sum()) / 1e6
        compare(
            "tar", f"{url}/far/tar", near, raw_ranges(place, tar, start + offset, length, 1), given.repetitions, size
        )
        own = place.paths("own/data/")
        compare("own", f"{url}/far/own", sx.open(folder / "own").stored, raw_whole(place, own), given.repetitions, size)
        for name in ("tar", "own"):
            print(f"{name}: {requests(f'{url}/far/{name}')}")


if __name__ == "__main__":
    main()
