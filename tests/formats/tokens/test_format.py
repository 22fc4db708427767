"""Raw numbers: windows, samples of stored lengths, and the index of data-forager."""

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal as assert_equal
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import (
    ArgumentError,
    ClosedError,
    FieldError,
    FormatError,
    NotFoundError,
    RowError,
    SchemaError,
    StaleIndexError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Array, Features
from shardex.files import Scan, find
from shardex.formats import FORMATS, open_rows
from shardex.formats import tokens as numbers
from shardex.formats.number_rows import NumberRows, NumberWindowRows
from shardex.formats.sample_writer import ShardSeries
from shardex.formats.tokens import LengthScanner, TokenWriter
from shardex.kernel import Ragged
from shardex.rows import AbstractRows, Rows
from shardex.sources import Source

FREE = Features.of({"tokens": Array("uint16", (None,))})


def put(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes())
    return path


def windows(path: Path | list[Path], **options: Any) -> NumberWindowRows:
    rows = open_rows(path, "tokens", **options)
    assert isinstance(rows, NumberWindowRows)
    return rows


def stored(path: Path | list[Path], **options: Any) -> NumberRows:
    rows = open_rows(path, "tokens", **options)
    assert isinstance(rows, NumberRows)
    return rows


def every(rows: Any) -> list[list[Any]]:
    """Return all samples, checked to be the same by `read` and by `sample`."""
    (name,) = rows.features
    samples = [array.tolist() for array in rows.read(np.arange(len(rows)))[name]]
    assert samples == [rows.sample(k)[name].tolist() for k in range(len(rows))]
    return samples


def write(path: Path, features: Any, arrays: Sequence[Any], **options: Any) -> Path:
    described = Features.of(features)
    (name,) = described
    writer = TokenWriter(str(path), described, **options)
    for array in arrays:
        writer.append({name: array})
    writer.close()
    return path


# -- windows --------------------------------------------------------------------------------------------------


def test_windows_of_raw_files(tmp_path: Path) -> None:
    for name, count in (("a.bin", 10), ("b.bin", 3), ("c.bin", 0), ("d.bin", 9)):
        put(tmp_path / name, np.arange(count, dtype=np.uint16) + 100 * ord(name[0]))
    rows = windows(tmp_path, dtype="uint16", window=4)
    assert isinstance(rows, Rows)
    assert isinstance(rows, AbstractRows)
    assert len(rows) == 2 + 0 + 0 + 2
    assert every(rows)[2] == [10000, 10001, 10002, 10003]
    assert rows.features == Features({"tokens": Array("uint16", (4,))})
    batch = cast(Any, rows.read(np.array([3, 0, 3]))["tokens"])
    assert batch.dtype == np.uint16
    assert batch[:, 0].tolist() == [10004, 9700, 10004]
    batch[0, 0] = 1
    assert not rows.sample(0)["tokens"].flags.writeable
    assert len(rows.read(np.empty(0, np.int64))["tokens"]) == 0
    assert rows.read(np.array([1]), []).names == []
    assert rows.sample(1, []) == {}
    assert not (tmp_path / ".shardex").exists()
    assert rows.shard_names() == [str(tmp_path / f"{name}.bin") for name in "abcd"]


@pytest.mark.parametrize("row", [-1, 2, 10**12])
def test_rows_out_of_range_raise(tmp_path: Path, row: int) -> None:
    rows = windows(put(tmp_path / "a.bin", np.arange(9, dtype=np.int32)), dtype="int32", window=4)
    for read in (lambda: rows.read(np.array([0, row])), lambda: rows.sample(row)):
        with pytest.raises(RowError):
            read()


def test_field_name_and_schema(tmp_path: Path) -> None:
    path = put(tmp_path / "a.bin", np.arange(8, dtype=np.float32))
    assert every(windows(path, dtype="f4", window=8, field="x"))[0][:2] == [0.0, 1.0]
    rows = windows(path, schema=Features.of({"y": Array("float32", (2,))}))
    assert rows.features == Features({"y": Array("float32", (2,))})
    assert len(rows) == 4
    with pytest.raises(FieldError, match="expected one of the fields y, got 'x'"):
        rows.read(np.array([0]), ["x"])
    for schema in ({"y": str}, {"y": Array("int8", (1, 2))}, {"a": Array("int8", (1,)), "b": Array("int8", (2,))}):
        with pytest.raises(SchemaError, match="expected arrays of one dimension, all of one length, got"):
            open_rows(path, "tokens", schema=Features.of(schema))


def test_extension_gives_the_dtype(tmp_path: Path) -> None:
    put(tmp_path / "a.u16", np.arange(4, dtype=np.uint16))
    assert every(windows(tmp_path / "a.u16", window=2)) == [[0, 1], [2, 3]]
    with pytest.raises(SchemaError, match=r"expected uint16, as their extension says, got dtype='int8'"):
        windows(tmp_path / "a.u16", window=2, dtype="int8")


def test_missing_dtype_or_window_raises(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tokens", np.arange(4, dtype=np.uint16))
    assert FORMATS["tokens"].match(find(tmp_path))
    with pytest.raises(ArgumentError, match=r'expected a dtype, .*; open with dtype="uint16"'):
        open_rows(tmp_path, "tokens")
    with pytest.raises(
        ArgumentError, match=r"expected the lengths of samples, got neither tokens.json nor a\.lengths.*window="
    ):
        open_rows(tmp_path, "tokens", dtype="uint16")
    for dtype in ("str", "U4", "object", "datetime64[s]", ">u2", "nonsense", "V8"):
        with pytest.raises(SchemaError, match=r"expected a .*dtype of numbers such as uint16, got"):
            open_rows(path, "tokens", dtype=dtype, window=2)
    for window in (0, -1):
        with pytest.raises(ArgumentError, match="expected a window of at least 1, got"):
            open_rows(path, "tokens", dtype="uint16", window=window)
    with pytest.raises(UnknownFormatError, match=r"expected files that end in \.bin, .*, got 1 others"):
        open_rows(put(tmp_path / "other" / "a.csv", b"").parent, "tokens", dtype="uint16", window=1)


def test_file_cut_inside_a_number_raises(tmp_path: Path) -> None:
    put(tmp_path / "a.bin", b"12345")
    with pytest.raises(
        TruncatedShardError, match=r"a\.bin: expected a multiple of 4 bytes for numbers of int32, got 5 bytes"
    ):
        windows(tmp_path, dtype="int32", window=1)


def test_shrunk_file_raises(tmp_path: Path) -> None:
    path = put(tmp_path / "a.bin", np.arange(8, dtype=np.uint8))
    rows = windows(tmp_path, dtype="uint8", window=4)
    os.truncate(path, 4)
    for read in (lambda: rows.read(np.array([0])), lambda: rows.sample(0)):
        with pytest.raises(TruncatedShardError, match=r"a\.bin: expected 8 bytes as when it was indexed, got 4"):
            read()
    with pytest.raises(StaleIndexError):
        pickle.loads(pickle.dumps(rows))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["tokens.json", "part-00000.bin"], True),
        (["a.tokens"], True),
        (["a.bin"], False),
        (["a.u16"], False),
        (["sub/tokens.json"], False),
        ([], False),
    ],
)
def test_recognise(tmp_path: Path, names: list[str], expected: bool) -> None:
    for name in names:
        put(tmp_path / name, b"")
    assert bool(FORMATS["tokens"].match(find(tmp_path))) is expected


# -- writing --------------------------------------------------------------------------------------------------


def test_windows_are_written(tmp_path: Path) -> None:
    arrays = [np.arange(k, k + 3, dtype=np.uint16) for k in range(5)]
    path = write(tmp_path / "d", {"ids": Array("uint16", (3,))}, arrays, shard_size=13)
    assert sorted(os.listdir(path)) == ["part-00000.bin", "part-00001.bin", "part-00002.bin", "tokens.json"]
    assert json.loads((path / "tokens.json").read_bytes()) == {
        "version": 1,
        "dtype": "uint16",
        "window": 3,
        "field": "ids",
    }
    assert (path / "part-00000.bin").read_bytes() == np.concatenate(arrays[:2]).tobytes()
    rows = windows(path)
    assert every(rows) == [array.tolist() for array in arrays]
    assert rows.features == Features({"ids": Array("uint16", (3,))})
    assert every(windows(path, window=2))[0] == [0, 1]
    assert pickle.loads(pickle.dumps(rows)).sample(4)["ids"].tolist() == [4, 5, 6]
    with pytest.raises(SchemaError, match=r"expected uint16, as tokens\.json says, got dtype='int32'"):
        windows(path, dtype="int32")


def test_variable_lengths_are_written(tmp_path: Path) -> None:
    arrays = [list(range(k)) for k in (3, 0, 5, 1, 2)]
    path = write(tmp_path / "d", FREE, arrays, shard_size=16)
    assert sorted(os.listdir(path)) == [
        "part-00000.bin", "part-00000.lengths.bin", "part-00001.bin", "part-00001.lengths.bin", "tokens.json"
    ]  # fmt: skip
    assert json.loads((path / "tokens.json").read_bytes()) == {
        "version": 1, "dtype": "uint16", "window": None, "field": "tokens", "lengths": "uint32"
    }  # fmt: skip
    assert np.fromfile(path / "part-00000.lengths.bin", "<u4").tolist() == [3, 0, 5]
    rows = stored(path)
    assert every(rows) == arrays
    assert rows.features == FREE
    column = rows.read(np.array([2, 0]))["tokens"]
    assert isinstance(column, Ragged)
    assert column.pad().tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]
    assert (path / ".shardex").exists()
    assert every(windows(path, window=4)) == [[0, 1, 2, 0], [1, 2, 3, 4]]
    with pytest.raises(RowError):
        rows.sample(5)
    assert rows.read(np.array([0]), []).names == []


def test_window_option_with_a_variable_length_schema(tmp_path: Path) -> None:
    path = write(tmp_path / "d", FREE, [[1, 2]], window=2)
    assert every(windows(path)) == [[1, 2]]
    with pytest.raises(SchemaError, match=r"expected uint16\[2\], got int64\[1\] - at sample 0, field tokens"):
        write(tmp_path / "e", FREE, [[1]], window=2)


def test_lengths_without_tokens_json_are_read(tmp_path: Path) -> None:
    put(tmp_path / "a.bin", np.arange(6, dtype=np.int8))
    put(tmp_path / "a.lengths.bin", np.array([4, 2], "<u4"))
    assert every(stored(tmp_path, dtype="int8")) == [[0, 1, 2, 3], [4, 5]]
    assert every(stored(tmp_path / "a.bin", dtype="int8")) == [[0, 1, 2, 3], [4, 5]]


def test_writing_no_samples(tmp_path: Path) -> None:
    fixed = windows(write(tmp_path / "fixed", {"t": Array("int32", (4,))}, []))
    free = stored(write(tmp_path / "free", FREE, []))
    for rows in (fixed, free):
        assert len(rows) == 0
        assert len(rows.read(np.empty(0, np.int64))) == 0
    assert FORMATS["tokens"].match(find(tmp_path / "fixed"))


def test_append_adds_shards(tmp_path: Path) -> None:
    path = write(tmp_path / "d", FREE, [[1], [2, 2]])
    assert every(stored(path)) == [[1], [2, 2]]
    write(path, FREE, [[3]], mode="append")
    write(path, FREE, [], mode="append")
    assert every(stored(path)) == [[1], [2, 2], [3]]
    assert (path / "part-00001.lengths.bin").exists()
    with pytest.raises(SchemaError, match=r"expected samples as tokens\.json says .*got a schema of"):
        write(path, {"tokens": Array("uint16", (2,))}, [], mode="append")
    put(tmp_path / "other" / "a.bin", b"")
    with pytest.raises(SchemaError, match=r"expected a dataset with tokens\.json to append to"):
        write(tmp_path / "other", FREE, [], mode="append")
    write(path, {"x": Array("float32", (1,))}, [[0.5]], mode="overwrite")
    assert every(windows(path)) == [[0.5]]
    assert sorted(os.listdir(tmp_path)) == ["d", "other"]


@pytest.mark.parametrize(
    "schema",
    [
        {"a": Array("uint16", (2,)), "b": Array("uint16", (3,))},
        {"a": Array("uint16", (2, 2))},
        {"a": Array("uint16")},
        {"a": Array()},
        {"a": int},
        {},
    ],
)
def test_schemas_of_other_than_arrays_raise(tmp_path: Path, schema: Any) -> None:
    with pytest.raises(SchemaError, match="expected arrays of one dimension, all of one length, got"):
        TokenWriter(str(tmp_path / "d"), Features.of(schema))
    assert not os.listdir(tmp_path)


def test_wrong_windows_and_dtypes_raise(tmp_path: Path) -> None:
    for schema, window in (((3,), 4), ((3,), 0), ((None,), -1)):
        with pytest.raises(ArgumentError, match="expected a window of at least 1 that fits"):
            TokenWriter(str(tmp_path / "d"), Features.of({"a": Array("uint16", schema)}), window=window)
    with pytest.raises(SchemaError, match="expected windows of at least one number"):
        TokenWriter(str(tmp_path / "d"), Features.of({"a": Array("uint16", (0,))}))
    with pytest.raises(SchemaError, match="expected a little-endian dtype of numbers"):
        TokenWriter(str(tmp_path / "d"), Features.of({"a": Array("datetime64[s]", (1,))}))


def test_refused_sample_is_not_written(tmp_path: Path) -> None:
    writer = TokenWriter(str(tmp_path / "d"), FREE)
    writer.append({"tokens": np.array([1], np.uint16)})
    for bad, message in (
        ([70_000], r"expected uint16\[\?\], got list"),
        (np.array([-1], np.int64), r"got int64\[1\]"),
        ([[1]], "got"),
    ):
        with pytest.raises(SchemaError, match=f"{message}.* - at sample 1, field tokens"):
            writer.append({"tokens": bad})
    with pytest.raises(SchemaError, match="expected the fields tokens, got 'more' too"):
        writer.append({"tokens": [1], "more": 1})
    writer.append({"tokens": [2]})
    assert not (tmp_path / "d").exists()
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.append({"tokens": [3]})
    assert every(stored(tmp_path / "d")) == [[1], [2]]


def test_caller_may_reuse_the_array(tmp_path: Path) -> None:
    writer = TokenWriter(str(tmp_path / "d"), FREE)
    array = np.zeros(2, np.uint16)
    for k in range(3):
        array[:] = k
        writer.append({"tokens": array})
    writer.abort()
    writer.abort()
    assert not os.listdir(tmp_path)
    writer = TokenWriter(str(tmp_path / "d"), FREE)
    for k in range(3):
        array[:] = k
        writer.append({"tokens": array})
    writer.close()
    assert every(stored(tmp_path / "d")) == [[0, 0], [1, 1], [2, 2]]


def test_samples_beyond_uint32_widen_the_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_NARROW", 4)
    monkeypatch.setitem(ShardSeries.__init__.__kwdefaults__ or {}, "buffer", 6)
    arrays = [[1], [1, 2], [1, 2, 3], [7] * 5, [8]]
    path = write(tmp_path / "d", FREE, arrays, shard_size=8)
    assert json.loads((path / "tokens.json").read_bytes())["lengths"] == "uint64"
    assert every(stored(path)) == arrays
    path = write(tmp_path / "e", FREE, [[1]])
    with pytest.raises(SchemaError, match=r"expected samples of at most 4 numbers, as tokens\.json"):
        write(path, FREE, [[1] * 5], mode="append")


# -- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"", b"{", b"[]", b'{"version": 1}', b'{"version": 3, "dtype": "uint16", "window": 1, "field": "t"}',
        b'{"version": 1, "dtype": "str", "window": 1, "field": "t"}',
        *(b'{"version": 1, "dtype": "u2", "window": %s, "field": "t"}' % window for window in (
            b"-1", b"0", b"1.5", b'"8"', b"true", b"[8]", b"NaN", b"1152921504606846976", b"1" * 40)),
        b'{"version": 1, "dtype": "(100000,100000)u2", "window": 1, "field": "t"}',
        b'{"version": 1, "dtype": "u2", "window": 1, "field": ""}',
        b'{"version": 2, "dtype": "u2", "window": 1, "field": "t", "arrays": {"t": "uint8"}}',
        b'{"version": 1, "dtype": "u2", "window": null, "field": "t", "lengths": "float"}', b"\xff",
    ],
)  # fmt: skip
def test_invalid_tokens_json_raises(tmp_path: Path, head: bytes) -> None:
    put(tmp_path / "tokens.json", head)
    with pytest.raises(FormatError, match=r"tokens\.json: expected"):
        open_rows(tmp_path, "tokens")


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([3, 4], "<u4"), r"part-00000\.bin: expected 14 bytes as its lengths say, got 6"),
        (np.array([3, 3 << 29], "<u4"), r"part-00000\.bin: expected 3221225478 bytes as its lengths say, got 6"),
        (np.array([1], "<u4"), r"part-00000\.bin: expected 2 bytes as its lengths say, got 6"),
        (b"12345", r"part-00000\.lengths\.bin: expected lengths of 4 bytes, got 5 bytes"),
        (b"", r"part-00000\.bin: expected 0 bytes as its lengths say, got 6"),
    ],
)
def test_lengths_that_do_not_match_the_file_raise(tmp_path: Path, lengths: Any, message: str) -> None:
    path = write(tmp_path / "d", FREE, [[1, 2, 3]])
    put(path / "part-00000.lengths.bin", lengths)
    with pytest.raises(TruncatedShardError, match=message):
        open_rows(path, "tokens")


def test_missing_lengths_raise(tmp_path: Path) -> None:
    path = write(tmp_path / "d", FREE, [[1, 2, 3]])
    (path / "part-00000.lengths.bin").unlink()
    with pytest.raises(ArgumentError, match=r"expected the lengths of samples.*part-00000\.lengths\.bin"):
        open_rows(path, "tokens")


def test_only_a_changed_file_is_indexed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    scan = LengthScanner.scan

    def watched(self: LengthScanner, source: Source, path: str) -> Scan:
        scanned.append(path)
        return scan(self, source, path)

    monkeypatch.setattr(LengthScanner, "scan", watched)
    path = write(tmp_path / "d", FREE, [[1], [2]], shard_size=2)
    for _ in range(2):
        assert len(stored(path)) == 2
    assert sorted(scanned) == ["part-00000.bin", "part-00001.bin"]
    put(path / "part-00001.bin", np.array([5, 6], np.uint16))
    put(path / "part-00001.lengths.bin", np.array([1, 1], "<u4"))
    assert every(stored(path)) == [[1], [5], [6]]
    assert scanned[2:] == ["part-00001.bin"]
    os.truncate(path / "part-00001.bin", 2)
    with pytest.raises(
        TruncatedShardError, match=r"part-00001\.bin: expected at least 4 bytes as when it was indexed, got 2"
    ):
        stored(path)
    (path / "part-00001.bin").unlink()
    with pytest.raises(StaleIndexError, match=r"part-00001\.bin: expected this file with 2 samples, it is gone"):
        stored(path)
    assert every(stored(path, rebuild=True)) == [[1]]


# -- round trips ----------------------------------------------------------------------------------------------

dtypes = st.sampled_from(["uint8", "uint16", "int32", "int64", "float32", "float64", "bool", "complex64"])


@settings(max_examples=25, deadline=None)
@given(dtypes, st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 60))
def test_round_trip_of_variable_lengths(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, raw: list[bytes], shard_size: int
) -> None:
    kind = np.dtype(dtype)
    arrays = [
        np.frombuffer(b[: len(b) // kind.itemsize * kind.itemsize], "u1" if dtype == "bool" else kind) for b in raw
    ]
    arrays = [(array % 2).astype(bool) if dtype == "bool" else array for array in arrays]
    path = write(tmp_path_factory.mktemp("r") / "d", {"t": Array(dtype, (None,))}, arrays, shard_size=shard_size)
    rows = stored(path)
    found = rows.read(np.arange(len(arrays)))["t"]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in arrays]
    assert [rows.sample(k)["t"].tobytes() for k in range(len(rows))] == [a.tobytes() for a in arrays]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 20), st.integers(1, 60), st.data())
def test_round_trip_of_windows(
    tmp_path_factory: pytest.TempPathFactory, window: int, count: int, shard_size: int, data: st.DataObject
) -> None:
    arrays = np.arange(count * window, dtype=np.int16).reshape(count, window)
    path = write(
        tmp_path_factory.mktemp("r") / "d", {"t": Array("int16", (window,))}, list(arrays), shard_size=shard_size
    )
    rows = windows(path)
    assert len(rows) == count
    chosen = data.draw(st.lists(st.integers(0, count - 1))) if count else []
    assert np.array_equal(cast(Any, rows.read(np.array(chosen, np.int64))["t"]), arrays[chosen])


# -- several arrays, metadata --------------------------------------------------------------------------------------

BOTH = {"tokens": sx.Array("uint16", (None,)), "loss_mask": sx.Array("uint8", (None,))}


def documents(lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Documents of these lengths, each with tokens and a mask."""
    rng = np.random.default_rng(5)
    return [
        {"tokens": rng.integers(0, 60_000, n).astype(np.uint16), "loss_mask": rng.integers(0, 2, n).astype(np.uint8)}
        for n in lengths
    ]


def test_documents_of_several_arrays(tmp_path: Path) -> None:
    docs = documents([5, 0, 3, 9])
    ds = sx.write(tmp_path / "d", docs, BOTH, format="tokens", shard_size=20, metadata={"eos": 3})
    names = sorted(os.listdir(tmp_path / "d"))
    assert names[:4] == [".shardex", "part-00000.bin", "part-00000.lengths.bin", "part-00000.loss_mask.bin"]
    assert len(names) == 1 + 2 * 3 + 1
    assert json.loads((tmp_path / "d" / "tokens.json").read_bytes()) == {
        "version": 2, "dtype": "uint16", "window": None, "field": "tokens", "lengths": "uint32",
        "arrays": {"loss_mask": "uint8"}, "metadata": {"eos": 3},
    }  # fmt: skip
    assert ds.metadata == {"eos": 3}
    assert ds[1:].select("tokens").metadata == {"eos": 3}
    assert ds.features == sx.Features.of(BOTH)
    for k, doc in enumerate(docs):
        assert_equal(ds[k].tokens, doc["tokens"])
        assert_equal(ds[k].loss_mask, doc["loss_mask"])
    columns = ds.read([3, 0])
    assert_equal(columns["loss_mask"].values, np.concatenate([docs[3]["loss_mask"], docs[0]["loss_mask"]]))
    assert ds.read([2], ["loss_mask"]).names == ["loss_mask"]
    again = pickle.loads(pickle.dumps(ds))
    assert again.fingerprint == ds.fingerprint
    assert again.metadata == {"eos": 3}


def test_windows_of_several_arrays(tmp_path: Path) -> None:
    docs = documents([4, 4, 4])
    fixed = {name: sx.Array(one.dtype, (4,)) for name, one in BOTH.items()}
    ds = sx.write(tmp_path / "d", docs, fixed, format="tokens")
    assert_equal(ds.read([2, 0])["loss_mask"], np.stack([docs[2]["loss_mask"], docs[0]["loss_mask"]]))
    assert_equal(ds[1].loss_mask, docs[1]["loss_mask"])
    assert_equal(sx.open(tmp_path / "d", window=6)[1].loss_mask, np.concatenate([d["loss_mask"] for d in docs])[6:])


@pytest.mark.parametrize(("shard_size", "some", "count"), [(24, 5, 7), (24, 2, 7), (24, 1, 7), (100, 3, 4)])
def test_columns_are_written_as_samples_are(shard_size: int, some: int, count: int, tmp_path: Path) -> None:
    docs = documents([5, 0, 3, 9, 1])
    with sx.create(tmp_path / "a", BOTH, format="tokens", shard_size=shard_size) as out:
        out.extend(docs)
    with sx.create(tmp_path / "b", BOTH, format="tokens", shard_size=shard_size) as out:
        for begin in range(0, len(docs), some):
            whole = sx.Columns.from_samples(docs[begin : begin + some])
            out.extend(sx.Columns({name: sx.Ragged.from_arrays(whole[name]) for name in BOTH}, len(whole)))
            none = np.zeros(1, np.int64)
            out.extend(sx.Columns({name: sx.Ragged.from_values(whole[name][0][:0], none) for name in BOTH}, 0))
        assert out.samples == 5
    files = [path.name for path in (tmp_path / "a").iterdir() if path.is_file()]
    assert len(files) == count
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", BOTH, format="tokens") as out:
        out.append(tokens=[1, 2], loss_mask=[0, 1])
        with pytest.raises(SchemaError, match=r"arrays of one length.*tokens of 2, loss_mask of 1.* sample 1"):
            out.append(tokens=[1, 2], loss_mask=[0])
        out.append(tokens=[], loss_mask=[])
    assert [sample.tokens.tolist() for sample in sx.open(tmp_path / "d")] == [[1, 2], []]
    assert [sample.loss_mask.tolist() for sample in sx.open(tmp_path / "d")] == [[0, 1], []]


def test_an_append_keeps_arrays_and_metadata(tmp_path: Path) -> None:
    docs = documents([3, 2])
    sx.write(tmp_path / "d", docs[:1], BOTH, format="tokens", metadata={"eos": 3})
    ds = sx.write(tmp_path / "d", docs[1:], format="tokens", mode="append")
    assert (len(ds), ds.metadata) == (2, {"eos": 3})
    assert_equal(ds[1].loss_mask, docs[1]["loss_mask"])
    with pytest.raises(SchemaError, match=r"expected data with the metadata of this dataset, .*eos: 3 and 4"):
        sx.write(tmp_path / "d", docs, format="tokens", mode="append", metadata={"eos": 4})
    with pytest.raises(SchemaError, match=r"expected samples as tokens\.json says"):
        sx.write(tmp_path / "d", [], {"tokens": BOTH["tokens"]}, format="tokens", mode="append")


def test_wrong_arrays_and_metadata(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"expected names of letters.*'lengths'"):
        sx.create(tmp_path / "d", {"tokens": BOTH["tokens"], "lengths": BOTH["tokens"]}, format="tokens")
    with pytest.raises(SchemaError, match="expected arrays of one dimension, all of one length"):
        sx.create(tmp_path / "d", {**BOTH, "x": sx.Array("uint8", (3,))}, format="tokens")
    with pytest.raises(ArgumentError, match="expected metadata that JSON can hold"):
        sx.create(tmp_path / "d", BOTH, format="tokens", metadata={"x": object()})
    sx.write(tmp_path / "d", documents([3]), BOTH, format="tokens")
    (tmp_path / "d" / "part-00000.loss_mask.bin").write_bytes(b"12")
    with pytest.raises(TruncatedShardError, match=r"loss_mask\.bin: expected 3 bytes, 1 for each number of .*got 2"):
        sx.open(tmp_path / "d")
    (tmp_path / "d" / "part-00000.loss_mask.bin").unlink()
    with pytest.raises(NotFoundError, match=r"loss_mask\.bin"):
        sx.open(tmp_path / "d")


def test_another_array_changes_the_fingerprint(tmp_path: Path) -> None:
    before = sx.write(tmp_path / "d", documents([3]), BOTH, format="tokens").fingerprint
    (tmp_path / "d" / "part-00000.loss_mask.bin").write_bytes(b"123")
    assert sx.open(tmp_path / "d").fingerprint != before


def test_arrays_by_a_class(tmp_path: Path) -> None:
    @sx.packable
    class Tokens:
        tokens: Annotated[NDArray[np.uint16], sx.Array("uint16", (None,))]

    sx.write(tmp_path / "d", documents([3]), BOTH, format="tokens")
    assert len(sx.open(tmp_path / "d", Tokens)[0].tokens) == 3
    with pytest.raises(SchemaError, match=r"expected the fields tokens, loss_mask, as tokens\.json says"):
        sx.open(tmp_path / "d", schema={**BOTH, "other": sx.Array("uint8", (None,))})


def test_a_job_writes_several_arrays(tmp_path: Path) -> None:
    docs = documents(range(200))
    options: dict[str, Any] = {"format": "tokens", "metadata": {"eos": 3}, "batched": True, "batch_size": 16}
    ds = sx.write(tmp_path / "d", sx.open(docs), BOTH, transform=lambda batch: batch, workers=1, **options)
    assert (len(ds), ds.metadata) == (200, {"eos": 3})
    assert_equal(ds[150].loss_mask, docs[150]["loss_mask"])
