"""Preparing data: `shardex.write(transform=, workers=)` beside Hugging Face `map` and LitData `optimize`, in one run.

    .venv/bin/python benchmarks/prepare.py --litdata PYTHON      # five minutes on two quiet cores; prints Markdown
    .venv/bin/python benchmarks/prepare.py --quick               # smaller data, one repetition

Every figure is the wall time of one call in a fresh process: imports are left out, the start of the workers is
included. The repetitions of all peers are interleaved (A B C A B C); jobs of peers that take more than 8 s are run
once, and more than 30 s with two workers only. Each result is read back and compared with what it must be. All data is
in memory (/dev/shm, 14 GB) if there is room, so the disk is not measured. LitData needs a Python of its own: make an
environment and ``pip install litdata`` there. A peer that is not installed is left out.

- *slow function*: a function that computes for 1 ms of CPU time, over {"x": float32 (256,), "label": int}
- *arrays*: a function that turns an image of bytes into float32 (64, 64), four gigabytes
- *conversion*: tar to Parquet, JSON Lines to the native format
- *many shards*: JSON Lines files of 10 samples converted into shards of 10 samples, each a part of the job: time, and
  memory of the driver
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SHAPES: dict[str, tuple[int, ...]] = {"slow": (256,), "arrays": (64, 64)}
SIZES = {"slow": 10_000, "arrays": 262_144, "tar": 120_000, "jsonl": 2_000_000}
QUICK = {"slow": 1_000, "arrays": 8_192, "tar": 4_000, "jsonl": 40_000}
SHARDS, QUICK_SHARDS = (100, 1_000, 10_000), (100, 1_000)
PER_SHARD = 10
LONG, VERY_LONG = 8.0, 30.0
"""Seconds: a job of a peer that takes longer is not repeated; one that takes very long is run with two workers only."""
MEMORY = 14 << 30
"""Bytes that the data and the results take at most."""
TITLES = {
    "slow": "A function of 1 ms a sample",
    "arrays": "Writing arrays",
    "tar": "Conversion, tar to Parquet",
    "jsonl": "Conversion, JSON Lines to the native format",
}


# -- functions ------------------------------------------------------------------------------------------------


def slow(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Compute for 1 ms of CPU time, and double the values."""
    end = time.thread_time_ns() + 1_000_000
    while time.thread_time_ns() < end:
        pass
    return {"x": sample["x"] * 2, "label": sample["label"]}


def arrays(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Turn an image of bytes, or a batch of them, into numbers from 0 to 1."""
    return {"x": sample["x"] * np.float32(1 / 255), "label": sample["label"]}


FUNCTIONS: dict[str, Callable[[Any], Any]] = {"slow": slow, "arrays": arrays}


@functools.cache
def source(folder: str) -> dict[str, Any]:
    """The arrays of a workload, mapped once in each process."""
    return {name: np.load(f"{folder}/{name}.npy", mmap_mode="r").view(np.ndarray) for name in ("x", "label")}


def nth(function: Callable[[Any], Any], folder: str, number: int) -> dict[str, Any]:
    """The function's result for one sample: what LitData calls with the number of the sample."""
    return function({"x": source(folder)["x"][number], "label": int(source(folder)["label"][number])})  # type: ignore[no-any-return]


# -- peers: each returns how its result is read back ------------------------------------------------------------

Check = Callable[[], tuple[int, int, float]]
"""Returns the number of samples, the sum of the labels, and the sum of the first elements of `x`."""


def total(batches: Iterable[Mapping[str, Any]]) -> tuple[int, int, float]:
    count, labels, first = 0, 0, 0.0
    for batch in batches:
        x = np.asarray(batch["x"])
        count, labels = count + len(x), labels + int(np.sum(batch["label"]))
        first += float(x.reshape(len(x), -1)[:, 0].sum(dtype=np.float64))
    return count, labels, first


def shardex_job(workload: str, folder: Path, out: Path, workers: int, batched: bool = False) -> Callable[[], Check]:
    import shardex as sx

    ds = sx.open(folder / "shardex")

    def run() -> Check:
        options: dict[str, Any] = {"batched": True} if batched else {}
        made = sx.write(out, ds, transform=FUNCTIONS[workload], workers=workers, progress=False, **options)
        return lambda: total(batch.columns.data for batch in made.ordered(1024))

    return run


def hf_job(workload: str, folder: Path, out: Path, workers: int, batched: bool = False) -> Callable[[], Check]:
    import datasets

    datasets.disable_progress_bars()
    datasets.disable_caching()
    ds = datasets.load_from_disk(str(folder / "hf")).with_format("numpy")

    def run() -> Check:
        processes = workers if workers > 1 else None  # 1 would start a process too
        features = datasets.Features({**ds.features, "x": hf_feature(workload, "float32")})
        made = ds.map(FUNCTIONS[workload], num_proc=processes, features=features, batched=batched)
        made.save_to_disk(str(out))
        return lambda: total(datasets.load_from_disk(str(out)).with_format("numpy").iter(1024))

    return run


def hf_feature(workload: str, dtype: str) -> Any:
    import datasets

    shape = SHAPES[workload]
    if len(shape) == 2:
        return datasets.Array2D(shape, dtype)
    return datasets.List(datasets.Value(dtype), length=shape[0])


def litdata_job(workload: str, folder: Path, out: Path, workers: int) -> Callable[[], Check]:
    os.environ |= {"DATA_OPTIMIZER_CACHE_FOLDER": f"{out}.cache", "DATA_OPTIMIZER_DATA_CACHE_FOLDER": f"{out}.data"}
    import litdata

    function = functools.partial(nth, FUNCTIONS[workload], str(folder))
    count = len(source(str(folder))["label"])

    def read() -> tuple[int, int, float]:
        made = litdata.StreamingDataset(str(out))
        return total({"x": [one["x"]], "label": one["label"]} for one in (made[k] for k in range(len(made))))

    def run() -> Check:
        litdata.optimize(function, list(range(count)), str(out), chunk_bytes="64MB", num_workers=workers, verbose=False)
        return read

    return run


def convert_job(workload: str, folder: Path, out: Path, workers: int) -> Callable[[], Check]:
    import shardex as sx

    ds = sx.open(folder / "shards")
    label = "cls" if "cls" in ds.features else "label"  # the fields are known before the job

    def run() -> Check:
        form = "parquet" if workload == "tar" else "arrow"
        options = {"shard_rows": PER_SHARD} if workload == "shards" else {}  # each shard is a part
        made = sx.write(out, ds, format=form, workers=workers, progress=False, **options)
        return lambda: (len(made), int(np.sum(made.select(label).read(np.arange(len(made)))[label])), 0.0)

    return run


def hf_convert_job(workload: str, folder: Path, out: Path, workers: int) -> Callable[[], Check]:
    import datasets

    datasets.disable_progress_bars()
    kind, label = ("webdataset", "cls") if workload == "tar" else ("json", "label")
    files = sorted(str(path) for path in (folder / "shards").iterdir() if path.is_file())

    def run() -> Check:
        processes = workers if workers > 1 else None
        made: Any = datasets.load_dataset(kind, data_files=files, split="train", num_proc=processes, cache_dir=str(out))
        if workload == "tar":
            made.to_parquet(f"{out}/all.parquet")
        return lambda: (len(made), int(np.sum(made[label])), 0.0)

    return run


JOBS: dict[str, dict[str, Callable[..., Callable[[], Check]]]] = {
    "slow": {"shardex": shardex_job, "HF datasets": hf_job, "LitData": litdata_job},
    "arrays": {
        "shardex": shardex_job,
        "shardex, batched": functools.partial(shardex_job, batched=True),
        "HF datasets, batched": functools.partial(hf_job, batched=True),
        "LitData": litdata_job,
    },
    "tar": {"shardex": convert_job, "HF datasets": hf_convert_job},
    "jsonl": {"shardex": convert_job, "HF datasets": hf_convert_job},
    "shards": {"shardex": convert_job},
}


def memory(what: str) -> int:
    """Megabytes of this process; `getrusage` would count those of the process that started it."""
    return int(Path("/proc/self/status").read_text("ascii").partition(f"{what}:")[2].split()[0]) >> 10


def child(workload: str, peer: str, workers: int, folder: Path, out: Path) -> None:
    """Run one job in this process, check the result, print seconds and memory."""
    run = JOBS[workload][peer](workload, folder, out, workers)
    before, start = memory("VmRSS"), time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        check = run()
    seconds = time.perf_counter() - start
    peak = memory("VmHWM")
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    found = check()
    if list(found[:2]) != expected[:2] or not np.isclose(found[2], expected[2], rtol=1e-4, atol=1e-2):
        raise SystemExit(f"{peer}, {workload}: expected {expected}, got {found}")
    print(json.dumps({"seconds": seconds, "before": before, "peak": peak}))


# -- data -----------------------------------------------------------------------------------------------------


def make_arrays(folder: Path, workload: str, count: int) -> None:
    """The samples as numpy files, as a native dataset, and as a dataset of Hugging Face."""
    import shardex as sx

    random, shape = np.random.default_rng(0), SHAPES[workload]
    folder.mkdir()
    label: Any = np.arange(count)
    if workload == "slow":
        x: Any = random.standard_normal((count, *shape), dtype=np.float32)
    else:
        x = random.integers(0, 256, (count, *shape), np.uint8)
    np.save(folder / "x.npy", x)
    np.save(folder / "label.npy", label)
    schema = {"x": sx.Array(x.dtype, shape), "label": int}
    sx.write(folder / "shardex", {"x": x, "label": label}, schema, progress=False)
    first = float(x.reshape(count, -1)[:, 0].sum(dtype=np.float64)) * (2 if workload == "slow" else 1 / 255)
    (folder / "expected.json").write_text(json.dumps([count, int(label.sum()), first]), "utf-8")
    if importlib.util.find_spec("datasets"):
        import datasets

        datasets.disable_progress_bars()
        features = {"x": hf_feature(workload, str(x.dtype)), "label": datasets.Value("int64")}
        made = datasets.Dataset.from_dict({"x": x, "label": label}, features=datasets.Features(features))
        made.save_to_disk(str(folder / "hf"))


def make_records(folder: Path, workload: str, count: int, shards: int) -> None:
    """Bytes of 8 KB with a class in tars, or texts with a label in JSON Lines."""
    import shardex as sx

    random = np.random.default_rng(0)
    folder.mkdir()
    labels = random.integers(0, 100, count).tolist()
    if workload == "tar":
        samples: Any = ({"bin": random.bytes(8000), "cls": label} for label in labels)
        schema, form = {"bin": bytes, "cls": int}, "tar"
    else:
        text = "the quick brown fox jumps over the lazy dog; " * 8
        samples = ({"id": k, "text": text, "label": label} for k, label in enumerate(labels))
        schema, form = {"id": int, "text": str, "label": int}, "jsonl"
    rows = -(-count // shards)
    made = sx.write(folder / "shards", samples, schema, format=form, shard_rows=rows, progress=False)
    assert len(made.features) >= 2  # the fields are found here, and stored with the index
    (folder / "expected.json").write_text(json.dumps([count, sum(labels), 0.0]), "utf-8")


# -- measuring ------------------------------------------------------------------------------------------------


def measured(python: str, workload: str, peer: str, workers: int, folder: Path) -> dict[str, float]:
    """Run one job in a fresh process; a job that fails took infinitely long."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        given = ["--child", workload, peer, str(workers), str(folder), f"{scratch}/out"]
        around = {**os.environ, "TMPDIR": scratch, "HF_DATASETS_CACHE": f"{scratch}/hf", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([python, __file__, *given], capture_output=True, text=True, check=False, env=around)
    if done.returncode:
        print(f"{peer}, {workload}, {workers} workers failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return {"seconds": float("inf"), "before": float("nan"), "peak": float("nan")}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compare(workload: str, folder: Path, pythons: Mapping[str, str], repetitions: int) -> None:
    """One table: each peer with one worker and with two."""
    taken: dict[tuple[str, int], list[float]] = {}
    peers = [peer for peer in JOBS[workload] if pythons.get(peer.split(",")[0])]
    for _ in range(repetitions):
        for peer in peers:
            for workers in (2, 1):
                times = taken.setdefault((peer, workers), [])
                again = not times or times[0] < LONG
                if peer.startswith("shardex") or (again and max(taken[peer, 2], default=0) < VERY_LONG):
                    found = measured(pythons[peer.split(",")[0]], workload, peer, workers, folder)
                    times.append(found["seconds"])
    count = json.loads((folder / "expected.json").read_text("utf-8"))[0]
    best = {key: min(times, default=float("inf")) for key, times in taken.items()}
    others = [best[peer, 2] for peer in peers if not peer.startswith("shardex")]
    print(f"\n### {TITLES[workload]}, {count:,} samples\n")
    print("| | 1 worker, s (median) | 2 workers, s (median) | samples/s, 2 workers | speed-up | best peer / this |")
    print("|---|---|---|---|---|---|")
    for peer in peers:
        one, two = best[peer, 1], best[peer, 2]
        cells = [shown(taken[peer, 1]), shown(taken[peer, 2]), f"{count / two:,.0f}"]
        cells += [f"{one / two:.2f}x" if one < float("inf") else "-", f"{min(others) / two:.2f}x" if others else "-"]
        print(f"| {f'**{peer}**' if peer.startswith('shardex') else peer} | {' | '.join(cells)} |", flush=True)


def shown(times: list[float]) -> str:
    """The best time and the median."""
    return f"{min(times):.2f} ({statistics.median(times):.2f})" if times else "-"


def many_shards(folder: Path, sizes: Iterable[int], python: str, repetitions: int) -> None:
    """One table: time and memory of the driver for numbers of small shards."""
    folder.mkdir()
    for shards in sizes:
        make_records(folder / str(shards), "jsonl", PER_SHARD * shards, shards)
    taken: dict[int, list[dict[str, float]]] = {}
    for _ in range(repetitions):
        for shards in sizes:
            taken.setdefault(shards, []).append(measured(python, "shards", "shardex", 2, folder / str(shards)))
    print(f"\n### Shards of {PER_SHARD} samples, JSON Lines to the native format, 2 workers\n")
    print("| shards | s | ms per shard | memory of the driver before, MB | at its peak, MB |\n|---|---|---|---|---|")
    for shards, found in taken.items():
        seconds = min(one["seconds"] for one in found)
        before, peak = (statistics.median(one[what] for one in found) for what in ("before", "peak"))
        print(f"| {shards:,} | {seconds:.2f} | {1e3 * seconds / shards:.2f} | {before:.0f} | {peak:.0f} |", flush=True)


def folder_in_memory() -> str | None:
    """The folder of shared memory, if there is room; `None` means a temporary folder."""
    there = os.path.isdir("/dev/shm") and min(shutil.disk_usage("/dev/shm").free, free_memory()) > MEMORY
    return "/dev/shm" if there else None


def free_memory() -> int:
    """Bytes that programs can still take."""
    return int(Path("/proc/meminfo").read_text("ascii").partition("MemAvailable:")[2].split()[0]) << 10


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        workload, peer, workers, folder, out = sys.argv[2:]
        return child(workload, peer, int(workers), Path(folder), Path(out))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, one repetition")
    parser.add_argument("--repetitions", type=int, help="3 by default")
    parser.add_argument("--litdata", default=os.environ.get("BENCH_LITDATA"), help="a Python that has LitData")
    parser.add_argument("--peers", default="shardex,HF datasets,LitData")
    parser.add_argument("--workloads", default="slow,arrays,tar,jsonl,shards")
    parser.add_argument("--folder", default=folder_in_memory(), help="where the data is made; in memory by default")
    given = parser.parse_args()
    repetitions = given.repetitions or (1 if given.quick else 3)
    installed = {
        "shardex": sys.executable,
        "HF datasets": sys.executable if importlib.util.find_spec("datasets") else "",
        "LitData": given.litdata or (sys.executable if importlib.util.find_spec("litdata") else ""),
    }
    pythons = {peer: python for peer, python in installed.items() if peer in given.peers.split(",")}
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for workload in given.workloads.split(","):
            folder = Path(scratch) / workload
            if workload == "shards":
                many_shards(folder, QUICK_SHARDS if given.quick else SHARDS, sys.executable, repetitions)
                continue
            count = (QUICK if given.quick else SIZES)[workload]
            if workload in SHAPES:
                make_arrays(folder, workload, count)
            else:
                make_records(folder, workload, count, 8)
            compare(workload, folder, pythons, repetitions)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
