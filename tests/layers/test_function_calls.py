"""Calls of functions of users: the forms that they may return, and errors that name the function and the samples."""

from __future__ import annotations

import datetime
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.errors import SchemaError
from shardex.layers.function_calls import batch_result, place_of_rows, sample_results


class Point(NamedTuple):
    x: int


Pair = namedtuple("Pair", ["x"])


def here() -> str:
    return "sample 3 of a.tar"


def several(sample: Any) -> Iterator[dict[str, int]]:
    yield from ({"x": k} for k in range(2))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"x": 1}, [{"x": 1}]),
        (Point(1), [Point(1)]),
        (Pair(1), [Pair(1)]),
        ([], []),
        ((), []),
        ([{"x": 1}, Point(2)], [{"x": 1}, Point(2)]),
        (iter([{"x": 1}]), [{"x": 1}]),
        (sx.Batch.of([{"x": 1}, {"x": 2}]), [{"x": 1}, {"x": 2}]),
    ],
)
def test_results_of_a_sample_are_a_list(result: Any, expected: list[Any]) -> None:
    assert sample_results(lambda sample: result, {}, here) == expected


def test_generators_are_consumed() -> None:
    assert sample_results(several, {}, here) == [{"x": 0}, {"x": 1}]


def test_error_in_a_generator_names_the_sample() -> None:
    def fails(sample: Any) -> Iterator[Any]:
        yield {"x": 1}
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as caught:
        sample_results(fails, {}, here)
    assert "in <function" in caught.value.__notes__[0] and "at sample 3 of a.tar" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"got none; return \[\] to leave a sample out - at sample 3 of a.tar"),
        (7, "expected samples .* from <function .*, got int 7 - at sample 3 of a.tar"),
        ("text", "got str 'text' - at"),
        ([{"x": 1}, None], r"got none \(number 1 of 2\) - at sample 3 of a.tar"),
    ],
)
def test_bad_result_of_a_sample_raises(result: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        sample_results(lambda sample: result, {}, here)


# -- batches --------------------------------------------------------------------------------------------------


def batch(**columns: Any) -> sx.Batch:
    return sx.Batch(sx.Columns(columns))


def result_of(function: Callable[[Any], Any], given: sx.Batch | None = None) -> sx.Columns:
    return batch_result(function, batch(x=np.arange(3)) if given is None else given, here).columns


@pytest.mark.parametrize(
    "result",
    [
        {"y": [1, 2]},
        {"y": (1, 2)},
        {"y": range(1, 3)},
        {"y": np.array([1, 2])},
        {"y": pa.array([1, 2])},
        sx.DictSample(y=[1, 2]),
        sx.Columns({"y": [1, 2]}),
        batch(y=np.array([1, 2])),
    ],
)
def test_columns_of_a_batch_may_have_any_form_and_length(result: Any) -> None:
    assert result_of(lambda b: result).to_samples() == [{"y": 1}, {"y": 2}]


def test_results_without_samples() -> None:
    assert len(result_of(lambda b: {})) == len(result_of(lambda b: {"x": []})) == len(result_of(lambda b: b[:0])) == 0


def test_missing_values_are_kept() -> None:
    masked = np.ma.array([1, 2], mask=[False, True])
    made = result_of(lambda b: {"a": pa.array([1, None]), "m": masked, "l": [1, None]})
    assert made.to_samples() == [{"a": 1, "m": 1, "l": 1}, {"a": None, "m": None, "l": None}]


def test_arrays_of_text_and_objects_are_lists() -> None:
    made = result_of(lambda b: {"u": np.array(["a", "bc"]), "o": np.array([{"k": 1}, None], object)})
    assert made["u"] == ["a", "bc"] and made["o"] == [{"k": 1}, None] and type(made["u"][0]) is str


def test_columns_that_are_passed_on_keep_mask_and_zone() -> None:
    zone = datetime.UTC
    samples: list[dict[str, Any]] = [{"n": 1, "t": datetime.datetime(2024, 1, 1, tzinfo=zone)}, {"n": None, "t": None}]
    given = sx.Batch(sx.open(samples).read([0, 1]))
    for function in (lambda b: {**b}, lambda b: b, lambda b: {"n": b.n, "t": b["t"]}, lambda b: b.columns):
        assert result_of(function, given).to_samples() == samples
    assert result_of(lambda b: {"m": b.n}, given).to_samples() == [{"m": 1}, {"m": None}]
    assert result_of(lambda b: sx.Columns({"t": b.columns.take([0]).data["t"]}), given).to_samples() == [
        {"t": samples[0]["t"]}
    ]
    turned = result_of(lambda b: {"n": sx.Masked(b.n, np.array([False, True]))}, given)
    assert turned.to_samples() == [{"n": None}, {"n": 0}]


def test_arrays_of_a_feature_without_a_shape_stay_as_they_are() -> None:
    for arrays in ([np.array(1, "i1"), np.array(2, "i1")], [np.zeros(2, ">f4"), np.ones(2, ">f4")]):
        given = batch(x=list(arrays))
        made = result_of(lambda b: {**b}, given)["x"]
        assert isinstance(made, list) and [repr(one) for one in made] == [repr(one) for one in arrays]
        assert result_of(lambda b: {"x": b.x + 1}, given)["x"].tolist() == (np.stack(arrays) + 1).tolist()
    some = batch(x=[np.zeros(2), None])
    assert result_of(lambda b: {"x": np.ones((2, 2))}, some)["x"].tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(SchemaError, match="got the single value"):
        result_of(lambda b: {"x": np.array(3)}, some)


def test_result_does_not_share_memory_that_the_function_uses_again() -> None:
    buffer, names = np.zeros(3), ["a", "b", "c"]

    def reuse(b: Any) -> dict[str, Any]:
        np.multiply(b.x, 2, out=buffer)
        return {"y": buffer, "name": names}

    first = result_of(reuse)
    buffer[:], names[0] = 7, "changed"
    assert first["y"].tolist() == [0, 2, 4] and first["name"] == ["a", "b", "c"]


def test_batch_with_other_columns_set() -> None:
    def halve(b: Any) -> Any:
        b.x = b.x[:1]
        return b

    assert result_of(halve).to_samples() == [{"x": 0}]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"expected a batch or columns by name \(arrays, lists\) from <function .*, got none - at sample 3 of"),
        ([{"y": 1}], "got list .* - at sample 3 of a.tar"),
        ({"y": 3}, "expected a column .* got int 3 - at field y of the result of <function .* at sample 3 of a.tar"),
        ({"y": "abc"}, "expected a column .* got str 'abc' - at field y"),
        ({"y": np.float64(2)}, "expected a column .* got the single value float64 2.0 - at field y"),
        ({1: [2]}, "expected a text as the name of a column, got int 1"),
        ({"y": [1], "z": [1, 2]}, "expected columns of one length from .*, got 1 in y, 2 in z - at sample 3 of a.tar"),
        (
            {"y": np.ma.array(np.zeros((2, 2)), mask=[[False, True]] * 2)},
            "parts that are masked in float64",
        ),
    ],
)
def test_bad_result_of_a_batch_raises(result: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        result_of(lambda b: result)


def test_tensors_are_columns() -> None:
    torch = pytest.importorskip("torch")
    assert result_of(lambda b: {"y": torch.ones(3, 2)})["y"].shape == (3, 2)
    with pytest.raises(SchemaError, match=r"expected a column that numpy can read, got Tensor: .*detach"):
        result_of(lambda b: {"y": torch.ones(3, requires_grad=True)})


def test_places_name_rows_and_files(tmp_path: Path) -> None:
    samples = [{"x": k} for k in range(30)]
    for number in range(3):
        lines = "".join(f'{{"x": {sample["x"]}}}\n' for sample in samples[10 * number : 10 * number + 10])
        (tmp_path / f"{number}.jsonl").write_text(lines)
    rows = sx.open(tmp_path).rows
    files = rows.shards(np.array([0, 10, 20]))
    assert place_of_rows(rows, np.arange(3, 6)) == f"samples 3 to 5 of {files[0]}"
    assert place_of_rows(rows, np.array([4])) == f"sample 4 of {files[0]}"
    assert place_of_rows(rows, np.array([12, 4])) == f"samples 12, 4 of {files[1]} and {files[0]}"
    assert place_of_rows(rows, np.arange(30)) == f"samples 0 to 29 of {files[0]} and 2 other files"
    assert place_of_rows(rows, np.arange(0)) == "no samples"


def test_stop_iteration_names_the_sample_too() -> None:
    """It would end the generators that it passes through."""
    with pytest.raises(RuntimeError, match="got StopIteration") as caught:
        sample_results(lambda sample: {"n": next(iter([]))}, {}, here)
    assert "at sample 3 of a.tar" in caught.value.__notes__[0]
