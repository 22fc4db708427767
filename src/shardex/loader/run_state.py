"""`RunState`: where a run is, which loop over the loader is active, and where that loop ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardex.errors import ArgumentError, ClosedError
from shardex.loader.cursor import Cursor, Steps


class RunState:
    """The state of a run of `epochs` epochs per loop (None: no end).

    Only the loop that began last is active. It begins where `skip`, `seek` or `load` moved the cursor; otherwise, if
    the loop before was left early, with the next epochs, unless `keep_position` says that it continues. An active loop
    follows the cursor, too.

    >>> from shardex.loader.cursor import EpochSteps
    >>> run = RunState(EpochSteps(10, batch=4), epochs=1); loop = run.begin_loop()
    >>> run.skip(1); run.cursor.position, run.end_epoch()
    (4, 1)
    >>> run.begin_loop(); run.check_active(loop)
    Traceback (most recent call last):
    shardex.errors.ClosedError: expected one active loop per loader, but the loader was closed or another loop began
    """

    def __init__(self, steps: Steps, epochs: int | None, *, keep_position: bool = False) -> None:
        self.cursor = Cursor(steps)
        self.epochs = epochs
        self.keep_position = keep_position
        self.loop = 0
        """Number of the active loop."""
        self.active = False
        """True from the first batch that a loop asks for to its end."""
        self.moved = False
        """True if the cursor was moved since the active loop planned its batches."""
        self.relocated = False
        """True if `seek` or `load` moved it, possibly to another run of `epochs` epochs."""
        self.advanced = False
        """True if a loop has taken batches since the cursor was last moved: the next loop does not begin there."""
        self.finished = False
        """True if the loaded state is that of a run of several epochs that has ended: there is nothing to continue."""

    def begin_loop(self) -> int:
        """Make a new loop the active one and return its number; it begins with its first epoch unless moved."""
        cursor, epochs = self.cursor, self.epochs or 1
        if self.advanced and not self.keep_position and (cursor.position or cursor.epoch % epochs):
            cursor.seek((cursor.epoch // epochs + 1) * epochs, 0)
        self.loop += 1
        return self.loop

    def end_loop(self, loop: int | None = None) -> None:
        """End a loop if it is the active one, or whichever is active."""
        if loop is None:
            self.loop += 1
        if loop in (None, self.loop):
            self.active = False

    def check_active(self, loop: int) -> None:
        """Raise `ClosedError` if another loop began, or the loader was closed, since a loop began."""
        if loop != self.loop:
            raise ClosedError("expected one active loop per loader, but the loader was closed or another loop began")

    def end_epoch(self) -> int | None:
        """Return the exclusive end epoch of the current run; if there are no steps, the run ends immediately."""
        steps, cursor = self.cursor.steps, self.cursor
        if steps.count(cursor.epoch):
            return None if self.epochs is None else (cursor.epoch // self.epochs + 1) * self.epochs
        if self.epochs is None:
            needed = steps.step_size or steps.batch
            raise ArgumentError(f"expected samples for at least one batch, got {steps.length} of {needed} needed")
        cursor.epoch += self.epochs
        return cursor.epoch

    def skip(self, steps: int) -> None:
        """Move forward by some steps."""
        self.cursor.advance(steps)
        self.moved = True
        self.advanced = False

    def seek(self, epoch: int, position: int) -> None:
        """Move to an epoch and position."""
        self.cursor.seek(epoch, position)
        self.moved = self.relocated = True
        self.advanced = False
        self.finished = False

    def seek_loop(self, number: int) -> None:
        """Move to the first epoch of a loop, unless the cursor was moved into this loop, or loops have no numbers."""
        if self.epochs is None or self.keep_position:
            return
        if self.advanced or self.finished or self.cursor.epoch // self.epochs != number:
            self.seek(number * self.epochs, 0)

    def load(self, state: Mapping[str, Any]) -> None:
        """Move to a saved state."""
        self.cursor.load(state)
        self.moved = self.relocated = True
        self.advanced = False
        # With one epoch per loop, the next loop is the next epoch; a run of several epochs ends with the last one.
        cursor, epochs = self.cursor, self.epochs or 1
        self.finished = epochs > 1 and cursor.step > 0 and cursor.position == 0 and cursor.epoch % epochs == 0
