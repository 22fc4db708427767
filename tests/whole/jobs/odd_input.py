"""Odd input: empty data, missing values, unicode, typing errors, damaged files. Errors say what to do."""

import pathlib
from collections.abc import Callable

import numpy as np

import shardex as sx


def message(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises."""
    try:
        call()
    except sx.ShardexError as error:
        return str(error)
    raise AssertionError("expected an error")


# Nothing at all.
empty = sx.write("empty", [], {"x": int})
assert len(empty) == 0 and list(empty) == [] and list(sx.Loader(empty, 4)) == [] and empty.head() == []

# Missing values, unicode, and big numbers.
odd = [{"name": "Zürich 🚆", "n": 2**62, "v": None}, {"name": "", "n": -1, "v": 0.5}]
ds = sx.write("odd", odd)
assert [dict(sample) for sample in ds] == odd and len(ds.where("v IS NULL")) == 1
assert ds.where("name LIKE '%🚆'")[0].n == 2**62
assert sx.write("odd-jsonl", odd, format="jsonl")[0].name == "Zürich 🚆"
assert ds.sort("v")["n"].tolist() == [-1, 2**62]

# Lines with different keys.
pathlib.Path("uneven.jsonl").write_text('{"a": 1}\n{"a": 2, "b": "x"}\n')
uneven = sx.open("uneven.jsonl")
assert uneven.fields == ["a", "b"] and uneven[0].b is None and uneven["b"] == [None, "x"]

# Typing errors.
assert "did you mean 'name'?" in message(lambda: ds["nam"])
assert "did you mean 'name'?" in message(lambda: ds[0]["nam"])
assert "did you mean 'name'?" in message(lambda: ds.select("Name"))
assert "did you mean 'format'?" in message(lambda: sx.open("odd", fromat="arrow"))
assert "format='tar'" in message(lambda: sx.open("odd", "tar"))  # type: ignore[call-overload]
assert "the fields are name, n, v" in message(lambda: ds.where("nam = 'x'"))
assert "expected a position from -2 to 1" in message(lambda: ds[5])
assert "expected text, got int - at sample 1, field x" in message(
    lambda: sx.write("wrong", [{"x": "a"}, {"x": 3}], {"x": str})
)
assert 'mode="append"' in message(lambda: sx.write("odd", odd))
assert not pathlib.Path("wrong").exists()
assert "expected at least 1 for batch_size" in message(lambda: sx.Loader(ds, 0))
assert "no such file" in message(lambda: sx.open("nowhere.tar")).lower()
assert "one length" in message(lambda: sx.open({"x": [1], "y": [1, 2]}))

# A damaged file is found, and the rest is saved.
sx.write("many", [{"x": np.arange(100) + k} for k in range(1000)], shard_rows=500)
shard = sorted(pathlib.Path("many/data").glob("*.arrow"))[0]
data = bytearray(shard.read_bytes())
data[len(data) // 2] ^= 1
shard.write_bytes(data)
assert len(sx.verify("many")) == 1
saved = sx.recover("many", "saved")
assert 500 <= saved.samples == len(sx.open("saved")) < 1000 and saved.lost
