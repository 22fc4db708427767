"""`ColumnsLookup`: samples of a `columns_tar` folder by id, as its table names them at this moment.

`format.open` reads a folder that does not change, by rows, from a saved index. This reads a folder that may grow
meanwhile: each call asks the table, and the headers of a tar are read when it is first needed, later only those that
were added. The number of open files and the memory for offsets are limited.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardex.compat.formats.columns_tar.growing_tar import TarMembers
from shardex.compat.formats.columns_tar.table import (
    TABLE,
    connect,
    field_folders,
    guard_forks,
    interruptible,
    local_tar,
    quoted,
    table_errors,
)
from shardex.errors import ClosedError, FormatError, NotFoundError, UnknownKeyError, storage_errors, unknown_field

_IDS_PER_QUERY = 500
_MOST_FILES = 64
_MOST_MEMBERS = 4_000_000


class StoredSample(NamedTuple):
    """A sample as it is stored: the bytes of its arrays, and its metadata as JSON."""

    arrays: dict[str, bytes]
    metadata: str | None


class TarReader:
    """Reads members of tars by path and name; keeps some tars open, and the offsets of more of them."""

    def __init__(self, most_files: int = _MOST_FILES, most_members: int = _MOST_MEMBERS) -> None:
        self._most_files, self._most_members = most_files, most_members
        self._files: OrderedDict[str, tuple[int, tuple[int, int]]] = OrderedDict()
        self._members: OrderedDict[str, TarMembers] = OrderedDict()
        self._known = 0
        """Members of all tars whose offsets are kept."""

    def read(self, path: str, name: str) -> bytes:
        """Return the bytes of the last member of this name."""
        with storage_errors(path, "read"):
            descriptor = self._open(path)
            members = self._members.setdefault(path, TarMembers(path))
            self._members.move_to_end(path)
            self._known -= len(members)
            try:
                return members.read(descriptor, name)
            finally:
                self._known += len(members)
                while self._known > self._most_members and len(self._members) > 1:
                    self._known -= len(self._members.popitem(last=False)[1])

    def _open(self, path: str) -> int:
        """Return the descriptor of the file that has the path now."""
        found = os.stat(path)
        if (known := self._files.get(path)) is not None:
            if known[1] == (found.st_dev, found.st_ino):
                self._files.move_to_end(path)
                return known[0]
            self.forget(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened = os.fstat(descriptor)
        self._files[path] = descriptor, (opened.st_dev, opened.st_ino)
        if len(self._files) > self._most_files:
            os.close(self._files.popitem(last=False)[1][0])
        return descriptor

    def forget(self, path: str) -> None:
        """Close a tar."""
        if (known := self._files.pop(path, None)) is not None:
            os.close(known[0])

    def close(self) -> None:
        """Close all tars."""
        for path in list(self._files):
            self.forget(path)


class ColumnsLookup:
    """Reads samples of a folder by id; can be used in several threads, and in a forked child process.

    With ``keep_tars=False`` only the last tar stays open, and only its offsets are kept. `table` is a connection to use
    instead of an own one.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from shardex.compat.formats.columns_tar.session import ColumnsSession
    >>> with ColumnsSession(folder) as out:
    ...     out.add_fields(["x"]); out.put({"x": b"bytes of x"}, "a")
    'a'
    >>> lookup = ColumnsLookup(folder); lookup.samples(["a"]); lookup.close()
    [StoredSample(arrays={'x': b'bytes of x'}, metadata='{}')]
    """

    def __init__(self, root: str, *, table: sqlite3.Connection | None = None, keep_tars: bool = True) -> None:
        self.root = root
        self.lock = threading.RLock()
        """Must be held while the connection is used, if there are several threads."""
        self._own, self._lent = table is None, False
        self._table = connect(root) if table is None else table
        self._process: int | None = os.getpid()
        """The process whose connection it is; None if it was closed before a fork."""
        self._tars = TarReader() if keep_tars else TarReader(1, 1)
        self._folders: dict[str, str] = {}
        self._closed = False
        if self._own:
            guard_forks(self)

    def _connection(self) -> sqlite3.Connection:
        if self._own and self._process != os.getpid() and not self._closed:
            if self._process is not None:
                _INHERITED.append(self._table)
            self._table, self._process, self._lent = connect(self.root), os.getpid(), False
        return self._table

    @property
    def table(self) -> sqlite3.Connection:
        """The connection of this process to the table; it stays open until `close`."""
        with self.lock:
            found = self._connection()
            self._lent = True
            return found

    def execute(self, query: str, parameters: Any = ()) -> list[Any]:
        """Return the rows that a query gives."""
        with self.lock:
            self.check_open()
            table = self._connection()
            with interruptible(table, os.path.join(self.root, TABLE)):
                return table.execute(query, parameters).fetchall()

    def before_fork(self) -> None:
        """Close the connection, because SQLite must not be forked with one, unless the caller has got it as `table`."""
        self.lock.acquire()
        if not self._lent and not self._closed and self._process == os.getpid():
            self._table.close()
            self._process = None

    def after_fork(self) -> None:
        """Release what `before_fork` holds, in the parent and in the child."""
        self.lock.release()

    def check_open(self) -> None:
        """Raise an error after `close`."""
        if self._closed:
            raise ClosedError(f"{self.root}: expected an open dataset, it was closed")

    def samples(self, ids: Sequence[str], fields: Sequence[str] | None = None) -> list[StoredSample]:
        """Return these samples with some of their fields, by default all; arrays that a sample lacks are left out."""
        with self.lock, table_errors(self.root):
            self.check_open()
            if not self._folders.keys() >= {*(fields or ())}:
                self._folders = field_folders(self._connection())
            while True:
                names = self._names(fields)
                found, count = self._rows(ids, names)
                if count == len(self._folders):
                    break
                self._folders = field_folders(self._connection())  # a writer has added some
            for name in ids:
                if str(name) not in found:
                    raise UnknownKeyError(
                        f"{os.path.join(self.root, TABLE)}: expected the id of a sample, got {name!r}"
                    )
            return [self._current_sample(found[str(name)], names) for name in ids]

    def _names(self, fields: Sequence[str] | None) -> list[str]:
        for name in fields or ():
            if name not in self._folders:
                raise unknown_field(name, self._folders)
        return list(self._folders if fields is None else dict.fromkeys(fields))

    def _rows(self, ids: Sequence[str], names: list[str]) -> tuple[dict[str, tuple[Any, ...]], int]:
        """Return id, metadata and places of these fields for each id that is there, and the number of all fields."""
        places = "".join(f", {quoted(name, 'offset')}, {quoted(name, 'shard')}" for name in names)
        found: dict[str, tuple[Any, ...]] = {}
        count = len(self._folders)
        for begin in range(0, len(ids), _IDS_PER_QUERY):
            some = ids[begin : begin + _IDS_PER_QUERY]
            marks = ",".join("?" * len(some))
            what = f"(SELECT COUNT(*) FROM fields), id, meta_json{places}"
            for row in self._connection().execute(f"SELECT {what} FROM samples WHERE id IN ({marks})", some):
                count, name, *_ = row
                found[str(name)] = tuple(row)
        return found, count

    def _current_sample(self, row: tuple[Any, ...], names: list[str]) -> StoredSample:
        """Return a sample; if a writer has moved an array since its row was read, with the row of now."""
        while True:
            try:
                return self._sample(row, names)
            except (FormatError, NotFoundError):
                (now,) = self._rows([row[1]], names)[0].values() or [row]
                if now == row:
                    raise
                row = now

    def _sample(self, row: tuple[Any, ...], names: list[str]) -> StoredSample:
        _, sample, metadata, *places = row
        arrays: dict[str, bytes] = {}
        for name, offset, shard in zip(names, places[::2], places[1::2], strict=True):
            if offset is not None:
                arrays[name] = self._array(sample, name, local_tar(self.root, self._folders[name], shard))
        return StoredSample(arrays, metadata)

    def _array(self, sample: str, field: str, path: str) -> bytes:
        try:
            return self._tars.read(path, f"{sample}.npy")
        except FormatError as error:
            raise FormatError(f"{self._where(sample, field)}: expected the array in {path}: {error}") from error
        except NotFoundError as error:
            problem = f"{self._where(sample, field)}: expected this file, there is none"
            raise NotFoundError(errno.ENOENT, problem, path) from error

    def _where(self, sample: str, field: str) -> str:
        return f"{self.root}, sample {sample!r}, field {field}"

    def close(self) -> None:
        """Close the connection and all tars."""
        with self.lock:
            self._closed = True
            self._tars.close()
            if self._own and self._process == os.getpid():
                self._table.close()


_INHERITED: list[sqlite3.Connection] = []
"""Connections of the parent process: they must not be used in this one, nor closed."""
