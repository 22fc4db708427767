"""load_dataset: splits of folders, patterns and lists, slices of splits, and DatasetDict."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.dataset import DatasetDict, load_dataset
from shardex.errors import ArgumentError, FormatError, NotFoundError, UnknownFormatError, UnknownSplitError
from shardex.formats import ShardRows
from shardex.sources import open_source

FIXTURES = Path(__file__).parents[1] / "fixtures"


def jsonl(path: Path, values: Sequence[int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"x": {value}}}\n' for value in values))
    return path


def values(splits: DatasetDict) -> dict[str, list[int]]:
    return {name: [sample.x for sample in one] for name, one in splits.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten train lines in two files, two test lines, and other files."""
    root = tmp_path / "test_data"  # the name of the folder itself says nothing
    jsonl(root / "train-2.jsonl", range(5))
    jsonl(root / "train-10.jsonl", range(5, 10))
    jsonl(root / "test.jsonl", [100, 101])
    (root / "README.md").write_text("# training data")
    (root / ".hidden").mkdir()
    jsonl(root / ".hidden" / "dev.jsonl", [7])
    return root


# -- which files make which split -------------------------------------------------------------------------------


def test_a_folder_of_files(folder: Path) -> None:
    assert values(load_dataset(folder)) == {"train": [*range(10)], "test": [100, 101]}
    assert values(load_dataset(str(folder) + "/")) == {"train": [*range(10)], "test": [100, 101]}


def test_folders_of_splits_in_any_format(tmp_path: Path) -> None:
    sx.write(tmp_path / "train", [{"x": 1}, {"x": 2}])
    sx.write(tmp_path / "dev", [{"x": 3}], format="parquet")
    sx.write(tmp_path / "test", [{"x": 4}], format="bins")
    jsonl(tmp_path / "more" / "part-0.jsonl", [5])
    jsonl(tmp_path / "more" / "test" / "part-0.jsonl", [6])
    (tmp_path / "README.md").touch()
    splits = load_dataset(tmp_path)
    assert list(splits) == ["train", "validation", "test"]
    assert values(splits) == {"train": [5, 1, 2], "validation": [3], "test": [6, 4]}


def test_a_native_dataset_is_one_split(tmp_path: Path) -> None:
    sx.write(tmp_path / "test", [{"x": 1}])
    splits = load_dataset(tmp_path / "test")
    assert values(splits) == {"train": [1]}
    rows = splits["train"].rows
    assert isinstance(rows, ShardRows) and rows.opened.what == str(tmp_path / "test")
    assert values(load_dataset(tmp_path)) == {"test": [1]}


def test_native_datasets_without_samples_are_splits(tmp_path: Path) -> None:
    sx.write(tmp_path / "train", [{"x": 1}])
    sx.write(tmp_path / "test", [], {"x": int})
    assert load_dataset(tmp_path).num_rows == {"train": 1, "test": 0}


def test_folders_that_are_whole_datasets_are_opened_whole(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        sx.write(tmp_path / name, [{"data": b"1"}, {"data": b"2"}], format="bins", splits=2)
    splits = load_dataset(tmp_path)
    assert splits.num_rows == {"train": 2, "validation": 2}
    assert "bins" in repr(splits["train"])


def test_folder_of_one_split_is_opened_as_one(tmp_path: Path) -> None:
    jsonl(tmp_path / "b" / "part-0.jsonl", [2])
    jsonl(tmp_path / "a" / "part-0.jsonl", [1])
    (tmp_path / "LICENSE").touch()
    splits = load_dataset(tmp_path)
    assert values(splits) == {"train": [1, 2]}
    assert splits["train"].fingerprint == sx.open(tmp_path).fingerprint


@pytest.mark.parametrize("pattern", ["*.jsonl", "t*", "{train-2,train-10,test}.jsonl", "**/*.jsonl"])
def test_patterns(folder: Path, pattern: str) -> None:
    assert values(load_dataset(f"{folder}/{pattern}")) == {"train": [*range(10)], "test": [100, 101]}


def test_braces_of_folders(tmp_path: Path) -> None:
    for name in ("train", "test"):
        sx.write(tmp_path / name, [{"x": 1}])
    assert values(load_dataset(f"{tmp_path}/{{train,test}}")) == {"train": [1], "test": [1]}


def test_a_single_file_and_lists(folder: Path) -> None:
    assert values(load_dataset(folder / "test.jsonl")) == {"test": [100, 101]}
    both = [folder / "train-10.jsonl", folder / "test.jsonl"]
    assert values(load_dataset(both)) == {"train": [5, 6, 7, 8, 9], "test": [100, 101]}


def test_common_parent_folders_do_not_name_splits(tmp_path: Path) -> None:
    jsonl(tmp_path / "test" / "a" / "0.jsonl", [1])
    jsonl(tmp_path / "test" / "dev" / "0.jsonl", [2])
    assert values(load_dataset(f"{tmp_path}/test/*/0.jsonl")) == {"train": [1], "validation": [2]}


def test_token_files_of_other_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [{"tokens": np.arange(3, dtype=np.uint16)}] * 2
    schema = {"tokens": sx.Array("uint16", (3,))}
    made: dict[str, Any] = {"megatron": {}, "npy": {}, "nanogpt": {"header": True}}
    monkeypatch.chdir(tmp_path)
    for format, options in made.items():
        for split in ("train", "val"):
            folder = tmp_path / "parts" / format / split
            sx.write(folder, tokens, schema, format=format, prefix=f"fineweb_{split}", **options)
            for path in folder.iterdir():
                (tmp_path / format).mkdir(exist_ok=True)
                path.rename(tmp_path / format / path.name)
        (tmp_path / format / "README.md").write_text("about")
        for what in (tmp_path / format, format, f"{format}/*_*-*"):
            splits = sx.load_dataset(what)
            assert list(splits) == ["train", "validation"]
            assert splits["train"][0].tokens[:3].tolist() == [0, 1, 2]
            assert f" - {format}, " in repr(splits["train"])


def test_files_of_several_formats_in_one_split_raise(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    np.save(tmp_path / "train.npy", np.zeros(3))
    with pytest.raises(
        UnknownFormatError, match=r"got 2 files \(1 \.jsonl, 1 \.npy\); choose .*\"jsonl\" or .*\"npy\""
    ):
        sx.load_dataset(tmp_path)
    with pytest.raises(UnknownFormatError, match="expected files of one format, got 2 files"):
        sx.open([tmp_path / "train.jsonl", tmp_path / "train.npy"])
    assert sx.load_dataset(tmp_path, format="jsonl")["train"][0] == {"a": 1}


def test_a_split_does_not_lose_files_of_another_format(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [1])
    (tmp_path / "notes.txt").write_text("text\n")
    (tmp_path / "README.md").write_text("about")
    with pytest.raises(UnknownFormatError, match=r"1 \.txt, 1 \.jsonl"):
        sx.load_dataset(tmp_path)


def test_format_option_for_unknown_extensions(tmp_path: Path) -> None:
    """The folder that nanoGPT prepares."""
    np.arange(8, dtype="uint16").tofile(tmp_path / "train.bin")
    np.arange(4, dtype="uint16").tofile(tmp_path / "val.bin")
    (tmp_path / "meta.pkl").write_bytes(b"1234")
    splits = load_dataset(tmp_path, format="tokens", dtype="uint16", window=4)
    assert splits.num_rows == {"train": 2, "validation": 1}
    assert load_dataset(tmp_path, format="nanogpt", window=4).num_rows == {"train": 2, "validation": 1}


def test_files_written_by_other_projects(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "atdata" / "sharded", tmp_path / "sharded")
    splits = load_dataset(tmp_path / "sharded", schema={"x": sx.Array()})
    assert splits.num_rows == {"train": 11} and splits["train"][10].x.tolist() == [10, 10, 10]


@pytest.mark.parametrize("what", ["", "/", "/*.jsonl", "/{train-2,train-10,test}.jsonl"])
def test_urls(what: str, tmp_path: Path) -> None:
    place = open_source("memory://test-loading/set")
    for name, lines in (("train-2", [0, 1]), ("train-10", [2]), ("test", [100])):
        place.put(f"{name}.jsonl", b"".join(b'{"x": %d}\n' % value for value in lines))
    place.put("README.md", b"# training data")
    splits = load_dataset(f"memory://test-loading/set{what}", cache=tmp_path)
    assert values(splits) == {"train": [0, 1, 2], "test": [100]}
    told = {"both": ["train-*.jsonl", "test.jsonl"]}
    splits = load_dataset("memory://test-loading/set", data_files=told, cache=tmp_path)
    assert values(splits) == {"both": [0, 1, 2, 100]}


# -- data_files -------------------------------------------------------------------------------------------------


def test_data_files(folder: Path) -> None:
    assert values(load_dataset(folder, data_files="train-*.jsonl")) == {"train": [*range(10)]}
    assert values(load_dataset(folder, data_files=["test.jsonl", "train-2.jsonl"])) == {"train": [100, 101, *range(5)]}
    told: dict[str, Any] = {"eval": "test.jsonl", "all": ["t*.jsonl"], "there": folder / "train-{2,10}.jsonl"}
    splits = load_dataset(folder, data_files=told)
    assert values(splits) == {"eval": [100, 101], "all": [100, 101, *range(10)], "there": [*range(10)]}
    assert values(load_dataset(data_files={"test": str(folder / "test.jsonl")})) == {"test": [100, 101]}


def test_data_files_that_are_folders(tmp_path: Path) -> None:
    sx.write(tmp_path / "a", [{"x": 1}])
    sx.write(tmp_path / "b", [{"x": 2}])
    assert values(load_dataset(tmp_path, data_files={"train": ["a", "b"], "test": "b"})) == {
        "train": [1, 2],
        "test": [2],
    }


@pytest.mark.parametrize("told", [{}, {"train": []}, [], "none-*.jsonl", {"train": "none.jsonl"}])
def test_missing_data_files_raise(folder: Path, told: Any) -> None:
    with pytest.raises(NotFoundError):
        load_dataset(folder, data_files=told)


@pytest.mark.parametrize(("path", "told"), [(["a", "b"], "x"), (None, {"train": 3}), (None, None), (None, 3.5)])
def test_data_files_of_wrong_types_raise(path: Any, told: Any) -> None:
    with pytest.raises(ArgumentError, match="expected "):
        load_dataset(path, data_files=told)


# -- errors come at once ----------------------------------------------------------------------------------------


def test_no_matching_files_raise(tmp_path: Path) -> None:
    for path in ("none", "none-*.tar", "none-{0..3}.tar", "none.tar"):
        with pytest.raises(NotFoundError, match="none"):
            load_dataset(tmp_path / path)
    with pytest.raises(NotFoundError):
        load_dataset([])
    with pytest.raises(UnknownFormatError, match="an empty folder"):
        load_dataset(tmp_path)
    (tmp_path / "README.md").write_text("hi")
    with pytest.raises(UnknownFormatError, match=r"README.md beginning with b'hi'"):
        load_dataset(tmp_path)


def test_formats_mixed_in_one_split(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [1])
    (tmp_path / "train.tar").write_bytes(bytes(10240))
    jsonl(tmp_path / "test.jsonl", [1])
    with pytest.raises(UnknownFormatError, match='format="tar" or format="jsonl"'):
        load_dataset(tmp_path)
    assert values(load_dataset(tmp_path, format="jsonl")) == {"train": [1], "test": [1]}
    assert [s.x for s in load_dataset(tmp_path, split="test")] == [1]  # the other split is not opened


def test_data_folder_of_a_native_dataset_raises(tmp_path: Path) -> None:
    sx.write(tmp_path / "a", [{"x": 1}])
    with pytest.raises(FormatError, match="open that"):
        load_dataset(f"{tmp_path}/a/data/*.arrow")


def test_options_are_those_of_open(folder: Path) -> None:
    assert load_dataset(folder, split="test", decode="text")[0].text == '{"x": 100}'
    with pytest.raises(ArgumentError, match="expected options of open and of formats"):
        load_dataset(folder, nonsense=1)


# -- one split --------------------------------------------------------------------------------------------------


def test_one_split(folder: Path) -> None:
    ds = load_dataset(folder, split="train")
    assert isinstance(ds, sx.Dataset) and len(ds) == 10
    assert [s.x for s in load_dataset(folder, None, "test")] == [100, 101]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[:3]", [0, 1, 2]),
        ("train[-20%:]", [8, 9]),
        ("test+train[40%:60%]", [100, 101, 4, 5]),
        ("train[:1]+train[:2]", [0, 0, 1]),
        ("train[5:5]", []),
    ],
)
def test_parts_of_splits(folder: Path, split: str, expected: list[int]) -> None:
    assert [s.x for s in load_dataset(folder, split=split)] == expected


def test_unknown_split_error_lists_the_splits(folder: Path) -> None:
    with pytest.raises(UnknownSplitError, match=r"^expected one of the splits train, test, got 'dev'$") as caught:
        load_dataset(folder, split="test+dev[:2]")
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, ValueError)


# -- several splits in one hand -----------------------------------------------------------------------------------


def test_views_of_all_splits(folder: Path) -> None:
    splits = load_dataset(folder)
    assert splits.num_rows == {"train": 10, "test": 2}
    assert values(splits.take(1)) == {"train": [0], "test": [100]}
    assert splits.skip(8).num_rows == {"train": 2, "test": 0}
    assert values(splits.where("x > ?", [7])) == {"train": [8, 9], "test": [100, 101]}
    assert sorted(values(splits.shuffle(seed=1))["train"]) == [*range(10)]
    assert splits.select("x")["test"].fields == ["x"]
    assert type(splits.take(1)) is DatasetDict


def test_types_and_functions(folder: Path) -> None:
    line: type[Any] = sx.packable(type("Line", (), {"__annotations__": {"x": int}, "__module__": __name__}))
    typed = load_dataset(folder, line)
    assert type(typed["train"][3]) is line and values(typed)["test"] == [100, 101]
    assert [type(one) for one in load_dataset(folder, line, "train[:2]+test[:1]")] == [line] * 3
    splits = load_dataset(folder)
    assert type(splits.as_type(line)["test"][0]) is line
    assert values(splits.map(lambda one: {"x": one.x + 1}))["test"] == [101, 102]
    assert values(splits.filter(lambda one: one.x % 2 == 0)) == {"train": [0, 2, 4, 6, 8], "test": [100]}


def test_an_unknown_split_of_a_dict(folder: Path) -> None:
    splits = load_dataset(folder)
    with pytest.raises(UnknownSplitError, match="expected one of the splits train, test, got 'valid'"):
        splits["valid"]
    with pytest.raises(KeyError):
        DatasetDict()["train"]
    assert splits.get("valid") is None and "valid" not in splits


def test_methods_of_one_split_need_a_single_split(folder: Path) -> None:
    splits = load_dataset(folder)
    with pytest.raises(AttributeError, match=r"expected a split for 'ordered', got all of train, test: .*\['train'\]"):
        splits.ordered(2)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        splits.nonsense  # noqa: B018
    alone = load_dataset(folder, data_files="test.jsonl")
    assert [batch.x.tolist() for batch in alone.ordered(2)] == [[100, 101]]
    with pytest.raises(AttributeError, match="expected a split for 'features'"):
        alone.features  # noqa: B018


def test_dataset_dict_of_other_values_raises() -> None:
    with pytest.raises(ArgumentError, match="expected names of splits and datasets, got 'train' and list"):
        DatasetDict(train=[])  # type: ignore[arg-type]


def test_repr_and_pickle(folder: Path) -> None:
    splits = load_dataset(folder)
    shown = repr(splits).splitlines()
    assert shown[0] == "DatasetDict(" and shown[-1] == ")"
    assert shown[1].startswith("    train  Dataset(10 samples: x int64 - jsonl, 2 shards")
    assert shown[2].startswith("    test   Dataset(2 samples")
    assert repr(DatasetDict()) == "DatasetDict()"
    again = pickle.loads(pickle.dumps(splits))
    assert type(again) is DatasetDict and values(again) == values(splits)


def test_a_glob_that_folders_match(tmp_path: Path) -> None:
    for name, count in (("train/a", 2), ("test/a", 3), ("dev", 5)):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"x": 1}\n' * count)
    found = load_dataset(str(tmp_path / "*"))
    assert {name: len(ds) for name, ds in found.items()} == {"train": 2, "validation": 5, "test": 3}
    only = load_dataset(str(tmp_path / "t*"))
    assert {name: len(ds) for name, ds in only.items()} == {"train": 2, "test": 3}


def test_compressed_files_and_archives(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name, count in (("train-0", 5), ("train-1", 3), ("test", 2)):
        lines = "".join(json.dumps({"id": k}) + "\n" for k in range(count)).encode()
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "README.md.gz").write_bytes(gzip.compress(b"about"))
    expected = {"train": 8, "test": 2}
    for what in (tmp_path, tmp_path / "*.jsonl.gz"):
        assert {name: len(ds) for name, ds in sx.load_dataset(what).items()} == expected
    with zipfile.ZipFile(tmp_path / "validation.zip", "w") as archive:
        archive.writestr("a.jsonl", '{"id": 1}\n')
    assert {name: len(ds) for name, ds in sx.load_dataset(tmp_path).items()} == {**expected, "validation": 1}
    assert len(sx.load_dataset(tmp_path / "validation.zip", split="validation")) == 1
