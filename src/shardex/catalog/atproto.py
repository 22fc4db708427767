"""`AtprotoAccount`: a catalog that an account publishes on ATProto, ``at://handle``; everybody can read it.

A version is an entry (``science.alt.dataset.entry``), a schema or a lens; its key is made of its name and number. A
label with a key made of the name says which number is the newest one and which is the last that was used; a tag is one
more label. Entry and label change in one commit, which the server refuses if there was another commit since they were
read. Writing needs the password of the account (`storage`).

Entries that other programs wrote are read under names that the catalog does not have.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from shardex.catalog.backend import Backend, readable
from shardex.catalog.foreign_entries import with_versions
from shardex.catalog.lexicon import (
    LABEL,
    SCHEMA,
    collections_of,
    entry_of,
    key_of,
    label_of,
    record_of,
    release_of,
    schema_of,
)
from shardex.catalog.records import CatalogRecord, DatasetRecord, LensRecord, SchemaRecord
from shardex.catalog.xrpc import Account, StoredRecord, XrpcClient, find_account
from shardex.errors import AccessDeniedError, AddressError, ConflictError, FormatError, RemoteWriteError
from shardex.sources import credentials

_ATTEMPTS = 100
_WRITE = "com.atproto.repo.applyWrites"


class AtprotoAccount(Backend):
    """The datasets that an account has published.

    >>> AtprotoAccount("at://Alice.example.com/").url
    'at://alice.example.com'
    """

    def __init__(self, url: str) -> None:
        self._name = url.removeprefix("at://").rstrip("/")
        if not self._name.startswith("did:"):
            self._name = self._name.lower()
        self.url = f"at://{self._name}"
        if not self._name or any(sign in self._name for sign in "/?#@"):
            raise AddressError(f"expected at:// and the handle or DID of an account, got {url!r:.300}")

    # -- reading ----------------------------------------------------------------------------------------------

    def head(self, name: str) -> tuple[CatalogRecord | None, int]:
        """Return the newest record and the last number, by two requests."""
        newest, used = self._numbers(name)
        return (self._record(name, newest) if newest else None), used

    def read(self, name: str, which: int | str | None = None) -> CatalogRecord | None:
        """Return a record: by one request if `which` is a number, else by two."""
        if isinstance(which, str):
            label = self._label(name, which)
            which = _number(label, "tagged") if label else 0
            return self._record(name, which) if which else None
        newest, used = self._numbers(name) if which is None else (which, which)
        if newest and (found := self._record(name, newest)):
            return found
        if (used and which is None) or self._numbers(name)[1]:
            return None
        foreign = self._foreign(name).get(name, [])
        return next((one for one in reversed(foreign) if which in (None, one.number)), None)

    def history(self, name: str) -> list[CatalogRecord]:
        """Return all records of a name, each by one request."""
        used = self._numbers(name)[1]
        if not used:
            return self._foreign(name).get(name, [])
        found = (readable(partial(self._record, name, number)) for number in range(1, used + 1))
        return [record for record in found if record]

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield all names; all labels and entries are listed."""
        own = {str(one.value.get("name")) for one in self._labels() if _number(one.value, "used")}
        return iter(sorted(name for name in {*own, *self._foreign(prefix)} if name.startswith(prefix)))

    def newest(self, prefix: str = "") -> Iterator[CatalogRecord]:
        """Yield the newest records; all entries are listed."""
        own: dict[str, CatalogRecord] = {}
        foreign = []
        for stored, record in self._entries(prefix):
            if not _is_own(stored, record):
                foreign.append(record)
            elif record.key not in own or own[record.key].number < record.number:
                own[record.key] = record
        used = (
            {str(one.value.get("name")) for one in self._labels() if _number(one.value, "used")} if foreign else set()
        )
        others = {name: records[-1] for name, records in with_versions(foreign).items() if name not in used}
        found = {**others, **own}
        return (found[name] for name in sorted(found) if name.startswith(prefix))

    def tags(self, name: str) -> dict[str, int]:
        """Return the tags of a name; all labels are listed."""
        values = [one.value for one in self._labels() if one.value.get("name") == name]
        return {str(one["version"]): number for one in values if (number := _number(one, "tagged"))}

    def _record(self, name: str, version: int) -> CatalogRecord | None:
        stored = self._client.get_record(self._account.did, collections_of(name)[0], key_of(name, str(version)))
        record = record_of(stored, self._account) if stored else None
        if record and (record.key, record.number) != (name, version):
            raise FormatError(f"{self.url}: expected the record of {name}@{version}, got that of {record}")
        return record

    def _label(self, *parts: str) -> dict[str, Any] | None:
        stored = self._client.get_record(self._account.did, LABEL, key_of(*parts))
        if stored and stored.value.get("name") != parts[0]:
            raise FormatError(
                f"{stored.uri}: expected a label of {parts[0]}, got one of {stored.value.get('name')!r:.100}"
            )
        return stored.value if stored else None

    def _numbers(self, name: str) -> tuple[int, int]:
        """Return the newest number of a name, and the last one that was used; 0 for none."""
        label = self._label(name) or {}
        return _number(label, "newest"), _number(label, "used")

    def _labels(self) -> Iterator[StoredRecord]:
        return self._client.list_records(self._account.did, LABEL)

    def _entries(self, key: str) -> Iterator[tuple[StoredRecord, CatalogRecord]]:
        """Yield all records of the kind of a key, also those of other programs, with a warning for damaged ones."""
        for collection in collections_of(key):
            for stored in self._client.list_records(self._account.did, collection):
                if "shardexEntry" in stored.value:
                    continue  # a schema that has no name of its own
                if record := readable(partial(record_of, stored, self._account)):
                    yield stored, record

    def _foreign(self, key: str) -> dict[str, list[CatalogRecord]]:
        """Return the records of the kind of a key that other programs wrote, by name."""
        return with_versions(record for stored, record in self._entries(key) if not _is_own(stored, record))

    def _uri_of_schema(self, ref: str) -> str:
        """Return the URI of a published schema; all schemas are listed."""
        return next((one.uri for one, record in self._entries(SchemaRecord.folder) if str(record) == ref), ref)

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, name: str, version: int, record: CatalogRecord | None) -> bool:
        """Create the entry and move the label, in one commit."""
        writer, collection, key = secrets.token_hex(8), collections_of(name)[0], key_of(name, str(version))

        def change() -> list[dict[str, Any]] | bool:
            newest, used = self._numbers(name)
            if used >= version:
                stored = self._client.get_record(self._account.did, collection, key)
                return bool(stored and stored.value.get("shardexWriter") == writer)  # the answer was lost
            if record is None:
                return [self._moved(name, newest, version, exists=used > 0)]
            moved = self._moved(name, version, version, exists=used > 0)
            if isinstance(record, SchemaRecord | LensRecord):
                return [_change("create", collection, key, release_of(record, writer, self._uri_of_schema)), moved]
            assert isinstance(record, DatasetRecord)
            schema = self._schema(record)
            uri = f"at://{self._account.did}/{SCHEMA}/{schema['rkey']}"
            entry = _change("create", collection, key, entry_of(record, uri, writer))
            new = [] if self._client.get_record(self._account.did, SCHEMA, schema["rkey"]) else [schema]
            return [*new, entry, moved]

        return self._commit(change)

    def _schema(self, record: DatasetRecord) -> dict[str, Any]:
        """Return the change that creates the schema; one schema has one key, whoever uses it."""
        value = schema_of(record)
        return _change("create", SCHEMA, key_of(repr(value)), {**value, "createdAt": _now(), "shardexEntry": True})

    def remove(self, name: str, version: int) -> None:
        """Delete the entry and move the label, in one commit."""

        def change() -> list[dict[str, Any]] | bool:
            newest, used = self._numbers(name)
            if not self._record(name, version):
                return True
            earlier = (number for number in range(newest - 1, 0, -1) if self._record(name, number))
            newest = next(earlier, 0) if newest == version else newest
            gone = _change("delete", collections_of(name)[0], key_of(name, str(version)))
            return [gone, self._moved(name, newest, used, exists=True)]

        self._commit(change)

    def set_tag(self, name: str, tag: str, version: int | None) -> None:
        """Put or delete a label."""
        place = {"repo": self._account.did, "collection": LABEL, "rkey": key_of(name, tag)}
        if version is None:
            self._writer.procedure("com.atproto.repo.deleteRecord", place)
        else:
            # Programs that ask for a name alone take its latest label: that of the newest version, not a tag.
            record = self._record(name, version)
            time = getattr(record, "created", "") or _now()
            label = label_of(name, self._uri(name, version), tag, time, tagged=version)
            self._writer.procedure("com.atproto.repo.putRecord", {**place, "record": label, "validate": False})

    def _moved(self, name: str, newest: int, used: int, *, exists: bool) -> dict[str, Any]:
        """Return the change of the label of a name."""
        label = label_of(name, self._uri(name, newest), str(newest), _now(), newest=newest, used=used)
        return _change("update" if exists else "create", LABEL, key_of(name), label)

    def _uri(self, name: str, version: int) -> str:
        return f"at://{self._account.did}/{collections_of(name)[0]}/{key_of(name, str(version))}"

    def _commit(self, change: Callable[[], list[dict[str, Any]] | bool]) -> bool:
        """Commit what `change` returns if nothing was committed since; a bool is the result without a commit."""
        did = self._account.did
        for _ in range(_ATTEMPTS):
            head = self._writer.query("com.atproto.sync.getLatestCommit", did=did).get("cid")
            writes = change()
            if isinstance(writes, bool):
                return writes
            try:
                body = {"repo": did, "validate": False, "writes": writes, "swapCommit": head}
                self._writer.procedure(_WRITE, body)
            except (ConflictError, RemoteWriteError) as error:
                failure = error
                continue
            return True
        raise failure

    # -- the server -------------------------------------------------------------------------------------------

    @cached_property
    def _account(self) -> Account:
        return find_account(self._name)

    @cached_property
    def _client(self) -> XrpcClient:
        """Calls without a session: what an account publishes everybody can read."""
        return XrpcClient(self._account.server, credentials.settings_for(self.url), trusted=self._account.trusted)

    @cached_property
    def _writer(self) -> XrpcClient:
        settings = credentials.settings_for(self.url)
        password = settings.values.get("password")
        if not password:
            remedy = f"sx.storage({self.url!r}, password=...), best an app password"
            raise AccessDeniedError(13, f"expected the password of the account, to write: {remedy}", self.url)
        client = XrpcClient(self._account.server, settings, trusted=self._account.trusted)
        if (did := client.login(self._account.did, str(password))) != self._account.did:
            raise FormatError(f"{self.url}: expected a session of {self._account.did}, got one of {did!r:.100}")
        return client

    def close(self) -> None:
        """Forget the session, and where the account is."""
        for name in ("_account", "_client", "_writer"):
            self.__dict__.pop(name, None)


def _change(verb: str, collection: str, key: str, value: dict[str, Any] | None = None) -> dict[str, Any]:
    known = {"$type": f"{_WRITE}#{verb}", "collection": collection, "rkey": key}
    return known if value is None else {**known, "value": value}


def _number(label: dict[str, Any], name: str) -> int:
    """Return one of the numbers that this catalog keeps in its labels; 0 if it is not there."""
    own = label.get("shardex")
    number = own.get(name, 0) if isinstance(own, dict) else 0
    if type(number) is not int or number < 0:
        raise FormatError(f"label of {label.get('name')!r:.100}: expected a number of a version, got {number!r:.50}")
    return number


def _is_own(stored: StoredRecord, record: CatalogRecord) -> bool:
    return stored.key == key_of(record.key, str(record.number)) and "shardexRecord" in stored.value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
