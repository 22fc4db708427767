"""Reading native datasets: all samples as written, checksums before use, and no file opened before it is needed."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather

import shardex as sx
from shardex.errors import ChecksumError, FormatError, NotFoundError, SchemaError, TruncatedShardError
from shardex.features import Features
from shardex.native import data_files as fragments
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Fragment
from shardex.native.manifest import Manifest, publish, read_manifest
from shardex.native.version_numbers import manifest_path
from shardex.sources import LocalSource
from tests.data_files import table_of, with_new_sums
from tests.strategies import datasets

SCHEMA = {"n": "int8", "s": str}


def samples(count: int) -> list[dict[str, Any]]:
    return [{"n": k, "s": f"é{k}"} for k in range(count)]


def small(folder: Path, count: int = 3, **options: Any) -> Path:
    """A small dataset with one sample per batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "BATCH_BYTES", 1)
        sx.write(folder, samples(count), SCHEMA, **options)
    return folder


def only_file(folder: Path) -> Path:
    (file,) = (folder / "data").iterdir()
    return file


def check(ds: sx.Dataset, expected: list[dict[str, Any]]) -> None:
    """All ways to read give these samples."""
    wanted = [sx.DictSample(sample) for sample in expected]
    assert len(ds) == len(wanted)
    assert [ds[k] for k in range(len(ds))] == wanted
    assert list(ds) == wanted
    rows = [k for k in range(len(wanted) - 1, -1, -1) for _ in range(2)]
    assert list(ds.__getitems__(rows)) == [wanted[k] for k in rows]
    for name in ds.fields:
        assert list(ds.select(name)[::-1]) == [{name: sample[name]} for sample in wanted[::-1]]


# -- what was written is read ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(datasets(), st.integers(1, 4), st.sampled_from([1, 100, 1 << 20]))
def test_any_schema_and_samples(
    tmp_path_factory: pytest.TempPathFactory,
    data: tuple[Features, list[dict[str, Any]]],
    shard_rows: int,
    batch_bytes: int,
) -> None:
    features, expected = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "BATCH_BYTES", batch_bytes)
        patch.setattr(os, "fsync", lambda descriptor: None)
        ds = sx.write(tmp_path_factory.mktemp("any") / "d", expected, features, shard_rows=shard_rows)
    assert ds.features == features
    check(ds, expected)
    assert ds.to_arrow().num_rows == len(expected)


def test_batches_and_shards_of_every_size(tmp_path: Path) -> None:
    expected = samples(100)
    for shard_rows in (1, 7, 50, 100, 1000):
        check(sx.write(tmp_path / str(shard_rows), expected, SCHEMA, shard_rows=shard_rows), expected)
    check(sx.open(small(tmp_path / "batches", 40)), samples(40))
    assert read_manifest(LocalSource(tmp_path / "batches"), 1).fragments[0].groups[0].count == 40


def test_empty_dataset(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [], SCHEMA)
    check(ds, [])
    assert (str(ds.features), ds.to_arrow().column_names) == ("n int8, s text", ["n", "s"])
    check(sx.write(tmp_path / "d", samples(2), SCHEMA, mode="append"), samples(2))


def test_arrays_are_read_only_views_and_batches_are_fresh(tmp_path: Path) -> None:
    given_samples = [{"x": np.arange(3, dtype=np.float32), "t": np.arange(2), "i": np.ones((1, 2), np.uint8)}]
    schema = {"x": sx.Array("float32", (3,)), "t": sx.Array("int64", (None,)), "i": sx.Array("uint8", (None, None))}
    ds = sx.write(tmp_path / "d", given_samples * 3, schema)
    for name, value in ds[1].items():
        assert not value.flags.writeable, name
        assert not value.flags.owndata, name
    batch = ds.read([0, 1])["x"]
    assert isinstance(batch, np.ndarray)
    batch[:] = 7
    assert ds[0].x.tolist() == [0, 1, 2]


def test_old_versions_stay_readable(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    first = sx.write(folder, samples(2), SCHEMA)
    pickled = pickle.dumps(first)
    sx.write(folder, [{"n": 9, "s": "z"}], SCHEMA, mode="append")
    sx.write(folder, [{"other": 1.5}], {"other": float}, mode="overwrite")
    check(sx.open(folder, version=1), samples(2))
    check(sx.open(folder, version=2), [*samples(2), {"n": 9, "s": "z"}])
    check(sx.open(folder), [{"other": 1.5}])
    check(first, samples(2))
    check(pickle.loads(pickled), samples(2))
    with pytest.raises(NotFoundError, match="no version 4; the current one is 3"):
        sx.open(folder, version=4)


def test_schema_decides_how_bytes_are_decoded(tmp_path: Path) -> None:
    array = np.arange(4, dtype=np.int16).reshape(2, 2)
    folder = tmp_path / "d"
    sx.write(folder, [{"raw": array.tobytes(), "k": 1, "m": None}], {"raw": bytes, "k": "int32", "m": bytes | None})
    told = {"raw": sx.Array("int16", (2, 2)), "k": sx.ClassLabel(("a", "b")), "m": sx.Optional(sx.Json())}
    check(sx.open(folder, schema=told), [{"raw": array, "k": 1, "m": None}])
    with pytest.raises(SchemaError, match="expected a feature that int32 can be read as, got text - at field k"):
        sx.open(folder, schema={"k": str})
    with pytest.raises(SchemaError, match="got 'z' in the schema"):
        sx.open(folder, schema={"z": str})
    with pytest.raises(FormatError, match=r"got 8 bytes - at .*\.arrow, batch 0, sample 0, field raw"):
        sx.open(folder, schema={"raw": sx.Array("int16", (3,))})[0]


def test_fragment_with_fields_in_several_files(tmp_path: Path) -> None:
    """A fragment with two groups, as after `add_field`."""
    sx.write(tmp_path / "a", [{"n": k} for k in range(6)], {"n": int}, shard_rows=3)
    texts = [{"s": str(k), "o": None} for k in range(6)]
    sx.write(tmp_path / "b", texts, {"s": str, "o": str | None}, shard_rows=3)
    place = LocalSource(tmp_path / "c")
    groups = []
    for name in ("a", "b"):
        manifest = read_manifest(LocalSource(tmp_path / name), 1)
        groups.append([fragment.groups[0] for fragment in manifest.fragments])
        for file in groups[-1]:
            place.put(file.path, (tmp_path / name / file.path).read_bytes())
    schema = Features.of({"s": str, "n": int, "o": str | None})
    runs = [Fragment(3, list(files), first) for first, *files in zip((0, 3), *groups, strict=True)]
    publish(place, 1, Manifest(6, schema.to_json(), FragmentList(runs), ids=6))
    ds = sx.open(tmp_path / "c")
    check(ds, [{"s": str(k), "n": k, "o": None} for k in range(6)])
    assert ds.select("o", "n")[4] == {"o": None, "n": 4}
    assert len(ds.rows.shard_names()) == 4  # type: ignore[attr-defined]


# -- opening costs nothing ------------------------------------------------------------------------------------


def test_opening_maps_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    sx.write(folder, samples(100), SCHEMA, shard_rows=10)
    mapped: list[str] = []
    original = LocalSource.map

    def counting(self: LocalSource, path: str) -> memoryview:
        mapped.append(path)
        return original(self, path)

    monkeypatch.setattr(LocalSource, "map", counting)
    ds = sx.open(folder)
    assert len(ds) == 100
    assert mapped == [manifest_path(1)]
    ds[25], ds[29], ds.read([21, 22])
    assert len(mapped) == 2
    list(ds)
    assert len(mapped) == 11


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_mappings_end_with_the_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    ds = sx.write(folder, samples(10), SCHEMA)
    assert str(folder) not in Path("/proc/self/maps").read_text()
    view = ds.select("s")
    list(ds), ds[0]
    assert str(folder) in Path("/proc/self/maps").read_text()
    del ds, view
    gc.collect()
    assert str(folder) not in Path("/proc/self/maps").read_text()


MANY = """
import os, resource, sys
import shardex as sx
count, folder = int(sys.argv[1]), sys.argv[2]
os.fsync = lambda descriptor: None
with sx.create(folder, {"n": "int32"}, shard_rows=1) as out:
    for k in range(count):
        out.append(n=k)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
ds = sx.open(folder)
assert len(os.listdir(folder + "/data")) >= count  # and lists of fragments
assert ds[count - 1].n == count - 1 and ds.read(range(count))["n"].tolist() == list(range(count))
assert [s.n for s in ds[:: count // 100]] == list(range(0, count, count // 100))
"""


def test_more_shards_than_open_files(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as folder:
        command = [sys.executable, "-c", MANY, "2000", f"{folder}/d"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- bad data -------------------------------------------------------------------------------------------------


def test_every_flipped_byte_raises(tmp_path: Path) -> None:
    folder = small(tmp_path / "d")
    file, expected = only_file(folder), [sx.DictSample(sample) for sample in samples(3)]
    good = file.read_bytes()
    table = table_of(folder, read_manifest(LocalSource(folder), 1).fragments[0].groups[0])
    assert len(table) == 3
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        ds = sx.open(folder)
        hit = [k for k in range(3) if table.begin[k] <= at < table.end[k]] or [0, 1, 2]
        for k in range(3):
            if k in hit:
                with pytest.raises(ChecksumError, match=file.name):
                    ds[k]
                with pytest.raises(ChecksumError, match=file.name):
                    ds.read([k])
            else:
                assert ds[k] == expected[k]


def test_every_truncated_file_raises(tmp_path: Path) -> None:
    folder = small(tmp_path / "d")
    file = only_file(folder)
    good = file.read_bytes()
    for size in [*range(0, len(good), 37), len(good) - 1]:
        file.write_bytes(good[:size])
        with pytest.raises(TruncatedShardError, match=rf"{file.name}: expected {len(good)} bytes, got {size}"):
            sx.open(folder)[0]
    file.write_bytes(good + b"\0")
    with pytest.raises(ChecksumError, match=f"expected {len(good)} bytes, got {len(good) + 1}"):
        sx.open(folder)[0]
    file.write_bytes(b"PARQUET!" + good[8:])
    with pytest.raises(ChecksumError, match=r"expected batch 0 \(bytes 0 to \d+\) as it was written, got other bytes"):
        sx.open(folder)[0]
    file.unlink()
    with pytest.raises(NotFoundError, match=file.name):
        sx.open(folder)[0]


def test_swapped_file_raises(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, samples(4), SCHEMA, shard_rows=2)
    first, second = sorted((folder / "data").iterdir())
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(FormatError, match=r"\.arrow: expected"):
        list(sx.open(folder))


def resealed(folder: Path, data: bytes) -> None:
    """Replace the only file, and publish a manifest with matching checksums."""
    place, manifest = LocalSource(folder), read_manifest(LocalSource(folder), 1)
    file = manifest.fragments[0].groups[0]
    data, new = with_new_sums(data, file.path, file.fields)
    place.put(file.path, data)
    assert publish(
        place, 2, msgspec.structs.replace(manifest, fragments=FragmentList([Fragment(manifest.rows, [new])]))
    )


READ = """
import sys
import shardex as sx
from shardex.errors import FormatError
for read in (lambda ds: ds[2], list, lambda ds: ds.read([2, 1]), lambda ds: ds.to_arrow()):
    try:
        read(sx.open(sys.argv[1]))
    except FormatError as error:
        print(error)
"""


def in_a_process(folder: Path) -> list[str]:
    """Return what reading prints, in a process that may crash."""
    done = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.splitlines()


def test_invalid_offsets_with_matching_checksums_do_not_crash(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [{"s": text} for text in ("aaa", "bbb", "ccc")], {"s": str})
    data = bytearray(only_file(folder).read_bytes())
    at = data.find(np.array([0, 3, 6, 9]).tobytes())
    data[at : at + 32] = np.array([0, 3, 6, 0x7FFFFF00]).tobytes()
    resealed(folder, bytes(data))
    messages = in_a_process(folder)
    assert len(messages) == 4
    assert all("batch 0: expected valid Arrow data, got a damaged batch" in message for message in messages)


MUTATE = """
import random, struct, sys
import msgspec, xxhash
import shardex as sx
from shardex.errors import ShardexError
from shardex.sources import LocalSource
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Fragment
from shardex.native.manifest import publish, read_manifest
place = LocalSource(sys.argv[1])
manifest = read_manifest(place, 1)
(file,) = manifest.fragments[0].groups
good, at_random = bytes(place.load(file.path)), random.Random(0)
(size,) = struct.unpack_from("<Q", good, file.end + 16)
for version in range(2, 42):
    data = bytearray(good)
    for _ in range(at_random.choice([1, 1, 2, 3])):
        at = file.end + 8 + 8 * at_random.randrange(size // 8)
        (old,) = struct.unpack_from("<Q", data, at)
        other = [old + 8, old - 8, old + 1, 0, -1, at_random.randrange(2**64), at_random.randrange(len(good)), 1 << 40]
        struct.pack_into("<Q", data, at, at_random.choice(other) % 2**64)
    place.put(file.path, bytes(data))
    new = msgspec.structs.replace(file, foot=xxhash.xxh3_64_hexdigest(bytes(data[file.end :])))
    fragments = FragmentList([Fragment(manifest.rows, [new])])
    assert publish(place, version, msgspec.structs.replace(manifest, fragments=fragments))
    for read in (lambda ds: ds[2], list, lambda ds: ds.read([2, 1]), lambda ds: ds.to_arrow()):
        try:
            read(sx.open(sys.argv[1]))
        except ShardexError as error:
            print(error)
"""


def test_wrong_tables_with_matching_checksums_raise_errors_of_ours(tmp_path: Path) -> None:
    """A wrong number in the table is an error, or it is one that no reader needs; nothing crashes."""
    folder = small(tmp_path / "d")
    done = subprocess.run([sys.executable, "-c", MUTATE, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    assert len(done.stdout.splitlines()) > 80


def test_other_schema_with_matching_checksums_raises(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [{"x": k} for k in range(3)], {"x": "int32"})
    sx.write(tmp_path / "other", [{"x": float(k)} for k in range(3)], {"x": "float32"})
    resealed(folder, only_file(tmp_path / "other").read_bytes())
    with pytest.raises(FormatError, match=r"\.arrow: expected a column x of int32, got x float"):
        sx.open(folder)[0]


def test_data_without_a_manifest_raises(tmp_path: Path) -> None:
    folder = small(tmp_path / "d")
    (folder / manifest_path(1)).unlink()
    with pytest.raises(FormatError, match="expected a manifest, got only data: its writer has not finished"):
        sx.open(folder)
    check(sx.open(only_file(folder)), samples(3))  # one file of it is as good as any Arrow file


def test_only_native_datasets_have_versions(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"x": [1]}), tmp_path / "x.feather")
    with pytest.raises(FormatError, match="expected a native dataset, which has versions, got plain Arrow files"):
        sx.open(tmp_path, version=1)


# -- other tools ----------------------------------------------------------------------------------------------


def test_other_tools_read_the_data_files(tmp_path: Path) -> None:
    schema = {"n": int, "s": str | None, "x": sx.Array("float32", (2,)), "t": sx.Array("int16", (None,))}
    given_samples: list[dict[str, Any]] = [
        {"n": k, "s": None if k % 2 else f"é{k}", "x": np.array([k, k], np.float32), "t": np.arange(k, dtype=np.int16)}
        for k in range(5)
    ]
    ds = sx.write(tmp_path / "d", given_samples, schema)
    file = only_file(tmp_path / "d")
    plain = [{**s, "x": s["x"].tolist(), "t": s["t"].tolist()} for s in given_samples]
    with pa.memory_map(str(file)) as mapped:
        everything = pa.ipc.open_file(mapped).read_all()
        assert everything.to_pylist() == plain
        rows = duckdb.sql("select n, s, x[1], len(t) from everything where n >= 3 order by n")
        assert rows is not None
        assert rows.fetchall() == [(3, None, 3.0, 3), (4, "é4", 4.0, 4)]
    frame = ds.to_pandas()
    assert frame.n.tolist() == list(range(5))
    assert frame.t[3].tolist() == [0, 1, 2]
    assert everything.to_pandas().x[4].tolist() == [4.0, 4.0]


def test_nulls_of_a_required_field_raise(tmp_path: Path) -> None:
    samples = [{"x": None if k == 2 else k, "other": k} for k in range(5)]
    sx.write(tmp_path / "d", samples, {"x": sx.Optional(int), "other": sx.Optional(int)})
    ds = sx.open(tmp_path / "d", schema={"x": int, "other": sx.Optional(int)})
    for read in (lambda: ds.read([0, 2]), lambda: ds[2], lambda: ds.rows.sql_columns(["x"])):
        with pytest.raises(FormatError, match="expected a value in every row, got nulls - at field x"):
            read()


@pytest.mark.parametrize("kind", [int, str, bool, list[str], sx.Array("float32", (None,)), sx.Array("int8", (3,))])
def test_a_required_field_that_a_fragment_lacks_raises(tmp_path: Path, kind: Any) -> None:
    sx.write(tmp_path / "d", [{"x": k} for k in range(4)])
    with sx.edit(tmp_path / "d") as tx:
        tx.add_field("y", sx.Optional(kind))
    ds = sx.open(tmp_path / "d", schema={"x": int, "y": kind})
    for read in (lambda: ds.read([0]), lambda: ds[0], lambda: ds.rows.sql_columns(["y"])):
        with pytest.raises(FormatError, match="expected a value in every row, got nulls - at field y"):
            read()
