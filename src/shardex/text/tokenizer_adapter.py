"""`TokenizerAdapter`: the interface that tokenizers of all kinds get; `tokenizers` makes adapters."""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.text.token_ids import Ids

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


def is_a(value: Any, module: str, name: str) -> bool:
    """Return whether a value is of a class of a package, without importing the package."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def digest_of(*content: bytes) -> str:
    """Return the SHA-256 of the content of a tokenizer."""
    return hashlib.sha256(b"\0".join(content)).hexdigest()
