"""Documents to arrays of tokens, batch by batch: the function that `tokenize` gives to the writer.

A `DocumentEncoder` turns the samples of a batch into ids (`EncodedDocuments`): `TextEncoder` takes the text of a field,
`chat` does it for messages. `TokenizeBatch` checks that the ids fit the dtype, adds arrays with one value per token
(`AuxArrays`), and returns columns to write. An error names the document (`SampleFailure`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, SchemaError
from shardex.features import describe
from shardex.kernel import Column, Integers, Masked, Ragged
from shardex.layers import SampleFailure
from shardex.samples import Batch, DictSample
from shardex.text.tokenizer_adapter import Ids, JoinedIds, TokenizerAdapter

TOKENS = "tokens"
"""Field of the ids."""
_CHARACTERS = 4 << 20
"""Characters that are encoded at once: tokenizers need many times the memory of the text."""

AuxFunction = Callable[[Any, NDArray[Any]], Any]


@dataclass(frozen=True)
class EncodedDocuments:
    """Tokens of some documents end to end, and other arrays with one value for each token."""

    values: NDArray[np.uint32]
    offsets: Integers
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class DocumentEncoder(Protocol):
    """Encodes the samples of a batch; it is picklable, and equal ones have equal fingerprints."""

    @property
    def adapter(self) -> TokenizerAdapter:
        """The tokenizer."""

    @property
    def fields(self) -> Sequence[str]:
        """Fields of the samples that it reads."""

    @property
    def arrays(self) -> Mapping[str, str]:
        """Dtypes by name of the arrays that it makes besides the tokens."""

    def __call__(self, batch: Batch[Any]) -> EncodedDocuments:
        """Encode all samples, or raise `SampleFailure` for one that is wrong."""


# -- text -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextEncoder:
    """Encodes the text of one field, with a token before and after it if `bos` and `eos` are given."""

    adapter: TokenizerAdapter
    field: str
    bos: int | None = None
    eos: int | None = None

    @property
    def fields(self) -> Sequence[str]:
        """The field of the text."""
        return (self.field,)

    @property
    def arrays(self) -> Mapping[str, str]:
        """Empty: there are no arrays besides the tokens."""
        return {}

    def __call__(self, batch: Batch[Any]) -> EncodedDocuments:
        """Encode the texts, some at a time if they are long."""
        texts, joined = _texts(batch.columns.data[self.field], self.field), JoinedIds(self.bos, self.eos)
        for begin, end in runs(texts):
            joined.extend(encoded(self.adapter, texts[begin:end], begin))
        return EncodedDocuments(joined.values, joined.offsets)


def _texts(column: Column, field: str) -> list[str]:
    """Return a column as a list of texts."""
    found = list(column) if isinstance(column, Masked | np.ndarray | Ragged) else column
    if set(map(type, found)) <= {str}:
        return found
    for number, one in enumerate(found):
        if not isinstance(one, str):
            told = "none" if one is None else describe(one)
            raise SampleFailure(number, SchemaError(f"expected a text in the field {field}, got {told}"))
    return [str(one) for one in found]


def runs(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts that have no more than `_CHARACTERS` together, or one text."""
    if sum(map(len, texts)) <= _CHARACTERS:
        yield from [(0, len(texts))] if texts else []
        return
    begin = size = 0
    for number, text in enumerate(texts):
        if number > begin and size + len(text) > _CHARACTERS:
            yield begin, number
            begin, size = number, 0
        size += len(text)
    yield begin, len(texts)


def encoded(adapter: TokenizerAdapter, texts: Sequence[str], first: int) -> Sequence[Ids]:
    """Encode texts; an error names the one that it is about, whose number in the batch is counted from `first`."""
    try:
        found = adapter.encode_batch(texts)
    except SampleFailure:
        raise
    except Exception as error:
        for number, text in enumerate(texts):
            try:
                adapter.encode_batch([text])
            except Exception as alone:
                raise SampleFailure(first + number, cause_of(alone, text)) from alone
        raise error from error.__cause__
    if len(found) != len(texts):
        raise SchemaError(f"expected the ids of {len(texts)} texts from the {adapter!r}, got {len(found)}")
    return found


def cause_of(error: Exception, text: str) -> Exception:
    """Return the error of a tokenizer for a text, or one that says more: few tokenizers say what a surrogate is.

    >>> cause_of(TypeError("wrong"), "a\\ud800")
    SchemaError("expected a text of Unicode characters, got half of a surrogate pair, '\\\\ud800', at character 1")
    """
    try:
        text.encode()
    except UnicodeEncodeError as found:
        half = text[found.start]
        return SchemaError(
            f"expected a text of Unicode characters, got half of a surrogate pair, {half!r}, at character {found.start}"
        )
    return error


# -- arrays with a value per token ----------------------------------------------------------------------------


def _positions(offsets: Integers) -> NDArray[np.int32]:
    lengths = np.diff(offsets)
    return (np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)).astype(np.int32)


def _segment_ids(offsets: Integers) -> NDArray[np.int32]:
    return np.ones(int(offsets[-1]), np.int32)


_BUILT_IN = {"positions": _positions, "segment_ids": _segment_ids}
_NUMBERS = "biuf"
"""Kinds of dtypes that arrays may have."""


def _dtype_name(name: str, given: Any) -> str:
    """Return the name of the dtype of an array, as the argument `aux` gives it."""
    with suppress(TypeError):
        if (dtype := np.dtype(given)).kind in _NUMBERS and dtype.isnative:
            return str(dtype.name)
    raise ArgumentError(f"expected a dtype of numbers for the array {name} of aux=, got {given!r:.200}")


@dataclass(frozen=True)
class AuxArrays:
    """Arrays with one value for each token, made by functions of sample and ids, or by name."""

    built_in: Mapping[str, str] = field(default_factory=dict)
    """Names of `_BUILT_IN` by name of the field."""
    functions: Mapping[str, AuxFunction] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Dtypes by name; those of functions are found by `with_dtypes` if they are not given."""

    @classmethod
    def of(cls, given: Any) -> AuxArrays:
        """Read the argument `aux`.

        >>> AuxArrays.of("positions").dtypes
        {'positions': 'int32'}
        """
        if given is None:
            return cls()
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, Mapping):
            if not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
                raise ArgumentError(
                    "expected aux= as names of built-in arrays, or as a dict of name and function(sample, ids), got "
                    f"{given!r:.200}"
                )
            given = {name: name for name in given}
        built_in, functions, dtypes = {}, {}, {}
        for name, one in given.items():
            function, dtype = one if isinstance(one, tuple) and len(one) == 2 else (one, None)
            if isinstance(function, str) and function in _BUILT_IN:
                built_in[name], dtypes[name] = function, "int32" if dtype is None else _dtype_name(name, dtype)
            elif callable(function):
                functions[name] = function
                dtypes |= {} if dtype is None else {name: _dtype_name(name, dtype)}
            else:
                raise ArgumentError(
                    f"expected aux={{{name!r}: ...}} to be a function(sample, ids), a pair of function and dtype, or "
                    f"one of {', '.join(_BUILT_IN)}, got {function!r:.200}"
                )
        return cls(built_in, functions, dtypes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return (*self.built_in, *self.functions)

    @property
    def unknown(self) -> list[str]:
        """Names of arrays whose dtype is not known."""
        return [name for name in self.functions if name not in self.dtypes]

    def with_dtypes(self, encoder: DocumentEncoder, batch: Batch[Any]) -> AuxArrays:
        """Find the dtypes that are not given: those of the results for the samples of a batch."""
        documents, samples = encoder(batch), _samples(batch)
        found: dict[str, Any] = {}
        for name in self.unknown:
            results = [np.asarray(self._call(name, k, *one)) for k, one in enumerate(_each(documents, samples))]
            full = [one for one in results if one.size and one.dtype.kind in _NUMBERS]
            if full:
                found[name] = np.result_type(*full).name
        return AuxArrays(self.built_in, self.functions, {**self.dtypes, **found})

    def __call__(self, batch: Batch[Any], documents: EncodedDocuments) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield name and values, those of all documents end to end."""
        for name, kind in self.built_in.items():
            yield name, _BUILT_IN[kind](documents.offsets).astype(self.dtypes[name], copy=False)
        samples = _samples(batch) if self.functions else []
        for name in self.functions:
            dtype = np.dtype(self.dtypes[name])
            results = [
                self._fitted(name, number, self._call(name, number, sample, ids), len(ids), dtype)
                for number, (sample, ids) in enumerate(_each(documents, samples))
            ]
            yield name, np.concatenate(results) if results else np.zeros(0, dtype)

    def _call(self, name: str, number: int, sample: Any, ids: NDArray[Any]) -> Any:
        try:
            return self.functions[name](sample, ids)
        except Exception as error:
            raise SampleFailure(number, error) from error

    def _fitted(self, name: str, number: int, result: Any, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the result of a function as an array of its dtype, or raise an error that names the document."""
        try:
            found = np.asarray(result)
            if found.shape == (length,) and found.dtype.kind in _NUMBERS:
                with np.errstate(over="ignore", invalid="ignore"):
                    made = found.astype(dtype)
                if np.array_equal(made, found) or (dtype.kind == "f" and not (np.isinf(made) & ~np.isinf(found)).any()):
                    return made
            if not length and not found.size:
                return np.zeros(0, dtype)
        except (TypeError, ValueError, OverflowError):
            pass
        wanted = f"{length} value{'s' * (length != 1)} of {dtype}, one for each token"
        raise SampleFailure(
            number, SchemaError(f"expected {wanted}, in the array {name} of aux=, got {describe(result)}")
        )


def _samples(batch: Batch[Any]) -> Sequence[Any]:
    return list(Batch(batch.columns, DictSample))


def _each(documents: EncodedDocuments, samples: Sequence[Any]) -> Iterator[tuple[Any, NDArray[np.uint32]]]:
    """Yield each sample with its ids, which a function must not change: they are stored."""
    ends, values = documents.offsets.tolist(), documents.values.view()
    values.flags.writeable = False
    for sample, begin, end in zip(samples, ends[:-1], ends[1:], strict=True):
        yield sample, values[begin:end]


# -- the function of a batch ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class TokenizeBatch:
    """Returns the columns to write for a batch: tokens, arrays of the same lengths, and fields that are kept."""

    encoder: DocumentEncoder
    dtype: str
    aux: AuxArrays = field(default_factory=AuxArrays)
    keep: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"tokenize with {self.encoder.adapter!r}"

    def __call__(self, batch: Batch[Any]) -> dict[str, Column]:
        """Encode the documents of a batch."""
        documents = self.encoder(batch)
        made = {TOKENS: self._fitted(documents), **documents.arrays, **dict(self.aux(batch, documents))}
        columns: dict[str, Column] = {n: Ragged.from_values(one, documents.offsets) for n, one in made.items()}
        return {**columns, **{name: batch.columns.data[name] for name in self.keep}}

    def _fitted(self, documents: EncodedDocuments) -> NDArray[Any]:
        """Return the ids in the dtype that is stored."""
        values, most = documents.values, int(np.iinfo(self.dtype).max)
        if len(values) and (highest := int(values.max())) > most:
            at = int((values > most).argmax())
            number = int(np.searchsorted(documents.offsets, at, "right")) - 1
            token, text = int(values[at]), self.encoder.adapter.token_text(int(values[at]))
            named = f"{token} ({text!r})" if text is not None else f"{token}"
            fitting = "uint16" if highest < 1 << 16 else "uint32"
            raise SampleFailure(
                number,
                SchemaError(
                    f"expected token ids up to {most}, the highest of {self.dtype}, got token {named} at token "
                    f'{at - int(documents.offsets[number])} of the document; pass dtype="{fitting}"'
                ),
            )
        return values.astype(self.dtype, copy=False)
