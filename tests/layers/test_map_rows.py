"""Maps in batches: whole batches of columns to the function, random access, features, errors, loaders, SQL, pickles."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.dataset import ListRows
from shardex.errors import ArgumentError, FieldError, SchemaError, StateError
from shardex.layers import time_in_functions
from shardex.layers.layers import TypedRows
from shardex.layers.map_rows import BatchMapRows, MapRows
from shardex.testing import Case, RowsSuite


@sx.packable
class Point:
    x: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
    n: int


@sx.packable
class Named:
    n: int
    name: str


def double(b: sx.Batch[Any]) -> dict[str, Any]:
    return {"double": 2 * b.n, "name": [f"n{n}" for n in b.n.tolist()], "sum": b.x.sum(axis=1)}


by_sample: Any = double


def negated(b: sx.Batch[Point]) -> sx.Batch[Point]:
    b.n = -b.n
    return b


RAW: list[dict[str, Any]] = [{"x": np.full(2, k, np.float32), "n": k} for k in range(40)]
DOUBLED = [{"double": 2 * k, "name": f"n{k}", "sum": 2.0 * k} for k in range(40)]


class TestBatchMapped(RowsSuite):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        return Case(BatchMapRows(sx.write(tmp_path / "d", RAW[:7]).rows, double), DOUBLED[:7])


@pytest.fixture
def ds(tmp_path: Path) -> sx.Dataset:
    return sx.write(tmp_path / "d", RAW)


@pytest.fixture
def points(ds: sx.Dataset) -> sx.Dataset[Point]:
    return ds.as_type(Point)


def test_function_gets_all_samples_that_are_read_at_once(ds: sx.Dataset) -> None:
    sizes: list[int] = []

    def noted(b: sx.Batch) -> dict[str, Any]:
        assert isinstance(b, sx.Batch) and b["n"] is b.n and "n" in b and b.keys() == ["x", "n"]
        sizes.append(len(b))
        return double(b)

    made = ds.map(noted, batched=True, schema={"double": int, "name": str, "sum": "float32"})
    assert not sizes and len(made) == 40
    assert made[5] == DOUBLED[5] and made[-1] == DOUBLED[-1] and sizes == [1, 1]
    assert made.read([3, 1])["double"].tolist() == [6, 2] and sizes == [1, 1, 2]
    assert made[::-1].read(slice(0, 5))["name"] == ["n39", "n38", "n37", "n36", "n35"] and sizes[3:] == [5]
    assert len(made.read([])["double"]) == 0 and sizes[4:] == []
    assert [len(b) for b in sx.Loader(made, 16)] == [16, 16, 8] and sizes[4:] == [16, 16, 8]
    assert list(made) == DOUBLED


def test_features_are_those_of_the_columns(ds: sx.Dataset) -> None:
    made = ds.map(double, batched=True)
    assert str(made.features) == "double int64, name text, sum float32" and made.sample_type is sx.DictSample
    made = ds.map(
        lambda b: {
            "half": b.x.astype(np.float16),
            "small": b.n.astype(np.int8),
            "odd": b.n % 2 == 1,
            "day": np.datetime64("2024-01-01") + b.n,
            "lists": [[n, n] for n in b.n.tolist()],
            "some": [None if n % 2 else n for n in b.n.tolist()],
            "ragged": [np.zeros(n, np.int8) for n in b.n.tolist()],
        },
        batched=True,
    )
    wanted = "half float16[2], small int8, odd bool, day date, lists int64[?], some int64 or none, ragged int8[?]"
    assert str(made.features) == wanted
    assert made[3].day == datetime.date(2024, 1, 4) and made[3].some is None and made[3].ragged.shape == (3,)
    assert type(made[3].small) is int and made.read([3, 4])["small"].dtype == np.int8


TYPED: dict[str, Any] = {
    "f": "float32",
    "i": "int8",
    "u": "uint64",
    "c": sx.ClassLabel(("cat", "dog")),
    "oc": sx.Optional(sx.ClassLabel(("cat", "dog"))),
    "o": sx.Optional(sx.Value("int16")),
    "a": sx.Array("float32", (None,)),
    "oa": sx.Optional(sx.Array("float32", (2,))),
    "any": sx.Array("int8"),
    "wide": sx.Array("int8", (None, None)),
    "t": sx.Timestamp("us", "Europe/Paris"),
    "ot": sx.Optional(sx.Date()),
    "j": dict,
    "b": list[bytes],
}


@pytest.fixture
def typed(tmp_path: Path) -> sx.Dataset:
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
    samples = [
        {
            "f": k / 3,
            "i": k,
            "u": 2**63 + k,
            "c": k % 2,
            "oc": None if k % 3 else 1,
            "o": None if k % 2 else k,
            "a": np.zeros(k, "f4"),
            "oa": None if k % 5 else np.ones(2, "f4"),
            "any": np.zeros((1,) * (k % 3), "i1"),
            "wide": np.zeros((k % 3, k % 2), "i1"),
            "t": noon,
            "ot": None if k % 2 else noon.date(),
            "j": {"k": k},
            "b": [b"x"],
        }
        for k in range(40)
    ]
    return sx.write(tmp_path / "typed", samples, TYPED)


def returned(b: sx.Batch) -> sx.Batch:
    return b


def test_fields_that_a_function_passes_on_keep_feature_mask_and_zone(typed: sx.Dataset, tmp_path: Path) -> None:
    functions: list[Callable[[Any], Any]] = [dict, lambda b: {**b}, returned, lambda b: b.columns, lambda b: b[:]]
    for function in functions:
        for view in (typed, typed[::-1]):
            made = view.map(function, batched=True)
            assert made.features == typed.features
            assert [repr(one) for one in made] == [repr(one) for one in view]
            assert [repr(made[k]) for k in range(40)] == [repr(one) for one in view]
    made = typed.map(lambda b: {"o2": b.o, **b, "i": b.i.astype(int) + 1, "new": b.f}, batched=True)
    assert made.features == sx.Features.of(
        {"o2": sx.Optional(sx.Value("int16")), **TYPED, "i": "int64", "new": "float32"}
    )
    assert [one.o2 for one in made] == [one.o for one in typed]
    written = sx.write(tmp_path / "w", made)
    assert written.features == made.features and [repr(one) for one in written] == [repr(one) for one in made]


def test_function_may_change_its_batch_in_place(typed: sx.Dataset) -> None:
    def change(b: sx.Batch) -> dict[str, Any]:
        b.i = b.i.astype(np.int64) * 1000
        b.c[:] = 7
        return {"i": b.i, "c": b.c}

    made = typed.map(change, batched=True)
    assert str(made.features) == "i int64, c int32" and made[3] == {"i": 3000, "c": 7} and typed[3].c == 1
    bad = typed.map(change, batched=True, schema={"i": "int64", "c": TYPED["c"]})
    with pytest.raises(SchemaError, match=r"expected a class number below 2, got 7 - at sample 3 of .*, field c"):
        bad[3]


def test_schema_converts_columns(ds: sx.Dataset) -> None:
    schema = {"n": "int16", "m": "float32", "t": sx.Array("int8", (2,)), "r": sx.Array("float32", (None,))}
    made = ds.map(lambda b: {"n": b.n, "m": b.n / 3, "t": [[1, 2]] * len(b), "r": b.x}, batched=True, schema=schema)
    columns = made.read([1, 3])
    assert columns["n"].dtype == np.int16 and columns["m"].dtype == np.float32 and columns["t"].dtype == np.int8
    assert isinstance(columns["r"], sx.Ragged) and made[3].r.tolist() == [3.0, 3.0]
    optional = ds.map(lambda b: {"n": b.n}, batched=True, schema={"n": int | None, "more": str | None})
    assert isinstance(optional.read([1])["n"], sx.Masked) and optional[1] == {"n": 1, "more": None}


# -- types ----------------------------------------------------------------------------------------------------


def test_typed_datasets_give_and_take_typed_batches(points: sx.Dataset[Point]) -> None:
    made = points.map(negated, batched=True)
    assert made.sample_type is Point and made.features == points.features
    assert made[3] == Point(np.full(2, 3, np.float32), -3)
    assert [one.n for one in made] == [-k for k in range(40)]
    batch = next(iter(sx.Loader(made, 2)))
    assert batch.sample_type is Point and batch.samples == [made[0], made[1]]

    def seen(b: sx.Batch[Point]) -> dict[str, Any]:
        assert b.sample_type is Point and all(isinstance(one, Point) for one in b.samples)
        return {"n": [one.n for one in b]}

    untyped = points.map(seen, batched=True)
    assert untyped[4] == {"n": 4} and untyped.sample_type is sx.DictSample
    chained = untyped.map(lambda b: {"name": [f"n{n}" for n in b.n], "n": b.n}, batched=True).as_type(Named)
    assert chained[4] == Named(4, "n4") and chained.map(lambda s: {"m": -s.n})[4] == {"m": -4}


def test_batch_of_another_class(points: sx.Dataset[Point]) -> None:
    def named(b: sx.Batch[Point]) -> sx.Batch[Named]:
        return sx.Batch.of([Named(one.n, f"n{one.n}") for one in b])

    made = points.map(named, batched=True)
    assert made.sample_type is Named and made[-1] == Named(39, "n39") and made.features == sx.Features.of(Named)
    assert made.read([])["n"].shape == (0,) and list(made[3:5]) == [Named(3, "n3"), Named(4, "n4")]
    assert made.as_type(sx.DictSample)[2] == {"n": 2, "name": "n2"}


def test_typed_batch_with_a_new_field_is_untyped(points: sx.Dataset[Point]) -> None:
    def extended(b: Any) -> Any:
        b.norm = np.abs(b.x).max(axis=1)
        return b

    made = points.map(extended, batched=True)
    assert made.sample_type is sx.DictSample and made[3].norm == 3.0 and made.fields == ["x", "n", "norm"]
    assert points.select("n").map(lambda b: {"m": b.n}, batched=True)[2] == {"m": 2}


def test_function_that_returns_several_types_raises(points: sx.Dataset[Point]) -> None:
    def mixed_types(b: Any) -> Any:
        return negated(b) if b.n[0] < 20 else {**b}

    mixed = points.map(mixed_types, batched=True)
    assert mixed[3].n == -3
    with pytest.raises(SchemaError, match="to return samples of Point, got DictSample - at sample 30 of"):
        mixed[30]


# -- errors ---------------------------------------------------------------------------------------------------


def test_error_in_the_function_names_function_and_samples(ds: sx.Dataset) -> None:
    def failing(b: sx.Batch) -> dict[str, Any]:
        if (b.n == 30).any():
            raise ZeroDivisionError
        return {"n": b.n}

    made = ds.map(failing, batched=True)
    file = ds.shards([0])[0]
    places: dict[str, Callable[[], Any]] = {
        f"samples 28 to 31 of {file}": lambda: made.read(range(28, 32)),
        f"samples 30, 2 of {file}": lambda: made.read([30, 2]),
        f"sample 30 of {file}": lambda: made[30],
    }
    for place, read in places.items():
        with pytest.raises(ZeroDivisionError) as caught:
            read()
        assert caught.value.__notes__[0] == f"in {failing!r} at {place}"
    loader = sx.Loader(made, 8, on_error="skip")
    assert sum(map(len, loader)) == 40 and [one.row for one in loader.skipped] == [30]


@pytest.mark.parametrize("kept", [0, 3, 5])
def test_another_number_of_samples_raises(ds: sx.Dataset, kept: int) -> None:
    made = ds.map(lambda b: {"n": np.resize(b.n, kept)}, batched=True, schema={"n": int})
    message = (
        rf"expected 4 samples from <function .*, as many as it got, got {kept} - at samples 4 to 7 of .*; sx\.write"
    )
    with pytest.raises(SchemaError, match=rf"{message}\(\.\.\., transform=function, batched=True\) takes functions"):
        made.read(range(4, 8))
    with pytest.raises(SchemaError, match="expected 1 sample from"):
        _ = ds.map(lambda b: {}, batched=True)[0]


def test_bad_functions_and_options_raise(ds: sx.Dataset) -> None:
    with pytest.raises(SchemaError, match=r"expected a batch or columns by name .* got int 3 - at samples 0 to 15 of"):
        _ = ds.map(lambda b: 3, batched=True).features  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="expected a function of one batch, got int 3"):
        ds.map(3, batched=True)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="expected True or False for batched, got int 32"):
        ds.map(double, batched=32)  # type: ignore[call-overload]
    with pytest.raises(FieldError, match="expected one of the fields double, name, sum, got 'nme'"):
        ds.map(double, batched=True).read([0], ["nme"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": ["text", "text"]}, "expected int64, got str 'text' - at sample 29 of .*, field n"),
        ({"n": [1, "text"]}, "expected int64, got str 'text' - at sample 30 of .*, field n"),
        ({"n": np.array([1.5, 2.5])}, "expected int64, got float 1.5 - at sample 29 of .*, field n"),
        ({"n": np.ones((2, 2))}, r"expected int64, got float64\[2\] - at sample 29 of .*, field n"),
        ({"n": np.ma.array([1, 2], mask=[False, True])}, "expected int64, got none - at sample 30 of .*, field n"),
        ({"m": [1, 1], "n": [1, 1]}, "expected the fields n at sample 29 of .*, got 'm' too"),
        ({"m": [1, 1]}, "expected the fields n at sample 29 of .*, got 'm' too"),
    ],
)
def test_columns_that_do_not_fit_the_first_ones_raise(ds: sx.Dataset, columns: Any, message: str) -> None:
    made = ds.map(lambda b: columns if b.n[0] >= 29 else {"n": b.n}, batched=True)
    assert made[28] == {"n": 28}
    with pytest.raises(SchemaError, match=rf"{message}.*; the features of .* schema=\.\.\."):
        made.read([29, 30])


def test_samples_that_fail_do_not_determine_the_features(ds: sx.Dataset) -> None:
    def positive(b: sx.Batch) -> dict[str, Any]:
        if not b.n.all():
            raise ZeroDivisionError("n is 0")
        return {"x": 1 / b.n}

    made = ds.map(positive, batched=True)
    assert str(made.features) == "x float64" and made[1].x == 1
    with pytest.raises(ZeroDivisionError):
        made[0]
    with pytest.raises(ZeroDivisionError) as caught:
        _ = ds.map(lambda b: {"x": 1 // 0}, batched=True).features
    assert "at samples 0 to 15 of" in caught.value.__notes__[0]


# -- where maps are used --------------------------------------------------------------------------------------


def test_views_sql_and_other_tools(ds: sx.Dataset, tmp_path: Path) -> None:
    made = ds.map(double, batched=True)
    assert made.select("name")[1] == {"name": "n1"} and made.where("double > 70")[0].double == 72
    assert len(made.filter(lambda s: s.double > 70)) == 4 and made["double"].sum() == 2 * sum(range(40))
    assert made.sql("SELECT sum(double) AS s FROM ds")["s"].to_pylist() == [2 * sum(range(40))]
    assert made.to_arrow().num_rows == 40 and made.sort("double", descending=True)[0].double == 78
    assert [b.double.tolist() for b in made.take(5).ordered(2)] == [[0, 2], [4, 6], [8]]
    assert "mapped in batches by double" in repr(made)
    assert sx.write(tmp_path / "w", made)[7] == DOUBLED[7]
    assert sx.concat(made, made)[47] == DOUBLED[7] and sx.join(ds, made)[7].sum == 14.0
    assert len(sx.open(ListRows([])).map(double, batched=True)) == 0
    assert ds.take(0).map(double, batched=True).fields == ["double", "name", "sum"]
    splits = sx.DatasetDict({"train": ds, "test": ds[:3]}).map(double, batched=True)
    assert splits["test"][2] == DOUBLED[2]


def test_keys_and_files_of_the_rows_below(tmp_path: Path) -> None:
    keyed = sx.write(tmp_path / "k", [{"id": f"k{k}", "n": k} for k in range(5)], key="id")
    made = keyed.map(lambda b: {"m": -b.n}, batched=True)
    assert made.get("k2") == {"m": -2} and made.shards([0]) == keyed.shards([0])


def test_very_many_rows_are_read_in_parts(tmp_path: Path) -> None:
    ds, sizes = sx.open({"n": np.arange(20_000)}), list[int]()

    def noted(b: sx.Batch) -> dict[str, Any]:
        sizes.append(len(b))
        return {"n": b.n, "t": [None if n % 7 else str(n) for n in b.n.tolist()]}

    made = ds.map(noted, batched=True)
    assert (made["n"] == np.arange(20_000)).all() and made["t"][7:9] == ["7", None]
    assert made.read([])["n"].shape == (0,)
    assert len(made.where("n % 2 = 0")) == 10_000 and made.to_arrow().num_rows == 20_000
    assert max(sizes) <= 4096


def test_rows_read_at_once_are_few_if_samples_are_large() -> None:
    ds, sizes = sx.open({"x": np.zeros((600, 512, 512), np.uint8), "n": np.arange(600)}), list[int]()

    def small(b: sx.Batch) -> dict[str, Any]:
        sizes.append(len(b))
        return {"n": b.n}

    made = ds.map(small, batched=True, schema={"n": int})
    assert made["n"].tolist() == list(range(600)) and made.sql("SELECT max(n) AS n FROM ds")["n"][0].as_py() == 599
    assert max(sizes) == 128
    assert list(ds.map(lambda s: {"n": s.n})["n"]) == list(range(600))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_loaders_with_workers(ds: sx.Dataset, kind: Any) -> None:
    made = ds.map(double, batched=True)
    with sx.Loader(made, 7, shuffle=True, seed=1, workers=2, worker_type=kind) as loader:
        found = [(b.double.tolist(), b.name) for b in loader]
    assert found == [(b.double.tolist(), b.name) for b in sx.Loader(made, 7, shuffle=True, seed=1)]
    assert sorted(x for batch, _ in found for x in batch) == [2 * k for k in range(40)]


def test_loader_transforms_after_the_map(ds: sx.Dataset) -> None:
    loader = sx.Loader(ds.map(double, batched=True), 8, transform=lambda s: {"half": s.double // 2})
    assert next(iter(loader)).half.tolist() == list(range(8))
    some = next(iter(sx.Loader(ds.map(double, batched=True), 8, fields=["name"])))
    assert some.keys() == ["name"] and some.name[7] == "n7"
    assert loader.stats.spent.transform > 0


def test_a_loader_resumes_in_a_dataset_mapped_in_batches(ds: sx.Dataset) -> None:
    def loader(data: sx.Dataset) -> sx.Loader:
        return sx.Loader(data, 6, shuffle=True, seed=3)

    whole = [batch.double.tolist() for batch in loader(ds.map(double, batched=True))]
    first = loader(ds.map(double, batched=True))
    next(iter(first))
    second = loader(ds.map(double, batched=True))
    second.load_state_dict(first.state_dict())
    assert [batch.double.tolist() for batch in second] == whole[1:]
    with pytest.raises(StateError, match="the same data"):
        loader(ds.map(by_sample)).load_state_dict(first.state_dict())


def test_fingerprints_and_pickles(ds: sx.Dataset) -> None:
    made, unbatched = ds.map(by_sample, batched=True), ds.map(by_sample)
    assert made.fingerprint not in (unbatched.fingerprint, ds.fingerprint)
    for known in (False, True):
        again = pickle.loads(pickle.dumps(made))
        assert isinstance(again.rows, BatchMapRows) and again.fingerprint == made.fingerprint
        assert ("features" in vars(again.rows) or again.rows._schema is not None) is known
        assert list(again) == list(made)
    typed: Any = pickle.loads(pickle.dumps(ds.as_type(Point).map(negated, batched=True)))
    assert typed[3].n == -3 and typed.sample_type is Point


def test_fingerprint_of_a_map_by_sample_stays() -> None:
    rows = MapRows(ListRows([{"n": 1}]), dict)
    assert rows.fingerprint == "91631e9657ce4193"


def test_time_in_functions_is_counted(ds: sx.Dataset) -> None:
    before = time_in_functions()
    ds.map(double, batched=True, schema={"double": int, "name": str, "sum": "float32"}).read(range(40))
    assert time_in_functions()[0] > before[0] and time_in_functions()[1] > before[1]


def test_torch_gets_batches_of_mapped_datasets(ds: sx.Dataset) -> None:
    torch = pytest.importorskip("torch")
    made = ds.map(lambda b: {"y": torch.from_numpy(b.x) * 2}, batched=True)
    batches = list(torch.utils.data.DataLoader(made, batch_size=16))
    assert batches[2]["y"].shape == (8, 2) and batches[2]["y"].dtype == torch.float32
    assert next(iter(sx.Loader(made, 4, to="torch"))).y.tolist() == [[2.0 * k] * 2 for k in range(4)]


def test_typed_rows_over_a_batched_map(ds: sx.Dataset) -> None:
    rows = TypedRows(BatchMapRows(ds.rows, double, schema=sx.Features.of({"n": int, "name": str})), Named)
    assert rows.sample_type is Named
    with pytest.raises(SchemaError, match=r"got 'double' too|expected int64, got nothing"):
        rows.read(np.arange(2))


@pytest.mark.parametrize("batched", [False, True])
def test_finding_the_fields_does_not_change_samples_in_memory(batched: bool) -> None:
    def change(sample: Any) -> Any:
        sample["words"].append("b")
        return sample

    def change_all(batch: Any) -> Any:
        for words in batch.words:
            words.append("b")
        return batch

    given = [{"words": ["a"]} for _ in range(20)]
    source = sx.open(given)
    made = source.map(change_all, batched=True) if batched else source.map(change)
    assert list(made.features) == ["words"]
    assert given == [{"words": ["a"]} for _ in range(20)]


def test_a_result_that_is_no_sample_names_function_and_sample() -> None:
    ds = sx.open([{"x": k} for k in range(3)])

    def forgets(sample: Any) -> Any:
        sample.x  # noqa: B018 - the mistake

    with pytest.raises(
        SchemaError, match=r"got NoneType from <function .*forgets.*> at sample 0.* end without return\?"
    ):
        ds.map(forgets)[0]
    with pytest.raises(SchemaError, match=r"got int from <function .*> at sample 0[^;]*$"):
        ds.map(lambda sample: sample.x)[0]
