"""What a version of a native dataset consists of: schema, and fragments of rows in Arrow files with their checksums.

One JSON file per version, `_shardex/00000001.json`, made by put-if-absent; the highest number is current. The file
carries a checksum of itself. Paths are relative and checked. Reading and writing the Arrow files is `formats/arrow.py`.
"""

from __future__ import annotations

import errno
import re
import time
from typing import Any

import msgspec
import xxhash

from shardex.errors import ChecksumError, FormatError, NotFoundError, ShardexError
from shardex.schema import Features
from shardex.source import Sink, Source, inside

__all__ = ["Batch", "DataFile", "Fragment", "Manifest", "latest_version", "manifest_path", "publish", "read_manifest"]

FOLDER = "_shardex"
FORMAT = 1
_NAME = re.compile(rf"{FOLDER}/([0-9]{{8}})\.json")


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A record batch of a file: its rows, the bytes it takes, and their xxh3-64 in hex."""

    rows: int
    begin: int
    end: int
    xxh3: str


class DataFile(msgspec.Struct, frozen=True):
    """An Arrow file that holds some fields of a fragment."""

    path: str
    size: int
    fields: list[str]
    batches: list[Batch]
    foot: str
    """xxh3-64 of the bytes after the last batch."""

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return sum(batch.rows for batch in self.batches)


class Fragment(msgspec.Struct, frozen=True):
    """A run of rows: one file per group of fields, all with the same rows."""

    rows: int
    groups: list[DataFile]
    deleted: list[int] = []
    overlays: list[Any] = []


class Manifest(msgspec.Struct, frozen=True):
    """One version of a dataset."""

    rows: int
    schema: dict[str, Any]
    fragments: list[Fragment]
    key: str | None = None
    made: str = ""
    """When, in UTC; nothing depends on it."""
    change: str = ""
    """What this version did, for people."""
    shardex: int = FORMAT

    @property
    def features(self) -> Features:
        """The fields."""
        return Features.from_json(self.schema)


class _Sealed(msgspec.Struct):
    xxh3: str
    manifest: msgspec.Raw


class _Numbered(msgspec.Struct):
    shardex: int


def manifest_path(version: int) -> str:
    """Where a version's manifest lies.

    >>> manifest_path(7)
    '_shardex/00000007.json'
    """
    return f"{FOLDER}/{version:08d}.json"


def latest_version(source: Source) -> int:
    """The current version of a dataset; 0 if there is none."""
    found = (_NAME.fullmatch(path) for path in source.paths(FOLDER + "/"))
    return max((int(match[1]) for match in found if match), default=0)


def publish(sink: Sink, version: int, manifest: Manifest) -> bool:
    """Make a version; false if somebody else made that number first."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    plain = msgspec.json.encode(msgspec.structs.replace(manifest, made=made))
    sealed = _Sealed(xxhash.xxh3_64_hexdigest(plain), msgspec.Raw(plain))
    return sink.put_if_absent(manifest_path(version), msgspec.json.encode(sealed) + b"\n")


def read_manifest(source: Source, version: int) -> Manifest:
    """Read and check a version's manifest."""
    path = manifest_path(version)
    where = f"{source.url}/{path}"
    try:
        data = bytes(source.map(path))
    except NotFoundError:
        latest = latest_version(source)
        raise NotFoundError(errno.ENOENT, f"no version {version}; the current one is {latest}", where) from None
    try:
        manifest = _decode(data)
        _check(manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: expected a manifest, got something else: {error}") from None
    except ShardexError as error:
        raise type(error)(f"{where}: {error}") from None
    return manifest


def _decode(data: bytes) -> Manifest:
    sealed = msgspec.json.decode(data, type=_Sealed)
    if xxhash.xxh3_64_hexdigest(sealed.manifest) != sealed.xxh3:
        raise ChecksumError("expected the manifest as it was written, got other bytes")
    if (number := msgspec.json.decode(sealed.manifest, type=_Numbered).shardex) != FORMAT:
        raise FormatError(f"expected a manifest of format {FORMAT}, got {number}; use a newer shardex")
    return msgspec.json.decode(sealed.manifest, type=Manifest)


def _check(manifest: Manifest) -> None:
    """Refuse what readers could trip over, even if it is what was written."""
    features = sorted(manifest.features)
    for fragment in manifest.fragments:
        if fragment.deleted or fragment.overlays:
            raise FormatError("expected fragments without deleted rows and overlays, got some; use a newer shardex")
        for file in fragment.groups:
            _check_file(file, fragment.rows)
        if sorted(name for file in fragment.groups for name in file.fields) != features:
            raise FormatError(f"expected the fields {', '.join(features)} in every fragment")
    if (rows := sum(fragment.rows for fragment in manifest.fragments)) != manifest.rows:
        raise FormatError(f"expected fragments of {manifest.rows} rows in all, got {rows}")


def _check_file(file: DataFile, rows: int) -> None:
    inside(file.path)
    at = 0
    for batch in file.batches:
        if batch.begin != at or batch.end <= at or batch.rows < 1:
            raise FormatError(f"expected batches with rows, one after another, in {file.path}, got {batch}")
        at = batch.end
    if not 0 < at <= file.size:
        raise FormatError(f"expected batches inside the {file.size} bytes of {file.path}, got {at} bytes of them")
    if file.rows != rows:
        raise FormatError(f"expected {rows} rows in {file.path}, got {file.rows}")
