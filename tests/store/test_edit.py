"""Transactions: all or nothing, old versions do not change, and every version equals a plain list."""

from __future__ import annotations

import enum
import gc
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import shardex as sx
from shardex.errors import (
    ArgumentError,
    ClosedError,
    CommitConflict,
    FieldError,
    FormatError,
    RowError,
    SchemaError,
    SourceError,
    UnknownKeyError,
    VersionExpired,
)
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource, place_of
from shardex.store import clean, compact, history, restore
from tests.data_files import table_of
from tests.locations import KINDS, new_location

SCHEMA = {"n": int, "v": sx.Array("float32", (2,)), "t": sx.Array("int16", (None,)), "s": str, "o": str | None}


def sample(k: int) -> dict[str, Any]:
    return {
        "n": k,
        "v": np.full(2, k, np.float32),
        "t": np.arange(k % 4, dtype=np.int16),
        "s": f"s{k}",
        "o": None if k % 3 else f"o{k}",
    }


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A dataset of ten samples, local or in memory."""
    address = new_location(request.param, tmp_path)
    sx.write(address, map(sample, range(10)), SCHEMA, shard_rows=4)
    return address


def check(ds: sx.Dataset, expected: Sequence[dict[str, Any]]) -> None:
    """All ways to read give the samples of a list."""
    assert len(ds) == len(expected)
    assert list(ds) == list(expected)
    assert [ds[k] for k in range(len(ds))] == expected
    backwards = np.arange(len(expected))[::-1]
    assert list(sx.Batch(ds.read(backwards))) == expected[::-1]


def test_all_kinds_of_edits_in_one_transaction(folder: str) -> None:
    before = sx.open(folder)
    old = list(before)
    with sx.edit(folder) as tx:
        tx.rename_field("s", "text")
        tx.drop_field("o")
        tx.add_field("e", sx.Array("float32", (3,)), np.arange(30, dtype=np.float32).reshape(10, 3))
        tx.update(3, text="changed", t=np.array([7, 8, 9], np.int16))
        tx.update(-1, text="last")
        tx.update(3, text="changed again")
        tx.delete([0, 5])
        tx.delete(6)
        new = {**sample(99), "text": "new", "e": np.zeros(3, np.float32)}
        tx.append({name: value for name, value in new.items() if name not in ("s", "o")})
    expected = []
    for k, one in enumerate(old):
        e = np.arange(3 * k, 3 * k + 3, dtype=np.float32)
        expected.append({"n": one.n, "v": one.v, "t": one.t, "text": one.s, "e": e})
    expected[3] |= {"text": "changed again", "t": np.array([7, 8, 9], np.int16)}
    expected[9]["text"] = "last"
    expected = [one for k, one in enumerate(expected) if k not in (0, 5, 6)]
    expected.append({name: new[name] for name in ("n", "v", "t", "text", "e")})
    ds = sx.open(folder)
    check(ds, expected)
    check(sx.open(folder, version=1), old)
    check(before, old)
    assert tx.version == 2
    assert history(folder)[-1].change == (
        "rename field s, drop field o, add field e, append: 1 sample, update: 2 samples, delete: 3 samples"
    )
    assert pickle.loads(pickle.dumps(ds))[0] == expected[0]
    assert compact(folder, progress=False) == 3
    check(sx.open(folder), expected)
    assert compact(folder, progress=False) is None


def test_exception_leaves_the_dataset_unchanged(folder: str) -> None:
    place = place_of(folder)
    files = place.paths()

    def interrupted() -> None:
        with sx.edit(folder) as tx:
            tx.add_field("f", "int64", range(10))
            tx.update(1, s="x")
            tx.delete(2)
            tx.append({**sample(10), "f": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert len(history(folder)) == 1
    if place.is_remote:  # what was uploaded by then stays until `clean`
        left = sx.store.leftovers(folder)
        assert left and clean(folder, grace=0) == left
    assert place.paths() == files


def test_use_after_the_end_raises(folder: str) -> None:
    with sx.edit(folder) as tx:
        tx.delete(1)
    with pytest.raises(ClosedError, match="expected an open transaction"):
        tx.delete(1)


def test_transaction_without_changes_makes_no_version(folder: str) -> None:
    with sx.edit(folder) as tx:
        pass
    assert tx.version is None and len(history(folder)) == 1


def test_wrong_edits_raise_and_the_transaction_stays_usable(folder: str) -> None:
    with sx.edit(folder) as tx:
        with pytest.raises(FieldError, match="expected one of the fields n, v, t, s, o, got 'x'"):
            tx.update(1, x=1)
        with pytest.raises(SchemaError, match=r"expected float32\[2\], got .*int64\[3\]"):
            tx.update(1, v=[1, 2, 3])
        with pytest.raises(RowError, match="expected a row from -10 to 9, got 10"):
            tx.update(10, n=1)
        with pytest.raises(ArgumentError, match="a slice or a mask, got 'a'"):
            tx.update("a", n=1)
        with pytest.raises(ArgumentError, match="expected at least one field"):
            tx.update(1)
        with pytest.raises(RowError):
            tx.delete([3, 12])
        with pytest.raises(SchemaError, match="expected a new field, got 'n'"):
            tx.add_field("n", "int64", range(10))
        with pytest.raises(SchemaError, match="expected 10 values for the field f, one per sample, got 9"):
            tx.add_field("f", "int64", list(range(9)))
        with pytest.raises(SchemaError, match="expected 10 values for the field f, got only 3"):
            tx.add_field("f", "int64", iter(range(3)))
        with pytest.raises(SchemaError, match="expected 10 values for the field f, got more"):
            tx.add_field("f", "int64", iter(range(11)))
        with pytest.raises(SchemaError, match="expected values for the field f, or a feature that is optional"):
            tx.add_field("f", "int64")
        with pytest.raises(FieldError, match="got 'zz'"):
            tx.drop_field("zz")
        with pytest.raises(SchemaError, match="got 's', which exists already"):
            tx.rename_field("n", "s")
        tx.update(1, n=100)
        with pytest.raises(SchemaError, match="expected a field to be changed before its values are"):
            tx.drop_field("n")
    assert sx.open(folder)[1].n == 100


def test_only_native_datasets_can_be_edited(tmp_path: Path) -> None:
    sx.write(tmp_path / "j", [{"x": 1}], format="jsonl")
    with pytest.raises(FormatError, match="expected a native dataset"):
        sx.edit(tmp_path / "j")


@pytest.mark.parametrize("deleted", [[], [0, 1, 2, 3], [1, 7, 9]])
def test_values_of_a_new_field_from_any_source(folder: str, deleted: list[int]) -> None:
    with sx.edit(folder) as tx:
        tx.delete(deleted)
    ds = sx.open(folder)
    texts = [f"f{k}" for k in range(len(ds))]
    with sx.edit(folder) as tx:
        tx.add_field("listed", str, texts)
        tx.add_field("made", "int64", lambda s: s.n * 2)
        tx.add_field("other", sx.Array("float32", (2,)), ds.select("v"))
        tx.add_field("nothing", str | None)
        tx.add_field("ragged", sx.Array("int8", (None,)), (np.arange(k % 3, dtype=np.int8) for k in range(len(ds))))
    for k, one in enumerate(sx.open(folder)):
        assert one.listed == texts[k] and one.made == 2 * one.n and (one.other == one.v).all()
        assert one.nothing is None and len(one.ragged) == k % 3
    with sx.edit(folder) as tx:
        tx.append({**sample(50), "listed": "x", "made": 1, "other": [0, 0], "nothing": "some", "ragged": []})
    assert [s.nothing for s in sx.open(folder)][-2:] == [None, "some"]


def test_a_field_may_be_named_row(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"row": k, "a": -k} for k in range(5)])
    with sx.edit(tmp_path / "d") as tx:
        tx.update(1, row=100, a=5)
    with sx.edit(tmp_path / "d") as tx:
        tx.rename_field("row", "value")
        tx.rename_field("a", "row")
    assert [s.row for s in sx.open(tmp_path / "d")] == [0, 5, -2, -3, -4]
    assert [s.value for s in sx.open(tmp_path / "d")] == [0, 100, 2, 3, 4] and len(ds) == 5


def test_overwrite_does_not_reuse_ids(folder: str) -> None:
    before = sx.edit(folder)
    before.update(0, s="x")
    sx.write(folder, map(sample, range(100, 105)), SCHEMA, mode="overwrite")
    with pytest.raises(CommitConflict):
        before.commit()
    assert [s.s for s in sx.open(folder)] == [f"s{k}" for k in range(100, 105)]


def test_new_field_needs_a_value_for_every_sample(folder: str) -> None:
    with sx.edit(folder) as tx, pytest.raises(SchemaError, match="expected int64, got None - at sample 0, field y"):
        tx.add_field("y", int, [None, *range(9)])


def test_rows_without_any_file_have_no_shard(folder: str) -> None:
    with sx.edit(folder) as tx:
        tx.add_field("y", str | None)
        for name in SCHEMA:
            tx.drop_field(name)
    ds = sx.open(folder)
    assert ds.shards([0, 9]) == ["", ""] and ds[3].y is None


def test_updates_rewrite_no_data_file(folder: str) -> None:
    place = place_of(folder)
    before = {path: place.stat(path).modified for path in place.paths("data/")}
    with sx.edit(folder) as tx:
        tx.update(2, s="x")
    after = {path: place.stat(path).modified for path in place.paths("data/")}
    assert before.items() <= after.items() and len(after) == len(before) + 1


def test_many_updates_are_written_in_batches(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.native.commit.BATCH_BYTES", 100)
    with sx.edit(folder) as tx:
        for turn in range(100):
            for row in range(10):
                tx.update(row, s=f"{turn} {row}")
    assert [s.s for s in sx.open(folder)] == [f"99 {row}" for row in range(10)]


# -- concurrent editors ---------------------------------------------------------------------------------------------


def test_concurrent_edits_of_different_rows_and_fields(folder: str) -> None:
    first, second, third, fourth = (sx.edit(folder) for _ in range(4))
    first.update(1, s="first")
    second.update(1, n=-1)
    second.update(2, s="second")
    third.delete(5)
    third.append(sample(20))
    fourth.append(sample(21))
    for tx in (first, second, third, fourth):
        tx.commit()
    ds = sx.open(folder)
    assert (ds[1].s, ds[1].n, ds[2].s) == ("first", -1, "second")
    assert [s.n for s in ds][5:] == [6, 7, 8, 9, 20, 21] and fourth.version == 5


Does = Callable[[sx.store.Edit], None]
CONFLICTS: dict[str, tuple[Does, Does]] = {
    "the same value": (lambda tx: tx.update(1, s="a"), lambda tx: tx.update(1, s="b")),
    "update of a deleted row": (lambda tx: tx.delete(1), lambda tx: tx.update(1, s="b")),
    "delete of an updated row": (lambda tx: tx.update(1, s="a"), lambda tx: tx.delete(1)),
    "update of a dropped field": (lambda tx: tx.drop_field("s"), lambda tx: tx.update(1, s="b")),
    "field for appended rows": (lambda tx: tx.append(sample(11)), lambda tx: tx.add_field("f", "int64", range(10))),
    "append without the field": (lambda tx: tx.add_field("f", "int64", range(10)), lambda tx: tx.append(sample(11))),
    "the same field": (
        lambda tx: tx.add_field("f", "int64", range(10)),
        lambda tx: tx.add_field("f", "int64", range(10)),
    ),
    "two new names": (lambda tx: tx.rename_field("s", "z"), lambda tx: tx.rename_field("s", "y")),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_conflict_names_both_changes(folder: str, case: str) -> None:
    theirs, ours = sx.edit(folder), sx.edit(folder)
    CONFLICTS[case][0](theirs)
    CONFLICTS[case][1](ours)
    theirs.commit()
    after = list(sx.open(folder))
    with pytest.raises(CommitConflict, match=r"yours \(.+\) and theirs \(.+\) conflict"):
        ours.commit()
    assert list(sx.open(folder)) == after


def test_two_transactions_may_delete_the_same_row(folder: str) -> None:
    theirs, ours = sx.edit(folder), sx.edit(folder)
    theirs.delete([1, 2])
    ours.delete([2, 3])
    theirs.commit()
    ours.commit()
    assert [s.n for s in sx.open(folder)] == [0, 4, 5, 6, 7, 8, 9]


def test_concurrent_append_and_optional_field(folder: str) -> None:
    theirs, ours = sx.edit(folder), sx.edit(folder)
    theirs.append(sample(10))
    ours.add_field("f", str | None, [f"f{k}" for k in range(10)])
    theirs.commit()
    ours.commit()
    assert [s.f for s in sx.open(folder)][-2:] == ["f9", None]


# -- versions -------------------------------------------------------------------------------------------------------


def test_restore_makes_an_old_version_current(folder: str) -> None:
    old = list(sx.open(folder))
    with sx.edit(folder) as tx:
        tx.delete(slice(0, 8))
    assert restore(folder, 1) == 3
    check(sx.open(folder), old)
    assert history(folder)[-1].change == "restore: version 1"
    with sx.edit(folder) as tx:
        tx.append(sample(10))
    assert len(sx.open(folder)) == 11


def test_clean_removes_only_files_that_no_kept_version_uses(folder: str) -> None:
    with sx.edit(folder) as tx:
        tx.update(1, s="x")
        tx.delete(2)
    compact(folder, progress=False)
    expected = list(sx.open(folder))
    assert clean(folder, keep=2) == ["_shardex/00000001.json"]  # everything else is named, or too young
    removed = clean(folder, keep=1, grace=0)
    assert "_shardex/00000002.json" in removed and len(removed) == 1 + 3 + 2
    check(sx.open(folder), expected)
    assert [version.number for version in history(folder)] == [3]
    assert clean(folder, keep=1, grace=0) == []


WRONG = [{"grace": one} for one in (-1, -0.5, np.nan, "1", None, True)]
WRONG += [{"keep": one} for one in (0, 1.5, "1", None)]


@pytest.mark.parametrize("wrong", WRONG, ids=map(str, WRONG))
def test_clean_refuses_wrong_arguments(folder: str, wrong: dict[str, Any]) -> None:
    with sx.edit(folder) as tx:
        tx.delete(2)
    with pytest.raises(ArgumentError, match=f"{next(iter(wrong))}.*got {next(iter(wrong.values()))!r}"):
        clean(folder, **wrong)
    assert [version.number for version in history(folder)] == [1, 2]


@pytest.mark.parametrize("version", [1.5, "1", None, 0, -1])
def test_restore_refuses_wrong_versions(folder: str, version: Any) -> None:
    with pytest.raises(ArgumentError, match="for version, got"):
        restore(folder, version)


class Store(RuleBasedStateMachine):
    """Random edits compared with a plain list; in the end all versions are read again, also by older readers."""

    @initialize(kind=st.sampled_from(KINDS), samples=st.integers(0, 7), shard_rows=st.integers(1, 5))
    def create(self, kind: str, samples: int, shard_rows: int) -> None:
        self.folder = new_location(kind, tempfile.mkdtemp())
        sx.write(self.folder, [sample(k) for k in range(samples)], SCHEMA, shard_rows=shard_rows, progress=False)
        self.count = samples
        self.model = [sample(k) for k in range(samples)]
        self.versions = [list(self.model)]
        self.readers = [sx.open(self.folder)]
        self.fields = list(SCHEMA)

    def done(self) -> None:
        self.versions.append([dict(one) for one in self.model])
        self.readers.append(sx.open(self.folder))

    @rule(appended=st.integers(1, 4))
    def append(self, appended: int) -> None:
        new = [sample(self.count + k) for k in range(appended)]
        for one in new:
            one |= {name: len(name) for name in self.fields if name not in one}
        self.count += appended
        with sx.edit(self.folder, progress=False) as tx:
            tx.extend(new)
        self.model += new
        self.done()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.integers(0, len(self.model) - 1), min_size=1, max_size=6))
        with sx.edit(self.folder) as tx:
            for turn, row in enumerate(rows):
                new = sample(1000 + turn)
                names = data.draw(st.sets(st.sampled_from(list(SCHEMA)), min_size=1))
                tx.update(row, **{name: new[name] for name in names})
                self.model[row] = {**self.model[row], **{name: new[name] for name in names}}
        self.done()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        rows = data.draw(st.sets(st.integers(0, len(self.model) - 1), min_size=1, max_size=4))
        with sx.edit(self.folder) as tx:
            tx.delete(sorted(rows))
        self.model = [one for k, one in enumerate(self.model) if k not in rows]
        self.done()

    @precondition(lambda self: len(self.fields) < 8)
    @rule()
    def add_field(self) -> None:
        name = f"f{len(self.versions)}"
        with sx.edit(self.folder, progress=False) as tx:
            tx.add_field(name, "int64", list(range(len(self.model))))
        self.model = [{**one, name: k} for k, one in enumerate(self.model)]
        self.fields.append(name)
        self.done()

    @precondition(lambda self: len(self.fields) > 5)
    @rule()
    def drop_field(self) -> None:
        name = self.fields.pop()
        with sx.edit(self.folder) as tx:
            tx.drop_field(name)
        self.model = [{n: v for n, v in one.items() if n != name} for one in self.model]
        self.done()

    @rule()
    def compact(self) -> None:
        if compact(self.folder, progress=False) is not None:
            self.done()

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(1, len(self.versions)))
        restore(self.folder, version)
        self.model = [dict(one) for one in self.versions[version - 1]]
        self.fields = list(sx.open(self.folder).fields)
        self.done()

    def check_version(self, number: int) -> None:
        for ds in (sx.open(self.folder, version=number), self.readers[number - 1]):
            assert len(ds) == len(self.versions[number - 1])
            assert list(ds) == self.versions[number - 1]

    def teardown(self) -> None:
        for number in range(1, len(getattr(self, "versions", [])) + 1):
            self.check_version(number)

    @invariant()
    def newest_version_equals_the_list(self) -> None:
        if not hasattr(self, "versions"):
            return
        self.check_version(len(self.versions))
        if self.model:
            rows = np.arange(len(self.model))[::-1]
            assert list(sx.Batch(self.readers[-1].read(rows))) == self.model[::-1]
            assert [self.readers[-1][int(row)] for row in rows] == self.model[::-1]


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)


# -- many rows at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([3, 0], {3: 10, 0: 11}),
        (np.array([3, 0]), {3: 10, 0: 11}),
        (slice(1, 3), {1: 10, 2: 11}),
        (range(4, 2, -1), {4: 10, 3: 11}),
        (np.array([False, True, False, True, False]), {1: 10, 3: 11}),
        ((-1, 1), {4: 10, 1: 11}),
        ([2, 2], {2: 11}),
    ],
)
def test_update_of_many_rows(tmp_path: Path, rows: Any, expected: dict[int, int]) -> None:
    ds = sx.write(tmp_path / "d", [{"x": k, "s": str(k)} for k in range(6)], shard_rows=2)
    with sx.edit(tmp_path / "d") as tx:
        tx.delete(5)
    with sx.edit(tmp_path / "d") as tx:
        tx.update(0, s="first")
        tx.update(rows, x=np.array([10, 11]), s=["a", "b"])
        tx.update(2, s="last")
    now = sx.open(tmp_path / "d")
    assert [s.x for s in now] == [expected.get(k, k) for k in range(5)]
    texts = {0: "first"} | {row: "ab"[value - 10] for row, value in expected.items()} | {2: "last"}
    assert [s.s for s in now] == [texts.get(k, str(k)) for k in range(5)]
    assert len(ds) == 6 and sx.verify(tmp_path / "d") == []


def test_update_of_many_rows_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.native.commit.BATCH_BYTES", 1 << 10)
    sx.write(tmp_path / "d", [{"x": np.zeros(16)} for k in range(100)], {"x": sx.Array("float64", (16,))})
    with sx.edit(tmp_path / "d") as tx:
        tx.update(slice(None), x=np.arange(1600.0).reshape(100, 16))
    (overlay,) = read_manifest(LocalSource(tmp_path / "d"), 2).overlays
    assert table_of(tmp_path / "d", overlay).rows.tolist() == [8] * 12 + [4]
    assert [s.x[0] for s in sx.open(tmp_path / "d")] == list(range(0, 1600, 16))


def test_update_of_many_keys(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"k": name, "x": 0} for name in "abcd"], key="k")
    with sx.edit(tmp_path / "d") as tx:
        tx.update(["d", "b"], x=[4, 2])
        with pytest.raises(SchemaError, match="got str 'x' - at the sample with key 'c', field x"):
            tx.update(["a", "c"], x=[1, "x"])
        with pytest.raises(SchemaError, match="got str 'y' - at the sample with key 'a', field x"):
            tx.update("a", x="y")
        with pytest.raises(KeyError, match="nobody"):
            tx.update(["a", "nobody"], x=[1, 1])
        with pytest.raises(ArgumentError, match="expected keys, as the dataset has the key 'k', got slice"):
            tx.update(slice(2), x=[1, 1])
    assert [(s.k, s.x) for s in sx.open(tmp_path / "d")] == [("a", 0), ("b", 2), ("c", 0), ("d", 4)]


def test_refused_update_is_no_update(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1, "s": "a"}], progress=False)
    with sx.edit(tmp_path / "d") as tx:
        with pytest.raises(SchemaError):
            tx.update(0, s="b", x="wrong")
        assert "updated" not in repr(tx)
        tx.put(0, {"x": 5, "s": "a"})
    assert list(sx.open(tmp_path / "d")) == [{"x": 5, "s": "a"}]


def test_update_of_many_rows_with_wrong_values(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": k, "s": str(k)} for k in range(5)])
    with sx.edit(tmp_path / "d") as tx:
        tx.delete(0)
    with sx.edit(tmp_path / "d") as tx:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"x": [1, 2, 3]}, "expected 2 values for the field x, one per row, got 3"),
            ({"s": "ab"}, "expected a list or an array of values for the field s, one per row, got str"),
            ({"x": 1}, "expected a list or an array of values for the field x, one per row, got int"),
            ({"x": [1, 2], "s": ["a", 5]}, "expected text, got int - at sample 3, field s"),
            ({"x": [None, 2]}, "expected int64, got None - at sample 1, field x"),
            ({"x": np.array([1.5, 2.5])}, "at sample 1, field x"),
        ]
        for wrong, what in cases:
            with pytest.raises(ValueError, match=what):
                tx.update([1, 3], **wrong)
        with pytest.raises(RowError):
            tx.update([1, 4], x=[1, 2])
        tx.update([], x=[])
        with pytest.raises(SchemaError, match="expected int64, got str 'x' - at sample 3, field x"):
            tx.update(3, x="x")
    assert tx.version is None, "nothing was changed"
    assert [s.x for s in sx.open(tmp_path / "d")] == [1, 2, 3, 4]


def test_edit_of_an_open_dataset(tmp_path: Path) -> None:
    """Row numbers are those of the version that is open; what others changed since is kept, or a conflict."""
    ds = sx.write(tmp_path / "d", [{"x": k, "y": 0} for k in range(4)])
    with sx.edit(tmp_path / "d") as tx:
        tx.delete(0)
        tx.append(x=4, y=0)
    with sx.edit(ds.select("x")) as tx:
        assert len(tx.dataset) == 4 and tx.dataset.version == 1
        tx.update(3, x=30)
    assert tx.version == 3 and [s.x for s in sx.open(tmp_path / "d")] == [1, 2, 30, 4]
    tx = sx.edit(ds)
    tx.update(0, x=5)
    with pytest.raises(CommitConflict, match="they deleted row with id 0"):
        tx.commit()
    for wrong in (ds[1:], ds.shuffle(0), ds.where("x > 1")):
        with pytest.raises(ArgumentError, match="expected a whole dataset, got a view"):
            sx.edit(wrong)
    with pytest.raises(ArgumentError, match="expected a native dataset, or the path of one"):
        sx.edit(sx.open([{"x": 1}]))
    sx.clean(tmp_path / "d")
    with pytest.raises(VersionExpired, match="version 1 was removed"):
        sx.edit(ds)


def test_edit_and_versions_of_a_path_without_a_native_dataset(tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "empty").mkdir()
    for call in (sx.edit, sx.store.history, sx.compact, sx.clean, lambda path: sx.store.restore(path, 1)):
        with pytest.raises(FileNotFoundError, match=r"expected the folder of a native dataset, .*, got nothing: .*no"):
            call(tmp_path / "no")
        with pytest.raises(SourceError, match=r"expected the folder of a native dataset, .*, got a file: .*file"):
            call(tmp_path / "file.jsonl")
        with pytest.raises(FormatError, match=r"got a folder with other files; `sx.write` copies"):
            call(tmp_path)
        with pytest.raises(FormatError, match=r"empty: expected a native dataset, .*, got nothing"):
            call(tmp_path / "empty")
        with pytest.raises(FormatError, match=r"expected a native dataset, .*, got nothing"):
            call("memory://nowhere/at/all")


def test_transaction_that_is_dropped_warns_and_says_what_it_holds(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}, {"x": 2}])
    words = "1 sample appended, 1 sample updated, 1 field changed"

    def drop() -> None:
        tx = sx.edit(tmp_path / "d")
        tx.add_field("y", "int64", [1, 2])
        tx.update(0, x=5)
        tx.append(x=3, y=3)
        assert repr(tx) == f"Edit({str(tmp_path / 'd')!r}, open, {words})"
        del tx
        gc.collect()

    with pytest.warns(UserWarning, match=rf"expected the transaction to be closed.*{words} not written"):
        drop()
    with sx.edit(tmp_path / "d") as done:
        done.append(x=3)
    assert repr(done) == f"Edit({str(tmp_path / 'd')!r}, closed, 1 sample appended)"


def test_values_and_rows_of_pandas_polars_and_pyarrow(tmp_path: Path) -> None:
    import pandas as pd
    import polars as pl

    sx.write(tmp_path / "d", {"x": np.arange(3.0), "s": ["a", "b", "c"]})
    with sx.edit(tmp_path / "d") as tx:
        tx.add_field("n", int | None, pd.Series([1, None, 3], dtype="Int64"))
        tx.add_field("t", str | None, pd.Series(["a", None, "c"], dtype="str"))
        tx.add_field("p", int | None, pa.chunked_array([[1, None], [3]]))
        tx.add_field("d", sx.Optional(sx.Date()), pl.Series([None, date(2024, 1, 31), None]))
        tx.update(pd.Index([2, 0]), x=pd.Series([20.5, 0.5], index=[7, 8]), s=pl.Series(["z", "y"]))
        tx.update(pd.Series([True, False, False]), n=pd.Series([None], dtype="Int64"))
    with sx.edit(tmp_path / "d") as tx:
        tx.extend(sx.open(tmp_path / "d").to_pandas()[1:2].astype({"n": "Int64", "p": "Int64"}))
    expected = [
        {"x": 0.5, "s": "y", "n": None, "t": "a", "p": 1, "d": None},
        {"x": 1.0, "s": "b", "n": None, "t": None, "p": None, "d": date(2024, 1, 31)},
        {"x": 20.5, "s": "z", "n": 3, "t": "c", "p": 3, "d": None},
    ]
    assert list(sx.open(tmp_path / "d")) == [*expected, expected[1]]
    with sx.edit(tmp_path / "d") as tx, pytest.raises(ArgumentError, match=r"a row, a list of them, .* got 'x > 1'"):
        tx.update("x > 1", x=0.0)


def test_rows_of_series_of_keys(tmp_path: Path) -> None:
    import pandas as pd

    sx.write(tmp_path / "d", [{"k": name, "x": 0} for name in "abc"], key="k")
    with sx.edit(tmp_path / "d") as tx:
        tx.update(pd.Series(["c", "a"], index=[5, 6]), x=[3, 1])
        with pytest.raises(SchemaError, match="got str 'x' - at the sample with key 'b'"):
            tx.update(pd.Series(["b"], index=[5]), x=["x"])
    assert [s.x for s in sx.open(tmp_path / "d")] == [1, 0, 3]


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Part:
    n: int


@dataclass
class Typed:
    level: Level
    part: Part


def test_updates_take_members_of_enums_and_instances_of_nested_classes(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [Typed(Level.LOW, Part(k)) for k in range(4)])
    with sx.edit(tmp_path / "d") as tx:
        tx.update(0, level=Level.HIGH, part=Part(7))
        tx.update([1, 2], level=[Level.HIGH, Level.LOW], part=[Part(8), Part(9)])
    with sx.edit(tmp_path / "d") as tx:
        tx.append(level=Level.HIGH, part=Part(5))
    found = [(one.level.name, one.part.n) for one in sx.open(tmp_path / "d", Typed)]
    assert found == [("HIGH", 7), ("HIGH", 8), ("LOW", 9), ("LOW", 3), ("HIGH", 5)]


def test_what_to_do_instead(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"k": f"k{n}", "n": n} for n in range(5)], key="k")
    plain = sx.write(tmp_path / "plain", [{"n": n} for n in range(5)])
    with sx.edit(ds) as tx:
        with pytest.raises(UnknownKeyError) as caught:
            tx.delete(where="n > 3")
        assert caught.value.__notes__ == [
            'for a condition give a mask of the rows: tx.delete(rows=tx.dataset["n"] > 3)'
        ]
        tx.delete(rows=tx.dataset["n"] > 3)
        for value in (0, "x"):
            with pytest.raises(SchemaError, match=r"for the field c, .* one value in all samples give a function"):
                tx.add_field("c", "int32", value)
        with pytest.raises(AttributeError, match=r"Edit has no attribute 'rollback': use abort\(\)"):
            getattr(tx, "rollback")  # noqa: B009 - mypy knows no such name
    with sx.edit(plain) as tx, pytest.raises(ArgumentError, match="expected row numbers, got 'n > 3'; for a condition"):
        tx.delete("n > 3")
    assert sx.open(tmp_path / "d")["n"].tolist() == [0, 1, 2, 3]


def test_new_values_are_keywords_or_a_mapping(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": k, "s": "a"} for k in range(4)])
    with sx.edit(tmp_path / "d") as tx:
        tx.update(0, {"x": 10})
        tx.update(1, {"x": 11}, s="b")
        tx.update([2, 3], {"s": ["c", "d"]})
        for wrong in ([{"x": 1}], 5):
            with pytest.raises(ArgumentError, match=r"keywords or as a mapping, update\(3, s='a'\), got (list|int); "):
                tx.update(0, wrong)
        with pytest.raises(FieldError, match="expected one of the fields x, s, got 'y'"):
            tx.update(0, {"y": 1})
    assert [tuple(sample.values()) for sample in sx.open(tmp_path / "d")] == [(10, "a"), (11, "b"), (2, "c"), (3, "d")]
