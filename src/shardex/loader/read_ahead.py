"""Read-ahead for a loader: announces the next reads to the storage, as long as the data is cold.

`ReadAhead` returns plans in order and announces those that follow; `AdviceThread` makes the announcements in a thread;
`ColdDataDetector` detects whether the data is read from disk. On warm data an announcement costs more than the
read (1 us a range, measured), so none is made; on cold data reads are up to 20 times as fast
(`benchmarks/coldread.py`). The caller decides what a plan is and how it is announced.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from shardex.sources import fetches_started

DEPTH = 16
"""Default number of reads announced ahead: enough to keep the disk busy, few enough to stay in memory."""
_IDLE_SECONDS = 1.0
"""Time after which an idle thread ends."""
_MAX_WAIT_SECONDS = 1.0
"""Longest time that a read waits for its own announcement."""
_THIS_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

Plan = TypeVar("Plan")


class ColdDataDetector:
    """Decides whether data is cold, that is read from disk and not from the page cache.

    Data counts as cold until an announcement makes the disk read nothing. If a read that was not announced then has a
    major page fault, the data is cold again, each time for twice as many announcements: some file systems do not count
    their reads, so that data would always look warm.

    >>> detector = ColdDataDetector(); detector.announced(blocks=0); detector.cold, detector.untested
    (False, False)
    >>> detector.read(faults=3); detector.cold
    True
    """

    def __init__(self, longest: int = 1024) -> None:
        self.cold = True
        self.untested = True
        """True if nothing was announced yet."""
        self._longest = longest
        self._period = self._left = 0
        """Number of announcements for which the data counts as cold after a page fault, and how many are left."""

    def announced(self, blocks: int) -> None:
        """Record how many blocks an announcement made the disk read."""
        self.untested = False
        if not blocks and not self._left:
            self.cold = False
        self._left = max(0, self._left - 1)

    def read(self, faults: int) -> None:
        """Record how many major page faults a read had that was not announced."""
        if not faults:
            self._period = max(0, self._period - 1)
        elif not self.cold:
            self._period = self._left = min(2 * self._period + 1, self._longest)
            self.cold = True


class AdviceThread(Generic[Plan]):
    """Calls `advise` with each plan, in order, in a thread. Errors are ignored: the read itself will raise them.

    At most `depth` plans wait; if there are more, the oldest is left out, because its read comes first anyway. `probe`
    announces a few samples of the first plan; the others are announced only if that made the disk read.

    >>> from queue import SimpleQueue
    >>> announced = SimpleQueue(); thread = AdviceThread(announced.put, depth=4)
    >>> thread.plan([7, 3]); announced.get()
    [7, 3]
    >>> thread.close()
    """

    def __init__(
        self,
        advise: Callable[[Plan], None],
        depth: int = DEPTH,
        detector: ColdDataDetector | None = None,
        probe: Callable[[Plan], None] | None = None,
    ) -> None:
        self._advise = advise
        self._probe = probe
        self._depth = depth
        self._detector = detector or ColdDataDetector()
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._wake = threading.Condition()
        self._planned: deque[Plan] = deque(maxlen=self._depth)
        self._current: Plan | None = None
        self._thread: threading.Thread | None = None

    def _reset_after_fork(self) -> None:
        """In a forked process the thread does not exist, and nothing would release a lock that was held."""
        if self._process != os.getpid():
            self._reset()

    def plan(self, plan: Plan) -> None:
        """Announce a read soon, in the thread."""
        self._reset_after_fork()
        with self._wake:
            if self._closed or not self._depth:
                return
            self._planned.append(plan)
            self._wake.notify_all()
            if self._thread is None:
                self._start()

    def ensure_announced(self, plan: Plan) -> None:
        """Wait for the announcement of the oldest plan, or make it here: a read without announcement is slow."""
        self._reset_after_fork()
        with self._wake:
            waiting = bool(self._planned) and self._planned[0] is plan
            if waiting:
                self._planned.popleft()
            self._wake.wait_for(lambda: self._current is not plan, _MAX_WAIT_SECONDS)
        if waiting:
            self.announce(plan)

    def close(self) -> None:
        """Make no more announcements."""
        if sys.is_finalizing():  # the end of the process has stopped the thread where it was, maybe with the lock
            return
        self._reset_after_fork()
        with self._wake:
            self._closed = True
            self._planned.clear()
            self._wake.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="shardex read-ahead", daemon=True)
        with suppress(RuntimeError):  # no more threads: `ensure_announced` makes the announcements
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while (plan := self._next_plan()) is not None:
            self.announce(plan)

    def _next_plan(self) -> Plan | None:
        """Wait for the oldest plan; None ends the thread, and the next plan starts another."""
        with self._wake:
            self._current = None
            self._wake.notify_all()
            while not self._planned:
                if self._closed or not (self._wake.wait(_IDLE_SECONDS) or self._planned):
                    self._thread = None
                    return None
            self._current = self._planned.popleft()
            return self._current

    def announce(self, plan: Plan) -> None:
        """Announce a read now, in the thread of the caller."""
        with suppress(Exception):
            before = _blocks_read()
            probe = self._probe if self._detector.untested else None
            if probe is not None:
                probe(plan)
            if probe is None or _blocks_read() > before:
                self._advise(plan)
            if not self._closed:  # otherwise the detector may serve another loop by now
                self._detector.announced(_blocks_read() - before)


def _blocks_read() -> int:
    """Blocks this thread read from disk plus downloads of remote ranges it started."""
    return resource.getrusage(_THIS_THREAD).ru_inblock + fetches_started()


class ReadAhead(Generic[Plan]):
    """Returns plans in order, and announces those that follow while the data is cold.

    `note` must be called for each plan that `next` returned, in the same order.

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
        probe: Callable[[Plan], None] | None = None,
    ) -> None:
        self._plans = plans
        self._depth = DEPTH if depth is None else depth
        self._detector = detector or ColdDataDetector()
        self._thread = AdviceThread(advise, self._depth + 1, self._detector, probe)
        self._upcoming: deque[tuple[Plan, bool]] = deque()
        self._running: deque[bool] = deque()
        self._returned = 0

    def next(self) -> Plan | None:
        """Return the next plan, None if there are no more."""
        # As few plans as possible, at first none: the size of each plan depends on the reads before it.
        ahead = min(self._depth, self._returned) if self._detector.cold else 0
        while len(self._upcoming) <= ahead and self._take_plan():
            pass
        if not self._upcoming:
            return None
        plan, announced = self._upcoming.popleft()
        if announced:
            self._thread.ensure_announced(plan)
        self._running.append(announced)
        self._returned += 1
        return plan

    def _take_plan(self) -> bool:
        """Take one more plan, and announce it if the data is cold; False if there are no more."""
        for plan in self._plans:
            announced = self._depth > 0 and self._detector.cold
            if announced and self._upcoming:
                self._thread.plan(plan)
            elif announced:  # the plan that is read next: if the data turns out warm, no thread is started
                self._thread.announce(plan)
                announced = self._detector.cold  # warm data may have been probed only
            self._upcoming.append((plan, announced))
            return True
        return False

    def note(self, faults: int) -> None:
        """Record the number of major page faults of the next read, in the order of the plans."""
        if not self._running.popleft():
            self._detector.read(faults)

    def close(self) -> None:
        """Make no more announcements."""
        self._thread.close()
