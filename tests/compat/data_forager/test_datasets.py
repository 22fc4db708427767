"""Datasets in processes, threads and workers of torch; all kinds of indexes; errors that name the sample."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.compat.data_forager.datasets.common import Dataset, SubsampledDataset
from shardex.compat.data_forager.datasets.jsonl import JsonlDataset
from shardex.compat.data_forager.datasets.tokens import TokensDataset
from shardex.compat.data_forager.datasets.tokens_with_aux import TokensWithAuxDataset
from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.indexers.jsonl_indexer import create_default_jsonl_indexer
from shardex.compat.data_forager.indexers.tokenization_indexer import (
    create_tokenize_and_index_jsonl_text_func,
    create_tokenize_and_index_with_aux_func,
)
from shardex.compat.data_forager.sample_generators.aux import LossMaskGenerator, Part
from shardex.compat.data_forager.sample_generators.schema import ArraySpec, SampleSchema
from shardex.compat.data_forager.sample_index import SampleIndex, SampleLocation
from shardex.errors import FormatError, ShardexError, StaleIndexError, TruncatedShardError

ROWS = 300


def letters(text: str) -> list[int]:
    return list(text.encode())


def parts(line: bytes) -> list[Part]:
    text = json.loads(line)["text"]
    return [Part("prompt", text[:4]), Part("response", text[4:])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    for number in range(3):
        lines = (json.dumps({"text": f"line {k}", "n": k}) for k in range(number, ROWS, 3))
        (path / f"part{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def lines(folder: Path) -> JsonlDataset:
    create_default_jsonl_indexer(str(folder))()
    return JsonlDataset.create_from_index_on_filesystem(str(folder))


def expected(row: int) -> dict[str, Any]:
    number, k = divmod(row, ROWS // 3)
    return {"text": f"line {number + 3 * k}", "n": number + 3 * k}


# -- processes and threads ----------------------------------------------------------------------------------------


def wrong_reads(dataset: JsonlDataset, seed: int, wrong: Any) -> None:
    rows = np.random.default_rng(seed).integers(0, ROWS, 2000).tolist()
    wrong.put(sum(dataset[row] != expected(row) for row in rows))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_processes_read_after_the_first_access(lines: JsonlDataset) -> None:
    assert lines[0] == expected(0)
    context = multiprocessing.get_context("fork")
    wrong = context.Queue()
    workers = [context.Process(target=wrong_reads, args=(lines, k, wrong)) for k in range(4)]
    for worker in workers:
        worker.start()
    assert [wrong.get(timeout=60) for _ in workers] == [0] * len(workers)
    for worker in workers:
        worker.join()


def test_threads_read_the_same_dataset(lines: JsonlDataset) -> None:
    with ThreadPoolExecutor(4) as threads:
        rows = np.random.default_rng(0).integers(0, ROWS, 4000).tolist()
        assert list(threads.map(lines.__getitem__, rows)) == [expected(row) for row in rows]


def test_a_dataset_that_was_read_is_pickled_without_its_index(lines: JsonlDataset) -> None:
    states = [lines.is_initialized]
    assert lines[5] == expected(5)
    states.append(lines.is_initialized)
    data = pickle.dumps(lines)
    assert len(data) < 1000  # the places of samples alone would be 7200 bytes
    copy = pickle.loads(data)
    assert [*states, copy.is_initialized] == [False, True, False]
    assert list(copy) == list(lines)


def test_an_index_of_the_user_is_pickled(lines: JsonlDataset) -> None:
    some = SampleIndex(lines._sample_index.file_locations, lines._sample_index.sample_locations[10:20])
    copy = pickle.loads(pickle.dumps(JsonlDataset(some)))
    assert list(copy) == [expected(row) for row in range(10, 20)]


def test_a_pickled_dataset_whose_index_was_made_again_raises(lines: JsonlDataset, folder: Path) -> None:
    data = pickle.dumps(lines)
    (folder / "part9.jsonl").write_text('{"text": "new"}\n')
    IndexStore(str(folder)).clear()
    create_default_jsonl_indexer(str(folder))()
    with pytest.raises(StaleIndexError, match="made later"):
        pickle.loads(data)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", [None, "fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_torch_loads_lines_in_workers(lines: JsonlDataset, method: str | None) -> None:
    from torch.utils.data import DataLoader

    assert lines[0] == expected(0)
    workers: dict[str, Any] = {} if method is None else {"num_workers": 1 + (method == "fork")}
    loader: Any = DataLoader(lines, batch_size=32, shuffle=True, multiprocessing_context=method, **workers)  # type: ignore[arg-type]
    seen = []
    for batch in loader:
        assert batch["text"] == [one["text"] for one in batch]
        assert batch["n"].tolist() == [one["n"] for one in batch]
        assert batch.keys() == ["text", "n"] and "text" in batch and batch[0] in batch
        assert [name for name, _ in batch.items()] == ["text", "n"] and len(list(batch.values())) == 2
        batch["size"] = [len(text) for text in batch["text"]]
        assert batch.get("size") == batch["size"] and batch.get("other", 5) == 5 and batch.keys()[-1] == "size"
        seen += batch
    assert sorted(one["n"] for one in seen) == list(range(ROWS))


def test_torch_loads_arrays(folder: Path) -> None:
    import torch
    from torch.utils.data import DataLoader

    create_tokenize_and_index_with_aux_func(
        parts, letters, 0, {"loss_mask": LossMaskGenerator()}, str(folder), sample_size=16
    )()
    arrays = TokensWithAuxDataset.create_from_index_on_filesystem(str(folder))
    batch = next(iter(DataLoader(arrays, batch_size=8)))  # type: ignore[arg-type]
    assert batch["tokens"].shape == batch["loss_mask"].shape == (8, 16)
    assert batch["loss_mask"].dtype == torch.uint8
    assert not arrays[0]["tokens"].flags.writeable


def test_many_files_need_no_descriptors(tmp_path: Path) -> None:
    for k in range(60):
        (tmp_path / f"{k}.jsonl").write_text(f'{{"n": {k}}}\n')
    create_default_jsonl_indexer(str(tmp_path))()
    before = len(os.listdir("/proc/self/fd"))
    lines = JsonlDataset.create_from_index_on_filesystem(str(tmp_path))
    assert [one["n"] for one in lines] == list(range(60))
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_index_is_mapped(lines: JsonlDataset) -> None:
    table = lines._sample_index.sample_locations
    assert table.dtype == np.uint64 and table.shape == (ROWS, 3) and not table.flags.owndata


# -- indexes ------------------------------------------------------------------------------------------------------


def test_samples_are_found_by_all_kinds_of_numbers(lines: JsonlDataset) -> None:
    assert lines[np.int64(7)] == lines[7] == expected(7) and lines[-1] == expected(ROWS - 1)
    assert lines[2:8:3] == [expected(2), expected(5)] and lines[1:3] == [expected(1), expected(2)]
    assert lines[298:400] == [expected(298), expected(299)] and lines[3:1:-1] == [expected(3), expected(2)]
    assert lines[[4, -1]] == lines[np.array([4, ROWS - 1])] == [expected(4), expected(ROWS - 1)]
    assert len(lines[:]) == ROWS and lines[[]] == []


@pytest.mark.parametrize("wrong", [ROWS, -ROWS - 1, [0, ROWS]])
def test_numbers_outside_raise_index_errors(lines: JsonlDataset, wrong: Any) -> None:
    with pytest.raises(IndexError) as caught:
        lines[wrong]
    assert isinstance(caught.value, ShardexError)


@pytest.mark.parametrize("wrong", ["a", 1.5, True, None, [1.5]])
def test_other_indexes_raise_value_errors(lines: JsonlDataset, wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected idx to be int or slice"):
        lines[wrong]


def test_places_of_samples(lines: JsonlDataset, folder: Path) -> None:
    index = lines._sample_index
    assert index[0] == SampleLocation(str(folder / "part0.jsonl"), 0, len(json.dumps(expected(0))) + 1)
    assert index[-1].file_path == str(folder / "part2.jsonl")
    assert str(index[0]).startswith("file_path  : ")
    with pytest.raises(IndexError, match="got 300"):
        index[ROWS]


def test_subsampled_datasets_take_all_kinds_of_numbers(lines: JsonlDataset) -> None:
    from torch.utils.data import DataLoader

    some = SubsampledDataset(lines, 0.1, seed=1)
    assert len(some) == 30 and some[np.int64(3)] == some[3] and some[-1] == some[29]
    assert some[1:4] == [some[1], some[2], some[3]] == some[[1, 2, 3]]
    assert [one["n"] for batch in DataLoader(some, batch_size=8) for one in batch] == [one["n"] for one in some]  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        some[30]
    for wrong in (0, 1.5, -1):
        with pytest.raises(ValueError, match="subsample_factor"):
            SubsampledDataset(lines, wrong)


def test_subclasses_process_bytes(lines: JsonlDataset) -> None:
    class Sizes(Dataset):
        def __init__(self, index: SampleIndex, factor: int, name: str | None = None) -> None:
            super().__init__(index, name=name)
            self.factor = factor

        def _process_sample(self, sample_bytes: bytes) -> int:
            assert type(sample_bytes) is bytes
            return self.factor * len(sample_bytes)

    class Rows(Dataset):
        """Has an attribute with a name that others may use too."""

        def __init__(self, index: SampleIndex, name: str | None = None) -> None:
            super().__init__(index, name=name)
            self._rows = {"a": 1}

        def _process_sample(self, sample_bytes: bytes) -> int:
            return self._rows["a"]

    class Texts(JsonlDataset):
        def __getitem__(self, idx: Any) -> Any:
            return super().__getitem__(idx)["text"]

    base = str(Path(lines._sample_index.file_locations[0]).parent)
    sizes = Sizes.create_from_index_on_filesystem(base, factor=2)
    assert sizes[0] == 2 * (len(json.dumps(expected(0))) + 1) and sizes[:2] == [sizes[0], sizes[1]]
    rows = Rows.create_from_index_on_filesystem(base)
    assert not rows.is_initialized and rows[0] == 1 and vars(rows)["_rows"] == {"a": 1}
    texts = Texts.create_from_index_on_filesystem(base)
    assert texts.__getitems__([0, 5]) == [expected(0)["text"], expected(5)["text"]]
    with pytest.raises(TypeError):
        Dataset(lines._sample_index)  # type: ignore[abstract]


# -- errors -------------------------------------------------------------------------------------------------------


def test_lines_that_are_no_json_raise_errors_with_their_place(folder: Path) -> None:
    (folder / "part0.jsonl").write_bytes(b'{"a": 1}\n{broken\n"\xff"\n{"a": NaN}\n')
    create_default_jsonl_indexer(str(folder))()
    lines = JsonlDataset.create_from_index_on_filesystem(str(folder))
    for wrong in (1, slice(0, 2)):
        place = r"part0.jsonl, line 2, sample 1: expected JSON, got '{broken"
        with pytest.raises(json.JSONDecodeError, match=place) as at:
            lines[wrong]
        assert isinstance(at.value, FormatError) and at.value.pos == 1
    with pytest.raises(UnicodeDecodeError, match=r"part0.jsonl, line 3, sample 2: expected text in utf-8") as caught:
        lines[2]
    assert isinstance(caught.value, FormatError)
    assert np.isnan(lines[3]["a"])
    latin = JsonlDataset.create_from_index_on_filesystem(str(folder), text_encoding="latin-1")
    assert latin[2] == "ÿ"


def test_a_blank_line_and_a_mark_in_an_index_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n \n')
    (tmp_path / "index").mkdir()
    (tmp_path / "index/file_location.txt").write_text("a.jsonl\n")
    np.array([[0, 0, 12], [0, 12, 2]], np.uint64).tofile(tmp_path / "index/sample_locations.bin")
    lines = JsonlDataset.create_from_index_on_filesystem(str(tmp_path))
    assert lines[0] == {"a": 1}
    with pytest.raises(json.JSONDecodeError, match="line 2, sample 1"):
        lines[1]


def test_errors_of_users_get_a_note(lines: JsonlDataset) -> None:
    class Wrong(JsonlDataset):
        def _process_sample(self, sample_bytes: bytes) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        Wrong(lines._sample_index)[4]
    assert caught.value.__notes__[0].endswith("part0.jsonl, line 5, sample 4")


@pytest.fixture
def tokens(folder: Path) -> Path:
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(folder), sample_size=8)()
    return folder


def test_another_dtype_than_that_of_the_tokens_raises(tokens: Path) -> None:
    found = TokensDataset.create_from_index_on_filesystem(str(tokens), token_dtype=np.uint16)
    assert found[0].tolist() == [*b"line 0", 0, ord("l")]
    with pytest.raises(ValueError, match="expected token_dtype=uint16"):
        TokensDataset.create_from_index_on_filesystem(str(tokens), token_dtype=np.uint32)
    (tokens / "index/shardex.json").unlink()  # as the original writes it
    other = TokensDataset.create_from_index_on_filesystem(str(tokens), token_dtype=np.dtype("S3"))
    with pytest.raises(ValueError, match="end in the middle"):
        other[0]


def test_changed_files_raise_instead_of_garbage(lines: JsonlDataset, folder: Path) -> None:
    changed = folder / "part1.jsonl"
    data = changed.read_bytes()
    changed.write_bytes(data + b'{"n": 1}\n')  # grown: what was indexed is still there
    again = JsonlDataset.create_from_index_on_filesystem(str(folder))
    assert list(again) == [expected(row) for row in range(ROWS)]
    changed.write_bytes(b'{"n": 1}\n' + data[9:])
    again = JsonlDataset.create_from_index_on_filesystem(str(folder))
    assert again[0] == expected(0)
    with pytest.raises(StaleIndexError, match=r"part1.jsonl: expected the file that was indexed"):
        again[150]
    changed.write_bytes(data[:-1])
    again = JsonlDataset.create_from_index_on_filesystem(str(folder))
    with pytest.raises(TruncatedShardError, match=r"part1.jsonl: expected \d+ bytes as when it was indexed"):
        again[150]
    changed.unlink()
    with pytest.raises(FileNotFoundError):
        JsonlDataset.create_from_index_on_filesystem(str(folder))[0]


def test_moved_and_copied_folders_are_read(lines: JsonlDataset, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)  # with new times
    assert list(JsonlDataset.create_from_index_on_filesystem(str(tmp_path / "copy"))) == list(lines)
    folder.rename(tmp_path / "moved")
    assert JsonlDataset.create_from_index_on_filesystem(str(tmp_path / "moved"))[150] == expected(150)


@pytest.mark.parametrize("name", ["data/part0.jsonl", "{tmp}/data/part0.jsonl", "other/part0.jsonl"])
def test_paths_of_earlier_versions_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    create_default_jsonl_indexer(str(folder))()
    names = folder / "index/file_location.txt"
    (folder / "index/shardex.json").unlink()
    if name.startswith("other"):  # relative to the working folder
        (folder.parent / "other").mkdir()
        (folder / "part0.jsonl").rename(folder.parent / name)
        monkeypatch.chdir(folder.parent)
    names.write_text(names.read_text().replace("part0.jsonl", name.format(tmp=folder.parent)))
    assert list(JsonlDataset.create_from_index_on_filesystem(str(folder))) == [expected(row) for row in range(ROWS)]


def test_samples_without_a_schema_raise(lines: JsonlDataset) -> None:
    with pytest.raises(ValueError, match="use TokensDataset"):
        TokensWithAuxDataset(lines._sample_index)


def test_samples_that_are_shorter_than_the_schema_raise(tokens: Path) -> None:
    index = IndexStore(str(tokens)).load()
    index.sample_schema = SampleSchema(8, [ArraySpec("tokens", "uint16", 0), ArraySpec("mask", "uint8", 16)])
    assert index.sample_schema.total_bytes_per_sample == 24
    with pytest.raises(ValueError, match="expected 24 bytes, as the schema says, got 16"):
        TokensWithAuxDataset(index)[0]


def test_a_damaged_index_raises(lines: JsonlDataset, folder: Path) -> None:
    table = folder / "index/sample_locations.bin"
    places = np.fromfile(table, "<u8").reshape(-1, 3)
    places[1], places[2, 2] = (7, 0, 1), 1 << 40
    places.tofile(table)
    damaged = JsonlDataset.create_from_index_on_filesystem(str(folder))
    assert damaged[0] == expected(0)
    with pytest.raises(FormatError, match=r"data/index: expected the number of a file below 3, got 7 - at sample 1"):
        damaged[1]
    with pytest.raises(TruncatedShardError, match=r"part0.jsonl: expected 1099511627776 bytes"):
        damaged[2:4]
