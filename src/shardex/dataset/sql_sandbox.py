"""DuckDB in a sandbox: it sees one Arrow table, but no file, no network, no settings and no Python variables.

`parse` returns the syntax trees of a text; `run` returns the result of a statement, which runs in a thread that a
timeout or Ctrl-C stops. A process has one in-memory database. It is dropped before a fork, because a child that
inherits one hangs or crashes. `sql.py` decides which statements are allowed and formats the errors.
"""

from __future__ import annotations

import atexit
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
