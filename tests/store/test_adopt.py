"""Fields added to adopted shards: joined by row, versioned, removable; the shards are not changed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, ArgumentError, PathError, StaleIndexError
from shardex.formats import open_rows
from shardex.media import encode_image
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Foreign, Fragment
from shardex.native.manifest import Manifest, publish
from shardex.sources import place_of

FORMATS = ["jsonl", "csv", "tar", "parquet", "tokens", "bins", "folder"]


def shards(folder: Path, format: str) -> tuple[str, list[dict[str, Any]]]:
    if format == "tokens":
        samples: list[dict[str, Any]] = [{"tokens": np.full(4, k, np.uint16)} for k in range(10)]
        sx.write(folder / "data", samples, {"tokens": sx.Array("uint16", (4,))}, format=format)
    elif format == "folder":
        samples = [{"image": encode_image(np.full((2, 3, 3), k, np.uint8)), "n": k} for k in range(10)]
        sx.write(folder / "data", samples, {"image": sx.Image(), "n": int}, format=format)
    else:
        samples = [{"text": f"t{k}", "n": k} for k in range(10)]
        sx.write(folder / "data", samples, {"text": str, "n": int}, format=format)
    return str(folder / "data"), [dict(sample) for sample in sx.open(folder / "data")]


def state(folder: str) -> dict[str, tuple[int, int]]:
    paths = [path for path in Path(folder).rglob("*") if path.is_file() and ".shardex" not in path.parts]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


@pytest.mark.parametrize("format", FORMATS)
def test_add_fields_to_shards_of_any_format(tmp_path: Path, format: str) -> None:
    data, samples = shards(tmp_path, format)
    before = state(data)
    ds = sx.adopt(data, tmp_path / "beside")
    assert len(ds) == 10 and [set(s) >= set(samples[0]) for s in ds] == [True] * 10
    with sx.edit(tmp_path / "beside", trust_paths=True) as tx:
        tx.add_field("score", "float32", np.arange(10, dtype=np.float32))
        tx.delete([3])
    ds = sx.open(tmp_path / "beside", trust_paths=True)
    assert ds.select("score").read(range(9))["score"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    for sample, expected in zip(ds, [s for k, s in enumerate(samples) if k != 3], strict=True):
        assert sx.DictSample({name: sample[name] for name in expected}) == expected
    assert pickle.loads(pickle.dumps(ds))[5].score == 6
    assert next(iter(sx.Loader(ds, 4, shuffle=True))).score.shape == (4,)
    assert state(data) == before


def test_adopted_fields_can_be_edited_and_dropped(tmp_path: Path) -> None:
    data, _ = shards(tmp_path, "jsonl")
    before = state(data)
    sx.adopt(data, tmp_path / "beside")
    with sx.edit(tmp_path / "beside", trust_paths=True) as tx:
        tx.update(2, text="better")
        tx.rename_field("n", "number")
        tx.add_field("e", sx.Array("float32", (2,)), np.zeros((10, 2), np.float32))
    ds = sx.open(tmp_path / "beside", trust_paths=True)
    assert ds.fields == ["text", "number", "e"] and ds[2].text == "better" and ds[3].number == 3
    with sx.edit(tmp_path / "beside", trust_paths=True) as tx:
        tx.drop_field("e")
        tx.drop_field("text")
    assert list(sx.open(tmp_path / "beside", trust_paths=True)) == [{"number": k} for k in range(10)]
    assert sx.open(tmp_path / "beside", version=1, trust_paths=True)[2].text == "t2"
    assert state(data) == before


def test_adopted_schema_is_kept(tmp_path: Path) -> None:
    data, _ = shards(tmp_path, "jsonl")
    sx.adopt(data, tmp_path / "beside", schema={"n": "int16", "text": str})
    column = sx.open(tmp_path / "beside", trust_paths=True).read([1])["n"]
    assert column.dtype == np.int16


def test_changed_shards_raise(tmp_path: Path) -> None:
    data, _ = shards(tmp_path, "jsonl")
    sx.adopt(data, tmp_path / "beside")
    (file,) = Path(data).glob("*.jsonl")
    with file.open("a") as lines:
        lines.write('{"text": "more", "n": 10}\n')
    os.utime(file)
    ds = sx.open(tmp_path / "beside", trust_paths=True)
    with pytest.raises(StaleIndexError, match="expected the shards as they were when they were adopted"):
        ds[0]


def test_shards_outside_the_folder_need_trust_paths(tmp_path: Path) -> None:
    data, _ = shards(tmp_path, "jsonl")
    sx.adopt(data, tmp_path / "beside")
    with pytest.raises(PathError, match="if you trust it, open it with trust_paths=True"):
        sx.open(tmp_path / "beside")
    with pytest.raises(PathError, match="trust_paths=True"):
        sx.edit(tmp_path / "beside")


def test_append_and_compact_of_adopted_shards_raise(tmp_path: Path) -> None:
    data, _ = shards(tmp_path, "jsonl")
    sx.adopt(data, tmp_path / "beside")
    with pytest.raises(AlreadyExistsError):
        sx.adopt(data, tmp_path / "beside")
    with pytest.raises(ArgumentError, match="expected shards in files, got ListRows"):
        sx.adopt([{"x": 1}], tmp_path / "other")  # type: ignore[list-item]
    with (
        sx.edit(tmp_path / "beside", trust_paths=True) as tx,
        pytest.raises(ArgumentError, match="expected no new samples"),
    ):
        tx.append(text="x", n=1)
    with pytest.raises(ArgumentError, match="expected a dataset without adopted shards to compact"):
        sx.compact(tmp_path / "beside")


def test_dataset_without_adopted_fields_is_like_any_other(tmp_path: Path) -> None:
    """All fields in the shards were dropped: nothing outside the folder is read."""
    data, _ = shards(tmp_path, "jsonl")
    beside = tmp_path / "beside"
    sx.adopt(data, beside)
    with sx.edit(beside, trust_paths=True) as tx:
        tx.add_field("score", "int64", range(10))
        tx.delete(0)
        tx.drop_field("text")
        tx.drop_field("n")
    for file in Path(data).glob("*.jsonl"):
        file.unlink()
    expected = list(range(1, 10))
    assert [s.score for s in sx.open(beside)] == expected
    assert sx.verify(beside) == []
    assert sx.compact(beside) == 3
    with sx.edit(beside) as tx:
        tx.append(score=10)
    assert [s.score for s in sx.open(beside)] == [*expected, 10]


def test_verify_and_recover_agree_on_adopted_rows_with_newer_values(tmp_path: Path) -> None:
    """The shards are gone: rows whose fields were all updated can be read, the others not."""
    data, _ = shards(tmp_path, "jsonl")
    beside = tmp_path / "beside"
    sx.adopt(data, beside)
    with sx.edit(beside, trust_paths=True) as tx:
        tx.update([2, 3, 7], text=["a", "b", "c"], n=[1, 2, 3])
        tx.update(5, n=5)
        tx.delete(0)
    for file in Path(data).glob("*.jsonl"):
        file.unlink()
    problems = sx.verify(beside, trust_paths=True)
    done = sx.recover(beside, tmp_path / "saved", trust_paths=True)
    assert [s.text for s in sx.open(tmp_path / "saved")] == ["a", "b", "c"]
    lost = {row for one in done.lost for row in one.samples or ()}
    assert {row for one in problems for row in one.samples or ()} == lost == {0, 3, 4, 5, 7, 8}


def test_text_files_that_were_adopted_as_jsonl_stay_text(tmp_path: Path) -> None:
    """Before there was a format for text, a manifest named jsonl for them, without an option."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one\n\n2\n")
    rows = open_rows(str(tmp_path / "data"), "jsonl", decode="text")
    foreign = Foreign(str(tmp_path / "data"), "jsonl", {}, rows.fingerprint, {"text": "text"})
    manifest = Manifest(3, rows.features.to_json(), FragmentList([Fragment(3, [], foreign=foreign)]), ids=3)
    assert publish(place_of(str(tmp_path / "beside")), 1, manifest)
    assert sx.open(tmp_path / "beside", trust_paths=True)["text"] == ["one", "", "2"]
