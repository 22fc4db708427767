"""Writing native datasets: batches into Arrow files set aside, and one manifest that publishes them at the end.

Each file is named by its content, so the same samples give the same files. Until the manifest is there nothing has
happened: files wait under temporary names, and what a crash leaves behind no manifest names. When somebody else
published a version in the meantime, an append goes after it and an overwrite replaces it.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import xxhash

from shardex.builder import BatchBuilder
from shardex.errors import AlreadyExistsError, ClosedError, FormatError, SchemaError, storage_errors
from shardex.manifest import FOLDER, Batch, DataFile, Fragment, Manifest, latest_version, publish, read_manifest
from shardex.schema import Features
from shardex.sources.local import LocalDraft, LocalSource
from shardex.staging import check_mode

__all__ = ["ArrowWriter", "create"]

BATCH_BYTES = 2 << 20
"""A batch is checked whole when a row of it is first touched: 2 MiB take half a millisecond, page faults included."""
_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.tmp|data/[0-9a-f]{32}\.arrow")


def create(
    path: str, features: Features, *, mode: str, shard_size: int = 512 << 20, shard_rows: int | None = None
) -> ArrowWriter:
    """Begin a native dataset, or a new version of one; a shard ends at so many bytes or rows."""
    return ArrowWriter(path, features, mode, shard_size, shard_rows)


class ArrowWriter:
    """Takes samples; `close` publishes them as a version."""

    def __init__(self, path: str, features: Features, mode: str, shard_size: int, shard_rows: int | None) -> None:
        if shard_size < 1 or (shard_rows is not None and shard_rows < 1):
            raise SchemaError(f"expected shards of at least 1 byte and 1 row, got {shard_size} and {shard_rows}")
        self._place = LocalSource(path)
        self._features = features
        self._mode = mode
        self._new_folder = not os.path.exists(path)
        self._version, self._before = self._begin(mode)
        self._shard_size, self._shard_rows = shard_size, math.inf if shard_rows is None else shard_rows
        self._builder = BatchBuilder(features)
        self._look = 1
        """When so many samples wait, it is time to see whether they make a batch."""
        self._shard: _ShardWriter | None = None
        self._done: list[_ShardWriter] = []
        self._closed = self._given_up = False

    def _begin(self, mode: str) -> tuple[int, list[Fragment]]:
        """The version that is there, and those of its fragments that stay."""
        version = latest_version(self._place)
        leftovers = not version and _only_leftovers(self._place)
        there = check_mode(self._place.root, "overwrite" if leftovers and mode == "create" else mode)
        if there and not version and not leftovers:
            raise FormatError(
                f"{self._place.root}: expected a dataset that shardex wrote, got a folder without a manifest"
            )
        return version, self._kept(version)

    def _kept(self, version: int) -> list[Fragment]:
        if self._mode != "append" or not version:
            return []
        manifest = read_manifest(self._place, version)
        if manifest.features != self._features:
            where = self._place.root
            raise SchemaError(f"{where}: expected the fields it has ({manifest.features}), got {self._features}")
        return manifest.fragments

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample."""
        if self._closed:
            raise ClosedError(f"{self._place.root}: expected an open writer, this one is closed")
        builder = self._builder
        builder.append(sample)
        if builder.rows >= self._look:
            self._consider()

    def _consider(self) -> None:
        """Write a batch if it is large enough or fills the shard; look again soon, but not at every sample."""
        try:
            if self._builder.rows == self._room() or self._builder.nbytes >= BATCH_BYTES:
                self._flush()
        except BaseException:
            self.abort()
            raise
        rows = self._builder.rows
        self._look = min(rows + max(1, min(rows, 16)), self._room())

    def _room(self) -> Any:
        return self._shard_rows - (self._shard.rows if self._shard else 0)

    def _flush(self) -> None:
        # In this thread: one of its own for the disk made writing slower, 1.2x for series and 1.7x for images, because
        # it takes the interpreter from the one that collects.
        if not self._builder.rows:
            return
        self._shard = self._shard or _ShardWriter(self._place, self._builder.schema)
        self._shard.write(self._builder.finish())
        if self._shard.size >= self._shard_size or self._shard.rows == self._shard_rows:
            self._finish_shard()

    def _finish_shard(self) -> None:
        if self._shard is not None:
            self._shard.finish()
            self._done.append(self._shard)
            self._shard = None

    def close(self) -> None:
        """Publish the version."""
        if self._given_up:
            raise ClosedError(
                f"{self._place.root}: expected an open writer, this one was given up; nothing was written"
            )
        if self._closed:
            return
        try:
            self._flush()
            self._finish_shard()
            self._publish([Fragment(shard.rows, [shard.publish(list(self._features))]) for shard in self._done])
        except BaseException:
            self.abort()
            raise
        self._closed = True

    def _publish(self, new: list[Fragment]) -> None:
        while True:
            fragments = [*self._before, *new]
            rows = sum(fragment.rows for fragment in fragments)
            change = f"{self._mode}: {self._builder.finished} samples"
            manifest = Manifest(rows, self._features.to_json(), fragments, change=change)
            if publish(self._place, self._version + 1, manifest):
                return
            if self._mode == "create":
                raise AlreadyExistsError(errno.EEXIST, "somebody else made a dataset here meanwhile", self._place.root)
            self._version = latest_version(self._place)
            self._before = self._kept(self._version)

    def abort(self) -> None:
        """Remove what was set aside. Files that have their name stay: another writer may count on the same content."""
        if self._closed:
            return
        self._closed = self._given_up = True
        for shard in [*self._done, *filter(None, [self._shard])]:
            shard.discard()
        if self._new_folder:
            for folder in ("data", FOLDER, ""):
                with suppress(OSError):  # not empty, or never made
                    os.rmdir(os.path.join(self._place.root, folder))


def _only_leftovers(place: LocalSource) -> bool:
    """Whether a folder holds nothing but what a writer that died leaves behind."""
    return os.path.isdir(place.root) and all(map(_LEFTOVER.fullmatch, place.paths()))


class _Hashing:
    """A file that notes the checksum of what passes through; `cut` ends one stretch and begins the next."""

    def __init__(self, draft: LocalDraft) -> None:
        self._draft = draft
        self._digest = xxhash.xxh3_64()
        self.position = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._digest.update(data)
        with storage_errors(self._draft.path, "write"):
            self._draft.file.write(data)
        self.position += len(data)
        return len(data)

    def cut(self) -> str:
        digest, self._digest = self._digest.hexdigest(), xxhash.xxh3_64()
        return digest

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _ShardWriter:
    """One Arrow file: written aside, finished and closed, then published under the name that its content gives it."""

    def __init__(self, place: LocalSource, schema: pa.Schema) -> None:
        self._draft = place.draft()
        self._sink = _Hashing(self._draft)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema)
        self._batches: list[Batch] = []
        self._foot = ""
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._sink.position

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a record batch."""
        # Arrow writes the schema with the first batch, so that batch's stretch begins with the file.
        begin = self._batches[-1].end if self._batches else 0
        self._writer.write_batch(batch)
        self._batches.append(Batch(batch.num_rows, begin, self._sink.position, self._sink.cut()))
        with storage_errors(self._draft.path, "write"):
            self._draft.write_on()
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Write the foot, and all of it to the disk; no file stays open, however many shards there are."""
        self._writer.close()
        del self._writer
        self._foot = self._sink.cut()
        with storage_errors(self._draft.path, "write"):
            self._draft.file.flush()
            os.fsync(self._draft.file.fileno())
            self._draft.file.close()

    def publish(self, fields: list[str]) -> DataFile:
        """Give the file its name."""
        identity = xxhash.xxh3_128_hexdigest("".join([*(batch.xxh3 for batch in self._batches), self._foot]).encode())
        path = f"data/{identity}.arrow"
        self._draft.publish(path)
        return DataFile(path, self._sink.position, fields, self._batches, self._foot)

    def discard(self) -> None:
        """Forget it, if it is not published."""
        self._draft.discard()
