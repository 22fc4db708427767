"""Files of raw numbers: description (`TokensHeader`), scanner of lengths (`LengthScanner`) and writer (`TokenWriter`).

Numbers are stored one after another in ``part-00000.bin`` and so on, little-endian. Where samples differ in length, the
lengths are in ``part-00000.lengths.bin`` next to it, as uint32 (uint64 if a sample is longer). `tokens` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from shardex.errors import ArgumentError, FormatError, SchemaError, TruncatedShardError
from shardex.files import Scan, Stage
from shardex.formats.sample_writer import SeriesWriter, ShardSeries
from shardex.schema import JSON, Array, Features
from shardex.sources import LocalSource, Source

HEAD = "tokens.json"
OWNED = r"tokens\.json|[^/]+\.(bin|tokens)"
"""Regular expression of the files of a dataset."""
_PREFIX = "part"
_FLUSH = 4 << 20
_NARROW = (1 << 32) - 1


@dataclass(frozen=True)
class TokensHeader:
    """Content of ``tokens.json``."""

    version: int
    dtype: str
    window: int | None
    field: str
    lengths: str | None = None
    """Dtype of the stored lengths, if there is no window."""

    @classmethod
    def read(cls, source: Source) -> TokensHeader:
        """Read and check the file."""
        name = os.path.join(source.url, HEAD)
        try:
            head = msgspec.json.decode(source.load(HEAD), type=TokensHeader)
            number_dtype(head.dtype)
        except (msgspec.MsgspecError, UnicodeDecodeError, SchemaError, RecursionError) as error:
            raise FormatError(f"{name}: expected the description of token files, got something else: {error}") from None
        if head.version != 1 or (head.window or 1) < 1 or head.lengths not in (None, "uint32", "uint64"):
            raise FormatError(f"{name}: expected version 1 with a window or lengths of uint32 or uint64, got {head}")
        return head

    def write(self) -> bytes:
        """Return the bytes of the file."""
        return JSON.encode({name: value for name, value in asdict(self).items() if name != "lengths" or value})


def number_dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype of this name, which must be one of little-endian numbers.

    >>> number_dtype("u2")
    dtype('uint16')
    """
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError as error:
        raise SchemaError(f"expected a dtype of numbers such as uint16, got {name!r}: {error}") from None
    if dtype.kind not in "biufc" or not dtype.newbyteorder("<").isnative or not dtype.isnative:
        raise SchemaError(f"expected a little-endian dtype of numbers such as uint16, got {name!r}")
    return dtype


def only_array(features: Features) -> tuple[str, str | None, int | None]:
    """Return name, dtype and length of the only field of a schema, an array of one dimension.

    >>> only_array(Features.of({"tokens": Array("uint16", (None,))}))
    ('tokens', 'uint16', None)
    """
    if len(features) == 1:
        ((name, feature),) = features.items()
        if isinstance(feature, Array) and feature.shape is not None and len(feature.shape) == 1:
            return name, feature.dtype, feature.shape[0]
    raise SchemaError(f"expected exactly one field, an array of one dimension, got {features}")


def lengths_of(path: str) -> str:
    """Return the path of the file of lengths for a file of numbers.

    >>> lengths_of("a/part-00000.bin")
    'a/part-00000.lengths.bin'
    """
    stem, extension = os.path.splitext(path)
    return f"{stem}.lengths{extension}"


@dataclass(frozen=True)
class LengthScanner:
    """Finds samples by their stored lengths: `offset` and `length` in bytes."""

    item: int
    """Bytes of one number in the data."""
    dtype: str = "uint32"
    """Dtype of the lengths."""
    in_python: bool = False

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return f"lengths 1 {self.dtype} of {self.item} bytes"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the samples of one file."""
        data, width = source.load(lengths_of(path)), np.dtype(self.dtype).itemsize
        if len(data) % width:
            raise TruncatedShardError(
                f"{os.path.join(source.url, lengths_of(path))}: expected lengths of {width} bytes, "
                f"got {len(data)} bytes, which end in the middle of one"
            )
        lengths = np.frombuffer(data, np.dtype(self.dtype).newbyteorder("<"))
        size = source.stat(path).size
        whole = bool(lengths.max(initial=0) <= size // self.item)
        ends = np.cumsum(lengths.astype(np.int64)) * self.item if whole else np.array([-1])
        if int(ends[-1] if len(ends) else 0) != size:
            expected = sum(lengths.tolist()) * self.item
            raise TruncatedShardError(
                f"{os.path.join(source.url, path)}: expected {expected} bytes as its lengths say, got {size}"
            )
        return {"offset": ends - lengths.astype(np.int64) * self.item, "length": lengths.astype(np.int64) * self.item}


class _NumberShards(ShardSeries):
    """Files of numbers; next to each a file of lengths, if `lengths_dtype` is set."""

    lengths_dtype: str | None = None
    lengths_size = 0
    """Bytes in the file of lengths."""

    def __init__(self, stage: Stage, first: int, size: int) -> None:
        super().__init__(stage, lambda number: f"{_PREFIX}-{number:05d}.bin", first, size=size, buffer=_FLUSH)
        self.lengths: list[int] = []
        """Lengths that are not written yet."""

    def flush(self, end: bytes = b"") -> None:
        """Write the buffered numbers and their lengths."""
        super().flush(end)
        if self.lengths_dtype:
            data = np.array(self.lengths, np.dtype(self.lengths_dtype).newbyteorder("<")).tobytes()
            self.lengths_size = self._stage.append(lengths_of(self.path), [data], self.lengths_size)
        self.lengths = []

    def _begin_next(self) -> None:
        super()._begin_next()
        self.lengths_size = 0


class TokenWriter(SeriesWriter):
    """Writes the arrays of samples of one field one after another; made by `tokens.create`."""

    _shards: _NumberShards

    def __init__(self, path: str, features: Features, mode: str, window: int | None, shard_size: int) -> None:
        features, self._head = _features_and_header(features, window)
        super().__init__(path, mode, features, OWNED, publish_last=(HEAD,))
        self._dtype = np.dtype(self._head.dtype)
        with self._abort_on_error():
            self._appending = bool(self._stage.existing)
            if self._appending:
                self._head = self._existing_header()
            self._shards = _NumberShards(self._stage, self._stage.next_number(_PREFIX, ".bin"), shard_size)
        self._shards.lengths_dtype = self._head.lengths

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        array: Any = sample.get(self._head.field)
        known = type(array) is np.ndarray and array.dtype == self._dtype and array.ndim == 1 and len(sample) == 1
        if known and self._head.window in (None, len(array)):
            return sample
        return super()._fit(sample)

    def _encode(self, sample: Mapping[str, Any]) -> Any:
        return sample[self._head.field]

    def _store(self, record: Any) -> None:
        if self._head.lengths == "uint32" and len(record) > _NARROW:
            self._widen()
        self._shards.write(record.tobytes())
        self._shards.lengths.append(len(record))

    def _finish(self) -> None:
        super()._finish()
        if not self._appending:
            self._stage.place.put(HEAD, self._head.write())

    def _widen(self) -> None:
        """Store lengths as uint64 from now on, and in the files that are already written."""
        if self._appending:
            raise SchemaError(f"expected samples of at most {_NARROW} numbers, as {HEAD} of this dataset says")
        place = self._stage.place
        for path in place.paths():
            if path.endswith(".lengths.bin"):
                place.put(path, np.frombuffer(place.map(path), "<u4").astype("<u8").tobytes())
        self._shards.lengths_size *= 2
        self._head = TokensHeader(1, self._head.dtype, None, self._head.field, "uint64")
        self._shards.lengths_dtype = "uint64"

    def _existing_header(self) -> TokensHeader:
        if HEAD not in self._stage.existing:
            raise SchemaError(f"{self.path}: expected a dataset with {HEAD} to append to, got other files")
        found, mine = TokensHeader.read(LocalSource(self.path)), self._head
        if (found.dtype, found.window, found.field) != (mine.dtype, mine.window, mine.field):
            raise SchemaError(f"{self.path}: expected samples as {HEAD} says ({found}), got a schema of {mine}")
        return found


def _features_and_header(features: Features, window: int | None) -> tuple[Features, TokensHeader]:
    """Return the features to write, and the description of the files."""
    name, dtype, size = only_array(features)
    if window is not None and (window < 1 or size not in (None, window)):
        raise ArgumentError(f"expected a window of at least 1 that fits {features}, got {window}")
    size = window if size is None else size
    if size == 0:
        raise SchemaError(f"expected windows of at least one number, got {features}")
    dtype = number_dtype(dtype).name
    header = TokensHeader(1, dtype, size, name, "uint32" if size is None else None)
    return Features({name: Array(dtype, (size,))}), header
