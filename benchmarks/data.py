"""The data that `run.py` measures on: three kinds of samples, made from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SIZES = {"series": 100_000, "tokens": 50_000, "ragged": 50_000}
SOURCES = ["alpha", "beta", "gamma", "delta"]


class Source:
    """Samples of one workload, by number and in order."""

    def __init__(self, workload: str, count: int) -> None:
        self.workload, self.count = workload, count
        random = np.random.default_rng(1)
        if workload == "series":
            self.history = random.standard_normal((count, 100), dtype=np.float32)
            self.target = random.standard_normal((count, 50), dtype=np.float32)
            self.length = random.integers(1, 100, count).astype(np.int32)
            self.source = random.integers(0, len(SOURCES), count)
        elif workload == "tokens":
            self.tokens = random.integers(0, 50_257, (count, 1024), dtype=np.uint16)
        else:
            self.offsets = np.concatenate([[0], np.cumsum(random.integers(16, 1025, count))])
            self.values = random.integers(0, 50_000, int(self.offsets[-1]), dtype=np.int32)

    def sample(self, k: int) -> dict[str, Any]:
        """Sample k, as a program that has just made it would hold it."""
        if self.workload == "series":
            return {
                "history": self.history[k].copy(),
                "target": self.target[k].copy(),
                "length": int(self.length[k]),
                "source": SOURCES[self.source[k]],
            }
        if self.workload == "tokens":
            return {"tokens": self.tokens[k].copy()}
        return {"tokens": self.values[self.offsets[k] : self.offsets[k + 1]].copy()}

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.sample, range(self.count))
