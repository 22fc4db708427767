"""Images, audio and video as Hugging Face `datasets` stores them, structs of `bytes` and `path`, converted to bytes.

So are the videos of stable-datasets, whose structs have more parts, and whose paths begin at a folder of its own. Where
`bytes` is null, the file at `path` is read by a function that rows give: it knows which files may be read. `types`
decides that a struct holds media; `decode` reads the converted arrays.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from shardex.columns.decode import Decode, decode_array
from shardex.columns.fields import Field
from shardex.columns.types import STABLE_PARTS
from shardex.errors import FormatError, ShardexError
from shardex.kernel import Column

_STABLE_FOLDER = "_assets/video/"
"""Where stable-datasets keeps the files of videos, in the folder of the shards."""
ReadFile = Callable[[str], bytes]
"""Returns the content of the file at a path that a table holds; `ShardexError` if it must not or cannot be read."""


def no_file(path: str) -> bytes:
    """Raise an error: this table has no folder in which paths could be looked up."""
    raise FormatError(f"expected the bytes of a file, got only its path {path!r}")


def media_decoder(read_file: ReadFile) -> Decode:
    """Return `decode_array` for arrays that may hold media as structs."""

    def decode(array: pa.Array, feature: Field) -> Column:
        return decode_array(feature.without_structs(array, read_file), feature)

    return decode


def bytes_of_structs(array: pa.StructArray, expected: object, read_file: ReadFile) -> pa.Array:
    """Return the bytes of media in structs; they are copied only if a file is read.

    >>> array = pa.array([{"bytes": b"a", "path": None}, {"bytes": None, "path": "b.png"}])
    >>> bytes_of_structs(array, "images", str.encode).to_pylist()
    [b'a', b'b.png']
    """
    parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    data, paths = parts["bytes"], parts["path"]
    if data.null_count == array.null_count:
        return data.cast(pa.large_binary())
    begin = _STABLE_FOLDER if len(parts) == len(STABLE_PARTS) else ""
    found = [
        _file(path and begin + path, expected, read_file) if there and one is None else one
        for one, path, there in zip(data.to_pylist(), paths.to_pylist(), array.is_valid().to_pylist(), strict=True)
    ]
    return pa.array(found, pa.large_binary())


def _file(path: str | None, expected: object, read_file: ReadFile) -> bytes:
    if path is None:
        raise FormatError(f"expected the bytes or the path of {expected}, got neither")
    try:
        return read_file(path)
    except FormatError:
        raise
    except ShardexError as error:
        raise FormatError(f"expected the bytes of {expected} or the path of a file, got {path!r}: {error}") from error
