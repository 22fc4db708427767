"""Keep a cold disk busy: announce what is read next to the storage, as long as that pays.

`Thermometer` tells by page faults whether data comes from the disk, `ReadAhead` gives advice in a thread of its own,
and `Foresight` does both for a loader: it hands out plans in their order and announces those that follow. On warm data
advice is dearer than the reads it is for (1 us for each range, measured), so there is none; on cold data it reads 3 to
20 times as fast (`benchmarks/coldread.py`). What a plan is and how it is announced is left to others.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["DEPTH", "Foresight", "ReadAhead", "Thermometer"]

DEPTH = 16
"""How many reads are announced ahead where nobody says: a few keep the disk busy, and all fit into memory."""
_IDLE = 1.0
"""Seconds after which a thread that has nothing to do ends."""

Plan = TypeVar("Plan")


class Thermometer:
    """Whether reads wait for the disk, by the major page faults of those that were not announced.

    One that was announced has none, cold or not. So now and then one is left unannounced, as a probe: after `first`
    reads, then after twice as many each time, up to `most`, because a probe that is cold takes as long as ten reads.

    >>> thermometer = Thermometer(first=2); thermometer.wanted()
    False
    >>> thermometer.note(faults=9, announced=False); [thermometer.wanted() for _ in range(4)]
    [True, True, False, True]
    >>> thermometer.note(faults=0, announced=False); thermometer.wanted()
    False
    """

    def __init__(self, first: int = 64, most: int = 1024) -> None:
        self.cold = False
        """Whether the last read that could tell came from the disk."""
        self._first, self._most = first, most
        self._left = self._span = first

    def wanted(self) -> bool:
        """Whether to announce the read that is planned now."""
        if self.cold and not self._left:
            self._left = self._span = min(2 * self._span, self._most)
            return False
        self._left -= self.cold
        return self.cold

    def note(self, faults: int, announced: bool) -> None:
        """Learn from a read that was made."""
        if faults and not self.cold:
            self.cold, self._left, self._span = True, self._first, self._first
        elif not faults and not announced:
            self.cold = False


class ReadAhead(Generic[Plan]):
    """Calls `advise` with what is planned, in order, in a thread of its own. Errors are left for the read to meet.

    At most `depth` plans wait; when there are more, the oldest is left out, because its read comes first.

    >>> from queue import SimpleQueue
    >>> told = SimpleQueue(); ahead = ReadAhead(told.put, depth=4)
    >>> ahead.plan([7, 3]); told.get()
    [7, 3]
    >>> ahead.close()
    """

    def __init__(self, advise: Callable[[Plan], None], depth: int = DEPTH) -> None:
        self._advise = advise
        self._depth = depth
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        # A fork copies neither the thread nor the promise that somebody will release the lock.
        self._process = os.getpid()
        self._wake = threading.Condition()
        self._planned: deque[Plan] = deque(maxlen=self._depth)
        self._thread: threading.Thread | None = None

    def plan(self, plan: Plan) -> None:
        """Have this read announced soon."""
        if self._process != os.getpid():
            self._begin()
        with self._wake:
            if self._closed or not self._depth:
                return
            self._planned.append(plan)
            self._wake.notify()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="shardex read-ahead", daemon=True)
        with suppress(RuntimeError):  # no room for a thread: then there is no advice
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while (plan := self._take()) is not None:
            with suppress(Exception):
                self._advise(plan)

    def _take(self) -> Plan | None:
        """The oldest plan; without one the thread ends, and another is started when there is one."""
        with self._wake:
            while not self._planned:
                if self._closed or not (self._wake.wait(_IDLE) or self._planned):
                    self._thread = None
                    return None
            return self._planned.popleft()

    def hurry(self, plan: Plan) -> None:
        """Announce the oldest plan here and now, if it still waits: a read that comes before its advice is slow."""
        with self._wake:
            if not self._planned or self._planned[0] is not plan:
                return
            self._planned.popleft()
        with suppress(Exception):
            self._advise(plan)

    def close(self) -> None:
        """Announce no more."""
        if self._process != os.getpid():
            self._begin()
        with self._wake:
            self._closed = True
            self._planned.clear()
            self._wake.notify()


class Foresight(Generic[Plan]):
    """Plans one after another, those that follow announced while they are cold.

    `next` gives the next plan; `note` must be told what each took, in the same order. A thermometer that is given
    remembers what was learned before.

    >>> from queue import SimpleQueue
    >>> told = SimpleQueue(); foresight = Foresight(iter("abcdef"), told.put, depth=2)
    >>> foresight.next(); foresight.note(faults=7)
    'a'
    >>> foresight.next(), told.get(), told.get(), told.get()
    ('b', 'b', 'c', 'd')
    >>> foresight.close()
    """

    def __init__(
        self,
        plans: Iterator[Plan],
        advise: Callable[[Plan], None],
        depth: int | None = None,
        thermometer: Thermometer | None = None,
    ) -> None:
        self._plans = plans
        self._depth = DEPTH if depth is None else depth
        self._ahead = ReadAhead(advise, self._depth + 1)
        self._thermometer = thermometer or Thermometer()
        self._coming: deque[tuple[Plan, bool]] = deque()
        self._under_way: deque[bool] = deque()

    def next(self) -> Plan | None:
        """The next plan, or none if there are no more."""
        # Plans are made as late as may be, because each is as large as the reads before it suggest.
        ahead = self._depth if self._thermometer.cold else 0
        while len(self._coming) <= ahead and self._look():
            pass
        if not self._coming:
            return None
        plan, announced = self._coming.popleft()
        if announced:
            self._ahead.hurry(plan)
        self._under_way.append(announced)
        return plan

    def _look(self) -> bool:
        """Take one more plan, and announce it if that pays."""
        for plan in self._plans:
            announced = self._depth > 0 and self._thermometer.wanted()
            if announced:
                self._ahead.plan(plan)
            self._coming.append((plan, announced))
            return True
        return False

    def note(self, faults: int) -> None:
        """How many major page faults the oldest plan under way had."""
        self._thermometer.note(faults, self._under_way.popleft())

    def close(self) -> None:
        """Announce no more."""
        self._ahead.close()
