"""Parses lines of JSON straight into columns, without an object for each line: several times as fast as decoding them.

The C kernel reads what is common: objects whose wanted keys hold numbers, texts, truth values or null. It refuses
everything else, and then the caller decodes the lines with a complete decoder. The numpy kernel refuses all lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.kernel.buffers import KERNEL
from shardex.kernel.buffers import kernel as _kernel
from shardex.kernel.gather import Ranges
from shardex.kernel.threads import threads

JsonKind = Literal["integer", "float", "number", "bool", "text"]
"""Kind of the values of a key; "float" refuses numbers without fraction and exponent, "number" takes them as floats."""
_DTYPES: dict[str, Any] = {"integer": np.int64, "float": np.float64, "number": np.float64, "bool": np.bool_}
_LETTERS = {"integer": b"i", "float": b"f", "number": b"n", "bool": b"b", "text": b"t"}
_ESCAPED = re.compile(r'["\\\x00-\x1f\ud800-\udfff]').search
"""Finds characters of a key that a line holds as an escape: the kernel compares keys as they are written."""
_MOST_KEYS = 256
"""Most keys of a parser: a line with its keys in another order is searched key by key."""


class JsonColumn(NamedTuple):
    """The values of a key: an array of numbers, undefined where one is missing, or a list of texts and None."""

    values: Any
    present: NDArray[np.uint8]
    """For each line 0 if it lacks the key, 1 if it has a value, 2 for null."""


class JsonLineParser:
    """Parses lines that are objects with these keys, each with values of one kind, or null."""

    def __init__(self, kinds: Mapping[str, JsonKind], *, strict: bool) -> None:
        """
        :param strict: refuse lines that have other keys
        """
        self._names = tuple(kinds)
        self._keys = tuple(name.encode() for name in kinds)
        self._letters = b"".join(_LETTERS[kind] for kind in kinds.values())
        self._dtypes = [_DTYPES.get(kind) for kind in kinds.values()]
        self._strict = strict

    @classmethod
    def of(cls, kinds: Mapping[str, JsonKind | None], *, strict: bool) -> JsonLineParser | None:
        """Return a parser; None where it cannot parse: with a kind None, too many keys or odd ones, or the numpy
        kernel.
        """
        known = {name: kind for name, kind in kinds.items() if kind is not None}
        is_possible = KERNEL == "c" and len(kinds) <= _MOST_KEYS and len(known) == len(kinds)
        return cls(known, strict=strict) if is_possible and not any(map(_ESCAPED, kinds)) else None

    def parse(self, lines: Ranges, *, texts: bool = True) -> dict[str, JsonColumn] | None:
        """Return the values of each key; None if a line is refused.

        Without `texts`, the values of texts are None, and they may be no UTF-8.

        >>> from shardex.kernel import Segments
        >>> lines = Ranges(Segments.of(b'{"a": 1.5, "b": "x"}{"b": null}'), [0, 0], [0, 20], [20, 11])
        >>> parser = JsonLineParser.of({"a": "number", "b": "text"}, strict=True)
        >>> if parser is not None:
        ...     found = parser.parse(lines)
        ...     assert found["a"].values[0] == 1.5 and found["a"].present.tolist() == [1, 0]
        ...     assert found["b"].values == ["x", None] and found["b"].present.tolist() == [1, 2]
        """
        count = len(lines)
        outs = tuple(
            [np.empty(count, d) if d else np.empty((count, 3), np.int64) if texts else None for d in self._dtypes]
        )
        present = np.empty((len(outs), count), np.uint8)
        made = lines._call(_kernel.json, self._keys, self._letters, outs, present, self._strict, threads())
        if made == -1:
            return None
        columns = [
            JsonColumn(out if d else text, p) for d, out, text, p in zip(self._dtypes, outs, made, present, strict=True)
        ]
        return dict(zip(self._names, columns, strict=True))
