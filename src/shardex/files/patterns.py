"""Names as people write them: in the order that people count, with braces, with wildcards. Pure; knows no files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from shardex.errors import SchemaError

__all__ = ["expand_braces", "has_wildcards", "matching", "natural_order", "plain_start"]

_WILD = re.compile(r"[*?\[]")
_PIECES = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def natural_order(paths: Sequence[str]) -> list[str]:
    """Sort as people count.

    >>> natural_order(["part10", "Part2", "part1"])
    ['part1', 'Part2', 'part10']
    """

    def key(path: str) -> tuple[list[Any], str]:
        pieces = re.split(r"(\d+)", path.casefold())
        return [int(piece) if number % 2 else piece for number, piece in enumerate(pieces)], path

    return sorted(paths, key=key)


def expand_braces(pattern: str) -> list[str]:
    """All names a brace pattern stands for.

    >>> expand_braces("s-{008..010}.tar"), expand_braces("{a,b{1,2}}.x")
    (['s-008.tar', 's-009.tar', 's-010.tar'], ['a.x', 'b1.x', 'b2.x'])
    """
    for begin, end in _braces(pattern):
        if choices := _choices(pattern[begin + 1 : end]):
            tails = expand_braces(pattern[end + 1 :])
            return [pattern[:begin] + choice + tail for choice in choices for tail in tails]
    return [pattern]


def _braces(pattern: str) -> Iterator[tuple[int, int]]:
    """Where outermost pairs of braces open and close."""
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
    """What a pair of braces stands for; nothing if it is neither a range of numbers nor a list."""
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        first, last = int(numbers[1]), int(numbers[2])
        padded = any(len(number) > 1 and number.startswith("0") for number in numbers.groups())
        width = max(map(len, numbers.groups())) if padded else 0
        step = 1 if last >= first else -1
        return [f"{n:0{width}d}" for n in range(first, last + step, step)]
    parts = _split(inner)
    return [done for part in parts for done in expand_braces(part)] if len(parts) > 1 else []


def _split(inner: str) -> list[str]:
    """Cut at the commas that lie in no further pair of braces."""
    cuts = [m.start() for m in re.finditer(",", inner) if not any(a < m.start() < b for a, b in _braces(inner))]
    return [inner[a + 1 : b] for a, b in pairwise([-1, *cuts, len(inner)])]


# -- wildcards ----------------------------------------------------------------------------------------------------


def has_wildcards(pattern: str) -> bool:
    """Whether a pattern has one of ``*``, ``?`` and ``[``."""
    return bool(_WILD.search(pattern))


def plain_start(pattern: str) -> str:
    """What all names that match a pattern begin with.

    >>> plain_start("data/a-*.tar")
    'data/a-'
    """
    return _WILD.split(pattern)[0]


def matching(paths: Sequence[str], pattern: str) -> list[str]:
    """The paths that a pattern stands for: only ``**`` goes beyond a slash.

    >>> matching(["a-1.tar", "b/a-2.tar", "a-10.tar"], "a-?.tar"), matching(["a.tar", "b/c/a.tar"], "**/[!b].tar")
    (['a-1.tar'], ['a.tar', 'b/c/a.tar'])
    """
    pieces = [_meaning(piece) if k % 2 else re.escape(piece) for k, piece in enumerate(_PIECES.split(pattern))]
    try:
        return list(filter(re.compile("".join(pieces)).fullmatch, paths))
    except re.error as error:
        raise SchemaError(f"expected a pattern such as part-[0-9]*.tar, got {pattern!r}: {error}") from None


def _meaning(piece: str) -> str:
    """A wildcard as a regular expression."""
    if piece in _MEANING:
        return _MEANING[piece]
    inner = piece[1:-1].replace("\\", "\\\\")
    return f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
