"""Splits by name: which split a file belongs to, and what ``train[:10%]+test`` means. Pure; opens nothing.

A name says its split where one of these words stands in it by itself, between the ends of the name, digits, dashes,
underscores, dots or spaces, in any case:

==================================  ==============
word                                split
==================================  ==============
train, training                     ``train``
test, testing                       ``test``
val, valid, validation              ``validation``
dev, development                    ``validation``
==================================  ==============

So do ``train-000.tar``, ``wiki_train_0.jsonl`` and ``train/000.tar``. The file's own name counts before the folders it
lies in, the nearest first, and the first word in a name counts. Who names no split belongs to ``train``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardex.errors import SchemaError

__all__ = ["DEFAULT", "Piece", "named_split", "pieces", "split_of"]

DEFAULT = "train"
"""The split of everything that names none."""

_WORDS = {
    "train": DEFAULT,
    "training": DEFAULT,
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "development": "validation",
}
_WORD = re.compile(rf"(?:^|[-_. \d])({'|'.join(_WORDS)})(?=$|[-_. \d])", re.IGNORECASE)
_PIECE = re.compile(r"\s*([^\[\]+]*[^\[\]+\s])\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*")


def named_split(path: str) -> str | None:
    """The split that a path names, if it names one.

    >>> named_split("wiki_train_0.jsonl"), named_split("Valid/0.tar"), named_split("contest.tar")
    ('train', 'validation', None)
    """
    for name in reversed(path.split("/")):
        if found := _WORD.search(name):
            return _WORDS[found[1].lower()]
    return None


def split_of(path: str) -> str:
    """The split that a path belongs to.

    >>> split_of("test/train-0.tar"), split_of("a/b.tar"), split_of("dev-2.tar")
    ('train', 'train', 'validation')
    """
    return named_split(path) or DEFAULT


@dataclass(frozen=True)
class Piece:
    """A split, or a part of it."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    """Whether start and stop are parts of a hundred."""

    def of(self, length: int) -> slice:
        """The positions meant, of a split of this length; hundredths are rounded to the nearest sample.

        >>> Piece("train", 10, 20, percent=True).of(999), Piece("train", -3).of(10)
        (slice(100, 200, 1), slice(7, 10, 1))
        """
        start, stop = (self._position(bound, length) for bound in (self.start, self.stop))
        return slice(*slice(start, stop).indices(length))

    def _position(self, bound: int | None, length: int) -> int | None:
        if bound is None or not self.percent:
            return bound
        position = round(bound * length / 100)
        return position if bound >= 0 else max(0, length + position)  # a negative one may round to 0, the end


def pieces(text: str) -> list[Piece]:
    """What ``name``, ``name[start:stop]`` and sums of these stand for.

    >>> pieces("train[:100]")
    [Piece(split='train', start=None, stop=100, percent=False)]
    >>> [piece.split for piece in pieces("train[10%:20%] + test")]
    ['train', 'test']
    """
    if not isinstance(text, str):
        raise SchemaError(f"expected a split as text, such as 'train' or 'train[:10%]+test', got {text!r}")
    return [_piece(one, text) for one in text.split("+")]


def _piece(text: str, whole: str) -> Piece:
    if (found := _PIECE.fullmatch(text)) is None:
        raise SchemaError(f"expected a split such as 'train', 'train[:100]' or 'train[10%:20%]+test', got {whole!r}")
    name, *bounds = found.groups()
    given = [bound for bound in bounds if bound is not None]
    percent = any(bound.endswith("%") for bound in given)
    if percent and not all(bound.endswith("%") for bound in given):
        raise SchemaError(f"expected both ends in samples or both in percent, got {whole!r}")
    start, stop = (None if bound is None else int(bound.rstrip("%")) for bound in bounds)
    if percent and not all(-100 <= bound <= 100 for bound in (start, stop) if bound is not None):
        raise SchemaError(f"expected percents from -100 to 100, got {whole!r}")
    return Piece(name, start, stop, percent)
