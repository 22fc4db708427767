"""Fields of UUIDs are inferred, written, read, found by SQL, edited and exchanged like any others."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from uuids import Uuid

import shardex as sx

IDS = [uuid.UUID(int=number) for number in range(5)]
SAMPLES = [{"id": one, "other": None if one.int % 2 else one, "many": [one] * one.int} for one in IDS]


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "tar"])
def test_formats(tmp_path: Path, format: str) -> None:
    schema = {"id": Uuid(), "other": uuid.UUID | None, "many": list[uuid.UUID]}
    path = tmp_path / "data"
    sx.write(path, SAMPLES, schema, format=format)
    ds = sx.open(path) if format in ("arrow", "parquet") else sx.open(path, schema=schema)
    ds = ds.select(*schema)  # tars have keys, too
    assert ds.features == sx.Features.of(schema)
    assert list(ds) == SAMPLES and ds[3] == SAMPLES[3] and ds["id"] == IDS and ds[::-1][0] == SAMPLES[4]


def test_inference_sql_edits_and_exchange(tmp_path: Path) -> None:
    path = tmp_path / "data"
    sx.write(path, SAMPLES)
    ds = sx.open(path)
    assert ds.features["id"] == Uuid() and ds.features["many"] == sx.Sequence(Uuid())
    assert list(ds.where("id = ?", [str(IDS[2])])) == SAMPLES[2:3] and len(ds.where("other IS NULL")) == 2
    table = ds.to_arrow()
    assert table["id"].to_pylist() == [str(one) for one in IDS] and list(sx.open(table)) == SAMPLES
    with sx.edit(path) as edit:
        edit.update(1, id=str(IDS[4]))
    assert sx.open(path)[1]["id"] == IDS[4]
    with pytest.raises(sx.ShardexError, match=r"expected uuid, got str 'x'.* - at sample 0, field id"):
        sx.write(tmp_path / "wrong", [{"id": "x"}], {"id": Uuid()})


def test_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    found = sx.open([{"id": one} for one in IDS]).to_huggingface()
    assert found["id"][:] == [str(one) for one in IDS]


def test_without_the_package_the_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    sx.write(path, SAMPLES)
    code = "import shardex as sx, sys, json; print(json.dumps(sx.open(sys.argv[1])[2]))"
    hide = "import shardex.plugins as p; p._entry_points = lambda group: ()\n"
    done = subprocess.run([sys.executable, "-c", hide + code, path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"id": str(IDS[2]), "other": str(IDS[2]), "many": [str(IDS[2])] * 2}
    assert "expected a package that has features of the kind 'uuid', got none" in done.stderr
