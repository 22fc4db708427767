"""Random chains of views of one dataset: those with equal fingerprints have equal samples."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx

FULL = os.environ.get("SHARDEX_FAULTS") == "full"
VIEWS = 3000 if FULL else 120
"""Views of each run; many are equal, because they are short and of few samples."""


@sx.packable
class Wide:
    x: float
    y: int


@sx.packable
class Other:
    x: int
    y: int
    more: int = 3


@sx.packable
class Third:
    x: int
    y: int
    more: int = 4


def swapped(sample: Any) -> dict[str, Any]:
    return {**fields(sample), "x": sample.y, "y": sample.x}


def added(sample: Any) -> dict[str, Any]:
    return {**fields(sample), "x": sample.x + sample.y + 1}


def batched(batch: Any) -> dict[str, Any]:
    return {"x": np.asarray(batch.x) * 3, "y": batch.y}


def fields(sample: Any) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in ("x", "y", "s", "more") if hasattr(sample, name)}


def with_both(step: Callable[[sx.Dataset, random.Random], sx.Dataset]) -> Callable[..., sx.Dataset]:
    """A step for datasets with the fields x and y; others stay as they are."""
    return lambda ds, chance: step(ds, chance) if {"x", "y"} <= set(ds.fields) else ds


def one_field(ds: sx.Dataset, chance: random.Random) -> sx.Dataset:
    return ds.select(chance.choice(ds.fields))


STEPS: list[Callable[[sx.Dataset, random.Random], sx.Dataset]] = [
    with_both(lambda ds, chance: ds.select("x", "y")),
    with_both(lambda ds, chance: ds.select("y", "x")),
    with_both(lambda ds, chance: ds.drop("x")),
    lambda ds, chance: ds.drop("s") if "s" in ds.fields and len(ds.fields) > 1 else ds,
    with_both(lambda ds, chance: ds.rename(x="y", y="x")),
    lambda ds, chance: ds.rename(other="x") if "other" in ds.fields and "x" not in ds.fields else ds,
    lambda ds, chance: ds.rename(x="other") if "x" in ds.fields and "other" not in ds.fields else ds,
    with_both(lambda ds, chance: ds.map(swapped)),
    with_both(lambda ds, chance: ds.map(added)),
    with_both(lambda ds, chance: ds.map(batched, batched=True)),
    with_both(lambda ds, chance: ds.filter(lambda sample: sample.x > 1)),
    with_both(lambda ds, chance: ds.where("y > 1 OR x > 2")),
    with_both(lambda ds, chance: ds.sort(chance.choice(["x", "y"]))),
    with_both(lambda ds, chance: ds.as_type(chance.choice([Wide, Other, Third]))),
    lambda ds, chance: ds[chance.randrange(3) :],
    lambda ds, chance: ds[:: chance.choice([1, 2, -1])],
    lambda ds, chance: ds[[at % len(ds) for at in (2, 0, 1)]] if len(ds) else ds,
    lambda ds, chance: ds.shuffle(seed=chance.randrange(2)),
    lambda ds, chance: ds.take(4),
    lambda ds, chance: ds + ds,
    lambda ds, chance: sx.concat(ds[:1], ds[1:]),
    with_both(lambda ds, chance: sx.join(ds.select("x"), ds.select("y").shuffle(seed=1))),
    with_both(lambda ds, chance: sx.join(ds.select("y"), ds.select("x").shuffle(seed=1))),
    with_both(lambda ds, chance: sx.join(ds.select("x").rename(x="y"), ds.select("y").rename(y="x"))),
    with_both(lambda ds, chance: sx.join(ds.select("x"), ds.select("y"))),
    one_field,
]


@pytest.mark.parametrize("number", range(6 if FULL else 2))
@pytest.mark.parametrize("kind", ["memory", "jsonl", "native"])
def test_views_with_equal_fingerprints_have_equal_samples(tmp_path: Path, kind: str, number: int) -> None:
    chance = random.Random(number)
    samples = [{"x": chance.randrange(4), "y": chance.randrange(4), "s": f"t{k}"} for k in range(5)]
    if kind == "jsonl":
        sx.write(tmp_path / "d.jsonl", samples, format="jsonl")
    base = {"memory": lambda: sx.open(samples), "native": lambda: sx.write(tmp_path / "d", samples)}.get(
        kind, lambda: sx.open(tmp_path / "d.jsonl")
    )()
    seen: dict[str, dict[str, tuple[Any, tuple[str, ...]]]] = {}
    for _ in range(VIEWS):
        view, done = base, [chance.randrange(len(STEPS)) for _ in range(chance.randrange(5))]
        for step in done:
            view = STEPS[step](view, chance)
        if len(view) > 40:
            continue
        fingerprint = view.fingerprint
        if chance.random() < 0.1:
            assert pickle.loads(pickle.dumps(view)).fingerprint == fingerprint
        known = seen.setdefault(fingerprint, {})
        for name in view.fields:
            values = [(type(one), one) for one in (getattr(sample, name) for sample in view)]
            other, way = known.setdefault(name, (values, view.notes))
            assert other == values, (name, way, view, done)
