"""Caches of stable_datasets: a folder of Arrow files and a `_metadata.json`, written once from a generator.

Caches of all versions are read: early ones note neither format nor layout, and have other fingerprints. Those written
here also have the features of shardex in the metadata of their Arrow schema, so that ``shardex.open(cache_dir)`` knows
arrays, classes and images, and a cache with renamed classes is noticed.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from shardex import features as core
from shardex.columns import located
from shardex.compat.stable_datasets._arrow_files import ArrowFilesWriter
from shardex.compat.stable_datasets._cache_metadata import (
    SHARDS,
    LanceCacheMeta,
    ShardedCacheMeta,
    detect_cache_format,
    detect_cache_layout,
    new_metadata,
    read_lance_cache_meta,
    read_lineage,
    read_sharded_cache_meta,
)
from shardex.compat.stable_datasets.backends.arrow_shards import ArrowBackend
from shardex.compat.stable_datasets.backends.lance_rows import LanceBackend
from shardex.compat.stable_datasets.backends.lance_video_frames import LanceVideoFramesBackend
from shardex.compat.stable_datasets.features.base import FeatureType
from shardex.compat.stable_datasets.features.image import Image
from shardex.compat.stable_datasets.features.video import ASSETS
from shardex.compat.stable_datasets.schema import Array3D, Array4D, ClassLabel, Features, Sequence, Value
from shardex.errors import (
    ArgumentError,
    CacheChangedError,
    FormatError,
    SchemaError,
    ShardexError,
    storage_errors,
)
from shardex.formats.arrow import map_table
from shardex.sources import locks, make_folder
from shardex.store import encode_ahead

__all__ = [
    "DEFAULT_SHARD_SIZE_BYTES",
    "CacheOpenResult",
    "LanceCacheMeta",
    "ShardedCacheMeta",
    "cache_fingerprint",
    "detect_cache_format",
    "detect_cache_layout",
    "encode_example",
    "open_cache",
    "read_lance_cache_meta",
    "read_lineage",
    "read_shard",
    "read_sharded_cache_meta",
    "validate_sharded_cache",
    "write_lance_cache",
    "write_lance_video_frames_cache",
    "write_sharded_arrow_cache",
]

DEFAULT_SHARD_SIZE_BYTES = 256 * 1024 * 1024
_CORE_KEY = b"shardex"
"""Where the metadata of an Arrow schema has the features of shardex."""
_LANCE: dict[str, Callable[..., object]] = {
    "lance-rows": LanceBackend,
    "lance-video-frames": LanceVideoFramesBackend,
}
_INSTEAD_OF_LANCE = (
    "shardex reads and writes Arrow caches only: use write_sharded_arrow_cache (storage_format='arrow'), which is read "
    "at random just as quickly; for videos use Video(storage='path') and decode frames when samples are read"
)


# -- names and values -------------------------------------------------------------------------------------------


def encode_example(example: Mapping[str, Any], features: Mapping[str, Any], *, cache_dir: Any = None) -> dict[str, Any]:
    """Return the values of an example as Arrow stores them; `cache_dir` is the folder to which videos are copied.

    Keys that are no columns are kept.

    >>> from shardex.compat.stable_datasets.schema import ClassLabel
    >>> encode_example({"label": "dog", "id": 3}, {"label": ClassLabel(names=["cat", "dog"])})
    {'label': 1, 'id': 3}
    """
    folder = None if cache_dir is None else Path(cache_dir)
    return {name: _encode(value, features.get(name), name, folder) for name, value in example.items()}


def _encode(value: Any, feature: Any, name: str, cache_dir: Path | None) -> Any:
    known = feature if isinstance(feature, FeatureType) else FeatureType()
    try:
        return known.encode(value, cache_dir=cache_dir)
    except SchemaError as error:
        raise _located(error, f"field {name}") from None


def _located(error: SchemaError, place: str) -> SchemaError:
    """Return the error with the place in its message, and its type: users catch `KeyError` for an unknown class."""
    return type(error)(str(located(error, place)))


def cache_fingerprint(
    cls_name: str, version: str, config_name: str, split: str, storage_format: str | None = None
) -> str:
    """Return the name of the folder of a cache; with `storage_format` as newer versions do, which have several.

    >>> cache_fingerprint("CIFAR10", "1.0.0", "default", "train")
    'cifar10_default_train_1a892fef64290409'
    """
    key = ":".join([cls_name, version, config_name, split, *([] if storage_format is None else [storage_format])])
    return f"{cls_name.lower()}_{config_name}_{split}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"


# -- opening ----------------------------------------------------------------------------------------------------


def validate_sharded_cache(cache_dir: str | os.PathLike[str], features: Mapping[str, Any]) -> ShardedCacheMeta:
    """Return what the metadata of a cache says; `ValueError` if it has other columns, or is damaged."""
    meta = read_sharded_cache_meta(cache_dir)
    wanted = Features(features)
    if meta.schema_fingerprint and meta.schema_fingerprint not in wanted.fingerprints():
        raise CacheChangedError(
            f"{meta.cache_dir}: expected the fingerprint {wanted.fingerprints()[0]} of {wanted.fingerprint_data()}, "
            f"got {meta.schema_fingerprint}: the columns have changed; remove the cache and make it again"
        )
    if meta.num_shards and (found := _written_features(meta.shard_paths[0])) is not None:
        _check_same(wanted.core, found, meta.cache_dir)
    return meta


def _written_features(shard: Path) -> core.Features | None:
    """Return the features of shardex that a cache was written with; None if it was not written by shardex."""
    with storage_errors(str(shard), "read"):
        try:
            with pa.memory_map(str(shard)) as file:
                metadata = pa.ipc.open_file(file).schema.metadata or {}
        except pa.ArrowException as error:
            raise FormatError(f"{shard}: expected an Arrow file, got something else: {error}") from None
    try:
        return core.Features.from_json(core.codecs.JSON.decode(metadata[_CORE_KEY]))
    except (KeyError, ShardexError):
        return None


def _check_same(wanted: core.Features, found: core.Features, cache_dir: Path) -> None:
    """Raise an error for a column that the cache has in another form; the fingerprint has not every class name."""
    for name, feature in wanted.items():
        if (other := found.get(name)) != feature:
            raise CacheChangedError(
                f"{cache_dir}: expected the column {name} to be {feature!r}, got {other!r}; remove the cache and make "
                "it again"
            )


def read_shard(shard_path: str | os.PathLike[str]) -> pa.Table:
    """Return one file of a cache as a table, over its mapped bytes."""
    return map_table(shard_path)


@dataclass(slots=True, kw_only=True)
class CacheOpenResult:
    """An open cache: where its rows come from, and what its metadata says."""

    backend: Any
    num_rows: int
    layout: str
    metadata: Any


def open_cache(
    cache_dir: str | os.PathLike[str], features: Mapping[str, Any], *, backend_kwargs: Mapping[str, Any] | None = None
) -> CacheOpenResult:
    """Open a cache with these columns; `backend_kwargs` are for Lance, which is not read here.

    :raises FileNotFoundError: if there is no cache
    :raises ValueError: if it has other columns, is damaged, or has an unknown layout
    """
    layout = detect_cache_layout(cache_dir)
    if layout in _LANCE:
        _LANCE[layout](uri=cache_dir, **(backend_kwargs or {}))
    if layout != SHARDS:
        raise FormatError(f"{cache_dir}: expected the layout {SHARDS!r}, got {layout!r}")
    meta = validate_sharded_cache(cache_dir, features)
    backend = ArrowBackend(
        shard_paths=meta.shard_paths,
        shard_row_counts=meta.shard_row_counts,
        schema=Features(features).to_arrow_schema(),
    )
    return CacheOpenResult(backend=backend, num_rows=meta.num_rows, layout=layout, metadata=meta)


# -- writing ----------------------------------------------------------------------------------------------------


def write_sharded_arrow_cache(
    generator: Iterable[tuple[Any, Mapping[str, Any]]],
    features: Mapping[str, Any],
    cache_dir: str | os.PathLike[str],
    *,
    shard_size_bytes: float = DEFAULT_SHARD_SIZE_BYTES,
    batch_size: int = 1000,
    compression: str | None = None,
    num_encode_workers: int = 0,
    single_file: bool = False,
    lineage: Mapping[str, Any] | None = None,
) -> ShardedCacheMeta:
    """Write the examples of a generator of ``(key, example)`` to a cache, which replaces one that is there.

    A record batch has `batch_size` rows, fewer if they are large. A file is closed when its batches take
    `shard_size_bytes` in memory; `single_file` means no limit. `num_encode_workers` threads encode images, unless
    there are columns of videos, lists of images or a user's own features. Keys of an example that are no columns are
    left out; a column that it lacks is null, with a warning if all examples lack it.

    The folder is replaced in one step, when all is on the disk: a crash leaves the old one, and readers that have it
    open keep it. One process at a time writes it, others wait.
    """
    wanted = Features(features)
    target = Path(os.path.abspath(cache_dir))
    size = math.inf if single_file else shard_size_bytes

    def described(names: list[str], rows: list[int]) -> dict[str, Any]:
        return new_metadata(wanted, names, rows, size, compression, lineage)

    with storage_errors(str(target), "create"):
        make_folder(str(target.parent))
    with locks.locked_file(f"{target}.lock") as lock:
        if lock is not None and lock.is_locked:
            _remove_leftovers(target)
        with (
            ArrowFilesWriter(
                target,
                _schema(wanted),
                described,
                batch_rows=batch_size,
                shard_size=size,
                compression=compression,
                others=f"{'/'.join(ASSETS)}/[^/]+",
            ) as out,
            closing(_examples(generator, wanted, num_encode_workers)) as examples,
        ):
            folder, lacking = Path(out.folder), set(wanted)
            for number, example in enumerate(examples):
                out.append(_row(example, wanted, folder, number))
                lacking = lacking and lacking - example.keys()
    meta = read_sharded_cache_meta(cache_dir)
    if lacking and meta.num_rows:
        names = ", ".join(sorted(lacking))
        warnings.warn(f"{target}: no example has the columns {names}, which are null everywhere", stacklevel=2)
    return meta


def _schema(features: Features) -> pa.Schema:
    return features.to_arrow_schema().with_metadata({_CORE_KEY: core.codecs.JSON.encode(features.core.to_json())})


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary folders of processes that died while they wrote this cache, and not those of others."""
    own = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}\.tmp")
    for name in filter(own.fullmatch, os.listdir(target.parent)):
        shutil.rmtree(target.parent / name, ignore_errors=True)


def _examples(generator: Iterable[Any], features: Features, workers: int) -> Generator[Mapping[str, Any]]:
    """Yield the examples of a generator of pairs; threads encode the images of coming ones."""
    if workers > 1 and all(map(_has_no_files, features.values())):
        media = {name: one.core for name, one in features.items() if type(one) is Image}
        yield from encode_ahead(_without_keys(generator), core.Features(media), workers, _encode_image)
    else:
        yield from _without_keys(generator)


def _has_no_files(feature: FeatureType) -> bool:
    """Return whether values stay as they are when the generator goes on and perhaps removes files it has named."""
    if type(feature) is Sequence:
        return type(feature.feature) is not Image and _has_no_files(feature.feature)
    return type(feature) in (Image, Value, ClassLabel, Array3D, Array4D)  # images are read at once


def _without_keys(generator: Iterable[Any]) -> Generator[Mapping[str, Any]]:
    for number, one in enumerate(generator):
        if not (isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[1], Mapping)):
            raise ArgumentError(f"expected pairs of a key and an example (a dict), got {one!r:.200} at sample {number}")
        yield one[1]


def _encode_image(value: Any, feature: core.Feature) -> bytes | None:
    assert isinstance(feature, core.Image)
    return Image(feature.format).encode(value)


def _row(example: Mapping[str, Any], features: Features, folder: Path, number: int) -> dict[str, Any]:
    row, name = dict[str, Any](), ""
    try:
        for name, feature in features.items():
            row[name] = feature.encode(example[name], cache_dir=folder) if name in example else None
    except SchemaError as error:
        raise _located(error, f"sample {number}, field {name}") from None
    return row


# -- Lance ------------------------------------------------------------------------------------------------------


def write_lance_cache(
    generator: Iterable[Any],
    features: Features,
    cache_dir: str | os.PathLike[str],
    *,
    batch_size: int = 1000,
    num_encode_workers: int = 0,
    lineage: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Raise an error that says what to use instead of Lance."""
    raise NotImplementedError(f"{cache_dir}: {_INSTEAD_OF_LANCE}")


def write_lance_video_frames_cache(
    generator: Iterable[Any],
    features: Features,
    cache_dir: str | os.PathLike[str],
    *,
    video_column: str | None = None,
    quality: int = 65,
    resize: int | None = None,
    workers: int | None = None,
    skip_corrupt: bool = True,
    lineage: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Raise an error that says what to use instead of Lance."""
    raise NotImplementedError(f"{cache_dir}: {_INSTEAD_OF_LANCE}")
