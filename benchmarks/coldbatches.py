"""First batches of 256 random rows of a cold disk: shardex, LMDB, Hugging Face datasets and Lance on the same samples.

`coldread.py --batches` runs it, with two kinds of rows: *series* have two arrays, a number and a text (620 B), *tokens*
have an array and a number (2 KiB). Each measurement is a process of its own: it reads a small dataset, so that imports
are not measured, opens the large one, drops its files from the page cache (`mincore` tells whether that worked), and
then reads some batches, each for the first time. The peers take turns. "read" is what the process got from the disk. A
peer that is not installed is left out; `--peer-python` names the interpreter of an environment that has them, and
`--before` the `src` of another checkout of shardex with a built kernel.

Hugging Face datasets gets the Arrow stream that its own writer makes (1000 rows a batch), without the time that takes.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pagecache import drop

BATCH = 256
WIDTHS = {"series": 620, "tokens": 2056}
SOURCES = [f"source {number}" for number in range(7)]


ARRAYS = {"series": {"history": ("float32", 100), "target": ("float32", 50)}, "tokens": {"tokens": ("uint16", 1024)}}
"""Dtype and length of the arrays of each kind."""


def pieces(kind: str, rows: int) -> Iterator[dict[str, Any]]:
    """The samples as columns, 10 000 at a time."""
    chance = np.random.default_rng(1)
    for begin in range(0, rows, 10_000):
        count = min(10_000, rows - begin)
        made: dict[str, Any] = {
            name: (chance.random((count, length), np.float32) * 50_000).astype(dtype)
            for name, (dtype, length) in ARRAYS[kind].items()
        }
        made["length"] = np.arange(begin, begin + count, dtype=np.int32)
        if kind == "series":
            made["source"] = [SOURCES[number % 7] for number in range(begin, begin + count)]
        yield made


def arrow_schema(kind: str) -> Any:
    import pyarrow as pa

    arrays = {n: pa.list_(pa.from_numpy_dtype(dtype), length) for n, (dtype, length) in ARRAYS[kind].items()}
    return pa.schema({**arrays, "length": pa.int32(), **({"source": pa.string()} if kind == "series" else {})})


def arrow_batches(kind: str, rows: int) -> Iterator[Any]:
    import pyarrow as pa

    for piece in pieces(kind, rows):
        columns = [
            pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1]) if np.ndim(values) == 2 else values
            for values in piece.values()
        ]
        yield pa.RecordBatch.from_arrays([pa.array(one) for one in columns], schema=arrow_schema(kind))


class Peer:
    """Builds, opens and reads a dataset of rows of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Shardex(Peer):
    """The library with its defaults."""

    def build(self, folder: str, rows: int) -> None:
        import shardex as sx

        arrays = {name: sx.Array(dtype, (length,)) for name, (dtype, length) in ARRAYS[self.kind].items()}
        with sx.create(
            folder, {**arrays, "length": "int32", **({"source": str} if self.kind == "series" else {})}
        ) as out:
            for piece in pieces(self.kind, rows):
                out.extend({name: piece[name][k] for name in piece} for k in range(len(piece["length"])))

    def open(self, folder: str) -> None:
        import shardex as sx

        self.dataset = sx.open(folder)

    def batch(self, rows: np.ndarray) -> Any:
        return self.dataset.read(rows)["length"]


class Lmdb(Peer):
    """LMDB, a pickle of plain bytes and numbers for each sample; without read-ahead, as its documentation advises."""

    def build(self, folder: str, rows: int) -> None:
        import lmdb

        env = lmdb.open(folder, map_size=1 << 40, sync=False)
        for piece in pieces(self.kind, rows):
            with env.begin(write=True) as txn:
                for k in range(len(piece["length"])):
                    number = int(piece["length"][k])
                    arrays = [piece[name][k].tobytes() for name in ARRAYS[self.kind]]
                    record = (number, *arrays, *([piece["source"][k]] if self.kind == "series" else []))
                    txn.put(number.to_bytes(8, "big"), pickle.dumps(record), append=True)
        env.sync()

    def open(self, folder: str) -> None:
        import lmdb

        self.txn = lmdb.open(folder, readonly=True, lock=False, readahead=False).begin()

    def batch(self, rows: np.ndarray) -> Any:
        records = [pickle.loads(self.txn.get(row.to_bytes(8, "big"))) for row in rows.tolist()]
        for number, (dtype, _) in enumerate(ARRAYS[self.kind].values(), 1):
            np.stack([np.frombuffer(record[number], dtype) for record in records])
        return np.array([record[0] for record in records])


class HuggingFace(Peer):
    """Hugging Face datasets, numpy format."""

    def build(self, folder: str, rows: int) -> None:
        import pyarrow as pa

        os.makedirs(folder)
        with pa.ipc.new_stream(f"{folder}/data.arrow", arrow_schema(self.kind)) as out:
            for batch in arrow_batches(self.kind, rows):
                for begin in range(0, len(batch), 1000):
                    out.write_batch(batch.slice(begin, 1000))

    def open(self, folder: str) -> None:
        import datasets

        self.dataset = datasets.Dataset.from_file(f"{folder}/data.arrow").with_format("numpy")

    def batch(self, rows: np.ndarray) -> Any:
        return self.dataset[rows]["length"]


class Lance(Peer):
    """Lance with its defaults."""

    def build(self, folder: str, rows: int) -> None:
        import lance
        import pyarrow as pa

        batches = arrow_batches(self.kind, rows)
        lance.write_dataset(pa.RecordBatchReader.from_batches(arrow_schema(self.kind), batches), folder)

    def open(self, folder: str) -> None:
        import lance

        self.dataset = lance.dataset(folder)

    def batch(self, rows: np.ndarray) -> Any:
        found = self.dataset.take(rows)
        for name in ARRAYS[self.kind]:
            found[name].combine_chunks().flatten().to_numpy()
        return found["length"].to_numpy()


PEERS: dict[str, type[Any]] = {
    "shardex": Shardex,
    "shardex before": Shardex,
    "LMDB": Lmdb,
    "HF datasets": HuggingFace,
    "Lance": Lance,
}
NEEDS = {"LMDB": "lmdb", "HF datasets": "datasets", "Lance": "lance"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--before", help="src of another checkout of shardex, as one more peer")
    parser.add_argument("--kind", choices=list(WIDTHS), default="series", help="what the rows of --batches hold")
    parser.add_argument("--count", type=int, default=8, help="number of batches")


def child(asked: argparse.Namespace, name: str, *arguments: Any) -> dict[str, float]:
    """Run one step of a peer in a process of its own; return what it found."""
    peer = name in NEEDS
    environment = dict(os.environ, LANCE_LOG="error", HF_HUB_OFFLINE="1")
    if name == "shardex before":
        environment["PYTHONPATH"] = asked.before
    command = [asked.peer_python if peer else sys.executable, __file__, name, asked.kind, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(asked: argparse.Namespace) -> None:
    """Print the table."""
    rows, width = int(asked.gib * (1 << 30) / WIDTHS[asked.kind]), WIDTHS[asked.kind]
    with tempfile.TemporaryDirectory(prefix="coldread-", dir=asked.folder) as scratch:
        folders: dict[str, str] = {}
        for name in PEERS if asked.before else [name for name in PEERS if name != "shardex before"]:
            try:
                child(asked, name, "build", f"{scratch}/{name}", rows)
                folders[name] = f"{scratch}/{name}"
            except RuntimeError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        os.sync()  # the disk must not write while others read
        found: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
        for seed in range(asked.repetitions):
            for name, folder in folders.items():
                found[name].append(child(asked, name, "read", folder, rows, asked.count, seed))
    print(f"\n### {asked.count} first batches of {BATCH} random rows of {rows:,}, {asked.kind}, {width} B each, cold\n")
    print("| | rows/s | ms a batch | spread | read, MB a batch | CPU, ms a batch |\n|---|---|---|---|---|---|")
    for name, runs in found.items():
        seconds = [run["seconds"] for run in runs]
        middle = statistics.median(seconds)
        read, spent = (statistics.median(run[what] for run in runs) / asked.count for what in ("bytes", "cpu"))
        spread = (max(seconds) - min(seconds)) / middle
        print(
            f"| {name} | {asked.count * BATCH / middle:,.0f} | {middle / asked.count * 1e3:,.1f} | {spread:.0%} "
            f"| {read / 1e6:,.1f} | {spent * 1e3:,.1f} |"
        )


# -- in a process of a peer -----------------------------------------------------------------------------------


def disk_bytes() -> int:
    """What this process has got from disks."""
    return int(Path("/proc/self/io").read_text().split("\nread_bytes: ")[1].split()[0])


def main(name: str, kind: str, step: str, folder: str, rows: str, *more: str) -> None:
    peer = PEERS[name](kind)
    small = f"{folder} small"
    if step == "build":
        peer.build(folder, int(rows))
        peer.build(small, 2 * BATCH)
        print("{}")
        return
    count, seed = map(int, more)
    wanted = np.random.default_rng(100 + seed).choice(int(rows), (count, BATCH), replace=False)
    first = PEERS[name](kind)
    first.open(small)
    first.batch(np.arange(BATCH))
    peer.open(folder)
    drop(folder)
    before, spent, begin = disk_bytes(), time.process_time(), time.perf_counter()
    answers = [peer.batch(some) for some in wanted]
    seconds, cpu = time.perf_counter() - begin, time.process_time() - spent
    assert all(np.array_equal(one, some) for one, some in zip(answers, wanted, strict=True)), "wrong rows"
    print(json.dumps({"seconds": seconds, "bytes": disk_bytes() - before, "cpu": cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
