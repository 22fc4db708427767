"""Filters of Ray Data as conditions of SQL, for `Dataset.where`.

Only what means the same in both is translated: comparisons of fields with numbers, texts and truth values, ``is_in``,
``is_null``, and, or, not. Ray itself applies all other filters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ray.data.expressions import BinaryExpr, ColumnExpr, Expr, LiteralExpr, Operation, UnaryExpr

from shardex.features import Features, Text, Value, unwrap_optional

_COMPARISONS = {
    Operation.EQ: "=",
    Operation.NE: "<>",
    Operation.LT: "<",
    Operation.LE: "<=",
    Operation.GT: ">",
    Operation.GE: ">=",
}
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_JOINED = {Operation.AND: "AND", Operation.OR: "OR"}
_LARGEST = 1 << 63


def sql_condition(expression: Expr, features: Features) -> tuple[str, list[Any]] | None:
    """Return a condition and its parameters that keep the same samples as a filter of Ray; None if there is none.

    >>> from ray.data.expressions import col
    >>> sql_condition((col("x") > 3) & col("s").is_in(["a"]), Features.of({"x": int, "s": str}))
    ('(("x" > ?) AND coalesce("s" IN (?), false))', [3, 'a'])
    """
    translation = _Translation(features)
    text = translation.condition(expression)
    return None if text is None else (text, translation.values)


class _Translation:
    """Writes the text of a condition and collects its parameters."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self.values: list[Any] = []

    def condition(self, expression: Expr) -> str | None:
        """Return the text of a condition; None if it cannot be translated."""
        if isinstance(expression, UnaryExpr):
            return self._unary(expression)
        if not isinstance(expression, BinaryExpr):
            return None
        if expression.op in _JOINED:
            left, right = self.condition(expression.left), self.condition(expression.right)
            return None if left is None or right is None else f"({left} {_JOINED[expression.op]} {right})"
        if expression.op in (Operation.IN, Operation.NOT_IN):
            return self._membership(expression)
        if expression.op in _COMPARISONS:
            return self._comparison(expression)
        return None

    def _unary(self, expression: UnaryExpr) -> str | None:
        if expression.op == Operation.NOT:
            inner = self.condition(expression.operand)
            return None if inner is None else f"(NOT {inner})"
        name = self._column(expression.operand)
        if name is None or expression.op not in (Operation.IS_NULL, Operation.IS_NOT_NULL):
            return None
        return f"({name} IS {'NOT ' * (expression.op == Operation.IS_NOT_NULL)}NULL)"

    def _comparison(self, expression: BinaryExpr) -> str | None:
        operator, left, right = _COMPARISONS[expression.op], expression.left, expression.right
        if isinstance(left, LiteralExpr):
            operator, left, right = _SWAPPED[operator], right, left
        name = self._column(left)
        if name is None or not isinstance(right, LiteralExpr) or not self._fits(left, right.value):
            return None
        self.values.append(right.value)
        text = f"({name} {operator} ?)"
        # In SQL, NaN is larger than all numbers; in Arrow a comparison with it is false.
        floats = operator in (">", ">=") and self._kind(left) == "float"
        return f"({text} AND NOT isnan({name}))" if floats else text

    def _membership(self, expression: BinaryExpr) -> str | None:
        name, right = self._column(expression.left), expression.right
        values = right.value if isinstance(right, LiteralExpr) else None
        if name is None or self._kind(expression.left) == "float" or not isinstance(values, list) or not values:
            return None  # in Arrow, 0.0 is not in a list with -0.0
        if not all(self._fits(expression.left, value) for value in values):
            return None
        self.values += values
        # In Arrow, a missing value is in no list; in SQL it is unknown whether it is.
        text = f"coalesce({name} IN ({', '.join('?' * len(values))}), false)"
        return f"(NOT {text})" if expression.op == Operation.NOT_IN else text

    def _column(self, expression: Expr) -> str | None:
        if not isinstance(expression, ColumnExpr) or expression.name == "_row" or not self._kind(expression):
            return None  # `_row` is the position in SQL
        quoted = expression.name.replace('"', '""')
        return f'"{quoted}"'

    def _kind(self, expression: ColumnExpr) -> str:
        """Return "text", "bool", "int" or "float" for a field; empty for others."""
        feature = self._features.get(expression.name)
        inner = None if feature is None else unwrap_optional(feature)
        if isinstance(inner, Value):
            return {"b": "bool", "i": "int", "u": "int", "f": "float"}.get(np.dtype(inner.dtype).kind, "")
        return "text" if type(inner) is Text else ""

    def _fits(self, column: ColumnExpr, value: Any) -> bool:
        """Return True if a value can be compared with a field without a conversion of its meaning."""
        kind = self._kind(column)
        if kind == "text":
            return isinstance(value, str) and "\0" not in value
        if kind == "bool" or isinstance(value, bool):
            return kind == "bool" and isinstance(value, bool)
        if isinstance(value, float):
            return math.isfinite(value)
        return isinstance(value, int) and abs(value) < _LARGEST
