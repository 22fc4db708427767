"""The real atdata opens what we wrote, and we open what it wrote.

It needs Python 3.12 or later, so it runs as another program on a Python that is looked for. Its packages are installed
once, into ``build/atdata-VERSION-...``: only those that its import needs, in the versions below.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat.atdata import (
    Dataset,
    DictSample,
    PackableSample,
    atmosphere,
    configure_arrays,
    generate_cid,
    load_dataset,
    write_samples,
)
from shardex.compat.atdata.index._schema import _build_schema_record
from shardex.compat.atdata.manifest import F, QueryExecutor, ShardManifest
from shardex.compat.atdata.testing import MockAtmosphere
from tests.compat.atdata.samples_for_manifests import Shot, shots
from tests.program_packages import packages_for

VERSION = "0.7.0b1"
PACKAGES = f"""atdata=={VERSION} annotated-doc==0.0.6 braceexpand==0.1.7 click==8.5.1 cramjam==2.14.0
fastparquet==2026.9.0 fsspec==2026.9.0 libipld==3.5.0 msgpack==1.2.4 numpy==2.5.4 ormsgpack==1.13.1 packaging==26.3
pandas==3.1.1 python-dateutil==4.0.0 python-dotenv==1.2.4 PyYAML==6.0.3 redis==8.1.0 shellingham==1.5.4 six==1.17.0
typer==0.29.0 typing_extensions==4.16.0 webdataset==1.0.2""".split()
PROGRAM = Path(__file__).with_name("real_atdata.py")
VALUES: list[Any] = [{}, {"b": 1, "a": [1.5, None, True, "é"], "aa": -(2**63)}, [2**64 - 1], "text"]


ARRAYS = [
    *[(kind, (2, 3)) for kind in ("<f2", "<f4", "<f8", ">f4", "|i1", "|u1", "<i8", ">u2", "|b1", "<c8", "<U3", "|S2")],
    *[("<M8[D]", (4,)), ("<m8[ms]", (4,)), ("<f4", ()), ("<i4", (0, 3)), ("<f8", (1, 1, 2, 2))],
]
"""Dtypes and shapes."""


class One(PackableSample):
    """One array, or none."""

    array: NDArray[Any] | None


def ones() -> list[One]:
    """Return samples with no array, and with one of each kind."""
    arrays = [np.arange(int(np.prod(shape))).reshape(shape).astype(kind) for kind, shape in ARRAYS]
    return [One(None), *map(One, arrays)]


def newer_pythons() -> Iterator[str]:
    """Yield Pythons of version 3.12 or later on this machine."""
    if sys.version_info >= (3, 12):
        yield sys.executable
    names = (f"python3.{minor}" for minor in range(12, 16))
    yield from filter(None, map(shutil.which, names))
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python")):
        if (found := re.match(r"3\.(\d+)\.", path.parents[1].name)) and int(found[1]) >= 12:
            yield str(path)


def works(python: str) -> bool:
    """Return whether a Python runs and has pip: a shim of pyenv may have no version behind it."""
    return subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0


def python_with_atdata() -> tuple[str, Path]:
    """Return a Python that atdata runs on, and the folder with its packages."""
    python = next(filter(works, newer_pythons()), None)
    if python is None:
        pytest.skip("no Python 3.12 or later with pip, which atdata needs")
    # atdata imports s3fs for one name; the package would need a dozen others.
    return python, packages_for(python, f"atdata-{VERSION}", PACKAGES, s3fs="class S3FileSystem: ...\n")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """The folder that we wrote, the folder that atdata wrote, and what it saw in ours."""
    python, packages = python_with_atdata()
    base = tmp_path_factory.getbasetemp()
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        shared = base.parent / f"real-atdata-{run}"  # for all workers of this run
        for old in base.parent.glob("real-atdata*"):
            if time.time() - old.stat().st_mtime > 3600:
                shutil.rmtree(old, ignore_errors=True)
    else:
        shared = base / "real-atdata"
    ours, theirs, answer = shared / "ours", shared / "theirs", shared / "answer.json"
    shared.mkdir(exist_ok=True)
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answer.exists():
            answer.write_text(run_atdata(python, packages, ours, theirs))
    return ours, theirs, json.loads(answer.read_text())


def run_atdata(python: str, packages: Path, ours: Path, theirs: Path) -> str:
    """Write samples, with both encodings of arrays; let atdata read them and write the same; return what it printed."""
    configure_arrays("compact")
    write_samples(shots(10), ours / "single.tar", manifest=True)
    configure_arrays("npy")
    write_samples(shots(10), ours / "train.tar", maxcount=4, manifest=True)
    write_samples(ones(), ours / "arrays.tar")
    (ours / "records.json").write_text(json.dumps(records()))
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [python, PROGRAM, ours, theirs, json.dumps(VALUES), json.dumps(ARRAYS)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def records() -> list[dict[str, Any]]:
    """Return a record of each kind, as our publishers write it."""
    client: Any = MockAtmosphere()
    schema = str(atmosphere.SchemaPublisher(client).publish(Shot, description="d"))
    publisher = atmosphere.DatasetPublisher(client)
    about: dict[str, Any] = {"name": "shots", "tags": ["a"], "license": "MIT"}
    publisher.publish_with_urls(["https://h.example/a.tar"], schema, metadata={"split": "train", "n": 1}, **about)
    publisher.publish_with_s3("bucket", ["a.tar"], schema, endpoint="https://minio.example", **about)
    publisher.publish_with_blobs([b"tar"], schema, **about)
    atmosphere.LabelPublisher(client).publish("shots", "at://x/y/z", version="1.0.0")
    code: dict[str, Any] = {"code_repository": "r", "code_commit": "c", "getter_path": "m:g", "putter_path": "m:p"}
    schemas: dict[str, Any] = {"source_schema_uri": "at://x/y/z", "target_schema_uri": "at://x/y/z"}
    atmosphere.LensPublisher(client).publish(name="l", **schemas, **code)
    known: dict[str, Any] = {"code_hash": atmosphere.LexCodeHash("sha256", "ab"), "description": "d"}
    verified: dict[str, Any] = {"lens_uri": "at://x/y/z", "lens_commit": "c", "verification_method": "signedHash"}
    atmosphere.VerificationPublisher(client).publish(**verified, **known)
    return [*client._records.values()]


Real = tuple[Path, Path, dict[str, Any]]


@pytest.mark.usefixtures("compact_arrays")
def test_arrays_of_all_kinds(real: Real) -> None:
    _, theirs, found = real
    expected = [None if one.array is None else one.array for one in ones()]
    described = [None if a is None else [a.dtype.str, list(a.shape), a.tobytes().hex()] for a in expected]
    assert found["arrays"] == described
    assert found["packed_arrays"] == [one.packed.hex() for one in ones()]
    assert list(Dataset[One](str(theirs / "arrays.tar"))) == ones()


def seen(sample: Shot) -> dict[str, Any]:
    image = [sample.image.dtype.str, sample.image.tolist()]
    names = ("label", "n", "score", "tags", "flag", "secret")
    return {"image": image, "blob": sample.blob.hex(), **{name: getattr(sample, name) for name in names}}


def test_atdata_reads_our_shards(real: Real) -> None:
    _, _, found = real
    expected = [seen(one) for one in shots(10)]
    assert found["single"] == found["sharded"] == expected
    assert found["shuffled"] == found["as_type"] == list(range(10))
    assert found["fields"] == list(shots(1)[0].to_dict())
    assert found["batches"] == [[4, ["a", "b"] * 2], [4, ["a", "b"] * 2], [2, ["a", "b"]]]


@pytest.mark.usefixtures("compact_arrays")
def test_atdata_packs_the_same_bytes(real: Real) -> None:
    assert real[2]["packed"] == shots(1)[0].packed.hex()


def test_atdata_reads_our_manifests(real: Real) -> None:
    ours, _, found = real
    counts = {"single": [10, 9], "train-000000": [4, 3], "train-000001": [4, 7], "train-000002": [2, 9]}
    assert found["counts"] == counts
    assert found["tags"] == [one.tags for one in shots(10)] * 2
    our_query = QueryExecutor.from_directory(ours).query((F.n >= 6) & (F.label == "b"))
    assert found["query"] == [[one.shard, one.key] for one in our_query]
    assert len(found["query"]) == 4
    assert found["keys"] == [5]


def test_we_read_shards_of_atdata(real: Real) -> None:
    _, theirs, _ = real
    for name in ("single.tar", "train-{000000..000002}.tar"):
        ds = Dataset[Shot](str(theirs / name))
        assert list(ds) == shots(10)
        assert [len(batch) for batch in ds.ordered(batch_size=4)] == [4, 4, 2]
    untyped = load_dataset(str(theirs / "train-*.tar"), split="train")
    assert [one.n for one in untyped] == list(range(10))
    assert type(untyped.head(1)[0]) is DictSample


def test_we_read_manifests_of_atdata(real: Real) -> None:
    _, theirs, _ = real
    ds = Dataset[Shot](str(theirs / "single.tar"))
    found = ds.query((ds.fields.score > 2) & (ds.fields.flag == False))  # noqa: E712
    assert [ds.get(one.key).n for one in found] == [5, 7, 9]
    manifest = ShardManifest.from_files(theirs / "single.manifest.json", theirs / "single.manifest.parquet")
    assert manifest.num_samples == 10
    assert list(manifest.samples["tags"]) == [one.tags for one in shots(10)]
    ours = ShardManifest.from_files(real[0] / "single.manifest.json", real[0] / "single.manifest.parquet")
    assert ours.aggregates == manifest.aggregates
    assert list(ours.samples.columns) == list(manifest.samples.columns)
    for name in ("label", "n", "score", "flag", "__size__"):
        assert ours.samples[name].equals(manifest.samples[name].astype(ours.samples[name].dtype)), name


def test_wrong_manifests_of_atdata_are_read_as_they_are(real: Real) -> None:
    """B3.1: what atdata wrote of several shards says that the last is empty."""
    found = QueryExecutor.from_directory(real[1] / "wrong")
    assert len(found.query(F.n >= 0)) == 8


def test_identifiers_and_records_are_the_same(real: Real) -> None:
    assert real[2]["cids"] == [generate_cid(one) for one in VALUES]
    ours = _build_schema_record(Shot, version="1.0.0")
    assert {**real[2]["record"], "createdAt": None} == {**ours, "createdAt": None}


def test_atdata_reads_our_records(real: Real) -> None:
    """Records of ATProto of each kind are what atdata makes of them."""
    ours = json.loads((real[0] / "records.json").read_text())
    assert len(ours) == 7 and real[2]["records"] == ours


def test_we_read_records_of_atdata(real: Real) -> None:
    client: Any = MockAtmosphere()
    client._records = real[2]["published"]
    by_kind: dict[str, list[str]] = {}
    for uri in client._records:
        by_kind.setdefault(uri.split("/")[3].rpartition(".")[2], []).append(uri)
    (schema,), (label,), (web, bucket) = (by_kind[kind] for kind in ("schema", "label", "entry"))
    loader = atmosphere.DatasetLoader(client)
    assert loader.get_urls(web) == ["https://h.example/a.tar"] and loader.get_urls(bucket) == ["s3://bucket/a.tar"]
    assert loader.get_metadata(web) == {"split": "train", "model": "bert"}
    assert [loader.get_typed(one).to_record() for one in (web, bucket)] == [
        client._records[one] for one in (web, bucket)
    ]
    assert atmosphere.LabelLoader(client).resolve(client.did, "shots", "1.0.0") == "at://x/y/z"
    assert atmosphere.LabelLoader(client).get_typed(label).name == "shots"
    ours = atmosphere.SchemaPublisher(client).publish(Shot)
    written = [{**atmosphere.SchemaLoader(client).get(one), "createdAt": ""} for one in (schema, str(ours))]
    assert written[0] == written[1]
