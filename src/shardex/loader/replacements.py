"""Bad samples: which positions of a read fail, and which positions replace them.

A replacement depends on seed, epoch and position only, so it is the same on every rank, with any number of workers and
after a resume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardex.kernel import Integers

MAX_ATTEMPTS = 32
"""Replacements tried for one bad sample; if all of them fail, the cause is not a bad sample."""


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be read or transformed and was replaced."""

    epoch: int
    position: int
    """Its position in the order of the epoch."""
    row: int
    """Its number in the dataset."""
    shard: str
    """Path of the file that holds it, empty if it is not known."""
    error: str
    """Type and message of the error."""
    instead: int
    """Number of the sample that replaces it."""


def find_failures(read: Callable[[Integers], Any], positions: Integers) -> dict[int, Exception]:
    """Return the indices of the positions that cannot be read and the error of each; found by bisection.

    >>> import numpy as np
    >>> list(find_failures(lambda some: [1 / (p - 3) for p in some.tolist()], np.array([5, 3, 4])))
    [1]
    """
    try:
        read(positions)
    except MemoryError:
        raise
    except Exception as error:
        if len(positions) == 1:
            return {0: error}
        half = len(positions) // 2
        later = find_failures(read, positions[half:])
        return find_failures(read, positions[:half]) | {half + k: failed for k, failed in later.items()}
    return {}


def replacement_position(seed: int, epoch: int, position: int, attempt: int, length: int) -> int:
    """Return the position whose sample replaces a bad one at an attempt.

    >>> replacement_position(seed=0, epoch=0, position=7, attempt=0, length=100)
    17
    """
    key = f"shardex stand-in {seed} {epoch} {position} {attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little") % length
