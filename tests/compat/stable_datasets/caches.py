"""Caches for the tests of stable_datasets: real files, written by `write_sharded_arrow_cache`."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from shardex.compat.stable_datasets.cache import write_sharded_arrow_cache
from shardex.compat.stable_datasets.dataset import StableDataset
from shardex.compat.stable_datasets.schema import (
    Array3D,
    ClassLabel,
    DatasetInfo,
    Features,
    Image,
    Sequence,
    Value,
    Video,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stable-datasets"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))

NUMBERS = Features({"x": Value("int32"), "label": ClassLabel(names=["a", "b"])})
MIXED = Features(
    {
        "image": Image(),
        "vol": Array3D((2, 2, 3), "uint8"),
        "seq": Sequence(Value("float32")),
        "nested": Sequence(Sequence(Value("int32"))),
        "label": ClassLabel(num_classes=10),
        "s": Value("string"),
    }
)
FIXTURE_FEATURES = {
    "images": Features({"image": Image(), "label": ClassLabel(num_classes=10)}),
    "v37ff322": Features(
        {
            "image": Image(),
            "vol": Array3D((2, 2, 2), "float32"),
            "label": ClassLabel(names=["a", "b"]),
            "video": Video(),
            "seq": Sequence(Value("int64")),
            "s": Value("string"),
        }
    ),
    "scalars_multishard": Features(
        {
            **{name: Value(dtype) for name, dtype in (("i8", "int8"), ("i64", "int64"), ("u16", "uint16"))},
            **{f"f{bits}": Value(f"float{bits}") for bits in (16, 32, 64)},
            "b": Value("bool"),
            "s": Value("string"),
            "bin": Value("binary"),
            "label": ClassLabel(names=["cat", "dög"]),
            "seq": Sequence(Value("float32")),
            "nested": Sequence(Sequence(Value("int32"))),
        }
    ),
}


def cache(
    folder: Path, features: Features, rows: Iterable[Mapping[str, Any]], shard_rows: int | None = None
) -> StableDataset:
    """A dataset over a new cache, with shards of so many rows, or one shard."""
    options: dict[str, Any] = {} if shard_rows is None else {"batch_size": shard_rows, "shard_size_bytes": 1}
    meta = write_sharded_arrow_cache(((k, dict(row)) for k, row in enumerate(rows)), features, folder, **options)
    counts = meta.shard_row_counts
    return StableDataset(features, DatasetInfo(features), shard_paths=meta.shard_paths, shard_row_counts=counts)


def numbers(folder: Path, count: int = 10, shard_rows: int | None = 3) -> StableDataset:
    """Samples ``x = 0, 1, ...`` in shards."""
    return cache(folder, NUMBERS, ({"x": k, "label": k % 2} for k in range(count)), shard_rows)


def pixels(number: int) -> NDArray[np.uint8]:
    """An image that differs for every number."""
    return np.random.default_rng(number).integers(0, 256, (4, 5, 3), np.uint8)


def jpeg(number: int) -> bytes:
    """The bytes of a JPEG."""
    file = io.BytesIO()
    Pillow.fromarray(np.repeat(np.repeat(pixels(number), 4, 0), 4, 1)).save(file, "JPEG", quality=60)
    return file.getvalue()


def mixed_rows(count: int) -> list[dict[str, Any]]:
    """Rows with an image (every third is missing), an array, lists, a class and a text."""
    return [
        {
            "image": None if k % 3 == 2 else pixels(k) if k % 3 else jpeg(k),
            "vol": np.full((2, 2, 3), k, np.uint8),
            "seq": [k / 2] * (k % 4),
            "nested": [[k, k + 1], [k, k]] if k % 2 else [[k], []],
            "label": k,
            "s": f"é{k}",
        }
        for k in range(count)
    ]


def mixed(folder: Path, count: int = 7, shard_rows: int | None = 3) -> StableDataset:
    """Samples of `mixed_rows` in shards."""
    return cache(folder, MIXED, mixed_rows(count), shard_rows)


def fixture(name: str) -> StableDataset:
    """A cache that stable-datasets has written."""
    features = FIXTURE_FEATURES[name]
    return StableDataset(features, DatasetInfo(features), shard_dir=FIXTURES / name)


def digest(data: bytes) -> str:
    """SHA-256 as `expected.json` has it."""
    return hashlib.sha256(data).hexdigest()
