"""SQL over rows: which statements are let in, which fields they read, and what they answer.

DuckDB itself parses a statement. The tree must be one SELECT that knows no table but `ds` and no function that makes
tables of anything else; a condition must take up exactly its place in one. The names in the tree tell which fields to
fetch (`attributes.py`), and of which only whether they are there. Then the statement is run (`sandbox.py`).

A view as SQL sees it: rows in an order. The fields of all rows below are taken in that order, or just its own rows.

Which of it is cheaper depends on how many of the rows the view shows. A condition that looks at one sample at a time is
decided once for each row below, however often the view shows it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow import (
    concat_columns,
    is_queryable,
    number_array,
    take_table,
    true_or_null,
)
from shardex.dataset.sql_sandbox import RefusedError, parse, run
from shardex.errors import QueryError
from shardex.kernel import Integers
from shardex.order import Order, Span
from shardex.rows import AbstractRows
from shardex.schema import Features

__all__ = ["Limits", "Params", "Query", "Reading", "SqlView", "condition", "matching", "select"]

_FEW = 16
"""A view of fewer rows than one in so many is read by itself."""


@dataclass(frozen=True)
class SqlView:
    """Rows in an order, and the view that is both."""

    view: AbstractRows
    below: AbstractRows
    order: Order

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Whole fields in this order."""
        if self._few and not set(names) & set(self.below.extracted):
            return AbstractRows.sql_columns(self.view, names)
        table = self.below.sql_columns(names)
        if (begin := self._begin) is not None:
            return table.slice(begin, len(self.order))
        return take_table(table, self._rows())

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which samples have a value for a field, in this order."""
        if self._few and name not in self.below.extracted:
            return AbstractRows.present(self.view, name)
        return self.below.present(name)[self._rows()]

    def matching(self, query: Query, params: Params, limits: Limits) -> Integers:
        """The positions at which a condition holds."""
        if self._begin is not None or self._few or not query.alone:
            return matching(query, self.view, params, limits)
        holds = np.zeros(len(self.below), np.bool_)
        holds[matching(query, self.below, params, limits)] = True
        return np.flatnonzero(holds[self._rows()])

    @property
    def _few(self) -> bool:
        return len(self.order) * _FEW < len(self.below)

    @property
    def _begin(self) -> int | None:
        """The first row, if the order is a run of rows."""
        return self.order.start if isinstance(self.order, Span) and self.order.step == 1 else None

    def _rows(self) -> Integers:
        return self.order.rows(np.arange(len(self.order)))


Params = Sequence[Any] | Mapping[str, Any] | None
"""The value of each `?` in turn, or of each `$name`."""

_TABLE, _ROW = "ds", "_row"
_FEW_ROWS = 1 << 22
"""The numbers of so many are kept for the next query: fresh memory takes as long as the query itself."""
_LONGEST, _DEEPEST = 100_000, 200
"""Characters, and brackets inside one another: the parser takes minutes for some thousand that are never closed."""
_QUESTIONS = {"CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"}
_NO_FUNCTIONS = {"current_setting", "json_serialize_plan", "write_log"}
"""They look at settings, bind other statements, write into logs."""
_CATALOG = ("duckdb_", "information_schema", "pg_", "pragma_", "sqlite_")
_TABLE_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "unnest"}

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may take."""

    timeout: float | None = None
    """In seconds."""
    memory: str | None = None
    """As DuckDB has it, ``"4GB"``; by default most of what the machine has."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 <= self.timeout < threading.TIMEOUT_MAX:
            raise QueryError(f"expected a timeout in seconds, or None for no end, got {self.timeout}")


# -- what a statement reads -----------------------------------------------------------------------------------


class Reading:
    """The names in a syntax tree, in lower case: SQL does not tell ``x`` from ``X``. Refuses tables but our own.

    >>> found = Reading(parse("SELECT x + y.a FROM ds WHERE z IS NOT NULL")[0], {"x", "y", "z"})
    >>> sorted(found.names), found.tested, found.everything
    (['a', 'x', 'y'], {'z'}, False)
    """

    def __init__(self, tree: Node, fields: set[str]) -> None:
        self.names: set[str] = set()
        """What may be a field that is read."""
        self.tested: set[str] = set()
        """Fields of which it is only asked whether they are there."""
        self.everything = False
        """Whether all fields are read."""
        self.nested = False
        """Whether there is a SELECT inside an expression."""
        self.places: dict[str, int] = {}
        """Where a name stands in the statement."""
        nodes = list(_nodes(tree))
        if any("cte_map" in node and node["type"] not in _QUESTIONS for node in nodes):
            raise RefusedError("only a SELECT can be asked", None)  # a WITH may hold other statements
        tables = [table for node in nodes if "from_table" in node for table in _tables(node["from_table"])]
        made = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {"map": []})["map"]}
        if taken := next((name for name in made if name.startswith(_CATALOG)), None):
            raise RefusedError(f"a table in WITH may not be called {taken}, which DuckDB calls its own", None)
        for table in tables:
            self._refer(table, {_TABLE} | made)
        whole = {_TABLE, *(table["alias"].lower() for table in tables)} - fields
        asked = {id(column) for node in nodes for column in _asked_only(node)}
        for node in nodes:
            match node:
                case {"class": "STAR" | "POSITIONAL_REFERENCE"}:
                    self.everything = True
                case {"class": "SUBQUERY"}:
                    self.nested = True
                case {"class": "FUNCTION", "function_name": name} if name.lower() in _NO_FUNCTIONS:
                    raise RefusedError(f"it may not call {name}", node["query_location"])
                case {"class": "COLUMN_REF"}:
                    self._name(node, fields, whole, id(node) in asked)
        self.tested -= self.names

    def _name(self, node: Node, fields: set[str], whole: set[str], asked_only: bool) -> None:
        *before, name = names = [part.lower() for part in node["column_names"]]
        self.places.setdefault(name, node["query_location"])
        if asked_only and name in fields and not fields.intersection(before):
            self.tested.add(name)
            return
        self.names.update(names)
        self.everything |= not before and name in whole

    def _refer(self, table: Node, known: set[str]) -> None:
        match table:
            case {"type": "EMPTY" | "SUBQUERY" | "EXPRESSION_LIST"}:
                pass
            case {"type": "PIVOT"} | {"type": "JOIN", "ref_type": "NATURAL"}:
                self.everything = True
            case {"type": "BASE_TABLE", "table_name": name, "schema_name": "", "column_name_alias": [_, *_]} if (
                name.lower() in known
            ):
                self.everything = True
            case {"type": "JOIN", "using_columns": names}:
                self.names.update(map(str.lower, names))
            case {"type": "BASE_TABLE", "table_name": name, "schema_name": ""} if name.lower() in known:
                pass
            case {"type": "TABLE_FUNCTION", "function": {"function_name": name}} if name.lower() in _TABLE_FUNCTIONS:
                pass
            case {"type": "SHOW_REF"}:
                raise RefusedError("only a SELECT can be asked", None)
            case _:
                name = table.get("table_name") or table.get("function", {}).get("function_name") or table["type"]
                raise RefusedError(f"the only table is {_TABLE}, this reads {name}", table.get("query_location"))


def _nodes(tree: Any) -> Iterator[Node]:
    """All objects in a tree."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one


def _tables(reference: Node) -> Iterator[Node]:
    """All that a FROM refers to."""
    waiting = [reference]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [one[side] for side in ("left", "right", "source") if side in one]


def _asked_only(node: Node) -> list[Node]:
    """The columns of which an expression asks no more than whether they are there."""
    match node:
        case {"type": "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL", "children": columns}:
            return list(columns)
        case {"function_name": "count", "distinct": False, "arguments": [{"expression": column}]}:
            return [column]
    return []


# -- a statement ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """A statement that was let in: what was written, after something that makes a statement of it."""

    before: str
    text: str
    features: Features
    """What the fields are."""
    row: str
    """What the number of a sample is called."""
    reading: Reading

    @property
    def alone(self) -> bool:
        """Whether it looks at one sample at a time, and not at its number."""
        return not self.reading.nested and self.row not in self.reading.names

    def answer(self, rows: AbstractRows, params: Params = None, limits: Limits | None = None) -> pa.Table:
        """What DuckDB answers about these rows."""
        values, limits, began = _plain(params), limits or Limits(), time.monotonic()
        table = self._table(rows)
        left = None if limits.timeout is None else max(0.0, limits.timeout - (time.monotonic() - began))
        try:
            return run(self.before + self.text, values, table, left, limits.memory)
        except RefusedError as error:
            raise _query_error(error, self.text, len(self.before), self.features, self.reading.places) from None

    def _table(self, rows: AbstractRows) -> pa.Table:
        """The fields that are read, truth values for those that are tested, and the numbers of the samples."""
        reading = self.reading
        named = [name for name in self.features if name.lower() in reading.names]
        tested = [name for name in self.features if name.lower() in reading.tested]
        self._check(named, tested)
        values = [n for n, f in self.features.items() if n in named or (reading.everything and is_queryable(f))]
        parts = [pa.table({name: true_or_null(rows.present(name))}) for name in tested if name not in values]
        if values:
            parts.append(rows.sql_columns(values))
        if self.before or self.row in reading.names or not parts:
            parts.append(pa.table({self.row: _count(len(rows))}))
        return concat_columns(parts)

    def _check(self, named: list[str], tested: list[str]) -> None:
        """Refuse values that SQL cannot see, and names that it cannot tell apart."""
        for name in named:
            if not is_queryable(self.features[name]):
                raise QueryError(
                    f"expected fields with values that SQL knows, got {self.features[name]} - at field {name}; "
                    f"it can only be asked whether they are there ({_quoted(name)} IS NOT NULL)"
                )
        spelled: dict[str, str] = {}
        for name in self.features if self.reading.everything else [*named, *tested]:
            if (other := spelled.setdefault(name.lower(), name)) != name:
                raise QueryError(
                    f"expected fields whose names differ by more than case, got {other} and {name}; "
                    "leave one of them out by select first"
                )


def select(text: str, features: Features) -> Query:
    """A statement over the table `ds`.

    >>> from shardex.rows import ListRows
    >>> select("SELECT max(x) AS most FROM ds", Features.of({"x": int})).answer(ListRows([{"x": 1}])).to_pydict()
    {'most': [1]}
    """
    return _parse_query("", _text(text), features)


def condition(text: str, features: Features) -> Query:
    """A condition on samples; `matching` finds those for which it holds."""
    return _parse_query(f'SELECT "{_row_name(features)}" FROM {_TABLE} WHERE ', _text(text), features)


def matching(query: Query, rows: AbstractRows, params: Params = None, limits: Limits | None = None) -> Integers:
    """The rows for which a condition holds, in their order.

    >>> from shardex.rows import ListRows
    >>> matching(condition("x > ?", Features.of({"x": int})), ListRows([{"x": 1}, {"x": 5}]), [2])
    array([1])
    """
    column = query.answer(rows, params, limits).column(0)
    parts = [np.frombuffer(c.buffers()[1], np.int64, len(c), 8 * c.offset) for c in column.chunks if len(c)]
    found: Integers = np.concatenate([np.empty(0, np.int64), *parts])
    return found if (found[1:] > found[:-1]).all() else np.sort(found)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise QueryError(f"expected SQL as text, got {type(given).__name__}")
    return given


@lru_cache(256)
def _parse_query(before: str, text: str, features: Features) -> Query:
    deep = max(accumulate(1 if one in "([{" else -1 for one in text if one in "()[]{}"), default=0)
    if len(text) > _LONGEST or deep > _DEEPEST:
        raise QueryError(
            f"expected at most {_LONGEST} characters and {_DEEPEST} brackets inside one another, "
            f"got {len(text)} and {deep}; give long values as params"
        )
    try:
        tree = _tree(before + text)
        if before:
            tree = _condition_in(tree, before, text)
        reading = Reading(tree, {name.lower() for name in features})
    except RefusedError as error:
        raise _query_error(error, text, len(before), features, {}) from None
    return Query(before, text, features, _row_name(features), reading)


def _tree(statement: str) -> Node:
    trees = parse(statement)
    if len(trees) != 1:
        raise RefusedError(f"it must be one SELECT, these are {len(trees)}", None)
    return trees[0]


def _condition_in(tree: Node, before: str, text: str) -> Node:
    """The condition of a statement, if it is all that the text is: parentheses around it must change nothing."""
    if tree != _tree(f"{before[:-1]}({text}\n)"):
        raise RefusedError("a condition is one expression, such as stands after WHERE", None)
    return tree["where_clause"]  # type: ignore[no-any-return]


def _count(rows: int) -> pa.Array:
    """The numbers of all rows."""
    return _kept_count(rows) if rows <= _FEW_ROWS else number_array(np.arange(rows))


@lru_cache(1)
def _kept_count(rows: int) -> pa.Array:
    return number_array(np.arange(rows))


def _row_name(features: Features) -> str:
    """What the number of a sample is called: something that no field is called."""
    name, taken = _ROW, {name.lower() for name in features}
    while name in taken:
        name += "_"
    return name


def _plain(params: Any) -> Any:
    """Parameters as DuckDB takes them."""
    if params is None or isinstance(params, Mapping):
        return params and {name: _plain_value(value) for name, value in params.items()}
    if isinstance(params, list | tuple):
        return [_plain_value(value) for value in params]
    raise QueryError(f"expected a list of values for each ? or a dict for each $name, got {type(params).__name__}")


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value.astype(f"{type(value).__name__}[us]").item()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain_value(one) for name, one in value.items()}
    return [_plain_value(one) for one in value] if isinstance(value, list | tuple) else value


# -- refusals -------------------------------------------------------------------------------------------------


def _query_error(error: RefusedError, text: str, begin: int, features: Features, places: dict[str, int]) -> QueryError:
    """A refusal as people are told it: what they wrote, what is wrong with it, where, and what there is."""
    place, reason = error.place, error.reason.rstrip(".!")
    if place is None:
        place = next((at for name, at in places.items() if f'"{name}"' in reason.lower()), None)
    where = "" if place is None else f" - at character {_characters(text, place - begin) + 1}"
    if "not found" in reason or "column named" in reason:
        where += f"; the fields are {', '.join(map(_quoted, features))}"
    elif (near := re.search('syntax error at or near "(.+)"', reason)) and near[1].lower() in map(str.lower, features):
        where += f'; a field of a name that means something in SQL is written in double quotes: "{near[1]}"'
    return QueryError(f"expected SQL that can be answered, got {text[:200]!r}: {reason}{where}")


def _characters(text: str, place: int) -> int:
    """How many characters come before a place in a text, which DuckDB counts in bytes."""
    return len(text.encode()[: max(place, 0)].decode(errors="ignore"))


def _quoted(name: str) -> str:
    """A field as it is written in SQL.

    >>> _quoted("x"), _quoted("box.npy")
    ('x', '"box.npy"')
    """
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
