"""`SqliteProvider`: an index in an SQLite file, ``~/.atdata/index.db`` by default."""

import os
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardex.compat.atdata.providers._sql import SqlProvider
from shardex.errors import FormatError

_SECONDS = 30
"""How long a statement waits for another process that writes."""


class SqliteProvider(SqlProvider):
    """An index in an SQLite file; several processes and threads can use it at the same time."""

    newest = "created_at DESC, rowid DESC"

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = Path.home() / ".atdata" / "index.db" if path is None else Path(path).expanduser()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock, self._pid = threading.Lock(), 0
        self.run("PRAGMA journal_mode=WAL")
        self.make_tables(blob="BLOB", time="TEXT DEFAULT (datetime('now'))")

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            if self._pid != os.getpid():  # a connection must not cross a fork
                self._connection = sqlite3.connect(
                    self._path, timeout=_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._close = weakref.finalize(self, self._connection.close)
                self._pid = os.getpid()
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.DatabaseError as error:
                problem = f"expected an index of atdata in an SQLite file, got {error}"
                raise FormatError(f"{problem} - at {self._path}") from error

    def replace(self, table: str, keys: Sequence[str], row: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self.run(f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    def close(self) -> None:
        if self._pid == os.getpid():
            self._close()
