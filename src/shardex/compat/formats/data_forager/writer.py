"""Writes folders that data-forager reads: tokens or JSON lines, and their index.

Arrays of numbers are written as files of tokens in ``tokenized-samples``: arrays of one length with
``sample_schema.json``, one array of any length in files whose extension is its dtype (``.u16``). Other samples are
written as JSON lines. The index has relative paths, as the package writes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardex.compat.formats.data_forager.index import ENTRIES_AT_ONCE, IndexTable
from shardex.compat.formats.data_forager.samples import NAMES, TABLE, ArraySpec, SampleSchema
from shardex.errors import SchemaError
from shardex.features import Features
from shardex.formats import JsonEncoder, SeriesWriter, ShardSeries, array_fields, is_array, number_dtype
from shardex.formats.tokens import DTYPES

_FOLDER = "tokenized-samples"
_INDEX = r"file_location\.txt|sample_locations\.bin|sample_schema\.json|shardex\.json"
OWNED = rf"index/({_INDEX})|{_FOLDER}/[^/]+|[^/]+\.jsonl"
_EXTENSIONS = {np.dtype(name).name: extension for extension, name in DTYPES.items()}


class _IndexedWriter(SeriesWriter):
    """Writes records to a series of files, and the place of each to the index."""

    def __init__(
        self,
        path: str,
        features: Features,
        mode: str,
        prefix: str,
        folder: str,
        name: Callable[[int], str],
        shard_size: int,
    ) -> None:
        self._folder, self._name = folder, name
        options: Any = {"prefix": prefix, "extension": "", "size": shard_size, "publish_last": (NAMES, TABLE)}
        super().__init__(path, mode, features, OWNED, **options)

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        self._table = IndexTable(self._stage, "index")
        if self._folder:
            os.makedirs(self._stage.place.path(self._folder))
        return ShardSeries(self._stage, self._name, size=size)

    def _store(self, record: Any) -> None:
        table, shards = self._table, self._shards
        if len(table.entries) >= 3 * ENTRIES_AT_ONCE:
            table.flush()
        shards.write(record)
        table.entries.extend((shards.number, shards.size - len(record), len(record)))

    def _finish(self) -> None:
        super()._finish()
        for number in range(self._shards.number + 1):
            self._table.number(self._name(number))
        self._table.finish(self._schema())

    def _schema(self) -> SampleSchema | None:
        """Return the arrays of a sample, if they are described."""
        return None


class TokenSampleWriter(_IndexedWriter):
    """Writes the arrays of a sample one after another."""

    def __init__(self, path: str, features: Features, mode: str, prefix: str, shard_size: int) -> None:
        dtypes, size = array_fields(features)
        kinds = {name: number_dtype(dtype) for name, dtype in dtypes.items()}
        if size is None and len(kinds) > 1:
            raise SchemaError(
                f"expected one array, or several of one length, as a sample of data-forager has, got {features}; make "
                "some with windows() or pack()"
            )
        if size == 0:
            raise SchemaError(f"expected arrays of at least one number, got {features}")
        extension = ".bin"
        if size is None:
            (only,) = kinds.values()
            extension = _EXTENSIONS.get(only.name, "")
        if not extension:
            raise SchemaError(f"expected numbers of {', '.join(_EXTENSIONS)}, got {features}")

        def name(number: int) -> str:
            return f"{_FOLDER}/{prefix}-{number:05d}-tokenized-samples{extension}"

        super().__init__(path, features, mode, prefix, _FOLDER, name, shard_size)
        self._size, self._kinds = size, kinds

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        arrays: list[Any] = [sample.get(name) for name in self._kinds]
        known = len(sample) == len(arrays) and all(map(is_array, arrays, self._kinds.values()))
        return sample if known and all(self._size in (None, len(one)) for one in arrays) else super()._fit(sample)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return b"".join(sample[name].tobytes() for name in self._kinds)

    def _schema(self) -> SampleSchema | None:
        if self._size is None:
            return None
        arrays, end = [], 0
        for name, dtype in self._kinds.items():
            arrays.append(ArraySpec(name, dtype.name, end))
            end += self._size * dtype.itemsize
        return SampleSchema(self._size, arrays, end)


class LineSampleWriter(_IndexedWriter):
    """Writes samples as JSON lines."""

    def __init__(self, path: str, features: Features, mode: str, prefix: str, shard_size: int) -> None:
        self._to_json = JsonEncoder(features)
        name = lambda number: f"{prefix}-{number:05d}.jsonl"  # noqa: E731
        super().__init__(path, features, mode, prefix, "", name, shard_size)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return self._to_json(sample) + b"\n"
