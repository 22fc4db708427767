"""`ColumnsSession`: adds samples to a `columns_tar` folder one by one, in as many sessions and processes as needed.

`writer` writes a whole dataset, which appears at its end. This changes a folder in place, as
synthefy-dataset-utils does, and is safe against crashes:

- an array is in its tar before the row that names it is in the table, and synced before that row is committed;
- a tar is a complete tar at every moment (`growing_tar`), and one that is written as a whole appears by a rename;
- the transaction of the table is the lock between writers: no other one writes to the tars meanwhile, and each goes on
  where the last one stopped.

A transaction is committed after some samples or half a second, whichever comes first, so a crash loses that much, and
other writers wait for no longer. If nothing more is added, a thread commits.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from shardex.compat.formats.columns_tar.growing_tar import GrowingTar, discard, new_draft, remove_abandoned
from shardex.compat.formats.columns_tar.lookup import ColumnsLookup
from shardex.compat.formats.columns_tar.table import (
    COUNTER,
    check_field_name,
    connect,
    field_folders,
    guard_forks,
    is_possible_id,
    local_tar,
    numbered_id,
    quoted,
    schema_sql,
    stored_folder,
    table_errors,
)
from shardex.errors import (
    ArgumentError,
    ClosedError,
    DuplicateKeyError,
    FormatError,
    SchemaError,
    ShardexError,
    SourceError,
    UnsafeError,
    storage_errors,
)
from shardex.sources import is_url, make_folder, sync_folder

_TAR = re.compile(r"shard_(\d+)\.tar")
_SECONDS = 0.5
"""Longest time between two commits while samples are added."""


class ColumnsSession:
    """Adds samples to a folder, which is made if it does not exist; can be used in several threads.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> session = ColumnsSession(folder, samples_per_shard=2); session.add_fields(["x"])
    >>> [session.put({"x": b"..."}) for _ in range(3)]
    ['sample_000000000001', 'sample_000000000002', 'sample_000000000003']
    >>> session.close(); sorted(os.listdir(folder + "/x_shards"))
    ['shard_0000.tar', 'shard_0001.tar']
    """

    def __init__(self, root: str, samples_per_shard: int = 1000, *, samples_per_commit: int = 10_000) -> None:
        if samples_per_shard < 1:
            raise ArgumentError(f"expected at least one sample per shard, got {samples_per_shard}")
        if is_url(root):
            raise ArgumentError(f"expected a local folder, because SQLite writes no other place, got {root}")
        self.root = os.path.abspath(root)
        self.samples_per_shard, self._samples_per_commit = samples_per_shard, samples_per_commit
        with storage_errors(self.root, "create"):
            make_folder(self.root)
        self.table = connect(self.root, create=True)
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._tars: dict[str, tuple[int, GrowingTar]] = {}
        """Number and file of the tar of each field that is appended to."""
        self._folders: dict[str, str] = {}
        self._version = -1
        self._uncommitted, self._committed_at = 0, -_SECONDS
        self._timer: threading.Timer | None = None
        self._closed = False
        try:
            with table_errors(self.root):
                self._commit_others()
                self._prepare_table()
        except BaseException:
            self.table.close()
            raise
        tars = self._tars  # `self` would be kept by its own connection
        self.table.before_commit = lambda: _sync(tars)
        _SESSIONS[id(self)] = self
        guard_forks(self)

    def _prepare_table(self) -> None:
        for setting in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -64000", "temp_store = MEMORY"):
            self.table.execute(f"PRAGMA {setting}")
        self.table.executescript(f"BEGIN IMMEDIATE;{schema_sql([])}COMMIT;")
        with self._changing():
            self._begin()
            self.table.execute("INSERT OR IGNORE INTO counters VALUES (?, 0)", (COUNTER,))
            for name, folder in self._folders.items():  # a dataset that was moved
                place = stored_folder(self.root, folder.removesuffix("_shards"))
                if os.path.basename(place) == folder:
                    self.table.execute(
                        "UPDATE fields SET base_dir = ? WHERE name = ? AND base_dir IS NOT ?", (place, name, place)
                    )
            self.table.commit()
        for folder in self._folders.values():
            remove_abandoned(os.path.join(self.root, folder))

    # -- transactions ---------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise an error after `close`, and in a forked child process."""
        if self._closed:
            raise ClosedError(f"{self.root}: expected an open writer, it was closed")
        if self._process != os.getpid():
            raise ArgumentError(
                f"{self.root}: expected the process that made the writer; make another one after a fork"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.lock, table_errors(self.root):
            yield

    def _begin(self) -> None:
        """Begin a transaction unless there is one; forget what another writer has changed since the last one."""
        self.check_open()
        if not self.table.in_transaction:
            self._commit_others()
            self.table.execute("BEGIN IMMEDIATE")
        (version,) = self.table.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._close_tars()
            self._folders = field_folders(self.table)
            self._version = version

    def _commit_others(self) -> None:
        """Commit other sessions of this process in the same folder: they may be unused, and hold the lock.

        One that another thread uses right now is left alone: it commits soon.
        """
        for reference in _SESSIONS.valuerefs():
            other = reference()
            if other is None or other is self or other.root != self.root:
                continue
            if other.lock.acquire(blocking=False):
                try:
                    if not other._closed and other._process == os.getpid() and other.table.in_transaction:
                        other.commit()
                finally:
                    other.lock.release()

    def commit(self) -> None:
        """Sync all arrays and commit the rows that name them."""
        with self._changing():
            self.check_open()
            self.table.commit()
            self._uncommitted, self._committed_at = 0, time.monotonic()

    def _commit_if_due(self, samples: int) -> None:
        self._uncommitted += samples
        is_late = time.monotonic() - self._committed_at >= _SECONDS
        if is_late or self._uncommitted >= self._samples_per_commit:
            self.commit()
        elif self._timer is None:
            self._timer = threading.Timer(_SECONDS, _commit_late, [weakref.ref(self)])
            self._timer.daemon = True
            try:
                self._timer.start()
            except RuntimeError:  # the interpreter ends
                self.commit()

    def commit_late(self) -> None:
        """Commit what was added some time ago; the next change reports an error, if there is one."""
        with self.lock, suppress(ShardexError):
            self._timer = None
            if not self._closed and self.table.in_transaction:
                self._commit_if_due(0)

    def before_fork(self) -> None:
        """Wait until no other thread uses the connection."""
        self.lock.acquire()

    def after_fork(self) -> None:
        """Release what `before_fork` holds, in the parent and in the child."""
        self.lock.release()

    def close_tars(self) -> None:
        """Commit everything and close all tars; the session stays usable."""
        with self.lock:
            self.commit()
            self._close_tars()

    def _close_tars(self) -> None:
        for name in list(self._tars):
            _, tar = self._tars.pop(name)
            tar.sync()
            tar.close()

    def close(self) -> None:
        """Commit everything and close; nothing happens in a forked child process, or if it is closed already."""
        if self._closed or self._process != os.getpid():
            return
        with self.lock:
            try:
                self.close_tars()
            finally:
                self._closed = True
                self.table.close()
                if self._timer is not None:
                    self._timer.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- fields and samples ---------------------------------------------------------------------------------------

    def add_fields(self, names: Sequence[str]) -> None:
        """Add fields; those that are there already stay as they are."""
        with self._changing():
            self._begin()
            there = {name.lower() for name in self._folders}
            for name in dict.fromkeys(names):
                if name not in self._folders:
                    check_field_name(name, there)
                    there.add(name.lower())
            columns = {row[1].lower() for row in self.table.execute("PRAGMA table_info(samples)")}
            for name in dict.fromkeys(names):
                folder = self._folders.setdefault(name, f"{name}_shards")
                with storage_errors(self.root, "create"):
                    make_folder(os.path.join(self.root, folder))
                for column in (f"{name}_offset", f"{name}_shard"):
                    if column.lower() not in columns:
                        self.table.execute(f'ALTER TABLE samples ADD COLUMN "{column}" INTEGER')
                self.table.execute(
                    "INSERT OR IGNORE INTO fields VALUES (?, 0, ?)", (name, stored_folder(self.root, name))
                )
            self.commit()

    def folder(self, field: str) -> str:
        """Return the name of the folder of a field; an error if there is no such field."""
        if (found := self._folders.get(field)) is None:
            listed = ", ".join(self._folders) or "(there are none)"
            raise ArgumentError(
                f"{self.root}: Field {field!r} not registered. Expected one of {listed}; add it with add_field"
            )
        return found

    def register(self, ids: Sequence[str], metadata: Sequence[str] | None = None) -> None:
        """Add samples without arrays; those that are there already stay as they are. Metadata are JSON."""
        with self._changing():
            for name in ids:
                _check_id(name)
            self._begin()
            self._insert_missing(zip(ids, metadata if metadata is not None else ["{}"] * len(ids), strict=True))
            self.commit()

    def _insert_missing(self, rows: Iterable[tuple[str, str]]) -> None:
        self.table.executemany("INSERT OR IGNORE INTO samples (id, meta_json) VALUES (?, ?)", rows)

    def insert(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], counter: int, tars: Iterable[tuple[int, str]]
    ) -> None:
        """Add rows whose arrays are in tars already: all of them or none; `counter` is the last number of an id.

        `tars` has for each field the number of tars, and its name.
        """
        names, marks = ", ".join(f'"{one}"' for one in columns), ", ".join("?" * len(columns))
        with self._changing():
            self._begin()
            try:
                self.table.executemany(f"INSERT INTO samples ({names}) VALUES ({marks})", rows)
            except sqlite3.IntegrityError as error:
                self.table.rollback()
                raise DuplicateKeyError(
                    f"{self.root}: expected ids that no other writer has added meanwhile: {error}; none was added"
                ) from None
            self.table.execute("UPDATE counters SET value = MAX(value, ?) WHERE name = ?", (counter, COUNTER))
            for count, field in tars:
                self._count_tars(field, count)
            self.commit()

    def has(self, sample: str) -> bool:
        """Return whether there is a sample with this id."""
        return self.table.execute("SELECT 1 FROM samples WHERE id = ?", (sample,)).fetchone() is not None

    def put(self, arrays: Mapping[str, bytes], sample: str | None = None, metadata: str | None = None) -> str:
        """Add a sample, or replace these arrays and the metadata of one; return its id, by default the next number.

        Arrays are bytes, metadata are JSON; without metadata those of the sample stay.
        """
        if sample is not None:
            _check_id(sample)
        with self._changing():
            self._begin()
            folders = {field: self.folder(field) for field in arrays}
            name = self._next_id() if sample is None else sample
            places = self._append_all(name, arrays, folders)
            self._store_row(name, places, metadata, is_new=sample is None or not self.has(name))
            self._commit_if_due(1)
        return name

    def update(self, sample: str, arrays: Mapping[str, bytes], metadata: str | None = None) -> None:
        """Replace arrays and metadata of a sample that is there."""
        with self._changing():
            self._begin()
            if not self.has(sample):
                raise ArgumentError(
                    f"{self.root}: Sample ID {sample!r} does not exist. Use add_sample() to create new samples."
                )
            self.put(arrays, sample, metadata)

    def _next_id(self) -> str:
        while True:
            (number,) = self.table.execute(
                "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value", (COUNTER,)
            ).fetchone()
            if not self.has(name := numbered_id(number)):
                return name

    def _store_row(
        self, name: str, places: Mapping[str, tuple[int, int]], metadata: str | None, *, is_new: bool
    ) -> None:
        values: dict[str, Any] = {} if metadata is None and not is_new else {"meta_json": metadata or "{}"}
        for field, (offset, shard) in places.items():
            values |= {f"{field}_offset": offset, f"{field}_shard": shard}
        if is_new:
            columns, marks = "".join(f', "{one}"' for one in values), ", ?" * len(values)
            self.table.execute(f"INSERT INTO samples (id{columns}) VALUES (?{marks})", (name, *values.values()))
        elif values:
            changes = ", ".join(f'"{one}" = ?' for one in values)
            self.table.execute(f"UPDATE samples SET {changes} WHERE id = ?", (*values.values(), name))

    # -- tars -----------------------------------------------------------------------------------------------------

    def _append_all(
        self, name: str, arrays: Mapping[str, bytes], folders: Mapping[str, str]
    ) -> dict[str, tuple[int, int]]:
        """Add arrays to the tars of their fields: all of them or, if one cannot be written, none."""
        places: dict[str, tuple[int, int]] = {}
        before: list[tuple[GrowingTar, tuple[int, int]]] = []
        try:
            for field, data in arrays.items():
                number, tar = self._tar(field, folders[field])
                before.append((tar, tar.position))
                places[field] = tar.append(f"{name}.npy", data), number
        except BaseException:
            for tar, position in before:
                with suppress(SourceError):
                    tar.cut(position)
            raise
        return places

    def _tar(self, field: str, folder: str) -> tuple[int, GrowingTar]:
        """Return number and file of the tar that the next array of a field belongs to."""
        number, tar = self._tars.get(field) or self._open_last(field, folder)
        if tar.count < self.samples_per_shard:
            return number, tar
        tar.sync()
        tar.close()
        del self._tars[field]
        return self._open(field, folder, number + 1)

    def _open_last(self, field: str, folder: str) -> tuple[int, GrowingTar]:
        """Open the tar with the highest number; the next one if it is damaged."""
        number = max(self._last_on_disk(folder), self._last_in_table(field))
        try:
            return self._open(field, folder, max(0, number))
        except (FormatError, UnsafeError):
            return self._open(field, folder, number + 1)

    def _last_on_disk(self, folder: str) -> int:
        with storage_errors(self.root, "list"):
            make_folder(path := os.path.join(self.root, folder))
            found = filter(None, map(_TAR.fullmatch, os.listdir(path)))
        return max((int(one[1]) for one in found), default=-1)

    def _last_in_table(self, field: str) -> int:
        (count,) = self.table.execute("SELECT num_shards FROM fields WHERE name = ?", (field,)).fetchone()
        return count - 1 if isinstance(count, int) else -1

    def _open(self, field: str, folder: str, number: int) -> tuple[int, GrowingTar]:
        self._tars[field] = number, GrowingTar(local_tar(self.root, folder, number))
        self._count_tars(field, number + 1)
        return self._tars[field]

    def _count_tars(self, field: str, count: int) -> None:
        self.table.execute(
            "UPDATE fields SET num_shards = MAX(IFNULL(num_shards, 0), ?) WHERE name = ?", (count, field)
        )

    def new_shard(self, field: str, number: int) -> NewShard:
        """Return a tar that becomes the tar of this number of a field when it is published."""
        with self._changing():
            self._begin()
            self.folder(field)
            return NewShard(self, field, number)

    def publish(self, field: str, number: int, draft: GrowingTar, places: dict[str, int]) -> None:
        """Replace a tar by another one, which has the arrays of some samples at these offsets.

        Arrays of other samples in the old one are copied. Samples that are not there yet are added.
        """
        with self._changing():
            self.commit()  # so that arrays are copied which the committed rows name, and not those of changed ones
            self._begin()
            path = local_tar(self.root, self.folder(field), number)
            kept = self._copy_others(field, number, draft, places) if os.path.exists(path) else {}
            draft.sync()
            if (known := self._tars.get(field)) is not None and known[0] == number:
                self._tars.pop(field)[1].close()
            with storage_errors(path, "write"):
                os.rename(draft.path, path)
                sync_folder(os.path.dirname(path))
            self._insert_missing((name, "{}") for name in places)
            self.table.executemany(
                f"UPDATE samples SET {quoted(field, 'offset')} = ?, {quoted(field, 'shard')} = ? WHERE id = ?",
                [(begin, number, name) for name, begin in (kept | places).items()],
            )
            self._count_tars(field, number + 1)
            self.commit()

    def _copy_others(self, field: str, number: int, draft: GrowingTar, places: Mapping[str, int]) -> dict[str, int]:
        named = f"{quoted(field, 'shard')} = ? AND {quoted(field, 'offset')} IS NOT NULL"
        rows = self.table.execute(f"SELECT id FROM samples WHERE {named}", (number,)).fetchall()
        others = [name for (name,) in rows if name not in places]
        old = ColumnsLookup(self.root, table=self.table)
        try:
            return {name: draft.append(f"{name}.npy", old.samples([name], [field])[0].arrays[field]) for name in others}
        finally:
            old.close()


_SESSIONS: weakref.WeakValueDictionary[int, ColumnsSession] = weakref.WeakValueDictionary()


def _commit_late(session: weakref.ref[ColumnsSession]) -> None:
    if (found := session()) is not None:
        found.commit_late()


def _sync(tars: Mapping[str, tuple[int, GrowingTar]]) -> None:
    for _, tar in tars.values():
        tar.sync()


def _check_id(name: Any) -> None:
    if not isinstance(name, str) or not is_possible_id(name):
        raise SchemaError(f"expected an id that a tar can hold as a name, got {name!r}")


class NewShard:
    """A tar that is written beside the others and takes its place when it is published; discarded if it never is."""

    def __init__(self, session: ColumnsSession, field: str, number: int) -> None:
        if not isinstance(number, int) or number < 0:
            raise ArgumentError(f"expected the number of a shard, got {number!r}")
        self.session, self.field, self.number = session, field, number
        path = local_tar(session.root, session.folder(field), number)
        folder, name = os.path.split(path)
        with storage_errors(folder, "create"):
            make_folder(folder)
        self._tar = new_draft(os.path.join(folder, f".{name}."))
        self._places: dict[str, int] = {}
        self._discard: Callable[[], Any] = weakref.finalize(self, discard, self._tar)
        self._published = False

    def add(self, sample: str, data: bytes) -> None:
        """Add the array of a sample."""
        if self._published:
            raise ClosedError(f"{self._tar.path}: expected an open shard, it was closed")
        _check_id(sample)
        self._places[sample] = self._tar.append(f"{sample}.npy", data)

    def publish(self) -> None:
        """Put the tar in its place and name its arrays in the table; does nothing the second time."""
        if not self._published:
            self.session.publish(self.field, self.number, self._tar, self._places)
            self._published = True
            self._discard()
