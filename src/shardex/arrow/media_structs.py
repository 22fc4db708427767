"""Images, audio and video as Hugging Face `datasets` stores them, structs of `bytes` and `path`, converted to bytes.

So are the videos of stable-datasets, whose structs have more parts, and whose paths begin at a folder of its own. Where
`bytes` is null, the file at `path` is read by a function that rows give: it knows which files may be read. `types`
decides that a struct holds media; `decode` reads the converted arrays.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from shardex.arrow.decode import Decode, decode_array, list_parts
from shardex.arrow.storage import storage_array
from shardex.arrow.types import STABLE_PARTS, is_media_struct, number_array, value_type
from shardex.errors import FormatError, ShardexError
from shardex.features import Feature, Map, Media, Optional, Sequence, Struct, contains
from shardex.kernel import Column

_STABLE_FOLDER = "_assets/video/"
"""Where stable-datasets keeps the files of videos, in the folder of the shards."""
ReadFile = Callable[[str], bytes]
"""Returns the content of the file at a path that a table holds; `ShardexError` if it must not or cannot be read."""


def no_file(path: str) -> bytes:
    """Raise an error: this table has no folder in which paths could be looked up."""
    raise FormatError(f"expected the bytes of a file, got only its path {path!r}")


def holds_media_structs(feature: Feature, kind: pa.DataType) -> bool:
    """Return whether a feature, or a part of it, is media that an Arrow type holds as structs.

    >>> from shardex.features import Image
    >>> struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    >>> holds_media_structs(Sequence(Image()), pa.list_(struct)), holds_media_structs(Image(), pa.binary())
    (True, False)
    """
    kind = value_type(kind)
    match feature:
        case Media():
            return is_media_struct(kind)
        case Optional():
            return holds_media_structs(feature.feature, kind)
        case Sequence():
            return holds_media_structs(feature.feature, kind.value_type)
        case Map():
            return holds_media_structs(feature.value, kind.item_type)
        case Struct():
            return any(holds_media_structs(one, kind.field(name).type) for name, one in feature.fields.items())
    return False


def media_decoder(read_file: ReadFile) -> Decode:
    """Return `decode_array` for arrays that may hold media as structs."""

    def decode(array: pa.Array, feature: Feature) -> Column:
        return decode_array(binary_media(array, feature, read_file), feature)

    return decode


def binary_media(array: pa.Array, feature: Feature, read_file: ReadFile = no_file) -> pa.Array:
    """Return an array with the bytes of media in the place of structs; they are copied only if a file is read.

    >>> from shardex.features import Image
    >>> array = pa.array([{"bytes": b"a", "path": None}, {"bytes": None, "path": "b.png"}])
    >>> binary_media(array, Image(), str.encode).to_pylist()
    [b'a', b'b.png']
    """
    if not contains(feature, Media):
        return array
    array = storage_array(array, inside=True)
    nulls = array.is_null() if array.null_count else None
    match feature:
        case Media() if is_media_struct(array.type):
            return _bytes(array, feature, read_file)
        case Optional():
            return binary_media(array, feature.feature, read_file)
        case Sequence():
            if pa.types.is_fixed_size_list(array.type):
                array = array.cast(pa.large_list(array.type.value_field))
            bounds, values = list_parts(array)
            items = binary_media(values, feature.feature, read_file)
            return pa.LargeListArray.from_arrays(number_array(bounds), items, mask=nulls)
        case Map():
            bounds, entries = list_parts(array)
            items = binary_media(entries.field(1), feature.value, read_file)
            return pa.MapArray.from_arrays(number_array(bounds.astype("int32")), entries.field(0), items)
        case Struct():
            parts = [binary_media(array.field(name), one, read_file) for name, one in feature.fields.items()]
            return pa.StructArray.from_arrays(parts, list(feature.fields), mask=nulls)
    return array


def _bytes(array: pa.StructArray, feature: Media, read_file: ReadFile) -> pa.Array:
    parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    data, paths = parts["bytes"], parts["path"]
    if data.null_count == array.null_count:
        return data.cast(pa.large_binary())
    begin = _STABLE_FOLDER if len(parts) == len(STABLE_PARTS) else ""
    found = [
        _file(path and begin + path, feature, read_file) if there and one is None else one
        for one, path, there in zip(data.to_pylist(), paths.to_pylist(), array.is_valid().to_pylist(), strict=True)
    ]
    return pa.array(found, pa.large_binary())


def _file(path: str | None, feature: Media, read_file: ReadFile) -> bytes:
    if path is None:
        raise FormatError(f"expected the bytes or the path of {feature}, got neither")
    try:
        return read_file(path)
    except FormatError:
        raise
    except ShardexError as error:
        raise FormatError(f"expected the bytes of {feature} or the path of a file, got {path!r}: {error}") from error
