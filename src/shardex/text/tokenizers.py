"""Tokenizers of all kinds behind one interface: `adapter_of` returns the `TokenizerAdapter` of what the user gives.

In: a `tokenizers.Tokenizer`, a tokenizer of `transformers`, a `tiktoken.Encoding`, a sentencepiece processor, the path
of a ``tokenizer.json`` or a sentencepiece ``.model``, or a function of a text. Out: token ids of many texts at once,
the special tokens, and what is stored with the data. An adapter is pickled as the serialised form of its tokenizer, so
its fingerprint is the same in all processes and changes with the content. None of these packages is imported before a
tokenizer of it is used. `tokenizer_files` loads tokenizers from files, `token_ids` converts what functions return.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError
from shardex.text.token_ids import Ids, batch_ids, one_ids
from shardex.text.tokenizer_files import SpecialTokens, load_tokenizer, name_of_path
from shardex.workers import cores

Offsets = NDArray[np.int64]
"""First character and end of each token in the text, of shape (tokens, 2); (0, 0) for tokens that are not in it."""


class TokenizerAdapter(ABC):
    """A tokenizer: ids of many texts, special tokens, and a description that is stored with the data."""

    kind: str
    """Package of the tokenizer, or "function"."""
    name: str
    """What people call the tokenizer; it may be empty."""
    vocab_size: int | None = None
    """One more than the highest id; None if it is not known."""
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    """Ids that the tokenizer itself names as begin and end of a text and as padding."""
    threads: int = 1
    """Threads of one process that should encode at once, to use all its cores: 1 where the tokenizer holds the GIL."""
    in_worker: bool = False
    """True after unpickling: other workers use the other cores."""
    chat_template: str | None = None
    """The Jinja template that comes with the tokenizer."""
    special_tokens: Mapping[str, str] = {}
    """Texts of special tokens by their role, such as ``{"bos_token": "<s>"}``: variables of chat templates."""
    control_tokens: Sequence[str] = ()
    """Texts that are special tokens where a chat template has written them."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> Sequence[Ids]:
        """Return the ids of each text, a list or an array of integers; never padded or cut."""

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Offsets]] | None:
        """Return the ids of conversations and where they are in the text; None if the tokenizer does not tell."""
        return None

    def encode_pieces(self, texts: Sequence[str], control: bool) -> Sequence[Ids]:
        """Return the ids of parts of conversations.

        With `control` the texts of `control_tokens` are these tokens, else ordinary text if the tokenizer can do that.
        """
        return self.encode_batch(texts)

    def token_id(self, text: str) -> int | None:
        """Return the id of a token; None if there is no such token."""
        return None

    def token_text(self, number: int) -> str | None:
        """Return the text of a token; None if there is no such token, or if it is not known."""
        return None

    def has_id(self, number: int) -> bool:
        """Return True if an id may be one of this tokenizer."""
        return number >= 0 and (self.vocab_size is None or number < self.vocab_size)

    @cached_property
    def sha256(self) -> str | None:
        """Digest of the content; None for a function."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what is stored with the data."""
        return {"kind": self.kind, "name": self.name, "sha256": self.sha256, "vocab_size": self.vocab_size}

    def __repr__(self) -> str:
        return f"{self.kind} tokenizer {self.name}".rstrip()


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


def _known_adapter(tokenizer: Any, add: bool, special: SpecialTokens) -> TokenizerAdapter | None:
    """Return the adapter of an object of a known package; None if it is another one."""
    if _is_a(tokenizer, "tokenizers.implementations", "BaseTokenizer"):
        tokenizer = tokenizer._tokenizer
    if _is_a(tokenizer, "tokenizers", "Tokenizer"):
        pad = tokenizer.padding["pad_id"] if tokenizer.padding else None
        split = bool(getattr(tokenizer, "encode_special_tokens", False))
        return TokenizersAdapter.of(tokenizer, TokenizersOptions(add, special, split, pad=pad))
    if _is_a(tokenizer, "transformers.tokenization_utils_base", "PreTrainedTokenizerBase"):
        return _transformers_adapter(tokenizer, add)
    if _is_a(tokenizer, "tiktoken", "Encoding"):
        if add:
            raise ArgumentError("expected add_special_tokens=False with tiktoken, got True; pass bos= and eos=")
        return TiktokenAdapter(tokenizer)
    if _is_a(tokenizer, "sentencepiece", "SentencePieceProcessor"):
        return SentencePieceAdapter.of(tokenizer, add)
    return None


def _is_a(value: Any, module: str, name: str) -> bool:
    """Return whether a value is of a class of a package, without importing the package."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _digest(*content: bytes) -> str:
    return hashlib.sha256(b"\0".join(content)).hexdigest()


# -- tokenizers, and the fast ones of transformers ------------------------------------------------------------


@dataclass(frozen=True)
class TokenizersOptions:
    """What an adapter has besides the content of the tokenizer."""

    add: bool
    """Add the special tokens of the post-processor."""
    special: SpecialTokens
    split_special: bool = False
    """Text that looks like a special token is encoded as any other text."""
    kind: str = "tokenizers"
    name: str = ""
    pad: int | None = None


class TokenizersAdapter(TokenizerAdapter):
    """A `tokenizers.Tokenizer`, also that of a fast tokenizer of `transformers`, whose package is not needed then.

    Padding and truncation that the tokenizer has enabled are left out: documents are stored whole.
    """

    def __init__(self, content: str, options: TokenizersOptions, tokenizer: Any) -> None:
        self.kind, self.name = options.kind, options.name
        self._content, self._options, self._tokenizer = content, options, tokenizer
        self.threads = min(2, cores())  # the package uses all cores itself; one thread reads and writes meanwhile
        self._copies: dict[bool, Any] = {}
        special = options.special
        self.chat_template, self.special_tokens = special.chat_template, special.texts
        self.bos, self.eos = self._id_of(special.bos), self._id_of(special.eos)
        self.pad = options.pad if special.pad is None else self._id_of(special.pad)
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)

    @classmethod
    def of(cls, tokenizer: Any, options: TokenizersOptions) -> TokenizersAdapter:
        """Make the adapter of a tokenizer; one that has to be changed is copied."""
        try:
            content = tokenizer.to_str()
        except Exception as error:
            raise ArgumentError(
                f"expected a tokenizer that can be stored as JSON, got {type(tokenizer.model).__name__} with parts in "
                f"Python ({error}); pass a function: lambda text: tokenizer.encode(text).ids"
            ) from error
        if tokenizer.padding or tokenizer.truncation or tokenizer.encode_special_tokens is not options.split_special:
            tokenizer = _tokenizer_of(content, options)
            content = tokenizer.to_str()
        return cls(content, options, tokenizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_tokenizers_adapter, (self._content, replace(self._options, name=self.name))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode in threads of the package, unless this process is one of several workers."""
        if self.in_worker:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        return [one.ids for one in self._encode(texts, add_special_tokens=self._options.add)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Offsets]]:
        """Encode, and return the characters of each token."""
        found = self._for_chat(control=True).encode_batch(texts, add_special_tokens=False)
        return [(one.ids, _pairs(one.offsets)) for one in found]

    def encode_pieces(self, texts: Sequence[str], control: bool) -> list[list[int]]:
        """Encode with a copy that splits special tokens or does not."""
        found = self._for_chat(control).encode_batch(texts, add_special_tokens=False)
        return [one.ids for one in found]

    def _for_chat(self, control: bool) -> Any:
        """Return a copy whose offsets have the whitespace of tokens: post-processors of many models leave it out."""
        if self.in_worker:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if control not in self._copies:
            from tokenizers.processors import ByteLevel

            made = _tokenizer_of(self._content, replace(self._options, split_special=not control))
            made.post_processor = ByteLevel(trim_offsets=False)  # does nothing
            self._copies[control] = made
        return self._copies[control]

    @cached_property
    def control_tokens(self) -> Sequence[str]:  # type: ignore[override]
        """Added tokens that are special."""
        return sorted(one.content for one in self._tokenizer.get_added_tokens_decoder().values() if one.special)

    def token_id(self, text: str) -> int | None:
        """Look a token up."""
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    def token_text(self, number: int) -> str | None:
        """Return a token."""
        found: str | None = self._tokenizer.id_to_token(number)
        return found

    def has_id(self, number: int) -> bool:
        """Return True if there is a token of this id: there may be gaps."""
        return 0 <= number < 1 << 32 and self._tokenizer.id_to_token(number) is not None

    @cached_property
    def vocab_size(self) -> int:  # type: ignore[override]
        """One more than the highest id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def sha256(self) -> str:
        """Digest of the JSON form."""
        return _digest(self._content.encode())

    def _id_of(self, text: str | None) -> int | None:
        return None if text is None else self._tokenizer.token_to_id(text)


def _pairs(offsets: list[tuple[int, int]]) -> Offsets:
    return np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2)


def _tokenizer_of(content: str, options: TokenizersOptions) -> Any:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(content)
    made.no_padding()
    made.no_truncation()
    made.encode_special_tokens = options.split_special  # not part of the JSON form
    return made


def _load_tokenizers_adapter(content: str, options: TokenizersOptions) -> TokenizersAdapter:
    made = TokenizersAdapter(content, options, _tokenizer_of(content, options))
    made.in_worker = True
    return made


# -- transformers ---------------------------------------------------------------------------------------------


def _transformers_adapter(tokenizer: Any, add: bool) -> TokenizerAdapter:
    """Return the adapter of a tokenizer of `transformers`: of the Rust tokenizer in it, if that does all the work."""
    special = SpecialTokens.of_transformers(tokenizer)
    name = name_of_path(str(getattr(tokenizer, "name_or_path", "") or "")) or type(tokenizer).__name__
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if _is_a(backend, "tokenizers", "Tokenizer") and _encodes_by_backend(type(tokenizer)):
        split = bool(getattr(tokenizer, "split_special_tokens", False))
        return TokenizersAdapter.of(backend, TokenizersOptions(add, special, split, "transformers", name))
    return TransformersAdapter(tokenizer, name, add, special)


def _encodes_by_backend(kind: type) -> bool:
    """Return True if a class has replaced none of the methods that encode texts."""
    for method in ("__call__", "_encode_plus", "_batch_encode_plus", "_call_one"):
        owner = next((one for one in kind.__mro__ if method in vars(one)), None)
        if owner is not None and not owner.__module__.startswith("transformers.tokenization_utils"):
            return False
    return True


class TransformersAdapter(TokenizerAdapter):
    """A tokenizer of `transformers` that encodes in Python."""

    kind = "transformers"

    def __init__(self, tokenizer: Any, name: str, add: bool, special: SpecialTokens) -> None:
        self.name, self._add, self._special = name, add, special
        self._tokenizer = copy.copy(tokenizer)
        self._tokenizer.deprecation_warnings = {}  # which warnings were printed is not part of the content
        self.bos, self.eos, self.pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
        self.chat_template, self.special_tokens = special.chat_template, special.texts
        self.vocab_size = max(tokenizer.get_vocab().values(), default=-1) + 1
        self.control_tokens = sorted(map(str, tokenizer.all_special_tokens))

    def __reduce__(self) -> tuple[Any, ...]:
        return TransformersAdapter, (self._tokenizer, self.name, self._add, self._special)

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Ids]:
        """Encode without padding and truncation; texts may be longer than the model takes."""
        return self._encoded(texts, add_special_tokens=self._add)

    def encode_pieces(self, texts: Sequence[str], control: bool) -> Sequence[Ids]:
        """Encode; special tokens are split without `control`."""
        return self._encoded(texts, add_special_tokens=False, split_special_tokens=not control)

    def _encoded(self, texts: Sequence[str], **options: Any) -> Sequence[Ids]:
        options |= {"return_attention_mask": False, "verbose": False, "padding": False, "truncation": False}
        return batch_ids(self._tokenizer(list(texts), **options), len(texts), self)

    def token_id(self, text: str) -> int | None:
        """Look a token up."""
        found: int | None = self._tokenizer.get_vocab().get(text)
        return found

    def token_text(self, number: int) -> str | None:
        """Return a token."""
        return str(self._tokenizer.convert_ids_to_tokens(number)) if self.has_id(number) else None

    @cached_property
    def sha256(self) -> str:
        """Digest of class, vocabulary, special tokens and settings."""
        options = {n: one for n, one in self._tokenizer.init_kwargs.items() if isinstance(one, bool | int | float)}
        content = [type(self._tokenizer).__name__, self._tokenizer.get_vocab(), dict(self.special_tokens), options]
        return _digest(json.dumps(content, sort_keys=True).encode())


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
        return _digest(self._encoding._pat_str.encode(), self._ranks.encode(), json.dumps(self._special).encode())


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
        return _digest(self._content)


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
    if not adapter.has_id(int(given)):
        size = "" if adapter.vocab_size is None else f" (vocabulary: {adapter.vocab_size})"
        raise ArgumentError(f"expected {role}= to be an id of the {adapter!r}{size}, got {given}")
    return int(given)
