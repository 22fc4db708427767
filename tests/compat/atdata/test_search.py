"""Search in indexes, and in several places."""

from pathlib import Path
from typing import Any

import pytest

from shardex.compat.atdata import (
    Index,
    LocalSearchBackend,
    SearchAggregator,
    SearchBackend,
    SearchResult,
    SearchResults,
    create_repository,
    packable,
    write_samples,
)


@packable
class Point:
    x: int


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """An index with four datasets, one of them in another repository."""
    made = Index(
        "sqlite",
        path=tmp_path / "index.db",
        atmosphere=None,
        repos={"lab": create_repository(path=tmp_path / "lab.db")},
    )
    for number, (name, tags) in enumerate(
        [("mnist-train", ["image", "digits"]), ("mnist-test", ["image"]), ("wiki", []), ("@lab/mnist", ["image"])]
    ):
        shards = write_samples([Point(1)], tmp_path / f"{number}.tar")
        made.insert_dataset(shards, name=name, tags=tags, description=f"about {name}")
    return made


def names(found: SearchResults) -> list[str]:
    return [one.name for one in found.items]


def test_search(index: Index) -> None:
    assert names(index.search("MNIST")) == ["mnist", "mnist-test", "mnist-train"]
    assert names(index.search(tags=["image", "digits"])) == ["mnist-train"]
    assert names(index.search("wiki", tags=["image"])) == []
    assert len(index.search(schema_ref="atdata://local/schema/Point@1.0.0").items) == 4
    assert index.search(schema_ref="other").total_hint == 0
    assert names(index.search("mnist", repo="lab")) == ["mnist"]
    assert names(index.search("mnist", repo="did:plc:abc")) == []
    first = index.search("wiki").items[0]
    assert (first.uri, first.description, first.source) == (index.get_dataset("wiki").cid, "about wiki", "local")  # type: ignore[attr-defined]


def test_pages(index: Index) -> None:
    backend = LocalSearchBackend(index)
    assert isinstance(backend, SearchBackend) and backend.name == "local" and backend.health_check()
    page = backend.search(limit=3)
    assert (len(page.items), page.cursor, page.total_hint, page.source) == (3, "3", 4, "local")
    last = backend.search(limit=3, cursor=page.cursor)
    assert (names(last), last.cursor) == (["mnist"], None)


class Place:
    """A place that has some results, does not answer, or fails."""

    def __init__(self, name: str, results: list[SearchResult], *, answers: bool = True) -> None:
        self.name, self._results, self._answers = name, results, answers

    def search(self, *_given: Any) -> SearchResults:
        if not self._results:
            raise OSError("out of order")
        return SearchResults(self._results)

    def health_check(self) -> bool:
        return self._answers


def test_several_places(caplog: pytest.LogCaptureFixture) -> None:
    places = [
        Place("a", [SearchResult("1", "b"), SearchResult("2", "a", score=0.5)]),
        Place("b", [SearchResult("1", "x"), SearchResult("3", "B"), SearchResult("4", "c", score=0.9)]),
        Place("mute", [SearchResult("5", "d")], answers=False),
        Place("broken", []),
    ]
    with caplog.at_level("WARNING", "atdata"):
        found = SearchAggregator(places).search()  # type: ignore[arg-type]
    assert names(found) == ["c", "a", "b"]  # by score, then by name; one of each name
    assert (found.source, found.total_hint) == ("aggregated", 3)
    assert "mute is left out: it does not answer" in caplog.text and "out of order" in caplog.text
