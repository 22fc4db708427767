"""Tables decoded by group: only the requested columns, in a cache of limited size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.columns import DecodedTable
from shardex.errors import FieldError, FormatError
from shardex.features import Array, Features
from shardex.kernel import values_of

ROWS = 10
GROUP = ROWS * 8
"""Bytes of one column of one group."""
SCHEMA = Features.of({"a": int, "b": int, "raw": Array("int8", (2,))})


class Groups:
    """Groups of ten rows, and which columns of which group were decoded."""

    def __init__(self, count: int = 5, cache_bytes: int = 10**6) -> None:
        self.decoded: list[tuple[int, str]] = []
        schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("raw", pa.binary())])
        self.table = DecodedTable(SCHEMA, schema, [ROWS] * count, self.decode, "group {}".format, cache_bytes)

    def decode(self, group: int, names: list[str]) -> pa.Table:
        self.decoded += [(group, name) for name in names]
        rows = np.arange(group * ROWS, (group + 1) * ROWS)
        columns = {"a": pa.array(rows), "b": pa.array(-rows), "raw": pa.array([b"ab"] * (ROWS - 1) + [b"c"])}
        return pa.table({name: pa.chunked_array([columns[name][:3], columns[name][3:]]) for name in names})


def test_each_group_is_decoded_once() -> None:
    groups = Groups()
    rows = np.array([31, 2, 31, 39, 8])
    assert values_of(groups.table.read(rows, ["a"])["a"]) == rows.tolist()
    assert groups.decoded == [(0, "a"), (3, "a")]
    assert values_of(groups.table.read(rows, ["b", "a"])["b"]) == (-rows).tolist()
    assert groups.table.sample(30, ["a", "b"]) == {"a": 30, "b": -30}
    assert groups.decoded == [(0, "a"), (3, "a"), (0, "b"), (3, "b")]


def test_least_recently_used_groups_are_evicted() -> None:
    groups = Groups(cache_bytes=2 * GROUP)
    for group in (0, 1, 0, 2, 0, 1):
        groups.table.sample(group * ROWS, ["a"])
    assert [group for group, _ in groups.decoded] == [0, 1, 2, 1]


def test_one_group_stays_cached_even_if_too_large() -> None:
    groups = Groups(cache_bytes=1)
    for _ in range(3):
        groups.table.sample(0, ["a"])
    assert groups.decoded == [(0, "a")]


def test_reading_no_rows_gives_typed_columns() -> None:
    groups = Groups()
    empty = groups.table.read(np.array([], np.int64), ["a", "raw"])
    assert isinstance(empty["a"], np.ndarray)
    assert (len(empty), empty["a"].dtype, groups.decoded) == (0, np.int64, [])


def test_errors_name_group_and_sample() -> None:
    table = Groups().table
    with pytest.raises(FormatError, match=r"int8\[2\], got 1 bytes - at group 2, sample 29, field raw"):
        table.read(np.array([29]), ["raw"])
    with pytest.raises(FormatError, match=r"expected the bytes of int8\[2\], got 1 bytes - at group 2, sample 29"):
        table.sample(29)
    with pytest.raises(FieldError, match="got 'z'"):
        table.sample(0, ["z"])


def test_groups_with_wrong_rows_or_bytes_are_refused() -> None:
    def decode(group: int, names: list[str]) -> pa.Table:
        if group == 0:
            raise OSError("truncated page")
        return pa.table({"a": [1, 2]})

    schema = pa.schema([("a", pa.int64())])
    table = DecodedTable(Features.of({"a": int}), schema, [1, 1], decode, "group {}".format)
    with pytest.raises(FormatError, match="group 0: expected rows, got bytes that Arrow refuses: truncated page"):
        table.sample(0)
    with pytest.raises(FormatError, match="group 1: expected 1 rows, got 2"):
        table.sample(1)


def test_reads_by_many_threads() -> None:
    groups = Groups(count=20, cache_bytes=3 * GROUP)

    def work(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 200, 50)
        return bool(values_of(groups.table.read(rows, ["a", "b"])["b"]) == (-rows).tolist())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))


def test_arrays_of_a_read_are_writable_and_not_shared(tmp_path: Path) -> None:
    """Parquet and compressed Arrow: one group needs no concatenation, which would copy."""
    feature = sx.Array("float32", (2,))
    schema = {"n": "int32", "v": feature, "maybe": sx.Optional(feature), "x": sx.Optional(sx.Value("int8"))}
    sample = {"n": 1, "v": [1, 2], "maybe": [3, 4], "x": 5}
    ds = sx.write(tmp_path / "d", [sample] * 3, schema, format="parquet")
    for _ in range(2):
        batch = next(ds.ordered(2))
        assert (batch.n[0], batch.v[0, 0], batch.maybe[0, 0], batch.x[0]) == (1, 1, 3, 5)
        for name in schema:
            batch[name][:] = 0
