"""Compressed files are found under the names of their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardex.errors import ArgumentError, FormatError, PathError
from shardex.files import Files, find
from tests.compressed_files import PACKERS, fast_gzip, zipped


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies go to a folder of the test."""
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path_factory.mktemp("cache")))


def put(folder: Path, **files: bytes) -> None:
    for name, data in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def contents(files: Files) -> dict[str, bytes]:
    return {path: bytes(files.source.load(path)) for path in files.paths}


def test_a_folder_of_plain_and_compressed_files(tmp_path: Path) -> None:
    put(tmp_path, a10_txt_gz=fast_gzip(b"ten"), a2_txt=b"two", b__c_txt_bz2=PACKERS["bz2"](b"deep"), d_tar_gz=b"tar")
    found = find(tmp_path)
    assert found.folder and found.paths == ("a2.txt", "a10.txt", "b/c.txt", "d.tar.gz")
    assert contents(found) == {"a2.txt": b"two", "a10.txt": b"ten", "b/c.txt": b"deep", "d.tar.gz": b"tar"}
    assert [found.name(k) for k in range(3)] == [
        f"{tmp_path}/{name}" for name in ("a2.txt", "a10.txt.gz", "b/c.txt.bz2")
    ]
    assert found.source.paths("a") == ["a10.txt", "a2.txt"]


def test_a_folder_without_compressed_files_is_read_as_it_is(tmp_path: Path) -> None:
    put(tmp_path, a_txt=b"text")
    assert type(find(tmp_path).source).__name__ == "LocalSource"
    put(tmp_path, b_tar_gz=b"tar")
    assert type(find(tmp_path).source).__name__ == "LocalSource"


@pytest.mark.parametrize("way", ["copy", "access_points"])
def test_compressed_tars_are_read_if_the_user_says_how(tmp_path: Path, way: str) -> None:
    put(tmp_path, a_tar_gz=fast_gzip(b"tar"), b_tar=b"plain")
    assert contents(find([tmp_path / "a.tar.gz", tmp_path / "b.tar"], compressed=way, cache=tmp_path / "cache")) == {
        "a.tar": b"tar",
        "b.tar": b"plain",
    }


def test_a_compressed_file_beside_its_content_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path, a_txt=b"text", a_txt_gz=fast_gzip(b"text"))
    assert find(tmp_path).paths == ("a.txt", "a.txt.gz")
    with pytest.raises(ArgumentError, match=r"expected each file once, got a\.txt twice, one of them from a\.txt\.gz"):
        find([tmp_path / "a.txt", tmp_path / "a.txt.gz"])
    put(tmp_path, b_txt_gz=fast_gzip(b"text"), b_txt_xz=PACKERS["xz"](b"text"))
    with pytest.raises(ArgumentError, match=r"expected each file once, got b\.txt twice, one of them from b\.txt\.xz"):
        find(tmp_path)


def test_first_bytes_count_if_the_user_says_how_to_read(tmp_path: Path) -> None:
    put(tmp_path, a_txt=fast_gzip(b"text"), b_txt=b"plain", c_txt=b"")
    assert contents(find(tmp_path))["a.txt"] == fast_gzip(b"text")
    for way in ("copy", "access_points"):
        found = find(tmp_path, compressed=way, cache=tmp_path / "cache")
        assert contents(found.having(".txt")) == {"a.txt": b"text", "b.txt": b"plain", "c.txt": b""}


def test_archives(tmp_path: Path) -> None:
    inner = {"b/x10.txt": b"10", "b/x2.txt": b"2", "y.txt.gz": fast_gzip(b"y"), "__MACOSX/._y": b"", ".hidden": b""}
    put(tmp_path, a_zip=zipped(inner), c_txt=b"c")
    found = find(tmp_path)
    assert contents(found) == {"a.zip/b/x2.txt": b"2", "a.zip/b/x10.txt": b"10", "a.zip/y.txt": b"y", "c.txt": b"c"}
    assert found.name(2) == f"{tmp_path}/a.zip/y.txt.gz"
    alone = find(tmp_path / "a.zip")
    assert alone.folder and alone.having(".txt").paths == ("a.zip/b/x2.txt", "a.zip/b/x10.txt", "a.zip/y.txt")
    assert not find([tmp_path / "a.zip", tmp_path / "c.txt"]).folder
    put(tmp_path, c_zip=b"PK but not an archive")
    with pytest.raises(FormatError, match=r"c\.zip: expected a zip archive, got another file"):
        find(tmp_path)
    put(tmp_path, c_zip=zipped({"xx/a": b""}).replace(b"xx/a", b"../a"))
    with pytest.raises(PathError, match=r"c\.zip: expected a relative path"):
        find(tmp_path)


def test_hidden_files_of_a_folder_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, a_txt_gz=fast_gzip(b"a"))
    (tmp_path / ".b.txt.gz").write_bytes(b"not compressed")
    (tmp_path / "_c.zip").write_bytes(b"not an archive")
    assert set(find(tmp_path).paths) == {".b.txt.gz", "_c.zip", "a.txt"}


def test_wrong_way_raises(tmp_path: Path) -> None:
    put(tmp_path, a_txt_gz=fast_gzip(b"a"))
    with pytest.raises(ArgumentError, match="expected compressed to be one of access_points, copy or None, got 'fast'"):
        find(tmp_path, compressed="fast")
