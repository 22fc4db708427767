"""What a native dataset consists of: the versions that are there, and for each the data files and what they are for.

Reads names and manifests, no data. `integrity.py` and `salvage.py` go through the list file by file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from shardex.arrow import arrow_schema
from shardex.errors import SourceError
from shardex.files import STORE_FOLDER, What
from shardex.sources import Place, place_of
from shardex.store.manifest import DataFile, Manifest, latest_version

__all__ = ["Use", "data_files", "native_place", "uses_of", "versions_in"]

_MANIFEST = re.compile(rf"{STORE_FOLDER}/([0-9]{{8}})\.json")
_DATA = re.compile(r"data/[0-9a-f]{32}\.arrow")


def native_place(path: What) -> Place | None:
    """Where a native dataset lies, even if all its manifests are lost; none if it is something else."""
    if not isinstance(path, str | os.PathLike):
        return None
    place = place_of(path)
    if not place.is_remote and not os.path.isdir(place.url):
        return None
    try:
        return place if latest_version(place) or data_files(place) else None
    except SourceError as error:
        if error.errno == errno.ENOTSUP:  # a web server, which lists nothing
            return None
        raise


def versions_in(place: Place) -> list[int]:
    """The versions that have a manifest, whole or not."""
    found = (_MANIFEST.fullmatch(path) for path in place.paths(STORE_FOLDER + "/"))
    return sorted(int(match[1]) for match in found if match)


def data_files(place: Place) -> list[str]:
    """All files that are called as data files are, whoever names them."""
    return [path for path in place.paths("data/") if _DATA.fullmatch(path)]


@dataclass(frozen=True)
class Use:
    """What a version needs a data file for."""

    file: DataFile
    kind: str
    """`values`, `keys`, `deleted` or `newer values`."""
    columns: tuple[pa.Field, ...]
    """What readers expect in it."""
    fields: tuple[str, ...]
    """The fields that need it; none where all do."""
    fragment: int = -1
    start: int = 0
    """The place of its first row."""


def uses_of(manifest: Manifest) -> Iterator[Use]:
    """All data files of a version."""
    schema, start = arrow_schema(manifest.features), 0
    for number, fragment in enumerate(manifest.fragments):
        for file in fragment.groups:
            yield Use(file, "values", _columns(file, schema), tuple(file.fields), number, start)
        if fragment.keys is not None:
            fields = () if manifest.key is None else (manifest.key,)
            yield Use(fragment.keys, "keys", (_number("hash"), _number("row")), fields, number, start)
        start += fragment.rows
    for file in manifest.deleted:
        yield Use(file, "deleted", (_number("row"),), ())
    for file in manifest.overlays:
        names = tuple(name for name, column in file.fields.items() if column != "row")
        yield Use(file, "newer values", (_number("row"), *_columns(file, schema)), names)


def _columns(file: DataFile, schema: pa.Schema) -> tuple[pa.Field, ...]:
    pairs = [(name, column) for name, column in file.fields.items() if name in schema.names]
    return tuple(schema.field(name).with_name(column) for name, column in pairs)


def _number(name: str) -> pa.Field:
    return pa.field(name, pa.uint64(), nullable=False)
