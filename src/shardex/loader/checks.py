"""What people hand to a loader, looked at before anything is done with it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from shardex.errors import SchemaError
from shardex.loader.tensors import distributed

__all__ = ["check_functions", "one_of", "rank_of", "whole"]


def rank_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Which process this is, of how many."""
    if rank is None and world_size is None:
        return distributed()
    if rank is None or world_size is None:
        raise SchemaError(f"expected rank and world_size together, got rank={rank}, world_size={world_size}")
    world = whole("world_size", world_size, 1)
    if not 0 <= (number := whole("rank", rank)) < world:
        raise SchemaError(f"expected a rank from 0 to {world - 1}, got {number}")
    return number, world


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, at least so large; an error names the argument.

    >>> whole("batch_size", 0, 1)
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected at least 1 for batch_size, got 0
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise SchemaError(f"expected a whole number for {name}, got {value!r}") from None
    if least is not None and number < least:
        raise SchemaError(f"expected at least {least} for {name}, got {number}")
    return number


def one_of(name: str, value: Any, known: Sequence[Any]) -> Any:
    """One of some values; an error names the argument."""
    if value not in known:
        raise SchemaError(f"expected {name} to be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def check_functions(**functions: Any) -> None:
    """Refuse what cannot be called; an error names the argument."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise SchemaError(f"expected a function for {name}, got {function!r:.200}")
