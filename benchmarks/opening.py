"""What opening and committing cost, by the number of fragments and of samples.

    .venv/bin/python benchmarks/opening.py --folder /some/disk/scratch
    .venv/bin/python benchmarks/opening.py --folder /some/disk/scratch --fragments 10,1000 --samples 1e6   # quicker

Fragments: so many appends of 10 samples each, also with a key. Samples: one write of so many numbers of one byte (1e9:
1 GB). Links: 1e9 samples in 10 000 fragments of three batches each, which are links to one data file. Each line
is the median of --repetitions in one process, with all files in the page cache: `sx.open`; `sx.open` and the sample in
the middle; an append of 10 samples, which syncs its files; and the bytes of the newest manifest. "epoch" is a shuffled
epoch in batches of 256 by a newly opened dataset, then the next one by the same, beside one dataset with the same
samples in one fragment.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

import shardex as sx
from shardex.native.commit import with_runs
from shardex.native.data_files import ShardWriter
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Fragment, path_of_copy
from shardex.native.manifest import Manifest, publish
from shardex.sources import place_of

ROWS = 10
SCHEMA = {"x": sx.Array("float32", (16,)), "k": int}


def samples(begin: int, count: int) -> list[dict[str, object]]:
    return [{"x": np.full(16, k, np.float32), "k": k} for k in range(begin, begin + count)]


def append(folder: Path, begin: int, count: int = ROWS, key: str | None = None) -> None:
    with sx.create(folder, SCHEMA, mode="append", key=key) as out:
        out.extend(samples(begin, count))


def append_numbers(folder: Path) -> None:
    with sx.create(folder, {"x": "uint8"}, mode="append") as out:
        out.extend({"x": 0} for _ in range(ROWS))


def milliseconds(job: Callable[[], object], repetitions: int) -> float:
    """The median of several runs."""
    taken = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        job()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken)


def line(name: str, folder: Path, commit: Callable[[], None], repetitions: int) -> str:
    """The costs of one dataset."""
    count = len(sx.open(folder))
    gc.collect()
    opened = milliseconds(lambda: sx.open(folder), repetitions)
    first = milliseconds(lambda: sx.open(folder)[count // 2], repetitions)
    committed = milliseconds(commit, repetitions)
    newest = max((folder / "_shardex").glob("*.json"))
    cells = [name, f"{count:,}", f"{opened:.2f}", f"{first:.2f}", f"{committed:.2f}", f"{newest.stat().st_size:,}"]
    return f"| {' | '.join(cells)} |"


def speeds(ds: sx.Dataset) -> list[float]:
    """Samples per second of a first epoch and of two later ones, the better of these."""
    found = []
    for seed in range(3):
        begin = time.perf_counter()
        read = sum(len(batch) for batch in ds.shuffled(256, seed=seed))
        found.append(read / (time.perf_counter() - begin))
    return [found[0], max(found[1:])]


def epochs(name: str, folder: Path, whole: Path) -> str:
    first, later = speeds(sx.open(folder))
    plain_first, plain_later = speeds(sx.open(whole))
    cells = [f"{first:,.0f}", f"{later:,.0f}", f"{plain_first:,.0f}", f"{plain_later:,.0f}"]
    return f"| {' | '.join([name, *cells, f'{later / plain_later:.0%}'])} |"


def of_fragments(count: int, scratch: Path, repetitions: int) -> tuple[str, str]:
    """Both lines of a dataset of so many appends."""
    folder, whole, name = scratch / f"f{count}", scratch / f"w{count}", f"{count:,} fragments"
    for number in range(count):
        append(folder, number * ROWS)
    append(whole, 0, count * ROWS)
    reading = epochs(name, folder, whole)
    return line(name, folder, lambda: append(folder, count * ROWS), repetitions), reading


def of_samples(count: int, scratch: Path, repetitions: int) -> str:
    folder = scratch / f"s{count}"
    piece = np.zeros(min(count, 100_000_000), np.uint8)
    for _ in range(0, count, len(piece)):
        sx.write(folder, sx.open({"x": piece}), {"x": "uint8"}, mode="append", progress=False)
    return line(f"{count:.0e} samples", folder, lambda: append_numbers(folder), repetitions)


def with_keys(count: int, scratch: Path, repetitions: int) -> str:
    """The costs of a dataset of so many appends with a key, whose commits look for duplicates."""
    folder = scratch / f"k{count}"
    for number in range(count):
        append(folder, number * ROWS, key="k")
    numbers = iter(range(count, count + repetitions))
    return line(f"{count:,} with keys", folder, lambda: append(folder, next(numbers) * ROWS), repetitions)


def of_links(fragments: int, rows: int, batches: int, scratch: Path, repetitions: int) -> str:
    """The costs of a dataset whose fragments are links to one data file."""
    folder, schema = scratch / "links", pa.schema([pa.field("x", pa.uint8(), nullable=False)])
    place, total = place_of(folder), fragments * rows
    shard = ShardWriter(place, schema)
    for some in np.array_split(np.arange(rows).astype(np.uint8), batches):
        shard.write(pa.record_batch({"x": some}, schema))
    shard.finish()
    file = shard.publish()
    made = [Fragment(rows, [file])]
    for number in range(1, fragments):
        other = path_of_copy(file.path, f"{number:016x}")
        os.link(folder / file.path, folder / other)
        made.append(Fragment(rows, [msgspec.structs.replace(file, path=other)], number * rows))
    features = sx.Features.of({"x": "uint8"}).to_json()
    publish(place, 1, with_runs(place, Manifest(total, features, FragmentList(made), ids=total)))
    return line(f"{fragments:,} linked files", folder, lambda: append_numbers(folder), repetitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--fragments", default="10,1000,10000")
    parser.add_argument("--samples", default="1e6,1e9")
    parser.add_argument("--repetitions", type=int, default=21)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opening-", dir=asked.folder) as scratch:
        reading = []
        print("| | samples | open, ms | open + sample, ms | commit, ms | manifest, bytes |\n|---|---|---|---|---|---|")
        for text in filter(None, asked.fragments.split(",")):
            opening, epoch = of_fragments(int(text), Path(scratch), asked.repetitions)
            print(opening, flush=True)
            reading.append(epoch)
        for text in filter(None, asked.fragments.split(",")):
            print(with_keys(int(text), Path(scratch), asked.repetitions), flush=True)
        for text in filter(None, asked.samples.split(",")):
            print(of_samples(int(float(text)), Path(scratch), asked.repetitions), flush=True)
        print(of_links(10_000, 100_000, 3, Path(scratch), asked.repetitions), flush=True)
    print("\n| samples/s | first epoch | later | one fragment: first | later | ratio |\n|---|---|---|---|---|---|")
    print("\n".join(reading))


if __name__ == "__main__":
    main()
