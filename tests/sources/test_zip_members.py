"""Members of zip archives: only what is declared, only inside the archive."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Sequence

import pytest

from shardex.errors import FormatError, NotFoundError, PathError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.memory import MemorySource
from shardex.sources.zip_members import Archives, member_names
from tests.compressed_files import text, zipped


def content(archive: bytes, member: str) -> bytes:
    with Archives(MemorySource({"a.zip": archive})) as archives:
        return b"".join(archives.pieces("a.zip", member))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members(method: int) -> None:
    members = {"a.jsonl": text(300_000), "b/c.txt": b"text", "b/empty.txt": b"", "b/": b""}
    archive = zipped(members, method)
    assert member_names(MemorySource({"a.zip": archive}), "a.zip") == ["a.jsonl", "b/c.txt", "b/empty.txt"]
    assert all(content(archive, name) == members[name] for name in ("a.jsonl", "b/c.txt", "b/empty.txt"))
    with pytest.raises(NotFoundError, match="no such member of the archive"):
        content(archive, "c")


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
        content(bytes(archive), "a.txt")
    out, link = io.BytesIO(), zipfile.ZipInfo("a.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(link, "/etc/passwd")
    with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected a file, got a symbolic link"):
        content(out.getvalue(), "a.txt")


def test_a_member_with_other_content_than_declared_raises() -> None:
    data = bytes(5_000_000)
    archive = zipped({"a.txt": data})
    at = archive.index(b"PK\x01\x02")
    for declared in (1_000_000, 5_000_001):  # a bomb that declares less, and a member that ends too early
        changed = bytearray(archive)
        for where in (at + 24, 22):
            struct.pack_into("<I", changed, where, declared)
        with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected"):
            content(bytes(changed), "a.txt")
    changed = bytearray(archive)
    changed[at - 500] ^= 255
    with pytest.raises(FormatError, match=r"a\.zip/a\.txt: expected an intact member, got damaged bytes after"):
        content(bytes(changed), "a.txt")


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
