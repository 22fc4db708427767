"""The parts of a native dataset: its versions, and for each version the data files and what they are used for.

It lists names and reads manifests, but no data files. `verify` and `recover` examine the files of `uses_of` one by one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

import pyarrow as pa

from shardex.errors import FormatError, NotFoundError, SourceError
from shardex.features import arrow_schema
from shardex.files import What, display_name
from shardex.native.fragments import DATA_FILE, DataFile, FileUse, number_column
from shardex.native.manifest import Manifest
from shardex.native.version_numbers import latest_version
from shardex.sources import Place, place_of

_DATA = re.compile(DATA_FILE)


def native_place(path: What) -> Place | None:
    """Return the place of a native dataset, even if all its manifests are lost; None if it is not a native dataset."""
    if not isinstance(path, str | os.PathLike):
        return None
    place = place_of(path)
    if place.root_kind() != "folder":
        return None
    try:
        return place if latest_version(place) or paths_of_data_files(place) else None
    except SourceError as error:
        if error.errno == errno.ENOTSUP:  # a web server, which cannot list files
            return None
        raise


def existing_place(path: str | os.PathLike[str]) -> tuple[Place, int]:
    """Return the place of a native dataset and its latest version; raise an error if there is none."""
    place = place_of(path)
    where = display_name(place.url)
    if (kind := place.root_kind()) != "folder":
        expected = "expected the folder of a native dataset, which has versions, got"
        if kind == "file":
            raise SourceError(errno.ENOTDIR, f"{expected} a file", where)
        raise NotFoundError(errno.ENOENT, f"{expected} nothing", where)
    if not (latest := latest_version(place)):
        found = "a folder with other files" if place.paths() else "nothing"
        raise FormatError(
            f"{where}: expected a native dataset, which has versions and can be edited, got {found}; `sx.write` copies "
            "data into a native dataset, `sx.adopt` makes one over shards of another format"
        )
    return place, latest


def paths_of_data_files(place: Place) -> list[str]:
    """Return the paths of all files with the name of a data file, also those that no manifest lists."""
    return [path for path in place.paths("data/") if _DATA.fullmatch(path)]


def uses_of(manifest: Manifest) -> Iterator[FileUse]:
    """Yield every use of a data file in a version."""
    schema, start = arrow_schema(manifest.features), 0
    key = () if manifest.key is None else (manifest.key,)
    for run in manifest.fragments.runs:
        yield FileUse(run.file, "fragments", tuple(map(number_column, run.columns)), ())
        for one in run.tables:
            yield FileUse(one.file, "keys", (number_column("hash"), number_column("row")), key)
    for number, fragment in enumerate(manifest.fragments):
        for file in fragment.groups:
            yield FileUse(file, "values", _columns(file, schema), tuple(file.fields), number, start)
        if fragment.keys is not None:
            yield FileUse(fragment.keys, "keys", (number_column("hash"), number_column("row")), key, number, start)
        start += fragment.rows
    for file in manifest.deleted:
        yield FileUse(file, "deleted", (number_column("row"),), ())
    for file in manifest.overlays:
        names = tuple(name for name, column in file.fields.items() if column != "row")
        yield FileUse(file, "newer values", (number_column("row"), *_columns(file, schema)), names)


def _columns(file: DataFile, schema: pa.Schema) -> tuple[pa.Field, ...]:
    known = dict(zip(schema.names, schema, strict=True))  # looked up by name, as a file may have many columns
    return tuple(known[name].with_name(column) for name, column in file.fields.items() if name in known)
