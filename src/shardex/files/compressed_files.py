"""Files with compressed ones among them, presented as their content: ``a.jsonl.gz`` as ``a.jsonl``.

Formats see only the content, under names that they know (`sources.DecompressedSource`). A zip archive is presented as
its members: ``a.zip/b.jsonl``. Compressed files are recognised by their names and, if the user says how to read them,
by their first bytes too. Only the directories of archives are read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from shardex import sources
from shardex.errors import ArgumentError
from shardex.files.patterns import natural_order
from shardex.sources import ByteRange, Source, compression

if TYPE_CHECKING:
    from shardex.files.find import Files

_NAMES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".zip", ".tgz")
_HEAD = 6
_NOT_DATA = re.compile(r"(^|/)[._]")


def present_content(
    files: Files,
    way: str | None = None,
    cache: str | os.PathLike[str] | bool | None = None,
    limit: int | str | None = None,
    progress: bool | None = None,
) -> Files:
    """Return the files, with the content of compressed ones in their place.

    `way` is how they are read: from "access_points" (gzip, zstd with several frames), or from a decompressed "copy" in
    the folder `cache` of at most `limit` bytes; by default by access points where there are some. Compressed tars
    (``a.tar.gz`` as ``a.tar``) are read only if `way` says how.

    >>> import gzip, tempfile; from shardex.files.find import find; folder = tempfile.mkdtemp()
    >>> with gzip.open(os.path.join(folder, "a.jsonl.gz"), "w") as file:
    ...     _ = file.write(b'{"x": 1}')
    >>> find(folder).paths, bytes(find(folder).source.load("a.jsonl"))
    (('a.jsonl',), b'{"x": 1}')
    """
    if way is None and not any(path.lower().endswith(_NAMES) for path in files.paths):
        return files
    found: dict[str, sources.CompressedFile | None]
    found = {path: None for path in files.paths if sources.compression.plain_name(path) is None}
    listed, archives = list[str](), 0
    for path in files.paths:
        contents = {} if files.folder and _NOT_DATA.search(path) else _contents(files.source, path, way is not None)
        archives += any(packed is not None and packed.member for packed in contents.values())
        if not contents or (files.folder and not contents.keys().isdisjoint(files.paths) and path not in contents):
            contents = {path: None}  # not compressed, or beside its own content, which is read instead
        _refuse_twice(files, path, contents, found)
        found |= contents
        listed += contents
    packed = {path: one for path, one in found.items() if one is not None}
    if not packed:
        return files
    source = sources.DecompressedSource(files.source, packed, way, cache, limit, progress)
    # An archive is like a folder: of its members only those are read that a format knows.
    folder = files.folder or archives == len(files.paths)
    return replace(files, source=source, listed=tuple(listed), folder=folder, packed=files)


def content_of(stored: Files, content: Files) -> Files:
    """Return the content of the same files of another source; `content` is that of files of the first source."""
    return replace(content, source=cast(sources.DecompressedSource, content.source).over(stored.source), packed=stored)


def _contents(source: Source, path: str, by_content: bool) -> dict[str, sources.CompressedFile | None]:
    """Return the content of a compressed file, or the members of an archive; nothing for other files."""
    named = sources.compression.plain_name(path)
    if named is None:
        kind = compression.kind_of(_head(source, path)) if by_content else None
        if kind is None:
            return {}
        if kind == "zip":
            return _members(source, path)
        return {compression.tar_name(path) or path: sources.CompressedFile(path, kind)}
    return _members(source, path) if named[1] == "zip" else {named[0]: sources.CompressedFile(path, named[1])}


def _head(source: Source, path: str) -> bytes:
    return bytes(source.read(path, [ByteRange(0, min(_HEAD, source.stat(path).size))])[0])


def _members(source: Source, path: str) -> dict[str, sources.CompressedFile | None]:
    found: dict[str, sources.CompressedFile | None] = {}
    for member in natural_order(sources.compression.member_names(source, path)):
        inner, kind = sources.compression.plain_name(member) or (member, "")
        if kind != "zip" and not _NOT_DATA.search(member):
            found[f"{path}/{inner}"] = sources.CompressedFile(path, "zip", member, kind)
    return found


def _refuse_twice(files: Files, path: str, contents: Mapping[str, object], found: Mapping[str, object]) -> None:
    for content in contents:
        if content != path and content in found:
            raise ArgumentError(
                f"{files}: expected each file once, got {content} twice, one of them from {path}; name the files by a "
                "pattern"
            )
