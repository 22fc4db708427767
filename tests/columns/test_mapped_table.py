"""Tables of mapped batches: loaded when first read, refused if they do not match."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardex.columns import BatchBuilder, MappedTable
from shardex.errors import FieldError, FormatError
from shardex.features import Array, Features, arrow_schema
from shardex.samples import DictSample

SCHEMA = Features.of({"n": int, "s": str, "x": Array("float32", (2,)), "t": Array("int8", (None,)), "o": str | None})


def sample(k: int) -> dict[str, Any]:
    return {
        "n": k,
        "s": f"é{k}",
        "x": np.array([k, -k], np.float32),
        "t": np.full(k % 3, k, np.int8),
        "o": None if k % 4 == 1 else str(k),
    }


class Batches:
    """Batches of three samples, and which of them were loaded."""

    def __init__(self, count: int = 5) -> None:
        builder = BatchBuilder(SCHEMA, arrow_schema(SCHEMA))
        self.batches = []
        for k in range(3 * count):
            builder.append(sample(k))
            if k % 3 == 2:
                self.batches.append(builder.finish())
        self.loaded: list[int] = []

    def load(self, number: int) -> pa.RecordBatch:
        self.loaded.append(number)
        return self.batches[number]

    def table(self, rows: int = 3) -> MappedTable:
        return MappedTable(SCHEMA, self.batches[0].schema, [rows] * len(self.batches), self.load, "batch {}".format)


def test_batches_are_loaded_once_when_first_read() -> None:
    batches = Batches()
    table = batches.table()
    assert (len(table), batches.loaded) == (15, [])
    for _ in range(2):
        assert DictSample(table.sample(4)) == sample(4)
        assert batches.loaded == [1]
    found = table.read(np.array([13, 4, 12]), list(SCHEMA)).to_samples()
    assert [DictSample(one) for one in found] == [sample(13), sample(4), sample(12)]
    assert batches.loaded == [1, 4]


def test_fields_are_chosen_and_ordered() -> None:
    table = Batches().table()
    assert list(table.sample(0, ["s", "n"]).items()) == [("s", "é0"), ("n", 0)]
    assert table.read(np.array([1]), ["s"]).names == ["s"]
    with pytest.raises(FieldError, match="expected one of the fields n, s, x, t, o, got 'z'"):
        table.sample(0, ["n", "z"])


def test_a_batch_with_a_wrong_number_of_rows_is_refused() -> None:
    with pytest.raises(FormatError, match="batch 0: expected 2 rows, got 3"):
        Batches().table(rows=2).sample(0)
    with pytest.raises(FormatError, match="batch 0: expected 2 rows, got 3"):
        Batches().table(rows=2).read(np.array([0]), ["n"])


def test_nulls_in_fields_that_are_not_optional_are_refused() -> None:
    batch = pa.record_batch({"n": pa.array([1, None])})
    table = MappedTable(Features.of({"n": int}), batch.schema, [2], lambda number: batch, "batch {}".format)
    with pytest.raises(FormatError, match="batch 0: expected a value in every row, got nulls - at field n"):
        table.sample(0)


def test_a_batch_that_failed_to_load_is_loaded_again() -> None:
    def load(number: int) -> pa.RecordBatch:
        raise FormatError(f"batch {number} is bad")

    table = MappedTable(SCHEMA, Batches().batches[0].schema, [3], load, "batch {}".format)
    for _ in range(2):
        with pytest.raises(FormatError, match="batch 0 is bad"):
            table.sample(0)
        with pytest.raises(FormatError, match="batch 0 is bad"):
            table.read(np.array([0]), ["s"])


def test_many_threads_may_open_the_same_batches() -> None:
    expected = [DictSample(sample(k)) for k in range(60)]
    for _ in range(20):
        table = Batches(20).table()

        def work(seed: int, table: MappedTable = table) -> bool:
            rows = np.random.default_rng(seed).permutation(60)
            found = table.read(rows, list(SCHEMA)).to_samples()
            return found == [expected[k] for k in rows] and DictSample(table.sample(int(rows[0]))) == expected[rows[0]]

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))


def test_a_table_without_batches() -> None:
    table = MappedTable(SCHEMA, Batches().batches[0].schema, [], lambda number: None, str)
    assert len(table) == 0
    assert len(table.read(np.array([], np.int64), list(SCHEMA))) == 0
