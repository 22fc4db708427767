"""Types of the public API as a type checker sees them: `make check` runs mypy over this file, nothing calls it.

`assert_type` fails if an inferred type changes; an unused ``type: ignore`` fails if a wrong call is accepted.
"""

from __future__ import annotations

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
    assert_type(ds.filter(lambda s: s.station == "a"), sx.Dataset[Series])
    assert_type(sx.concat(ds, ds), sx.Dataset[Series])

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
