"""TableRows: each field is read from the table that has it, in the requested order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shardex.columns import MappedTable
from shardex.errors import FieldError
from shardex.features import Features, features_of_arrow
from shardex.files import find
from shardex.formats import TableRows
from shardex.formats.table_rows import files_digest
from shardex.kernel import values_of


def table(**columns: list[object]) -> MappedTable:
    batch = pa.record_batch(columns)
    return MappedTable(features_of_arrow(batch.schema), batch.schema, [batch.num_rows], lambda k: batch, str)


def rows_of(*tables: MappedTable, order: str) -> TableRows:
    features = {name: feature for one in tables for name, feature in one.features.items()}
    return TableRows(tables, [len(tables[0])], Features({name: features[name] for name in order}), "digest", ["file"])


@pytest.mark.parametrize("order", ["abc", "cab"])
def test_fields_come_from_their_tables(order: str) -> None:
    rows = rows_of(table(a=[1, 2], b=["x", "y"]), table(c=[True, False]), order=order)
    assert (len(rows), list(rows.features), rows.fingerprint, rows.shard_names()) == (
        2,
        list(order),
        "digest",
        ["file"],
    )
    everything = {"a": 2, "b": "y", "c": False}
    assert list(rows.sample(1).items()) == [(name, everything[name]) for name in order]
    assert rows.sample(1, ["c", "b"]) == {"c": False, "b": "y"}
    found = rows.read(np.array([1, 0, 1]))
    assert found.names == list(order)
    assert values_of(found["a"]) == [2, 1, 2]
    assert rows.read(np.array([0], np.int32), ["c", "a"]).names == ["c", "a"]


def test_single_table_with_another_field_order() -> None:
    assert list(rows_of(table(a=[1], b=["x"]), order="ba").sample(0)) == ["b", "a"]
    assert list(rows_of(table(a=[1], b=["x"]), order="ab").sample(0)) == ["a", "b"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_unknown_fields_raise(order: str) -> None:
    rows = rows_of(table(a=[1], b=["x"]), order=order)
    with pytest.raises(FieldError, match="got 'z'"):
        rows.read(np.array([0]), ["z"])
    with pytest.raises(FieldError, match="got 'z'"):
        rows.sample(0, ["z"])


def test_digest_changes_with_the_files(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(b"abc")
    first = files_digest(find(tmp_path))
    assert files_digest(find(tmp_path)) == first
    os.utime(path, ns=(1, 1))
    second = files_digest(find(tmp_path))
    path.write_bytes(b"abcd")
    os.utime(path, ns=(1, 1))
    assert len({first, second, files_digest(find(tmp_path))}) == 3
