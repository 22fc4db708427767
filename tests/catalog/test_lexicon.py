"""Records as entries of ATProto and back: what other programs read, limits, and entries that other programs wrote."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

import shardex as sx
from shardex.catalog import DatasetRecord, cid_of
from shardex.catalog.cid import RAW
from shardex.catalog.lexicon import ENTRY, LENS, OLD_ENTRY, OLD_SCHEMA, SCHEMA, entry_of, key_of, record_of, schema_of
from shardex.catalog.xrpc import Account, StoredRecord
from shardex.errors import ArgumentError, FormatError

ACCOUNT = Account("did:plc:" + "a2" * 12, "https://pds.example", trusted=False)
SCHEMA_URI = "at://did/science.alt.dataset.schema/x"
CHECKSUM = "sha256:" + "ab" * 32


def record(**known: Any) -> DatasetRecord:
    plain: dict[str, Any] = {
        "name": "team/digits",
        "version": 3,
        "fingerprint": "f",
        "urls": ["https://h.example/a.tar", "https://h.example/b.tar"],
        "format": "tar",
        "samples": 5,
        "created": "2026-01-01T00:00:00+00:00",
    }
    return DatasetRecord(**{**plain, **known})


def stored(value: dict[str, Any], collection: str = ENTRY) -> StoredRecord:
    return StoredRecord(f"at://{ACCOUNT.did}/{collection}/3kabc", cid_of(b"x"), json.loads(json.dumps(value)))


def test_keys_are_valid_and_differ() -> None:
    keys = [key_of(*parts) for parts in (("a",), ("a", "1"), ("a1",), ("a", "1", ""), ("b", "1"))]
    assert len({*keys}) == 5 and all(re.fullmatch("[234567abcdefghij][234567a-z]{12}", key) for key in keys)


def dataset_of(entry: StoredRecord) -> DatasetRecord:
    found = record_of(entry, ACCOUNT)
    assert isinstance(found, DatasetRecord)
    return found


def test_there_and_back() -> None:
    options = {"scale": 1.5, "nested": {"$link": "no link"}}
    whole = record(options=options, description="ü" * 6000, tags=["t" * 100], license="MIT", bytes=7, shards=2)
    entry = entry_of(whole, SCHEMA_URI, "w")
    assert dataset_of(stored(entry)) == whole
    assert entry["size"] == {"samples": 5, "bytes": 7, "shards": 2} and entry["license"] == "MIT"
    assert len(entry["description"]) == 5000 and entry["schemaRef"] == SCHEMA_URI and entry["name"] == "team/digits"
    assert "." not in re.sub('"[^"]*"', "", json.dumps({**entry, "shardexRecord": ""})), "no numbers with fractions"


def test_storage() -> None:
    web = entry_of(record(checksums={"https://h.example/b.tar": CHECKSUM}), "", "w")["storage"]
    assert web["$type"] == "science.alt.dataset.storageHttp"
    assert web["shards"][0] == {"url": "https://h.example/a.tar", "checksum": {"algorithm": "none", "digest": ""}}
    assert web["shards"][1]["checksum"] == {"algorithm": "sha256", "digest": "ab" * 32}
    bucket = entry_of(record(urls=["s3://b/x/a.tar", "s3://b/x/b.tar"]), "", "w")["storage"]
    assert bucket["$type"] == "science.alt.dataset.storageS3" and bucket["bucket"] == "b"
    assert [one["key"] for one in bucket["shards"]] == ["x/a.tar", "x/b.tar"]
    mixed = entry_of(record(urls=["s3://b/a.tar", "s3://c/a.tar"]), "", "w")["storage"]
    assert [one["url"] for one in mixed["shards"]] == ["s3://b/a.tar", "s3://c/a.tar"]


@pytest.mark.parametrize("url", ["/home/me/a.tar", "file:///home/me", "memory://x/y", "relative/a.tar"])
def test_private_places_are_not_published(url: str) -> None:
    with pytest.raises(ArgumentError, match="expected URLs that others can read"):
        entry_of(record(urls=["https://h.example/a.tar", url]), "", "w")


def test_schema() -> None:
    fields = {
        "image": sx.Image(),
        "pixels": sx.Array("float32", (2, 2)),
        "label": int,
        "score": float | None,
        "name": str,
        "flag": bool,
        "tags": list[str],
        "raw": bytes,
    }
    found = schema_of(record(schema=sx.Features.of(fields).to_json()))
    properties = found["schema"]["properties"]
    kinds = {name: one.get("type") for name, one in properties.items()}
    assert kinds == {
        "image": "string",
        "pixels": None,
        "label": "integer",
        "score": "number",
        "name": "string",
        "flag": "boolean",
        "tags": "array",
        "raw": "string",
    }
    assert properties["pixels"]["$ref"].endswith("#/$defs/ndarray") and properties["tags"]["items"] == {
        "type": "string"
    }
    assert "score" not in found["schema"]["required"] and len(found["schema"]["required"]) == 7
    assert found["name"] == "TeamDigits" and found["schema"]["arrayFormatVersions"] == {"ndarrayBytes": "1.0.0"}


# -- entries of other programs --------------------------------------------------------------------------------

FOREIGN = {"$type": ENTRY, "name": "My Digits", "schemaRef": SCHEMA_URI, "createdAt": "2026-01-01T00:00:00Z"}
BLOB = cid_of(b"tar", RAW)


@pytest.mark.parametrize(
    ("storage", "urls", "checksums"),
    [
        (
            {"$type": "science.alt.dataset.storageHttp", "shards": [
                {"url": "https://h.example/a.tar", "checksum": {"algorithm": "sha256", "digest": "ab" * 32}},
                {"url": "https://h.example/b.tar", "checksum": {"algorithm": "none", "digest": ""}},
            ]},
            ["https://h.example/a.tar", "https://h.example/b.tar"],
            {"https://h.example/a.tar": CHECKSUM},
        ),
        (
            {"$type": "science.alt.dataset.storageS3", "bucket": "b", "shards": [{"key": "x/a.tar"}]},
            ["s3://b/x/a.tar"],
            {},
        ),
        ({"$type": "ac.foundation.dataset.storageExternal", "urls": ["s3://b/{0..3}.tar"]}, ["s3://b/{0..3}.tar"], {}),
    ],
)  # fmt: skip
def test_foreign_entries(storage: Any, urls: list[str], checksums: dict[str, str]) -> None:
    metadata = {"$bytes": "gaFhAQ=="}
    more = {"tags": ["x"], "license": "MIT", "size": {"samples": 4}, "description": "d", "metadata": metadata}
    found = dataset_of(stored({**FOREIGN, **more, "storage": storage}))
    assert (found.name, found.version, found.urls, found.checksums) == ("My-Digits", 1, urls, checksums)
    assert (found.tags, found.license, found.samples, found.description) == (["x"], "MIT", 4, "d")
    assert found.fingerprint == f"unknown:{cid_of(b'x')}" and found.format == "tar"
    assert found.extra == {"title": "My Digits", "schema_ref": SCHEMA_URI, "metadata": {"a": 1}}


@pytest.mark.parametrize("kind", ["science.alt.dataset.storageBlobs", "ac.foundation.dataset.storageBlobs"])
def test_blobs_of_an_account(kind: str) -> None:
    blob: dict[str, Any] = {"$type": "blob", "ref": {"$link": BLOB}, "mimeType": "application/x-tar", "size": 3}
    blobs = [{"blob": blob}] if "science" in kind else [blob]
    found = dataset_of(stored({**FOREIGN, "storage": {"$type": kind, "blobs": blobs}}, OLD_ENTRY))
    (url,) = found.urls
    assert url == f"at://{ACCOUNT.did}/blob/{BLOB}"
    assert found.checksums[url].startswith("sha256:")


@pytest.mark.parametrize(
    "wrong",
    [
        {"storage": None},
        {"storage": {"$type": "x.storageOther"}},
        {"storage": {"$type": "x.storageHttp", "shards": [5]}},
        {"storage": {"$type": "x.storageHttp", "shards": []}},
        {"storage": {"$type": "x.storageBlobs", "blobs": [{"blob": {"ref": {"$link": 5}}}]}},
        {"storage": {"$type": "x.storageBlobs", "blobs": [{"blob": {"ref": {"$link": "b1"}}}]}},
        {"storage": {"$type": "x.storageExternal", "urls": "text"}},
        {"name": None},
        {"size": 5},
        {"tags": "x"},
        {"metadata": {"$bytes": "wQ=="}},
        {"shardexRecord": "{}"},
    ],
)
def test_damaged_entries(wrong: dict[str, Any]) -> None:
    good = {"storage": {"$type": "x.storageExternal", "urls": ["s3://b/a.tar"]}}
    with pytest.raises(FormatError, match=r"at://did:plc:.*expected"):
        dataset_of(stored({**FOREIGN, **good, **wrong}))


def test_fields_that_are_not_known_are_kept() -> None:
    later = msgspec.structs.replace(record(), extra={"later": [1]})
    assert dataset_of(stored(entry_of(later, "", "w"))).extra == {"later": [1]}


DEEP: dict[str, Any] = {"type": "string"}
for _ in range(500):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("collection", "wrong"),
    [
        (SCHEMA, {"version": "1.0.0", "schema": {"properties": {"": {"type": "string"}}}}),
        (SCHEMA, {"version": "1.0.0", "schema": {"properties": {"x": 5}}}),
        (SCHEMA, {"version": "1.0.0", "schema": [5]}),
        (SCHEMA, {"version": "1.0.0-rc.1", "schema": {}}),
        (SCHEMA, {"schema": {}}),
        (OLD_SCHEMA, {"version": "1.0.0", "fields": [{"name": "x"}]}),
        (LENS, {"sourceSchema": "at://x/y/z"}),
        (LENS, {"sourceSchema": "at://x/y/z", "targetSchema": 5}),
        (LENS, {"sourceSchema": "a", "targetSchema": "b", "getterCode": "os.system"}),
        (LENS, {"shardexRecord": '{"kind": "lens"}'}),
    ],
)
def test_damaged_schemas_and_lenses(collection: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"at://did:plc:.*expected"):
        record_of(stored({"name": "a", **wrong}, collection), ACCOUNT)


def test_a_schema_of_many_levels_is_refused() -> None:
    value = {"name": "a", "version": "1.0.0", "schema": {"properties": {"x": DEEP}}}
    with pytest.raises(FormatError, match="expected"):
        record_of(stored(value, SCHEMA), ACCOUNT)
