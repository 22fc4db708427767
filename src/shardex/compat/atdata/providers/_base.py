"""What a database of an index does; a provider for another database is a subclass of `IndexProvider`."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from shardex.compat.atdata._type_utils import parse_semver
from shardex.compat.atdata.index._entry import LocalDatasetEntry
from shardex.errors import ArgumentError

Stored = tuple[str, str, str]
"""The name, the version and the JSON text of a schema or a lens."""
Label = tuple[str, str, str | None]
"""A name, the identifier of the entry that it means, and a version."""


class IndexProvider(ABC):
    """Entries, schemas, labels and lenses in a database. Of several with one name, the one stored last is returned."""

    @abstractmethod
    def store_entry(self, entry: LocalDatasetEntry) -> None:
        """Store an entry; one with the same identifier is replaced."""

    @abstractmethod
    def get_entry_by_cid(self, cid: str) -> LocalDatasetEntry:
        """Return the entry with an identifier; `KeyError` if there is none."""

    @abstractmethod
    def get_entry_by_name(self, name: str) -> LocalDatasetEntry:
        """Return the entry with a name; `KeyError` if there is none."""

    @abstractmethod
    def iter_entries(self) -> Iterator[LocalDatasetEntry]:
        """Yield all entries."""

    @abstractmethod
    def store_schema(self, name: str, version: str, schema_json: str) -> None:
        """Store the record of a schema; one of the same version is replaced."""

    @abstractmethod
    def get_schema_json(self, name: str, version: str) -> str | None:
        """Return the record of a schema, `None` if there is none."""

    @abstractmethod
    def iter_schemas(self) -> Iterator[Stored]:
        """Yield the name, the version and the record of all schemas."""

    def find_latest_version(self, name: str) -> str | None:
        """Return the highest version of a schema, `None` if there is none."""
        return _find_latest_semver(version for one, version, _ in self.iter_schemas() if one == name)

    @abstractmethod
    def store_label(self, name: str, cid: str, version: str | None = None, description: str | None = None) -> None:
        """Let a name, or a version of it, mean an entry."""

    @abstractmethod
    def get_label(self, name: str, version: str | None = None) -> tuple[str, str | None]:
        """Return the identifier and the version of a label, of the newest without `version`; `KeyError` if none is."""

    @abstractmethod
    def iter_labels(self) -> Iterator[Label]:
        """Yield the name, the identifier of the entry and the version of all labels."""

    @abstractmethod
    def store_lens(self, name: str, version: str, lens_json: str) -> None:
        """Store the record of a lens; one of the same version is replaced."""

    @abstractmethod
    def get_lens_json(self, name: str, version: str) -> str | None:
        """Return the record of a lens, `None` if there is none."""

    @abstractmethod
    def iter_lenses(self) -> Iterator[Stored]:
        """Yield the name, the version and the record of all lenses."""

    def find_latest_lens_version(self, name: str) -> str | None:
        """Return the highest version of a lens, `None` if there is none."""
        return _find_latest_semver(version for one, version, _ in self.iter_lenses() if one == name)

    def find_lenses_by_schemas(self, source_schema: str, view_schema: str | None = None) -> list[Stored]:
        """Return the lenses from a schema, or from one to another; records that are no JSON objects are left out."""
        wanted = {"source_schema": source_schema} | ({} if view_schema is None else {"view_schema": view_schema})
        return [one for one in self.iter_lenses() if wanted.items() <= _texts_of(one[2]).items()]

    def close(self) -> None:  # noqa: B027 - a database may have no connection
        """Close the connection."""


def _texts_of(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {key: one for key, one in found.items() if isinstance(one, str)} if isinstance(found, dict) else {}


def _find_latest_semver(versions: Iterable[str]) -> str | None:
    """Return the highest version; texts that are no versions are left out.

    >>> _find_latest_semver(["1.9.0", "1.10.0", "draft"])
    '1.10.0'
    """

    def key(version: str) -> tuple[int, ...]:
        try:
            return parse_semver(version)
        except ArgumentError:
            return ()

    return max(filter(key, versions), key=key, default=None)
