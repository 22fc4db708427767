"""Manifests: the schema of a version of a native dataset, and its data files with their checksums.

A version is one JSON file, `_shardex/00000001.json`, created by put-if-absent; the highest number is current. The file
contains a checksum of itself. Paths are relative and checked. A row has an id that never changes; later versions use it
to list deleted rows and rows with newer values. `data_file_reader` and `version_reader` read data files, `data_files`
writes them, `commit` makes the next manifest.
"""

from __future__ import annotations

import errno
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
import xxhash

from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    RemoteChangedError,
    ShardexError,
    VersionExpired,
)
from shardex.schema import Features, Optional
from shardex.sources import Place, Source, check_path
from shardex.store.row_ids import RowIds
from shardex.store.version_numbers import claim_number, is_closed, is_tombstone, latest_version, manifest_path

FORMAT = 1
DATA_FILE = r"data/[0-9a-f]{32}(-[0-9a-f]{16})?\.arrow"
"""Regular expression of the paths of data files; see `new_data_path`."""
_NUMBER = re.compile(rb"(data/[0-9a-f]{32})-[0-9a-f]{16}(\.arrow)")


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A record batch of a file: its number of rows, its bytes from `begin` to `end`, and their xxh3-64 in hex."""

    rows: int
    begin: int
    end: int
    xxh3: str


class DataFile(msgspec.Struct, frozen=True):
    """An Arrow file with some fields."""

    path: str
    size: int
    fields: dict[str, str]
    """Column of each field."""
    batches: list[Batch]
    foot: str
    """xxh3-64 of the bytes after the last batch."""

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        return sum(batch.rows for batch in self.batches)


class Foreign(msgspec.Struct, frozen=True):
    """Adopted shards of another format: what was opened, with which options, and the fingerprint of their content."""

    what: str | list[str]
    format: str
    options: dict[str, Any]
    fingerprint: str
    fields: dict[str, str]
    """Name in the shards of each field."""


class Fragment(msgspec.Struct, frozen=True):
    """Consecutive rows with ids from `first` on; one file per group of fields, all with the same rows."""

    rows: int
    groups: list[DataFile]
    first: int = 0
    keys: DataFile | None = None
    """The key table: hashes of the keys with their rows, sorted (see `keys`)."""
    foreign: Foreign | None = None
    """The shards that hold some fields, if they were adopted."""

    @property
    def adopted(self) -> Foreign | None:
        """The shards that hold some fields; None also if all these fields were dropped."""
        return self.foreign if self.foreign is not None and self.foreign.fields else None

    @property
    def fields(self) -> list[str]:
        """The fields that are stored for its rows; the rows have no value for other fields."""
        adopted = [] if self.foreign is None else list(self.foreign.fields)
        return [*adopted, *(name for file in self.groups for name in file.fields)]


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """One version of a dataset. It has a dict for what is computed from its fields once."""

    rows: int
    """Number of samples: rows that are not deleted."""
    schema: dict[str, Any]
    fragments: list[Fragment]
    key: str | None = None
    """The field whose values are unique, if there is one."""
    generate_keys: bool = False
    """True if a sample without a key gets a random one."""
    ids: int = 0
    """Number of ids in use: the first id of the next fragment."""
    deleted: list[DataFile] = []
    """Files with the ids of deleted rows in the column `row`."""
    overlays: list[DataFile] = []
    """Files with newer values of fields for the rows with the ids in the column `row`; later files and rows win."""
    made: str = ""
    """Time of publication in UTC; only for display."""
    change: str = ""
    """Description of the change, for display."""
    commit: str = ""
    """A random number, so that no two manifests are equal."""
    shardex: int = FORMAT
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """What the writer was told about the data; not stored if there is nothing."""

    @cached_property
    def features(self) -> Features:
        """Name and feature of each field."""
        return Features.from_json(self.schema)

    @property
    def row_ids(self) -> RowIds:
        """The ids of all rows."""
        return RowIds([one.first for one in self.fragments], [one.rows for one in self.fragments])


def files_of(manifest: Manifest) -> Iterator[DataFile]:
    """Yield every data file that a version lists."""
    for fragment in manifest.fragments:
        yield from fragment.groups
        if fragment.keys is not None:
            yield fragment.keys
    yield from manifest.deleted
    yield from manifest.overlays


class _Sealed(msgspec.Struct):
    xxh3: str
    manifest: msgspec.Raw


class _Numbered(msgspec.Struct):
    shardex: int


def with_paths(manifest: Manifest, paths: Mapping[str, str]) -> Manifest:
    """Return a manifest that names other files with the same content; `paths` has their new paths."""

    def moved(files: list[DataFile]) -> list[DataFile]:
        return [msgspec.structs.replace(file, path=paths.get(file.path, file.path)) for file in files]

    fragments = [
        msgspec.structs.replace(one, groups=moved(one.groups), keys=None if one.keys is None else moved([one.keys])[0])
        for one in manifest.fragments
    ]
    return msgspec.structs.replace(
        manifest, fragments=fragments, deleted=moved(manifest.deleted), overlays=moved(manifest.overlays)
    )


def content_path(batches: Iterable[str], foot: str) -> str:
    """Return the path that stands for the content of a data file, from the checksums of its batches and its foot."""
    return f"data/{xxhash.xxh3_128_hexdigest(''.join([*batches, foot]).encode())}.arrow"


def new_data_path(batches: Iterable[str], foot: str, number: str | None = None) -> str:
    """Return the path of a new data file: that of its content, with a random number, or one given for a new folder.

    No two files ever have the same path, even if their content is equal. So a file that no version names is never
    named again, and `clean` can remove it at any time after it has looked at the versions.
    """
    return f"{content_path(batches, foot).removesuffix('.arrow')}-{number or _random_number()}.arrow"


def without_numbers(encoded: bytes) -> bytes:
    """Return JSON with the paths of data files that stand for their content, so that equal content is equal JSON."""
    return _NUMBER.sub(rb"\1\2", encoded)


def _random_number() -> str:
    return secrets.token_hex(8)


def publish(place: Place, version: int, manifest: Manifest, commit: str | None = None) -> bool:
    """Publish a version, with a random number or with `commit`; return False if the number of the version is used."""
    _check(manifest)  # otherwise readers would raise the error
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    plain = msgspec.json.encode(msgspec.structs.replace(manifest, made=made, commit=commit or _random_number()))
    sealed = _Sealed(xxhash.xxh3_64_hexdigest(plain), msgspec.Raw(plain))
    return claim_number(place, version, sealed.xxh3, msgspec.json.encode(sealed) + b"\n")


def read_manifest(source: Source, version: int) -> Manifest:
    """Read and check a version's manifest."""
    path = manifest_path(version)
    where = f"{source.url}/{path}"
    try:
        data = bytes(source.load(path))
        removed = is_tombstone(data)
    except NotFoundError:
        if not (removed := is_closed(source, version)):
            latest = latest_version(source)
            raise NotFoundError(errno.ENOENT, f"no version {version}; the current one is {latest}", where) from None
    except RemoteChangedError:  # a manifest is replaced only by a tombstone
        removed = True
    if removed:
        what = f"version {version} was removed by `clean`; the current one is {latest_version(source)}"
        raise VersionExpired(errno.ENOENT, what, where)
    try:
        manifest = _decode(data)
        _check(manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: expected a manifest, got something else: {error}") from None
    except ShardexError as error:
        raise type(error)(f"{where}: {error}") from None
    return manifest


def is_intact(source: Source, version: int) -> bool:
    """Return True if a manifest has its checksum: if it cannot be read all the same, a newer shardex has made it."""
    try:
        sealed = msgspec.json.decode(bytes(source.load(manifest_path(version))), type=_Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotFoundError):
        return False
    return xxhash.xxh3_64_hexdigest(sealed.manifest) == sealed.xxh3


def _decode(data: bytes) -> Manifest:
    sealed = msgspec.json.decode(data, type=_Sealed)
    if xxhash.xxh3_64_hexdigest(sealed.manifest) != sealed.xxh3:
        raise ChecksumError("expected the manifest as it was written, got other bytes")
    if (number := msgspec.json.decode(sealed.manifest, type=_Numbered).shardex) != FORMAT:
        raise FormatError(f"expected a manifest of format {FORMAT}, got {number}; use a newer shardex")
    return msgspec.json.decode(sealed.manifest, type=Manifest)


def _check(manifest: Manifest) -> None:
    """Raise an error for contradictions in a manifest, even if its checksum is right."""
    features = manifest.features
    for fragment in manifest.fragments:
        for file in fragment.groups:
            _check_file(file, fragment.rows)
        _check_fields(fragment, features)
        if fragment.first + fragment.rows > manifest.ids:
            raise FormatError(
                f"expected ids below {manifest.ids}, got a fragment of {fragment.rows} from {fragment.first}"
            )
    for file in [*manifest.deleted, *manifest.overlays, *(f.keys for f in manifest.fragments if f.keys)]:
        _check_file(file, file.rows)
    for overlay in manifest.overlays:
        if not overlay.fields.keys() <= set(features):
            raise FormatError(f"expected newer values of the fields {', '.join(features)}, got {list(overlay.fields)}")
    most = sum(fragment.rows for fragment in manifest.fragments)
    least = most - sum(file.rows for file in manifest.deleted)
    if not least <= manifest.rows <= most:
        raise FormatError(
            f"expected fragments of {manifest.rows} rows in all, got {most}, {most - least} of them deleted"
        )


def _check_fields(fragment: Fragment, features: Features) -> None:
    if len(set(found := fragment.fields)) != len(found) or not set(found) <= set(features):
        raise FormatError(f"expected the fields {', '.join(features)} in every fragment, got {', '.join(found)}")
    for name, feature in features.items():
        if name not in found and not isinstance(feature, Optional) and fragment.rows:
            raise FormatError(f"expected the fields {', '.join(features)} in every fragment, got none for {name}")


def _check_file(file: DataFile, rows: int) -> None:
    check_path(file.path)
    at = 0
    for batch in file.batches:
        if batch.begin != at or batch.end <= at or batch.rows < 1:
            raise FormatError(f"expected batches with rows, one after another, in {file.path}, got {batch}")
        at = batch.end
    if not 0 < at <= file.size:
        raise FormatError(f"expected batches inside the {file.size} bytes of {file.path}, got {at} bytes of them")
    if file.rows != rows:
        raise FormatError(f"expected {rows} rows in {file.path}, got {file.rows}")
