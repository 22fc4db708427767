"""Catalogs on ATProto: lost answers, races and foreign entries by a script; readers, blobs, pages on a real server."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex import storage
from shardex.catalog import Catalog
from shardex.catalog.atproto import AtprotoAccount
from shardex.catalog.lexicon import ENTRY, LABEL, LENS, OLD_ENTRY, OLD_LENS, OLD_SCHEMA, SCHEMA, key_of
from shardex.catalog.xrpc import XrpcClient, find_account
from shardex.errors import (
    AccessDeniedError,
    AddressError,
    ArgumentError,
    CatalogError,
    ChecksumError,
    ConflictError,
    FormatError,
    LensError,
    RemoteError,
)
from shardex.sources.credentials import settings_for
from tests.catalog.backends import content
from tests.servers.pds import Pds
from tests.servers.scripted_pds import DID, HANDLE, PASSWORD, ScriptedPds, scripted_pds

WRITE = "com.atproto.repo.applyWrites"
URL = f"at://{HANDLE}"


@pytest.fixture
def server() -> Iterator[ScriptedPds]:
    with scripted_pds() as server:
        settings: dict[str, Any] = {"service": server.url, "directory": server.url, "timeout": 2, "deadline": 3}
        settings["retries"] = 2
        storage("at://", **settings)
        storage(URL, password=PASSWORD, **settings)
        yield server
        storage(URL)
        storage("at://")


def entry(name: str, url: str = "s3://bucket/a.tar", **known: Any) -> dict[str, Any]:
    """An entry as atdata writes it."""
    where = {"$type": "science.alt.dataset.storageExternal", "urls": [url]}
    plain = {"$type": ENTRY, "name": name, "schemaRef": "at://x/y/z", "storage": where}
    return {**plain, "createdAt": "2026-01-01T00:00:00Z", **known}


def test_urls() -> None:
    assert AtprotoAccount(f"at://{DID}").url == f"at://{DID}"
    for wrong in ("at://", "at:///", "at://a.com/x", "at://me@a.com", "at://a.com?x"):
        with pytest.raises(AddressError, match="expected at:// and the handle or DID"):
            AtprotoAccount(wrong)


def test_what_is_published(server: ScriptedPds) -> None:
    catalog = Catalog(URL)
    for number in range(2):
        catalog.put("team/digits", content(number, {"x": {"kind": "text"}}), description="ten", tags=["small"])
    catalog.tag("team/digits", "stable", 1)
    assert {place[0] for place in server.records} == {ENTRY, LABEL, SCHEMA} and server.commits == 3
    second = server.records[ENTRY, key_of("team/digits", "2")]
    assert (second["name"], second["description"], second["tags"]) == ("team/digits", "ten", ["small"])
    uri = f"at://{DID}/{ENTRY}/"
    label = server.records[LABEL, key_of("team/digits")]
    assert (label["datasetUri"], label["version"]) == (uri + key_of("team/digits", "2"), "2")
    stable = server.records[LABEL, key_of("team/digits", "stable")]
    assert (stable["datasetUri"], stable["version"]) == (uri + key_of("team/digits", "1"), "stable")
    assert second["schemaRef"] in {f"at://{DID}/{SCHEMA}/{key}" for kind, key in server.records if kind == SCHEMA}
    assert stable["createdAt"] < label["createdAt"], "the label of the name is the latest one"
    catalog.remove("team/digits@2")
    label = server.records[LABEL, key_of("team/digits")]
    assert label["datasetUri"] == uri + key_of("team/digits", "1") and label["shardex"] == {"newest": 1, "used": 2}


def test_names_of_a_catalog(server: ScriptedPds) -> None:
    catalog = Catalog(URL)
    for name in ("b", "a", "a/c", "d"):
        catalog.put(name, content(name))
    catalog.put("a", content(2))
    catalog.remove("d")
    assert [str(one) for one in catalog.list()] == ["a@2", "a/c@1", "b@1"]
    assert [str(one) for one in catalog.list("a/")] == ["a/c@1"] and [str(one) for one in catalog.search("b")] == [
        "b@1"
    ]
    assert list(AtprotoAccount(URL).names()) == ["a", "a/c", "b", "d"]
    assert [str(one) for one in catalog.history("a")] == ["a@1", "a@2"]


def test_reading_needs_no_password(server: ScriptedPds) -> None:
    record = Catalog(URL).put("a", content(1))
    storage(URL)
    assert Catalog(f"at://{DID}", trusted=True).get("a") == Catalog(URL, trusted=True).get("a@1") == record
    with pytest.raises(AccessDeniedError, match=rf"sx.storage\('{URL}', password="):
        Catalog(URL).put("a", content(2))


def test_local_files_are_not_published(server: ScriptedPds, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": 1}])
    with pytest.raises(ArgumentError, match="expected URLs that others can read"):
        Catalog(URL).put("a", ds)
    assert not server.records


@pytest.mark.parametrize("step", ["lost", "reset"])
def test_an_answer_is_lost(server: ScriptedPds, step: str) -> None:
    """The same commit is not made twice, and no race is lost against oneself."""
    catalog = Catalog(URL)
    catalog.put("a", content(0))
    server.script[WRITE] = [step]
    assert catalog.put("a", content(1)).version == 2
    server.script[WRITE] = [step] * 3  # all attempts: the outcome is unknown, and looked at
    assert catalog.put("a", content(2)).version == 3
    assert [one.version for one in catalog.history("a")] == [1, 2, 3] and server.commits == 3


def test_others_write_at_the_same_time(server: ScriptedPds) -> None:
    with ThreadPoolExecutor(4) as threads:
        put = [threads.submit(Catalog(URL).put, "a", content(number)) for number in range(12)]
        assert sorted(one.result().version for one in put) == list(range(1, 13))
    assert len({one.fingerprint for one in Catalog(URL).history("a")}) == 12
    with pytest.raises(ConflictError, match="expected version 3"):
        Catalog(URL).put("a", content("x"), expect=3)


def test_busy_server_leaves_nothing_half_written(server: ScriptedPds) -> None:
    Catalog(URL).put("a", content(0))
    before = dict(server.records)
    server.script[WRITE] = [(429, {"error": "RateLimitExceeded"}, {"Retry-After": "900"})]
    with pytest.raises(RemoteError, match="nothing was changed: it allows the next request in 900 s"):
        Catalog(URL).put("a", content(1))
    assert server.records == before


def test_server_that_lies(server: ScriptedPds) -> None:
    catalog = Catalog(URL)
    catalog.put("a", content(1))
    place = ENTRY, key_of("a", "1")
    good = server.stored(place)
    server.script["com.atproto.repo.getRecord"] = [(200, {**good, "value": {**good["value"], "license": "x"}}, {})]
    with pytest.raises(ChecksumError, match="the server changed it"):
        catalog.get("a@1")
    catalog.put("b", content(2))
    server.records[place] = server.records[ENTRY, key_of("b", "1")]
    with pytest.raises(FormatError, match="expected the record of a@1, got that of b@1"):
        catalog.get("a")
    server.records[LABEL, key_of("a")]["shardex"] = {"newest": "1"}
    with pytest.raises(FormatError, match="expected a number of a version, got '1'"):
        catalog.get("a")


@pytest.mark.filterwarnings("default:.*storageOther.*it is left out")
def test_entries_of_other_programs(server: ScriptedPds) -> None:
    server.records[ENTRY, "3kaaa"] = entry("My Digits", createdAt="2026-02-01T00:00:00Z")
    server.records[ENTRY, "3kbbb"] = entry("My Digits", "s3://bucket/b.tar", createdAt="2026-01-01T00:00:00Z")
    server.records[OLD_ENTRY, "3kccc"] = entry("old")
    server.records[OLD_ENTRY, "3kddd"] = entry("broken", storage={"$type": "org.example.storageOther"})
    catalog = Catalog(URL)
    catalog.put("mine", content(1))
    assert [str(one) for one in catalog.list()] == ["My-Digits@2", "mine@1", "old@1"]
    assert [one.urls for one in catalog.history("My-Digits")] == [["s3://bucket/b.tar"], ["s3://bucket/a.tar"]]
    assert catalog.get("My-Digits@1").urls == ["s3://bucket/b.tar"]
    assert catalog.get("old").fingerprint.startswith("unknown:bafyrei")
    catalog.put("old", content(2))
    assert [one.fingerprint for one in (catalog.get("old"), *catalog.history("old"), *catalog.list("old"))] == [
        "f2"
    ] * 3
    with pytest.raises(CatalogError, match="expected the name of a dataset"):
        catalog.get("nothing")


def test_what_is_published_of_schemas_and_lenses(server: ScriptedPds) -> None:
    catalog = Catalog(URL)
    catalog.put("Point", content(1, {"x": {"kind": "text"}}))
    catalog.schemas.put("Point", {"x": "float32", "note": str | None}, "2.0.0", description="a point")
    catalog.schemas.put("X", {"x": "float32"})
    code = {"repository": "https://example.com/code", "commit": "1a2b", "path": "lab:x"}
    catalog.lenses.put("x", source="Point", view="X", fields={}, code=code)
    point = server.records[SCHEMA, key := key_of("_schemas/Point", "1")]
    assert (point["name"], point["version"], point["schemaType"]) == ("Point", "2.0.0", "jsonSchema")
    assert point["schema"]["properties"] == {"x": {"type": "number"}, "note": {"type": "string"}}
    assert point["schema"]["required"] == ["x"] and point["description"] == "a point"
    lens = server.records[LENS, key_of("_lenses/x", "1")]
    assert lens["sourceSchema"] == f"at://{DID}/{SCHEMA}/{key}" and lens["getterCode"] == lens["putterCode"] == code
    assert lens["targetSchema"] == f"at://{DID}/{SCHEMA}/{key_of('_schemas/X', '1')}"
    assert [str(one) for one in catalog.schemas.list()] == ["Point@2.0.0", "X@1.0.0"], "not that of the entry"
    assert [*AtprotoAccount(URL).names("_schemas/")] == ["_schemas/Point", "_schemas/X"]


ARRAY = {"$ref": "https://foundation.ac/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"}
PROPERTIES = {
    "image": ARRAY,
    "label": {"type": "integer"},
    "score": {"type": "number"},
    "good": {"type": "boolean"},
    "raw": {"type": "string", "format": "byte"},
    "words": {"type": "array", "items": {"type": "string"}},
    "more": {"anyOf": []},
}
KINDS = {"image": "ndarray", "label": "int", "score": "float", "good": "bool", "raw": "bytes"}


def old_type(kind: str) -> dict[str, Any]:
    """The type of a field in schemas of old versions."""
    prefix = "ac.foundation.dataset.schemaType#"
    return {"$type": prefix + kind} if kind == "ndarray" else {"$type": prefix + "primitive", "primitive": kind}


@pytest.mark.filterwarnings("default:.*expected a record of a schema, got.*version.*left out")
def test_schemas_and_lenses_of_other_programs(server: ScriptedPds) -> None:
    body = {"$type": f"{SCHEMA}#jsonSchemaFormat", "type": "object", "properties": PROPERTIES}
    time = {"createdAt": "2026-01-01T00:00:00Z"}
    plain = {"$type": SCHEMA, "name": "My Digit", "schemaType": "jsonSchema", **time}
    server.records[SCHEMA, "a"] = {**plain, "version": "1.1.0", "schema": {**body, "required": [*PROPERTIES]}}
    server.records[SCHEMA, "b"] = {**plain, "version": "1.0.0", "schema": {**body, "required": ["label"]}}
    server.records[SCHEMA, "c"] = {**plain, "version": "first"}
    fields = [{"name": name, "fieldType": old_type(kind), "optional": name == "raw"} for name, kind in KINDS.items()]
    fields.append({"name": "words", "fieldType": {"$type": "x#array", "items": old_type("str")}, "optional": False})
    server.records[OLD_SCHEMA, "d"] = {"name": "Old", "version": "0.1.0", "fields": fields, **time}
    code = {"repository": "https://example.com/code", "commit": "1a2b", "path": "os.system"}
    ends = {"sourceSchema": f"at://{DID}/{SCHEMA}/a", "targetSchema": "at://x/y/z"}
    server.records[LENS, "e"] = {"name": "gray", "getterCode": code, "putterCode": code, **ends, **time}
    server.records[OLD_LENS, "f"] = {"name": "old", "getterCode": code, **ends, **time}
    catalog = Catalog(URL)
    assert [str(one) for one in catalog.schemas.list()] == ["My-Digit@1.1.0", "Old@0.1.0"]
    assert [one.version for one in catalog.schemas.history("My-Digit")] == ["1.0.0", "1.1.0"]
    found = catalog.schemas.get("My-Digit@1.1.0")
    assert found.extra == {"title": "My Digit"} and list(found.features.values()) == [
        sx.Array(),
        sx.Features.of({"x": int})["x"],
        sx.Features.of({"x": float})["x"],
        sx.Features.of({"x": bool})["x"],
        sx.Bytes(),
        sx.Sequence(str),
        sx.Json(),
    ]
    assert isinstance(catalog.schemas.get("My-Digit@1.0.0").features["score"], sx.Optional)
    old = catalog.schemas.get("Old").features
    assert [old[name] for name in ("image", "label", "words")] == [
        found.features[name] for name in ("image", "label", "words")
    ]
    assert isinstance(old["raw"], sx.Optional) and catalog.schemas.load("Old")(
        image=[1.0], label=1, score=0.5, good=True, raw=None, words=[]
    )
    assert [str(one) for one in catalog.lenses.list()] == ["gray@1.0.0", "old@1.0.0"]
    assert catalog.lenses.get("gray").code["getter path"] == "os.system"
    with pytest.raises(LensError, match=r"code is elsewhere \(getter repository https://example.com/code"):
        catalog.lenses.load("gray")
    assert catalog.schemas.put("Old", {"x": int}).version == "1.0.0", "its own"


# -- the real server ------------------------------------------------------------------------------------------

real = pytest.mark.long


def client_of(url: str) -> XrpcClient:
    account, settings = find_account(url.removeprefix("at://")), settings_for(url)
    client = XrpcClient(account.server, settings, trusted=account.trusted)
    client.login(account.did, str(settings.values["password"]))
    return client


@real
def test_another_account_reads(pds: Pds, pds_url: str) -> None:
    record = Catalog(pds_url).put("digits", content(1), description="ten", license="MIT")
    other = pds.account()
    storage("at://", service=pds.url, directory=pds.directory)
    storage(f"at://{other.handle}", service=pds.url, directory=pds.directory, password=other.password)
    storage(pds_url)
    try:
        assert Catalog(pds_url, trusted=True).get("digits") == record and not Catalog(pds_url).trusted
        with pytest.raises(AccessDeniedError, match="expected the password of the account"):
            Catalog(pds_url).put("digits", content(2))
        mine = Catalog(f"at://{other.handle}")
        assert mine.copy_from(Catalog(pds_url).history("digits")) == 1
        assert mine.get("digits").fingerprint == record.fingerprint and not mine.get("digits").trusted
        storage(pds_url, service=pds.url, directory=pds.directory, password=other.password)
        with pytest.raises(AccessDeniedError, match="Invalid identifier or password"):
            Catalog(pds_url).put("digits", content(2))
    finally:
        storage("at://")
        storage(f"at://{other.handle}")


@real
def test_more_records_than_a_page(pds_url: str) -> None:
    catalog = Catalog(pds_url)
    names = [f"n{number:03}" for number in range(110)]
    for name in names:
        catalog.put(name, content(name))
    assert [one.name for one in catalog.list()] == list(AtprotoAccount(pds_url).names()) == names


@real
def test_two_writers(pds_url: str) -> None:
    def work(writer: int) -> list[int]:
        catalog = Catalog(pds_url)
        return [catalog.put("a", content(f"{writer}-{number}")).version for number in range(15)]

    with ThreadPoolExecutor(2) as threads:
        assert sorted(version for found in threads.map(work, range(2)) for version in found) == list(range(1, 31))
    assert len({one.fingerprint for one in Catalog(pds_url).history("a")}) == 30


@real
def test_a_record_that_is_too_large(pds_url: str) -> None:
    catalog = Catalog(pds_url)
    catalog.put("a", content(1))
    large = content(2, {f"field{number:05}": {"kind": "text"} for number in range(30_000)})
    with pytest.raises(RemoteError, match="larger than this server allows"):
        catalog.put("a", large)
    assert catalog.put("a", content(3)).version == 2


@real
def test_blobs(pds_url: str) -> None:
    """A dataset in blobs of an account, as atdata publishes it."""
    client = client_of(pds_url)
    did = client._tokens["did"]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo("a.txt")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    blob = client.upload_blob(file.getvalue(), "application/x-tar")
    where = {"$type": "science.alt.dataset.storageBlobs", "blobs": [{"blob": blob}]}
    place = {"repo": did, "collection": ENTRY, "rkey": "3kaaa"}
    record = {**entry("blobs"), "storage": where}
    client.procedure("com.atproto.repo.putRecord", {**place, "record": record, "validate": False})
    assert client.get_blob(did, blob["ref"]["$link"]) == file.getvalue()
    found = Catalog(pds_url).get("blobs")
    assert blob["ref"]["$link"] in found.urls[0] and len(found.checksums) == 1
