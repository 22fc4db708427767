"""A database of an index together with a store of shards, under a name that `Index` gives it."""

import os
from dataclasses import dataclass
from typing import Any

from shardex.compat.atdata._protocols import AbstractDataStore
from shardex.compat.atdata.providers import IndexProvider, create_provider

__all__ = ["Repository", "create_repository"]


@dataclass
class Repository:
    """A database, and where shards of new datasets are stored; without a store they stay where they are."""

    provider: IndexProvider
    data_store: AbstractDataStore | None = None


def create_repository(
    provider: str = "sqlite",
    *,
    path: str | os.PathLike[str] | None = None,
    dsn: str | None = None,
    redis: Any = None,
    data_store: AbstractDataStore | None = None,
    **kwargs: Any,
) -> Repository:
    """Return a repository with the database that `create_provider` makes."""
    return Repository(create_provider(provider, path=path, dsn=dsn, redis=redis, **kwargs), data_store)
