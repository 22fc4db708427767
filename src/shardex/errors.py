"""All errors that shardex raises. Each message says what was expected, what was found, where, and what to do.

::

    ShardexError
    ├── RowError (IndexError)                 a row or position outside the dataset
    ├── FieldError (KeyError)                 a field that the dataset does not have
    ├── UnknownKeyError (KeyError)            a key that no sample has
    ├── CatalogError (KeyError)               a name, version or tag that a catalog does not have
    ├── UnknownSplitError (KeyError, ValueError)  a split (train, test, ...) that the data does not have
    ├── DuplicateKeyError (ValueError)        the same key for two samples
    ├── ArgumentError (TypeError, ValueError) an argument that the function does not accept
    ├── SchemaError (TypeError, ValueError)   a value, type or annotation that does not fit the schema
    ├── FormatError (ValueError)              bytes that are not valid in their format
    │   ├── UnknownFormatError                no format recognises the files
    │   ├── TruncatedShardError               a file shorter than its header or index says
    │   ├── ChecksumError                     bytes that changed since they were written
    │   └── RangeError                        a byte range outside its buffer
    ├── StaleIndexError (ValueError)          files that changed since they were opened or indexed
    ├── CacheChangedError (ValueError)        a cache of another generator or of other fields
    ├── StateError (ValueError)               a saved loader state that belongs to another run
    ├── CommitConflict (RuntimeError)         an edit that conflicts with a concurrent commit
    ├── ConflictError (RuntimeError)          a name in a catalog that another put was faster to change
    ├── QueryError (ValueError)               SQL that is invalid, not allowed, or took too long
    ├── LensError (TypeError)                 no lens between two types, several, or one without a putter
    │   └── LawError                          a lens whose getter and putter contradict each other
    ├── UnsafeError (ValueError)              data that asks for something shardex never does
    │   └── PathError                         a path that leaves its folder
    │       └── AddressError                  a URL that is not supported, or not allowed for untrusted data
    ├── SourceError (OSError)                 a storage operation that failed
    │   ├── NotFoundError (FileNotFoundError)
    │   │   └── VersionExpired                files of a version that `clean` removed while it was open
    │   ├── AlreadyExistsError (FileExistsError)
    │   ├── AccessDeniedError (PermissionError)
    │   ├── StorageFullError
    │   └── RemoteError                       a remote storage operation that failed
    │       ├── RemoteReadError               a read that failed in all attempts
    │       ├── RemoteWriteError              a write that failed in all attempts; its outcome is unknown
    │       ├── RemoteChangedError            a file that was replaced after it was first read
    │       ├── ConditionalPutError           storage without conditional puts, where two writers would overwrite
    │       └── ForkSafetyError               remote storage used in a forked child process
    ├── ClosedError (ValueError)              a writer or loader used after `close`
    ├── WorkerError (RuntimeError)            a worker process that died, or an error that cannot be unpickled
    ├── PluginError (ImportError)             a package that adds something to shardex and cannot be used
    ├── MissingExtraError (ImportError)       an optional dependency that is not installed
    └── UnsupportedPlatformError (ImportError)  Windows, a big-endian machine, or Python of 32 bits

Each class also inherits the built-in exception that a caller would expect, so ``except IndexError`` works.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = [
    "AccessDeniedError",
    "AddressError",
    "AlreadyExistsError",
    "ArgumentError",
    "CacheChangedError",
    "CatalogError",
    "ChecksumError",
    "ClosedError",
    "CommitConflict",
    "ConditionalPutError",
    "ConflictError",
    "DuplicateKeyError",
    "FieldError",
    "ForkSafetyError",
    "FormatError",
    "LawError",
    "LensError",
    "MissingExtraError",
    "NotFoundError",
    "PathError",
    "PluginError",
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
    "UnsupportedPlatformError",
    "VersionExpired",
    "WorkerError",
    "nearest",
    "storage_errors",
    "unknown_field",
    "with_next_step",
]

_Error = TypeVar("_Error", bound=Exception)


class ShardexError(Exception):
    """Root of all errors raised by shardex."""


class RowError(ShardexError, IndexError):
    """A row or position outside the dataset."""


class FieldError(ShardexError, KeyError):
    """A field that the dataset does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownKeyError(ShardexError, KeyError):
    """A key that no sample of the dataset has."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CatalogError(ShardexError, KeyError):
    """A name, a version or a tag that a catalog does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownSplitError(ShardexError, KeyError, ValueError):
    """A split (train, test, ...) that the data does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ArgumentError(ShardexError, TypeError, ValueError):
    """An argument that the function does not accept: a wrong type, a number out of range, contradictory options."""


class SchemaError(ShardexError, TypeError, ValueError):
    """A value, type or annotation that does not fit the schema."""


class FormatError(ShardexError, ValueError):
    """Bytes that are not valid in their format."""


class UnknownFormatError(FormatError):
    """No format recognises the files."""


class TruncatedShardError(FormatError):
    """A file shorter than its header, manifest or index says."""


class ChecksumError(FormatError):
    """Bytes that changed since they were written."""


class RangeError(FormatError):
    """A byte range outside its buffer."""


class StaleIndexError(ShardexError, ValueError):
    """Files that changed since they were opened or indexed."""


class DuplicateKeyError(ShardexError, ValueError):
    """The same key for two samples."""


class CacheChangedError(ShardexError, ValueError):
    """A cache that another generator has made, or that has other fields, and that was not to be made again."""


class StateError(ShardexError, ValueError):
    """A saved loader state that belongs to another run."""


class CommitConflict(ShardexError, RuntimeError):
    """An edit of rows or fields that a concurrent commit changed; none of the edit was applied."""


class ConflictError(ShardexError, RuntimeError):
    """A name in a catalog whose newest version is not the expected one; nothing was changed."""


class QueryError(ShardexError, ValueError):
    """SQL that is invalid, reads anything but the dataset, or took too long."""


class LensError(ShardexError, TypeError):
    """No lens between two types, several shortest paths, or a lens without a putter where one is needed."""


class LawError(LensError):
    """A lens whose getter and putter contradict each other."""


class UnsafeError(ShardexError, ValueError):
    """Data that asks for something shardex never does: run code, follow a link, leave its folder."""


class PathError(UnsafeError):
    """A path inside a dataset that leaves the dataset's folder."""


class AddressError(PathError):
    """A URL with an unsupported scheme, or one that untrusted data may not name."""


class SourceError(ShardexError, OSError):
    """A storage operation that failed."""


class NotFoundError(SourceError, FileNotFoundError):
    """No such file or folder."""


class VersionExpired(NotFoundError):
    """Files of a dataset version that `clean` removed while it was open."""


class AlreadyExistsError(SourceError, FileExistsError):
    """The target exists, and replacing it was not requested."""


class AccessDeniedError(SourceError, PermissionError):
    """The storage denies reading or writing here."""


class StorageFullError(SourceError):
    """No space left in the target storage."""


class RemoteError(SourceError):
    """A remote storage operation that failed or is not supported."""


class RemoteReadError(RemoteError):
    """A read that failed in all attempts, or passed its deadline."""


class RemoteWriteError(RemoteError):
    """A write that failed in all attempts; the file may or may not have been written."""


class RemoteChangedError(RemoteError):
    """A file that was replaced after this source first read it."""


class ConditionalPutError(RemoteError):
    """Storage that ignores conditional puts: two writers of the same file would both succeed."""


class ForkSafetyError(RemoteError):
    """Remote storage used in a forked child whose parent used it too, which would hang."""


class ClosedError(ShardexError, ValueError):
    """A writer or loader used after `close`."""


class WorkerError(ShardexError, RuntimeError):
    """A worker process that died, or that raised an error which cannot be unpickled here."""


class PluginError(ShardexError, ImportError):
    """What an installed package adds to shardex by an entry point cannot be used."""


class MissingExtraError(ShardexError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'shardex[{extra}]'")
        self._arguments = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return MissingExtraError, self._arguments


class UnsupportedPlatformError(ShardexError, ImportError):
    """A system on which shardex does not run; the message says what to use."""


def nearest(name: object, known: Iterable[object]) -> str:
    """Return a hint with the known name that a misspelt one is nearest to; empty if none is near.

    >>> nearest("batchsize", ["batch_size", "seed"]), nearest("x", ["seed"])
    (": did you mean 'batch_size'?", '')
    """
    texts = [one for one in known if isinstance(one, str)]
    by_lower = {one.lower(): one for one in texts}
    found = difflib.get_close_matches(str(name).lower(), by_lower, 1)
    return f": did you mean {by_lower[found[0]]!r}?" if found else ""


def unknown_field(name: object, known: Iterable[object], advice: str = "") -> FieldError:
    """Return the error for a field that is not there: the fields that are, the nearest one, and advice.

    >>> print(unknown_field("nam", ["x", "name"]))
    expected one of the fields x, name, got 'nam': did you mean 'name'?
    """
    names = list(known)
    listed = ", ".join(map(str, names)) or "(there are none)"
    return FieldError(f"expected one of the fields {listed}, got {name!r}{nearest(name, names)}{advice}")


def with_next_step(error: _Error, folder: str) -> _Error:
    """Return the error for damage in a native dataset with a note that says how to go on.

    >>> print(*with_next_step(ChecksumError("other bytes"), "data/d").__notes__)
    sx.verify("data/d") lists all damage; sx.recover("data/d", target) copies the samples that are intact
    """
    error.add_note(
        f'sx.verify("{folder}") lists all damage; sx.recover("{folder}", target) copies the samples that are intact'
    )
    return error


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
    """Turn an `OSError` raised in the block into a `SourceError` that names the path and the operation.

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
