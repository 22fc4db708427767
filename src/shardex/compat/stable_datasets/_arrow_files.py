"""`ArrowFilesWriter`: writes Arrow IPC files of a given Arrow schema, as stable-datasets has them, in one step.

The native format (`native`) decides on Arrow types itself. Here the schema is given, values are those that Arrow takes,
and a `_metadata.json` lists the files, which `files` reads. Record batches have a given number of rows; they are
shorter where rows are large, so that a writer holds about `_MOST_BYTES` at a time.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import pyarrow as pa

from shardex.errors import ArgumentError, SchemaError, storage_errors
from shardex.features import describe
from shardex.files import StagedWriter

_METADATA = "_metadata.json"
_OWNED = r"shard-\d{5,}\.arrow|_metadata\.json"
_MOST_BYTES = 64 << 20
"""Size of the values of a batch from which it is written with fewer rows."""
_CODECS = (None, "zstd", "lz4")
_REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)

Describe = Callable[[list[str], list[int]], Mapping[str, Any]]
"""Returns the content of `_metadata.json`, given the names of the files and their numbers of rows."""


class ArrowFilesWriter(StagedWriter):
    """Writes samples to `shard-00000.arrow` and so on; `close` publishes them and replaces a folder of such files.

    A file is closed when its batches have `shard_size` bytes in memory. `describe` makes the `_metadata.json`. `others`
    is a regular expression of other files that belong to such a folder, which the user writes to `folder`.

    >>> import tempfile; path = os.path.join(tempfile.mkdtemp(), "new")
    >>> def describe(names, rows): return {"shard_filenames": names, "shard_row_counts": rows}
    >>> with ArrowFilesWriter(path, pa.schema([("x", pa.int8())]), describe, batch_rows=2, shard_size=1) as out:
    ...     for x in range(3):
    ...         out.append({"x": x})
    >>> sorted(os.listdir(path))
    ['_metadata.json', 'shard-00000.arrow', 'shard-00001.arrow']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: pa.Schema,
        describe: Describe,
        *,
        batch_rows: int = 1000,
        shard_size: float = 256 << 20,
        compression: str | None = None,
        others: str = "",
    ) -> None:
        if not len(schema):
            raise SchemaError("expected a schema with at least one column, got none")
        if isinstance(batch_rows, bool) or not isinstance(batch_rows, SupportsIndex) or operator.index(batch_rows) < 1:
            raise ArgumentError(f"expected batches of 1 row or more, got {batch_rows!r}")
        if not shard_size > 0:
            raise ArgumentError(f"expected a shard size above 0, got {shard_size!r}")
        if compression not in _CODECS:
            raise ArgumentError(f"expected compression to be 'zstd', 'lz4' or None, got {compression!r}")
        _encoded(describe([], []))  # an error now, not after all samples
        super().__init__(path, "overwrite", f"{_OWNED}|{others}" if others else _OWNED)
        self._schema, self._describe = schema, describe
        self._batch_rows, self._shard_size = operator.index(batch_rows), shard_size
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._rows = self._bytes = self._shard_bytes = 0
        """Rows and bytes in the columns, and bytes of the batches in the open file."""
        self._names: list[str] = []
        self._counts: list[int] = []
        self._file: tuple[pa.OSFile, pa.ipc.RecordBatchFileWriter] | None = None

    @property
    def folder(self) -> str:
        """Path of the temporary folder that becomes the dataset."""
        return self._stage.place.root

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(self._counts) + self._rows

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample: a value that Arrow takes, or None, for each column."""
        self._check_open()
        values = [sample[name] for name in self._columns]
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._rows += 1
        self._bytes += sum(map(_size, values))
        if self._rows >= self._batch_rows or self._bytes >= _MOST_BYTES:
            with self._abort_on_error():
                self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        first = sum(self._counts)
        arrays = [_array(self._columns[field.name], field, first) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._columns = {name: [] for name in self._columns}
        self._rows = self._bytes = 0
        with storage_errors(self.path, "write"):
            writer = self._open_file()
            writer.write_batch(batch)
            self._counts[-1] += batch.num_rows
            self._shard_bytes += batch.nbytes
            if self._shard_bytes >= self._shard_size:
                self._close_file()

    def _open_file(self) -> pa.ipc.RecordBatchFileWriter:
        if self._file is None:
            self._names.append(f"shard-{len(self._names):05d}.arrow")
            self._counts.append(0)
            self._shard_bytes = 0
            sink = pa.OSFile(self._stage.place.path(self._names[-1]), "wb")
            self._file = sink, pa.ipc.new_file(sink, self._schema, options=self._options)
        return self._file[1]

    def _close_file(self) -> None:
        if self._file is not None:
            (sink, writer), self._file = self._file, None
            try:
                writer.close()
            finally:
                sink.close()

    def _finish(self) -> None:
        self._flush()
        with storage_errors(self.path, "write"):
            self._close_file()
        self._stage.place.put(_METADATA, _encoded(self._describe(self._names, self._counts)))

    def _discard(self) -> None:
        if self._file is not None:
            sink, self._file = self._file[0], None
            sink.close()
        super()._discard()


def _encoded(described: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(described), indent=2).encode()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"expected a description that JSON can hold, got {described!r:.300}: {error}") from None


def _size(value: Any) -> int:
    """Return about how much memory a value takes, if it may be much."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, list):
        return 8 * len(value) + (sum(map(_size, value)) if value and isinstance(value[0], bytes | str | list) else 0)
    return sum(map(_size, value.values())) if isinstance(value, dict) else 8


def _array(values: list[Any], field: pa.Field, first: int) -> pa.Array:
    """Return values as an array of the type of a field; `first` is the number of the first sample, for errors."""
    try:
        array = pa.array(values, field.type)
    except _REFUSED as error:
        number, value, reason = _wrong_value(values, field.type, error)
        raise SchemaError(
            f"expected {field.type}, got {describe(value)}: {reason} - at sample {first + number}, field {field.name}"
        ) from None
    if isinstance(array, pa.ChunkedArray):
        raise SchemaError(f"expected values of less than 2 GiB for {field.type}, got more - at field {field.name}")
    return array


def _wrong_value(values: list[Any], kind: pa.DataType, error: Exception) -> tuple[int, Any, Exception]:
    for number, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _REFUSED as reason:
            return number, value, reason
    return 0, values, error
