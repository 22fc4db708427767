"""Retries and errors of requests to a server.

`run_with_retries` repeats an attempt until it succeeds, its retries are used up or its deadline has passed. An attempt
may take `timeout` seconds, the request with all attempts and pauses `deadline` seconds; both are extended by the time
its bytes take at the minimum speed, so that a very slow server also times out. An attempt that fails raises
`RetryableError` or one of the errors of shardex. Messages of servers and libraries are reduced to one line without
secrets.
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
from typing import TYPE_CHECKING, TypeVar

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
from shardex.sources.credentials import MIN_SPEED, redact
from shardex.sources.protocols import Stat

if TYPE_CHECKING:
    from shardex.sources.object_client import Client

T = TypeVar("T")

WHOLE_FILE = "the whole file instead of the requested range"
"""Reason of a failure: the server may be one without ranges."""
_MOST_WHOLE_FILES = 3
"""Answers with the whole file after which a server counts as one without ranges; a proxy may send one."""
_CAUSES = {
    "169.254.169.254": "no credentials: none in shardex.storage or the environment, and the machine has no role",
    "BadScheme": "http:// is not encrypted and was not allowed; set allow_http=True with shardex.storage",
    "TimedOut": "no complete answer in time",
    "ConnectionRefused": "connection refused",
    "ConnectionReset": "the connection was reset",
    "UnexpectedEof": "the answer broke off",
    "IncompleteMessage": "the connection broke off",
    "dns error": "no such host",
    "RangeNotSupported": WHOLE_FILE,
}
"""Text in error messages of obstore, and the explanation shown instead."""
_RETRYABLE_STATUS = {408, 409, 425, 429}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_TIMEOUT_MARGIN = 0.25
"""Seconds by which our timeout is later than obstore's, whose error has more detail."""


class RetryableError(Exception):
    """An attempt failed, and another attempt may succeed."""


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestCounts:
    """Requests of a source and the bytes it read, retries included."""

    requests: int = 0
    bytes_read: int = 0


async def run_with_retries(
    attempt: Callable[[], Awaitable[T]],
    client: Client,
    counts: RequestCounts,
    doing: str,
    where: str,
    size: int,
    failed: type[RemoteError] = RemoteReadError,
) -> T:
    """Repeat an attempt until it succeeds, or until retries or deadline are used up.

    `size` is the number of bytes that an attempt transfers; `doing` and `where` are for messages.
    """
    import asyncio

    settings, transfer = client.settings, size / MIN_SPEED
    failure: ShardexError
    whole_files = 0
    async with client.slots:
        begin = time.monotonic()
        end = begin + settings.number("deadline") + transfer
        limit = settings.number("timeout") + transfer + _TIMEOUT_MARGIN
        for number in itertools.count(1):
            counts.requests += 1
            try:
                async with asyncio.timeout(min(end - time.monotonic(), limit)):
                    return await attempt()
            except TimeoutError:
                reason = "no answer in time"
            except RetryableError as error:
                reason = str(error)
            except SourceError as error:
                missing = isinstance(error, NotFoundError) and doing == "look at"
                tried = "no such file or folder" if missing else f"cannot {doing}"
                failure = type(error)(error.errno, f"{tried}: {error.strerror}", where)
                break
            # The pause is random, so that requests that failed together are not repeated together.
            pause = random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**number))
            whole_files += reason == WHOLE_FILE
            last = number > settings.number("retries") or whole_files == _MOST_WHOLE_FILES
            if last or time.monotonic() + pause > end:
                took = time.monotonic() - begin
                got = f"got none in {number} attempts and {took:.1f} s, the last was: {reason}"
                remedy = "check the server, or set retries, timeout and deadline with shardex.storage"
                if reason == WHOLE_FILE:
                    remedy = (
                        "this server answers without ranges, as `python -m http.server` does: download the file and "
                        "open the copy, or use a server with ranges"
                    )
                failure = failed(errno.EIO, f"cannot {doing}: expected a valid answer, {got}; {remedy}", where)
                break
            await asyncio.sleep(pause)
    raise failure  # outside of `except`, so that it does not keep the library's error as its context


async def gather_or_cancel(work: Sequence[Awaitable[None]]) -> None:
    """Await all concurrently; when one fails, cancel the others."""
    import asyncio

    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- answers ----------------------------------------------------------------------------------------------------------


NO_ETAG = "~"
"""Prefix of tags made of time and size, because the server sends no ETag."""


def stat_from_headers(size: int, tag: str | None, modified: datetime | None) -> Stat:
    """Return the `Stat` in the headers of a response; without an ETag the tag is made of time and size."""
    seconds = modified.timestamp() if modified else 0.0
    return Stat(size, tag or _tag_without_etag(size, seconds), seconds)


def _tag_without_etag(size: int, modified: float) -> str:
    return f"{NO_ETAG}{modified:.0f}-{size}"


def check_unchanged(found: Stat, pinned: Stat, key: str) -> None:
    """Raise `RemoteChangedError` if a file has changed since its first response.

    >>> check_unchanged(Stat(5, '"b"', 2.0), Stat(5, '"a"', 1.0), "x.tar")
    Traceback (most recent call last):
    shardex.errors.RemoteChangedError: [Errno ...] expected the file of 5 bytes with the tag "a", ...: 'x.tar'
    """
    same_time = found.tag == _tag_without_etag(found.size, found.modified) and found.modified == pinned.modified
    if found.size == pinned.size and (found.tag == pinned.tag or same_time):
        return
    raise RemoteChangedError(
        errno.ESTALE,
        f"expected the file of {pinned.size} bytes with the tag {pinned.tag}, as in the first answer, got one "
        f"of {found.size} bytes with the tag {found.tag}; open the dataset again to read the new one",
        key,
    )


def error_for_status(status: int, text: str, key: str) -> SourceError | RetryableError:
    """Return the error that an HTTP status means."""
    if status in (404, 410):
        return NotFoundError(errno.ENOENT, text, key)
    if status in (401, 403, 407):
        return AccessDeniedError(errno.EACCES, f"{text}; see shardex.storage for keys and tokens", key)
    if (400 <= status < 500 and status not in _RETRYABLE_STATUS) or status == 501:
        return RemoteError(errno.EINVAL, text, key)
    return RetryableError(text)


def translate_error(error: BaseException, key: str) -> SourceError | PathError | RetryableError:
    """Return the shardex error for an error of obstore."""
    import obstore.exceptions as theirs

    text, status = one_line(error), 0
    if found := re.search(r"status code: (\d{3})", str(error)):
        status = int(found[1])
    if isinstance(error, FileNotFoundError) and status != 405:  # also for methods that are not allowed
        status = 404
    if isinstance(error, theirs.PermissionDeniedError | theirs.UnauthenticatedError):
        status = 403
    if isinstance(error, theirs.InvalidPathError):
        return PathError(f"{key}: expected a path that the storage can hold, got: {text}")
    ours = theirs.UnknownConfigurationKeyError | ValueError | TypeError | RuntimeError
    if isinstance(error, ours) or "BadScheme" in str(error):
        return RemoteError(errno.EINVAL, text, key)
    return error_for_status(status, text, key)


def one_line(error: BaseException) -> str:
    """Return the message of an obstore error as one line without internals and secrets."""
    message = str(error)
    text = message.partition("\n\nDebug source:")[0]
    if status := re.search(r"status code: (\d{3}[ A-Za-z]*)", text):
        said = [match[1] for name in ("Code", "Message") if (match := re.search(rf"<{name}>([^<]*)</{name}>", text))]
        return redact(status[1].strip() + (f" ({': '.join(said)})" if said else ""))
    for mark, meaning in _CAUSES.items():
        if mark in message:
            return meaning
    return redact(text.splitlines()[0].strip() if text.strip() else type(error).__name__)
