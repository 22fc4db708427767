"""Statistics: what they count, and what they call the bottleneck."""

from __future__ import annotations

import pytest

from shardex.loader.stats import Spent, Stats


def test_reading_is_split_into_waiting_and_working() -> None:
    spent = Spent()
    with spent.reading():
        sum(range(100_000))
    assert spent.decode > 0 and spent.storage >= 0 and spent.transform == 0


def test_time_counts_also_when_it_ends_in_an_error() -> None:
    spent = Spent()
    with pytest.raises(ValueError, match="bad"), spent.transforming():
        raise ValueError("bad")
    assert spent.transform > 0


def test_spent_adds_up() -> None:
    one = Spent(1, 2, 3, 4)
    one.add(Spent(10, 20, 30, 40))
    assert one == Spent(11, 22, 33, 44)


@pytest.mark.parametrize(
    ("stats", "name"),
    [
        (Stats(), "nothing"),
        (Stats(1, 1, consumer=2, waiting=1), "consumer"),
        (Stats(1, 1, consumer=1, waiting=2, spent=Spent(storage=2, decode=1)), "storage"),
        (Stats(1, 1, consumer=1, waiting=2, spent=Spent(decode=1)), "decode"),
        (Stats(1, 1, consumer=1, waiting=2, spent=Spent(decode=1, transform=3)), "transform"),
    ],
)
def test_the_bottleneck_has_a_name(stats: Stats, name: str) -> None:
    assert stats.bottleneck == name
    assert str(stats).endswith(f"bottleneck: {name}")


def test_what_is_slow_shows_its_parts() -> None:
    stats = Stats(100, 1, 2, consumer=0, waiting=1, spent=Spent(storage=1, decode=1, transform=2))
    assert "2 bad ones replaced" in str(stats)
    assert "making them: storage 25%, decode 25%, transform 50%" in str(stats)
