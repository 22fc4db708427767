"""Random access through `shardex.compat`, beside the five systems that it stands in for, on the same files in one run.

    .venv/bin/python benchmarks/compat.py                       # under a minute; prints Markdown
    .venv/bin/python benchmarks/compat.py --atdata PYTHON       # a Python, 3.12 or later, that has atdata

Each dataset has 5 000 samples of 1 KiB, written by `shardex.compat`; all of it is in the page cache. The work is one
call that returns one sample, over all samples in a random order; atdata has no random access and gets one sample in the
middle, in a process of its own; the index that `shardex.compat` makes for it at the first call is not in the figure.
Figures are the best of interleaved repetitions. Samples are compared: one of each system.

A system that is not installed is not imitated: its figure is the one that was measured when its facts were collected,
on another machine, and is marked as quoted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLES, SIZE = 5000, 1024
REPETITIONS, QUICK_REPETITIONS = 15, 3
MIDDLE = SAMPLES // 2

Get = Callable[[Any], Any]


class Row(NamedTuple):
    """One system: its call for one sample, and that of `shardex.compat`."""

    system: str
    work: str
    quoted: float
    """Microseconds that the original took on another machine."""
    keys: Sequence[Any]
    ours: Get
    original: Get | None
    value: Callable[[Any], Any] = lambda sample: sample
    """What is compared of a sample."""


def packets() -> list[bytes]:
    """The bytes of all samples."""
    random = np.random.default_rng(0)
    return [random.bytes(SIZE) for _ in range(SAMPLES)]


def arrays() -> Iterator[NDArray[np.float32]]:
    """The same bytes as finite numbers."""
    for packet in packets():
        yield np.frombuffer(packet, np.uint8)[: SIZE // 4].astype(np.float32)


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# -- the systems ------------------------------------------------------------------------------------------------


def synthefy(folder: Path) -> Row:
    from shardex.compat.synthefy_dataset_utils import ShardedDatasetReader, ShardedDatasetWriter

    writer = ShardedDatasetWriter(str(folder))
    writer.add_field("history")
    ids = [writer.add_sample({"history": array}, metadata={"length": len(array)}) for array in arrays()]
    writer.close()
    reader = ShardedDatasetReader(str(folder))
    original = None
    if installed("synthefy_dataset_utils"):
        import synthefy_dataset_utils

        original = synthefy_dataset_utils.ShardedDatasetReader(str(folder)).get_sample
    return Row(
        "synthefy-dataset-utils",
        "`reader.get_sample(id)`, an array and metadata",
        281,
        ids,
        reader.get_sample,
        original,
        lambda sample: (sample[0]["history"].tolist(), sample[1]),
    )


def data_forager(folder: Path) -> Row:
    from shardex.compat.data_forager.datasets.jsonl import JsonlDataset
    from shardex.compat.data_forager.indexers.jsonl_indexer import create_default_jsonl_indexer

    folder.mkdir()
    with (folder / "lines.jsonl").open("w") as lines:
        for number, packet in enumerate(packets()):
            lines.write(json.dumps({"id": number, "text": packet.hex()[: SIZE - 22]}) + "\n")
    create_default_jsonl_indexer(input_base_path=str(folder))()
    ours = JsonlDataset.create_from_index_on_filesystem(str(folder))
    original = None
    if installed("data_forager"):
        from data_forager.datasets.jsonl import JsonlDataset as Original

        original = Original.create_from_index_on_filesystem(str(folder)).__getitem__
    return Row("data-forager", "`JsonlDataset[k]`, a parsed line", 8, range(SAMPLES), ours.__getitem__, original)


def splitdataloader(folder: Path) -> Row:
    from shardex.compat.splitdataloader import SplitDataLoader, write_split_data

    write_split_data(str(folder), packets())
    original = None
    if installed("splitdataloader"):
        from splitdataloader import SplitDataLoader as Original

        original = Original(str(folder)).__getitem__
    ours = SplitDataLoader(str(folder)).__getitem__
    return Row("splitdataloader", "`loader[k]`, bytes", 26, range(SAMPLES), ours, original)


def stable_datasets(folder: Path) -> Row:
    from shardex.compat.stable_datasets.cache import write_sharded_arrow_cache
    from shardex.compat.stable_datasets.dataset import StableDataset
    from shardex.compat.stable_datasets.schema import DatasetInfo, Features, Value

    features = Features({"data": Value("binary"), "label": Value("int64")})
    examples = ((str(number), {"data": packet, "label": number}) for number, packet in enumerate(packets()))
    write_sharded_arrow_cache(examples, features, folder)
    ours = StableDataset(features, DatasetInfo(features), shard_dir=folder).__getitem__
    original = None
    if installed("stable_datasets"):
        from stable_datasets import schema
        from stable_datasets.dataset import StableDataset as Original

        theirs = schema.Features({"data": schema.Value("binary"), "label": schema.Value("int64")})
        shards = sorted(folder.glob("*.arrow"))
        counts = json.loads((folder / "_metadata.json").read_text())["shard_row_counts"]
        info = schema.DatasetInfo(features=theirs)
        original = Original(theirs, info, shard_paths=shards, shard_row_counts=counts).__getitem__
    return Row("stable-datasets", "`ds[k]`, bytes and a number", 12, range(SAMPLES), ours, original)


class Series:
    """The fields of a sample of atdata; `packable` makes a sample class of it."""

    values: NDArray[Any]


def atdata(folder: Path) -> Row:
    from shardex.compat.atdata import Dataset, packable, write_samples

    kind = packable(Series)
    folder.mkdir()
    write_samples([kind(values=array) for array in arrays()], folder / "series.tar")
    dataset = Dataset[kind](str(folder / "series.tar"))  # type: ignore[valid-type]
    return Row(
        "atdata",
        "`ds.select([2500])`, an array; it reads all samples before",
        283_000,
        [MIDDLE],
        lambda key: dataset.select([key])[0],
        None,
        lambda sample: sample.values.tolist(),
    )


_IN_ATDATA = """
import json, sys, time
import atdata
from numpy.typing import NDArray

@atdata.packable
class Series:
    values: NDArray

dataset, middle, times = atdata.Dataset[Series](sys.argv[1]), int(sys.argv[2]), []
for _ in range(int(sys.argv[3])):
    start = time.perf_counter()
    (sample,) = dataset.select([middle])
    times.append(time.perf_counter() - start)
print(json.dumps({"times": times, "value": sample.values.tolist()}))
"""


def time_atdata(python: str, folder: Path, repetitions: int) -> tuple[list[float], Any]:
    """Seconds of atdata for one sample in the middle, and its value, by a Python that has the package."""
    done = subprocess.run(
        [python, "-c", _IN_ATDATA, str(folder / "series.tar"), str(MIDDLE), str(repetitions)],
        capture_output=True,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return found["times"], found["value"]


# -- measuring --------------------------------------------------------------------------------------------------


def microseconds(get: Get, keys: Sequence[Any]) -> float:
    """Time of one call, over all keys."""
    start = time.perf_counter()
    for key in keys:
        get(key)
    return (time.perf_counter() - start) / len(keys) * 1e6


def measure(row: Row, repetitions: int) -> tuple[float, float | None]:
    """Best microseconds of `shardex.compat` and of the original, if it is installed."""
    random = np.random.default_rng(1)
    keys = [row.keys[k] for k in random.permutation(len(row.keys))]
    first = [get(keys[0]) for get in (row.ours, row.original) if get is not None]
    assert all(row.value(sample) == row.value(first[0]) for sample in first)
    ours, originals = [], []
    for _ in range(repetitions):
        if row.original is not None:
            originals.append(microseconds(row.original, keys))
        ours.append(microseconds(row.ours, keys))
    return min(ours), min(originals, default=None)


def line(row: Row, ours: float, original: float | None) -> str:
    """A line of the table; the ratio to a quoted figure is a rough one."""
    if original is None:
        return (
            f"| {row.system} | {row.work} | {shown(row.quoted)} (quoted) | {shown(ours)} | ~{row.quoted / ours:.0f}x |"
        )
    return f"| {row.system} | {row.work} | {shown(original)} | {shown(ours)} | {original / ours:,.1f}x |"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atdata", metavar="PYTHON", help="an interpreter that has atdata")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args()
    logging.disable()  # importing data-forager switches on the messages of all modules
    repetitions = QUICK_REPETITIONS if arguments.quick else REPETITIONS
    print("| system | one sample | original, us | `shardex.compat`, us | |\n|---|---|---|---|---|")
    for system in (synthefy, atdata, data_forager, splitdataloader, stable_datasets):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "data"
            row = system(folder)
            ours, original = measure(row, repetitions)
            if system is atdata and arguments.atdata:
                times, value = time_atdata(arguments.atdata, folder, repetitions)
                assert row.value(row.ours(MIDDLE)) == value
                original = min(times) * 1e6
            print(line(row, ours, original), flush=True)


if __name__ == "__main__":
    sys.exit(main())
