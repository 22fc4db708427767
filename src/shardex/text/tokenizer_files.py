"""Loads tokenizers from files (`load_tokenizer`), and the special tokens that are described beside them.

Only files that hold data are loaded: a ``tokenizer.json``, with the ``tokenizer_config.json`` beside it, and a
sentencepiece ``.model``. Nothing is downloaded and no code is run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardex.errors import ArgumentError, FormatError, NotFoundError

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
