"""URLs with secrets are neither shown nor stored; URLs in manifests cannot reach private hosts; servers that lie."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import shardex as sx
from shardex.errors import AddressError, ArgumentError, NotFoundError, RemoteError, ShardexError
from shardex.native.fragment_list import FragmentList
from shardex.native.manifest import Manifest, publish, read_manifest
from shardex.sources import LocalSource, storage
from tests.servers.faulty import FaultyServer

LINES = b'{"n": 1}\n{"n": 2}\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


def adopted(server: FaultyServer, folder: Path, url: str) -> None:
    """Write a manifest that names this URL, as an attacker could."""
    storage(server.url(), headers={"x-own": "1"})  # adopt refuses servers that cannot be opened later
    try:
        sx.adopt(server.url() + "/a.jsonl", folder)
    finally:
        storage(server.url())
    manifest = read_manifest(LocalSource(folder), 1)
    (fragment,) = manifest.fragments
    assert fragment.foreign is not None
    other = msgspec.structs.replace(fragment.foreign, what=url)
    changed: Manifest = msgspec.structs.replace(
        manifest, fragments=FragmentList([msgspec.structs.replace(fragment, foreign=other)])
    )
    assert publish(LocalSource(folder), 2, changed)


@pytest.mark.parametrize("scheme", ["http", "HTTP", "hTTp"])
@pytest.mark.parametrize("configured", [False, True])
def test_url_in_a_manifest_cannot_reach_private_hosts(
    web: FaultyServer, tmp_path: Path, scheme: str, configured: bool
) -> None:
    """In any spelling of the scheme, and with settings for all web servers."""
    web.files["a.jsonl"] = LINES
    adopted(web, tmp_path / "d", scheme + (web.url() + "/a.jsonl").removeprefix("http"))
    if configured:
        storage("http://", timeout=5.0)
    try:
        with pytest.raises(AddressError):
            list(sx.open(tmp_path / "d", trust_paths=True))
    finally:
        storage("http://")


def test_password_in_a_url_is_neither_shown_nor_stored(web: FaultyServer, tmp_path: Path) -> None:
    web.files["a.jsonl"] = LINES
    url = (web.url() + "/a.jsonl").replace("http://", "http://me:hunter2pw@")
    ds = sx.open(url)
    assert [sample.n for sample in ds] == [1, 2]
    sx.adopt(url, tmp_path / "beside")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "beside").rglob("*") if path.is_file())
    with pytest.raises(ShardexError) as refused:
        sx.open(url, format="parquet")
    assert b"hunter2pw" not in repr(ds).encode() + pickle.dumps(ds) + kept + str(refused.value).encode()


def test_signature_in_a_url_is_neither_shown_nor_stored(web: FaultyServer, tmp_path: Path) -> None:
    web.files["a.jsonl"] = LINES
    url = (web.url() + "/a.jsonl") + "?X-Amz-Signature=0f3a77"
    ds = sx.open(url)
    assert [sample.n for sample in ds] == [1, 2] and "0f3a77" not in repr(ds)
    with pytest.raises(ArgumentError, match="with a secret") as refused:
        sx.adopt(url, tmp_path / "beside")
    assert "0f3a77" not in str(refused.value)


@pytest.mark.parametrize("access", ["auto", "whole", "ranged"])
@pytest.mark.parametrize("format", ["tar", "parquet", "arrow", "bins"])
def test_server_that_declares_terabytes_costs_no_memory(
    web: FaultyServer, tmp_path: Path, access: str, format: str
) -> None:
    """The size is only declared, so nothing of that size may be made before the bytes have come."""
    if format == "arrow":
        with pa.ipc.new_stream(tmp_path / "a.arrow", (table := pa.table({"n": range(20)})).schema) as out:
            out.write_table(table)
        name = tmp_path / "a.arrow"
    else:
        sx.write(tmp_path / "d", [{"data": bytes([k])} for k in range(20)], format=format)
        name = next(path for path in (tmp_path / "d").iterdir() if path.is_file() and path.name != "index.dat")
    web.files[name.name] = name.read_bytes()
    tracemalloc.start()
    with pytest.raises(ShardexError):
        list(sx.open(f"{web.url('huge')}/{name.name}", access=access, format=format))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 256 << 20 and web.asked.total() < 50


def test_size_that_no_file_can_have_is_refused(web: FaultyServer) -> None:
    web.files["a.jsonl"], web.huge = b"{}", 1 << 62
    with pytest.raises(RemoteError, match=r"expected a file of at most \d+ bytes, got one of 4611686018427387904"):
        sx.open(f"{web.url('huge')}/a.jsonl")


def test_server_without_head_requests_is_read_by_get(web: FaultyServer) -> None:
    web.files["a.jsonl"] = b'{"n": 1}\n{"n": 2}\n'
    assert [sample.n for sample in sx.open(f"{web.url('unknownhead')}/a.jsonl")] == [1, 2]
    with pytest.raises(NotFoundError):
        sx.open(f"{web.url('unknownhead')}/b.jsonl")
