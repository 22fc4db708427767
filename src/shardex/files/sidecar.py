"""Where what we derive from files is kept: beside them in `.shardex/`, or in the cache folder where that is read-only
or the files lie elsewhere.

A kept file is named by what the user opened and by what it holds, so that opening the same again finds it. What it
says and whether it still fits the files is for its reader to judge.

Arrow files that say what they hold, and know when they were damaged: a JSON head in the metadata, with a checksum.

The index and the values beside it are such files. The head is checked when a file is opened; the batches are for the
caller to check, by checksums that the head holds, when they are first touched.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from shardex.errors import ChecksumError, FormatError, NotFoundError, SourceError
from shardex.files.find import Files
from shardex.sources import LocalSource

__all__ = ["keep", "kept", "sealed", "unsealed"]


def sealed(head: Mapping[str, Any], schema: pa.Schema, batches: Iterable[list[pa.Array]]) -> memoryview:
    """The bytes of an Arrow file with this head."""
    plain = msgspec.json.encode(head)
    schema = schema.with_metadata({"shardex": plain, "xxh3": xxhash.xxh3_64_hexdigest(plain)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for arrays in batches:
            writer.write_batch(pa.record_batch(arrays, schema))
    return memoryview(sink.getvalue())


def unsealed(data: memoryview, name: str, version: int) -> tuple[pa.ipc.RecordBatchFileReader, dict[str, Any]]:
    """A reader of such a file, and its head, which must be of this version."""
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = reader.schema.metadata or {}
        plain = metadata.get(b"shardex", b"")
        if xxhash.xxh3_64_hexdigest(plain).encode() != metadata.get(b"xxh3"):
            raise ChecksumError(f"{name}: expected an index with an intact head, got other bytes")
        head = msgspec.json.decode(plain)
    except (pa.ArrowException, OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise FormatError(f"{name}: expected an index, got something else: {error}") from None
    if not isinstance(head, dict) or head.get("version") != version:
        found = head.get("version") if isinstance(head, dict) else plain[:20]
        raise FormatError(f"{name}: expected an index of version {version}, got {found}")
    return reader, head


def kept(files: Files, kind: str) -> Iterator[tuple[memoryview, str]]:
    """What is kept of this kind, and where: first beside the data, which may be out of date and not ours to replace."""
    for place, path in _places(files, kind):
        try:
            data = place.map(path)
        except NotFoundError:
            continue
        yield data, os.path.join(place.url, path)


def keep(files: Files, kind: str, data: memoryview) -> tuple[memoryview, str]:
    """Keep bytes in the first place that lets us, in memory if none does; what was kept, and where."""
    for place, path in _places(files, kind):
        try:
            place.put(path, data)
            return place.map(path), os.path.join(place.url, path)
        except SourceError:
            continue
    return data, f"the index of {files} in memory"


def _places(files: Files, kind: str) -> list[tuple[LocalSource, str]]:
    cache = files.source.cache_folder
    places = [] if cache is None else [(LocalSource(cache), f"index/{_file_name(kind, files.what)}")]
    if not files.source.is_remote:
        root = files.source.url
        # Named by how the files are called from there: the folder may be moved, index and all.
        inner = [os.path.relpath(one, root) for one in ([files.what] if isinstance(files.what, str) else files.what)]
        places.insert(0, (LocalSource(root), f".shardex/{_file_name(kind, inner)}"))
    return places


def _file_name(kind: str, what: object) -> str:
    key = hashlib.sha256(repr((what, kind)).encode()).hexdigest()[:16]
    return f"{kind.partition(' ')[0]}-{key}.arrow"
