"""Saved listings of folders of very many files: used as long as no folder has changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import shardex as sx
from shardex.errors import StaleIndexError
from shardex.files import Files, find, folder_listing, list_folder

LONG_AGO = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folder_listing, "SAVED_FILES", 1)
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    for name in ("a/1.png", "a/2.png", "b/10.png", "b/9.png", "readme.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    for one in (root, root / "a", root / "b"):
        os.utime(one, (LONG_AGO, LONG_AGO))
    return root


def listed(folder: Path) -> dict[str, int]:
    listing = list_folder(find(folder))
    return dict(zip(listing.paths, listing.sizes.tolist(), strict=True))


def walks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> bool:
    """Return whether the files must be listed again."""
    with monkeypatch.context() as patch:
        patch.setattr(folder_listing, "_walk", None)
        try:
            listed(folder)
        except TypeError:
            return True
    return False


EVERY = {"a/1.png": 7, "a/2.png": 7, "b/9.png": 7, "b/10.png": 8, "readme.md": 9}


def test_a_listing_is_saved_and_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(listed(folder).items()) == list(EVERY.items())
    assert len(list((folder / ".shardex").glob("listing-*.arrow"))) == 1
    assert not walks(monkeypatch, folder)
    assert list(listed(folder).items()) == list(EVERY.items())
    assert find(folder).paths == tuple(EVERY)
    moved = folder.rename(folder.with_name("moved"))
    assert not walks(monkeypatch, moved) and listed(moved) == EVERY


def test_a_changed_folder_is_listed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(folder)
    (folder / "a" / "3.png").write_bytes(b"new")
    assert walks(monkeypatch, folder) and listed(folder) == EVERY | {"a/3.png": 3}
    (folder / "a" / "3.png").unlink()
    assert walks(monkeypatch, folder) and listed(folder) == EVERY
    (folder / "draft").write_bytes(b"another")
    os.utime(folder / "draft", (LONG_AGO, LONG_AGO))
    (folder / "draft").rename(folder / "b" / "9.png")
    assert walks(monkeypatch, folder) and listed(folder)["b/9.png"] == 7
    (folder / "b").rename(folder / "c")
    assert walks(monkeypatch, folder) and "c/9.png" in listed(folder)
    (folder / "d").mkdir()
    assert walks(monkeypatch, folder)


def test_a_folder_that_changed_just_before_it_was_listed_is_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes at one tick of the clock leave the same time."""
    (folder / "a" / "3.png").write_bytes(b"new")
    before = (folder / "a").stat()
    listed(folder)
    assert not walks(monkeypatch, folder)
    (folder / "a" / "4.png").write_bytes(b"new")
    os.utime(folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert walks(monkeypatch, folder) and "a/4.png" in listed(folder)


def test_a_file_written_in_place_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_listing, "_LOOKED_AT", 2)
    for k in range(20):
        (folder / "b" / f"{k:04d}.png").write_bytes(b"x")
    os.utime(folder / "b", (LONG_AGO, LONG_AGO))
    assert sx.open(folder).rows.shards(np.array([0]))
    with (folder / "b" / "0007.png").open("ab") as file:
        file.write(b"more")
    rows = sx.open(folder, schema={"image": bytes}).rows
    row = rows.read(np.arange(len(rows)), ["path"])["path"].index("b/0007.png")
    with pytest.raises(StaleIndexError, match=r"0007\.png: expected the file as when it was opened, it has changed"):
        rows.read(np.array([row]), ["image"])
    assert sx.open(folder, schema={"image": bytes}).rows.read(np.array([row]), ["image"])["image"] == [b"xmore"]
    with (folder / "b" / "0009.png").open("ab") as file:
        file.write(b"more")
    rows = sx.open(folder, schema={"image": bytes}, rebuild=True).rows
    assert rows.read(np.array([row + 2]), ["image"])["image"] == [b"xmore"]


def test_a_damaged_listing_is_made_again(folder: Path) -> None:
    listed(folder)
    (path,) = (folder / ".shardex").glob("listing-*.arrow")
    data = bytearray(path.read_bytes())
    at = data.index(b"b/10.png")
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="expected the list of files that was written, got other bytes; listing the"):
        assert listed(folder) == EVERY


def test_few_files_are_not_saved(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"1")
    assert listed(tmp_path) == {"1.png": 1} and not (tmp_path / ".shardex").exists()
    assert isinstance(find(tmp_path), Files)
