"""Addresses with secrets in them, and addresses that data names: neither gets where it should not."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

import shardex as sx
from shardex.errors import AddressError, SchemaError, ShardexError
from shardex.sources import LocalSource, storage
from shardex.store.manifest import Manifest, publish, read_manifest
from tests.servers.faulty import FaultyServer

LINES = b'{"n": 1}\n{"n": 2}\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


def adopted(server: FaultyServer, folder: Path, address: str) -> None:
    """A manifest that names an address, as somebody else may have written it."""
    sx.adopt(server.url() + "/a.jsonl", folder)
    manifest = read_manifest(LocalSource(folder), 1)
    (fragment,) = manifest.fragments
    assert fragment.foreign is not None
    other = msgspec.structs.replace(fragment.foreign, what=address)
    changed: Manifest = msgspec.structs.replace(manifest, fragments=[msgspec.structs.replace(fragment, foreign=other)])
    assert publish(LocalSource(folder), 2, changed)


@pytest.mark.parametrize("spelled", ["http", "HTTP", "hTTp"])
@pytest.mark.parametrize("noted", [False, True])
def test_a_manifest_cannot_have_us_read_from_this_machine(
    web: FaultyServer, tmp_path: Path, spelled: str, noted: bool
) -> None:
    """However the address is spelled, and whatever waiting times are noted for all web servers."""
    web.files["a.jsonl"] = LINES
    adopted(web, tmp_path / "d", spelled + (web.url() + "/a.jsonl").removeprefix("http"))
    if noted:
        storage("http://", timeout=5.0)
    try:
        with pytest.raises(AddressError):
            list(sx.open(tmp_path / "d", trust_paths=True))
    finally:
        storage("http://")


def test_a_password_in_an_address_is_in_nothing_that_is_shown_or_kept(web: FaultyServer, tmp_path: Path) -> None:
    web.files["a.jsonl"] = LINES
    address = (web.url() + "/a.jsonl").replace("http://", "http://me:hunter2pw@")
    ds = sx.open(address)
    assert [sample.n for sample in ds] == [1, 2]
    sx.adopt(address, tmp_path / "beside")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "beside").rglob("*") if path.is_file())
    with pytest.raises(ShardexError) as refused:
        sx.open(address, format="parquet")
    assert b"hunter2pw" not in repr(ds).encode() + pickle.dumps(ds) + kept + str(refused.value).encode()


def test_a_signature_is_not_shown_and_not_kept_in_a_manifest(web: FaultyServer, tmp_path: Path) -> None:
    web.files["a.jsonl"] = LINES
    address = (web.url() + "/a.jsonl") + "?X-Amz-Signature=0f3a77"
    ds = sx.open(address)
    assert [sample.n for sample in ds] == [1, 2] and "0f3a77" not in repr(ds)
    with pytest.raises(SchemaError, match="with a secret") as refused:
        sx.adopt(address, tmp_path / "beside")
    assert "0f3a77" not in str(refused.value)
