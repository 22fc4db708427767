"""The backend on real servers: requests, index, kills, full and read-only servers, passwords, TLS, keys of atdata."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardex as sx
from shardex import storage
from shardex.catalog import Catalog
from shardex.catalog.redis import RedisServer as Backend
from shardex.errors import (
    AccessDeniedError,
    AddressError,
    FormatError,
    MissingExtraError,
    RemoteError,
    StorageFullError,
)
from tests.catalog.backends import content
from tests.faults.processes import FULL
from tests.servers.redis_server import PASSWORD, RedisServer, redis_server
from tests.waiting import becomes_true

redis = pytest.importorskip("redis")

KILLS = 30 if FULL else 3


@pytest.fixture
def catalog(redis_url: str) -> Iterator[Catalog]:
    """An empty catalog on a server with a password."""
    with Catalog(redis_url) as catalog:
        yield catalog


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test, without a password."""
    with redis_server(tmp_path / "redis") as server:
        storage(server.url().rpartition("/")[0], retries=10, timeout=5)
        yield server
        storage(server.url().rpartition("/")[0])


def client_of(server: RedisServer) -> Any:
    return redis.Redis(port=server.port, password=server.password or None)


# -- URLs and values ------------------------------------------------------------------------------------------


def test_urls() -> None:
    assert Backend("redis://host").url == "redis://host"
    assert Backend("rediss://me:pw@[::1]:1/2/team/a").url == "rediss://[::1]:1/2/team/a"
    storage("rediss://[::1]:1")
    assert (Backend("redis://host/7")._key("names"), Backend("redis://host/7a")._key("names")) == (
        "shardex:names",
        "7a:names",
    )
    for wrong in ("redis://", "redis://host:x", "redis://host/0/a*b", "redis://host/0?x=1"):
        with pytest.raises(AddressError, match="redis://host:port/number/prefix"):
            Backend(wrong)


def test_password_is_shown_nowhere(redis_url: str) -> None:
    assert PASSWORD in redis_url
    assert PASSWORD not in f"{Backend(redis_url).url} {Catalog(redis_url)!r}"


def test_prefixes_are_catalogs_of_their_own(running_redis: RedisServer, redis_url: str) -> None:
    with Catalog(redis_url) as one, Catalog(f"{redis_url}/inner") as other:
        one.put("a", content(1))
        assert [list(each.list()) for each in (one, other)] == [[one.get("a")], []]


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"shardex\[redis\]"):
        Catalog("redis://127.0.0.1:1").get("a")


# -- requests and the index -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", ["a", "a@1", "a:stable"])
def test_get_is_one_request(server: RedisServer, ref: str) -> None:
    with Catalog(server.url()) as catalog, client_of(server) as client:
        catalog.put("a", content(1))
        catalog.tag("a", "stable", 1)
        catalog.get(ref)
        client.config_resetstat()
        assert catalog.get(ref).fingerprint == "f1"
        calls = {name: counts["calls"] for name, counts in client.info("commandstats").items()}
        assert calls.pop("cmdstat_evalsha") == 1
        assert set(calls) <= {"cmdstat_hlen", "cmdstat_hget", "cmdstat_config|resetstat"}  # the first two by the script


def test_index_has_the_terms_of_the_newest_records(server: RedisServer) -> None:
    with Catalog(server.url()) as catalog, client_of(server) as client:
        catalog.put("a", content(1), description="red apples", tags=["fruit"])
        before = client.zrange("shardex:index", 0, -1)
        assert b"w:apples\0a" in before and b"t:fruit\0a" in before
        catalog.put("a", content(2, {"x": {}}), description="green", tags=[])
        assert client.zrange("shardex:index", 0, -1) == [b"f:x\0a", b"w:a\0a", b"w:green\0a", b"w:x\0a"]
        catalog.remove("a@2")
        assert client.zrange("shardex:index", 0, -1) == before
        assert [str(one) for one in catalog.search("app", tags=["fruit"])] == ["a@1"]
        catalog.remove("a")
        assert client.zrange("shardex:index", 0, -1) == []
        assert catalog.put("a", content(1)).version == 3


def test_words_that_begin_alike(catalog: Catalog) -> None:
    for name, text in (("a", "tree"), ("b", "trees über"), ("c", "tre")):
        catalog.put(name, content(name), description=text, tags=[text])
    assert [one.name for one in catalog.search("tree")] == ["a", "b"]
    assert [one.name for one in catalog.search("ÜB")] == ["b"]
    assert [one.name for one in catalog.search(tags=["tree"])] == ["a"]


def test_lists_are_read_in_pieces(catalog: Catalog) -> None:
    names = sorted(f"n{number}" for number in range(1203))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: catalog.put(name, content(name)), names))
    assert [one.name for one in catalog.list()] == names
    assert [one.name for one in catalog.list("n12")] == [name for name in names if name.startswith("n12")]


def test_other_keys_of_the_prefix(running_redis: RedisServer, catalog: Catalog, redis_url: str) -> None:
    with client_of(running_redis) as client:
        client.set(f"{redis_url.rpartition('/')[2]}:versions:a", "text")
    with pytest.raises(RemoteError, match="another program uses keys of this prefix"):
        catalog.get("a")


# -- writers --------------------------------------------------------------------------------------------------


def test_writers_at_the_same_time(redis_url: str) -> None:
    def work(writer: int) -> list[int]:
        with Catalog(redis_url) as catalog:
            return [catalog.put("a", content(f"{writer}-{number}")).version for number in range(25)]

    with ThreadPoolExecutor(4) as threads, Catalog(redis_url) as catalog:
        versions = [version for found in threads.map(work, range(4)) for version in found]
        assert sorted(versions) == list(range(1, 101))
        assert len({one.fingerprint for one in catalog.history("a")}) == 100


class Proxy:
    """Passes bytes on to a server; closes one connection instead of passing on an answer when told so."""

    def __init__(self, port: int) -> None:
        self._to, self.lose = port, False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._socket.accept()
                theirs = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._pass, args=(ours, theirs, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(theirs, ours, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                if answers and self.lose:
                    self.lose = False
                    target.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)

    def close(self) -> None:
        self._socket.close()


def test_a_lost_answer_is_not_a_lost_race(server: RedisServer) -> None:
    proxy = Proxy(server.port)
    backend = Backend(f"redis://127.0.0.1:{proxy.port}")
    with Catalog(server.url()) as catalog:
        record = catalog.put("a", content(1))
        assert backend.head("a") == (record, 1)
        proxy.lose = True
        assert backend.append("a", 2, msgspec.structs.replace(record, version=2))
        assert not proxy.lose and backend.head("a")[1] == 2
        assert not backend.append("a", 2, msgspec.structs.replace(record, version=2))
    backend.close()
    proxy.close()


def test_kills_lose_nothing(server: RedisServer) -> None:
    """The server ends at random moments and starts again; the writer does not notice."""
    acknowledged: list[tuple[int, str]] = []
    over = threading.Event()

    def write() -> None:
        with Catalog(server.url()) as catalog:
            while not over.is_set():
                record = catalog.put("a", content(len(acknowledged)))
                acknowledged.append((record.version, record.fingerprint))

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            for _ in range(KILLS):
                time.sleep(random.uniform(0.01, 0.2))
                server.kill()
                server.start()
        finally:
            over.set()
        writing.result()
    with Catalog(server.url()) as catalog:
        assert [(one.version, one.fingerprint) for one in catalog.history("a")] == acknowledged
        assert [version for version, _ in acknowledged] == list(range(1, len(acknowledged) + 1))


# -- servers that refuse --------------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    storage("redis://127.0.0.1:1", retries=1)
    with pytest.raises(RemoteError, match=r"check the URL and that the server runs.*refused"):
        Catalog("redis://127.0.0.1:1").get("a")
    storage("redis://127.0.0.1:1")


def test_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}"
        storage(url, retries=1, timeout=0.05)
        with pytest.raises(RemoteError, match="no answer in time"):
            Catalog(url).get("a")
        storage(url)


@pytest.mark.parametrize("password", ["", "wrong-password"])
def test_passwords(running_redis: RedisServer, password: str) -> None:
    url = f"redis://localhost:{running_redis.port}"
    storage(url, retries=1, **({"password": password} if password else {}))
    with pytest.raises(AccessDeniedError, match=rf"sx.storage\('{url}/0/x', password=") as caught:
        Catalog(f"{url}/0/x").get("a")
    assert not password or password not in str(caught.value)
    storage(url, password=PASSWORD)
    assert list(Catalog(f"{url}/0/nothing").list()) == []
    storage(url)


def test_full_server(tmp_path: Path) -> None:
    memory = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"]
    with redis_server(tmp_path, *memory) as server, Catalog(server.url()) as catalog:
        texts = (random.Random(number).randbytes(40_000).hex() for number in range(1000))
        last = 0
        with pytest.raises(StorageFullError, match=r"nothing was stored; raise maxmemory"):  # noqa: PT012
            for number, text in enumerate(texts):
                last = catalog.put("a", content(number), description=text).version
        assert last > 5
        assert catalog.get("a").version == len(catalog.history("a")) == last
        client_of(server).config_set("maxmemory", 0)
        assert catalog.put("a", content("more"), description="").version == last + 1


def test_server_that_forgets_keys(tmp_path: Path) -> None:
    memory = ["--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"]
    with (
        redis_server(tmp_path, *memory) as server,
        Catalog(server.url()) as catalog,
        pytest.raises(RemoteError, match=r"keeps all keys, got .*allkeys-lru"),
    ):
        catalog.put("a", content(1))


def test_replica(server: RedisServer, tmp_path: Path) -> None:
    options = ["--replicaof", "127.0.0.1", str(server.port)]
    client_of(server).config_set("repl-diskless-sync-delay", 0)
    with redis_server(tmp_path / "replica", *options) as replica, Catalog(replica.url()) as catalog:
        Catalog(server.url()).put("a", content(1))
        assert becomes_true(lambda: list(catalog.list()))
        assert catalog.get("a").fingerprint == "f1"
        with pytest.raises(AccessDeniedError, match="use the URL of the primary server"):
            catalog.put("a", content(2))


def test_tls(tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    made += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    options = ["--port", "0", "--tls-port", "PORT", *files, "--tls-auth-clients", "no"]
    with redis_server(tmp_path / "redis", *options, password=PASSWORD) as server:
        url = server.url("0/x", "rediss")
        place = Backend(url).url
        storage(place, password=PASSWORD, retries=0)
        with pytest.raises(RemoteError, match="certificate verify failed"):
            Catalog(url).get("a")
        for more in ({"ca_file": str(certificate)}, {"allow_invalid_certificates": True}):
            storage(place, password=PASSWORD, **more)
            with Catalog(place) as catalog:
                catalog.put("a", content(1))
                assert catalog.get("a").fingerprint == "f1"
        storage(place)
    storage(url.rpartition("/0/")[0].replace(f":{PASSWORD}@", ""))


# -- entries of atdata ----------------------------------------------------------------------------------------

CID = "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua"


def put_entry(server: RedisServer, name: str, cid: str = CID, **values: Any) -> None:
    """Store an entry as atdata does."""
    encoded = {key: msgspec.msgpack.encode(value) for key, value in values.items()}
    plain = {"name": name, "schema_ref": "atdata://local/sampleSchema/Digit@1.0.0", "cid": cid}
    client_of(server).hset(f"LocalDatasetEntry:{cid}", mapping={**plain, **encoded})


def test_entries_of_atdata(server: RedisServer) -> None:
    put_entry(server, "My Digits", data_urls=["s3://bucket/{0..3}.tar"], metadata={"split": "train"})
    put_entry(server, "mnist", CID[:-1] + "b", data_urls=["https://h.example/a.tar", "https://h.example/b.tar"])
    with Catalog(server.url()) as catalog:
        catalog.put("a", content(1))
        catalog.put("z", content(1))
        assert [str(one) for one in catalog.list()] == ["My-Digits@1", "a@1", "mnist@1", "z@1"]
        record = catalog.get("My-Digits")
        assert record == catalog.get("My-Digits@1") == catalog.history("My-Digits")[0]
        assert (record.urls, record.fingerprint) == (["s3://bucket/{0..3}.tar"], f"unknown:{CID}")
        assert record.extra["title"] == "My Digits" and record.extra["metadata"] == {"split": "train"}
        assert record.extra["schema_ref"] == "atdata://local/sampleSchema/Digit@1.0.0"
        assert [str(one) for one in catalog.search("digit")] == ["My-Digits@1"]
        catalog.put("mnist", content(7))
        assert [one.fingerprint for one in (catalog.get("mnist"), *catalog.history("mnist"))] == ["f7", "f7"]


def test_entries_of_one_name_are_its_versions(server: RedisServer) -> None:
    cids = [CID[:-1] + letter for letter in "ecd"]
    for cid in cids:
        put_entry(server, "same", cid, data_urls=[f"s3://bucket/{cid}.tar"])
    with Catalog(server.url()) as catalog:
        assert [one.fingerprint[-59:] for one in catalog.history("same")] == sorted(cids)
        assert [one.version for one in catalog.history("same")] == [1, 2, 3]
        assert catalog.get("same@2").urls == [f"s3://bucket/{sorted(cids)[1]}.tar"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "no 'data_urls'"),
        ({"data_urls": 5}, "Expected `array`, got `int`"),
        ({"data_urls": []}, "length >= 1"),
        ({"data_urls": ["a"], "metadata": [1]}, "Expected `object`, got `array`"),
    ],
)
def test_damaged_entries_of_atdata(server: RedisServer, values: dict[str, Any], told: str) -> None:
    put_entry(server, "broken", **values)
    put_entry(server, "whole", CID[:-1] + "b", data_urls=["s3://bucket/a.tar"])
    with Catalog(server.url()) as catalog, pytest.warns(UserWarning, match=f"{told}.*; it is left out"):
        assert [one.name for one in catalog.list()] == ["whole"]


def test_damaged_records(server: RedisServer) -> None:
    with Catalog(server.url()) as catalog, client_of(server) as client:
        for name in ("a", "b"):
            catalog.put(name, content(name))
            catalog.put(name, content(name), description="again")
        client.hset("shardex:versions:a", "2", '{"name": "a"}')
        with pytest.raises(FormatError, match=r"redis://.*: a: expected a record of a dataset"):
            catalog.get("a")
        with pytest.warns(UserWarning, match="expected a record of a dataset.*; it is left out"):
            assert [str(one) for one in catalog.list()] == ["b@2"]
        with pytest.warns(UserWarning, match="it is left out"):
            assert [str(one) for one in catalog.history("a")] == ["a@1"]


def test_an_entry_of_atdata_is_opened(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = sx.write(tmp_path / "d", [{"__key__": "a", "n": 1}, {"__key__": "b", "n": 2}], format="tar")
    put_entry(server, "digits", data_urls=[str(path) for path in (tmp_path / "d").glob("*.tar")])
    monkeypatch.setenv("SHARDEX_CATALOGS", f"team={server.url()}")
    with pytest.raises(AddressError, match="expected a URL in a record of a catalog that others write to"):
        sx.open("@team/digits")
    assert list(sx.open("@team/digits", trusted=True)) == list(ds)
