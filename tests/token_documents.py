"""Documents of tokens in several forms, for tests of windows and packs: lists, token files, native datasets."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import strategies as st

import shardex as sx
from shardex.dataset import Dataset

FORMS = ("list", "tokens", "native", "parquet", "concat", "shuffled", "json", "optional")
SCHEMA = {"tokens": sx.Array("uint16", (None,)), "mask": sx.Array("uint8", (None,))}

sizes_of_documents = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 30)), max_size=12)


def documents(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return documents of these sizes: tokens count up from 1, the mask is the parity of the token's half."""
    ends = np.cumsum([1, *sizes])
    tokens = [np.arange(a, b, dtype=np.uint16) for a, b in itertools.pairwise(ends.tolist())]
    return [{"tokens": some, "mask": (some // 2 % 2).astype(np.uint8)} for some in tokens]


@contextmanager
def opened(samples: list[dict[str, Any]], form: str, shard_size: int = 40) -> Iterator[tuple[Dataset[Any], list[Any]]]:
    """Open documents in a form; yield the dataset, and the documents in its order."""
    with tempfile.TemporaryDirectory() as folder:
        path, order = f"{folder}/data", list(range(len(samples)))
        if form == "list":
            rows = samples or [{"tokens": np.zeros(0, np.uint16), "mask": np.zeros(0, np.uint8)}]
            ds: Dataset[Any] = sx.open(rows)[: len(samples)]
        elif form in ("native", "parquet"):
            ds = _written(path, samples, {"format": "arrow" if form == "native" else form})
        elif form == "concat":
            half = len(samples) // 2
            ds = sx.concat(
                _written(f"{path}1", samples[:half], {"format": "tokens"}),
                _written(f"{path}2", samples[half:], {"format": "arrow"}),
            )
        elif form == "json":
            plain = [{name: value.tolist() for name, value in one.items()} for one in samples]
            ds = _written(path, plain, {"format": "jsonl"})
            ds = sx.open(path, schema=SCHEMA)
        elif form == "optional":
            schema = {name: sx.Optional(one) for name, one in SCHEMA.items()}
            some = [{"tokens": None, "mask": None} if not len(one["tokens"]) else one for one in samples]
            ds = _written(path, some, {"format": "arrow", "schema": schema})
        else:
            ds = _written(path, samples, {"format": "tokens", "shard_size": shard_size})
        if form == "shuffled":
            order = np.random.default_rng(len(samples)).permutation(len(samples)).tolist()
            ds = ds[order]
        yield ds, [samples[k] for k in order]


def _written(path: str, samples: list[dict[str, Any]], options: dict[str, Any]) -> Dataset[Any]:
    with sx.create(path, options.pop("schema", SCHEMA), **options) as out:
        for sample in samples:
            out.append(sample)
    return sx.open(path)


def plain(ds: Dataset[Any]) -> list[dict[str, list[int]]]:
    """Return all samples as lists of numbers."""
    return [{name: value.tolist() for name, value in sample.items()} for sample in ds.read(slice(None)).to_samples()]
