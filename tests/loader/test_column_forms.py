"""The form of a column of a batch follows the feature of the field, never the values of one batch."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FieldError, SchemaError

NONE_IN = {2, 3, 9}
SCHEMA = {
    "f": sx.Optional(sx.Value("float32")),
    "i": sx.Optional(sx.Value("int16")),
    "b": sx.Optional(sx.Value("bool")),
    "label": sx.Optional(sx.ClassLabel(("cat", "dog"))),
    "x": sx.Optional(sx.Array("float32", (2,))),
    "t": sx.Optional(sx.Array("int32", (None,))),
    "name": str | None,
    "plain": "int64",
}


def sample(k: int) -> dict[str, Any]:
    values: dict[str, Any] = {"f": k + 0.5, "i": k, "b": k % 2 == 0, "label": k % 2, "x": np.full(2, k, np.float32)}
    values |= {"t": np.arange(k % 3, dtype=np.int32), "name": f"n{k}"}
    return {**(dict.fromkeys(values) if k in NONE_IN else values), "plain": k}


SAMPLES = [sample(k) for k in range(12)]
"""Samples 2, 3 and 9 lack all but one value: in batches of 4, some batches have missing values and one has none."""


def stored(folder: Path, format: str) -> Any:
    if format == "list":
        return sx.open(SAMPLES)
    if format == "map":
        return sx.write(folder / "d", SAMPLES, SCHEMA).map(dict)
    sx.write(folder / "d", SAMPLES, SCHEMA, format=format)
    return sx.open(folder / "d", schema=SCHEMA if format in ("tar", "jsonl") else None)


def check_numbers(batches: Iterable[Any]) -> None:
    """Check the fields of single numbers and of arrays of one shape."""
    for batch in batches:
        rows = batch.plain.tolist()
        there = [k not in NONE_IN for k in rows]
        for name, missing in {"f": math.nan, "i": 0, "b": False, "label": 0}.items():
            column = np.asarray(batch[name])
            expected = [SAMPLES[k][name] if k not in NONE_IN else missing for k in rows]
            assert np.array_equal(column, np.array(expected, column.dtype), equal_nan=column.dtype.kind == "f")
            assert column.dtype.kind == {"f": "f", "b": "b"}.get(name, "i")
            assert batch.mask_of(name).tolist() == batch.present_of(name).tolist() == there
        assert batch.present_of("x").tolist() == there == batch.present_of("t").tolist()
        assert list(batch.name) == [SAMPLES[k]["name"] for k in rows] and isinstance(batch.name, list)
        assert batch.present_of("name").tolist() == there


FORMATS = ["arrow", "parquet", "jsonl", "bins", "tar", "list", "map"]


@pytest.mark.parametrize("format", FORMATS)
def test_optional_fields_have_one_form(tmp_path: Path, format: str) -> None:
    ds = stored(tmp_path, format)
    for batches in (sx.Loader(ds, 4), ds.ordered(4), ds.shuffled(3), [ds.__getitems__([0, 1]), ds.__getitems__([2])]):
        check_numbers(batches)
    for batch in sx.Loader(ds, 4):
        rows = batch.plain.tolist()
        assert batch.x.shape == (4, 2) and batch.x.dtype == np.float32
        assert [k in NONE_IN for k in rows] == np.isnan(batch.x[:, 0]).tolist()
        assert batch.mask_of("x").tolist() == [k not in NONE_IN for k in rows]
        lengths = [0 if k in NONE_IN else k % 3 for k in rows]
        assert batch.lengths_of("t").tolist() == lengths == batch.mask_of("t").sum(1).tolist()
        assert batch.t.shape == (4, max(lengths)) == batch.mask_of("t").shape
    assert [ds[k].f for k in (1, 2)] == [1.5, None]
    assert [one.i for one in ds] == [one["i"] for one in SAMPLES] == [one.i for one in next(ds.ordered(12))]


@pytest.mark.parametrize("workers", [0, 1])
def test_optional_fields_have_one_form_in_torch(tmp_path: Path, workers: int) -> None:
    torch = pytest.importorskip("torch")
    ds = stored(tmp_path, "arrow")
    with sx.Loader(ds, 4, to="torch", workers=workers, worker_type="process", shuffle=True) as loader:
        batches = list(loader)
    check_numbers(batches)
    for batch in batches:
        assert batch.f.dtype == torch.float32 and batch.mask_of("f").dtype == torch.bool
        assert batch.x.shape == (4, 2) and batch.mask_of("t").shape == batch.t.shape
        assert [one.f is None for one in batch] == [k in NONE_IN for k in batch.plain.tolist()]
    packed = [batch.t for batch in sx.Loader(ds, 4, to="torch", ragged="pack")]
    assert [one.offsets.tolist() for one in packed] == [[0, 0, 1, 1, 1], [0, 1, 3, 3, 4], [0, 2, 2, 3, 5]]


def test_columns_of_a_read_have_one_form(tmp_path: Path) -> None:
    ds = stored(tmp_path, "arrow")
    for rows in ([0, 1], [1, 2], [2, 3], []):
        columns = ds.read(rows)
        assert {name: type(columns[name]).__name__ for name in columns.names} == {
            **dict.fromkeys(SCHEMA, "Masked"),
            "name": "list",
            "plain": "ndarray",
        }
        assert columns["i"] == [SAMPLES[k]["i"] for k in rows]
        assert ds[rows].to_arrow()["i"].to_pylist() == [SAMPLES[k]["i"] for k in rows]


def test_column_of_a_dataset_tells_which_values_are_missing() -> None:
    ds = sx.open([{"n": 1, "name": "a"}, {"n": None, "name": None}])
    assert ds["n"] == [1, None] and ds["n"].mask.tolist() == [True, False] and ds["name"] == ["a", None]
    assert isinstance(ds[:1]["n"], sx.Masked)


def test_new_values_of_an_optional_field_keep_its_mask() -> None:
    batch = next(iter(sx.Loader([{"x": 1.5}, {"x": None}], 2)))
    batch.x = batch.x * 2
    assert batch.x[0] == 3 and batch.mask_of("x").tolist() == [True, False] and batch.samples[1].x is None
    batch.x = ["a", "b"]
    assert batch.x == ["a", "b"] and batch.samples[1].x == "b"


def test_optional_arrays_without_a_shape(tmp_path: Path) -> None:
    samples = [{"a": np.arange(2, dtype=np.int8)}, {"a": None}]
    ds = sx.write(tmp_path / "d", samples, {"a": sx.Optional(sx.Array("int8"))})
    assert [batch.a.tolist() for batch in sx.Loader(ds, 1)] == [[[0, 1]], [[]]]
    assert [batch.lengths_of("a").tolist() for batch in sx.Loader(ds, 1)] == [[2], [0]]
    assert [batch.present_of("a").tolist() for batch in sx.Loader(ds, 1)] == [[True], [False]]


def test_concat_and_mix_with_a_dataset_that_has_all_values() -> None:
    some, every = sx.open([{"x": 1.5}, {"x": None}]), sx.open([{"x": 2.5}, {"x": 3.5}])
    for both in (sx.concat(some, every), sx.concat(every, some), sx.mix([every, some], [1, 1])):
        assert str(both.features) == "x float64 or none"
        masks = [batch.mask_of("x").tolist() for batch in sx.Loader(both, 1)]
        assert sorted(masks) == [[False], [True], [True], [True]]
        assert all(type(both.read([k])["x"]).__name__ == "Masked" for k in range(4))


def test_transform_may_return_none(tmp_path: Path) -> None:
    ds = stored(tmp_path, "arrow")

    def change(one: sx.DictSample) -> dict[str, Any]:
        new = None if one.plain == 5 else one.plain / 4
        return {**one, "new": new, "a": None if one.plain == 5 else np.arange(3), "plain": one.plain}

    batches = list(sx.Loader(ds, 4, transform=change))
    check_numbers(batches)
    for batch in batches:
        assert batch.f.dtype == np.float32 and batch.i.dtype == np.int16
        there = [k != 5 for k in batch.plain.tolist()]
        assert batch.new.dtype == np.float64 and batch.mask_of("new").tolist() == there
        assert batch.a.shape == (4, 3) and batch.mask_of("a").all(1).tolist() == there
        assert batch.lengths_of("a").tolist() == [3 * one for one in there]


FEATURES: list[tuple[Any, list[Any]]] = [
    (sx.Value("float32"), [0.5, 1.5]),
    (sx.Value("bool"), [True, False]),
    (sx.ClassLabel(("a", "b")), [0, 1]),
    (sx.Timestamp("ms"), [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2)]),
    (sx.Date(), [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]),
    (sx.Array("int16", (2, 3)), [np.zeros((2, 3), np.int16)] * 2),
    (sx.Array("int32", (None,)), [np.arange(2, dtype=np.int32), np.arange(1, dtype=np.int32)]),
    (sx.Array("float32", (None, 2)), [np.ones((1, 2), np.float32), np.ones((3, 2), np.float32)]),
    (sx.Array("float32", (2, None)), [np.ones((2, 1), np.float32), np.ones((2, 3), np.float32)]),
    (sx.Array("uint8", (None, None)), [np.ones((2, 1), np.uint8), np.ones((1, 2), np.uint8)]),
    (sx.Sequence(sx.Value("int64")), [[1, 2], []]),
    (sx.Sequence(sx.Text()), [["a"], []]),
    (sx.Struct({"a": int}), [{"a": 1}, {"a": 2}]),
    (sx.Json(), [{"a": 1}, [1]]),
    (sx.Text(), ["a", ""]),
]


def form_of(batch: Any) -> tuple[Any, ...]:
    """Return everything about the column `x` of a batch that must not depend on its values."""
    column = batch.x
    if isinstance(column, list):
        return (list,)
    shape = column.inner if isinstance(column, sx.Ragged) and column.shapes is None else getattr(column, "ndim", None)
    return type(column), column.dtype, shape, batch.mask_of("x").ndim


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(("feature", "values"), FEATURES, ids=lambda one: str(one) if not isinstance(one, list) else "")
def test_every_batch_of_a_field_has_the_same_form(
    tmp_path: Path, feature: Any, values: list[Any], optional: bool
) -> None:
    a, b = values
    order = [a, a, b, a, None, a, None, None] if optional else [a, a, b, a, b, b]
    samples = [{"x": value, "k": k} for k, value in enumerate(order)]
    ds = sx.write(tmp_path / "d", samples, {"x": sx.Optional(feature) if optional else feature, "k": int})
    for form in ("pad", "pack", "list"):
        for transform in (None, dict):
            batches = list(sx.Loader(ds, 2, ragged=form, transform=transform))
            assert len({form_of(batch) for batch in batches}) == 1
            assert [one for batch in batches for one in batch.present_of("x").tolist()] == [
                v is not None for v in order
            ]
    assert len({form_of(batch) for batch in ds.ordered(2)}) == 1
    assert len({type(ds.read(rows)["x"]) for rows in ([], [0, 1], [2, 3], [-2, -1])}) == 1
    assert [sample.x is None for batch in ds.ordered(2) for sample in batch] == [value is None for value in order]


# -- fill ------------------------------------------------------------------------------------------------------------


def test_fill_replaces_missing_values_and_padding(tmp_path: Path) -> None:
    ds = stored(tmp_path, "arrow").select("f", "i", "x", "t", "plain")
    batch = next(iter(sx.Loader(ds, 4, fill=-1)))
    assert batch.f.tolist() == [0.5, 1.5, -1, -1] and batch.i.tolist() == [0, 1, -1, -1]
    assert batch.x[2].tolist() == [-1, -1] and batch.t.tolist() == [[-1], [0], [-1], [-1]]
    batch = next(iter(sx.Loader(ds, 4, fill={"f": 7, "t": -100})))
    assert batch.f.tolist() == [0.5, 1.5, 7, 7] and batch.i.tolist() == [0, 1, 0, 0]
    assert np.isnan(batch.x[2]).all() and batch.t.tolist() == [[-100], [0], [-100], [-100]]


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (1.5, "expected a fill value that uint8 can hold, got 1.5 - at field n"),
        (-1, "expected a fill value that uint8 can hold, got -1 - at field n"),
        (256, "uint8 can hold, got 256 - at field n"),
        (math.nan, "uint8 can hold, got nan - at field n"),
        ({"n": 1e300}, "uint8 can hold, got 1e.300 - at field n"),
        ({"h": 1e300}, "float16 can hold, got 1e.300 - at field h"),
        ({"m": 2}, "bool can hold, got 2 - at field m"),
        ({"typo": 1}, "expected fill for the fields n, h, m, text, got 'typo'"),
        ({"text": 1}, "expected a field of numbers or arrays in fill=, got text - at field text"),
        ("x", "expected a number for fill, .*, got 'x'"),
        ({"n": "x"}, r"expected a number for fill\['n'\], .*, got 'x'"),
        ([0], "expected a number for fill"),
    ],
)
def test_fill_that_does_not_suit_raises_at_once(tmp_path: Path, fill: Any, message: str) -> None:
    schema = {
        "n": sx.Array("uint8", (None,)),
        "h": sx.Optional(sx.Value("float16")),
        "m": sx.Optional(sx.Value("bool")),
        "text": str,
    }
    ds = sx.write(tmp_path / "d", [{"n": [1], "h": 1, "m": True, "text": "a"}], schema)
    with pytest.raises(ArgumentError, match=message):
        sx.Loader(ds, 1, fill=fill)


def test_fill_and_ragged_for_a_field_that_a_transform_does_not_return_raise() -> None:
    ds = sx.open([{"x": 1}])
    for options in ({"fill": {"typo": 1}}, {"ragged": {"typo": "pack"}}):
        with pytest.raises(ArgumentError, match=r"expected (fill|ragged) for the fields y, x, got 'typo'"):
            next(iter(sx.Loader(ds, 1, transform=lambda one: {"y": one.x}, **options)))
    with pytest.raises(ArgumentError, match=r"expected a fill value that int64 can hold, got 0\.5 - at field y"):
        next(iter(sx.Loader(ds, 1, transform=lambda one: {"y": np.arange(3)}, fill={"y": 0.5})))


# -- rows that happen to have one length -----------------------------------------------------------------------------


def tokens(one: sx.DictSample) -> dict[str, Any]:
    return {"t": np.arange(one.n)}


def _renamed(one: sx.DictSample) -> dict[str, Any]:
    return {"t": next(value for name, value in one.items() if name != "__key__")}


def ragged_dataset(folder: Path, route: str) -> tuple[Any, dict[str, Any]]:
    """Rows of 2, 2, 2, 2, 3, 1, 2, 2 elements: the first batch of four has one length."""
    samples = [{"n": n} for n in (2, 2, 2, 2, 3, 1, 2, 2)]
    arrays = [tokens(sx.DictSample(one)) for one in samples]
    match route:
        case "transform":
            return samples, {"transform": tokens}
        case "map":
            return sx.open(samples).map(tokens), {}
        case "list":
            return arrays, {}
        case "lists of numbers":
            return sx.write(folder / "d", [{"t": a["t"].tolist()} for a in arrays], {"t": list[int]}), {}
        case "lists of numbers in a list":
            return [{"t": a["t"].tolist()} for a in arrays], {"transform": lambda one: {"t": np.array(one.t)}}
        case "tar":
            sx.write(folder / "d", arrays, format="tar")
            return sx.open(folder / "d").map(_renamed), {}
    schema = {"t": sx.Array("int64", (None,))}
    sx.write(folder / "d", arrays, schema, format=route)
    return sx.open(folder / "d", schema=schema if route == "jsonl" else None), {}


ROUTES = ["transform", "map", "list", "lists of numbers", "lists of numbers in a list", "tar", "arrow", "jsonl"]


@pytest.mark.parametrize("route", ROUTES)
def test_ragged_rows_of_one_length(tmp_path: Path, route: str) -> None:
    ds, options = ragged_dataset(tmp_path, route)
    first, second = sx.Loader(ds, 4, **options)
    assert first.lengths_of("t").tolist() == [2] * 4 and first.mask_of("t").tolist() == [[True, True]] * 4
    assert second.lengths_of("t").tolist() == [3, 1, 2, 2] and second.mask_of("t").sum() == 8
    assert first.t.tolist() == [[0, 1]] * 4 and second.t.shape == (4, 3)
    for batch in sx.Loader(ds, 4, ragged="pack", **options):
        assert isinstance(batch.t, sx.Ragged) and batch.lengths_of("t").sum() == 8 == len(batch.t.values)
    for batch in sx.Loader(ds, 4, ragged={"t": "list"}, **options):
        assert isinstance(batch.t, list) and isinstance(batch.t[0], np.ndarray)


def test_tar_fields_without_a_declared_shape(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"t": np.arange(n)} for n in (2, 2, 3, 1)], format="tar")
    ds = sx.open(str(tmp_path / "d"))
    name = next(name for name in ds.fields if name != "__key__")
    first, second = sx.Loader(ds, 2)
    assert first.lengths_of(name).tolist() == [2, 2] and second.lengths_of(name).tolist() == [3, 1]
    assert all(isinstance(batch[name], sx.Ragged) for batch in sx.Loader(ds, 2, ragged="pack"))


def test_declared_field_that_no_tar_has(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"n": 1}, {"n": 2}], {"n": int}, format="tar")
    ds = sx.open(tmp_path / "d", schema={"n": int, "late": float | None})
    assert ds.read([0, 1])["late"] == [None, None] and np.isnan(next(iter(sx.Loader(ds, 2))).late).all()
    assert ds[0].late is None and next(ds.ordered(2)).mask_of("late").tolist() == [False, False]


def test_fixed_arrays_are_stacked_whatever_the_form(tmp_path: Path) -> None:
    schema = {"x": sx.Array("float32", (2,)), "t": sx.Array("int64", (None,))}
    ds = sx.write(tmp_path / "d", [{"x": np.zeros(2, np.float32), "t": np.arange(k)} for k in range(4)], schema)
    for form in ("pad", "pack", "list"):
        for transform in (None, lambda one: {"x": one.x + 1, "t": one.t}):
            batch = next(iter(sx.Loader(ds, 4, ragged=form, transform=transform)))
            assert isinstance(batch.x, np.ndarray) and batch.x.shape == (4, 2)
    batch = next(iter(sx.Loader(ds, 4, ragged={"t": "pack"}, transform=lambda one: {"new": one.x, "t": one.t})))
    assert batch.new.shape == (4, 2) and isinstance(batch.t, sx.Ragged)


def test_fields_that_have_no_mask_raise() -> None:
    batch = next(iter(sx.Loader([{"name": "a", "n": 1}], 1)))
    with pytest.raises(FieldError, match="expected a field of numbers or arrays, got a list - at field name; present"):
        batch.mask_of("name")
    with pytest.raises(FieldError, match="expected a field of arrays, which have lengths, got single values - at"):
        batch.lengths_of("n")
    with pytest.raises(FieldError, match="expected one of the fields name, n, got 'x'"):
        batch.mask_of("x")


@pytest.mark.parametrize("shape", [(3, None), (None, 0), (0,), (2, 0), (None, None), (0, None)])
@pytest.mark.parametrize("format", ["arrow", "bins", "tar"])
def test_no_rows_of_arrays_with_a_zero_or_free_size(tmp_path: Path, format: str, shape: tuple[int | None, ...]) -> None:
    one = np.zeros([2 if size is None else size for size in shape], np.float16)
    schema = {"a": sx.Array("float16", shape)}
    sx.write(tmp_path / "d", [{"a": one}, {"a": one}], schema, format=format)
    ds = sx.open(tmp_path / "d", schema=None if format == "arrow" else schema)
    assert len(ds.read([])["a"]) == 0 and len(ds[:0].to_arrow()) == 0
    assert [row.shape for row in ds.read([1, 0])["a"]] == [one.shape] * 2
    (batch,) = sx.Loader(ds, 2, ragged="pad")
    assert batch.a.shape == (2, *one.shape) and batch.mask_of("a").all()


# -- arrays that differ in several sizes -----------------------------------------------------------------------------

IMAGES = [{"image": np.ones((k + 1, 3 - k, 3), np.uint8)} for k in range(3)]


@pytest.mark.parametrize("route", ["list", "transform", "arrow", "tar"])
def test_images_of_different_sizes_are_not_padded_unless_asked(tmp_path: Path, route: str) -> None:
    options: dict[str, Any] = {"transform": lambda one: {"image": one.image}} if route == "transform" else {}
    ds = IMAGES if route in ("list", "transform") else sx.write(tmp_path / "d", IMAGES, format=route)
    name = "image"
    if route == "tar":
        ds = sx.open(str(tmp_path / "d"))
        name = next(name for name in ds.fields if name != "__key__")
    for on_error in ("raise", "skip"):
        with pytest.raises(SchemaError, match=f"differ in their first size only, got .* at field {name}; resize them"):
            next(iter(sx.Loader(ds, 3, on_error=on_error, **options)))
    for choice in ({"ragged": "pad"}, {"fill": 0}, {"ragged": {name: "pad"}}, {"fill": {name: 0}}):
        batch = next(iter(sx.Loader(ds, 3, **choice, **options)))
        assert batch[name].shape == (3, 3, 3, 3) and batch.mask_of(name).sum() == batch[name].sum()
        assert batch.lengths_of(name).tolist() == [[1, 3, 3], [2, 2, 3], [3, 1, 3]]
        alone = next(iter(sx.Loader(ds, 1, **choice, **options)))
        assert alone.lengths_of(name).tolist() == [[1, 3, 3]]
    listed = next(iter(sx.Loader(ds, 3, ragged={name: "list"}, **options)))[name]
    assert [one.shape for one in listed] == [(1, 3, 3), (2, 2, 3), (3, 1, 3)]

    def resize(one: sx.DictSample) -> dict[str, Any]:
        return {"image": np.zeros((4, 4, 3))}

    assert next(iter(sx.Loader(ds, 3, transform=resize))).image.shape == (3, 4, 4, 3)


@pytest.mark.parametrize("to", ["numpy", "torch"])
@pytest.mark.parametrize("ragged", ["pad", "pack", "list"])
def test_samples_of_batches_with_missing_values(to: Any, ragged: Any) -> None:
    """The samples of a batch have None where the batch has a filled value, in every form."""
    for batch in sx.Loader(sx.open(SAMPLES), 4, to=to, ragged=ragged):
        assert len(batch.samples) == len(batch)
        for one, found in zip(batch.samples, map(batch.__getitem__, range(len(batch))), strict=True):
            expected = SAMPLES[int(one.plain)]
            for name, value in expected.items():
                for got in (one[name], found[name]):
                    assert (got is None) == (value is None)
                    padded = name == "t" and ragged == "pad"
                    assert value is None or padded or np.array_equal(np.asarray(got), np.asarray(value))


# -- parts of a batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["numpy", "torch"])
@pytest.mark.parametrize("where", [slice(0, 2), slice(1, None), slice(None, None, 2)], ids=str)
def test_part_of_a_batch_has_the_lengths_masks_and_origin_of_its_samples(to: Any, where: slice) -> None:
    samples = [{"x": np.arange(k + 1), "y": None if k == 1 else k} for k in range(3)]
    batch = next(iter(sx.Loader(samples, 4, shuffle=True, seed=1, to=to)))
    part = batch[where]
    assert len(part) == len(part.x) and part.sample_type is sx.DictSample
    for name in ("x", "y"):
        assert part.mask_of(name).tolist() == batch.mask_of(name)[where].tolist()
        assert part.present_of(name).tolist() == batch.present_of(name)[where].tolist()
    assert part.lengths_of("x").tolist() == batch.lengths_of("x")[where].tolist()
    assert part.mask.tolist() == batch.mask[where].tolist()
    assert part.origin.rows.tolist() == batch.origin.rows[where].tolist()
    assert part.origin.step == batch.origin.step


@pytest.mark.needs("torch")
@pytest.mark.parametrize("workers", [0, 2])
def test_classes_are_tensors_that_a_loss_takes(workers: int, tmp_path: Path) -> None:
    import torch

    kinds = sx.ClassLabel(["cat", "dog"])
    schema = {"kind": kinds, "maybe": sx.Optional(kinds), "x": "float32"}
    samples = [{"kind": k % 2, "maybe": None if k else 1, "x": k / 2} for k in range(8)]
    ds = sx.write(tmp_path / "d", samples, schema)
    options: dict[str, Any] = {"workers": workers, "worker_type": "thread"} if workers else {}
    with sx.Loader(ds, 4, to="torch", **options) as loader:
        batch = next(iter(loader))
    assert batch.kind.dtype == batch.maybe.dtype == torch.int64 and batch.x.dtype == torch.float32
    assert batch.kind.tolist() == [0, 1, 0, 1] and batch.maybe.tolist() == [1, 0, 0, 0]
    assert torch.nn.functional.cross_entropy(torch.zeros(4, 2), batch.kind) > 0
    same = ds.map(lambda sample: {"kind": sample.kind})
    assert next(iter(sx.Loader(same, 4, to="torch"))).kind.dtype == torch.int64
    assert next(iter(sx.Loader(ds, 4, to="torch", dtype={"kind": "uint8"}))).kind.dtype == torch.uint8
    soft = sx.Loader(ds, 4, to="torch", transform=lambda sample: {"kind": sample.kind / 2, "maybe": sample.kind})
    batch = next(iter(soft))
    assert batch.kind.is_floating_point() and batch.maybe.dtype == torch.int64
    assert next(iter(sx.Loader(ds, 4))).kind.dtype == np.int32
