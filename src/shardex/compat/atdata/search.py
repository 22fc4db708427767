"""Search for datasets: in an index, in an AppView of ATProto, in several places."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from shardex.compat.atdata._appview_search import AppViewSearchBackend
from shardex.compat.atdata._exceptions import AtdataError
from shardex.compat.atdata._logging import get_logger

__all__ = [
    "AppViewSearchBackend",
    "LocalSearchBackend",
    "SearchAggregator",
    "SearchBackend",
    "SearchResult",
    "SearchResults",
]


@dataclass
class SearchResult:
    """One dataset that was found; `uri` is its address, or its identifier in an index."""

    uri: str
    name: str
    description: str | None = None
    tags: list[str] = field(default_factory=list)
    schema_ref: str | None = None
    source: str = "unknown"
    score: float | None = None
    record: dict[str, Any] | None = None


@dataclass
class SearchResults:
    """Datasets that were found; `cursor` asks for those after them, `total_hint` is how many there are, if known."""

    items: list[SearchResult] = field(default_factory=list)
    cursor: str | None = None
    total_hint: int | None = None
    source: str = "unknown"


@runtime_checkable
class SearchBackend(Protocol):
    """A place in which datasets are searched."""

    @property
    def name(self) -> str:
        """The name of the place."""

    def search(
        self,
        text: str | None = None,
        tags: list[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SearchResults:
        """Return datasets that fit all of what is given."""

    def health_check(self) -> bool:
        """Return whether the place answers."""


class LocalSearchBackend:
    """Search in the repositories of an index."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @property
    def name(self) -> str:
        """``local``."""
        return "local"

    def search(
        self,
        text: str | None = None,
        tags: list[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SearchResults:
        """Return datasets with a text in their name, with all of the tags, with the schema, in the repository."""
        known = getattr(self._index, "repos", {})
        entries = self._index.datasets if repo is None else self._index.list_datasets(repo) if repo in known else ()
        wanted, tagged = (text or "").lower(), set(tags or ())
        found = [
            one
            for one in entries
            if wanted in one.name.lower()
            and schema_ref in (None, one.schema_ref)
            and tagged <= set(_tags(one.metadata or {}))
        ]
        begin = int(cursor or 0)
        end = begin + limit
        items = [
            SearchResult(
                getattr(one, "cid", None) or one.uri,
                one.name,
                (one.metadata or {}).get("description"),
                _tags(one.metadata or {}),
                one.schema_ref,
                "local",
            )
            for one in found[begin:end]
        ]
        return SearchResults(items, str(end) if end < len(found) else None, len(found), "local")

    def health_check(self) -> bool:
        """Return True."""
        return True


def _tags(metadata: dict[str, Any]) -> list[str]:
    found = metadata.get("tags")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


class SearchAggregator:
    """Search in several places; one that fails is left out, with a warning in the log."""

    def __init__(self, backends: list[SearchBackend]) -> None:
        self._backends = backends

    def search(
        self,
        text: str | None = None,
        tags: list[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SearchResults:
        """Return the datasets of all places, those with the highest score first; of one name only the first."""
        found: list[SearchResult] = []
        for one in self._backends:
            try:
                if one.health_check():
                    found += one.search(text, tags, schema_ref, repo, limit).items
                    continue
                problem = "it does not answer"
            except Exception as error:  # a backend is any code
                problem = str(error)
            get_logger().warning("the search in %s is left out: %s", one.name, problem)
        unique = _without_repeats(found)
        unique.sort(key=lambda one: (one.score is None, -(one.score or 0), one.name))
        return SearchResults(unique[:limit], None, len(unique), "aggregated")


def _without_repeats(items: Iterable[SearchResult]) -> list[SearchResult]:
    """Return the first result of each address and of each name."""
    uris, names, unique = set[str](), set[str](), list[SearchResult]()
    for one in items:
        if one.uri not in uris and one.name.lower() not in names:
            unique.append(one)
            uris.add(one.uri)
            names.add(one.name.lower())
    return unique


def search_index(index: Any, include_atmosphere: bool, *wanted: Any) -> SearchResults:
    """Search in an index, and in the AppView of its session if it has one."""
    backends: list[Any] = [LocalSearchBackend(index)]
    if include_atmosphere and (client := _session(index)) is not None and client.has_appview:
        backends.append(AppViewSearchBackend(client))
    return SearchAggregator(backends).search(*wanted)


def _session(index: Any) -> Any:
    """Return the session of an index; None without one."""
    try:
        return index.atmosphere
    except (AtdataError, ImportError) as error:
        get_logger().warning("the search in ATProto is left out: %s", error)
        return None
