"""growing_tar: tars that are complete after every write, and members by name while they grow."""

import os
import tarfile
from pathlib import Path

import pytest

from shardex.compat.formats.columns_tar.growing_tar import UNFINISHED, GrowingTar, TarMembers
from shardex.errors import FormatError, StorageFullError
from shardex.formats.tar.blocks import members_of


def names(path: Path) -> list[str]:
    """The members, read by the core and by the standard library; both raise for a damaged tar."""
    found = [member.name for member in members_of(path.read_bytes(), str(path))]
    with tarfile.open(path) as tar:
        assert tar.getnames() == found
    return found


def content(path: Path, name: str) -> bytes:
    with path.open("rb") as file:
        return TarMembers(str(path)).read(file.fileno(), name)


def test_tar_is_complete_after_every_append(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    tar = GrowingTar(str(path))
    assert names(path) == []
    expected = []
    for number, size in enumerate([0, 1, 511, 512, 513, 9000, 70_000]):
        name = f"{'é' * (number % 2)}{number}.npy"
        begin = tar.append(name, bytes([number]) * size)
        expected.append(name)
        assert names(path) == expected
        assert path.read_bytes()[begin : begin + size] == bytes([number]) * size
        assert content(path, name) == bytes([number]) * size
    tar.close()
    assert path.stat().st_size % 10240 == 0


def test_append_continues_an_existing_tar(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("theirs.npy"))
    ours = GrowingTar(str(path))
    assert ours.count == 1
    ours.append("ours.npy", b"12")
    ours.close()
    assert names(path) == ["theirs.npy", "ours.npy"]


@pytest.mark.parametrize("cut", [512 + 512 + 100, 512 + 512 + 512 + 5, 1024, 700])
def test_torn_end_becomes_zeros(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tar"
    tar = GrowingTar(str(path))
    tar.append("a.npy", b"1" * 300)
    tar.append("b.npy", b"2" * 300)
    tar.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    tar = GrowingTar(str(path))
    before = [] if cut < 1024 else ["a.npy"]
    assert names(path) == before
    tar.append("c.npy", b"3")
    tar.close()
    assert names(path) == [*before, "c.npy"]


def test_failed_append_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    tar = GrowingTar(str(path))
    tar.append("a.npy", b"1" * 2000)
    write = os.pwrite

    def half(descriptor: int, data: memoryview, at: int) -> int:
        if len(data) > 1000 and any(data):
            write(descriptor, data[:1000], at)
            raise OSError(28, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StorageFullError, match=r"cannot write: No space left on device: .*a\.tar"):
        tar.append("b.npy", b"2" * 5000)
    assert names(path) == ["a.npy"]
    monkeypatch.undo()
    tar.append("c.npy", b"3" * 100)
    tar.close()
    assert names(path) == ["a.npy", "c.npy"]


class KilledError(BaseException):
    """Stands for the end of the process."""


def write_until(event: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Change a tar until a write, which is done by half; return whether all was done."""
    left, write = [event], os.pwrite

    def interrupted(descriptor: int, data: memoryview, at: int) -> int:
        left[0] -= 1
        if left[0] == 0:
            write(descriptor, data[: len(data) // 2 & -512], at)  # a block is written as a whole
        if left[0] <= 0:
            raise KilledError
        return write(descriptor, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        try:
            tar = GrowingTar(str(path))
            tar.append("a.npy", b"1" * 3000)
            before = tar.position
            tar.append("é.npy", b"2" * 5000)
            tar.append("a.npy", b"3" * 4000)
            tar.cut(before)
            tar.append("a.npy", b"4" * 700)
            tar.close()
        except KilledError:
            return False
    return True


def test_interrupted_write_leaves_only_whole_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a reader nor the next writer sees a member without all of its bytes, whatever write is the last."""
    is_whole = {b"1" * 3000, b"2" * 5000, b"3" * 4000, b"4" * 700}
    event = 0
    while True:
        event += 1
        path = tmp_path / f"{event}.tar"
        if write_until(event, path, monkeypatch):
            break
        found = {*names(path)} - {UNFINISHED}
        assert all(content(path, name) in is_whole for name in found)
        GrowingTar(str(path)).close()
        assert {*names(path)} == found
        assert all(content(path, name) in is_whole for name in found)
    assert event > 10
    assert content(path, "a.npy") == b"4" * 700


def test_members_are_found_behind_one_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    tar = GrowingTar(str(path))
    tar.append("a.npy", b"1")
    found, write = TarMembers(str(path)), os.pwrite
    with path.open("rb") as file:

        def read_first(descriptor: int, data: memoryview, at: int) -> int:
            assert found.read(file.fileno(), "a.npy") == b"1"
            return write(descriptor, data, at)

        monkeypatch.setattr(os, "pwrite", read_first)
        tar.append("a.npy", b"2" * 2000)
        monkeypatch.undo()
        assert found.read(file.fileno(), "a.npy") == b"2" * 2000
        with tarfile.open(path, "a") as other:
            other.addfile(tarfile.TarInfo(UNFINISHED))
            other.addfile(tarfile.TarInfo("theirs.npy"))
        assert found.read(file.fileno(), "theirs.npy") == b""
    tar.close()


def test_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    """The clock of a file system is coarse, and a tar grows in steps."""
    path = tmp_path / "a.tar"
    tar = GrowingTar(str(path))
    tar.append("a.npy", b"1")
    os.utime(path, (1, 1))
    found = TarMembers(str(path))
    with path.open("rb") as file:
        assert found.read(file.fileno(), "a.npy") == b"1"
        tar.append("a.npy", b"2")
        os.utime(path, (1, 1))
        assert found.read(file.fileno(), "a.npy") == b"2"
    tar.close()


def test_members_follow_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    tar = GrowingTar(str(path))
    tar.append("a.npy", b"1")
    found = TarMembers(str(path))
    with path.open("rb") as file:

        def read(name: str) -> bytes:
            return found.read(file.fileno(), name)

        assert read("a.npy") == b"1"
        with pytest.raises(FormatError, match=r"a\.tar: expected the member 'b\.npy', it has no such member"):
            read("b.npy")
        tar.append("b.npy", b"2")
        tar.append("a.npy", b"3")
        assert (read("b.npy"), read("a.npy"), len(found)) == (b"2", b"3", 3)
        tar.cut((0, 0))
        tar.append("x.npy", b"4")
        tar.append("b.npy", b"5" * 600)
        assert (read("b.npy"), read("x.npy")) == (b"5" * 600, b"4")
        with pytest.raises(FormatError):
            read("a.npy")
    tar.close()


def test_long_names_of_other_tools_are_found(tmp_path: Path) -> None:
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{form}.tar"
        wanted = [f"{'folder/' * 20}{'x' * 20}.npy", *(["é/ü.npy"] if form != tarfile.USTAR_FORMAT else []), "a.npy"]
        with tarfile.open(path, "w", format=form) as tar:
            for name in wanted:
                tar.addfile(tarfile.TarInfo(name))
        assert [content(path, name) for name in wanted] == [b""] * len(wanted)
