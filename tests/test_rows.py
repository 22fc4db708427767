"""Rows: indices, field names, the defaults of the base class, and the adapter for plain objects."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardex as sx
from shardex.columns import check_fields
from shardex.errors import ArgumentError, FieldError, RowError, SchemaError, ShardexError
from shardex.features import Array, Features, Text, Value
from shardex.kernel import Columns, Integers
from shardex.rows import AbstractRows, AdaptedRows, normalise

# -- normalise ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 20), st.data())
def test_normalise_equals_list_indexing(length: int, data: st.DataObject) -> None:
    rows = list(range(length))
    where = data.draw(st.slices(length))
    assert normalise(where, length).tolist() == rows[where]
    mask = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    if length:  # an empty list is a list of rows
        assert normalise(mask, length).tolist() == [k for k in rows if mask[k]]
        numbers = data.draw(st.lists(st.integers(-length, length - 1)))
        for kind in (list, tuple, np.array, lambda some: np.array(some, np.int8)):
            assert normalise(kind(numbers), length).tolist() == [rows[k] for k in numbers]
        one = data.draw(st.integers(-length, length - 1))
        for kind_of_one in (int, np.int64, np.int16, np.array):
            assert normalise(kind_of_one(one), length).tolist() == [rows[one]]


@given(st.integers(0, 20), st.data())
def test_rows_out_of_range_raise(length: int, data: st.DataObject) -> None:
    edge = st.one_of(
        st.integers(length, length + 3), st.integers(-length - 3, -length - 1), st.just(2**62), st.just(-(2**63))
    )
    bad = data.draw(edge)
    for where in (bad, [bad], np.array([bad]), [*range(length), bad]):
        with pytest.raises(RowError, match=f"got {bad}$") as caught:
            normalise(where, length)
        assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize("huge", [2**63, 2**64 - 1, 2**64 - 5])
def test_unsigned_numbers_do_not_wrap_around(huge: int) -> None:
    for where in (huge, np.uint64(huge), np.array([0, huge], np.uint64)):
        with pytest.raises(RowError, match=f"got {huge}"):
            normalise(where, 10)
    assert normalise(np.array([3, 9], np.uint64), 10).tolist() == [3, 9]


@pytest.mark.parametrize("where", [[], (), np.array([]), np.array([], np.int32), slice(0, 0), range(0)])
@pytest.mark.parametrize("length", [0, 5])
def test_no_rows(where: Any, length: int) -> None:
    rows = normalise(where, length)
    assert (rows.tolist(), rows.dtype) == ([], np.dtype(np.int64))


@pytest.mark.parametrize(
    "where", [1.0, [0.5], "a", None, [[0, 1]], True, np.zeros((1, 1), np.int64), [0, [1]], {0}, 2**70, [None], object()]
)
def test_normalise_of_other_values_raises(where: Any) -> None:
    with pytest.raises(ArgumentError, match="expected row numbers, a slice or a mask, got"):
        normalise(where, 5)


@pytest.mark.parametrize("size", [1, 4, 6])
def test_mask_of_the_wrong_size_raises(size: int) -> None:
    with pytest.raises(RowError, match=f"expected a mask of 5 truth values, got {size}"):
        normalise([True] * size, 5)


# -- fields ------------------------------------------------------------------------------------------------------


def test_check_fields() -> None:
    assert check_fields(["x", "y"], None) == ["x", "y"]
    assert check_fields(["x", "y"], ["y", "x"]) == ["y", "x"]
    assert check_fields(["x", "y"], []) == []
    with pytest.raises(FieldError, match="expected one of the fields x, y, got 'z'") as caught:
        check_fields(["x", "y"], ["x", "z"])
    assert isinstance(caught.value, KeyError)
    with pytest.raises(ArgumentError, match="expected a list of field names, got the text 'x'"):
        check_fields(["x", "y"], "x")


# -- the base class and the adapter ------------------------------------------------------------------------------


class Plain:
    """A user's rows: two methods."""

    def __len__(self) -> int:
        return 100

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        return Columns(dict.fromkeys(check_fields(["x"], fields), rows), len(rows))


class Full(Plain):
    """A user's rows with everything that is optional."""

    features = Features({"x": Value("int32")})
    fingerprint = "abc"
    in_python = False
    extracted = Features({"y": Text()})

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        return {"x": -row}

    def shards(self, rows: Integers) -> list[str]:
        return ["file"] * len(rows)

    def present(self, name: str) -> NDArray[np.bool_]:
        return np.zeros(100, np.bool_)


def test_adapted_rows_have_defaults() -> None:
    rows = AdaptedRows(Plain())
    assert len(rows) == 100 and rows.features == Features({"x": Value("int64")})
    assert (rows.sample(3), rows.shards(np.array([3, 4]))) == ({"x": 3}, ["", ""])
    assert rows.sql_columns(["x"]).column("x").to_pylist() == list(range(100)) and rows.present("x").all()
    assert (rows.in_python, rows.extracted, rows.column("x"), rows.key_lookup) == (True, Features({}), None, None)
    rows.advise(np.array([0]))


def test_adapted_rows_use_what_the_object_has() -> None:
    rows = AdaptedRows(Full())
    for one in (rows, pickle.loads(pickle.dumps(rows))):
        assert (one.features, one.fingerprint, one.in_python) == (Full.features, "abc", False)
        assert (one.sample(3), one.shards(np.array([3])), one.extracted) == ({"x": -3}, ["file"], Full.extracted)
        assert not one.present("x").any()


def test_abstract_rows_need_len_and_read() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AbstractRows()  # type: ignore[abstract]


# -- lengths of arrays -------------------------------------------------------------------------------------------


@sx.packable
class Document:
    """A typed document."""

    tokens: NDArray[np.uint16]
    n: int


DOCUMENTS = [{"tokens": np.arange(size, dtype=np.uint16), "n": size} for size in (3, 0, 5, 1, 4)]


def test_lengths_of_views_layers_and_combinations(tmp_path: Path) -> None:
    ds = sx.write(str(tmp_path / "d"), DOCUMENTS)
    typed = ds.as_type(Document)
    mapped = ds.map(lambda sample: {"tokens": np.append(sample.tokens, sample.tokens)})
    joined = sx.join(ds.select("tokens"), sx.open(DOCUMENTS).select("n"))
    for view, expected in (
        (ds, [3, 0, 5, 1, 4]),
        (ds[::-2], [4, 5, 3]),
        (ds.shuffle(1)[:0], []),
        (ds[[4, 4, 0]], [4, 4, 3]),
        (typed, [3, 0, 5, 1, 4]),
        (mapped, [6, 0, 10, 2, 8]),
        (joined, [3, 0, 5, 1, 4]),
        (sx.concat(ds[:2], ds[3:]), [3, 0, 1, 4]),
        (ds.select("tokens"), [3, 0, 5, 1, 4]),
    ):
        assert view.lengths("tokens").tolist() == expected
    assert ds.rename(tokens="ids").lengths("ids").tolist() == [3, 0, 5, 1, 4]
    with pytest.raises(FieldError, match="tokens"):
        ds.rename(tokens="ids").lengths("tokens")
    with pytest.raises(FieldError, match="tokens"):
        ds.select("n").lengths("tokens")


def test_lengths_of_edited_and_adopted_data(tmp_path: Path) -> None:
    sx.write(str(tmp_path / "d"), DOCUMENTS)
    with sx.edit(str(tmp_path / "d")) as tx:
        tx.update(2, tokens=np.zeros(9, np.uint16))
        tx.delete([0])
    assert sx.open(str(tmp_path / "d")).lengths("tokens").tolist() == [0, 9, 1, 4]
    sx.write(str(tmp_path / "tokens"), [{"tokens": sample["tokens"]} for sample in DOCUMENTS], format="tokens")
    adopted = sx.adopt(str(tmp_path / "tokens"), str(tmp_path / "adopted"))
    assert adopted.lengths("tokens").tolist() == [3, 0, 5, 1, 4]


def test_lengths_of_a_missing_array_are_0_and_single_values_have_none() -> None:
    optional = [{"x": np.zeros(2)}, {"x": None}, {"x": np.zeros(3)}]
    assert sx.open(optional).lengths("x").tolist() == [2, 0, 3]
    assert sx.open([{"x": np.zeros((2, 3))}] * 4).lengths("x").tolist() == [2] * 4
    with pytest.raises(SchemaError, match="expected a field of arrays, got text - at field s"):
        sx.open([{"s": "a"}]).lengths("s")
    rows: Any = type("Numbers", (Plain,), {"features": Features({"x": Array("int64", None)})})()
    with pytest.raises(SchemaError, match="at least one dimension, got single values - at field x"):
        sx.open(rows).lengths("x")


def test_lengths_of_lists_in_json_need_a_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": [1, 2]}\n{"tokens": [3]}\n')
    with pytest.raises(SchemaError, match=r'open with schema=\{"tokens": sx.Array\("int64", \(None,\)\)\}'):
        sx.open(str(path)).lengths("tokens")
    assert sx.open(str(path), schema={"tokens": sx.Array("int64", (None,))}).lengths("tokens").tolist() == [2, 1]


def test_lengths_of_token_files_do_not_need_the_tokens(tmp_path: Path) -> None:
    documents = [{"tokens": np.full(size, 7, np.uint16)} for size in range(1, 200)]
    ds = sx.write(str(tmp_path / "tokens"), documents, format="tokens")
    (tmp_path / "tokens" / "part-00000.bin").unlink()
    assert ds.lengths("tokens").tolist() == list(range(1, 200))
    with pytest.raises(ShardexError, match=r"part-00000\.bin"):
        ds[0]
