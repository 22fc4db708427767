"""Folders that data-forager reads: each form is written, and read by the real package."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, SchemaError, UnknownFormatError
from tests.data_forager_process import read_arrays, read_lines, read_tokens

FIXTURES = Path(__file__).parents[3] / "fixtures" / "data-forager"
ARRAYS = {
    "tokens": sx.Array("uint32", (4,)),
    "loss_mask": sx.Array("uint8", (4,)),
    "weights": sx.Array("float32", (4,)),
}


def samples(count: int = 7) -> list[dict[str, Any]]:
    return [
        {
            "tokens": np.arange(k, k + 4, dtype=np.uint32),
            "loss_mask": np.array([k % 2, 0, 1, 0], np.uint8),
            "weights": np.full(4, k / 2, np.float32),
        }
        for k in range(count)
    ]


def plain(some: Any) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in one.items()} for one in some]


def test_arrays_of_one_length_are_written(tmp_path: Path) -> None:
    made = sx.write(tmp_path / "d", samples(), ARRAYS, format="data_forager", shard_size=100)
    assert plain(made) == plain(sx.open(tmp_path / "d")) == read_arrays(tmp_path / "d") == plain(samples())
    assert dict(made.features) == ARRAYS
    files = [f"tokenized-samples/part-0000{k}-tokenized-samples.bin" for k in range(4)]
    assert (tmp_path / "d/index/file_location.txt").read_text().splitlines() == files
    table = np.fromfile(tmp_path / "d/index/sample_locations.bin", "<u8").reshape(-1, 3)
    assert table.tolist() == [[k // 2, k % 2 * 36, 36] for k in range(7)]
    assert json.loads((tmp_path / "d/index/sample_schema.json").read_text()) == {
        "sample_size": 4,
        "arrays": [
            {"name": "tokens", "dtype": "uint32", "offset": 0},
            {"name": "loss_mask", "dtype": "uint8", "offset": 16},
            {"name": "weights", "dtype": "float32", "offset": 20},
        ],
        "total_bytes_per_sample": 36,
    }


def test_a_fixture_of_the_package_is_copied(tmp_path: Path) -> None:
    given = shutil.copytree(FIXTURES / "tokens_aux", tmp_path / "a")
    sx.write(tmp_path / "b", sx.open(given), format="data_forager")
    assert read_arrays(tmp_path / "b") == read_arrays(given)
    schema = "index/sample_schema.json"
    assert (tmp_path / "b" / schema).read_text() == (given / schema).read_text()


def test_one_array_is_written(tmp_path: Path) -> None:
    fixed = [{"ids": np.arange(k, k + 3, dtype=np.uint16)} for k in range(5)]
    made = sx.write(tmp_path / "fixed", fixed, {"ids": sx.Array("uint16", (3,))}, format="data_forager")
    assert plain(made) == plain(fixed) == read_arrays(tmp_path / "fixed")
    assert read_tokens(tmp_path / "fixed", "uint16") == [one["ids"].tolist() for one in fixed]
    arrays = [[1, 2, 3], [], [70000], [4, 5]]
    given: Any = [{"tokens": np.array(one, np.uint32)} for one in arrays]
    made = sx.write(tmp_path / "free", given, {"tokens": sx.Array("uint32", (None,))}, format="data_forager")
    assert [one.tokens.tolist() for one in sx.open(tmp_path / "free")] == arrays
    assert [one.tokens.tolist() for one in made] == read_tokens(tmp_path / "free", "uint32") == arrays
    assert made.lengths("tokens").tolist() == [3, 0, 1, 2]
    assert os.listdir(tmp_path / "free/tokenized-samples") == ["part-00000-tokenized-samples.u32"]


def test_other_samples_are_written_as_lines(tmp_path: Path) -> None:
    given = [{"text": f"line {k} é", "n": k, "v": [k, 1.5]} for k in range(5)]
    schema = {"text": str, "n": int, "v": list[float]}
    made = sx.write(tmp_path / "d", given, schema, format="data_forager", shard_size=84, prefix="{x}")
    assert plain(made) == plain(sx.open(tmp_path / "d")) == plain(read_lines(tmp_path / "d")) == plain(given)
    assert sorted(os.listdir(tmp_path / "d")) == ["index", *(f"{{x}}-0000{k}.jsonl" for k in range(3))]
    with pytest.raises(SchemaError, match="bytes"):
        sx.create(tmp_path / "e", {"data": bytes}, format="data_forager")


@pytest.mark.parametrize(
    "schema", [ARRAYS, {"tokens": sx.Array("uint16", (None,))}, {"text": str}], ids=["arrays", "tokens", "lines"]
)
def test_a_dataset_without_samples_is_written(tmp_path: Path, schema: Any) -> None:
    made = sx.write(tmp_path / "d", [], schema, format="data_forager")
    assert len(made) == len(sx.open(tmp_path / "d")) == 0
    assert len(read_lines(tmp_path / "d")) == 0
    if "text" not in schema:
        assert dict(made.features) == schema


def test_what_samples_cannot_hold_is_refused(tmp_path: Path) -> None:
    free = {"a": sx.Array("uint16", (None,)), "b": sx.Array("uint16", (None,))}
    with pytest.raises(SchemaError, match=r"expected one array, or several of one length, .*; make some with windows"):
        sx.create(tmp_path / "d", free, format="data_forager")
    for schema, message in (
        ({"a": sx.Array("uint16", (2,)), "b": sx.Array("uint16", (3,))}, "all of one length"),
        ({"a": sx.Array("bool", (None,))}, "expected numbers of uint8, .*got a bool"),
        ({"a": sx.Array("uint8", (0,))}, "expected arrays of at least one number"),
    ):
        with pytest.raises(SchemaError, match=message):
            sx.create(tmp_path / "d", schema, format="data_forager")
    assert not os.listdir(tmp_path)
    with sx.create(tmp_path / "d", ARRAYS, format="data_forager") as out:
        with pytest.raises(SchemaError, match="at sample 0, field weights"):
            out.append({**samples()[0], "weights": np.zeros(3, np.float32)})
        with pytest.raises(SchemaError, match="expected the fields tokens, loss_mask, weights, got 'more' too"):
            out.append({**samples()[0], "more": 1})
        out.append(samples()[0])
    assert plain(sx.open(tmp_path / "d")) == plain(samples()[:1])


def test_modes(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", samples(), ARRAYS, format="data_forager")
    with pytest.raises(ArgumentError, match='expected mode "create" or "overwrite", got "append"'):
        sx.create(tmp_path / "d", ARRAYS, format="data_forager", mode="append")
    text: Any = [{"text": "a"}]
    sx.write(tmp_path / "d", text, {"text": str}, format="data_forager", mode="overwrite")
    assert read_lines(tmp_path / "d") == text
    with pytest.raises(UnknownFormatError, match=r"expected a folder with index/file_location\.txt and"):
        sx.open(tmp_path, format="data_forager")


def test_jobs_write_the_same_files(tmp_path: Path) -> None:
    source = sx.write(tmp_path / "a", samples(200), ARRAYS)
    sx.write(tmp_path / "b", source, format="data_forager", shard_size=1000)
    steps: Any = {"transform": dict, "workers": 2, "executor": "threads"}
    made = sx.write(tmp_path / "c", source, ARRAYS, format="data_forager", shard_size=1000, **steps)
    assert plain(made) == plain(samples(200))
    names = sorted(str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert len(names) == 11
    for name in names:
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()


def test_many_samples_are_written_in_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.compat.formats.data_forager.writer.ENTRIES_AT_ONCE", 3)
    made = sx.write(tmp_path / "d", samples(20), ARRAYS, format="data_forager")
    assert plain(made) == plain(samples(20))
