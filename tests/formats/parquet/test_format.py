"""Parquet: round trips, row groups decoded on demand, errors for damaged files."""

from __future__ import annotations

import datetime
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    FormatError,
    SchemaError,
    StaleIndexError,
    StorageFullError,
)
from shardex.features import Features
from shardex.formats import parquet
from shardex.formats.parquet import ParquetWriter
from shardex.kernel import Columns
from tests.strategies import datasets

SCHEMA = {"n": int, "s": str | None, "x": sx.Array("float32", (2,))}


def samples(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"n": k, "s": None if k % 3 else f"é{k}", "x": np.array([k, -k], np.float32)}
        for k in range(first, first + count)
    ]


def write(folder: Path, given_samples: list[dict[str, Any]], schema: Any = SCHEMA, **options: Any) -> sx.Dataset:
    return sx.write(folder, given_samples, schema, format="parquet", **options)


def check(ds: sx.Dataset, expected: list[dict[str, Any]]) -> None:
    """Check that all ways to read return these samples."""
    wanted = [sx.DictSample(sample) for sample in expected]
    assert [ds[k] for k in range(len(ds))] == wanted
    assert list(ds) == wanted
    rows = [k for k in range(len(wanted) - 1, -1, -1) for _ in range(2)]
    assert list(ds.__getitems__(rows)) == [wanted[k] for k in rows]


def numbers(folder: Path) -> list[int]:
    return [sample.n for sample in sx.open(folder)]


def holds(features: Features) -> bool:
    return not any(parquet.not_in_parquet(feature) for feature in features.values())


@settings(deadline=None)
@given(datasets(), st.integers(1, 4), st.integers(1, 6))
def test_samples_of_any_schema_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    data: tuple[Features, list[dict[str, Any]]],
    group_rows: int,
    shard_rows: int,
) -> None:
    features, expected = data
    assume(holds(features))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        folder = tmp_path_factory.mktemp("any") / "d"
        ds = write(folder, expected, features, row_group_rows=group_rows, shard_rows=shard_rows)
    assert ds.features == features
    check(ds, expected)


@pytest.mark.parametrize(
    "feature",
    [
        sx.Array("int8", (0,)),
        sx.Array("int8", (2, 0)),
        sx.Optional(sx.Array("int8", (0,))),
        sx.Sequence(sx.Array("int8", (0,))),
        sx.Struct(Features({})),
        sx.Struct(Features.of({"a": int, "b": sx.Array("int8", (0,))})),
        sx.Decimal(5, -3),
    ],
    ids=str,
)
def test_features_that_parquet_cannot_hold_raise_at_create(tmp_path: Path, feature: Any) -> None:
    with pytest.raises(SchemaError, match=r"that Parquet can hold, got .* - at field x; arrow can hold them"):
        sx.create(tmp_path / "d", {"x": feature}, format="parquet")
    assert list(tmp_path.iterdir()) == []


def test_files_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", samples(10), row_group_rows=2, shard_rows=5)
    files = sorted((tmp_path / "d").iterdir())
    assert [file.name for file in files] == ["part-00000.parquet", "part-00001.parquet"]
    assert [pq.ParquetFile(file).num_row_groups for file in files] == [3, 3]
    monkeypatch.setattr(parquet, "GROUP_BYTES", 16 * 100)
    write(tmp_path / "bytes", [{"raw": bytes(100)} for _ in range(40)], {"raw": bytes})
    groups = pq.ParquetFile(tmp_path / "bytes" / "part-00000.parquet").metadata
    assert [groups.row_group(k).num_rows for k in range(groups.num_row_groups)] == [16, 16, 8]
    with pytest.raises(ArgumentError, match="expected shards and row groups of at least 1 row, got 0 and 1"):
        sx.create(tmp_path / "x", SCHEMA, format="parquet", shard_rows=0, row_group_rows=1)


def test_the_same_samples_give_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, samples(50), shard_rows=20)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_modes(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, samples(2))
    with pytest.raises(AlreadyExistsError):
        write(folder, samples(2))
    old = sx.open(folder)
    write(folder, samples(2, 2), mode="append")
    assert numbers(folder) == [0, 1, 2, 3]
    write(folder, samples(1, 9), mode="overwrite")
    assert numbers(folder) == [9]
    assert [sample.n for sample in old] == [0, 1]


def test_an_empty_dataset_keeps_its_fields(tmp_path: Path) -> None:
    ds = write(tmp_path / "d", [])
    assert (len(ds), str(ds.features)) == (0, "n int64, s text or none, x float32[2]")
    empty = ds.read([])["n"]
    assert isinstance(empty, np.ndarray)
    assert empty.dtype == np.int64


def test_exception_leaves_the_target_unchanged(tmp_path: Path) -> None:
    def fail(mode: str) -> None:
        with sx.create(tmp_path / "d", SCHEMA, format="parquet", mode=mode, row_group_rows=1) as out:
            out.extend(samples(3))
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail("create")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "d", samples(2))
    for mode in ("append", "overwrite"):
        with pytest.raises(RuntimeError, match="oops"):
            fail(mode)
        assert numbers(tmp_path / "d") == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_append_after_close_and_after_abort_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ParquetWriter(str(tmp_path / "a"), Features.of(SCHEMA), mode="create")
    out.append(samples(1)[0])
    out.close()
    out.close()
    with pytest.raises(ClosedError, match="expected an open writer, this one is closed"):
        out.append(samples(1)[0])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    out = ParquetWriter(str(tmp_path / "b"), Features.of(SCHEMA), mode="create", row_group_rows=1)
    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    with pytest.raises(StorageFullError, match="cannot write: No space left on device"):
        out.append(samples(1)[0])
    monkeypatch.undo()
    with pytest.raises(ClosedError, match="aborted; nothing was written"):
        out.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# -- files of other tools -------------------------------------------------------------------------------------


def test_files_of_other_tools_are_read(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"n": [1, 2], "s": ["a", None], "when": [datetime.datetime(2020, 1, 1)] * 2, "x": [[1.5], []]})
    frame.to_parquet(tmp_path / "pandas.parquet")
    first, second = sx.open(tmp_path / "pandas.parquet")
    assert (first.n, first.s, first.x.tolist(), second.s) == (1, "a", [1.5], None)
    duckdb.sql("select 7 as n, 'b' as s, [1, 2] as x union all select 8, null, null order by n").write_parquet(  # type: ignore[union-attr]
        str(tmp_path / "duckdb.parquet")
    )
    ds = sx.open(tmp_path / "duckdb.parquet")
    assert [(s.n, s.s, None if s.x is None else s.x.tolist()) for s in ds] == [(7, "b", [1, 2]), (8, None, None)]
    assert str(ds.features) == "n int32, s text or none, x int32[?] or none"


def test_pyarrow_and_pandas_read_written_files(tmp_path: Path) -> None:
    import pandas as pd

    write(tmp_path / "d", samples(5), row_group_rows=2)
    pattern = str(tmp_path / "d" / "*.parquet")
    rows = duckdb.sql(f"select n, s, x[2] from '{pattern}' where n >= 3 order by n")
    assert rows is not None
    assert rows.fetchall() == [(3, "é3", -3.0), (4, None, -4.0)]
    assert pd.read_parquet(tmp_path / "d").n.tolist() == list(range(5))
    assert pq.read_table(tmp_path / "d").num_rows == 5


def test_schema_types_the_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"raw": [b"\1\2", None], "k": [0, 1], "x": [[1, 2], [3, 4]]}), tmp_path / "x.parquet")
    schema = {"raw": sx.Array("uint8", (2,)), "k": sx.ClassLabel(("a", "b")), "x": sx.Array("int64", (2,))}
    ds = sx.open(tmp_path / "x.parquet", schema=schema)
    assert str(ds.features) == "raw uint8[2] or none, k class of 2, x int64[2]"
    first = {"raw": np.array([1, 2], np.uint8), "k": 0, "x": np.array([1, 2])}
    check(ds, [first, {"raw": None, "k": 1, "x": np.array([3, 4])}])
    with pytest.raises(SchemaError, match="expected a feature that int64 can be read as, got text - at field k"):
        sx.open(tmp_path / "x.parquet", schema={"k": str})


def test_only_requested_columns_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", samples(10), row_group_rows=2)
    decoded: list[tuple[int, list[str]]] = []
    original = pq.ParquetFile.read_row_group

    def counting(self: Any, group: int, columns: list[str]) -> Any:
        decoded.append((group, columns))
        return original(self, group, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    ds = sx.open(tmp_path / "d")
    assert (len(ds), decoded) == (10, [])
    assert ds.select("n").read([7, 2, 6])["n"].tolist() == [7, 2, 6]
    assert decoded == [(1, ["n"]), (3, ["n"])]
    small = sx.open(tmp_path / "d", cache_bytes=1).select("n")
    decoded.clear()
    assert [small[k].n for k in (0, 1, 2, 3, 0)] == [0, 1, 2, 3, 0]
    assert [group for group, _ in decoded] == [0, 1, 0]


def test_files_of_different_schemas_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": ["a"]}), tmp_path / "2.parquet")
    with pytest.raises(FormatError, match=r"2.parquet: expected .* of the first file \(n int64\), got n string"):
        sx.open(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(FormatError, match="expected at least one Parquet file, got none"):
        sx.open(tmp_path / "none", format="parquet")


def test_unpickling_after_a_file_changed_raises(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "x.parquet")
    pickled = pickle.dumps(sx.open(tmp_path / "x.parquet"))
    assert pickle.loads(pickled)[0].n == 1
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(StaleIndexError):
        pickle.loads(pickled)


# -- damaged files --------------------------------------------------------------------------------------------


FLIP = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import shardex as sx
from shardex.errors import ShardexError
path, step = Path(sys.argv[1]), int(sys.argv[2])
good = path.read_bytes()
expected = list(sx.open(path))
wrong = []
for at in range(0, len(good), step):
    path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
    try:
        if list(sx.open(path)) != expected:
            wrong.append(at)
    except (ShardexError, MemoryError):
        pass
    path.write_bytes(good[:at])
    try:
        list(sx.open(path))
        wrong.append(at)
    except ShardexError:
        pass
print(len(good), wrong)
"""


def test_damaged_bytes_never_crash_the_process(tmp_path: Path) -> None:
    write(tmp_path / "d", samples(4), compression="none")
    command = [sys.executable, "-X", "faulthandler", "-c", FLIP, str(tmp_path / "d" / "part-00000.parquet"), "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_page_checksum_detects_a_flipped_byte(tmp_path: Path) -> None:
    write(tmp_path / "d", [{"raw": b"needle " * 20}] * 3, {"raw": bytes}, compression="none")
    file = tmp_path / "d" / "part-00000.parquet"
    data = bytearray(file.read_bytes())
    data[data.find(b"needle")] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=r"parquet, row group 0: expected rows, got bytes that Arrow refuses"):
        sx.open(tmp_path / "d")[0]


def test_file_that_is_not_parquet_raises(tmp_path: Path) -> None:
    write(tmp_path / "d", samples(3))
    good = (tmp_path / "d" / "part-00000.parquet").read_bytes()
    for content in (b"", b"PAR1", good[:-1], good[: len(good) // 2], b"ARROW1" + good):
        (tmp_path / "x.parquet").write_bytes(content[:-6] if content.startswith(b"ARROW1") else content)
        with pytest.raises(FormatError, match=r"x.parquet: expected a Parquet file, got something else"):
            sx.open(tmp_path / "x.parquet")


def test_many_threads_with_a_small_cache(tmp_path: Path) -> None:
    """Row groups are decoded in several threads, which Arrow's reading ahead does not support."""
    sx.write(tmp_path / "d", [{"x": k} for k in range(4000)], format="parquet", row_group_rows=10)
    ds = sx.open(tmp_path / "d", cache_bytes=1)

    def work(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, len(ds), 64)
        return bool((ds.read(rows)["x"] == rows).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


def test_appending_other_fields_raises_at_create(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}], format="parquet")
    with pytest.raises(SchemaError, match=r"part-00000\.parquet: expected the fields it has \(x int64\), got y text"):
        sx.write(tmp_path / "d", [{"y": "a"}], {"y": str}, format="parquet", mode="append")
    assert [s.x for s in sx.open(tmp_path / "d")] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("probe", [64 << 20, 0], ids=["decoded", "not decoded"])
def test_where_nested_columns_have_nulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: int) -> None:
    monkeypatch.setattr(parquet, "_PROBE_BYTES", probe)
    table = pa.table(
        {
            "empty": pa.array([[1.0, 2.0], [], [3.0]], pa.list_(pa.float32())),
            "inside": pa.array([[1, None], [], [3]]),
            "words": pa.array([["a"], [], ["b"]]),
            "parts": pa.array([{"a": 1}, {"a": None}, {"a": 2}]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    ds = sx.open(tmp_path / "x.parquet")
    if probe:
        assert str(ds.features) == (
            "empty float32[?], inside list of (int64 or none), words list of text, parts struct of (a int64 or none)"
        )
        assert ds.features == sx.open(table).features
    else:  # the statistics do not tell empty lists from nulls
        assert str(ds.features["empty"]) == "float32[?] or none"
        assert str(ds.features["words"]) == "list of (text or none) or none"
    assert (
        ds.to_arrow().select(["empty", "words", "parts"]).to_pydict()
        == table.select(["empty", "words", "parts"]).to_pydict()
    )
    assert ds[0].inside == [1, None]


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 50), st.integers(1, 20))
def test_columns_in_any_pieces_give_the_files_of_single_samples(
    pieces: list[int], shard_rows: int, row_group_rows: int
) -> None:
    samples: list[Any] = [{"x": np.full(3, k, np.float32), "s": "t" * (k % 5)} for k in range(sum(pieces))]
    schema = {"x": sx.Array("float32", (3,)), "s": str}
    options: Any = {"format": "parquet", "shard_rows": shard_rows, "row_group_rows": row_group_rows}
    with tempfile.TemporaryDirectory() as folder:
        single, many = Path(folder, "single"), Path(folder, "many")
        sx.write(single, samples, schema, **options)
        with sx.create(many, schema, **options) as out:
            begin = 0
            for count in pieces:
                some = samples[begin : begin + count]
                out.extend(Columns({"x": np.stack([one["x"] for one in some]), "s": [one["s"] for one in some]}))
                begin += count
        files = sorted(path.name for path in single.glob("*.parquet"))
        assert files == sorted(path.name for path in many.glob("*.parquet"))
        assert all((single / name).read_bytes() == (many / name).read_bytes() for name in files)
