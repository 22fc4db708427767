"""What passes between a loader and those who make its batches: a `Plan` of some batches, and each of them `Made`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers
from shardex.loader.replacements import BadSample

__all__ = ["Made", "Plan"]


class Plan(NamedTuple):
    """Some batches to make: the next ones from a position of an epoch on."""

    epoch: int
    position: int
    batches: int
    step: int = 0
    """The number of the first of them in the run."""


@dataclass(slots=True)
class Made:
    """One batch, before it is handed out."""

    rows: int
    data: Any
    """Columns, or what the collate function made of them."""
    sizes: dict[str, Integers] = field(default_factory=dict)
    """Lengths (or shapes) of the rows of the fields that were padded."""
    real: NDArray[np.bool_] | None = None
    """False for rows that fill up the batch or stand in for a bad sample; none if all are real."""
    bad: Sequence[BadSample] = ()
