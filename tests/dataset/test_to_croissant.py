"""Metadata of datasets: the real mlcroissant and the real `datasets` read what we describe, and we read it again."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, ArgumentError, SchemaError
from shardex.media import encode_image
from tests.program_packages import packages_for

PROGRAM = Path(__file__).with_name("real_mlcroissant.py")
VERSION = "1.1.1"
PACKAGES = f"""mlcroissant=={VERSION} absl-py==2.5.1 decorator==5.3.1 etils==1.15.0 jsonpath-rw==1.4.0 networkx==3.6.1
ply==3.11 pyparsing==3.3.3 rdflib==7.6.0 scipy==1.17.1 six==1.17.0 zipp==4.1.2""".split()
"""What mlcroissant needs besides packages that our tests need too."""
SCHEMA: dict[str, Any] = {
    "n": int,
    "score": float,
    "my text": str,
    "good": bool,
    "when": sx.Timestamp("us"),
    "label": sx.ClassLabel(["cat", "dog"]),
    "vector": sx.Array("float32", (3,)),
    "ragged": sx.Sequence(int),
}


def samples(count: int, names: list[str]) -> list[dict[str, Any]]:
    """Return samples with these fields of the schema."""
    found = [
        {
            "n": k,
            "score": k / 2,
            "my text": f"é {k}",
            "good": k % 2 == 0,
            "when": datetime(2026, 1, 1 + k),
            "label": k % 2,
            "vector": np.arange(k, k + 3, dtype=np.float32),
            "ragged": [k] * (k + 1),
        }
        for k in range(count)
    ]
    return [{name: one[name] for name in names} for one in found]


def described(folder: Path, format: str, shard_rows: int = 3) -> sx.Dataset:
    """Write samples and their metadata; return them as they were written."""
    names = [name for name in SCHEMA if format != "csv" or name not in ("vector", "ragged")]
    schema = {name: SCHEMA[name] for name in names}
    sx.write(folder, samples(5, names), schema, format=format, shard_rows=shard_rows)
    ds = sx.open(folder) if format == "parquet" else sx.open(folder, schema=schema)
    ds.to_croissant(folder, name="my data", license="CC-BY-4.0", url="https://example.com/my")
    return ds


def seen_by_mlcroissant(*paths: Path) -> list[dict[str, Any]]:
    packages = packages_for(sys.executable, f"mlcroissant-{VERSION}", PACKAGES)
    command = [sys.executable, str(PROGRAM), *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def plain(sample: Any) -> dict[str, Any]:
    """Return a sample of ours as `real_mlcroissant` has it, which names fields by their ids."""
    values = {name.replace(" ", "%20"): value for name, value in sample.items()}
    return {n: str(v) if isinstance(v, datetime) else getattr(v, "tolist", lambda v=v: v)() for n, v in values.items()}


@pytest.mark.needs("pandas", "requests", "fsspec")
def test_the_real_mlcroissant_reads_the_same_records(tmp_path: Path) -> None:
    cases = [("parquet", 3), ("jsonl", 3), ("csv", 3), ("parquet", 100)]
    ours = [described(tmp_path / f"{format}-{rows}", format, rows) for format, rows in cases]
    picture = encode_image(np.full((2, 3, 3), 7, np.uint8))
    images = sx.write(tmp_path / "images", [{"image": picture}], {"image": sx.Image()}, format="parquet")
    images.to_croissant(tmp_path / "images", license="CC0-1.0", url="https://example.com")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n{"x": 2}\n'))
    sx.open(tmp_path / "packed").to_croissant(tmp_path / "packed", license="CC0-1.0", url="https://example.com")
    names = [*(f"{format}-{rows}" for format, rows in cases), "images", "packed"]
    *found, pictures, packed = seen_by_mlcroissant(*(tmp_path / name / "metadata.json" for name in names))
    for one, ds in zip(found, ours, strict=True):
        assert one["version"] == "['http://mlcommons.org/croissant/1.1']" and not one["errors"]
        assert all("citeAs" in warning for warning in one["warnings"]), "which only the authors know"
        assert one["records"] == list(map(plain, ds))
    assert pictures["records"] == [{"image": [3, 2]}] and not pictures["errors"]
    assert packed["records"] == [{"x": 1}, {"x": 2}] and not packed["errors"]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_we_read_what_we_described(tmp_path: Path, format: str, recwarn: pytest.WarningsRecorder) -> None:
    ds = described(tmp_path / "d", format)
    with pytest.warns(UserWarning, match="declared as DateTime") if format == "jsonl" else _no_warnings():
        again = sx.open(tmp_path / "d" / "metadata.json")
    same = [name for name in ds.fields if format != "jsonl" or name != "when"]
    for name in same:
        assert [np.asarray(one).tolist() for one in again[name]] == [np.asarray(one).tolist() for one in ds[name]]
    if format == "parquet":
        assert again.features == ds.features and again.fingerprint == ds.fingerprint
    assert sx.open(tmp_path / "d").fields == ds.fields, "metadata and card are no data"


class _no_warnings:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


@pytest.mark.needs("datasets")
@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_hugging_face_reads_the_card(tmp_path: Path, format: str) -> None:
    import datasets

    ds = described(tmp_path / "d", format)
    found = datasets.load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
    assert list(found) == ["train"] and found["train"].num_rows == 5
    assert found["train"].features == ds.to_huggingface().features
    assert found["train"][3]["my text"] == "é 3"
    card = (tmp_path / "d" / "README.md").read_text("utf-8")
    assert 'license: "cc-by-4.0"' in card and 'size_categories: ["n<1K"]' in card and "\n# my data\n" in card


def test_metadata(tmp_path: Path) -> None:
    described(tmp_path / "d", "parquet")
    found = json.loads((tmp_path / "d" / "metadata.json").read_text("utf-8"))
    assert found["datePublished"] == datetime.now(UTC).date().isoformat() and found["license"] == "CC-BY-4.0"
    assert [one["contentUrl"] for one in found["distribution"][:2]] == ["part-00000.parquet", "part-00001.parquet"]
    assert found["distribution"][2]["includes"] == ["part-00000.parquet", "part-00001.parquet"]
    types = {one["name"]: (one["dataType"], one.get("arrayShape")) for one in found["recordSet"][0]["field"]}
    assert types["vector"] == ("sc:Float", "3") and types["ragged"] == ("sc:Integer", "-1")
    assert [types[name][0] for name in ("good", "when", "label")] == ["sc:Boolean", "sc:DateTime", "sc:Integer"]


def test_files_that_exist_are_kept(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": 1}], format="parquet")
    (tmp_path / "d" / "README.md").write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"overwrite=True replaces it, and card=False writes none.*README\.md"):
        ds.to_croissant(tmp_path / "d")
    assert sorted(os.listdir(tmp_path / "d")) == ["README.md", "part-00000.parquet"]
    ds.to_croissant(tmp_path / "d" / "croissant.json", card=False)
    assert (tmp_path / "d" / "README.md").read_text() == "mine"
    with pytest.raises(AlreadyExistsError, match=r"overwrite=True replaces it: .*croissant\.json"):
        ds.to_croissant(tmp_path / "d" / "croissant.json", card=False)
    ds.to_croissant(tmp_path / "d" / "croissant.json", description="New.", overwrite=True)
    assert (tmp_path / "d" / "README.md").read_text().endswith("# d\n\nNew.\n")
    assert sx.open(tmp_path / "d" / "croissant.json")[0].x == 1 and len(sx.open(tmp_path / "d")) == 1


def test_a_folder_above_the_data_and_a_choice_of_fields(tmp_path: Path) -> None:
    sx.write(tmp_path / "all" / "test", [{"x": 1, "y": 2}], format="parquet")
    ds = sx.open(tmp_path / "all" / "test").select("y")
    ds.to_croissant(tmp_path / "all")
    assert list(sx.open(tmp_path / "all" / "metadata.json")) == [{"y": 2}]
    card = (tmp_path / "all" / "README.md").read_text()
    assert '"split":"test","path":["test/part-00000.parquet"]' in card and '"features"' not in card
    with pytest.raises(ArgumentError, match=r"in the folder .*other or below, got .*part-00000\.parquet"):
        ds.to_croissant(tmp_path / "other")


def test_values_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = sx.Catalog(tmp_path / "catalog.db")
    ds = sx.write(tmp_path / "d", [{"x": 1}], format="parquet")
    about: dict[str, Any] = {"description": "Ones.", "tags": ["one", "number"], "license": "CC0-1.0"}
    monkeypatch.setenv("SHARDEX_CATALOG", str(tmp_path / "catalog.db"))
    catalog.put("team/ones", ds, **about)
    sx.open("@team/ones").to_croissant(tmp_path / "d", description="Better.")
    found = json.loads((tmp_path / "d" / "metadata.json").read_text())
    assert found["name"] == "team/ones" and found["version"] == "1.0.0" and found["license"] == "CC0-1.0"
    assert found["description"] == "Better." and found["keywords"] == ["one", "number"]
    assert 'tags: ["one","number"]' in (tmp_path / "d" / "README.md").read_text()


def test_data_that_cannot_be_described(tmp_path: Path) -> None:
    native = sx.write(tmp_path / "native", [{"x": 1}])
    with pytest.raises(ArgumentError, match=r"\(parquet, jsonl, csv\).*write them with sx\.write"):
        native.to_croissant(tmp_path / "native")
    with pytest.raises(ArgumentError, match=r"store it with sx\.write"):
        native.where("x > 0").to_croissant(tmp_path / "native")
    lines = tmp_path / "a.jsonl.bz2"
    lines.write_bytes(bz2.compress(b'{"x": 1}\n'))
    with pytest.raises(ArgumentError, match=r"expected plain files or \.gz in the folder .*, got .*a\.jsonl\.bz2"):
        sx.open(lines).to_croissant(tmp_path)
    with pytest.raises(ArgumentError, match="opened without options"):
        sx.open(lines, decode="text").to_croissant(tmp_path)
    raw = sx.write(tmp_path / "raw", [{"x": 1, "raw": b"\xff"}], format="parquet")
    with pytest.raises(SchemaError, match=r"got bytes - at field raw; .*ds\.drop\('raw'\)"):
        raw.to_croissant(tmp_path / "raw")
    raw.drop("raw").to_croissant(tmp_path / "raw")
    assert sx.open(tmp_path / "raw" / "metadata.json").fields == ["x"]
