"""Running parts: order, errors, few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardex.jobs import run_parts


def square(number: int) -> int:
    if number == 5:
        raise ValueError("five")
    return number**2


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_results_in_order(workers: int | None) -> None:
    found = list(run_parts(square, [3, 1, 2], workers=workers, progress=False))
    assert found == [(3, 9), (1, 1), (2, 4)]


def test_parts_are_taken_when_they_are_needed() -> None:
    taken: list[int] = []

    def parts() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield 0

    with ThreadPoolExecutor(2) as pool:
        running = run_parts(square, parts(), executor=pool, progress=False)
        next(running)
        assert len(taken) < 20
        del running


def test_error_of_a_part_ends_the_run() -> None:
    running = run_parts(square, range(100), workers=2, progress=False)
    assert [next(running) for _ in range(5)][-1] == (4, 16)
    with pytest.raises(ValueError, match="five"):
        next(running)
    assert list(running) == []


def test_progress_counts_what_was_finished_before(capsys: pytest.CaptureFixture[str]) -> None:
    list(run_parts(square, [1, 2], size=lambda part: 10, total=50, done=30, unit=" samples", progress=True))
    assert "50/50" in capsys.readouterr().err
