"""Datasets whose shards are blobs of an account: opened by name, checked against their CIDs, never written."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.catalog import Catalog, cid_of
from shardex.catalog.blobs import AccountBlobs
from shardex.catalog.cid import RAW
from shardex.catalog.lexicon import ENTRY
from shardex.errors import AddressError, ChecksumError, NotFoundError, RemoteError, TruncatedShardError
from shardex.sources import ByteRange, open_source, storage
from tests.servers.scripted_pds import DID, HANDLE, ScriptedPds, scripted_pds

GET = "com.atproto.sync.getBlob"


@pytest.fixture
def server() -> Iterator[ScriptedPds]:
    with scripted_pds() as server:
        storage("at://", service=server.url, directory=server.url, timeout=2, deadline=3, retries=1)
        yield server
        storage("at://")


@pytest.fixture
def urls(server: ScriptedPds, tmp_path: Path) -> list[str]:
    """A dataset of five shards in blobs, with an entry of another program."""
    sx.write(tmp_path / "d", [{"x": k} for k in range(10)], format="tar", shard_rows=2)
    shards = [one.read_bytes() for one in sorted((tmp_path / "d").glob("*.tar"))]
    server.blobs = {cid_of(one, RAW): one for one in shards}
    blobs = [{"blob": {"$type": "blob", "ref": {"$link": cid}, "size": 1}} for cid in server.blobs]
    where = {"$type": "science.alt.dataset.storageBlobs", "blobs": blobs}
    plain = {"$type": ENTRY, "name": "digits", "schemaRef": "at://x/y/z", "createdAt": "2026-01-01T00:00:00Z"}
    server.records[ENTRY, "3kaaa"] = {**plain, "storage": where}
    return [f"at://{DID}/blob/{cid}" for cid in server.blobs]


def test_open_by_name(server: ScriptedPds, urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CATALOGS", f"lab=at://{HANDLE}")
    assert len(urls) == 5 and Catalog(f"at://{HANDLE}").get("digits").urls == urls
    ds = sx.open("@lab/digits")
    assert ds["x"].tolist() == [*range(10)] and ds[7]["x"] == 7
    assert server.asked[GET] == 5, "each blob is fetched once"
    assert sx.open(ds.reference())["x"].tolist() == [*range(10)]
    assert sx.open(urls[1:3], format="tar")["x"].tolist() == [2, 3, 4, 5]


def test_blobs_are_checked(server: ScriptedPds, urls: list[str]) -> None:
    cid = urls[0].rpartition("/")[2]
    server.blobs[cid] = server.blobs[cid][:-1] + b"x"
    with pytest.raises(ChecksumError, match="the server changed it"):
        sx.open(urls, format="tar")
    del server.blobs[cid]
    with pytest.raises(NotFoundError, match="BlobNotFound"):
        sx.open(urls, format="tar")


def test_source(server: ScriptedPds, urls: list[str]) -> None:
    root, _, cid = urls[0].rpartition("/")
    source = pickle.loads(pickle.dumps(open_source(root, trusted=False)))
    assert isinstance(source, AccountBlobs) and source.stat(cid).tag == cid
    data = server.blobs[cid]
    assert bytes(source.map(cid)) == data and bytes(source.read(cid, [ByteRange(3, 5)])[0]) == data[3:8]
    with pytest.raises(TruncatedShardError, match="expected bytes up to"):
        source.read(cid, [ByteRange(0, len(data) + 1)])
    calls: list[Any] = [source.paths, lambda: source.put("a", b""), source.draft, lambda: source.remove(cid)]
    for call in calls:
        with pytest.raises(RemoteError, match="not listed, and not written"):
            call()


@pytest.mark.parametrize(
    "wrong", ["at://", "at://alice.example.com", "at://me@a.com/blob", "at://a.com/x", "at://a/blob/b/c"]
)
def test_wrong_addresses(wrong: str) -> None:
    with pytest.raises(AddressError, match="expected blobs of an account"):
        open_source(wrong)


def test_servers_that_documents_name_are_public(server: ScriptedPds, urls: list[str]) -> None:
    server.document["service"][0]["serviceEndpoint"] = "http://127.0.0.1:1"
    with pytest.raises(AddressError):
        sx.open(urls, format="tar")
