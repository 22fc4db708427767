"""Pairs of neighbours: a dataset of the samples k and k + 1 of another one, for models that compare them."""

from dataclasses import dataclass

import numpy as np

import shardex as sx
from shardex.kernel import Columns


@dataclass(frozen=True)
class PairRows:
    """Rows over a dataset: each field twice, as ``a.x`` and ``b.x``. `len` and `read` are all that rows need."""

    dataset: sx.Dataset

    def __len__(self):
        return max(0, len(self.dataset) - 1)

    def read(self, rows, fields=None):
        names = [f"{side}.{name}" for side in "ab" for name in self.dataset.fields] if fields is None else fields
        inner = list(dict.fromkeys(name[2:] for name in names))
        sides = {"a": self.dataset.read(rows, inner), "b": self.dataset.read(np.asarray(rows) + 1, inner)}
        return Columns({name: sides[name[0]][name[2:]] for name in names}, len(rows))


def pairs(dataset):
    """Return a dataset of pairs.

    >>> pairs(sx.open([{"x": 1}, {"x": 2}, {"x": 5}]))[1]
    DictSample(a.x=2, b.x=5)
    """
    return sx.open(PairRows(dataset))
