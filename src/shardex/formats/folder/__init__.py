"""Folders of media files: each image, audio file or video is a sample, read in place.

The fields are the bytes of the file (`image`, `audio` or `video`), its class if files are in class folders (`label`),
its path, the caption beside it (``a.txt`` beside ``a.jpg``), and the columns of ``metadata.csv`` or ``metadata.jsonl``.
A file is read whole, when a field of it is asked for; many remote ones are downloaded at once. No file stays mapped or
open, so there may be millions. `media_folders` says what names mean, `metadata` matches tables with
files, `writer` writes both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    RowError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
    UnknownKeyError,
)
from shardex.features import Bytes, ClassLabel, Feature, Features, Optional, Text
from shardex.files import Files, FolderListing, forget, list_folder
from shardex.formats.folder.metadata import Metadata, open_metadata
from shardex.formats.folder.writer import MediaWriter, join
from shardex.formats.media_folders import CAPTIONS, MediaFiles, class_names, media_feature
from shardex.formats.registry import Format, ShardRows
from shardex.kernel import Column, Columns, Integers
from shardex.sources import ByteRange, Source, Stat
from shardex.workers import ExecutorLike

__all__ = [
    "FORMAT",
]

_FEW = 10
"""Names of classes in a message."""


def open(
    files: Files,
    *,
    schema: Features | None = None,
    kind: str | None = None,
    label: str | bool | None = None,
    classes: Sequence[str] | None = None,
    unmatched: str = "raise",
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> MediaFileRows:
    """Open media files of one `kind`: "image", "audio" or "video"; by default the only one that there is.

    `label` says which folder is the class of a file: the first one below the root ("top"), the last one ("parent"), all
    of them ("path"), or none (False); by default the first one, if files are in at least two. `classes` are the names
    of the classes in the order of their numbers, by default all in alphabetical order. ``unmatched="skip"`` leaves out
    rows of metadata without a file and files without a row. A schema gives other features to some fields.
    """
    if rebuild and files.is_local_folder:
        forget(files)
        files = replace(files)  # without the paths of the saved listing
    listing = list_folder(files) if files.is_local_folder else None
    found = MediaFiles.of(files.paths if listing is None else listing.in_order)
    chosen = found.chosen(str(files), kind)
    wanted = Features({} if schema is None else Features.of(schema))
    media, metadata = found.kinds.get(chosen, []), None
    if found.tables and (media or any(files.source.stat(table).size for table in found.tables)):
        how: Any = {"rebuild": rebuild, "progress": progress, "workers": workers, "executor": executor}
        metadata, media = open_metadata(files, found.tables, media, wanted, unmatched, **how)
    _refuse_names(files, media)
    has_labels = metadata is not None and "label" in metadata.features and label is None
    names = None if has_labels else class_names(str(files), media, label, classes)
    captions = {CAPTIONS[extension]: paths for extension, paths in found.captions_of(media).items()}
    return MediaFileRows(
        files, listing, chosen, media, _class_numbers(files, media, names, classes), captions, metadata, wanted
    )


def _refuse_names(files: Files, media: Sequence[str]) -> None:
    """Raise for a name that is no UTF-8: it is the value of a field, and no text can hold it."""
    try:
        "".join(media).encode()
    except UnicodeEncodeError:
        bad = next(path for path in media if not path.isascii() and path.encode(errors="ignore").decode() != path)
        raise FormatError(
            f"{files}: expected names of files in UTF-8, got {os.fsencode(bad)!r}; rename the file, or name others "
            "by a pattern"
        ) from None


def _class_numbers(
    files: Files, media: Sequence[str], names: Sequence[str] | None, classes: Sequence[str] | None
) -> tuple[ClassLabel, Integers] | None:
    """Return the classes, and the number of the class of each file; None without class folders."""
    if names is None:
        return None
    if classes is not None and (isinstance(classes, str) or not all(isinstance(name, str) for name in classes)):
        raise ArgumentError(f"expected a list of names for the option classes, got {classes!r}")
    feature = ClassLabel(sorted(set(names)) if classes is None else classes)
    number_of = {name: number for number, name in enumerate(feature.names)}
    if (lost := next((k for k, name in enumerate(names) if name not in number_of), None)) is not None:
        raise SchemaError(
            f"{files.source.full_name(media[lost])}: expected one of the classes {', '.join(feature.names[:20])}, got "
            f"the folder {names[lost]!r}; add it to classes="
        )
    return feature, np.array([number_of[name] for name in names], np.int64)


# -- reading --------------------------------------------------------------------------------------------------------


class WholeFiles:
    """Files that are values of a field, with their sizes and tags; None for a sample without one."""

    def __init__(self, source: Source, paths: Sequence[str | None], listing: FolderListing | None) -> None:
        self._source, self.paths = source, paths
        there = [path for path in paths if path is not None]
        if listing is not None:
            numbers = listing.numbers(there)
            sizes, tags = listing.sizes[numbers], listing.modified[numbers]
            for missing in np.flatnonzero(tags < 0).tolist():
                source.stat(there[missing])  # raises for a link to nothing
        else:
            stats = source.listed_stats(there)
            sizes, tags = np.array([one.size for one in stats], np.int64), np.array([one.tag for one in stats])
        self._number = np.cumsum(self.present) - 1
        self._sizes, self._tags = sizes, tags

    def _stat(self, row: int) -> Stat:
        number = self._number.item(row)
        return Stat(self._sizes.item(number), str(self._tags[number]))

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """Which samples have a file."""
        return np.array([path is not None for path in self.paths], np.bool_)

    def load(self, rows: Integers) -> list[bytes | None]:
        """Return the contents of the files of these samples."""
        numbers = rows.tolist()
        pairs = [(path, self._stat(k)) for k in numbers if (path := self.paths[k]) is not None]
        loaded = self._source.load_all([path for path, _ in pairs], [stat for _, stat in pairs])
        if len(loaded) == len(numbers):
            return list(loaded)
        values = iter(loaded)
        return [None if self.paths[k] is None else next(values) for k in numbers]

    def advise(self, rows: Integers) -> None:
        """Start to read the files of these samples."""
        for k in rows.tolist():
            if (path := self.paths[k]) is not None:
                self._source.fetch(path, [ByteRange(0, self._stat(k).size)], wait=False)

    def name(self, row: int) -> str:
        """Return the full path of the file of a sample."""
        path = self.paths[row]
        return "" if path is None else self._source.full_name(path)

    def update(self, digest: Any) -> None:
        """Add paths, sizes and tags to a digest."""
        for part in (self.paths, self._sizes.tolist(), list(map(str, self._tags.tolist()))):
            digest.update(msgspec.json.encode(part))


class MediaFileRows(ShardRows):
    """Samples that are media files."""

    in_python = False

    def __init__(
        self,
        files: Files,
        listing: FolderListing | None,
        kind: str,
        media: Sequence[str],
        label: tuple[ClassLabel, Integers] | None,
        captions: dict[tuple[str, Feature], list[str | None]],
        metadata: Metadata | None,
        schema: Features,
    ) -> None:
        self.files, self._kind, self._metadata = files, kind, metadata
        self._media = WholeFiles(files.source, media, listing)
        self._paths, self._label = media, label
        self._captions = {name: WholeFiles(files.source, paths, listing) for (name, _), paths in captions.items()}
        found: dict[str, Feature] = {kind: media_feature(kind)}
        if label is not None:
            found["label"] = label[0]
        found["path"] = Text()
        for (name, feature), paths in captions.items():
            found[name] = feature if all(paths) else Optional(feature)
        more = Features({}) if metadata is None else metadata.features
        if double := next((name for name in more if name in found), None):
            raise SchemaError(
                f"{files}: expected columns of metadata other than {', '.join(found)}, got {double!r} - at field "
                f"{double}; rename the column"
            )
        self.features = _declared(Features({**found, **more}), schema, kind, str(files))
        self.key_lookup = PathLookup(media)

    def __len__(self) -> int:
        return len(self._paths)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when files, their sizes or times, or the tables change."""
        found = hashlib.sha256(msgspec.json.encode(["folder 1", self._kind, self.features.to_json()]))
        for some in (self._media, *self._captions.values()):
            some.update(found)
        if self._metadata is not None:
            found.update(msgspec.json.encode([self._metadata.fingerprint, self._metadata.row_of.tolist()]))
        return found.hexdigest()[:16]

    def shard_names(self) -> list[str]:
        """Paths of the files, as error messages show them."""
        return list(map(self.files.source.full_name, self._paths))

    @property
    def shard_count(self) -> int:
        """Number of files."""
        return len(self)

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file of each row."""
        return [self._media.name(row) for row in self._checked(rows).tolist()]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the files of these rows that the fields need."""
        names, rows = check_fields(list(self.features), fields), self._checked(rows)
        found = {name: self._column(name, rows) for name in names if self._is_own(name)}
        if (more := [name for name in names if name not in found]) and self._metadata is not None:
            found |= self._metadata.read(rows, more).data
        return Columns({name: found[name] for name in names}, len(rows))

    def _is_own(self, name: str) -> bool:
        """Return whether a field is no column of metadata."""
        return name in (self._kind, "path", *self._captions) or (name == "label" and self._label is not None)

    def _checked(self, rows: Integers) -> Integers:
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise RowError(f"expected rows from 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}")
        return rows

    def _column(self, name: str, rows: Integers) -> Column:
        if name == "path":
            return [self._paths[row] for row in rows.tolist()]
        if name == "label" and self._label is not None:
            return self._label[1][rows]
        if name == self._kind:
            values = self._load(self._media, rows)
            if not all(values):
                self._refuse_empty(values, rows)
            return values
        captions = self._captions[name]
        values = self._load(captions, rows)
        decode = _decode_text if name == "text" else _decode_json
        return [
            None if value is None else decode(value, captions.name(row))
            for value, row in zip(values, rows.tolist(), strict=True)
        ]

    def _load(self, some: WholeFiles, rows: Integers) -> list[bytes | None]:
        try:
            return some.load(rows)
        except (StaleIndexError, TruncatedShardError, NotFoundError):
            if self.files.is_local_folder:
                forget(self.files)  # so that the next open looks at all files
            raise

    def _refuse_empty(self, values: Sequence[bytes | None], rows: Integers) -> None:
        row = next(row for value, row in zip(values, rows.tolist(), strict=True) if not value)
        raise FormatError(
            f"{self._media.name(row)}: expected {self._kind}, got an empty file; remove it - at sample {row}, field "
            f"{self._kind}"
        )

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start to read the files that a read of these rows and fields needs."""
        with suppress(ShardexError):
            names = check_fields(list(self.features), fields)
            rows = rows[(rows >= 0) & (rows < len(self))]
            for name in names:
                if (some := self._media if name == self._kind else self._captions.get(name)) is not None:
                    some.advise(rows)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value, without reading files."""
        check_fields(list(self.features), [name])
        if name in self._captions:
            return self._captions[name].present
        if self._is_own(name) or self._metadata is None:
            return np.ones(len(self), np.bool_)
        return self._metadata.present(name)


def _declared(found: Features, schema: Features, kind: str, where: str) -> Features:
    """Return the features of all fields; those in the schema replace the default ones."""
    for name, feature in schema.items():
        if name not in found:
            raise SchemaError(f"{where}: expected fields out of {', '.join(found)}, got {name!r} - at field {name}")
        if name == kind and not isinstance(feature, Bytes):
            raise SchemaError(f"{where}: expected {found[kind]} or bytes, got {feature} - at field {name}")
        if name != kind and feature != found[name]:
            _refuse_classes(found[name], feature, name, where)
            raise SchemaError(f"{where}: expected {found[name]}, got {feature} - at field {name}")
    return Features({**found, **schema})


def _refuse_classes(found: Feature, given: Feature, name: str, where: str) -> None:
    if isinstance(found, ClassLabel) and isinstance(given, ClassLabel):
        expected, got = (", ".join(one.names[:_FEW]) + ", ..." * (len(one.names) > _FEW) for one in (found, given))
        raise SchemaError(
            f"{where}: expected the classes {expected}, got {got} - at field {name}; choose the classes and their "
            "order with classes= instead of the schema"
        )


def _decode_text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: expected UTF-8, got {data[:60]!r}: {error.reason}") from None


def _decode_json(data: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: expected JSON, got {data[:60]!r}: {error}") from None


class PathLookup:
    """Finds samples by the path of their file."""

    key = "path"

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {path: row for row, path in enumerate(self._paths)}

    def row_of(self, key: Any) -> int:
        """Return the row of one path; raise an error if there is none."""
        try:
            return self._rows[key]
        except (KeyError, TypeError):
            raise UnknownKeyError(f"expected the path of a file in the folder, got {key!r:.200}") from None

    def rows_of(self, keys: Any) -> Integers:
        """Return the row of each path."""
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray):
            raise ArgumentError(f"expected a list or an array of paths, got {type(keys).__name__}")
        return np.array([self.row_of(str(key) if isinstance(key, np.str_) else key) for key in keys], np.int64)


FORMAT = Format(open, MediaWriter, join, part_format="arrow", self_describing=True)
