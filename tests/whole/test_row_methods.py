"""The optional methods of rows: `advise`, `shards`, `in_python`, `fingerprint`.

`RowsSuite` checks their contract for every format in `test_conformance.py`; here they are compared with the files.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.dataset import ListRows
from shardex.kernel import Columns, Integers
from shardex.order import Pick, Shuffle, chain
from shardex.testing import Case
from tests.resident_pages import PAGE, become_resident, evict, resident_pages
from tests.whole.test_conformance import MAKERS, SERIES, Samples, list_rows, series

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")

Make = Callable[[Path], Case]

TABLES = {".idx", "_shardex", ".shardex", "index.dat", "index.sqlite", "tokens.json", "bins.json", "index"}


def data_files(folder: Path) -> list[Path]:
    """Return the files that hold samples, without indexes and manifests."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not TABLES & {*path.parts, path.suffix})


# -- advise ------------------------------------------------------------------------------------------------------


def pages_of(path: Path, data: bytes) -> list[int]:
    """Return the pages of a file that hold these bytes."""
    begin = path.read_bytes().index(data)
    return list(range(begin // PAGE, (begin + len(data) - 1) // PAGE + 1))


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("arrow", {"shard_rows": 32}),
        ("tar", {"shard_rows": 32}),
        ("jsonl", {"shard_rows": 32}),
        ("text", {"shard_rows": 32}),
        ("csv", {"shard_rows": 32}),
        ("bins", {"splits": 2}),
        ("columns_tar", {"samples_per_shard": 32}),
        ("tokens", {}),
        ("megatron", {}),
        ("npy", {}),
        ("data_forager", {}),
    ],
)
def test_advise_loads_the_pages_of_a_read(disk_path: Path, format: str, options: dict[str, Any]) -> None:
    random = np.random.default_rng(2)
    values: list[Any] = [random.integers(1, 99, 3 * PAGE // 2, dtype=np.int16) for _ in range(64)]
    needle: Callable[[Any], bytes] = np.ndarray.tobytes
    feature: Any = sx.Array("int16", (3 * PAGE // 2,))
    if format in ("jsonl", "text", "csv", "bins", "tar"):
        values, feature, needle = [f"{k:02d}" * 2 * PAGE for k in range(64)], str, str.encode
    field = {"text": "text", "megatron": "tokens", "npy": "tokens"}.get(format, "x")
    sx.write(disk_path, [{"x": value} for value in values], {"x": feature}, format=format, **options)
    ds = sx.open(disk_path)
    rows = [3, 40]
    wanted = [Path(name) for name in ds.shards(rows)]
    expected = [pages_of(path, needle(values[row])) for path, row in zip(wanted, rows, strict=True)]
    for path in data_files(disk_path):
        evict(path)
    for path, pages in zip(wanted, expected, strict=True):
        assert become_resident(path, pages, lambda: ds.advise(rows, [field]))
    for path in data_files(disk_path):
        if format != "arrow":  # its checksums cover whole files
            assert resident_pages(path).sum() < len(resident_pages(path)) / 2
        if path not in wanted:
            assert not resident_pages(path).any()


def test_advise_on_parquet_loads_row_groups_that_are_not_decoded(disk_path: Path) -> None:
    random = np.random.default_rng(2)
    samples: Samples = [{"x": random.bytes(PAGE), "y": random.bytes(PAGE)} for _ in range(64)]
    sx.write(disk_path, samples, {"x": bytes, "y": bytes}, format="parquet", row_group_rows=16, compression="none")
    (path,) = data_files(disk_path)
    expected = {k: pages_of(path, samples[k]["x"]) for k in (3, 40)}
    other = pages_of(path, samples[40]["y"])
    ds = sx.open(disk_path)
    assert ds[0].x == samples[0]["x"]
    evict(path)
    assert become_resident(path, expected[40], lambda: ds.advise([3, 40], ["x"]))
    assert not resident_pages(path)[expected[3]].any()  # its row group is decoded already
    assert not resident_pages(path)[other[1:]].any()


@pytest.mark.parametrize("name", ["x", "t", "s", "o", "shaped"])
def test_advise_on_open_arrow_files_loads_only_the_rows(disk_path: Path, name: str) -> None:
    random = np.random.default_rng(4)
    samples: Samples = [
        {
            "x": random.integers(0, 255, 2 * PAGE, dtype=np.uint8),
            "t": random.integers(0, 255, 2 * PAGE + k, dtype=np.uint8),
            "s": "".join(map(chr, random.integers(65, 91, 2 * PAGE))),
            "o": None if k == 3 else random.integers(0, 255, 2 * PAGE, dtype=np.uint8),
            "shaped": random.integers(0, 255, (2, PAGE + k), dtype=np.uint8),
            "ok": k % 2 == 0,
        }
        for k in range(64)
    ]
    schema = {
        "x": sx.Array("uint8", (2 * PAGE,)),
        "t": sx.Array("uint8", (None,)),
        "s": str,
        "o": sx.Optional(sx.Array("uint8", (2 * PAGE,))),
        "shaped": sx.Array("uint8", (None, None)),
        "ok": bool,
    }
    ds = sx.write(disk_path, samples, schema)
    (path,) = data_files(disk_path)
    value = samples[20][name]
    expected = pages_of(path, value.encode() if isinstance(value, str) else value.tobytes())
    assert list(ds) == samples
    evict(path)
    assert become_resident(path, expected, lambda: ds.advise([20], [name, "ok"]))
    assert resident_pages(path).sum() < 100 < len(resident_pages(path))
    assert ds[20] == samples[20]


def test_advise_on_plain_arrow_files_loads_only_the_rows(disk_path: Path) -> None:
    values = np.random.default_rng(5).integers(0, 255, (64, 4 * PAGE), dtype=np.uint8)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 4 * PAGE)})
    path = disk_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    ds = sx.open(path)
    expected = pages_of(path, values[50].tobytes())
    ds.advise([50])  # the file is not open: advise does nothing
    assert (ds.read([1])["x"][0] == values[1]).all()
    evict(path)
    assert become_resident(path, expected, lambda: ds.advise([50]))
    assert resident_pages(path).sum() < len(resident_pages(path)) / 2


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3 :: 7] = bytes(len(data[len(data) // 3 :: 7]))
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncated, emptied, flipped, os.unlink], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("make", [make for make in MAKERS if make is not list_rows], ids=lambda make: make.__name__)
def test_advise_on_damaged_files_raises_nothing(make: Make, damage: Callable[[Path], None], tmp_path: Path) -> None:
    known = make(tmp_path / "data").dataset
    first = known.fields[:1]
    ds = pickle.loads(pickle.dumps(known))  # open, but nothing has been read
    for path in data_files(tmp_path / "data"):
        damage(path)
    for where in ([0], np.arange(len(ds)), [-1, 0, -1]):
        ds.advise(where)
        ds.advise(where, first)


# -- shards ------------------------------------------------------------------------------------------------------


def test_shards_names_the_file_of_each_row(tmp_path: Path) -> None:
    def names(kind: str, samples: Samples, schema: Any, **options: Any) -> list[str]:
        ds = sx.write(tmp_path / kind, samples, schema, format=kind, **options)
        found = ds.shards(np.arange(len(ds)))
        assert all(os.path.isfile(name) for name in found)
        assert set(found) == {str(path) for path in data_files(tmp_path / kind)}
        assert ds.shuffle(seed=1).shards([0, 5]) == [found[k] for k in Shuffle(11, 1).rows(np.array([0, 5]))]
        return [os.path.relpath(name, tmp_path / kind) for name in found]

    numbers: Samples = [{"n": k} for k in range(11)]
    parts = [k // 4 for k in range(11)]
    assert names("jsonl", numbers, {"n": int}, shard_rows=4) == [f"part-{k:05d}.jsonl" for k in parts]
    lines: Samples = [{"text": str(k)} for k in range(11)]
    assert names("text", lines, {"text": str}, shard_rows=4) == [f"part-{k:05d}.txt" for k in parts]
    assert names("csv", numbers, {"n": int}, shard_rows=4) == [f"part-{k:05d}.csv" for k in parts]
    assert names("tar", numbers, {"n": int}, shard_rows=4) == [f"shard-{k:06d}.tar" for k in parts]
    assert names("parquet", numbers, {"n": int}, shard_rows=4) == [f"part-{k:05d}.parquet" for k in parts]
    assert names("bins", numbers, {"n": int}, splits=3) == [f"bin{k % 3:08d}.dat" for k in range(11)]
    arrays: Samples = [{"x": np.arange(4, dtype=np.uint16)} for k in range(11)]
    schema = {"x": sx.Array("uint16", (4,))}
    tars = names("columns_tar", arrays, schema, samples_per_shard=4)
    assert tars == [f"x_shards/shard_{k:04d}.tar" for k in parts]
    assert names("tokens", arrays, schema, shard_size=32) == [f"part-{k:05d}.bin" for k in parts]
    native = names("arrow", numbers, {"n": int}, shard_rows=4)
    assert [native.index(name) // 4 for name in native] == parts


def test_shards_of_a_columns_tar_sample_without_array_is_the_index(tmp_path: Path) -> None:
    samples: Samples = [{"x": None}, {"x": np.arange(3)}]
    ds = sx.write(tmp_path, samples, {"x": sx.Optional(sx.Array())}, format="columns_tar")
    assert [os.path.basename(name) for name in ds.shards([0, 1])] == ["index.sqlite", "shard_0000.tar"]


def test_shards_of_plain_arrow_files_skip_empty_files(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 0), ("c", 3)):
        table = pa.table({"x": np.arange(count)})
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    ds = sx.open(tmp_path)
    assert [os.path.basename(name)[0] for name in ds.shards(slice(None))] == ["a", "a", "c", "c", "c"]


def test_shards_of_concat_and_join(tmp_path: Path) -> None:
    one = sx.write(tmp_path / "one", series(3), SERIES)
    two = sx.write(tmp_path / "two", series(5), SERIES, format="parquet")
    listed = sx.open([{**sample} for sample in series(2)])
    both = sx.concat(two[1:], listed, one)
    (first,), (second,) = set(one.shards(slice(None))), set(two.shards(slice(None)))
    assert both.shards(slice(None)) == [second] * 4 + ["", ""] + [first] * 3
    assert both.shards([8, 0, 4]) == [first, second, ""]
    other = sx.open([{"extra": k} for k in range(3)])
    assert sx.join(one, other).shards([2]) == [first] and sx.join(other, one).shards([2]) == [""]


# -- in_python ---------------------------------------------------------------------------------------------------

IN_PYTHON = {
    "jsonl",
    "json_array",
    "compressed",
    "tar",
    "tar_of_maps",
    "columns_tar",
    "jsonl_singles",
    "bins_singles",
    "list_rows",
    "column_rows",
    "column_rows_mixed",
    "joined",
}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_in_python_is_true_for_formats_decoded_by_python_code(make: Make, tmp_path: Path) -> None:
    assert make(tmp_path / "data").dataset.in_python == (make.__name__ in IN_PYTHON)


def test_in_python_is_false_for_text_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert not sx.open(tmp_path).in_python
    assert sx.concat(sx.open(tmp_path), sx.open([{"text": "three"}])).in_python


class Bare:
    """Rows with `__len__` and `read` only."""

    def __init__(self, count: int = 3) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        return Columns({"x": rows})


def test_two_method_rows_get_defaults() -> None:
    ds = sx.open(Bare())
    ds.advise([0, 1])
    assert (ds.shards([0, -1]), ds.in_python) == (["", ""], True)
    assert ds.fingerprint == sx.open(Bare()).fingerprint != sx.open(Bare(4)).fingerprint
    assert repr(ds) == "Dataset(3 samples: x int64 - Bare)"


# -- fingerprint ------------------------------------------------------------------------------------------------


def test_fingerprint_of_list_rows_depends_on_its_values() -> None:
    def name(samples: Samples) -> str:
        return ListRows(samples).fingerprint

    assert name(series()) == name(series())
    assert name([{"x": "ab"}] * 2) == name([{"x": "a" + chr(98)}, {"x": "ab"}])
    others: list[Samples] = [[], [{}], [{"x": 1}], [{"x": 2}], [{"y": 1}], [{"x": 1.0}], [{"x": True}], [{"x": "1"}]]
    others += [[{"x": 1}, {"x": 1}], [{"x": [1]}], [{"x": np.array([1])}], [{"x": np.array([1], "i4")}], series()]
    assert len({name(samples) for samples in others}) == len(others)
    long: Samples = [{"x": k} for k in range(5000)]
    assert name(long) != name([*long[:-1], {"x": -1}]) and name(long) != name([{"x": -1}, *long[1:]])


def test_fingerprint_of_a_store_depends_on_its_content_only(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "a", series(), SERIES)
    assert sx.open(tmp_path / "a").fingerprint == ds.fingerprint
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert sx.open(tmp_path / "b").fingerprint == ds.fingerprint  # a copy
    changed = [*series()[:-1], {**series()[-1], "n": 7}]
    assert sx.write(tmp_path / "c", changed, SERIES).fingerprint != ds.fingerprint


def test_fingerprint_of_concat_and_join_depends_on_parts_and_order() -> None:
    one, two = sx.open([{"x": 1}]), sx.open([{"x": 2}])
    extra = sx.open([{"y": 1}])
    views = [one, two, sx.concat(one), sx.concat(one, two), sx.concat(two, one), sx.concat(one, one)]
    views += [sx.join(one, extra), sx.join(two, extra), sx.join(extra, one), sx.join(one)]
    assert len({view.fingerprint for view in views}) == len(views)
    assert sx.concat(one, two).fingerprint == sx.concat(one, two).fingerprint


def test_fingerprint_of_views_depends_on_their_rows() -> None:
    ds = sx.open([{"x": k} for k in range(10)])
    picks = [[0, 1, 2], [0, 2, 1], [0, 1], [5] * 3]
    views = [*(ds[pick] for pick in picks), ds.shuffle(1)[2:5], ds[2:5].shuffle(1), ds.shuffle(1, epoch=1)]
    views += [ds.through(chain(Pick(np.array([0, 1])), Shuffle(10, seed))) for seed in range(3)]
    assert len({view.fingerprint for view in views}) == len(views)
    assert ds[[0, 1]].fingerprint == ds[np.array([0, 1], np.uint8)].fingerprint
    order = Shuffle(10, 1)
    before = ds.through(order).fingerprint
    order.rows(np.arange(10))  # cached results are no part of the fingerprint
    assert ds.through(order).fingerprint == before


def test_fingerprint_of_a_huge_shuffle_computes_no_rows() -> None:
    huge = sx.open(Bare(10**9)).shuffle(1)[5:]
    assert len(huge.fingerprint) == 16


@pytest.mark.parametrize("format", ["arrow", "bins", "tar"])
@pytest.mark.parametrize(
    ("shape", "given"), [((0,), (0,)), ((2, 0), (2, 0)), ((None, 0), (2, 0)), ((0, None), (0, 3))], ids=str
)
def test_arrays_without_elements_are_read(
    tmp_path: Path, format: str, shape: tuple[int | None, ...], given: tuple[int, ...]
) -> None:
    array = np.zeros(given, np.float32)
    schema = {"x": sx.Array("float32", shape)}
    sx.write(tmp_path / "d", [{"x": array}] * 3, schema, format=format)
    ds = sx.open(tmp_path / "d", schema=schema if format == "tar" else None)
    for rows in ([], [0, 2]):
        for view in (ds, ds.map(dict), ds.shuffle(1)):
            assert [one.x.shape for one in view.__getitems__(rows)] == [given] * len(rows)
            assert len(view.read(rows)["x"]) == len(rows)
