"""Cursors: positions in a run, steps, and the dict that a cursor is saved as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError, StateError
from shardex.loader.cursor import Cursor, EpochSteps, StepSegment

layouts = st.builds(
    EpochSteps,
    length=st.integers(0, 60),
    batch=st.integers(1, 9),
    world=st.integers(1, 5),
    drop_last=st.booleans(),
)


def positions(steps: EpochSteps, epochs: int) -> list[tuple[int, int]]:
    """Epoch and position of every step, counted one by one."""
    out = []
    for epoch in range(epochs):
        position = 0
        while position < steps.length and (position + steps.step_size <= steps.length or not steps.drop_last):
            out.append((epoch, position))
            position += steps.step_size
    return out


@given(layouts)
def test_count_and_after_equal_counting_one_by_one(steps: EpochSteps) -> None:
    counted = positions(steps, 3)
    assert steps.count() * 3 == len(counted)
    for taken in range(len(counted)):
        assert steps.after(0, 0, taken) == counted[taken]
    assert steps.after(0, 0, max(1, len(counted))) == ((3, 0) if counted else (1, 0))


@given(layouts, st.data())
def test_after_is_additive(steps: EpochSteps, data: st.DataObject) -> None:
    if not steps.count():
        return
    first, second = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 50))
    assert steps.after(*steps.after(0, 0, first), second) == steps.after(0, 0, first + second)


def test_run_of_a_trillion_samples() -> None:
    steps = EpochSteps(10**12, batch=256, world=64)
    cursor = Cursor(steps)
    cursor.advance(10**9)
    assert (cursor.epoch, cursor.position) == (10**9 // steps.count(), 10**9 % steps.count() * 256 * 64)
    assert cursor.locate(5)[1:] == (0, 5 * 256 * 64)


@given(layouts, layouts, st.integers(0, 30), st.integers(1, 30))
def test_every_step_can_be_located_after_a_resume(first: EpochSteps, second: EpochSteps, taken: int, more: int) -> None:
    second = EpochSteps(first.length, second.batch, second.world, second.drop_last)
    if not first.count() or not second.count():
        return
    cursor, seen = Cursor(first), []
    for _ in range(taken):
        seen.append((cursor.epoch, cursor.position, first.batch, first.world))
        cursor.advance()
    resumed = Cursor(second)
    resumed.load(json.loads(json.dumps(cursor.save())))
    for _ in range(more):
        seen.append((resumed.epoch, resumed.position, second.batch, second.world))
        resumed.advance()
    for step, expected in enumerate(seen):
        segment, epoch, position = resumed.locate(step)
        assert (epoch, position, segment.batch, segment.world) == expected


@given(layouts, st.lists(st.integers(0, 9), max_size=6))
def test_resuming_with_equal_steps_adds_no_segment(steps: EpochSteps, parts: list[int]) -> None:
    if not steps.count():
        return
    straight, stopped = Cursor(steps), Cursor(steps)
    for part in parts:
        straight.advance(part)
        stopped.advance(part)
        again = Cursor(steps)
        again.load(stopped.save())
        stopped = again
    assert stopped.save() == straight.save()
    assert len(stopped.segments) == 1


def test_resume_drops_the_rest_of_an_epoch_that_is_no_full_step() -> None:
    cursor = Cursor(EpochSteps(10, batch=4))
    cursor.advance(2)
    larger = Cursor(EpochSteps(10, batch=4, drop_last=True))
    larger.load(cursor.save())
    assert (larger.epoch, larger.position) == (1, 0)


def test_seek_keeps_the_count_of_steps() -> None:
    cursor = Cursor(EpochSteps(10, batch=4))
    cursor.advance(2)
    cursor.seek(7, 3)
    assert cursor.save()["step"] == 2
    assert cursor.segments[-1] == StepSegment(2, 7, 3, 4, 1, False)
    cursor.advance()
    assert cursor.locate(2)[1:] == (7, 3)
    assert cursor.locate(1)[1:] == (0, 4)
    cursor.seek(8, 10)
    assert (cursor.epoch, cursor.position) == (9, 0)


@pytest.mark.parametrize("target", [(-1, 0), (0, -1), (0, 11)])
def test_seek_out_of_range_raises(target: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="expected an epoch of 0 or more and a position from 0 to 10"):
        Cursor(EpochSteps(10, batch=4)).seek(*target)


@pytest.mark.parametrize("step", [-1, 0, 3])
def test_locating_a_step_that_was_not_taken_raises(step: int) -> None:
    with pytest.raises(ArgumentError, match="expected one of the 0 steps taken so far"):
        Cursor(EpochSteps(10, batch=4)).locate(step)


GOOD: dict[str, Any] = Cursor(EpochSteps(10, batch=4)).save()


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {**GOOD, "version": 2},
        {**GOOD, "epoch": "0"},
        {**GOOD, "epoch": -1},
        {**GOOD, "position": 1.5},
        {**GOOD, "legs": []},
        {**GOOD, "legs": [[1, 0, 0, 4, 1, False]]},
        {**GOOD, "step": 3, "legs": [[4, 0, 0, 4, 1, False]]},
        {**GOOD, "legs": [[0, 0, 0, 0, 1, False]]},
        {**GOOD, "legs": [[0, 0, 0, 4, 1]]},
        {**GOOD, "legs": [[0, 0, 0, 4, 1, False], [5, 0, 0, 4, 1, False], [4, 0, 0, 4, 1, False]]},
    ],
    ids=repr,
)
def test_loading_an_invalid_state_raises(bad: dict[str, Any]) -> None:
    cursor = Cursor(EpochSteps(10, batch=4))
    with pytest.raises(StateError, match=r"expected a (dict made by state_dict|state of version 1)"):
        cursor.load(bad)
    assert cursor.save() == GOOD
