"""ShardedDatasetWriter: what its document promises, without the defects of the original."""

import gc
import inspect
import json
import pickle
import sqlite3
import tarfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.compat.synthefy_dataset_utils import ShardedDatasetReader, ShardedDatasetWriter
from shardex.compat.synthefy_dataset_utils.sharded_dataset_writer import ShardHandle
from shardex.errors import ShardexError


def samples(root: Path) -> dict[str, tuple[dict[str, list[Any]], dict[str, Any]]]:
    with ShardedDatasetReader(root) as reader:
        ids = reader.query_ids()
        found = zip(ids, reader.get_many(ids), strict=True)
        return {name: ({f: a.tolist() for f, a in arrays.items()}, meta) for name, (arrays, meta) in found}


def table(root: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(root / "index.sqlite")) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "dataset"


def test_attributes(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root), 7)
    assert (writer.root, writer.db_path, writer.samples_per_shard) == (root, root / "index.sqlite", 7)
    assert ShardedDatasetWriter.COMMIT_BATCH_SIZE == 10000
    assert isinstance(writer.conn, sqlite3.Connection)
    assert writer.conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ShardedDatasetWriter._ShardHandle is ShardHandle
    writer.samples_per_shard = 1
    writer.add_field("x")
    for _ in range(2):
        writer.add_sample({"x": 1})
    writer.close()
    assert len(list((root / "x_shards").iterdir())) == 2


def test_ids_are_numbers_or_given(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_fields(["x", "y"])
    assert writer.add_sample({"x": [1, 2]}) == "sample_000000000001"
    assert writer.add_sample({"x": np.float32(3)}, sample_id="../a/b.c é") == "../a/b.c é"
    assert writer.add_sample({}, metadata={}) == "sample_000000000002"
    assert writer.add_sample({"y": [[True]]}, sample_id=5) == 5  # type: ignore[arg-type, comparison-overlap]
    writer.close()
    assert samples(root) == {
        "sample_000000000001": ({"x": [1, 2]}, {}),
        "../a/b.c é": ({"x": 3.0}, {}),
        "sample_000000000002": ({}, {}),
        "5": ({"y": [[True]]}, {}),
    }


def test_files_are_those_of_the_original(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root), samples_per_shard=2)
    writer.add_fields(["x", "y"])
    for n in range(3):
        writer.add_sample({"x": np.arange(n), "y": np.zeros(100)}, metadata={"é": n})
    writer.close()
    assert sorted(str(one.relative_to(root)) for one in root.rglob("*")) == [
        "index.sqlite",
        "x_shards",
        "x_shards/shard_0000.tar",
        "x_shards/shard_0001.tar",
        "y_shards",
        "y_shards/shard_0000.tar",
        "y_shards/shard_0001.tar",
    ]
    assert [one[1:3] for one in table(root, "PRAGMA table_info(samples)")] == [
        ("id", "TEXT"),
        ("meta_json", "TEXT"),
        ("x_offset", "INTEGER"),
        ("x_shard", "INTEGER"),
        ("y_offset", "INTEGER"),
        ("y_shard", "INTEGER"),
    ]
    assert table(root, "SELECT * FROM fields") == [("x", 2, str(root / "x_shards")), ("y", 2, str(root / "y_shards"))]
    assert table(root, "SELECT * FROM counters") == [("sample_id", 3)]
    assert table(root, "SELECT meta_json FROM samples")[1] == ('{"\\u00e9": 1}',)
    for name, offset, shard in table(root, "SELECT id, y_offset, y_shard FROM samples"):
        with tarfile.open(root / "y_shards" / f"shard_{shard:04d}.tar") as tar:
            assert tar.getmember(f"{name}.npy").offset_data == offset
    found = sx.open(root)
    assert [(one.x.tolist(), one.metadata) for one in found] == [(list(range(n)), {"é": n}) for n in range(3)]


def test_update(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_fields(["x", "y"])
    writer.add_sample({"x": [1], "y": [2]}, "a", {"v": 1})
    writer.update_sample("a", {"x": [3]})
    writer.close_tars()
    assert samples(root) == {"a": ({"x": [3], "y": [2]}, {"v": 1})}
    writer.update_sample("a", {}, metadata={"v": 2})
    writer.add_field("z")
    writer.update_sample("a", {"z": [9]})
    writer.close_tars()
    assert samples(root) == {"a": ({"x": [3], "y": [2], "z": [9]}, {"v": 2})}
    writer.update_sample("a", {}, metadata={})
    with pytest.raises(ValueError, match="Sample ID 'b' does not exist"):
        writer.update_sample("b", {"x": [3]})
    writer.close()
    assert samples(root)["a"][1] == {}


def test_adding_an_id_again_replaces_its_metadata(root: Path) -> None:
    """The original keeps those of the first call; a call without metadata still does."""
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    writer.register_samples(["a", "b"], [{"v": 1}, {"v": 2}])
    writer.register_samples(["a", "c"], [{"v": 9}, {}])
    writer.add_sample({"x": [1]}, "a")
    writer.add_sample({"x": [1]}, "b", {"v": 3})
    writer.close()
    assert samples(root) == {"a": ({"x": [1]}, {"v": 1}), "b": ({"x": [1]}, {"v": 3}), "c": ({}, {})}


def test_refused_sample_leaves_no_row(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    with pytest.raises(ValueError, match="Field 'zz' not registered"):
        writer.add_sample({"x": [1], "zz": [1]}, "a")
    with pytest.raises(TypeError, match="expected metadata that JSON can hold"):
        writer.add_sample({"x": [1]}, "b", {"s": {1}})
    with pytest.raises(ValueError, match=r"dtype object .* - at field x; allow_pickle=True"):
        writer.add_sample({"x": np.array([{}], object)}, "c")
    with pytest.raises(ValueError, match="expected an array, got list"):
        writer.add_sample({"x": [[1], [1, 2]]}, "d")
    with pytest.raises(ValueError, match="expected an id that a tar can hold as a name"):
        writer.add_sample({"x": [1]}, "")
    writer.close()
    assert samples(root) == {}


def test_field_names(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    for name in ("my-field", "a b", "x; DROP TABLE samples", ""):
        with pytest.raises(sqlite3.OperationalError, match="expected a field name that SQL accepts unquoted"):
            writer.add_field(name)
    writer.add_field("order")
    writer.add_field("order")
    writer.add_fields(["x", "order", "x", "_hidden", "température"])
    writer.add_sample({"_hidden": [1], "température": [2]}, "a")
    writer.close()
    assert [name for (name,) in table(root, "SELECT name FROM fields ORDER BY rowid")] == [
        "order",
        "x",
        "_hidden",
        "température",
    ]
    assert samples(root) == {"a": ({"_hidden": [1], "température": [2]}, {})}
    assert sx.open(root)[0]["_hidden"].tolist() == [1]


def test_generators_are_taken(root: Path) -> None:
    """The original iterates over what it gets."""
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("x")
        writer.register_samples(iter("ab"), ({"n": n} for n in range(2)))
        writer.write_shard("x", np.int64(0), iter("ab"), ([n] for n in range(2)))
    with ShardedDatasetReader(root) as reader:
        found = reader.get_many((name for name in "ab"), (field for field in ["x"]))
    assert [(arrays["x"].tolist(), meta) for arrays, meta in found] == [([0], {"n": 0}), ([1], {"n": 1})]


def test_write_shard_keeps_the_other_samples_of_a_shard(root: Path) -> None:
    """The original truncates the tar and leaves rows that point to nothing."""
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    writer.register_samples(["a", "b", "c"], [{"n": n} for n in range(3)])
    writer.write_shard("x", 0, ["a", "b"], [np.array([1]), np.array([2])])
    with writer.open_shard("x", 0) as shard:
        shard.add_sample("b", np.array([3]))
        shard.add_sample("c", [4])
        shard.add_sample("not registered", [5])
    handle = writer.open_shard("x", 3)
    handle.add_sample("late", [6])
    handle.close()
    handle.close()
    with pytest.raises(ShardexError, match="expected an open shard"):
        handle.add_sample("late", [6])
    writer.close()
    assert {name: arrays["x"] for name, (arrays, _) in samples(root).items()} == {
        "a": [1],
        "b": [3],
        "c": [4],
        "not registered": [5],
        "late": [6],
    }
    assert samples(root)["c"][1] == {"n": 2}
    assert table(root, "SELECT num_shards FROM fields") == [(4,)]
    assert sorted(one.name for one in (root / "x_shards").iterdir()) == ["shard_0000.tar", "shard_0003.tar"]
    for name, offset, shard in table(root, "SELECT id, x_offset, x_shard FROM samples"):
        with tarfile.open(root / "x_shards" / f"shard_{shard:04d}.tar") as tar:
            assert tar.getmember(f"{name}.npy").offset_data == offset


def test_wrong_shards(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    with pytest.raises(ValueError, match="expected an array for each of 2 samples, got 1 arrays"):
        writer.write_shard("x", 0, ["a", "b"], [np.array([1])])
    for kind in (TypeError, ValueError):
        with pytest.raises(kind, match="Field 'zz' not registered"):
            writer.write_shard("zz", 0, [], [])
    with pytest.raises(ValueError, match="expected metadata for 2 samples, got 1"):
        writer.register_samples(["a", "b"], [{}])
    writer.write_shard("x", 0, ["a"], [np.array([1])])
    with pytest.raises(TypeError, match="JSON"):
        writer.register_samples(["c"], [{"s": {1}}])
    writer.close()
    assert [*samples(root)] == ["a"]


def test_own_columns_and_indexes(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    writer.conn.execute("ALTER TABLE samples ADD COLUMN length INTEGER")
    writer.conn.execute("ALTER TABLE samples ADD COLUMN time_offset INTEGER")
    writer.conn.execute("CREATE INDEX idx_length ON samples(length)")
    for n in range(4):
        name = writer.add_sample({"x": range(n)})
        writer.conn.execute("UPDATE samples SET length = ?, time_offset = 1 WHERE id = ?", (n, name))
    with writer.conn:
        writer.conn.execute("UPDATE samples SET length = 9 WHERE length = 3")
    writer.conn.commit()
    writer.close()
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids("length > ? ORDER BY length DESC", (1,)) == [
            "sample_000000000004",
            "sample_000000000003",
        ]
        assert reader.get_sample("sample_000000000003")[0]["x"].tolist() == [0, 1]
        assert "idx_length" in json.dumps(
            [tuple(row) for row in reader.conn.execute("EXPLAIN QUERY PLAN SELECT id FROM samples WHERE length > 1")]
        )
    assert len(sx.open(root)) == 4


def test_writer_that_is_dropped_commits(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    for n in range(3):
        writer.add_sample({"x": [n]}, f"{n}")
    del writer
    gc.collect()
    assert [*samples(root)] == ["0", "1", "2"]


def test_closed_writer(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root))
    writer.add_field("x")
    writer.close_tars()
    writer.add_sample({"x": [1]})
    writer.close()
    calls: list[Any] = [
        lambda: writer.add_sample({"x": [1]}),
        lambda: writer.add_field("y"),
        lambda: writer.register_samples(["a"]),
        lambda: writer.update_sample("a", {}),
        lambda: writer.open_shard("x", 0),
        writer.close_tars,
        lambda: writer.conn.execute("SELECT 1"),
    ]
    for call in calls:
        with pytest.raises(sqlite3.ProgrammingError):
            call()
    with pytest.raises(TypeError, match="got a writer"):
        pickle.dumps(writer)
    with ShardedDatasetWriter(root) as again:
        assert again.add_sample({}) == "sample_000000000002"


def test_threads(root: Path) -> None:
    writer = ShardedDatasetWriter(str(root), 10)
    writer.add_field("x")
    names: list[str] = []

    def add() -> None:
        names.extend(writer.add_sample({"x": [n]}, metadata={"n": n}) for n in range(25))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert len({*names}) == 100
    assert all(arrays["x"] == [meta["n"]] for arrays, meta in samples(root).values())


def test_pickled_arrays_are_an_explicit_choice(root: Path) -> None:
    with ShardedDatasetWriter(root, allow_pickle=True) as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.array([{"a": 1}, None], object)}, "a")
    with (
        ShardedDatasetReader(root) as reader,
        pytest.raises(ValueError, match=r"sample 'a'.* would run code; if you trust its author, .*allow_pickle=True"),
    ):
        reader.get_sample("a")
    with ShardedDatasetReader(root, allow_pickle=True) as reader:
        assert reader.get_sample("a")[0]["x"].tolist() == [{"a": 1}, None]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("__init__", {"root": "", "samples_per_shard": 1000}),
        ("add_field", {"name": ""}),
        ("add_fields", {"names": ""}),
        ("register_samples", {"sample_ids": "", "metadata": None}),
        ("write_shard", {"field_name": "", "shard_id": "", "samples": "", "arrays": ""}),
        ("open_shard", {"field_name": "", "shard_id": ""}),
        ("add_sample", {"arrays": "", "sample_id": None, "metadata": None}),
        ("update_sample", {"sample_id": "", "arrays": "", "metadata": None}),
    ],
)
def test_signatures(name: str, parameters: dict[str, Any]) -> None:
    found = inspect.signature(getattr(ShardedDatasetWriter, name)).parameters.values()
    empty = inspect.Parameter.empty
    positional = [one for one in found if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "self"]
    assert {one.name: "" if one.default is empty else one.default for one in positional} == parameters


def test_table_that_is_no_table(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "index.sqlite").write_bytes(b"no table" * 1000)
    for call in (ShardedDatasetWriter, lambda path: ShardedDatasetReader(path).get_sample("a")):
        for kind in (sqlite3.DatabaseError, ShardexError):
            with pytest.raises(
                kind, match=r"index\.sqlite: expected a table of samples that can be used.*not a database"
            ):
                call(root)
    with pytest.raises(ShardexError, match="expected a local folder"):
        ShardedDatasetWriter("s3://bucket/folder")
