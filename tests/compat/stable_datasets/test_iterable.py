"""`StableIterableDataset`: every sample in one worker; views, formats and transforms are respected."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from shardex.compat.stable_datasets.dataset import StableDataset
from shardex.compat.stable_datasets.iterable import StableIterableDataset
from shardex.compat.stable_datasets.schema import DatasetInfo
from tests.compat.stable_datasets.caches import NUMBERS, mixed, numbers


def xs(rows: Any) -> list[int]:
    return [int(row["x"]) for row in rows]


def plus_hundred(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "x": row["x"] + 100}


def first(rows: list[Any]) -> Any:
    return rows


def loaded(stream: StableIterableDataset, workers: int) -> list[int]:
    """The column x of all samples, from the workers of a DataLoader."""
    data = pytest.importorskip("torch").utils.data
    loader = data.DataLoader(stream, batch_size=4, num_workers=workers, collate_fn=first)
    return [x for batch in loader for x in xs(batch)]


def test_all_samples_in_order(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c", 20)
    stream = ds.as_iterable()
    assert isinstance(stream, StableIterableDataset) and xs(stream) == list(range(20)) == xs(stream)


def test_views_and_transforms_are_respected(tmp_path: Path) -> None:
    """E3.3: the original gave all samples of a view's dataset, without the transform."""
    ds = numbers(tmp_path / "c", 20)
    view = ds.filter(lambda row: row["x"] % 2 == 1).with_transform(plus_hundred)
    assert xs(view.as_iterable()) == list(range(101, 120, 2))
    twice = view.as_iterable(transform=plus_hundred, shuffle=True, seed=3)
    assert sorted(xs(twice)) == list(range(201, 220, 2)) != xs(twice)
    mixed_up = ds.shuffle(4)
    assert xs(mixed_up.as_iterable()) == xs(mixed_up)
    assert xs(mixed(tmp_path / "d").rename_column("label", "x").with_format("raw").as_iterable()) == list(range(7))


@pytest.mark.parametrize(("shard_rows", "workers"), [(3, 2), (None, 2), (7, 1)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_share_the_samples(tmp_path: Path, shard_rows: int | None, workers: int, shuffle: bool) -> None:
    ds = numbers(tmp_path / "c", 20, shard_rows)
    for view in (ds, ds[5:17], ds.shuffle(1)):
        assert sorted(loaded(view.as_iterable(shuffle=shuffle, buffer_size=5), workers)) == sorted(xs(view))


def test_workers_share_data_in_memory(tmp_path: Path) -> None:
    """E3.3: every worker of the original gave all samples."""
    ds = numbers(tmp_path / "c", 20)
    memory = StableDataset(NUMBERS, DatasetInfo(NUMBERS), table=ds.table)
    assert sorted(loaded(memory.as_iterable(), 2)) == list(range(20))
    assert sorted(loaded(memory.as_iterable(shuffle=True), 2)) == list(range(20))


def test_shuffled_by_seed_and_epoch(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c", 40)
    stream = ds.as_iterable(shuffle=True, seed=1, buffer_size=10)
    one = xs(stream)
    assert one == xs(stream) and sorted(one) == list(range(40)) != one
    stream.set_epoch(1)
    assert xs(stream) != one and xs(ds.as_iterable(shuffle=True, seed=2)) != one
    unbuffered = xs(ds.as_iterable(shuffle=True, seed=1, buffer_size=0))
    assert unbuffered[unbuffered.index(3) : unbuffered.index(3) + 3] == [3, 4, 5] and unbuffered != list(range(40))


def test_streams_of_torch_pickle(tmp_path: Path) -> None:
    data = pytest.importorskip("torch").utils.data
    stream = numbers(tmp_path / "c").as_iterable(shuffle=True, seed=1)
    stream.set_epoch(3)
    assert isinstance(stream, data.IterableDataset)
    assert xs(pickle.loads(pickle.dumps(stream))) == xs(stream)
    with pytest.raises(TypeError, match="transform"):
        numbers(tmp_path / "d").as_iterable(transform=3)  # type: ignore[arg-type]
