"""`GrowingTar`: a tar on a disk to which members are appended, and which is complete at every moment.

The file is extended with zeros before a member is written over them, so whenever the process is killed, the tar ends
with the blocks of zeros that it must end with. A member is first written as one with the name `UNFINISHED`; its own
first block follows when the rest is there. So readers never see a member without all of its bytes. `TarMembers` finds
members of such a tar by name while it grows.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import suppress

import numpy as np
import xxhash

from shardex.errors import FormatError, SourceError, TruncatedShardError, storage_errors
from shardex.formats.tar import BLOCK, end_of_tar, header, is_header_of, members_of, padding
from shardex.sources import sync_file, sync_folder

UNFINISHED = "unfinished"
"""Name of a member that is being written or removed."""
_DRAFT = re.compile(r"\.shard_\d+\.tar\.[0-9a-f]+\.tmp")
_KEYS = np.dtype(np.uint64)
_PIECE = 1 << 20


def lock_file(descriptor: int) -> bool | None:
    """Lock an open file: True if that succeeds, False if it is locked already, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class FileBytes:
    """The bytes of an open file, as `members_of` reads them: slices, without a mapping."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> bytes:
        begin, stop, _ = where.indices(self._size)
        return os.pread(self._descriptor, max(0, stop - begin), begin)


class GrowingTar:
    """Appends members to a tar; it is created if it does not exist.

    >>> import tempfile; path = tempfile.mkdtemp() + "/a.tar"
    >>> tar = GrowingTar(path); tar.append("x.npy", b"12"), tar.append("y.npy", b"3"); tar.close()
    (512, 1536)
    >>> again = GrowingTar(path); again.count; again.close()
    2
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0
        """Number of members."""
        self._dirty = False
        with storage_errors(path, "open"):
            self._is_new = not os.path.exists(path)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._end = self._find_end()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _find_end(self) -> int:
        """Return the offset after the last member; what an interrupted writer has left there becomes zeros."""
        data, end, is_cut = FileBytes(self._descriptor), 0, not os.fstat(self._descriptor).st_size
        try:
            for member in members_of(data, self.path):
                is_cut = member.name == UNFINISHED
                if not is_cut:
                    end = member.begin + member.size + len(padding(member.size))
                    self.count += 1
        except TruncatedShardError:
            is_cut = True
        self._size = len(data)
        if is_cut:
            with storage_errors(self.path, "write"):
                self._dirty = True
                self._erase(end, self._size)
                self._extend(end)
        return end

    def append(self, name: str, data: bytes) -> int:
        """Add a member; return the offset of its bytes. If it fails, it is as if nothing had been written."""
        head = header(name, len(data))
        record = b"".join((head, data, padding(len(data))))
        before = self.position
        self._dirty = True
        try:
            with storage_errors(self.path, "write"):
                self._extend(self._end + len(record))
                self._write(_unfinished(len(record)) + record[BLOCK:], self._end)
                self._write(record[:BLOCK], self._end)
            self._end, self.count = self._end + len(record), self.count + 1
        except BaseException:
            self._end = before[0] + len(record)
            with suppress(SourceError):
                self.cut(before)
            raise
        return before[0] + len(head)

    @property
    def position(self) -> tuple[int, int]:
        """End and number of the members, for `cut`."""
        return self._end, self.count

    def cut(self, position: tuple[int, int]) -> None:
        """Take back what was appended after a position; the file keeps its size, because others may have mapped it."""
        end, self.count = position
        with storage_errors(self.path, "write"):
            self._erase(end, self._end)
        self._end = end

    def _erase(self, begin: int, end: int) -> None:
        """Write zeros; the tar is complete meanwhile."""
        if begin < end:
            stop = max(begin + BLOCK, end + len(padding(end)))
            self._extend(stop)
            self._write(_unfinished(stop - begin), begin)
            for at in range(begin + BLOCK, stop, _PIECE):
                self._write(bytes(min(_PIECE, stop - at)), at)
            self._write(bytes(BLOCK), begin)

    def _extend(self, end: int) -> None:
        """Make the file so long that blocks of zeros follow the offset `end`."""
        if self._size < end + 2 * BLOCK:
            self._size = end + len(end_of_tar(end))
            os.ftruncate(self._descriptor, self._size)

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written

    def lock(self) -> bool:
        """Lock the file until it is closed; return False if another process has done so. Without locks return True."""
        return lock_file(self._descriptor) is not False

    def sync(self) -> None:
        """Make what was appended durable."""
        if self._dirty:
            with storage_errors(self.path, "sync"):
                sync_file(self._descriptor)
                if self._is_new:
                    sync_folder(os.path.dirname(self.path))
            self._dirty = self._is_new = False

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _unfinished(size: int) -> bytes:
    """Return the first block of a member that has this size with its header."""
    return header(UNFINISHED, size - BLOCK)


# -- drafts: tars that take the place of others when they are complete --------------------------------------------


def new_draft(prefix: str) -> GrowingTar:
    """Return a new tar, which other sessions do not take for an abandoned one because it is locked."""
    while True:
        tar = GrowingTar(f"{prefix}{secrets.token_hex(6)}.tmp")
        if tar.lock() and os.path.exists(tar.path):  # another session may have removed it before it was locked
            return tar
        tar.close()


def remove_abandoned(folder: str) -> None:
    """Remove the tars that killed writers have not published: those that are not locked."""
    with suppress(OSError):
        for path in [os.path.join(folder, name) for name in os.listdir(folder) if _DRAFT.fullmatch(name)]:
            with suppress(FileNotFoundError), open(path, "rb") as file:
                if lock_file(file.fileno()):
                    os.unlink(path)


def discard(tar: GrowingTar) -> None:
    """Close and remove a tar that was not published."""
    tar.close()
    with suppress(OSError):
        os.unlink(tar.path)


# -- reading ------------------------------------------------------------------------------------------------------


class TarMembers:
    """Offset and length of the members of a tar by name, of several with one name the last; 24 bytes for each.

    `refresh` reads the headers that were added since.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._begin_again()

    def _begin_again(self) -> None:
        self._end = 0
        self._problem: FormatError | None = None
        self._keys = np.empty(0, _KEYS)
        self._begins, self._sizes = np.empty(0, np.int64), np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def read(self, descriptor: int, name: str) -> bytes:
        """Return the bytes of a member of the file, which must be open; raise an error if it has no such member."""
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != self._file or found.st_size < self._end:
            self._begin_again()
            self._file = found.st_dev, found.st_ino
        # Size and time of the file may be the same after a member was added, so its end is read.
        if os.pread(descriptor, BLOCK, self._end).strip(b"\0"):
            self._scan(descriptor)
        data = self._find(descriptor, name)
        if data is None:  # the file was written anew
            self._begin_again()
            self._scan(descriptor)
            data = self._find(descriptor, name)
        if data is None:
            raise self._problem or FormatError(f"{self.path}: expected the member {name!r}, it has no such member")
        return data

    def _scan(self, descriptor: int) -> None:
        """Add the members after the last known one, up to the end or to where the tar is damaged."""
        names, begins, sizes = list[int](), list[int](), list[int]()
        self._problem = None
        try:
            for member in members_of(FileBytes(descriptor), self.path, self._end):
                if member.name == UNFINISHED:
                    continue  # if it is the last one, the next scan begins there
                names.append(_key(member.name))
                begins.append(member.begin)
                sizes.append(member.size)
                self._end = member.begin + member.size + len(padding(member.size))
        except FormatError as error:
            self._problem = error
        if names:
            keys = np.concatenate([self._keys, np.array(names, _KEYS)])
            order = np.argsort(keys, kind="stable")
            self._keys = keys[order]
            self._begins = np.concatenate([self._begins, np.array(begins, np.int64)])[order]
            self._sizes = np.concatenate([self._sizes, np.array(sizes, np.int64)])[order]

    def _find(self, descriptor: int, name: str) -> bytes | None:
        """Return the bytes of a member, if its header is still there."""
        key = _KEYS.type(_key(name))
        at = int(self._keys.searchsorted(key, "right")) - 1
        if at < 0 or self._keys[at] != key:
            return None
        begin, size = int(self._begins[at]), int(self._sizes[at])
        data = os.pread(descriptor, BLOCK + size, begin - BLOCK)
        if len(data) != BLOCK + size or not is_header_of(data[:BLOCK], name, size):
            return None
        return data[BLOCK:]


def _key(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))
