"""Random damage to files of every format, read in a process of its own: ``python -m tests.faults.mutations``.

A case is made of a format and a number alone, so that a case that crashed the process can be repeated.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tarfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import shardex as sx
from tests.faults.states import signature

ROWS = 24
SECONDS = 20
"""A case that takes longer hangs."""
MEMORY = 3 << 30


# -- datasets -------------------------------------------------------------------------------------------------------


def samples() -> list[dict[str, Any]]:
    numbers = np.random.default_rng(0)
    return [
        {"n": k, "s": f"text {k}" * (k % 5), "x": numbers.random((2, 3), np.float32), "v": np.arange(k % 4)}
        for k in range(ROWS)
    ]


def _table(runs: bool) -> pa.Table:
    """Return a table of many types; `runs`: also those that Parquet does not have."""
    day = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    rows = [
        {
            "n": k,
            "s": None if k % 5 == 0 else f"text {k}",
            "l": list(range(k % 4)),
            "w": [f"w{k}"] * (k % 3),
            "d": {"a": k, "b": None, "c": [k]},
            "t": day + datetime.timedelta(hours=k),
            "day": day.date(),
            "m": decimal.Decimal(k) / 4,
            "ok": k % 2 == 0,
            "raw": bytes([k]),
        }
        for k in range(ROWS)
    ]
    table = pa.Table.from_pylist(rows).append_column("c", pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode())
    pairs = pa.array([[("a", k)] for k in range(ROWS)], pa.map_(pa.string(), pa.int64()))
    table = table.append_column("p", pairs)
    if not runs:
        return table
    table = table.append_column("r", pc.run_end_encode(pa.array([k // 5 for k in range(ROWS)])))
    return table.append_column("z", pa.array([f"a longer text {k}" for k in range(ROWS)], pa.string_view()))


def _arrow(path: Path, new: Callable[..., Any], compression: str | None) -> None:
    path.mkdir()
    table = _table(runs=True)
    with (
        pa.OSFile(str(path / "a.arrow"), "wb") as file,
        new(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out,
    ):
        out.write_table(table, max_chunksize=7)


def _parquet(path: Path) -> None:
    path.mkdir()
    pq.write_table(_table(runs=False), path / "a.parquet", row_group_size=7, data_page_version="2.0")


def _webdataset(path: Path) -> None:
    path.mkdir()
    with tarfile.open(path / "a.tar", "w") as out:
        for k in range(ROWS):
            parts = {"json": json.dumps({"k": k, "l": [k]}).encode(), "txt": b"text", "cls": str(k).encode()}
            for extension, data in parts.items():
                info = tarfile.TarInfo(f"{'deep/' * (k % 30)}{k:04d}.{extension}")
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))


def _lines(path: Path) -> None:
    path.mkdir()
    rows = [{"a": {"b": [k, None]}, "late": k} if k > 9 else {"a": {"b": []}, "f": k / 4} for k in range(ROWS)]
    (path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "b.jsonl").write_text('\ufeff{"a": {"b": ["\u00e9"]}}\r\n\n{"a": null}')


def _array(path: Path) -> None:
    path.mkdir()
    (path / "a.json").write_text(json.dumps([{"a": [k], "s": f"\u00e9{k}"} for k in range(ROWS)], indent=1))


def _cells(path: Path) -> None:
    path.mkdir()
    lines = (f'{k},"a ""{k}"",\n",{k / 4 if k % 3 else ""},{k}" x\r\n' for k in range(ROWS))
    (path / "a.csv").write_text("\ufeffn,s,x,t\r\n" + "\r\n".join(lines), newline="")


_FIELDS = {
    "jsonl": ["n", "s"],
    "csv": ["n", "s"],
    "tokens": ["v"],
    "megatron": ["v"],
    "npy": ["x"],
    "data_forager": ["x"],
    "columns_tar": ["x", "v"],
}
"""Fields that a format can hold, if not all."""


def _write(path: Path, format: str, **options: Any) -> None:
    wanted = _FIELDS.get(format, ["n", "s", "x", "v"])
    free = format in ("tokens", "megatron")
    rows = [{"tokens" if free else name: sample[name] for name in wanted} for sample in samples()]
    if format in ("npy", "data_forager"):
        rows = [{"x": row["x"].reshape(-1)} for row in rows]
    schema = {"tokens": sx.Array("int64", (None,))} if free else None
    sx.write(path, rows, schema, format=format, progress=False, **options)


def _edited(path: Path) -> None:
    _write(path, "arrow", shard_rows=7, key="n")
    with sx.edit(path, progress=False) as tx:
        tx.update(3, s="changed")
        tx.delete([5])
        tx.add_field("y", "int16", range(ROWS))


MAKERS: dict[str, Callable[[Path], None]] = {
    "native": _edited,
    "arrow": lambda path: _arrow(path, pa.ipc.new_file, None),
    "arrow lz4": lambda path: _arrow(path, pa.ipc.new_file, "lz4"),
    "arrow stream": lambda path: _arrow(path, pa.ipc.new_stream, "zstd"),
    "parquet": lambda path: _write(path, "parquet", row_group_rows=7),
    "parquet of Arrow": _parquet,
    "tar": lambda path: _write(path, "tar", shard_rows=9),
    "tar msgpack": lambda path: _write(path, "tar", layout="msgpack"),
    "webdataset": _webdataset,
    "jsonl": lambda path: _write(path, "jsonl", shard_rows=9),
    "uneven lines": _lines,
    "json array": _array,
    "csv": lambda path: _write(path, "csv", shard_rows=9),
    "csv of cells": _cells,
    "tokens": lambda path: _write(path, "tokens"),
    "megatron": lambda path: _write(path, "megatron"),
    "npy": lambda path: _write(path, "npy"),
    "data_forager": lambda path: _write(path, "data_forager"),
    "bins": lambda path: _write(path, "bins"),
    "columns_tar": lambda path: _write(path, "columns_tar"),
}


# -- damage ---------------------------------------------------------------------------------------------------------


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to three random changes."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(_CHANGES)(bytearray(data), rng)
    return data


def _span(data: bytearray, rng: random.Random, most: int = 4096) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + rng.choice([1, 4, 8, 64, 512, most]))


def _flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 4])):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data) + 1)])


def _insert(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return bytes(data[:at]) + rng.randbytes(rng.choice([1, 3, 8, 512])) + bytes(data[at:])


def _remove(data: bytearray, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return bytes(data[:begin] + data[end:])


def _fill(data: bytearray, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    data[begin:end] = rng.choice([b"\0", b"\xff", b" "]) * (end - begin)
    return bytes(data)


def _swap(data: bytearray, rng: random.Random) -> bytes:
    size = rng.choice([1, 8, 512])
    if len(data) >= 2 * size:
        first, second = sorted(rng.sample(range(len(data) // size), 2))
        one, two = slice(first * size, (first + 1) * size), slice(second * size, (second + 1) * size)
        data[one], data[two] = data[two], data[one]
    return bytes(data)


def _extreme(data: bytearray, rng: random.Random) -> bytes:
    """Replace an aligned number by one that is often out of range."""
    size = rng.choice([2, 4, 8])
    if len(data) >= size:
        at = rng.randrange(len(data) // size) * size
        number = rng.choice([0, 1, (1 << 8 * size) - 1, 1 << (8 * size - 1), (1 << (8 * size - 1)) - 1, 1 << 4 * size])
        data[at : at + size] = number.to_bytes(size, "little")
    return bytes(data)


_CHANGES = [_flip, _flip, _cut, _insert, _remove, _fill, _swap, _extreme, _extreme]


# -- reading --------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Iterator[str]:
    """Open and read all in several ways; yield the signature of what was read."""
    ds = sx.open(path)
    yield signature(ds)
    for row in (0, len(ds) // 2, -1):
        ds[row]
    for batch in ds.ordered(5):
        list(batch)
    ds.to_arrow()
    name = next(iter(ds.features))
    ds.where(f'"{name}" IS NOT NULL')
    yield signature(ds[k] for k in range(len(ds)))


def attempt(work: Callable[[], Any]) -> str:
    """Return what is wrong with how this ended: empty if it ended well or with an error of shardex."""
    try:
        work()
    except sx.ShardexError as error:
        return "" if str(error) else f"{type(error).__name__} without a message"
    except BaseException as error:
        return "".join(traceback.format_exception(error))[-2500:]
    return ""


def run_case(name: str, number: int, model: Path, folder: Path, right: str) -> str:
    """Damage a copy of a dataset and read it; return what is wrong, or an empty text."""
    rng = random.Random(f"{name} {number}")
    shutil.copytree(model, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    target = rng.choice(files)
    times = target.stat()
    target.write_bytes(damage(target.read_bytes(), rng))
    if rng.random() < 0.5:
        os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    if rng.random() < 0.5 and target.parent.name != ".shardex":
        shutil.rmtree(folder / ".shardex", ignore_errors=True)

    def read() -> None:
        for found in _read(folder):
            assert name != "native" or found == right, "expected an error, got wrong values"

    signal.alarm(SECONDS)
    try:
        problems = [attempt(read), attempt(lambda: sx.verify(folder, progress=False))]
    finally:
        signal.alarm(0)
        shutil.rmtree(folder)
    return "\n".join(f"{name} {number}, {target.name}: {one}" for one in problems if one)


def most_memory() -> int:
    """Return the most MiB that this process has used; `ru_maxrss` counts what the process used that started it, too."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    assert found is not None
    return int(found[1]) >> 10


def hangs(*_: object) -> None:
    raise TimeoutError(f"expected an end within {SECONDS} s")


def main(folder: str, first: str, count: str, *names: str) -> None:
    """Run cases of the named formats, or of all; print one line of JSON for each, before and after it."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, hangs)
    for name in names or MAKERS:
        model = Path(folder, "model", name)
        model.parent.mkdir(exist_ok=True)
        MAKERS[name](model)
        right = signature(sx.open(model))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        for number in range(int(first), int(first) + int(count)):
            print(json.dumps({"begin": f"{name} {number}"}), flush=True)
            if found := run_case(name, number, model, Path(folder, "case"), right):
                print(json.dumps({"wrong": found}), flush=True)
            if (used := most_memory()) > 1024:
                print(json.dumps({"wrong": f"{name} {number}: {used} MiB of memory"}), flush=True)
                return
    print(json.dumps({"end": True}))


if __name__ == "__main__":
    main(*sys.argv[1:])
