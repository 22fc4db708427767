"""`FileTextLinesIndexer`: lines of text files to samples and their index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.compat.data_forager._named import Named
from shardex.compat.data_forager.index_stores.common import IndexStoreInterface
from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.sample_generators._tokenizing import Line, TokenizingGenerator
from shardex.compat.data_forager.sample_generators.common import (
    NOOPSampleGenerator,
    SampleData,
    SampleGeneratorInterface,
    noop_sample_processing,
)
from shardex.compat.data_forager.sample_generators.tokenization import TokenizedSampleGenerator
from shardex.compat.data_forager.sample_generators.tokenization_with_aux import TokenizedSampleWithAuxGenerator
from shardex.compat.formats.data_forager import decompressed_lines, find_lines_of
from shardex.errors import ArgumentError, storage_errors
from shardex.progress import Bar
from shardex.sources import LocalSource, compression

__all__ = [
    "FileTextLinesIndexer",
    "NOOPSampleGenerator",
    "SampleData",
    "SampleGeneratorInterface",
    "noop_sample_processing",
]

_LINES_AT_ONCE = 1000


class FileTextLinesIndexer(Named):
    """Makes samples of the lines of files, and stores where each lies; call it to run.

    Without `sample_generator` each line is a sample, with its end. In files of JSON lines blank ones are left out, and
    so is a byte order mark. A run that fails leaves nothing behind; the index, and files of tokens, appear at its end.
    """

    def __init__(
        self,
        input_file_paths: list[str],
        index_store: IndexStoreInterface,
        sample_generator: SampleGeneratorInterface | None = None,
        description: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._input_file_paths = input_file_paths
        self._index_store = index_store
        self._sample_generator = NOOPSampleGenerator() if sample_generator is None else sample_generator
        self._description = "Indexing" if description is None else description

    def __call__(self) -> None:
        """Run: index all files."""
        store, generator = self._index_store, self._sample_generator
        try:
            self._begin()
            # A generator or store of the user may be as those of earlier versions, which have no schemas.
            schema = getattr(generator, "get_sample_schema", lambda: None)()
            if schema is not None:
                store.set_sample_schema(schema)  # type: ignore[attr-defined]
            self._add_files()
            if isinstance(generator, TokenizingGenerator):
                generator._files.publish()
            store.close()
        except BaseException:
            if isinstance(store, IndexStore):
                store.abort()
            raise
        finally:
            if isinstance(generator, TokenizingGenerator):
                generator._abort_run()

    def _begin(self) -> None:
        store, generator, stage = self._index_store, self._sample_generator, None
        makes_tokens = isinstance(generator, TokenizingGenerator)
        if type(store) is IndexStore:
            stage = store._begin(shared=makes_tokens)
        else:
            store.init_store()
        if isinstance(generator, TokenizingGenerator):
            generator._abort_run()
            generator._files.begin_run(stage if makes_tokens else None)
            if isinstance(store, IndexStore) and generator.get_sample_schema() is None:
                store._token_dtype = str(generator._token_dtype)

    def _add_files(self) -> None:
        kind = type(self._sample_generator)
        if kind is NOOPSampleGenerator:
            self._add_lines_in_place()
        elif kind in (TokenizedSampleGenerator, TokenizedSampleWithAuxGenerator):
            self._add_tokens()
        else:
            self._add_created_samples()

    def _add_lines_in_place(self) -> None:
        """Index the lines where they are: files, and parts of big ones, are scanned at the same time."""
        store = self._index_store
        for path in self._input_file_paths:
            if compression.plain_name(path) is not None:
                raise ArgumentError(
                    f"{path}: expected a file that is not compressed, because an index points into it; decompress it "
                    "with unzip_files, or tokenize it"
                )
        for path, found in find_lines_of(self._input_file_paths, self._description):
            _add_samples(store, path, found["offset"], found["length"])

    def _add_tokens(self) -> None:
        """Make samples of tokens, many lines at once."""
        store, generator = self._index_store, self._sample_generator
        assert isinstance(generator, TokenizingGenerator)
        for path, last, lines in self._each_file(_lines):
            generator.prepare(path)
            file, end = generator._files.path, 0
            for lengths in generator._add_lines(lines):
                ends = end + np.cumsum(lengths)
                _add_samples(store, file, ends - lengths, lengths)
                end += int(lengths.sum())
            generator.finish(is_last_file=last)

    def _add_created_samples(self) -> None:
        """Let a generator of the user make samples, line by line; their places follow from their order.

        It gets every byte of a file, because its samples may be the lines where they are; one that inherits from a
        generator of tokens gets the lines that this one gets.
        """
        store, generator, ends = self._index_store, self._sample_generator, dict[str, int]()
        lines_of = _lines if isinstance(generator, TokenizingGenerator) else _all_lines
        for path, last, lines in self._each_file(lines_of):
            generator.prepare(path)
            for line in lines:
                for sample in generator.create_samples(line.data):
                    begin, size = ends.get(sample.file_path, 0), len(sample.sample_bytes)
                    store.add_sample(file_location=sample.file_path, byte_offset=begin, num_bytes=size)
                    ends[sample.file_path] = begin + size
            generator.finish(is_last_file=last)

    def _each_file(self, lines_of: Callable[[str, Bar], Iterator[Line]]) -> Iterator[tuple[str, bool, Iterator[Line]]]:
        """Yield each file, whether it is the last one, and its lines."""
        total = sum(_size(path) for path in self._input_file_paths)
        with Bar(total=total, unit="B", unit_scale=True, desc=self._description, disable=None) as bar:
            for number, path in enumerate(self._input_file_paths):
                yield path, number == len(self._input_file_paths) - 1, lines_of(path, bar)


def _size(path: str) -> int:
    with storage_errors(path, "look at"):
        return os.stat(path).st_size


def _add_samples(store: IndexStoreInterface, path: str, offsets: NDArray[Any], lengths: NDArray[Any]) -> None:
    """Add the places of samples of a file: at once, or one by one if a user has written `add_sample`."""
    if isinstance(store, IndexStore) and type(store).add_sample is IndexStore.add_sample:
        store._add_samples(path, offsets, lengths)
        return
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        store.add_sample(path, offset, length)


def _all_lines(path: str, bar: Bar) -> Iterator[Line]:
    """Yield all lines of a file with their ends, also blank ones; together they are its bytes."""
    offset = 0
    with storage_errors(path, "read"), open(path, "rb") as file:
        for line in file:
            yield Line(offset, line)
            offset += len(line)
            bar.update(len(line))


def _lines(path: str, bar: Bar) -> Iterator[Line]:
    """Yield the lines of a file with their ends; of a compressed one, those of its content."""
    if (rows := decompressed_lines(path)) is not None:
        for first in range(0, len(rows), _LINES_AT_ONCE):
            some = np.arange(first, min(first + _LINES_AT_ONCE, len(rows)))
            for row, line in zip(some.tolist(), rows.ranges(some).bytes(), strict=True):
                yield Line(rows.index.at(row)[1], line + b"\n")
        bar.update(_size(path))
        return
    ((_, found),) = find_lines_of([path], "lines", progress=False)
    data, end = LocalSource(os.path.dirname(os.path.abspath(path))).map(os.path.basename(path)), 0
    for first in range(0, len(found["offset"]), _LINES_AT_ONCE):
        part = slice(first, first + _LINES_AT_ONCE)
        begin, offset, length = end, 0, 0
        for offset, length in zip(found["offset"][part].tolist(), found["length"][part].tolist(), strict=True):
            yield Line(offset, bytes(data[offset : offset + length]))
        end = offset + length
        bar.update(end - begin)
    bar.update(len(data) - end)
