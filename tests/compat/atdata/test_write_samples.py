"""`write_samples`: names and limits of shards, replacement, nothing left after a failure; other tools read the tars."""

import gc
import os
import tarfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.compat.atdata import Dataset, DictSample, PackableSample, URLSource, packable, write_samples
from shardex.compat.atdata.dataset import write_samples as by_module_path
from shardex.errors import ArgumentError, NotFoundError, QueryError, SchemaError
from tests.compat.atdata.samples_for_manifests import Shot, shots


def names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != ".shardex")


def test_one_file(tmp_path: Path) -> None:
    ds = write_samples(shots(5), tmp_path / "deep" / "train.tar")
    assert names(tmp_path) == ["deep"]
    assert names(tmp_path / "deep") == ["train.tar"]
    assert ds.list_shards() == [str(tmp_path / "deep" / "train.tar")]
    assert ds.sample_type is Shot
    assert list(ds.ordered()) == shots(5)
    assert by_module_path is write_samples


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("train.tar", {"maxcount": 4}, ["train-000000.tar", "train-000001.tar", "train-000002.tar"]),
        ("s%02d.tar", {"maxcount": 5}, ["s00.tar", "s01.tar"]),
        ("train.tar", {"maxcount": 100}, ["train-000000.tar"]),
        ("train.tar", {"maxsize": 10_240}, ["train-000000.tar", "train-000001.tar"]),
        ("train.tar", {"maxcount": 9, "maxsize": 1}, [f"train-{k:06d}.tar" for k in range(10)]),
        ("my%20data.tar", {}, ["my%20data.tar"]),
    ],
)
def test_names_and_limits(tmp_path: Path, path: str, options: dict[str, int], expected: list[str]) -> None:
    ds = write_samples(shots(10), tmp_path / path, **options)  # type: ignore[arg-type]
    assert names(tmp_path) == expected
    assert [os.path.basename(one) for one in ds.list_shards()] == expected
    assert list(ds) == shots(10)
    for one in ds.list_shards():
        with tarfile.open(one) as tar:
            members = tar.getmembers()
        assert len(members) <= options.get("maxcount", 10)
        assert all(member.name.endswith(".msgpack") and member.isreg() for member in members)
        assert len(members) == 1 or os.path.getsize(one) <= options.get("maxsize", 1 << 40)


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("a.tar.gz", {}, ["a.tar.gz"]),
        ("a.tgz", {}, ["a.tgz"]),
        ("a-%02d.tar.gz", {"maxcount": 4}, ["a-00.tar.gz", "a-01.tar.gz", "a-02.tar.gz"]),
        ("a.tar.gz", {"maxcount": 5}, ["a.tar-000000.gz", "a.tar-000001.gz"]),
    ],
)
def test_names_that_end_in_gz_are_compressed(
    tmp_path: Path, path: str, options: dict[str, int], expected: list[str]
) -> None:
    ds = write_samples(shots(10), tmp_path / path, **options)  # type: ignore[arg-type]
    assert names(tmp_path) == expected
    assert list(ds) == list(Dataset[Shot](URLSource.of(ds.list_shards()))) == shots(10)
    before = {one: Path(one).read_bytes() for one in ds.list_shards()}
    for one in before:
        with tarfile.open(one, "r:gz") as tar:
            assert len(tar.getmembers()) == min(10, options.get("maxcount", 10)) or one == ds.list_shards()[-1]
    write_samples(shots(10), tmp_path / path, **options)  # type: ignore[arg-type]
    assert before == {one: Path(one).read_bytes() for one in before}
    write_samples(shots(10), tmp_path / path, manifest=True, **options)
    found = Dataset[Shot](URLSource.of(list(before))).query(lambda df: df["n"] == 7)
    assert [ds.get(one.key).n for one in found] == [7]


def test_webdataset_reads_it(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    ds = write_samples(shots(10), tmp_path / "train.tar", maxcount=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves files open
        found = list(webdataset.WebDataset(ds.list_shards(), shardshuffle=False))
        gc.collect()
    assert [Shot.from_bytes(one["msgpack"]) for one in found] == shots(10)
    assert len({one["__key__"] for one in found}) == 10


def test_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_samples(shots(10), tmp_path / folder / "train.tar", maxcount=4)
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_own_keys_are_kept(tmp_path: Path) -> None:
    class Named(PackableSample):
        name: str

        @property
        def as_wds(self) -> dict[str, Any]:
            return {"__key__": f"key/{self.name}", "msgpack": self.packed}

    ds = write_samples([Named("x"), Named("y")], tmp_path / "a.tar")
    assert ds.get("key/y") == Named("y")


def test_dict_samples(tmp_path: Path) -> None:
    ds = write_samples([DictSample(x=1, y="a"), DictSample(x=2)], tmp_path / "a.tar")
    assert ds.sample_type is DictSample
    assert [one.to_dict() for one in ds] == [{"x": 1, "y": "a"}, {"x": 2}]


def test_only_shards_are_left(tmp_path: Path) -> None:
    """Records of appends stayed in a folder .shardex beside shards that were added to a folder."""
    for _ in range(2):  # the second time they are replaced
        write_samples(shots(4), tmp_path / "train.tar", maxcount=2)
        assert sorted(os.listdir(tmp_path)) == ["train-000000.tar", "train-000001.tar"]


def test_urls_of_files(tmp_path: Path) -> None:
    ds = write_samples(shots(3), f"file://{tmp_path}/a.tar")
    assert list(ds) == shots(3) == list(Dataset[Shot](f"file:{tmp_path}/a.tar"))


def test_existing_shards_are_replaced_and_other_files_stay(tmp_path: Path) -> None:
    write_samples(shots(10), tmp_path / "train.tar", maxcount=2, manifest=True)
    write_samples(shots(3), tmp_path / "other.tar")
    write_samples(shots(4), tmp_path / "train.tar", manifest=True)
    (tmp_path / "train-notes.tar").write_bytes(b"mine")
    ds = write_samples(shots(6), tmp_path / "train.tar", maxcount=3)
    kept = ["other.tar", "train-notes.tar", "train.manifest.json", "train.manifest.parquet", "train.tar"]
    assert names(tmp_path) == sorted([*kept, "train-000000.tar", "train-000001.tar"])
    assert list(ds) == shots(6)
    assert len(Dataset[Shot](str(tmp_path / "train.tar"))) == 4
    write_samples(shots(1), tmp_path / "train.tar")
    assert names(tmp_path) == ["other.tar", "train-000000.tar", "train-000001.tar", "train-notes.tar", "train.tar"]
    assert len(Dataset[Shot](str(tmp_path / "train.tar"))) == 1


def test_several_ranks_write_into_one_new_folder(tmp_path: Path) -> None:
    def write(rank: int) -> None:
        write_samples(shots(rank + 3), tmp_path / "new" / f"rank{rank}.tar", maxcount=2, manifest=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    for rank in range(4):
        shards = sorted(map(str, (tmp_path / "new").glob(f"rank{rank}-*.tar")))
        ds = Dataset[Shot](URLSource.of(shards))
        assert list(ds) == shots(rank + 3)
        assert len(ds.query(ds.fields.n >= 0)) == rank + 3


def failing(count: int) -> Iterator[Shot]:
    yield from shots(count)
    raise RuntimeError("the camera failed")


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("options", [{}, {"maxcount": 2}, {"maxcount": 2, "manifest": True}])
def test_failure_leaves_nothing(tmp_path: Path, existing: bool, options: dict[str, Any]) -> None:
    if existing:
        write_samples(shots(3), tmp_path / "out" / "train.tar", **options)
    before = names(tmp_path / "out") if existing else None
    with pytest.raises(RuntimeError, match="camera"):
        write_samples(failing(7), tmp_path / "out" / "train.tar", **options)
    with pytest.raises(ValueError, match="at least one sample"):
        write_samples([], tmp_path / "out" / "train.tar", **options)
    with pytest.raises(TypeError, match="packable"):
        write_samples([DictSample(x=1)], tmp_path / "out" / "train.tar", manifest=True)
    with pytest.raises(SchemaError, match="at sample 1"):
        write_samples([shots(1)[0], 3], tmp_path / "out" / "train.tar", **options)
    if existing:
        assert names(tmp_path / "out") == before
        assert list(Dataset[Shot](str(tmp_path / "out" / "train*.tar").replace("*", "-000000" if options else ""))) == (
            shots(2 if options else 3)
        )
    else:
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("a.tar", {"maxcount": 0}, "at least one sample"),
        ("a-%s-%d.tar", {"maxcount": 1}, "pattern with one number"),
        ("", {}, "got a folder"),
        ("a.tar", {"content_metadata": 3}, "content_metadata"),
    ],
)
def test_wrong_arguments(tmp_path: Path, path: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        write_samples(shots(2), tmp_path / path, **options)
    with pytest.raises(ArgumentError, match="local path"):
        write_samples(shots(2), "s3://bucket/a.tar")
    assert os.listdir(tmp_path) == []


def test_content_metadata(tmp_path: Path) -> None:
    @packable
    class About:
        lab: str

    for about in ({"lab": "a"}, About("b"), None):
        assert write_samples(shots(1), tmp_path / "a.tar", content_metadata=about).content_metadata is about


def test_other_parts_of_shardex_read_it(tmp_path: Path) -> None:
    write_samples(shots(10), tmp_path / "train.tar", maxcount=4)
    ds = sx.open(tmp_path, Shot)
    assert len(ds) == 10
    assert ds[7].n == 7
    assert np.array_equal(ds[7].image, shots(10)[7].image)


def test_annotated_arrays_and_future_types(tmp_path: Path) -> None:
    @packable
    class Typed:
        a: NDArray[np.float32]
        b: NDArray[Any] | None = None

    ds = write_samples([Typed(np.ones(3, np.float32)), Typed(np.ones(2, np.float32), np.arange(2))], tmp_path / "a.tar")
    assert [one.a.dtype for one in ds] == [np.float32] * 2
    assert [None if one.b is None else one.b.tolist() for one in ds] == [None, [0, 1]]


def test_query_of_a_dataset(tmp_path: Path) -> None:
    ds = write_samples(shots(10), tmp_path / "train.tar", maxcount=4, manifest=True)
    found = ds.query(where=(ds.fields.n >= 6) & (ds.fields.label == "b"))
    assert [ds.get(one.key).n for one in found] == [7, 9]
    assert len(ds.query(lambda df: df["n"] >= 0)) == 10
    for one in found:
        with open(tmp_path / f"{one.shard}.tar", "rb") as file:
            file.seek(one.offset)
            assert Shot.from_bytes(file.read(len(ds.get(one.key).packed))) == ds.get(one.key)


def test_query_without_manifests_raises(tmp_path: Path) -> None:
    ds = write_samples(shots(10), tmp_path / "train.tar", maxcount=4)
    with pytest.raises(NotFoundError, match="3 of 3 shards have none"):
        ds.query(ds.fields.n > 3)
    ds = write_samples(shots(10), tmp_path / "train.tar", maxcount=4, manifest=True)
    os.unlink(tmp_path / "train-000001.manifest.json")
    with pytest.raises(FileNotFoundError, match="1 of 3 shards have none"):
        ds.query(ds.fields.n > 3)
    os.unlink(tmp_path / "train-000002.manifest.parquet")
    with pytest.raises(QueryError, match="train-000002"):
        Dataset[Shot](str(tmp_path / "train-000002.tar")).query(ds.fields.n > 3)
