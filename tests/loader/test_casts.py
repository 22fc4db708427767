"""Casts of fields in batches: dtypes, scale, mean and std, and errors that name the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, SchemaError

DATA = [
    {
        "tokens": np.arange(4, dtype=np.uint16) + k,
        "image": np.full((2, 2, 3), 10 * k, np.uint8),
        "ragged": np.arange(k % 3, dtype=np.int32),
        "label": k,
        "maybe": None if k % 3 == 0 else 0.5,
        "name": f"n{k}",
    }
    for k in range(10)
]
SCHEMA = {
    "tokens": sx.Array("uint16", (4,)),
    "image": sx.Array("uint8", (2, 2, 3)),
    "ragged": sx.Array("int32", (None,)),
    "label": int,
    "maybe": sx.Optional("float64"),
    "name": str,
}
PIXELS = sx.Cast("float32", scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 1))


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> sx.Dataset:
    return sx.write(str(tmp_path_factory.mktemp("casts") / "data"), DATA, SCHEMA)


def expected_pixels() -> Any:
    values = np.stack([one["image"] for one in DATA[:4]]).astype(np.float64)  # type: ignore[misc]
    return (values / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.25, 1])


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_have_the_dtypes_that_were_chosen(ds: sx.Dataset, workers: int) -> None:
    dtype = {"tokens": "int64", "image": PIXELS, "ragged": np.int64, "label": "uint8", "maybe": "float32"}
    with sx.Loader(ds, 4, dtype=dtype, workers=workers, worker_type="process") as loader:
        batch = next(iter(loader))
    assert batch.tokens.dtype == np.int64 and batch.tokens[3].tolist() == [3, 4, 5, 6]
    assert batch.image.dtype == np.float32
    np.testing.assert_allclose(batch.image, expected_pixels(), rtol=1e-5, atol=1e-6)
    assert batch.ragged.dtype == np.int64 and batch.ragged.tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert batch.label.dtype == np.uint8 and batch.label.tolist() == [0, 1, 2, 3]
    assert batch.maybe.dtype == np.float32 and batch.mask_of("maybe").tolist() == [False, True, True, False]
    assert np.isnan(batch.maybe[0]) and batch.name == ["n0", "n1", "n2", "n3"]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("form", ["pad", "pack", "list"])
def test_tensors_have_the_dtypes_that_were_chosen(ds: sx.Dataset, device: str | None, form: Any) -> None:
    torch = pytest.importorskip("torch")
    dtype = {"tokens": torch.int64, "image": PIXELS, "ragged": "float16", "label": "bfloat16", "maybe": "float32"}
    with sx.Loader(ds, 4, dtype=dtype, to="torch", device=device, ragged=form) as loader:
        batch = next(iter(loader))
    assert batch.tokens.dtype == torch.int64 and batch.tokens[3].tolist() == [3, 4, 5, 6]
    np.testing.assert_allclose(batch.image.numpy(), expected_pixels(), rtol=1e-5, atol=1e-6)
    assert batch.label.dtype == torch.bfloat16 and batch.label.tolist() == [0, 1, 2, 3]
    assert batch.maybe.dtype == torch.float32
    if form == "pad":
        assert batch.ragged.dtype == torch.float16
    elif form == "pack":
        assert batch.ragged.values.dtype == torch.float16 and batch.ragged.offsets.dtype == torch.int64
    else:
        assert [one.dtype for one in batch.ragged] == [torch.float16] * 4


def test_channels_first_and_one_number_for_all() -> None:
    data = sx.open({"x": np.arange(12, dtype=np.uint8).reshape(2, 3, 2)})
    batch = next(iter(sx.Loader(data, 2, dtype={"x": sx.Cast("float64", mean=(0, 1, 2), std=2, axis=-2)})))
    assert batch.x[0].tolist() == [[0, 0.5], [0.5, 1], [1, 1.5]]
    assert next(iter(sx.Loader(data, 2, dtype={"x": sx.Cast("float16", scale=0.5)}))).x[0, 2].tolist() == [2, 2.5]


def test_samples_of_a_batch_are_no_channels() -> None:
    cast = sx.Cast("float32", mean=(1, 2, 3))
    for column in ({"x": np.zeros(6, np.uint8)}, {"x": np.zeros((6, 3, 2), np.uint8)}):
        with pytest.raises(SchemaError, match=r"mean and std have \(3\), got (none|2) at axis -1 .* - at field x"):
            sx.Loader(sx.open(column), 3, dtype={"x": cast})
    made = sx.Loader(sx.open({"x": np.zeros(6, np.uint8)}), 3, transform=lambda s: {"x": 5.0}, dtype={"x": cast})
    with pytest.raises(SchemaError, match=r"got none at axis -1 of arrays of shape \(\) - at field x"):
        next(iter(made))


def test_collate_gets_cast_arrays(ds: sx.Dataset) -> None:
    torch = pytest.importorskip("torch")
    every: list[tuple[dict[str, Any], Any]] = [
        ({}, np.float64),
        ({"to": "torch"}, torch.float64),
        ({"to": "torch", "device": "cpu"}, torch.float64),
    ]
    for options, dtype in every:
        loader = sx.Loader(ds, 4, dtype={"tokens": "float64"}, collate=lambda b: b.tokens.dtype, **options)
        assert next(iter(loader)) == dtype


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("transform", [None, lambda sample: sample], ids=["read", "made"])
@pytest.mark.parametrize("form", ["pad", "pack", "list"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_dtype_is_that_of_all_floats(
    ds: sx.Dataset, device: str | None, transform: Any, form: Any, dtype: str
) -> None:
    torch = pytest.importorskip("torch")
    data = ds.map(lambda s: {**s, "wide": np.ones(2), "some": [1.5, 2.5], "whole": 3})
    options: dict[str, Any] = {"to": "torch", "device": device, "transform": transform, "ragged": form}
    batch = next(iter(sx.Loader(data, 4, dtype=dtype, **options)))
    plain = next(iter(sx.Loader(data, 4, **options)))
    for name in list(batch.keys()):
        found, before = (_tensors_of(one[name]) for one in (batch, plain))
        assert [a.dtype for a in found] == [
            getattr(torch, dtype) if b.is_floating_point() else b.dtype for b in before
        ], name
        assert all(
            torch.allclose(a.double(), b.double(), rtol=1e-2, equal_nan=True)
            for a, b in zip(found, before, strict=True)
        )
    assert batch.wide is not None and batch.maybe.dtype == getattr(torch, dtype)


def _tensors_of(column: Any) -> list[Any]:
    """Return the tensors with the values of a column."""
    if isinstance(column, list):
        return [value for value in column if hasattr(value, "is_floating_point")]
    return [column.values if hasattr(column, "offsets") else column]


def test_one_dtype_is_that_of_all_float_arrays() -> None:
    data = sx.open({"a": np.ones(4), "b": np.arange(4), "c": np.ones((4, 2), np.float16), "d": ["x"] * 4})
    batch = next(iter(sx.Loader(data, 4, dtype=np.float32)))
    assert (batch.a.dtype, batch.b.dtype, batch.c.dtype) == (np.float32, np.int64, np.float32) and batch.d[0] == "x"


def test_results_of_a_transform_are_cast(ds: sx.Dataset) -> None:
    def add(sample: Any) -> dict[str, Any]:
        return {"total": int(sample.tokens.sum()), "tokens": sample.tokens}

    batch = next(iter(sx.Loader(ds, 4, transform=add, dtype={"total": "float32", "tokens": "int32"})))
    assert batch.total.dtype == np.float32 and batch.total.tolist() == [6, 10, 14, 18]
    with pytest.raises(ArgumentError, match=r"expected dtype for the fields total, tokens.*, got 'other'"):
        next(iter(sx.Loader(ds, 4, transform=add, dtype={"other": "float32"})))


@pytest.mark.parametrize("value", [{"a": 1}, "text", [1, 2.5]])
def test_results_of_a_transform_that_are_no_numbers_raise(ds: sx.Dataset, value: Any) -> None:
    loader = sx.Loader(ds, 4, transform=lambda sample: {"total": value}, dtype={"total": "float32"})
    with pytest.raises(SchemaError, match=rf"expected numbers to cast to float32, got {type(value).__name__} - at"):
        next(iter(loader))


def test_arrays_of_the_dtype_are_not_copied() -> None:
    values = np.arange(3, dtype=np.int32)
    assert sx.Cast("int32").array(values, "n") is values
    assert sx.Cast("int64").array(values, "n").dtype == np.int64


@pytest.mark.parametrize("options", [{}, {"to": "torch", "device": "cpu"}], ids=["host", "device"])
def test_integers_that_do_not_fit_raise(options: Any) -> None:
    if options:
        pytest.importorskip("torch")
    data = sx.open({"x": np.array([1, 2, 300])})
    assert next(iter(sx.Loader(data, 2, dtype={"x": "uint8"}, **options))).x.tolist() == [1, 2]
    with pytest.raises(SchemaError, match=r"from 0 to 255 to cast to uint8, got 1 to 300 - at field x"):
        next(iter(sx.Loader(data, 3, dtype={"x": "uint8"}, **options)))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ({"name": "int64"}, r"expected numbers to cast to int64, got text - at field name"),
        ({"maybe": "int64"}, r"expected a dtype that holds what float64 holds, got int64.* - at field maybe"),
        ({"token": "int64"}, r"expected dtype for the fields .*, got 'token': did you mean 'tokens'"),
        ({"image": sx.Cast("float32", mean=(1, 2))}, r"mean and std have \(2\), got 3 at axis -1 .* - at field image"),
        ({"image": sx.Cast("float32", mean=(1, 2), axis=-5)}, r"got none at axis -5 .* - at field image"),
        ({"image": sx.Cast("float32", mean=(1, 2), axis=-4)}, r"got none at axis -4 .* - at field image"),
        ({"tokens": sx.Cast("float32", mean=(1, 2), axis=-2)}, r"got none at axis -2 .* - at field tokens"),
        ("int64", r'expected dtype=\{"field": dtype\}.*, or a floating dtype for all fields of floats'),
        (sx.Cast("float32", 2), r'expected dtype=\{"field": dtype\}'),
        ("bfloat16", r'expected to="torch" for bfloat16, which numpy lacks$'),
        ({"tokens": "text"}, r"expected a dtype of numbers, such as 'int64', 'float32' or 'bfloat16', got 'text'"),
        ({"tokens": "datetime64[s]"}, r"expected a dtype of numbers"),
        ({"tokens": "bfloat16"}, r'expected to="torch" for bfloat16, which numpy lacks - at field tokens'),
    ],
)
def test_impossible_casts_raise_and_name_the_field(ds: sx.Dataset, dtype: Any, message: str) -> None:
    with pytest.raises((ArgumentError, SchemaError), match=message):
        next(iter(sx.Loader(ds, 4, dtype=dtype)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (1, 2)}, "one number for scale"),
        ({"scale": float("nan")}, "a number for scale"),
        ({"mean": "a"}, "a number for mean"),
        ({"std": (1, 0)}, "other than 0 for std"),
        ({"mean": (1, 2), "std": (1, 2, 3)}, "as many numbers in mean and std"),
        ({"axis": 1}, "a negative number for axis"),
        ({"dtype": "int64", "scale": 2}, "a floating dtype together with scale"),
    ],
)
def test_wrong_casts_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.Cast(**{"dtype": "float32", **options})


def test_a_state_is_valid_with_other_dtypes(ds: sx.Dataset) -> None:
    """The dtype does not choose samples, so a run can go on with another one."""
    first = sx.Loader(ds, 4, shuffle=True)
    next(iter(first))
    second = sx.Loader(ds, 4, shuffle=True, dtype={"tokens": "int32"})
    second.load_state_dict(first.state_dict())
    first.seek(first.epoch, first.position)
    assert next(iter(second)).label.tolist() == next(iter(first)).label.tolist()
