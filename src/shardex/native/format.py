"""The format "arrow": native datasets, and plain Arrow files, which `shardex.formats` opens.

Opening a native dataset reads its manifest and no data. `version_reader` reads the values, `writer` writes them; it is
imported when something is written.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardex.errors import FormatError
from shardex.features import Features, arrow_schema, features_of_arrow
from shardex.files import Files
from shardex.formats import Format, TableRows
from shardex.formats.arrow import EXTENSIONS, is_empty_cache, open_files
from shardex.native.fragments import DATA_FILE
from shardex.native.key_lookup import KeyLookup
from shardex.native.manifest import read_manifest
from shardex.native.overlay_rows import EditedRows
from shardex.native.version_numbers import at_latest, latest_of, latest_version
from shardex.native.version_reader import VersionReader
from shardex.plugins import load
from shardex.sources import Source, place_of

_DATA_FILE = re.compile(DATA_FILE)


def recognise(files: Files) -> int:
    """Recognise a folder with a manifest or a cache without shards (2), or files with extensions of Arrow files (1)."""
    return 2 if _latest(files) or is_empty_cache(files) else bool(files.having(*EXTENSIONS).paths)


def _latest(files: Files) -> int:
    if not files.folder:
        return 0
    return latest_version(files.source) if files.manifests is None else latest_of(files.manifests)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    version: int | None = None,
    trust_paths: bool = False,
    max_decoded_bytes: int | str | None = None,
) -> TableRows | EditedRows:
    """Return the rows of a native dataset (of its latest version, or of `version`), or of plain Arrow files.

    With `trust_paths` fields may be stored in shards outside the folder, which the manifest names (see `adopt`).
    `max_decoded_bytes` bounds the memory for one batch of plain Arrow files.
    """
    if latest := _latest(files):
        if version is not None:
            return _open_native(files.source, schema, trust_paths, version)
        return at_latest(files.source, partial(_open_native, files.source, schema, trust_paths), latest)
    if version is not None:
        raise FormatError(f"{files}: expected a native dataset, which has versions, got plain Arrow files")
    if files.folder and (found := files.having(*EXTENSIONS).paths) and all(map(_DATA_FILE.fullmatch, found)):
        raise FormatError(f"{files}: expected a manifest, got only data: its writer has not finished")
    _refuse_data_files(files)
    return open_files(files, schema, max_decoded_bytes)


def _refuse_data_files(files: Files) -> None:
    """Refuse single data files of a native dataset: they may hold deleted samples and old values."""
    for number in range(len(files.paths)):
        folder, name = os.path.split(files.name(number))
        root, inner = os.path.split(folder)
        if _DATA_FILE.fullmatch(f"{inner}/{name}") and latest_version(place_of(root)):
            raise FormatError(
                f"{files.name(number)}: expected plain Arrow files, got one of the dataset {root}; open that"
            )


def _open_native(source: Source, schema: Features | None, trust_paths: bool, version: int) -> TableRows | EditedRows:
    manifest = read_manifest(source, version)
    features = features_of_arrow(arrow_schema(manifest.features), schema) if schema else manifest.features
    reader = VersionReader(source, manifest, trust_paths=trust_paths)
    rows = reader.rows(features)
    if len(rows) != manifest.rows:
        raise FormatError(f"{source.url}: expected {manifest.rows} samples according to its manifest, got {len(rows)}")
    rows.pinned = {"version": version}
    rows.metadata = manifest.metadata or {}
    rows.key_lookup = KeyLookup(reader) if manifest.key is not None else None
    return rows


@dataclass(frozen=True)
class _NativeFormat(Format):
    """The native format; `create` and `join` are imported when they are first used, which no reader does."""

    create: Any = field(init=False)
    join: Any = field(init=False)

    def __getattr__(self, name: str) -> Any:
        """Return a field that `__init__` does not set."""
        if name == "create":
            return load("shardex.native.writer:ArrowWriter")
        if name == "join":
            return load("shardex.native.writer:JoinParts")()
        raise AttributeError(name)


FORMAT = _NativeFormat(
    open,
    stores_schema=True,
    self_describing=True,
    is_dataset=lambda place: latest_version(place) > 0,
)
