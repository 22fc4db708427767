"""Writes arrays of one field one after another, as numbers of one dtype (`NumberWriter`).

`HeadedShards` are files that begin with a header, which is complete when their last record is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features import Features
from shardex.files import Stage
from shardex.formats.number_rows import array_fields, is_array, number_dtype
from shardex.formats.sample_writer import SeriesWriter, ShardSeries
from shardex.kernel import Columns, Ragged

_UNLIMITED = 1 << 62


class HeadedShards(ShardSeries):
    """Numbered files that begin with a header of `width` bytes.

    `header` returns its first bytes, less than 512, for a number of records and of bytes after it; the others are zero.
    """

    def __init__(
        self,
        stage: Stage,
        name: Callable[[int], str],
        first: int,
        size: int,
        header: Callable[[int, int], bytes],
        width: int,
    ) -> None:
        super().__init__(stage, name, first, size=size)
        self._header, self._blank = header, bytes(width)

    def flush(self, end: bytes = b"") -> None:
        """Write the buffered records; before the first ones the place of the header."""
        if not self._written and not (self._pieces and self._pieces[0] is self._blank):
            self._pieces.insert(0, self._blank)
        super().flush(end)

    def finish(self) -> None:
        """Complete the current file, and write its header."""
        super().finish()
        head = self._header(self.rows, self._written - len(self._blank))
        self._stage.place.overwrite_start(self.path, head)


class NumberWriter(SeriesWriter):
    """Writes the arrays of samples of one field one after another, as numbers of one dtype.

    `dtypes` are those that the files can hold; `dtype` is the one to write, by default that of the field. Integers are
    converted if they fit. `shards` are the options of `SeriesWriter`.
    """

    def __init__(
        self,
        path: str,
        mode: str,
        features: Features,
        owned: str,
        dtype: str | None,
        dtypes: Collection[str],
        **shards: Any,
    ) -> None:
        if len(features) != 1:
            raise SchemaError(
                f"expected exactly one field, an array of one dimension, got {features}; choose it with select()"
            )
        known, self.size = array_fields(features)
        """Length of each array; None if it varies."""
        ((self.field, given),) = known.items()
        self.dtype, self._given = number_dtype(given if dtype is None else dtype), np.dtype(given)
        if self.dtype.name not in dtypes:
            raise SchemaError(
                f"expected numbers of {', '.join(dtypes)}, which these files can hold, got {self.dtype}"
                + (f"; convert them with dtype={advised!r}" if (advised := _integers_for(self._given, dtypes)) else "")
            )
        if self.dtype != self._given and (self.dtype.kind not in "iu" or self._given.kind not in "iu"):
            raise SchemaError(f"expected integers to convert to dtype={dtype!r}, got {features}")
        super().__init__(path, mode, features, owned, **shards)

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        array: Any = sample.get(self.field)
        known = is_array(array, self._given) and len(sample) == 1
        return sample if known and self.size in (None, len(array)) else super()._fit(sample)

    def _encode(self, sample: Mapping[str, Any]) -> Any:
        array = sample[self.field]
        return array if self.dtype == self._given else self._converted(array)

    def _converted(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return integers in the dtype to write; raise an error for one that does not fit."""
        limits = np.iinfo(self.dtype)
        for most in (array.min(), array.max()) if len(array) else ():
            if not limits.min <= int(most) <= limits.max:
                raise SchemaError(
                    f"expected numbers from {limits.min} to {limits.max} for {self.dtype}, got {most} "
                    f"- at field {self.field}"
                )
        return array.astype(self.dtype)

    def _store(self, record: Any) -> None:
        self._shards.write(record.tobytes())

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: the files are the same as if they were appended one by one."""
        self._check_open()
        column = columns.data.get(self.field)
        ragged = isinstance(column, Ragged) and column.dtype == self._given and column.ndim == 1
        if len(columns.data) != 1 or not ragged or self.size is not None or self.dtype != self._given:
            for sample in columns.to_samples():
                self.append(sample)
            return
        assert isinstance(column, Ragged)
        values = column.values
        for begin, end in pairwise(column.offsets.tolist()):
            self._store(values[begin:end])
            self._samples += 1


def _integers_for(given: np.dtype[Any], dtypes: Collection[str]) -> str | None:
    """Return the dtype to convert integers to: of the same size, else the largest.

    >>> _integers_for(np.dtype("uint32"), ["uint8", "int32", "int64"]), _integers_for(np.dtype("float32"), ["uint16"])
    ('int32', None)
    """
    known = sorted((np.dtype(name) for name in dtypes if np.dtype(name).kind in "iu"), key=lambda one: one.itemsize)
    if given.kind not in "iu" or not known:
        return None
    return next((one for one in known if one.itemsize == given.itemsize), known[-1]).name


def shard_limit(shard_size: int | None, default: int = _UNLIMITED) -> int:
    """Return the bytes at which a new file begins."""
    return default if shard_size is None else shard_size
