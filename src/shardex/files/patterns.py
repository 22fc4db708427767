"""File names: natural order, brace patterns, wildcards and words for splits. Pure functions; no file is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from shardex.errors import ArgumentError

_SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "development": "validation",
}
"""Words in names, and the splits that they mean."""
_SPLIT = re.compile(rf"(?:^|[-_. \d])({'|'.join(_SPLITS)})(?=$|[-_. \d])", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d+)")
_NUMBER_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
_LETTER_RANGE = re.compile(r"([a-z](?=\.\.[a-z])|[A-Z](?=\.\.[A-Z]))\.\.([a-zA-Z])(?:\.\.(\d+))?")
_MOST_NAMES = 1_000_000
"""Names that a brace pattern may expand to."""
_MOST_LETTERS = 1 << 30
"""Letters of all these names, about."""
_MOST_DIGITS = 18
_WILD = re.compile(r"[*?\[]")
_PIECES = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])")
_REGEX = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def natural_order(paths: Sequence[str]) -> list[str]:
    """Sort names so that numbers in them ascend by value, without regard to case.

    >>> natural_order(["part10", "Part2", "part1"])
    ['part1', 'Part2', 'part10']
    """
    return sorted(paths, key=lambda path: (natural_key(path), path))


def natural_key(path: str) -> list[Any]:
    """Return the parts of a name that count for `natural_order`: those that are the same in "Part2" and "part02"."""
    pieces: list[Any] = _NUMBERS.split(path.casefold())
    pieces[1::2] = map(int, pieces[1::2])
    return pieces


def expand_braces(pattern: str) -> list[str]:
    """Return all names that a brace pattern expands to.

    >>> expand_braces("s-{008..010}.tar"), expand_braces("{a,b{1,2}}.x"), expand_braces("{0..8..4}{a..b}")
    (['s-008.tar', 's-009.tar', 's-010.tar'], ['a.x', 'b1.x', 'b2.x'], ['0a', '0b', '4a', '4b', '8a', '8b'])
    """
    try:
        return _expanded(pattern)
    except (_TooMany, RecursionError) as error:
        count = f"at least {error.args[0]:,}" if isinstance(error, _TooMany) else "braces in braces without end"
        raise ArgumentError(
            f"expected a pattern of at most {_MOST_NAMES:,} names, got {count} - at {pattern:.200}"
        ) from None


class _TooMany(Exception):
    """A pattern of more names than fit; holds how many there are at least."""


def _expanded(pattern: str) -> list[str]:
    for begin, end in _braces(pattern):
        if choices := _choices(pattern[begin + 1 : end]):
            tails = _expanded(pattern[end + 1 :])
            length = sum(map(len, choices)) / len(choices) + sum(map(len, tails)) / len(tails)
            _check_count(len(choices) * len(tails), begin + length)
            return [pattern[:begin] + choice + tail for choice in choices for tail in tails]
    return [pattern]


def _check_count(count: int, length: float) -> None:
    """Raise an error for more names than fit, which have this length on average."""
    if count > _MOST_NAMES or count * length > _MOST_LETTERS:
        raise _TooMany(count)


def _braces(pattern: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of the outermost pairs of braces."""
    depth = begin = 0
    for at, letter in enumerate(pattern):
        if letter == "{":
            begin = begin if depth else at
            depth += 1
        elif letter == "}" and depth:
            depth -= 1
            if not depth:
                yield begin, at


def _choices(inner: str) -> list[str]:
    """Return the alternatives in a pair of braces; none if it is neither a range nor a list."""
    if numbers := _NUMBER_RANGE.fullmatch(inner):
        if max(len(number or "") for number in numbers.groups()) > _MOST_DIGITS:
            raise _TooMany(10**_MOST_DIGITS)
        padded = any(len(number) > 1 and number.startswith("0") for number in numbers.groups()[:2])
        width = max(map(len, numbers.groups()[:2])) if padded else 0
        chosen = _range(int(numbers[1]), int(numbers[2]), numbers[3])
        _check_count(-(-(abs(chosen.stop - chosen.start)) // abs(chosen.step)), width)  # `len` fails for large ones
        return [f"{n:0{width}d}" for n in chosen]
    if letters := _LETTER_RANGE.fullmatch(inner):
        return [chr(n) for n in _range(ord(letters[1]), ord(letters[2]), letters[3])]
    parts = _split(inner)
    found = [done for part in parts for done in _expanded(part)] if len(parts) > 1 else []
    _check_count(len(found), 1)
    return found


def _range(first: int, last: int, step: str | None) -> range:
    """Return the numbers from the first to the last, up or down."""
    size = int(step or 1) or 1
    return range(first, last + 1, size) if last >= first else range(first, last - 1, -size)


def _split(inner: str) -> list[str]:
    """Split at the commas outside of inner braces."""
    cuts, at = list[int](), 0
    for begin, end in [*_braces(inner), (len(inner), len(inner))]:
        cuts += [comma.start() for comma in re.compile(",").finditer(inner, at, begin)]
        at = end
    return [inner[a + 1 : b] for a, b in pairwise([-1, *cuts, len(inner)])]


# -- wildcards ----------------------------------------------------------------------------------------------------


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern has one of ``*``, ``?`` and ``[``."""
    return bool(_WILD.search(pattern))


def literal_prefix(pattern: str) -> str:
    """Return the part of a pattern before its first wildcard.

    >>> literal_prefix("data/a-*.tar")
    'data/a-'
    """
    return _WILD.split(pattern)[0]


def matching(paths: Sequence[str], pattern: str) -> list[str]:
    """Return the paths that match a pattern; of the wildcards only ``**`` matches a slash.

    >>> matching(["a-1.tar", "b/a-2.tar", "a-10.tar"], "a-?.tar"), matching(["a.tar", "b/c/a.tar"], "**/[!b].tar")
    (['a-1.tar'], ['a.tar', 'b/c/a.tar'])
    """
    pieces = [_as_regex(piece) if k % 2 else re.escape(piece) for k, piece in enumerate(_PIECES.split(pattern))]
    try:
        return list(filter(re.compile("".join(pieces)).fullmatch, paths))
    except re.error as error:
        raise ArgumentError(f"expected a pattern such as part-[0-9]*.tar, got {pattern!r}: {error}") from None


def _as_regex(piece: str) -> str:
    """Return a wildcard as a regular expression."""
    if piece in _REGEX:
        return _REGEX[piece]
    inner = piece[1:-1].replace("\\", "\\\\")
    return f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"


# -- splits -------------------------------------------------------------------------------------------------------


def named_split(path: str) -> str | None:
    """Return the split in the names of a path, or None.

    >>> named_split("wiki_train_0.jsonl"), named_split("Valid/0.tar"), named_split("contest.tar")
    ('train', 'validation', None)
    >>> named_split("test/train-0.tar"), named_split("dev-2.tar")
    ('train', 'validation')
    """
    for name in reversed(path.split("/")):
        if found := _SPLIT.search(name):
            return _SPLITS[found[1].lower()]
    return None


def pattern_of_split(path: str) -> str:
    """Return the folder of a path, or a pattern of files like it, that has the split of the path in its name.

    >>> pattern_of_split("en/train/0.jsonl"), pattern_of_split("en/wiki_train_0.jsonl")
    ('en/train', 'en/*train*.jsonl')
    """
    *folders, name = path.split("/")
    if found := _SPLIT.search(name):
        return "/".join([*folders, f"*{found[1]}*{os.path.splitext(name)[1]}"])
    while folders and not _SPLIT.search(folders[-1]):
        folders.pop()
    return "/".join(folders)
