"""How well the loaders of several libraries shuffle, and what an epoch repeats and misses after a resume.

    PYTHON benchmarks/order.py --folder DIR shardex grain litdata mosaic hf-datasets webdataset torch

`PYTHON` is an interpreter that has shardex and the named libraries. Only the first shuffled batch of `torch` and
`shardex` is a measure of speed. 200 000 samples are sorted by class, 100 classes: a first batch of
256 has 92 different classes on average if it is drawn from all samples. A run is stopped after 100 batches of 256 and
continued from its saved state, once with the same batch size and once with 128.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, CLASSES, BATCH, TAKEN = 200_000, 100, 256, 100
LARGE = 20_000_000


def samples(begin: int = 0, end: int = SAMPLES) -> Iterator[dict[str, Any]]:
    for k in range(begin, end):
        yield {"row": k, "label": k * CLASSES // SAMPLES, "x": np.full(100, k, "float32")}


def report(name: str, make: Callable[[int], Any], save: Callable[[Any], Any], load: Callable[[Any, Any], None]) -> None:
    """Print the classes of the first batch, and whether resumed epochs are complete."""
    for size in (BATCH, 128):
        iterator, taken = make(BATCH), []
        for batch in iterator:
            taken.append(np.asarray(batch["row"]))
            if len(taken) == TAKEN:
                break
        state = json.loads(json.dumps(save(iterator), default=repr))
        if size == BATCH:
            print(f"{name}: {len({*(taken[0] * CLASSES // SAMPLES).tolist()})} classes in the first batch", flush=True)
        resumed = make(size)
        load(resumed, state)
        rest = [np.asarray(batch["row"]) for batch in resumed]
        _, counts = np.unique(np.concatenate([*taken, *rest]), return_counts=True)
        print(f"{name}: resumed with batches of {size}: {(counts > 1).sum()} repeated, {SAMPLES - len(counts)} missing")


def shardex(folder: Path) -> None:
    import shardex as sx

    if not folder.exists():
        sx.write(folder, samples(), {"row": int, "label": int, "x": sx.Array("float32", (100,))})
    data = sx.open(folder)
    report(
        "shardex",
        lambda size: sx.Loader(data, size, shuffle=True, seed=0),
        lambda loader: loader.state_dict(),
        lambda loader, state: loader.load_state_dict(state),
    )
    cost("shardex", lambda rows: sx.Loader(rows, BATCH, shuffle=True))


def torch(folder: Path) -> None:
    import torch

    cost("torch", lambda rows: torch.utils.data.DataLoader(rows, BATCH, shuffle=True, collate_fn=lambda batch: batch))


def cost(name: str, make: Callable[[Any], Any]) -> None:
    import shardex as sx

    data = sx.open({"x": np.zeros(LARGE, "float32")})
    memory, begin = peak(), time.process_time()
    next(iter(make(data)))
    spent, more = time.process_time() - begin, peak() - memory
    print(f"{name}: first shuffled batch of {LARGE:,} samples: {1000 * spent:.1f} ms of CPU time, {more} MB of memory")


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1000


def grain(folder: Path) -> None:
    import grain

    rows = [{"row": k} for k in range(SAMPLES)]
    report(
        "grain",
        lambda size: iter(grain.MapDataset.source(rows).seed(0).shuffle().batch(size).to_iter_dataset()),
        lambda iterator: iterator.get_state(),
        lambda iterator, state: iterator.set_state(state),
    )


def litdata(folder: Path) -> None:
    import litdata as ld

    if not folder.exists():
        parts = [(begin, begin + 10_000) for begin in range(0, SAMPLES, 10_000)]
        options = {"num_workers": 1, "start_method": "fork", "verbose": False}
        ld.optimize(fn=part, inputs=parts, output_dir=str(folder), chunk_bytes="64MB", **options)
    report(
        "litdata",
        lambda size: ld.StreamingDataLoader(ld.StreamingDataset(str(folder), shuffle=True, seed=0), batch_size=size),
        lambda loader: loader.state_dict(),
        lambda loader, state: loader.load_state_dict(state),
    )


def part(bounds: tuple[int, int]) -> Iterator[dict[str, Any]]:
    yield from samples(*bounds)


def mosaic(folder: Path) -> None:
    import streaming

    if not folder.exists():
        columns = {"row": "int", "label": "int", "x": "ndarray:float32:100"}
        with streaming.MDSWriter(out=str(folder), columns=columns) as out:
            for sample in samples():
                out.write(sample)

    def make(size: int) -> Any:
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=0, batch_size=size)
        return streaming.StreamingDataLoader(data, batch_size=size)

    report("mosaic", make, lambda loader: loader.state_dict(), lambda loader, state: loader.load_state_dict(state))


def hf_datasets(folder: Path) -> None:
    """An iterable dataset; a map-style one is shuffled as a whole and has no state."""
    import datasets

    if not folder.exists():
        datasets.Dataset.from_generator(samples).to_parquet(folder / "data.parquet")
    files = datasets.load_dataset("parquet", data_files=str(folder / "data.parquet"), split="train", streaming=True)

    report(
        "hf-datasets",
        lambda size: Batches(files.select_columns(["row"]).shuffle(seed=0, buffer_size=1000), size),
        lambda batches: batches.data.state_dict(),
        lambda batches, state: batches.data.load_state_dict(state),
    )


class Batches:
    """Batches of an iterable dataset, whose state is that of the samples that were taken."""

    def __init__(self, data: Any, size: int) -> None:
        self.data, self.size = data, size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows: list[int] = []
        for sample in self.data:
            rows.append(sample["row"])
            if len(rows) == self.size:
                yield {"row": rows}
                rows = []
        if rows:
            yield {"row": rows}


def webdataset(folder: Path) -> None:
    """No state. Prints the batches of three ranks, too."""
    import webdataset as wds

    if not folder.exists():
        folder.mkdir()
        with wds.ShardWriter(str(folder / "%04d.tar"), maxcount=25_000, verbose=0) as sink:
            for sample in samples():
                sink.write({"__key__": f"{sample['row']:08d}", "cls": sample["row"]})
    urls = sorted(map(str, folder.glob("*.tar")))

    data = wds.WebDataset(urls, shardshuffle=100, seed=0).shuffle(1000).decode().to_tuple("cls").batched(BATCH)
    (rows,) = next(iter(data))
    print(f"webdataset: {len({*(np.asarray(rows) * CLASSES // SAMPLES).tolist()})} classes in the first batch")
    print(f"webdataset: has a state: {any(hasattr(x, 'state_dict') for x in (data, wds.WebLoader(data)))}", flush=True)
    counts = []
    for rank in range(3):
        os.environ.update(RANK=str(rank), WORLD_SIZE="3")
        data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node).to_tuple("cls").batched(BATCH)
        counts.append(sum(1 for _ in data))
    print(f"webdataset: {len(urls)} tars on 3 ranks give {counts} batches")


def main() -> None:
    peers = (shardex, torch, grain, litdata, mosaic, hf_datasets, webdataset)
    known = {peer.__name__.replace("_", "-"): peer for peer in peers}
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="for the data of each library: about 500 MB")
    parser.add_argument("peers", nargs="*", default=list(known))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.folder.mkdir(exist_ok=True)
    for name in options.peers:
        known[name](options.folder / name)


if __name__ == "__main__":
    main()
