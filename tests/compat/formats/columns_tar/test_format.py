"""columns_tar: reading what synthefy-dataset-utils wrote, writing what its reader opens."""

import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import sqlite3
import tarfile
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardex as sx
from shardex.compat.formats.columns_tar.format import ColumnsTarRows, _connect, create, recognise
from shardex.compat.formats.columns_tar.format import open as open_files
from shardex.compat.formats.columns_tar.lookup import ColumnsLookup
from shardex.compat.formats.columns_tar.table import interruptible, steps_of
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    DuplicateKeyError,
    FieldError,
    FormatError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
    UnsafeError,
)
from shardex.features import Array, Features, Json, Optional, Text
from shardex.files import Files, find
from shardex.formats import format_named, open_rows
from shardex.kernel import Masked
from shardex.rows import AbstractRows, Rows
from shardex.sources import CachedSource
from tests.fake_remote import FakeRemote

FIXTURES = Path(__file__).parents[3] / "fixtures" / "synthefy"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))


def open_columns(path: Path, **options: Any) -> ColumnsTarRows:
    return cast(ColumnsTarRows, open_rows(path, "columns_tar", **options))


def all_samples(rows: ColumnsTarRows) -> list[dict[str, Any]]:
    """Return all samples, checked to be the same read together and one by one."""
    many = rows.read(np.arange(len(rows))).to_samples()
    for row, sample in enumerate(many):
        one = rows.sample(row)
        assert list(one) == list(sample)
        for name, value in one.items():
            assert same(value, sample[name])
    return many


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(one == other)


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "index.sqlite")) as table:
        for statement in statements:
            table.execute(statement)
        table.commit()


@pytest.fixture
def basic(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "basic", tmp_path / "basic"))


# -- files of synthefy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "updated"])
def test_fixture_of_synthefy_is_read(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / name)
    before = sorted(os.listdir(tmp_path / name))
    expected = EXPECTED[name]
    rows = open_columns(tmp_path / name)
    assert set(rows.features) == {"id", "metadata", *expected["fields"]}
    found = all_samples(rows)
    assert sorted(sample["id"] for sample in found) == expected["ids"]
    for sample in found:
        told = expected["samples"][sample["id"]]
        assert sample["metadata"] == told["meta"]
        for field in expected["fields"]:
            assert_as_told(sample[field], told["arrays"].get(field))
    assert sorted(name for name in os.listdir(tmp_path / name) if name != ".shardex") == before


def assert_as_told(array: NDArray[Any] | None, told: dict[str, Any] | None) -> None:
    if told is None or array is None:
        assert told is None
        assert array is None
        return
    dtype = told["dtype"]
    assert array.dtype == np.dtype([tuple(one) for one in dtype] if isinstance(dtype, list) else dtype)
    assert list(array.shape) == told["shape"]
    assert hashlib.sha256(array.tobytes()).hexdigest() == told["sha256_C"]


def test_order_and_features(basic: Path) -> None:
    rows = open_columns(basic)
    assert str(rows.features) == "id text, history any[...], target any[...] or none, odd any[...], metadata json"
    ids = rows.read(np.arange(11), ["id"])["id"]
    assert ids == [*(f"sample_{n:012d}" for n in range(1, 10)), "custom/id 9é", "custom/id 10é"]
    assert isinstance(rows, Rows)
    assert isinstance(rows, AbstractRows)
    columns = rows.read(np.array([6, 0, 4]), ["target", "id"])
    assert columns.names == ["target", "id"]
    assert isinstance(columns["target"], Masked) and isinstance(columns["target"].values, np.ndarray)
    assert columns["target"].values.shape == (3, 4, 4)
    assert len(rows.read(np.empty(0, np.int64))) == 0
    with pytest.raises(FieldError, match="expected one of the fields id, history, target, odd, metadata, got 'x'"):
        rows.read(np.array([0]), ["x"])


def test_recognise_needs_both_tables(basic: Path, tmp_path: Path) -> None:
    assert recognise(find(basic))
    (basic / "index.sqlite").write_bytes(b"no table")
    assert not recognise(find(basic))
    (basic / "index.sqlite").unlink()
    assert not recognise(find(basic))
    with pytest.raises(FormatError, match=r"basic: expected a folder with index\.sqlite, got one without"):
        open_columns(basic)
    (tmp_path / "other").mkdir()
    execute(tmp_path / "other", "CREATE TABLE samples (id TEXT)")
    assert not recognise(find(tmp_path / "other"))


def test_schema_types_the_arrays(basic: Path) -> None:
    rows = open_columns(
        basic, schema=Features({"history": Array("float64", (None,)), "target": Array("uint8", (4, 4))})
    )
    assert str(rows.features["history"]) == "float64[?]"
    assert rows.sample(0, ["target"])["target"].dtype == np.uint8
    for read in (lambda: rows.read(np.array([0, 1]), ["target"]), lambda: rows.sample(1, ["target"])):
        with pytest.raises(
            FormatError, match="sample 'sample_000000000002': expected the field 'target', the sample has none"
        ):
            read()
    with pytest.raises(SchemaError, match="expected one of the fields history, target, odd, got 'zz' in the schema"):
        open_columns(basic, schema=Features({"zz": Array()}))
    with pytest.raises(
        SchemaError, match=r"expected int32\[\?\], got float64\[20\] - at .*'sample_000000000001', field history"
    ):
        open_columns(basic, schema=Features({"history": Array("int32", (None,))})).read(np.array([0]), ["history"])


def test_last_member_of_a_name_counts(basic: Path) -> None:
    add(basic / "history_shards" / "shard_0000.tar", "sample_000000000002.npy", npy(np.arange(3)))
    assert open_columns(basic).sample(1)["history"].tolist() == [0, 1, 2]


def npy(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=True)
    return out.getvalue()


def add(path: Path, name: str, data: bytes) -> None:
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def test_ids_may_contain_slashes_and_dots(basic: Path) -> None:
    for name in ("../up", "/root", "a/../b", "x" * 300, "日本"):
        execute(basic, f"INSERT INTO samples (id, history_offset, history_shard) VALUES ('{name}', 0, 1)")
        add(basic / "history_shards" / "shard_0001.tar", f"{name}.npy", npy(np.array([len(name)])))
    for sample in open_columns(basic).read(np.arange(11, 16)).to_samples():
        assert sample["history"].tolist() == [len(sample["id"])]
        assert sample["metadata"] == {}
        assert sample["odd"] is None


def test_metadata_with_nan_is_read(basic: Path) -> None:
    execute(basic, """UPDATE samples SET meta_json = '{"x": [NaN, Infinity]}' WHERE rowid = 1""")
    value = open_columns(basic).sample(0, ["metadata"])["metadata"]["x"]
    assert np.isnan(value[0])
    assert value[1] == float("inf")
    execute(basic, "UPDATE samples SET meta_json = '{' WHERE rowid = 2")
    rows = open_columns(basic)
    assert rows.sample(1, ["id"]) == {"id": "sample_000000000002"}
    with pytest.raises(FormatError, match=r"basic, sample 'sample_000000000002': expected JSON in meta_json, got '\{'"):
        rows.read(np.arange(3), ["metadata"])


# -- lost, damaged or changed files -----------------------------------------------------------------------------


def test_row_without_its_member_raises(basic: Path) -> None:
    execute(
        basic,
        "INSERT INTO samples (id, history_offset, history_shard) VALUES ('gone', 0, 2)",
        "INSERT INTO samples (id, history_offset, history_shard) VALUES ('nowhere', 0, 77)",
    )
    rows = open_columns(basic)
    assert len(rows) == 13
    assert rows.sample(11, ["id", "odd"]) == {"id": "gone", "odd": None}
    for row, name, where, what in [
        (11, "gone", "shard_0002.tar", "it has no such member"),
        (12, "nowhere", "shard_0077.tar", "there is no such file"),
    ]:
        for read in (lambda row=row: rows.read(np.array([0, row]), ["history"]), lambda row=row: rows.sample(row)):
            with pytest.raises(FormatError) as caught:
                read()
            message = str(caught.value)
            assert f"basic, sample '{name}', field history: expected the array in" in message
            assert f"{os.path.join('history_shards', where)}, {what}" in message


def test_object_arrays_are_refused(basic: Path) -> None:
    add(basic / "odd_shards" / "shard_0000.tar", "sample_000000000001.npy", npy(np.array([{"a": 1}], object)))
    rows = open_columns(basic)
    for read in (lambda: rows.read(np.array([1, 0]), ["odd"]), lambda: rows.sample(0)):
        with pytest.raises(UnsafeError, match=r"loading it would run code - at .*'sample_000000000001', field odd"):
            read()
    assert rows.sample(0, ["history"])["history"].shape == (20,)


def test_damaged_tar_error_names_the_file(basic: Path) -> None:
    path = basic / "odd_shards" / "shard_0002.tar"
    whole = path.read_bytes()
    path.write_bytes(whole[:600])
    with pytest.raises(
        TruncatedShardError, match=r"shard_0002\.tar: expected \d+ bytes from offset 512 on, the file ends at 600"
    ):
        open_columns(basic)
    path.write_bytes(b"\x01" + whole[1:])
    with pytest.raises(FormatError, match=r"shard_0002\.tar: expected a tar header at offset 0"):
        open_columns(basic)


def test_damaged_table_raises_a_shardex_error(basic: Path) -> None:
    """Bytes that are no UTF-8, also in the names and statements that SQLite quotes in its own errors."""
    path = basic / "index.sqlite"
    whole = path.read_bytes()
    begin = whole.index(b"CREATE TABLE")
    raised = 0
    for at in (*range(begin, begin + 120, 3), *range(0, len(whole), 997)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        try:
            open_columns(basic).read(np.arange(3))
        except ShardexError:
            raised += 1
    assert raised > 20


def test_truncated_tar_raises_or_warns(basic: Path, tmp_path: Path) -> None:
    path = basic / "history_shards" / "shard_0002.tar"
    whole = path.read_bytes()
    second = 512 + len(whole[512:].partition(b"sample_")[0])  # where the second header begins
    for end in (second, second - 100, second + 100, second + 600):
        path.write_bytes(whole[:end])
        with pytest.raises(TruncatedShardError, match=rf"shard_0002\.tar: expected .*, the file ends at {end}"):
            open_columns(basic)
        for _ in range(2):
            with pytest.warns(UserWarning, match=rf"shard_0002\.tar: expected .*, the file ends at {end}"):
                rows = open_columns(basic, truncated="warn")
        lost = [row for row in range(len(rows)) if not readable(rows, row)]
        assert 0 < len(lost) < 4
        with pytest.raises(FormatError, match=r"field history: expected the array in .*, it has no such member"):
            rows.sample(lost[0])
        assert next(one.file for one in sx.verify(basic)) == "history_shards/shard_0002.tar"
        assert sx.recover(basic, tmp_path / f"saved{end}").samples == len(rows) - len(lost)


def readable(rows: ColumnsTarRows, row: int) -> bool:
    try:
        return bool(rows.sample(row))
    except FormatError:
        return False


def test_changed_files_rebuild_the_index(basic: Path) -> None:
    first = open_columns(basic)
    assert first.fingerprint == open_columns(basic).fingerprint
    add(basic / "history_shards" / "shard_0003.tar", "custom/id 9é.npy", npy(np.arange(2)))
    rows = open_columns(basic)
    assert rows.fingerprint != first.fingerprint
    assert rows.sample(9)["history"].tolist() == [0, 1]
    execute(basic, "DELETE FROM samples WHERE rowid = 3")
    with pytest.raises(
        StaleIndexError, match=r"expected sample 2 in index\.sqlite, it is gone; open the dataset again"
    ):
        rows.read(np.arange(3))
    rows = open_columns(basic)
    assert len(rows) == 10
    assert rows.sample(2)["id"] == "sample_000000000004"
    shutil.rmtree(basic / "odd_shards")
    rows = open_columns(basic)
    assert rows.sample(2, ["id", "history"])["history"].shape == (23,)
    with pytest.raises(FormatError, match="there is no such file"):
        rows.sample(2, ["odd"])


def test_rows_in_the_write_ahead_log_are_read(basic: Path) -> None:
    with closing(sqlite3.connect(basic / "index.sqlite")) as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        writer.execute("INSERT INTO samples (id, meta_json) VALUES ('late', '{\"v\": 1}')")
        writer.commit()
        assert (basic / "index.sqlite-wal").stat().st_size
        rows = open_columns(basic)
        assert len(rows) == 12
        assert rows.sample(11) == {"id": "late", "history": None, "target": None, "odd": None, "metadata": {"v": 1}}
    assert not (basic / "index.sqlite-wal").exists()
    assert len(open_columns(basic)) == 12


def test_read_only_folder_stays_unchanged(basic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    (basic / ".shardex").write_text("a file where the index would be")
    before = sorted(basic.rglob("*"))
    rows = open_columns(basic)
    rows.read(np.arange(11))
    assert sorted(basic.rglob("*")) == before
    assert list((tmp_path / "cache").rglob("columns_tar-*.arrow"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_reads_in_threads_and_processes(basic: Path) -> None:
    rows = open_columns(basic)
    again = pickle.loads(pickle.dumps(rows))
    assert again.sample(3)["id"] == rows.sample(3)["id"]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: found.append(rows.read(np.array([n]))["id"])) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            os._exit(0 if rows.sample(2)["id"] == "sample_000000000003" else 1)
        assert os.waitpid(child, 0)[1] == 0


# -- writing ----------------------------------------------------------------------------------------------------

FEATURES = Features.of({"x": Array("float32", (2,)), "y": Optional(Array())})


def write(path: Path, features: Any, samples: Any, mode: str = "create", **options: Any) -> None:
    out = create(str(path), Features.of(features), mode=mode, **options)
    for sample in samples:
        out.append(sample)
    out.close()


def by_their_rules(root: Path, name: str) -> tuple[dict[str, Any], Any]:
    """Read a sample the way synthefy-dataset-utils does."""
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        table.row_factory = sqlite3.Row
        row = dict(table.execute("SELECT * FROM samples WHERE id = ?", (name,)).fetchone())
        arrays = {}
        for field in [column.removesuffix("_offset") for column in row if column.endswith("_offset")]:
            if row[f"{field}_offset"] is None:
                continue
            (base,) = table.execute("SELECT base_dir FROM fields WHERE name = ?", (field,)).fetchone()
            path = root / Path(base).name / f"shard_{row[f'{field}_shard']:04d}.tar"
            with tarfile.open(path) as tar:
                info = tar.getmember(f"{name}.npy")
                assert info.offset_data == row[f"{field}_offset"]
                arrays[field] = np.load(io.BytesIO(cast(Any, tar.extractfile(info)).read()), allow_pickle=False)
    return arrays, json.loads(row["meta_json"])


def test_written_files_are_those_of_synthefy(tmp_path: Path) -> None:
    root = tmp_path / "out"
    samples: list[dict[str, Any]] = [
        {"x": [1, 2], "y": np.array(["é"])},
        {"x": [3, 4], "id": "ä/../b", "metadata": {"v": "é", "n": None}},
        {"x": [5, 6], "y": np.zeros((0, 3))},
    ]
    write(root, FEATURES, samples, samples_per_shard=2)
    ids = ["sample_000000000001", "ä/../b", "sample_000000000002"]
    for name, sample in zip(ids, samples, strict=True):
        arrays, metadata = by_their_rules(root, name)
        assert metadata == sample.get("metadata", {})
        assert set(arrays) == {"x", "y"} & set(sample)
        assert same(arrays["x"], np.array(sample["x"], np.float32))
    found = all_samples(open_columns(root))
    assert [sample["id"] for sample in found] == ids
    assert same(found[0]["y"], np.array(["é"]))
    assert same(found[2]["y"], np.zeros((0, 3)))
    assert found[1]["y"] is None
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        fields = table.execute("SELECT name, num_shards, base_dir FROM fields").fetchall()
        assert fields == [("x", 2, str(root / "x_shards")), ("y", 1, str(root / "y_shards"))]
        assert table.execute("SELECT * FROM counters").fetchall() == [("sample_id", 2)]
        columns = [name for _, name, *_ in table.execute("PRAGMA table_info(samples)")]
        assert columns == ["id", "meta_json", "x_offset", "x_shard", "y_offset", "y_shard"]
    assert sorted(path.name for path in (root / "x_shards").iterdir()) == ["shard_0000.tar", "shard_0001.tar"]


ARRAYS = st.one_of(
    st.lists(st.floats(width=32), max_size=5).map(lambda some: np.array(some, np.float32)),
    st.lists(st.text(max_size=4), min_size=1, max_size=3).map(np.array),
    st.integers(-5, 5).map(np.array),
)
SAMPLES = st.fixed_dictionaries(
    {
        "a": ARRAYS,
        "b": st.none() | ARRAYS,
        "metadata": st.dictionaries(st.text(), st.integers() | st.text() | st.none()),
    }
)
IDS = st.lists(st.text(min_size=1).filter(lambda name: "\0" not in name), unique=True, max_size=5)


@settings(deadline=None, max_examples=25)
@given(st.data(), IDS)
def test_round_trip(data: st.DataObject, ids: list[str]) -> None:
    samples = [{"id": name, **data.draw(SAMPLES)} for name in ids]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "out", {"a": Array(), "b": Optional(Array())}, samples, samples_per_shard=2)
        found = all_samples(open_columns(Path(folder) / "out"))
    assert [sample["id"] for sample in found] == ids
    for one, other in zip(found, samples, strict=True):
        assert all(same(one[name], other[name]) for name in other)


@pytest.mark.parametrize("name", ["_x", "_", "température", "x$1", "漢字"])
def test_field_names_that_sql_accepts(tmp_path: Path, name: str) -> None:
    write(tmp_path / "out", {name: Array()}, [{name: [1, 2]}])
    assert all_samples(open_columns(tmp_path / "out"))[0][name].tolist() == [1, 2]


def test_modes(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write(root, FEATURES, [{"x": [1, 2]}])
    with pytest.raises(AlreadyExistsError):
        create(str(root), FEATURES, mode="create")
    with pytest.raises(ArgumentError, match="expected at least one sample per shard, got 0"):
        create(str(root), FEATURES, mode="overwrite", samples_per_shard=0)
    write(root, {"z": Array()}, [], mode="overwrite")
    rows = open_columns(root)
    assert (len(rows), list(rows.features)) == (0, ["id", "z", "metadata"])
    assert rows.read(np.empty(0, np.int64)).names == ["id", "z", "metadata"]
    assert os.listdir(tmp_path) == ["out"]


def test_append(tmp_path: Path) -> None:
    """New samples are in new tars, so that a reader of the old ones is not disturbed."""
    root = tmp_path / "out"
    write(root, FEATURES, [{"x": [1, 2]}, {"x": [3, 4], "id": "a"}], mode="append", samples_per_shard=3)
    reader, before = open_columns(root), (root / "x_shards" / "shard_0000.tar").read_bytes()
    more = [{"x": [k, k], "y": np.arange(k), "metadata": {"k": k}} for k in range(4)]
    write(root, FEATURES, more, mode="append", samples_per_shard=3)
    write(root, {"x": Optional(Array()), "z": Array()}, [{"z": [1], "id": "b"}], mode="append")
    write(root, {"x": Array()}, [], mode="append")
    ids = ["sample_000000000001", "a", *(f"sample_{n:012d}" for n in range(2, 6)), "b"]
    found = all_samples(open_columns(root))
    assert [sample["id"] for sample in found] == ids
    assert [None if one["x"] is None else one["x"][0] for one in found] == [1, 3, 0, 1, 2, 3, None]
    assert found[5]["metadata"] == {"k": 3} and found[6]["z"].tolist() == [1]
    for name in ids:
        by_their_rules(root, name)
    assert (root / "x_shards" / "shard_0000.tar").read_bytes() == before
    assert reader.sample(1)["x"].tolist() == [3, 4]
    assert sorted(one.name for one in (root / "x_shards").iterdir()) == [f"shard_000{n}.tar" for n in range(3)]
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        assert table.execute("SELECT name, num_shards FROM fields").fetchall() == [("x", 3), ("y", 2), ("z", 1)]
        assert table.execute("SELECT * FROM counters").fetchall() == [("sample_id", 5)]
    assert os.listdir(tmp_path) == ["out"]


def test_append_that_fails_adds_nothing(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write(root, FEATURES, [{"x": [1, 2], "id": "a"}])
    files = sorted(root.rglob("*"))
    out = create(str(root), FEATURES, mode="append")
    with pytest.raises(SchemaError, match="expected a different id for each sample, got 'a' again"):
        out.append({"x": [1, 2], "id": "a"})
    out.append({"x": [1, 2], "id": "b"})
    out.abort()
    assert sorted(root.rglob("*")) == files
    out, other = (create(str(root), Features.of({name: Array()}), mode="append") for name in ("v", "w"))
    out.append({"v": [5], "id": "c"})
    other.append({"w": [6], "id": "c"})
    out.close()
    with pytest.raises(DuplicateKeyError, match="expected ids that no other writer has added meanwhile"):
        other.close()
    assert [sample["id"] for sample in all_samples(open_columns(root))] == ["a", "c"]
    (root / "index.sqlite").unlink()
    with pytest.raises(FormatError, match=r"expected a folder with index\.sqlite to append to"):
        create(str(root), FEATURES, mode="append")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": [1, 2, 3]}, r"expected float32\[2\], got .* - at sample 1, field x"),
        ({}, r"expected float32\[2\], got nothing .* - at sample 1, field x"),
        ({"x": [1, 2], "z": 1}, "expected the fields x, y, id, metadata, got 'z' too - at sample 1"),
        ({"x": [1, 2], "id": 5}, "expected text, got int 5 - at sample 1, field id"),
        ({"x": [1, 2], "id": ""}, "expected an id that a tar can hold as a name, got '' - at sample 1"),
        ({"x": [1, 2], "id": "a\0"}, "expected an id that a tar can hold as a name"),
        ({"x": [1, 2], "id": "first"}, "expected a different id for each sample, got 'first' again - at sample 1"),
        (
            {"x": [1, 2], "metadata": {"s": {1}}},
            r"expected a value that JSON can hold, got set \{1\} \(in s\) - at sample 1, field metadata",
        ),
        ({"x": [1, 2], "y": np.array([{}], object)}, "expected .*, got object.* - at sample 1, field y"),
    ],
)
def test_refused_sample_is_not_written(sample: dict[str, Any], message: str, tmp_path: Path) -> None:
    out = create(str(tmp_path / "out"), FEATURES, mode="create")
    out.append({"x": [1, 2], "id": "first"})
    with pytest.raises(SchemaError, match=message):
        out.append(sample)
    out.append({"x": [3, 4]})
    out.close()
    found = all_samples(open_columns(tmp_path / "out"))
    assert [(sample["id"], sample["x"].tolist()) for sample in found] == [
        ("first", [1, 2]),
        ("sample_000000000001", [3, 4]),
    ]


def test_fields_that_cannot_be_written_raise(tmp_path: Path) -> None:
    for features, message in [
        ({"x": str}, "expected arrays, got text - at field x; put other values into metadata"),
        ({"my-field": Array()}, "expected a field name that SQL accepts unquoted, .* got 'my-field'"),
        ({"x": Array(), "X": Array()}, "different from the others, got 'X'"),
        ({"id": int}, "expected id to be text, got int64"),
        ({"metadata": str}, "expected metadata to be json or struct, got text"),
    ]:
        with pytest.raises(SchemaError, match=message):
            create(str(tmp_path / "out"), Features.of(features), mode="create")
    given = Features.of({"id": Text(), "x": Array(), "metadata": Json()})
    write(tmp_path / "out", given, [{"id": "a", "x": [1]}])
    assert open_columns(tmp_path / "out").sample(0, ["id"]) == {"id": "a"}


def test_nothing_is_visible_before_close(tmp_path: Path) -> None:
    out = format_named("columns_tar").create(str(tmp_path / "out"), FEATURES, mode="create")
    out.append({"x": [1, 2]})
    assert not (tmp_path / "out").exists()
    out.abort()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ClosedError, match="expected an open writer"):
        out.append({"x": [1, 2]})
    assert os.listdir(tmp_path) == []


ENDLESS = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT"
COMPUTED = [
    f"ALTER TABLE samples RENAME TO old; CREATE VIEW samples AS {ENDLESS} 'a' || k AS id, '{{}}' AS meta_json FROM n",
    f"ALTER TABLE fields RENAME TO old; CREATE VIEW fields AS {ENDLESS} 'f' || k AS name, 'x' AS base_dir FROM n",
    "ALTER TABLE samples ADD COLUMN big AS (zeroblob(900000000)) VIRTUAL",
    "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END",
    "DROP TABLE fields; CREATE VIRTUAL TABLE fields USING fts5(name, base_dir)",
]


@pytest.mark.parametrize("statements", COMPUTED, ids=range(len(COMPUTED)))
def test_tables_that_are_computed_are_refused(tmp_path: Path, statements: str) -> None:
    sx.write(tmp_path, [{"x": np.arange(3)}], format="columns_tar", mode="append")
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as table:
        table.executescript(statements)
    for read in (lambda: list(sx.open(tmp_path)), lambda: [ColumnsLookup(str(tmp_path))]):
        with pytest.raises(FormatError, match=r"index.sqlite: expected tables of stored rows, got the"):
            read()


def test_table_of_more_rows_than_the_file_can_hold(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"1" * 100)
    steps = steps_of(path := str(tmp_path / "t"))
    with (
        closing(sqlite3.connect(":memory:")) as table,
        pytest.raises(FormatError, match="expected a table of 100 bytes, got more rows"),
        interruptible(table, path, steps),
    ):
        table.execute(f"{ENDLESS} COUNT(*) FROM n").fetchall()


def test_queries_are_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends a query that SQLite runs."""
    sx.write(tmp_path, [{"x": np.arange(3)}], format="columns_tar", mode="append")
    with closing(ColumnsLookup(str(tmp_path))) as lookup:
        waiting = threading.Lock()
        waiting.acquire()
        lookup.table.create_function("tell", 0, waiting.release)  # not in Python, which would see the signal itself

        def interrupt() -> None:
            waiting.acquire()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            lookup.execute(f"{ENDLESS} COUNT(*) FROM (SELECT tell() UNION ALL SELECT k FROM n)")
        thread.join()
        assert lookup.execute("SELECT COUNT(*) FROM samples") == [(1,)]


def test_remote_tars_are_scanned_concurrently(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", {"x": sx.Array()}, format="columns_tar", samples_per_shard=1) as out:
        for k in range(4):
            out.append(x=np.arange(k))
    remote = FakeRemote(tmp_path / "d")
    files = Files(CachedSource(remote, tmp_path / "cache"), None, remote.url, folder=True)
    remote.barrier = None
    with _connect(files.source):  # fetches the table
        remote.barrier = threading.Barrier(4, timeout=60)
    assert [len(sample["x"]) for sample in open_files(files).read(np.arange(4)).to_samples()] == [0, 1, 2, 3]
