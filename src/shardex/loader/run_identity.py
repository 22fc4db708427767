"""What a saved place in a run means: over which data and in which order, and how a mixture was weighted so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardex.dataset import Dataset, MixRows, lowest
from shardex.errors import StateError
from shardex.loader.recipe import Recipe
from shardex.order import MixOrder

__all__ = ["check_same", "identity", "phases", "with_phases"]


def identity(recipe: Recipe) -> dict[str, Any]:
    """What two runs must agree in for a position to mean the same sample in both."""
    mixed = isinstance(recipe.dataset.order, MixOrder)
    data: Dataset[Any] = Dataset(recipe.dataset.rows) if mixed else recipe.dataset
    order: dict[str, Any] = {"shuffle": recipe.shuffle, "seed": recipe.seed}
    if recipe.block is not None:
        order |= {"block": recipe.block, "window": recipe.window}
    if isinstance(own := recipe.dataset.order, MixOrder) and isinstance(rows := lowest(recipe.dataset.rows), MixRows):
        order |= {"mix": own.seed, "sources": rows.names}
    return {"data": data.fingerprint, "order": order}


def check_same(recipe: Recipe, state: Mapping[str, Any]) -> None:
    """An error if a state belongs to other data or another order."""
    own = {**identity(recipe), "length": recipe.length}
    for name, meaning in (("data", "the same data"), ("length", "as many samples"), ("order", "the same order")):
        if state.get(name) != own[name]:
            older = " (if samples were added since, open the version it was about, sx.open(path, version=...))"
            raise StateError(
                f"expected the state of a run over {meaning} ({own[name]}), got one with {state.get(name)} - at "
                f"{name!r}{older * (name != 'order')}; load_state_dict(state, force=True) goes to its epoch and "
                "position all the same"
            )


def phases(recipe: Recipe) -> dict[str, Any]:
    """How a mixture is weighted, from which position of the run on."""
    own = recipe.dataset.order
    if not isinstance(own, MixOrder):
        return {}
    return {"phases": [[start, list(weights)] for start, weights in own.phases]}


def with_phases(recipe: Recipe, state: Mapping[str, Any], reweight: bool) -> Recipe:
    """The recipe with a mixture weighted as it was up to the place of the state; its own weights hold from there on."""
    own = recipe.dataset.order
    if not isinstance(own, MixOrder) or "phases" not in state:
        return recipe
    here = state["epoch"] * len(own) + state["position"]
    before, weights = _phases_before(state, here), own.phases[-1][1]
    if len(before[-1][1]) != len(weights):
        return recipe  # other sources, which `force` lets pass: nothing of how they were weighted fits
    went_on = replace(own, phases=before)
    if before[-1][1] != weights:
        if not reweight:
            raise StateError(
                f"expected the state of a mixture with the weights {weights}, got one with {before[-1][1]}; "
                "load_state_dict(state, reweight=True) goes on with the new weights from here"
            )
        went_on = went_on.reweighted(here, weights)
    if went_on == own:
        return recipe
    data: Dataset[Any] = Dataset(recipe.dataset.rows, went_on, recipe.dataset.chosen)
    return replace(recipe, dataset=data, _views={})


def _phases_before(state: Mapping[str, Any], here: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The phases of a saved mixture up to a place: those after it were never reached from there."""
    try:
        saved = [(int(start), tuple(int(weight) for weight in weights)) for start, weights in state["phases"]]
    except (TypeError, ValueError):
        saved = []
    if not saved or saved[0][0] != 0:
        raise StateError(f"expected phases of a mixture that begin at 0, got {state['phases']!r:.200}")
    return tuple(phase for phase in saved if phase[0] <= here)
