"""Look-up of samples of tars by `__key__`: the index has a number for each key; keys of one number are compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.errors import ArgumentError, DuplicateKeyError, UnknownKeyError
from shardex.formats.tar.members import KEY, number_of
from shardex.kernel import Integers

if TYPE_CHECKING:
    from shardex.formats.tar import TarRows


class TarKeys:
    """Finds samples by `__key__`."""

    key = KEY

    def __init__(self, rows: TarRows) -> None:
        self._tars = rows

    @cached_property
    def _sorted(self) -> tuple[Integers, Integers]:
        """The numbers of all keys in ascending order, and the row of each."""
        numbers = self._tars.index.read("key", np.arange(len(self._tars)))
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order

    def row_of(self, key: Any) -> int:
        """Return the row of one key; raise an error if there is none, or more than one."""
        return int(self.rows_of([key])[0])

    def rows_of(self, keys: Any) -> Integers:
        """Return the row of each key."""
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray):
            raise ArgumentError(f"expected a list or an array of keys, got {type(keys).__name__}")
        wanted = [key if isinstance(key, str) else "" for key in keys]
        numbers = np.array([number_of(key.encode("utf-8", "surrogateescape")) for key in wanted], np.int64)
        known, order = self._sorted
        first, end = (np.searchsorted(known, numbers, side) for side in ("left", "right"))
        candidates = [order[a:b] for a, b in zip(first.tolist(), end.tolist(), strict=True)]
        found = iter(self._tars.read(np.concatenate([order[:0], *candidates]), [KEY])[KEY])
        same = [
            [row for row in rows.tolist() if next(found) == key] for rows, key in zip(candidates, keys, strict=True)
        ]
        for key, rows in zip(keys, same, strict=True):
            if not rows:
                raise UnknownKeyError(f"{self._tars.files}: expected the __key__ of a sample, got {key!r:.200}")
            if len(rows) > 1:
                places = " and ".join(self._tars.location(row) for row in rows[:2])
                raise DuplicateKeyError(f"expected one sample with the key {key!r:.200}, got {len(rows)}: {places}")
        return np.array([rows[0] for rows in same], np.int64)
