"""`load_dataset` and `DatasetDict` of atdata: kinds of paths, splits by name, data files, errors."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from shardex.compat import atdata
from shardex.compat.atdata import DatasetDict, DictSample, load_dataset
from shardex.compat.atdata._hf_api import _split_of
from shardex.sources import open_source
from tests.compat.atdata.sample_classes import Label, Picture, picture, write_shards, write_tar
from tests.servers import bucket, seaweed

__all__ = ["bucket", "seaweed"]

PICTURE: Any = Picture


def numbers(samples: Any) -> list[int]:
    return [one.number for one in samples]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with shards of three splits."""
    for k, name in enumerate(("train-000", "train-001", "my_test_0", "val-0", "other")):
        write_tar(tmp_path / f"{name}.tar", [picture(k)])
    (tmp_path / "README.md").write_text("not a shard")
    return tmp_path


def test_folder(folder: Path) -> None:
    splits = load_dataset(str(folder), PICTURE)
    assert {name: numbers(one) for name, one in splits.items()} == {"test": [2], "train": [4, 0, 1], "validation": [3]}
    assert splits.num_shards == {"test": 1, "train": 3, "validation": 1}
    assert type(splits) is DatasetDict and splits.sample_type is PICTURE and splits.streaming is False
    assert numbers(load_dataset(str(folder), PICTURE, split="train")) == [4, 0, 1]
    assert load_dataset(str(folder), split="test", streaming=True).sample_type is DictSample
    assert load_dataset(str(folder), streaming=True).streaming


def test_folders_of_splits(tmp_path: Path) -> None:
    """The document's load_dataset("./data") has data/train and data/test; words of folders above do not count then."""
    data = tmp_path / "test" / "data"
    for k, name in enumerate(("train/a-0.tar", "train/more/a-1.tar", "test/a-0.tar", ".hidden/c.tar")):
        write_tar(data / name, [picture(k)])
    (data / "train" / "loop").symlink_to(data)
    (data / "val").symlink_to(data / "test")
    splits = load_dataset(str(data), PICTURE)
    assert {name: numbers(one) for name, one in splits.items()} == {"test": [2], "train": [0, 1], "validation": [2]}
    assert numbers(load_dataset(str(data / "train"), PICTURE, split="train")) == [0, 1]


def test_urls_of_files(folder: Path) -> None:
    for scheme in ("file://", "file:", "file://localhost"):
        url = f"{scheme}{folder}"
        assert set(load_dataset(url, PICTURE)) == {"test", "train", "validation"}
        assert numbers(load_dataset(f"{url}/train-*.tar", PICTURE, split="train")) == [0, 1]
        assert numbers(load_dataset(str(folder), PICTURE, split="train", data_files=f"{url}/val-0.tar")) == [3]
        source = atdata.URLSource(f"{url}/train-{{000..001}}.tar")
        assert numbers(atdata.Dataset[PICTURE](source)) == [0, 1]
        assert source.list_shards()[0] == f"{url}/train-000.tar"
        with source.open_shard(f"{url}/train-000.tar") as stream:
            assert stream.read(1)


def test_names_that_share_no_beginning_and_end(tmp_path: Path) -> None:
    """B3.6: a folder of a.tar and ab.tar was not found."""
    for k, name in enumerate(("a", "ab", "b,c")):
        write_tar(tmp_path / f"{name}.tar", [picture(k)])
    assert numbers(load_dataset(str(tmp_path), PICTURE, split="train")) == [0, 1, 2]


def test_globs_braces_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers(load_dataset(f"{folder}/train-*.tar", PICTURE, split="train")) == [0, 1]
    assert numbers(load_dataset(f"{folder}/train-00?.tar", PICTURE, split="train")) == [0, 1]
    assert numbers(load_dataset(f"{folder}/train-{{000..001}}.tar", PICTURE, split="train")) == [0, 1]
    both = load_dataset(f"{folder}/{{train-000,my_test_0}}.tar", PICTURE)
    assert {name: numbers(one) for name, one in both.items()} == {"train": [0], "test": [2]}
    assert numbers(load_dataset(f"{folder}/val-0.tar", PICTURE, split="validation")) == [3]
    monkeypatch.chdir(folder)
    assert load_dataset("./train-*.tar", split="train").list_shards() == ["train-000.tar", "train-001.tar"]
    assert numbers(load_dataset(".", PICTURE, split="validation")) == [3]
    assert load_dataset("train-*.tar", split="train").as_type(Label).head(1) == [Label("label 0")]


def test_remote_patterns(folder: Path, bucket: str) -> None:
    place = open_source(bucket)
    for path in folder.glob("*.tar"):
        place.put(path.name, path.read_bytes())
    assert numbers(load_dataset(f"{bucket}/train-{{000..001}}.tar", PICTURE, split="train")) == [0, 1]
    assert numbers(load_dataset(f"{bucket}/train-*.tar", PICTURE, split="train")) == [0, 1]
    assert numbers(load_dataset(f"{bucket}/val-0.tar", PICTURE, split="validation")) == [3]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-0.tar", "train"),
        ("training_0.tar", "train"),
        ("a-test-0.tar", "test"),
        ("a_testing_0.tar", "test"),
        ("valid-0.tar", "validation"),
        ("a-dev-0.tar", "validation"),
        ("DEVELOPMENT-0.tar", "validation"),
        ("x/val/0.tar", "validation"),
        ("test/0.tar", "test"),
        ("test/train-0.tar", "train"),
        ("0.tar", None),
        ("test.tar", None),
        ("latest-0.tar", None),
        ("s3://bucket/test/data-0.tar", "test"),
    ],
)
def test_splits_by_name(path: str, split: str | None) -> None:
    assert _split_of(path) == split


def test_data_files(folder: Path) -> None:
    base = str(folder)
    assert numbers(load_dataset(base, PICTURE, split="train", data_files="val-0.tar")) == [3]
    assert numbers(load_dataset(base, PICTURE, split="train", data_files=["val-0.tar", "other.tar"])) == [3, 4]
    given = {"a": "other.tar", "b": [f"{folder}/train-000.tar", "val-0.tar"]}
    splits = load_dataset(base, PICTURE, data_files=given)
    assert {name: numbers(one) for name, one in splits.items()} == {"a": [4], "b": [0, 3]}
    # Globs in data_files were not expanded [ran].
    assert numbers(load_dataset(base, PICTURE, split="train", data_files="train-*.tar")) == [0, 1]
    assert numbers(load_dataset(base, PICTURE, split="train", data_files="train-{000..001}.tar")) == [0, 1]
    with pytest.raises(FileNotFoundError, match="split 'x'"):
        load_dataset(base, data_files={"x": "no-*.tar"})


def test_what_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 'dev'"):
        load_dataset(str(folder), split="dev")
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "no-*.tar"):
        with pytest.raises(FileNotFoundError, match="tar shards"):
            load_dataset(str(nothing))
    for name, split in (("nowhere.tar", "train"), ("nope", "test"), ("nope-{0..9}.tar", None)):
        with pytest.raises(FileNotFoundError, match=f"expected tar shards, got none.*{re.escape(name)}"):
            load_dataset(str(tmp_path / name), split=split)


def test_dict_with_one_split_reads_samples(tmp_path: Path) -> None:
    one = load_dataset(write_shards(tmp_path), PICTURE)
    assert numbers(one.head(3)) == [0, 1, 2] and len(one.list_shards()) == 3
    assert numbers(one.ordered()) == list(range(10)) and len(list(one.shuffled(batch_size=4))) == 3
    assert one.as_type(Label).head(1) == [Label("label 0")]
    with pytest.raises(AttributeError, match="process_shards"):
        _ = one.process_shards
    two: DatasetDict[Any] = DatasetDict({"a": one["train"], "b": one["train"]})
    with pytest.raises(AttributeError, match="'a', 'b'"):
        two.head()
    assert two.sample_type is PICTURE and DatasetDict().sample_type is None and DatasetDict().num_shards == {}
    two["c"] = atdata.Dataset[PICTURE](str(tmp_path / "data-000000.tar"))
    assert two.num_shards == {"a": 3, "b": 3, "c": 1}
    assert numbers(pickle.loads(pickle.dumps(one)).head(1)) == [0]
