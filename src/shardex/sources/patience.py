"""Patience: a request is tried until it works, but neither too often nor too long.

Two clocks run. An attempt may take `timeout` seconds, and a request with all its attempts and pauses `deadline`
seconds; both are longer by the time that its bytes take at the slowest speed worth waiting for. So nothing waits
without end, and a server that sends a byte now and then is noticed too.
"""

from __future__ import annotations

import errno
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardex.errors import RemoteError, RemoteReadError, ShardexError, SourceError
from shardex.sources.answers import Again
from shardex.sources.credentials import SLOWEST, Settings

__all__ = ["Request", "Traffic", "all_of"]

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LATER = 0.25
"""Our clock is behind the library's, which can say more about what it waited for."""


@dataclass(slots=True)
class Traffic:
    """What a source has asked of its server, retries included."""

    requests: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Something to ask of a server, and how to say that it failed."""

    doing: str
    where: str
    size: int = 0
    failed: type[RemoteError] = RemoteReadError

    async def patiently(self, once: Callable[[], Awaitable[T]], settings: Settings, traffic: Traffic) -> T:
        """Try until it works, or until retries or deadline are used up."""
        import asyncio

        longer = self.size / SLOWEST
        begin = time.monotonic()
        end = begin + settings.number("deadline") + longer
        for attempt in itertools.count(1):
            traffic.requests += 1
            try:
                async with asyncio.timeout(min(end - time.monotonic(), settings.number("timeout") + longer + _LATER)):
                    return await once()
            except TimeoutError:
                reason = "no answer in time"
            except Again as error:
                reason = str(error)
            except ShardexError as error:
                failure = self._named(error)
                break
            # A part of the pause is chance, so that many who failed together do not come back together.
            pause = random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))
            if attempt > settings.number("retries") or time.monotonic() + pause > end:
                failure = self._given_up(attempt, time.monotonic() - begin, reason)
                break
            await asyncio.sleep(pause)
        raise failure  # here, where no error of others is being handled that would hang on to it

    def _named(self, error: ShardexError) -> ShardexError:
        """The same error with the file's whole address."""
        if isinstance(error, SourceError):
            return type(error)(error.errno, f"cannot {self.doing}: {error.strerror}", self.where)
        return error

    def _given_up(self, attempts: int, took: float, reason: str) -> RemoteError:
        return self.failed(
            errno.EIO,
            f"cannot {self.doing}: expected an answer, got none that is good in {attempts} attempts and {took:.1f} s, "
            f"the last was: {reason}; check the server, or set retries, timeout and deadline with shardex.storage",
            self.where,
        )


async def all_of(work: Sequence[Awaitable[None]]) -> None:
    """Do all at once; when one fails, the others are called off."""
    import asyncio

    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
