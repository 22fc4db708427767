"""A view as SQL sees it: rows in an order. The fields of all rows below are taken in that order, or just its own rows.

Which of it is cheaper depends on how many of the rows the view shows. A condition that looks at one sample at a time is
decided once for each row below, however often the view shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow import attributes_of, present_in, read_attributes, read_presence, taken
from shardex.dataset.sql import Limits, Params, Query, matching
from shardex.kernel import Integers
from shardex.order import Order, Span
from shardex.rows import Rows, extracted_of

__all__ = ["Sight"]

_FEW = 16
"""A view of fewer rows than one in so many is read by itself."""


@dataclass(frozen=True)
class Sight:
    """Rows in an order, and the view that is both."""

    view: Rows
    below: Rows
    order: Order

    def attributes(self, names: Sequence[str]) -> pa.Table:
        """Whole fields in this order."""
        if self._few and not set(names) & set(extracted_of(self.below)):
            return read_attributes(self.view, names)
        table = attributes_of(self.below, names)
        if (begin := self._begin) is not None:
            return table.slice(begin, len(self.order))
        return taken(table, self._rows())

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which samples have a value for a field, in this order."""
        if self._few and name not in extracted_of(self.below):
            return read_presence(self.view, name)
        return present_in(self.below, name)[self._rows()]

    def matching(self, query: Query, params: Params, limits: Limits) -> Integers:
        """The positions at which a condition holds."""
        if self._begin is not None or self._few or not query.alone:
            return matching(query, self.view, params, limits)
        holds = np.zeros(len(self.below), np.bool_)
        holds[matching(query, self.below, params, limits)] = True
        return np.flatnonzero(holds[self._rows()])

    @property
    def _few(self) -> bool:
        return len(self.order) * _FEW < len(self.below)

    @property
    def _begin(self) -> int | None:
        """The first row, if the order is a run of rows."""
        return self.order.start if isinstance(self.order, Span) and self.order.step == 1 else None

    def _rows(self) -> Integers:
        return self.order.rows(np.arange(len(self.order)))
