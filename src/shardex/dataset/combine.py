"""Datasets made of datasets: `concat` puts samples one after another, `join` puts fields side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from shardex.dataset.combined_rows import JoinRows, concat_rows
from shardex.dataset.dataset import Dataset
from shardex.errors import ArgumentError, SchemaError
from shardex.layers import Decoding, decodings_of, with_decodings
from shardex.samples import T_co


@overload
def concat(datasets: Sequence[Dataset[T_co]], /) -> Dataset[T_co]: ...
@overload
def concat(*datasets: Dataset[T_co]) -> Dataset[T_co]: ...
def concat(*datasets: Any) -> Dataset[Any]:
    """Return the samples of all datasets, one after another; all must have the same fields. ``a + b`` does the same.

    >>> from shardex import open
    >>> a, b = open([{"x": 1}]), open([{"x": 2}, {"x": 3}])
    >>> len(concat(a, b)), len(concat([a, b])), len(a + b)
    (3, 3, 3)
    """
    return Dataset(concat_rows(_checked(datasets)))


@overload
def join(datasets: Sequence[Dataset[Any]], /) -> Dataset: ...
@overload
def join(*datasets: Dataset[Any]) -> Dataset: ...
def join(*datasets: Any) -> Dataset:
    """Return the fields of all datasets, side by side; all must have the same length and different fields.

    >>> from shardex import open
    >>> join(open([{"x": 1}]), open([{"y": 2}]))[0]
    DictSample(x=1, y=2)
    """
    parts = _checked(datasets)
    seen: set[str] = set()
    for number, other in enumerate(parts):
        if len(other) != (length := len(parts[0])):
            raise ArgumentError(
                f"expected {length} samples as in the first dataset, got {len(other)} - at dataset {number}"
            )
        if both := seen & set(other.fields):
            raise SchemaError(f"expected fields of different names, got {min(both)!r} twice - at dataset {number}")
        seen |= set(other.fields)
    every: dict[str, Decoding] = {}
    for part in parts:
        every |= decodings_of(part.rows, part.chosen)
    return Dataset(with_decodings(JoinRows([part.stored for part in parts]), every))


def _checked(datasets: tuple[Any, ...]) -> list[Dataset[Any]]:
    """Return the datasets, passed one by one or in one list."""
    every = list(datasets[0]) if len(datasets) == 1 and isinstance(datasets[0], list | tuple) else list(datasets)
    if not every:
        raise ArgumentError("expected at least one dataset, got none")
    for number, one in enumerate(every):
        if not isinstance(one, Dataset):
            raise ArgumentError(f"expected datasets as arguments, got {type(one).__name__} - at argument {number}")
    return every
