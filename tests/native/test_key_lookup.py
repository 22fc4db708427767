"""Keys of a dataset: found in every version, and unique in each, also with two concurrent writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, DuplicateKeyError, SchemaError, UnknownKeyError
from shardex.store import compact

SCHEMA = {"id": str, "x": int}


def sample(k: int) -> dict[str, Any]:
    return {"id": f"key {k}", "x": k}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    sx.write(tmp_path / "d", map(sample, range(10)), SCHEMA, key="id", shard_rows=3)
    return str(tmp_path / "d")


def test_get_and_rows_of(folder: str) -> None:
    ds = sx.open(folder)
    assert ds.get("key 7") == {"id": "key 7", "x": 7}
    assert ds.rows_of(["key 9", "key 0", "key 9"]).tolist() == [9, 0, 9]
    assert ds.select("x").get("key 3") == {"x": 3}
    with pytest.raises(UnknownKeyError, match="'key 10'"):
        ds.get("key 10")
    with pytest.raises(KeyError):
        ds.rows_of(["key 1", "nothing"])


def test_keys_in_a_view(folder: str) -> None:
    view = sx.open(folder)[2:8].shuffle(seed=1)
    assert view.get("key 5") == sample(5)
    assert [view[int(row)].x for row in view.rows_of(["key 2", "key 7"])] == [2, 7]
    with pytest.raises(UnknownKeyError, match="expected keys of samples in this view, got 'key 9'"):
        view.rows_of(["key 2", "key 9"])
    with pytest.raises(UnknownKeyError):
        sx.open(folder)[:0].get("key 1")


def test_edits_by_key(folder: str) -> None:
    with sx.edit(folder) as tx:
        tx.update("key 4", x=400)
        tx.delete(["key 0", "key 5"])
        tx.delete("key 9")
        tx.delete(rows=[1])
        tx.append(sample(10))
        with pytest.raises(UnknownKeyError):
            tx.update("nothing", x=1)
        with pytest.raises(SchemaError, match="expected another field than the key 'id'"):
            tx.update("key 4", id="new")
        with pytest.raises(ArgumentError, match="expected either keys or rows"):
            tx.delete()
    ds = sx.open(folder)
    assert [s.x for s in ds] == [2, 3, 400, 6, 7, 8, 10]
    assert ds.get("key 10").x == 10 and ds.rows_of(["key 8", "key 2"]).tolist() == [5, 0]
    with pytest.raises(UnknownKeyError):
        ds.get("key 5")
    assert sx.open(folder, version=1).get("key 5").x == 5
    compact(folder, progress=False)
    assert sx.open(folder).rows_of(["key 8", "key 2"]).tolist() == [5, 0]


def test_duplicate_keys_raise(folder: str) -> None:
    with (
        pytest.raises(DuplicateKeyError, match="expected every key once, got 'key 3' twice - at field id"),
        sx.edit(folder) as tx,
    ):
        tx.append(sample(3))
    with pytest.raises(DuplicateKeyError, match="'key 11' twice"), sx.edit(folder) as tx:
        tx.extend([sample(11), sample(12), sample(11)])
    with pytest.raises(DuplicateKeyError, match="'key 3' twice"):
        sx.write(folder, [sample(3)], mode="append")
    with pytest.raises(DuplicateKeyError, match="twice"):
        sx.write(folder + "2", [sample(3), sample(3)], SCHEMA, key="id", shard_rows=1)
    assert len(sx.open(folder)) == 10
    assert len(sx.write(folder + "2", [sample(3)], SCHEMA, key="id")) == 1  # the failed write left nothing
    with sx.edit(folder) as tx:  # a key that is deleted is free again
        tx.delete("key 3")
        tx.append({"id": "key 3", "x": 33})
    assert sx.open(folder).get("key 3").x == 33


def test_two_writers_cannot_append_the_same_key(folder: str) -> None:
    first, second = sx.edit(folder), sx.edit(folder)
    first.append(sample(20))
    second.append(sample(20))
    first.commit()
    with pytest.raises(DuplicateKeyError, match="'key 20' twice"):
        second.commit()


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ({"x": float}, {"key": "x"}, "expected a key of whole numbers, text or bytes, got float64 - at field x"),
        ({"x": int}, {"key": "y"}, "expected one of the fields x as key, got 'y'"),
        ({"x": str | None}, {"key": "x"}, "expected a key of whole numbers"),
        ({"x": int}, {"key": "x", "generate_keys": True}, "expected a text field for generated keys"),
        ({"x": int}, {"generate_keys": True}, "expected key= to say which field"),
    ],
)
def test_invalid_key_fields_raise(tmp_path: Path, schema: Any, options: Any, message: str) -> None:
    with pytest.raises((ArgumentError, SchemaError), match=message):
        sx.create(tmp_path / "d", schema, **options)


def test_key_field_cannot_be_changed(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected the key it has \(id\), got 'x'"):
        sx.create(folder, mode="append", key="x")
    with sx.edit(folder) as tx:
        with pytest.raises(SchemaError, match="expected another field than the key 'id'"):
            tx.drop_field("id")
        with pytest.raises(SchemaError, match="expected another field than the key 'id'"):
            tx.rename_field("id", "key")
    with pytest.raises(SchemaError, match="expected a dataset that was made with key="):
        sx.write(tmp_path / "e", [{"x": 1}]).get(1)


def test_generated_keys(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": k} for k in range(5)], SCHEMA, key="id", generate_keys=True)
    with sx.edit(tmp_path / "d") as tx:
        tx.append(x=5)
        tx.append(x=6, id="mine")
    ds = sx.open(tmp_path / "d")
    assert len({s.id for s in ds}) == 7 and all(ds.get(s.id) == s for s in ds) and ds.get("mine").x == 6


@pytest.mark.parametrize("kind", ["int64", "uint64", bytes])
def test_integers_and_bytes_as_keys(tmp_path: Path, kind: Any) -> None:
    keys = [b"a", b"", b"\xff"] if kind is bytes else [0, 5, 2**63 - 1]
    ds = sx.write(tmp_path / "d", [{"k": key, "x": n} for n, key in enumerate(keys)], {"k": kind, "x": int}, key="k")
    assert ds.rows_of(keys[::-1]).tolist() == [2, 1, 0]
    if kind is not bytes:
        assert ds.rows_of(np.array(keys)).tolist() == [0, 1, 2]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=6))
def test_appends_compared_with_a_set(tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]) -> None:
    folder = tmp_path_factory.mktemp("keys") / "d"
    sx.write(folder, [], {"k": int}, key="k")
    seen: list[int] = []
    for batch in batches:
        fits = len(set(batch)) == len(batch) and not set(batch) & set(seen)
        try:
            sx.write(folder, [{"k": k} for k in batch], mode="append", progress=False)
        except DuplicateKeyError:
            assert not fits
        else:
            assert fits
            seen += batch
    ds = sx.open(folder)
    assert [s.k for s in ds] == seen and ds.rows_of(seen).tolist() == list(range(len(seen)))


@pytest.mark.parametrize("keys", [{"a"}, "a", 1.5, iter(["a"]), slice(0, 1)])
def test_keys_that_are_not_a_list_raise(tmp_path: Path, keys: Any) -> None:
    ds = sx.write(tmp_path / "d", [{"k": "a"}], key="k")
    with pytest.raises(ArgumentError, match="expected a list or an array of keys"):
        ds.rows_of(keys)
