"""Adapters of the tokenizers of Hugging Face: the package tokenizers, and tokenizers of transformers.

A fast tokenizer of transformers is encoded by the tokenizer of the package tokenizers in it, so workers need not import
transformers. Padding and truncation that a tokenizer has enabled are left out: documents are stored whole.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from shardex.errors import ArgumentError
from shardex.kernel import cores
from shardex.text.tokenizer_adapter import (
    Ids,
    Offsets,
    SpecialTokens,
    TokenizerAdapter,
    batch_ids,
    digest_of,
    is_a,
    name_of_path,
)

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
        if dropout := getattr(tokenizer.model, "dropout", None):
            raise ArgumentError(f"expected a tokenizer that always returns the same ids, got dropout={dropout:g}")
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
        return digest_of(self._content.encode())

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


def transformers_adapter(tokenizer: Any, add: bool) -> TokenizerAdapter:
    """Return the adapter of a tokenizer of `transformers`: of the Rust tokenizer in it, if that does all the work."""
    special = SpecialTokens.of_transformers(tokenizer)
    name = name_of_path(str(getattr(tokenizer, "name_or_path", "") or "")) or type(tokenizer).__name__
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if is_a(backend, "tokenizers", "Tokenizer") and _encodes_by_backend(type(tokenizer)):
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
        return digest_of(json.dumps(content, sort_keys=True).encode())
