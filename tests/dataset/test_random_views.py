"""Random chains of views: they have the samples of a list, and those with equal fingerprints have equal samples.

The chains begin at versions of native datasets with deleted rows, updated values, appended rows and new fields, where
the number of a sample is not that of its row in the files.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.order import Shuffle
from tests.agreement import ROUTES, disagreements, plain_sample
from tests.strategies import LONG, examples

VIEWS = 3000 if LONG else 120
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


def are_integers(ds: Any) -> bool:
    """Return whether the classes below fit: a function may have made floats."""
    return all(str(ds.features[name]) == "int64" for name in ("x", "y"))


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
    with_both(lambda ds, chance: ds.as_type(chance.choice([Wide, Other, Third])) if are_integers(ds) else ds),
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


@pytest.mark.parametrize("number", range(6 if LONG else 2))
@pytest.mark.parametrize("kind", ["memory", "jsonl", "native", "edited"])
def test_views_with_equal_fingerprints_have_equal_samples(tmp_path: Path, kind: str, number: int) -> None:
    chance = random.Random(number)
    samples = [{"x": chance.randrange(4), "y": chance.randrange(4), "s": f"t{k}"} for k in range(5)]
    if kind == "jsonl":
        sx.write(tmp_path / "d.jsonl", samples, format="jsonl")
    if kind in ("native", "edited"):
        sx.write(tmp_path / "d", samples)
    if kind == "edited":
        with sx.edit(tmp_path / "d") as tx:
            tx.append(samples[1])
            tx.update(3, x=2, s="new")
            tx.delete([0])
    base = sx.open(samples if kind == "memory" else tmp_path / ("d.jsonl" if kind == "jsonl" else "d"))
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


# -- versions with edits, as a list ------------------------------------------------------------------------------

Samples = list[dict[str, Any]]
SCHEMA = {
    "n": "int64",
    "x": sx.Optional(sx.Value("float64")),
    "s": str,
    "v": sx.Array("float32", (2,)),
    "t": sx.Array("int16", (None,)),
}


def sample(k: int) -> dict[str, Any]:
    v, t = np.full(2, k, np.float32), np.full(k % 4, k, np.int16)
    return {"n": k, "x": None if k % 3 == 0 else k / 2, "s": "abc"[k % 3] * (k % 4), "v": v, "t": t}


@dataclass(frozen=True)
class State:
    """A dataset, and a list of the samples that it must have."""

    ds: sx.Dataset[Any]
    samples: Samples

    def picked(self, ds: sx.Dataset[Any], rows: Any) -> State:
        """A view of some of the samples."""
        return State(ds, [self.samples[row] for row in rows])

    def changed(self, ds: sx.Dataset[Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> State:
        """A view with other fields."""
        return State(ds, [change(one) for one in self.samples])


def deleted(path: Path, samples: Samples, k: int) -> Samples:
    rows = {0: {0}, 1: {len(samples) - 1}, 2: {*range(2, 5)}}.get(k % 4, {*range(k % 3, len(samples), 3)})
    rows &= {*range(len(samples))}
    with sx.edit(path) as tx:
        tx.delete(sorted(rows))
    return [one for row, one in enumerate(samples) if row not in rows]


def updated(path: Path, samples: Samples, k: int) -> Samples:
    """Other values of some fields in every second or third row; a few rows have a newer value twice."""
    names = [name for bit, name in enumerate(SCHEMA) if (k >> bit) & 1] or ["s"]
    found = [*samples]
    with sx.edit(path) as tx:
        for turn, row in enumerate([*range(k % 2, len(samples), 2 + k % 2), *range(min(1, len(samples)))]):
            new = {name: sample(100 + k + turn)[name] for name in names}
            tx.update(row, **new)
            found[row] = found[row] | new
    return found


def appended(path: Path, samples: Samples, k: int) -> Samples:
    more = [samples[0] | sample(200 + k + row) for row in range(1 + k % 3)] if samples else []
    if more:
        sx.write(path, more, mode="append")
    return samples + more


def with_field(path: Path, samples: Samples, k: int) -> Samples:
    if not samples or "more" in samples[0]:
        return samples
    with sx.edit(path) as tx:
        tx.add_field("more", "int64", [k - row for row in range(len(samples))])
    return [one | {"more": k - row} for row, one in enumerate(samples)]


EDITS = [deleted, deleted, updated, updated, appended, with_field]


# -- steps -------------------------------------------------------------------------------------------------------


@sx.packable
class Typed:
    x: float | None
    n: float
    s: str
    other: int = 3


def typed(one: dict[str, Any]) -> dict[str, Any]:
    return {"x": one["x"], "n": float(one["n"]), "s": one["s"], "other": one.get("other", 3)}


def mapped(one: Any) -> dict[str, Any]:
    return {"s": one.s + "!", "n": one.n * 2}


def mapped_batch(batch: Any) -> dict[str, Any]:
    return {"n": np.asarray(batch.n) * 2, "s": [text + "!" for text in batch.s]}


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda one: {key: value for key, value in one.items() if key != name}


def renamed(names: dict[str, str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda one: {names.get(key, key): value for key, value in one.items()}


def selected(names: list[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda one: {name: one[name] for name in names}


def step_select(at: State, k: int) -> State:
    names = [name for bit, name in enumerate(at.ds.fields) if (k >> bit) & 1] or at.ds.fields[::-1]
    return at.changed(at.ds.select(names), selected(names))


def step_drop(at: State, k: int) -> State:
    name = at.ds.fields[k % len(at.ds.fields)]
    return at.changed(at.ds.drop(name), without(name)) if len(at.ds.fields) > 1 else at


def step_rename(at: State, k: int) -> State:
    """Two fields change places, or one has a new name."""
    first, last = at.ds.fields[k % len(at.ds.fields)], at.ds.fields[-1]
    names = {first: last, last: first} if k % 2 and first != last else {last: f"{last}_"}
    return at.changed(at.ds.rename(names), renamed(names))


def step_join(at: State, k: int) -> State:
    """Fields of this view beside others of it, which are those of the samples in another order."""
    first, *rest = at.ds.fields
    if not rest:
        return at
    turn = at.ds[::-1] if k % 2 else at.ds.shuffle(seed=k)
    order = range(len(at.ds))[::-1] if k % 2 else Shuffle(len(at.ds), k).rows(np.arange(len(at.ds))).tolist()
    pairs = zip(at.samples, order, strict=True)
    return State(
        sx.join(at.ds.select(first), turn.select(rest)),
        [{first: one[first]} | {name: at.samples[other][name] for name in rest} for one, other in pairs],
    )


def step_slice(at: State, k: int) -> State:
    part = (slice(1, None), slice(None, -1), slice(None, None, -1), slice(k % 3, None, 2))[k % 4]
    return at.picked(at.ds[part], range(len(at.ds))[part])


def step_list(at: State, k: int) -> State:
    rows = [(row * k) % len(at.ds) for row in range(len(at.ds))] if len(at.ds) else []
    return at.picked(at.ds[rows], rows)


def step_mask(at: State, k: int) -> State:
    mask = [row % (2 + k % 2) == 0 for row in range(len(at.ds))]
    return at.picked(at.ds[mask], np.flatnonzero(mask).tolist())


def step_shuffle(at: State, k: int) -> State:
    return at.picked(at.ds.shuffle(seed=k), Shuffle(len(at.ds), k).rows(np.arange(len(at.ds))).tolist())


def step_concat(at: State, k: int) -> State:
    cut = k % (len(at.ds) + 1)
    return State(sx.concat(at.ds[cut:], at.ds[:cut]), at.samples[cut:] + at.samples[:cut])


def step_twice(at: State, k: int) -> State:
    return State(at.ds + at.ds, at.samples * 2) if len(at.ds) < 15 else at


def step_where(at: State, k: int) -> State:
    conditions: dict[str, tuple[str, Callable[[int, Any], bool]]] = {
        "n": (f"n % 3 = {k % 3}", lambda row, value: np.fmod(value, 3) == k % 3),
        "x": ("x IS NOT NULL", lambda row, value: value is not None),
        "s": ("s LIKE 'a%' OR _row = 1", lambda row, value: value.startswith("a") or row == 1),
        "more": ("more > 0", lambda row, value: value > 0),
    }
    names = [name for name in conditions if name in single_fields(at)]
    if not names:
        return at
    text, holds = conditions[name := names[k % len(names)]]
    return at.picked(at.ds.where(text), [row for row, one in enumerate(at.samples) if holds(row, one[name])])


def step_sort(at: State, k: int) -> State:
    """Samples with equal values stay in order; those without a value come last."""
    if not (names := single_fields(at)):
        return at
    name, down = names[k % len(names)], bool(k % 2)
    there = [row for row, one in enumerate(at.samples) if one[name] is not None]
    rows = sorted(there, key=lambda row: at.samples[row][name], reverse=down)
    last = [row for row, one in enumerate(at.samples) if one[name] is None]
    return at.picked(at.ds.sort(name, descending=down), rows + last)


def step_filter(at: State, k: int) -> State:
    name = at.ds.fields[k % len(at.ds.fields)]

    def kept(one: Any) -> bool:
        return len(str(getattr(one, name))) % 2 == k % 2

    rows = [row for row, one in enumerate(at.samples) if kept(sx.DictSample(one))]
    return at.picked(at.ds.filter(kept, progress=False), rows)


def step_typed(at: State, k: int) -> State:
    """Samples of a class: other fields go, numbers are converted, a missing field has its default."""
    return at.changed(at.ds.as_type(Typed), typed) if is_table(at, "x", "n", "s") else at


def step_map(at: State, k: int) -> State:
    if not is_table(at, "n", "s") or not at.samples:
        return at
    ds = at.ds.map(mapped_batch, batched=True) if k % 2 else at.ds.map(mapped)
    return at.changed(ds, lambda one: mapped(sx.DictSample(one)))


def step_stack(at: State, k: int) -> State:
    """Two numbers as one array; a missing one is NaN."""
    if not is_table(at, "n", "x"):
        return at

    def stacked(one: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in one.items() if name not in ("n", "x")}
        return rest | {"both": np.array([np.nan if one[name] is None else one[name] for name in ("n", "x")])}

    return at.changed(at.ds.stack(both=["n", "x"]), stacked)


def step_sliding(at: State, k: int) -> State:
    """Windows of two samples and the one after them, in order or by `n`, of all samples or of those with the same `s`.

    Fields of arrays of any length are left out, and windows in which a value is missing.
    """
    if not is_table(at, "n", "s"):
        return at
    time, group = ("n" if k % 2 else None), ("s" if k % 3 else None)
    ragged = [name for name, one in at.ds.features.items() if isinstance(one, sx.Array) and one.ragged]
    numbers = [name for name in at.ds.fields if name not in ("s", *ragged)]
    rows = sorted(range(len(at.samples)), key=lambda row: at.samples[row]["n"] if time else row)
    parts = [[row for row in rows if group is None or at.samples[row]["s"] == key] for key in groups_of(at, group)]
    found = []
    for part in parts:
        for begin in range(len(part) - 2):
            window = [at.samples[row] for row in part[begin : begin + 3]]
            if all(one[name] is not None for one in window for name in numbers):
                stacked = {name: np.stack([np.asarray(one[name]) for one in window]) for name in numbers}
                one = {name: column[:2] for name, column in stacked.items()}
                one |= {f"{name}_future": column[2:] for name, column in stacked.items()}
                found.append(one | ({} if group is None else {group: window[0][group]}))
    return State(at.ds.sliding(2, 1, time=time, group=group), found)


def groups_of(at: State, name: str | None) -> list[Any]:
    return [None] if name is None else [*dict.fromkeys(one[name] for one in at.samples)]


def step_windows(at: State, k: int) -> State:
    """Windows of four tokens."""
    if not is_table(at, "t"):
        return at
    tokens = np.concatenate([np.empty(0, np.int16), *(one["t"] for one in at.samples)])
    found = [{"t": tokens[begin : begin + 4]} for begin in range(0, len(tokens) - 3, 4)]
    return State(at.ds.select("t").windows(4), found)


def is_table(at: State, *names: str) -> bool:
    """True if the view has these fields, with the features of the dataset."""
    kinds = {"n": sx.Value, "x": sx.Optional, "s": sx.Text, "t": sx.Array}
    return all(type(at.ds.features.get(name)) is kinds[name] for name in names)


def single_fields(at: State) -> list[str]:
    """The fields of numbers and texts."""
    return [name for name, one in at.ds.features.items() if isinstance(one, sx.Value | sx.Text | sx.Optional)]


STATE_STEPS = [one for name, one in list(globals().items()) if name.startswith("step_")]


# -- the test ----------------------------------------------------------------------------------------------------

QUICK = (
    "index",
    "read",
    "field",
    "slices",
    "lists",
    "where",
    "concat",
    "pickle",
    "batches",
    "forms",
    "loader",
    "arrow",
)
choices = st.integers(0, 31)


def by_sample(ds: sx.Dataset, folder: Path) -> list[tuple[int, Any]]:
    """Single samples, with some of the fields, each by another call."""
    parts = [(k, {name: ds.sample(k, [name])[name] for name in ds.fields}) for k in range(len(ds))]
    return parts + [(k, ds.sample(k, ds.fields[::-1])) for k in range(len(ds))]


def by_sql(ds: sx.Dataset, folder: Path) -> list[tuple[int, Any]]:
    """The numbers and texts as SQL reads them."""
    names = [name for name in ds.fields if isinstance(ds.features[name], sx.Value | sx.Text)]
    table = ds.sql(f"SELECT _row, {', '.join(names)} FROM ds" if names else "SELECT _row FROM ds")
    read = [ds.sample(k) for k in range(len(ds))]
    return [(one.pop("_row"), read[one_row] | one) for one_row, one in enumerate(table.to_pylist())]


WAYS = {name: ROUTES[name] for name in QUICK} | {"sample": by_sample, "sql": by_sql}


@examples(short=30, long=2000)
@given(
    is_typed=st.booleans(),
    edits=st.lists(st.tuples(st.sampled_from(EDITS), choices), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.sampled_from(STATE_STEPS), choices), max_size=4),
    count=st.integers(1, 14),
)
def test_views_of_edited_versions_have_the_samples_of_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    is_typed: bool,
    edits: list[tuple[Callable[[Path, Samples, int], Samples], int]],
    steps: list[tuple[Callable[[State, int], State], int]],
    count: int,
) -> None:
    folder = tmp_path_factory.mktemp("views")
    samples = [sample(k) for k in range(count)]
    sx.write(folder / "d", samples, SCHEMA, shard_rows=4)
    for edit, k in edits:
        samples = edit(folder / "d", samples, k)
    at = State(sx.open(folder / "d"), samples)
    if is_typed:
        at = at.changed(sx.open(folder / "d", Typed), typed)
    for step, k in steps:
        at = step(at, k)
    expected = [plain_sample(one, at.ds.fields) for one in at.samples]
    assert not disagreements(at.ds, expected, folder, WAYS)
    for name in at.ds.fields:
        there = at.ds.present(name).tolist()
        assert there == [one[name] is not None for one in at.samples], name
        if isinstance(at.ds.features[name], sx.Array):
            assert at.ds.lengths(name).tolist() == [len(one[name]) for one in at.samples], name
