"""`IndexStore`: an index in a folder, which appears whole when it is closed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import warnings
from typing import Any

from shardex.compat.data_forager._errors import IndexExistsError
from shardex.compat.data_forager._named import Named
from shardex.compat.data_forager.index_stores.common import IndexStoreInterface
from shardex.compat.data_forager.sample_generators.schema import SampleSchema
from shardex.compat.data_forager.sample_index import SampleIndex
from shardex.compat.formats.data_forager import IndexRecord, IndexTable, state_of
from shardex.errors import AlreadyExistsError, ArgumentError, ClosedError
from shardex.files import Stage, undo_unfinished
from shardex.sources import LocalSource

_FILES = ("file_location.txt", "sample_locations.bin")


class IndexStore(Named, IndexStoreInterface):
    """Stores an index in the folder `index_data_folder` of `base_path`.

    The files are ``file_location.txt`` (paths relative to `base_path`), ``sample_locations.bin`` (three uint64 for each
    sample) and, for samples of several arrays, ``sample_schema.json``. ``shardex.json`` has sizes and checksums of the
    data files and the dtype of tokens. Nothing is visible before `close`; an index that was not closed is lost.
    """

    def __init__(self, base_path: str, index_data_folder: str = "index", name: str | None = None) -> None:
        super().__init__(name)
        self._base_path = os.path.abspath(base_path)
        self._index_data_path = os.path.join(self._base_path, index_data_folder)
        self._stage: Stage | None = None
        self._table: IndexTable | None = None
        self._sample_schema: SampleSchema | None = None
        self._token_dtype: str | None = None
        self._numbers: dict[str, int] = {}

    def init_store(self) -> None:
        """Begin to write an index; raise a ValueError if the folder exists."""
        self._begin(shared=False)

    def _begin(self, shared: bool) -> Stage:
        """Begin to write; with `shared` the stage is that of the base folder, for files that appear with the index."""
        undo_unfinished(self._base_path)
        if os.path.exists(self._index_data_path):
            raise self._exists_error()
        self.abort()
        inside = os.path.relpath(self._index_data_path, self._base_path)
        if shared and not inside.startswith(os.pardir):
            os.makedirs(self._base_path, exist_ok=True)
            temporary = os.path.join(self._base_path, f".{secrets.token_hex(8)}.tmp")
            folder = inside.replace(os.sep, "/")
            last = [f"{folder}/{name}" for name in _FILES]
            self._stage = Stage(self._base_path, "append", publish_last=last, folder=temporary)
            self._table = IndexTable(self._stage, folder)
        else:
            os.makedirs(os.path.dirname(self._index_data_path), exist_ok=True)
            self._stage = Stage(self._index_data_path, "create")
            self._table = IndexTable(self._stage)
        self._sample_schema, self._token_dtype, self._numbers = None, None, {}
        return self._stage

    def add_sample(self, file_location: str, byte_offset: int, num_bytes: int) -> None:
        """Add the place of a sample; the path is stored relative to the base folder."""
        if (number := self._numbers.get(file_location)) is None:
            number = self._number(file_location)
        self._open_table().add(number, byte_offset, num_bytes)

    def _add_samples(self, file_location: str, offsets: Any, lengths: Any) -> None:
        """Add the places of many samples of one file."""
        if len(offsets):
            self._open_table().add_many(self._number(file_location), offsets, lengths)

    def _number(self, file_location: str) -> int:
        table = self._open_table()
        if file_location not in self._numbers:
            self._numbers[file_location] = table.number(os.path.relpath(file_location, self._base_path))
        return self._numbers[file_location]

    def _open_table(self) -> IndexTable:
        if self._table is None:
            raise ClosedError(f"{self._index_data_path}: expected a store that writes, got one without init_store()")
        return self._table

    def set_sample_schema(self, schema: SampleSchema) -> None:
        """Store what a sample is made of; after `close` it is added to the index."""
        self._sample_schema = schema
        if self._table is None:
            data = schema._to_json()
            LocalSource(self._index_data_path).put("sample_schema.json", data)

    def close(self) -> None:
        """Publish the index; without `init_store` nothing happens."""
        if self._table is None or self._stage is None:
            return
        table, stage = self._table, self._stage
        try:
            files = [state_of(self._current_path(name)) for name in table.names]
            schema = None if self._sample_schema is None else self._sample_schema._to_core()
            table.finish(schema, IndexRecord(files, self._token_dtype))
            stage.publish()
        except FileExistsError as error:
            if isinstance(error, AlreadyExistsError) or os.path.exists(self._index_data_path):
                raise self._exists_error() from error
            raise
        finally:
            self.abort()

    def _current_path(self, name: str) -> str:
        """Return the path of a data file, which may be written but not yet published."""
        assert self._stage is not None
        written = os.path.join(self._stage.place.root, name)
        return written if os.path.isfile(written) else os.path.join(self._base_path, name)

    def _exists_error(self) -> IndexExistsError:
        problem = "expected no index, got one; to make it again, call clear() first"
        return IndexExistsError(errno.EEXIST, problem, self._index_data_path)

    def abort(self) -> None:
        """Discard what was not published."""
        stage, self._stage, self._table = self._stage, None, None
        if stage is not None:
            stage.discard()

    def __del__(self) -> None:
        if getattr(self, "_table", None) is not None:
            self.abort()
            warnings.warn(
                f"{self._index_data_path}: expected close() after the last sample, got none: the index is not written",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def load(self) -> SampleIndex:
        """Read the index: the places of samples are mapped, not copied."""
        return SampleIndex._load(self._base_path, self._index_data_path)

    def exists(self) -> bool:
        """Return whether there is an index."""
        return all(os.path.exists(os.path.join(self._index_data_path, name)) for name in _FILES)

    def clear(self) -> None:
        """Remove the folder of the index with all that is in it."""
        if os.path.commonpath([self._base_path, real := os.path.abspath(self._index_data_path)]) == real:
            raise ArgumentError(f"expected an index in a folder of its own, got {real}: clear() would remove your data")
        if os.path.exists(self._index_data_path):
            shutil.rmtree(self._index_data_path)
