"""What publishers and loaders of all kinds of records have in common; an AppView is asked first if there is one."""

from collections.abc import Mapping
from typing import Any, ClassVar

from shardex.compat.atdata._exceptions import SchemaError
from shardex.compat.atdata._logging import get_logger
from shardex.compat.atdata.atmosphere._lexicon_types import _Lexicon, has_fraction
from shardex.compat.atdata.atmosphere._types import LEXICON_NAMESPACE, AtUri
from shardex.compat.atdata.atmosphere.client import collections_of
from shardex.errors import ArgumentError, ShardexError


class Publisher:
    """Writes records of one kind."""

    PROCEDURE: ClassVar[str]
    """The procedure of an AppView that checks a record before it is written."""

    def __init__(self, client: Any) -> None:
        """`client` is an `Atmosphere` with a session."""
        self.client = client

    def _create(self, record: _Lexicon, rkey: str | None) -> AtUri:
        """Create a record, and return its address."""
        plain = record.to_record()
        if wrong := [name for name, value in plain.items() if has_fraction(value)]:
            raise ArgumentError(
                f"expected whole numbers, as records on ATProto have no others, got fractions in {', '.join(wrong)}: "
                "round them, or write them as text"
            )
        if getattr(self.client, "has_appview", False) is True:
            body = {"record": plain, **({} if rkey is None else {"rkey": rkey})}
            found = self.client.xrpc_procedure(f"{LEXICON_NAMESPACE}.{self.PROCEDURE}", input=body)["uri"]
        else:
            found = self.client.create_record(collection=plain["$type"], record=plain, rkey=rkey, validate=False)
        return found if isinstance(found, AtUri) else AtUri.parse(found)


class Loader:
    """Reads records of one kind."""

    KIND: ClassVar[str]
    CALLED: ClassVar[str]
    """What errors call such a record."""
    TYPE: ClassVar[type[_Lexicon]]

    def __init__(self, client: Any) -> None:
        """`client` is an `Atmosphere`, also one without a session."""
        self.client = client

    def get(self, uri: str | AtUri) -> dict[str, Any]:
        """Return a record."""
        return self._checked(self.client.get_record(uri), uri)

    def _checked(self, record: Mapping[str, Any], uri: str | AtUri) -> dict[str, Any]:
        """Return a record if it is one of this kind, also one of an old version."""
        expected = collections_of(self.KIND)
        if record.get("$type") not in expected:
            raise SchemaError(
                f"Record at {uri} is not a {self.CALLED} record. "
                f"Expected $type='{expected[0]}', got '{record.get('$type')}'"
            )
        return record  # type: ignore[return-value]

    def _from_appview(self, method: str, **parameters: Any) -> dict[str, Any] | None:
        """Return the answer of the AppView; None if there is no AppView, or with a warning if it does not answer."""
        if getattr(self.client, "has_appview", False) is not True:
            return None
        known = {name: value for name, value in parameters.items() if value is not None}
        try:
            found: dict[str, Any] = self.client.xrpc_query(f"{LEXICON_NAMESPACE}.{method}", params=known)
        except ShardexError:
            get_logger().warning("the AppView does not answer %s, servers of accounts are asked", method, exc_info=True)
            return None
        return found

    def _all_from_appview(self, method: str, name: str, repo: str | None, limit: int) -> list[dict[str, Any]] | None:
        """Return the records that the AppView lists, page by page; None as `_from_appview`."""
        found: list[dict[str, Any]] = []
        cursor = None
        while len(found) < limit:
            page = self._from_appview(method, repo=repo, cursor=cursor, limit=min(limit, 100))
            if page is None:
                return None
            found += page.get(name) or []
            cursor = page.get("cursor")
            if not cursor or not page.get(name):
                break
        return found[:limit]

    def _matching(self, repo: str | None, wanted: Mapping[str, Any], limit: int | None = None) -> list[dict[str, Any]]:
        """Return the records of an account that have these values; all pages are read until there are enough."""
        if repo is None:
            self.client._ensure_authenticated()
            repo = self.client.did
        found: list[dict[str, Any]] = []
        for collection in collections_of(self.KIND):
            cursor, seen = None, set[str | None]()
            while cursor not in seen and (limit is None or len(found) < limit):
                seen.add(cursor)
                page, cursor = self.client.list_records(collection, repo=repo, limit=100, cursor=cursor)
                found += [one for one in page if all(one.get(name) == value for name, value in wanted.items())]
                if not cursor:
                    break
        return found[:limit]
