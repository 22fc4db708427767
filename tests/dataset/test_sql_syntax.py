"""The DuckDB sandbox: one database per process, dropped before a fork, and errors with positions."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from shardex.dataset import sql_syntax as sandbox
from shardex.dataset.sql_syntax import RefusedError, parse, run

TABLE = pa.table({"x": [1, 2, 3]})


def test_one_database_serves_all_threads() -> None:
    def work(k: int) -> list[int]:
        return run("SELECT x + ? AS y FROM ds ORDER BY x", [k], TABLE)["y"].to_pylist()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(20))) == [[k + 1, k + 2, k + 3] for k in range(20)]
    assert len(sandbox._databases) == 1


def test_database_is_dropped_before_a_fork() -> None:
    parse("SELECT 1")
    child = os.fork()
    if not child:
        os._exit(len(sandbox._databases))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not sandbox._databases and not sandbox._lock.locked()
    assert run("SELECT 1 AS a", None, TABLE).to_pylist() == [{"a": 1}]


def bare(statement: str, table: pa.Table | None = None) -> None:
    """Run a statement without the checks of sql.py."""
    with sandbox._as_refused(statement), sandbox._cursor(None) as cursor:
        if table is not None:
            cursor.register("ds", table)
        cursor.execute(statement)


def test_queries_do_not_see_each_other() -> None:
    run("SELECT * FROM ds", None, TABLE)
    with pytest.raises(RefusedError, match="Table with name ds does not exist"):
        bare("SELECT * FROM ds")


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("SELECT y FROM ds", 7),
        ("SELECT\n  'é', y\nFROM ds", 15),
        ("SELECT x FROM ds WHERE x > 'a'", 27),
        ("SELECT " + "'a', " * 100 + "y FROM ds", None),
    ],
)
def test_error_position(statement: str, place: int | None) -> None:
    with pytest.raises(RefusedError) as caught:
        bare(statement, TABLE)
    assert caught.value.place == place


def test_parse() -> None:
    assert [tree["type"] for tree in parse("SELECT 1 UNION SELECT 2")] == ["SET_OPERATION_NODE"]
    assert parse("") == []
    with pytest.raises(RefusedError) as caught:
        parse("SELECT FROM WHERE")
    assert caught.value.place is not None and "syntax error" in caught.value.reason
    with pytest.raises(RefusedError, match="only SELECT"):
        parse("DROP TABLE x")


@pytest.mark.parametrize("order", [pytest.param("torch first", marks=pytest.mark.long), "query first"])
def test_nothing_is_printed_at_exit_with_torch(tmp_path: Path, order: str) -> None:
    """DuckDB's binding reports objects that are left at exit as leaks once torch is imported."""
    pytest.importorskip("torch")
    query = """
import sys
import shardex as sx
ds = sx.write(sys.argv[1], [{"n": k} for k in range(10)], progress=False)
view, table = ds.where("n > 3"), ds.sql("SELECT count(*) FROM ds")
try:
    ds.where("missing > 3")
except sx.ShardexError as error:
    kept = error
"""
    parts = ["import torch", query] if order == "torch first" else [query, "import torch"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts), str(tmp_path / "d")],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
