"""Reads syntax trees of SQL: which fields and tables a statement uses, and where it compares text inside JSON.

DuckDB makes the tree (`sql_sandbox.parse`). `UsedFields` checks the tables and functions and collects the names;
`json_texts` finds comparisons such as ``meta.q = 'good'``, in which DuckDB would read the text as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardex.dataset.sql_sandbox import RefusedError
from shardex.errors import ShardexError
from shardex.features import Features, Json, codecs, unwrap_optional

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

    >>> from shardex.dataset.sql_sandbox import parse
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


# -- text inside JSON -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JsonText:
    """A value inside JSON that is compared with other values, such as ``meta.q = 'good'``."""

    begin: int
    end: int
    """Offset of its end in the statement, in bytes."""
    as_text: str
    """SQL for the same value as text: ``("meta"->>'$."q"')``."""
    texts: tuple[str, ...]
    """Texts that it is compared with."""
    params: tuple[str, ...]
    """Names or numbers of parameters that it is compared with."""

    def is_text(self, params: Any) -> bool:
        """Return whether one of the other values is a text; a text in double quotes is the JSON of one."""
        given = params if isinstance(params, Mapping) else {str(k): one for k, one in enumerate(params or (), 1)}
        values = [given.get(name) for name in self.params]
        return not all(map(_is_quoted, [*self.texts, *(one for one in values if isinstance(one, str))]))


def json_texts(tree: Node, features: Features) -> tuple[JsonText, ...]:
    """Return the comparisons of values inside JSON, the last one first."""
    json = {name.lower() for name, feature in features.items() if isinstance(unwrap_optional(feature), Json)}
    found = {one.begin: one for node in _nodes(tree) for one in _compared(node, json)} if json else {}
    return tuple(found[begin] for begin in sorted(found, reverse=True))


def _compared(node: Node, json: set[str]) -> Iterator[JsonText]:
    """Yield the values inside JSON that an expression compares with texts and parameters only."""
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
            return
    texts = tuple(one["literal"]["text"] for one in sides if one.get("literal", {}).get("kind") == "STRING")
    params = tuple(one["identifier"] for one in sides if one["class"] == "PARAMETER")
    inside = [one for one in map(_json_path, sides) if one is not None]
    if len(inside) != 1 or len(texts) + len(params) != len(sides) - 1:
        return
    names, steps, begin, end = inside[0]
    last = len(names) - (0 if steps else 1)
    first = next((k for k in range(min(2, last)) if names[k].lower() in json), None)
    if first is not None and '"' not in "".join(map(str, [*names, *steps])):
        field = ".".join(f'"{name}"' for name in names[: first + 1])
        path = "".join([*(f'."{name}"' for name in names[first + 1 :]), *map(_step, steps)]).replace("'", "''")
        yield JsonText(begin, end, f"({field}->>'${path}')", texts, params)


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
