"""Statistics of a loader: counts, times, and the bottleneck."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import shardex as sx
from shardex.kernel import Columns, Integers, Ragged
from shardex.loader.stats import ReadPace, Stats, TimeSpent
from shardex.sources.io_threads import count_fetches


def test_reading_is_split_into_storage_and_decoding() -> None:
    spent = TimeSpent()
    with spent.reading():
        sum(range(100_000))
    assert spent.decode > 0 and spent.storage >= 0 and spent.transform == 0


def test_a_read_after_a_quick_one_counts_as_decoding_until_one_is_slow_again() -> None:
    spent, pace = TimeSpent(), ReadPace()
    pace.quick_reads = 5
    with spent.reading(pace=pace):
        time.sleep(0.01)
    assert spent.storage == 0 and spent.decode >= 0.01 and not pace.quick_reads
    with spent.reading(pace=pace):
        time.sleep(0.01)
    assert spent.storage > 0


def test_a_read_with_a_download_is_not_quick() -> None:
    spent, pace = TimeSpent(), ReadPace()
    pace.quick_reads = 5
    with spent.reading(pace=pace):
        count_fetches(2)
    assert spent.faults == 2 and not pace.quick_reads


def test_after_some_quick_reads_one_is_measured_again() -> None:
    spent, pace = TimeSpent(), ReadPace()
    pace.quick_reads = 1
    with spent.reading(pace=pace):
        pass
    assert spent.storage == 0 and not pace.quick_reads
    with spent.reading(pace=pace):
        time.sleep(0.01)
    assert spent.storage > 0


class _SlowRows:
    """Rows of different lengths that wait for their storage."""

    in_python = False

    def __len__(self) -> int:
        return 400

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        time.sleep(0.05)
        return Columns({"x": Ragged.from_arrays([np.zeros(1 + row % 3) for row in rows.tolist()])})


def test_quick_conversions_do_not_hide_slow_reads() -> None:
    loader = sx.Loader(sx.open(_SlowRows()), 20)
    for _ in loader:
        pass
    assert loader.stats.spent.storage > loader.stats.spent.decode
    assert loader.stats.bottleneck == "storage"


def test_time_before_an_error_is_counted() -> None:
    spent = TimeSpent()
    with pytest.raises(ValueError, match="bad"), spent.transforming():
        raise ValueError("bad")
    assert spent.transform > 0


def test_times_are_added() -> None:
    one = TimeSpent(1, 2, 3, 4)
    one.add(TimeSpent(10, 20, 30, 40))
    assert one == TimeSpent(11, 22, 33, 44)


@pytest.mark.parametrize(
    ("stats", "name"),
    [
        (Stats(), "nothing"),
        (Stats(1, 1, consumer=2, waiting=1), "consumer"),
        (Stats(1, 1, consumer=1, waiting=2, spent=TimeSpent(storage=2, decode=1)), "storage"),
        (Stats(1, 1, consumer=1, waiting=2, spent=TimeSpent(decode=1)), "decode"),
        (Stats(1, 1, consumer=1, waiting=2, spent=TimeSpent(decode=1, transform=3)), "transform"),
    ],
)
def test_bottleneck_is_the_slowest_part(stats: Stats, name: str) -> None:
    assert stats.bottleneck == name
    assert str(stats).endswith(f"bottleneck: {name}")


def test_text_shows_the_parts_of_slow_batches() -> None:
    stats = Stats(100, 1, 2, consumer=0, waiting=1, spent=TimeSpent(storage=1, decode=1, transform=2))
    assert "2 bad ones replaced" in str(stats)
    assert "making them: storage 25%, decode 25%, transform 50%" in str(stats)


def slow(sample: sx.DictSample) -> dict[str, int]:
    time.sleep(0.002)
    return {"n": sum(range(20_000)) + sample.n}


@pytest.mark.parametrize("workers", [0, 1])
def test_time_in_a_mapped_function_is_transform(tmp_path: Path, workers: int) -> None:
    ds = sx.write(tmp_path / "d", [{"n": k} for k in range(200)]).map(slow).map(slow)
    with sx.Loader(ds, 50, workers=workers, worker_type="thread") as loader:
        for _ in loader:
            pass
        spent = loader.stats.spent
    assert spent.transform > spent.decode + spent.storage
    assert loader.stats.bottleneck == "transform"
