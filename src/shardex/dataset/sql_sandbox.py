"""DuckDB with every door shut: it sees one Arrow table, and no file, no network, no setting and no Python variable.

`parse` gives the syntax trees of a text, `run` the answer to a statement, in a thread of its own that a time limit or
Ctrl-C ends. One in-memory database serves a process. It is given up before a fork, because a child that inherits one
hangs or crashes. Which statements are let in, and how a refusal is told to people, is left to `query.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from shardex.errors import QueryError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["RefusedError", "parse", "run"]

_SETTINGS = (
    "temp_directory = ''",  # what does not fit into memory is an error, not a file
    "python_enable_replacements = false",  # a table that is not there is not looked for among variables
    "python_scan_all_frames = false",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "allow_persistent_secrets = false",
    "enable_external_access = false",
    "lock_configuration = true",  # from here on nothing can be set
)
_PATIENCE, _GRACE = 0.05, 1.0
"""Seconds between two attempts to stop a query, of which one that comes between two steps is lost, and for all."""


class RefusedError(Exception):
    """What DuckDB does not take: the reason, and the place in the statement, in bytes, if it is known."""

    def __init__(self, reason: str, place: int | None) -> None:
        super().__init__(reason, place)
        self.reason, self.place = reason, place


def parse(text: str) -> list[dict[str, Any]]:
    """The syntax tree of each SELECT in a text; anything else is refused.

    >>> [tree["type"] for tree in parse("SELECT 1; SELECT 2")]
    ['SELECT_NODE', 'SELECT_NODE']
    """
    with _refusals(text), _cursor(None) as cursor:
        (answer,) = cursor.execute("SELECT json_serialize_sql(?)", [text]).fetchone() or ("{}",)
    try:
        found = msgspec.json.decode(answer)
    except RecursionError:
        raise RefusedError("too many expressions inside one another", None) from None
    if found["error"]:
        place, said = found.get("position"), found["error_message"]
        reason = "only a SELECT can be asked" if said.startswith("Only SELECT") else _short(said)
        raise RefusedError(reason, None if place is None else int(place))
    return [statement["node"] for statement in found["statements"]]


def run(
    statement: str,
    params: list[Any] | dict[str, Any] | None,
    table: pa.Table,
    timeout: float | None = None,
    memory_limit: str | None = None,
) -> pa.Table:
    """The answer to a SELECT over a table, which it calls `ds`.

    >>> run("SELECT x FROM ds WHERE x > ?", [1], pa.table({"x": [1, 2, 3]})).to_pydict()
    {'x': [2, 3]}
    """

    def ask(cursor: DuckDBPyConnection) -> pa.Table:
        return cursor.register("ds", table).sql(statement, params=params).to_arrow_table()

    with _refusals(statement):
        return _in_time(ask, timeout, memory_limit)


def _in_time(
    ask: Callable[[DuckDBPyConnection], pa.Table], timeout: float | None, memory_limit: str | None
) -> pa.Table:
    """What a thread brings back; if we no longer wait for it, its work is stopped."""
    job: Future[pa.Table] = Future()
    running: list[DuckDBPyConnection] = []

    def work() -> None:
        try:
            with _cursor(memory_limit) as cursor:
                running.append(cursor)
                answer = ask(cursor)
            job.set_result(answer)
        except BaseException as error:
            job.set_exception(error)

    thread = threading.Thread(target=work, name="shardex-query", daemon=True)
    thread.start()
    try:
        return job.result(timeout)
    except TimeoutError:
        raise QueryError("expected an answer within the timeout, got none; give it a longer one") from None
    finally:
        if not job.done():
            _stop(job, running)
        if job.done():
            thread.join()


def _stop(job: Future[pa.Table], running: list[DuckDBPyConnection]) -> None:
    """Have a query end. One that is inside a long function cannot: it is left alone, with a database of its own."""
    late = time.monotonic() + _GRACE
    while not job.done() and time.monotonic() < late:
        for cursor in running:
            cursor.interrupt()
        wait([job], _PATIENCE)
    if not job.done():
        with _lock:
            _kept.clear()


# -- refusals -------------------------------------------------------------------------------------------------


@contextmanager
def _refusals(statement: str) -> Iterator[None]:
    """DuckDB's errors as ours."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        said, _, excerpt = str(error).partition("\n\nLINE ")
        raise RefusedError(_short(said.partition("Error: ")[2] or said), _place(excerpt, statement)) from None


def _short(said: str) -> str:
    """What it says, without candidates and advice that is not for us.

    >>> _short("No function f(x)!\\nDid you mean g?\\n\\tCandidate functions:\\n\\tf(INTEGER)")
    'No function f(x)! Did you mean g?'
    """
    first, *others = said.split("\n")
    return " ".join([first, *(line for line in others if line.startswith("Did you mean"))])


def _place(excerpt: str, statement: str) -> int | None:
    """Where the mark under an excerpt points to; an excerpt of a long line does not tell.

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
_kept: list[DuckDBPyConnection] = []
"""The database of this process, once one was needed: to make it takes as long as to filter a million rows."""


@contextmanager
def _cursor(memory_limit: str | None) -> Iterator[DuckDBPyConnection]:
    """A connection to the database of this process, or to a new one that has a limit of its own."""
    if memory_limit is not None:
        with _new_database({"memory_limit": memory_limit}) as database:
            yield database
        return
    with _lock:
        if not _kept:
            _kept.append(_new_database({}))
        connection = _kept[0].cursor()
    with connection:
        yield connection


def _new_database(config: dict[str, Any]) -> DuckDBPyConnection:
    import duckdb

    database = duckdb.connect(":memory:", config=config)
    for setting in _SETTINGS:
        database.execute(f"SET {setting}")
    return database


def _let_go() -> None:
    """What happens before a fork: the child gets none, and queries that run here keep the one they have alive."""
    _lock.acquire()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_let_go, after_in_parent=_lock.release, after_in_child=_lock.release)
