"""The loader measured: against the dataset's own epoch, against torch's DataLoader, and on a billion rows.

    .venv/bin/python benchmarks/loader.py

Small samples (604 B, 200 000 of them) and windows of tokens (2 KiB, 100 000 of them) in a temporary folder, warm cache.
Every figure is the best of a few passes, with the median behind it; those that are compared are taken in turn. A loader
is made once, as in training, and a pass is one of its epochs.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

import shardex as sx
from shardex.kernel import Columns

SAMPLES, WINDOWS, SLOW_SAMPLES, BATCH = 200_000, 100_000, 20_000, 256


def build(path: str) -> sx.Dataset:
    rng = np.random.default_rng(0)
    schema = {"history": sx.Array("float32", (100,)), "target": sx.Array("float32", (50,)), "length": "int32"}
    with sx.create(path, schema) as out:
        for k in range(SAMPLES):
            values = rng.random(150, dtype=np.float32)
            out.append(history=values[:100], target=values[100:], length=k)
    return sx.open(path)


def build_tokens(path: str) -> sx.Dataset:
    tokens = np.random.default_rng(0).integers(0, 50_000, (WINDOWS, 1024), np.uint16)
    return sx.write(path, {"tokens": tokens}, progress=False)


def rate(batches: Iterable[Any]) -> float:
    begin, count = time.perf_counter(), 0
    for batch in batches:
        count += len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
    return count / (time.perf_counter() - begin)


def measured(makers: dict[str, Callable[[], Iterable[Any]]], passes: int) -> dict[str, list[float]]:
    """Samples per second of each pass."""
    found: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(passes):
        for name, make in makers.items():
            found[name].append(rate(make()))
    return found


def show(title: str, rates: dict[str, list[float]]) -> None:
    first = next(iter(rates.values()))
    print(f"\n{title}")
    for name, passes in rates.items():
        best, middle = max(passes), statistics.median(passes)
        ratios = f"{best / max(first):6.2f}x, median {middle:12,.0f} {middle / statistics.median(first):6.2f}x"
        print(f"  {name:58s} {best:12,.0f} samples/s {ratios}")


def nothing(sample: Any) -> Any:
    return sample


def slow(sample: Any) -> Any:
    """Two hundred microseconds of Python."""
    end = time.perf_counter() + 200e-6
    while time.perf_counter() < end:
        pass
    return sample


class Transformed(torch.utils.data.Dataset[Any]):
    """How one gives torch's DataLoader a transform: sample by sample, or a batch at a time as it allows since 2.0."""

    def __init__(self, ds: sx.Dataset, transform: Callable[[Any], Any], whole: bool) -> None:
        self.ds = ds
        self.transform = transform
        if whole:
            self.__getitems__ = self.several

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.ds[index])

    def several(self, indices: list[int]) -> list[Any]:
        return [self.transform(sample) for sample in self.ds.__getitems__(indices)]


def with_workers(ds: sx.Dataset, transform: Callable[[Any], Any], passes: int) -> dict[str, list[float]]:
    def torchs(whole: bool) -> Any:
        data = Transformed(ds, transform, whole)
        return torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=2, persistent_workers=True)

    loader = sx.Loader(ds, BATCH, shuffle=True, workers=2, worker_type="process", transform=transform)
    one, many = torchs(whole=False), torchs(whole=True)
    for warm in (loader, one, many):  # processes start once, not in every epoch
        next(iter(warm))
    loader.seek()
    with loader:
        return measured(
            {
                "torch DataLoader, sample by sample": lambda: one,
                "torch DataLoader, __getitems__": lambda: many,
                "shardex Loader": lambda: loader,
            },
            passes,
        )


class Computed:
    """As many rows as one likes, none of them stored."""

    in_python = False

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, rows: Any, fields: Sequence[str] | None = None) -> Columns:
        return Columns({"length": rows.copy()})


def billion() -> None:
    print("\na billion rows")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    loader = sx.Loader(sx.open(Computed(10**9)), BATCH, shuffle=True, rank=3, world_size=8)
    made = time.perf_counter()
    loader.seek(epoch=1, position=500_000_000)
    batch = next(iter(loader))
    done = time.perf_counter()
    assert len(set(batch.length.tolist())) == BATCH
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"  made in {1e3 * (made - begin):.2f} ms, the middle of the second epoch and its first batch in")
    print(f"  {1e3 * (done - made):.2f} ms, {grown} KiB more memory, {loader.state_dict()}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ds = build(f"{folder}/series")
        show("in process, samples of 604 B", in_process(ds))
        show("in process, windows of 2 KiB of tokens", in_process(build_tokens(f"{folder}/tokens")))
        show("2 processes, a transform that does nothing", with_workers(ds, nothing, 3))
        show("2 processes, a transform of 200 us", with_workers(ds[:SLOW_SAMPLES], slow, 3))
        show("2 processes, no transform", no_transform(ds))
    billion()


def in_process(ds: sx.Dataset) -> dict[str, list[float]]:
    loaders: dict[str, Any] = {
        "Loader": sx.Loader(ds, BATCH, shuffle=True),
        "Loader, to torch": sx.Loader(ds, BATCH, shuffle=True, to="torch"),
        "Loader, rank 1 of 4 (a quarter of the samples)": sx.Loader(ds, BATCH, shuffle=True, rank=1, world_size=4),
        "Loader, 2 threads": sx.Loader(ds, BATCH, shuffle=True, workers=2),
    }
    makers = {name: lambda loader=loader: loader for name, loader in loaders.items()}
    return measured({"Dataset.shuffled": lambda: ds.shuffled(BATCH), **makers}, 31)


def no_transform(ds: sx.Dataset) -> dict[str, list[float]]:
    with sx.Loader(ds, BATCH, shuffle=True, workers=2, worker_type="process") as loader:
        next(iter(loader))
        loader.seek()
        torchs = torch.utils.data.DataLoader(ds, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
        return measured({"torch DataLoader, __getitems__": lambda: torchs, "shardex Loader": lambda: loader}, 3)


if __name__ == "__main__":
    main()
