"""`Stats`: how much a loader has done, how long storage, decoding, transforms and the consumer took, the bottleneck."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from resource import getrusage
from time import perf_counter

import numpy as np

from shardex.kernel import Integers
from shardex.layers import time_in_functions
from shardex.sources import fetches_started

_THIS_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


_QUICK_SECONDS = 0.003
"""Time of a read that counts as quick: 6 MB that are in memory are copied in 0.5 ms."""
_QUICK_READS = 16
"""Reads after a quick one that are measured by the clock alone, as long as they are quick, too."""
_WAITING = 64
"""Batches whose lengths are collected before they are counted, and length of an array that is counted at once."""


@dataclass
class TimeSpent:
    """Seconds spent on making some batches, and the number of pages read from disk in that time."""

    storage: float = 0.0
    """Waiting for bytes: the part of reading in which the thread slept."""
    decode: float = 0.0
    """Copying and decoding: the rest of reading."""
    transform: float = 0.0
    """In `transform` and `collate`, and in functions of `Dataset.map`."""
    faults: int = 0

    def reading(self, *, calls_functions: bool = True, pace: ReadPace | None = None) -> _Reading:
        """Count the time of a `with` block as storage and decoding, but that in functions of `map` as transform.

        With `pace`, some blocks after a quick one count as decoding.
        """
        return (_ReadingWithFunctions if calls_functions else _Reading)(self, pace or ReadPace())

    @contextmanager
    def transforming(self) -> Iterator[None]:
        """Count the time of a `with` block as transform."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.transform += perf_counter() - begin

    def add(self, other: TimeSpent) -> None:
        """Add the numbers of another one."""
        self.storage += other.storage
        self.decode += other.decode
        self.transform += other.transform
        self.faults += other.faults


class ReadPace:
    """Says how many of the next reads of one kind are measured by the clock alone, because one before them was quick.

    Otherwise the system is asked how long the thread slept, and how many pages it read from disk. That takes 3 us after
    a read, which has filled the caches of the processor.
    """

    quick_reads = 0


class _Reading:
    """The context of `TimeSpent.reading`. If the thread neither slept nor read pages from disk, it only decoded."""

    __slots__ = ("_fetches", "_pace", "_spent", "_used", "_wall")

    def __init__(self, spent: TimeSpent, pace: ReadPace) -> None:
        self._spent = spent
        self._pace = pace

    def __enter__(self) -> None:
        self._used = None if self._pace.quick_reads else getrusage(_THIS_THREAD)
        self._fetches, self._wall = fetches_started(), perf_counter()

    def __exit__(self, *_: object) -> None:
        self._count(perf_counter() - self._wall, 0.0)

    def _count(self, wall: float, busy_in_functions: float) -> None:
        """Add the time on the clock, without that in functions."""
        spent, before = self._spent, self._used
        faults, slept = fetches_started() - self._fetches, 0.0
        if before is not None:
            used = getrusage(_THIS_THREAD)
            faults += used.ru_majflt - before.ru_majflt
            if faults or used.ru_nvcsw != before.ru_nvcsw:
                busy = used.ru_utime - before.ru_utime + used.ru_stime - before.ru_stime - busy_in_functions
                slept = max(0.0, wall - busy)
        spent.faults += faults
        spent.storage += slept
        spent.decode += wall - slept
        left = _QUICK_READS if before is not None else self._pace.quick_reads - 1
        self._pace.quick_reads = max(0, left) if wall < _QUICK_SECONDS and not faults else 0


class _ReadingWithFunctions(_Reading):
    """Counts the time of functions of `map` as transform."""

    __slots__ = ("_mapped",)

    def __enter__(self) -> None:
        self._mapped = time_in_functions()
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        wall, mapped = perf_counter() - self._wall, time_in_functions()
        in_functions, busy = mapped[0] - self._mapped[0], mapped[1] - self._mapped[1]
        self._spent.transform += in_functions
        self._count(wall - in_functions, busy)


@dataclass
class Stats:
    """Counts and times of a loader so far, and its bottleneck.

    >>> stats = Stats(samples=1000, batches=10, consumer=1.5, waiting=0.5, spent=TimeSpent(storage=0.4, decode=0.1))
    >>> stats.samples_per_second, stats.bottleneck
    (500.0, 'consumer')
    >>> print(stats)
    1,000 samples in 10 batches, 500 samples/s; consumer 75%, waiting for batches 25%; bottleneck: consumer
    """

    samples: int = 0
    batches: int = 0
    skipped: int = 0
    """Bad samples that were replaced."""
    consumer: float = 0.0
    """Seconds spent in the loop body, the code that uses the batches."""
    waiting: float = 0.0
    """Seconds that the loop waited for batches."""
    starting: float = 0.0
    """Seconds until the first batch of new workers; not counted as waiting."""
    spent: TimeSpent = field(default_factory=TimeSpent)
    """Time spent making the batches, summed over all workers."""
    _counted: list[int] = field(default_factory=lambda: [0, 0], repr=False)
    """Number of tokens and of padded elements in the batches that are not waiting to be counted."""
    _waiting: dict[bool, list[Integers]] = field(default_factory=lambda: {False: [], True: []}, repr=False)
    """Lengths of the rows of batches, by whether they are padded: counting many at once is faster."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second since the first batch was requested."""
        return self.samples / max(1e-9, self.consumer + self.waiting)

    @property
    def tokens(self) -> int:
        """Elements of the field whose rows differ in length: `length_of`, or the first one that is padded or packed."""
        return self._count_waiting()[0]

    @property
    def padding(self) -> int:
        """Elements that pad the rows of this field to the longest row of their batch."""
        return self._count_waiting()[1]

    @property
    def padding_share(self) -> float:
        """Share of padding in all elements, from 0 to 1."""
        return self.padding / max(1, self.tokens + self.padding)

    def add_lengths(self, sizes: Integers, padded: bool) -> None:
        """Count the tokens and the padding of a batch, by the lengths (or shapes) of its rows.

        >>> stats = Stats(); stats.add_lengths(np.array([3, 1]), padded=True)
        >>> stats.tokens, stats.padding, round(stats.padding_share, 2)
        (4, 2, 0.33)
        """
        if sizes.ndim > 1:
            self._counted[0] += (tokens := int(sizes.prod(axis=1).sum()))
            self._counted[1] += len(sizes) * int(sizes.max(axis=0).prod()) - tokens if padded else 0
            return
        waiting = self._waiting[padded]
        waiting.append(sizes)
        if len(waiting) >= _WAITING or len(sizes) >= _WAITING:  # a large array may be memory that a worker needs
            self._count_waiting()

    def _count_waiting(self) -> list[int]:
        for padded, waiting in self._waiting.items():
            if waiting:
                sizes = np.concatenate(waiting)
                self._counted[0] += (tokens := int(sizes.sum()))
                if padded:
                    rows = np.array([len(one) for one in waiting])
                    longest = np.maximum.reduceat(sizes, np.cumsum(rows) - rows)
                    self._counted[1] += int((rows * longest).sum()) - tokens
                waiting.clear()
        return self._counted

    @property
    def bottleneck(self) -> str:
        """Slowest part: "consumer", "storage", "decode" or "transform"; "nothing" before the first batch."""
        if not self.batches:
            return "nothing"
        if self.consumer >= self.waiting:
            return "consumer"
        parts = {"storage": self.spent.storage, "decode": self.spent.decode, "transform": self.spent.transform}
        return max(parts, key=parts.__getitem__)

    def __str__(self) -> str:
        total = max(1e-9, self.consumer + self.waiting)
        tokens = f", {self.tokens:,} tokens" if self.tokens else ""
        padding = f" and {self.padding_share:.1%} padding" if self.padding else ""
        bad = f", {self.skipped:,} bad ones replaced" if self.skipped else ""
        making = self.spent.storage + self.spent.decode + self.spent.transform
        inside = ""
        if self.waiting > self.consumer and making:
            shares = [f"{name} {getattr(self.spent, name) / making:.0%}" for name in ("storage", "decode", "transform")]
            inside = f" (making them: {', '.join(shares)})"
        return (
            f"{self.samples:,} samples in {self.batches:,} batches{tokens}{padding}, "
            f"{self.samples_per_second:,.0f} samples/s{bad}; "
            f"consumer {self.consumer / total:.0%}, waiting for batches {self.waiting / total:.0%}{inside}; "
            f"bottleneck: {self.bottleneck}"
        )
