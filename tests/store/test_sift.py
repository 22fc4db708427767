"""Sifting: exactly the samples that fail are left out, one broken part costs few reads, sources stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, UnknownFormatError
from shardex.kernel import Columns, Integers
from shardex.store.sift import Bad, runs, sift, sift_all, what_opens


class Shaky:
    """Rows of which some fail, each with a message of its own, and some in parts that fail as a whole."""

    def __init__(self, good: list[bool], part: int = 0) -> None:
        self.good, self.part, self.reads = good, part, 0

    def take(self, rows: Integers) -> Columns:
        self.reads += 1
        for row in rows.tolist():
            if not self.good[row]:
                raise ValueError(f"part {row // self.part}" if self.part else f"row {row}")
        return Columns({"x": rows})


def sifted(rows: Shaky) -> tuple[list[int], list[int]]:
    found = list(sift_all(rows.take, np.arange(len(rows.good))))
    good = [x for one in found if isinstance(one, Columns) for x in one["x"].tolist()]
    return good, sorted(row for one in found if isinstance(one, Bad) for row in one.rows.tolist())


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=80))
def test_exactly_the_bad_ones_are_left_out(good: list[bool]) -> None:
    numbers = range(len(good))
    assert sifted(Shaky(good)) == ([k for k in numbers if good[k]], [k for k in numbers if not good[k]])


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=8), st.integers(1, 20))
def test_parts_that_fail_as_a_whole(parts: list[bool], size: int) -> None:
    good = [fine for fine in parts for _ in range(size)]
    numbers = range(len(good))
    assert sifted(Shaky(good, size)) == ([k for k in numbers if good[k]], [k for k in numbers if not good[k]])


def test_a_broken_part_costs_few_reads() -> None:
    rows = Shaky([not 1000 <= k < 9000 for k in range(10_000)], part=1000)
    assert len(sifted(rows)[1]) == 8000
    assert rows.reads < 1000


def test_no_memory_is_nobodys_fault() -> None:
    def take(rows: Integers) -> Columns:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(sift(take, np.arange(4)))


def test_neighbours_with_one_reason_are_one_run() -> None:
    found = [Bad(np.array([2, 3]), "a"), Bad(np.array([4]), "a"), Bad(np.array([5, 7]), "b"), Bad(np.array([8]), "c")]
    assert list(runs(found)) == [(range(2, 5), "a"), (range(5, 6), "b"), (range(7, 8), "b"), (range(8, 9), "c")]
    assert list(runs([])) == []


# -- files that open ------------------------------------------------------------------------------------------------


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_files_that_do_not_open_are_left_out(tmp_path: Path, format: str) -> None:
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
        with what_opens(what) as found:
            assert [s.x for s in found.dataset] == [0, 1, 4, 5]
            ((file, why),) = found.refused
            assert file == bad.name and str(tmp_path) not in why and why.startswith("expected")
            assert found.rows(range(3)) is None
    assert state(tmp_path / "d") == before


def test_what_opens_is_opened_in_its_place(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}], format="jsonl")
    with what_opens(tmp_path / "d") as found:
        assert found.dataset.shards([0])[0].startswith(str(tmp_path)) and not found.refused
        assert found.rows(range(1)) == range(1)


def test_nothing_opens(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with what_opens(tmp_path) as found:
        assert len(found.dataset) == 0 and [file for file, _ in found.refused] == ["a.parquet"]


def test_nothing_there_or_wrong_options_are_errors(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}], format="jsonl")
    (tmp_path / "e").mkdir()
    with pytest.raises(FileNotFoundError), what_opens(tmp_path / "nowhere"):
        pass
    with pytest.raises(UnknownFormatError), what_opens(tmp_path / "e"):
        pass
    with pytest.raises(ArgumentError, match="got 'colour'"), what_opens(tmp_path / "d", colour=1):
        pass


def test_a_tar_that_was_cut_off_gives_its_whole_samples(tmp_path: Path) -> None:
    """At every length: all samples before the one that is cut, and never a part of that."""
    ds = sx.write(tmp_path / "d", [{"a": f"a{k}", "b": f"b{k}"} for k in range(4)], {"a": str, "b": str}, format="tar")
    (path,) = ds.rows.shard_names()  # type: ignore[attr-defined]
    size = os.path.getsize(path)
    for length in sorted({*range(0, size, 256), *range(1, size, 1111)}, reverse=True):
        os.truncate(path, length)
        with what_opens(tmp_path / "d") as found:
            samples = list(found.dataset)
        assert [dict(s) for s in samples] == [dict(s) for s in expected(len(samples))]
        whole = length // (4 * 512)  # a sample is two headers and two blocks
        assert len(samples) >= min(4, whole) - 1


def expected(count: int) -> list[dict[str, str]]:
    return [{"__key__": f"{k:09d}", "a.txt": f"a{k}", "b.txt": f"b{k}"} for k in range(count)]
