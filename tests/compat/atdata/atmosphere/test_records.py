"""Publishers and loaders: what is written, what is read, and records that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat.atdata import (
    Dataset,
    S3Source,
    lens,
    load_dataset,
    packable,
    promote_to_atmosphere,
    write_samples,
)
from shardex.compat.atdata.atmosphere import (
    Atmosphere,
    AtmosphereIndex,
    AtUri,
    DatasetLoader,
    DatasetPublisher,
    LabelLoader,
    LabelPublisher,
    LensLoader,
    LensPublisher,
    LexCodeHash,
    LexCodeReference,
    PDSBlobStore,
    SchemaLoader,
    SchemaPublisher,
    ShardChecksum,
    StorageBlobs,
    StorageHttp,
    VerificationLoader,
    VerificationPublisher,
)
from shardex.compat.atdata.index import LocalDatasetEntry
from shardex.compat.atdata.index._schema import _build_schema_record
from shardex.compat.atdata.testing import MockAtmosphere
from shardex.errors import (
    AddressError,
    ArgumentError,
    CatalogError,
    ChecksumError,
    FormatError,
    NotFoundError,
    RemoteError,
    SchemaError,
)
from tests.servers.scripted_pds import DID, HANDLE, ScriptedPds

SPACE = "science.alt.dataset"
OLD = "ac.foundation.dataset"
URLS = ["https://data.example/a-0.tar", "https://data.example/a-1.tar"]


pytestmark = pytest.mark.filterwarnings("ignore:AtmosphereIndex is deprecated")


@packable
class Digit:
    """A digit."""

    image: NDArray[Any]
    label: int
    note: str | None = None


@packable
class About:
    lab: str


def digits(folder: Path, shards: int = 2) -> Dataset[Digit]:
    samples = [Digit(np.full((2, 2), k, "uint8"), k) for k in range(3 * shards)]
    return write_samples(samples, folder / "d.tar", maxcount=3, content_metadata=About("x"))


@pytest.fixture
def schema(atmo: Atmosphere) -> str:
    return str(SchemaPublisher(atmo).publish(Digit))


# -- schemas --------------------------------------------------------------------------------------------------------


def test_schemas(server: ScriptedPds, atmo: Atmosphere, schema: str) -> None:
    record = SchemaLoader(Atmosphere()).get(schema)
    properties = record["schema"]["properties"]
    assert (record["name"], record["version"], record["schemaType"]) == ("Digit", "1.0.0", "jsonSchema")
    assert properties["label"] == {"type": "integer"} and "ndarray" in properties["image"]["$ref"]
    assert record["schema"]["required"] == ["image", "label"]
    assert record["schema"]["arrayFormatVersions"] == {"ndarrayBytes": "1.0.0"}
    typed = SchemaLoader(atmo).get_typed(schema)
    assert typed.schema.schema_body["properties"] == properties and typed.to_record() == record
    newer = SchemaPublisher(atmo).publish(Digit, version="1.1.0", description="d", metadata={"license": "MIT"})
    loader = SchemaLoader(Atmosphere())
    assert loader.get(f"@{HANDLE}/Digit@1.1.0") == loader.resolve(DID, "Digit") == loader.get(newer)
    with pytest.raises(KeyError, match=r"Schema 'Digit' version '9.9.9' not found in repository"):
        loader.resolve(HANDLE, "Digit", "9.9.9")
    for wrong, told in ((f"@{HANDLE}/Digit", "must include version"), (f"@{HANDLE}", "Invalid handle schema ref")):
        with pytest.raises(ValueError, match=told):
            loader.get(wrong)
    assert [one["version"] for one in loader.list_all(HANDLE)] == ["1.0.0", "1.1.0"]
    with pytest.raises(TypeError, match="packable"):
        SchemaPublisher(atmo).publish(int)


def test_schemas_of_old_versions(server: ScriptedPds, atmo: Atmosphere) -> None:
    """A record of v0.2.3 becomes a class."""
    kind = {"$type": f"{OLD}.schemaType#primitive", "primitive": "float"}
    old = {"$type": f"{OLD}.sampleSchema", "name": "Point", "version": "1.0.0"}
    fields = [{"name": "x", "fieldType": kind, "optional": False}]
    uri = atmo.create_record(f"{OLD}.sampleSchema", {**old, "fields": fields})
    index = AtmosphereIndex(atmo)
    assert index.get_schema_type(str(uri))(x=1).x == 1
    later = atmo.create_record(f"{SPACE}.schema", {"$type": f"{SPACE}.schema", "name": "P", "atdataSchemaVersion": 2})
    with pytest.raises(SchemaError, match="expected a schema record of version 1, got version 2"):
        index.get_schema(str(later))


# -- datasets -------------------------------------------------------------------------------------------------------


def test_urls(server: ScriptedPds, atmo: Atmosphere, schema: str) -> None:
    about: dict[str, Any] = {"description": "ten", "tags": ["small"], "license": "MIT"}
    checksums = [ShardChecksum("sha256", "ab" * 32)] * 2
    metadata = {"split": "train", "model": "bert", "steps": 3}
    publisher = DatasetPublisher(atmo)
    uri = publisher.publish_with_urls(URLS, schema, name="digits", checksums=checksums, metadata=metadata, **about)
    loader = DatasetLoader(Atmosphere())
    record = loader.get(uri)
    assert uri.collection == record["$type"] == f"{SPACE}.entry"
    assert {name: record[name] for name in about} == about and record["schemaRef"] == schema
    assert record["storage"]["shards"][0] == {"url": URLS[0], "checksum": {"algorithm": "sha256", "digest": "ab" * 32}}
    assert record["metadata"] == {"split": "train", "custom": {"model": "bert", "steps": 3}}
    assert loader.get_storage_type(uri) == "http" and loader.get_urls(str(uri)) == URLS
    assert loader.get_metadata(uri) == metadata
    typed = loader.get_typed(uri)
    assert isinstance(typed.storage, StorageHttp) and typed.storage.shards[1].url == URLS[1]
    assert typed.to_record() == record and loader.get_metadata_typed(uri) == typed.metadata
    assert loader.to_dataset(uri, Digit).list_shards() == URLS
    for call in (loader.get_blobs, loader.get_blob_urls, loader.get_s3_info):
        with pytest.raises(ValueError, match="Dataset does not use"):
            call(uri)
    with pytest.raises(ValueError, match=r"checksums length \(1\) must match urls length \(2\)"):
        publisher.publish_with_urls(URLS, schema, name="d", checksums=checksums[:1])


def test_metadata_with_fractions(server: ScriptedPds, atmo: Atmosphere, schema: str) -> None:
    """JSON of ATProto has whole numbers only: these are MessagePack, as v0.2.3 writes all metadata."""
    uri = DatasetPublisher(atmo).publish_with_urls(URLS, schema, name="d", metadata={"rate": 0.5, "version": "2"})
    loader = DatasetLoader(atmo)
    assert loader.get(uri)["metadata"].keys() == {"$bytes"}
    assert loader.get_metadata(uri) == {"rate": 0.5, "version": "2"}
    typed = loader.get_metadata_typed(uri)
    assert typed is not None and (typed.version, typed.custom) == ("2", {"rate": 0.5})
    with pytest.raises(ArgumentError, match="got fractions in contentMetadata"):
        DatasetPublisher(atmo).publish_with_urls(URLS, schema, name="d", content_metadata={"a": [{"rate": 0.5}]})


def test_buckets(server: ScriptedPds, atmo: Atmosphere, schema: str) -> None:
    publisher, loader = DatasetPublisher(atmo), DatasetLoader(atmo)
    uri = publisher.publish_with_s3("bucket", ["x/a.tar"], schema, name="d", region="eu")
    assert loader.get_storage_type(uri) == "s3" and loader.get_urls(uri) == ["s3://bucket/x/a.tar"]
    assert loader.get_s3_info(uri) == {"bucket": "bucket", "keys": ["x/a.tar"], "region": "eu", "endpoint": None}
    uri = publisher.publish_with_s3("bucket", ["a.tar"], schema, name="d", endpoint="https://minio.example/")
    assert loader.get_urls(uri) == ["https://minio.example/bucket/a.tar"]


def test_publish_of_a_dataset(server: ScriptedPds, atmo: Atmosphere) -> None:
    """Its schema, and that of its metadata, are published, too."""
    ds: Dataset[Digit] = Dataset[Digit]("https://data.example/a-{0..1}.tar")
    ds.content_metadata = About("x")
    uri = DatasetPublisher(atmo).publish(ds, name="digits")
    loader, schemas = DatasetLoader(atmo), SchemaLoader(atmo)
    reference = loader.get_metadata_schema_ref(uri)
    assert loader.get_urls(uri) == URLS and loader.get_content_metadata(uri) == {"lab": "x"}
    assert reference and schemas.get(reference)["name"] == "About"
    assert loader.to_dataset(uri, Digit).content_metadata == {"lab": "x"}
    with pytest.raises(ValueError, match="schema_uri is required when auto_publish_schema=False"):
        DatasetPublisher(atmo).publish(ds, name="digits", auto_publish_schema=False)


def test_local_files_are_not_published(server: ScriptedPds, atmo: Atmosphere, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected URLs that others can read.*upload the shards as blobs"):
        DatasetPublisher(atmo).publish(digits(tmp_path), name="d")
    with pytest.raises(ArgumentError, match="expected at least one shard"):
        DatasetPublisher(atmo).publish_with_urls([], "at://x/y/z", name="d")
    assert not server.records


# -- blobs ----------------------------------------------------------------------------------------------------------


def test_blobs(server: ScriptedPds, atmo: Atmosphere, schema: str, tmp_path: Path) -> None:
    ds = digits(tmp_path)
    shards = [Path(one).read_bytes() for one in ds.list_shards()]
    uri = DatasetPublisher(atmo).publish_with_blobs(shards, schema, name="digits")
    loader = DatasetLoader(Atmosphere())
    assert loader.get_storage_type(uri) == "blobs" and len(loader.get_blobs(uri)) == len(loader.get_blob_urls(uri)) == 2
    with pytest.raises(ValueError, match=r"Use get_blob_urls\(\) instead"):
        loader.get_urls(uri)
    typed = loader.get_typed(uri).storage
    assert isinstance(typed, StorageBlobs) and typed.blobs[0].checksum is not None
    back = loader.to_dataset(str(uri), Digit)
    assert [one.label for one in back] == [*range(6)] == [one.label for one in back.ordered()]
    assert back[4].image.tolist() == [[4, 4], [4, 4]]
    assert [one.label for one in load_dataset(str(uri), Digit, split="train")] == [*range(6)]
    (cid, *_) = server.blobs
    server.blobs[cid] += b"x"
    with pytest.raises(ChecksumError, match="the server changed it"):
        list(loader.to_dataset(uri, Digit))


def test_store(server: ScriptedPds, atmo: Atmosphere, tmp_path: Path) -> None:
    ds, store = digits(tmp_path), PDSBlobStore(atmo)
    urls = store.write_shards(ds, prefix="digits")
    assert len(urls) == len(urls.blob_refs) == len(urls.checksums) == 2 and store.supports_streaming()
    assert store.read_url(urls[0]) == atmo.get_blob_url(DID, urls.blob_refs[0]["ref"]["$link"])
    assert store.read_url("s3://b/a.tar") == "s3://b/a.tar"
    back: Dataset[Digit] = Dataset[Digit](store.create_source(urls))
    assert [one.label for one in back] == [*range(6)] and back.list_shards() == urls
    with pytest.raises(ArgumentError, match="exceeds atmosphere limit"):
        store.write_shards(ds, prefix="digits", limit=20)
    for wrong, told in (("s3://b/a", "Not an AT URI"), ("at://x/y", "Invalid blob AT URI")):
        with pytest.raises(ValueError, match=told):
            store.create_source([wrong])
    with pytest.raises(ValueError, match="must be authenticated"):
        PDSBlobStore(Atmosphere()).write_shards(ds, prefix="d")


# -- reading by address ---------------------------------------------------------------------------------------------


def test_load_dataset(server: ScriptedPds, atmo: Atmosphere, tmp_path: Path) -> None:
    """The class of the samples comes from the schema, which the record names."""
    with pytest.deprecated_call():
        index = AtmosphereIndex(atmo)
    entry = index.insert_dataset(digits(tmp_path), name="digits", description="ten")
    splits = load_dataset(entry.uri)
    assert [*splits] == ["train"] and [one.label for one in splits["train"]] == [*range(6)]
    assert type(splits["train"][0]).__name__ == "Digit"
    assert [one.label for one in load_dataset(entry.uri, Digit, split="train", atmosphere=atmo)] == [*range(6)]
    with pytest.raises(ValueError, match="expected one of the splits train"):
        load_dataset(entry.uri, split="test")
    with pytest.raises(SchemaError, match=r"is not a dataset record. Expected \$type='science.alt.dataset.entry'"):
        load_dataset(entry.schema_ref)


@pytest.fixture
def foreign(server: ScriptedPds, atmo: Atmosphere) -> Any:
    def publish(storage: Any, kind: str = f"{SPACE}.entry", **known: Any) -> str:
        record = {"$type": kind, "name": "d", "storage": storage, "createdAt": "2026-01-01T00:00:00Z", **known}
        return str(atmo.create_record(kind, record))

    return publish


def test_entries_of_old_versions(foreign: Any) -> None:
    external = {"$type": f"{OLD}.storageExternal", "urls": ["s3://bucket/d-{0..2}.tar"]}
    uri = foreign(external, f"{OLD}.record", metadata={"$bytes": "gaFhAQ"})
    loader = DatasetLoader(Atmosphere())
    assert (loader.get_storage_type(uri), loader.get_urls(uri)) == ("external", external["urls"])
    assert loader.get_metadata(uri) == {"a": 1}
    assert loader.to_dataset(uri, Digit).list_shards() == [f"s3://bucket/d-{k}.tar" for k in range(3)]
    assert load_dataset(uri)["train"].sample_type.__name__ == "DictSample", "there is no schema"


@pytest.mark.parametrize("url", ["/etc/passwd", "file:///etc/passwd", "memory://x/y", "relative.tar", "file:/etc/a"])
def test_records_name_no_local_files(foreign: Any, url: str) -> None:
    uri = foreign({"$type": f"{SPACE}.storageExternal", "urls": [url]})
    for client in (None, Atmosphere()):
        with pytest.raises(AddressError, match="expected the URL of a shard, got the local path"):
            load_dataset(uri, Digit, split="train", atmosphere=client)


def test_records_name_no_private_addresses(server: ScriptedPds, atmo: Atmosphere, foreign: Any) -> None:
    uri = foreign({"$type": f"{SPACE}.storageExternal", "urls": [f"{server.url}/a.tar"]})
    before = server.asked.total()
    with pytest.raises(AddressError, match="address of the public internet"):
        list(load_dataset(uri, Digit, split="train"))
    assert server.asked["a.tar"] == server.asked["/a.tar"] == 0 < before
    with pytest.raises(RemoteError, match="501"):  # the own record is trusted: the server is asked
        list(load_dataset(uri, Digit, split="train", atmosphere=atmo))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"storage": {"$type": f"{SPACE}.storageOther"}}, "Unknown storage type: 'science.alt.dataset.storageOther'"),
        ({"storage": None}, "Unknown storage type"),
        ({"storage": {"$type": f"{SPACE}.storageHttp"}}, "expected StorageHttp with shards"),
        ({"storage": {"$type": f"{SPACE}.storageHttp", "shards": []}}, "has no storage URLs"),
        ({"storage": {"$type": f"{SPACE}.storageHttp", "shards": [5]}}, "expected the parts of HttpShardEntry, got 5"),
        ({"storage": {"$type": f"{SPACE}.storageHttp", "shards": 5}}, "expected shards of StorageHttp to be list"),
        ({"storage": {"$type": f"{SPACE}.storageExternal", "urls": "x"}}, "expected urls"),
        ({"storage": {"$type": f"{SPACE}.storageBlobs", "blobs": [5]}}, "expected the parts of"),
        ({"storage": {"$type": f"{SPACE}.storageBlobs", "blobs": [{"blob": {"ref": "Qm"}}]}}, "BlobNotFound"),
        ({"storage": {"$type": f"{SPACE}.storageBlobs", "blobs": [{"blob": {"ref": {}}}]}}, "to a CID, got None"),
        ({"storage": {"$type": f"{SPACE}.storageBlobs", "blobs": None}}, "expected StorageBlobs with blobs"),
    ],
)
def test_damaged_entries(foreign: Any, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises((SchemaError, FormatError, NotFoundError), match=told):
        list(load_dataset(foreign(**wrong), Digit, split="train"))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"schemaRef": None}, "expected LexDatasetEntry with schemaRef"),
        ({"schemaRef": 5}, "expected schemaRef of LexDatasetEntry to be str, got 5"),
        ({"tags": [5]}, "expected tags of LexDatasetEntry to be list"),
        ({"createdAt": "today"}, "expected createdAt of LexDatasetEntry to be datetime, got 'today'"),
        ({"size": {"samples": "x"}}, "expected samples of DatasetSize to be int"),
        ({"metadata": {"$bytes": "wQ=="}}, "expected metadata as JSON or MessagePack"),
        ({"metadata": 5}, "expected metadata as JSON or MessagePack"),
    ],
)
def test_damaged_fields(foreign: Any, wrong: dict[str, Any], told: str) -> None:
    storage = {"$type": f"{SPACE}.storageExternal", "urls": URLS}
    with pytest.raises(SchemaError, match=told):
        DatasetLoader(Atmosphere()).get_typed(foreign(storage, **{"schemaRef": "at://x/y/z", **wrong}))


def test_address_of_a_record() -> None:
    for wrong in ("https://x/y/z", "at://x/y"):
        with pytest.raises(ValueError, match="Invalid AT URI"):
            AtUri.parse(wrong)
    assert str(AtUri.parse("at://x/y/z/a")) == "at://x/y/z/a"


# -- labels, lenses, verifications ----------------------------------------------------------------------------------


def test_labels(server: ScriptedPds, atmo: Atmosphere) -> None:
    publisher, loader = LabelPublisher(atmo), LabelLoader(Atmosphere())
    for number in range(5):  # more than a page
        publisher.publish("digits", f"at://{DID}/{SPACE}.entry/{number}", version=f"{number}.0.0")
    uri = publisher.publish("other", f"at://{DID}/{SPACE}.entry/x", description="d")
    assert loader.resolve(HANDLE, "digits") == f"at://{DID}/{SPACE}.entry/4", "the latest one"
    assert loader.resolve(DID, "digits", "1.0.0") == f"at://{DID}/{SPACE}.entry/1"
    assert loader.get_typed(uri).description == "d" and len(loader.list_all(HANDLE)) == 6
    with pytest.raises(CatalogError, match="No label 'digits' version '9' found for"):
        loader.resolve(HANDLE, "digits", "9")


@lens
def halve(digit: Digit) -> About:
    return About(str(digit.label))


def test_lenses(server: ScriptedPds, atmo: Atmosphere) -> None:
    publisher, loader = LensPublisher(atmo), LensLoader(Atmosphere())
    code: dict[str, Any] = {"code_repository": "https://git.example/x", "code_commit": "abc"}
    code |= {"source_schema_uri": "at://a"}
    uri = publisher.publish_from_lens(halve, name="halve", target_schema_uri="at://b", **code)
    publisher.publish(name="b", target_schema_uri="at://c", getter_path="m:g", putter_path="m:p", **code)
    typed = loader.get_typed(uri)
    assert typed.getter_code.path == f"{__name__}:halve" and typed.putter_code.path == f"{__name__}:halve.put"
    assert [one["name"] for one in loader.find_by_schemas("at://a", repo=HANDLE)] == ["halve", "b"]
    assert [one["name"] for one in LensLoader(atmo).find_by_schemas("at://a", "at://c")] == ["b"]
    assert len(loader.list_all(DID)) == 2
    with pytest.raises(SchemaError, match="is not a label record"):
        LabelLoader(atmo).get(uri)


def test_verifications(server: ScriptedPds, atmo: Atmosphere) -> None:
    publisher, loader = VerificationPublisher(atmo), VerificationLoader(atmo)
    proof = LexCodeReference("https://git.example/x", "abc", "proofs/a.v")
    known: dict[str, Any] = {"code_hash": LexCodeHash("sha256", "ab"), "proof_ref": proof, "description": "d"}
    uri = publisher.publish(lens_uri="at://l", lens_commit="bafy", verification_method="formalProof", **known)
    typed = loader.get_typed(uri)
    assert {name: getattr(typed, name) for name in known} == known
    assert len(loader.list_for_lens("at://l")) == len(loader.find_by_method("formalProof", repo=HANDLE)) == 1
    assert loader.list_for_lens("at://other") == loader.list_for_lens("at://l", limit=0) == []


# -- indexes --------------------------------------------------------------------------------------------------------


def test_index(server: ScriptedPds, atmo: Atmosphere, tmp_path: Path) -> None:
    index = AtmosphereIndex(atmo, data_store=PDSBlobStore(atmo))
    entry = index.insert_dataset(digits(tmp_path), name="digits", tags=["small"], license="MIT")
    assert (entry.name, entry.metadata, len(entry.data_urls)) == ("digits", None, 2)
    assert entry.data_urls == DatasetLoader(atmo).get_blob_urls(entry.uri)
    assert [one.uri for one in index.datasets] == [one.uri for one in index.list_datasets(HANDLE)] == [entry.uri]
    reference = index.publish_schema(About, version="2.0.0")
    assert [one["name"] for one in index.schemas] == [one["name"] for one in index.list_schemas()] == ["Digit", "About"]
    assert index.decode_schema(reference).__name__ == "About"
    keys = Dataset[Digit](S3Source("bucket", ["a.tar"], access_key="k", secret_key="s"))
    with pytest.raises(ArgumentError, match="pass copy=True"):
        index.__class__(atmo).insert_dataset(keys, name="d")


class LocalSchemas:
    """What `promote_to_atmosphere` needs of a local index."""

    def get_schema(self, ref: str) -> dict[str, Any]:
        return _build_schema_record(Digit, version="1.2.0")


def test_promotion(server: ScriptedPds, atmo: Atmosphere, tmp_path: Path) -> None:
    """Local shards become blobs; a schema is published once."""
    reference = "atdata://local/schema/Digit@1.2.0"
    local = LocalDatasetEntry("digits", reference, digits(tmp_path).list_shards(), {"split": "train"})
    web = LocalDatasetEntry("digits", reference, URLS)
    first, second = (promote_to_atmosphere(one, LocalSchemas(), atmo, tags=["a"]) for one in (local, web))
    loader = DatasetLoader(atmo)
    assert loader.get_storage_type(first) == "blobs" and loader.get_urls(second) == URLS
    assert loader.get_metadata(first) == {"split": "train"} and loader.get(second)["tags"] == ["a"]
    assert loader.get(first)["schemaRef"] == loader.get(second)["schemaRef"]
    assert [one.label for one in load_dataset(first, split="train")] == [*range(6)]
    with pytest.raises(ValueError, match="has no data URLs"):
        promote_to_atmosphere(LocalDatasetEntry("d", reference, []), LocalSchemas(), atmo)


def test_publishers_take_an_account_in_memory(tmp_path: Path) -> None:
    client: Any = MockAtmosphere()
    uri = SchemaPublisher(client).publish(Digit)
    dataset = DatasetPublisher(client).publish_with_urls(URLS, str(uri), name="d")
    assert SchemaLoader(client).resolve("any.example", "Digit") == SchemaLoader(client).get(uri)
    assert DatasetLoader(client).get_urls(dataset) == URLS and len(DatasetLoader(client).list_all()) == 1
    LabelPublisher(client).publish("d", str(dataset))
    assert LabelLoader(client).resolve(client.did, "d") == str(dataset)
    assert len(PDSBlobStore(client).write_shards(digits(tmp_path), prefix="d")) == 2


# -- an AppView -----------------------------------------------------------------------------------------------------


def test_appview(server: ScriptedPds, atmo: Atmosphere, caplog: pytest.LogCaptureFixture) -> None:
    """It checks what is published and answers first; if it does not answer, servers of accounts are asked."""
    uri = LabelPublisher(atmo).publish("d", "at://x/y/z")
    client = Atmosphere.from_session(atmo.export_session(), appview=server.url)
    server.script[f"{SPACE}.publishLabel"] = [(200, {"uri": "at://a/b/c"}, {})]
    assert str(LabelPublisher(client).publish("d", "at://x/y/z", rkey="k")) == "at://a/b/c"
    server.script[f"{SPACE}.resolveLabel"] = [(200, {"uri": "at://x/y/new"}, {})]
    assert LabelLoader(client).resolve(HANDLE, "d") == "at://x/y/new"
    assert LabelLoader(client).resolve(HANDLE, "d") == "at://x/y/z", "501: the server of the account is asked"
    assert LabelLoader(client).get(uri)["name"] == "d"
    pages = [{"schemas": [{"name": "a"}], "cursor": "2"}, {"schemas": [{"name": "b"}]}]
    server.script[f"{SPACE}.listSchemas"] = [(200, page, {}) for page in pages]
    assert [one["name"] for one in SchemaLoader(client).list_all()] == ["a", "b"]
    server.script[f"{SPACE}.resolveBlobs"] = [(200, {"blobs": [{"url": "https://x/1"}, {"error": "gone"}]}, {})]
    assert DatasetLoader(client).get_blob_urls("at://x/y/z") == ["https://x/1"]
