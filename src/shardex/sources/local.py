"""Files in a local folder: mapped or read by ranges, written durably.

No file stays open: a mapping outlives its descriptor, and a ranged read opens and closes the file. So `ulimit -n` does
not limit the number of shards (the number of mappings of the system does: 65 530 by default on Linux), and a forked
child shares nothing but read-only pages.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import mmap
import os
import secrets
import shutil
import stat
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache
from typing import Any, BinaryIO

from shardex.errors import PathError, TruncatedShardError, storage_errors
from shardex.sources.byte_ranges import ByteRange, read_merged
from shardex.sources.io_threads import run_all
from shardex.sources.protocols import Place, RootKind, Stat, check_path, check_unchanged_file

_SYNC_FILE_RANGE_WRITE = 2
_WRITEBACK_EVERY = 2 << 20
_BUFFER = 64 << 10
_GAP = 16 << 10
_LARGEST_READ = 8 << 20
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_READERS = 16
"""Threads that read files at the same time."""
_TRIED, _WAITED = 4, 0.001
"""Files that are read before the others, and seconds for each of them from which on threads read the others."""
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of a link that a copy does not have."""
_FIXED = 0x10
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: True, "a device"),
)
_IN_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE


class LocalSource(Place):
    """Files in a local folder.

    >>> import tempfile; place = LocalSource(tempfile.mkdtemp())
    >>> place.put("a/b.bin", b"0123456789")
    >>> place.paths(), bytes(place.read("a/b.bin", [ByteRange(2, 3)])[0]), bytes(place.map("a/b.bin"))
    (['a/b.bin'], b'234', b'0123456789')
    >>> place.put_if_absent("a/b.bin", b"other")
    False
    """

    is_remote = False

    _real_root: str | None = None
    """The root without links, if files must be inside of it."""
    _contained: dict[str, tuple[int, int]]
    """Folders that were found to be inside of it, with their device and inode."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.url = self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"LocalSource({self.root!r})"

    def path(self, path: str) -> str:
        """Return the absolute path of a file."""
        full = os.path.join(self.root, check_path(path))
        if self._real_root is not None:
            self._check_contained(full)
        return full

    def _check_contained(self, full: str) -> None:
        """Raise if a file is outside of the folder. Links are followed once for each folder, unless it is replaced."""
        assert self._real_root is not None
        folder = os.path.dirname(full)
        identity = _identity(folder)
        if identity is not None and self._contained.get(folder) == identity and not os.path.islink(full):
            return
        if not (real := os.path.realpath(full)).startswith(self._real_root):
            raise PathError(
                f"{full}: expected a file inside the dataset's folder, got a link to {real}; if you trust the dataset, "
                "open it with trust_paths=True"
            )
        if identity is not None and os.path.join(os.path.realpath(folder), "").startswith(self._real_root):
            self._contained[folder] = identity

    def contained(self) -> LocalSource:
        """Return this folder as a source that refuses links to files outside of it."""
        source = copy(self)
        source._real_root = os.path.join(os.path.realpath(self.root), "")
        source._contained = {}
        return source

    def root_kind(self) -> RootKind:
        """Return whether the folder is there, or a file in its place."""
        return "folder" if os.path.isdir(self.root) else "file" if os.path.exists(self.root) else "missing"

    def is_empty(self) -> bool:
        """Return True if nothing is there, or a folder without content."""
        with storage_errors(self.root, "list"):
            return not os.path.exists(self.root) or (os.path.isdir(self.root) and not os.listdir(self.root))

    def names(self, prefix: str = "") -> set[str]:
        """Return the names in a folder; none if it does not exist."""
        folder, _, begin = prefix.rpartition("/")
        with storage_errors(full := os.path.join(self.root, folder), "list"):
            try:
                return {name for name in os.listdir(full) if name.startswith(begin)}
            except FileNotFoundError:
                return set()

    def stat(self, path: str) -> Stat:
        """Return size and modification time; the time is the tag."""
        with storage_errors(full := self.path(path), "look at"):
            _check_regular((found := os.stat(full)).st_mode)
        return _stat_of(found)

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of all files at any depth; none if the folder does not exist."""
        found = []
        start = os.path.join(self.root, prefix.rpartition("/")[0])
        with storage_errors(self.root, "list"):
            for folder, _, names in os.walk(start, onerror=_ignore_missing):
                relative = os.path.relpath(folder, self.root).replace(os.sep, "/")
                found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(path for path in found if path.startswith(prefix))

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read ranges; close ones share a system call."""
        full = self.path(path)

        def read(parts: Sequence[ByteRange]) -> list[memoryview]:
            return [memoryview(_pread(descriptor, part, full)) for part in parts]

        with storage_errors(full, "read"), open_regular(full) as descriptor:
            return read_merged(ranges, read, gap=_GAP, largest=_LARGEST_READ)

    def load_all(self, paths: Sequence[str], known: Sequence[Stat]) -> list[bytes]:
        """Read whole files; in threads if the first ones had to wait for the disk or the network."""

        def load(some: range) -> list[bytes]:
            return [_load(full := self.path(paths[k]), known[k]) or _load_or_explain(full, known[k]) for k in some]

        numbers, begin = range(len(paths)), time.monotonic()
        first, rest = load(numbers[:_TRIED]), numbers[_TRIED:]
        if time.monotonic() - begin < _TRIED * _WAITED or not rest:
            return first + load(rest)
        parts = run_all(load, [rest[k::_READERS] for k in range(min(_READERS, len(rest)))])
        found = first + [b""] * len(rest)
        for k, part in enumerate(parts):
            found[_TRIED + k :: _READERS] = part
        return found

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """With ``wait=False`` ask the system to read these ranges ahead; otherwise do nothing."""
        if not wait and hasattr(os, "posix_fadvise"):
            with suppress(OSError), open_regular(self.path(path)) as descriptor:
                for one in ranges:
                    if not _is_in_memory(descriptor, one.begin):
                        os.posix_fadvise(descriptor, one.begin, one.length, os.POSIX_FADV_WILLNEED)

    def map(self, path: str) -> memoryview:
        """Map a file; the mapping exists as long as the view."""
        full = self.path(path)
        with storage_errors(full, "map"), open_regular(full) as descriptor:
            block = map_block(os.fstat(descriptor).st_size, descriptor)
        return memoryview(block).cast("B").toreadonly()

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        """Yield the path of the file."""
        self.stat(path)
        yield self.path(path)

    def put(self, path: str, data: Any) -> None:
        """Write, sync and rename, so that readers and crashes see the old file or the new one."""
        self._put(path, data, replace=True)

    def overwrite_start(self, path: str, data: bytes) -> None:
        """Write over the first bytes, in one sector of the disk."""
        full = self.path(path)
        with storage_errors(full, "write"), open_descriptor(full, os.O_WRONLY) as descriptor:
            os.pwrite(descriptor, data, 0)
            sync_file(descriptor)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Write, sync and link: the link fails if the file exists."""
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
        """Start a temporary file in the folder, which `publish` renames."""
        return LocalDraft(self)

    def copy(self, path: str, to: str) -> None:
        """Link the file under a second name; both get the current time."""
        full, target = self.path(path), self.path(to)
        with storage_errors(full, "copy"):
            os.utime(full)
            make_folder(os.path.dirname(target))
            os.link(full, target)
            sync_folder(os.path.dirname(target))

    def copy_all(self, names: Mapping[str, str]) -> None:
        """Link many files under second names, and sync their folders once; without links, copy them."""
        folders = set[str]()
        for path, to in names.items():
            full, target = self.path(path), self.path(to)
            with storage_errors(full, "copy"):
                if (folder := os.path.dirname(target)) not in folders:
                    make_folder(folder)
                    folders.add(folder)
                os.utime(full)
                _link_or_copy(full, target)
        for folder in folders:
            with storage_errors(folder, "sync"):
                sync_folder(folder)

    def make_root(self) -> None:
        """Create the folder durably."""
        with storage_errors(self.root, "create"):
            make_folder(self.root)

    def remove_folder(self, path: str, *, first: Sequence[str] = (), last: str = "") -> None:
        """Delete a folder, the files `first` in it before the others; files that cannot be deleted stay."""
        for inner in (*first, ""):
            shutil.rmtree(os.path.join(self.path(path), inner), ignore_errors=True)

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
    """A temporary file that `publish` renames."""

    is_elsewhere = False

    def __init__(self, place: LocalSource) -> None:
        self._place = place
        self._path = os.path.join(place.root, f".{secrets.token_hex(8)}.tmp")
        with storage_errors(self._path, "create"):
            make_folder(place.root)
            self.file: BinaryIO = io.BufferedWriter(_EarlyWriteback(self._path, "x"), _BUFFER)

    def close(self, size: int | None = None) -> None:
        """Sync and close the file; raise an error if it does not have `size` bytes."""
        if self.file.closed:
            return
        self.file.flush()
        sync_file(self.file.fileno())
        found = os.fstat(self.file.fileno()).st_size
        self.file.close()
        if size is not None and found != size:
            raise OSError(errno.EIO, f"expected {size} bytes on the disk, got {found}")

    def publish(self, path: str) -> None:
        """Sync the file, rename it, sync the folder."""
        with storage_errors(self._path, "touch"):
            os.utime(self._path)  # it may be hours old, and `clean` removes old files that no version names
        self.finish(path, replace=True)

    def finish(self, path: str, *, replace: bool) -> bool:
        """Publish the file and return True; with ``replace=False`` return False if `path` exists."""
        full = self._place.path(path)
        with storage_errors(full, "write"):
            self.close()
            make_folder(os.path.dirname(full))
            if replace:
                os.replace(self._path, full)
            else:
                try:
                    link_or_rename(self._path, full)
                except FileExistsError:
                    return False
                self.discard()
        with storage_errors(full, "sync the folder of this file, which is written but may not survive a power loss"):
            sync_folder(os.path.dirname(full))
        return True

    def discard(self) -> None:
        """Remove the temporary file; an error is ignored, because a leftover does no harm."""
        with suppress(OSError):  # closing writes buffered bytes, and the disk may be full
            self.file.close()
        with suppress(OSError):
            os.unlink(self._path)


class _EarlyWriteback(io.FileIO):
    """A new file whose pages the system starts to write early, so that the final sync waits less."""

    _unwritten = 0

    def write(self, data: Any) -> int:
        """Write bytes, and start the writeback after every 2 MiB."""
        count = super().write(data)
        self._unwritten += count
        if self._unwritten >= _WRITEBACK_EVERY and hasattr(libc(), "sync_file_range"):
            libc().sync_file_range(self.fileno(), 0, 0, _SYNC_FILE_RANGE_WRITE)
            self._unwritten = 0
        return count


def _stat_of(found: os.stat_result) -> Stat:
    identity = f"{found.st_ino}-{found.st_ctime_ns}"
    return Stat(found.st_size, str(found.st_mtime_ns), found.st_mtime, identity)


def _load(full: str, known: Stat) -> bytes:
    """Return the content of a file that is as it is known to be; nothing if it is not, or if it cannot be read."""
    try:
        descriptor = os.open(full, _READ_ONLY)
    except OSError:
        return b""
    try:
        found = os.fstat(descriptor)
        if found.st_size != known.size or str(found.st_mtime_ns) != known.tag or not stat.S_ISREG(found.st_mode):
            return b""
        data = os.read(descriptor, known.size)
        return data if len(data) == known.size else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _load_or_explain(full: str, known: Stat) -> bytes:
    """Return the content of a file; raise an error that says why it cannot be read, or that it has changed."""
    with storage_errors(full, "read"), open_regular(full) as descriptor:
        found = os.fstat(descriptor)
        check_unchanged_file(full, known, _stat_of(found))
        return _pread(descriptor, ByteRange(0, found.st_size), full)


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


def _is_in_memory(descriptor: int, at: int) -> bool:
    """Return whether a byte can be read without waiting for the disk."""
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except (OSError, AttributeError):  # it is not, or the system cannot tell
        return False


def _ignore_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _link_or_copy(path: str, to: str) -> None:
    try:
        os.link(path, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(path, "rb") as file, open(to, "xb") as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            sync_file(copy.fileno())


def link_or_rename(path: str, to: str) -> None:
    """Give a file a name that must be new; where there are no links (FAT), by a rename that replaces nothing."""
    try:
        os.link(path, to)
    except OSError as error:
        if error.errno not in _NO_LINKS or not hasattr(libc(), "renameat2"):
            raise
        at_cwd, no_replace = -100, 1
        if libc().renameat2(at_cwd, os.fsencode(path), at_cwd, os.fsencode(to), no_replace) != 0:
            if ctypes.get_errno() == errno.EEXIST:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to) from None
            raise


def make_folder(folder: str) -> None:
    """Create a folder and its parents durably."""
    if not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        make_folder(parent)
        with suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    with open_descriptor(folder, os.O_RDONLY) as descriptor:
        sync_file(descriptor)


def sync_file(descriptor: int) -> None:
    """Make an open file durable; every sync of shardex ends here.

    On macOS `fsync` leaves data in the cache of the disk, which a power cut empties.
    """
    if (full_sync := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):  # a file system without it
                raise
    os.fsync(descriptor)


def _identity(folder: str) -> tuple[int, int] | None:
    """Return device and inode of a folder, None if there is none."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def open_regular(path: str) -> Iterator[int]:
    """Open a file for reading; refuse pipes, sockets and devices, whose reads may wait for ever or have effects."""
    with open_descriptor(path, _READ_ONLY) as descriptor:
        _check_regular(os.fstat(descriptor).st_mode)
        yield descriptor


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next(name for is_kind, name in _KINDS if is_kind(mode))
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"expected a regular file, got {kind}")


@contextmanager
def open_descriptor(path: str, flags: int) -> Iterator[int]:
    """Open a file and give its descriptor; a new file is private."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def map_pages(size: int, descriptor: int | None, address: int | None = None) -> int:
    """Map a file for reading, or memory for reading and writing; at an address if one is given. Returns the address."""
    if descriptor is not None:
        how = mmap.PROT_READ, mmap.MAP_SHARED, descriptor
    else:
        how = mmap.PROT_READ | mmap.PROT_WRITE, _IN_MEMORY | (0 if address is None else _FIXED), -1
    found = libc().mmap(address, size, *how, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


def is_in_memory(address: int) -> bool:
    """Return whether a page of a mapped file is in memory; True if the system does not tell.

    Linux tells it only to those who may write the file.
    """
    found = ctypes.c_ubyte()
    failed = libc().mincore(address & -mmap.PAGESIZE, 1, ctypes.byref(found))
    return bool(failed or found.value & 1)


def map_block(size: int, descriptor: int | None = None) -> ctypes.Array[ctypes.c_ubyte]:
    """Map a file, or memory full of zeros, as an array of bytes; the mapping exists as long as the array.

    The descriptor is not kept, as with `mmap.mmap(trackfd=False)`, which Python has from 3.13 on.
    """
    if size == 0:
        return (ctypes.c_ubyte * 0)()
    address = map_pages(size, descriptor)
    block = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: other objects may still use the pages then, and the system frees them anyway.
    weakref.finalize(block, libc().munmap, address, size).atexit = False
    return block


@cache
def libc() -> Any:
    """Return the C library with the types of the functions used here; Python's `mmap` keeps descriptors open."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    if hasattr(libc, "sync_file_range"):
        libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return libc
