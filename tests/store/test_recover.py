"""Recovering: every intact sample is saved, no other, and the damaged dataset is not changed."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import shardex as sx
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ChecksumError,
    FormatError,
    NotFoundError,
    PathError,
    SchemaError,
)
from shardex.native import data_files as fragments
from shardex.native.fragments import DataFile
from shardex.native.manifest import Manifest, read_manifest
from shardex.native.version_numbers import latest_version, manifest_path
from shardex.sources import LocalSource, place_of
from shardex.store import recover, verify
from tests.data_files import table_of

SCHEMA = {"n": int, "v": sx.Array("float32", (2,)), "s": str, "o": str | None}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(fragments, "BATCH_BYTES", 1)


def sample(k: int) -> dict[str, Any]:
    return {"n": k, "v": np.full(2, k, np.float32), "s": f"s{k}", "o": None if k % 3 else "o"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten samples, four to a file, one to a batch."""
    sx.write(tmp_path / "d", map(sample, range(10)), SCHEMA, shard_rows=4, key="s")
    return tmp_path / "d"


def edited(folder: Path) -> None:
    with sx.edit(folder) as tx:
        tx.rename_field("n", "number")
        tx.drop_field("v")
        tx.add_field("e", "int8", range(10))
        tx.update("s6", o="newer")
        tx.update("s9", o="newest")
    with sx.edit(folder) as tx:
        tx.delete(["s1", "s2"])
        tx.append({"number": 10, "s": "s10", "e": 1})


def manifest(folder: Path) -> Manifest:
    place = LocalSource(folder)
    return read_manifest(place, latest_version(place))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- native ---------------------------------------------------------------------------------------------------------


def test_intact_dataset_is_copied_completely(folder: Path, tmp_path: Path) -> None:
    edited(folder)
    expected, before = list(sx.open(folder)), state(folder)
    done = recover(folder, tmp_path / "new")
    assert (done.samples, done.lost, done.notes, done.version) == (9, [], [], 3)
    ds = sx.open(done.path)
    assert list(ds) == expected and ds.features == sx.open(folder).features
    assert ds.get("s9").o == "newest"
    assert [version.change for version in sx.store.history(done.path)] == ["recover: 9 samples"]
    assert verify(done.path) == [] and state(folder) == before


def test_truncated_file_loses_only_samples_after_the_cut(folder: Path, tmp_path: Path) -> None:
    expected = list(sx.open(folder))
    file = manifest(folder).fragments[1].groups[0]
    content, ends = (folder / file.path).read_bytes(), table_of(folder, file).end.tolist()
    for number, size in enumerate(range(0, file.size, 97)):
        (folder / file.path).write_bytes(content[:size])
        done = recover(folder, tmp_path / str(number), progress=False)
        whole = sum(end <= size for end in ends)
        lost = [row for one in done.lost for row in one.samples or ()]
        assert lost == list(range(4 + whole, 8)) and done.samples == 10 - len(lost)
        assert list(sx.open(done.path)) == [one for k, one in enumerate(expected) if k not in lost]
        assert {one.file for one in done.lost} == ({file.path} if lost else set())


def test_batches_without_checksums_are_saved_with_a_note(folder: Path, tmp_path: Path) -> None:
    """The checksums of a file are in its foot. A foot that is damaged is made again, one that is gone is not."""
    expected = list(sx.open(folder))
    file = manifest(folder).fragments[1].groups[0]
    content = (folder / file.path).read_bytes()
    lost = f"4 rows of {file.path} are not checked: the checksums in its foot are lost"
    for name, data, notes in (
        ("table", content[: file.end + 8] + b"?" * 64 + content[file.end + 72 :], []),
        ("cut", content[: file.end + 30], [lost]),
    ):
        (folder / file.path).write_bytes(data)
        done = recover(folder, tmp_path / name, progress=False)
        assert (done.samples, done.lost, done.notes) == (10, [], notes)
        assert list(sx.open(done.path)) == expected


@pytest.mark.parametrize("edit", [False, True])
def test_flipped_byte_loses_at_most_one_batch(folder: Path, tmp_path: Path, edit: bool) -> None:
    if edit:
        edited(folder)
    expected = list(sx.open(folder))
    for number, file in enumerate(file for one in manifest(folder).fragments for file in one.groups):
        content, most = (folder / file.path).read_bytes(), table_of(folder, file).rows.max()
        for at in range(0, len(content), 577):
            flip(folder / file.path, at)
            done = recover(folder, tmp_path / f"{number} {at}", progress=False)
            lost = [row for one in done.lost for row in one.samples or ()]
            assert len(lost) <= most
            assert done.samples == len(expected) - len(lost)
            assert list(sx.open(done.path)) == [one for k, one in enumerate(expected) if k not in lost]
            (folder / file.path).write_bytes(content)


# -- damage of some blocks of a batch ---------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A thousand samples in one batch, with a field that is read through Arrow."""
    monkeypatch.setattr(fragments, "BATCH_BYTES", 2 << 20)
    schema = {"n": int, "s": str, "words": list[str], "x": sx.Array("float32", (8,))}
    samples = [
        {"n": k, "s": f"text {k}", "words": [f"word {k}"] * 3, "x": np.full(8, k, np.float32)} for k in range(1000)
    ]
    sx.write(tmp_path / "large", samples, schema)
    return tmp_path / "large"


def spoil(folder: Path, file: DataFile, at: int) -> None:
    """Change 50 bytes."""
    data = bytearray((folder / file.path).read_bytes())
    data[at : at + 50] = bytes(byte ^ 0xFF for byte in data[at : at + 50])
    (folder / file.path).write_bytes(data)


@pytest.mark.parametrize("name", ["n", "words", "x"])
def test_damaged_block_loses_only_the_rows_that_need_it(large: Path, tmp_path: Path, name: str) -> None:
    (file,) = manifest(large).fragments[0].groups
    table, expected = table_of(large, file), list(sx.open(large))
    begin, size = table.buffers[0, {"n": 1, "words": 9, "x": 12}[name]].tolist()
    spoil(large, file, begin + size // 2)
    block = (begin + size // 2) // 4096 * 4096
    done = recover(large, tmp_path / "new", progress=False)
    (lost,) = done.lost
    assert lost.samples is not None and 0 < len(lost.samples) <= 4096 // (size // 1000) + 2
    assert (lost.file, lost.fields) == (file.path, (name,))
    assert lost.why == f"expected batch 0 (bytes {block} to {block + 4096}) as it was written, got other bytes"
    assert done.samples == 1000 - len(lost.samples)
    assert list(sx.open(done.path)) == [one for k, one in enumerate(expected) if k not in lost.samples]
    ds = sx.open(large)
    for row in [*lost.samples, *range(0, 1000, 7)]:  # after errors, too
        others = [one for one in ds.fields if one != name]
        assert ds.select(*others)[row] == sx.DictSample({one: expected[row][one] for one in others})
        if row in lost.samples:
            with pytest.raises(ChecksumError):
                ds[row]
        else:
            assert ds[row] == expected[row] and ds.read([row, 0])["n"].tolist() == [row, 0]


def test_damaged_blocks_in_an_object_store(large: Path, tmp_path: Path) -> None:
    (file,) = manifest(large).fragments[0].groups
    begin, size = table_of(large, file).buffers[0, 9].tolist()
    spoil(large, file, begin + size // 2)
    place = place_of("memory://large")
    for path in LocalSource(large).paths():
        place.put_if_absent(path, (large / path).read_bytes())
    here, there = recover(large, tmp_path / "here"), recover("memory://large", tmp_path / "there")
    assert (here.samples, here.lost) == (there.samples, there.lost) and here.lost
    assert list(sx.open(here.path)) == list(sx.open(there.path))


def test_damaged_block_of_many_newer_values(large: Path, tmp_path: Path) -> None:
    """The entries whose row id or value is damaged are lost, and older values are back."""
    with sx.edit(large) as tx:
        tx.update(slice(0, 1000), n=np.arange(1000) + 5000)
    for part, column in ((manifest(large).overlays[0], 1), (manifest(large).overlays[0], 3)):
        good = (large / part.path).read_bytes()
        begin, size = table_of(large, part).buffers[0, column].tolist()
        spoil(large, part, begin + size // 2)
        done = recover(large, tmp_path / str(column), progress=False)
        assert done.samples == 1000 and not done.lost
        older = [k for k, one in enumerate(sx.open(done.path)) if one.n == k]
        assert 0 < len(older) <= 513 and older == list(range(older[0], older[-1] + 1))
        assert done.notes == [f"{len(older)} newer values of n are lost, older ones are back: {part.path} is damaged"]
        assert all(one.n == k + 5000 for k, one in enumerate(sx.open(done.path)) if k not in older)
        (large / part.path).write_bytes(good)


def test_damaged_values_with_newer_ones_are_not_lost(folder: Path, tmp_path: Path) -> None:
    with sx.edit(folder) as tx:
        tx.add_field("e", "int8", range(10))
    with sx.edit(folder) as tx:
        tx.update("s5", e=50)
    expected = list(sx.open(folder))
    file = manifest(folder).fragments[1].groups[1]
    assert list(file.fields) == ["e"]
    (folder / file.path).unlink()
    done = recover(folder, tmp_path / "new")
    assert [one.samples for one in done.lost] == [range(4, 5), range(6, 8)]
    assert list(sx.open(done.path)) == [one for k, one in enumerate(expected) if k not in (4, 6, 7)]


def test_damaged_overlay(folder: Path, tmp_path: Path) -> None:
    edited(folder)
    expected = list(sx.open(folder))
    (overlay,) = manifest(folder).overlays
    (folder / overlay.path).unlink()
    done = recover(folder, tmp_path / "new")
    assert done.notes == [f"2 newer values of o are lost, older ones are back: {overlay.path} is damaged"]
    assert done.samples == 9 and done.lost == []
    assert [s.o for s in sx.open(done.path)] == [{"s6": "o", "s9": "o"}.get(s.s, s.o) for s in expected]


def test_damaged_list_of_deleted_samples(folder: Path, tmp_path: Path) -> None:
    edited(folder)
    (deleted,) = manifest(folder).deleted
    flip(folder / deleted.path, 100)
    done = recover(folder, tmp_path / "new")
    assert done.samples == 11 and len(done.notes) == 2
    assert done.notes[0] == "s is no longer a key: deleted samples are back and may have the same keys as others"
    assert done.notes[1] == f"2 deleted samples are back: {deleted.path} is damaged"
    assert [s.number for s in sx.open(done.path)] == list(range(11))
    with pytest.raises(SchemaError, match="without keys"):
        sx.open(done.path).get("s1")


def test_damaged_key_table_loses_nothing(folder: Path, tmp_path: Path) -> None:
    for fragment in manifest(folder).fragments:
        assert fragment.keys is not None
        (folder / fragment.keys.path).unlink()
    done = recover(folder, tmp_path / "new")
    assert (done.samples, done.lost, done.notes) == (10, [], [])
    assert sx.open(done.path).get("s7").n == 7


def test_newest_readable_manifest_is_used(folder: Path, tmp_path: Path) -> None:
    before = list(sx.open(folder))
    edited(folder)
    flip(folder / manifest_path(3), 200)
    (folder / manifest_path(2)).write_bytes(b"")
    done = recover(folder, tmp_path / "new")
    assert done.version == 1 and list(sx.open(done.path)) == before
    assert done.notes[0] == "version 3 is lost: expected the manifest as it was written, got other bytes"
    assert done.notes[1].startswith("version 2 is lost: expected a manifest, got something else")


def test_values_from_before_a_field_was_added(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}, {"x": 2}])
    with sx.edit(tmp_path / "d") as tx:
        tx.add_field("note", str | None)
        tx.append(x=3, note="new")
    done = recover(tmp_path / "d", tmp_path / "new")
    assert [s.note for s in sx.open(done.path)] == [None, None, "new"]
    with sx.edit(tmp_path / "d") as tx:
        tx.drop_field("x")
    assert verify(tmp_path / "d") == []
    done = recover(tmp_path / "d", tmp_path / "less")
    assert list(sx.open(done.path)) == [{"note": None}, {"note": None}, {"note": "new"}]


def test_dataset_with_adopted_shards(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')
    sx.adopt(tmp_path / "a.jsonl", tmp_path / "d", schema={"x": int})
    with sx.edit(tmp_path / "d", trust_paths=True) as tx:
        tx.add_field("y", "int64", [10, 20, 30])
        tx.delete([0])
    with pytest.raises(PathError, match="trust_paths=True"):
        recover(tmp_path / "d", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    done = recover(tmp_path / "d", tmp_path / "new", trust_paths=True)
    assert list(sx.open(done.path)) == [{"x": 2, "y": 20}, {"x": 3, "y": 30}]


# -- without a manifest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [b"", b"{}", None])
def test_recover_without_a_manifest(folder: Path, tmp_path: Path, left: bytes | None) -> None:
    expected = list(sx.open(folder))
    for number, fragment in enumerate(manifest(folder).fragments):
        os.utime(folder / fragment.groups[0].path, (number, number))  # files of one moment are in any order
    second = manifest(folder).fragments[1].groups[0].path
    path = folder / manifest_path(1)
    path.write_bytes(left) if left is not None else path.unlink()
    done = recover(folder, tmp_path / "all")
    assert list(sx.open(done.path)) == expected and done.lost == [] and done.version is None
    assert "no manifest can be used" in done.notes[-1]
    assert sx.open(done.path).features == sx.Features.of(SCHEMA)
    flip(folder / second, 100)  # in its first batch, of one sample
    done = recover(folder, tmp_path / "some")
    assert sorted(s.n for s in sx.open(done.path)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [(one.file, one.samples) for one in done.lost] == [(second, None)]
    flip(folder / second, os.path.getsize(folder / second) - 50)
    done = recover(folder, tmp_path / "fewer")
    assert [s.n for s in sx.open(done.path)] == [0, 1, 2, 3, 8, 9]
    assert [(one.file, one.samples) for one in done.lost] == [(second, None)]


def test_recover_without_a_manifest_keeps_the_most_common_fields(folder: Path, tmp_path: Path) -> None:
    edited(folder)
    for number in (1, 2, 3):
        (folder / manifest_path(number)).unlink()
    done = recover(folder, tmp_path / "new")
    assert sorted(s.n for s in sx.open(done.path)) == list(range(10))
    assert {one.why.rpartition(" got ")[2] for one in done.lost} == {"e", "number, s, o, e"}


def test_no_manifest_and_no_intact_file_raises(folder: Path, tmp_path: Path) -> None:
    (folder / manifest_path(1)).unlink()
    for path in (folder / "data").iterdir():
        flip(path, os.path.getsize(path) - 50)
    with pytest.raises(FormatError, match="expected a manifest, or an intact data file, got neither"):
        recover(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# -- other formats --------------------------------------------------------------------------------------------------


def test_damaged_lines_of_jsonl(tmp_path: Path) -> None:
    lines = [f'{{"x": {k}, "t": "t{k}"}}' for k in range(100)]
    lines[0] = "{"
    lines[50] = '{"x": "fifty", "t": ""}'
    lines[60] = '{"x": 60}'
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").write_text("\n".join(lines)[:-5])
    done = recover(tmp_path / "d", tmp_path / "new")
    assert [one.samples for one in done.lost] == [range(1), range(99, 100)]
    assert [s.x for s in sx.open(done.path)] == [*range(1, 50), "fifty", *range(51, 99)]
    assert str(sx.open(done.path).features) == "x json, t text or none"
    done = recover(tmp_path / "d", tmp_path / "told", schema={"x": int, "t": str})
    assert [one.samples for one in done.lost] == [range(k, k + 1) for k in (0, 50, 60, 99)]
    assert [s.x for s in sx.open(done.path)] == [k for k in range(100) if k not in (0, 50, 60, 99)]
    assert "expected text, got nothing" in done.lost[2].why
    assert not (tmp_path / "d" / "new").exists()


def test_damaged_row_groups_of_parquet(tmp_path: Path) -> None:
    times = pa.array([0] * 300, pa.timestamp("s"))
    table = pa.table({"x": pa.array(range(300)), "s": [f"s{k}" for k in range(300)], "when": times})
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "a.parquet"
    parquet.write_table(table, path, row_group_size=100, write_page_checksum=True, compression="none")
    column = parquet.ParquetFile(path).metadata.row_group(1).column(1)
    flip(path, (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 5)
    done = recover(tmp_path / "d", tmp_path / "new")
    assert [one.samples for one in done.lost] == [range(100, 200)]
    assert [s.x for s in sx.open(done.path)] == [*range(100), *range(200, 300)]
    assert done.notes == [] and sx.open(done.path)[0].when == datetime.datetime(1970, 1, 1)


def test_truncated_tar_and_unreadable_file(tmp_path: Path) -> None:
    samples = [{"a": f"a{k}", "n": k} for k in range(12)]
    ds = sx.write(tmp_path / "d", samples, {"a": str, "n": int}, format="tar", shard_rows=4)
    first, second, third = ds.rows.shard_names()  # type: ignore[attr-defined]
    os.truncate(second, 5000)
    before = state(tmp_path / "d")
    done = recover(tmp_path / "d", tmp_path / "new")
    assert [s["n"] for s in sx.open(done.path)] == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert [(one.file, one.samples) for one in done.lost] == [(os.path.basename(second), None)]
    assert state(tmp_path / "d") == before
    os.unlink(first)
    os.truncate(third, 0)
    assert [s["n"] for s in sx.open(recover(tmp_path / "d", tmp_path / "less").path)] == [4, 5]


def test_no_readable_sample_raises(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"that can be read, got none: a\.parquet: expected a"):
        recover(tmp_path / "a.parquet", tmp_path / "new")


# -- the target -----------------------------------------------------------------------------------------------------


def test_invalid_targets_raise(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("mine")
    with pytest.raises(AlreadyExistsError):
        recover(folder, tmp_path / "there")
    with pytest.raises(ArgumentError, match="expected a target outside of the dataset"):
        recover(folder, folder / "inside")
    with pytest.raises(NotFoundError):
        recover(tmp_path / "nowhere", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "there"]


def test_full_disk_leaves_no_target(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fragments.DataFileWriter, "publish", full)
    with pytest.raises(OSError, match="No space left"):
        recover(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()
