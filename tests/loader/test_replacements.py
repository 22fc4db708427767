"""Bad samples: found by halving, replaced by what a position's own number decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import Integers
from shardex.loader.replacements import failures, stand_in


@given(st.lists(st.booleans(), max_size=40))
def test_failures_are_exactly_the_bad_ones(good: list[bool]) -> None:
    def take(positions: Integers) -> None:
        for position in positions.tolist():
            if not good[position]:
                raise ValueError(position)

    found = failures(take, np.arange(len(good)))
    assert sorted(found) == [k for k, fine in enumerate(good) if not fine]
    assert all(error.args == (number,) for number, error in found.items())


def test_no_memory_is_nobodys_fault() -> None:
    def take(positions: Integers) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        failures(take, np.arange(3))


@given(st.integers(0, 2**40), st.integers(1, 2**60))
def test_a_stand_in_is_a_position_and_always_the_same(position: int, length: int) -> None:
    chosen = [stand_in(1, 2, position, attempt, length) for attempt in range(3)]
    assert all(0 <= other < length for other in chosen)
    assert chosen == [stand_in(1, 2, position, attempt, length) for attempt in range(3)]


def test_stand_ins_spread() -> None:
    assert len({stand_in(0, 0, position, 0, 10**12) for position in range(1000)}) == 1000
