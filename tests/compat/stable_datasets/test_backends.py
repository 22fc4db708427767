"""Backends: Arrow files and tables by the protocol, backends of users, and Lance, which is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from shardex.compat.stable_datasets.backends import (
    ArrowBackend,
    LanceBackend,
    LanceVideoFramesBackend,
    StorageBackend,
)
from shardex.compat.stable_datasets.dataset import StableDataset
from shardex.compat.stable_datasets.schema import DatasetInfo
from tests.compat.stable_datasets.caches import MIXED, NUMBERS, mixed, numbers


def backend(folder: Path, count: int = 10) -> ArrowBackend:
    """A backend of shards of 3 rows."""
    numbers(folder, count)
    return ArrowBackend(shard_paths=sorted(folder.glob("*.arrow")), schema=NUMBERS.to_arrow_schema())


def test_arrow_files_by_the_protocol(tmp_path: Path) -> None:
    found = backend(tmp_path / "c")
    assert isinstance(found, StorageBackend)
    assert (found.num_rows, found.num_shards, found.is_file_backed) == (10, 4, True)
    assert found.schema.equals(NUMBERS.to_arrow_schema(), check_metadata=True) and found.cache_dir == tmp_path / "c"
    assert found.get_row(4) == {"x": 4, "label": 0}
    assert found.take([9, 0, 3]).column("x").to_pylist() == [9, 0, 3]
    assert found.take(np.array([1, 4])).schema.types == [pa.int32(), pa.int64()]
    assert found.take([]).num_rows == 0
    assert found.slice(5, 3).column("x").to_pylist() == [5, 6, 7]
    assert found.table.column("x").to_pylist() == list(range(10)) and found.shard_row_counts == [3, 3, 3, 1]
    again = pickle.loads(pickle.dumps(found))
    assert again.table == found.table and len(pickle.dumps(found)) < 2000


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """The column x of batches."""
    return [x for batch in batches for x in batch.column("x").to_pylist()]


def test_batches_of_arrow_files(tmp_path: Path) -> None:
    found = backend(tmp_path / "c", 40)
    assert rows_of(found.iter_batches()) == list(range(40))
    assert rows_of(found.iter_batches(shard_indices=[2, 0])) == [6, 7, 8, 0, 1, 2]
    assert rows_of(found.iter_batches(shuffle=True, seed=1)) == rows_of(found.iter_batches(shuffle=True, seed=1))
    orders = {tuple(rows_of(found.iter_batches(shuffle=True))) for _ in range(3)}
    assert len(orders) == 3 and all(sorted(order) == list(range(40)) for order in orders)


def test_images_arrays_and_lists_as_they_are_stored(tmp_path: Path) -> None:
    ds = mixed(tmp_path / "c")
    found = ArrowBackend(shard_paths=sorted((tmp_path / "c").glob("*.arrow")))
    row = found.get_row(1)
    assert row["image"][:4] == b"\x89PNG" and row["vol"] == b"\1" * 12 and row["seq"] == [0.5]
    assert row["nested"] == [[1, 2], [1, 1]]
    assert found.take([1]).to_pylist()[0] == row and found.table.schema == MIXED.to_arrow_schema()
    assert ds.table.to_pylist() == found.table.to_pylist() == list(ds.with_format("raw"))


def test_tables_in_memory() -> None:
    table = pa.table({"x": pa.array([1, 2, 3], pa.int32()), "label": [0, 1, 0]})
    found = ArrowBackend(table=table)
    assert (found.num_shards, found.is_file_backed, found.num_rows, found.cache_dir) == (0, False, 3, None)
    assert (
        found.table == table and found.get_row(1) == {"x": 2, "label": 1} and rows_of(found.iter_batches()) == [1, 2, 3]
    )
    assert pickle.loads(pickle.dumps(found)).table == table


class Squares:
    """A backend that computes its rows."""

    num_rows, num_shards, is_file_backed = 5, 0, False
    schema = pa.schema([("x", pa.int32()), ("label", pa.int64())])

    @property
    def table(self) -> pa.Table:
        return self.take(range(5))

    def get_row(self, idx: int) -> dict[str, Any]:
        return dict(self.take([idx]).to_pylist()[0])

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> pa.Table:
        numbers = np.asarray(indices, np.int64)
        return pa.table({"x": (numbers**2).astype(np.int32), "label": numbers % 2}, schema=self.schema)

    def slice(self, start: int, length: int) -> pa.Table:
        return self.take(range(start, start + length))

    def iter_batches(
        self, shard_indices: Sequence[int] | None = None, shuffle: bool = False, seed: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pass


def test_dataset_over_a_backend_of_a_user() -> None:
    assert isinstance(Squares(), StorageBackend)
    ds = StableDataset(NUMBERS, DatasetInfo(NUMBERS), backend=Squares())
    assert [row["x"] for row in ds] == [0, 1, 4, 9, 16] and ds[-1] == {"x": 16, "label": 0}
    view = ds[1:].shuffle(3).rename_column("x", "y")
    assert sorted(row["y"] for row in view) == [1, 4, 9, 16] and ds.table == Squares().table
    assert list(pickle.loads(pickle.dumps(view))) == list(view)
    assert [row["x"] for row in ds.iter_epoch()] == [0, 1, 4, 9, 16]
    assert ds.map(lambda row: {"x": row["x"] + 1})[2] == {"x": 5}


@pytest.mark.parametrize("kind", [LanceBackend, LanceVideoFramesBackend])
def test_lance_is_refused_with_advice(kind: Any) -> None:
    with pytest.raises(ValueError, match="storage_format='arrow'"):
        kind(uri="/data/a.lance")
