"""What both generators of tokens share: parts of lines to tokens, tokens to samples, samples to files.

A line is a document of one or more parts. Many lines are encoded at once where a known tokenizer can do that; functions
and generators of users, which may have a state, are called for one line after the other. With a sample size the
documents, each with the token of its end, are one stream over all files, which is cut into samples; the last tokens
that fill no sample are left out. Without one each document is a sample, and its end is not marked.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.compat.data_forager._errors import TokenError
from shardex.compat.data_forager._named import Named
from shardex.compat.data_forager.sample_generators._token_files import TokenFiles
from shardex.compat.data_forager.sample_generators.aux.common import AuxDataGenerator, Part
from shardex.compat.data_forager.sample_generators.aux.loss_mask import LossMaskGenerator
from shardex.compat.data_forager.sample_generators.common import SampleData
from shardex.errors import ArgumentError, SchemaError
from shardex.kernel import gather
from shardex.layers import SampleFailure
from shardex.sources import LocalSource, compression
from shardex.text import JoinedIds, TokenizerAdapter, adapter_of_function
from shardex.workers import start_executor

_LINES_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20


class Line(NamedTuple):
    """A line of an input file."""

    offset: int
    data: bytes


class _Encoded(NamedTuple):
    """Bytes of samples, end to end, and the bytes of each."""

    data: bytes
    lengths: NDArray[np.int64]


class _Document(NamedTuple):
    """A line: its parts, the ids of each, and for each generator by name one value for each token and for the end."""

    parts: Sequence[Part]
    ids: Sequence[Any]
    aux: list[NDArray[Any]]


class TokenizingGenerator(Named):
    """Makes samples of tokens, and of other arrays with one value for each token, of lines."""

    def __init__(
        self,
        tokenizer_func: Any,
        eos_idx: int,
        aux_generators: dict[str, AuxDataGenerator],
        token_dtype: Any,
        sample_size: int | None,
        base_output_path: str | None,
        file_name_postfix: str,
        name: str | None,
    ) -> None:
        super().__init__(name)
        if sample_size is not None and sample_size < 1:
            raise ArgumentError(f"expected sample_size to be a number from 1, or None, got {sample_size!r}")
        self._token_dtype: np.dtype[Any] = np.dtype(token_dtype)
        if self._token_dtype.kind not in "iu":
            raise ArgumentError(f"expected token_dtype= of integers, such as np.uint16, got {token_dtype!r}")
        self._adapter: TokenizerAdapter = adapter_of_function(tokenizer_func)
        self._eos_idx, self._sample_size, self._aux_generators = eos_idx, sample_size, aux_generators
        self._base_output_path, self._file_name_postfix = base_output_path, file_name_postfix
        self._files = TokenFiles()
        self._input = ""
        self._rest: list[NDArray[Any]] = []

    # -- a file ----------------------------------------------------------------------------------------------------

    def prepare(self, text_file_path: str) -> None:
        """Begin with an input file, and with the file of its tokens; raise a FileExistsError if that exists."""
        folder = self._base_output_path
        if folder is None:
            folder = os.path.join(os.path.dirname(text_file_path), "tokenized-samples")
        self._files.begin(folder, Path(text_file_path).stem, self._file_name_postfix)
        self._input = text_file_path

    def create_samples(self, text_line: bytes) -> list[SampleData]:
        """Return the samples that are full after a line, and store them."""
        try:
            found = self._packed([self._document(text_line)])
        except SampleFailure as failure:
            raise failure.error from failure.error.__cause__
        self._files.write(found.data)
        ends = np.cumsum([0, *found.lengths]).tolist()
        return [SampleData(found.data[begin:end], self._files.path) for begin, end in pairwise(ends)]

    def finish(self, is_last_file: bool) -> None:
        """End with the current file; after the last one, tokens that fill no sample are left out."""
        self._files.end()
        if is_last_file:
            if self._rest:
                self._log.debug("%d tokens at the end fill no sample and are left out", len(self._rest[0]))
            self._rest = []

    def __del__(self) -> None:
        if files := getattr(self, "_files", None):
            files.discard()

    @abstractmethod
    def _parts(self, text_line: bytes) -> Sequence[Part]:
        """Return the parts of a document."""

    # -- a run of an indexer ---------------------------------------------------------------------------------------

    def _abort_run(self) -> None:
        """Forget what was not published, also tokens that wait for the next file."""
        self._files.discard()
        self._rest = []

    def _add_lines(self, lines: Iterable[Line]) -> Iterator[NDArray[np.int64]]:
        """Store the samples of many lines of the current file; yield the bytes of samples, batch by batch."""
        masks = all(type(one) is LossMaskGenerator for one in self._aux_generators.values())
        if masks and self._adapter.kind != "function":
            yield from self._add_lines_at_once(lines)
            return
        for some in _batches(lines):
            yield self._stored(some, [self._document_at(line) for line in some])

    def _add_lines_at_once(self, lines: Iterable[Line]) -> Iterator[NDArray[np.int64]]:
        threads = self._adapter.threads
        running = start_executor(self._encode, threads, "threads" if threads > 1 else "inline")
        waiting: deque[tuple[list[Line], list[Sequence[Part]], Any]] = deque()
        with closing(running):
            for some in _batches(lines):
                parts = [self._parts_at(line) for line in some]
                waiting.append((some, parts, running.submit([part.text for one in parts for part in one])))
                while len(waiting) > threads:
                    yield self._stored_later(running, *waiting.popleft())
            while waiting:
                yield self._stored_later(running, *waiting.popleft())

    def _stored_later(
        self, running: Any, lines: Sequence[Line], parts: Sequence[Sequence[Part]], ticket: Any
    ) -> NDArray[np.int64]:
        """Store the samples of lines whose parts are encoded in other threads."""
        try:
            ids = running.result(ticket)
        except SampleFailure as failure:
            raise self._noted(failure.error, lines[_document_of(failure.number, parts)]) from failure.error.__cause__
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        some = [(one, ids[begin:end]) for one, (begin, end) in zip(parts, pairwise(ends), strict=True)]
        return self._stored(lines, [_Document(one, tokens, self._aux_values(one, tokens)) for one, tokens in some])

    def _parts_at(self, line: Line) -> Sequence[Part]:
        try:
            return self._parts(line.data)
        except Exception as error:
            raise self._noted(error, line) from error.__cause__

    def _document_at(self, line: Line) -> _Document:
        try:
            return self._document(line.data)
        except SampleFailure as failure:
            raise self._noted(failure.error, line) from failure.error.__cause__
        except Exception as error:
            raise self._noted(error, line) from error.__cause__

    def _stored(self, lines: Sequence[Line], documents: Sequence[_Document]) -> NDArray[np.int64]:
        try:
            found = self._packed(documents)
        except SampleFailure as failure:
            line = lines[_document_of(failure.number, [one.parts for one in documents])]
            raise self._noted(failure.error, line) from failure.error.__cause__
        self._files.write(found.data)
        return found.lengths

    def _noted(self, error: Exception, line: Line) -> Exception:
        error.add_note(self._place(line))
        return error

    def _place(self, line: Line) -> str:
        if compression.plain_name(self._input) is not None:
            return f"at {self._input}, byte {line.offset} of its content"
        folder, name = os.path.split(os.path.abspath(self._input))
        number = gather.count_newlines(LocalSource(folder).map(name)[: line.offset]) + 1
        return f"at {self._input}, line {number}"

    # -- parts to samples ------------------------------------------------------------------------------------------

    def _document(self, text_line: bytes) -> _Document:
        """Return one line; functions and generators of users are called here, and for no other line before its end."""
        parts = self._parts(text_line)
        ids = self._encode([part.text for part in parts])
        return _Document(parts, ids, self._aux_values(parts, ids))

    def _encode(self, texts: list[str]) -> list[Any]:
        """Return the ids of each text; raise a `SampleFailure` with the number of the text."""
        if self._adapter.kind != "function":
            try:
                return list(self._adapter.encode_batch(texts))
            except Exception:  # encode one by one, to find which
                pass
        found: list[Any] = []
        for number, text in enumerate(texts):
            try:
                found += self._adapter.encode_batch([text])
            except Exception as error:
                raise SampleFailure(number, error) from error
        return found

    def _packed(self, documents: Sequence[_Document]) -> _Encoded:
        """Return the samples that are full after these documents."""
        joined = JoinedIds(bos=None, eos=None)
        try:
            joined.extend([ids for one in documents for ids in one.ids])
        except SampleFailure as failure:
            raise SampleFailure(failure.number, TokenError(*failure.error.args)) from None
        values = self._fitted(joined)
        ends = joined.offsets[np.cumsum([0, *(len(one.parts) for one in documents)])]
        if self._sample_size is None:
            return _Encoded(values.tobytes(), np.diff(ends) * values.itemsize)
        aux = [np.concatenate(some) for some in zip(*(one.aux for one in documents), strict=True)]
        return self._cut([_with_ends(values, ends[1:], self._eos_idx), *aux])

    def _fitted(self, joined: JoinedIds) -> NDArray[Any]:
        """Return the ids in the dtype that is stored."""
        values, most = joined.values, np.iinfo(self._token_dtype).max
        if len(values) and int(values.max()) > most:
            at = int((values > most).argmax())
            number = int(np.searchsorted(joined.offsets, at, "right")) - 1
            raise SampleFailure(
                number, TokenError(f"expected token ids up to {most} for {self._token_dtype}, got {values[at]}")
            )
        return values.astype(self._token_dtype)

    def _aux_values(self, parts: Sequence[Part], ids: Sequence[Any]) -> list[NDArray[Any]]:
        """Return the values for the tokens of a document and its end, for each generator, sorted by name."""
        if not self._aux_generators:
            return []
        found: dict[str, list[NDArray[Any]]] = {name: [] for name in self._aux_generators}
        for part, tokens in zip(parts, ids, strict=True):
            plain = tokens if isinstance(tokens, list) else np.asarray(tokens).tolist()
            for name, generator in self._aux_generators.items():
                values = generator.generate(part_type=part.type, num_tokens=len(plain), part_tokens=plain)
                found[name].append(np.array(values, generator.dtype).reshape(-1))
                if len(found[name][-1]) != len(plain):
                    problem = f"expected {len(plain)} values of {name}, one for each token"
                    raise SchemaError(f"{problem}, got {len(found[name][-1])}")
        for name, generator in self._aux_generators.items():
            found[name].append(_end_value(generator.generate_for_eos(), np.dtype(generator.dtype)))
        return [np.concatenate(found[name]) for name in sorted(found)]

    def _cut(self, arrays: list[NDArray[Any]]) -> _Encoded:
        """Add to the stream, and return the samples that are full: the arrays of each, one after another."""
        size = self._sample_size or 1
        if self._rest:
            arrays = [np.concatenate(pair) for pair in zip(self._rest, arrays, strict=True)]
        count = len(arrays[0]) // size
        self._rest = [one[count * size :].copy() for one in arrays]
        full = [one[: count * size].reshape(count, size) for one in arrays]
        joined = np.concatenate([np.ascontiguousarray(one).view(np.uint8) for one in full], axis=1)
        return _Encoded(joined.tobytes(), np.full(count, joined.shape[1]))


def _with_ends(values: NDArray[Any], ends: Any, value: int) -> NDArray[Any]:
    """Return values with one more after each document."""
    return np.insert(values, ends, _end_value(value, values.dtype)[0])


def _end_value(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        return np.array([value], dtype)
    except OverflowError as error:
        raise TokenError(f"expected {value} for the end of documents to fit {dtype}: {error}") from None


def _document_of(number: int, parts: Sequence[Sequence[Part]]) -> int:
    """Return the number of the document that has a part of this number."""
    ends = np.cumsum([len(one) for one in parts])
    return min(int(np.searchsorted(ends, number, "right")), len(parts) - 1)


def _batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    some: list[Line] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line.data)
        if len(some) == _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some
