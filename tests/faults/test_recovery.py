"""Random damage to native datasets: what single reads return is what `recover` saves, and `verify` names the rest.

Every row is read on its own, by a dataset that has read nothing else. One dataset that reads all rows in turn, after
each error, must give the same.
"""

from __future__ import annotations

import datetime
import decimal
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ShardexError
from shardex.native import data_files
from shardex.native.fragments import DataFile
from shardex.native.manifest import Manifest, read_manifest
from shardex.native.version_numbers import latest_version
from shardex.sources import LocalSource
from tests.agreement import plain
from tests.faults.processes import FULL

ROWS = 120
CASES = 60 if FULL else 3
SCHEMA = {
    "n": int,
    "number": sx.Optional(sx.Value("int32")),
    "yes": bool,
    "maybe": sx.Optional(sx.Value("bool")),
    "fixed": sx.Array("float32", (2, 3)),
    "some": sx.Optional(sx.Array("int16", (5,))),
    "ragged": sx.Array("int16", (None,)),
    "shaped": sx.Array("uint8", (None, None)),
    "free": sx.Array("float64"),
    "s": str,
    "note": str | None,
    "json": sx.Json(),
    "words": list[str],
    "part": sx.Struct({"a": int, "b": str | None}),
    "map": dict[str, int],
    "time": datetime.datetime,
    "raw": bytes,
    "money": sx.Decimal(9, 2),
    "nothing": sx.Null(),
}

pytestmark = pytest.mark.timeout(900)


def sample(k: int) -> dict[str, Any]:
    return {
        "n": k,
        "number": k if k % 3 else None,
        "yes": k % 2 == 0,
        "maybe": [None, True, False][k % 3],
        "fixed": np.full((2, 3), k, np.float32),
        "some": np.full(5, k, np.int16) if k % 40 > 20 else None,
        "ragged": np.arange(k % 7, dtype=np.int16),
        "shaped": np.full((k % 3, k % 4), k % 250, np.uint8),
        "free": np.full((2,) * (k % 3), k / 2),
        "s": f"text {k} " * (k % 9),
        "note": f"note {k}" if k % 4 else None,
        "json": {"k": k, "list": [None] * (k % 3)},
        "words": [f"word {k}"] * (k % 5),
        "part": {"a": k, "b": f"b{k}" if k % 2 else None},
        "map": {f"key {i}": k for i in range(k % 3)},
        "time": datetime.datetime(2024, 2, 29) + datetime.timedelta(hours=k),
        "raw": bytes([k % 256]) * (k % 300),
        "money": decimal.Decimal(k) / 4,
        "nothing": None,
    }


def make(folder: Path, *, edited: bool) -> None:
    """Write files of some batches, with a field that was added later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "BATCH_BYTES", 40_000)
        sx.write(folder, map(sample, range(ROWS)), SCHEMA, shard_rows=ROWS // 2 + 7, key="n", progress=False)
        with sx.edit(folder, progress=False) as tx:
            tx.add_field("late", "int64", range(ROWS))
    if edited:
        with sx.edit(folder, progress=False) as tx:
            tx.update(list(range(5, ROWS, 10)), s=[f"newer {k}" for k in range(5, ROWS, 10)])
            tx.delete(list(range(0, ROWS, 17)))


def manifest(folder: Path) -> Manifest:
    place = LocalSource(folder)
    return read_manifest(place, latest_version(place))


def value_files(folder: Path) -> list[DataFile]:
    return [file for fragment in manifest(folder).fragments for file in fragment.groups]


def damage_blocks(folder: Path, rng: random.Random) -> None:
    """Change some bytes of values, at one to three places of one file or of several."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        file = rng.choice(value_files(folder))
        data = bytearray((folder / file.path).read_bytes())
        size = rng.choice([1, 50, 4096, 9000])
        at = rng.randrange(file.end)
        for k in range(at, min(file.end, at + size)):
            data[k] ^= rng.randrange(1, 256)
        (folder / file.path).write_bytes(data)


def damage_anything(folder: Path, rng: random.Random) -> None:
    """Change bytes of any data file, or cut it off."""
    for _ in range(rng.choice([1, 1, 2])):
        path = rng.choice(sorted((folder / "data").iterdir()))
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        if rng.random() < 0.3:
            data = data[:at]
        else:
            data[at : at + 20] = rng.randbytes(len(data[at : at + 20]))
        path.write_bytes(data)


def one_by_one(folder: Path, *, again: bool) -> dict[int, Any]:
    """Return the rows that can be read alone, by one dataset or by a new one for each."""
    found: dict[int, Any] = {}
    try:
        ds = sx.open(folder)
    except ShardexError:
        return found
    for row in range(len(ds)):
        with suppress(ShardexError):
            found[row] = plain((sx.open(folder) if again else ds)[row])
    return found


def cases(room: Path, *, edited: bool) -> Iterator[tuple[Path, random.Random, str]]:
    make(room / "model", edited=edited)
    for number in range(CASES):
        shutil.copytree(room / "model", room / str(number))
        yield room / str(number), random.Random(f"{edited} {number}"), f"case {number}"
        shutil.rmtree(room / str(number))
        shutil.rmtree(room / f"{number} saved")


def named(folder: Path) -> set[int]:
    """Return the rows that `verify` names."""
    problems = sx.verify(folder, progress=False)
    assert all(one.samples is not None for one in problems)
    return {row for one in problems for row in one.samples or ()}


@pytest.mark.parametrize("edited", [False, True])
def test_damaged_values(room: Path, edited: bool) -> None:
    for folder, rng, case in cases(room, edited=edited):
        damage_blocks(folder, rng)
        readable = one_by_one(folder, again=True)
        assert one_by_one(folder, again=False) == readable, case
        done = sx.recover(folder, f"{folder} saved", progress=False)
        assert [plain(one) for one in sx.open(done.path)] == list(readable.values()), case
        lost = set(range(len(sx.open(folder)))) - set(readable)
        assert {row for one in done.lost for row in one.samples or ()} == lost, case
        assert done.samples == len(readable) and not done.notes, case
        assert lost <= named(folder), case
        if not edited:
            assert lost == named(folder), case


def test_any_damage(room: Path) -> None:
    """Without a foot, or a list of deleted rows, more is saved than single reads return; never something else."""
    for folder, rng, case in cases(room, edited=True):
        right = {one["n"]: plain(one) for one in sx.open(folder)}
        damage_anything(folder, rng)
        readable = one_by_one(folder, again=True)
        assert one_by_one(folder, again=False) == readable, case
        done = sx.recover(folder, f"{folder} saved", progress=False)
        saved = {one["n"]: plain(one) for one in sx.open(done.path)}
        assert all(saved[n] == one for n, one in right.items() if one in readable.values()), case
        if not done.notes:
            assert all(right[n] == one for n, one in saved.items()), case
        assert sx.verify(folder, progress=False), case
