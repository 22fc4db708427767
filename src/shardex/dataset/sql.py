"""SQL over rows: parse and check a statement, find the fields that it reads, run it.

DuckDB parses a statement (`sql_syntax.parse`). The syntax tree must be one SELECT whose only table is `ds`, without
functions that read anything else; a condition must be exactly one expression. The names in the tree tell which fields
are needed (`UsedFields`), and for which only whether they have a value. `Query` takes these as Arrow columns
(`AbstractRows.sql_columns` and `present`) and runs the statement over them (`sql_syntax.run`). `view_columns`,
`view_present` and `view_matching` do the same for rows in an order: a dataset.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import number_array, tables
from shardex.dataset.sql_syntax import (
    TABLE,
    Compared,
    Node,
    RefusedError,
    UsedFields,
    compared_with_text,
    is_keyword,
    parse,
    run,
)
from shardex.errors import QueryError, SchemaError
from shardex.features import Features
from shardex.kernel import Integers
from shardex.order import Span
from shardex.rows import AbstractRows

if TYPE_CHECKING:
    from shardex.dataset.sample_view import SampleView

Params = Sequence[Any] | Mapping[str, Any] | None
"""Values for each `?` in turn, or for each `$name`."""

_ROW = "_row"
_CACHED_ROWS = 1 << 22
"""Row numbers up to this many are cached for later queries: allocating them takes as long as a query."""
_MAX_LENGTH, _MAX_DEPTH = 100_000, 200
"""Characters and nested brackets: the parser takes minutes for some thousand brackets that are never closed."""
_SMALL_VIEW = 16
"""A view with less than one in this many rows is read itself, instead of whole columns of the rows below."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a query."""

    timeout: float | None = None
    """Seconds."""
    memory: str | None = None
    """Text in the notation of DuckDB, such as ``"4GB"``; by default most of the machine's memory."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 <= self.timeout < threading.TIMEOUT_MAX:
            raise QueryError(f"expected a timeout in seconds, or None for no limit, got {self.timeout}")


# -- a statement ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """A checked statement over the table `ds`."""

    before: str
    """For a condition: the SELECT before it. Otherwise empty."""
    text: str
    """Text that the user passed."""
    features: Features
    """Fields of the table."""
    row: str
    """Name of the column of row numbers."""
    used: UsedFields
    compared: tuple[Compared, ...] = ()
    """Comparisons of values inside JSON, and of numbers of classes, which may have to be comparisons of text."""

    @property
    def is_per_sample(self) -> bool:
        """True if the result for a sample depends neither on other samples nor on its row number."""
        return not self.used.nested and self.row not in self.used.names

    def answer(self, rows: AbstractRows, params: Params = None, limits: Limits | None = None) -> pa.Table:
        """Run the statement over these rows."""
        values, limits, began = _plain(params), limits or Limits(), time.monotonic()
        table = self._table(rows)
        left = None if limits.timeout is None else max(0.0, limits.timeout - (time.monotonic() - began))
        try:
            return run(self._statement(values), values, table, left, limits.memory)
        except RefusedError as error:
            raise _query_error(error, self.text, len(self.before), self.features, self.used.places) from None

    def _statement(self, params: Any) -> str:
        """Return the SQL to run. Values inside JSON are compared as text or numbers: DuckDB would read text as JSON."""
        data = (self.before + self.text).encode()
        for one in self.compared:  # from the end on, so that positions stay valid
            if (instead := self._instead(one, params)) is not None:
                data = data[: one.begin] + instead.encode() + data[one.end :]
        return data.decode()

    def _instead(self, one: Compared, params: Any) -> str | None:
        try:
            return one.replacement(params)
        except SchemaError as error:
            raise QueryError(f"expected valid SQL, got {self.text[:200]!r}: {error}") from None

    def _table(self, rows: AbstractRows) -> pa.Table:
        """Return the columns that the statement reads: values, null tests as truth values, and row numbers."""
        used = self.used
        named = [name for name in self.features if name.lower() in used.names]
        tested = [name for name in self.features if name.lower() in used.tested]
        self._check(named, tested)
        values = [n for n, f in self.features.items() if n in named or (used.everything and f.queryable())]
        parts = [pa.table({name: tables.true_or_null(rows.present(name))}) for name in tested if name not in values]
        if values:
            parts.append(rows.sql_columns(values).select(values))  # in the order of the fields, for SELECT *
        if self.before or self.row in used.names or not parts:
            parts.append(pa.table({self.row: _row_numbers(len(rows))}))
        return tables.concat_columns(parts)

    def _check(self, named: list[str], tested: list[str]) -> None:
        """Raise for fields that SQL cannot read, and for names that differ only by case."""
        for name in named:
            if not self.features[name].queryable():
                raise QueryError(
                    f"expected a field that SQL can read, got {self.features[name]} - at field {name}; "
                    f"SQL can only test whether it has a value ({_quoted(name)} IS NOT NULL)"
                )
        spelled: dict[str, str] = {}
        for name in self.features if self.used.everything else [*named, *tested]:
            if (other := spelled.setdefault(name.lower(), name)) != name:
                raise QueryError(
                    f"expected fields whose names differ by more than case, got {other} and {name}; "
                    "choose one of them by select first"
                )


def select(text: str, features: Features) -> Query:
    """Parse and check a SELECT over the table `ds`.

    >>> from shardex.dataset.memory_rows import ListRows
    >>> select("SELECT max(x) AS most FROM ds", Features.of({"x": int})).answer(ListRows([{"x": 1}])).to_pydict()
    {'most': [1]}
    """
    return _parse_query("", _text(text), features)


def condition(text: str, features: Features) -> Query:
    """Parse and check a condition, as it follows WHERE; `matching` finds the rows for which it holds."""
    return _parse_query(f'SELECT "{_row_name(features)}" FROM {TABLE} WHERE ', _text(text), features)


def matching(query: Query, rows: AbstractRows, params: Params = None, limits: Limits | None = None) -> Integers:
    """Return the numbers of the rows for which a condition holds, ascending.

    >>> from shardex.dataset.memory_rows import ListRows
    >>> matching(condition("x > ?", Features.of({"x": int})), ListRows([{"x": 1}, {"x": 5}]), [2])
    array([1])
    """
    column = query.answer(rows, params, limits).column(0)
    parts = [np.frombuffer(c.buffers()[1], np.int64, len(c), 8 * c.offset) for c in column.chunks if len(c)]
    found: Integers = np.concatenate([np.empty(0, np.int64), *parts])
    return found if (found[1:] > found[:-1]).all() else np.sort(found)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        advice = ": functions of samples are for ds.filter" if callable(given) else ""
        raise QueryError(f"expected SQL as text, got {type(given).__name__}{advice}")
    return given


@lru_cache(256)
def _parse_query(before: str, text: str, features: Features) -> Query:
    deep = max(accumulate(1 if one in "([{" else -1 for one in text if one in "()[]{}"), default=0)
    if len(text) > _MAX_LENGTH or deep > _MAX_DEPTH:
        raise QueryError(
            f"expected at most {_MAX_LENGTH} characters and {_MAX_DEPTH} nested brackets, "
            f"got {len(text)} and {deep}; pass long values as params"
        )
    try:
        tree = whole = _tree(before + text)
        if before:
            tree = _condition_in(tree, before, text)
        used = UsedFields(tree, {name.lower() for name in features})
    except RefusedError as error:
        raise _query_error(error, text, len(before), features, {}) from None
    return Query(before, text, features, _row_name(features), used, compared_with_text(whole, features))


def _tree(statement: str) -> Node:
    trees = parse(statement)
    if len(trees) != 1:
        raise RefusedError(f"expected one SELECT, got {len(trees)}", None)
    return trees[0]


def _condition_in(tree: Node, before: str, text: str) -> Node:
    """Return the condition of a statement, if the text is nothing else: parentheses around it must change nothing."""
    if tree != _tree(f"{before[:-1]}({text}\n)"):
        raise RefusedError("a condition is one expression, as it follows WHERE", None)
    return tree["where_clause"]  # type: ignore[no-any-return]


def _row_numbers(rows: int) -> pa.Array:
    return _cached_row_numbers(rows) if rows <= _CACHED_ROWS else number_array(np.arange(rows))


@lru_cache(1)
def _cached_row_numbers(rows: int) -> pa.Array:
    return number_array(np.arange(rows))


def _row_name(features: Features) -> str:
    """Return a name for the column of row numbers that no field has."""
    name, taken = _ROW, {name.lower() for name in features}
    while name in taken:
        name += "_"
    return name


def _plain(params: Any) -> Any:
    """Return parameters as plain Python values, which DuckDB takes."""
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


# -- datasets: rows in an order -------------------------------------------------------------------------------
#
# Whole columns of the rows below are taken and reordered, unless the view is so small that reading it is cheaper. A
# condition that is evaluated per sample is evaluated once for each row below, however often the view repeats it.


def view_columns(dataset: SampleView[Any], names: Sequence[str]) -> pa.Table:
    """Return whole fields of a dataset in its order."""
    if _is_small(dataset) and not set(names) & set(dataset.extracted):
        return AbstractRows.sql_columns(dataset, names)
    table = dataset.rows.sql_columns(names)
    if (first := _first_row(dataset)) is not None:
        return table.slice(first, len(dataset))
    return tables.take_table(table, _rows(dataset))


def view_present(dataset: SampleView[Any], name: str) -> NDArray[np.bool_]:
    """Return for each sample of a dataset whether it has a value for a field."""
    if _is_small(dataset) and name not in dataset.extracted:
        return AbstractRows.present(dataset, name)
    return dataset.rows.present(name)[_rows(dataset)]


def view_lengths(dataset: SampleView[Any], name: str) -> Integers:
    """Return the length of the array of a field in each sample of a dataset."""
    if _is_small(dataset):
        return AbstractRows.lengths(dataset, name)
    found = dataset.rows.lengths(name)
    return found if dataset.order == Span(len(found)) else found[_rows(dataset)]


def view_matching(dataset: SampleView[Any], query: Query, params: Params, limits: Limits) -> Integers:
    """Return the positions of a dataset at which a condition holds."""
    if _first_row(dataset) is not None or _is_small(dataset) or not query.is_per_sample:
        return matching(query, dataset, params, limits)
    holds = np.zeros(len(dataset.rows), np.bool_)
    holds[matching(query, dataset.rows, params, limits)] = True
    return np.flatnonzero(holds[_rows(dataset)])


def _is_small(dataset: SampleView[Any]) -> bool:
    return len(dataset) * _SMALL_VIEW < len(dataset.rows)


def _first_row(dataset: SampleView[Any]) -> int | None:
    """Return the first row, if the order has consecutive rows."""
    order = dataset.order
    return order.start if isinstance(order, Span) and order.step == 1 else None


def _rows(dataset: SampleView[Any]) -> Integers:
    return dataset.order.rows(np.arange(len(dataset)))


# -- errors ---------------------------------------------------------------------------------------------------


def _query_error(error: RefusedError, text: str, begin: int, features: Features, places: dict[str, int]) -> QueryError:
    """Return the error to raise: the query, what is wrong, where, and the names of the fields."""
    place, reason = error.place, error.reason.rstrip(".!")
    if place is None:
        place = next((at for name, at in places.items() if f'"{name}"' in reason.lower()), None)
    where = ""
    if place is not None:  # a byte position of the statement
        where = f" - at character {len(text.encode()[: max(place - begin, 0)].decode(errors='ignore')) + 1}"
    if "not found" in reason or "column named" in reason:
        if (name := re.search('column "([^"]+)"', reason)) and f'"{name[1]}"' in text:
            where += f"; a text is in single quotes: '{name[1]}'"
        where += f"; the fields are {', '.join(map(_quoted, features))}"
    elif "Malformed JSON" in reason:
        where += "; a text inside JSON is compared as field->>'$.key' = 'text'"
    elif near := re.search('syntax error at or near "(.+)"', reason):
        before = text.encode()[: max((place or 0) - begin, 0)].decode(errors="ignore").split()
        for word in (near[1], *before[-1:]):  # a field whose name is a keyword may be what stands before the error
            if word.lower() in map(str.lower, features) and is_keyword(word):
                where += f'; write a field whose name is an SQL keyword in double quotes: "{word}"'
                break
    return QueryError(f"expected valid SQL, got {text[:200]!r}: {reason}{where}")


def _quoted(name: str) -> str:
    """Return a field name as it is written in SQL.

    >>> _quoted("x"), _quoted("box.npy")
    ('x', '"box.npy"')
    """
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
