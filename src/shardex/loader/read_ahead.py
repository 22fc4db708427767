"""Read-ahead for a loader: tells the storage which rows are read next, as long as the data is cold.

`ReadAhead` hands out plans in order and gives advice for those that follow; `AdviceThread` gives it in a thread of its
own; `ColdDataDetector` decides whether the data comes from disk at all. On warm data advice costs more than the reads
it is for (1 us a range, measured), so none is given; on cold data reads are up to 20 times as fast
(`benchmarks/coldread.py`). The caller says what a plan is and how to advise the storage of it.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from shardex.sources import fetches_started

__all__ = ["DEPTH", "AdviceThread", "ColdDataDetector", "ReadAhead"]

DEPTH = 16
"""How many reads are announced ahead where nobody says: a few keep the disk busy, and all fit into memory."""
_IDLE = 1.0
"""Seconds after which a thread that has nothing to do ends."""
_PATIENCE = 1.0
"""Seconds that a read waits for advice that is being given."""
_HERE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

Plan = TypeVar("Plan")


class ColdDataDetector:
    """Whether data comes from the disk: by what announcements make it read, and by page faults of other reads.

    Taken to be cold until an announcement makes the disk read nothing. Should a read that was not announced then have
    to wait for a page, it is cold again, for twice as many announcements each time: not every file system counts what
    is read, and such a one would always look warm.

    >>> detector = ColdDataDetector(); detector.announced(blocks=0); detector.cold
    False
    >>> detector.read(faults=3); detector.cold
    True
    """

    def __init__(self, longest: int = 1024) -> None:
        self.cold = True
        self._longest = longest
        self._span = self._left = 0
        """For how many announcements it was cold, the last time that it turned so, and how many of them are left."""

    def announced(self, blocks: int) -> None:
        """An announcement made the disk read so many blocks."""
        if not blocks and not self._left:
            self.cold = False
        self._left = max(0, self._left - 1)

    def read(self, faults: int) -> None:
        """A read that was not announced had so many major page faults."""
        if not faults:
            self._span = max(0, self._span - 1)
        elif not self.cold:
            self._span = self._left = min(2 * self._span + 1, self._longest)
            self.cold = True


class AdviceThread(Generic[Plan]):
    """Calls `advise` with what is planned, in order, in a thread of its own. Errors are left for the read to meet.

    At most `depth` plans wait; when there are more, the oldest is left out, because its read comes first.

    >>> from queue import SimpleQueue
    >>> told = SimpleQueue(); ahead = AdviceThread(told.put, depth=4)
    >>> ahead.plan([7, 3]); told.get()
    [7, 3]
    >>> ahead.close()
    """

    def __init__(
        self, advise: Callable[[Plan], None], depth: int = DEPTH, detector: ColdDataDetector | None = None
    ) -> None:
        self._advise = advise
        self._depth = depth
        self._detector = detector or ColdDataDetector()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._wake = threading.Condition()
        self._planned: deque[Plan] = deque(maxlen=self._depth)
        self._current: Plan | None = None
        self._thread: threading.Thread | None = None

    def _begin_again_after_fork(self) -> None:
        """A fork copies neither the thread nor the promise that somebody will release the lock."""
        if self._process != os.getpid():
            self._begin()

    def plan(self, plan: Plan) -> None:
        """Have this read announced soon."""
        self._begin_again_after_fork()
        with self._wake:
            if self._closed or not self._depth:
                return
            self._planned.append(plan)
            self._wake.notify_all()
            if self._thread is None:
                self._start()

    def hurry(self, plan: Plan) -> None:
        """Have the oldest plan announced before this returns: a read that overtakes its advice is slow."""
        self._begin_again_after_fork()
        with self._wake:
            waits = bool(self._planned) and self._planned[0] is plan
            if waits:
                self._planned.popleft()
            self._wake.wait_for(lambda: self._current is not plan, _PATIENCE)
        if waits:
            self._announce(plan)

    def close(self) -> None:
        """Announce no more."""
        self._begin_again_after_fork()
        with self._wake:
            self._closed = True
            self._planned.clear()
            self._wake.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="shardex read-ahead", daemon=True)
        with suppress(RuntimeError):  # no room for a thread: then plans wait until they are in a hurry
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while (plan := self._take()) is not None:
            self._announce(plan)

    def _take(self) -> Plan | None:
        """The oldest plan; without one the thread ends, and another is started when there is one."""
        with self._wake:
            self._current = None
            self._wake.notify_all()
            while not self._planned:
                if self._closed or not (self._wake.wait(_IDLE) or self._planned):
                    self._thread = None
                    return None
            self._current = self._planned.popleft()
            return self._current

    def _announce(self, plan: Plan) -> None:
        with suppress(Exception):
            before = _blocks_read()
            self._advise(plan)
            self._detector.announced(_blocks_read() - before)


def _blocks_read() -> int:
    """Blocks this thread read from disk plus downloads of remote ranges it started."""
    return resource.getrusage(_HERE).ru_inblock + fetches_started()


class ReadAhead(Generic[Plan]):
    """Plans one after another, those that follow announced while data are cold.

    `next` gives the next plan; `note` must be told what each took, in the same order. A thermometer that is given
    knows what was learned before.

    >>> read_ahead = ReadAhead(iter(["first", "second"]), lambda plan: None)
    >>> while (plan := read_ahead.next()) is not None:
    ...     print(plan)
    ...     read_ahead.note(faults=0)
    first
    second
    >>> read_ahead.close()
    """

    def __init__(
        self,
        plans: Iterator[Plan],
        advise: Callable[[Plan], None],
        depth: int | None = None,
        detector: ColdDataDetector | None = None,
    ) -> None:
        self._plans = plans
        self._depth = DEPTH if depth is None else depth
        self._detector = detector or ColdDataDetector()
        self._ahead = AdviceThread(advise, self._depth + 1, self._detector)
        self._coming: deque[tuple[Plan, bool]] = deque()
        self._under_way: deque[bool] = deque()
        self._given = 0

    def next(self) -> Plan | None:
        """The next plan, or none if there are no more."""
        # As few as may be, and at first none: each plan is as large as the reads before it suggest.
        ahead = min(self._depth, self._given) if self._detector.cold else 0
        while len(self._coming) <= ahead and self._look():
            pass
        if not self._coming:
            return None
        plan, announced = self._coming.popleft()
        if announced:
            self._ahead.hurry(plan)
        self._under_way.append(announced)
        self._given += 1
        return plan

    def _look(self) -> bool:
        """Take one more plan, and announce it if that pays."""
        for plan in self._plans:
            announced = self._depth > 0 and self._detector.cold
            if announced:
                self._ahead.plan(plan)
            self._coming.append((plan, announced))
            return True
        return False

    def note(self, faults: int) -> None:
        """How many major page faults the oldest plan under way had."""
        if not self._under_way.popleft():
            self._detector.read(faults)

    def close(self) -> None:
        """Announce no more."""
        self._ahead.close()
