"""`sink`: writes a `ray.data.Dataset` as a dataset of any format.

Each write task of Ray writes its blocks as a part, a small dataset in the folder of the job (`jobs.JobFolder`). When
all tasks have ended, the driver publishes the parts together, in the order of the tasks. A task that Ray runs twice
counts once. After an error nothing of the job is visible, and its folder is removed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from ray.data import Datasink
from ray.data.block import BlockAccessor

from shardex.dataset import Dataset, Writer, open, publish_parts
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Features
from shardex.formats import check_options, format_named, target_format
from shardex.jobs import FinishedPart, JobFolder
from shardex.kernel import Columns
from shardex.ray.blocks import dataset_of
from shardex.sources import export_credentials, import_credentials, place_of

_SCHEMA = "schema.json"
"""File in the folder of a job: the schema that the first task has found."""


def sink(
    path: str | os.PathLike[str], schema: Any = None, *, format: str | None = None, mode: str = "create", **options: Any
) -> ShardexDatasink:
    """Return a sink of Ray Data that writes a dataset: ``ray_dataset.write_datasink(sx.ray.sink(path))``.

    `path` is a folder that all nodes see, or a URL. The arguments are those of `create`. Without `schema` the columns
    of the first block decide; if fields may be missing in later ones, or have values that Arrow types do not describe,
    give a schema. The rows have the order of Ray's blocks, which is that of the source with
    ``DataContext.get_current().execution_options.preserve_order = True``.
    """
    format, is_file = target_format(os.fspath(path), format)
    if is_file:
        raise ArgumentError(f"expected the name of a folder, which Ray's tasks write to, got {os.fspath(path)!r}")
    return ShardexDatasink(os.fspath(path), schema, format, mode, options)


class ShardexDatasink(Datasink):  # type: ignore[misc]  # Ray is not type-checked
    """Writes blocks as parts and publishes them together; see `sink`."""

    def __init__(self, path: str, schema: Any, format: str, mode: str, options: Mapping[str, Any]) -> None:
        module = format_named(format)
        self._path, self._format, self._mode = place_of(path).url, format, mode
        self._options = check_options(module.create, format, options)
        if self._path.startswith("memory://"):
            raise ArgumentError(f"expected a folder or a bucket, which other processes can see, got {path!r}")
        existing = module.existing_schema(place_of(self._path), mode)
        self._features = existing if schema is None else Features.of(schema)
        self._part_options = {} if module.part_format else module.join.part_options(self._path, mode, self._options)
        self._folder = JobFolder(self._path, secrets.token_hex(8))
        named = mode == "append" and module.name_field is not None and bool(place_of(self._path).paths())
        self._first_name = len(open(self._path, format=format)) if named else 0
        self._settings = export_credentials(secrets=False)
        self._begun = False

    def get_name(self) -> str:
        """Return the name of the write tasks."""
        return "Shardex"

    def on_write_start(self, schema: Any = None) -> None:
        """Refuse a second use; the schema of Ray is ignored, it may be that before a function was applied."""
        if self._begun:
            raise ArgumentError(f"{self._path}: expected a sink for each write, got one that was used: make a new one")
        self._begun = True
        self._folder.place.make_root()  # tasks on other machines look for it

    def write(self, blocks: Iterable[Any], ctx: Any) -> tuple[int, FinishedPart] | None:
        """In a task: write blocks as a part; return its number and what is known of it; None without rows."""
        import_credentials(self._settings)
        number, inner, out = ctx.task_idx, self._folder.new_part(ctx.task_idx), None
        try:
            for block in blocks:
                view = dataset_of(BlockAccessor.for_block(block).to_arrow())
                if len(view):
                    out = out or self._writer(inner, view)
                    self._extend(out, view, number)
            if out is None:
                return None
            out.close()
        except BaseException:
            if out is not None:
                out.abort()
            self._folder.discard(inner)
            raise
        files = place_of(self._folder.path(inner)).paths()
        return number, self._folder.finish(number, FinishedPart(inner, files, out.samples))

    def on_write_complete(self, write_result: Any) -> None:
        """Publish all parts."""
        finished = dict(part for part in write_result.write_returns if part is not None)
        if finished:
            schema = self._schema(None)
            publish_parts(self._folder, finished, self._path, schema, self._format, self._mode, self._options)
        else:
            Writer(self._path, self._features or {}, self._format, self._mode, self._options).close()
        self._folder.remove()

    def on_write_failed(self, error: Exception) -> None:
        """Remove what was written."""
        self._folder.discard_all()

    # -- in a task --------------------------------------------------------------------------------------------------

    def _writer(self, inner: str, view: Dataset[Any]) -> Writer:
        format = format_named(self._format).part_format or self._format
        return Writer(self._folder.path(inner), self._schema(view), format, "create", self._part_options)

    def _schema(self, view: Dataset[Any] | None) -> Features:
        """Return the schema of the job; if it was not given, that of the first task that has called this."""
        if self._features is None:
            found = {} if view is None else view.features.to_json()
            self._features = Features.from_json(self._folder.agreed(_SCHEMA, found))
        return self._features

    def _extend(self, out: Writer, view: Dataset[Any], number: int) -> None:
        name_field = format_named(self._format).name_field
        try:
            for columns in view.chunks():
                if name_field is None or name_field in columns.data:
                    out.extend(columns)
                else:
                    self._append_named(out, columns, name_field, number)
        except SchemaError as error:
            raise SchemaError(f"{error} - in the blocks of write task {number}; give a schema= that fits all") from None

    def _append_named(self, out: Writer, columns: Columns, name_field: str, number: int) -> None:
        for sample in columns.to_samples():
            out.append({**sample, name_field: f"{self._first_name:09d}_{number:06d}_{out.samples:06d}"})
