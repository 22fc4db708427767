"""`RecordFolder`: a catalog as JSON files in a folder or a bucket, for a team without a server.

A version is the file ``<name>/00000003.json``, a move of a tag ``<name>/_tags/<tag>/00000002.json``. Both are created
by put-if-absent, as the manifests of native datasets are, so that of two writers one wins. No file is replaced, except
by a tombstone when its version is removed: the name stays, and so the number stays used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Annotated

import msgspec

from shardex.catalog.backend import Backend, readable
from shardex.catalog.names import PART
from shardex.catalog.records import MOST_BYTES, CatalogRecord, decode, encode
from shardex.errors import FormatError, NotFoundError, RemoteChangedError, SourceError, TruncatedShardError
from shardex.sources import Place, place_of, redact_url

_TOMBSTONE = b'{"removed":true}\n'
_FILE = re.compile(r"([0-9]{8})\.json")
_VERSION = re.compile(rf"((?:_[a-z]+/)?{PART}(?:/{PART})*)/([0-9]{{8}})\.json")
_ATTEMPTS = 100
_AT_ONCE = 256
"""Records that are read at the same time while all are listed."""


class _Tag(msgspec.Struct):
    """The content of a file of a tag; None if the tag was removed."""

    version: Annotated[int, msgspec.Meta(ge=1)] | None


class RecordFolder(Backend):
    """A catalog in a local folder or a bucket."""

    def __init__(self, url: str) -> None:
        place = place_of(url)
        self.url, self.is_remote = redact_url(place.url), place.is_remote

    def _place(self) -> Place:
        """Return the place anew for each use: one pins the files that it has seen, and a removed record changes."""
        return place_of(self.url).contained()  # type: ignore[return-value]

    def _load(self, place: Place, path: str) -> bytes:
        """Return a small file; one that is removed meanwhile is read again, as a tombstone."""
        for _ in range(_ATTEMPTS):
            try:
                if (size := place.stat(path).size) > MOST_BYTES:
                    raise FormatError(f"{place.full_name(path)}: expected at most {MOST_BYTES} bytes, got {size}")
                return bytes(place.load(path))
            except (RemoteChangedError, TruncatedShardError):
                place = self._place()
        raise SourceError(f"{place.full_name(path)}: expected a file that can be read, it changes all the time")

    def _numbers(self, place: Place, folder: str) -> list[int]:
        return sorted(int(match[1]) for match in map(_FILE.fullmatch, place.names(f"{folder}/")) if match)

    def _record(self, place: Place, name: str, version: int) -> CatalogRecord | None:
        """Return a record; None if it was removed, or never made."""
        path = _path(name, version)
        try:
            data = self._load(place, path)
        except NotFoundError:
            return None
        if data == _TOMBSTONE:
            return None
        record = decode(data, place.full_name(path))
        if (record.key, record.number) != (name, version):
            raise FormatError(f"{place.full_name(path)}: expected the record of {name}@{version}, got that of {record}")
        return record

    # -- reading ----------------------------------------------------------------------------------------------

    def head(self, name: str) -> tuple[CatalogRecord | None, int]:
        """Return the newest record and the last number."""
        place = self._place()
        numbers = self._numbers(place, name)
        return self._newest_of(place, name, numbers), max(numbers, default=0)

    def _newest_of(self, place: Place, name: str, numbers: Iterable[int]) -> CatalogRecord | None:
        found = (self._record(place, name, number) for number in sorted(numbers, reverse=True))
        return next((one for one in found if one is not None), None)

    def read(self, name: str, which: int | str | None = None) -> CatalogRecord | None:
        """Return a record by number or tag, or the newest one."""
        if which is None:
            return self.head(name)[0]
        place = self._place()
        version = which if isinstance(which, int) else self._tagged(place, name, which)
        return None if version is None else self._record(place, name, version)

    def history(self, name: str) -> list[CatalogRecord]:
        """Return all records of a name."""
        place = self._place()
        numbers = self._numbers(place, name)
        found = place.for_each(lambda number: readable(lambda: self._record(place, name, number)), numbers)
        return [one for one in found if one is not None]

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield all names."""
        return iter(sorted(self._versions(self._place(), prefix)))

    def newest(self, prefix: str = "") -> Iterator[CatalogRecord]:
        """Yield the newest records, some hundred at a time."""
        place = self._place()
        versions = iter(sorted(self._versions(place, prefix).items()))
        while some := list(islice(versions, _AT_ONCE)):
            found = place.for_each(lambda one: readable(lambda: self._newest_of(place, *one)), some)
            yield from (one for one in found if one is not None)

    def _versions(self, place: Place, prefix: str) -> dict[str, list[int]]:
        """Return the numbers of each name; the whole folder is listed once."""
        found = [match for match in map(_VERSION.fullmatch, place.paths(prefix)) if match]
        pairs = sorted((match[1], int(match[2])) for match in found if match[1].startswith(prefix))
        names = groupby(pairs, lambda pair: pair[0])
        return {name: [number for _, number in some] for name, some in names}

    def tags(self, name: str) -> dict[str, int]:
        """Return the tags of a name."""
        place = self._place()
        found = {tag: self._tagged(place, name, tag) for tag in sorted(place.names(f"{name}/_tags/"))}
        return {tag: version for tag, version in found.items() if version is not None}

    def _tagged(self, place: Place, name: str, tag: str) -> int | None:
        """Return the version that a tag names: what the last of its files says."""
        if not (numbers := self._numbers(place, folder := f"{name}/_tags/{tag}")):
            return None
        path = _path(folder, numbers[-1])
        try:
            return msgspec.json.decode(self._load(place, path), type=_Tag).version
        except (msgspec.MsgspecError, ValueError) as error:
            raise FormatError(f"{place.full_name(path)}: expected the version of a tag, got: {error}") from None

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, name: str, version: int, record: CatalogRecord | None) -> bool:
        """Create the file of a record, if there is none."""
        data = _TOMBSTONE if record is None else encode(record)
        return self._place().put_if_absent(_path(name, version), data)

    def remove(self, name: str, version: int) -> None:
        """Put a tombstone in the place of a record."""
        place = self._place()
        place.stat(path := _path(name, version))  # raises if there is none
        place.put(path, _TOMBSTONE)

    def set_tag(self, name: str, tag: str, version: int | None) -> None:
        """Create the next file of a tag."""
        place, folder = self._place(), f"{name}/_tags/{tag}"
        data = msgspec.json.encode(_Tag(version=version))
        for _ in range(_ATTEMPTS):
            number = max(self._numbers(place, folder), default=0) + 1
            if place.put_if_absent(_path(folder, number), data):
                return
        raise SourceError(f"{self.url}: expected to move the tag {tag} of {name}, others moved it {_ATTEMPTS} times")


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.json"
