"""Finds (`TarScanner`) and writes (`TarWriter`) samples in tars by the rules of WebDataset; repairs damaged tars.

This module deals with names and bytes of members; `tar_fields` encodes and decodes the values.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnsafeError,
)
from shardex.files import Index, Scan, find
from shardex.formats import tar_fields
from shardex.formats.sample_writer import SeriesWriter, check_shard_options
from shardex.formats.tar_blocks import header, members, padding, tar_series
from shardex.formats.tar_remote_headers import header_bytes
from shardex.schema import MSGPACK, Features, Opaque, Optional, Text, contains
from shardex.sources import LocalSource, Source

KEY = "__key__"
LAYOUTS = ("parts", "msgpack")
"""How a sample is stored: one member for each field, or one member for all of them."""
_NO_SAMPLE = re.compile(r"__[^/]*__($|/)")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_MOST_EXTENSIONS = 256


@dataclass(frozen=True)
class TarScanner:
    """Finds the samples of a tar: where each begins, and offset (0 if there is none) and length of each field."""

    name: str = "tar 1"
    """Name and version of the scanner; a new version rebuilds indexes."""
    in_python: bool = True

    def scan(self, source: Source, path: str) -> Scan:
        """Return `start`, and `.offset` (from there) and `.length` of each extension."""
        where = os.path.join(source.url, path)
        starts, rows, which, offsets, lengths = (array("q") for _ in range(5))
        numbers: dict[str, int] = {}
        seen: list[int] = []
        row, current, first = -1, "", 0
        for name, start, begin, size in members(header_bytes(source, path), where):
            if (split := split_name(name, where)) is None:
                continue
            key, extension = split
            if key != current or row < 0:
                row, current, first = row + 1, key, start
                starts.append(start)
            if (number := numbers.get(extension, -1)) < 0:
                number = _new_extension(extension, numbers, key, where)
                seen.append(-1)
            if seen[number] == row:
                raise FormatError(
                    f"{where}: expected each field of a sample once, got {extension!r} twice in sample {key!r}"
                )
            seen[number] = row
            rows.append(row)
            which.append(number)
            offsets.append(begin - first)
            lengths.append(size)
        return {"start": np.array(starts), **_by_extension(numbers, len(starts), rows, which, offsets, lengths)}


def split_name(name: str, where: str) -> tuple[str, str] | None:
    """Split the name of a member into key and extension; None for members that WebDataset skips.

    >>> split_name("a.b/000.Seg.JSON", "x.tar"), split_name("__meta__/x.json", "x.tar"), split_name("README", "x.tar")
    (('a.b/000', 'seg.json'), None, None)
    """
    if name.startswith("/") or (".." in name and ".." in name.split("/")):
        raise UnsafeError(
            f"{where}: expected names that stay inside the tar, got {name!r}; pack it with relative names"
        )
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= 0 or dot == len(name) - 1 or (name.startswith("__") and _NO_SAMPLE.match(name)):
        return None
    if dot == base and "." in name[name.rfind("/", 0, base - 1) + 1 : base]:
        return None
    return name[:dot], name[dot + 1 :].lower()


def _new_extension(extension: str, numbers: dict[str, int], key: str, where: str) -> int:
    if extension == KEY or _NO_TEXT.search(extension):
        raise FormatError(f"{where}: expected an extension, got {extension!r} in sample {key!r}")
    if len(numbers) == _MOST_EXTENSIONS:
        raise FormatError(
            f"{where}: expected samples with the same fields, got more than {_MOST_EXTENSIONS} different ones, "
            f"such as {extension!r} in sample {key!r}; a key ends at its first dot: do your keys contain dots?"
        )
    return numbers.setdefault(extension, len(numbers))


def _by_extension(numbers: dict[str, int], count: int, *columns: array[int]) -> Scan:
    rows, which, offsets, lengths = (np.array(column) for column in columns)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(numbers) + 1))
    scan: Scan = {}
    for extension, number in numbers.items():
        of_extension = order[bounds[number] : bounds[number + 1]]
        for name, values in ((f"{extension}.offset", offsets), (f"{extension}.length", lengths)):
            scan[name] = np.zeros(count, np.int64)
            scan[name][rows[of_extension]] = values[of_extension]
    return scan


# -- damaged tars -------------------------------------------------------------------------------------------------


def check_end(path: str) -> None:
    """Raise an error for a local tar without final zero blocks: it was cut off, its last sample may lack a field."""
    if any(_mapped(path)[-512:]):
        raise TruncatedShardError(f"{path}: expected empty blocks at the end, got none")


def keep_readable_part(path: str) -> bool:
    """Replace a damaged tar (or the link to it) by a copy of its readable samples, except the last one.

    The last one may lack fields. Returns False, and changes nothing, if no sample is left.
    """
    data, key, end = _mapped(path), None, 0
    with suppress(ShardexError):
        for member in members(data, path):
            if (split := split_name(member.name, path)) is not None and split[0] != key:
                key, end = split[0], member.start
    if end:
        os.unlink(path)
        with open(path, "xb") as out:
            out.write(data[:end])
            out.write(bytes(1024))
    return end > 0


def _mapped(path: str) -> memoryview:
    return LocalSource(os.path.dirname(path)).map(os.path.basename(path))


# -- writing ------------------------------------------------------------------------------------------------------


class TarWriter(SeriesWriter):
    """Writes samples as members of numbered tars; made by `tar.create`."""

    def __init__(
        self, path: str, features: Features, mode: str, shard_rows: int, shard_size: int, prefix: str, layout: str
    ) -> None:
        if layout not in LAYOUTS:
            raise ArgumentError(f"expected a layout out of {', '.join(LAYOUTS)}, got {layout!r}")
        check_shard_options(shard_rows, shard_size, prefix)
        fields = Features({name: feature for name, feature in features.items() if name != KEY})
        self._as_map = layout == "msgpack"
        self._extensions = _check_map_fields(fields) if self._as_map else _extensions_of(fields)
        super().__init__(path, mode, Features({**fields, KEY: Optional(Text())}), r".*\.tar")
        with self._abort_on_error():
            first = self._stage.next_number(prefix, ".tar")
        self._shards = tar_series(
            self._stage, lambda number: f"{prefix}-{number:06d}.tar", first, rows=shard_rows, size=shard_size
        )
        self._first_key: int | None = None
        self._last_key: str | None = None

    def _encode(self, sample: Mapping[str, Any]) -> tuple[str, bytes]:
        fields = dict(sample)
        key = self._key(fields.pop(KEY))
        blocks = b"".join(self._members(key, fields))
        if not blocks:
            raise SchemaError(f"expected a sample with at least one field, got none for key {key!r}")
        return key, blocks

    def _store(self, record: tuple[str, bytes]) -> None:
        key, blocks = record
        self._shards.write(blocks)
        self._last_key = key

    def _members(self, key: str, sample: dict[str, Any]) -> Iterator[bytes]:
        """Encode the fields that are present as one member each, or all of them as one map."""
        if self._as_map:
            yield self._member(key, "msgpack", MSGPACK.encode(sample))
            return
        for name, value in sample.items():
            if value is not None or not isinstance(self._features[name], Optional):
                extension = self._extensions[name]
                yield self._member(key, extension, self._encoded(value, name, extension))

    def _encoded(self, value: Any, name: str, extension: str) -> bytes:
        try:
            return tar_fields.encode(value, extension, self._features[name])
        except SchemaError as error:
            raise SchemaError(f"field {name}: {error}") from None

    def _member(self, key: str, extension: str, data: bytes) -> bytes:
        member = f"{key}.{extension}"
        if not _reads_back(key, extension):
            raise SchemaError(f"expected a key and a field name that are read back, got {member!r}")
        return header(member, len(data)) + data + padding(len(data))

    def _key(self, given: str | None) -> str:
        key = self._next_key() if given is None else given
        if _NO_TEXT.search(key) or not _reads_back(key, "x"):
            raise SchemaError(f"expected a key that is a relative name without dots, got {key!r}")
        if key == self._last_key:
            raise SchemaError(f"expected a different key for each sample, got {key!r} again")
        return key

    def _next_key(self) -> str:
        if self._first_key is None:
            tars = [path for path in self._stage.existing if path.lower().endswith(".tar")]
            self._first_key = len(Index.of(find(self.path).having(".tar"), TarScanner())) if tars else 0
        return f"{self._first_key + self._samples:09d}"


def _check_map_fields(features: Features) -> dict[str, str]:
    """Return the extension msgpack for all fields; no field may be called msgpack, which means the map."""
    for field, feature in features.items():
        if contains(feature, Opaque) or field == "msgpack":
            raise SchemaError(
                f"expected a field that can be written as part of a map, got {feature} - at field {field}"
            )
    return dict.fromkeys(features, "msgpack")


def _extensions_of(features: Features) -> dict[str, str]:
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for field, feature in features.items():
        extension = names[field] = tar_fields.extension_of(field, feature)
        if "/" in extension or _NO_TEXT.search(extension):
            raise SchemaError(f"expected a field name that can be a file extension, got {field!r}")
        if (other := taken.setdefault(extension.lower(), field)) != field:
            raise SchemaError(
                f"expected fields with different names, got {other!r} and {field!r}, both read as {extension.lower()!r}"
            )
    return names


def _reads_back(key: str, extension: str) -> bool:
    """Return True if a member of this name is read back with the same key and extension.

    >>> [_reads_back(key, "txt") for key in ("a/0", "./0", "a.b", "../a", "/a", "", "__a__/0")]
    [True, True, False, False, False, False, False]
    """
    try:
        return split_name(f"{key}.{extension}", "") == (key, extension.lower())
    except UnsafeError:
        return False
