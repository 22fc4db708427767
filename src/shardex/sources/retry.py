"""Patience: a request is tried until it works, but neither too often nor too long.

Two clocks run. An attempt may take `timeout` seconds, and a request with all its attempts and pauses `deadline`
seconds; both are longer by the time that its bytes take at the slowest speed worth waiting for. So nothing waits
without end, and a server that sends a byte now and then is noticed too.

What a server answered, looked at: is it the file it was, and what does a refusal mean.

Whatever goes wrong in one request becomes `Again`, if another attempt may mend it, or one of our errors. What others
say is cut down to one line and stripped of secrets.
"""

from __future__ import annotations

import errno
import itertools
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from shardex.errors import (
    AccessDeniedError,
    NotFoundError,
    PathError,
    RemoteChangedError,
    RemoteError,
    RemoteReadError,
    ShardexError,
    SourceError,
)
from shardex.sources.credentials import SLOWEST, Settings, scrub
from shardex.sources.protocols import Stat

__all__ = ["UNTAGGED", "Again", "Request", "Traffic", "all_of", "reason", "refusal", "same", "stat_of", "translate"]

_MARKS = {
    "169.254.169.254": "no keys: shardex.storage and the environment name none, and the machine has no role",
    "BadScheme": "http:// is not encrypted and was not allowed; set allow_http=True with shardex.storage",
    "TimedOut": "no answer, or no more of it, in time",
    "ConnectionRefused": "connection refused",
    "ConnectionReset": "the connection was reset",
    "UnexpectedEof": "the answer broke off",
    "IncompleteMessage": "the connection broke off",
    "dns error": "no such host",
    "RangeNotSupported": "all of the file, where a range was asked for",
}
"""What stands in obstore's account of an error, and what it means."""

_WORTH_ANOTHER = {408, 409, 425, 429}


class Again(Exception):
    """A request that failed in a way that another attempt may mend; says what happened."""


def stat_of(size: int, tag: str | None, modified: datetime | None) -> Stat:
    """What the headers of an answer say; without an ETag, time and size must do for one."""
    seconds = modified.timestamp() if modified else 0.0
    return Stat(size, tag or _untagged(size, seconds), seconds)


UNTAGGED = "~"
"""How a tag begins that is made of time and size, because the server gives none."""


def _untagged(size: int, modified: float) -> str:
    return f"{UNTAGGED}{modified:.0f}-{size}"


def same(found: Stat, pinned: Stat, key: str) -> None:
    """Nothing, if two answers speak of the same file.

    >>> same(Stat(5, '"b"', 2.0), Stat(5, '"a"', 1.0), "x.tar")
    Traceback (most recent call last):
    shardex.errors.RemoteChangedError: [Errno ...] expected the file of 5 bytes with the tag "a", ...: 'x.tar'
    """
    untagged = found.tag == _untagged(found.size, found.modified) and found.modified == pinned.modified
    if found.size == pinned.size and (found.tag == pinned.tag or untagged):
        return
    raise RemoteChangedError(
        errno.ESTALE,
        f"expected the file of {pinned.size} bytes with the tag {pinned.tag}, as it was when first looked at, got one "
        f"of {found.size} bytes with the tag {found.tag}; open the dataset again to read the new one",
        key,
    )


def refusal(status: int, text: str, key: str) -> SourceError | Again:
    """What a status of HTTP means: nothing more to hope for, or `Again`."""
    if status in (404, 410):
        return NotFoundError(errno.ENOENT, text, key)
    if status in (401, 403, 407):
        return AccessDeniedError(errno.EACCES, f"{text}; see shardex.storage for keys and tokens", key)
    if 400 <= status < 500 and status not in _WORTH_ANOTHER:
        return RemoteError(errno.EINVAL, text, key)
    return Again(text)


def translate(error: BaseException, key: str) -> SourceError | PathError | Again:
    """An error of obstore in our words."""
    import obstore.exceptions as theirs

    text, status = reason(error), 0
    if found := re.search(r"status code: (\d{3})", str(error)):
        status = int(found[1])
    if isinstance(error, FileNotFoundError):
        status = 404
    if isinstance(error, theirs.PermissionDeniedError | theirs.UnauthenticatedError):
        status = 403
    if isinstance(error, theirs.InvalidPathError):
        return PathError(f"{key}: expected a path that the storage can hold, got: {text}")
    ours = theirs.UnknownConfigurationKeyError | ValueError | TypeError | RuntimeError
    if isinstance(error, ours) or "BadScheme" in str(error):
        return RemoteError(errno.EINVAL, text, key)
    return refusal(status, text, key)


def reason(error: BaseException) -> str:
    """One line of what obstore says, without its insides and without secrets."""
    whole = str(error)
    text = whole.partition("\n\nDebug source:")[0]
    if status := re.search(r"status code: (\d{3}[ A-Za-z]*)", text):
        said = [match[1] for name in ("Code", "Message") if (match := re.search(rf"<{name}>([^<]*)</{name}>", text))]
        return scrub(status[1].strip() + (f" ({': '.join(said)})" if said else ""))
    for mark, meaning in _MARKS.items():
        if mark in whole:
            return meaning
    return scrub(text.splitlines()[0].strip() if text.strip() else type(error).__name__)


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
