"""`ShardedDatasetWriter`: adds samples and fields to a dataset, and changes them."""

from __future__ import annotations

import io
import operator
import os
import sqlite3
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, SupportsIndex

import numpy as np

from shardex.compat.formats.columns_tar import ColumnsSession, NewShard, metadata_json
from shardex.compat.synthefy_dataset_utils._errors import FieldNameError, errors_of_original
from shardex.errors import ArgumentError, SchemaError
from shardex.features import codecs


class ShardHandle:
    """A shard that is written array by array; it takes its place when it is closed."""

    def __init__(self, shard: NewShard, writer: ShardedDatasetWriter) -> None:
        self._shard, self._writer = shard, writer

    def add_sample(self, sample_id: str, arr: Any) -> None:
        """Add the array of a sample; a sample that is not registered is added to the dataset."""
        with errors_of_original():
            self._shard.add(_id(sample_id), self._writer._encode(arr))

    def close(self) -> None:
        """Put the shard in its place; arrays of other samples that an existing shard of its number has are kept."""
        with errors_of_original():
            self._shard.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShardedDatasetWriter:
    """Writes samples into a folder, which is made if it does not exist; an existing dataset is continued.

    What was added is committed after half a second, after `COMMIT_BATCH_SIZE` samples, by `close_tars` and `close`, and
    when the writer is no longer used. Several threads can use a writer, and several writers a folder, one after another
    or at the same time. Object arrays would be stored as pickles: they raise an error unless `allow_pickle` is set.

    >>> import tempfile; writer = ShardedDatasetWriter(tempfile.mkdtemp(), samples_per_shard=1000)
    >>> writer.add_fields(["history", "target"])
    >>> writer.add_sample({"history": np.zeros(100), "target": np.ones(50)}, metadata={"length": 100})
    'sample_000000000001'
    >>> writer.close()
    """

    COMMIT_BATCH_SIZE: ClassVar[int] = 10000
    _ShardHandle = ShardHandle

    root: Path
    db_path: Path

    def __init__(
        self, root: str | os.PathLike[str], samples_per_shard: int = 1000, *, allow_pickle: bool = False
    ) -> None:
        self.root = Path(root)
        self.db_path = self.root / "index.sqlite"
        self._allow_pickle = allow_pickle
        self._session = ColumnsSession(os.fspath(root), samples_per_shard, samples_per_commit=self.COMMIT_BATCH_SIZE)
        weakref.finalize(self, self._session.close)

    @property
    def conn(self) -> sqlite3.Connection:
        """The connection to the table, for columns, indexes and queries of your own."""
        return self._session.table

    @property
    def samples_per_shard(self) -> int:
        """Number of arrays after which the next tar of a field begins."""
        return self._session.samples_per_shard

    @samples_per_shard.setter
    def samples_per_shard(self, count: int) -> None:
        self._session.samples_per_shard = count

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(f"{self.root}: expected something that can be sent to other processes, got a writer")

    # -- fields ---------------------------------------------------------------------------------------------------

    def add_field(self, name: str) -> None:
        """Add a field, unless it is there."""
        self.add_fields([name])

    def add_fields(self, names: Sequence[str]) -> None:
        """Add several fields, those that are not there."""
        with errors_of_original():
            try:
                self._session.add_fields([names] if isinstance(names, str) else names)
            except SchemaError as error:
                raise FieldNameError(*error.args) from None

    # -- samples --------------------------------------------------------------------------------------------------

    def register_samples(self, sample_ids: Iterable[str], metadata: Iterable[Any] | None = None) -> None:
        """Add samples without arrays; those that are there already stay as they are."""
        names, texts = [_id(one) for one in sample_ids], [metadata_json(one) for one in metadata or ()]
        if texts and len(texts) != len(names):
            raise ArgumentError(f"expected metadata for {len(names)} samples, got {len(texts)}")
        with errors_of_original():
            self._session.register(names, texts or None)

    def add_sample(self, arrays: Mapping[str, Any], sample_id: str | None = None, metadata: Any = None) -> str:
        """Add a sample and return its id; without one it gets the next number. All its arrays are written, or none.

        If there is a sample with this id, these arrays of it are replaced, and its metadata if some are given.
        """
        with errors_of_original():
            encoded = self._encode_all(arrays)
            text = None if metadata is None else metadata_json(metadata)
            found = self._session.put(encoded, None if sample_id is None else _id(sample_id), text)
            return found if sample_id is None else sample_id

    def update_sample(self, sample_id: str, arrays: Mapping[str, Any], metadata: Any = None) -> None:
        """Replace arrays of a sample, or add them, and replace its metadata if some are given."""
        with errors_of_original():
            encoded = self._encode_all(arrays)
            self._session.update(_id(sample_id), encoded, None if metadata is None else metadata_json(metadata))

    def _encode_all(self, arrays: Mapping[str, Any]) -> dict[str, bytes]:
        return {field: self._encode(array, f" - at field {field}") for field, array in arrays.items()}

    def _encode(self, array: Any, where: str = "") -> bytes:
        try:
            return codecs.NPY.encode(array)
        except SchemaError as error:
            if not self._allow_pickle:
                raise SchemaError(f"{error}{where}; allow_pickle=True stores objects as pickles") from None
        out = io.BytesIO()
        np.save(out, array, allow_pickle=True)
        return out.getvalue()

    # -- whole shards ---------------------------------------------------------------------------------------------

    def write_shard(
        self, field_name: str, shard_id: SupportsIndex, samples: Iterable[str], arrays: Iterable[Any]
    ) -> None:
        """Write a shard of one field with the arrays of these samples; samples that are not registered are added."""
        samples, arrays = list(samples), list(arrays)
        if len(samples) != len(arrays):
            raise ArgumentError(f"expected an array for each of {len(samples)} samples, got {len(arrays)} arrays")
        handle = self.open_shard(field_name, shard_id)
        for name, array in zip(samples, arrays, strict=True):
            handle.add_sample(name, array)
        handle.close()

    def open_shard(self, field_name: str, shard_id: SupportsIndex) -> ShardHandle:
        """Return a context manager whose `add_sample` adds arrays to a shard of one field."""
        with errors_of_original():
            return ShardHandle(self._session.new_shard(field_name, operator.index(shard_id)), self)

    # -- end ------------------------------------------------------------------------------------------------------

    def close_tars(self) -> None:
        """Commit everything that was added and close the tars; the writer stays usable."""
        with errors_of_original():
            self._session.close_tars()

    def close(self) -> None:
        """Commit everything that was added and close the table."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _id(given: Any) -> str:
    """Return an id as text; numbers are taken, as SQLite takes them for a column of text."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given
