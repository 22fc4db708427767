"""Streams of tokens: plain files of nanoGPT, and files with the header of llm.c and modded-nanogpt."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import (
    ArgumentError,
    FormatError,
    RowError,
    SchemaError,
    StaleIndexError,
    TruncatedShardError,
    UnknownFormatError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")

FREE = {"tokens": sx.Array("uint16", (None,))}
MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def with_header(path: Path, tokens: Any, *, magic: int = 0, version: int = 0, count: int | None = None) -> Path:
    """Write a file as llm.c does."""
    tokens = np.asarray(tokens)
    known = MAGIC[tokens.dtype.name]
    head = np.zeros(256, "<i4")
    head[:3] = magic or known[0], version or known[1], len(tokens) if count is None else count
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.tobytes() + tokens.tobytes())
    return path


def every(ds: Any) -> list[list[int]]:
    """Return all samples, checked to be the same by `read` and by `sample`, and to have the stored lengths."""
    (name,) = ds.features
    samples = [array.tolist() for array in ds.rows.read(np.arange(len(ds)))[name]]
    assert samples == [one[name].tolist() for one in ds]
    assert [len(sample) for sample in samples] == ds.lengths(name).tolist()
    return samples


# -- reading --------------------------------------------------------------------------------------------------


def test_plain_files_are_read(tmp_path: Path) -> None:
    for name, count in (("train.bin", 10), ("val.bin", 5)):
        np.arange(count, dtype=np.uint16).tofile(tmp_path / name)
    with pytest.raises(UnknownFormatError):
        sx.open(tmp_path)
    whole = sx.open(tmp_path, format="nanogpt")
    assert every(whole) == [list(range(10)), list(range(5))]
    assert str(whole.features) == "tokens uint16[?]"
    assert not whole[0].tokens.flags.writeable
    windows = sx.open(tmp_path, format="nanogpt", window=4)
    assert every(windows) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert every(windows) == every(sx.open(tmp_path, format="tokens", dtype="uint16", window=4))
    assert windows.rows.read(np.array([2, 0]))["tokens"].shape == (2, 4)
    assert every(sx.open(tmp_path / "val.bin", format="nanogpt", dtype="uint8", field="x"))[0][:3] == [0, 0, 1]
    assert every(pickle.loads(pickle.dumps(windows))) == every(windows)
    assert [one.tokens.tolist() for one in whole.windows(4)][-1] == [8, 9, 0, 1]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_files_with_a_header_are_recognised(tmp_path: Path, dtype: str) -> None:
    for number, count in enumerate((7, 0, 3)):
        with_header(tmp_path / f"fineweb_train_{number:06d}.bin", np.arange(count, dtype=dtype))
    (tmp_path / "README.md").write_text("about")
    ds = sx.open(tmp_path)
    assert every(ds) == [list(range(7)), [], [0, 1, 2]]
    assert str(ds.features) == f"tokens {dtype}[?]"
    assert every(sx.open(tmp_path, window=3)) == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert every(sx.open(tmp_path / "fineweb_train_000002.bin", schema={"ids": sx.Array(dtype, (3,))})) == [[0, 1, 2]]
    batch = next(iter(sx.Loader(sx.open(tmp_path, window=2), batch_size=4)))
    assert batch["tokens"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]
    for options in ({"dtype": "int8"}, {"schema": {"x": sx.Array("int64", (None,))}}):
        with pytest.raises(SchemaError, match=f"expected (one array of )?{dtype}, .*got"):
            sx.open(tmp_path, **options)
    with pytest.raises(FormatError, match=r'expected tokens and nothing else, got a header .*format="nanogpt"'):
        sx.open(tmp_path, format="tokens", dtype=dtype, window=2)
    with pytest.raises(ArgumentError, match="expected a window of at least 1, got 0"):
        sx.open(tmp_path, window=0)
    for row in (-1, 3):
        with pytest.raises(RowError):
            ds.rows.sample(row)
        with pytest.raises(RowError):
            ds.rows.read(np.array([0, row]))
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(UnknownFormatError, match=r"3 \.bin, 1 \.jsonl"):
        sx.open(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 2}, r"expected version 1 of files with the magic number 20240520, got 2"),
        ({"count": 9}, r"expected 1042 bytes for 9 tokens, as its header says, got 1034"),
        ({"count": 4}, r"expected 1032 bytes for 4 tokens, as its header says, got 1034"),
        ({"count": -1}, r"expected 1022 bytes for -1 tokens, as its header says, got 1034"),
        ({"magic": 20240522}, r"expected tokens, got multiple-choice examples, as their magic number 20240522 says"),
    ],
)
def test_a_wrong_header_raises(tmp_path: Path, options: dict[str, int], message: str) -> None:
    path = with_header(tmp_path / "a.bin", np.arange(5, dtype="u2"), **options)
    with pytest.raises(FormatError, match=rf"a\.bin: {message}"):
        sx.open(path)


def test_files_that_do_not_belong_together_raise(tmp_path: Path) -> None:
    with_header(tmp_path / "a.bin", np.arange(5, dtype="u2"))
    with_header(tmp_path / "b.bin", np.arange(5, dtype="u4"))
    with pytest.raises(SchemaError, match=r"b\.bin: expected uint16, as in .*a\.bin, got uint32"):
        sx.open(tmp_path)
    np.arange(5, dtype="u2").tofile(tmp_path / "b.bin")
    with pytest.raises(FormatError, match=r"b\.bin: expected a header as in .*a\.bin, got none"):
        sx.open(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.csv").write_text("")
    with pytest.raises(UnknownFormatError, match=r"expected files that end in \.bin, got 1 others"):
        sx.open(tmp_path / "other", format="nanogpt")


def test_files_that_were_cut_off_raise(tmp_path: Path) -> None:
    path = with_header(tmp_path / "a.bin", np.arange(5, dtype="u2"))
    ds = sx.open(path)
    for size in (1033, 1024, 100):
        os.truncate(path, size)
        with pytest.raises(TruncatedShardError, match=f"expected 1034 bytes for 5 tokens, .*got {size}"):
            sx.open(path)
    with pytest.raises(TruncatedShardError, match="expected 1034 bytes as when it was indexed, got 100"):
        ds[0]
    with pytest.raises((StaleIndexError, TruncatedShardError)):
        pickle.loads(pickle.dumps(ds))
    (tmp_path / "b.bin").write_bytes(b"123")
    with pytest.raises(
        TruncatedShardError, match=r"b\.bin: expected a multiple of 2 bytes for numbers of uint16, got 3"
    ):
        sx.open(tmp_path / "b.bin", format="nanogpt")


# -- writing --------------------------------------------------------------------------------------------------


def test_a_plain_stream_is_written(tmp_path: Path) -> None:
    arrays = [[1, 2, 3], [], [4], [5, 6]]
    made = sx.write(tmp_path / "d", [{"tokens": one} for one in arrays], FREE, format="nanogpt")
    assert os.listdir(tmp_path / "d") == ["part-00000.bin"]
    assert np.memmap(tmp_path / "d/part-00000.bin", np.uint16, "r").tolist() == [1, 2, 3, 4, 5, 6]
    assert every(made) == [[1, 2, 3, 4, 5, 6]]
    sx.write(tmp_path / "d", [{"tokens": [7]}], FREE, format="nanogpt", mode="append")
    assert every(sx.open(tmp_path / "d", format="nanogpt")) == [[1, 2, 3, 4, 5, 6], [7]]
    assert every(sx.write(tmp_path / "none", [], FREE, format="nanogpt")) == [[]]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_headers_are_written(tmp_path: Path, dtype: str) -> None:
    arrays = [np.arange(k, dtype=dtype) for k in (3, 0, 4, 2)]
    schema: Any = {"ids": sx.Array(dtype, (None,))}
    options: Any = {"format": "nanogpt", "header": True, "prefix": "train"}
    sx.write(tmp_path / "d", [{"ids": one} for one in arrays], schema, shard_size=16, **options)
    expected = {"uint16": [arrays[:3], arrays[3:]], "uint32": [arrays[:2], arrays[2:3], arrays[3:]]}[dtype]
    for number, some in enumerate(expected):
        path = with_header(tmp_path / "real.bin", np.concatenate(some))
        assert (tmp_path / f"d/train-0000{number}.bin").read_bytes() == path.read_bytes()
    assert every(sx.open(tmp_path / "d")) == [np.concatenate(some).tolist() for some in expected]
    empty = sx.write(tmp_path / "none", [], schema, **options)
    assert every(empty) == [[]]
    assert (tmp_path / "none/train-00000.bin").read_bytes() == with_header(path, np.empty(0, dtype)).read_bytes()
    sx.write(tmp_path / "d", [{"ids": [9]}], schema, mode="append", **options)
    assert every(sx.open(tmp_path / "d"))[-1] == [9]
    for other in ({"header": False}, {"dtype": "uint16" if dtype == "uint32" else "uint32"}):
        with pytest.raises(SchemaError, match="expected files with a header with the magic number"):
            sx.create(tmp_path / "d", schema, mode="append", **{**options, **other})


def test_what_a_stream_cannot_hold_is_refused(tmp_path: Path) -> None:
    schemas: Any = [{"a": sx.Array("uint16", (2,)), "b": sx.Array("uint16", (2,))}, {"a": str}, {}]
    for schema in schemas:
        with pytest.raises(SchemaError, match=r"expected (exactly one field|arrays of one dimension)"):
            sx.create(tmp_path / "d", schema, format="nanogpt")
    with pytest.raises(
        SchemaError, match=r"expected numbers of uint16, uint32, .*, got int64; convert them with dtype='uint32'"
    ):
        sx.create(tmp_path / "d", {"x": sx.Array("int64", (None,))}, format="nanogpt")
    with sx.create(tmp_path / "d", {"x": sx.Array("int64", (None,))}, format="nanogpt", dtype="uint16") as out:
        out.append(x=[1, 65535])
        for wrong in (-1, 65536):
            with pytest.raises(SchemaError, match=f"expected numbers from 0 to 65535 for uint16, got {wrong} "):
                out.append(x=[1, wrong, 2])
    assert every(sx.open(tmp_path / "d", format="nanogpt")) == [[1, 65535]]


def test_jobs_write_the_same_files(tmp_path: Path) -> None:
    arrays = [np.arange(k % 17, dtype=np.uint16) for k in range(300)]
    source = sx.write(tmp_path / "a", [{"tokens": one} for one in arrays], FREE, format="tokens")
    options: Any = {"format": "nanogpt", "header": True, "shard_size": 3000}
    sx.write(tmp_path / "b", (one for one in source), FREE, **options)
    steps: Any = {"transform": lambda sample: {"tokens": sample.tokens}, "workers": 2, "executor": "threads"}
    sx.write(tmp_path / "c", source, FREE, **options, **steps)
    names = sorted(os.listdir(tmp_path / "b"))
    assert names == sorted(os.listdir(tmp_path / "c")) and len(names) > 1
    for name in names:
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
