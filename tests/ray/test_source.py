"""`shardex.ray.source`: every row once and in order, exact counts, tensors, projections and filters pushed down."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 1000 samples in ten shards."""
    path = tmp_path_factory.mktemp("data") / "d"
    with sx.create(path, shard_rows=100) as out:
        for k in range(1000):
            out.append(
                i=k,
                x=np.full((2, 3), k, "float32"),
                mask=np.array([k % 2 == 0] * 3),
                v=np.arange(k % 5 + 1),
                n=np.ones((k % 3 + 1, 2)),
                name=f"name {k % 7}",
                score=float("nan") if k % 10 == 0 else k / 10,
                maybe=None if k % 3 == 0 else k,
                meta={"k": [k]},
                day=datetime.date(2024, 1, 1 + k % 28),
            )
    return path


def read(data: Any, **options: Any) -> Any:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data.read_datasource(sx.ray.source(data), **options)


def test_rows_and_counts(ray_cluster: Any, folder: Path) -> None:
    found = read(folder, override_num_blocks=4)
    assert found.count() == 1000
    assert found.schema().names == list(sx.open(folder).fields)
    rows = sorted(found.take_all(), key=lambda row: int(row["i"]))
    assert [row["i"] for row in rows] == list(range(1000))
    for row in rows[::97]:
        k = row["i"]
        assert row["x"].tolist() == [[k] * 3] * 2 and row["x"].dtype == np.float32
        assert row["mask"].tolist() == [k % 2 == 0] * 3
        assert np.asarray(row["v"]).tolist() == list(range(k % 5 + 1))
        assert np.asarray(row["n"]).tolist() == [[1.0, 1.0]] * (k % 3 + 1)
        assert row["name"] == f"name {k % 7}" and row["maybe"] == (None if k % 3 == 0 else k)
        assert row["day"] == datetime.date(2024, 1, 1 + k % 28)


def test_count_reads_no_sample(ray_cluster: Any, folder: Path, tmp_path: Path) -> None:
    def touch(sample: Any) -> Any:
        (tmp_path / str(sample.i)).touch()
        return {"i": sample.i}

    mapped = sx.open(folder).select("i").map(touch)
    _ = mapped.features
    found = read(mapped)
    begun = len(list(tmp_path.iterdir()))
    assert found.count() == 1000
    assert len(list(tmp_path.iterdir())) <= begun + 16


def test_views_keep_their_order(ray_cluster: Any, folder: Path) -> None:
    import ray.data

    view = sx.open(folder).select("i").shuffle(seed=3)[100:300]
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    try:
        found = [row["i"] for row in read(view, override_num_blocks=3).take_all()]
    finally:
        ray.data.DataContext.get_current().execution_options.preserve_order = False
    assert found == view["i"].tolist()


def test_torch_batches(ray_cluster: Any, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    total, rows = 0.0, 0
    for batch in read(folder).select_columns(["x", "mask", "i"]).iter_torch_batches(batch_size=128):
        assert batch["x"].shape[1:] == (2, 3) and batch["x"].dtype == torch.float32
        assert batch["mask"].dtype == torch.bool
        total, rows = total + float(batch["x"].sum()), rows + len(batch["i"])
    assert (total, rows) == (6.0 * sum(range(1000)), 1000)


def test_data_in_memory(ray_cluster: Any) -> None:
    found = read([{"x": np.full(3, k)} for k in range(50)], override_num_blocks=2)
    assert found.count() == 50
    assert sorted(int(row["x"][0]) for row in found.take_all()) == list(range(50))
    assert read(sx.open([{"x": 1}])[:0]).count() == 0


def pushed(found: Any) -> Any:
    """Return the source after Ray has optimised a plan, and the operators that are left above it."""
    from ray.data._internal.logical.optimizers import LogicalOptimizer

    plan = LogicalOptimizer().optimize(found._logical_plan)
    operators = list(plan.dag.post_order_iter())
    return operators[0].datasource, [type(one).__name__ for one in operators[1:]]


def test_projection_is_pushed_down(ray_cluster: Any, folder: Path) -> None:
    found = read(folder).select_columns(["name", "i"])
    source, above = pushed(found)
    assert sorted(source.get_projection_map()) == ["i", "name"]
    assert found.schema().names == ["name", "i"] and found.count() == 1000
    assert source.estimate_inmemory_data_size() < 60_000 and "Filter" not in above


def conditions() -> list[Any]:
    from ray.data.expressions import col

    return [
        col("i") > 990,
        col("i") < 5,
        (col("i") >= 10) & (col("i") <= 20) & (col("name") == "name 3"),
        (col("name") != "name 1") | (col("i") < 3),
        col("score") > 99.5,
        ~(col("score") > 1.5),
        col("score") >= 99,
        col("score") != 5.1,
        col("maybe").is_null(),
        col("maybe").is_not_null() & (col("maybe") < 50),
        col("maybe").is_in([1, 2, 3]),
        col("maybe").not_in([1, 2, 4]),
        col("name").is_in(["name 1", "a'b", 'quoted "text"']),
        ~col("maybe").is_in([1]),
        ~(col("maybe") == 4),
    ]


def test_filters_are_pushed_down(ray_cluster: Any, folder: Path) -> None:
    """Each filter keeps the same samples in SQL as in Ray, where missing values and NaN have other rules."""
    import ray.data

    table = sx.open(folder).select("i", "name", "score", "maybe").to_arrow().replace_schema_metadata(None)
    plain = ray.data.from_arrow(table)
    for condition in conditions():
        found = read(folder).select_columns(["i", "name", "score", "maybe"]).filter(expr=condition)
        source, above = pushed(found)
        assert "Filter" not in above and source.get_current_predicate() is not None
        expected = sorted(row["i"] for row in plain.filter(expr=condition).take_all())
        assert sorted(row["i"] for row in found.take_all()) == expected, condition


def test_filter_on_a_field_that_is_not_read(ray_cluster: Any, folder: Path) -> None:
    from ray.data.expressions import col

    found = read(folder).filter(expr=col("i") < 10).select_columns(["name"])
    assert found.count() == 10 and found.schema().names == ["name"]
    assert read(folder).filter(expr=col("i") < 10).count() == 10


def test_other_filters_stay_in_ray(ray_cluster: Any, folder: Path) -> None:
    from ray.data.expressions import col

    found = read(folder).filter(expr=(col("i") % 2 == 0) & (col("i") < 10))
    assert "Filter" in pushed(found)[1]
    assert sorted(row["i"] for row in found.take_all()) == [0, 2, 4, 6, 8]


def test_ranges_end_at_shards(folder: Path) -> None:
    from shardex.ray.source import read_ranges

    ranges = sx.open(folder)
    assert read_ranges(ranges, 3) == [(0, 300), (300, 700), (700, 1000)]
    assert read_ranges(ranges, 10) == [(k, k + 100) for k in range(0, 1000, 100)]
    assert [end - begin for begin, end in read_ranges(ranges, 40)] == [25] * 40
    assert read_ranges(ranges[:0], 4) == []
    assert read_ranges(ranges[:2], 4) == [(0, 1), (1, 2)]
