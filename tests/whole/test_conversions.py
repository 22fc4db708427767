"""Conversion between any two formats, local and on a real S3 server, in parts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.sources import open_source

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")

FORMATS = ("arrow", "parquet", "jsonl", "tar", "bins", "tokens", "columns_tar")
OTHERS = ("megatron", "npy", "data_forager")
"""Token files of other tools, converted from and to some formats only."""
PAIRS = [
    *itertools.product(FORMATS, FORMATS),
    *itertools.product(OTHERS, ("arrow", "tokens", *OTHERS)),
    *itertools.product(("arrow", "tokens"), OTHERS),
]
EACH_ONCE = {
    *zip(FORMATS, (*FORMATS[1:], FORMATS[0]), strict=True),
    *zip(("tokens", *OTHERS), (*OTHERS, "tokens"), strict=True),
}
"""The pairs of `make test`: each format as source and as target."""
EVERY_PAIR = [
    pytest.param(*pair, id="-".join(pair), marks=[pytest.mark.long] * (pair not in EACH_ONCE)) for pair in PAIRS
]
COUNT = 60


def arrays() -> list[dict[str, Any]]:
    """Samples that every format can hold: one array of one dimension."""
    return [{"x": np.arange(3, dtype=np.int32) + k} for k in range(COUNT)]


def array_of(sample: Any) -> list[int]:
    """The array of a sample; tars add the extension to its name, JSON Lines returns a list, others store no name."""
    (name,) = (name for name in sample if name in ("x", "x.npy", "x.json", "tokens"))
    return [int(number) for number in sample[name]]


def plain(sample: Any) -> dict[str, Any]:
    """The sample as it was before a format renamed its field or added others."""
    return {"x": np.array(array_of(sample), np.int32)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("source", "target"), EVERY_PAIR)
def test_every_pair_of_formats(tmp_path: Path, source: str, target: str) -> None:
    given = sx.write(tmp_path / "a", arrays(), {"x": sx.Array("int32", (3,))}, format=source)
    schema = {"x": sx.Array("int32", (3,))}
    made = sx.write(tmp_path / "b", given, schema, transform=plain, format=target, executor="threads")
    assert [array_of(one) for one in made] == [one["x"].tolist() for one in arrays()]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["a", "b"]


@pytest.mark.parametrize(("source", "target"), EVERY_PAIR)
def test_every_pair_without_a_function(tmp_path: Path, source: str, target: str) -> None:
    given = sx.write(tmp_path / "a", arrays(), {"x": sx.Array("int32", (3,))}, format=source)
    if target in ("tokens", "columns_tar") and source in ("tar", "jsonl", "columns_tar"):
        given = given.select("x")
        given = given.map(plain, schema={"x": sx.Array("int32", (3,))})
    if (source, target) == ("megatron", "npy"):  # documents of any length are not rows
        given = given.map(plain, schema={"x": sx.Array("int32", (3,))})
    made = sx.write(tmp_path / "b", given, format=target, workers=1)
    assert [array_of(one) for one in made] == [one["x"].tolist() for one in arrays()]


SCALARS = ("arrow", "parquet", "jsonl", "csv", "bins")


def scalars() -> list[dict[str, Any]]:
    return [
        {"n": k, "x": k / 4, "ok": k % 2 == 0, "s": f"é, {k}\n", "m": None if k % 3 else k, "t": None if k % 2 else ""}
        for k in range(COUNT)
    ]


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize(("source", "target"), [(a, b) for a in SCALARS for b in SCALARS if "csv" in (a, b)])
def test_scalars_to_and_from_csv(tmp_path: Path, source: str, target: str, workers: int | None) -> None:
    given = sx.write(tmp_path / "a", scalars(), format=source)
    made = sx.write(tmp_path / "b", given, format=target, workers=workers)
    assert [dict(one) for one in made] == scalars() and made.features == given.features


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "tar", "tokens", "megatron"])
def test_to_a_bucket_and_back(tmp_path: Path, bucket: str, format: str) -> None:
    source = sx.write(tmp_path / "a", arrays(), {"x": sx.Array("int32", (3,))})
    there: Any = {"transform": plain, "format": format, "workers": 2}
    remote = sx.write(f"{bucket}/b", source, {"x": sx.Array("int32", (3,))}, **there)
    assert [array_of(one) for one in remote] == [one["x"].tolist() for one in arrays()]
    assert {path.split("/")[0] for path in open_source(bucket).paths()} == {"b"}, "no folder of the job"
    back = sx.write(tmp_path / "c", remote, {"x": sx.Array("int32", (3,))}, transform=plain, workers=2)
    assert [array_of(one) for one in back] == [one["x"].tolist() for one in arrays()]
