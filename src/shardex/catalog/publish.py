"""`publish`: a record becomes the next version of a name, however many others publish at the same time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from shardex.catalog.backend import Backend
from shardex.catalog.records import CatalogRecord
from shardex.errors import ConflictError, FormatError

R = TypeVar("R", bound=CatalogRecord)
_ATTEMPTS = 1000
MOST_NAMES = 2000
"""Number of names among which the nearest one to an unknown name is looked for."""


def publish(backend: Backend, key: str, kind: type[R], make: Callable[[R | None, int], R]) -> R:
    """Store what `make` returns for the newest record and the next number; return the newest one if it says the same.

    `make` is called again if another process was faster.
    """
    mine: R | None = None
    for attempt in range(_ATTEMPTS):
        found, last = backend.head(key)
        if mine is not None and backend.read(key, mine.number) == mine:
            return mine  # the answer to the attempt before was lost
        newest = None if found is None else expect_kind(found, kind, key, backend)
        mine = make(newest, last + 1)
        if newest is not None and newest.says_the_same(mine):
            return newest
        if backend.append(key, last + 1, mine):
            return mine
        time.sleep(random.random() * min(attempt, 10) / 100)
    raise ConflictError(f"{backend.url}: expected to publish {key}, others were faster {_ATTEMPTS} times")


def expect_kind(record: Any, kind: type[R], key: str, backend: Backend) -> R:
    """Return a record that was stored under a key if it is of the kind that belongs there."""
    if isinstance(record, kind) and record.key == key:
        return record
    raise FormatError(f"{backend.url}: expected the record of {key}, got that of {record.key}")


def now() -> str:
    """Return the time of publication in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
