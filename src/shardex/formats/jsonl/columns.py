"""Columns of JSON lines by the parser of the kernel, which makes no object for each line; used by `jsonl`.

`LineColumns` reads the fields of features that the kernel can parse. `accepts` tells whether lines have only keys and
kinds of values that are known, when the fields of a dataset are found. Both say if the lines must be decoded instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardex.features import Feature, Features, Text, Value, unwrap_optional
from shardex.formats.record_fields import Kinds
from shardex.kernel import Columns, Ranges, json_lines, with_missing

_EXACT = 1 << 53
_OF_FEATURES: dict[Feature, json_lines.JsonKind] = {
    Value("int64"): "integer",
    Value("float64"): "number",
    Value("bool"): "bool",
    Text(): "text",
}
_OF_KINDS: dict[frozenset[str], json_lines.JsonKind] = {
    frozenset({"int"}): "integer",
    frozenset({"long"}): "integer",
    frozenset({"int", "long"}): "integer",
    frozenset({"float"}): "float",
    frozenset({"int", "float"}): "number",
    frozenset({"bool"}): "bool",
    frozenset({"text"}): "text",
    frozenset(): "text",  # always null
}
"""Kinds of the kernel for those that `record_fields` finds, without missing and null ones."""


class LineColumns:
    """Reads fields of lines as columns."""

    def __init__(self, parser: json_lines.JsonLineParser, features: Features) -> None:
        self._parser = parser
        self._optional = {name for name, feature in features.items() if feature.optional}

    @classmethod
    def of(cls, features: Features, *, strict: bool) -> LineColumns | None:
        """Return a reader of fields; None if the kernel cannot parse them. `strict` refuses lines with other keys."""
        kinds = {name: _OF_FEATURES.get(unwrap_optional(feature)) for name, feature in features.items()}
        parser = json_lines.JsonLineParser.of(kinds, strict=strict)
        return None if parser is None else cls(parser, features)

    def read(self, lines: Ranges) -> Columns | None:
        """Return the fields of lines; None if they must be decoded, or lack a value that is not optional."""
        found = self._parser.parse(lines)
        if found is None:
            return None
        columns: dict[str, Any] = {}
        for name, (values, present) in found.items():
            mask = present == 1
            if name not in self._optional:
                if not mask.all():
                    return None
                columns[name] = values
            else:
                columns[name] = values if isinstance(values, list) else with_missing(values[mask], mask)
        return Columns.unchecked(columns, len(lines))


def accepts(kinds: Kinds, lines: Ranges) -> bool:
    """Return True if lines have only these keys, with values of these kinds; False if they must be decoded.

    >>> from shardex.kernel import Segments
    >>> lines = Ranges(Segments.of(b'{"a": 1.5}{"a": 3}'), [0, 0], [0, 10], [10, 8])
    >>> accepts({"a": ["float"]}, lines)
    False
    """
    parser = json_lines.JsonLineParser.of(
        {k: _OF_KINDS.get(frozenset(v) - {"null", "missing"}) for k, v in kinds.items()}, strict=True
    )
    found = None if parser is None else parser.parse(lines, texts=False)
    return found is not None and all(_are_of_kinds(column, set(kinds[name])) for name, column in found.items())


def _are_of_kinds(column: json_lines.JsonColumn, kinds: set[str]) -> bool:
    """Return whether values that the parser accepted are of these kinds."""
    counts = np.bincount(column.present, minlength=3)
    has_values = bool(kinds - {"null", "missing"})
    if (counts[0] and "missing" not in kinds) or (counts[2] and "null" not in kinds) or (counts[1] and not has_values):
        return False
    if not counts[1] or not kinds & {"int", "long"} or "float" in kinds:
        return True
    values = column.values[column.present == 1]
    are_exact = (values >= -_EXACT) & (values <= _EXACT)
    return bool(("int" in kinds or not are_exact.any()) and ("long" in kinds or are_exact.all()))
