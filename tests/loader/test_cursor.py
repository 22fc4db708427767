"""Cursors: places in a run, the steps that lead there, and the dict they are saved as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import SchemaError, StateError
from shardex.loader.cursor import Cursor, Leg, Shape

shapes = st.builds(
    Shape,
    length=st.integers(0, 60),
    batch=st.integers(1, 9),
    world=st.integers(1, 5),
    drop_last=st.booleans(),
)


def places(shape: Shape, epochs: int) -> list[tuple[int, int]]:
    """Epoch and position of every step, counted out."""
    out = []
    for epoch in range(epochs):
        position = 0
        while position < shape.length and (position + shape.stride <= shape.length or not shape.drop_last):
            out.append((epoch, position))
            position += shape.stride
    return out


@given(shapes)
def test_steps_are_those_one_can_count(shape: Shape) -> None:
    counted = places(shape, 3)
    assert shape.steps() * 3 == len(counted)
    for taken in range(len(counted)):
        assert shape.after(0, 0, taken) == counted[taken]
    assert shape.after(0, 0, max(1, len(counted))) == ((3, 0) if counted else (1, 0))


@given(shapes, st.data())
def test_after_adds_up(shape: Shape, data: st.DataObject) -> None:
    if not shape.steps():
        return
    first, second = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 50))
    assert shape.after(*shape.after(0, 0, first), second) == shape.after(0, 0, first + second)


def test_a_run_of_a_trillion_samples_is_arithmetic() -> None:
    shape = Shape(10**12, batch=256, world=64)
    cursor = Cursor(shape)
    cursor.advance(10**9)
    assert (cursor.epoch, cursor.position) == (10**9 // shape.steps(), 10**9 % shape.steps() * 256 * 64)
    assert cursor.place(5)[1:] == (0, 5 * 256 * 64)


@given(shapes, shapes, st.integers(0, 30), st.integers(1, 30))
def test_every_step_can_be_placed_after_a_resume(first: Shape, second: Shape, taken: int, more: int) -> None:
    second = Shape(first.length, second.batch, second.world, second.drop_last)
    if not first.steps() or not second.steps():
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
        leg, epoch, position = resumed.place(step)
        assert (epoch, position, leg.batch, leg.world) == expected


@given(shapes, st.lists(st.integers(0, 9), max_size=6))
def test_resuming_in_the_same_shape_leaves_no_trace(shape: Shape, parts: list[int]) -> None:
    if not shape.steps():
        return
    straight, stopped = Cursor(shape), Cursor(shape)
    for part in parts:
        straight.advance(part)
        stopped.advance(part)
        again = Cursor(shape)
        again.load(stopped.save())
        stopped = again
    assert stopped.save() == straight.save()
    assert len(stopped.legs) == 1


def test_what_is_left_of_an_epoch_may_be_no_step_of_another_shape() -> None:
    cursor = Cursor(Shape(10, batch=4))
    cursor.advance(2)
    larger = Cursor(Shape(10, batch=4, drop_last=True))
    larger.load(cursor.save())
    assert (larger.epoch, larger.position) == (1, 0)


def test_seek_goes_anywhere_and_keeps_the_count_of_steps() -> None:
    cursor = Cursor(Shape(10, batch=4))
    cursor.advance(2)
    cursor.seek(7, 3)
    assert cursor.save()["step"] == 2
    assert cursor.legs[-1] == Leg(2, 7, 3, 4, 1, False)
    cursor.advance()
    assert cursor.place(2)[1:] == (7, 3)
    assert cursor.place(1)[1:] == (0, 4)
    cursor.seek(8, 10)
    assert (cursor.epoch, cursor.position) == (9, 0)


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (0, 11)])
def test_seek_refuses_places_that_are_not_there(place: tuple[int, int]) -> None:
    with pytest.raises(SchemaError, match="expected an epoch from 0 on and a position from 0 to 10"):
        Cursor(Shape(10, batch=4)).seek(*place)


@pytest.mark.parametrize("step", [-1, 0, 3])
def test_steps_that_were_not_taken_have_no_place(step: int) -> None:
    with pytest.raises(SchemaError, match="expected one of the 0 steps taken so far"):
        Cursor(Shape(10, batch=4)).place(step)


GOOD: dict[str, Any] = Cursor(Shape(10, batch=4)).save()


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
def test_what_no_cursor_saved_is_refused(bad: dict[str, Any]) -> None:
    cursor = Cursor(Shape(10, batch=4))
    with pytest.raises(StateError, match=r"expected a (dict made by state_dict|state of version 1)"):
        cursor.load(bad)
    assert cursor.save() == GOOD
