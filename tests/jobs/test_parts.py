"""Cutting rows into parts."""

from hypothesis import given
from hypothesis import strategies as st

from shardex.jobs import cut_rows, rows_per_part


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_parts_cover_all_rows_once(total: int, rows: int) -> None:
    parts = list(cut_rows(total, rows))
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [row for part in parts for row in range(part.begin, part.end)] == list(range(total))
    assert all(part.end - part.begin == rows for part in parts[:-1])
    assert len(parts) >= 1


@given(
    st.integers(0, 10**9),
    st.floats(0, 1e12),
    st.none() | st.integers(1, 10**9),
    st.none() | st.integers(1, 10**12),
    st.booleans(),
)
def test_a_part_has_rows(
    total: int, sample_bytes: float, shard_rows: int | None, shard_size: int | None, calls: bool
) -> None:
    rows = rows_per_part(total, sample_bytes, shard_rows=shard_rows, shard_size=shard_size, calls_function=calls)
    assert rows >= 1
    assert shard_rows is None or rows <= shard_rows


def test_large_data_has_larger_parts_not_more() -> None:
    def parts(total: int) -> int:
        return -(-total // rows_per_part(total, 1e6, shard_rows=None, shard_size=None, calls_function=False))

    assert parts(60) == 1
    assert parts(6_000) < parts(100_000) <= 257
    assert parts(10_000_000) > 1000  # a part has at most 512 MiB
