"""Sidecar files: data derived from data files (an index, extracted columns) and saved for later opens.

A sidecar is saved in the folder `.shardex` of the data, or in the cache folder if the data is remote or its folder
cannot be written. Its name is a hash of the opened path and the kind of content, so that opening the same files again
finds it. `load_sidecars` and `save_sidecar` read and write it. `load_related_sidecars` reads those of other spellings
of the path: ``data``, ``data/*.tar`` and ``data/{000..099}.tar`` may name the same files.

It is an Arrow file whose schema metadata holds a JSON header and its checksum (`Sidecar`, `decode_sidecar`). Reading
checks the header. Callers check the record batches, by checksums in the header, and decide whether a sidecar still fits
the files.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from shardex.errors import ChecksumError, FormatError, NotFoundError, ShardexError, SourceError, storage_errors
from shardex.sources import LocalSource

if TYPE_CHECKING:
    from shardex.files.find import Files

Decoded = TypeVar("Decoded")

_MOST_RELATED = 16
"""Largest number of sidecars of other paths that are read."""


def load_sidecars(files: Files, kind: str, decode: Callable[[memoryview, str], Decoded], remedy: str) -> list[Decoded]:
    """Return the sidecars of this kind: first the one next to the data, which may be out of date.

    `decode` makes one of bytes and path. If it refuses them, there is a warning, which says what follows (`remedy`).
    """
    found = []
    for place, path in _places(files, kind):
        try:
            found.append(decode(place.map(path), os.path.join(place.url, path)))
        except NotFoundError:
            continue
        except (ShardexError, KeyError, TypeError) as error:
            warnings.warn(f"{error}; {remedy}", stacklevel=5)
    return found


def load_related_sidecars(files: Files, kind: str, decode: Callable[[memoryview, str], Decoded]) -> Iterator[Decoded]:
    """Yield the sidecars that were made for other paths into the same folder, the newest first.

    The first word of their kind is that of `kind`. Callers check whether the rest and the files are the same.
    """
    for place, path in _places(files, kind):
        folder, own = os.path.split(path)
        start = f"{own.rpartition('-')[0]}-"
        with suppress(OSError):
            entries = [one for one in os.scandir(os.path.join(place.url, folder)) if one.name.startswith(start)]
            entries = [one for one in entries if len(one.name) == len(own) and one.name != own]
            entries.sort(key=lambda one: one.stat().st_mtime, reverse=True)
            for entry in entries[:_MOST_RELATED]:
                with suppress(ShardexError, KeyError, TypeError):  # damaged, or of another version
                    yield decode(place.map(f"{folder}/{entry.name}"), entry.path)


def link_sidecar(files: Files, kind: str, related: str) -> str:
    """Give a sidecar that was made for another path to the same files the name for this path too; return its path.

    It is a second name of the same file, so that it costs nothing for large ones.
    """
    for place, path in _places(files, kind):
        own = os.path.join(place.url, path)
        if os.path.dirname(own) == os.path.dirname(related):
            with suppress(OSError):  # read-only, without hard links, or another process has made it
                os.link(related, own)
                return own
    return related


class Sidecar:
    """Content of a sidecar file: an Arrow file with this header and these record batches."""

    def __init__(self, header: Mapping[str, Any], schema: pa.Schema, batches: Sequence[list[pa.Array]]) -> None:
        encoded = msgspec.json.encode(header)
        self._schema = schema.with_metadata({"shardex": encoded, "xxh3": xxhash.xxh3_64_hexdigest(encoded)})
        self._batches = batches

    def write(self, sink: Any) -> None:
        """Write the file to a sink of Arrow, or to an open file."""
        with pa.ipc.new_file(sink, self._schema) as writer:
            for arrays in self._batches:
                writer.write_batch(pa.record_batch(arrays, self._schema))

    def encode(self) -> memoryview:
        """Return the bytes of the file."""
        self.write(sink := pa.BufferOutputStream())
        return memoryview(sink.getvalue())

    def has_header_of(self, data: memoryview) -> bool:
        """Return whether a file has the same header, which contains the checksums of all blocks."""
        try:
            return bool(pa.ipc.open_file(pa.py_buffer(data)).schema.metadata == self._schema.metadata)
        except (pa.ArrowException, OSError):
            return False


def save_sidecar(files: Files, kind: str, content: Sidecar) -> tuple[memoryview, str]:
    """Save a sidecar in the first folder that can be written; returns its mapped bytes and its path.

    If no folder can be written, or if another process replaces it at once, it returns the bytes in memory and a
    description instead of a path.
    """
    for place, path in _places(files, kind):
        try:
            _put(place, path, content)
            mapped = place.map(path)
        except SourceError:
            continue
        if content.has_header_of(mapped):
            return mapped, os.path.join(place.url, path)
        break  # another process has saved its own there meanwhile, perhaps of other files
    return content.encode(), f"the index of {files} in memory"


def _put(place: LocalSource, path: str, content: Sidecar) -> None:
    draft = place.draft()
    try:
        with storage_errors(os.path.join(place.url, path), "write"):
            content.write(draft.file)
        draft.publish(path)
    finally:
        draft.discard()


def remove_sidecar(files: Files, kind: str) -> bool:
    """Remove a sidecar from all folders that may hold it; return whether there was one. Errors are ignored."""
    found = False
    for place, path in _places(files, kind):
        with suppress(SourceError):  # there is none, or the folder cannot be written
            place.remove(path)
            found = True
    return found


def _places(files: Files, kind: str) -> list[tuple[LocalSource, str]]:
    """Return the folders that may hold a sidecar, with its path in each, in the order of preference."""
    cache = files.source.cache_folder
    if files.packed is not None:  # the content of a compressed file, which has an index of its own
        kind += " content"
    root = hashlib.sha256(files.source.url.encode(errors="surrogateescape")).hexdigest()[:16]
    places = [] if cache is None else [(LocalSource(cache), f"index/{root}/{_file_name(kind, files.what)}")]
    if (data := files.source.data_folder) is not None:
        # Named by relative paths, so that the sidecar is still found after the folder was moved.
        inner = [os.path.relpath(one, data) for one in ([files.what] if isinstance(files.what, str) else files.what)]
        places.insert(0, (LocalSource(data), f".shardex/{_file_name(kind, inner)}"))
    return places


def _file_name(kind: str, what: object) -> str:
    key = hashlib.sha256(repr((what, kind)).encode()).hexdigest()[:16]
    return f"{kind.partition(' ')[0]}-{key}.arrow"


def decode_sidecar(
    data: memoryview, name: str, version: int, schema_of: Callable[[dict[str, Any]], pa.Schema]
) -> tuple[pa.ipc.RecordBatchFileReader, dict[str, Any]]:
    """Return a reader of the batches and the header, which must be intact and of this version.

    There must be as many batches as the header lists blocks, with the schema that `schema_of` makes of the header.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = reader.schema.metadata or {}
        encoded = metadata.get(b"shardex", b"")
        if xxhash.xxh3_64_hexdigest(encoded).encode() != metadata.get(b"xxh3"):
            raise ChecksumError(f"{name}: expected an index with an intact header, got other bytes")
        header = msgspec.json.decode(encoded)
    except (pa.ArrowException, OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"{name}: expected an index, got something else: {error}") from None
    if not isinstance(header, dict) or header.get("version") != version:
        found = header.get("version") if isinstance(header, dict) else encoded[:20]
        raise FormatError(f"{name}: expected an index of version {version}, got {found}")
    if reader.num_record_batches != len(header["blocks"]) or not reader.schema.equals(schema_of(header)):
        raise ChecksumError(f"{name}: expected the columns and blocks that its header names, got others")
    return reader, header
