"""Summaries of the values that a field has in one shard, updated value by value."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, SchemaError
from shardex.features import describe


@dataclass
class CategoricalAggregate:
    """How often each value occurs; values are counted by their text.

    >>> aggregate = CategoricalAggregate()
    >>> for value in ("dog", "cat", "dog"): aggregate.add(value)
    >>> aggregate.to_dict()
    {'type': 'categorical', 'cardinality': 2, 'value_counts': {'dog': 2, 'cat': 1}}
    """

    value_counts: dict[str, int] = field(default_factory=Counter)

    @property
    def cardinality(self) -> int:
        """The number of different values."""
        return len(self.value_counts)

    def add(self, value: Any) -> None:
        """Count one value."""
        text = str(value)
        self.value_counts[text] = self.value_counts.get(text, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON has it."""
        return {"type": "categorical", "cardinality": self.cardinality, "value_counts": dict(self.value_counts)}


@dataclass
class NumericAggregate:
    """Smallest value, largest value and mean; NaN is no value.

    >>> aggregate = NumericAggregate()
    >>> for value in (1.0, 3.0, 2.0): aggregate.add(value)
    >>> aggregate.to_dict(), NumericAggregate().to_dict()["min"]
    ({'type': 'numeric', 'min': 1.0, 'max': 3.0, 'mean': 2.0, 'count': 3}, None)
    """

    _min: float = math.inf
    _max: float = -math.inf
    _sum: float = 0.0
    count: int = 0

    @property
    def min(self) -> float:
        """The smallest value."""
        return self._min

    @property
    def max(self) -> float:
        """The largest value."""
        return self._max

    @property
    def mean(self) -> float:
        """The mean of the values, 0 without any."""
        return self._sum / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        """Take one number into account."""
        if not isinstance(value, int | float | np.number):
            raise SchemaError(f"expected a number, got {describe(value)}")
        number = float(value)
        if math.isnan(number):
            return
        exact = number if number == value else value  # 2**53 + 1 has no equal float
        self._min = exact if exact < self._min else self._min
        self._max = exact if exact > self._max else self._max
        self._sum += number
        self.count += 1

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON has it: infinite numbers, and those of no values, are null."""
        numbers = {"min": self.min, "max": self.max, "mean": self.mean}
        finite = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        return {"type": "numeric", **finite, "count": self.count}


@dataclass
class SetAggregate:
    """All values that occur in the lists of a field, by their text.

    >>> aggregate = SetAggregate()
    >>> aggregate.add(["outdoor", "day"]); aggregate.add(["day"])
    >>> aggregate.to_dict()
    {'type': 'set', 'all_values': ['day', 'outdoor']}
    """

    all_values: set[str] = field(default_factory=set)

    def add(self, values: Iterable[Any]) -> None:
        """Add the values of one list."""
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise SchemaError(f"expected a list, got {describe(values)}")
        self.all_values.update(map(str, values))

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON has it."""
        return {"type": "set", "all_values": sorted(self.all_values)}


Aggregate = CategoricalAggregate | NumericAggregate | SetAggregate
_CLASSES: dict[str, type[Aggregate]] = {
    "categorical": CategoricalAggregate,
    "numeric": NumericAggregate,
    "set": SetAggregate,
}


def create_aggregate(kind: str) -> Aggregate:
    """Return an empty summary of a kind: categorical, numeric or set."""
    if kind not in _CLASSES:
        raise ArgumentError(f"expected an aggregate out of {', '.join(_CLASSES)}, got {kind!r}")
    return _CLASSES[kind]()
