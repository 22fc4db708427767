"""Compressed files are recognised, and their content is read completely or not at all.
Members of zip archives: only what is declared, only inside the archive."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence

import pytest

from shardex.errors import FormatError, NotFoundError, PathError, SourceError, TruncatedShardError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.compression import Archives, PieceFile, check_kind, decompress, kind_of, member_names, plain_name
from shardex.sources.memory import MemorySource
from tests.compressed_files import PACKERS, in_parts, text, zipped, zstd

KINDS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}
EACH = pytest.mark.parametrize("extension", list(KINDS))


def content(packed: bytes, kind: str, piece: int = 1000) -> bytes:
    pieces = (memoryview(packed)[at : at + piece] for at in range(0, len(packed), piece))
    return b"".join(decompress(kind, pieces, "a.packed"))


@EACH
def test_content(extension: str) -> None:
    data = text(300_000)
    packed = PACKERS[extension](data)
    assert kind_of(packed[:6]) == KINDS[extension]
    for piece in (7, 1000, len(packed)):
        assert content(packed, KINDS[extension], piece) == data


@EACH
def test_several_members_and_empty_ones(extension: str) -> None:
    pack, data = PACKERS[extension], text(100_000)
    assert content(in_parts(pack, data, 30_001), KINDS[extension]) == data
    assert content(pack(b"a") + pack(b"") + pack(b"b"), KINDS[extension]) == b"ab"
    assert content(pack(b""), KINDS[extension]) == b""


@pytest.mark.parametrize("extension", ["gz", "bz2", "xz"])
def test_zeros_may_follow_a_member(extension: str) -> None:
    pack = PACKERS[extension]
    assert content(pack(b"a") + bytes(2048) + pack(b"b") + bytes(4), KINDS[extension]) == b"ab"


@EACH
def test_a_file_that_is_cut_off_raises_at_every_length(extension: str) -> None:
    packed = PACKERS[extension](text(1000))
    for size in {*range(0, len(packed), 41), 1, len(packed) - 9, len(packed) - 1}:
        with pytest.raises(TruncatedShardError, match=rf"a\.packed: expected complete .* ends at byte {size}, before"):
            content(packed[:size], KINDS[extension])


@EACH
def test_damaged_bytes_raise(extension: str) -> None:
    packed = bytearray(PACKERS[extension](text(300_000)))
    packed[len(packed) // 2 : len(packed) // 2 + 50] = bytes(50)
    with pytest.raises(FormatError, match=rf"a\.packed: expected {KINDS[extension]} data, got damaged bytes at about"):
        content(bytes(packed), KINDS[extension])


@EACH
def test_other_bytes_after_the_end_raise(extension: str) -> None:
    packed = PACKERS[extension](b"content\n" * 100) + b"something else, which is not compressed"
    with pytest.raises(FormatError, match="got damaged bytes at about byte"):
        content(packed, KINDS[extension])


def test_bombs_take_constant_memory() -> None:
    for extension, kind in KINDS.items():
        size, largest = (80 << 20, 68 << 20) if kind == "gzip" else (4 << 20, 1 << 20)
        packed = PACKERS[extension](bytes(size))
        sizes = [len(piece) for piece in decompress(kind, [memoryview(packed)], "a")]
        assert max(sizes) <= largest and sum(sizes) == size


@EACH
def test_errors_of_the_storage_are_raised_as_they_are(extension: str) -> None:
    packed = PACKERS[extension](text(100_000))

    def pieces() -> Iterator[memoryview]:
        yield memoryview(packed)[:5000]
        raise SourceError(5, "the disk is out of order", "a")

    with pytest.raises(SourceError, match="the disk is out of order"):
        list(decompress(KINDS[extension], pieces(), "a"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.jsonl.gz", ("a.jsonl", "gzip")),
        ("b/a.TXT.GZ", ("b/a.TXT", "gzip")),
        ("a.csv.bz2", ("a.csv", "bzip2")),
        ("a.xz", ("a", "xz")),
        ("a.zst", ("a", "zstd")),
        ("a.zip", ("a.zip", "zip")),
        ("a.tar.gz", None),
        ("a.tgz", None),
        ("b/.gz", None),
        ("gz", None),
        ("a.gz/b", None),
    ],
)
def test_names(path: str, expected: tuple[str, str] | None) -> None:
    assert plain_name(path) == expected


def test_kinds_by_first_bytes() -> None:
    assert kind_of(b"\x5e\x2a\x4d\x18\x00\x00") == "zstd"  # a skippable frame
    assert kind_of(b"PK\x03\x04..") == "zip"
    assert kind_of(b"") is None
    place = MemorySource({"a.gz": b'{"a": 1}', "b.gz": b"", "c.gz": zstd(b"x")})
    assert check_kind(place, "c.gz", 10) == "zstd"
    with pytest.raises(FormatError, match=r"a\.gz: expected a compressed file, as its name says, got one that begins"):
        check_kind(place, "a.gz", 8)
    with pytest.raises(TruncatedShardError, match=r"b\.gz: .* got an empty one"):
        check_kind(place, "b.gz", 0)


def test_pieces_as_a_file() -> None:
    file = PieceFile([b"ab", b"", b"cdef"])
    assert (file.read(1), file.skip(2), file.read(2), file.offset, file.skip(9), file.read(1)) == (
        b"a",
        2,
        b"de",
        5,
        1,
        b"",
    )


def member_content(archive: bytes, member: str) -> bytes:
    with Archives(MemorySource({"a.zip": archive})) as archives:
        return b"".join(archives.pieces("a.zip", member))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members(method: int) -> None:
    members = {"a.jsonl": text(300_000), "b/c.txt": b"text", "b/empty.txt": b"", "b/": b""}
    archive = zipped(members, method)
    assert member_names(MemorySource({"a.zip": archive}), "a.zip") == ["a.jsonl", "b/c.txt", "b/empty.txt"]
    assert all(member_content(archive, name) == members[name] for name in ("a.jsonl", "b/c.txt", "b/empty.txt"))
    with pytest.raises(NotFoundError, match="no such member of the archive"):
        member_content(archive, "c")


@pytest.mark.parametrize(
    "name", ["../a.txt", "b/../../a.txt", "/a.txt", "b\\a.txt", "c:a.txt", "\0a.txt", "a\0.txt", "\0"]
)
def test_names_that_leave_the_archive_raise(name: str) -> None:
    archive = zipped({"x" * len(name): b"text"}).replace(b"x" * len(name), name.encode())
    with pytest.raises(PathError, match=r"a\.zip: expected a relative path inside the dataset's folder, got"):
        member_names(MemorySource({"a.zip": archive}), "a.zip")


def test_two_members_of_one_name_raise() -> None:
    archive = zipped({"aaaa": b"1", "aaab": b"2"}).replace(b"aaab", b"aaaa")
    with pytest.raises(FormatError, match=r"a\.zip: expected members of different names, got 'aaaa' twice"):
        member_names(MemorySource({"a.zip": archive}), "a.zip")


def test_encrypted_members_and_links_raise() -> None:
    archive = bytearray(zipped({"a.txt": b"text"}))
    at = archive.index(b"PK\x01\x02")
    struct.pack_into("<H", archive, at + 8, 1)
    struct.pack_into("<H", archive, 6, 1)
    with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected a member that is not encrypted; unpack"):
        member_content(bytes(archive), "a.txt")
    out, link = io.BytesIO(), zipfile.ZipInfo("a.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(link, "/etc/passwd")
    with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected a file, got a symbolic link"):
        member_content(out.getvalue(), "a.txt")


def test_a_member_with_other_content_than_declared_raises() -> None:
    data = bytes(5_000_000)
    archive = zipped({"a.txt": data})
    at = archive.index(b"PK\x01\x02")
    for declared in (1_000_000, 5_000_001):  # a bomb that declares less, and a member that ends too early
        changed = bytearray(archive)
        for where in (at + 24, 22):
            struct.pack_into("<I", changed, where, declared)
        with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected"):
            member_content(bytes(changed), "a.txt")
    changed = bytearray(archive)
    changed[at - 500] ^= 255
    with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected an intact member, got damaged bytes after"):
        member_content(bytes(changed), "a.txt")


def test_an_archive_that_is_cut_off_raises() -> None:
    archive = zipped({"a.txt": text(100_000)})
    for size in (len(archive) - 1, len(archive) // 2, 4, 0):
        with pytest.raises(FormatError, match=r"a\.zip: expected a zip archive, got another file"):
            member_names(MemorySource({"a.zip": archive[:size]}), "a.zip")


class CountedReads(MemorySource):
    """Counts the bytes that are read."""

    count = 0

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.count += sum(one.length for one in ranges)
        return super().read(path, ranges)


def test_the_directory_of_an_archive_is_read_once() -> None:
    members = {f"{number:03}/{'x' * 200}.txt": b"text" for number in range(500)}
    source = CountedReads({"a.zip": zipped(members)})
    with Archives(source) as archives:
        assert all(b"".join(archives.pieces("a.zip", name)) == b"text" for name in members)
    assert source.count < 2 * source.stat("a.zip").size
