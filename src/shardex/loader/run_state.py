"""`RunState`: where a run is, which loop over the loader is active, where that loop ends, and to which run it belongs.

The identity of a run is its data and its order: a saved state is valid only for a run with the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardex.dataset import Dataset, MixRows
from shardex.errors import ArgumentError, ClosedError, StateError
from shardex.layers import innermost_rows
from shardex.loader.cursor import Cursor, Steps
from shardex.loader.recipe import Recipe


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


def run_identity(recipe: Recipe) -> dict[str, Any]:
    """Return the values that must be equal in two runs for a position to be the same sample in both."""
    order, settings = recipe.dataset.order.identity()
    if settings and isinstance(rows := innermost_rows(recipe.dataset.rows), MixRows):
        settings["sources"] = rows.names
    data: Dataset[Any] = Dataset(recipe.dataset.rows, order)
    return {"data": data.fingerprint, "order": {**recipe.shuffle_settings, **settings}}


def dataset_versions(data: Dataset[Any]) -> list[int | None]:
    """Return the version of each native dataset that a dataset consists of, in order; None for other parts."""
    parts = getattr(innermost_rows(data.rows), "parts", None)
    return [data.version] if parts is None else [one for part in parts for one in dataset_versions(part)]


def check_same_run(recipe: Recipe, state: Mapping[str, Any]) -> None:
    """Raise `StateError` if a state belongs to other data or to another order."""
    here = {**run_identity(recipe), "length": recipe.length}
    for name, meaning in (("data", "the same data"), ("length", "as many samples"), ("order", "the same order")):
        if state.get(name) != here[name]:
            if name == "order" and (different := _different_sizes(here[name], state.get(name))):
                raise StateError(different)
            hint = _view_hint(recipe.dataset, state) or _version_hint(
                dataset_versions(recipe.dataset), state.get("versions")
            )
            raise StateError(
                f"expected the state of a run over {meaning} ({here[name]}), got one with {state.get(name)} - at "
                f"{name!r}{hint * (name != 'order')}; load_state_dict(state, force=True) continues at its epoch and "
                "position anyway"
            )


def check_reweight(recipe: Recipe, position: int) -> None:
    """Raise `StateError` if the order of a mixture cannot change at a position of an epoch."""
    if recipe.options.by_length and position:
        raise StateError(
            "expected the state of the beginning of an epoch to continue a mixture with other weights, because "
            f"max_tokens and bucket choose the batches of an epoch as a whole, got position {position}"
        )


_SIZES = "max_tokens", "bucket", "batch_size", "length_of", "padded"
"""Settings that choose batches by length: a position is the same sample only if all of them are equal."""


def _different_sizes(here: Mapping[str, Any], saved: Any) -> str:
    """Return the text of an error that says which settings of batches by length differ; empty if none does."""
    saved = saved if isinstance(saved, Mapping) else {}
    names = [name for name in _SIZES if here.get(name) != saved.get(name)]
    if not names:
        return ""
    if "padded" not in here or "padded" not in saved:  # a run with batch_size alone, which may change
        names = [name for name in names if name in ("max_tokens", "bucket")]
    expected, found = (", ".join(f"{name}={one.get(name)!r}" for name in names) for one in (here, saved))
    return (
        f"expected the state of a run with {expected}, got one with {found} - at 'order': these options choose the "
        "batches, so they cannot change during a run; load_state_dict(state, force=True) continues at its epoch and "
        "position anyway"
    )


def _view_hint(here: Dataset[Any], state: Mapping[str, Any]) -> str:
    """Say how the samples of a state and of a run were made from the data, such as packs of two lengths."""
    if state.get("view", []) == (made := [*here.notes]):
        return ""
    one, other = (", ".join(map(str, notes)) or "all" for notes in (state.get("view", []), made))
    return f" (it was saved for samples {one}, these are {other}: choose and pack them as in the run that saved it)"


def _version_hint(here: list[int | None], saved: Any) -> str:
    """Say which versions a state and a run belong to; older states do not know theirs."""
    if saved is None or saved == here:
        return " (after an append or compact, open the version it was saved for: sx.open(path, version=...))"
    if not isinstance(saved, list) or len(saved) != len(here):
        return f" (it was saved for datasets of the versions {saved}, these are {here})"
    if len(here) == 1:
        return f" (it was saved for version {saved[0]}, this is version {here[0]}: sx.open(path, version={saved[0]}))"
    return f" (it was saved for the versions {saved} of the datasets, these are {here}: sx.open(path, version=...))"
