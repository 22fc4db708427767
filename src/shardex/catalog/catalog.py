"""`Catalog`: names for datasets, with versions and tags; what users call. `resolve` is what `open` calls.

A backend stores the records (`backend`); here are the rules that all of them share: compare-and-swap, what a put takes
over from the newest version, errors with the nearest name, and which records are trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from shardex.catalog.addresses import check_data_options, check_untrusted, check_without_secrets
from shardex.catalog.backend import Backend, backend_at
from shardex.catalog.mounts import default_catalog, mounted, mounts, split_mount
from shardex.catalog.names import Address, check_name, check_tag, parse
from shardex.catalog.publish import MOST_NAMES, expect_kind, now, publish
from shardex.catalog.records import (
    CatalogRecord,
    Content,
    DatasetRecord,
    Described,
    Parent,
    RecordQuery,
    from_reference,
)
from shardex.catalog.releases import Lenses, Schemas
from shardex.errors import ArgumentError, CatalogError, ConflictError, FormatError, nearest

_ABOUT = ("description", "tags", "license", "parents", "trusted", "extra")
"""What a record says beside its content."""
_MOST_REMOVED = 10_000
"""Versions before an imported one that may be missing, because they were removed."""


class Catalog:
    """Names for datasets, with numbered versions and tags, in a file, a folder or a bucket.

    `where` is an SQLite file (``.db`` or ``.sqlite``), a folder, a URL such as ``s3://bucket/catalog``, or ``"@team"``
    for a catalog that is mounted under this name. By default it is ``SHARDEX_CATALOG``, or a file of this user.

    `trusted` says whether records may name local files and private addresses, as they do in a catalog that only you and
    people you trust write to. By default local catalogs are trusted, and remote ones are not.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp()
    >>> catalog = sx.Catalog(folder + "/catalog.db")
    >>> ds = sx.write(folder + "/numbers", [{"x": 1}, {"x": 2}])
    >>> str(catalog.put("numbers", ds, description="one and two", tags=["small"]))
    'numbers@1'
    >>> catalog.tag("numbers", "stable", 1); catalog.get("numbers:stable").samples
    2
    >>> [str(record) for record in catalog.search("one")]
    ['numbers@1']
    """

    def __init__(self, where: str | os.PathLike[str] | None = None, *, trusted: bool | None = None) -> None:
        text = default_catalog() if where is None else os.fspath(where)
        self._is_default = where is None
        if text.startswith("@"):
            mount = mounted(text[1:])
            text, trusted = mount.where, mount.trusted if trusted is None else trusted
        self._backend: Backend = backend_at(text)
        self.url: str = self._backend.url
        self.trusted: bool = not self._backend.is_remote if trusted is None else trusted

    def __repr__(self) -> str:
        return f"Catalog({self.url!r}{'' if self.trusted else ', trusted=False'})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _catalog, (self.url, self.trusted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release connections; the catalog can still be used."""
        self._backend.close()

    @cached_property
    def schemas(self) -> Schemas:
        """Schemas that are published under names of their own, with semantic versions."""
        return Schemas(self._backend)

    @cached_property
    def lenses(self) -> Lenses:
        """Lenses between published schemas."""
        return Lenses(self._backend)

    # -- reading ----------------------------------------------------------------------------------------------

    def get(self, ref: str) -> DatasetRecord:
        """Return the newest record of ``"name"``, that of a version, ``"name@3"``, or of a tag, ``"name:stable"``."""
        address = parse(ref)
        record = self._backend.read(*address)
        if record is None:
            raise self._unknown(address)
        return self._seen(expect_kind(record, DatasetRecord, address.name, self._backend))

    def _seen(self, record: DatasetRecord) -> DatasetRecord:
        """Return a record that knows whether it is trusted here."""
        return record if self.trusted else msgspec.structs.replace(record, trusted=False)

    def _unknown(self, address: Address) -> CatalogError:
        """Return the error for a record that is not there."""
        name, which = address
        newest, last = self._backend.head(name)
        if newest is None and last == 0:
            near = nearest(name, islice((one for one in self._backend.names() if one[0] != "_"), MOST_NAMES))
            return CatalogError(f"{self.url}: expected the name of a dataset, got {name!r}{near}")
        if newest is None:
            return CatalogError(f"{self.url}: expected a dataset, all versions of {name!r} were removed")
        if isinstance(which, int):
            state = f"version {which} was removed" if which <= last else f"got version {which}"
            return CatalogError(f"{self.url}: expected a version of {name} up to {newest.number}, {state}")
        tags = self._backend.tags(name)
        if which in tags:
            return CatalogError(f"{self.url}: expected {name}@{tags[which]}, which has the tag {which}; it was removed")
        listed = ", ".join(tags) or "it has none"
        return CatalogError(f"{self.url}: expected a tag of {name} ({listed}), got {which!r}{nearest(which, tags)}")

    def list(self, prefix: str = "") -> Iterator[DatasetRecord]:
        """Yield the newest record of each name that begins with `prefix`, sorted by name."""
        return (self._seen(one) for one in self._backend.newest(prefix) if isinstance(one, DatasetRecord))

    def search(
        self, text: str | None = None, *, tags: Sequence[str] = (), fields: Sequence[str] = ()
    ) -> Iterator[DatasetRecord]:
        """Yield the newest record of each name that has all of these, sorted by name.

        `text` are words, or their beginnings, in name, description, tags and names of fields; `tags` are all among the
        tags of the record, `fields` all among the names of its fields.
        """
        return map(self._seen, self._backend.search(RecordQuery.of(text, tags, fields)))

    def history(self, name: str) -> Sequence[DatasetRecord]:
        """Return all versions of a name, oldest first."""
        if not (found := self._backend.history(check_name(name))):
            raise self._unknown(Address(name))
        return [self._seen(expect_kind(one, DatasetRecord, name, self._backend)) for one in found]

    def tags(self, name: str) -> Mapping[str, int]:
        """Return the tags of a name, with the version that each of them names."""
        return self._backend.tags(check_name(name))

    # -- writing ----------------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        ds: Described | Content,
        *,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,
        parents: Iterable[Any] | None = None,
        expect: int | None = None,
    ) -> DatasetRecord:
        """Register a dataset as the next version of a name, and return the record.

        `ds` is a dataset that `open` or `write` has returned, or a `select` of it; other views have to be written
        first. It may also be a record of another catalog. What is not given (`description`, `tags`, `license`) is that
        of the newest version. `parents` are the datasets that it was made from: datasets, or names in this catalog such
        as ``"raw@3"``.

        With `expect`, raises `ConflictError` if that is not the number of the newest version (0: the name is new).
        Nothing is stored if the newest version says the same already: it is returned.
        """
        if not isinstance(ds, Content) and not callable(getattr(type(ds), "content", None)):
            raise ArgumentError(f"expected a dataset that sx.open or sx.write has returned, got {type(ds).__name__}")
        content = ds if isinstance(ds, Content) else ds.content()
        check_without_secrets(content)
        fields = (*Content.__struct_fields__, *(_ABOUT if isinstance(ds, DatasetRecord) else ()))
        known = {field: getattr(content, field) for field in fields}
        given = {"description": description, "license": license, "tags": None if tags is None else _texts(tags)}
        known |= {field: value for field, value in given.items() if value is not None}
        if parents is not None:
            known["parents"] = [self._parent(one) for one in parents]
        return self._publish(self._own_name(name), known, expect)

    def _publish(self, name: str, known: Mapping[str, Any], expect: int | None) -> DatasetRecord:
        """Publish a record with these fields under the next number."""

        def make(newest: DatasetRecord | None, number: int) -> DatasetRecord:
            seen = 0 if newest is None else newest.version
            if expect is not None and expect != seen:
                raise ConflictError(
                    f"{self.url}: expected version {expect} to be the newest one of {name}, got "
                    f"{seen or 'no version'}: look at it, and put again with expect={seen}"
                )
            old = {field: getattr(newest, field) for field in _kept(newest, known["fingerprint"])}
            return DatasetRecord(**{**old, **known}, name=name, version=number, created=now())

        return publish(self._backend, name, DatasetRecord, make)

    def _own_name(self, name: str) -> str:
        """Return a name that "@" finds in this catalog."""
        first, slash, _ = check_name(name).partition("/")
        if self._is_default and slash and first in mounts():
            raise ArgumentError(
                f"expected a name that does not begin with the mounted catalog {first!r}, got {name!r}: "
                f"put it in that one, sx.Catalog('@{first}')"
            )
        return name

    def _parent(self, one: Any) -> Parent:
        if isinstance(one, str):
            one = self.get(one)
        if isinstance(one, Parent):
            return one
        if isinstance(one, DatasetRecord):
            return Parent(fingerprint=one.fingerprint, name=one.name, version=one.version)
        return from_reference(one if isinstance(one, Mapping) else one.reference())[1]

    def tag(self, name: str, tag: str, version: int | None) -> None:
        """Let a tag such as "stable" name a version from now on; None removes the tag."""
        if version is not None:
            self.get(f"{name}@{version}")
        self._backend.set_tag(check_name(name), check_tag(tag), version)

    def remove(self, ref: str) -> None:
        """Remove a version (``"name@3"``) or a name with all its versions, and their tags; data are not touched.

        The number of a removed version is never used again.
        """
        name, which = parse(ref)
        if isinstance(which, str):
            raise ArgumentError(
                f"expected a name or a version such as {name}@3, got {ref!r} (tag(..., None) removes a tag)"
            )
        if which is None:
            removed = [record.version for record in self.history(name)]
        else:
            with suppress(FormatError):  # a damaged record can be removed
                self.get(ref)
            removed = [which]
        for tag, version in self._backend.tags(name).items():
            if version in removed:
                self._backend.set_tag(name, tag, None)
        for version in removed:
            self._backend.remove(name, version)

    # -- copies -----------------------------------------------------------------------------------------------

    def copy_from(self, records: Iterable[CatalogRecord], *, trusted: bool = False) -> int:
        """Add records of another catalog with their versions, and return how many were new.

        `records` are sorted by version. They may name local files, now and later, only if `trusted` is True. Raises
        `ConflictError` if a number has another content here.
        """
        count = 0
        for one in records:
            record = self._imported(one, trusted) if isinstance(one, DatasetRecord) else one
            key, number = record.key, record.number
            last = self._backend.head(key)[1]
            if number > last + _MOST_REMOVED:
                raise ArgumentError(f"expected a record with a version near {last}, the last one here, got {record}")
            for missing in range(last + 1, number):
                self._backend.append(key, missing, None)
            if self._backend.append(key, number, record):
                count += 1
            elif (there := self._backend.read(key, number)) != record:
                found = "another one" if there else "one that was removed"
                raise ConflictError(f"{self.url}: expected no version {record}, or the same, got {found}")
        return count

    def _imported(self, one: DatasetRecord, trusted: bool) -> DatasetRecord:
        """Return the record of another catalog as it is stored in this one."""
        if not trusted:
            check_untrusted(one, str(one))
        check_without_secrets(one)
        self._own_name(one.name)
        return msgspec.structs.replace(one, trusted=trusted)


def _catalog(url: str, trusted: bool) -> Catalog:
    return Catalog(url, trusted=trusted)


def _kept(newest: DatasetRecord | None, fingerprint: str) -> tuple[str, ...]:
    """Return the fields that the next version has from the newest one, if nothing else is given."""
    if newest is None:
        return ()
    return ("description", "tags", "license", *(("parents", "extra") if newest.fingerprint == fingerprint else ()))


def _texts(tags: Sequence[str]) -> list[str]:
    if isinstance(tags, str):
        raise ArgumentError(f"expected tags to be a list of texts, got {tags!r}")
    return list(dict.fromkeys(tags))


# -- names that begin with "@" --------------------------------------------------------------------------------


class Resolved(NamedTuple):
    """What a name or a reference stands for."""

    content: Content
    label: str
    """What the user wrote, for messages."""
    name: str
    version: int | None
    trusted: bool


def find_catalog(name: str) -> tuple[Catalog, str]:
    """Return the catalog of a name such as ``"@team/corpus@3"``, and the rest of the name.

    >>> find_catalog("@corpus@3")[1]
    'corpus@3'
    """
    if not name.startswith("@"):
        raise ArgumentError(f"expected a name in a catalog, such as '@corpus', got {name!r:.200}")
    mount, rest = split_mount(name[1:])
    return Catalog() if mount is None else Catalog(mount.where, trusted=mount.trusted), rest


def resolve(what: str | Mapping[str, Any], trusted: bool | None = None) -> Resolved:
    """Return what a name that begins with "@", or the dict of a reference, stands for.

    Content that is not trusted is checked: it names no local file. References are the user's own unless `trusted` says
    otherwise; for names the catalog and the record say it.
    """
    if isinstance(what, str):
        catalog, rest = find_catalog(what)
        with catalog:
            try:
                record = catalog.get(rest)
            except CatalogError as error:
                if os.path.exists(what):
                    error.add_note(f"to open the file or folder of this name, write './{what}'")
                raise
        name = what[1 : len(what) - len(rest)] + record.name
        found = Resolved(record, what, name, record.version, record.trusted)
    else:
        content, parent = from_reference(what)
        found = Resolved(content, str(parent), parent.name, parent.version, what.get("trusted") is not False)
    check_data_options(found.content, found.label)
    if trusted is not None:
        found = found._replace(trusted=trusted)
    if not found.trusted:
        check_untrusted(found.content, found.label)
    return found
