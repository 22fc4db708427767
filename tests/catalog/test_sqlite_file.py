"""A catalog in an SQLite file: other files, damage, forked processes, and what a read may wait for."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.catalog.sqlite_file import SqliteFile
from shardex.errors import FormatError, ShardexError, SourceError
from tests.catalog.test_catalog import content


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "inner" / "catalog.db")
    with sx.Catalog(path) as catalog:
        catalog.put("corpus", content(), description="all text")
    return path


def pragma(path: str, name: str) -> object:
    backend = SqliteFile(path)
    connection = backend._connection()
    assert connection is not None
    found = connection.execute(f"PRAGMA {name}").fetchone()[0]
    backend.close()
    return found


def test_a_put_is_on_the_disk_when_it_returns(path: str) -> None:
    assert pragma(path, "journal_mode") == "wal" and pragma(path, "synchronous") == 2


def test_other_files_are_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database " * 1000)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE x (y)")
    other.close()
    shutil.copy(path, tmp_path / "later.db")
    with sqlite3.connect(tmp_path / "later.db") as later:
        later.execute("PRAGMA user_version = 2")
    later.close()
    for name, message in {
        "text.db": "expected a catalog in an SQLite file, got: file is not a database",
        "other.db": "expected a catalog of version 1 in an SQLite file, got another database",
        "later.db": "got version 2: made by a later shardex",
    }.items():
        catalog = sx.Catalog(tmp_path / name)
        for call in (partial(catalog.get, "corpus"), partial(catalog.put, "corpus", content(1))):
            with pytest.raises(FormatError, match=message):
                call()
    with sqlite3.connect(tmp_path / "other.db") as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("x",)]
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    other.close()


def test_an_empty_file_becomes_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "c.db").touch()
    assert sx.Catalog(tmp_path / "c.db").put("corpus", content()).version == 1


def test_a_damaged_record_is_named_and_the_others_are_listed(path: str) -> None:
    catalog = sx.Catalog(path)
    catalog.put("other", content())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET record = x'7b7d' WHERE name = 1")
    connection.close()
    with pytest.raises(FormatError, match=r"catalog\.db: corpus: expected a record"):
        catalog.get("corpus")
    with pytest.warns(UserWarning, match=r"corpus: expected a record .*left out"):
        assert [record.name for record in catalog.list()] == ["other"]
    with pytest.warns(UserWarning, match="left out"):
        assert [*catalog.search("all")] == []
    catalog.remove("corpus@1")
    assert [record.name for record in catalog.list()] == ["other"]
    assert catalog.put("corpus", content(1)).version == 2


def test_a_full_disk_and_a_folder_that_cannot_be_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SqliteFile(path)
    connection = backend._connection()
    assert connection is not None
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    record = backend.head("corpus")[0]
    assert record is not None
    large = content(schema={f"x{k}": {"kind": "text"} for k in range(1000)})
    catalog = sx.Catalog(path)
    monkeypatch.setattr(catalog, "_backend", backend)
    with pytest.raises(SourceError, match="cannot write to the catalog: database or disk is full"):
        catalog.put("large", large)
    assert [one.name for one in catalog.list()] == ["corpus"] and backend.head("large") == (None, 0)
    with pytest.raises(ShardexError, match="cannot create the folder of"):
        sx.Catalog("/proc/none/c.db").put("corpus", content())


def test_a_lock_that_is_held_for_long_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.catalog.sqlite_file._WAIT", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SourceError, match=r"database is locked: another process has held its lock for 0\.05 seconds"):
        sx.Catalog(path).put("corpus", content(1))
    assert sx.Catalog(path).get("corpus").version == 1, "readers do not wait for writers"
    other.execute("ROLLBACK")
    other.close()


def test_a_file_that_was_replaced_is_opened_again(path: str, tmp_path: Path) -> None:
    """An acknowledged put must not go to a file that was deleted."""
    catalog = sx.Catalog(path)
    assert catalog.get("corpus").version == 1
    shutil.rmtree(os.path.dirname(path))
    assert [*catalog.list()] == []
    catalog.put("corpus", content(5))
    assert sx.Catalog(path).get("corpus").samples == 15


def _put(catalog: sx.Catalog, number: int) -> None:
    catalog.put("corpus", content(number))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_catalog_in_child_processes(path: str, method: str) -> None:
    catalog = sx.Catalog(path)
    assert catalog.get("corpus").version == 1  # a connection that a forked child inherits
    context: Any = multiprocessing.get_context(method)
    children = [context.Process(target=_put, args=(catalog, number)) for number in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    catalog.put("corpus", content(3))
    assert sorted(record.samples for record in catalog.history("corpus")) == [10, 11, 12, 13]


def test_an_index_that_this_sqlite_cannot_write_stops_a_put(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise others, whose SQLite has FTS5, would not find the record."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'fts5', 'fts9') WHERE name = 'words'")
    connection.close()
    with pytest.raises(ShardexError, match="no such module: fts9"):
        sx.Catalog(path).put("corpus", content(1))
    assert sx.Catalog(path).get("corpus").version == 1


def test_pages_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.catalog.sqlite_file._PAGE", 3)
    catalog = sx.Catalog(tmp_path / "c.db")
    names = [f"a{k}" for k in range(8)] + ["a", "b/a", "b", "a-", "a/x", "A"]
    for name in names:
        catalog.put(name, content(), description="same")
    assert [record.name for record in catalog.list()] == sorted(names) == [one.name for one in catalog.search("same")]
    assert [record.name for record in catalog.list("a")] == [name for name in sorted(names) if name.startswith("a")]
    assert [*catalog.list("é")] == [*catalog.list("zz")] == []
