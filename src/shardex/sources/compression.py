"""Compressed files and zip archives: how they are recognised, and their content as a sequence of pieces.

`plain_name` recognises a file by its name, `kind_of` by its first bytes. `decompress` yields the content of a gzip,
bzip2, xz or zstd file with any number of members, streams or frames, in constant memory. A file that is cut off or
damaged raises an error that names the file and the offset. Random access is left to `access_points` and `plain_copies`.

`Archives` yields the members of zip archives. Nothing is extracted by name: the caller chooses where content goes.
Names that leave the archive, members with the same name, encrypted members, links, and members with more or other bytes
than the archive declares raise errors.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from shardex.errors import FormatError, NotFoundError, PathError, TruncatedShardError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.protocols import Source, check_path

COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files, and the tools that make them."""
COMPRESSED_TAR = (
    'compressed tars have no random access: open them with compressed="copy", which keeps a decompressed copy in the '
    "cache folder, or unpack them"
)
"""What errors say about compressed tars, which are not read unless the user says how."""
_TARS = (".tgz", ".tbz2", ".txz", ".tzst")
_EXTENSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd", ".zip": "zip"}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
"""Frames of zstd that hold no data; a file may begin with one."""
_HEAD = 6
_PIECE = 1 << 20
_AHEAD = 8
"""Pieces of a remote file that are fetched ahead."""
_INPUT = 64 << 10
"""Bytes that zlib gets at once: it returns at most a thousand times as many."""
_MAKERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
_ERRORS = (zlib.error, lzma.LZMAError, EOFError, OSError, pa.ArrowException)


def plain_name(path: str) -> tuple[str, str] | None:
    """Return the name of the content and the kind of compression, by the name of a file; None for other files.

    Compressed tars are not read like that, see `tar_name`.

    >>> plain_name("a/b.jsonl.gz"), plain_name("b.jsonl"), plain_name("b.tar.gz")
    (('a/b.jsonl', 'gzip'), None, None)
    """
    stem, dot, extension = path.rpartition(".")
    kind = _EXTENSIONS.get(dot + extension.lower())
    if kind is None or not stem.rpartition("/")[2] or stem.lower().endswith(".tar"):
        return None
    return (path if kind == "zip" else stem), kind


def tar_name(path: str) -> str | None:
    """Return the name of the tar in a compressed tar, by its name; None for other files.

    >>> tar_name("a/b.tar.gz"), tar_name("b.TGZ"), tar_name("b.tar"), tar_name("b.jsonl.gz")
    ('a/b.tar', 'b.tar', None, None)
    """
    stem, dot, extension = path.rpartition(".")
    if (dot + extension.lower()) in _TARS and stem.rpartition("/")[2]:
        return stem + ".tar"
    return stem if dot + extension.lower() in _EXTENSIONS and stem.lower().endswith(".tar") else None


def kind_of(head: bytes) -> str | None:
    """Return the kind of compression, by the first bytes of a file; None if there is none.

    >>> kind_of(b"BZh91AY"), kind_of(b'{"a": 1}')
    ('bzip2', None)
    """
    if head.startswith(_ZIP):
        return "zip"
    if _SKIPPABLE.match(head):
        return "zstd"
    return next((kind for first, kind in COMPRESSED.items() if head.startswith(first)), None)


def check_kind(source: Source, path: str, size: int) -> str:
    """Return the kind of compression of a file whose name says that it is compressed; raise if it is not."""
    head = bytes(source.read(path, [ByteRange(0, min(size, _HEAD))])[0])
    if (kind := kind_of(head)) is None:
        name = source.full_name(path)
        if not head:
            raise TruncatedShardError(f"{name}: expected a compressed file, as its name says, got an empty one")
        raise FormatError(
            f"{name}: expected a compressed file, as its name says, got one that begins with {head!r}; rename it if it "
            "is not compressed"
        )
    return kind


def read_all(source: Source, path: str, size: int, begin: int = 0) -> Iterator[memoryview]:
    """Yield the bytes of a file from `begin` on, in pieces; the next pieces of a remote file are fetched meanwhile."""
    for at in range(begin, size, _PIECE):
        for ahead in range(at + _PIECE, min(at + (1 + _AHEAD) * _PIECE, size), _PIECE):
            source.fetch(path, [ByteRange(ahead, min(_PIECE, size - ahead))], wait=False)
        yield source.read(path, [ByteRange(at, min(_PIECE, size - at))])[0]


class PieceFile(io.RawIOBase):
    """Pieces of bytes as a file that is read from its beginning to its end.

    >>> PieceFile([b"ab", b"cde"]).read(3)
    b'abc'
    """

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")
        self.offset = 0
        """Bytes that were read."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there are bytes."""
        out, done = memoryview(buffer).cast("B"), 0
        while done < len(out) and (some := self._next(len(out) - done)) is not None:
            out[done : done + len(some)] = some
            done += len(some)
        return done

    def skip(self, count: int) -> int:
        """Pass over bytes; returns how many there were."""
        done = 0
        while done < count and (some := self._next(count - done)) is not None:
            done += len(some)
        return done

    def _next(self, most: int) -> memoryview | None:
        """Return the next bytes, at least one; None at the end."""
        while not len(self._rest):
            if (piece := next(self._pieces, None)) is None:
                return None
            self._rest = memoryview(piece)
        some, self._rest = self._rest[:most], self._rest[most:]
        self.offset += len(some)
        return some


def decompress(kind: str, pieces: Iterable[memoryview], name: str, begin: int = 0) -> Iterator[bytes]:
    """Yield the content of a compressed file, whose bytes from `begin` on are `pieces`; errors name it `name`.

    >>> import gzip; packed = gzip.compress(b"one\\n") + gzip.compress(b"two\\n")
    >>> b"".join(decompress("gzip", [memoryview(packed)], "a.gz"))
    b'one\\ntwo\\n'
    >>> list(decompress("gzip", [memoryview(packed[:-5])], "a.gz"))
    Traceback (most recent call last):
    shardex.errors.TruncatedShardError: a.gz: expected complete gzip data, the file ends at byte 43, before they do
    """
    yield from _frames(pieces, name, begin) if kind == "zstd" else _streams(kind, pieces, name, begin)


def _streams(kind: str, pieces: Iterable[memoryview], name: str, offset: int) -> Iterator[bytes]:
    """Decompress gzip members, or streams of bzip2 or xz, up to the end; zeros may follow each."""
    stream, first = None, True
    for piece in pieces:
        for at in range(0, len(piece), _INPUT):
            data = bytes(piece[at : at + _INPUT])
            offset += len(data)
            while data or (stream is not None and not getattr(stream, "needs_input", True)):
                if stream is None:
                    data = data if first else data.lstrip(b"\0")
                    if not data:
                        break
                    stream, first = _MAKERS[kind](), False
                try:
                    plain = stream.decompress(data) if kind == "gzip" else stream.decompress(data, _PIECE)
                except _ERRORS as error:
                    raise damaged(name, kind, offset - len(data), error) from None
                if plain:
                    yield plain
                data = b""
                if stream.eof:
                    data, stream = stream.unused_data, None
    if stream is not None or first:
        raise cut_off(name, kind, offset)


def _frames(pieces: Iterable[memoryview], name: str, begin: int) -> Iterator[bytes]:
    """Decompress frames of zstd up to the end."""
    errors: list[BaseException] = []
    file = PieceFile(_noting(pieces, errors))
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as stream:
            while plain := stream.read(_PIECE):
                yield plain
    except _ERRORS as error:
        if errors:
            raise errors[0] from None
        if "Truncated" in str(error):
            raise cut_off(name, "zstd", begin + file.offset) from None
        raise damaged(name, "zstd", begin + file.offset, error) from None
    if not file.offset:
        raise cut_off(name, "zstd", begin)


def _noting(pieces: Iterable[memoryview], errors: list[BaseException]) -> Iterator[memoryview]:
    """Yield the pieces; an error of reading them is kept, because pyarrow turns it into another one."""
    try:
        yield from pieces
    except BaseException as error:
        errors.append(error)
        raise


def damaged(name: str, kind: str, offset: int, why: object) -> FormatError:
    """Return the error for a file whose bytes are wrong."""
    return FormatError(f"{name}: expected {kind} data, got damaged bytes at about byte {offset} of the file: {why}")


def cut_off(name: str, kind: str, offset: int) -> TruncatedShardError:
    """Return the error for a file that ends too early."""
    return TruncatedShardError(f"{name}: expected complete {kind} data, the file ends at byte {offset}, before they do")


# -- zip archives -------------------------------------------------------------------------------------------------

_ENCRYPTED = 1
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError)


class RangeFile(io.RawIOBase):
    """A file of a source, read at any position; `report` gets the number of bytes of each read."""

    def __init__(
        self, source: Source, path: str, size: int, report: Callable[[int], None] = lambda count: None
    ) -> None:
        self._source, self._path, self._size, self._report = source, path, size, report
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read at the position."""
        out = memoryview(buffer).cast("B")
        count = max(0, min(len(out), self._size - self._at))
        if count:
            out[:count] = self._source.read(self._path, [ByteRange(self._at, count)])[0]
            self._at += count
            self._report(count)
        return count


def member_names(source: Source, path: str) -> list[str]:
    """Return the names of the files in an archive; raise an error for names that leave it or are there twice."""
    name, found = source.full_name(path), list[str]()
    with _opened(source, path) as archive:
        for member in archive.infolist():
            if member.orig_filename.endswith("/"):
                continue
            try:
                found.append(check_path(member.orig_filename))  # zipfile cuts the other one at a null character
            except PathError as error:
                raise PathError(f"{name}: {error}") from None
    if len(set(found)) < len(found):
        twice = next(one for k, one in enumerate(found) if one in found[:k])
        raise FormatError(f"{name}: expected members of different names, got {twice!r} twice")
    return found


class Archives:
    """Archives of a source, from which several threads read members; each directory is read once.

    `report` gets the number of compressed bytes of each read.
    """

    def __init__(self, source: Source, report: Callable[[int], None] = lambda count: None) -> None:
        self._source, self._report = source, report
        self._open: dict[str, zipfile.ZipFile] = {}
        self._closing = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Archives:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def pieces(self, path: str, member: str) -> Iterator[bytes]:
        """Yield the content of a member."""
        name, archive = f"{self._source.full_name(path)}/{member}", self._archive(path)
        try:
            entry = archive.getinfo(member)
        except KeyError:
            raise NotFoundError(2, "no such member of the archive", name) from None
        if entry.flag_bits & _ENCRYPTED:
            raise FormatError(f"{name}: expected a member that is not encrypted; unpack the archive first")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise FormatError(f"{name}: expected a file, got a symbolic link")
        done = 0
        try:
            with archive.open(entry) as file:
                while data := file.read(_PIECE):  # never more than is declared; the end verifies the checksum
                    done += len(data)
                    yield data
        except _ZIP_ERRORS as error:
            raise FormatError(
                f"{name}: expected an intact member, got damaged bytes after {done} bytes: {error}"
            ) from None
        if done != entry.file_size:
            raise FormatError(f"{name}: expected {entry.file_size} bytes as the archive declares, got {done}")

    def _archive(self, path: str) -> zipfile.ZipFile:
        with self._lock:
            if path not in self._open:
                self._open[path] = self._closing.enter_context(_opened(self._source, path, self._report))
            return self._open[path]


@contextmanager
def _opened(source: Source, path: str, report: Callable[[int], None] = lambda count: None) -> Iterator[zipfile.ZipFile]:
    size = source.stat(path).size
    try:
        archive = zipfile.ZipFile(io.BufferedReader(RangeFile(source, path, size, report), _PIECE))
    except _ZIP_ERRORS as error:
        raise FormatError(f"{source.full_name(path)}: expected a zip archive, got another file: {error}") from None
    with archive:
        yield archive
