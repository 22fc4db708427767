"""The identity of a run: its data and its order. A saved state is valid only for a run with the same identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardex.dataset import Dataset, MixRows, innermost_rows
from shardex.errors import StateError
from shardex.loader.recipe import Recipe


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
            older = _version_hint(dataset_versions(recipe.dataset), state.get("versions"))
            raise StateError(
                f"expected the state of a run over {meaning} ({here[name]}), got one with {state.get(name)} - at "
                f"{name!r}{older * (name != 'order')}; load_state_dict(state, force=True) continues at its epoch and "
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


def _version_hint(here: list[int | None], saved: Any) -> str:
    """Say which versions a state and a run belong to; older states do not know theirs."""
    if saved is None or saved == here:
        return " (after an append or compact, open the version it was saved for: sx.open(path, version=...))"
    if not isinstance(saved, list) or len(saved) != len(here):
        return f" (it was saved for datasets of the versions {saved}, these are {here})"
    if len(here) == 1:
        return f" (it was saved for version {saved[0]}, this is version {here[0]}: sx.open(path, version={saved[0]}))"
    return f" (it was saved for the versions {saved} of the datasets, these are {here}: sx.open(path, version=...))"
