"""The `_metadata.json` of a cache: what it says, in all versions of stable-datasets, and what is written."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardex.compat.stable_datasets.schema import Features
from shardex.errors import FormatError, NotFoundError, PathError, storage_errors

_FORMAT_VERSION = 1
_METADATA = "_metadata.json"
_ARROW, SHARDS = "arrow", "arrow-shards"
T = TypeVar("T")


@dataclass(slots=True)
class ShardedCacheMeta:
    """What the `_metadata.json` of an Arrow cache says."""

    cache_dir: Path
    num_rows: int
    num_shards: int
    shard_filenames: list[str]
    shard_row_counts: list[int]
    schema_fingerprint: str
    compression: str | None = None

    @property
    def shard_paths(self) -> list[Path]:
        """The files, in the order of their rows."""
        return [self.cache_dir / name for name in self.shard_filenames]


class _Metadata(msgspec.Struct):
    """A `_metadata.json`. Early versions have neither `format` nor `layout`."""

    cache_format_version: int
    num_rows: int
    num_shards: int
    shard_row_counts: list[int]
    shard_filenames: list[str]
    schema_fingerprint: str = ""
    format: str = _ARROW
    layout: str = SHARDS
    compression: str | None = None


class _Kind(msgspec.Struct):
    """The parts of a `_metadata.json` that say what kind of cache it describes."""

    format: str = _ARROW
    layout: str = SHARDS
    cache_format_version: int = _FORMAT_VERSION


class _Lineage(msgspec.Struct):
    lineage: dict[str, Any] | None = None


def _load_metadata(cache_dir: str | os.PathLike[str]) -> tuple[bytes, str]:
    path = os.path.join(cache_dir, _METADATA)
    if not os.path.isfile(path):
        raise NotFoundError(f"{path}: expected the metadata of a cache, got no such file")
    with storage_errors(path, "read"), open(path, "rb") as file:
        return file.read(), path


def _decode_metadata(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: expected the metadata of a cache, got something else: {error}") from None


def read_sharded_cache_meta(cache_dir: str | os.PathLike[str]) -> ShardedCacheMeta:
    """Return what the metadata of an Arrow cache says.

    :raises FileNotFoundError: if there is no `_metadata.json`
    :raises ValueError: if it is of another kind or version, contradicts itself, or names a file that is missing
    """
    data, path = _load_metadata(cache_dir)
    kind = _decode_metadata(data, _Kind, path)
    if (kind.format, kind.layout) != (_ARROW, SHARDS):
        raise FormatError(f"{path}: expected an Arrow cache, got the format {kind.format!r} ({kind.layout!r})")
    if kind.cache_format_version != _FORMAT_VERSION:
        raise FormatError(f"{path}: expected format version {_FORMAT_VERSION}, got {kind.cache_format_version}")
    found = _decode_metadata(data, _Metadata, path)
    names, rows = found.shard_filenames, found.shard_row_counts
    if not found.num_shards == len(names) == len(rows):
        raise FormatError(
            f"{path}: expected {found.num_shards} shards, got {len(names)} names and {len(rows)} numbers of rows"
        )
    if sum(rows) != found.num_rows or min(rows, default=0) < 0:
        raise FormatError(f"{path}: expected shards of {found.num_rows} rows in all, got {sum(rows)}")
    meta = ShardedCacheMeta(
        Path(cache_dir), found.num_rows, found.num_shards, names, rows, found.schema_fingerprint, found.compression
    )
    for name, shard in zip(names, meta.shard_paths, strict=True):
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise PathError(f"{path}: expected names of files in the same folder, got {name!r}")
        if not shard.is_file():
            raise FormatError(f"{shard}: expected this shard, as {_METADATA} says, got no such file")
    return meta


def new_metadata(
    features: Features,
    names: list[str],
    rows: list[int],
    size: float,
    compression: str | None,
    lineage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the content of `_metadata.json`, its keys in the order in which stable-datasets writes them."""
    found: dict[str, Any] = {
        "cache_format_version": _FORMAT_VERSION,
        "format": _ARROW,
        "layout": SHARDS,
        "schema_fingerprint": features.fingerprints()[0],
        "num_rows": sum(rows),
        "num_shards": len(names),
        "shard_row_counts": rows,
        "shard_filenames": names,
        "shard_size_target_bytes": None if math.isinf(size) else size,
    }
    return found | ({"compression": compression} if compression else {}) | ({"lineage": lineage} if lineage else {})


# -- kinds of caches --------------------------------------------------------------------------------------------


def detect_cache_format(cache_dir: str | os.PathLike[str]) -> str:
    """Return "arrow" or "lance"; caches of early versions, which do not say it, are of Arrow."""
    return _decode_metadata(*_kind_of(cache_dir)).format


def detect_cache_layout(cache_dir: str | os.PathLike[str]) -> str:
    """Return "arrow-shards", "lance-rows" or "lance-video-frames"."""
    return _decode_metadata(*_kind_of(cache_dir)).layout


def read_lineage(cache_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a cache was made of, as its writer has noted it; empty if it has not."""
    data, path = _load_metadata(cache_dir)
    return _decode_metadata(data, _Lineage, path).lineage or {}


def _kind_of(cache_dir: str | os.PathLike[str]) -> tuple[bytes, type[_Kind], str]:
    data, path = _load_metadata(cache_dir)
    return data, _Kind, path


@dataclass(slots=True)
class LanceCacheMeta:
    """What the `_metadata.json` of a Lance cache says."""

    cache_dir: Path
    num_rows: int
    schema_fingerprint: str


class _LanceMetadata(msgspec.Struct):
    num_rows: int
    schema_fingerprint: str = ""


def read_lance_cache_meta(cache_dir: str | os.PathLike[str]) -> LanceCacheMeta:
    """Return what the metadata of a Lance cache says; its rows are not opened."""
    data, path = _load_metadata(cache_dir)
    if (kind := _decode_metadata(data, _Kind, path)).format != "lance":
        raise FormatError(f"{path}: expected a Lance cache, got the format {kind.format!r}")
    found = _decode_metadata(data, _LanceMetadata, path)
    return LanceCacheMeta(Path(cache_dir), found.num_rows, found.schema_fingerprint)
