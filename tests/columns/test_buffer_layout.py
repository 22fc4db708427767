"""Rows of batches with damaged bytes: which rows need them, and arrays of the other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardex.columns.buffer_layout import RowSlices, column_layouts, rows_that_need
from shardex.columns.ipc import batch_layout, message_at
from shardex.errors import ChecksumError, FormatError

ROWS = 19
COLUMNS: dict[str, Any] = {
    "numbers": pa.array(range(ROWS)),
    "some numbers": pa.array([None if k % 3 else k for k in range(ROWS)], pa.int16()),
    "bits": pa.array([k % 2 == 0 for k in range(ROWS)]),
    "some bits": pa.array([[None, True, False][k % 3] for k in range(ROWS)]),
    "text": pa.array([f"text {k}" * (k % 4) for k in range(ROWS)], pa.large_string()),
    "some text": pa.array([None if k % 4 else f"t{k}" for k in range(ROWS)]),
    "raw": pa.array([bytes([k] * 3) for k in range(ROWS)], pa.binary(3)),
    "lists": pa.array([[f"w{k}"] * (k % 3) for k in range(ROWS)], pa.large_list(pa.string())),
    "some lists": pa.array([None if k % 5 == 0 else [k, None] * (k % 3) for k in range(ROWS)], pa.list_(pa.int8())),
    "fixed": pa.array([[k, k + 1] for k in range(ROWS)], pa.list_(pa.float32(), 2)),
    "structs": pa.array([{"a": k, "b": [str(k)]} if k % 4 else None for k in range(ROWS)]),
    "maps": pa.array([[(f"k{i}", k) for i in range(k % 3)] for k in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "nothing": pa.nulls(ROWS),
}


def parts_of(name: str) -> tuple[Any, Any, bytes]:
    """Return the layout of a column, its buffers, and the body of a batch that has it."""
    batch = pa.record_batch({name: COLUMNS[name]})
    data = batch.serialize().to_pybytes()
    block = message_at(data, 0, "")
    assert block is not None
    found = batch_layout(data[: block.head], "")
    return column_layouts(batch.schema)[name], found.buffers, data[block.head : block.end]


@pytest.mark.parametrize("name", COLUMNS)
def test_slices_of_rows_are_equal(name: str) -> None:
    layout, buffers, body = parts_of(name)
    slices = RowSlices(buffers, lambda begin, end: body[begin:end])
    for begin in range(ROWS):
        for end in range(begin, ROWS + 1):
            found = slices.array(layout, begin, end)
            found.validate(full=True)
            assert found.to_pylist() == COLUMNS[name].slice(begin, end - begin).to_pylist()


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_need_the_bytes_that_are_read_for_them(name: str) -> None:
    layout, buffers, body = parts_of(name)
    for at in range(len(body)):
        found = rows_that_need((np.array([at]), np.array([at + 1])), layout, ROWS, buffers, body)
        later = np.array([at + 100]), np.array([at + 101])
        assert np.array_equal(found, rows_that_need(later, layout, ROWS, buffers + np.array([100, 0]), body, 100))

        def read(begin: int, end: int, at: int = at) -> bytes:
            if begin <= at < end:
                raise ChecksumError("damaged")
            return body[begin:end]

        for row in range(ROWS):
            try:
                RowSlices(buffers, read).array(layout, row, row + 1)
                assert not found[row]
            except ChecksumError:
                assert found[row]


def test_rows_outside_of_their_buffers_cannot_be_read() -> None:
    layout, buffers, body = parts_of("text")
    data = bytearray(body)
    begin = int(buffers[1, 0])
    data[begin + 8 * 5 : begin + 8 * 6] = (1 << 40).to_bytes(8, "little")
    nothing = np.empty(0, np.int64)
    assert np.flatnonzero(rows_that_need((nothing, nothing), layout, ROWS, buffers, data)).tolist() == [4, 5]
    slices = RowSlices(buffers, lambda begin, end: bytes(data[begin:end]))
    for row in (4, 5):
        with pytest.raises(FormatError):
            slices.array(layout, row, row + 1)
