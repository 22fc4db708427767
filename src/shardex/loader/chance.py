"""Chance in transforms: a generator that belongs to a place in the run, and whether a transform wants one."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["generator", "takes_two"]


def takes_two(transform: Callable[..., Any]) -> bool:
    """Whether a transform wants a second argument: one it must be given, or one called `rng`.

    >>> takes_two(lambda sample: sample), takes_two(lambda s, chance: s), takes_two(lambda s, rng=None: s)
    (False, True, True)
    """
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    if any(p.name == "rng" for p in parameters):
        return True
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 2


def generator(seed: int, epoch: int, position: int) -> np.random.Generator:
    """A source of chance that belongs to one position: the same whoever asks, whenever."""
    key = hashlib.blake2b(f"shardex rng {seed} {epoch}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=np.array([int.from_bytes(key, "little"), position], np.uint64)))
