"""Messages between a loader and its executor: a `Plan` of some batches, and each `PreparedBatch` made from it.

A batch may have bad samples: `find_failures` says which positions of a read fail, `replacement_position` which position
replaces one. That depends on seed, epoch and position only, so it is the same on every rank, with any number of workers
and after a resume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers

MAX_ATTEMPTS = 32
"""Replacements tried for one bad sample; if all of them fail, the cause is not a bad sample."""


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be read or transformed and was replaced."""

    epoch: int
    position: int
    """Its position in the order of the epoch."""
    row: int
    """Its number in the dataset."""
    shard: str
    """Path of the file that holds it, empty if it is not known."""
    error: str
    """Type and message of the error."""
    instead: int
    """Number of the sample that replaces it."""


def find_failures(read: Callable[[Integers], Any], positions: Integers) -> dict[int, Exception]:
    """Return the indices of the positions that cannot be read and the error of each; found by bisection.

    >>> import numpy as np
    >>> list(find_failures(lambda some: [1 / (p - 3) for p in some.tolist()], np.array([5, 3, 4])))
    [1]
    """
    try:
        read(positions)
    except MemoryError:
        raise
    except Exception as error:
        if len(positions) == 1:
            return {0: error}
        half = len(positions) // 2
        later = find_failures(read, positions[half:])
        return find_failures(read, positions[:half]) | {half + k: failed for k, failed in later.items()}
    return {}


def replacement_position(seed: int, epoch: int, position: int, attempt: int, length: int) -> int:
    """Return the position whose sample replaces a bad one at an attempt.

    >>> replacement_position(seed=0, epoch=0, position=7, attempt=0, length=100)
    17
    """
    key = f"shardex stand-in {seed} {epoch} {position} {attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little") % length


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
