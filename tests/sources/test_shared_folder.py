"""`SharedFolder`: temporary folders that several runs use at the same time."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardex.errors import NotFoundError
from shardex.sources import SharedFolder, open_source, shared_folder


@pytest.fixture
def local(tmp_path: Path) -> SharedFolder:
    return shared_folder(str(tmp_path), ".out.0.job")


@pytest.fixture
def store(tmp_path: Path) -> SharedFolder:
    return shared_folder(f"memory://{tmp_path.name}", ".out.0.job")


def second(folder: SharedFolder) -> SharedFolder:
    """The same folder as another run opens it."""
    return shared_folder(folder.around.url, folder.name)


def test_the_first_run_sweeps_and_others_do_not(local: SharedFolder) -> None:
    swept: list[str] = []
    with local.opened(lambda: swept.append("first")):
        assert os.path.isdir(local.url)
        other = second(local)
        with other.opened(lambda: swept.append("second")):
            assert not other.is_unused()
        assert local.is_unused()
    with second(local).opened(lambda: swept.append("third")):
        assert swept == ["first", "third"]


def test_one_run_at_a_time_holds_a_lock(local: SharedFolder) -> None:
    local.place.make_root()
    with local.locked("commit.lock") as alone:
        assert alone
    shutil.rmtree(local.url)
    with pytest.raises(FileNotFoundError), local.locked("commit.lock"):
        pass


def test_a_local_folder_ends_by_one_rename(local: SharedFolder) -> None:
    local.place.put("parts/1", b"")
    assert local.exists("fields.json") and not local.is_elsewhere() and not local.is_ended
    removed: list[str] = []

    def remove(name: str) -> None:
        removed.append(name)
        assert local.is_ended and not os.path.exists(local.url)

    local.end(lambda: pytest.fail("noted"), remove)
    assert removed == [".out.0.job", ".out.0.job.removed"]
    assert local.is_elsewhere() and not local.exists("fields.json")


def test_a_folder_that_is_removed_again_and_again(local: SharedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def removed(path: str, *arguments: int, **options: Any) -> int:
        with suppress(OSError):
            os.rmdir(local.url)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", removed)
    with pytest.raises(NotFoundError, match="removed it again and again"), local.opened(lambda: None):
        pass


def test_a_folder_in_a_store_ends_by_a_note(store: SharedFolder) -> None:
    with store.opened(lambda: pytest.fail("swept")), store.locked("commit.lock") as alone:
        assert not alone and not store.is_unused()
    assert not store.exists("fields.json")
    store.place.put("fields.json", b"")
    assert store.exists("fields.json") and not store.is_elsewhere()
    steps: list[str] = []
    store.end(lambda: steps.append("noted"), steps.append)
    assert steps == ["noted", ".out.0.job"] and not store.is_ended
    assert open_source(store.url).paths() == ["fields.json"]
