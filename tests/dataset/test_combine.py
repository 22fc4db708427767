"""Mixtures of datasets: names, weights, reweighting and errors. The arithmetic is tested in test_mix_order.py."""

from __future__ import annotations

import datetime
import math
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.dataset import Dataset, ListRows, MixRows, concat, mix, open, temperature, write
from shardex.dataset.combine import reweighted
from shardex.errors import ArgumentError, SchemaError
from shardex.features import ClassLabel
from shardex.order import Mix


def source(name: str, length: int) -> Dataset:
    return open(ListRows([{"name": name, "x": k} for k in range(length)]))


WEB, BOOKS, CODE = source("web", 60), source("books", 30), source("code", 10)
ALL = {"web": WEB, "books": BOOKS, "code": CODE}


def names(mixture: Dataset) -> Counter[str]:
    return Counter(sample.name for sample in mixture)


def test_default_weights_are_the_lengths() -> None:
    mixture = mix(ALL)
    assert len(mixture) == 100 and names(mixture) == {"web": 60, "books": 30, "code": 10}
    assert sorted((s.name, s.x) for s in mixture) == sorted((s.name, s.x) for ds in ALL.values() for s in ds)


def test_weights_by_name_and_in_order_are_the_same() -> None:
    by_name = mix(ALL, {"code": 0.5, "web": 0.3, "books": 0.2}, length=1000, seed=3)
    in_order = mix(list(ALL.values()), [0.3, 0.2, 0.5], length=1000, seed=3)
    assert list(by_name) == list(in_order) and names(by_name) == {"web": 300, "books": 200, "code": 500}
    assert isinstance(by_name.rows, MixRows) and by_name.rows.names == ["web", "books", "code"]
    assert isinstance(in_order.rows, MixRows) and in_order.rows.sizes == {"0": 60, "1": 30, "2": 10}


def test_a_source_repeats_only_after_a_full_pass() -> None:
    for seed in (None, 1):
        code = [s.x for s in mix(ALL, [1, 1, 2], seed=seed, length=100) if s.name == "code"]
        assert [sorted(code[k : k + 10]) for k in range(0, 50, 10)] == [list(range(10))] * 5
        assert (code == list(range(10)) * 5) == (seed is None)


def test_views_and_batches_of_a_mixture() -> None:
    mixture = mix(ALL, [1, 1, 1], seed=1)
    whole = list(mixture)
    assert mixture[17] == whole[17] and list(mixture[10:50:3]) == whole[10:50:3]
    assert mixture.read([5, 99, 5])["x"].tolist() == [whole[k].x for k in (5, 99, 5)]
    assert mixture.select("x").fields == ["x"] and mixture.features == WEB.features
    assert list(pickle.loads(pickle.dumps(mixture))) == whole
    assert len(mix(ALL, length=0)) == 0 and list(mix({"all": mixture}, length=7)) == whole[:7]


def test_fields_come_in_the_order_of_the_first_source() -> None:
    mixture = mix([open([{"x": 1, "y": 2}]), open([{"y": 3, "x": 4}])], [1, 1])
    assert mixture.fields == ["x", "y"] and list(map(list, mixture)) == [["x", "y"], ["x", "y"]]


def test_weight_zero_leaves_a_source_out() -> None:
    sources = {"web": WEB, "none": WEB[:0], "books": BOOKS}
    assert names(mix(sources, {"web": 1, "none": 0, "books": 1})) == {"web": 45, "books": 45}
    assert names(mix(sources)) == {"web": 60, "books": 30}


# -- phases ------------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any))
def test_new_weights_hold_from_their_position_on(position: int, weights: list[int]) -> None:
    before = mix(ALL, [1, 2, 3], seed=1, length=200)
    after = reweighted(before, position, dict(zip(ALL, weights, strict=True)))
    assert list(after)[:position] == list(before)[:position]
    late = Counter(s.name for s in list(after)[position:])
    for name, weight in zip(ALL, weights, strict=True):
        assert abs(late[name] - (200 - position) * weight / sum(weights)) <= 2


def test_reweighting_keeps_the_fields() -> None:
    assert reweighted(mix(ALL).select("x"), 10, [1, 1, 1])[0] == {"x": 0}


# -- temperature -------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 10**15), min_size=1), st.floats(0.01, 1e9))
def test_temperature_flattens(sizes: dict[str, int], value: float) -> None:
    weights = temperature(sizes, value)
    assert list(weights) == list(sizes) and math.isclose(sum(weights.values()), 1)
    assert all(weights[a] <= weights[b] for a in sizes for b in sizes if sizes[a] <= sizes[b])


def test_temperature_from_proportional_to_equal() -> None:
    assert temperature(ALL, 1) == pytest.approx({"web": 0.6, "books": 0.3, "code": 0.1})
    assert temperature([WEB, BOOKS, CODE], math.inf) == pytest.approx({"0": 1 / 3, "1": 1 / 3, "2": 1 / 3})
    assert temperature({"a": 10, "none": 0}, math.inf) == {"a": 1, "none": 0}
    assert temperature(dict(zip("ab", np.array([900, 100]), strict=True)), 2) == pytest.approx({"a": 0.75, "b": 0.25})
    assert names(mix(ALL, temperature(ALL, math.inf), length=300)) == {"web": 100, "books": 100, "code": 100}


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "weights", "message"),
    [
        ({}, None, "at least one dataset, got none"),
        (WEB, None, "sources by name or in a list, got Dataset"),
        ({"web": [1]}, None, "expected datasets as arguments, got list"),
        ([WEB, open([{"other": 1}])], None, "fields of the first dataset"),
        (ALL, {"web": 1, "books": 1}, "a weight for each of web, books, code, got web, books"),
        (ALL, {"web": 1, "books": 1, "cod": 1}, "got web, books, cod"),
        (ALL, [1, 2], "3 weights, one for each of web, books, code, got 2"),
        (ALL, [0, 0, 0], "at least one weight above 0"),
        (ALL, [1, -1, 1], "a weight of 0 or more, got -1 - at weight 1"),
        ({"web": WEB, "none": WEB[:0]}, [1, 1], "got none - at source 'none'; leave it out"),
        ({"none": WEB[:0]}, None, "at least one weight above 0"),
    ],
)
def test_bad_sources_and_weights_raise(sources: Any, weights: Any, message: str) -> None:
    with pytest.raises((ArgumentError, SchemaError), match=message):
        mix(sources, weights)


def test_bad_arguments_raise() -> None:
    with pytest.raises(ArgumentError, match="length of 0 or more, got -1"):
        mix(ALL, length=-1)
    for other in (WEB, mix(ALL)[:10], mix(ALL).shuffle()):
        with pytest.raises(ArgumentError, match="a dataset made by mix, got Dataset"):
            reweighted(other, 0, [1, 1, 1])
    with pytest.raises(ArgumentError, match="got none - at source 'none'"):
        reweighted(mix({"web": WEB, "none": WEB[:0]}), 5, [1, 1])
    for value in (0, -1, math.nan):
        with pytest.raises(ArgumentError, match="a temperature above 0"):
            temperature(ALL, value)
    for sizes in ({}, {"a": 0}, {"a": -1, "b": 2}):
        with pytest.raises(ArgumentError, match="at least one has samples"):
            temperature(sizes, 1)


def test_order_of_a_mixture() -> None:
    assert mix(ALL, [0.5, 0.3, 0.2], seed=9).order == Mix((60, 30, 10), ((0, (5, 3, 2)),), 100, seed=9)


def test_mixing_different_number_types_raises() -> None:
    """Some batches would be lists and others arrays."""
    first = open([{"x": 1.5, "v": np.zeros(2, np.float32)}])
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([{"x": 1, "v": np.zeros(2, np.float32)}], "expected float64 as in the first dataset, got int64 - .* field x"),
        ([{"x": 1.0, "v": np.zeros(3, np.float32)}], r"expected float32\[2\] .* got float32\[3\] - .* field v"),
    ]
    for other, message in cases:
        with pytest.raises(SchemaError, match=message):
            mix({"a": first, "b": open(other)})


def test_mixing_times_of_different_units_or_zones_raises() -> None:
    first = open([{"t": datetime.datetime(2024, 1, 1)}])
    for other in (np.datetime64("2024-01-01T00:00:00", "ns"), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)):
        with pytest.raises(SchemaError, match=r"expected timestamp\[us\] as in the first dataset, got .* field t"):
            mix({"a": first, "b": open([{"t": other}])})


def test_datasets_with_other_classes_are_refused_with_their_names(tmp_path: Path) -> None:
    def of(names: list[str], folder: str) -> Dataset:
        return write(tmp_path / folder, [{"label": names[0]}], {"label": ClassLabel(names)})

    ds, other = of(["cat", "dog"], "a"), of(["dog", "cat"], "b")
    with pytest.raises(
        SchemaError, match=r"the classes cat, dog as in .*, got the classes dog, cat .* by name"
    ) as found:
        concat(ds, other)
    assert "open it with that schema" not in str(found.value), "the numbers would get other names"
    assert [one.label for one in concat(ds, write(tmp_path / "c", other, ds.features))] == [0, 1]
    many = [f"c{k}" for k in range(100)]
    with pytest.raises(SchemaError, match=r"classes \.\.\., c48, c49, c50.*, got the classes \.\.\., c48, c49, x, c51"):
        concat(of(many, "d"), of([*many[:50], "x", *many[51:]], "e"))
