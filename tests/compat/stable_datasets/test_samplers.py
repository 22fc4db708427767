"""`ShardShuffleSampler`: every position once, shard by shard, in the order of the original."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from shardex.compat.stable_datasets.samplers import ShardShuffleSampler
from tests.compat.stable_datasets.caches import numbers


def shards_of(order: list[int]) -> list[int]:
    """The shards of positions, each named when it begins."""
    shards = [position // 3 for position in order]
    return [shard for k, shard in enumerate(shards) if k == 0 or shards[k - 1] != shard]


def test_shards_stay_together(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c", 12)
    sampler = ShardShuffleSampler(ds, seed=5)
    order = list(sampler)
    assert sorted(order) == list(range(12)) and len(sampler) == 12 and order == list(sampler)
    assert len(shards_of(order)) == 4 and order != sorted(order)
    plain = list(ds.make_sampler("shard_shuffle", seed=5, within_shard="sequential"))
    assert all(plain[k : k + 3] == sorted(plain[k : k + 3]) for k in range(0, 12, 3))


def test_order_of_the_original(tmp_path: Path) -> None:
    """The generator depends on seed and epoch; it shuffles the shards, then the rows of one after another."""
    ds, epoch = numbers(tmp_path / "c", 10), 3
    sampler = ds.make_sampler(seed=11)
    sampler.set_epoch(epoch)
    generator = np.random.default_rng(11 ^ (epoch * 0x9E3779B1))
    parts = [np.arange(begin, min(begin + 3, 10)) for begin in range(0, 10, 3)]
    generator.shuffle(numbers_of_parts := np.arange(4))
    expected = []
    for part in numbers_of_parts:
        generator.shuffle(parts[part])
        expected += parts[part].tolist()
    assert list(sampler) == expected
    sampler.set_epoch(epoch + 1)
    assert list(sampler) != expected


def test_views_keep_shards_together(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c", 12)
    view = ds.shuffle(1).select(range(9))
    order = list(view.make_sampler(seed=2))
    assert sorted(order) == list(range(9))
    assert len(shards_of([view[position]["x"] for position in order])) == len({row["x"] // 3 for row in view})
    memory = ds.add_column("y", range(12))
    assert sorted(memory.make_sampler()) == list(range(12))


def test_sampler_of_torch_that_pickles(tmp_path: Path) -> None:
    data = pytest.importorskip("torch").utils.data
    sampler = numbers(tmp_path / "c").make_sampler(seed=1)
    sampler.set_epoch(2)
    assert isinstance(sampler, data.Sampler) and isinstance(sampler, ShardShuffleSampler)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_wrong_arguments(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    with pytest.raises(ValueError, match="within_shard"):
        ds.make_sampler(within_shard="none")
    with pytest.raises(ValueError, match="shard_shuffle"):
        ds.make_sampler("random")
    assert sorted(ShardShuffleSampler([1, 2, 3])) == [0, 1, 2], "expected one shard for other datasets"
