"""Fields that functions compute beside the others: random access, features, columns alone, types, loaders, SQL."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import ArgumentError, SchemaError
from shardex.layers.added_rows import AddedRows, FieldFunctions
from shardex.testing import Case, RowsSuite

RAW: list[dict[str, Any]] = [{"x": np.full(2, k, np.float32), "n": k} for k in range(100)]


def total(sample: Any) -> float:
    return float(sample.x.sum())


def name(sample: Any) -> str:
    return f"n{sample.n}"


ADDED = [{**one, "total": 2.0 * one["n"], "name": f"n{one['n']}"} for one in RAW]


class TestAdded(RowsSuite):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        functions = FieldFunctions({"total": total, "name": name})
        return Case(AddedRows(sx.write(tmp_path / "d", RAW[:7]).rows, functions), ADDED[:7])


@pytest.fixture
def ds(tmp_path: Path) -> sx.Dataset:
    return sx.write(tmp_path / "d", RAW)


def test_fields_are_added_to_the_others(ds: sx.Dataset) -> None:
    made = ds.with_fields(total=total, name=name)
    assert str(made.features) == "x float32[2], n int64, total float64, name text"
    assert made[3] == ADDED[3] and list(made[::-1]) == ADDED[::-1]
    assert made.read([99, 0])["total"].tolist() == [198.0, 0.0]
    assert made.where("total > 190 AND n < 99")["name"][:] == ["n96", "n97", "n98"]
    assert list(sx.write(ds.shards([0])[0] + "-copy", made)) == ADDED


def test_a_field_is_replaced_in_its_place(ds: sx.Dataset) -> None:
    made = ds.with_fields(x=total, n=lambda s: s.n + int(s.x[0]))
    assert list(made[5]) == ["x", "n"] and made[5] == {"x": 10.0, "n": 10}
    assert str(made.features) == "x float64, n int64"
    assert str(ds.with_fields({"n": "int16"}, n=lambda s: -s.n).features) == "x float32[2], n int16"


def test_functions_are_called_for_their_fields_only(ds: sx.Dataset) -> None:
    calls: list[int] = []

    def twice(sample: Any) -> int:
        calls.append(sample.n)
        return 2 * int(sample.n)

    made = ds.with_fields({"twice": int}, twice=twice)
    assert made.select("n", "x")[4].n == 4 and made["n"][:3].tolist() == [0, 1, 2]
    assert made.where("n = 7")[0].twice == 14
    assert calls == [7]


def test_a_function_may_change_its_argument(ds: sx.Dataset) -> None:
    def spoil(sample: Any) -> int:
        sample.x[:] = -1
        sample["n"] = 7
        return 0

    for source in (ds, sx.open(RAW)):
        made = source.with_fields(z=spoil)
        assert made[5] == {**RAW[5], "z": 0} and made[5:6].read([0])["x"].tolist() == [[5, 5]]
        assert source[5] == RAW[5]


def test_views_orders_and_types(ds: sx.Dataset) -> None:
    @sx.packable
    class Point:
        x: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
        n: int

    typed = ds.as_type(Point).with_fields(kind=lambda p: type(p).__name__)
    assert typed[1].kind == "Point" and isinstance(typed[1], sx.DictSample)
    some = ds.shuffle(seed=1)[:10].select("n").with_fields(fields=",".join)
    assert [one.fields for one in some] == ["n"] * 10 and len(some) == 10
    assert some.features.keys() == {"n", "fields"}


def test_loader_in_processes(ds: sx.Dataset) -> None:
    made = ds.with_fields(total=total)
    assert pickle.loads(pickle.dumps(made))[3] == made[3]
    for workers in (0, 2):
        batches = list(sx.Loader(made, batch_size=25, shuffle=False, workers=workers))
        assert [batch.total.tolist() for batch in batches] == np.arange(0, 200, 2.0).reshape(4, 25).tolist()


def test_fingerprint(ds: sx.Dataset) -> None:
    prints = {one.fingerprint for one in (ds, ds.with_fields(a=total), ds.with_fields(b=total), ds.with_fields(a=name))}
    assert len(prints) == 4
    assert ds.with_fields(a=total).fingerprint == ds.with_fields(a=total).fingerprint


def test_media_keep_their_bytes(tmp_path: Path) -> None:
    images = [{"image": PIL.Image.new("RGB", (4, 3), (k, 0, 0)), "k": k} for k in range(3)]
    ds = sx.write(tmp_path / "d", images, {"image": sx.Image(), "k": int})
    made = ds.with_fields(red=lambda s: int(s.image[0, 0, 0]), again=lambda s: s.image)
    assert made[2].red == 2 and made[2].image.shape == made[2].again.shape == (3, 4, 3)
    copy = sx.write(tmp_path / "e", made)
    assert str(copy.features) == "image image, k int64, red int64, again uint8[3, 4, 3]"
    assert copy.stored[1].image == ds.stored[1].image


def test_wrong_arguments(ds: sx.Dataset) -> None:
    with pytest.raises(ArgumentError, match=r"expected functions of samples by field, such as with_fields\(z=f\)"):
        ds.with_fields()
    with pytest.raises(ArgumentError, match=r"expected a function of a sample, got .* at field z; .* sx.join"):
        ds.with_fields(z=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"expected a schema of the fields that are computed \(z\), got y int64"):
        ds.with_fields({"y": int}, z=total)
    late = ds.with_fields(z=lambda s: None if s.n == 50 else s.n)
    with pytest.raises(SchemaError, match=r"sample 50 .*field z; the features of with_fields\(z=.*schema"):
        late[50]


def test_what_with_fields_does_not_take() -> None:
    ds = sx.open([{"x": 1}])
    options: Any = {"batched": True}
    with pytest.raises(ArgumentError, match=r"one sample, got batched=: use ds.map\(function, batched=True\)"):
        ds.with_fields(z=lambda s: s.x, **options)
    with pytest.raises(
        ArgumentError, match=r"got none: the dict is the schema; give the functions as with_fields\(\*\*"
    ):
        ds.with_fields({"z": lambda s: s.x})
