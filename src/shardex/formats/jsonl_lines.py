"""Finds lines in files (`LineScanner`) and writes samples as lines of JSON (`LineWriter`); used by `jsonl`.

The scanner reads a file in pieces that fit the processor's cache, so that finding newlines (one kernel call per piece,
without the GIL) and checking the bytes before them is one pass over memory, for all kinds of sources. The writer
makes one compact JSON object of each sample.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError
from shardex.files import Scan
from shardex.formats.registry import COMPRESSED
from shardex.formats.sample_writer import SeriesWriter, ShardSeries, check_shard_options
from shardex.kernel import Bytes, Integers, line_ends
from shardex.schema import (
    Array,
    Feature,
    Features,
    Map,
    Sequence,
    Struct,
    describe,
    encode_plain_json,
    nested_features,
    shape_of_empty_list,
    unwrap_optional,
)
from shardex.schema import Bytes as BytesFeature
from shardex.sources import ByteRange, Source

JSON_LINES = (".jsonl", ".ndjson", ".json-lines")
OWNED = r".*\.(jsonl|ndjson|json-lines)"
"""Regular expression of the files of a dataset."""
"""Extensions of files of JSON lines."""
_PIECE = 4 << 20
_AHEAD = 8
"""Pieces of a remote file that are fetched ahead of the one that is scanned."""
_LONGEST_LINE = 1 << 30
BOM = b"\xef\xbb\xbf"
_HEAD = 6
"""Bytes at the beginning of a file that show a byte order mark or a compression."""
_COMPRESSED_NAMES = (".gz", ".bz2", ".xz", ".zst")
_NEWLINE, _RETURN, _SPACE = b"\n\r "


@dataclass(frozen=True)
class LineScanner:
    """Finds lines: their `offset` and `length`, without the newline and the carriage return before it.

    >>> from shardex.sources.memory import MemorySource
    >>> source = MemorySource({"a.txt": b"one\\r\\n  \\ntwo"})
    >>> found = LineScanner(skip_blank=True).scan(source, "a.txt")
    >>> found["offset"].tolist(), found["length"].tolist()
    ([0, 8], [3, 3])
    """

    skip_blank: bool
    """True to leave out lines that hold only white space."""
    in_python: bool = False

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return f"lines 1 {'without blank ones' if self.skip_blank else 'all'}"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the lines of one file."""
        size = source.stat(path).size
        head = bytes(source.read(path, [ByteRange(0, min(size, _HEAD))])[0])
        self._refuse_compressed(head, os.path.join(source.url, path))
        begin, piece = len(BOM) if head.startswith(BOM) else 0, _PIECE
        offsets, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while begin < size:
            for one in _after(begin + piece, size):
                source.fetch(path, [one], wait=False)
            data = np.frombuffer(source.read(path, [ByteRange(begin, min(piece, size - begin))])[0], np.uint8)
            ends = line_ends(data)
            if begin + len(data) < size and data[-1] != _NEWLINE:
                ends = ends[:-1]
            if len(ends):
                starts, stops = self._lines(data, ends)
                offsets.append(starts + begin)
                lengths.append(stops - starts)
                begin, piece = begin + int(ends[-1]), _PIECE
            elif piece < _LONGEST_LINE:
                piece *= 2  # a line longer than the piece
            else:
                raise FormatError(
                    f"{os.path.join(source.url, path)}: expected lines of up to {piece} bytes, got a longer one at "
                    f"offset {begin}"
                )
            del data  # before the next piece is read, so that it takes the same memory
        return {"offset": np.concatenate(offsets), "length": np.concatenate(lengths)}

    def _refuse_compressed(self, head: bytes, name: str) -> None:
        """Raise an error for a compressed file; plain text may begin with the same bytes, but then not by its name."""
        tool = next((tool for first, tool in COMPRESSED.items() if head.startswith(first)), None)
        if tool is not None and (self.skip_blank or name.lower().endswith(_COMPRESSED_NAMES)):
            raise FormatError(f"{name}: expected lines of text, got a file compressed by {tool}; unpack it first")

    def _lines(self, data: Bytes, ends: Integers) -> tuple[Integers, Integers]:
        starts, stops = np.empty_like(ends), ends - 1
        starts[0], starts[1:] = 0, ends[:-1]
        if unfinished := data[ends[-1] - 1] != _NEWLINE:
            stops[-1] = ends[-1]
        last = data.take(stops - 1, mode="clip")
        if not (last <= _SPACE).any():  # no line is empty (a newline precedes it) or ends in white space
            return starts, stops
        returns = (last == _RETURN) & (stops > starts)
        returns[-1] &= not unfinished
        if returns.any():
            stops -= returns
            last = data.take(stops - 1, mode="clip")
        if self.skip_blank and (blank := _blank(data, starts, stops, last)).any():
            return starts[~blank], stops[~blank]
        return starts, stops


def _blank(data: Bytes, starts: Integers, stops: Integers, last: Bytes) -> NDArray[np.bool_]:
    """Return which lines hold only white space; only lines that begin and end with it are checked one by one."""
    blank: NDArray[np.bool_] = starts == stops
    maybe = np.flatnonzero((last <= _SPACE) & ~blank)
    for k in maybe[data[starts[maybe]] <= _SPACE].tolist():
        blank[k] = data[starts[k] : stops[k]].tobytes().isspace()
    return blank


def _after(begin: int, size: int) -> list[ByteRange]:
    """Return the pieces after the one that is read."""
    stop = min(begin + _AHEAD * _PIECE, size)
    return [ByteRange(at, min(_PIECE, stop - at)) for at in range(begin, stop, _PIECE)]


# -- writing --------------------------------------------------------------------------------------------------


class LineWriter(SeriesWriter):
    """Writes samples as lines of JSON into numbered files; made by `jsonl.create`."""

    def __init__(self, path: str, features: Features, mode: str, shard_rows: int, shard_size: int, prefix: str) -> None:
        check_shard_options(shard_rows, shard_size, prefix)
        refuse_bytes(features)
        super().__init__(path, mode, features, OWNED)
        with self._abort_on_error():
            for existing in self._stage.existing:
                if existing == "index/file_location.txt" or existing.lower().endswith((".ndjson", ".json-lines")):
                    raise SchemaError(
                        f"{self.path}: expected nothing but .jsonl files to append to, got {existing} too"
                    )
            first = self._stage.next_number(prefix, ".jsonl")
        self._shards = ShardSeries(
            self._stage, lambda number: f"{prefix}-{number:05d}.jsonl", first, rows=shard_rows, size=shard_size
        )

        self._shaped = shaped_fields(features)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        for name, feature in self._shaped.items():
            refuse_lost_shape(sample[name], feature, name)
        return to_json(sample) + b"\n"


def refuse_bytes(features: Features) -> None:
    """Refuse features whose values JSON cannot hold."""
    for name, feature in (inner for field, outer in features.items() for inner in nested_features(outer, field)):
        if isinstance(feature, BytesFeature):
            raise SchemaError(
                f"expected a feature that JSON can hold, got bytes - at field {name}; JSON has text but no bytes: "
                'decode them to text, or choose a format that has them ("arrow", "tar", "bins")'
            )
        if isinstance(feature, Array) and feature.dtype is not None and np.dtype(feature.dtype).kind not in "biuf":
            raise SchemaError(f"expected numbers that JSON can hold, got {feature} - at field {name}")


def shaped_fields(features: Features) -> Features:
    """Return the fields that hold arrays of several dimensions, which `refuse_lost_shape` must check."""
    return Features({name: feature for name, feature in features.items() if any(_has_shape(feature, name))})


def _has_shape(feature: Feature, name: str) -> Iterator[bool]:
    parts = (part for _, part in nested_features(feature, name) if isinstance(part, Array))
    return (part.shape is None or len(part.shape) > 1 for part in parts)


def refuse_lost_shape(value: Any, feature: Feature, name: str) -> None:
    """Raise an error for an array without elements whose shape a list cannot hold and the feature does not tell."""
    match unwrap_optional(feature):
        case Array() as inner if isinstance(value, np.ndarray) and value.size == 0:
            as_list = value.shape[: value.shape.index(0) + 1]
            if shape_of_empty_list(as_list, inner) != value.shape:
                raise SchemaError(
                    f"expected an array that JSON can hold, got {describe(value)}, whose shape a list cannot hold "
                    f"- at field {name} (declare the sizes, or choose a format that has arrays)"
                )
        case Sequence() as inner if value is not None:
            for one in value:
                refuse_lost_shape(one, inner.feature, name)
        case Struct() as inner if value is not None:
            for part, one in inner.fields.items():
                refuse_lost_shape(value[part], one, f"{name}.{part}")
        case Map() as inner if value is not None:
            for one in value.values() if isinstance(value, Mapping) else (one for _, one in value):
                refuse_lost_shape(one, inner.value, name)


def to_json(sample: Mapping[str, Any]) -> bytes:
    """Return the compact JSON of a sample; an error names the field.

    >>> to_json({"x": np.arange(3), "s": "a"})
    b'{"x":[0,1,2],"s":"a"}'
    """
    try:
        return encode_plain_json({name: _plain(value) for name, value in sample.items()})
    except SchemaError:
        for name, value in sample.items():  # which field?
            try:
                encode_plain_json(_plain(value))
            except SchemaError as error:
                raise SchemaError(f"{error} - at field {name}") from None
        raise


def _plain(value: Any) -> Any:
    """Return the value without arrays. Values that JSON would change raise an error, except NaN: it becomes null."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and not math.isinf(value):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        if value.dtype.kind == "f" and np.isinf(value).any():
            raise SchemaError(
                f"expected numbers that JSON can hold, got {value.dtype}{list(value.shape)} with infinity"
            )
        return value.tolist()
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        raise SchemaError("expected a value that JSON can hold, got bytes (decode them to text)")
    raise SchemaError(f"expected a value that JSON can hold, got {type(value).__name__} {value!r}"[:200])
