"""Bad samples: found by bisection, replaced by a position that depends on seed, epoch and position only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import Integers
from shardex.loader.plan import find_failures, replacement_position


@given(st.lists(st.booleans(), max_size=40))
def test_exactly_the_bad_positions_are_found(good: list[bool]) -> None:
    def read(positions: Integers) -> None:
        for position in positions.tolist():
            if not good[position]:
                raise ValueError(position)

    found = find_failures(read, np.arange(len(good)))
    assert sorted(found) == [k for k, fine in enumerate(good) if not fine]
    assert all(error.args == (number,) for number, error in found.items())


def test_memory_error_is_not_a_bad_sample() -> None:
    def read(positions: Integers) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        find_failures(read, np.arange(3))


@given(st.integers(0, 2**40), st.integers(1, 2**60))
def test_replacement_is_a_position_and_always_the_same(position: int, length: int) -> None:
    chosen = [replacement_position(1, 2, position, attempt, length) for attempt in range(3)]
    assert all(0 <= other < length for other in chosen)
    assert chosen == [replacement_position(1, 2, position, attempt, length) for attempt in range(3)]


def test_replacements_are_spread() -> None:
    assert len({replacement_position(0, 0, position, 0, 10**12) for position in range(1000)}) == 1000
