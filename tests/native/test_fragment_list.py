"""Fragments of a version: in the manifest and in runs, as a sequence and as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from shardex.errors import FormatError
from shardex.native import fragment_list
from shardex.native.fragment_list import MOST_INLINE, FragmentList
from shardex.native.fragment_segments import Run, RunSegment, paths_of
from shardex.native.fragments import DataFile, Foreign, Fragment

FIELDS = {"x": "x", "y": "y"}


def file(number: int, rows: int = 3, fields: dict[str, str] = FIELDS) -> DataFile:
    path = f"data/{number:032x}-{number + 7:016x}.arrow"
    return DataFile(path, 1000 + number, fields, foot=f"{number:016x}", end=900, count=1, rows=rows)


def fragments(count: int, first: int = 0, groups: Sequence[dict[str, str]] = (FIELDS,), keys: bool = False) -> Any:
    return [
        Fragment(
            3,
            [file(10 * k + g, 3, fields) for g, fields in enumerate(groups)],
            3 * k,
            file(10 * k + 9, 3, {"hash": "hash", "row": "row"}) if keys else None,
        )
        for k in range(first, first + count)
    ]


class Disk:
    """Keeps what is written, and counts what is loaded."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self.loaded: list[str] = []

    def write(self, columns: Mapping[str, Any]) -> DataFile:
        made = file(10_000_000 + len(self.files), len(columns["rows"]), {})
        self.files[made.path] = dict(columns)
        return made

    def load(self, one: DataFile, names: Sequence[str]) -> Mapping[str, Any]:
        self.loaded.append(one.path)
        return {name: self.files[one.path][name] for name in names}

    def again(self, some: FragmentList, ids: int = 1 << 40) -> FragmentList:
        """Return the fragments as a reader of the manifest sees them."""
        runs = msgspec.json.decode(msgspec.json.encode(some.runs), type=list[Run])
        inline = msgspec.json.decode(msgspec.json.encode(some.inline), type=list[Fragment])
        return FragmentList.stored(inline, runs, self.load, ids)


def appended_one_by_one(disk: Disk, count: int, **more: Any) -> FragmentList:
    made = FragmentList()
    for k in range(count):
        made = disk.again(made.with_appended(fragments(1, k, **more)).stored_in_runs(disk.write))
    return made


@pytest.mark.parametrize("keys", [False, True])
def test_appends_give_few_runs_and_the_same_fragments(keys: bool) -> None:
    disk, count = Disk(), 700
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_list, "_SHORT", 100)
        made = appended_one_by_one(disk, count, keys=keys)
    assert list(made) == fragments(count, keys=keys) and len(made) == count
    assert len(made.inline) <= MOST_INLINE and 1 < len(made.runs) <= 3
    assert len(disk.files) < count / 12 and sum(len(one["rows"]) for one in disk.files.values()) < 10 * count
    assert made.total == 3 * count and made.rows.tolist() == [3] * count
    assert made.firsts.tolist() == list(range(0, 3 * count, 3))
    assert made.sizes.tolist() == [1000 + 10 * k for k in range(count)]


def test_a_fragment_is_in_a_manifest_before_it_is_in_a_run() -> None:
    disk, made, listed = Disk(), FragmentList(), set[int]()
    for k in range(300):
        made = disk.again(made.with_appended(fragments(1, k)).stored_in_runs(disk.write))
        listed |= {one.first for one in made.inline}
    assert made.runs and listed == set(range(0, 900, 3))
    assert made.stored_in_runs(disk.write) is made
    only_runs = made[: sum(run.fragments for run in made.runs)]
    before = FragmentList.of([*FragmentList(fragments(40, 1000)).segments, *only_runs.segments])
    again = before.stored_in_runs(disk.write)  # with a run at the end
    assert list(again) == list(before) and not again.inline and len(again.runs) == 1 + len(made.runs)


def test_nothing_is_read_before_it_is_needed() -> None:
    disk = Disk()
    made = appended_one_by_one(disk, 300)
    disk.loaded.clear()
    again = disk.again(made)
    more = again.with_appended(fragments(2, 300))
    assert (len(more), more.total, more.adopted, more[-1]) == (302, 906, None, fragments(1, 301)[0])
    assert not disk.loaded
    assert more[0] == fragments(1)[0] and len(disk.loaded) == 1


def test_items_and_slices_are_those_of_a_list() -> None:
    disk, expected = Disk(), fragments(200)
    made = appended_one_by_one(disk, 200)
    for where in (0, 64, 65, 130, 199, -1, -200):
        assert made[where] == expected[where]
    for part in (
        slice(0, 3),
        slice(60, 70),
        slice(0, 130),
        slice(130, None),
        slice(5, 190, 7),
        slice(9, 3),
        slice(None),
    ):
        assert list(made[part]) == expected[part]
    assert made[:] == made == expected and made != expected[:-1] and made[1:] != made
    assert [run.file for run in made[:199].runs] == [run.file for run in made.runs] and not made[:131].runs
    with pytest.raises(IndexError):
        made[200]


def test_fragments_of_other_shapes_are_not_in_the_same_run() -> None:
    disk = Disk()
    small, both = [{"x": "x"}], [{"x": "x"}, {"y": "z"}]
    every = [*fragments(80, 0, small), *fragments(3, 80, both), *fragments(90, 83, small, keys=True)]
    made = disk.again(FragmentList(every).stored_in_runs(disk.write))
    assert list(made) == every
    assert [(run.fragments, run.after, run.keys) for run in made.runs] == [(80, 0, False), (89, 3, True)]
    assert made.inline == [*every[80:83], every[-1]] and [len(one.groups) for one in made.segments] == [1, 2, 1, 1]


def test_files_without_a_number_and_adopted_shards_stay_in_the_manifest() -> None:
    old = Fragment(3, [DataFile("data/" + "0" * 32 + ".arrow", 9, FIELDS, end=5, count=1, rows=3)])
    foreign = Fragment(3, [], foreign=Foreign("a.jsonl", "jsonl", {}, "", FIELDS))
    disk = Disk()
    every = [foreign, *[old] * 100, *fragments(70)]
    made = disk.again(FragmentList(every).stored_in_runs(disk.write))
    assert list(made) == every and made.inline == [*every[:101], every[-1]]
    assert [(run.fragments, run.after) for run in made.runs] == [(69, 101)]
    assert made.adopted == foreign.foreign


def test_renamed_and_dropped_fields_write_no_file() -> None:
    disk = Disk()
    groups = [{"x": "x"}, {"y": "y"}, {"z": "z", "w": "w"}]
    made = disk.again(FragmentList(fragments(100, groups=groups, keys=True)).stored_in_runs(disk.write))
    new = {"x": "a", "y": None, "z": "z", "w": None}
    renamed = made.renamed(lambda fields: {name: c for old, c in fields.items() if (name := new[old])})
    changed = disk.again(renamed)
    expected = fragments(100, groups=[{"a": "x"}, {"none": ""}, {"z": "z"}], keys=True)
    assert list(changed) == [msgspec.structs.replace(one, groups=[one.groups[0], one.groups[2]]) for one in expected]
    assert len(disk.files) == 1
    paths = paths_of(changed.segments[0])
    assert len(paths) == 297 and expected[5].groups[1].path not in paths and expected[5].keys.path in paths
    grown = changed.with_appended(fragments(120, 100, [{"a": "x"}, {"z": "z"}], keys=True))
    merged = disk.again(grown.stored_in_runs(disk.write))
    assert [run.fragments for run in merged.runs] == [219] and list(merged) == list(grown)


def test_moved_files_leave_their_run_and_a_moved_list_does_not() -> None:
    disk = Disk()
    made = disk.again(FragmentList(fragments(100)).stored_in_runs(disk.write))
    run, other = made.runs[0].file.path, file(99_999_999).path
    disk.files[other] = disk.files[run]
    moved = made.with_paths({run: other})
    assert [one.file.path for one in moved.runs] == [other] and list(moved) == fragments(100)
    moved = made.with_paths({fragments(1)[0].groups[0].path: "data/new.arrow"})
    assert not moved.runs and moved[0].groups[0].path == "data/new.arrow" and list(moved)[1:] == fragments(100)[1:]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("rows", 0, "fragments with 297 rows"),
        ("rows", 1 << 63, "fragments with 297 rows"),
        ("first", 1 << 40, "expected ids below"),
        ("first", (1 << 64) - 1, "expected ids below"),
        ("0.size", (1 << 64) - 1, "expected batches inside of files"),
        ("0.end", 0, "expected batches inside of files"),
        ("0.end", 5000, "expected batches inside of files"),
        ("0.count", 0, "expected batches with rows"),
        ("0.count", 4, "expected batches with rows"),
    ],
)
def test_impossible_numbers_in_a_run_raise(column: str, value: int, message: str) -> None:
    disk = Disk()
    made = FragmentList(fragments(100)).stored_in_runs(disk.write)
    disk.files[made.runs[0].file.path][column][5] = np.uint64(value)
    with pytest.raises(FormatError, match=message):
        disk.again(made).load()


def test_runs_out_of_order_raise() -> None:
    disk = Disk()
    run = FragmentList(fragments(100)).stored_in_runs(disk.write).runs[0]
    for changes in ({"after": 1}, {"after": -1}, {"fragments": 0}, {"rows": -1}):
        with pytest.raises(FormatError, match="expected runs in order"):
            FragmentList.stored([], [msgspec.structs.replace(run, **changes)], disk.load, 1000)
    short = msgspec.structs.replace(run, fragments=98)
    with pytest.raises(FormatError, match="expected 98 fragments with 297 rows, got 99 with 297"):
        FragmentList.stored([], [short], disk.load, 1000).load()


def test_a_segment_of_a_run_decodes_one_fragment() -> None:
    disk = Disk()
    segment = disk.again(FragmentList(fragments(100)).stored_in_runs(disk.write)).segments[0]
    assert isinstance(segment, RunSegment)
    files = segment.files(0)
    assert files.file(7) == fragments(8)[7].groups[0] and files.paths()[7] == files.file(7).path
    assert (files.ends[7], files.counts[7], files.sizes[7], len(files)) == (900, 1, 1070, 99)
