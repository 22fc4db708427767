"""Verifying: no problems in intact datasets; all damage is reported with its samples and fields, without raising."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FormatError, NotFoundError, PathError, UnknownFormatError
from shardex.native import data_files as fragments
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import DataFile
from shardex.native.manifest import Manifest, publish, read_manifest
from shardex.native.version_numbers import latest_version, manifest_path
from shardex.sources import LocalSource
from shardex.store import Problem, leftovers, verify
from tests.data_files import table_of

SCHEMA = {"n": int, "v": sx.Array("float32", (2,)), "s": str, "o": str | None}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def sample(k: int) -> dict[str, Any]:
    return {"n": k, "v": np.full(2, k, np.float32), "s": f"s{k}", "o": None if k % 3 else "o"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten samples, four to a file, one to a batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "BATCH_BYTES", 1)
        sx.write(tmp_path / "d", map(sample, range(10)), SCHEMA, shard_rows=4, key="s")
    return tmp_path / "d"


def manifest(folder: Path) -> Manifest:
    place = LocalSource(folder)
    return read_manifest(place, latest_version(place))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def only(folder: Path, version: int | None = None) -> Problem:
    (problem,) = verify(folder, version)
    return problem


def edited(folder: Path) -> None:
    """Make two more versions: a renamed and a new field, updates, deletions, and an append."""
    with sx.edit(folder) as tx:
        tx.rename_field("n", "number")
        tx.add_field("e", "int8", range(10))
        tx.update("s6", o="newer")
        tx.update("s9", o="newest")
    with sx.edit(folder) as tx:
        tx.delete(["s1", "s2"])
        tx.append({"number": 10, "v": [0, 0], "s": "s10", "e": 1})


# -- intact ---------------------------------------------------------------------------------------------------------


def test_intact_dataset_has_no_problems(folder: Path) -> None:
    assert verify(folder) == [] == leftovers(folder)
    edited(folder)
    assert verify(folder) == [] == leftovers(folder)
    sx.compact(folder)
    sx.store.restore(folder, 1)
    assert verify(folder) == [] == leftovers(folder)
    assert verify(folder, 2) == []
    sx.write(folder, [], {"x": int}, mode="overwrite")
    assert verify(folder) == []


def test_damaged_file_of_two_fragments(tmp_path: Path) -> None:
    """Older versions of shardex named files by content, so fragments with equal content share one."""
    sx.write(tmp_path / "d", map(sample, range(3)), SCHEMA)
    (one,) = read_manifest(LocalSource(tmp_path / "d"), 1).fragments
    republish(tmp_path / "d", fragments=[one, msgspec.structs.replace(one, first=3)], rows=6, ids=6)
    assert verify(tmp_path / "d") == []
    (path,) = (tmp_path / "d" / "data").iterdir()
    flip(path, 100)
    assert [problem.samples for problem in verify(tmp_path / "d")] == [range(3), range(3, 6)]


# -- damage ---------------------------------------------------------------------------------------------------------


def test_flipped_bytes_are_reported(folder: Path) -> None:
    """Some bytes of all files; `test_data_file_reader` and `test_manifest` test every byte of a file."""
    edited(folder)
    for path in sorted(folder.rglob("*.*")):
        data = path.read_bytes()
        for at in range(0, len(data), 211):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
            found = verify(folder)
            assert {problem.file for problem in found} == {str(path.relative_to(folder))}
        path.write_bytes(data)
    assert verify(folder) == []


def test_reported_samples_and_fields_cannot_be_read(folder: Path) -> None:
    edited(folder)
    for use in [group for fragment in manifest(folder).fragments for group in fragment.groups]:
        for begin in table_of(folder, use).begin.tolist():
            flip(folder / use.path, begin + 3)
            problem = only(folder)
            ds = sx.open(folder)
            assert problem.samples is not None and set(problem.fields) == set(use.fields)
            for row in range(len(ds)):
                for name in ds.fields:
                    if row in problem.samples and name in problem.fields:
                        if name != "o":  # has newer values in an overlay
                            with pytest.raises(FormatError):
                                ds.read([row], [name])
                    else:
                        ds.read([row], [name])
            flip(folder / use.path, begin + 3)


def test_damaged_blocks_are_reported_with_their_samples_and_fields(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"n": k, "s": f"text {k}"} for k in range(4000)], {"n": int, "s": str}, progress=False)
    (file,) = manifest(tmp_path / "d").fragments[0].groups
    table = table_of(tmp_path / "d", file)
    numbers, offsets = (int(table.buffers[0, k, 0]) for k in (1, 3))
    at = numbers // 4096 * 4096 + 2 * 4096
    flip(tmp_path / "d" / file.path, at)
    (problem,) = verify(tmp_path / "d")
    rows = range((at - numbers) // 8, (at + 4096 - numbers) // 8)
    assert (problem.samples, problem.fields) == (range(rows.start, -(-(at + 4096 - numbers) // 8)), ("n",))
    for row in (rows[0], rows[-1]):
        with pytest.raises(FormatError):
            sx.open(tmp_path / "d")[row]
    assert sx.open(tmp_path / "d")[rows[0] - 1].n == rows[0] - 1
    flip(tmp_path / "d" / file.path, at)
    border = offsets // 4096 * 4096  # the last numbers and the first offsets
    flip(tmp_path / "d" / file.path, border)
    assert [(one.samples, one.fields) for one in verify(tmp_path / "d")] == [
        (range((border + 4096 - offsets) // 8), ("s",)),
        (range((border - numbers) // 8, 4000), ("n",)),
    ]


def test_damage_that_no_sample_needs_is_reported_without_samples(tmp_path: Path) -> None:
    """The header of a batch, which only other readers need."""
    sx.write(tmp_path / "d", [{f"f{k}": 1 for k in range(100)}], progress=False)
    (file,) = manifest(tmp_path / "d").fragments[0].groups
    flip(tmp_path / "d" / file.path, 100)
    assert int(table_of(tmp_path / "d", file).buffers[0, :, 0].min()) > 4096
    problem = only(tmp_path / "d")
    assert problem.samples == range(0) and problem.what.startswith("expected batch 0 (bytes 0 to 4096)")
    assert sx.open(tmp_path / "d")[0].f3 == 1
    assert sx.recover(tmp_path / "d", tmp_path / "new", progress=False).samples == 1


def test_number_of_reported_ranges_is_bounded(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": np.full(600, k, "int16")} for k in range(1500)], progress=False)
    (file,) = manifest(tmp_path / "d").fragments[0].groups
    data = bytearray((tmp_path / "d" / file.path).read_bytes())
    begin = int(table_of(tmp_path / "d", file).buffers[0, -1, 0])
    for at in range(begin // 4096 * 4096 + 4096, int(table_of(tmp_path / "d", file).end[0]), 3 * 4096):
        data[at] ^= 1
    (tmp_path / "d" / file.path).write_bytes(data)
    found = verify(tmp_path / "d")
    assert len(found) == 64 and "more ranges of bytes) as it was written" in found[0].what
    lost = {row for one in found for row in one.samples or ()}
    unreadable = set()
    ds = sx.open(tmp_path / "d")
    for row in range(1500):
        try:
            ds[row]
        except FormatError:
            unreadable.add(row)
    assert unreadable < lost and max(unreadable) == max(lost)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda path: os.truncate(path, 300), "expected 3890 bytes, got"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "expected 3890 bytes, got"),
    "gone": (lambda path: path.unlink(), "cannot look at: No such file"),
    "without a foot": (lambda path: flip(path, -1), "expected the foot (bytes"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_files_that_cannot_be_opened(folder: Path, case: str) -> None:
    file = manifest(folder).fragments[1].groups[0]
    damage, message = DAMAGE[case]
    damage(folder / file.path)
    problem = only(folder)
    assert problem.what.startswith(message) and problem.file == file.path
    assert (problem.samples, problem.fields) == (range(4, 8), ("n", "v", "s", "o"))


def test_damaged_file_of_older_versions(folder: Path) -> None:
    edited(folder)
    sx.compact(folder)
    old = read_manifest(LocalSource(folder), 1).fragments[0].groups[0]
    flip(folder / old.path, 5)
    problem = only(folder)
    assert (problem.file, problem.samples, problem.versions) == (old.path, None, (1, 2, 3))
    assert verify(folder, 4) == []
    assert only(folder, 1).samples == range(1)


def test_damaged_lists_of_deleted_and_updated_rows(folder: Path) -> None:
    edited(folder)
    newest = manifest(folder)
    flip(folder / newest.deleted[0].path, 100)
    problem = only(folder)
    assert problem.what.endswith("; it is not known which samples are deleted")
    assert (problem.samples, problem.fields, problem.versions) == (range(9), (), (3,))
    flip(folder / newest.fragments[1].groups[0].path, 3)
    assert [one.samples for one in verify(folder)] == [None, range(9)], "rows are not known"
    sx.store.restore(folder, 2)
    flip(folder / newest.deleted[0].path, 100)
    flip(folder / newest.fragments[1].groups[0].path, 3)
    flip(folder / newest.overlays[0].path, 100)
    problem = only(folder)
    assert problem.what.endswith("; it is not known which samples have newer values")
    assert (problem.samples, problem.fields) == (range(10), ("o",))


def test_damaged_key_table(folder: Path) -> None:
    keys = manifest(folder).fragments[2].keys
    assert keys is not None
    flip(folder / keys.path, 300)
    problem = only(folder)
    assert problem.what.endswith("; samples cannot be found by their keys")
    assert (problem.file, problem.samples, problem.fields) == (keys.path, range(8, 10), ("s",))


def test_damaged_manifests(folder: Path) -> None:
    edited(folder)
    path = folder / manifest_path(3)
    at = path.read_bytes().index(b'"rows":') + 3
    flip(path, at)
    problem = only(folder)
    assert (problem.file, problem.samples, problem.versions) == (manifest_path(3), None, (3,))
    assert problem.what == "expected the manifest as it was written, got other bytes"
    flip(path, at)
    (folder / manifest_path(2)).unlink()
    assert only(folder).file == manifest_path(2)
    (folder / manifest_path(1)).unlink()
    assert verify(folder) == [], "older versions may be cleaned away"
    path.unlink()
    assert only(folder).what == "expected a manifest, got only data: it was never finished, or it is lost"


# -- files with right checksums and wrong content -------------------------------------------------------------------


def republish(folder: Path, **changes: Any) -> None:
    place = LocalSource(folder)
    number = latest_version(place)
    if "fragments" in changes:
        changes["fragments"] = FragmentList(changes["fragments"])
    assert publish(place, number + 1, msgspec.structs.replace(read_manifest(place, number), **changes))


def numbers(folder: Path, **columns: list[int]) -> DataFile:
    made = fragments.write_numbers(
        LocalSource(folder), {name: np.array(some, np.uint64) for name, some in columns.items()}
    )
    return made.publish()


def test_unknown_ids_are_reported(folder: Path) -> None:
    republish(folder, deleted=[numbers(folder, row=[3, 77])], rows=9)
    assert only(folder).what.startswith("expected ids below 10, got 77 in data/")


def test_wrong_number_of_samples_is_reported(folder: Path) -> None:
    republish(folder, deleted=[numbers(folder, row=[3, 3])], rows=8)
    assert only(folder).what == "expected 8 samples, 9 are left"


def test_duplicate_ids_are_reported(folder: Path) -> None:
    first, second, third = manifest(folder).fragments
    republish(folder, fragments=[first, msgspec.structs.replace(second, first=2), third])
    assert only(folder).what == "expected every id once, got 2 in two fragments"


def test_wrong_column_types_are_reported(folder: Path) -> None:
    schema = manifest(folder).schema
    republish(folder, schema={**schema, "n": {"kind": "value", "dtype": "int32"}})
    found = verify(folder)
    assert {problem.what.partition(",")[0] for problem in found} == {"expected a column n of int32"}
    assert [problem.samples for problem in found] == [range(4), range(4, 8), range(8, 10)]


def test_nulls_in_required_fields_are_reported(folder: Path) -> None:
    schema = manifest(folder).schema
    republish(folder, schema={**schema, "o": {"kind": "text"}})
    assert "got nulls in o" in verify(folder)[0].what


def test_wrong_key_tables_are_reported(folder: Path) -> None:
    first, second, third = manifest(folder).fragments
    republish(folder, fragments=[msgspec.structs.replace(first, keys=second.keys), second, third])
    problem = only(folder)
    assert (problem.what, problem.samples) == ("expected the hashes of the keys in s, got others", range(4))
    republish(folder, fragments=[msgspec.structs.replace(first, keys=None), second, third])
    assert verify(folder)[-1].file == manifest_path(3)


def test_duplicate_keys_are_reported(folder: Path) -> None:
    first, *rest = manifest(folder).fragments
    again = msgspec.structs.replace(first, first=10)
    republish(folder, fragments=[first, *rest, again], rows=14, ids=14)
    found = verify(folder)
    assert sorted(problem.samples.start for problem in found if problem.samples) == [10, 11, 12, 13]
    assert "expected every key once, got 's" in found[0].what
    republish(folder, deleted=[numbers(folder, row=[0, 1, 2, 3])], rows=10)
    assert verify(folder, 3) == [], "keys of deleted samples may be used again"


# -- leftovers --------------------------------------------------------------------------------------------------------


def test_leftovers(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / ".0123456789abcdef.tmp").write_bytes(b"")
    numbers(folder, row=[1])
    found = leftovers(folder)
    assert len(found) == 3 and {"notes.txt", ".0123456789abcdef.tmp"} < set(found)
    assert verify(folder) == []
    sx.clean(folder, grace=0)
    assert leftovers(folder) == ["notes.txt"]


def test_leftovers_of_another_format_raises(tmp_path: Path) -> None:
    sx.write(tmp_path / "j", [{"x": 1}], format="jsonl")
    with pytest.raises(FormatError, match="expected a native dataset"):
        leftovers(tmp_path / "j")


def test_missing_dataset_raises(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError):
        verify(tmp_path / "nowhere")
    with pytest.raises(UnknownFormatError):
        verify(tmp_path / "empty")
    with pytest.raises(NotFoundError, match="no version 7"):
        verify(folder, 7)


# -- several workers ------------------------------------------------------------------------------------------------


def problems_everywhere(path: Path) -> list[Problem]:
    """Verify in this process, in threads and in processes; the problems and their order must be the same."""
    found = verify(path)
    with ThreadPoolExecutor(2) as threads:
        for where in ({"workers": 1}, {"workers": 2}, {"executor": "threads"}, {"executor": threads}):
            assert verify(path, **where) == found
    return found


def test_workers_find_the_same_problems(folder: Path) -> None:
    edited(folder)
    assert problems_everywhere(folder) == []
    first, second, third = (fragment.groups[0] for fragment in manifest(folder).fragments[:3])
    flip(folder / first.path, table_of(folder, first).begin[2] + 3)
    os.truncate(folder / second.path, 300)
    (folder / third.path).unlink()
    found = problems_everywhere(folder)
    assert {problem.file for problem in found} == {first.path, second.path, third.path}


def test_workers_find_the_same_problems_in_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["shardex.store.verify"], "_PART_ROWS", 7)
    lines = [f'{{"x": {k}}}' for k in range(60)]
    lines[7] = lines[8] = lines[30] = lines[59] = "{"
    for name, begin in {"a": 0, "b": 20, "c": 40}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[begin : begin + 20]))
    assert [problem.samples for problem in problems_everywhere(tmp_path)] == [range(k, k + 1) for k in (7, 8, 30, 59)]


def test_truncated_tar_in_processes(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"text": "t" * 5000}] * 20, format="tar", shard_rows=10)
    last = sorted((tmp_path / "d").glob("*.tar"))[-1]
    os.truncate(last, 30_000)
    (problem,) = problems_everywhere(tmp_path / "d")
    assert problem.file == last.name


def test_memory_is_not_seen_by_other_processes() -> None:
    sx.write("memory://verified", [{"x": 1}])
    assert verify("memory://verified") == []
    with pytest.raises(ArgumentError, match="other processes do not see this memory"):
        verify("memory://verified", workers=2)


# -- other formats --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["jsonl", "csv", "tar", "parquet", "bins"])
def test_other_formats(tmp_path: Path, format: str) -> None:
    sx.write(tmp_path / "d", [{"text": f"t{k}", "n": k} for k in range(5)], {"text": str, "n": int}, format=format)
    assert verify(tmp_path / "d") == []
    with pytest.raises(FormatError, match="which has versions"):
        verify(tmp_path / "d", 1)


def test_damaged_lines_of_jsonl(tmp_path: Path) -> None:
    lines = [f'{{"x": {k}}}' for k in range(50)]
    lines[7] = lines[8] = lines[30] = "{"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = verify(tmp_path)
    assert [problem.samples for problem in found] == [range(7, 8), range(8, 9), range(30, 31)]
    assert found[0].file == "a.jsonl" and found[0].what.startswith("line 8, column 2 (byte 64 of the file): expected")
    assert verify(tmp_path / "a.jsonl", decode="text") == []


def test_dataset_with_adopted_shards(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')
    sx.adopt(tmp_path / "a.jsonl", tmp_path / "d", schema={"x": int})
    with sx.edit(tmp_path / "d", trust_paths=True) as tx:
        tx.add_field("y", "int64", [1, 2, 3])
        tx.delete([0])
    with pytest.raises(PathError, match="trust_paths=True"):
        verify(tmp_path / "d")
    assert verify(tmp_path / "d", trust_paths=True) == []
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 4}\n')
    (problem,) = verify(tmp_path / "d", trust_paths=True)
    assert (problem.file, problem.samples, problem.fields) == (str(tmp_path / "a.jsonl"), range(2), ("x",))
    assert "expected the shards as they were when they were adopted" in problem.what


def test_an_open_dataset(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"n": n} for n in range(5)])
    assert sx.verify(ds) == []
    os.truncate(ds.shards([0])[0], 100)
    assert [one.samples for one in sx.verify(ds)] == [range(5)]
    with pytest.raises(ArgumentError, match="got a view, whose row numbers are others; give its path"):
        sx.verify(ds[:2])
