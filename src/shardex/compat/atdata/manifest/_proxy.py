"""Conditions on the fields of manifests, written as comparisons: ``(Q.score > 0.9) & (Q.label == "dog")``."""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shardex.compat.atdata.manifest._fields import resolve_manifest_fields
from shardex.errors import ArgumentError, unknown_field

Aggregates = Mapping[str, Mapping[str, Any]]
"""Summaries of the fields of a shard."""


def _isin(column: Any, values: Any) -> Any:
    return column.isin(values)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "ge": operator.ge,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "isin": _isin,
}
_SIGNS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!=", "isin": "in"}


class Predicate:
    """A condition: called with the table of a manifest, it returns which rows fulfil it.

    Comparisons of a `FieldProxy` make predicates; ``&``, ``|`` and ``~`` combine them.

    >>> (F.score > 0.9) & ~(F.label == "dog")
    ((score > 0.9) & ~(label == 'dog'))
    """

    __slots__ = ("_may", "_text", "_where")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, where: Callable[[Any], Any], text: str, may: Callable[[Aggregates], bool]) -> None:
        self._where, self._text, self._may = where, text, may

    def may_match(self, aggregates: Aggregates) -> bool:
        """Return False if the summaries of a shard show that none of its samples fulfils the condition."""
        return self._may(aggregates)

    def __call__(self, df: Any) -> Any:
        return self._where(df)

    def compile(self) -> Callable[[Any], Any]:
        """Return the condition as a function of a table."""
        return self._where

    def __and__(self, other: "Predicate") -> "Predicate":
        return self._joined(other, operator.and_, "&")

    def __or__(self, other: "Predicate") -> "Predicate":
        return self._joined(other, operator.or_, "|")

    def __invert__(self) -> "Predicate":
        return Predicate(functools.partial(_inverted, self), f"~{self._text}", _always)

    def _joined(self, other: "Predicate", join: Callable[[Any, Any], Any], sign: str) -> "Predicate":
        if not isinstance(other, Predicate):
            return NotImplemented
        may = functools.partial(_both, join, self.may_match, other.may_match)
        return Predicate(functools.partial(_both, join, self, other), f"({self._text} {sign} {other._text})", may)

    def __bool__(self) -> bool:
        raise ArgumentError(f"expected & and | and ~ between conditions, got and, or, not, or a chain at {self._text}")

    def __repr__(self) -> str:
        return self._text


def _inverted(one: Predicate, df: Any) -> Any:
    return ~one(df)


def _both(join: Callable[[Any, Any], Any], one: Callable[[Any], Any], other: Callable[[Any], Any], of: Any) -> Any:
    return join(one(of), other(of))


def _always(_: Aggregates) -> bool:
    return True


class FieldProxy:
    """A field of manifests; comparisons with it are conditions.

    >>> FieldProxy("score").between(0.5, 0.9), FieldProxy("label").isin(["dog", "cat"])
    (((score >= 0.5) & (score <= 0.9)), (label in ['dog', 'cat']))
    """

    __slots__ = ("_name",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self._name = name

    def _compared(self, sign: str, value: Any) -> Predicate:
        compare = functools.partial(_compare, self._name, _OPERATORS[sign], value)
        may = functools.partial(_may_match, self._name, sign, value)
        return Predicate(compare, f"({self._name} {_SIGNS[sign]} {value!r})", may)

    def __gt__(self, value: Any) -> Predicate:
        return self._compared("gt", value)

    def __lt__(self, value: Any) -> Predicate:
        return self._compared("lt", value)

    def __ge__(self, value: Any) -> Predicate:
        return self._compared("ge", value)

    def __le__(self, value: Any) -> Predicate:
        return self._compared("le", value)

    def __eq__(self, value: Any) -> Predicate:  # type: ignore[override]
        return self._compared("eq", value)

    def __ne__(self, value: Any) -> Predicate:  # type: ignore[override]
        return self._compared("ne", value)

    def isin(self, values: Iterable[Any]) -> Predicate:
        """The value is one of these."""
        return self._compared("isin", list(values))

    def between(self, low: Any, high: Any) -> Predicate:
        """The value is not below `low` and not above `high`."""
        return self._compared("ge", low) & self._compared("le", high)

    def __repr__(self) -> str:
        return f"FieldProxy({self._name!r})"


def _compare(name: str, compare: Callable[[Any, Any], Any], value: Any, df: Any) -> Any:
    if name not in df:
        raise unknown_field(name, df.columns, ": only these are in the manifests")
    return compare(df[name], value)


def _may_match(name: str, sign: str, value: Any, aggregates: Aggregates) -> bool:
    """Return False if no value that these summaries allow fulfils a comparison."""
    found = aggregates.get(name, {})
    values = value if sign == "isin" else [value]
    if found.get("type") == "numeric" and all(isinstance(one, int | float) for one in values):
        low, high = found.get("min"), found.get("max")
        if low is None or high is None or sign == "ne":
            return True
        if sign in ("eq", "isin"):
            return any(low <= one <= high for one in values)
        return bool(_OPERATORS[sign](high if sign in ("gt", "ge") else low, value))
    if found.get("type") == "categorical" and sign in ("eq", "isin") and all(isinstance(one, str) for one in values):
        return any(one in found.get("value_counts", {}) for one in values)
    return True


def query_fields(sample_type: type) -> Any:
    """Return an object with a `FieldProxy` for each field of a sample class that is in manifests.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sample:
    ...     label: str
    >>> query_fields(Sample).label == "dog"
    (label == 'dog')
    """
    return _Fields(sample_type.__name__, {name: FieldProxy(name) for name in resolve_manifest_fields(sample_type)})


class _Fields:
    """Fields of one sample class, by attribute."""

    def __init__(self, name: str, fields: dict[str, FieldProxy]) -> None:
        self.__dict__.update(fields)
        self.__name = name

    def __getattr__(self, name: str) -> Any:
        known = [one for one, value in vars(self).items() if isinstance(value, FieldProxy)]
        raise AttributeError(str(unknown_field(name, known, ": only these are in manifests")))

    def __repr__(self) -> str:
        names = [one for one, value in vars(self).items() if isinstance(value, FieldProxy)]
        return f"{self.__name}Fields({', '.join(names)})"


class _AnyFields:
    """A `FieldProxy` for any name."""

    def __getattr__(self, name: str) -> FieldProxy:
        if name.startswith("_"):
            raise AttributeError(name)
        return FieldProxy(name)

    def __repr__(self) -> str:
        return "F"


F = _AnyFields()
"""Fields without a sample class: ``F.score > 0.9``."""
