"""A model of a native dataset with several editors, in plain Python, and the random steps that compare the two.

The steps are: begin a transaction or an append, change something in it, commit, abandon it, restore, compact, clean,
let hours pass, read; and each of commit, restore, compact and clean with a crash before any of its writes. A commit may
raise a conflict only if others committed since it began. Everything else must give what the model says: each version
has the content that it had when it was committed, for as long as it exists, and no commit is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import shardex as sx
from shardex.errors import CommitConflict, SchemaError, VersionExpired
from shardex.native.writer import ArrowWriter
from shardex.sources import url as urls
from shardex.sources.memory import MemorySource

HOURS = 7200.0
NAMES = ["a", "b", "c"]
CRASH = st.sampled_from([*[None] * 9, *range(9)])
"""Number of writes before a crash; None: no crash."""
_places = itertools.count()


class Crash(BaseException):
    """The end of a process; it writes nothing afterwards."""


class CrashingPlace(MemorySource):
    """Files in memory; the process crashes before the write after `left` more, and does not write again."""

    left: int | None = None

    def _count(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Crash
            self.left -= 1

    def put(self, path: str, data: Any) -> None:
        self._count()
        super().put(path, data)

    def put_if_absent(self, path: str, data: Any) -> bool:
        self._count()
        return super().put_if_absent(path, data)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def for_each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """One after another, so that a crash is always at the same place."""
        return [function(item) for item in items]

    def age(self, seconds: float, alive: Iterable[str]) -> None:
        """Let time pass; writers that are alive renew their heartbeats."""
        for path in self.files:
            if path in alive:
                self.files[path] = f"{float(self.files[path]) + seconds:.0f}".encode()
            else:
                self._times[path] -= seconds


@dataclass(frozen=True)
class State:
    """The content of a version: its fields, with True for optional ones, and its rows with their ids."""

    fields: dict[str, bool]
    rows: tuple[tuple[int, dict[str, Any]], ...]

    def samples(self) -> list[dict[str, Any]]:
        return [{name: values.get(name) for name in self.fields} for _, values in self.rows]


Change = Callable[[State], State]


@dataclass
class Editor:
    """A transaction, or a writer that appends, with the changes that it will commit."""

    tx: Any
    base: int
    state: State
    """The version that it began with; row numbers are those of its rows."""
    fields: dict[str, bool]
    changes: list[Change] = field(default_factory=list)
    deleted: list[Change] = field(default_factory=list)
    """Deletions count after all other changes."""
    has_values: bool = False
    """True if it has updated or appended, after which fields are not changed."""

    @property
    def is_transaction(self) -> bool:
        return isinstance(self.tx, sx.store.Edit)

    @property
    def heartbeat(self) -> Any:
        return self.tx._heartbeat._file


def appended(id: int, values: dict[str, Any]) -> Change:
    return lambda state: State(state.fields, (*state.rows, (id, values)))


def updated(id: int, name: str, value: Any) -> Change:
    def change(state: State) -> State:
        assert any(one == id for one, _ in state.rows), "an update of a deleted row was committed"
        return State(state.fields, tuple((k, {**v, name: value} if k == id else v) for k, v in state.rows))

    return change


def deleted(id: int) -> Change:
    return lambda state: State(state.fields, tuple(row for row in state.rows if row[0] != id))


def added(name: str, optional: bool, value: int | None, ids: frozenset[int]) -> Change:
    def change(state: State) -> State:
        rows = tuple((k, {**v, name: value if k in ids else None}) for k, v in state.rows)
        return State({**state.fields, name: optional}, rows)

    return change


def renamed(name: str, new: str | None) -> Change:
    """Rename or, without a new name, drop a field."""

    def names(values: dict[str, Any]) -> dict[str, Any]:
        found = {new if one == name else one: value for one, value in values.items()}
        return {one: value for one, value in found.items() if one is not None}

    return lambda state: State(names(state.fields), tuple((k, names(v)) for k, v in state.rows))


class ConcurrentEdits(RuleBasedStateMachine):
    """Several editors, a compactor and a cleaner in any order, with crashes."""

    @initialize(samples=st.integers(0, 3))
    def create(self, samples: int) -> None:
        self.url = f"memory://edit-model/{next(_places)}"
        self.place = urls._memory[self.url] = CrashingPlace(url=self.url)
        self.ids = itertools.count()
        rows = tuple((k, {"x": k}) for k in itertools.islice(self.ids, samples))
        sx.write(self.url, [values for _, values in rows], {"x": int}, shard_rows=2, progress=False)
        self.latest = 1
        self.versions = {1: State({"x": False}, rows)}
        self.editors: list[Editor] = []
        self.readers: list[tuple[int, State, sx.Dataset]] = []

    def teardown(self) -> None:
        if hasattr(self, "url"):
            for editor in self.editors:
                editor.tx.abort()
            self.check_all()
            assert sx.verify(self.url, progress=False) == []
            del urls._memory[self.url]

    def check_all(self) -> None:
        assert {one.number for one in sx.store.history(self.url)} == set(self.versions)
        for number, state in self.versions.items():
            ds = sx.open(self.url, version=number)
            assert [dict(one) for one in ds] == state.samples()

    @invariant()
    def latest_version_is_as_in_the_model(self) -> None:
        if hasattr(self, "url"):
            ds = sx.open(self.url)
            state = self.versions[self.latest]
            assert [dict(one) for one in ds] == state.samples()
            assert len(ds) == len(state.rows) and set(ds.fields) == set(state.fields)

    # -- transactions ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.editors) < 3)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        editor = self.begun(data)
        self.editors.append(editor)

    def begun(self, data: st.DataObject) -> Editor:
        """Return a new editor with a change."""
        state = self.versions[self.latest]
        tx: Any = sx.edit(self.url, progress=False)
        if data.draw(st.integers(0, 3), "is a transaction") == 0:
            features = tx.dataset.features
            tx.abort()
            tx = ArrowWriter(self.url, features, mode="append")
        editor = Editor(tx, self.latest, state, dict(state.fields))
        self.make_change(data, editor)
        return editor

    def chosen(self, data: st.DataObject) -> Editor:
        return self.editors[data.draw(st.integers(0, len(self.editors) - 1), "editor")]

    @precondition(lambda self: self.editors)
    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        self.make_change(data, self.chosen(data))

    def make_change(self, data: st.DataObject, editor: Editor) -> None:
        kinds = [self.append]
        if editor.is_transaction:
            kinds += [self.update, self.delete] if editor.state.rows else []
            if not editor.has_values:
                kinds += [self.add_field] * (len(editor.fields) <= len(NAMES))
                kinds += [self.rename_or_drop_field] * (len(editor.fields) > 1)
        data.draw(st.sampled_from(kinds), "change")(data, editor)

    def append(self, data: st.DataObject, editor: Editor) -> None:
        id = next(self.ids)
        values = {name: id if name == "x" else id % 2 for name in editor.fields}
        editor.tx.append(values)
        editor.changes.append(appended(id, values))
        editor.has_values = True

    def update(self, data: st.DataObject, editor: Editor) -> None:
        id, row = self.row(data, editor)
        name, value = data.draw(st.sampled_from(sorted(editor.fields)), "field"), data.draw(st.integers(0, 1))
        editor.tx.update(row, **{name: value})
        editor.changes.append(updated(id, name, value))
        editor.has_values = True

    def delete(self, data: st.DataObject, editor: Editor) -> None:
        id, row = self.row(data, editor)
        editor.tx.delete(row)
        editor.deleted.append(deleted(id))

    def row(self, data: st.DataObject, editor: Editor) -> tuple[int, int]:
        row = data.draw(st.integers(0, len(editor.state.rows) - 1), "row")
        return editor.state.rows[row][0], row

    def add_field(self, data: st.DataObject, editor: Editor) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if name not in editor.fields]), "field")
        optional, value = data.draw(st.booleans()), data.draw(st.integers(0, 2), "value")
        feature = sx.Optional(sx.Value("int64")) if optional else sx.Value("int64")
        empty = optional and value == 2
        editor.tx.add_field(name, feature, None if empty else [value] * len(editor.state.rows))
        ids = frozenset(id for id, _ in editor.state.rows)
        editor.changes.append(added(name, optional, None if empty else value, ids))
        editor.fields[name] = optional

    def rename_or_drop_field(self, data: st.DataObject, editor: Editor) -> None:
        name = data.draw(st.sampled_from([one for one in editor.fields if one != "x"]), "field")
        new = data.draw(st.sampled_from([*(one for one in NAMES if one not in editor.fields), None]), "new name")
        if new is None:
            editor.tx.drop_field(name)
        else:
            editor.tx.rename_field(name, new)
        editor.changes.append(renamed(name, new))
        optional = editor.fields.pop(name)
        if new is not None:
            editor.fields[new] = optional

    @rule(data=st.data())
    def another_commits(self, data: st.DataObject) -> None:
        self.finish(self.begun(data), None)

    @precondition(lambda self: self.editors)
    @rule(data=st.data(), left=CRASH)
    def commit(self, data: st.DataObject, left: int | None) -> None:
        editor = self.chosen(data)
        self.editors.remove(editor)
        self.finish(editor, left)

    def finish(self, editor: Editor, left: int | None) -> None:
        try:
            done = self.unless_crashed(left, editor.tx.commit if editor.is_transaction else editor.tx.close)
        except (CommitConflict, SchemaError):
            assert editor.base != self.latest, "a conflict without a commit of others"
            return
        if done and editor.is_transaction:
            assert editor.tx.version == self.latest + 1
        self.published(done, lambda: _applied([*editor.changes, *editor.deleted], self.versions[self.latest]))

    def unless_crashed(self, left: int | None, work: Callable[[], Any]) -> bool:
        """Do some work that crashes before the write after `left` more; return False if it did."""
        self.place.left = left
        try:
            work()
        except Crash:
            return False
        finally:
            self.place.left = None
        return True

    def published(self, done: bool, new: Callable[[], State]) -> None:
        """Add a version to the model if it must exist; after a crash, if it does."""
        found = max(one.number for one in sx.store.history(self.url))
        assert found == self.latest + 1 if done else found in (self.latest, self.latest + 1)
        if found > self.latest:
            self.versions[found] = new()
            self.latest = found

    @precondition(lambda self: self.editors)
    @rule(data=st.data(), is_killed=st.booleans())
    def abandon(self, data: st.DataObject, is_killed: bool) -> None:
        editor = self.chosen(data)
        self.editors.remove(editor)
        self.unless_crashed(0 if is_killed else None, editor.tx.abort)

    # -- maintenance -------------------------------------------------------------------------------------------

    @rule(data=st.data(), left=CRASH)
    def restore(self, data: st.DataObject, left: int | None) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)), "version")
        done = self.unless_crashed(left, lambda: sx.store.restore(self.url, version))
        self.published(done, lambda: self.versions[version])

    @rule(left=CRASH)
    def compact(self, left: int | None) -> None:
        made: list[int | None] = []
        done = self.unless_crashed(left, lambda: made.append(sx.compact(self.url, progress=False)))
        if made != [None]:
            self.published(done, lambda: self.versions[self.latest])

    @rule(keep=st.sampled_from([1, 1, 2, 3]), left=CRASH, hours=st.booleans())
    def clean(self, keep: int, left: int | None, hours: bool) -> None:
        if hours:
            self.hours_pass()
        done = self.unless_crashed(left, lambda: sx.clean(self.url, keep))
        found = {one.number for one in sx.store.history(self.url)}
        kept = set(sorted(self.versions)[-keep:])
        assert found == kept if done else kept <= found <= set(self.versions)
        self.versions = {number: state for number, state in self.versions.items() if number in found}
        self.check_all()

    def hours_pass(self) -> None:
        """Old files may be removed now; editors that are alive have renewed their heartbeats."""
        for editor in self.editors:
            file = editor.heartbeat
            file._began = file._began[0] - HOURS, file._began[1] - HOURS
        self.place.age(HOURS, [editor.heartbeat._path for editor in self.editors])

    # -- readers -----------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A reader sees the version that it opened for as long as that exists."""
        self.readers = [*self.readers[-2:], (self.latest, self.versions[self.latest], sx.open(self.url))]
        version, state, ds = self.readers[data.draw(st.integers(0, len(self.readers) - 1), "reader")]
        try:
            assert [dict(one) for one in ds] == state.samples()
        except VersionExpired:
            assert version not in self.versions


def _applied(changes: Iterable[Change], state: State) -> State:
    for change in changes:
        state = change(state)
    return state
