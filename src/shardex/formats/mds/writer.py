"""Writes MDS shards and their ``index.json``, which MosaicML Streaming and `open` read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from shardex.errors import SchemaError
from shardex.features import Array, Bytes, Feature, Features, Image, Media, Text, Value, codecs, contains
from shardex.formats.mds.encodings import DTYPES, encoding
from shardex.formats.sample_writer import SampleWriter, check_shard_options
from shardex.sources import LocalSource

INDEX = "index.json"
OWNED = r"index\.json|(?:.*/)?shard\.\d+\.mds"
_LARGEST = (1 << 32) - 1
_CODES = {np.dtype(name).name: code for code, name in DTYPES.items()}


class MdsWriter(SampleWriter):
    """Writes ``shard.00000.mds`` and so on, each of at most `shard_size` bytes, and ``index.json``."""

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        shard_rows: int = 1 << 32,
        shard_size: int = 1 << 26,
    ) -> None:
        check_shard_options(shard_rows, shard_size)
        self._encoders = {name: _encoder(name, feature) for name, feature in features.items()}
        super().__init__(path, mode, features, OWNED, publish_last=(INDEX,), replaces=re.escape(INDEX))
        names = [kind for kind, _ in self._encoders.values()]
        self._sizes = [encoding(name, path).size for name in names]
        self._columns: dict[str, Any] = {
            "column_encodings": names,
            "column_names": [*self._encoders],
            "column_sizes": self._sizes,
        }
        self._most_rows, self._most_bytes = shard_rows, min(shard_size, _LARGEST)
        about: dict[str, Any] = {
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": shard_size,
            "version": 2,
        }
        self._about = {**self._columns, **about}
        self._config = json.dumps(self._about, sort_keys=True).encode()
        self._records: list[bytes] = []
        self._size = 0
        with self._abort_on_error():
            self._shards: list[dict[str, Any]] = self._existing_shards()

    def _existing_shards(self) -> list[dict[str, Any]]:
        """Return what the index says of the shards that are appended to, which must have the same columns."""
        if INDEX not in self._stage.existing:
            return []
        shards: list[dict[str, Any]] = msgspec.json.decode(LocalSource(self.path).load(INDEX))["shards"]
        for shard in shards:
            if any(shard.get(key) != value for key, value in self._columns.items()):
                raise SchemaError(f"{self.path}: expected the columns of {shard['raw_data']['basename']}, got others")
        return shards

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        values, sizes = [], []
        for (name, (_, encode)), size in zip(self._encoders.items(), self._sizes, strict=True):
            value = encode(sample[name])
            values.append(value)
            if size is None:
                sizes.append(len(value))
        record = struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values)
        if len(record) + self._head_size(1) > _LARGEST:
            raise SchemaError(f"expected a sample of less than 4 GiB, got {len(record)} bytes")
        return record

    def _head_size(self, rows: int) -> int:
        return 4 * (rows + 2) + len(self._config)

    def _store(self, record: bytes) -> None:
        rows = len(self._records)
        if rows and (
            rows >= self._most_rows or self._head_size(rows + 1) + self._size + len(record) > self._most_bytes
        ):
            self._flush()
        self._records.append(record)
        self._size += len(record)

    def _flush(self) -> None:
        """Write the current shard."""
        rows, begin = len(self._records), self._head_size(len(self._records))
        offsets = np.cumsum([begin, *map(len, self._records)], dtype=np.int64).astype("<u4")
        name = f"shard.{len(self._shards):05d}.mds"
        size = self._stage.append(name, [struct.pack("<I", rows), offsets.tobytes(), self._config, *self._records], 0)
        data = {"basename": name, "bytes": size, "hashes": {}}
        self._shards.append({**self._about, "raw_data": data, "samples": rows, "zip_data": None})
        self._records, self._size = [], 0

    def _finish(self) -> None:
        if self._records or not self._shards:
            self._flush()
        index = {"shards": self._shards, "version": 2}
        self._stage.place.put(INDEX, json.dumps(index, sort_keys=True).encode())


def _encoder(name: str, feature: Feature) -> tuple[str, Callable[[Any], bytes]]:
    """Return the encoding of a field, and a function that encodes a value."""
    if isinstance(feature, Image):
        extension = feature.file_extensions()[0]
        return "png" if extension == "png" else "jpeg", feature.codec(extension).encode
    if isinstance(feature, Text):
        return "str", str.encode
    if isinstance(feature, Bytes) and not isinstance(feature, Media):
        return "bytes", bytes
    if isinstance(feature, Value) and feature.dtype in ("int64", *_CODES):
        pack = np.dtype(feature.dtype).newbyteorder("<").type
        return "int" if feature.dtype == "int64" else feature.dtype, lambda value: pack(value).tobytes()
    if isinstance(feature, Array) and (feature.dtype is None or feature.dtype in _CODES):
        return _array_encoder(feature)
    if feature.optional or contains(feature, Bytes) or contains(feature, Media) or contains(feature, Array):
        raise SchemaError(
            f"expected a field that MDS can hold, got {feature} - at field {name}; MDS has no missing values, and no "
            'lists of bytes, media or arrays: fill or split them, or write format="arrow" or "tar"'
        )
    return "json", codecs.JSON.encode


def _array_encoder(feature: Array) -> tuple[str, Callable[[Any], bytes]]:
    if feature.dtype and feature.fixed:
        return f"ndarray:{feature.dtype}:{','.join(map(str, feature.shape or ()))}", lambda value: value.tobytes()

    def encode(value: Any) -> bytes:
        code = b"" if feature.dtype else bytes([_code(value.dtype)])
        width = next(k for k in range(4) if max(value.shape, default=0) < 1 << (8 << k))
        head = bytes([value.ndim << 2 | width]) + np.array(value.shape, f"<u{1 << width}").tobytes()
        return code + head + np.ascontiguousarray(value).tobytes()

    return f"ndarray:{feature.dtype}" if feature.dtype else "ndarray", encode


def _code(dtype: Any) -> int:
    if dtype.name not in _CODES:
        raise SchemaError(f"expected an array of {', '.join(_CODES)}, got {dtype}")
    return _CODES[dtype.name]
