"""Search for datasets, which waits for the catalog."""

from shardex.compat.atdata._waiting import FILES, Waiting

__all__ = [
    "AppViewSearchBackend",
    "LocalSearchBackend",
    "SearchAggregator",
    "SearchBackend",
    "SearchResult",
    "SearchResults",
]


class SearchResult(Waiting, instead=FILES):
    """One dataset that was found."""


class SearchResults(Waiting, instead=FILES):
    """Datasets that were found."""


class SearchBackend(Waiting, instead=FILES, methods="name search health_check"):
    """A place in which datasets are searched."""


class AppViewSearchBackend(SearchBackend, instead=FILES, methods="name search health_check"):
    """Search in an AppView of ATProto."""


class LocalSearchBackend(SearchBackend, instead=FILES, methods="name search health_check"):
    """Search in a local index."""


class SearchAggregator(Waiting, instead=FILES, methods="search"):
    """Search in several places."""
