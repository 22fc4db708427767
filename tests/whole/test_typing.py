"""What type checkers are told: the snippet below is checked by mypy, with nothing but the names it can see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SNIPPET = """
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import shardex as sx


@sx.packable
class Series:
    history: NDArray[np.float32]
    station: str = ""


class Mean(sx.PackableSample):
    mean: float


@sx.lens
def mean(s: Series) -> Mean:
    return Mean(float(s.history.mean()))


@mean.putter
def _(view: Mean, s: Series) -> Series:
    return Series(s.history - s.history.mean() + view.mean, s.station)


untyped = sx.open("x")
assert_type(untyped, sx.Dataset[sx.DictSample])
assert_type(untyped[0], sx.DictSample)

ds = sx.open("x", Series)
assert_type(ds, sx.Dataset[Series])
assert_type(ds[0], Series)
assert_type(ds[0].station, str)
assert_type(ds[1:], sx.Dataset[Series])
assert_type(ds[[1, 2]].shuffle(1).take(3), sx.Dataset[Series])
assert_type(ds.get("key"), Series)
for one in ds:
    assert_type(one, Series)
for batch in ds.ordered(3):
    assert_type(batch, sx.Batch[Series])
    assert_type(batch.samples, list[Series])
assert_type(ds.select("history"), sx.Dataset[sx.DictSample])
assert_type(ds.where("true"), sx.Dataset[Series])
assert_type(ds.as_type(Mean)[0], Mean)
assert_type(ds.view(mean)[0].mean, float)
assert_type(ds.map(lambda s: Mean(1.0))[0], Mean)
assert_type(ds.filter(lambda s: s.station == "a"), sx.Dataset[Series])
assert_type(sx.concat(ds, ds), sx.Dataset[Series])

assert_type(mean, sx.Lens[Series, Mean])
assert_type(mean(ds[0]), Mean)
assert_type(mean.put(Mean(1.0), ds[0]), Series)
assert_type(mean | sx.Lens.identity(Mean), sx.Lens[Series, Mean])
assert_type(sx.Lens.between(Series, Mean), sx.Lens[Series, Mean])
assert_type(Mean.from_bytes(Mean(1.0).packed), Mean)
assert_type(Mean(mean=1.0).as_wds, dict[str, Any])

Series()  # error: Missing positional argument
Mean("x")  # error: incompatible type
mean(Mean(1.0))  # error: incompatible type
ds[0].nothing  # error: has no attribute
"""


def test_types_follow(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "snippet.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = SNIPPET.split("\n")
    wanted = {number: line.split("# error: ")[1] for number, line in enumerate(lines, 1) if "# error: " in line}
    found = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error: " in line}
    assert found.keys() == wanted.keys(), done.stdout + done.stderr
    assert all(text in found[number] for number, text in wanted.items()), done.stdout
