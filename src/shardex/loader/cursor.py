"""Where a run is: epoch, position and step, and the small dict that it is saved as. Pure arithmetic, no data.

A step hands one global batch to all ranks. `Shape` is how steps cut an epoch; a `Leg` is a stretch of steps cut in
one way, so that a run which was resumed with other batches can still say what any earlier step held.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import msgspec

from shardex.errors import SchemaError, StateError

__all__ = ["Cursor", "Leg", "Shape", "check_state"]

VERSION = 1
_LEGS = 64
"""How many legs are remembered, so that a state stays small however often somebody seeks."""


@dataclass(frozen=True)
class Shape:
    """How an epoch of `length` positions is cut into steps of `batch` samples on each of `world` ranks."""

    length: int
    batch: int
    world: int = 1
    drop_last: bool = False

    @cached_property
    def stride(self) -> int:
        """Positions in a whole step."""
        return self.batch * self.world

    def steps(self, position: int = 0) -> int:
        """How many steps the epoch has from a position on.

        >>> Shape(10, batch=2, world=2).steps(), Shape(10, 2, 2, drop_last=True).steps(), Shape(10, 2, 2).steps(8)
        (3, 2, 1)
        """
        left = self.length - position
        return left // self.stride if self.drop_last else -(-left // self.stride)

    def after(self, epoch: int, position: int, steps: int) -> tuple[int, int]:
        """Epoch and position after some more steps.

        >>> Shape(10, batch=2, world=2).after(epoch=0, position=0, steps=5)
        (1, 8)
        """
        left = self.steps(position)
        if steps < left:
            return epoch, position + steps * self.stride
        if not (each := self.steps()):
            return epoch + 1, 0
        epochs, rest = divmod(steps - left, each)
        return epoch + 1 + epochs, rest * self.stride


@dataclass(frozen=True)
class Leg:
    """From this step on, at this epoch and position, steps have this shape."""

    step: int
    epoch: int
    position: int
    batch: int
    world: int
    drop_last: bool

    def shape(self, length: int) -> Shape:
        """How it cuts an epoch."""
        return Shape(length, self.batch, self.world, self.drop_last)


class Cursor:
    """A place in a run of epochs, and the legs that led there.

    >>> cursor = Cursor(Shape(10, batch=4))
    >>> cursor.advance(4); cursor.epoch, cursor.position, cursor.step
    (1, 4, 4)
    >>> cursor.place(2)
    (Leg(step=0, epoch=0, position=0, batch=4, world=1, drop_last=False), 0, 8)
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.epoch = self.position = self.step = 0
        self.legs = [self._leg()]

    def _leg(self) -> Leg:
        return Leg(self.step, self.epoch, self.position, self.shape.batch, self.shape.world, self.shape.drop_last)

    def advance(self, steps: int = 1) -> None:
        """Count steps as taken."""
        self.step += steps
        position = self.position + steps * self.shape.stride
        if position + self.shape.stride <= self.shape.length:  # the common case, and a whole step is left
            self.position = position
        else:
            self.epoch, self.position = self.shape.after(self.epoch, self.position, steps)

    def seek(self, epoch: int, position: int) -> None:
        """Go elsewhere; the steps so far stay counted."""
        if epoch < 0 or not 0 <= position <= self.shape.length:
            raise SchemaError(
                f"expected an epoch from 0 on and a position from 0 to {self.shape.length}, "
                f"got epoch {epoch}, position {position}"
            )
        if (epoch, position) != (self.epoch, self.position):
            self.epoch, self.position = epoch, position
            self._begin_leg()

    def _begin_leg(self) -> None:
        if not self.shape.steps(self.position):  # what is left of this epoch is no step of this shape
            self.epoch, self.position = self.epoch + 1, 0
        legs = [leg for leg in self.legs if leg.step < self.step]
        self.legs = [*legs[1 - _LEGS :], self._leg()]

    def place(self, step: int) -> tuple[Leg, int, int]:
        """The leg, the epoch and the position of a step that was taken."""
        if not 0 <= step < self.step:
            raise SchemaError(f"expected one of the {self.step} steps taken so far, got step {step}")
        legs = [leg for leg in self.legs if leg.step <= step]
        if not legs:
            raise SchemaError(f"expected a step from {self.legs[0].step} on, which is remembered, got step {step}")
        leg = legs[-1]
        return leg, *leg.shape(self.shape.length).after(leg.epoch, leg.position, step - leg.step)

    def save(self) -> dict[str, Any]:
        """A dict of plain numbers; the same on every rank."""
        legs = [list(asdict(leg).values()) for leg in self.legs]
        place = {"epoch": self.epoch, "position": self.position, "step": self.step}
        return {"version": VERSION, **place, "length": self.shape.length, "legs": legs}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place, in steps of this cursor's own shape."""
        saved = check_state(state)
        self.epoch, self.position, self.step = saved.epoch, min(saved.position, self.shape.length), saved.step
        self.legs = [Leg(*leg) for leg in saved.legs]
        if not self._goes_on(self.legs[-1]):
            self._begin_leg()

    def _goes_on(self, leg: Leg) -> bool:
        """Whether more steps of this leg lead here and on."""
        shape = leg.shape(self.shape.length)
        here = self.epoch, self.position
        return shape == self.shape and here == shape.after(leg.epoch, leg.position, self.step - leg.step)


class _Saved(msgspec.Struct):
    version: int
    epoch: int
    position: int
    step: int
    length: int
    legs: list[tuple[int, int, int, int, int, bool]]


def check_state(state: Any) -> _Saved:
    """A state as numbers that fit together; an error if it is none."""
    if not isinstance(state, Mapping):
        raise StateError(f"expected a dict made by state_dict, got {type(state).__name__}")
    try:
        saved = msgspec.convert(dict(state), _Saved)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise StateError(f"expected a dict made by state_dict, got something else: {error}") from None
    if saved.version != VERSION:
        raise StateError(f"expected a state of version {VERSION}, got {saved.version}; use the shardex that made it")
    ordered = all(a[0] <= b[0] for a, b in itertools.pairwise(saved.legs))
    numbers = [saved.epoch, saved.position, saved.step, *(leg[k] for leg in saved.legs for k in range(3))]
    sizes = [leg[k] for leg in saved.legs for k in (3, 4)]
    if not saved.legs or not ordered or saved.legs[-1][0] > saved.step or min(numbers) < 0 or min(sizes) < 1:
        raise StateError("expected a dict made by state_dict, got one whose numbers do not fit together")
    return saved
