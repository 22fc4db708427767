"""Tables over files with checksums: what is opened and checked by a read, and that damage is always found."""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.columns import block_checks, mapped_table
from shardex.columns.buffer_layout import column_layouts
from shardex.columns.checked_table import CheckedTable
from shardex.columns.file_blocks import BLOCK
from shardex.errors import ChecksumError, FieldError, FormatError, RangeError, RowError
from shardex.features import Array, Features, Optional
from shardex.kernel.buffers import KERNEL
from shardex.samples import DictSample
from tests.columns.checked_files import File, file_of, table_of
from tests.strategies import features, values

SCHEMA = Features.of(
    {
        "n": int,
        "s": str,
        "x": Array("float32", (512,)),
        "t": Array("int8", (None,)),
        "o": str | None,
        "b": bool,
        "l": list[str],
    }
)
FIELDS = list(SCHEMA)


def sample(k: int) -> dict[str, Any]:
    return {
        "n": k,
        "s": f"é{k}",
        "x": np.full(512, k, np.float32),
        "t": np.full(k % 3, k % 100, np.int8),
        "o": None if k % 4 == 1 else str(k),
        "b": k % 3 == 0,
        "l": [str(k)] * (k % 3),
    }


def files_of(counts: list[list[int]], block: int = BLOCK) -> list[File]:
    """Files with batches of these numbers of samples, numbered through."""
    found, at = [], 0
    for file, batches in enumerate(counts):
        made = []
        for count in batches:
            made.append([sample(at + k) for k in range(count)])
            at += count
        found.append(file_of(SCHEMA, made, f"file {file}", block))
    return found


def check(table: CheckedTable, rows: np.ndarray[Any, Any], fields: list[str] = FIELDS) -> None:
    found = table.read(rows, fields).to_samples()
    assert [DictSample(one) for one in found] == [{name: sample(k)[name] for name in fields} for k in rows.tolist()]


@pytest.mark.parametrize("block", [BLOCK, 4 * BLOCK, 0])
def test_samples_are_read(block: int) -> None:
    files = files_of([[40, 3, 70], [1], [100, 100]], block)
    table = table_of(SCHEMA, files)
    assert len(table) == 314
    check(table, np.array([200, 3, 41, 42, 43, 113, 114, 313]))
    check(table, np.random.default_rng(0).permutation(314))
    for _ in range(8):
        for k in (0, 41, 113, 114, 313):
            assert DictSample(table.sample(k)) == sample(k)
            assert DictSample(table.sample(k, ["o", "n"])) == {"o": sample(k)["o"], "n": k}
    assert table.column("n").to_pylist() == list(range(314))


def test_only_files_of_rows_are_opened_and_only_blocks_that_are_touched_are_checked() -> None:
    files = files_of([[64, 64], [64, 64]])
    table = table_of(SCHEMA, files)
    assert [file.opened for file in files] == [0, 0]
    check(table, np.array([5]), ["x"])
    assert (files[1].opened, len(files[0].checked)) == (0, 1)
    check(table, np.array([5, 7]), ["x"])
    assert len(files[0].checked) <= 5  # in memory, neighbours in a group of four are checked together
    check(table, np.array([64 + 128]), ["n", "x"])
    assert 1 <= len(files[1].checked) <= 4
    table.column("n")
    assert len(files[0].checked) + len(files[1].checked) <= 20 < sum(len(file.table.all_blocks()) for file in files)


def test_each_block_is_checked_once() -> None:
    (file,) = files_of([[100, 100]])
    table = table_of(SCHEMA, [file])
    for seed in range(3):
        check(table, np.random.default_rng(seed).permutation(200))
    assert len(set(file.checked)) == len(file.checked)
    assert table._files.left >= 0


def test_the_last_blocks_of_cold_files_are_checked_although_nothing_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_checks._ColdReads, "announce", lambda reads, ranges: None)  # so it stays cold
    files = files_of([[400, 400], [400]])
    table = table_of(SCHEMA, files)
    for some in np.array_split(np.random.default_rng(0).permutation(1200), 100):
        check(table, some, ["x", "n", "s", "t", "o"])
    assert table._files.announces
    assert table._files.left == 0
    assert [sorted(file.checked) for file in files] == [list(range(len(file.table.all_blocks()))) for file in files]


def guarded(table: CheckedTable) -> list[bool]:
    return [segments.guard is not None for segments in table._chunks.all_segments]


def test_fields_whose_blocks_are_all_checked_need_no_guard() -> None:
    files = files_of([[300, 300], [300]])
    table = table_of(SCHEMA, files)
    some = np.random.default_rng(0).permutation(900)
    for _ in range(40):
        check(table, some, ["n", "s"])
    assert table._checked_fields == {"n", "s"} and table._files.left > 0
    assert KERNEL == "numpy" or not all(guarded(table))
    check(table, some)  # fields that were not read are still checked
    assert table._files.left == 0


def test_a_changed_byte_of_another_field_is_found_when_one_needs_no_guard() -> None:
    (file,) = files_of([[400, 400]])
    table = table_of(SCHEMA, [file])
    file.changed[int(file.table.buffers[0, -1, 0])] ^= 1  # of the last field, "l"
    for _ in range(60):
        check(table, np.arange(800), ["x", "n"])
    assert table._checked_fields == {"x", "n"}
    check(table, np.arange(400, 800), ["l"])
    for _ in range(3):
        with pytest.raises(ChecksumError):
            table.read(np.arange(400), ["l"])


def test_fields_with_unchecked_blocks_keep_their_guard() -> None:
    (file,) = files_of([[400, 400, 400]])
    table = table_of(SCHEMA, [file])
    for _ in range(200):
        check(table, np.arange(100, 110), ["x", "n"])
    assert "x" not in table._checked_fields
    begin, size = file.table.buffers[2].T
    file.changed[int(begin[size.argmax()])] ^= 1  # of the values of "x", which are the largest
    with pytest.raises(ChecksumError):
        table.read(np.arange(800, 1200), ["x"])


def test_a_changed_byte_that_nothing_reads_is_no_error() -> None:
    (file,) = files_of([[400]])
    table = table_of(SCHEMA, [file])
    begin = int(file.table.buffers[0, -1, 0])
    file.changed[begin] ^= 1  # of the last field
    check(table, np.arange(400), ["x", "n", "s", "t", "o"])
    with pytest.raises(ChecksumError):
        table.read(np.arange(400), ["l"])


def test_a_changed_byte_is_found_where_it_is_read_and_only_there() -> None:
    (intact,) = files_of([[64, 64]])
    size, found = int(intact.table.end[-1]), 0
    for at in range(40, size, size // 25):
        (file,) = files_of([[64, 64]])
        file.changed[at] ^= 1
        block = next(n for n, (begin, end) in enumerate(file.table.all_blocks()) if begin <= at < end)
        for read in (_read_rows, _read_samples, _read_views):
            table, damaged = table_of(SCHEMA, [file]), 0
            for row in range(0, 127, 3):
                file.checked.clear()
                try:
                    read(table, row)  # compares the values
                except ChecksumError:
                    damaged += 1
                    assert file.checked[-1] == block
            assert damaged < 43
            found += damaged
    assert found > 100


def _read_rows(table: CheckedTable, row: int) -> None:
    check(table, np.array([row, row + 1]))


def _read_samples(table: CheckedTable, row: int) -> None:
    assert DictSample(table.sample(row)) == sample(row)


def _read_views(table: CheckedTable, row: int) -> None:
    found = table.read_views(np.array([row]), FIELDS, FIELDS).to_samples()
    assert DictSample(found[0]) == sample(row)


def test_rows_without_values() -> None:
    optional = Features.of({"n": int | None, "x": Optional(Array("float32", (9000,))), "l": list[int] | None})
    file = file_of(optional, [[{"n": 7, "x": None, "l": [3]}], [{"n": None, "x": None, "l": None}]], block=BLOCK)
    table = table_of(optional, [None, file, None], [5, 2, 300_000])
    found = table.read(np.array([5, 0, 6, 4, 300_000]), list(optional)).to_samples()
    nothing = {"n": None, "x": None, "l": None}
    assert found == [{"n": 7, "x": None, "l": [3]}, nothing, nothing, nothing, nothing]
    for _ in range(6):
        assert table.sample(5) == {"n": 7, "x": None, "l": [3]}
        assert table.sample(300_000) == table.sample(2) == nothing
    assert table.column("n").null_count == 5 + 1 + 300_000
    table.advise(np.array([0, 5, 6, 70_000]), list(optional))


def test_rows_and_fields_that_do_not_exist() -> None:
    table = table_of(SCHEMA, files_of([[5]]))
    for rows in ([5], [-1], [0, 7]):
        with pytest.raises(RowError):
            table.read(np.array(rows), ["n"])
        with pytest.raises(RowError):
            table.read(np.array(rows), ["s"])
    with pytest.raises(FieldError):
        table.sample(0, ["nothing"])
    assert len(table_of(SCHEMA, [])) == 0


def test_announcements_check_offsets_and_nothing_else() -> None:
    (file,) = files_of([[64, 64]])
    table = table_of(SCHEMA, [file])
    table.advise(np.arange(0, 128, 3), ["x"])
    assert file.checked == []
    table.advise(np.arange(0, 128, 3), FIELDS)
    assert len(file.checked) < 12


def test_threads_open_and_check_the_same_files() -> None:
    for seed in range(6):
        table = table_of(SCHEMA, files_of([[20, 20], [30], [10, 5, 5]]))

        def work(own: int, table: CheckedTable = table) -> None:
            random = np.random.default_rng(own)
            check(table, random.permutation(90))
            for k in random.permutation(90)[:40].tolist():
                assert DictSample(table.sample(k)) == sample(k)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(seed * 4, seed * 4 + 4)))
        assert table._files.left == 0 or not table._files.flags.all()


@settings(deadline=None)
@given(
    features.flatmap(
        lambda f: st.tuples(
            st.just(f), st.lists(st.lists(values(f), min_size=1, max_size=4), min_size=1, max_size=4), st.booleans()
        )
    )
)
def test_values_of_any_type(drawn: tuple[Any, list[list[Any]], bool]) -> None:
    feature, parts, small = drawn
    schema = Features({"v": feature})
    file = file_of(schema, [[{"v": value} for value in part] for part in parts], block=BLOCK if small else 0)
    expected = [DictSample(v=value) for part in parts for value in part]
    table = table_of(schema, [file])
    rows = np.random.default_rng(0).permutation(len(expected))
    found = table.read(rows, ["v"]).to_samples()
    assert [DictSample(one) for one in found] == [expected[row] for row in rows]
    for _ in range(6):
        for row, one in enumerate(expected):
            assert DictSample(table.sample(row)) == one
    again = table_of(schema, [file])
    for row, one in enumerate(expected):
        first, later = again.sample(row)["v"], table.sample(row)["v"]
        assert type(first) is type(later) and DictSample(v=first) == one
    assert len(table.column("v")) == len(expected)


@pytest.mark.parametrize("name", ["n", "x", "t", "s", "b"])
def test_buffers_that_are_too_short_are_errors_of_the_format(name: str) -> None:
    (file,) = files_of([[8]])
    wide = {"n": 8, "x": 512 * 4, "t": 8, "s": 8, "b": 8}[name]
    layout = column_layouts(file.schema)[name]
    for part in layout.all():
        for number in part.buffer_numbers:
            size = file.table.buffers[0, number, 1]
            file.table.buffers[0, number, 1] = max(0, size - wide)
    table = table_of(SCHEMA, [file])
    for _ in range(6):  # at first by reads, then by getters
        with pytest.raises((FormatError, RangeError), match="file 0"):
            table.sample(7)
    for row in range(8):
        with suppress(FormatError, RangeError):
            assert table.sample(row)["n"] == row


def test_a_sample_whose_file_another_thread_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of a row is not known before its file is open, which may happen after it was looked for."""
    table = table_of(SCHEMA, files_of([[64, 64]]))

    def opened_meanwhile(starts: Any, row: int) -> int:
        found = bisect_right(starts, row)
        monkeypatch.setattr(mapped_table, "bisect_right", bisect_right)
        for other in range(6):
            table.sample(other)
        return found

    monkeypatch.setattr(mapped_table, "bisect_right", opened_meanwhile)
    assert table.sample(64)["n"] == 64
