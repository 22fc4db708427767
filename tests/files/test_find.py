"""`find`: folders, patterns and lists become files in natural order."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardex.errors import ArgumentError, NotFoundError, PathError, ShardexError, UnknownFormatError, UnsafeError
from shardex.files import find
from shardex.sources import absolute_path

NAMES = [
    "a-0.tar",
    "a-1.tar",
    "a-2.tar",
    "a-10.tar",
    "b.json",
    ".hidden.tar",
    "_meta.tar",
    ".shardex/x.tar",
    "sub/c-1.tar",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "data"


def test_find_folder(folder: Path) -> None:
    files = find(folder)
    assert files.folder
    assert files.what == str(files) == str(folder)
    assert files.source.url == str(folder)
    assert sorted(files.paths) == sorted(NAMES)
    assert files.having(".tar").paths == ("a-0.tar", "a-1.tar", "a-2.tar", "a-10.tar", "sub/c-1.tar")
    assert files.having(".json", ".jsonl").paths == ("b.json",)
    assert files.having(".TAR").paths == ()
    assert files.having(".tar").folder
    assert files.name(files.paths.index("sub/c-1.tar")) == str(folder / "sub/c-1.tar")


def test_find_empty_folder(tmp_path: Path) -> None:
    assert find(tmp_path).paths == ()


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a-0.tar", ["a-0.tar"]),
        ("*.tar", ["_meta.tar", "a-0.tar", "a-1.tar", "a-2.tar", "a-10.tar"]),
        ("a-?.tar", ["a-0.tar", "a-1.tar", "a-2.tar"]),
        ("a-[12].tar", ["a-1.tar", "a-2.tar"]),
        ("**/*.tar", ["_meta.tar", "a-0.tar", "a-1.tar", "a-2.tar", "a-10.tar", "sub/c-1.tar"]),
        ("*", ["_meta.tar", "a-0.tar", "a-1.tar", "a-2.tar", "a-10.tar", "b.json"]),
        ("a-{0..2}.tar", ["a-0.tar", "a-1.tar", "a-2.tar"]),
        ("a-{10,1}.tar", ["a-10.tar", "a-1.tar"]),
        ("{a-1*,b}.{tar,json}", None),
        ("{a-1*.tar,b.json}", ["a-1.tar", "a-10.tar", "b.json"]),
        ("{sub,a-0.tar}", ["sub/c-1.tar", "a-0.tar"]),
    ],
)
def test_find_patterns(folder: Path, pattern: str, paths: list[str] | None) -> None:
    what = str(folder / pattern)
    if paths is None:
        with pytest.raises(NotFoundError, match="nothing matches a part of"):
            find(what)
        return
    files = find(what)
    assert [files.name(k) for k in range(len(files.paths))] == [str(folder / path) for path in paths]
    assert all(os.path.isfile(files.name(k)) for k in range(len(files.paths)))
    assert not files.folder
    assert (find(files.what).what, find(files.what).paths) == (files.what, files.paths)


def test_existing_name_is_not_treated_as_pattern(tmp_path: Path) -> None:
    for name in ("a[1].tar", "{x,y}.tar", "12:30.tar"):
        (tmp_path / name).write_bytes(b"")
        assert find(tmp_path / name).paths == (name,)


def test_find_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = find([folder / "a-10.tar", str(folder / "sub/c-1.tar"), str(folder / "a-[01].tar")])
    assert files.paths == ("a-10.tar", "sub/c-1.tar", "a-0.tar", "a-1.tar")
    assert str(files) == f"4 files from {folder / 'a-10.tar'} on"
    assert find([str(folder / "sub"), str(folder / "b.json")]).paths == ("sub/c-1.tar", "b.json")
    assert find([str(folder)]).paths == ("a-0.tar", "a-1.tar", "a-2.tar", "a-10.tar", "b.json", "sub/c-1.tar")
    monkeypatch.chdir(folder)
    assert find(["a-1.tar", "a-0.tar"]).paths == ("a-1.tar", "a-0.tar")
    assert find("a-1.tar").what == str(folder / "a-1.tar")


def test_home_folder_and_file_urls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    for what in ("~/a-0.tar", f"file://{folder}/a-0.tar", f"file:{folder}/a-0.tar"):
        assert find(what).what == str(folder / "a-0.tar")
        assert find([what]).what == (str(folder / "a-0.tar"),)


@pytest.mark.parametrize("what", ["nowhere", "nowhere/*.tar", "a-{2..4}.tar", "*.nothing", "su[b]", "a-0.tar/x"])
def test_missing_file_raises(folder: Path, what: str) -> None:
    for spelled in (str(folder / what), [str(folder / "a-0.tar"), str(folder / what)]):
        with pytest.raises(NotFoundError) as caught:
            find(spelled)
        assert str(folder) in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)


def test_empty_list_raises() -> None:
    with pytest.raises(NotFoundError, match="at least one file"):
        find([])


@pytest.mark.parametrize("what", ["pipe:cat x", "pipe:curl http://x/y.tar"])
def test_pipe_urls_run_no_command(what: str) -> None:
    for spelled in (what, [what]):
        with pytest.raises(UnsafeError, match="never runs commands"):
            find(spelled)


@pytest.mark.parametrize("what", ["gopher://host/x.tar", "ssh://host/x"])
def test_unknown_scheme_raises(what: str) -> None:
    for spelled in (what, [what]):
        with pytest.raises(PathError, match="expected an address that begins with"):
            find(spelled)
    with pytest.raises(UnknownFormatError, match="expected a local path"):
        absolute_path(what)


@pytest.mark.parametrize("what", [3, None, [3], b"bytes", {"a": 1}, {"a"}])
def test_wrong_type_raises(what: Any) -> None:
    with pytest.raises((ArgumentError, ShardexError), match="expected a path, a pattern or a list of them"):
        find(what)


def test_folder_that_is_removed_meanwhile_is_named(folder: Path) -> None:
    files = find(folder)
    shutil.rmtree(folder)
    with pytest.raises(NotFoundError, match="cannot list: .*" + re.escape(str(folder))):
        _ = files.has_linked_folders


def test_files_are_picklable(folder: Path) -> None:
    files = find(folder)
    again = pickle.loads(pickle.dumps(files))
    assert (again.paths, again.what, again.source.url) == (files.paths, files.what, files.source.url)
