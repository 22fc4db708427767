"""What identifies a run: its data and its order. A saved state is valid only for a run that has the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardex.dataset import Dataset, MixRows, innermost_rows
from shardex.errors import StateError
from shardex.loader.recipe import Recipe


def run_identity(recipe: Recipe) -> dict[str, Any]:
    """Return what two runs must have in common for a position to mean the same sample in both."""
    order, settings = recipe.dataset.order.identity()
    if settings and isinstance(rows := innermost_rows(recipe.dataset.rows), MixRows):
        settings["sources"] = rows.names
    data: Dataset[Any] = Dataset(recipe.dataset.rows, order)
    return {"data": data.fingerprint, "order": {**recipe.shuffle_settings, **settings}}


def check_same_run(recipe: Recipe, state: Mapping[str, Any]) -> None:
    """Raise `StateError` if a state belongs to other data or to another order."""
    here = {**run_identity(recipe), "length": recipe.length}
    for name, meaning in (("data", "the same data"), ("length", "as many samples"), ("order", "the same order")):
        if state.get(name) != here[name]:
            older = " (if samples were added since, open the version it was saved for, sx.open(path, version=...))"
            raise StateError(
                f"expected the state of a run over {meaning} ({here[name]}), got one with {state.get(name)} - at "
                f"{name!r}{older * (name != 'order')}; load_state_dict(state, force=True) continues at its epoch and "
                "position anyway"
            )
