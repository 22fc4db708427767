"""Two concurrent transactions: which can be rebased and which conflict, including fields that were replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import CommitConflict, VersionExpired

Change = Callable[[sx.store.Edit], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sx.write(tmp_path / "d", [{"a": k, "b": 10 + k} for k in range(5)], {"a": int, "b": int})
    return tmp_path / "d"


def both(folder: Path, theirs: Change, mine: Change) -> sx.Dataset:
    """My transaction begins first and is committed last."""
    own = sx.edit(folder)
    with sx.edit(folder) as other:
        theirs(other)
    mine(own)
    own.commit()
    return sx.open(folder)


def test_same_value_was_written_to_another_field(folder: Path) -> None:
    """Overlay files are named by their content, which does not contain the name of the field."""
    with sx.edit(folder) as tx:
        tx.update(3, a=1)
    with pytest.raises(CommitConflict, match="the field b of row with id 3"):
        both(folder, lambda tx: tx.update(3, b=1), lambda tx: tx.update(3, b=2))


def test_value_set_back_to_an_earlier_one(folder: Path) -> None:
    for value in (1, 2):
        with sx.edit(folder) as tx:
            tx.update(3, a=value)
    with pytest.raises(CommitConflict, match="the field a of row with id 3"):
        both(folder, lambda tx: tx.update(3, a=1), lambda tx: tx.update(3, a=5))


def swap(tx: sx.store.Edit) -> None:
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        tx.rename_field(old, new)


def anew(tx: sx.store.Edit) -> None:
    tx.drop_field("a")
    tx.add_field("a", "int64", [0] * 5)


@pytest.mark.parametrize("theirs", [swap, anew])
@pytest.mark.parametrize("mine", [lambda tx: tx.update(3, a=-7), lambda tx: tx.append(a=1, b=2)])
def test_replaced_fields_conflict(folder: Path, theirs: Change, mine: Change) -> None:
    with pytest.raises(CommitConflict, match="the field a"):
        both(folder, theirs, mine)


def test_add_field_conflicts_with_restored_rows(folder: Path) -> None:
    with sx.edit(folder) as tx:
        tx.delete(3)
    own = sx.edit(folder)
    own.add_field("c", "int64", [7] * 4)
    sx.store.restore(folder, 1)
    with pytest.raises(CommitConflict, match="restored deleted rows"):
        own.commit()


def test_append_conflicts_with_a_changed_key(tmp_path: Path) -> None:
    samples = [{"k": k, "x": k} for k in range(4)]
    sx.write(tmp_path / "d", samples, key="k")
    own = sx.edit(tmp_path / "d")
    own.append(k=10, x=3)
    sx.write(tmp_path / "d", samples, key="x", mode="overwrite")
    with pytest.raises(CommitConflict):
        own.commit()
    assert sx.open(tmp_path / "d").get(3).x == 3


def test_add_field_to_adopted_shards_without_samples(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    sx.adopt(tmp_path / "a.jsonl", tmp_path / "d", schema={"x": int})
    with sx.edit(tmp_path / "d", trust_paths=True) as tx:
        tx.add_field("c", "int64", [])
    ds = sx.open(tmp_path / "d", trust_paths=True)
    assert (len(ds), ds.fields, len(sx.store.history(tmp_path / "d"))) == (0, ["x", "c"], 2)


def test_both_delete_a_row_and_mine_updates_another(folder: Path) -> None:
    def mine(tx: sx.store.Edit) -> None:
        tx.delete(3)
        tx.update(1, a=-1)

    assert [sample.a for sample in both(folder, lambda tx: tx.delete(3), mine)] == [0, -1, 2, 4]


def test_update_conflicts_with_delete_of_the_row(folder: Path) -> None:
    with pytest.raises(CommitConflict, match="they deleted row with id 3 of the rows that yours changes"):
        both(folder, lambda tx: tx.delete(3), lambda tx: tx.update(3, a=1))


def test_reading_a_cleaned_version_raises_version_expired(folder: Path) -> None:
    reader = sx.open(folder)
    sx.write(folder, [{"a": 0, "b": 0}], {"a": int, "b": int}, mode="overwrite")
    sx.clean(folder, keep=1, grace=0)
    with pytest.raises(VersionExpired, match="old versions were cleaned up"):
        reader[3]
    assert len(sx.open(folder)) == 1
