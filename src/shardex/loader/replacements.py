"""Bad samples: which positions of a read fail, and which ones take their place.

What stands in for a position depends on the seed, the epoch and the position alone, so every rank, every number of
workers and every resumed run puts the same sample there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardex.kernel import Integers

__all__ = ["ATTEMPTS", "BadSample", "failures", "stand_in"]

ATTEMPTS = 32
"""How many others are tried in place of one bad sample: if all fail, it is not the samples that are bad."""


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be read or transformed, and was replaced."""

    epoch: int
    position: int
    """Its place in the order of the epoch."""
    row: int
    """Its number in the dataset."""
    shard: str
    """The file it lies in, where that is known."""
    error: str
    """What went wrong: the error's type and message."""
    instead: int
    """The number of the sample that stands in for it."""


def failures(take: Callable[[Integers], Any], positions: Integers) -> dict[int, Exception]:
    """Which of these positions cannot be taken, and why: found by halving what fails.

    >>> import numpy as np
    >>> list(failures(lambda some: [1 / (p - 3) for p in some.tolist()], np.array([5, 3, 4])))
    [1]
    """
    try:
        take(positions)
    except MemoryError:
        raise
    except Exception as error:
        if len(positions) == 1:
            return {0: error}
        half = len(positions) // 2
        later = failures(take, positions[half:])
        return failures(take, positions[:half]) | {half + k: failed for k, failed in later.items()}
    return {}


def stand_in(seed: int, epoch: int, position: int, attempt: int, length: int) -> int:
    """The position whose sample replaces a bad one at the given attempt.

    >>> stand_in(seed=0, epoch=0, position=7, attempt=0, length=100)
    17
    """
    key = f"shardex stand-in {seed} {epoch} {position} {attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little") % length
