"""`Cursor`: epoch, position and step of a run, saved as a small dict. Arithmetic, no data.

A step gives one batch to every rank. `Steps` divides epochs into steps: `EpochSteps` into steps of one size,
`LengthSteps` (`length_steps.py`) by the lengths of samples. A `StepSegment` is a sequence of steps of one size: after a
resume with another batch size or world size, the samples of any earlier step can still be computed.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from shardex.errors import ArgumentError, StateError
from shardex.loader.plan import Cut

VERSION = 1
_MAX_SEGMENTS = 64
"""Number of segments that are kept, so that a state stays small even if the run is moved often."""


class Steps(ABC):
    """Divides epochs of `length` samples into steps. A position is a number of samples of an epoch that were taken."""

    length: int
    batch: int
    """Largest number of samples in a batch; 1 if there is no limit."""
    world: int
    drop_last: bool

    @property
    @abstractmethod
    def step_size(self) -> int | None:
        """Number of samples in a full step; None if that differs."""

    @abstractmethod
    def count(self, epoch: int = 0, position: int = 0) -> int:
        """Return the number of steps from a position to the end of an epoch; no epoch has 0 steps unless all have."""

    @abstractmethod
    def count_all(self, begin: int, end: int) -> int:
        """Return the number of steps in the epochs from `begin` to before `end`."""

    @abstractmethod
    def mean_batch(self, epoch: int) -> int:
        """Return the mean number of samples in a batch of an epoch."""

    @abstractmethod
    def after(self, epoch: int, position: int, steps: int) -> tuple[int, int]:
        """Return epoch and position after more steps."""

    @abstractmethod
    def resized(self, batch: int, world: int, drop_last: bool) -> Steps:
        """Return the division of the same epochs into steps of other sizes."""

    def cut(self, epoch: int, position: int, batches: int, rank: int) -> Cut | None:
        """Return which samples some batches of a rank have; None if they are consecutive from the position on."""
        return None


@dataclass(frozen=True)
class EpochSteps(Steps):
    """Epochs of `length` positions, divided into steps of `batch` samples on each of `world` ranks."""

    length: int
    batch: int
    world: int = 1
    drop_last: bool = False

    @cached_property
    def step_size(self) -> int:
        """Number of positions in a full step."""
        return self.batch * self.world

    def count(self, epoch: int = 0, position: int = 0) -> int:
        """Return the number of steps in the rest of an epoch.

        >>> EpochSteps(10, batch=2, world=2).count(), EpochSteps(10, 2, 2, drop_last=True).count()
        (3, 2)
        """
        left = self.length - position
        return left // self.step_size if self.drop_last else -(-left // self.step_size)

    def count_all(self, begin: int, end: int) -> int:
        """Return the number of steps in the epochs from `begin` to before `end`."""
        return (end - begin) * self.count()

    def mean_batch(self, epoch: int) -> int:
        """Return the number of samples in a batch."""
        return self.batch

    def after(self, epoch: int, position: int, steps: int) -> tuple[int, int]:
        """Return epoch and position after more steps.

        >>> EpochSteps(10, batch=2, world=2).after(epoch=0, position=0, steps=5)
        (1, 8)
        """
        left = self.count(epoch, position)
        if steps < left:
            return epoch, position + steps * self.step_size
        if not (each := self.count()):
            return epoch + 1, 0
        epochs, rest = divmod(steps - left, each)
        return epoch + 1 + epochs, rest * self.step_size

    def resized(self, batch: int, world: int, drop_last: bool) -> EpochSteps:
        """Return the division of the same epochs into steps of other sizes."""
        return replace(self, batch=batch, world=world, drop_last=drop_last)


@dataclass(frozen=True)
class StepSegment:
    """Begin of a sequence of steps of one size. The order of the fields is that of saved states."""

    step: int
    epoch: int
    position: int
    batch: int
    world: int
    drop_last: bool

    def resize(self, steps: Steps) -> Steps:
        """Return the division of epochs into the steps of this segment."""
        return steps.resized(self.batch, self.world, self.drop_last)


class Cursor:
    """Epoch, position and step of a run, and the earlier segments of steps of one size.

    >>> cursor = Cursor(EpochSteps(10, batch=4))
    >>> cursor.advance(4); cursor.epoch, cursor.position, cursor.step
    (1, 4, 4)
    >>> cursor.locate(2)
    (StepSegment(step=0, epoch=0, position=0, batch=4, world=1, drop_last=False), 0, 8)
    """

    def __init__(self, steps: Steps) -> None:
        self.epoch = self.position = self.step = 0
        self._use(steps)
        self.segments = [self._segment_here()]

    def _use(self, steps: Steps) -> None:
        self.steps = steps
        self._step_size = steps.step_size or 0
        self._last_full = steps.length - self._step_size if self._step_size else -1
        """Position of the last full step of an epoch, if full steps have one size."""

    def resize(self, steps: Steps) -> None:
        """Continue here in steps of another size."""
        self._use(steps)
        if not self._continues(self.segments[-1]):
            self._begin_segment()

    def _segment_here(self) -> StepSegment:
        steps = self.steps
        return StepSegment(self.step, self.epoch, self.position, steps.batch, steps.world, steps.drop_last)

    def advance(self, steps: int = 1) -> None:
        """Move forward by some steps."""
        self.step += steps
        position = self.position + steps * self._step_size
        if position <= self._last_full:  # the common case: a full step follows
            self.position = position
            return
        epoch = self.epoch
        self.epoch, self.position = self.steps.after(epoch, self.position, steps)
        if self.epoch != epoch and not self._step_size:
            self._begin_segment()  # so that no earlier epoch is needed to find a step

    def seek(self, epoch: int, position: int) -> None:
        """Move to an epoch and position; the step count does not change."""
        if epoch < 0 or not 0 <= position <= self.steps.length:
            raise ArgumentError(
                f"expected an epoch of 0 or more and a position from 0 to {self.steps.length}, "
                f"got epoch {epoch}, position {position}"
            )
        if (epoch, position) != (self.epoch, self.position):
            self.epoch, self.position = epoch, position
            self._begin_segment()

    def _begin_segment(self) -> None:
        if self.position and not self.steps.count(self.epoch, self.position):  # drop_last drops the rest of this epoch
            self.epoch, self.position = self.epoch + 1, 0
        earlier = [segment for segment in self.segments if segment.step < self.step]
        self.segments = [*earlier[1 - _MAX_SEGMENTS :], self._segment_here()]

    def locate(self, step: int) -> tuple[StepSegment, int, int]:
        """Return segment, epoch and position of a step that was taken."""
        if not 0 <= step < self.step:
            raise ArgumentError(f"expected one of the {self.step} steps taken so far, got step {step}")
        segments = [segment for segment in self.segments if segment.step <= step]
        if not segments:
            first = self.segments[0].step
            raise ArgumentError(f"expected step {first} or later, earlier ones are forgotten, got step {step}")
        segment = segments[-1]
        steps = segment.resize(self.steps)
        return segment, *steps.after(segment.epoch, segment.position, step - segment.step)

    def save(self) -> dict[str, Any]:
        """Return the cursor as a dict of JSON values; it is the same on every rank."""
        segments = [list(asdict(segment).values()) for segment in self.segments]
        here = {"epoch": self.epoch, "position": self.position, "step": self.step}
        return {"version": VERSION, **here, "length": self.steps.length, "legs": segments}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved cursor, in steps of this cursor's own size."""
        saved = check_state(state)
        self.epoch, self.position, self.step = saved.epoch, min(saved.position, self.steps.length), saved.step
        self.segments = [StepSegment(*segment) for segment in saved.legs]
        if not self._continues(self.segments[-1]):
            self._begin_segment()

    def _continues(self, segment: StepSegment) -> bool:
        """True if the next step belongs to a segment."""
        steps = self.steps
        if segment.resize(steps) != steps or (not self._step_size and segment.epoch != self.epoch):
            return False
        here = self.epoch, self.position
        return here == steps.after(segment.epoch, segment.position, self.step - segment.step)


class _SavedState(msgspec.Struct):
    version: int
    epoch: int
    position: int
    step: int
    length: int
    legs: list[tuple[int, int, int, int, int, bool]]


def check_state(state: Any) -> _SavedState:
    """Return the numbers of a saved state; raise `StateError` if it is not a saved state."""
    if not isinstance(state, Mapping):
        raise StateError(f"expected a dict made by state_dict, got {type(state).__name__}")
    try:
        saved = msgspec.convert(dict(state), _SavedState)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise StateError(f"expected a dict made by state_dict, got something else: {error}") from None
    if saved.version != VERSION:
        raise StateError(f"expected a state of version {VERSION}, got {saved.version}; use the shardex that made it")
    ordered = all(a[0] <= b[0] for a, b in itertools.pairwise(saved.legs))
    numbers = [saved.epoch, saved.position, saved.step, *(leg[k] for leg in saved.legs for k in range(3))]
    sizes = [leg[k] for leg in saved.legs for k in (3, 4)]
    if not saved.legs or not ordered or saved.legs[-1][0] > saved.step or min(numbers) < 0 or min(sizes) < 1:
        raise StateError("expected a dict made by state_dict, got one whose numbers contradict each other")
    return saved
