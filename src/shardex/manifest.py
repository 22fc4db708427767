"""What a version of a native dataset consists of: schema, and fragments of rows in Arrow files with their checksums.

One JSON file per version, `_shardex/00000001.json`, made by put-if-absent; the highest number is current. The file
carries a checksum of itself. Paths are relative and checked. Reading and writing the Arrow files is `formats/arrow.py`.
"""

from __future__ import annotations

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
_NAME = re.compile(rf"{FOLDER}/(\d{{8}})\.json")


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
    plain = msgspec.json.encode(msgspec.structs.replace(manifest, made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())))
    sealed = _Sealed(xxhash.xxh3_64_hexdigest(plain), msgspec.Raw(plain))
    return sink.put_if_absent(manifest_path(version), msgspec.json.encode(sealed) + b"\n")


def read_manifest(source: Source, version: int) -> Manifest:
    """Read and check a version's manifest."""
    path = manifest_path(version)
    where = f"{source.url}/{path}"
    try:
        data = bytes(source.map(path))
    except NotFoundError:
        raise NotFoundError(2, f"no version {version}; the current one is {latest_version(source)}", where) from None
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if xxhash.xxh3_64_hexdigest(sealed.manifest) != sealed.xxh3:
            raise ChecksumError(f"{where}: expected the manifest as it was written, got other bytes")
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: expected a manifest, got something else: {error}") from None
    _check(manifest, where)
    return manifest


def _check(manifest: Manifest, where: str) -> None:
    if manifest.shardex != FORMAT:
        raise FormatError(f"{where}: expected a manifest of format {FORMAT}, got {manifest.shardex}; use a newer shardex")
    try:
        features = manifest.features
        for fragment in manifest.fragments:
            for file in fragment.groups:
                inside(file.path)
                ends = [0, *(batch.end for batch in file.batches)]
                if [batch.begin for batch in file.batches] != ends[:-1] or ends != sorted(ends) or not 0 < ends[-1] <= file.size:
                    raise FormatError(f"expected batches one after another in {file.path}")
                if file.rows != fragment.rows:
                    raise FormatError(f"expected {fragment.rows} rows in {file.path}, got {file.rows}")
            if sorted(name for file in fragment.groups for name in file.fields) != sorted(features):
                raise FormatError(f"expected the fields {', '.join(features)} in every fragment")
        if sum(fragment.rows for fragment in manifest.fragments) != manifest.rows:
            raise FormatError(f"expected fragments of {manifest.rows} rows in all")
    except ShardexError as error:
        raise type(error)(f"{where}: {error}") from None
