"""Raw numbers of one dtype, such as tokens: windows of one length, or samples of stored lengths.

Windows need no index: file and offset of a row are arithmetic, and `read` is one gather into one array. Stored lengths
are in a file next to the numbers and become an `Index`. Datasets that `create` wrote are described by ``tokens.json``;
for other files the caller passes dtype and window. Samples may have several arrays of one length, for example tokens
and a loss mask. `files` describes, scans and writes the files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    SchemaError,
    UnknownFormatError,
)
from shardex.features import Features
from shardex.files import Files, Index
from shardex.formats.join_shards import JoinShards
from shardex.formats.number_rows import (
    NumberRows,
    NumberWindowRows,
    array_fields,
    check_sizes,
    number_dtype,
)
from shardex.formats.registry import Format
from shardex.formats.tokens.files import (
    HEAD,
    OWNED,
    STREAMS,
    LengthScanner,
    TokensHeader,
    TokenWriter,
    lengths_of,
)
from shardex.sources import ByteRange
from shardex.workers import ExecutorLike

DTYPES = {f".{kind}{8 * size}": f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8) if kind != "f" or size > 1}
"""Extensions that give the dtype of a file: `.u16`, `.i32`, `.f32` and so on."""
_NAMES = (".bin", ".tokens", *DTYPES)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> NumberWindowRows | NumberRows:
    """Open the samples of these files: windows of `window` numbers, or samples of stored lengths."""
    head = TokensHeader.read(files.source) if files.folder and HEAD in files.paths else None
    others: Mapping[str, str | None] = {} if head is None else head.arrays
    if schema is not None:
        dtypes, size = array_fields(Features.of(schema))
        first, others = _first_and_others(files, dtypes, head)
        field, dtype, window = field or first, dtype or dtypes.get(first), window or size
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    if head is not None:
        numbers = checked_dtype(files, dtype, head.dtype, HEAD)
        lengths, window, field = head.lengths or "uint32", window or head.window, field or head.field
    else:
        _refuse_header(files)
        lengths, numbers = "uint32", checked_dtype(files, dtype, dtype_of_names(files), "their extension")
    data = _data_files(files, others)
    arrays = {field or "tokens": numbers, **{name: number_dtype(dtype) for name, dtype in others.items()}}
    rows: NumberWindowRows | NumberRows
    if window is not None:
        rows = NumberWindowRows(data, arrays, window)
    else:
        _check_lengths(data, numbers)
        index = Index.of(
            data,
            LengthScanner(numbers.itemsize, lengths),
            rebuild=rebuild,
            progress=progress,
            workers=workers,
            executor=executor,
        )
        rows = NumberRows(data, index, arrays, None)
    rows.metadata = {} if head is None else head.metadata
    return rows


def _first_and_others(
    files: Files, dtypes: Mapping[str, str | None], head: TokensHeader | None
) -> tuple[str, Mapping[str, str | None]]:
    """Return the name of the first array, and the dtypes of the others, by a schema and the description of the files.

    Without a description all but the first field of the schema are others; with one, it says which are.
    """
    first, *others = dtypes
    if head is None:
        return first, {name: dtypes[name] for name in others}
    unknown = [name for name in dtypes if name not in head.arrays]
    if len(unknown) > 1:
        known = ", ".join([head.field, *head.arrays])
        raise SchemaError(f"{files}: expected the fields {known}, as {HEAD} says, got {', '.join(dtypes)}")
    return (unknown or [head.field])[0], head.arrays


def _data_files(files: Files, others: Iterable[str] = ()) -> Files:
    found = files.having(*_NAMES) if files.folder else files
    beside = tuple(f".{name}.bin" for name in ("lengths", *others))
    data = tuple(path for path in found.paths if not path.endswith(beside))
    if not data:
        raise UnknownFormatError(
            f"{files}: expected files that end in {', '.join(_NAMES)}, got {len(files.paths)} others"
        )
    return Files(files.source, data, files.what, files.folder)


def dtype_of_names(files: Files) -> str | None:
    """Return the dtype that the extensions of all these files give, such as `.u16`; None if they give none."""
    kinds = (
        {DTYPES.get(os.path.splitext(path)[1].lower()) for path in _data_files(files).paths} if files.paths else set()
    )
    return kinds.pop() if len(kinds) == 1 else None


def checked_dtype(files: Files, given: str | None, known: str | None, origin: str) -> np.dtype[Any]:
    """Return the dtype that the caller gives or that `origin` says; raise an error if both differ or there is none."""
    if given is None and known is None:
        raise ArgumentError(
            f'{files}: expected a dtype, which these files do not store; open with dtype="uint16" (for example)'
        )
    found = number_dtype(known if given is None else given)
    if known is not None and found != np.dtype(known):
        raise SchemaError(f"{files}: expected {np.dtype(known)}, as {origin} says, got dtype={given!r}")
    return found


def _refuse_header(files: Files) -> None:
    """Raise an error for a stream of tokens with a header, whose numbers would be read as tokens."""
    path, begin = _data_files(files).paths[0], struct.Struct("<ii")
    if files.source.stat(path).size >= begin.size:
        magic, version = begin.unpack(files.source.read(path, [ByteRange(0, begin.size)])[0])
        if STREAMS.get(magic, (None,))[0] == version:
            raise FormatError(
                f"{os.path.join(files.source.url, path)}: expected tokens and nothing else, got a header of llm.c "
                'before them; open with format="nanogpt", which knows it'
            )


def _check_lengths(files: Files, dtype: np.dtype[Any]) -> None:
    check_sizes(files, [stat.size for stat in files.stats()], dtype)
    for path in files.paths:
        try:
            files.source.stat(lengths_of(path))
        except NotFoundError:
            raise ArgumentError(
                f"{files}: expected the lengths of samples, got neither {HEAD} nor {lengths_of(path)}; "
                "open with window=1024 (for example)"
            ) from None


def create(
    path: str,
    features: Features,
    *,
    mode: str = "create",
    window: int | None = None,
    shard_size: int = 1 << 30,
    metadata: Mapping[str, Any] | None = None,
) -> TokenWriter:
    """Return a writer of files of numbers; all fields are arrays of one dimension, of one length in each sample.

    `metadata` is stored with the data: anything that JSON can hold.
    """
    return TokenWriter(path, Features.of(features), mode, window, shard_size, metadata)


FORMAT = Format(
    open,
    create,
    JoinShards(OWNED, ".bin", publish_last=(HEAD,)),
    stores_schema=True,
    only_arrays=True,
)
