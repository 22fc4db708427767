"""`AppViewSearchBackend`: search for datasets in an AppView of ATProto."""

from collections.abc import Sequence
from typing import Any

from shardex.compat.atdata import search
from shardex.compat.atdata.atmosphere._types import LEXICON_NAMESPACE
from shardex.errors import ShardexError


class AppViewSearchBackend:
    """Searches in the AppView of an `Atmosphere`."""

    def __init__(self, atmosphere: Any) -> None:
        self._atmosphere = atmosphere

    @property
    def name(self) -> str:
        """What results have as their source."""
        return "atmosphere"

    def search(
        self,
        text: str | None = None,
        tags: Sequence[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Any:
        """Return the datasets that the AppView finds, at most 100 at once."""
        asked = {"q": text, "tags": tags, "schemaRef": schema_ref, "repo": repo, "cursor": cursor}
        known = {"limit": min(limit, 100), **{name: one for name, one in asked.items() if one is not None}}
        found = self._atmosphere.xrpc_query(f"{LEXICON_NAMESPACE}.searchDatasets", params=known)
        kinds: Any = search
        items = [
            kinds.SearchResult(
                uri=entry.get("uri", ""),
                name=entry.get("name", ""),
                description=entry.get("description"),
                tags=entry.get("tags") or [],
                schema_ref=entry.get("schemaRef"),
                source=self.name,
                record=entry,
            )
            for entry in found.get("entries") or []
        ]
        return kinds.SearchResults(items=items, cursor=found.get("cursor"), source=self.name)

    def health_check(self) -> bool:
        """Return True if the AppView answers."""
        try:
            self._atmosphere.xrpc_query(f"{LEXICON_NAMESPACE}.describeService")
        except ShardexError:
            return False
        return True
