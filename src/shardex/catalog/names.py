"""Names of datasets in catalogs: ``corpus``, ``team/corpus``, ``corpus@3`` (a version), ``corpus:stable`` (a tag).

In: texts of users. Out: their checked parts. Which catalog is meant by ``@team/corpus`` is said in `mounts`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from shardex.errors import ArgumentError

REFERENCE = "shardex_reference"
"""Key that tells a reference, the dict of ``ds.reference()``, from a dict of columns; its value is the version."""
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""Pattern of a part of a name. Other characters begin what a catalog stores beside versions, such as ``_tags``."""
MOST_CHARACTERS = 200
_NAME = re.compile(rf"(?!.*\.json(/|$)){PART}(/{PART})*")
"""No part ends in .json, as the files in a folder of records do."""
VERSION = r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})"
"""Pattern of the semantic version of a schema or a lens."""
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class Address(NamedTuple):
    """A name, and which version of it: a number, a tag, or None for the newest one."""

    name: str
    which: int | str | None = None

    def __str__(self) -> str:
        if self.which is None:
            return self.name
        return f"{self.name}{'@' if isinstance(self.which, int) else ':'}{self.which}"


def is_reference(what: Any) -> bool:
    """Return True for names of catalogs, which begin with "@", and for the dicts that ``ds.reference()`` returns."""
    return what.startswith("@") if isinstance(what, str) else isinstance(what, Mapping) and REFERENCE in what


def check_name(name: object) -> str:
    """Return a name of a dataset if it is one.

    >>> check_name("team/corpus-v2.1")
    'team/corpus-v2.1'
    >>> check_name("../secret")
    Traceback (most recent call last):
    shardex.errors.ArgumentError: expected a name such as 'corpus' or 'team/corpus', ..., got '../secret'
    """
    if isinstance(name, str) and len(name) <= MOST_CHARACTERS and _NAME.fullmatch(name):
        return name
    raise ArgumentError(
        "expected a name such as 'corpus' or 'team/corpus', of letters, digits, dots, dashes and underscores, with at "
        f"most {MOST_CHARACTERS} characters and no part that ends in .json, got {name!r:.200}"
    )


def check_tag(tag: object) -> str:
    """Return a tag of a version if it is one: a word that begins with a letter."""
    if isinstance(tag, str) and _TAG.fullmatch(tag):
        return tag
    raise ArgumentError(
        f"expected a tag such as 'stable', of at most 64 letters, digits and any of ._-, got {tag!r:.200}"
    )


def parse(text: object) -> Address:
    """Return the parts of a name with an optional version or tag.

    >>> parse("team/corpus@3"), parse("corpus:stable")
    (Address(name='team/corpus', which=3), Address(name='corpus', which='stable'))
    """
    if not isinstance(text, str):
        raise ArgumentError(f"expected a name in a catalog such as 'corpus@3', got {type(text).__name__}")
    if text.startswith("@"):
        raise ArgumentError(f"expected a name without the @ that it has in sx.open, such as {text[1:]!r:.200}")
    name, at, number = text.partition("@")
    name, colon, tag = name.partition(":")
    if at and (colon or not re.fullmatch("[1-9][0-9]{0,7}", number)):
        raise ArgumentError(f"expected a name with a number of a version, such as 'corpus@3', got {text!r:.200}")
    return Address(check_name(name), int(number) if at else check_tag(tag) if colon else None)


def check_version(version: object) -> str:
    """Return a semantic version if it is one."""
    if isinstance(version, str) and re.fullmatch(VERSION, version):
        return version
    raise ArgumentError(f"expected a semantic version such as '1.2.0', three numbers, got {version!r:.200}")


def parse_release(text: object) -> tuple[str, str | None]:
    """Return the name of a schema or a lens, and its semantic version, None for the newest one.

    >>> parse_release("Point@1.2.0"), parse_release("team/Point")
    (('Point', '1.2.0'), ('team/Point', None))
    """
    if not isinstance(text, str):
        raise ArgumentError(f"expected a name such as 'Point@1.2.0', got {type(text).__name__}")
    name, at, version = text.partition("@")
    return check_name(name), check_version(version) if at else None
