"""`PostgresProvider`: an index in PostgreSQL, by psycopg 3."""

import threading
from collections.abc import Sequence
from typing import Any

from shardex.compat.atdata._helpers import _imported
from shardex.compat.atdata.providers._sql import SqlProvider


class PostgresProvider(SqlProvider):
    """An index in a database of PostgreSQL, given by a connection string: ``postgresql://user:password@host/name``."""

    newest = "created_at DESC"

    def __init__(self, dsn: str) -> None:
        self._connection = _imported("psycopg", "an index in PostgreSQL").connect(dsn, autocommit=True)
        self._lock = threading.Lock()
        self.make_tables(blob="BYTEA", time="TIMESTAMPTZ DEFAULT now()")

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._connection.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), list(values))
            return cursor.fetchall() if cursor.description else []

    def replace(self, table: str, keys: Sequence[str], row: dict[str, Any]) -> None:
        changes = ", ".join(f"{one} = EXCLUDED.{one}" for one in row if one not in keys)
        insert = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        update = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}, created_at = now()"
        self.run(f"{insert} {update}", list(row.values()))

    def close(self) -> None:
        self._connection.close()
