"""Read-ahead: which reads are announced, in which order, and that failures do not disturb a run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.kernel import Integers
from shardex.loader import read_ahead as read_ahead_module
from shardex.loader.read_ahead import AdviceThread, ColdDataDetector, ReadAhead
from shardex.loader.stats import TimeSpent
from tests.resident_pages import evict
from tests.waiting import becomes_true


def advice_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shardex read-ahead"]


@pytest.fixture(autouse=True)
def _threads_end_quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(read_ahead_module, "_IDLE_SECONDS", 0.05)
    assert becomes_true(lambda: not advice_threads())
    yield
    assert becomes_true(lambda: not advice_threads()), "a thread did not end"


# -- detecting cold data ------------------------------------------------------------------------------------------


def test_cold_while_announcements_make_the_disk_read() -> None:
    detector = ColdDataDetector()
    for blocks in (8, 8, 1, 800):
        detector.announced(blocks)
        assert detector.cold
    detector.announced(0)
    assert not detector.cold


def test_warm_until_a_read_has_a_page_fault() -> None:
    detector = ColdDataDetector()
    detector.announced(0)
    for _ in range(100):
        detector.read(0)
        assert not detector.cold
    detector.read(1)
    assert detector.cold


def announcements_until_warm(detector: ColdDataDetector) -> int:
    count = 0
    while detector.cold:
        detector.announced(0)
        count += 1
    return count


def test_cold_period_doubles_after_each_page_fault() -> None:
    detector = ColdDataDetector(longest=20)
    assert announcements_until_warm(detector) == 1
    for expected in (2, 4, 8, 16, 21, 21):
        detector.read(5)
        detector.read(5)  # a read that had already begun
        assert announcements_until_warm(detector) == expected


def test_cold_period_shrinks_while_data_is_warm() -> None:
    detector = ColdDataDetector()
    for _ in range(6):
        announcements_until_warm(detector)
        detector.read(1)
    announcements_until_warm(detector)
    for _ in range(100):
        detector.read(0)
    detector.read(1)
    assert announcements_until_warm(detector) == 2


# -- the thread ----------------------------------------------------------------------------------------------------


def test_plans_are_announced_in_order() -> None:
    announced: SimpleQueue[Integers] = SimpleQueue()
    thread = AdviceThread(announced.put, depth=100)
    plans = [np.array([k, k + 1]) for k in range(50)]
    for plan in plans:
        thread.plan(plan)
    assert all(announced.get(timeout=60) is plan for plan in plans)
    thread.close()


class SlowAdvice:
    """An `advise` function that waits for a semaphore."""

    def __init__(self) -> None:
        self.began: SimpleQueue[Any] = SimpleQueue()
        self.go = threading.Semaphore(0)
        self.announced: list[Any] = []

    def __call__(self, plan: Any) -> None:
        self.began.put(plan)
        assert self.go.acquire(timeout=60)
        self.announced.append(plan)


def test_oldest_plan_is_left_out_if_too_many_wait() -> None:
    slow = SlowAdvice()
    thread = AdviceThread(slow, depth=3)
    thread.plan("first")
    assert slow.began.get(timeout=60) == "first"
    for plan in "abcdef":
        thread.plan(plan)
    slow.go.release(9)
    assert becomes_true(lambda: slow.announced == ["first", "d", "e", "f"])
    thread.close()


def test_read_waits_for_its_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead_module, "_MAX_WAIT_SECONDS", 60)
    slow, (a, b, c) = SlowAdvice(), ([1], [2], [3])
    thread = AdviceThread(slow, depth=9)
    thread.plan(a)
    thread.plan(b)
    assert slow.began.get(timeout=60) is a
    threading.Timer(0.05, slow.go.release).start()
    thread.ensure_announced(a)  # waits for it
    assert slow.announced == [a]
    slow.go.release(2)
    thread.plan(c)
    thread.ensure_announced(b)  # waits for it or does it
    assert b in slow.announced
    thread.ensure_announced([4])  # never planned
    thread.ensure_announced(a)  # long ago
    assert becomes_true(lambda: slow.announced == [a, b, c])
    thread.close()


def test_read_waits_for_its_announcement_only_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead_module, "_MAX_WAIT_SECONDS", 0.02)
    slow, plan = SlowAdvice(), [1]
    thread = AdviceThread(slow)
    thread.plan(plan)
    assert slow.began.get(timeout=60) is plan
    thread.ensure_announced(plan)
    assert slow.announced == []
    slow.go.release()
    thread.close()


def test_errors_in_announcements_are_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    announced: SimpleQueue[int] = SimpleQueue()

    def advise(plan: int) -> None:
        announced.put(plan)
        raise (OSError, MemoryError, KeyError, RecursionError)[plan % 4]("bad")

    detector = ColdDataDetector()
    thread = AdviceThread(advise, 9, detector)
    for plan in range(9):
        thread.plan(plan)
        assert announced.get(timeout=60) == plan
    thread.plan(9)
    thread.ensure_announced(9)
    thread.close()
    assert becomes_true(lambda: not advice_threads())
    assert capfd.readouterr() == ("", "")
    assert detector.cold  # an announcement that failed does not count


def test_thread_starts_when_needed_and_ends_when_idle() -> None:
    announced: SimpleQueue[int] = SimpleQueue()
    thread = AdviceThread(announced.put)
    assert not advice_threads()
    for plan in range(3):
        thread.plan(plan)
        assert announced.get(timeout=60) == plan
        assert len(advice_threads()) <= 1
        assert becomes_true(lambda: not advice_threads())
    thread.close()


def test_closed_thread_announces_nothing() -> None:
    slow = SlowAdvice()
    thread = AdviceThread(slow)
    for plan in "abc":
        thread.plan(plan)
    assert slow.began.get(timeout=60) == "a"
    thread.close()
    thread.close()
    thread.plan("d")
    thread.ensure_announced("d")
    slow.go.release(9)
    assert becomes_true(lambda: not advice_threads())
    assert slow.announced == ["a"]


def test_depth_zero_announces_nothing() -> None:
    announced: list[str] = []
    thread = AdviceThread(announced.append, depth=0)
    thread.plan("a")
    thread.ensure_announced("a")
    assert not advice_threads() and not announced


def test_plans_are_announced_without_a_thread_if_none_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    announced, plans = list[list[int]](), [[1], [2], [3], [4]]
    thread = AdviceThread(announced.append, depth=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for plan in plans[:3]:
            thread.plan(plan)
        thread.ensure_announced(plans[1])
    assert announced == [[2]]
    thread.plan(plans[3])
    assert becomes_true(lambda: announced == [[2], [3], [4]])
    thread.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_starts_its_own_thread() -> None:
    slow = SlowAdvice()
    thread = AdviceThread(slow)
    for plan in "abc":
        thread.plan(plan)
    assert slow.began.get(timeout=60) == "a"
    with thread._wake:  # held by a thread that the fork does not copy
        child = os.fork()
        if not child:
            announced: list[str] = []
            thread._advise = announced.append
            thread.plan("x")
            done = becomes_true(lambda: announced == ["x"])
            thread.close()
            os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    slow.go.release(9)
    assert becomes_true(lambda: slow.announced == ["a", "b", "c"])
    thread.close()


# -- plans ---------------------------------------------------------------------------------------------------------


class Disk:
    """A disk on which some plans are cold; counts what announcements make it read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cold: Callable[[int], bool]) -> None:
        self.cold = cold
        self.announced: list[int] = []
        self.blocks = 0
        monkeypatch.setattr(read_ahead_module, "_blocks_read", lambda: self.blocks)

    def advise(self, plan: int) -> None:
        self.announced.append(plan)
        self.blocks += self.cold(plan)

    def run(self, count: int, depth: int | None = None, under_way: int = 1) -> list[int]:
        read_ahead = ReadAhead(iter(range(count)), self.advise, depth)
        seen, pending = [], list[int]()
        while True:
            while len(pending) < under_way and (plan := read_ahead.next()) is not None:
                pending.append(plan)
            if not pending:
                break
            plan = pending.pop(0)
            seen.append(plan)
            read_ahead.note(9 if self.cold(plan) and plan not in self.announced else 0)
        assert read_ahead.next() is None
        read_ahead.close()
        return seen


@pytest.mark.parametrize("under_way", [1, 4])
def test_cold_plans_are_announced_before_they_are_read(monkeypatch: pytest.MonkeyPatch, under_way: int) -> None:
    disk = Disk(monkeypatch, lambda plan: True)
    assert disk.run(50, depth=4, under_way=under_way) == list(range(50))
    assert sorted(disk.announced) == list(range(50))


@pytest.mark.parametrize("under_way", [1, 4])
def test_warm_plans_are_not_announced(monkeypatch: pytest.MonkeyPatch, under_way: int) -> None:
    disk = Disk(monkeypatch, lambda plan: False)
    assert disk.run(500, under_way=under_way) == list(range(500))
    assert len(disk.announced) <= under_way


def test_announcements_follow_changes_between_cold_and_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, lambda plan: 100 <= plan < 200 or plan >= 300)
    assert disk.run(400, depth=4) == list(range(400))
    announced = set(disk.announced)
    assert len(announced & set(range(100))) <= 5
    assert len(announced & set(range(100, 200))) >= 98
    assert len(announced & set(range(200, 300))) <= 10
    assert len(announced & set(range(300, 400))) >= 98


def test_read_ahead_of_depth_zero_announces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, lambda plan: True)
    assert disk.run(50, depth=0) == list(range(50))
    assert disk.announced == []


def test_plans_are_taken_as_late_as_possible() -> None:
    taken: list[int] = []

    def plans() -> Iterator[int]:
        for plan in range(100):
            taken.append(plan)
            yield plan

    warm, announced = ColdDataDetector(), list[int]()
    warm.announced(0)
    read_ahead = ReadAhead(plans(), announced.append, depth=8, detector=warm)
    for plan in range(10):
        assert read_ahead.next() == plan and taken[-1] == plan
        read_ahead.note(0)
    assert not announced
    warm.cold = True
    assert read_ahead.next() == 10 and taken[-1] == 18
    assert announced[:1] == [10]
    read_ahead.close()


def test_a_few_samples_show_that_data_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 0
    monkeypatch.setattr(read_ahead_module, "_blocks_read", lambda: blocks)
    calls: list[tuple[str, int]] = []

    def probe(plan: int) -> None:
        nonlocal blocks
        calls.append(("probe", plan))
        blocks += is_cold

    def advise(plan: int) -> None:
        nonlocal blocks
        calls.append(("advise", plan))
        blocks += is_cold

    is_cold, detector = False, ColdDataDetector()
    read_ahead = ReadAhead(iter([0, 1]), advise, detector=detector, probe=probe)
    assert read_ahead.next() == 0 and calls == [("probe", 0)]
    read_ahead.note(faults=1)  # but what was read was cold
    assert read_ahead.next() == 1 and calls == [("probe", 0), ("advise", 1)]  # file systems may not count their reads
    read_ahead.close()

    calls.clear()
    is_cold, detector = True, ColdDataDetector()
    read_ahead = ReadAhead(iter([0]), advise, detector=detector, probe=probe)
    assert read_ahead.next() == 0 and calls == [("probe", 0), ("advise", 0)] and detector.cold
    read_ahead.close()


def test_no_plans() -> None:
    read_ahead = ReadAhead(iter([0][1:]), lambda plan: None)
    assert read_ahead.next() is None
    read_ahead.close()


def test_file_on_disk(disk_path: Path) -> None:
    """Cold reads of a file are announced, warm ones are not."""
    rows = np.random.default_rng(1).integers(0, 9, (1 << 14, 1024), dtype=np.uint16)
    samples = ({"x": row} for row in rows)
    sx.write(disk_path, samples, {"x": sx.Array("uint16", (1024,))}, format="tokens", progress=False)
    (path,) = disk_path.glob("*.bin")
    reads = np.random.default_rng(2).permutation(1 << 14).reshape(-1, 64)[:20]

    def announcements(*, cold: bool) -> int:
        ds = sx.open(disk_path)
        announced: list[Integers] = []

        def advise(positions: Integers) -> None:
            announced.append(positions)
            ds.advise(positions)

        if cold:
            evict(path)
        else:
            path.read_bytes()
        read_ahead = ReadAhead(iter(reads), advise, depth=4)
        while (positions := read_ahead.next()) is not None:
            spent = TimeSpent()
            with spent.reading():
                assert (ds.read(positions)["x"] == rows[positions]).all()
            read_ahead.note(spent.faults)
        read_ahead.close()
        return len(announced)

    # A busy system may read more of the file than was asked for, or remove pages meanwhile.
    assert becomes_true(lambda: announcements(cold=True) >= 5)
    assert becomes_true(lambda: announcements(cold=False) <= 2)


AT_EXIT = """
import threading
from shardex.loader.read_ahead import ReadAhead

def loop(read_ahead):
    try:
        yield
    finally:
        read_ahead.close()

read_ahead = ReadAhead(iter([]), print)
thread = threading.Thread(target=read_ahead._thread._wake.acquire)
thread.start()
thread.join()
running = loop(read_ahead)
next(running)
"""


def test_process_ends_although_its_read_ahead_thread_was_stopped_with_the_lock() -> None:
    """A daemon thread stops where it is when the interpreter ends; a loop that is still open must not wait for it."""
    subprocess.run([sys.executable, "-c", AT_EXIT], check=True, timeout=60)
