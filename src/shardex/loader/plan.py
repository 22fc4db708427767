"""Messages between a loader and its executor: a `Plan` of some batches, and each `PreparedBatch` made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers
from shardex.loader.replacements import BadSample


@dataclass(frozen=True, slots=True)
class Cut:
    """The samples of the batches of a plan, where they do not follow from its position."""

    positions: Integers = field(repr=False)
    """Positions of the samples in the order of the epoch."""
    ends: list[int] = field(repr=False)
    """End of each batch among them."""
    repeated: bool = False
    """True if the last batch repeats an earlier one, so that every rank has the same number of batches."""

    def of(self, number: int) -> Integers:
        """Return the positions of one batch."""
        return self.positions[self.ends[number - 1] if number else 0 : self.ends[number]]


class Plan(NamedTuple):
    """Consecutive batches to prepare, beginning at a position of an epoch."""

    epoch: int
    position: int
    batches: int
    step: int = 0
    """Step of the first batch, counted over the whole run."""
    cut: Cut | None = None
    """The samples of batches that are chosen by length."""


class PreparedBatch:
    """The content of one batch, as an executor returns it.

    One is made for every step; most set only rows and data, and the class has the default values of the rest.
    """

    lengths: Mapping[str, Integers] = MappingProxyType({})
    """Lengths (or shapes) of the rows of each padded field."""
    mask: NDArray[np.bool_] | None = None
    """False for rows that fill up the batch or replace a bad sample; None if there are none."""
    bad: Sequence[BadSample] = ()
    size: int = 0
    """Bytes that were read for the first batch of a plan if its columns are tensors; 0 for arrays, which have a size.
    """
    has_tensors: bool = False
    """True if the columns have become tensors."""
    tensors: Sequence[str] = ()
    """Fields that a transform returned as tensors; they stay tensors in a batch of arrays."""
    ready: Any = None
    """Tells when the tensors are on their device; None if they are."""

    def __init__(
        self,
        rows: int,
        data: Any,
        lengths: Mapping[str, Integers] | None = None,
        mask: NDArray[np.bool_] | None = None,
        bad: Sequence[BadSample] = (),
    ) -> None:
        self.rows = rows
        self.data = data
        """Columns, or what `collate` returned."""
        if lengths:
            self.lengths = lengths
        if mask is not None:
            self.mask = mask
        if bad:
            self.bad = bad
