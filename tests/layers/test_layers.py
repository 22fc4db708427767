"""Mapped and typed datasets: random access, batches, loaders, SQL, pickles."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.dataset import ListRows
from shardex.errors import ArgumentError, FieldError, SchemaError
from shardex.layers.layers import TypedRows
from shardex.layers.map_rows import MapRows
from shardex.testing import Case, RowsSuite


@sx.packable
class Point:
    x: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
    n: int


@sx.packable
class Norm:
    norm: float
    odd: bool


NORM: Any = Norm  # to make bad ones


def norm(point: Point) -> Norm:
    return Norm(float(np.abs(point.x).max()), point.n % 2 == 1)


def double(sample: sx.DictSample) -> dict[str, Any]:
    return {"double": 2 * sample.n, "name": f"n{sample.n}"}


RAW: list[dict[str, Any]] = [{"x": np.full(2, k, np.float32), "n": k} for k in range(7)]


class TestMapped(RowsSuite):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        return Case(MapRows(sx.write(tmp_path / "d", RAW).rows, double), [double(sx.DictSample(one)) for one in RAW])


class ForkedRowsSuite(RowsSuite):
    """The suite without a spawned process; `TestMapped` starts one."""

    @pytest.mark.parametrize("method", ["fork"])
    def test_other_processes(self, case: Case, method: str) -> None:
        super().test_other_processes(case, method)


class TestMappedToAType(ForkedRowsSuite):
    """Typed samples are compared as plain ones."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        rows = MapRows(TypedRows(sx.write(tmp_path / "d", RAW).rows, Point), norm)
        return Case(sx.open(rows).select("norm", "odd"), [vars(norm(Point(**one))) for one in RAW])


class TestTyped(ForkedRowsSuite):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        return Case(sx.open(TypedRows(sx.write(tmp_path / "d", RAW).rows, Point)).select("x", "n"), RAW)


@pytest.fixture
def points(tmp_path: Path) -> sx.Dataset[Point]:
    sx.write(tmp_path / "d", [Point(**one) for one in RAW])
    return sx.open(tmp_path / "d", Point)


def test_map_is_lazy_and_random_access(points: sx.Dataset[Point]) -> None:
    calls: list[int] = []

    def noted(point: Point) -> Norm:
        calls.append(point.n)
        return norm(point)

    made = points.map(noted)
    assert not calls and len(made) == 7
    assert made[5] == Norm(5.0, True) and calls == [5]
    assert made[::-1][0] == Norm(6.0, False) and made.sample_type is Norm
    assert [one.norm for one in made] == [float(k) for k in range(7)]
    assert made.map(lambda s: {"half": s.norm / 2})[3] == {"half": 1.5}


def test_batches_of_a_mapped_dataset(points: sx.Dataset[Point]) -> None:
    made = points.map(norm).filter(lambda s: s.odd)
    batch = next(made.ordered(2))
    assert batch.norm.tolist() == [1.0, 3.0] and batch.odd.tolist() == [True, True]
    assert batch.sample_type is Norm and batch.samples == [Norm(1.0, True), Norm(3.0, True)]
    assert [b.norm.tolist() for b in sx.Loader(made, 2)] == [[1.0, 3.0], [5.0]]
    assert next(iter(sx.Loader(made, 2))).samples[1] == Norm(3.0, True)
    assert made.features == sx.Features.of(Norm)
    assert next(iter(sx.Loader(points, 3))).samples == [points[k] for k in range(3)]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_loaders_with_workers(points: sx.Dataset[Point], kind: Any) -> None:
    made = points.map(norm)
    found = [b.norm.tolist() for b in sx.Loader(made, 3, shuffle=True, seed=1, workers=2, worker_type=kind)]
    assert found == [b.norm.tolist() for b in sx.Loader(made, 3, shuffle=True, seed=1)]
    assert sorted(x for batch in found for x in batch) == [float(k) for k in range(7)]


def test_transforms_get_and_give_typed_samples(points: sx.Dataset[Point]) -> None:
    loader = sx.Loader(points, 7, transform=norm)
    assert next(iter(loader)).norm.tolist() == [float(k) for k in range(7)]
    untyped = sx.Loader(points, 7, fields=["n"], transform=lambda sample: {"m": sample["n"]})
    assert next(iter(untyped)).m.tolist() == list(range(7))


def test_filter_calls_the_function_once_per_sample(points: sx.Dataset[Point]) -> None:
    asked: list[int] = []

    def odd(point: Point) -> bool:
        asked.append(point.n)
        return point.n % 2 == 1

    view = points[::-1].filter(odd, progress=False)
    assert asked == [6, 5, 4, 3, 2, 1, 0] and len(view) == 3 and [one.n for one in view] == [5, 3, 1]
    assert view[-1].n == 1 and [b.n.tolist() for b in view.ordered(2)] == [[5, 3], [1]] and len(asked) == 7
    assert len(points.filter(lambda point: False)) == 0 and list(points.filter(lambda point: None)) == []


def test_untyped_maps() -> None:
    ds = sx.open(RAW).map(double)
    assert ds[3] == {"double": 6, "name": "n3"} and ds.sample_type is sx.DictSample
    assert ds.read([1, 2])["double"].dtype == np.int64 and ds.fields == ["double", "name"]
    assert ds.select("name")[1] == {"name": "n1"} and ds.where("double > 8")[0].double == 10
    with pytest.raises(FieldError, match="expected one of the fields double, name, got 'nme'"):
        ds.read([0], ["nme"])
    with pytest.raises(FieldError):
        ds.select("nme")
    assert sx.open(RAW).take(0).map(double).fields == ["double", "name"]
    assert len(sx.open(ListRows([])).map(double)) == 0
    nothing = sx.open(ListRows([])).as_type(Point)
    assert list(nothing) == [] and nothing.fields == ["x", "n"] and nothing.read([])["x"].shape == (0, 2)


def test_fields_that_only_some_samples_have() -> None:
    ds = sx.open(RAW).map(lambda s: {"a": 1} if s.n % 2 else {"b": 2})
    assert ds[0] == {"b": 2, "a": None} and ds[1] == {"b": None, "a": 1} and list(ds)[:2] == [ds[0], ds[1]]
    batch = next(ds.select("a").ordered(2))
    assert ds.select("a")[1] == {"a": 1} and batch.a[1] == 1 and batch.mask_of("a").tolist() == [False, True]


TYPED: dict[str, Any] = {
    "f": "float32",
    "i": "int8",
    "u": "uint64",
    "c": sx.ClassLabel(("cat", "dog")),
    "o": sx.Optional(sx.Value("int16")),
    "a": sx.Array("float32", (None,)),
    "j": dict,
    "b": list[bytes],
}


@pytest.fixture
def typed(tmp_path: Path) -> sx.Dataset:
    samples = [
        {"f": k / 3, "i": k, "u": 2**63 + k, "c": k % 2, "o": None, "a": np.zeros(k, "f4"), "j": {"k": k}, "b": [b"x"]}
        for k in range(40)
    ]
    return sx.write(tmp_path / "d", samples, TYPED)


def test_fields_that_a_function_passes_on_keep_their_features(typed: sx.Dataset, tmp_path: Path) -> None:
    for made in (typed.map(dict), typed.map(lambda s: s), typed.as_type(sx.DictSample), typed[::-1].map(dict)):
        assert made.features == typed.features
        assert made.read([1, 2])["f"].dtype == np.float32 and made.read([1, 2])["c"].dtype == np.int32
    made = typed.map(lambda s: {"extra": np.int16(s.i), **s, "i": s.i + 1, "new": s.f})
    changed = {"extra": "int16", **TYPED, "i": "int64", "new": "float64"}
    assert made.features == sx.Features.of(changed)
    written = sx.write(tmp_path / "w", made)
    assert written.features == made.features
    assert [repr(one) for one in written] == [repr(one) for one in made] == [repr(made[k]) for k in range(40)]


def test_function_that_changes_its_argument_changes_the_feature(typed: sx.Dataset) -> None:
    def change(sample: sx.DictSample) -> sx.DictSample:
        return sx.DictSample({**sample, "i": 1000 * sample.i + 1000})

    def change_in_place(values: dict[str, Any]) -> dict[str, Any]:
        values["i"] = 1000 * values["i"] + 1000
        return values

    assert typed.map(change).features["i"] == sx.Value("int64")
    assert typed.map(lambda s: change_in_place(dict(s))).features["i"] == sx.Value("int64")


def test_schema_of_a_map(typed: sx.Dataset) -> None:
    made = typed.select("i").map(lambda s: {"i": s.i, "t": [1, 2]}, schema={"i": "int16", "t": sx.Array("int8", (2,))})
    assert str(made.features) == "i int16, t int8[2]"
    assert made.read([3])["i"].dtype == np.int16 and made[3].t.dtype == np.int8
    assert pickle.loads(pickle.dumps(sx.open(RAW).map(double, schema={"double": int, "name": str})))[1].double == 2
    with pytest.raises(SchemaError, match="expected a mapping of field names"):
        typed.map(dict, schema=3)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"n": "text"}, "expected int64, got str 'text' - at sample 30 of .*, field n"),
        ({}, "expected int64, got nothing .* - at sample 30 of .*, field n"),
        ({"n": 1, "more": 2}, "expected the fields n at sample 30 of .*, got 'more' too"),
    ],
)
def test_result_that_does_not_fit_the_first_ones_raises(typed: sx.Dataset, result: Any, message: str) -> None:
    made = typed.map(lambda s: result if s.i == 30 else {"n": 1})
    for read in (lambda: made[30], lambda: made.read([29, 30]), lambda: list(made)):
        with pytest.raises(SchemaError, match=rf"{message}.*; the features of .* schema=\.\.\."):
            read()
    assert made[29] == {"n": 1}


def test_samples_that_fail_do_not_determine_the_features(typed: sx.Dataset) -> None:
    made = typed.map(lambda s: {"x": 1 // s.i})
    assert str(made.features) == "x int64" and made[1].x == 1
    with pytest.raises(ZeroDivisionError):
        made[0]
    with pytest.raises(ZeroDivisionError):
        _ = typed.map(lambda s: {"x": 1 // 0}).features


def test_results_that_no_feature_holds_are_passed_on(typed: sx.Dataset) -> None:
    made = typed.map(lambda s: {"where": Path("a"), "n": s.i})
    assert made[3].where == Path("a") and made.read([0, 1])["where"] == [Path("a")] * 2
    assert next(made.ordered(2)).n.tolist() == [0, 1]


def test_map_with_bad_functions_raises(points: sx.Dataset[Point]) -> None:
    with pytest.raises(SchemaError, match=r"expected a sample as a mapping of fields, .* got int"):
        points.map(lambda point: point.n)[0]
    with pytest.raises(ArgumentError, match="expected a function of one sample, got int 3"):
        points.map(3)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="expected a function of one sample"):
        points.filter("odd")  # type: ignore[arg-type]
    mixed: sx.Dataset[Any] = points.map(lambda point: norm(point) if point.n < 3 else point)
    with pytest.raises(SchemaError, match="to return Norm, got Point - at sample 3 of"):
        list(mixed)
    wrong: sx.Dataset[Any] = points.map(lambda point: NORM("x", point.n))
    for read in (lambda: wrong[2], lambda: wrong.read([2])):
        with pytest.raises(SchemaError, match=r"expected float64, got str 'x' - at sample 2 of .*, field norm of Norm"):
            read()
    none: sx.Dataset[Any] = points.map(lambda point: NORM(None, True))
    with pytest.raises(SchemaError, match="field norm of Norm"):
        none.read([0])


def test_error_in_a_mapped_function_names_the_sample(points: sx.Dataset[Point]) -> None:
    bad = points.map(lambda point: {"x": 1 // (point.n - 3)})
    assert bad[2].x == -1
    with pytest.raises(ZeroDivisionError) as caught:
        bad.read([3])
    assert "at sample 3 of" in caught.value.__notes__[0]
    skipping = sx.Loader(bad, 7, on_error="skip")
    assert len(next(iter(skipping))) == 7 and [one.row for one in skipping.skipped] == [3]


def test_pickles(points: sx.Dataset[Point]) -> None:
    made = points.map(norm)[2:]
    again = pickle.loads(pickle.dumps(made))
    assert list(again) == list(made) and again.fingerprint == made.fingerprint
    assert made.fingerprint != points[2:].fingerprint != points.fingerprint
    typed = pickle.loads(pickle.dumps(points))
    assert list(typed) == list(points) and typed.fingerprint == points.fingerprint


def test_keys_file_names_and_sql_work_through_layers(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", {"id": str, "n": int}, key="id") as out:
        out.extend({"id": f"k{k}", "n": k} for k in range(5))

    @sx.packable
    class Number:
        n: int
        extra: float = math.pi

    ds = sx.open(tmp_path / "d", Number)
    assert ds.get("k3") == Number(3) and ds[1:].rows_of(["k3"]).tolist() == [2]
    assert ds.map(lambda s: {"m": -s.n}).get("k2") == {"m": -2}
    assert ds.shards([0]) == sx.open(tmp_path / "d").shards([0]) == ds.map(vars).shards([0])
    assert [one.n for one in ds.where("n > 2")] == [3, 4] and ds.where("extra > 3")[0] == Number(0)
    assert ds.sql("SELECT sum(n) AS s FROM ds")["s"].to_pylist() == [10]
    assert "Dataset[Number](5 samples: n int64, extra float64 - arrow" in repr(ds)
    assert ds.to_arrow().column_names == ["n", "extra"]


def test_mixtures_of_types(points: sx.Dataset[Point]) -> None:
    mixed = sx.mix({"a": points, "b": points[:2]}, {"a": 1, "b": 1}, length=6)
    assert mixed.sample_type is Point and mixed[1] == points[0]
    batch = next(iter(sx.Loader(mixed.map(norm), 4)))
    assert batch.origin.sources == ["b", "a", "b", "a"] and batch.norm.tolist() == [0.0, 0.0, 1.0, 1.0]
    both = sx.concat(points, points.map(lambda p: Point(-p.x, p.n)))
    assert both[8] == Point(np.full(2, -1, np.float32), 1)
    assert sx.join(points, points.map(norm))[1].norm == 1.0


def test_a_loader_resumes_in_a_mapped_dataset(points: sx.Dataset[Point]) -> None:
    def loader() -> sx.Loader:
        return sx.Loader(points.map(norm), 2, shuffle=True, seed=3)

    whole = [batch.norm.tolist() for batch in loader()]
    first = loader()
    next(iter(first))
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [batch.norm.tolist() for batch in second] == whole[1:]


def test_torch_gets_typed_samples_as_dicts(points: sx.Dataset[Point]) -> None:
    torch = pytest.importorskip("torch")
    batches = list(torch.utils.data.DataLoader(points, batch_size=4))
    assert batches[0]["x"].shape == (4, 2) and batches[1]["n"].tolist() == [4, 5, 6]
