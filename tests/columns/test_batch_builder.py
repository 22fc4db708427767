"""Record batches of samples: each sample is appended whole, or refused with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.columns import BatchBuilder, decode_array
from shardex.errors import SchemaError
from shardex.features import Array, Features, Json, Optional, Sequence, Struct, Value, arrow_schema
from shardex.kernel import values_of
from shardex.samples import DictSample
from tests.strategies import datasets

SCHEMA = Features.of(
    {
        "history": Array("float32", (3,)),
        "tokens": Array("int32", (None,)),
        "image": Array("uint8", (None, None, 3)),
        "any": Array(),
        "n": "int8",
        "x": "float32",
        "ok": bool,
        "s": str,
        "raw": bytes,
        "meta": Json(),
        "tags": Sequence(Value("int16")),
        "place": Struct(Features.of({"lat": "float64", "name": str | None})),
        "maybe": Optional(Array("int64", (2,))),
    }
)


def good() -> dict[str, Any]:
    return {
        "history": np.arange(3, dtype=np.float32),
        "tokens": np.arange(2, dtype=np.int32),
        "image": np.ones((2, 1, 3), np.uint8),
        "any": np.array(["a"]),
        "n": 1,
        "x": 0.5,
        "ok": True,
        "s": "é",
        "raw": b"\0",
        "meta": {"a": [1]},
        "tags": [1, 2],
        "place": {"lat": 1.5, "name": None},
        "maybe": None,
    }


def samples_of(builder: BatchBuilder) -> list[DictSample]:
    batch = builder.finish()
    batch.validate(full=True)
    columns = {n: values_of(decode_array(batch.column(n), feature)) for n, feature in builder.features.items()}
    return [DictSample({name: column[k] for name, column in columns.items()}) for k in range(batch.num_rows)]


def after_twelve() -> BatchBuilder:
    """Return a builder with twelve samples, five of them in a finished batch."""
    builder = BatchBuilder(SCHEMA, arrow_schema(SCHEMA))
    for k in range(12):
        builder.append(good())
        if k == 4:
            builder.finish()
    return builder


REFUSALS = [
    ("history", np.zeros(4, np.float32), "expected float32[3], got float32[4]"),
    (
        "history",
        np.full(3, 1e39),
        "expected float32[3], got float64[3] with values from 1e+39 to 1e+39, which are out of range",
    ),
    ("history", [1, 2], "expected float32[3], got int64[2]"),
    (
        "history",
        [[1], [2, 3]],
        "expected float32[3], got list [[1], [2, 3]] that cannot become an array: rows of different length",
    ),
    ("history", ["a", "b", "c"], "expected float32[3], got list ['a', 'b', 'c']"),
    ("history", None, "expected float32[3], got none"),
    ("tokens", np.zeros((1, 1), np.int32), "expected int32[?], got int32[1, 1]"),
    ("tokens", [2**31], "expected int32[?], got list [2147483648] with values ...out of range"),
    ("tokens", np.zeros(1), "expected int32[?], got float64[1] (to accept the loss: .astype('int32'))"),
    ("image", np.zeros((2, 2), np.uint8), "expected uint8[?, ?, 3], got uint8[2, 2]"),
    ("image", np.zeros((2, 2, 4), np.uint8), "expected uint8[?, ?, 3], got uint8[2, 2, 4]"),
    ("any", np.array([None]), "expected an array of numbers, text or bytes, got dtype object..."),
    ("n", 128, "expected int8, got int 128, which is out of range"),
    ("n", np.int64(-129), "expected int8, got int64 -129, which is out of range"),
    ("n", 1.0, "expected int8, got float 1.0"),
    ("n", True, "expected int8, got bool True"),
    ("n", "1", "expected int8, got str '1'"),
    ("x", 1e39, "expected float32, got float 1e+39, which is out of range"),
    ("ok", 1, "expected bool, got int 1"),
    ("s", b"a", "expected text, got bytes..."),
    ("s", "\ud800", "expected text that UTF-8 can hold, got ..."),
    ("raw", "a", "expected bytes, got str..."),
    ("meta", {"a": 1j}, "expected a value that JSON can hold, got ..."),
    ("tags", 1, "expected list of int16, got int 1"),
    ("tags", [1, 2**15], "expected int16, got int 32768, which is out of range"),
    ("place", {"lat": 1.0, "lon": 2.0}, "expected struct of (lat float64, name text or none), got 'lon' too"),
    ("place", {"lat": "a"}, "expected float64, got str 'a' (in lat)"),
    ("place", {}, "expected float64, got nothing (declare a field that may be missing as optional) (in lat)"),
    ("maybe", [1, 2, 3], "expected int64[2], got int64[3]"),
]


@pytest.mark.parametrize(("field", "value", "message"), REFUSALS, ids=[f"{f}-{m[-20:]}" for f, _, m in REFUSALS])
def test_a_refused_sample_is_located_and_not_appended(field: str, value: Any, message: str) -> None:
    builder = after_twelve()
    size = builder.nbytes
    for _ in range(2):  # the next sample has the same number again
        with pytest.raises(SchemaError) as caught:
            builder.append({**good(), field: value})
        expected = re.escape(f"{message} - at sample 12, field {field}").replace(r"\.\.\.", ".*")
        assert re.fullmatch(expected, str(caught.value))
        assert caught.value.__cause__ is None
        assert (builder.rows, builder.nbytes) == (7, size)
    builder.append({**good(), "n": 99})
    found = samples_of(builder)
    assert found == [*[good()] * 7, {**good(), "n": 99}]
    assert builder.finished == 13


def test_unknown_and_missing_fields() -> None:
    features = Features.of({"a": int, "b": str, "c": str | None})
    builder = BatchBuilder(features, arrow_schema(features))
    nothing = "got nothing (declare a field that may be missing as optional)"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": 1, "b": "x", "c": None, "d": 1}, "expected the fields a, b, c, got 'd' too - at sample 0"),
        ({"a": 1, "b": "x", "d": 1}, "expected the fields a, b, c, got 'd' too - at sample 0"),
        (
            {"a": 1, "c": "y"},
            f"expected text, {nothing} - at sample 0, field b",
        ),
        ({}, f"expected int64, {nothing} - at sample 0, field a"),
        ({"a": "x"}, "expected int64, got str 'x' - at sample 0, field a"),
    ]
    for sample, message in cases:
        with pytest.raises(SchemaError) as caught:
            builder.append(sample)
        assert str(caught.value) == message
    builder.append({"a": 1, "b": "x"})
    builder.append({"c": "z", "b": "y", "a": 2})
    assert samples_of(builder) == [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": "y", "c": "z"}]


def test_a_schema_without_fields_accepts_no_sample() -> None:
    with pytest.raises(SchemaError, match="expected a schema with at least one field, got none - at sample 0"):
        BatchBuilder(Features({}), arrow_schema(Features({}))).append({})


def test_any_mapping_is_a_sample() -> None:
    class Lazy(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return {"a": 1, "b": "x"}[name]

        def __iter__(self) -> Iterator[str]:
            return iter(("a", "b"))

        def __len__(self) -> int:
            return 2

    features = Features.of({"b": str, "a": int, "c": int | None})
    builder = BatchBuilder(features, arrow_schema(features))
    builder.append(Lazy())
    assert samples_of(builder) == [{"b": "x", "a": 1, "c": None}]


class Trap(list[Any]):
    """A list whose iteration raises an unexpected exception halfway."""

    def __init__(self, error: BaseException) -> None:
        super().__init__([1])
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        yield 1
        raise self.error


@pytest.mark.parametrize("error", [KeyError("tags"), ZeroDivisionError(), KeyboardInterrupt()], ids=repr)
def test_any_exception_removes_the_sample(error: BaseException) -> None:
    builder = after_twelve()
    with pytest.raises(type(error)):
        builder.append({**good(), "tags": Trap(error)})
    builder.append(good())
    assert samples_of(builder) == [good()] * 8


def test_samples_are_copied_when_appended() -> None:
    builder, sample = BatchBuilder(SCHEMA, arrow_schema(SCHEMA)), good()
    builder.append(sample)
    sample["history"][:] = 9
    sample["image"][:] = 9
    sample["any"][:] = "z"
    sample["meta"]["a"].append(2)
    sample["tags"].clear()
    sample["place"]["lat"] = 9.0
    assert samples_of(builder) == [good()]


def test_lists_and_numpy_scalars_are_accepted() -> None:
    builder = BatchBuilder(SCHEMA, arrow_schema(SCHEMA))
    builder.append(
        good()
        | {"history": [0, 1.0, 2], "tokens": range(2), "n": np.int64(1), "x": np.float64(0.5), "ok": np.bool_(1)}
        | {"raw": bytearray(b"\0"), "tags": np.array([1, 2]), "image": [[[1, 1, 1]], [[1, 1, 1]]]}
    )
    assert samples_of(builder) == [good()]


def test_batch_metadata_holds_the_features() -> None:
    builder = BatchBuilder(SCHEMA, arrow_schema(SCHEMA))
    assert b"shardex" in builder.finish().schema.metadata


@settings(deadline=None)
@given(datasets(), st.lists(st.integers(0, 12), max_size=4))
def test_batches_hold_the_appended_samples(data: tuple[Features, list[dict[str, Any]]], cuts: list[int]) -> None:
    features, samples = data
    builder, start = BatchBuilder(features, arrow_schema(features)), 0
    for k, sample in enumerate(samples):
        if k in cuts:
            assert samples_of(builder) == samples[start:k]
            start = k
        with pytest.raises(SchemaError, match=f"at sample {k}$"):
            builder.append({**sample, "no such field": 1})
        builder.append(sample)
    assert samples_of(builder) == samples[start:]
