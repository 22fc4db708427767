"""Writes samples as media files: one file each, classes as folders, and other fields as ``metadata.jsonl``.

The encoded bytes of a sample are written as they are, under the name in its field `path`, or under a number with the
extension that belongs to the bytes. The field `label` becomes the folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from shardex.errors import ArgumentError, PathError, SchemaError, storage_errors
from shardex.features import ClassLabel, Features, Media, Text
from shardex.formats.join_shards import JoinShards
from shardex.formats.media_folders import FILE_NAME, KINDS, is_metadata, is_shown, kind_of_name
from shardex.formats.sample_writer import JsonEncoder, SampleWriter, ShardSeries
from shardex.sources import check_path

TABLE = "metadata.jsonl"
_EXTENSIONS = "|".join(extension[1:] for some in KINDS.values() for extension in some)
OWNED = rf"(.+/)?[^/]+\.({_EXTENSIONS})|{TABLE.replace('.', '[.]')}"
_BEGINS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"\x89PNG", ".png"),
    (8, b"WEBP", ".webp"),
    (0, b"GIF8", ".gif"),
    (0, b"BM", ".bmp"),
    (0, b"II*\0", ".tif"),
    (0, b"MM\0*", ".tif"),
    (0, b"fLaC", ".flac"),
    (8, b"WAVE", ".wav"),
    (0, b"OggS", ".ogg"),
    (0, b"ID3", ".mp3"),
    (0, b"\xff\xfb", ".mp3"),
    (0, b"\xff\xf3", ".mp3"),
    (8, b"AVI ", ".avi"),
    (4, b"ftypqt", ".mov"),
    (4, b"ftyp", ".mp4"),
    (0, b"\x1a\x45\xdf\xa3", ".mkv"),
)
"""Offset and bytes by which a format is known, and its extension."""


def extension_for(data: bytes, kind: str) -> str:
    """Return the extension of the format that encoded bytes have.

    >>> extension_for(b"\\xff\\xd8\\xff\\xe0", "image")
    '.jpg'
    """
    for at, begin, extension in _BEGINS:
        if data[at : at + len(begin)] == begin and extension in KINDS[kind]:
            return extension
    raise SchemaError(
        f"expected {kind} in a known format, got bytes that begin with {data[:12]!r}; name the file in path"
    )


class MediaWriter(SampleWriter):
    """Writes media files, and their other fields to ``metadata.jsonl``."""

    def __init__(self, path: str, features: Features, *, mode: str = "create") -> None:
        if mode == "append":
            raise ArgumentError('expected mode "create" or "overwrite", got "append", which is not supported')
        media = [name for name, feature in features.items() if isinstance(feature, Media)]
        if len(media) != 1 or media[0] != features[media[0]].kind:
            raise SchemaError(
                f"expected one field of media called image, audio or video, got {features}; name the fields with a "
                'schema such as {"image": sx.Image()}'
            )
        self._kind = media[0]
        self._label = _class_folders(features)
        if not isinstance(features.get("path", Text()), Text):
            raise SchemaError(f"expected text, got {features['path']} - at field path")
        own = {self._kind, "path"} | ({"label"} if self._label is not None else set())
        self._others = Features({name: feature for name, feature in features.items() if name not in own})
        self._to_json = JsonEncoder(self._others)
        super().__init__(path, mode, features, OWNED, publish_last=(TABLE,))
        self._plain = [(name, convert) for name, convert in self._plain if name in self._others]
        self._table = ShardSeries(self._stage, lambda number: TABLE)
        self._written: set[str] = set()
        self._classes: set[int] = set()

    def _encode(self, sample: Mapping[str, Any]) -> tuple[str, bytes, bytes, int]:
        data = bytes(sample[self._kind])
        name = self._name(sample, data)
        line = self._to_json({FILE_NAME: name, **{field: sample[field] for field in self._others}}) + b"\n"
        return name, data, line if self._others else b"", -1 if self._label is None else sample["label"]

    def _name(self, sample: Mapping[str, Any], data: bytes) -> str:
        given = sample.get("path")
        name = f"{self._samples:09d}{extension_for(data, self._kind)}" if given is None else given
        if kind_of_name(name) != self._kind:
            name += extension_for(data, self._kind)
        if self._label is not None:
            folder = self._label.name(sample["label"])
            name = name if name.startswith(f"{folder}/") else f"{folder}/{name}"
        try:
            check_path(name)
        except PathError as error:
            raise SchemaError(f"{error}, field path") from None
        if not is_shown(name) or is_metadata(name):
            raise SchemaError(f"expected the name of a file that is not hidden, got {name!r}, field path")
        if name in self._written:
            raise SchemaError(f"expected a different path for each sample, got {name!r} again, field path")
        return name

    def _store(self, record: tuple[str, bytes, bytes, int]) -> None:
        name, data, line, label = record
        full = self._stage.place.path(name)
        with storage_errors(full, "write"):
            os.makedirs(os.path.dirname(full), exist_ok=True)
        self._stage.append(name, [data], 0)  # synced when it is published
        if line:
            self._table.write(line)
        self._written.add(name)
        self._classes.add(label)

    def _finish(self) -> None:
        if self._table.rows or not self._written:  # a folder without samples has an empty table
            self._table.finish()
        names = () if self._label is None else self._label.names
        if lost := [name for number, name in enumerate(names) if number not in self._classes]:
            warnings.warn(
                f"{self.path}: {len(lost)} of {len(names)} classes have no samples and so no folders "
                f"({', '.join(lost[:3])}); to keep the numbers of the others, open with classes={names!r:.200}",
                stacklevel=4,
            )


def _class_folders(features: Features) -> ClassLabel | None:
    """Return the classes if the field `label` has some: they must be names of folders, in their order."""
    label = features.get("label")
    if not isinstance(label, ClassLabel):
        return None
    for name in label.names:
        if "/" in name or not is_shown(name):
            raise SchemaError(f"expected names of classes that folders can have, got {name!r} - at field label")
    if list(label.names) != sorted(label.names):
        raise SchemaError(
            f"expected names of classes in alphabetical order, in which folders are numbered, got "
            f"{', '.join(label.names[:5])} - at field label; convert the field, or write it as text"
        )
    return label


join = JoinShards(OWNED, ".jsonl", publish_last=(TABLE,))
