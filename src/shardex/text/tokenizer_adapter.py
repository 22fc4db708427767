"""The interface that tokenizers of all kinds get (`TokenizerAdapter`), and the ids that they return.

`tokenizers` and `huggingface_tokenizers` make adapters. `one_ids` and `batch_ids` bring what a function has returned
into lists or arrays; `JoinedIds` joins the ids of many documents without a Python object for each token, adds the
tokens at begin and end, and checks that all fit a dtype.

`load_tokenizer` loads files that hold data: a ``tokenizer.json``, with the special tokens in the
``tokenizer_config.json`` beside it, and a sentencepiece ``.model``. Nothing is downloaded and no code is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, NotFoundError, SchemaError
from shardex.features import describe
from shardex.kernel import Integers, is_tensor
from shardex.layers import SampleFailure

Ids = list[int] | NDArray[Any]
"""Ids of the tokens of one document."""

WIDEST = (1 << 32) - 1
"""The highest id."""


def one_ids(result: Any, tokenizer: object) -> Ids:
    """Return the ids that a function has returned for one text: a list, an array, a tensor, or an object with ids.

    >>> one_ids((1, 2), "t"), one_ids({"input_ids": [3]}, "t"), one_ids(np.array([[4, 5]]), "t")
    ([1, 2], [3], array([4, 5]))
    """
    if type(result) is list:
        return result
    if isinstance(result, np.ndarray):
        return result[0] if result.ndim == 2 and len(result) == 1 else result
    if isinstance(result, tuple | range | array):
        return list(result)
    if isinstance(result, Mapping) and "input_ids" in result:
        return one_ids(result["input_ids"], tokenizer)
    if hasattr(type(result), "ids"):
        return list(result.ids)
    if is_tensor(result):
        return one_ids(result.detach().cpu().numpy(), tokenizer)
    if hasattr(result, "__array__"):
        return one_ids(np.asarray(result), tokenizer)
    raise SchemaError(f"expected token ids (a list or array of integers) from {tokenizer!r}, got {describe(result)}")


def batch_ids(result: Any, count: int, tokenizer: object) -> list[Ids]:
    """Return the ids that a function has returned for `count` texts.

    >>> batch_ids({"input_ids": [[1, 2], [3]]}, 2, "t")
    [[1, 2], [3]]
    """
    if isinstance(result, Mapping) and "input_ids" in result:
        result = result["input_ids"]
    if is_tensor(result):
        result = result.detach().cpu().numpy()
    sized = isinstance(result, list | tuple) or (isinstance(result, np.ndarray) and result.ndim >= 1)
    if not sized or len(result) != count:
        found = f"{len(result)}" if sized else describe(result)
        raise SchemaError(f"expected token ids for each of {count} texts from {tokenizer!r}, got {found}")
    return [one_ids(one, tokenizer) for one in result]


class JoinedIds:
    """The ids of many documents end to end in `values` (uint32), with the `offsets` of documents.

    >>> joined = JoinedIds(bos=None, eos=0); joined.extend([[5, 6], np.array([7])]); joined.values, joined.offsets
    (array([5, 6, 0, 7, 0], dtype=uint32), array([0, 3, 5]))
    """

    def __init__(self, bos: int | None, eos: int | None) -> None:
        self._bos, self._eos = bos, eos
        self._joined = array("I")
        self._ends = [0]

    def extend(self, documents: Sequence[Ids]) -> None:
        """Add documents."""
        joined, ends, first = self._joined, self._ends, len(self._ends) - 1
        bos, eos, fromlist, append, end = self._bos, self._eos, joined.fromlist, joined.append, ends.append
        try:
            for ids in documents:
                if bos is not None:
                    append(bos)
                if type(ids) is list:
                    fromlist(ids)
                else:
                    joined.frombytes(_checked(ids).tobytes())
                if eos is not None:
                    append(eos)
                end(len(joined))
        except (TypeError, OverflowError, ValueError):
            number = len(ends) - 1
            raise SampleFailure(number, _wrong_ids(documents[number - first])) from None

    @property
    def values(self) -> NDArray[np.uint32]:
        """All ids; nothing can be added any more."""
        return np.frombuffer(self._joined, np.uint32) if self._joined else np.zeros(0, np.uint32)

    @property
    def offsets(self) -> Integers:
        """Begin of each document, and the end of the last one."""
        return np.array(self._ends, np.int64)


def _checked(ids: Any) -> NDArray[np.uint32]:
    """Return an array of ids as uint32, or raise one of the errors of `array`."""
    found = np.asarray(ids)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        raise TypeError
    if found.size and found.dtype != np.uint32 and (found.min() < 0 or found.max() > WIDEST):
        raise OverflowError
    return found.astype(np.uint32, copy=False)


def _wrong_ids(ids: Any) -> SchemaError:
    """Return the error for ids that are not integers from 0 to 2**32 - 1, which names the first wrong one."""
    if isinstance(ids, np.ndarray) and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
        return SchemaError(f"expected token ids in an array of integers of one dimension, got {describe(ids)}")
    for number, one in enumerate(ids):
        if not isinstance(one, int | np.integer):
            return SchemaError(f"expected token ids (integers), got {describe(one)} at token {number}")
        if not 0 <= one <= WIDEST:
            return SchemaError(f"expected token ids from 0 to {WIDEST}, got {one} at token {number}")
    return SchemaError(f"expected token ids, got {describe(ids)}")


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


_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens of a tokenizer as texts, by role, and its chat template."""

    texts: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def bos(self) -> str | None:
        """The token that begins a text."""
        return self.texts.get("bos_token")

    @property
    def eos(self) -> str | None:
        """The token that ends a text."""
        return self.texts.get("eos_token")

    @property
    def pad(self) -> str | None:
        """The token for padding."""
        return self.texts.get("pad_token")

    @classmethod
    def of_transformers(cls, tokenizer: Any) -> SpecialTokens:
        """Return those of a tokenizer of `transformers`."""
        found = {role: getattr(tokenizer, role, None) for role in _ROLES}
        template = getattr(tokenizer, "chat_template", None)
        return cls({role: str(text) for role, text in found.items() if text is not None}, _template(template))

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> SpecialTokens:
        """Return those of the content of a ``tokenizer_config.json``, where a token is a text or an object."""
        found: dict[str, str] = {}
        for role in _ROLES:
            token = config.get(role)
            text = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(text, str):
                found[role] = text
        return cls(found, _template(config.get("chat_template")))


def _template(given: Any) -> str | None:
    """Return a chat template; of several, the one called default."""
    if isinstance(given, list):  # as files store several
        given = {one.get("name"): one.get("template") for one in given if isinstance(one, Mapping)}
    if isinstance(given, Mapping):
        given = given.get("default")
    return given if isinstance(given, str) else None


def name_of_path(path: str) -> str:
    """Return a name for a tokenizer without the folders of this machine, which must not be stored with data.

    >>> name_of_path("/home/me/models/small/tokenizer.json"), name_of_path("org/model"), name_of_path("/tmp/sp.model")
    ('small/tokenizer.json', 'org/model', 'sp.model')
    """
    if not os.path.isabs(path) and not os.path.exists(path):
        return path
    folder, base = os.path.split(path.rstrip(os.sep))
    generic = base in ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
    return "/".join(filter(None, (os.path.basename(folder), base))) if generic else base


def load_tokenizer(path: str) -> tuple[Any, SpecialTokens]:
    """Load a tokenizer from a file, or from a folder that has one; return it with the tokens described beside it."""
    if os.path.isdir(path):
        inside = [os.path.join(path, name) for name in ("tokenizer.json", "tokenizer.model", "spiece.model")]
        found = next(filter(os.path.isfile, inside), None)
        if found is None:
            raise NotFoundError(f"{path}: expected a folder with tokenizer.json or tokenizer.model, got neither")
        path = found
    if not os.path.isfile(path):
        raise NotFoundError(
            f"expected the path of a tokenizer.json or of a sentencepiece .model, got {path!r}; a tokenizer that has a "
            "name is loaded by its package: pass what tokenizers.Tokenizer.from_pretrained, transformers.AutoTokenizer"
            ".from_pretrained or tiktoken.get_encoding returns"
        )
    if path.lower().endswith(".json"):
        return _load_json(path), _described_beside(path)
    if path.lower().endswith(".model"):
        return _load_sentencepiece(path), SpecialTokens()
    raise ArgumentError(f"{path}: expected a tokenizer as .json or a sentencepiece .model, got another extension")


def _load_json(path: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise _not_installed(path, "tokenizers") from error
    try:
        return tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises Exception itself
        raise FormatError(f"{path}: expected a tokenizer of the package tokenizers, got {error}") from None


def _load_sentencepiece(path: str) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise _not_installed(path, "sentencepiece") from error
    with open(path, "rb") as file:
        content = file.read()
    try:
        made = sentencepiece.SentencePieceProcessor(model_proto=content)
    except Exception as error:
        raise FormatError(f"{path}: expected a sentencepiece model, got {error}") from None
    if not content or not made.get_piece_size():
        raise FormatError(f"{path}: expected a sentencepiece model, got none")
    return made


def _not_installed(path: str, package: str) -> ArgumentError:
    return ArgumentError(f"{path}: expected the package {package}, it is not installed: pip install {package}")


def _described_beside(path: str) -> SpecialTokens:
    """Return the special tokens that ``tokenizer_config.json`` in the same folder names."""
    folder = os.path.dirname(path)
    beside = os.path.join(folder, "tokenizer_config.json")
    if os.path.basename(path) != "tokenizer.json" or not os.path.isfile(beside):
        return SpecialTokens()
    try:
        with open(beside, encoding="utf-8") as file:
            config = json.load(file)
    except ValueError as error:
        raise FormatError(f"{beside}: expected JSON, got {error}") from None
    if not isinstance(config, dict):
        raise FormatError(f"{beside}: expected an object, got {type(config).__name__}")
    found = SpecialTokens.of_config(config)
    template = os.path.join(folder, "chat_template.jinja")
    if found.chat_template is None and os.path.isfile(template):
        with open(template, encoding="utf-8") as file:
            found = SpecialTokens(found.texts, file.read())
    return found
