"""ShardedDatasetReader: the fixtures of the original, its documented calls, threads, processes and damaged files."""

import hashlib
import inspect
import json
import pickle
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat.synthefy_dataset_utils import ShardedDatasetReader, ShardedDatasetWriter

FIXTURES = Path(__file__).parents[2] / "fixtures" / "synthefy"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten samples, each second one without `y`."""
    with ShardedDatasetWriter(tmp_path / "d", samples_per_shard=4) as writer:
        writer.add_fields(["x", "y"])
        for n in range(10):
            arrays = {"x": np.full(3, n), **({"y": np.full((2, 2), n / 2)} if n % 2 else {})}
            writer.add_sample(arrays, metadata={"length": n, "source": "s"})
    return tmp_path / "d"


def number(n: int) -> str:
    return f"sample_{n:012d}"


# -- files of the original ----------------------------------------------------------------------------------------


def is_as_told(array: NDArray[Any], told: dict[str, Any]) -> bool:
    dtype = np.dtype([tuple(one) for one in told["dtype"]] if isinstance(told["dtype"], list) else told["dtype"])
    found = hashlib.sha256(array.tobytes()).hexdigest()
    return (array.dtype, list(array.shape), found) == (dtype, told["shape"], told["sha256_C"])


@pytest.mark.parametrize("cache_tars", [True, False])
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_fixture(name: str, cache_tars: bool, tmp_path: Path) -> None:
    told = EXPECTED[name]
    shutil.copytree(FIXTURES / name, tmp_path / "copy")
    reader = ShardedDatasetReader(str(tmp_path / "copy"), cache_tars=cache_tars)
    assert len(reader) == told["len"]
    assert reader.list_fields() == told["fields"]
    assert reader.query_ids() == told["ids"]
    for key, (arrays, meta) in zip(told["ids"], reader.get_many(told["ids"]), strict=True):
        sample = told["samples"][key]
        assert meta == sample["meta"]
        assert {*arrays} == {*sample["arrays"]}
        assert all(is_as_told(arrays[field], sample["arrays"][field]) for field in arrays)
    reader.close()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_fixture_is_continued(name: str, tmp_path: Path) -> None:
    """Our writer appends to what theirs wrote, in another folder than its table says."""
    told = EXPECTED[name]
    root = shutil.copytree(FIXTURES / name, tmp_path / "copy")
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({told["fields"][0]: np.arange(5)}, "late")
        writer.update_sample(told["ids"][0], {told["fields"][0]: np.arange(6)})
    with ShardedDatasetReader(root) as reader:
        assert reader.get_sample("late")[0][told["fields"][0]].tolist() == [*range(5)]
        assert reader.get_sample(told["ids"][0])[0][told["fields"][0]].tolist() == [*range(6)]
        for key in told["ids"][1:]:
            arrays, _ = reader.get_sample(key)
            assert all(is_as_told(arrays[field], told["samples"][key]["arrays"][field]) for field in arrays)


# -- calls --------------------------------------------------------------------------------------------------------


def test_introspection(root: Path) -> None:
    reader = ShardedDatasetReader(str(root))
    assert (reader.root, reader.db_path, reader.cache_tars) == (root, root / "index.sqlite", True)
    assert len(reader) == 10
    assert reader.list_fields() == ["x", "y"]
    assert reader.shard_counts("x") == {0: 4, 1: 4, 2: 2}
    assert reader.shard_counts("y") == {0: 4, 1: 1}
    for kind in (sqlite3.OperationalError, KeyError):
        with pytest.raises(kind, match="expected one of the fields x, y, got 'z'"):
            reader.shard_counts("z")
    assert isinstance(reader.conn.execute("SELECT * FROM samples").fetchone(), sqlite3.Row)
    assert len(reader.get_many(reader.query_ids())) == 10
    reader.close()


def test_query_ids(root: Path) -> None:
    reader = ShardedDatasetReader(str(root))
    assert reader.query_ids() == [number(n) for n in range(1, 11)]
    assert reader.query_ids("y_offset IS NOT NULL") == [number(n) for n in (2, 4, 6, 8, 10)]
    assert reader.query_ids("json_extract(meta_json, '$.length') > ?", params=(7,)) == [number(9), number(10)]
    assert reader.query_ids("json_extract(meta_json, '$.length') > :n", {"n": 8}) == [number(10)]
    assert reader.query_ids("json_extract(meta_json, '$.length') > 2", limit=2) == [number(4), number(5)]
    assert reader.query_ids(limit=0) == []
    assert len(reader.query_ids(limit=-1)) == 10
    for wrong in ("nonsense(", "no_column = 1", "id = ?", "1; DROP TABLE samples"):
        with pytest.raises(sqlite3.Error, match="expected SQL that SQLite accepts"):
            reader.query_ids(wrong)
    assert len(reader) == 10
    reader.close()


def test_samples(root: Path) -> None:
    reader = ShardedDatasetReader(str(root))
    arrays, meta = reader.get_sample(number(2))
    assert {name: one.tolist() for name, one in arrays.items()} == {"x": [1, 1, 1], "y": [[0.5, 0.5], [0.5, 0.5]]}
    assert meta == {"length": 1, "source": "s"}
    arrays["x"] += 1  # arrays belong to the caller
    assert reader.get_sample(number(2))[0]["x"].tolist() == [1, 1, 1]
    assert [*reader.get_sample(number(1))[0]] == ["x"]
    assert [*reader.get_sample(number(2), fields=["y"])[0]] == ["y"]
    assert reader.get_sample(number(1), ["y"])[0] == {}
    assert reader.get_sample(number(2), [])[0] == {}
    found = reader.get_many([number(3), number(1), number(3)], fields=["x"])
    assert [arrays["x"][0] for arrays, _ in found] == [2, 0, 2]
    assert reader.get_many([]) == []
    with pytest.raises(KeyError, match="expected the id of a sample, got 'nothing'"):
        reader.get_sample("nothing")
    with pytest.raises(KeyError, match="got 'nothing'"):
        reader.get_many([number(1), "nothing"])
    with pytest.raises(KeyError, match="expected one of the fields x, y, got 'z'"):
        reader.get_sample(number(1), ["x", "z"])
    with pytest.raises(TypeError, match="expected a list of fields, got the text 'x'"):
        reader.get_sample(number(1), "x")
    reader.close()


def test_missing_dataset_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("nothing", "empty"):
        for kind in (sqlite3.OperationalError, FileNotFoundError):
            with pytest.raises(kind, match="unable to open database file"):
                ShardedDatasetReader(str(tmp_path / folder))
    assert [*tmp_path.rglob("*")] == [tmp_path / "empty"]


def test_closed_reader(root: Path) -> None:
    reader = ShardedDatasetReader(str(root))
    reader.close()
    reader.close()
    calls: list[Any] = [
        lambda: len(reader),
        reader.list_fields,
        reader.query_ids,
        lambda: reader.shard_counts("x"),
        lambda: reader.get_sample(number(1)),
        lambda: reader.conn.execute("SELECT 1"),
    ]
    for call in calls:
        with pytest.raises(sqlite3.ProgrammingError):
            call()


def test_lost_arrays(root: Path) -> None:
    reader = ShardedDatasetReader(str(root))
    tar = root / "x_shards" / "shard_0000.tar"
    tar.write_bytes(bytes(1024))
    with pytest.raises(KeyError, match=rf"sample '{number(1)}', field x: expected the array in .*shard_0000\.tar"):
        reader.get_sample(number(1))
    tar.unlink()
    with pytest.raises(FileNotFoundError, match=rf"sample '{number(1)}', field x: expected this file"):
        reader.get_sample(number(1))
    assert reader.get_sample(number(5))[0]["x"][0] == 4
    reader.close()


def test_moved_folder(root: Path) -> None:
    moved = root.rename(root.parent / "moved")
    with ShardedDatasetReader(moved) as reader:
        assert reader.get_sample(number(2))[0]["x"][0] == 1


def test_relative_folder_survives_a_change_of_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    with ShardedDatasetReader("d") as reader, ShardedDatasetWriter("d") as writer:
        monkeypatch.chdir("/")
        writer.add_sample({"x": [7]}, "late")
        writer.close_tars()
        assert reader.get_sample("late")[0]["x"].tolist() == [7]


# -- threads and processes ----------------------------------------------------------------------------------------


def test_threads(root: Path) -> None:
    reader = ShardedDatasetReader(str(root))
    found: list[int] = []
    read = lambda: found.extend(int(reader.get_sample(number(n))[0]["x"][0]) for n in range(1, 11))  # noqa: E731
    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([*range(10)] * 6)
    reader.close()


def test_pickle(root: Path) -> None:
    reader = ShardedDatasetReader(root, cache_tars=False)
    again = pickle.loads(pickle.dumps(reader))
    assert (again.root, again.cache_tars) == (root, False)
    assert again.get_sample(number(2))[0]["x"][0] == 1
    reader.close()
    again.close()


class Windows:
    """A map-style dataset as users write them."""

    def __init__(self, root: Path) -> None:
        self.reader = ShardedDatasetReader(str(root))
        self.ids = self.reader.query_ids()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self.reader.get_sample(self.ids[index], ["x"])[0]["x"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_of_a_data_loader(start: str, root: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    windows = Windows(root)
    windows[0]
    loader = data.DataLoader(windows, batch_size=5, num_workers=1, multiprocessing_context=start)
    assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert windows[3].tolist() == [3, 3, 3]
    windows.reader.close()


def test_writer_and_reader_at_the_same_time(root: Path) -> None:
    with ShardedDatasetReader(root) as reader, ShardedDatasetWriter(root, 4) as writer:
        writer.add_field("late")
        for name in reader.query_ids():
            writer.update_sample(name, {"late": [len(name)]})
        writer.close_tars()
        assert reader.list_fields() == ["late", "x", "y"]
        assert reader.get_sample(number(1))[0]["late"].tolist() == [19]
        assert reader.shard_counts("late") == {0: 4, 1: 4, 2: 2}


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("bomb"),)


def test_pickled_array_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ShardedDatasetWriter("d", allow_pickle=True) as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.array([Bomb()], object)}, "a")
    with ShardedDatasetReader("d") as reader, pytest.raises(ValueError, match="would run code"):
        reader.get_sample("a")
    assert not Path("bomb").exists()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("__init__", {"root": "", "cache_tars": True}),
        ("shard_counts", {"field_name": ""}),
        ("query_ids", {"where_clause": None, "params": (), "limit": None}),
        ("get_sample", {"sample_id": "", "fields": None}),
        ("get_many", {"sample_ids": "", "fields": None}),
    ],
)
def test_signatures(name: str, parameters: dict[str, Any]) -> None:
    found = inspect.signature(getattr(ShardedDatasetReader, name)).parameters.values()
    empty = inspect.Parameter.empty
    positional = [one for one in found if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "self"]
    assert {one.name: "" if one.default is empty else one.default for one in positional} == parameters
