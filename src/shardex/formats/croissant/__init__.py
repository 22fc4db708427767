"""Croissant (MLCommons): a JSON-LD file that says which files a dataset has, and which of their columns are its fields.

The files are opened by their own formats, and checked against the checksums that the metadata has. Metadata are data:
they name files in their own folder, or URLs, and say nothing about how shardex reads them. What needs more than columns
(transforms, JSONPath, joins) is refused with the name of the field.

- `data_types`: the types of fields
"""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from glob import escape, has_magic
from typing import Any, NoReturn

import msgspec

import shardex.files
from shardex.errors import (
    ArgumentError,
    ChecksumError,
    FormatError,
    PathError,
    ShardexError,
    UnknownFormatError,
    nearest,
)
from shardex.features import Features, Media, unwrap_optional
from shardex.files import Files, display_name, find, natural_order
from shardex.formats.croissant.data_types import data_type, declared_type, feature_as_declared
from shardex.formats.join_shards import JoinShards
from shardex.formats.registry import Format, ShardRows, format_named
from shardex.formats.signatures import NO, SURE
from shardex.formats.signatures import recognise as format_of
from shardex.kernel import Integers, digest
from shardex.rows import RenamedFields
from shardex.sources import ByteRange, check_path, child_of, is_local, is_url, open_source

__all__ = ["FORMAT", "data_type"]

_ENCODINGS = {
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/x-tar": "tar",
    "text/plain": "text",
    **dict.fromkeys(("application/jsonlines", "application/x-jsonlines", "application/x-ndjson"), "jsonl"),
    **dict.fromkeys(("application/jsonl", "application/json"), "jsonl"),
    **dict.fromkeys(("application/x-parquet", "application/vnd.apache.parquet"), "parquet"),
    **dict.fromkeys(("application/vnd.apache.arrow.file", "application/vnd.apache.arrow.stream"), "arrow"),
}
"""The formats of media types."""
_MOST_BYTES, _HEAD, _PIECE = 16 << 20, 64 << 10, 8 << 20
_DIGESTS = {"sha256": 64, "md5": 32}
"""Checksums that Croissant has, and their hexadecimal digits."""


def recognise(files: Files) -> int:
    """Return whether a JSON file is metadata of Croissant."""
    path = files.paths[0]
    size = min(_HEAD, files.source.stat(path).size)
    head = bytes(files.source.read(path, [ByteRange(0, size)])[0])
    return SURE if head.lstrip()[:1] == b"{" and b"mlcommons.org/croissant" in head and b'"@context"' in head else NO


def open(
    files: Files,
    *,
    schema: Features | None = None,
    record_set: str | None = None,
    fields: list[str] | None = None,
    verify: bool = True,
) -> ShardRows:
    """Open a record set of a Croissant file: the only one, or the one of this name, with all `fields` or these.

    Files are read whole to `verify` the checksums that the metadata has, if they are opened for the first time.
    """
    document = _Document(files)
    chosen = document.record_set(record_set)
    columns, origin = document.columns(chosen, fields)
    found, name = document.files_of(origin, verify=verify)
    container = format_named(name)
    rows: ShardRows = container.open(found, schema=schema)
    features = dict(rows.features)
    for label, (column, field) in columns.items():
        if column not in features:
            document.refuse(label, f"a column out of {', '.join(features)} in {found}", column)
        found_here, declared = features[column], declared_type(field)
        if declared is not None and schema is None:
            other = feature_as_declared(found_here, declared, exact=container.self_describing)
            if other is None:
                text = f"{files}: field {label} is declared as {declared.name}, and read as {found_here}"
                warnings.warn(text, stacklevel=2)
            features[column] = other or found_here
        if "transform" in field["source"] and not isinstance(unwrap_optional(features[column]), Media):
            document.refuse(label, "no transform", field["source"]["transform"])
    if features != rows.features:
        try:
            rows = container.open(found, schema=Features(features))
        except ShardexError as error:
            error.add_note(f"{files} declares these types; with schema= the files are read with others")
            raise
    names = {column: label for label, (column, _) in columns.items()}
    if list(names.items()) != [(column, column) for column in rows.features]:
        rows = _RecordSetRows(rows, names)
    rows.pinned = {"verify": False}  # the fingerprint says whether the files are those that were verified
    return rows


class _RecordSetRows(RenamedFields, ShardRows):
    """Some columns of rows of another format, under the names of fields."""

    below: ShardRows
    in_python = True

    def __init__(self, below: ShardRows, names: Mapping[str, str]) -> None:
        super().__init__(below, names)
        self.in_python, self.metadata = below.in_python, below.metadata

    def __len__(self) -> int:
        return len(self.below)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the fingerprint of the rows, and of the columns and their names."""
        return digest("record set", self.below.fingerprint, list(self._names.items()))

    def shard_names(self) -> list[str]:
        """Paths of the files."""
        return self.below.shard_names()

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file of each row."""
        return self.below.shards(rows)

    def line(self, row: int) -> str:
        """Return the line of a row in its file."""
        return self.below.line(row)


class _Document:
    """The metadata: files (`distribution`) and record sets by their names."""

    def __init__(self, files: Files) -> None:
        self._files, self._name = files, str(files)
        path = files.paths[0]
        if (size := files.source.stat(path).size) > _MOST_BYTES:
            raise FormatError(f"{files}: expected metadata of at most {_MOST_BYTES} bytes, got {size}")
        try:
            plain = _without_prefixes(msgspec.json.decode(files.source.load(path)))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise FormatError(f"{files}: expected metadata of Croissant in JSON, got: {error}") from None
        if not isinstance(plain, dict):
            raise FormatError(f"{files}: expected metadata of Croissant, got a JSON {type(plain).__name__}")
        self._distribution, self._record_sets = self._nodes(plain, "distribution"), self._nodes(plain, "recordSet")

    def _nodes(self, parent: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return the objects under a key, which may be one or a list, by their names; those of fields have a prefix."""
        found: dict[str, dict[str, Any]] = {}
        for node in _list(parent.get(key)):
            name = _label(node, prefix) if prefix else _id(node)
            if not isinstance(node, dict) or not name or name in found:
                raise FormatError(f"{self._name}: expected objects with names of their own in {key}, got {node!r:.100}")
            found[name] = node
        return found

    def refuse(self, field: str, expected: str, found: Any) -> NoReturn:
        """Raise the error for a field that cannot be read."""
        raise FormatError(
            f"{self._name}: expected {expected}, got {found!r:.200} - at field {field}; choose fields without it with "
            "fields=[...]"
        )

    # -- record sets ------------------------------------------------------------------------------------------

    def record_set(self, name: str | None) -> dict[str, Any]:
        """Return the record set of this name, or the only one; those with data of their own only list choices."""
        known = {one: node for one, node in self._record_sets.items() if "data" not in node}
        if name is None and len(known) == 1:
            return next(iter(known.values()))
        names = {**{str(node["name"]): node for node in known.values() if "name" in node}, **known}
        if name in names:
            return names[str(name)]
        if not known:
            raise FormatError(f"{self._name}: expected a record set with columns of files, got none")
        listed = ", ".join(known)
        if name is None:
            raise ArgumentError(f"{self._name}: expected record_set= with one of its record sets: {listed}")
        raise ArgumentError(
            f"{self._name}: expected one of its record sets ({listed}), got {name!r}{nearest(name, list(names))}"
        )

    def columns(
        self, record_set: Mapping[str, Any], chosen: Sequence[str] | None
    ) -> tuple[dict[str, tuple[str, dict[str, Any]]], str]:
        """Return the column and the description of each field by its name, and the name of the files that have them."""
        known = self._nodes(record_set, "field", f"{_id(record_set)}/")
        if isinstance(chosen, str) or (missing := [name for name in chosen or () if name not in known]):
            wrong = chosen if isinstance(chosen, str) else missing
            raise ArgumentError(f"{self._name}: expected a list of fields out of {', '.join(known)}, got {wrong!r}")
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        origins: dict[str, str] = {}
        for name in known if chosen is None else chosen:
            column, origins[name] = self._column(name, known[name])
            found[name] = column, known[name]
            if [one for one, _ in found.values()].count(column) > 1:
                self.refuse(name, "a column of its own", column)
            if len({*origins.values()}) > 1:
                self.refuse(name, f"fields of one file or set of files ({next(iter(origins.values()))})", origins[name])
        if not found:
            raise FormatError(f"{self._name}: expected fields in the record set {_id(record_set)}, got none")
        return found, next(iter(origins.values()))

    def _column(self, name: str, field: Mapping[str, Any]) -> tuple[str, str]:
        """Return the column of a field, and the name of its files."""
        source = field.get("source")
        if not isinstance(source, dict) or not isinstance(extract := source.get("extract"), dict):
            self.refuse(name, "a source that is a column of files", source)
        if others := {"subField", "references"} & field.keys():
            self.refuse(name, "a plain column", sorted(others))
        others = extract.keys() - {"column", "@id", "@type"} or source.keys() - {
            *("extract", "fileObject", "fileSet", "@id", "@type"),
            *(["transform"] if _is_bytes_of_media(source.get("transform"), field) else []),
        }
        if others or not isinstance(extract.get("column"), str):
            self.refuse(name, "a source that is a column", sorted(others) or extract)
        origin = _id(source.get("fileObject") or source.get("fileSet"))
        if origin not in self._distribution:
            self.refuse(name, f"a source out of {', '.join(self._distribution)}", origin)
        return extract["column"], origin

    # -- files ------------------------------------------------------------------------------------------------

    def files_of(self, name: str, *, verify: bool) -> tuple[Files, str]:
        """Return the files of a distribution, and their format."""
        node = self._distribution[name]
        where = f"{self._name}, distribution {name}"
        containers = _list(node.get("containedIn"))
        if "excludes" in node or len(containers) > 1:
            raise FormatError(f"{where}: expected neither excludes nor several archives, got {node!r:.300}")
        wanted = _list(node.get("includes") if "includes" in node else node.get("contentUrl"))
        if not wanted or not all(isinstance(one, str) for one in wanted):
            raise FormatError(f"{where}: expected contentUrl or includes, got {wanted!r:.200}")
        if containers:
            found = self._in_archive(_id(containers[0]), wanted, where, verify)
        else:
            found = self._found(self._listed(wanted, where) if "includes" in node else wanted, where, verify)
        encodings = _list(node.get("encodingFormat"))
        known = next((_ENCODINGS[one] for one in encodings if one in _ENCODINGS), None)
        try:
            format = known or format_of(found)
        except UnknownFormatError as error:
            raise UnknownFormatError(
                f"{where}: expected an encodingFormat that shardex reads ({', '.join(_ENCODINGS)}), got "
                f"{', '.join(map(str, encodings)) or 'none'}: {error}"
            ) from None
        if format == "croissant":
            raise UnknownFormatError(f"{where}: expected files of data, got metadata of Croissant")
        return shardex.files.with_checksums(found, False), format

    def _listed(self, patterns: Sequence[str], where: str) -> list[str]:
        """Return the paths that match, in the folder of the metadata; names without wildcards stay in their order."""
        if not any(map(has_magic, patterns)):
            return list(dict.fromkeys(patterns))
        wanted, base = ", ".join(patterns), self._files.source.url
        if base.startswith(("http://", "https://")):
            raise FormatError(
                f"{where}: expected names of files, as a web server does not list those that match {wanted}; download "
                "the dataset, and open the metadata there"
            )
        beside = [
            path for path in find(f"{base}/", **self._files.access).having("").paths if path != self._files.paths[0]
        ]
        if paths := _matching(patterns, beside):
            return paths
        raise FormatError(f"{where}: expected files that match {wanted}, got none")

    def _found(self, urls: Sequence[str], where: str, verify: bool) -> Files:
        """Return the files at these addresses, which have the checksums that the metadata has."""
        places = [self._address(url, where) for url in urls]
        # What lies beside the metadata is trusted as they are; other URLs are not: metadata often come from strangers.
        is_own = all(own for _, own in places)
        names = [place for place, _ in places]
        access = {"trusted": is_own, **self._files.access}
        found = find(names if len(names) > 1 else names[0], **access)
        stored = found.packed or found
        if len(stored.paths) != len(names):  # of a pattern, which could name files elsewhere, or of a folder
            raise FormatError(f"{where}: expected names of files, got {display_name(names)}")
        for place, path in zip(names, stored.paths, strict=True):
            if verify and place in self._checksums:
                _verify(stored, path, *self._checksums[place])
        return found

    @cached_property
    def _checksums(self) -> dict[str, tuple[str, str]]:
        """The kind and the digits of the checksum of each file that is not in an archive."""
        found = {}
        for name, node in self._distribution.items():
            kind, url = next((kind for kind in _DIGESTS if node.get(kind)), None), node.get("contentUrl")
            if kind and isinstance(url, str) and "containedIn" not in node:
                with suppress(ShardexError):  # it is not the address of a file that can be read
                    found[self._address(url, name)[0]] = kind, str(node[kind]).lower()
        return found

    def _address(self, url: str, where: str) -> tuple[str, bool]:
        """Return the path or URL of a file, and whether it is in the folder of the metadata."""
        base = self._files.source.url
        inside = url.removeprefix(f"{base.partition('?')[0]}/") if is_url(url) and is_url(base) else url
        if is_url(inside) and not is_local(inside):
            if not inside.startswith(("http://", "https://")):  # `find` trusts buckets; of web servers it knows more
                open_source(inside, trusted=False)
            return inside, False
        try:
            if is_local(inside) and is_url(inside):
                raise PathError(inside)
            return child_of(base, check_path(posixpath.normpath(inside))), True
        except PathError:
            raise PathError(
                f"{where}: expected a path in the folder of this metadata, or a URL of the web or a bucket, got "
                f"{display_name(url)!r:.200}"
            ) from None

    def _in_archive(self, name: str, wanted: Sequence[str], where: str, verify: bool) -> Files:
        """Return the files in a zip archive that match."""
        archive = self._distribution.get(name, {})
        url = archive.get("contentUrl")
        if "containedIn" in archive or not isinstance(url, str) or not _is_zip(archive):
            raise FormatError(
                f"{where}: expected files beside the metadata or in a zip archive, got files in {name} "
                f"({archive.get('encodingFormat')}); download it, and open its files"
            )
        found = self._found([url], where, verify)
        prefix = f"{(found.packed or found).paths[0]}/"
        paths = _matching([escape(prefix) + one for one in wanted], found.paths)
        if not paths:
            raise FormatError(f"{where}: expected files in {name} that match {', '.join(wanted)}, got none")
        return replace(found, listed=tuple(paths), folder=False)


def _verify(files: Files, path: str, kind: str, expected: str) -> None:
    """Raise ChecksumError if a file has not this checksum."""
    name, digest = files.source.full_name(path), hashlib.new(kind, usedforsecurity=False)
    if not re.fullmatch(rf"[0-9a-f]{{{_DIGESTS[kind]}}}", expected):
        raise FormatError(
            f"{files}: expected {_DIGESTS[kind]} hexadecimal digits as {kind} of {name}, got {expected!r}"
        )
    size = files.source.stat(path).size
    for begin in range(0, size, _PIECE):
        digest.update(files.source.read(path, [ByteRange(begin, min(_PIECE, size - begin))])[0])
    if (found := digest.hexdigest()) != expected:
        raise ChecksumError(
            f"{name}: expected the {kind} {expected}, got {found}: the file is damaged, or its metadata are of another "
            "version"
        )


# -- JSON-LD ----------------------------------------------------------------------------------------------------


def _without_prefixes(value: Any) -> Any:
    """Return JSON values with keys such as ``cr:field`` as ``field``."""
    if isinstance(value, dict):
        return {key.rpartition(":")[2]: _without_prefixes(one) for key, one in value.items()}
    return [_without_prefixes(one) for one in value] if isinstance(value, list) else value


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _id(value: Any) -> str:
    """Return the name of an object, or of the one that is referred to; empty if it has none."""
    name = value.get("@id", value.get("name")) if isinstance(value, dict) else value
    return name if isinstance(name, str) else ""


def _label(field: Any, prefix: str) -> str:
    """Return the name of a field in samples."""
    name = field.get("name") if isinstance(field, dict) else None
    return name if isinstance(name, str) and name else _id(field).removeprefix(prefix)


def _is_bytes_of_media(transform: Any, field: Mapping[str, Any]) -> bool:
    """Return whether a transform takes the bytes of an image or a sound of Hugging Face, as reading it does anyway."""
    return transform == {"jsonPath": "bytes"} and str(field.get("dataType")).endswith(("ImageObject", "AudioObject"))


def _is_zip(node: Mapping[str, Any]) -> bool:
    return "application/zip" in _list(node.get("encodingFormat")) or str(node["contentUrl"]).lower().endswith(".zip")


def _matching(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return the paths that match; ``*`` also matches a slash, as it does for mlcroissant."""
    return natural_order(list({path for one in patterns for path in fnmatch.filter(paths, posixpath.normpath(one))}))


def create(path: str, features: Features, *, mode: str = "create") -> NoReturn:
    """Raise an error: metadata describe data that are written in another format."""
    raise ArgumentError(
        f'{path}: expected a format of data, got "croissant": write them with format="parquet", "jsonl" or "csv", and '
        "describe what is returned with to_croissant"
    )


FORMAT = Format(open, create, JoinShards(r".*\.json", ".json"))
