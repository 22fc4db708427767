"""Files in a SQLite database: ``sqlfiles:///data/files.db/weather`` is the folder `weather` in ``/data/files.db``."""

import errno
import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass

from shardex.errors import AddressError, NotFoundError, TruncatedShardError
from shardex.sources import Place, Stat, TemporaryDraft, check_path

TABLE = "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, data BLOB, written REAL, version INTEGER)"
PUT = """INSERT INTO files VALUES (?, ?, ?, 0)
    ON CONFLICT DO UPDATE SET data = excluded.data, written = excluded.written, version = version + 1"""


@dataclass(frozen=True)
class SqliteFiles(Place):
    """The files below a folder of a database; pickled as these three texts."""

    url: str
    database: str
    folder: str

    @contextmanager
    def _connected(self):
        with closing(sqlite3.connect(self.database, timeout=60)) as connection, connection:
            connection.execute(TABLE)
            yield connection

    def _full(self, path):
        return self.folder + check_path(path)

    def _get(self, path, what):
        with self._connected() as connection:
            found = connection.execute(f"SELECT {what} FROM files WHERE path = ?", [self._full(path)]).fetchone()
        if found is None:
            raise NotFoundError(errno.ENOENT, "no such file in the database", self.full_name(path))
        return found

    def stat(self, path):
        size, written, version = self._get(path, "length(data), written, version")
        return Stat(size, f"{written}-{version}", written)

    def paths(self, prefix=""):
        begin = self.folder + prefix
        with self._connected() as connection:
            found = connection.execute("SELECT path FROM files WHERE substr(path, 1, ?) = ?", [len(begin), begin])
            return sorted(path[len(self.folder) :] for (path,) in found)

    def map(self, path):
        return memoryview(self._get(path, "data")[0])

    def read(self, path, ranges):
        size = self.stat(path).size
        for one in ranges:
            if one.end > size:
                raise TruncatedShardError(f"{path}: expected bytes up to {one.end}, got a file of {size} bytes")
        return [memoryview(self._get(path, f"substr(data, {r.begin + 1}, {r.length})")[0]) for r in ranges]

    def put(self, path, data):
        with self._connected() as connection:
            connection.execute(PUT, [self._full(path), bytes(data), time.time()])

    def put_if_absent(self, path, data):
        row = [self._full(path), bytes(data), time.time()]
        with self._connected() as connection:
            return connection.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?, 0)", row).rowcount == 1

    def draft(self):
        return TemporaryDraft(self.put)

    def copy(self, path, to):
        self.put(to, self.map(path))

    def remove(self, path):
        self.stat(path)
        with self._connected() as connection:
            connection.execute("DELETE FROM files WHERE path = ?", [self._full(path)])


def open_place(url, trusted):
    """Return the files at a URL of the user; data that names such a URL could make this machine open any database."""
    database, found, folder = url.removeprefix("sqlfiles://").partition(".db")
    if not trusted or not found:
        raise AddressError(f"expected a URL of the user such as sqlfiles:///data/files.db/weather, got {url!r}")
    return SqliteFiles(url, f"{database}.db", f"{folder.strip('/')}/".lstrip("/"))
