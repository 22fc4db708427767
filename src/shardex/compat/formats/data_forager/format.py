"""The format data_forager: a folder with an index of data-forager.

The rows are those of `jsonl` and `tokens`, at the places that the index says, or `SampleArrayRows`. The features of new
samples decide how they are written: as tokens or as lines (`writer`).
"""

from __future__ import annotations

from typing import Any

from shardex.compat.formats.data_forager.index import RECORD, IndexRecord
from shardex.compat.formats.data_forager.samples import (
    NAMES,
    SCHEMA,
    TABLE,
    ForagerIndex,
    has_schema,
    listed_files,
    open_arrays,
    open_index,
)
from shardex.compat.formats.data_forager.writer import OWNED, LineSampleWriter, TokenSampleWriter
from shardex.errors import ArgumentError, SchemaError, UnknownFormatError
from shardex.features import Array, Features
from shardex.files import Files
from shardex.formats import (
    Format,
    JoinShards,
    NumberRows,
    NumberWindowRows,
    SeriesWriter,
    ShardRows,
    array_fields,
)
from shardex.formats.jsonl import JSON_LINES, check_decode, rows_of_lines
from shardex.formats.tokens import checked_dtype, dtype_of_names


def recognise(files: Files) -> int:
    """Recognise a folder with an index."""
    return 2 * (listed_files(files) is not None)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    decode: str | None = None,
    infer_from: str | None = None,
    rebuild: bool = False,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
    trust_paths: bool = False,
) -> ShardRows:
    """Open the samples that the index locates: JSON lines, tokens, or several arrays of tokens.

    `decode`, `infer_from` and `rebuild` are options of lines, as `jsonl` has them; `dtype`, `window` and `field` of
    tokens, as `tokens` has them. ``trust_paths=True`` allows the index to name files outside the folder.
    """
    names = listed_files(files)
    if names is None:
        raise UnknownFormatError(f"{files}: expected a folder with {NAMES} and {TABLE}, got none")
    of_lines = {"decode": decode, "infer_from": infer_from}
    of_tokens = {"dtype": dtype, "window": window, "field": field}
    if has_schema(files):
        reason = f"{SCHEMA} names the arrays of a sample (select() chooses some)"
        _refuse_options(files, reason, **of_tokens, **of_lines)
        return open_arrays(files, schema=schema, trust_paths=trust_paths)
    data, index = open_index(files, trust_paths=trust_paths)
    if all(name.lower().endswith(JSON_LINES) for name in names):
        _refuse_options(files, f"{NAMES} names JSON lines", **of_tokens)
        check_decode(decode := decode or "json")
        return rows_of_lines(data, index, schema, decode, infer_from, rebuild=rebuild)
    _refuse_options(files, f"{NAMES} names files of tokens", **of_lines)
    return _token_rows(files, data, index, schema, dtype, window, field)


def _refuse_options(files: Files, reason: str, **options: Any) -> None:
    """Raise an error for options that samples of this kind do not have."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{files}: expected no {name}, because {reason}, got {name}={value!r}")


def _token_rows(
    files: Files,
    data: Files,
    index: ForagerIndex,
    schema: Features | None,
    dtype: str | None,
    window: int | None,
    field: str | None,
) -> NumberWindowRows | NumberRows:
    if schema is not None:
        dtypes, size = array_fields(Features.of(schema))
        (name, given), *others = dtypes.items()
        if others:
            raise SchemaError(f"{files}: expected one array, as there is no {SCHEMA}, got {schema}")
        field, dtype, window = field or name, dtype or given, window or size
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    record = IndexRecord.read(files.source, f"index/{RECORD}") if f"index/{RECORD}" in files.paths else None
    recorded = None if record is None else record.dtype
    known, origin = (dtype_of_names(data), "their extension") if recorded is None else (recorded, f"index/{RECORD}")
    arrays = {field or "tokens": checked_dtype(data, dtype, known, origin)}
    if window is not None:
        return NumberWindowRows(data, arrays, window)
    size = index.same_length()
    return NumberRows(data, index, arrays, None if size is None else size // next(iter(arrays.values())).itemsize)


def create(
    path: str, features: Features, *, mode: str = "create", prefix: str = "part", shard_size: int = 1 << 30
) -> SeriesWriter:
    """Return a writer of a folder that data-forager reads; the features decide whether it holds tokens or lines."""
    if mode == "append":
        raise ArgumentError(
            'expected mode "create" or "overwrite", got "append": folders of data-forager cannot be appended to'
        )
    features = Features.of(features)
    kinds = (isinstance(one, Array) and len(one.shape or ()) == 1 for one in features.values())
    writer = TokenSampleWriter if features and all(kinds) else LineSampleWriter
    return writer(path, features, mode, prefix, shard_size)


FORMAT = Format(
    open,
    create,
    JoinShards(OWNED, ".bin", publish_last=(NAMES, TABLE)),
    part_format="arrow",
    only_arrays=True,
)
