"""`IndexStore`: written whole, read mapped, never more removed than the index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.sample_generators.schema import ArraySpec, SampleSchema
from shardex.errors import ClosedError, FormatError, PathError, ShardexError

SCHEMA = SampleSchema(2, [ArraySpec("tokens", "uint16", 0), ArraySpec("mask", "uint8", 4)])


def test_an_index_appears_when_it_is_closed(tmp_path: Path) -> None:
    store = IndexStore(str(tmp_path / "base"))
    store.init_store()
    for k in range(5):
        store.add_sample(file_location=str(tmp_path / f"data{k % 2}.bin"), byte_offset=6 * k, num_bytes=6)
    store.set_sample_schema(SCHEMA)
    assert not store.exists() and not (tmp_path / "base/index").exists()
    store.close()
    store.close()
    assert store.exists()
    assert (tmp_path / "base/index/file_location.txt").read_text() == "../data0.bin\n../data1.bin\n"
    index = store.load()
    assert len(index) == 5 and index.sample_locations.tolist() == [[k % 2, 6 * k, 6] for k in range(5)]
    assert index.file_locations == [str(tmp_path / "data0.bin"), str(tmp_path / "data1.bin")]
    assert index.sample_schema == SCHEMA
    expected = {"sample_size": 2, "arrays": [vars(one) for one in SCHEMA.arrays], "total_bytes_per_sample": 6}
    assert (tmp_path / "base/index/sample_schema.json").read_text() == json.dumps(expected, indent=2)


def test_an_index_that_exists_raises_and_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "a.jsonl").touch()
    store = IndexStore(str(tmp_path))
    with pytest.raises(ValueError, match="call clear") as caught:
        store.init_store()
    assert isinstance(caught.value, FileExistsError) and isinstance(caught.value, ShardexError)
    store.clear()
    store.clear()
    store.init_store()
    store.close()
    assert len(store.load()) == 0 and (tmp_path / "a.jsonl").exists()


def test_of_two_writers_one_wins(tmp_path: Path) -> None:
    first, second = IndexStore(str(tmp_path)), IndexStore(str(tmp_path))
    for store in (first, second):
        store.init_store()
        store.add_sample(str(tmp_path / "a"), 0, 1)
    second.close()
    with pytest.raises(ValueError, match="expected no index"):
        first.close()
    assert len(first.load()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


@pytest.mark.parametrize("folder", ["", ".", ".."])
def test_clear_never_removes_data(tmp_path: Path, folder: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").touch()
    with pytest.raises(ValueError, match="would remove your data"):
        IndexStore(str(tmp_path / "data"), folder).clear()
    assert (tmp_path / "data" / "a.jsonl").exists()


def test_a_store_that_was_not_closed_writes_nothing(tmp_path: Path) -> None:
    store = IndexStore(str(tmp_path))
    with pytest.raises(ClosedError, match="init_store"):
        store.add_sample("a", 0, 1)
    store.init_store()
    store.add_sample("a", 0, 1)
    with pytest.warns(ResourceWarning, match=r"expected close\(\)"):
        store.__del__()
    assert list(tmp_path.iterdir()) == []


def test_a_schema_can_be_added_later(tmp_path: Path) -> None:
    store = IndexStore(str(tmp_path))
    store.init_store()
    store.close()
    store.set_sample_schema(SCHEMA)
    assert store.load().sample_schema == SCHEMA


def test_wrong_files_raise(tmp_path: Path) -> None:
    store = IndexStore(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        store.load()
    store.init_store()
    with pytest.raises(PathError, match="without newlines"):
        store.add_sample(str(tmp_path / "a\nb"), 0, 1)
    with pytest.raises(OverflowError):
        store.add_sample(str(tmp_path / "a"), -1, 1)
    store.close()
    (tmp_path / "index/sample_locations.bin").write_bytes(b"123")
    with pytest.raises(FormatError, match="24 bytes for each sample"):
        store.load()
    (tmp_path / "index/sample_locations.bin").write_bytes(np.zeros(3, np.uint64).tobytes())
    (tmp_path / "index/file_location.txt").write_text("a\n\n")  # an empty line at the end
    assert store.load().file_locations == [str(tmp_path / "a")]
    (tmp_path / "index/shardex.json").write_text("{")
    with pytest.raises(FormatError, match=r"shardex.json: expected the state"):
        store.load()
