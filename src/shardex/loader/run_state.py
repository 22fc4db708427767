"""`RunState`: where a run is, which loop over the loader is active, and where that loop ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardex.errors import ArgumentError, ClosedError
from shardex.loader.cursor import Cursor, Steps


class RunState:
    """The state of a run of `epochs` epochs per loop (None: no end).

    Only the loop that began last is active. It continues at the cursor whenever `skip`, `seek` or `load` moved the
    cursor.

    >>> from shardex.loader.cursor import EpochSteps
    >>> run = RunState(EpochSteps(10, batch=4), epochs=1); loop = run.begin_loop()
    >>> run.skip(1); run.cursor.position, run.end_epoch()
    (4, 1)
    >>> run.begin_loop(); run.check_active(loop)
    Traceback (most recent call last):
    shardex.errors.ClosedError: expected one active loop per loader, but the loader was closed or another loop began
    """

    def __init__(self, steps: Steps, epochs: int | None) -> None:
        self.cursor = Cursor(steps)
        self.epochs = epochs
        self.loop = 0
        """Number of the active loop."""
        self.moved = False
        """True if the cursor was moved since the active loop planned its batches."""
        self.relocated = False
        """True if `seek` or `load` moved it, possibly to another run of `epochs` epochs."""
        self.left = False
        """True while the consumer has a batch: at the begin of another loop, it did not come back for the next one."""
        self.finished = False
        """True if the loaded state is that of a run of several epochs that has ended: there is nothing to continue."""

    @property
    def left_early(self) -> bool:
        """True if the last loop was left in the middle of an epoch, and the cursor was not moved since.

        A run without an end is made to be continued, so leaving it is not early.
        """
        return self.left and self.cursor.position > 0 and self.epochs is not None

    def begin_loop(self) -> int:
        """Make a new loop the active one and return its number."""
        self.loop += 1
        return self.loop

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
        self.left = False

    def seek(self, epoch: int, position: int) -> None:
        """Move to an epoch and position."""
        self.cursor.seek(epoch, position)
        self.moved = self.relocated = True
        self.left = False
        self.finished = False

    def load(self, state: Mapping[str, Any]) -> None:
        """Move to a saved state."""
        self.cursor.load(state)
        self.moved = self.relocated = True
        self.left = False
        # With one epoch per loop, the next loop is the next epoch; a run of several epochs ends with the last one.
        cursor, epochs = self.cursor, self.epochs or 1
        self.finished = epochs > 1 and cursor.step > 0 and cursor.position == 0 and cursor.epoch % epochs == 0
