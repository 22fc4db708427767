"""The SQLite table of a `columns_tar` folder: its tables and columns, the folders of its fields, connections to it.

The layout is that of synthefy-dataset-utils. `samples` has the columns `id`, `meta_json`, and ``{field}_offset`` and
``{field}_shard`` of each field; `fields` the name, the number of tars and the folder of each field; `counters` the last
number that was used for an id.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import quote

from shardex.errors import FormatError, NotFoundError, PathError, SchemaError

TABLE = "index.sqlite"
COUNTER = "sample_id"
"""Name of the counter of ids."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (id TEXT PRIMARY KEY, meta_json TEXT{columns});
CREATE TABLE IF NOT EXISTS fields (name TEXT PRIMARY KEY, num_shards INTEGER, base_dir TEXT);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER);
"""
_LETTER = "A-Za-z_\x80-\ud7ff\ue000-\U0010ffff"
_FIELD_NAME = re.compile(f"[{_LETTER}][{_LETTER}0-9$]*")
_STEPS = 100_000
"""Steps of SQLite between two looks at Ctrl-C; some milliseconds."""
_COMPUTED = """
SELECT type, name FROM sqlite_master
WHERE tbl_name COLLATE NOCASE IN ('samples', 'fields', 'counters')
    AND NOT (type = 'table' AND sql LIKE 'CREATE TABLE %' OR type = 'index')
UNION ALL SELECT 'column', name FROM pragma_table_xinfo('samples') WHERE hidden
UNION ALL SELECT 'column', name FROM pragma_table_xinfo('fields') WHERE hidden
"""
_TIMEOUT = 30.0
"""Seconds to wait for another writer of the same table."""


class TableError(FormatError, sqlite3.OperationalError):
    """A table that SQLite cannot read or change: damaged, locked by another writer, on a full disk."""


@contextmanager
def table_errors(root: str) -> Iterator[None]:
    """Turn errors of SQLite into a `TableError` that names the table."""
    try:
        yield
    except TableError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        path = os.path.join(root, TABLE)
        raise TableError(f"{path}: expected a table of samples that can be used, SQLite reports: {error}") from error


@contextmanager
def interruptible(table: sqlite3.Connection, path: str, most_steps: float = math.inf) -> Iterator[None]:
    """End queries on Ctrl-C, and raise an error after so many steps: SQLite follows a forged file in circles."""
    left = most_steps

    def count() -> bool:
        nonlocal left
        left -= _STEPS
        return left < 0

    table.set_progress_handler(count, _STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if str(error) != "interrupted":
            raise
        if left >= 0:
            raise KeyboardInterrupt from None
        size = os.path.getsize(path)
        raise FormatError(f"{path}: expected a table of {size} bytes, got more rows than it can hold") from None
    finally:
        table.set_progress_handler(None, 0)


def refuse_computed(table: sqlite3.Connection, path: str) -> None:
    """Raise an error for tables whose rows are computed when they are read, which may never end."""
    if found := table.execute(_COMPUTED).fetchone():
        raise FormatError(
            f"{path}: expected tables of stored rows, got the {found[0]} {found[1]!r}, which is computed; remove it "
            "with sqlite3 if you need the other ones"
        )


class SyncingConnection(sqlite3.Connection):
    """A connection that calls `before_commit` first, so that what its rows point to is stored before them."""

    before_commit: Callable[[], None] | None = None

    def _prepare(self) -> None:
        if self.before_commit is not None and self.in_transaction:
            self.before_commit()

    def commit(self) -> None:
        """Commit the open transaction."""
        self._prepare()
        super().commit()

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Commit the open transaction and execute several statements."""
        self._prepare()
        return super().executescript(sql_script)

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any:
        if kind is None:
            self._prepare()
        return super().__exit__(kind, error, trace)


def schema_sql(arrays: list[str]) -> str:
    """Return the statements that create the tables, with the columns of these fields."""
    columns = "".join(f', "{name}_offset" INTEGER, "{name}_shard" INTEGER' for name in arrays)
    return _SCHEMA.format(columns=columns)


def check_field_name(name: str, others: Container[str] = ()) -> None:
    """Raise an error for a field name that SQL does not accept unquoted, or that is one of others, in lower case.

    >>> check_field_name("my-field")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected a field name that SQL accepts unquoted, different ..., got 'my-field'
    """
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name) or name.lower() in others:
        problem = "expected a field name that SQL accepts unquoted, different from the others"
        raise SchemaError(f"{problem}, got {name!r}")


def numbered_id(number: int) -> str:
    """Return the id of a sample that was added without one.

    >>> numbered_id(7)
    'sample_000000000007'
    """
    return f"sample_{number:012d}"


def is_possible_id(name: str) -> bool:
    """Return whether a tar can hold an id as a name.

    >>> is_possible_id("a/b é"), is_possible_id("")
    (True, False)
    """
    return bool(name) and not re.search("[\0\ud800-\udfff]", name)


def metadata_json(metadata: Any) -> str:
    """Return metadata as the table stores it."""
    try:
        return json.dumps(metadata or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"expected metadata that JSON can hold, got {metadata!r:.80}: {error}") from None


def quoted(name: str, column: str) -> str:
    """Return a column of a field in quotes, for SQL.

    >>> quoted("x", "offset")
    '"x_offset"'
    """
    escaped = f"{name}_{column}".replace('"', '""')
    return f'"{escaped}"'


def field_folders(table: sqlite3.Connection) -> dict[str, str]:
    """Return the name of the folder of each field, without the path, which is wrong after the dataset was moved."""
    found = table.execute("SELECT name, base_dir FROM fields ORDER BY rowid").fetchall()
    return {str(name): str(base).replace("\\", "/").rstrip("/").rpartition("/")[2] for name, base in found}


def tar_path(folder: str, shard: Any) -> str:
    """Return the path of a tar in the dataset.

    >>> tar_path("x_shards", 7)
    'x_shards/shard_0007.tar'
    """
    return f"{folder}/shard_{shard:04d}.tar" if isinstance(shard, int) else f"{folder}/shard_{shard}.tar"


def local_tar(root: str, folder: str, shard: Any) -> str:
    """Return the full path of a tar; raise an error if the table names one that is not inside of the dataset."""
    if folder in ("", ".", "..") or not isinstance(shard, int) or shard < 0:
        raise PathError(f"{root}: expected a folder in it and the number of a tar, got {folder!r} and {shard!r}")
    return os.path.join(root, tar_path(folder, shard))


def stored_folder(root: str, name: str) -> str:
    """Return the folder of a field as the table stores it: absolute, because other writers append to this path.

    A path that is not UTF-8, which SQLite cannot store, is left out.
    """
    folder = f"{name}_shards"
    return folder if re.search("[\ud800-\udfff]", root) else os.path.join(root, folder)


def connect(root: str, *, create: bool = False) -> SyncingConnection:
    """Open the table of a folder, for several threads; without `create` it must exist.

    Where the folder is read-only, the connection is too.
    """
    path = os.path.join(root, TABLE)
    if not create and not os.path.isfile(path):
        raise NotFoundError(errno.ENOENT, "expected a folder with this table, unable to open database file", path)
    with table_errors(root):
        table = sqlite3.connect(
            _uri(root, path, create),
            uri=True,
            timeout=_TIMEOUT,
            isolation_level="IMMEDIATE",
            check_same_thread=False,
            factory=SyncingConnection,
        )
        try:
            with interruptible(table, path, steps_of(path)):
                refuse_computed(table, path)
        except BaseException:
            table.close()
            raise
        return table


def steps_of(path: str) -> int:
    """Return how many steps the queries that read a whole table may have."""
    return 10 * os.path.getsize(path) + 1_000_000


def _uri(root: str, path: str, create: bool) -> str:
    if not create and not (os.access(root, os.W_OK) and os.access(path, os.W_OK)):
        return read_only(path)
    return f"file:{quote(os.fsencode(path))}?mode={'rwc' if create else 'rw'}"


def read_only(path: str) -> str:
    """Return the URI with which SQLite reads a table and changes nothing.

    A table without a write-ahead log is opened as immutable: SQLite would otherwise create one to read it.
    """
    log = f"{path}-wal"
    immutable = "" if os.path.exists(log) and os.path.getsize(log) else "&immutable=1"
    return f"file:{quote(os.fsencode(path))}?mode=ro{immutable}"


# -- forks --------------------------------------------------------------------------------------------------------


class ForkGuard(Protocol):
    """Something that uses a connection, which must not be in use while the process forks."""

    def before_fork(self) -> None:
        """Take a lock, and release it in `after_fork`."""

    def after_fork(self) -> None:
        """Is called in the parent and in the child."""


_GUARDS: weakref.WeakValueDictionary[int, ForkGuard] = weakref.WeakValueDictionary()
_FORKING: dict[int, list[ForkGuard]] = {}
"""What a thread that forks has called `before_fork` of."""


def guard_forks(one: ForkGuard) -> None:
    """Call `before_fork` of an object whenever the process forks, and then `after_fork`."""
    _GUARDS[id(one)] = one


def _before_fork() -> None:
    guards = _FORKING[threading.get_ident()] = []
    for reference in _GUARDS.valuerefs():
        if (one := reference()) is not None:
            one.before_fork()
            guards.append(one)


def _after_fork() -> None:
    for one in reversed(_FORKING.pop(threading.get_ident(), [])):
        one.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
