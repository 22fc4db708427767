"""Rows with fields that functions compute of each sample, beside those of the rows below: `Dataset.with_fields`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardex.columns import check_fields
from shardex.features import Features
from shardex.kernel import Columns, Integers, digest
from shardex.layers.function_calls import copied, counted
from shardex.layers.map_rows import MapRows, inferred_of_results
from shardex.rows import AbstractRows
from shardex.samples import DictSample


@dataclass(frozen=True)
class FieldFunctions:
    """Calls the function of each field for a sample.

    >>> FieldFunctions({"z": lambda sample: sample.x + 1})(DictSample(x=1))
    {'z': 2}
    """

    functions: Mapping[str, Callable[[Any], Any]]

    def __call__(self, sample: Any) -> dict[str, Any]:
        """Return the values of these fields."""
        return {name: function(sample) for name, function in self.functions.items()}

    def __repr__(self) -> str:
        return f"with_fields({', '.join(f'{name}={function!r}' for name, function in self.functions.items())})"


class AddedRows(MapRows):
    """Rows with more fields, or others under the same names; functions are called only for reads of these fields."""

    function: FieldFunctions
    _adds = True

    def __init__(
        self,
        below: AbstractRows,
        function: FieldFunctions,
        fields: Sequence[str] | None = None,
        sample_type: type[Any] | None = DictSample,
        schema: Features | None = None,
        stored: bool = False,
    ) -> None:
        """:param schema: features of all fields that functions compute, maybe with others"""
        super().__init__(below, function, fields, DictSample, schema, stored)

    @cached_property
    def features(self) -> Features:
        """The features of the rows below, and those of the results: given, or found in the first ones."""
        below = self._features_below()
        if self._schema is not None:
            return Features({**below, **self._schema})
        return Features({**below, **inferred_of_results(list(self._first_results()), below).features})

    @property
    def fingerprint(self) -> str:
        """Made from the data and the names of the functions."""
        names = [
            [name, getattr(one, "__module__", None), getattr(one, "__qualname__", type(one).__qualname__)]
            for name, one in self.function.functions.items()
        ]
        return digest("with fields", self.below.fingerprint, names, self._chosen)

    @property
    def _others(self) -> AbstractRows:
        return self.below.stored if self._keeps_stored else self.below

    def _parted(self, fields: Sequence[str] | None) -> tuple[list[str], list[str], list[str]]:
        """Return the fields to read, those of them that functions compute, and the others."""
        names = check_fields(list(self.features), fields)
        made = [name for name in names if name in self.function.functions]
        return names, made, [name for name in names if name not in made]

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these fields, or all that the functions get."""
        _, made, others = self._parted(fields)
        self.below.advise(rows, self._chosen if made else others)

    def _read(self, rows: Integers, fields: Sequence[str] | None) -> Columns:
        names, made, others = self._parted(fields)
        if not made:
            return self._others.read(rows, others)
        if self._keeps_stored:
            given, found = self._others.read(rows, others), self._results(rows)
        else:
            given = self.below.read(rows, self._chosen)
            with counted():
                pairs = zip(given.to_samples(), rows.tolist(), strict=True)
                found = Columns.from_samples([self._call(copied(values), row) for values, row in pairs])
        fitted = self._fitted(found, made, rows, every=False)
        return Columns({**given.data, **fitted.data}, len(rows)).select(names)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample, and call the functions for it if their fields are asked for."""
        names, made, others = self._parted(fields)
        if not made:
            return self._others.sample(row, others)
        if self._keeps_stored or not self._media.keys().isdisjoint(made):
            return self.read(np.array([row]), fields).sample(0)
        values = self.below.sample(row, self._chosen)
        found = self._call(copied(values), row)
        if not all(self._checks[name](found[name]) for name in made):
            found = self._fitted(Columns.from_samples([found]), made, np.array([row]), every=False).sample(0)
        return {name: found[name] if name in found else values[name] for name in names}
