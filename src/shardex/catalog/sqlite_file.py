"""`SqliteFile`: a catalog in one SQLite file, for one machine; the default.

A put is one transaction, which is on the disk when it returns. The words of the newest record of each name are in a
full-text index (FTS5, if SQLite has it). Each thread has a connection of its own, and a forked process makes new ones.
On network file systems SQLite is not safe: use a folder (`record_folder`) there.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from shardex.catalog.backend import Backend, readable
from shardex.catalog.records import CatalogRecord, DatasetRecord, RecordQuery, decode, encode, searched, words_in
from shardex.errors import FormatError, SourceError, StorageFullError, storage_errors
from shardex.sources import absolute_path

_VERSION = 1
_APPLICATION = 0x73786361
"""Marks the file as a catalog."""
_WAIT = 60.0
"""Seconds to wait for the transaction of another process."""
_PAGE = 500
_MOST_SORTED = 5000
"""Matches of a search that are sorted by name before the first one is returned."""
_TABLES = (
    "CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last INTEGER NOT NULL)",
    "CREATE TABLE records (name INTEGER, version INTEGER, record BLOB NOT NULL, PRIMARY KEY (name, version))",
    "CREATE TABLE tags (name INTEGER, tag TEXT, version INTEGER NOT NULL, PRIMARY KEY (name, tag)) WITHOUT ROWID",
)
_TOKENIZER = "tokenize='unicode61 remove_diacritics 0'"
_WORDS = f"CREATE VIRTUAL TABLE words USING fts5(name, description, tags, fields, {_TOKENIZER})"
_NEWEST = "(SELECT record FROM records WHERE records.name = names.id ORDER BY version DESC LIMIT 1)"
_COUNT_TABLES = "SELECT count(*) FROM sqlite_master"
_inherited: list[object] = []
"""Connections of the parent of a forked process: closing them there would release the parent's locks."""


class _Connection(sqlite3.Connection):
    """A connection that is closed when it is dropped, without the warning of newer Pythons."""

    def __del__(self) -> None:
        self.close()


class _Held(NamedTuple):
    """The connection of a thread, and to which file and of which process it is."""

    identity: tuple[int, int, int]
    connection: sqlite3.Connection


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino


class SqliteFile(Backend):
    """A catalog in an SQLite file, which is made by the first put."""

    is_remote = False

    def __init__(self, url: str) -> None:
        text = unquote(url.partition("://")[2].replace("/~", "~", 1)) if url.startswith("sqlite://") else url
        self.url = absolute_path(text)
        self._local = threading.local()

    # -- connections ------------------------------------------------------------------------------------------

    def _connection(self, create: bool = False) -> sqlite3.Connection | None:
        """Return the connection of this thread; None if there is no file, unless it is to be created."""
        try:
            found = os.stat(self.url)
        except OSError:
            if not create:
                return None
            found = None
        held: _Held | None = getattr(self._local, "held", None)
        if held is not None and found is not None and held.identity == _identity(found):
            return held.connection
        if held is not None and held.identity[0] != os.getpid():
            _inherited.append(held.connection)
        connection = self._open()
        self._local.held = _Held(_identity(os.stat(self.url)), connection)
        return connection

    def _open(self) -> sqlite3.Connection:
        with storage_errors(self.url, "create the folder of"):
            os.makedirs(os.path.dirname(self.url), exist_ok=True)
        options: Any = {"check_same_thread": False, "factory": _Connection}  # may be dropped by another thread
        connection: sqlite3.Connection = sqlite3.connect(self.url, timeout=_WAIT, isolation_level=None, **options)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = FULL")
        if not _number(connection, _COUNT_TABLES):
            connection.execute("PRAGMA journal_mode = WAL")
            self._create(connection)
        version, application = (_number(connection, f"PRAGMA {one}") for one in ("user_version", "application_id"))
        if application != _APPLICATION or version != _VERSION:
            connection.close()
            raise FormatError(
                f"{self.url}: expected a catalog of version {_VERSION} in an SQLite file, got "
                + (f"version {version}: made by a later shardex" if application == _APPLICATION else "another database")
            )
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if not _number(connection, _COUNT_TABLES):
            for one in _TABLES:
                connection.execute(one)
            if _has_full_text(connection):
                connection.execute(_WORDS)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connection of this thread."""
        held: _Held | None = getattr(self._local, "held", None)
        if held is not None and held.identity[0] == os.getpid():
            held.connection.close()
            self._local.held = None

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = StorageFullError if code == sqlite3.SQLITE_FULL else SourceError
            busy = f": another process has held its lock for {_WAIT:g} seconds" * (code == sqlite3.SQLITE_BUSY)
            raise kind(errno.EIO, f"cannot {doing} the catalog: {error}{busy}", self.url) from error
        except sqlite3.DatabaseError as error:
            raise FormatError(
                f"{self.url}: expected a catalog in an SQLite file, got: {error}; if it is damaged, save what can be "
                "read with `shardex catalog export`"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, which is durable afterwards."""
        with self._errors("write to"):
            connection = self._connection(create=True)
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._errors("read"):
            connection = self._connection()
            return [] if connection is None else connection.execute(query, values).fetchall()

    # -- reading ----------------------------------------------------------------------------------------------

    def head(self, name: str) -> tuple[CatalogRecord | None, int]:
        """Return the newest record and the last number."""
        for last, record in self._rows(f"SELECT last, {_NEWEST} FROM names WHERE name = ?", name):
            return None if record is None else self._decode(record, name), last
        return None, 0

    def read(self, name: str, which: int | str | None = None) -> CatalogRecord | None:
        """Return a record by number or tag, or the newest one."""
        if which is None:
            return self.head(name)[0]
        number = "?" if isinstance(which, int) else "(SELECT version FROM tags WHERE tags.name = names.id AND tag = ?)"
        query = f"SELECT record FROM records JOIN names ON names.id = records.name WHERE version = {number}"
        for (record,) in self._rows(f"{query} AND names.name = ?", which, name):
            return self._decode(record, name)
        return None

    def history(self, name: str) -> list[CatalogRecord]:
        """Return all records of a name."""
        query = "SELECT record FROM records JOIN names ON names.id = records.name WHERE names.name = ? ORDER BY version"
        found = [readable(partial(self._decode, data, name)) for (data,) in self._rows(query, name)]
        return [record for record in found if record is not None]

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield all names, page by page."""
        return (name for name, _ in self._pages("NULL", prefix))

    def newest(self, prefix: str = "") -> Iterator[CatalogRecord]:
        """Yield the newest records, page by page."""
        for name, data in self._pages(_NEWEST, prefix):
            if data is not None and (record := readable(partial(self._decode, data, name))) is not None:
                yield record

    def _pages(self, column: str, prefix: str) -> Iterator[tuple[str, Any]]:
        """Yield names with a column; no statement stays open between two pages, so that writers go on."""
        query = f"SELECT name, {column} FROM names WHERE name >= ? AND name < ? ORDER BY name LIMIT {_PAGE}"
        begin, end = prefix, prefix + "\x7f"  # characters of names are between a space and this one
        while rows := self._rows(query, begin, end):
            yield from rows
            begin = rows[-1][0] + " "

    def tags(self, name: str) -> dict[str, int]:
        """Return the tags of a name."""
        query = "SELECT tag, version FROM tags JOIN names ON names.id = tags.name WHERE names.name = ? ORDER BY tag"
        return dict(self._rows(query, name))

    def search(self, query: RecordQuery) -> Iterator[DatasetRecord]:
        """Yield what matches; the full-text index finds the candidates."""
        words = [f'"{word}"*' for word in query.words]
        words += [f'tags : "{" ".join(found)}"' for tag in query.tags if (found := words_in(tag))]
        words += [f'fields : "{" ".join(found)}"' for field in query.fields if (found := words_in(field))]
        if not words or not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'words'"):
            yield from super().search(query)
            return
        matched = f"SELECT rowid FROM words WHERE words MATCH ? LIMIT {_MOST_SORTED + 1}"
        numbers = [number for (number,) in self._rows(matched, " AND ".join(words))]
        if len(numbers) > _MOST_SORTED:  # then the first ones are found sooner by reading records in order
            yield from super().search(query)
            return
        ids = ",".join(map(str, numbers))
        numbers = [number for (number,) in self._rows(f"SELECT id FROM names WHERE id IN ({ids}) ORDER BY name")]
        exactly = replace(query, words=())  # of tags and fields the index knows only the words
        for start in range(0, len(numbers), _PAGE):
            some = ",".join(map(str, numbers[start : start + _PAGE]))
            for name, data in self._rows(f"SELECT name, {_NEWEST} FROM names WHERE id IN ({some}) ORDER BY name"):
                record = None if data is None else readable(partial(self._decode, data, name))
                if isinstance(record, DatasetRecord) and exactly.matches(record):
                    yield record

    def _decode(self, data: bytes, name: str) -> CatalogRecord:
        return decode(data, f"{self.url}: {name}")

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, name: str, version: int, record: CatalogRecord | None) -> bool:
        """Store a record if its number is the next one."""
        data = None if record is None else encode(record)
        with self._transaction() as connection:
            found = connection.execute("SELECT id, last FROM names WHERE name = ?", (name,)).fetchone()
            if (found[1] if found else 0) != version - 1:
                return False
            if found is None:
                key = connection.execute("INSERT INTO names (name, last) VALUES (?, 1)", (name,)).lastrowid
            else:
                key = found[0]
                connection.execute("UPDATE names SET last = ? WHERE id = ?", (version, key))
            if record is not None:
                connection.execute("INSERT INTO records VALUES (?, ?, ?)", (key, version, data))
                self._index(connection, key, record)
        return True

    def remove(self, name: str, version: int) -> None:
        """Remove a record; the index has the newest one that is left."""
        with self._transaction() as connection:
            for (key,) in connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchall():
                connection.execute("DELETE FROM records WHERE name = ? AND version = ?", (key, version))
                left = connection.execute(f"SELECT {_NEWEST} FROM names WHERE id = ?", (key,)).fetchone()[0]
                self._index(connection, key, None if left is None else readable(partial(self._decode, left, name)))

    def _index(self, connection: sqlite3.Connection, key: int | None, record: CatalogRecord | None) -> None:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone():
            connection.execute("DELETE FROM words WHERE rowid = ?", (key,))
            if isinstance(record, DatasetRecord):
                texts = [" ".join(words_in(text)) for text in searched(record)]
                connection.execute(
                    "INSERT INTO words (rowid, name, description, tags, fields) VALUES (?, ?, ?, ?, ?)", (key, *texts)
                )

    def set_tag(self, name: str, tag: str, version: int | None) -> None:
        """Set or remove a tag."""
        with self._transaction() as connection:
            for (key,) in connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchall():
                connection.execute("DELETE FROM tags WHERE name = ? AND tag = ?", (key, tag))
                if version is not None:
                    connection.execute("INSERT INTO tags VALUES (?, ?, ?)", (key, tag, version))


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _has_full_text(connection: sqlite3.Connection) -> bool:
    """Return True if this SQLite has FTS5."""
    return ("ENABLE_FTS5",) in connection.execute("PRAGMA compile_options").fetchall()
