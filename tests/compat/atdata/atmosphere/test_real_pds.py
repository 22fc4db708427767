"""Accounts on a real server: one publishes, another one reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex import storage
from shardex.compat.atdata import Dataset, load_dataset, promote_to_atmosphere
from shardex.compat.atdata.atmosphere import (
    Atmosphere,
    AtmosphereIndex,
    DatasetLoader,
    LabelLoader,
    LabelPublisher,
    LensLoader,
    LensPublisher,
    PDSBlobStore,
    SchemaLoader,
    VerificationLoader,
    VerificationPublisher,
)
from shardex.compat.atdata.index import LocalDatasetEntry
from shardex.errors import AccessDeniedError, ConflictError, NotFoundError, RemoteError
from tests.compat.atdata.atmosphere.test_records import Digit, LocalSchemas, digits, halve
from tests.servers.pds import Pds

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:AtmosphereIndex is deprecated")]
THINGS = "org.example.thing"


@pytest.fixture
def accounts(pds: Pds) -> Iterator[tuple[Atmosphere, Atmosphere]]:
    """Two accounts, the first by the server that it names, the other one by that of its document."""
    storage("at://", service=pds.url, directory=pds.directory)
    one, other = pds.account(), pds.account()
    yield (
        Atmosphere.login(one.handle, one.password, base_url=pds.url),
        Atmosphere.login(other.handle, other.password),
    )
    storage("at://")


@pytest.fixture
def mine(accounts: tuple[Atmosphere, Atmosphere]) -> Atmosphere:
    return accounts[0]


@pytest.fixture
def other(accounts: tuple[Atmosphere, Atmosphere]) -> Atmosphere:
    return accounts[1]


def test_records_and_swap(mine: Atmosphere, other: Atmosphere, pds: Pds) -> None:
    uri = mine.create_record(THINGS, {"$type": THINGS, "n": 1})
    assert other.get_record(uri) == {"$type": THINGS, "n": 1} == Atmosphere(pds.url).get_record(str(uri))
    assert (
        Atmosphere.from_session(mine.export_session()).get_record(f"at://{mine.handle}/{THINGS}/{uri.rkey}")["n"] == 1
    )
    commit = mine._writer.query("com.atproto.sync.getLatestCommit", did=mine.did)["cid"]
    mine.put_record(THINGS, uri.rkey, {"$type": THINGS, "n": 2}, swap_commit=commit)
    with pytest.raises(ConflictError, match="InvalidSwap"):
        mine.put_record(THINGS, uri.rkey, {"$type": THINGS, "n": 3}, swap_commit=commit)
    with pytest.raises(ConflictError, match="InvalidSwap"):
        mine.delete_record(uri, swap_commit=commit)
    assert other.get_record(uri)["n"] == 2
    mine.delete_record(uri)
    with pytest.raises(NotFoundError):
        other.get_record(uri)


def test_pages(mine: Atmosphere, other: Atmosphere) -> None:
    for number in range(105):
        mine.create_record(THINGS, {"$type": THINGS, "n": number})
    page, cursor = other.list_records(THINGS, repo=mine.handle)
    rest, end = other.list_records(THINGS, repo=mine.did, cursor=cursor)
    assert (len(page), len(rest)) == (100, 5) and other.list_records(THINGS, repo=mine.did, cursor=end)[0] == []
    assert {one["n"] for one in page + rest} == {*range(105)}


def test_datasets(mine: Atmosphere, other: Atmosphere, tmp_path: Path) -> None:
    """Blobs, the schema and a label: the other account reads all, without the class."""
    entry = AtmosphereIndex(mine).insert_dataset(digits(tmp_path), name="digits", description="ten", tags=["small"])
    LabelPublisher(mine).publish("digits", entry.uri, version="1.0.0")
    found = LabelLoader(other).resolve(mine.handle, "digits")
    assert found == entry.uri and [one.name for one in AtmosphereIndex(other).list_datasets(mine.did)] == ["digits"]
    train = load_dataset(found, split="train", atmosphere=other)
    assert [one.label for one in train] == [*range(6)] and train[5].image.tolist() == [[5, 5], [5, 5]]
    assert [one.label for one in DatasetLoader(Atmosphere()).to_dataset(found, Digit)] == [*range(6)]
    typed = DatasetLoader(other).get_typed(found)
    assert (typed.name, typed.tags, typed.description) == ("digits", ["small"], "ten")
    assert SchemaLoader(other).get(f"@{mine.handle}/Digit@1.0.0") == SchemaLoader(other).get(typed.schema_ref)
    with pytest.raises(ValueError, match="expected a record of"):
        other.delete_record(found)


def test_store_and_promotion(mine: Atmosphere, other: Atmosphere, tmp_path: Path) -> None:
    ds = digits(tmp_path)
    urls = PDSBlobStore(mine).write_shards(ds, prefix="d")
    entry = LocalDatasetEntry("d", "atdata://local/schema/Digit@1.2.0", ds.list_shards(), {"rate": 0.5})
    uri = promote_to_atmosphere(entry, LocalSchemas(), mine, license="MIT")
    assert DatasetLoader(other).get_metadata(uri) == {"rate": 0.5}
    back: Dataset[Digit] = Dataset[Digit](PDSBlobStore(other).create_source(urls))
    assert [one.label for one in back] == [*range(6)] == [one.label for one in load_dataset(uri, split="train")]


def test_lenses_and_verifications(mine: Atmosphere, other: Atmosphere) -> None:
    code: dict[str, Any] = {"code_repository": "https://git.example/x", "code_commit": "abc"}
    schemas: dict[str, Any] = {"source_schema_uri": "at://did:plc:a/b/c", "target_schema_uri": "at://did:plc:a/b/d"}
    uri = LensPublisher(mine).publish_from_lens(halve, name="halve", **schemas, **code)
    assert len(LensLoader(other).find_by_schemas(schemas["source_schema_uri"], repo=mine.did)) == 1
    known: dict[str, Any] = {"lens_uri": str(uri), "lens_commit": "abc", "verification_method": "codeReview"}
    VerificationPublisher(other).publish(**known)
    assert len(VerificationLoader(mine).list_for_lens(str(uri), repo=other.handle)) == 1


def test_what_the_server_refuses(mine: Atmosphere, other: Atmosphere) -> None:
    with pytest.raises(AccessDeniedError, match="Invalid identifier or password"):
        Atmosphere.login(mine.handle, "wrong")
    with pytest.raises(RemoteError, match=r"float|number|record"):
        mine.create_record(THINGS, {"$type": THINGS, "x": 0.5})
    with pytest.raises(NotFoundError):
        other.get_blob(mine.did, "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy")


def test_blobs_by_the_core(mine: Atmosphere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sx.open`` opens a dataset of several blobs by its name in the account's catalog."""
    AtmosphereIndex(mine).insert_dataset(digits(tmp_path), name="digits")
    monkeypatch.setenv("SHARDEX_CATALOGS", f"lab=at://{mine.did}")
    ds = sx.open("@lab/digits")
    assert len(ds) == 6 and [one["label"] for one in ds] == [*range(6)]
