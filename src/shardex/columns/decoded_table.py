"""Tables whose row groups must be decoded to be read: Parquet row groups, compressed Arrow batches.

A group is the smallest unit that can be decoded, so a random read decodes a whole group; reading in order decodes every
group once. Only the requested columns are decoded; an LRU cache keeps those of a few groups.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.arrow_types import expanded_size, storage_array, storage_type
from shardex.columns.arrow_values import ReadFile, decode_array, decode_value, media_decoder, no_file, take_rows
from shardex.columns.fields import Field, check_fields
from shardex.columns.tables import StoredTable
from shardex.errors import FormatError
from shardex.kernel import Columns, Integers, Ranges
from shardex.sources import parse_size

CACHE_BYTES = 256 << 20
_ALWAYS_ALLOWED = 1 << 30
_ALLOWED_RATIO = 64

Decode = Callable[[int, list[str]], pa.RecordBatch | pa.Table]


class DecodeLimit:
    """The most bytes that one group of rows, or a column, may decode to: a small file can expand to any size.

    `given` is a number of bytes, or text such as "4 GB"; by default ``SHARDEX_MAX_DECODED_BYTES``, else 1 GiB or 64
    times the encoded size, whichever is more.

    >>> DecodeLimit("1 kB").check(2000, 10, "a.parquet")
    Traceback (most recent call last):
    shardex.errors.FormatError: a.parquet: expected at most 1000 bytes after decoding, got 2000 from 10; if you trust...
    """

    def __init__(self, given: int | str | None = None) -> None:
        given = given or os.environ.get("SHARDEX_MAX_DECODED_BYTES")
        self._given = None if given is None else parse_size(given)

    def allowed(self, encoded: int) -> int:
        """Return the limit for this many encoded bytes."""
        return max(_ALWAYS_ALLOWED, _ALLOWED_RATIO * encoded) if self._given is None else self._given

    def check(self, decoded: int, encoded: int, where: str) -> None:
        """Raise an error if decoding would take too much memory."""
        if decoded > (limit := self.allowed(encoded)):
            raise FormatError(
                f"{where}: expected at most {limit} bytes after decoding, got {decoded} from {encoded}; if you trust "
                "the file, open it with a higher max_decoded_bytes, or set SHARDEX_MAX_DECODED_BYTES"
            )


class DecodedTable(StoredTable):
    """Consecutive groups of rows; `decode(k, names)` returns these columns of group k, which has `rows[k]` rows.

    `extents(groups, names)` are the byte ranges of these columns. If a cache `evicts` the files, a read downloads the
    ranges of all its groups at once. `encoded_bytes` is the size of all files: `limit` bounds whole columns by it.
    `read_file` reads images, audio and video of which the table has only the paths.

    >>> from shardex.features import Features, Value
    >>> group = pa.record_batch({"x": [5, 6, 7]})
    >>> features = Features({"x": Value("int64")})
    >>> table = DecodedTable(features, group.schema, [3], lambda k, names: group, "group {}".format)
    >>> table.sample(1), table.read(np.array([2, 0]), ["x"])["x"]
    ({'x': 6}, array([7, 5]))
    """

    def __init__(
        self,
        features: Mapping[str, Field],
        schema: pa.Schema,
        rows: Sequence[int],
        decode: Decode,
        name: Callable[[int], str],
        cache_bytes: int = CACHE_BYTES,
        extents: Callable[[Sequence[int], Sequence[str]], Ranges] | None = None,
        evicts: bool = False,
        limit: DecodeLimit | None = None,
        encoded_bytes: int = 0,
        read_file: ReadFile = no_file,
    ) -> None:
        self._features = features
        self._read_file = read_file
        self._kinds = {name: storage_type(schema.field(name).type) for name in features}
        has_structs = any(feature.holds_media(self._kinds[name]) for name, feature in features.items())
        self._values = media_decoder(read_file) if has_structs else decode_array
        self._limit, self._encoded_bytes = limit or DecodeLimit(), encoded_bytes
        self._schema = schema
        self._starts: Integers = np.cumsum([0, *rows], dtype=np.int64)
        self._decode = decode
        self._extents = extents
        self._evicts = evicts
        self._name = name
        self._cache: OrderedDict[tuple[int, str], pa.Array] = OrderedDict()
        self._cached_bytes, self._max_bytes = 0, cache_bytes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return these fields of these rows; each group is decoded once."""
        fields = list(self._features) if fields is None else fields
        features = {name: self.features[name] for name in fields}
        if not len(rows):
            empty = self._schema.empty_table()
            return Columns({n: self._values(_whole(empty.column(n)), f) for n, f in features.items()}, 0)
        missing = self._missing(rows, fields) if self._evicts else None
        held = None if missing is None else missing.hold()
        columns = take_rows(
            rows, self._starts, features, lambda group: self._arrays(group, features), self._name, self._values
        )
        del held
        return columns

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start to download the groups of these rows that are not cached."""
        fields = list(self._features) if fields is None else fields
        if (missing := self._missing(rows, fields)) is not None:
            missing.advise()

    def _missing(self, rows: Integers, fields: Sequence[str]) -> Ranges | None:
        """Return the byte ranges of the groups of these rows that are not cached."""
        inside = rows[(rows >= 0) & (rows < len(self))]
        groups = np.unique(np.searchsorted(self._starts, inside, "right") - 1).tolist()
        with self._lock:
            missing = [group for group in groups if any((group, name) not in self._cache for name in fields)]
        return self._extents(missing, fields) if self._extents is not None and missing else None

    def _column(self, name: str) -> pa.ChunkedArray:
        if self._evicts:
            self.advise(self._starts[:-1], [name])
        arrays, decoded = list[pa.Array](), 0
        for group in range(len(self._starts) - 1):
            arrays.append(self._arrays(group, [name])[name])
            decoded += arrays[-1].nbytes
            self._limit.check(decoded, self._encoded_bytes, f"{self._name(group)}, column {name} up to here")
        return pa.chunked_array(arrays, self._kinds[name])

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row."""
        names = check_fields(list(self.features), fields)
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        arrays, at = self._arrays(group, names), row - int(self._starts[group])
        found = {}
        for name in names:
            try:
                found[name] = decode_value(arrays[name], at, self.features[name], self._values)
            except FormatError as error:
                raise FormatError(f"{error} - at {self._name(group)}, sample {row}, field {name}") from None
        return found

    def _arrays(self, group: int, names: Sequence[str] | Mapping[str, Any]) -> dict[str, pa.Array]:
        with self._lock:
            found = {name: self._cache[group, name] for name in names if (group, name) in self._cache}
        if missing := [name for name in names if name not in found]:
            found |= self._decoded(group, missing)
        with self._lock:
            for name, array in found.items():
                self._store((group, name), array)
        return found

    def _decoded(self, group: int, names: list[str]) -> dict[str, pa.Array]:
        try:
            table = self._decode(group, names)
            table.validate(full=True)
            self._limit.check(expanded_size(table), table.get_total_buffer_size(), self._name(group))
            found = {name: storage_array(_whole(table.column(name))) for name in names}
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self._name(group)}: expected rows, got bytes that Arrow refuses: {error}") from None
        if table.num_rows != (rows := int(self._starts[group + 1] - self._starts[group])):
            raise FormatError(f"{self._name(group)}: expected {rows} rows, got {table.num_rows}")
        return found

    def _store(self, key: tuple[int, str], array: pa.Array) -> None:
        if key not in self._cache:
            self._cached_bytes += array.nbytes
            self._cache[key] = array
        self._cache.move_to_end(key)
        while self._cached_bytes > self._max_bytes and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
