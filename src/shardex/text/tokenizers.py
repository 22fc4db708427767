"""Tokenizers of all kinds behind one interface: `adapter_of` returns the `TokenizerAdapter` of what the user gives.

In: a `tokenizers.Tokenizer`, a tokenizer of `transformers`, a `tiktoken.Encoding`, a sentencepiece processor, the path
of a ``tokenizer.json`` or a sentencepiece ``.model``, or a function of a text. Out: token ids of many texts at once,
the special tokens, and what is stored with the data. An adapter is pickled as the serialised form of its tokenizer, so
its fingerprint is the same in all processes and changes with the content. None of these packages is imported before a
tokenizer of it is used. `tokenizer_adapter` loads tokenizers from files.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError
from shardex.kernel import cores
from shardex.text.huggingface_tokenizers import TokenizersAdapter, TokenizersOptions, transformers_adapter
from shardex.text.tokenizer_adapter import (
    WIDEST,
    Ids,
    SpecialTokens,
    TokenizerAdapter,
    batch_ids,
    digest_of,
    is_a,
    load_tokenizer,
    name_of_path,
    one_ids,
)


def adapter_of(tokenizer: Any, *, add_special_tokens: bool = False, batched: bool = False) -> TokenizerAdapter:
    """Return the adapter of a tokenizer; of one that is an adapter, itself.

    With `add_special_tokens` the tokenizer adds the tokens that its own settings say. `batched` is for functions: they
    get a list of texts and return one result for each.

    >>> adapter = adapter_of(lambda text: [ord(c) for c in text]); adapter.encode_batch(["ab", ""])
    [[97, 98], []]
    """
    if isinstance(tokenizer, TokenizerAdapter):
        return tokenizer
    special = SpecialTokens()
    path = os.fspath(tokenizer) if isinstance(tokenizer, str | os.PathLike) else None
    if path is not None:
        tokenizer, special = load_tokenizer(path)
    made = _known_adapter(tokenizer, add_special_tokens, special)
    if made is None:
        made = FunctionAdapter(tokenizer, batched)
        if add_special_tokens:
            raise ArgumentError("expected add_special_tokens=False with a function, got True; add them in the function")
    elif batched:
        raise ArgumentError(f"expected batched=True with a function only, got {made!r}, which takes many texts anyway")
    if path is not None:
        made.name = name_of_path(path)
    return made


def adapter_of_function(function: Callable[[str], Any]) -> TokenizerAdapter:
    """Return an adapter with the ids that a function returns for a text.

    Of methods that encode one text, such as `encode` of a fast tokenizer of transformers, the tokenizer encodes many at
    once instead.
    """
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if is_a(owner, "tiktoken", "Encoding") and name == "encode_ordinary":
        return TiktokenAdapter(owner)
    if is_a(owner, "transformers.tokenization_utils_base", "PreTrainedTokenizerBase") and name == "encode":
        with suppress(ArgumentError):  # one with random results, or with parts in Python, encodes text by text
            made = transformers_adapter(owner, True) if _is_plain_encode(owner) else None
            if isinstance(made, TokenizersAdapter):
                return made
    return FunctionAdapter(function)


def _is_plain_encode(tokenizer: Any) -> bool:
    """Return True if `encode` of a tokenizer is that of transformers and the tokenizer adds what its settings say."""
    owner = next(one for one in type(tokenizer).__mro__ if "encode" in vars(one))
    return "encode" not in vars(tokenizer) and owner.__module__.startswith("transformers.tokenization_utils")


def _known_adapter(tokenizer: Any, add: bool, special: SpecialTokens) -> TokenizerAdapter | None:
    """Return the adapter of an object of a known package; None if it is another one."""
    if is_a(tokenizer, "tokenizers.implementations", "BaseTokenizer"):
        tokenizer = tokenizer._tokenizer
    if is_a(tokenizer, "tokenizers", "Tokenizer"):
        pad = tokenizer.padding["pad_id"] if tokenizer.padding else None
        split = bool(getattr(tokenizer, "encode_special_tokens", False))
        return TokenizersAdapter.of(tokenizer, TokenizersOptions(add, special, split, pad=pad))
    if is_a(tokenizer, "transformers.tokenization_utils_base", "PreTrainedTokenizerBase"):
        return transformers_adapter(tokenizer, add)
    if is_a(tokenizer, "tiktoken", "Encoding"):
        if add:
            raise ArgumentError("expected add_special_tokens=False with tiktoken, got True; pass bos= and eos=")
        return TiktokenAdapter(tokenizer)
    if is_a(tokenizer, "sentencepiece", "SentencePieceProcessor"):
        return SentencePieceAdapter.of(tokenizer, add)
    return None


# -- tiktoken -------------------------------------------------------------------------------------------------


class TiktokenAdapter(TokenizerAdapter):
    """A `tiktoken.Encoding`. Text that looks like a special token is encoded as any other text."""

    kind = "tiktoken"

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self.name = encoding.name
        self.threads = cores()
        self.vocab_size = encoding.max_token_value + 1
        self.eos = self.token_id("<|endoftext|>")
        self.special_tokens = {} if self.eos is None else {"eos_token": "<|endoftext|>"}

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_tiktoken_adapter, (self.name, self._encoding._pat_str, self._ranks, self._special)

    @cached_property
    def _ranks(self) -> str:
        """The ranks as one text: a token in base64 and its rank in each line, as tiktoken stores them."""
        ranks = sorted((rank, token) for token, rank in self._encoding._mergeable_ranks.items())
        return "\n".join(f"{base64.b64encode(token).decode()} {rank}" for rank, token in ranks)

    @property
    def _special(self) -> dict[str, int]:
        return dict(sorted(self._encoding._special_tokens.items()))

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Encode each text into an array."""
        return [self._encoding.encode_to_numpy(text, disallowed_special=()) for text in texts]

    def encode_pieces(self, texts: Sequence[str], control: bool) -> list[NDArray[np.uint32]]:
        """Encode each text into an array; special tokens are allowed with `control` only."""
        if not control:
            return self.encode_batch(texts)
        return [self._encoding.encode_to_numpy(text, allowed_special="all") for text in texts]

    @cached_property
    def control_tokens(self) -> Sequence[str]:  # type: ignore[override]
        """The special tokens."""
        return sorted(self._special)

    def token_id(self, text: str) -> int | None:
        """Look a token up."""
        try:
            return int(self._encoding.encode_single_token(text))
        except KeyError:
            return None

    def token_text(self, number: int) -> str | None:
        """Return a token."""
        try:
            return bytes(self._encoding.decode_single_token_bytes(number)).decode(errors="replace")
        except (KeyError, OverflowError):
            return None

    def has_id(self, number: int) -> bool:
        """Return True if there is a token of this id: there may be gaps."""
        return self.token_text(number) is not None

    @cached_property
    def sha256(self) -> str:
        """Digest of pattern, ranks and special tokens."""
        return digest_of(self._encoding._pat_str.encode(), self._ranks.encode(), json.dumps(self._special).encode())


def _load_tiktoken_adapter(name: str, pattern: str, ranks: str, special: Mapping[str, int]) -> TiktokenAdapter:
    import tiktoken

    pairs: Iterable[list[str]] = (line.split() for line in ranks.splitlines())
    found = {base64.b64decode(token): int(rank) for token, rank in pairs}
    made = TiktokenAdapter(
        tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=found, special_tokens=dict(special))
    )
    made.in_worker = True
    return made


# -- sentencepiece --------------------------------------------------------------------------------------------


class SentencePieceAdapter(TokenizerAdapter):
    """A `sentencepiece.SentencePieceProcessor`."""

    kind = "sentencepiece"

    def __init__(self, processor: Any, options: Mapping[str, bool], name: str = "") -> None:
        self._processor, self._options, self.name = processor, dict(options), name
        self.threads = cores()
        self.vocab_size = int(processor.get_piece_size())
        self.bos, self.eos, self.pad = (
            None if (found := int(getter())) < 0 else found
            for getter in (processor.bos_id, processor.eos_id, processor.pad_id)
        )
        roles = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        self.special_tokens = {role: processor.id_to_piece(n) for role, n in roles.items() if n is not None}

    @classmethod
    def of(cls, processor: Any, add: bool) -> SentencePieceAdapter:
        """Make the adapter of a processor; its own settings for begin and end are used with `add` only."""
        if getattr(processor, "_enable_sampling", False):
            raise ArgumentError("expected a sentencepiece processor without sampling, got enable_sampling=True")
        own = {name: bool(getattr(processor, f"_{name}", False)) for name in ("add_bos", "add_eos", "reverse")}
        return cls(processor, own if add else {**own, "add_bos": False, "add_eos": False})

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_sentencepiece_adapter, (self._content, self._options, self.name)

    @cached_property
    def _content(self) -> bytes:
        return bytes(self._processor.serialized_model_proto())

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Ids]:
        """Encode all texts in one call."""
        found: Sequence[Ids] = self._processor.encode(list(texts), out_type=int, num_threads=1, **self._options)
        return found

    def encode_pieces(self, texts: Sequence[str], control: bool) -> Sequence[Ids]:
        """Encode; the processor never makes a control symbol of text, so with `control` they are put in here."""
        if not control or not self.control_tokens:
            return self.encode_batch(texts)
        pattern = re.compile("(" + "|".join(map(re.escape, self.control_tokens)) + ")")
        parts = [pattern.split(text) for text in texts]  # every second one is a control symbol
        encoded = iter(self.encode_batch([one for some in parts for one in some[::2] if one]))
        return [
            [number for k, one in enumerate(some) if one for number in self._ids_of(one, k % 2 == 1, encoded)]
            for some in parts
        ]

    def _ids_of(self, text: str, control: bool, encoded: Iterator[Ids]) -> Ids:
        return [int(self._processor.piece_to_id(text))] if control else next(encoded)

    @cached_property
    def control_tokens(self) -> Sequence[str]:  # type: ignore[override]
        """The control symbols, longest first."""
        found = [self._processor.id_to_piece(n) for n in range(self.vocab_size or 0) if self._processor.is_control(n)]
        return sorted(map(str, found), key=lambda text: (-len(text), text))

    def token_id(self, text: str) -> int | None:
        """Look a piece up; the processor returns the unknown token for one that it does not have."""
        found = int(self._processor.piece_to_id(text))
        return found if self._processor.id_to_piece(found) == text else None

    def token_text(self, number: int) -> str | None:
        """Return a piece."""
        return str(self._processor.id_to_piece(number)) if self.has_id(number) else None

    @cached_property
    def sha256(self) -> str:
        """Digest of the model."""
        return digest_of(self._content)


def _load_sentencepiece_adapter(content: bytes, options: Mapping[str, bool], name: str) -> SentencePieceAdapter:
    from sentencepiece import SentencePieceProcessor

    made = SentencePieceAdapter(SentencePieceProcessor(model_proto=content), options, name)
    made.in_worker = True
    return made


# -- functions ------------------------------------------------------------------------------------------------


class FunctionAdapter(TokenizerAdapter):
    """A function of a text that returns its ids; with `batched` one of a list of texts that returns many."""

    kind = "function"

    def __init__(self, function: Callable[[Any], Any], batched: bool = False) -> None:
        if not callable(function):
            raise ArgumentError(
                "expected a tokenizer: one of tokenizers, transformers, tiktoken or sentencepiece, the path of a "
                f"tokenizer.json or .model, or a function of a text that returns ids, got {function!r:.200}"
            )
        self.function, self.batched = function, batched
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        size = getattr(function, "vocab_size", None)
        self.vocab_size = size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionAdapter, (self.function, self.batched)

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Ids]:
        """Call the function for each text, or once for all."""
        if self.batched:
            return batch_ids(self.function(list(texts)), len(texts), self)
        return [one_ids(self.function(text), self) for text in texts]


def special_id(adapter: TokenizerAdapter, given: Any, role: str) -> int | None:
    """Return the id that the argument `bos` or `eos` means: an id, the text of a token, True (its own) or None.

    >>> adapter = adapter_of(lambda text: [1]); special_id(adapter, 7, "eos"), special_id(adapter, None, "eos")
    (7, None)
    """
    if given is None or given is False:
        return None
    if given is True:
        own: int | None = getattr(adapter, role)
        if own is None:
            raise ArgumentError(
                f"expected {role}= as an id or the text of a token, got True, and the {adapter!r} does not say which "
                "token that is"
            )
        return own
    if isinstance(given, str):
        found = adapter.token_id(given)
        if found is None:
            advice = "; pass the id" if adapter.kind == "function" else ""
            raise ArgumentError(f"expected {role}= to be a token of the {adapter!r}, got {given!r}{advice}")
        return found
    if not isinstance(given, int | np.integer):
        raise ArgumentError(f"expected {role}= to be an id, the text of a token, True or None, got {given!r:.200}")
    if not adapter.has_id(int(given)) or given > WIDEST:
        size = "" if adapter.vocab_size is None else f" (vocabulary: {adapter.vocab_size})"
        raise ArgumentError(f"expected {role}= to be an id of the {adapter!r}{size}, got {given}")
    return int(given)
