"""Errors that are both of shardex and of the built-in types that users of data-forager catch."""

import json

from shardex.errors import AlreadyExistsError, FormatError, SchemaError


class IndexExistsError(AlreadyExistsError, ValueError):
    """An index that is already there."""


class JsonLineError(FormatError, json.JSONDecodeError):
    """A sample that is no JSON."""

    def __init__(self, msg: str, doc: str = "", pos: int = 0) -> None:
        json.JSONDecodeError.__init__(self, msg, doc, pos)

    def __str__(self) -> str:
        return self.msg


class TextEncodingError(FormatError, UnicodeDecodeError):
    """A sample that is no text in the given encoding."""

    def __str__(self) -> str:
        return self.reason


class TokenError(SchemaError, OverflowError):
    """Token ids, or values for tokens, that cannot be stored."""
