"""Reading damaged shards: only unreadable samples are left out, with few reads, and files are not changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, TruncatedShardError, UnknownFormatError
from shardex.formats.tar import blocks as tar_blocks
from shardex.formats.tar import members as tar_members
from shardex.kernel import Columns, Integers
from shardex.sources.url import SCHEMES
from shardex.store import recover, verify
from shardex.store.readable_rows import UnreadableRows, open_readable_files, read_readable, unreadable_ranges
from tests.fake_remote import fake_remote_url, open_fake_remote


class FailingRows:
    """Rows of which some cannot be read: each with its own message, or with one message per part of `part` rows."""

    def __init__(self, good: list[bool], part: int = 0) -> None:
        self.good, self.part, self.reads = good, part, 0

    def read(self, rows: Integers) -> Columns:
        self.reads += 1
        for row in rows.tolist():
            if not self.good[row]:
                raise ValueError(f"part {row // self.part}" if self.part else f"row {row}")
        return Columns({"x": rows})


def read_all(rows: FailingRows) -> tuple[list[int], list[int]]:
    found = list(read_readable(rows.read, np.arange(len(rows.good))))
    good = [x for one in found if isinstance(one, Columns) for x in one["x"].tolist()]
    return good, sorted(row for one in found if isinstance(one, UnreadableRows) for row in one.rows.tolist())


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=80))
def test_only_unreadable_rows_are_left_out(good: list[bool]) -> None:
    numbers = range(len(good))
    assert read_all(FailingRows(good)) == ([k for k in numbers if good[k]], [k for k in numbers if not good[k]])


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=8), st.integers(1, 20))
def test_unreadable_parts_are_left_out(parts: list[bool], size: int) -> None:
    good = [fine for fine in parts for _ in range(size)]
    numbers = range(len(good))
    assert read_all(FailingRows(good, size)) == ([k for k in numbers if good[k]], [k for k in numbers if not good[k]])


def test_an_unreadable_part_costs_few_reads() -> None:
    rows = FailingRows([not 1000 <= k < 9000 for k in range(10_000)], part=1000)
    assert len(read_all(rows)[1]) == 8000
    assert rows.reads < 1000


def test_memory_error_is_raised() -> None:
    def read(rows: Integers) -> Columns:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(read_readable(read, np.arange(4)))


def test_neighbours_with_the_same_reason_are_one_range() -> None:
    found = [
        UnreadableRows(np.array([2, 3]), "a"),
        UnreadableRows(np.array([4]), "a"),
        UnreadableRows(np.array([5, 7]), "b"),
        UnreadableRows(np.array([8]), "c"),
    ]
    assert list(unreadable_ranges(found)) == [
        (range(2, 5), "a"),
        (range(5, 6), "b"),
        (range(7, 8), "b"),
        (range(8, 9), "c"),
    ]
    assert list(unreadable_ranges([])) == []


# -- files that open ------------------------------------------------------------------------------------------------


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_files_that_cannot_be_opened_are_left_out(tmp_path: Path, format: str) -> None:
    if format == "arrow":
        import pyarrow as pa

        (tmp_path / "d").mkdir()
        for k in range(3):
            table = pa.table({"x": [2 * k, 2 * k + 1]})
            with pa.ipc.new_file(str(tmp_path / "d" / f"part{k}.arrow"), table.schema) as out:
                out.write_table(table)
    else:
        sx.write(tmp_path / "d", [{"x": k} for k in range(6)], format=format, shard_rows=2)
    (bad,) = (tmp_path / "d").glob("part*1.*")
    bad.write_bytes(bad.read_bytes()[:-20])
    before = state(tmp_path / "d")
    for what in (tmp_path / "d", sorted((tmp_path / "d").iterdir())):
        with open_readable_files(what) as found:
            assert [s.x for s in found.dataset] == [0, 1, 4, 5]
            ((file, why),) = found.refused
            assert file == bad.name and str(tmp_path) not in why and why.startswith("expected")
            assert found.original_rows(range(3)) is None
    assert state(tmp_path / "d") == before


def test_intact_dataset_is_opened_directly(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}], format="jsonl")
    with open_readable_files(tmp_path / "d") as found:
        assert found.dataset.shards([0])[0].startswith(str(tmp_path)) and not found.refused
        assert found.original_rows(range(1)) == range(1)


def test_no_file_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with open_readable_files(tmp_path) as found:
        assert len(found.dataset) == 0 and [file for file, _ in found.refused] == ["a.parquet"]


def test_missing_files_and_wrong_options_are_errors(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}], format="jsonl")
    (tmp_path / "e").mkdir()
    with pytest.raises(FileNotFoundError), open_readable_files(tmp_path / "nowhere"):
        pass
    with pytest.raises(UnknownFormatError), open_readable_files(tmp_path / "e"):
        pass
    with pytest.raises(ArgumentError, match="got 'colour'"), open_readable_files(tmp_path / "d", colour=1):
        pass


def test_truncated_tar_gives_its_complete_samples(tmp_path: Path) -> None:
    """Cut at any byte: all samples before the cut are read, never an incomplete one."""
    ds = sx.write(tmp_path / "d", [{"a.txt": f"a{k}", "b.txt": f"b{k}"} for k in range(4)], NAMES, format="tar")
    (path,) = ds.rows.shard_names()  # type: ignore[attr-defined]
    size = os.path.getsize(path)
    for length in sorted({*range(0, size, 256), *range(1, size, 1111)}, reverse=True):
        os.truncate(path, length)
        with open_readable_files(tmp_path / "d") as found:
            samples = list(found.dataset)
        assert [dict(s) for s in samples] == [dict(s) for s in expected(len(samples))]
        whole = length // (4 * 512)  # a sample is two headers and two blocks
        assert len(samples) >= min(4, whole) - 1
        if length < 4 * 4 * 512 + 512:
            assert found.refused and verify(tmp_path / "d")


@pytest.mark.parametrize("remote", [False, True])
def test_cut_between_members_is_found_with_a_saved_index(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that was made without a check of the end does not hide the cut."""
    monkeypatch.setitem(SCHEMES, "fakeremote", open_fake_remote)
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    ds = sx.write(tmp_path / "d", [{"a.txt": f"a{k}", "b.txt": f"b{k}"} for k in range(4)], NAMES, format="tar")
    (path,) = ds.rows.shard_names()  # type: ignore[attr-defined]
    os.truncate(path, 2 * 2048 + 1024)  # two samples and a half
    what = fake_remote_url(tmp_path / "d") if remote else tmp_path / "d"
    with monkeypatch.context() as patch:
        patch.setattr(tar_members, "members_of", lambda *_, **__: members_of(path))
        assert len(sx.open(what, rebuild=True)) == 3
    assert len(sx.open(what)) == 3
    (problem,) = verify(what)
    assert problem.file == "shard-000000.tar" and "expected a block of zeros at offset 5120" in problem.what
    done = recover(what, tmp_path / "new")
    assert [dict(s) for s in sx.open(done.path)] == expected(2)
    assert [one.file for one in done.lost] == ["shard-000000.tar"]


def members_of(path: str) -> Iterator[tar_blocks.Member]:
    with suppress(TruncatedShardError):
        yield from tar_blocks.members_of(Path(path).read_bytes(), path)


NAMES = {"a.txt": str, "b.txt": str}
"""Fields with the names of members of tars, which therefore have no schema at their beginning."""


def expected(count: int) -> list[dict[str, str]]:
    return [{"__key__": f"{k:09d}", "a.txt": f"a{k}", "b.txt": f"b{k}"} for k in range(count)]
