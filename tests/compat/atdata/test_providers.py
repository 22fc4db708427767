"""Databases of an index: each does the same, in the tables and keys of atdata."""

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from shardex.compat.atdata import create_repository
from shardex.compat.atdata.index import LocalDatasetEntry
from shardex.compat.atdata.providers import IndexProvider, create_provider
from shardex.compat.atdata.providers._sqlite import SqliteProvider
from shardex.errors import FormatError
from tests.servers.redis_server import RedisServer

__all__ = ["redis_client"]


@pytest.fixture
def redis_client(running_redis: RedisServer) -> Iterator[Any]:
    """A client of an empty database on a real Redis."""
    redis = pytest.importorskip("redis")
    client = redis.Redis(port=running_redis.port, password=running_redis.password, db=9)
    client.flushdb()
    yield client
    client.close()


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """A real PostgreSQL, for the tests of this file."""
    pytest.importorskip("psycopg")
    folders = [os.environ.get("PATH", ""), *glob("/usr/lib/postgresql/*/bin")]  # where Debian has them
    programs = [shutil.which(name, path=os.pathsep.join(folders)) for name in ("initdb", "pg_ctl")]
    if not all(programs):
        pytest.skip("needs PostgreSQL: initdb and pg_ctl")
    user = "postgres" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if user:
            shutil.chown(folder, user)

        def run(program: str | None, *arguments: str) -> None:
            command = [str(program), "-D", f"{folder}/data", *arguments]
            subprocess.run(command, check=True, user=user, stdout=subprocess.DEVNULL, cwd=folder)

        run(programs[0], "-A", "trust", "-U", "tester")
        options = f"-k {folder} -c listen_addresses="
        run(programs[1], "start", "-w", "-o", options, "-l", f"{folder}/log")
        try:
            yield f"host={folder} user=tester dbname=postgres"
        finally:
            run(programs[1], "stop", "-m", "immediate")


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexProvider]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        made = create_provider("sqlite", path=tmp_path / "new" / "index.db")
    elif request.param == "redis":
        made = create_provider("redis", redis=request.getfixturevalue("redis_client"))
    else:
        made = create_provider("postgres", dsn=request.getfixturevalue("dsn"))
        for table in ("dataset_entries", "schemas", "labels", "lenses"):
            made.run(f"DELETE FROM {table}")  # type: ignore[attr-defined]
    yield made
    made.close()


def entry(name: str, url: str = "a.tar", **metadata: Any) -> LocalDatasetEntry:
    return LocalDatasetEntry(name, "atdata://local/schema/Point@1.0.0", [url], metadata or None)


def test_entries(provider: IndexProvider) -> None:
    first, second = entry("a", "1.tar", tags=["x"], n=1), entry("b", "2.tar")
    for one in (first, second):
        provider.store_entry(one)
    assert provider.get_entry_by_cid(first.cid) == first
    assert provider.get_entry_by_name("b") == second
    assert {one.name for one in provider.iter_entries()} == {"a", "b"}
    provider.store_entry(entry("a", "1.tar"))  # the same shards
    assert provider.get_entry_by_cid(first.cid).metadata is None
    for wrong, text in (
        (provider.get_entry_by_cid, "LocalDatasetEntry not found: c"),
        (provider.get_entry_by_name, "c"),
    ):
        with pytest.raises(KeyError, match=text):
            wrong("c")


def test_of_several_entries_with_one_name_the_last_is_returned(provider: IndexProvider) -> None:
    for number in range(5):
        one = entry("a", f"{number}.tar")
        provider.store_entry(one)
        provider.store_label("a", one.cid)
    assert provider.get_entry_by_name("a").data_urls == ["4.tar"]


def test_labels(provider: IndexProvider) -> None:
    provider.store_label("m", "c1", "1.0.0", "first")
    provider.store_label("m", "c2", "2.0.0")
    provider.store_label("m@x", "c3")
    provider.store_label("m*", "c4")
    assert provider.get_label("m") == ("c2", "2.0.0")
    assert provider.get_label("m", "1.0.0") == ("c1", "1.0.0")
    assert provider.get_label("m*") == ("c4", None)
    provider.store_label("m", "c5", "1.0.0")
    assert provider.get_label("m") == ("c5", "1.0.0")
    provider.store_label("m", "c6")
    assert provider.get_label("m") == ("c6", None)
    assert set(provider.iter_labels()) == {
        ("m", "c5", "1.0.0"),
        ("m", "c2", "2.0.0"),
        ("m", "c6", None),
        ("m@x", "c3", None),
        ("m*", "c4", None),
    }
    with pytest.raises(KeyError, match="No label with name: 'm' version: '9'"):
        provider.get_label("m", "9")
    with pytest.raises(KeyError, match="No label with name: 'none'"):
        provider.get_label("none")


def test_schemas_and_lenses(provider: IndexProvider) -> None:
    for version in ("1.9.0", "1.10.0", "draft"):
        provider.store_schema("Point", version, f'{{"version": "{version}"}}')
        provider.store_lens("flip", version, '{"source_schema": "A", "view_schema": "B"}')
    provider.store_lens("other", "1.0.0", '{"source_schema": "A", "view_schema": "C"}')
    provider.store_lens("broken", "1.0.0", "no JSON")
    assert (provider.find_latest_version("Point"), provider.find_latest_version("No")) == ("1.10.0", None)
    assert provider.find_latest_lens_version("flip") == "1.10.0"
    assert provider.get_schema_json("Point", "1.9.0") == '{"version": "1.9.0"}'
    assert provider.get_schema_json("Point", "3.0.0") is None is provider.get_lens_json("flip", "3.0.0")
    assert len(list(provider.iter_schemas())) == 3
    assert [one[0] for one in provider.find_lenses_by_schemas("A", "C")] == ["other"]
    assert len(provider.find_lenses_by_schemas("A")) == 4
    assert {one[0] for one in provider.iter_lenses()} == {"flip", "other", "broken"}


def test_create_provider(tmp_path: Path) -> None:
    assert create_repository(path=tmp_path / "i.db").data_store is None
    with pytest.raises(ValueError, match=r"Unknown provider 'nosql'\. Choose from"):
        create_provider("nosql")
    with pytest.raises(ValueError, match="dsn is required"):
        create_provider("postgres")
    with pytest.raises(ValueError, match="got host"):
        create_provider("sqlite", host="localhost")
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(FormatError, match=r"SQLite file.*text\.db"):
        create_provider("sqlite", path=tmp_path / "text.db")
    with pytest.raises(ValueError, match="decode_responses"):
        create_provider("redis", redis=pytest.importorskip("redis").Redis(decode_responses=True))


def put_entries(path: Path, begin: int) -> None:
    """Store entries, as one of several processes."""
    provider = SqliteProvider(path)
    for number in range(begin, begin + 20):
        provider.store_entry(entry(f"d{number}", f"{number}.tar"))


def test_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    processes = [multiprocessing.Process(target=put_entries, args=(path, 20 * k)) for k in range(3)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    assert [one.exitcode for one in processes] == [0, 0, 0]
    assert len(list(SqliteProvider(path).iter_entries())) == 60


def test_broken_entries_are_errors(tmp_path: Path) -> None:
    provider = SqliteProvider(tmp_path / "index.db")
    with closing(sqlite3.connect(tmp_path / "index.db")) as file, file:
        file.execute("INSERT INTO dataset_entries (cid, name, schema_ref, data_urls) VALUES ('c', 'n', 's', x'c1')")
        file.execute("INSERT INTO dataset_entries (cid, name, schema_ref, data_urls) VALUES ('d', 'm', 's', x'01')")
    for name in ("n", "m"):
        with pytest.raises(FormatError):
            provider.get_entry_by_name(name)


def test_old_schemas_in_redis_have_a_module(redis_client: Any) -> None:
    provider = create_provider("redis", redis=redis_client)
    redis_client.set("LocalSchema:lab.data.Point@1.0.0", "{}")
    assert list(provider.iter_schemas()) == [("Point", "1.0.0", "{}")]
    with suppress(KeyError):
        provider.get_label("m")
    redis_client.hset("Label:m@1.0.0", mapping={"cid": "old", "name": "m", "version": "1.0.0"})
    redis_client.hset("Label:m@2.0.0", mapping={"cid": "new", "name": "m", "version": "2.0.0"})
    assert provider.get_label("m") == ("new", "2.0.0")  # without times: the highest version
    provider.store_label("m", "newest", "1.5.0")
    assert provider.get_label("m") == ("newest", "1.5.0")
