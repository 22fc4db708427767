"""The tree of errors. Every message says what was expected, what was found, where, and what to do.

::

    ShardexError
    ├── RowError (IndexError)                 a row or position outside the dataset
    ├── FieldError (KeyError)                 a field the dataset does not have
    ├── UnknownKeyError (KeyError)            a key that no sample has
    ├── UnknownSplitError (KeyError, ValueError)  a split that was not found
    ├── DuplicateKeyError (ValueError)        a key that two samples would have
    ├── ArgumentError (TypeError, ValueError) an argument outside what the function accepts
    ├── SchemaError (TypeError, ValueError)   a value, type or annotation that does not fit the schema
    ├── FormatError (ValueError)              bytes that are not what their format promises
    │   ├── UnknownFormatError                nothing recognises what was opened
    │   ├── TruncatedShardError               a file shorter than it was, or than it says it is
    │   ├── ChecksumError                     bytes that changed since they were written
    │   └── RangeError                        a byte range that lies outside its buffer
    ├── StaleIndexError (ValueError)          files that no longer match what was opened
    ├── StateError (ValueError)               a saved place that belongs to another run
    ├── CommitConflict (RuntimeError)         an edit that clashes with what somebody else did meanwhile
    ├── QueryError (ValueError)               SQL that cannot be answered, or that took too long
    ├── LensError (TypeError)                 no lens between two types, several, or one that goes only one way
    │   └── LawError                          a lens whose ways there and back do not belong together
    ├── UnsafeError (ValueError)              data that asks for something we never do
    │   └── PathError                         a path that leaves its folder
    │       └── AddressError                  an URL that is not opened, or not for data that names it
    ├── SourceError (OSError)                 storage that refused
    │   ├── NotFoundError (FileNotFoundError)
    │   │   └── VersionExpired                files of a version that somebody cleaned up while it was open
    │   ├── AlreadyExistsError (FileExistsError)
    │   ├── AccessDeniedError (PermissionError)
    │   ├── StorageFullError
    │   └── RemoteError                       storage elsewhere that failed
    │       ├── RemoteReadError               no good answer in all attempts
    │       ├── RemoteWriteError              the same when writing: it may be there or not
    │       ├── RemoteChangedError            a file that is another than the one first read
    │       ├── ConditionalPutError           storage on which two writers would overwrite each other
    │       └── ForkSafetyError               a forked process cannot go on with its parent's connections
    ├── ClosedError (ValueError)              a writer used after it was closed
    ├── WorkerError (RuntimeError)            a worker process that died, or whose error could not be carried over
    └── MissingExtraError (ImportError)       an optional dependency that is not installed

Each class also inherits the built-in that a caller would expect, so ``except IndexError`` keeps working.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "AccessDeniedError",
    "AddressError",
    "AlreadyExistsError",
    "ArgumentError",
    "ChecksumError",
    "ClosedError",
    "CommitConflict",
    "ConditionalPutError",
    "DuplicateKeyError",
    "FieldError",
    "ForkSafetyError",
    "FormatError",
    "LawError",
    "LensError",
    "MissingExtraError",
    "NotFoundError",
    "PathError",
    "QueryError",
    "RangeError",
    "RemoteChangedError",
    "RemoteError",
    "RemoteReadError",
    "RemoteWriteError",
    "RowError",
    "SchemaError",
    "ShardexError",
    "SourceError",
    "StaleIndexError",
    "StateError",
    "StorageFullError",
    "TruncatedShardError",
    "UnknownFormatError",
    "UnknownKeyError",
    "UnknownSplitError",
    "UnsafeError",
    "VersionExpired",
    "WorkerError",
    "storage_errors",
]


class ShardexError(Exception):
    """Root of all errors raised by shardex."""


class RowError(ShardexError, IndexError):
    """A row or position outside the dataset."""


class FieldError(ShardexError, KeyError):
    """A field the dataset does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownKeyError(ShardexError, KeyError):
    """A key that no sample of the dataset has."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownSplitError(ShardexError, KeyError, ValueError):
    """A split (train, test, ...) that is not among those there are."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ArgumentError(ShardexError, TypeError, ValueError):
    """An argument that the function does not accept: a wrong type, a number out of range, options that clash."""


class SchemaError(ShardexError, TypeError, ValueError):
    """A value, type or annotation that does not fit the schema."""


class FormatError(ShardexError, ValueError):
    """Bytes that are not what their format promises."""


class UnknownFormatError(FormatError):
    """Nothing recognises what was opened."""


class TruncatedShardError(FormatError):
    """A file that is shorter than it was when it was written or indexed."""


class ChecksumError(FormatError):
    """Bytes that changed since they were written."""


class RangeError(FormatError):
    """A byte range that lies outside its buffer."""


class StaleIndexError(ShardexError, ValueError):
    """Files that no longer match what was opened."""


class DuplicateKeyError(ShardexError, ValueError):
    """A key that two samples would have."""


class StateError(ShardexError, ValueError):
    """A saved place in a run that does not belong to this one."""


class CommitConflict(ShardexError, RuntimeError):
    """An edit of what somebody else has changed meanwhile; nothing of it was done."""


class QueryError(ShardexError, ValueError):
    """SQL that cannot be answered, asks for more than the dataset, or took too long."""


class LensError(ShardexError, TypeError):
    """No lens leads from one type to another, several do, or the one that does goes only one way."""


class LawError(LensError):
    """A lens that breaks one of its laws: what it puts is not what it gets."""


class UnsafeError(ShardexError, ValueError):
    """Data that asks for something shardex never does: run code, follow a link, leave its folder."""


class PathError(UnsafeError):
    """A path inside a dataset that leaves the dataset's folder."""


class AddressError(PathError):
    """An URL whose scheme is not opened, or that data may not send us to."""


class SourceError(ShardexError, OSError):
    """Storage that refused."""


class NotFoundError(SourceError, FileNotFoundError):
    """No such file or folder."""


class VersionExpired(NotFoundError):
    """Files of a version that somebody cleaned up while it was open."""


class AlreadyExistsError(SourceError, FileExistsError):
    """Something is there already, and it was not asked to be replaced."""


class AccessDeniedError(SourceError, PermissionError):
    """The storage does not let us read or write here."""


class StorageFullError(SourceError):
    """No room left where we write."""


class RemoteError(SourceError):
    """Storage elsewhere that failed, or that cannot do what was asked."""


class RemoteReadError(RemoteError):
    """No good answer in all attempts, or not before the deadline."""


class RemoteWriteError(RemoteError):
    """No good answer to a write in all attempts; what was written may be there or not."""


class RemoteChangedError(RemoteError):
    """A file that is another than the one this source first saw."""


class ConditionalPutError(RemoteError):
    """Storage that ignores conditions: of two who create the same file both would think they did."""


class ForkSafetyError(RemoteError):
    """Remote storage used in a forked process whose parent used it: that would hang for ever."""


class ClosedError(ShardexError, ValueError):
    """A writer used after it was closed."""


class WorkerError(ShardexError, RuntimeError):
    """A worker process that died, or whose error could not be carried over."""


class MissingExtraError(ShardexError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'shardex[{extra}]'")
        self._given = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return MissingExtraError, self._given


_BY_ERRNO: dict[int, type[SourceError]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.ENOTEMPTY: AlreadyExistsError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
    errno.ENOSPC: StorageFullError,
    errno.EDQUOT: StorageFullError,
    errno.EFBIG: StorageFullError,
}


@contextmanager
def storage_errors(path: object, doing: str) -> Iterator[None]:
    """Translate the operating system's errors into ours, at the one place where they are met.

    >>> with storage_errors("/nowhere", "read"):
    ...     raise FileNotFoundError(2, "No such file or directory")
    Traceback (most recent call last):
    shardex.errors.NotFoundError: [Errno 2] cannot read: No such file or directory: '/nowhere'
    """
    try:
        yield
    except SourceError:
        raise
    except OSError as error:
        code = error.errno or errno.EIO
        kind = _BY_ERRNO.get(code, SourceError)
        raise kind(code, f"cannot {doing}: {error.strerror or error}", str(path)) from error
