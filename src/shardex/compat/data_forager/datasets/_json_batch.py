"""Batches of JSON lines in a torch `DataLoader`: a list of dicts, as the document says, that also has columns.

The default `collate_fn` of torch makes a dict of columns out of dicts. Code that was written for the document takes the
batch as a list of samples, code that was written for torch takes ``batch["text"]``; both work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class JsonSample(dict[str, Any]):
    """A line of a batch; torch finds `JsonBatch` by this class."""


class JsonBatch(list[Any]):
    """Samples of a batch; a name gives the column that the default `collate_fn` makes of this key, or a column set."""

    def __init__(self, samples: Iterable[Any] = ()) -> None:
        super().__init__(samples)
        self._set: dict[str, Any] = {}

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key in self._set:
            return self._set[key]
        from torch.utils.data import default_collate

        return default_collate([sample[key] for sample in self])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, str):
            self._set[key] = value
        else:
            super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a column, or the default if the first sample has no such key."""
        if key not in self:
            return default
        return self[key]

    def __contains__(self, key: object) -> bool:
        return key in self.keys() if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """Return the keys of the first sample, and those of columns that were set."""
        return list(dict.fromkeys([*(super().__getitem__(0) if len(self) else ()), *self._set]))

    def values(self) -> Iterator[Any]:
        """Yield the columns."""
        return (self[key] for key in self.keys())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield keys and columns."""
        return ((key, self[key]) for key in self.keys())


def for_collate(samples: list[Any]) -> list[Any]:
    """Return the samples so that the default `collate_fn` of torch makes a `JsonBatch` of dicts."""
    torch = sys.modules.get("torch.utils.data._utils.collate")
    functions: dict[Any, Any] | None = getattr(torch, "default_collate_fn_map", None)
    if functions is None:
        return samples
    functions.setdefault(JsonSample, _collate)
    return [JsonSample(one) if type(one) is dict else one for one in samples]


def _collate(batch: Sequence[Any], *, collate_fn_map: Any = None) -> JsonBatch:
    return JsonBatch(dict(one) if type(one) is JsonSample else one for one in batch)
