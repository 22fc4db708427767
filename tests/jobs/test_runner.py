"""Running parts: order, errors, few at a time."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shardex.jobs import run_parts
from shardex.jobs.runner import _PartsBar


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


def test_one_part_needs_no_process() -> None:
    found = run_parts(lambda part: os.getpid(), [7], workers=4, count=3, done_count=2, progress=False)
    assert list(found) == [(7, os.getpid())]
    ((_, elsewhere),) = run_parts(lambda part: os.getpid(), [7], executor="processes", workers=1, progress=False)
    assert elsewhere != os.getpid()


def test_error_of_a_part_ends_the_run() -> None:
    running = run_parts(square, range(100), workers=2, progress=False)
    assert [next(running) for _ in range(5)][-1] == (4, 16)
    with pytest.raises(ValueError, match="five"):
        next(running)
    assert list(running) == []


def test_progress_counts_what_was_finished_before(capsys: pytest.CaptureFixture[str]) -> None:
    list(run_parts(square, [1, 2], size=lambda part: 10, total=50, done=30, unit=" samples", progress=True))
    assert "50/50" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120])
def test_progress_shows_parts_and_workers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    options: dict[str, Any] = {"executor": "threads", "workers": 2, "progress": True, "ncols": columns}
    list(run_parts(square, [1, 2], size=lambda part: 10**6, total=7 * 10**6, done=5 * 10**6, count=7, **options))
    last = capsys.readouterr().err.split("\r")[-1].rstrip()
    assert "7.00M/7.00M [" in last and last.endswith("2/7 parts, 2 workers]" if columns == 120 else "2/7 parts]")


def test_rate_is_that_of_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What was finished before does not count, and the rate does not fall while a part runs."""
    bar = _PartsBar(total=4_000_000, initial=1_000_000, file=sys.stderr)
    bar.start_t -= 10
    bar.update(100)
    bar.start_t -= 1000
    bar.refresh()
    bar.close()
    rates = re.findall(r"([\d.]+)it/s", capsys.readouterr().err)
    assert rates and all(5 < float(rate) <= 10 for rate in rates)


def test_time_goes_on_while_a_part_runs() -> None:
    shown, terminal = os.openpty()
    before = threading.active_count()

    def until_drawn_again(part: int) -> bytes:
        seen = b""
        while b"[00:01<" not in seen:
            seen += os.read(shown, 4096)
        return seen

    with open(terminal, "w", encoding="utf-8") as file:
        ((_, seen),) = run_parts(until_drawn_again, [0], total=1, count=1, progress=True, file=file)
    os.close(shown)
    assert b"0/1 [00:01<?, ? parts/s]" in seen
    assert threading.active_count() <= before + 1, "tqdm has a thread of its own"
