"""Reads announced ahead: when that pays, in which order, and that nothing of it can disturb a run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.kernel import Integers
from shardex.loader import read_ahead as readahead
from shardex.loader.read_ahead import AdviceThread, ColdDataDetector, ReadAhead
from shardex.loader.stats import TimeSpent
from tests.residency import drop, resident


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true within some seconds."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.005)
    return False


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shardex read-ahead"]


@pytest.fixture(autouse=True)
def _short_lives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(readahead, "_IDLE", 0.05)
    assert wait_for(lambda: not helpers())
    yield
    assert wait_for(lambda: not helpers()), "a thread did not end"


# -- the thermometer ----------------------------------------------------------------------------------------------


def test_cold_as_long_as_the_disk_has_to_read() -> None:
    detector = ColdDataDetector()
    for blocks in (8, 8, 1, 800):
        detector.announced(blocks)
        assert detector.cold
    detector.announced(0)
    assert not detector.cold


def test_warm_until_a_read_has_to_wait() -> None:
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


def test_a_disk_that_counts_nothing_is_believed_less_each_time() -> None:
    detector = ColdDataDetector(longest=20)
    assert announcements_until_warm(detector) == 1
    for expected in (2, 4, 8, 16, 21, 21):
        detector.read(5)
        detector.read(5)  # was under way, too
        assert announcements_until_warm(detector) == expected


def test_trust_comes_back_while_it_is_warm() -> None:
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
    told: SimpleQueue[Integers] = SimpleQueue()
    ahead = AdviceThread(told.put, depth=100)
    plans = [np.array([k, k + 1]) for k in range(50)]
    for plan in plans:
        ahead.plan(plan)
    assert all(told.get(timeout=5) is plan for plan in plans)
    ahead.close()


class Slow:
    """Gives advice only when it is let."""

    def __init__(self) -> None:
        self.began: SimpleQueue[Any] = SimpleQueue()
        self.go = threading.Semaphore(0)
        self.told: list[Any] = []

    def __call__(self, plan: Any) -> None:
        self.began.put(plan)
        assert self.go.acquire(timeout=5)
        self.told.append(plan)


def test_at_most_so_many_wait_and_the_oldest_is_left_out() -> None:
    slow = Slow()
    ahead = AdviceThread(slow, depth=3)
    ahead.plan("first")
    assert slow.began.get(timeout=5) == "first"
    for plan in "abcdef":
        ahead.plan(plan)
    slow.go.release(9)
    assert wait_for(lambda: slow.told == ["first", "d", "e", "f"])
    ahead.close()


def test_a_read_does_not_overtake_its_advice() -> None:
    slow, (a, b, c) = Slow(), ([1], [2], [3])
    ahead = AdviceThread(slow, depth=9)
    ahead.plan(a)
    ahead.plan(b)
    assert slow.began.get(timeout=5) is a
    threading.Timer(0.05, slow.go.release).start()
    ahead.hurry(a)  # waits for it
    assert slow.told == [a]
    slow.go.release(2)
    ahead.plan(c)
    ahead.hurry(b)  # waits for it or does it
    assert b in slow.told
    ahead.hurry([4])  # never planned
    ahead.hurry(a)  # long ago
    assert wait_for(lambda: slow.told == [a, b, c])
    ahead.close()


def test_a_read_waits_for_its_advice_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "_PATIENCE", 0.02)
    slow, plan = Slow(), [1]
    ahead = AdviceThread(slow)
    ahead.plan(plan)
    assert slow.began.get(timeout=5) is plan
    ahead.hurry(plan)
    assert slow.told == []
    slow.go.release()
    ahead.close()


def test_errors_are_left_for_the_read(capfd: pytest.CaptureFixture[str]) -> None:
    told: SimpleQueue[int] = SimpleQueue()

    def advise(plan: int) -> None:
        told.put(plan)
        raise (OSError, MemoryError, KeyError, RecursionError)[plan % 4]("bad")

    detector = ColdDataDetector()
    ahead = AdviceThread(advise, 9, detector)
    for plan in range(9):
        ahead.plan(plan)
        assert told.get(timeout=5) == plan
    ahead.plan(9)
    ahead.hurry(9)
    ahead.close()
    assert wait_for(lambda: not helpers())
    assert capfd.readouterr() == ("", "")
    assert detector.cold  # advice that failed says nothing


def test_no_thread_before_it_is_needed_and_none_for_long() -> None:
    told: SimpleQueue[int] = SimpleQueue()
    ahead = AdviceThread(told.put)
    assert not helpers()
    for plan in range(3):
        ahead.plan(plan)
        assert told.get(timeout=5) == plan
        assert len(helpers()) <= 1
        assert wait_for(lambda: not helpers())
    ahead.close()


def test_closed() -> None:
    slow = Slow()
    ahead = AdviceThread(slow)
    for plan in "abc":
        ahead.plan(plan)
    assert slow.began.get(timeout=5) == "a"
    ahead.close()
    ahead.close()
    ahead.plan("d")
    ahead.hurry("d")
    slow.go.release(9)
    assert wait_for(lambda: not helpers())
    assert slow.told == ["a"]


def test_no_depth_no_advice() -> None:
    told: list[str] = []
    ahead = AdviceThread(told.append, depth=0)
    ahead.plan("a")
    ahead.hurry("a")
    assert not helpers() and not told


def test_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told, plans = list[list[int]](), [[1], [2], [3], [4]]
    ahead = AdviceThread(told.append, depth=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for plan in plans[:3]:
            ahead.plan(plan)
        ahead.hurry(plans[1])
    assert told == [[2]]
    ahead.plan(plans[3])
    assert wait_for(lambda: told == [[2], [3], [4]])
    ahead.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    slow = Slow()
    ahead = AdviceThread(slow)
    for plan in "abc":
        ahead.plan(plan)
    assert slow.began.get(timeout=5) == "a"
    with ahead._wake:  # held by somebody who does not come along
        child = os.fork()
        if not child:
            told: list[str] = []
            ahead._advise = told.append
            ahead.plan("x")
            done = wait_for(lambda: told == ["x"])
            ahead.close()
            os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    slow.go.release(9)
    assert wait_for(lambda: slow.told == ["a", "b", "c"])
    ahead.close()


# -- both ----------------------------------------------------------------------------------------------------------


class Disk:
    """Plans, some of them cold, as a thermometer would feel them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cold: Callable[[int], bool]) -> None:
        self.cold = cold
        self.announced: list[int] = []
        self.blocks = 0
        monkeypatch.setattr(readahead, "_blocks_read", lambda: self.blocks)

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
def test_cold_plans_are_announced_before_they_are_given(monkeypatch: pytest.MonkeyPatch, under_way: int) -> None:
    disk = Disk(monkeypatch, lambda plan: True)
    assert disk.run(50, depth=4, under_way=under_way) == list(range(50))
    assert sorted(disk.announced) == list(range(50))


@pytest.mark.parametrize("under_way", [1, 4])
def test_warm_plans_are_left_alone(monkeypatch: pytest.MonkeyPatch, under_way: int) -> None:
    disk = Disk(monkeypatch, lambda plan: False)
    assert disk.run(500, under_way=under_way) == list(range(500))
    assert len(disk.announced) <= under_way


def test_it_notices_when_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, lambda plan: 100 <= plan < 200 or plan >= 300)
    assert disk.run(400, depth=4) == list(range(400))
    told = set(disk.announced)
    assert len(told & set(range(100))) <= 5
    assert len(told & set(range(100, 200))) >= 98
    assert len(told & set(range(200, 300))) <= 10
    assert len(told & set(range(300, 400))) >= 98


def test_without_depth_nothing_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, lambda plan: True)
    assert disk.run(50, depth=0) == list(range(50))
    assert disk.announced == []


def test_plans_are_taken_as_late_as_may_be() -> None:
    taken: list[int] = []

    def plans() -> Iterator[int]:
        for plan in range(100):
            taken.append(plan)
            yield plan

    warm, told = ColdDataDetector(), list[int]()
    warm.announced(0)
    read_ahead = ReadAhead(plans(), told.append, depth=8, detector=warm)
    for plan in range(10):
        assert read_ahead.next() == plan and taken[-1] == plan
        read_ahead.note(0)
    assert not told
    warm.cold = True
    assert read_ahead.next() == 10 and taken[-1] == 18
    assert told[:1] == [10]
    read_ahead.close()


def test_foresight_of_nothing() -> None:
    read_ahead = ReadAhead(iter([0][1:]), lambda plan: None)
    assert read_ahead.next() is None
    read_ahead.close()


def test_a_real_file(tmp_path: Path) -> None:
    """Reads of a file on disk: cold ones are announced, warm ones are not."""
    rows = np.random.default_rng(1).integers(0, 9, (1 << 14, 1024), dtype=np.uint16)
    samples = ({"x": row} for row in rows)
    sx.write(tmp_path, samples, {"x": sx.Array("uint16", (1024,))}, format="tokens", progress=False)
    (path,) = tmp_path.glob("*.bin")
    reads = np.random.default_rng(2).permutation(1 << 14).reshape(-1, 64)[:20]
    for cold in (True, False):
        ds = sx.open(tmp_path)
        announced: list[Integers] = []

        def advise(positions: Integers, ds: sx.Dataset = ds, announced: list[Integers] = announced) -> None:
            announced.append(positions)
            ds.advise(positions)

        if cold:
            drop(path)
        else:
            path.read_bytes()
            assert resident(path).all()
        read_ahead = ReadAhead(iter(reads), advise, depth=4)
        while (positions := read_ahead.next()) is not None:
            spent = TimeSpent()
            with spent.reading():
                assert (ds.read(positions)["x"] == rows[positions]).all()
            read_ahead.note(spent.faults)
        read_ahead.close()
        assert (len(announced) >= 5) if cold else (len(announced) <= 2)
