"""Writers of record formats: fitting and encoding samples (`SampleWriter`), numbered shards (`ShardSeries`).

`SeriesWriter` does both. `JsonEncoder` encodes samples as compact JSON: what JSON would change or cannot hold raises an
error. `files.StagedWriter` stages and publishes the files.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardex.columns import located
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Array, Feature, Features, codecs, conversions
from shardex.features import Bytes as BytesFeature
from shardex.files import Stage, StagedWriter
from shardex.kernel import MISSING

_UNLIMITED = 1 << 62


def check_shard_options(shard_rows: int, shard_size: int, prefix: str = "part") -> None:
    """Raise an error for limits below 1 and for prefixes that would hide the files or put them in another folder."""
    if shard_rows < 1 or shard_size < 1:
        found = f"shard_rows={shard_rows}" if shard_rows < 1 else f"shard_size={shard_size}"
        raise ArgumentError(f"expected shards of at least one sample and one byte, got {found}")
    if not re.fullmatch(r"[^/\\._\0][^/\\\0]*", prefix):
        raise ArgumentError(f"expected a prefix of file names, without slashes and not hidden, got {prefix!r}")


class SampleWriter(StagedWriter):
    """Writer that fits each sample to the features, encodes it and stores the record.

    Subclasses implement `_encode`, `_store` and `_finish`. After an error in any of them the sample is not written, and
    the writer stays usable.
    """

    def __init__(
        self,
        path: str,
        mode: str,
        features: Features,
        owned: str,
        *,
        publish_last: Sequence[str] = (),
        replaces: str | None = None,
    ) -> None:
        super().__init__(path, mode, owned, publish_last=publish_last, replaces=replaces)
        self._features = features
        self._checks = [(n, feature.fits_unchanged(), feature.optional) for n, feature in features.items()]
        plain = [(name, feature.plain()) for name, feature in features.items()]
        self._plain = [(name, convert) for name, convert in plain if convert is not None]
        self._samples = 0
        """Number of samples added so far."""

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample."""
        if self._closed:
            self._check_open()
        fitted = self._fit(sample)
        if self._plain:
            fitted = {**fitted, **self._plain_values(fitted)}
        try:
            record = self._encode(fitted)
        except SchemaError as error:
            raise SchemaError(f"{error} - at sample {self._samples}") from None
        self._store(record)
        self._samples += 1

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the sample converted to the features, with its fields in their order."""
        fitted, present = {}, 0
        for name, fits, optional in self._checks:  # most samples fit, and this is several times as fast
            value = sample.get(name, MISSING)
            if value is MISSING and optional:
                value = None
            elif fits(value):
                present += 1
            else:
                break
            fitted[name] = value
        else:
            if present == len(sample):
                return fitted
        return conversions.fit_sample(sample, self._features, self._samples)

    def _plain_values(self, fitted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of fields whose form in JSON and MessagePack is another one, in that form."""
        found = {}
        for name, convert in self._plain:
            try:
                found[name] = convert(fitted[name])
            except SchemaError as error:
                raise located(error, f"sample {self._samples}, field {name}") from None
        return found

    @abstractmethod
    def _encode(self, sample: Mapping[str, Any]) -> Any:
        """Return the record of a fitted sample; the sample's number is added to a SchemaError."""

    @abstractmethod
    def _store(self, record: Any) -> None:
        """Add a record to the files."""


class ShardSeries:
    """Numbered files of a stage, each with at most `rows` records and `size` bytes, written through a buffer.

    `name` returns the path for a number; each file begins with `begin`; `end` returns the bytes to write after the
    records of a file of the given size. A write that failed has changed nothing and can be repeated.

    >>> import os, tempfile; stage = Stage(os.path.join(tempfile.mkdtemp(), "new"), "create")
    >>> series = ShardSeries(stage, "{}.txt".format, rows=2)
    >>> for word in (b"one ", b"two ", b"three"): series.write(word)
    >>> series.finish(); [bytes(stage.place.load(path)) for path in ("0.txt", "1.txt")]
    [b'one two ', b'three']
    """

    def __init__(
        self,
        stage: Stage,
        name: Callable[[int], str],
        first: int = 0,
        *,
        rows: int = _UNLIMITED,
        size: int = _UNLIMITED,
        buffer: int = 4 << 20,
        begin: bytes = b"",
        end: Callable[[int], bytes] = lambda size: b"",
    ) -> None:
        self.number = first
        """Number of the current file."""
        self.rows, self.size = 0, len(begin)
        """Records and bytes of the current file, buffered ones included."""
        self._stage, self._name, self._begin, self._end = stage, name, begin, end
        self._most_rows, self._most_bytes, self._buffer = rows, size, buffer
        self._pieces: list[bytes] = [begin] if begin else []
        self._written = 0

    @property
    def path(self) -> str:
        """Path of the current file in the stage."""
        return self._name(self.number)

    def write(self, record: bytes) -> None:
        """Add a record to the current file, or to the next one if it does not fit."""
        size = self.size
        if size > len(self._begin) and (self.rows >= self._most_rows or size + len(record) > self._most_bytes):
            self.finish()
            self._begin_next()
        elif size - self._written >= self._buffer:
            self.flush()
        self._pieces.append(record)
        self.size += len(record)
        self.rows += 1

    def flush(self, end: bytes = b"") -> None:
        """Write the buffered records, and `end` after them."""
        if self._pieces or end or not self._written:
            self._written = self._stage.append(self.path, [*self._pieces, end], self._written)
            self._pieces, self.size = [], self._written

    def finish(self) -> None:
        """Complete the current file; it is empty if it has no records."""
        self.flush(self._end(self.size))

    def _begin_next(self) -> None:
        self.number, self.rows, self.size, self._written = self.number + 1, 0, len(self._begin), 0
        self._pieces = [self._begin] if self._begin else []


class SeriesWriter(SampleWriter):
    """Writer of numbered shards (``part-00000.jsonl`` and so on), whose records are the bytes of samples.

    Shards have at most `rows` samples and `size` bytes. Subclasses refuse existing shards to which the samples do not
    fit (`_check_existing`), and make shards that have more than records (`_series`).
    """

    _shards: ShardSeries

    def __init__(
        self,
        path: str,
        mode: str,
        features: Features,
        owned: str,
        *,
        prefix: str,
        extension: str,
        rows: int = _UNLIMITED,
        size: int = _UNLIMITED,
        digits: int = 5,
        publish_last: Sequence[str] = (),
    ) -> None:
        check_shard_options(rows, size, prefix)
        super().__init__(path, mode, features, owned, publish_last=publish_last)
        with self._abort_on_error():
            self._check_existing()
            first = self._stage.next_number(prefix, extension)
            self._shards = self._series(lambda number: f"{prefix}-{number:0{digits}d}{extension}", first, rows, size)

    def _check_existing(self) -> None:
        """Raise an error if the samples cannot be appended to the shards that are there."""

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        """Return the series of shards."""
        return ShardSeries(self._stage, name, first, rows=rows, size=size)

    def _store(self, record: Any) -> None:
        self._shards.write(record)

    def _finish(self) -> None:
        if self._shards.rows or not self._stage.existing:  # a dataset without samples is one empty shard
            self._shards.finish()


class JsonEncoder:
    """Encodes samples of these features; raises an error for features whose values JSON cannot hold.

    >>> JsonEncoder(Features.of({"x": Array("int64", (None,)), "s": str}))({"x": np.arange(3), "s": "a"})
    b'{"x":[0,1,2],"s":"a"}'
    """

    def __init__(self, features: Features) -> None:
        _refuse_bytes(features)
        self._shaped = {name: one for name, one in features.items() if any(_has_shape(one, name))}
        """Fields that hold arrays of several dimensions."""

    def __call__(self, sample: Mapping[str, Any]) -> bytes:
        """Return the JSON of a sample; an error names the field."""
        for name, feature in self._shaped.items():
            feature.refuse_lost_shape(sample[name], name)
        try:
            return codecs.encode_plain_json({name: _plain(value) for name, value in sample.items()})
        except SchemaError:
            for name, value in sample.items():  # which field?
                try:
                    codecs.encode_plain_json(_plain(value))
                except SchemaError as error:
                    raise SchemaError(f"{error} - at field {name}") from None
            raise


def _refuse_bytes(features: Features) -> None:
    """Refuse features whose values JSON cannot hold."""
    for name, feature in (inner for field, outer in features.items() for inner in outer.nested(field)):
        if isinstance(feature, BytesFeature):
            raise SchemaError(
                f"expected a feature that JSON can hold, got bytes - at field {name}; JSON has text but no bytes: "
                'decode them to text, or choose a format that has them ("arrow", "tar")'
            )
        if isinstance(feature, Array) and feature.dtype is not None and np.dtype(feature.dtype).kind not in "biuf":
            raise SchemaError(f"expected numbers that JSON can hold, got {feature} - at field {name}")


def _has_shape(feature: Feature, name: str) -> Iterator[bool]:
    parts = (part for _, part in feature.nested(name) if isinstance(part, Array))
    return (part.shape is None or len(part.shape) > 1 for part in parts)


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
