"""What a server answered, looked at: is it the file it was, and what does a refusal mean.

Whatever goes wrong in one request becomes `Again`, if another attempt may mend it, or one of our errors. What others
say is cut down to one line and stripped of secrets.
"""

from __future__ import annotations

import errno
import re
from datetime import datetime

from shardex.errors import AccessDeniedError, NotFoundError, PathError, RemoteChangedError, RemoteError, SourceError
from shardex.sources.credentials import scrub
from shardex.sources.protocols import Stat

__all__ = ["UNTAGGED", "Again", "reason", "refusal", "same", "stat_of", "translate"]

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
