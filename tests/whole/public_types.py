"""Types of the public API as a type checker sees them: `make check` runs mypy and pyright over this file.

Nothing calls it. Pyright runs where neither torch nor another extra is installed (`extras_types.py` is for those).

`assert_type` fails if an inferred type changes; an unused ``type: ignore`` fails if a wrong call is accepted.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict, assert_type

import numpy as np
from numpy.typing import NDArray

import shardex as sx
from shardex.loader.loaded_batch import LoadedBatch


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


def louder(batch: sx.Batch[Series]) -> sx.Batch[Series]:
    batch.history = 2 * batch.history
    return batch


@dataclasses.dataclass
class Point:
    x: int


class Row(TypedDict):
    x: int


def count(batch: sx.Batch) -> int:
    return len(batch)


def check_types() -> None:
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
    assert_type(ds.map(lambda b: {"peak": b.history.max(axis=1)}, batched=True), sx.Dataset[sx.DictSample])
    assert_type(ds.map(louder, batched=True)[0], Series)
    ds.map(louder)  # type: ignore[arg-type]  # it takes batches
    assert_type(ds.filter(lambda s: s.station == "a"), sx.Dataset[Series])
    assert_type(sx.concat(ds, ds), sx.Dataset[Series])

    assert_type(sx.concat([ds, ds]), sx.Dataset[Series])
    assert_type(ds + ds, sx.Dataset[Series])
    assert_type(ds.sort("station", descending=True), sx.Dataset[Series])
    assert_type(ds.head(), list[Series])
    assert_type(ds.drop(["station"]).rename(history="past"), sx.Dataset[sx.DictSample])
    assert_type(ds.split([0.8, 0.2], seed=0), tuple[sx.Dataset[Series], ...])
    assert_type(ds.split({"train": 1.0}), sx.DatasetDict)
    assert_type(sx.open("x", Point)[0], Point)
    assert_type(sx.open("x", Row)[0]["x"], int)
    sx.open({"x": np.arange(3)})
    sx.Array(np.float32, (3, None))

    assert_type(sx.Loader(ds, 4), sx.Loader[LoadedBatch[Series]])
    assert_type(sx.Loader(ds, max_tokens=512, bucket=64), sx.Loader[LoadedBatch[Series]])
    for loaded in sx.Loader(ds, 4, shuffle=True):
        assert_type(loaded, LoadedBatch[Series])
        assert_type(loaded.samples, list[Series])
        assert_type(loaded.to("cuda"), LoadedBatch[Series])
    for loaded_dict in sx.Loader([{"x": 1}], 4, fields=["x"]):
        assert_type(loaded_dict, LoadedBatch[sx.DictSample])
    for collated in sx.Loader(ds, 4, collate=count):
        assert_type(collated, int)
    sx.Loader(ds, 4, shufle=True)  # type: ignore[call-overload]

    assert_type(mean, sx.Lens[Series, Mean])
    assert_type(mean(ds[0]), Mean)
    assert_type(mean.put(Mean(1.0), ds[0]), Series)
    assert_type(mean | sx.Lens.identity(Mean), sx.Lens[Series, Mean])
    assert_type(sx.Lens.between(Series, Mean), sx.Lens[Series, Mean])
    assert_type(Mean.from_bytes(Mean(1.0).packed), Mean)
    assert_type(Mean(mean=1.0).as_wds, dict[str, Any])

    Series()  # type: ignore[call-arg]
    Mean("x")  # type: ignore[arg-type]
    mean(Mean(1.0))  # type: ignore[arg-type]
    print(ds[0].nothing)  # type: ignore[attr-defined]
