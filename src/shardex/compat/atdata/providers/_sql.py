"""`SqlProvider`: the tables of atdata in a database of SQL; its two dialects are subclasses."""

from collections.abc import Iterator, Sequence
from typing import Any

from shardex.compat.atdata._exceptions import EntryNotFoundError
from shardex.compat.atdata.index._entry import LocalDatasetEntry
from shardex.compat.atdata.providers._base import IndexProvider, Label, Stored, _find_latest_semver

_ENTRY = ("cid", "name", "schema_ref", "data_urls", "metadata", "legacy_uuid")
_NAMED = "name TEXT NOT NULL, version TEXT NOT NULL, {} TEXT NOT NULL, created_at {{time}}, PRIMARY KEY (name, version)"
TABLES = {
    "dataset_entries": "cid TEXT PRIMARY KEY, name TEXT NOT NULL, schema_ref TEXT NOT NULL, data_urls {blob} NOT NULL, "
    "metadata {blob}, legacy_uuid TEXT, created_at {time}",
    "schemas": _NAMED.format("schema_json"),
    "lenses": _NAMED.format("lens_json"),
    "labels": "name TEXT NOT NULL, cid TEXT NOT NULL, version TEXT NOT NULL DEFAULT '', description TEXT, "
    "created_at {time}, PRIMARY KEY (name, version)",
}
INDEXES = ("idx_entries_name ON dataset_entries(name)", "idx_labels_cid ON labels(cid)")


class SqlProvider(IndexProvider):
    """An index in tables; a subclass runs statements, replaces rows, and says which row was stored last."""

    newest: str
    """What sorts rows from the newest to the oldest."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement with ``?`` for each value, as one transaction, and return its rows."""
        raise NotImplementedError

    def replace(self, table: str, keys: Sequence[str], row: dict[str, Any]) -> None:
        """Store a row in place of the one with the same keys, with the time of now."""
        raise NotImplementedError

    def make_tables(self, **types: str) -> None:
        """Make the tables and indexes that do not exist."""
        for name, columns in TABLES.items():
            self.run(f"CREATE TABLE IF NOT EXISTS {name} ({columns.format(**types)})")
        for index in INDEXES:
            self.run(f"CREATE INDEX IF NOT EXISTS {index}")

    def _entries(self, rest: str = "", *values: str) -> list[LocalDatasetEntry]:
        rows = self.run(f"SELECT {', '.join(_ENTRY)} FROM dataset_entries {rest}", values)
        return [LocalDatasetEntry.from_stored(dict(zip(_ENTRY, row, strict=True))) for row in rows]

    def store_entry(self, entry: LocalDatasetEntry) -> None:
        self.replace("dataset_entries", ["cid"], dict.fromkeys(_ENTRY) | entry.to_stored())

    def get_entry_by_cid(self, cid: str) -> LocalDatasetEntry:
        for found in self._entries("WHERE cid = ?", cid):
            return found
        raise EntryNotFoundError(f"LocalDatasetEntry not found: {cid}")

    def get_entry_by_name(self, name: str) -> LocalDatasetEntry:
        for found in self._entries(f"WHERE name = ? ORDER BY {self.newest} LIMIT 1", name):
            return found
        raise EntryNotFoundError(f"No entry with name: {name}")

    def iter_entries(self) -> Iterator[LocalDatasetEntry]:
        return iter(self._entries())

    def store_schema(self, name: str, version: str, schema_json: str) -> None:
        self._store("schemas", name, version, schema_json=schema_json)

    def get_schema_json(self, name: str, version: str) -> str | None:
        return self._text("SELECT schema_json FROM schemas WHERE name = ? AND version = ?", name, version)

    def iter_schemas(self) -> Iterator[Stored]:
        return map(tuple, self.run("SELECT name, version, schema_json FROM schemas"))

    def find_latest_version(self, name: str) -> str | None:
        return _find_latest_semver(row[0] for row in self.run("SELECT version FROM schemas WHERE name = ?", [name]))

    def store_label(self, name: str, cid: str, version: str | None = None, description: str | None = None) -> None:
        self._store("labels", name, version or "", cid=cid, description=description)

    def get_label(self, name: str, version: str | None = None) -> tuple[str, str | None]:
        which, values = ("", [name]) if version is None else ("AND version = ?", [name, version])
        order = f"ORDER BY {self.newest} LIMIT 1"
        for cid, found in self.run(f"SELECT cid, version FROM labels WHERE name = ? {which} {order}", values):
            return cid, found or None
        raise EntryNotFoundError.of_label(name, version)

    def iter_labels(self) -> Iterator[Label]:
        rows = self.run("SELECT name, cid, version FROM labels")
        return ((name, cid, version or None) for name, cid, version in rows)

    def store_lens(self, name: str, version: str, lens_json: str) -> None:
        self._store("lenses", name, version, lens_json=lens_json)

    def get_lens_json(self, name: str, version: str) -> str | None:
        return self._text("SELECT lens_json FROM lenses WHERE name = ? AND version = ?", name, version)

    def iter_lenses(self) -> Iterator[Stored]:
        return map(tuple, self.run("SELECT name, version, lens_json FROM lenses"))

    def _store(self, table: str, name: str, version: str, **more: str | None) -> None:
        self.replace(table, ["name", "version"], {"name": name, "version": version, **more})

    def _text(self, statement: str, *values: str) -> str | None:
        rows = self.run(statement, values)
        return str(rows[0][0]) if rows else None
