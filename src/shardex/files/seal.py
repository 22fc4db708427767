"""Arrow files that say what they hold, and know when they were damaged: a JSON head in the metadata, with a checksum.

The index and the values beside it are such files. The head is checked when a file is opened; the batches are for the
caller to check, by checksums that the head holds, when they are first touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from shardex.errors import ChecksumError, FormatError

__all__ = ["sealed", "unsealed"]


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
