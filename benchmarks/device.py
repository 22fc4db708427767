"""How fast batches reach a CUDA device, and how busy they keep it; by hand, on a machine that has one.

    python benchmarks/device.py [--seconds 3] [--folder /dev/shm/device] [--device cuda] [--only tokens]

Needs only shardex, numpy and torch. First it compares batches on the device with those of the same loader on the host,
in many settings (`check`). Then it measures GB/s of stored bytes that arrive, shuffled: the bare copy of pinned memory,
which is the limit, the loader with copies by the user, and with ``device=``; and a training step alone and fed.
With ``--device cpu`` it runs without an accelerator, to be tested.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import shardex as sx

WORKLOADS: dict[str, tuple[int, str, tuple[int, ...], int, Any]] = {
    "tokens": (256, "uint16", (2048,), 500_000, "int64"),
    "images": (256, "uint8", (224, 224, 3), 20_000, sx.Cast("float32", 1 / 255, (0.485, 0.456, 0.406), 0.225)),
    "series": (4096, "float32", (150,), 1_000_000, "bfloat16"),
}
"""Samples in a batch, dtype, shape, number of samples, and a cast."""
SETTINGS: dict[str, dict[str, Any]] = {
    "loader, copied by the user": {},
    "loader, pin_memory": {"pin_memory": True},
    "loader, 8 threads": {"workers": 8, "worker_type": "thread"},
    "loader, 8 threads, pin_memory": {"workers": 8, "worker_type": "thread", "pin_memory": True},
    "loader, 8 processes": {"workers": 8, "worker_type": "process"},
    "loader, 8 processes, pin_memory": {"workers": 8, "worker_type": "process", "pin_memory": True},
    "device": {"device": True},
    "device, cast": {"device": True, "dtype": True},
    "device, 2 threads": {"device": True, "workers": 2, "worker_type": "thread"},
    "device, 8 threads": {"device": True, "workers": 8, "worker_type": "thread"},
    "device, 8 processes": {"device": True, "workers": 8, "worker_type": "process"},
}


def write(folder: str, name: str, share: float) -> sx.Dataset:
    """Return the dataset of a workload; it is written once."""
    _, dtype, shape, count, _ = WORKLOADS[name]
    count, path = max(1, int(count * share)), f"{folder}/{name}"
    if not os.path.exists(path):
        rng, some = np.random.default_rng(0), min(count, 2048)
        values = (
            rng.random((some, *shape)) * 50_000 if dtype != "uint8" else rng.integers(0, 255, (some, *shape))
        ).astype(dtype)
        with sx.create(path, {"x": sx.Array(dtype, shape), "y": int}) as out:
            for k in range(count):
                out.append(x=values[k % some], y=k)
    return sx.open(path)


def options(setting: dict[str, Any], device: str, cast: Any) -> dict[str, Any]:
    """Return the arguments of a loader."""
    chosen = {name: value for name, value in setting.items() if name not in ("device", "dtype")}
    chosen |= {"device": device} if "device" in setting else {}
    return chosen | ({"dtype": {"x": cast}} if "dtype" in setting else {})


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def rate(batches: Iterable[Any], device: str, each: int, seconds: float) -> tuple[float, float]:
    """Return samples and stored GB per second; `each` is the number of bytes of a sample."""
    count, begin = 0, 0.0
    for number, batch in enumerate(batches):
        x = batch.x.to(device, non_blocking=True)
        count += len(x)
        if number == 40:
            synchronize(device)
            begin, count = time.perf_counter(), 0
        if number > 40 and time.perf_counter() - begin > seconds:
            break
    synchronize(device)
    spent = time.perf_counter() - begin
    return count / spent, count * each / spent / 1e9


def bare_copy(device: str, batch: int, dtype: str, shape: tuple[int, ...], each: int) -> tuple[float, float]:
    """Return the same of copies from one pinned batch."""
    pin = torch.device(device).type == "cuda"
    host = torch.empty((batch, *shape), dtype=getattr(torch, dtype), pin_memory=pin)
    for _ in range(5):
        host.to(device, non_blocking=True)
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(300):
        host.to(device, non_blocking=True, copy=True)
    synchronize(device)
    spent = time.perf_counter() - begin
    return 300 * batch / spent, 300 * batch * each / spent / 1e9


def check(ds: sx.Dataset, device: str, batch: int, cast: Any) -> None:
    """Compare the batches of a device with those of the host, while some are held and the device is busy."""
    here = list(sx.Loader(ds[: 40 * batch + 7], batch, shuffle=True, seed=3, to="torch"))
    busy = torch.ones((2048, 2048), device=device)
    for name, setting in SETTINGS.items():
        if "device" not in setting and "pin_memory" not in setting:
            continue
        if "pin_memory" in setting and torch.device(device).type != "cuda":
            continue
        with sx.Loader(
            ds[: 40 * batch + 7], batch, shuffle=True, seed=3, to="torch", **options(setting, device, cast)
        ) as loader:
            held, sums = [], []
            for number, there in enumerate(loader):
                busy = torch.mm(busy, busy).clamp_(0, 1)
                x = there.x.to(device, non_blocking=True)
                sums.append(x.double().sum())
                if number % 3 == 0:
                    held.append((number, x, there.y))
                del there, x
            for number, x, y in held:
                want = here[number].x.to(device)
                if "dtype" in setting:
                    want = (cast if isinstance(cast, sx.Cast) else sx.Cast(cast)).tensor(torch, want, "x")
                assert torch.equal(x, want) and torch.equal(y.cpu(), here[number].y), f"{name}: batch {number} differs"
            if "dtype" not in setting:
                for number, total in enumerate(sums):
                    assert torch.isclose(total.cpu(), here[number].x.double().sum()), f"{name}: batch {number} differs"
    print("all batches on the device agree with those on the host", flush=True)


def train(ds: sx.Dataset, device: str, steps: int) -> None:
    """Print the time of a training step with a batch that is there, and with batches of loaders."""
    width, layers, vocabulary = 512, 4, 50_000
    block = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
    model = (
        torch.nn.Sequential(
            torch.nn.Embedding(vocabulary, width),
            torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
            torch.nn.Linear(width, vocabulary),
        )
        .to(device)
        .to(torch.bfloat16)
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step(x: Any) -> None:
        x = x.to(device, non_blocking=True).to(torch.int64)[:, :512]
        y = model[2](model[1](model[0](x[:, :-1]))[:, -64:])
        loss = torch.nn.functional.cross_entropy(y.reshape(-1, vocabulary).float(), x[:, -64:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def timed(next_batch: Callable[[], Any]) -> float:
        for _ in range(5):
            step(next_batch())
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            step(next_batch())
        synchronize(device)
        return (time.perf_counter() - begin) / steps

    fixed = next(iter(sx.Loader(ds, 64, to="torch"))).x.to(device)
    alone = timed(lambda: fixed)
    for name in ("loader, copied by the user", "loader, pin_memory", "device", "device, cast", "device, 2 threads"):
        chosen = options(SETTINGS[name], device, "int64")
        with sx.Loader(ds, 64, shuffle=True, epochs=None, to="torch", **chosen) as loader:
            batches = iter(loader)
            fed = timed(lambda batches=batches: next(batches).x)  # type: ignore[misc]
        print(f"train | {name} | {1e3 * fed:.2f} ms, alone {1e3 * alone:.2f} ms: {alone / fed:.1%} busy", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="/dev/shm/device")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--share", type=float, default=1, help="share of the samples that is written")
    parser.add_argument("--only", help="one workload")
    given = parser.parse_args()
    where = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    print(f"{where}, {os.cpu_count()} cores, torch {torch.__version__}, shardex {sx.__version__}", flush=True)
    for name, (batch, dtype, shape, _, cast) in WORKLOADS.items():
        if given.only not in (None, name):
            continue
        ds = write(given.folder, name, given.share)
        check(ds, given.device, batch, cast)
        each = np.dtype(dtype).itemsize * int(np.prod(shape))
        found = bare_copy(given.device, batch, dtype, shape, each)
        print(f"{name} | bare copy | {found[0]:,.0f} samples/s {found[1]:.2f} GB/s", flush=True)
        for setting, arguments in SETTINGS.items():
            if "pin_memory" in arguments and not given.device.startswith("cuda"):
                continue
            chosen = options(arguments, given.device, cast)
            with sx.Loader(ds, batch, shuffle=True, epochs=None, to="torch", fields=["x"], **chosen) as loader:
                found = rate(loader, given.device, each, given.seconds)
            print(f"{name} | {setting} | {found[0]:,.0f} samples/s {found[1]:.2f} GB/s", flush=True)
            gc.collect()
        if name == "tokens" and given.device.startswith("cuda"):
            train(ds.select("x"), given.device, 100)


if __name__ == "__main__":
    main()
