"""Files in a local folder: mapped or read by ranges, written durably.

No file stays open: a mapping outlives its descriptor, a ranged read opens and closes. So `ulimit -n` does not limit
the number of shards (the system's number of mappings does: 65 530 by default on Linux), and nothing is shared with a
forked child but read-only pages.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import secrets
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, BinaryIO

from shardex.errors import TruncatedShardError, storage_errors
from shardex.sources.byte_ranges import ByteRange, plan
from shardex.sources.protocols import Place, Stat, check_path

__all__ = ["LocalSource", "libc", "make_folder", "sync_folder"]

_SYNC_FILE_RANGE_WRITE = 2
_WRITE_ON = 2 << 20
_BUFFER = 64 << 10
_GAP = 16 << 10
_LARGEST = 8 << 20


class LocalSource(Place):
    """A folder; source and sink.

    >>> import tempfile; place = LocalSource(tempfile.mkdtemp())
    >>> place.put("a/b.bin", b"0123456789")
    >>> place.paths(), bytes(place.read("a/b.bin", [ByteRange(2, 3)])[0]), bytes(place.map("a/b.bin"))
    (['a/b.bin'], b'234', b'0123456789')
    >>> place.put_if_absent("a/b.bin", b"other")
    False
    """

    is_remote = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"LocalSource({self.root!r})"

    @property
    def url(self) -> str:
        """The folder's path."""
        return self.root

    def path(self, path: str) -> str:
        """Where a file of this source lies on disk."""
        return os.path.join(self.root, check_path(path))

    def stat(self, path: str) -> Stat:
        """Size and modification time."""
        with storage_errors(full := self.path(path), "look at"):
            found = os.stat(full)
        return Stat(found.st_size, str(found.st_mtime_ns), found.st_mtime)

    def paths(self, prefix: str = "") -> list[str]:
        """Every file below, at any depth; none where there is no folder."""
        found = []
        start = os.path.join(self.root, prefix.rpartition("/")[0])
        with storage_errors(self.root, "list"):
            for folder, _, names in os.walk(start, onerror=_unless_gone):
                relative = os.path.relpath(folder, self.root).replace(os.sep, "/")
                found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(path for path in found if path.startswith(prefix))

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read ranges with as few system calls as their distances allow."""
        full = self.path(path)
        out: list[memoryview] = [memoryview(b"")] * len(ranges)
        with storage_errors(full, "read"), open(full, "rb", buffering=0) as file:
            for step in plan(ranges, gap=_GAP, largest=_LARGEST):
                data = memoryview(_pread(file.fileno(), step.range, full))
                for number in step.wanted:
                    begin = ranges[number].begin - step.range.begin
                    out[number] = data[begin : begin + ranges[number].length]
        return out

    def map(self, path: str) -> memoryview:
        """Map a file; the mapping lives as long as the view does."""
        full = self.path(path)
        with storage_errors(full, "map"), open(full, "rb", buffering=0) as file:
            return _map(file.fileno(), os.fstat(file.fileno()).st_size)

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        """Give the path of the file."""
        yield self.path(path)

    def put(self, path: str, data: Any) -> None:
        """Write, sync and rename, so that a reader or a crash sees the old file or the new one."""
        self._put(path, data, replace=True)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Write, sync and link: the link fails if the name is taken."""
        return self._put(path, data, replace=False)

    def _put(self, path: str, data: Any, *, replace: bool) -> bool:
        full = self.path(path)
        draft = self.draft()
        try:
            with storage_errors(full, "write"):
                draft.file.write(data)
                draft.close(memoryview(data).nbytes)
            return draft.finish(path, replace=replace)
        finally:
            draft.discard()

    def draft(self) -> LocalDraft:
        """A temporary file in the folder itself: publishing it is a rename."""
        return LocalDraft(self)

    def touch(self, path: str) -> None:
        """Set the time of a file to now."""
        with storage_errors(full := self.path(path), "touch"):
            os.utime(full)

    def remove(self, path: str) -> None:
        """Delete a file."""
        with storage_errors(full := self.path(path), "remove"):
            os.unlink(full)
            sync_folder(os.path.dirname(full))

    def remove_empty_folders(self, *folders: str) -> None:
        """Remove these folders and then the root if they are empty."""
        for folder in (*folders, ""):
            with suppress(OSError):  # not empty, or it does not exist
                os.rmdir(os.path.join(self.root, folder))


class LocalDraft:
    """A temporary file that becomes visible by `publish`."""

    def __init__(self, place: LocalSource) -> None:
        self._place = place
        self._path = os.path.join(place.root, f".{secrets.token_hex(8)}.tmp")
        with storage_errors(self._path, "create"):
            make_folder(place.root)
            self._file = io.BufferedWriter(_Steady(self._path, "x"), _BUFFER)

    @property
    def file(self) -> BinaryIO:
        """Write here."""
        return self._file

    def close(self, size: int | None = None) -> None:
        """Have all of it on the disk; an error if that is another number of bytes than were given."""
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        found = os.fstat(self._file.fileno()).st_size
        self._file.close()
        if size is not None and found != size:
            raise OSError(errno.EIO, f"expected {size} bytes on the disk, got {found}")

    def publish(self, path: str) -> None:
        """Sync the file, rename it, sync the folder."""
        with storage_errors(self._path, "touch"):
            os.utime(self._path)  # it may have waited for hours, and what is old and not yet named `clean` removes
        self.finish(path, replace=True)

    def finish(self, path: str, *, replace: bool) -> bool:
        """Publish; with ``replace=False`` only if the name is free, and say whether it was."""
        full = self._place.path(path)
        with storage_errors(full, "write"):
            self.close()
            make_folder(os.path.dirname(full))
            if replace:
                os.replace(self._path, full)
            else:
                try:
                    os.link(self._path, full)
                except FileExistsError:
                    return False
                self.discard()
        with storage_errors(full, "be sure that a power cut spares it, though it is there"):
            sync_folder(os.path.dirname(full))
        return True

    def discard(self) -> None:
        """Remove the temporary file; if the storage refuses that too, it stays, and harms nobody."""
        with suppress(OSError):  # closing writes what is still buffered, and there may be no room for it
            self._file.close()
        with suppress(OSError):
            os.unlink(self._path)


class _Steady(io.FileIO):
    """A new file that the system begins to write while there is more to come, so that the end has less to wait for."""

    _new = 0

    def write(self, data: Any) -> int:
        """Give bytes to the system, and now and then have it write what it was given."""
        count = super().write(data)
        self._new += count
        if self._new >= _WRITE_ON and os.name == "posix" and hasattr(libc(), "sync_file_range"):
            libc().sync_file_range(self.fileno(), 0, 0, _SYNC_FILE_RANGE_WRITE)
            self._new = 0
        return count


def _pread(descriptor: int, wanted: ByteRange, full: str) -> bytes:
    if wanted.end > (size := os.fstat(descriptor).st_size):
        raise TruncatedShardError(f"{full}: expected bytes {wanted.begin} to {wanted.end}, got a file of {size} bytes")
    parts, at = [], wanted.begin
    while at < wanted.end:
        part = os.pread(descriptor, wanted.end - at, at)
        if not part:
            raise TruncatedShardError(f"{full}: expected bytes up to {wanted.end}, the file ended at {at}")
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def make_folder(folder: str) -> None:
    """Create a folder, and those above it that are not there, so that they outlive a crash."""
    if not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        make_folder(parent)
        with suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _map(descriptor: int, size: int) -> memoryview:
    """Map without keeping the descriptor: what `mmap.mmap(trackfd=False)` does from Python 3.13 on."""
    if size == 0:
        return memoryview(b"")
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False))
    if os.name != "posix":
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    address = libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    block = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: other objects may still look at the pages then, and the process returns them anyway.
    weakref.finalize(block, libc().munmap, address, size).atexit = False
    return memoryview(block).cast("B").toreadonly()


@cache
def libc() -> Any:
    """The C library, with the types of the calls that we make; Python's own `mmap` keeps descriptors open."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if hasattr(libc, "sync_file_range"):
        libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return libc
