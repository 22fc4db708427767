"""`create_provider`: the provider of a name."""

import os
from typing import Any

from shardex.compat.atdata._helpers import _imported
from shardex.compat.atdata.providers._base import IndexProvider
from shardex.compat.atdata.providers._postgres import PostgresProvider
from shardex.compat.atdata.providers._redis import RedisProvider
from shardex.compat.atdata.providers._sqlite import SqliteProvider
from shardex.errors import ArgumentError


def create_provider(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    dsn: str | None = None,
    redis: Any = None,
    **kwargs: Any,
) -> IndexProvider:
    """Return the database of an index: ``"sqlite"`` in the file `path`, ``"redis"`` or ``"postgres"`` at `dsn`.

    Other arguments are those of the client of Redis: host, port and so on.
    """
    kind = name.lower().strip()
    if kind == "redis":
        return RedisProvider(_imported("redis", "an index on Redis").Redis(**kwargs) if redis is None else redis)
    if kwargs:
        raise ArgumentError(f"expected path= or dsn= for the provider {kind!r}, got {', '.join(kwargs)}")
    if kind == "sqlite":
        return SqliteProvider(path)
    if kind not in ("postgres", "postgresql"):
        raise ArgumentError(f"Unknown provider {kind!r}. Choose from: 'redis', 'sqlite', 'postgres'.")
    if dsn is None:
        raise ArgumentError("dsn is required for the postgres provider, such as postgresql://user@host/name")
    return PostgresProvider(dsn)
