"""SQL as DuckDB parses and runs it: what a statement uses, and a sandbox in which it runs.

`UsedFields` checks the tables and functions of a syntax tree and collects the names of fields; `compared_with_text`
finds comparisons such as ``meta.q = 'good'``, in which DuckDB would read the text as JSON, and ``label = 'cat'``, in
which it would read the text as a number.

In the sandbox DuckDB sees one Arrow table, but no file, no network, no settings and no Python variables. `parse`
returns the syntax trees of a text; `run` returns the result of a statement, which runs in a thread that a timeout or
Ctrl-C stops. A process has one in-memory database. It is dropped before a fork, because a child that inherits one hangs
or crashes. `sql.py` decides which statements are allowed and formats the errors.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from shardex.errors import QueryError, ShardexError
from shardex.features import ClassLabel, Feature, Features, Json, codecs, unwrap_optional

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLE = "ds"
"""Name of the only table."""
_QUERY_NODES = {"CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"}
_FORBIDDEN_FUNCTIONS = {"current_setting", "json_serialize_plan", "write_log"}
"""Functions that are not allowed: they read settings, bind other statements, or write logs."""
_CATALOG = ("duckdb_", "information_schema", "pg_", "pragma_", "sqlite_")
_TABLE_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "unnest"}

Node = dict[str, Any]


# -- fields that a statement reads -------------------------------------------------------------------------------


class UsedFields:
    """The names in a syntax tree, in lower case because SQL ignores case. Other tables than `ds` raise an error.

    >>> from shardex.dataset.sql_syntax import parse
    >>> found = UsedFields(parse("SELECT x + y.a FROM ds WHERE z IS NOT NULL")[0], {"x", "y", "z"})
    >>> sorted(found.names), found.tested, found.everything
    (['a', 'x', 'y'], {'z'}, False)
    """

    def __init__(self, tree: Node, fields: set[str]) -> None:
        self.names: set[str] = set()
        """Names that may be fields whose values are read."""
        self.tested: set[str] = set()
        """Fields that are only tested for NULL."""
        self.everything = False
        """True if all fields are read."""
        self.nested = False
        """True if there is a SELECT inside an expression."""
        self.places: dict[str, int] = {}
        """Byte position of each name in the statement."""
        nodes = list(_nodes(tree))
        if any("cte_map" in node and node["type"] not in _QUERY_NODES for node in nodes):
            raise RefusedError("only SELECT is supported", None)  # a WITH may hold other statements
        tables = [table for node in nodes if "from_table" in node for table in _tables(node["from_table"])]
        with_tables = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {"map": []})["map"]}
        if reserved := next((name for name in with_tables if name.startswith(_CATALOG)), None):
            raise RefusedError(f"a table in WITH may not be called {reserved}, a name of DuckDB's own tables", None)
        for table in tables:
            self._check_table(table, {TABLE} | with_tables)
        whole = {TABLE, *(table["alias"].lower() for table in tables)} - fields
        only_tested = {id(column) for node in nodes for column in _null_tests(node)}
        for node in nodes:
            match node:
                case {"class": "STAR" | "POSITIONAL_REFERENCE"}:
                    self.everything = True
                case {"class": "SUBQUERY"}:
                    self.nested = True
                case {"class": "FUNCTION", "function_name": name} if name.lower() in _FORBIDDEN_FUNCTIONS:
                    raise RefusedError(f"it may not call {name}", node["query_location"])
                case {"class": "COLUMN_REF"}:
                    self._add_name(node, fields, whole, id(node) in only_tested)
        self.tested -= self.names

    def _add_name(self, node: Node, fields: set[str], whole: set[str], only_tested: bool) -> None:
        *before, name = names = [part.lower() for part in node["column_names"]]
        self.places.setdefault(name, node["query_location"])
        if only_tested and name in fields and not fields.intersection(before):
            self.tested.add(name)
            return
        self.names.update(names)
        self.everything |= not before and name in whole

    def _check_table(self, table: Node, known: set[str]) -> None:
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
                raise RefusedError("only SELECT is supported", None)
            case _:
                name = table.get("table_name") or table.get("function", {}).get("function_name") or table["type"]
                raise RefusedError(f"the only table is {TABLE}, this reads {name}", table.get("query_location"))


def _nodes(tree: Any) -> Iterator[Node]:
    """Yield all objects in a tree."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one


def _tables(reference: Node) -> Iterator[Node]:
    """Yield all tables that a FROM refers to."""
    waiting = [reference]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [one[side] for side in ("left", "right", "source") if side in one]


def _null_tests(node: Node) -> list[Node]:
    """Return the columns that an expression only tests for NULL."""
    match node:
        case {"type": "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL", "children": columns}:
            return list(columns)
        case {"function_name": "count", "distinct": False, "arguments": [{"expression": column}]}:
            return [column]
    return []


_NUMBERS = ("INTEGER", "NUMERIC")
"""Kinds of literals that are numbers."""


# -- comparisons with text ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A value inside JSON, or the number of a class, compared with others (``meta.q = 'good'``) or with NULL."""

    begin: int
    end: int
    """Offset of its end in the statement, in bytes."""
    as_text: str
    """SQL for the same value as text: ``("meta"->>'$."q"')``, ``(['cat', 'dog'])["label" + 1]``."""
    numbers: tuple[str, ...]
    """Numbers that it is compared with."""
    texts: tuple[str, ...]
    """Texts that it is compared with."""
    params: tuple[str, ...]
    """Names or numbers of parameters that it is compared with."""
    label: ClassLabel | None = None
    """The feature of the classes."""
    whole: bool = True
    """True if the others are names of classes, False if they may be parts and patterns of them."""

    def replacement(self, params: Any) -> str | None:
        """Return the SQL to compare instead: the value as text if others are text, as a number if all others are.

        DuckDB would round a value inside JSON to the digits of a number such as 0.5. A text in double quotes is the
        JSON of one. Texts that are neither the name of a class nor a number raise an error.
        """
        given = params if isinstance(params, Mapping) else {str(k): one for k, one in enumerate(params or (), 1)}
        values = [given.get(name) for name in self.params]
        texts = [*self.texts, *(one for one in values if isinstance(one, str))]
        if self.label is not None:
            return self.as_text if self._names_classes(texts) else None
        numbers = [*self.numbers, *(str(one) for one in values if type(one) in (int, float))]
        if numbers and len(numbers) == len(self.numbers) + len(values) and not texts:
            exact = any(one.lstrip("-").isdigit() and abs(int(one)) > _LARGEST_EXACT for one in numbers)
            return f"CAST({self.as_text} AS {'DECIMAL(38, 9)' if exact else 'DOUBLE'})"
        is_null_test = not self.texts and not values and not numbers  # the null of JSON is no NULL, but as text it is
        return self.as_text if is_null_test or not all(map(_is_quoted, texts)) else None

    def _names_classes(self, texts: list[str]) -> bool:
        """Return whether one of the texts is the name of a class."""
        assert self.label is not None
        names = [one for one in texts if one in self.label.names or not one.strip().lstrip("-").isdigit()]
        if self.whole:
            for name in names:
                self.label.number(name)  # raises for an unknown one
        return bool(names)


_LARGEST_EXACT = 1 << 53
"""Largest integer up to which all are float64."""


def compared_with_text(tree: Node, features: Features) -> tuple[Compared, ...]:
    """Return the comparisons of values inside JSON, and of numbers of classes, the last one first."""
    plain = {name.lower(): unwrap_optional(feature) for name, feature in features.items()}
    kinds = {name: feature for name, feature in plain.items() if isinstance(feature, Json | ClassLabel)}
    found = {one.begin: one for node in _nodes(tree) for one in _compared(node, kinds)} if kinds else {}
    return tuple(found[begin] for begin in sorted(found, reverse=True))


def _compared(node: Node, kinds: Mapping[str, Feature]) -> Iterator[Compared]:
    """Yield the values of fields of these kinds that an expression only tests for NULL, or compares with texts, numbers
    and parameters only."""
    match node:
        case {"class": "COMPARISON", "left": left, "right": right}:
            sides = [left, right]
        case {"type": "COMPARE_IN" | "COMPARE_NOT_IN", "children": sides}:
            pass
        case {"class": "BETWEEN", "input": value, "lower": lower, "upper": upper}:
            sides = [value, lower, upper]
        case {"function_name": "~~" | "!~~" | "~~*" | "!~~*", "arguments": arguments}:  # LIKE and ILIKE
            sides = [one["expression"] for one in arguments]
        case _:
            sides = _null_tests(node)
    texts = tuple(one["literal"]["text"] for one in sides if one.get("literal", {}).get("kind") == "STRING")
    numbers = tuple(one["literal"]["text"] for one in sides if one.get("literal", {}).get("kind") in _NUMBERS)
    params = tuple(one["identifier"] for one in sides if one["class"] == "PARAMETER")
    inside = [one for one in map(_json_path, sides) if one is not None]
    if len(inside) != 1 or len(texts) + len(numbers) + len(params) != len(sides) - 1:
        return
    names, steps, begin, end = inside[0]
    first = next((k for k in range(min(2, len(names))) if names[k].lower() in kinds), None)
    if first is None or '"' in "".join(map(str, [*names, *steps])):
        return
    kind, field = kinds[names[first].lower()], ".".join(f'"{name}"' for name in names[: first + 1])
    is_inside = first + 1 < len(names) or bool(steps)
    if isinstance(kind, ClassLabel) and not is_inside and not numbers:
        classes = ", ".join("'" + name.replace("'", "''") + "'" for name in kind.names)
        whole = node["type"] in ("COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_IN", "COMPARE_NOT_IN")
        yield Compared(begin, end, f"([{classes}])[{field} + 1]", (), texts, params, kind, whole)
    elif isinstance(kind, Json) and (is_inside or numbers):
        path = "".join([*(f'."{name}"' for name in names[first + 1 :]), *map(_step, steps)]).replace("'", "''")
        yield Compared(begin, end, f"({field}->>'${path}')", numbers, texts, params)


def _json_path(node: Node) -> tuple[list[str], list[str | int], int, int] | None:
    """Return the names, keys and numbers in a column reference such as ``meta.tags[0]``, and where it begins and ends;
    None for other expressions."""
    match node:
        case {"class": "COLUMN_REF", "column_names": names, "query_location": begin, "query_location_length": length}:
            return names, [], begin, begin + length
        case {
            "type": "ARRAY_EXTRACT" | "STRUCT_EXTRACT",
            "children": [of, {"literal": {"kind": "STRING" | "INTEGER" as kind, "text": text}}],
            "query_location": at,
            "query_location_length": length,
        } if (found := _json_path(of)) is not None:
            names, steps, begin, _ = found
            return names, [*steps, int(text) if kind == "INTEGER" else text], begin, at + length
    return None


def _step(step: str | int) -> str:
    """Return a step of a JSON path: a key, or the number of an item, from the end if it is negative."""
    return f'."{step}"' if isinstance(step, str) else f"[{step}]" if step >= 0 else f"[#{step}]"


def _is_quoted(text: str) -> bool:
    """Return whether a text is the JSON of a text."""
    try:
        return isinstance(codecs.JSON.decode(text.encode()), str)
    except (ShardexError, ValueError):
        return False


_SETTINGS = (
    "GLOBAL TimeZone = 'UTC'",  # not the zone of the machine: the answer must not depend on it
    "temp_directory = ''",  # results larger than memory are an error, not a file
    "python_enable_replacements = false",  # unknown tables are not looked up among Python variables
    "python_scan_all_frames = false",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "allow_persistent_secrets = false",
    "enable_external_access = false",
    "lock_configuration = true",  # no setting can change after this
)
_RETRY_SECONDS, _STOP_SECONDS = 0.05, 1.0
"""An interrupt between two steps of a query is lost, so it is repeated every _RETRY_SECONDS."""


class RefusedError(Exception):
    """DuckDB or `sql.py` refuses a statement: the reason, and the byte position in it if it is known."""

    def __init__(self, reason: str, place: int | None) -> None:
        super().__init__(reason, place)
        self.reason, self.place = reason, place


def parse(text: str) -> list[dict[str, Any]]:
    """Return the syntax tree of each SELECT in a text; other statements are refused.

    >>> [tree["type"] for tree in parse("SELECT 1; SELECT 2")]
    ['SELECT_NODE', 'SELECT_NODE']
    """
    with _as_refused(text), _cursor(None) as cursor:
        (answer,) = cursor.execute("SELECT json_serialize_sql(?)", [text]).fetchone() or ("{}",)
    try:
        found = msgspec.json.decode(answer)
    except RecursionError:
        raise RefusedError("too many nested expressions", None) from None
    if found["error"]:
        place, message = found.get("position"), found["error_message"]
        reason = "only SELECT is supported" if message.startswith("Only SELECT") else _short(message)
        raise RefusedError(reason, None if place is None else int(place))
    return [statement["node"] for statement in found["statements"]]


def is_keyword(word: str) -> bool:
    """Return whether a word is a keyword of SQL, which names a field only in double quotes.

    >>> is_keyword("at"), is_keyword("station")
    (True, False)
    """
    import duckdb

    return [kind for _, kind in duckdb.tokenize(word)] == [duckdb.token_type.keyword]


def run(
    statement: str,
    params: list[Any] | dict[str, Any] | None,
    table: pa.Table,
    timeout: float | None = None,
    memory_limit: str | None = None,
) -> pa.Table:
    """Return the result of a SELECT over a table named `ds`.

    >>> run("SELECT x FROM ds WHERE x > ?", [1], pa.table({"x": [1, 2, 3]})).to_pydict()
    {'x': [2, 3]}
    """

    def query(cursor: DuckDBPyConnection) -> pa.Table:
        return cursor.register("ds", table).sql(statement, params=params).to_arrow_table()

    with _as_refused(statement):
        return _run_in_thread(query, timeout, memory_limit)


def _run_in_thread(
    query: Callable[[DuckDBPyConnection], pa.Table], timeout: float | None, memory_limit: str | None
) -> pa.Table:
    """Run a query in a thread and return its result; after the timeout or an interrupt the query is stopped."""
    job: Future[pa.Table] = Future()
    running: list[DuckDBPyConnection] = []

    def work() -> None:
        try:
            with _cursor(memory_limit) as cursor:
                running.append(cursor)
                answer = query(cursor)
            job.set_result(answer)
        except BaseException as error:
            job.set_exception(error)

    thread = threading.Thread(target=work, name="shardex-query", daemon=True)
    thread.start()
    try:
        return job.result(timeout)
    except TimeoutError:
        raise QueryError("expected a result within the timeout, got none; use a longer timeout") from None
    finally:
        if not job.done():
            _stop(job, running)
        if job.done():
            thread.join()


def _stop(job: Future[pa.Table], running: list[DuckDBPyConnection]) -> None:
    """Interrupt a query. If it is inside a function that cannot be interrupted, later queries get a new database."""
    late = time.monotonic() + _STOP_SECONDS
    while not job.done() and time.monotonic() < late:
        for cursor in running:
            cursor.interrupt()
        wait([job], _RETRY_SECONDS)
    if not job.done():
        with _lock:
            _databases.clear()


# -- errors --------------------------------------------------------------------------------------------------


@contextmanager
def _as_refused(statement: str) -> Iterator[None]:
    """Raise DuckDB's errors as `RefusedError`."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        message, _, excerpt = str(error).partition("\n\nLINE ")
        raise RefusedError(_short(message.partition("Error: ")[2] or message), _place(excerpt, statement)) from None


def _short(message: str) -> str:
    """Return the first line of a message and the suggestion, without candidates and other advice.

    >>> _short("No function f(x)!\\nDid you mean g?\\n\\tCandidate functions:\\n\\tf(INTEGER)")
    'No function f(x)! Did you mean g?'
    """
    first, *others = message.split("\n")
    return " ".join([first, *(line for line in others if line.startswith("Did you mean"))])


def _place(excerpt: str, statement: str) -> int | None:
    """Return the byte position that the mark under an excerpt points to; None for an excerpt of a long line.

    >>> _place("2: x > 'a'\\n            ^^^", "SELECT\\nx > 'a'")
    11
    """
    number, found, rest = excerpt.partition(": ")
    line, _, mark = rest.partition("\n")
    if not found or line not in statement or "^" not in mark:
        return None
    above = "".join(f"{one}\n" for one in statement.split("\n")[: int(number) - 1])
    return len((above + line[: mark.index("^") - len(f"LINE {number}: ")]).encode())


# -- the database ---------------------------------------------------------------------------------------------

_lock = threading.Lock()
_databases: list[DuckDBPyConnection] = []
"""The database of this process, created on first use: that takes as long as filtering a million rows."""
atexit.register(_databases.clear)  # if torch is imported too, DuckDB reports leaks for a database that is still open


@contextmanager
def _cursor(memory_limit: str | None) -> Iterator[DuckDBPyConnection]:
    """Connect to the database of this process, or to a new one with a memory limit."""
    if memory_limit is not None:
        with _new_database({"memory_limit": memory_limit}) as database:
            yield database
        return
    with _lock:
        if not _databases:
            _databases.append(_new_database({}))
        connection = _databases[0].cursor()
    with connection:
        yield connection


def _new_database(config: dict[str, Any]) -> DuckDBPyConnection:
    import duckdb

    database = duckdb.connect(":memory:", config=config)
    for setting in _SETTINGS:
        database.execute(f"SET {setting}")
    return database


def _before_fork() -> None:
    """Drop the database: the child must not inherit it. Running queries keep theirs alive."""
    _lock.acquire()
    _databases.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release)
