"""Uploads: files appear at a URL one by one, under a claim that keeps others away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardex.errors import AlreadyExistsError, SourceError
from shardex.files import Stage, publication_at, visible_paths
from shardex.files.append_together import CLAIM
from shardex.files.publication import put_claimed
from shardex.sources import open_source
from shardex.sources.memory import MemorySource


class FailingPlace(MemorySource):
    """A place where one file cannot be written."""

    def put(self, path: str, data: Any) -> None:
        if path == "2":
            raise SourceError(5, "no")
        super().put(path, data)


def upload(files: Sequence[str], place: MemorySource) -> None:
    def put(paths: Sequence[str]) -> None:
        for path in paths:
            place.put(path, b"1")

    put_claimed(place, files, put)


def test_upload_removes_its_files_after_an_error() -> None:
    place = FailingPlace()
    with pytest.raises(SourceError):
        upload(["1", "2"], place)
    assert list(place.files) == []


@pytest.mark.parametrize(
    ("existing", "problem"), [(".shardex/claim", "another writer is writing here"), ("a", "another writer wrote here")]
)
def test_upload_raises_if_another_writer_was_there(existing: str, problem: str) -> None:
    place = MemorySource({existing: b""})
    with pytest.raises(AlreadyExistsError, match=problem):
        upload(["1"], place)
    assert list(place.files) == [existing]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}/out"


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_files_are_published_at_an_empty_url_only(url: str, mode: str) -> None:
    stage = Stage(url, mode, publish_last=["a.json"])
    stage.place.put("a.json", b"{}")
    stage.place.put("b", b"1")
    assert stage.existing == [] and stage.next_number("part", ".txt") == 0
    stage.publish()
    place = open_source(url)
    assert isinstance(place, MemorySource) and list(place.files) == ["b", "a.json"]
    with pytest.raises(AlreadyExistsError, match="at a URL files of this format are not replaced or added to"):
        Stage(url, mode)


def test_a_killed_run_is_continued_by_the_next_one_of_the_job(url: str) -> None:
    place, copied = open_source(url), list[str]()

    def copy(names: Mapping[str, str], to: str | None) -> None:
        assert to is None
        copied.extend(names.values())
        for name in names.values():
            place.put(name, b"1")

    def publish(owner: str) -> list[str]:
        stage = Stage(url, "create", publish_last=["head"], owner=owner)
        stage.add({"parts/0/x": "x", "parts/0/head": "head"}, copy)
        stored: list[str] = []
        stage.publish(stored=lambda: stored.extend(place.paths()))
        return stored

    place.put(CLAIM, b"mine")
    place.put("x", b"")
    with pytest.raises(AlreadyExistsError, match="another writer is writing here"):
        publish("theirs")
    assert not copied
    assert publish("mine") == [CLAIM, "head", "x"], "the claim is removed after `stored`"
    assert copied == ["x", "head"] and visible_paths(place) == ["head", "x"]


def test_an_upload_was_made_if_all_is_stored_and_the_claim_removed(url: str) -> None:
    place, publication = open_source(url), publication_at(url)
    assert not publication.can_append and publication.state(".txt") is None
    assert not publication.was_made([], is_stored=True)
    place.put("x", b"")
    assert publication.was_made([], is_stored=True) and not publication.was_made([], is_stored=False)
    place.put(CLAIM, b"")
    assert not publication.was_made([], is_stored=True)
