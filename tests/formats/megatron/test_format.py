"""Megatron-LM: files that megatron-core wrote, damaged ones, and what is written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    RowError,
    SchemaError,
    StaleIndexError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.formats import open_rows
from shardex.formats.number_rows import NumberRows
from shardex.kernel import Ragged

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "megatron"
DOCUMENTS = json.loads((FIXTURES / "expected.json").read_text())["documents"]
WHOLE = [[token for sequence in document for token in sequence] for document in DOCUMENTS]
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
FREE = {"tokens": sx.Array("uint16", (None,))}


def opened(path: Path, **options: Any) -> NumberRows:
    rows = open_rows(path, "megatron", **options)
    assert isinstance(rows, NumberRows)
    return rows


def every(rows: Any) -> list[list[Any]]:
    """Return all samples, checked to be the same by `read` and by `sample`, and to have the stored lengths."""
    (name,) = rows.features
    samples = [array.tolist() for array in rows.read(np.arange(len(rows)))[name]]
    assert samples == [rows.sample(k)[name].tolist() for k in range(len(rows))]
    assert [len(sample) for sample in samples] == rows.lengths(name).tolist()
    return samples


def index(dtype: str, lengths: list[int], borders: list[int], pointers: list[int] | None = None) -> bytes:
    """Return the bytes of an index, by the documented layout."""
    sizes = np.array(lengths, np.int64) * np.dtype(dtype).itemsize
    places = (np.cumsum(sizes) - sizes).tolist() if pointers is None else pointers
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(lengths), len(borders))
    return (
        head
        + np.array(lengths, "<i4").tobytes()
        + np.array(places, "<i8").tobytes()
        + np.array(borders, "<i8").tobytes()
    )


def put(path: Path, tokens: Any, table: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".bin").write_bytes(np.asarray(tokens).tobytes())
    path.with_suffix(".idx").write_bytes(table)
    return path.with_suffix(".idx")


# -- reading --------------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Files of megatron-core."""
    return shutil.copytree(FIXTURES, tmp_path / "real")


def test_documents_of_megatron_core_are_read(real: Path) -> None:
    for path in (real / "text_document.idx", real / "text_document.bin"):
        ds = sx.open(path)
        assert every(ds.rows) == WHOLE
        assert str(ds.features) == "tokens uint16[?]"
        assert ds.lengths("tokens").tolist() == list(map(len, WHOLE))
        column = ds.rows.read(np.array([3, 0, 3]))["tokens"]
        assert isinstance(column, Ragged)
        assert column.pad().tolist() == [WHOLE[3], [*WHOLE[0], 0, 0], WHOLE[3]]
        assert [one.tokens.tolist() for one in pickle.loads(pickle.dumps(ds))] == WHOLE
    assert ds.rows.shards(np.array([0])) == [str(real / "text_document.bin")]
    assert not (real / ".shardex").exists()


def test_sequences_of_megatron_core_are_read(real: Path) -> None:
    ds = sx.open(real / "text_document.idx", unit="sequences", field="ids")
    assert [one.ids.tolist() for one in ds] == [sequence for document in DOCUMENTS for sequence in document]
    assert every(ds.rows)[1] == [4]
    assert ds.fingerprint != sx.open(real / "text_document.idx").fingerprint
    with pytest.raises(ArgumentError, match="expected unit to be one of documents, sequences, got 'tokens'"):
        sx.open(real / "text_document.idx", unit="tokens")


def test_an_empty_dataset_and_several_files_are_read(real: Path, tmp_path: Path) -> None:
    ds = sx.open(real / "empty.idx")
    assert len(ds) == 0 and ds.lengths("tokens").tolist() == [] and every(ds.rows) == []
    for name in ("modes.bin", "modes.idx", "expected.json"):
        (real / name).unlink()
    put(real / "z.idx", np.arange(5, dtype="u2"), index("uint16", [2, 3], [0, 1, 2]))
    (real / "tokenizer.json").write_text("{}")
    assert every(sx.open(real).rows) == [*WHOLE, [0, 1], [2, 3, 4]]
    assert every(sx.open(real / "*.idx").rows) == [*WHOLE, [0, 1], [2, 3, 4]]
    put(real / "wide.idx", np.arange(2, dtype="i4"), index("int32", [2], [0, 1]))
    with pytest.raises(SchemaError, match=r"wide\.idx: expected uint16, as in .*empty\.idx, got int32"):
        sx.open(real)


def test_windows_and_batches_of_documents(real: Path) -> None:
    ds = sx.open(real / "text_document.idx")
    batch = next(iter(sx.Loader(ds, batch_size=5, ragged="pack")))
    assert batch["tokens"].values.tolist() == [token for document in WHOLE for token in document]
    assert [one.tokens.tolist() for one in ds.windows(4)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    packed = ds.pack(5, "best_fit", segments=True)
    found = sorted(token for one in packed for token in one.tokens[one.segment_ids > 0].tolist())
    assert found == sorted(token for document in WHOLE for token in document)


def test_multimodal_datasets_are_refused(real: Path) -> None:
    with pytest.raises(FormatError, match=r"modes\.idx: expected an index of tokens, got one of a multimodal dataset"):
        sx.open(real / "modes.idx")


@pytest.mark.parametrize("dtype", CODES)
def test_every_dtype_is_read_and_written(tmp_path: Path, dtype: str) -> None:
    values = np.arange(6).astype(dtype)
    ds = sx.open(put(tmp_path / "a.idx", values, index(dtype, [1, 5], [0, 1, 2])))
    assert ds.features == sx.Features({"tokens": sx.Array(dtype, (None,))})
    assert every(ds.rows) == [values[:1].tolist(), values[1:].tolist()]
    sx.write(tmp_path / "b", ds, format="megatron")
    for extension in (".bin", ".idx"):
        assert (tmp_path / f"b/part-00000{extension}").read_bytes() == (tmp_path / f"a{extension}").read_bytes()


def test_rows_out_of_range_raise(real: Path) -> None:
    rows = opened(real / "text_document.idx")
    for row in (-1, 5, 10**12):
        for read in (lambda row=row: rows.read(np.array([0, row])), lambda row=row: rows.sample(row)):
            with pytest.raises(RowError, match=f"expected a row from 0 to 4, got {row}"):
                read()


def test_recognition_leaves_other_files_alone(real: Path, tmp_path: Path) -> None:
    (real / "corpus.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UnknownFormatError, match=r"1 \.jsonl.*; choose .* format=\"megatron\""):
        sx.open(real)
    assert sx.open(real, format="jsonl")[0] == {"a": 1}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.idx").write_bytes(b"something else")
    (tmp_path / "other" / "a.bin").write_bytes(bytes(4))
    for what in (tmp_path / "other", tmp_path / "other" / "a.bin", tmp_path / "other" / "a.idx"):
        with pytest.raises(UnknownFormatError):
            sx.open(what)
    with pytest.raises(UnknownFormatError, match=r"expected files that end in \.bin and \.idx, got 1 others"):
        sx.open(real / "corpus.jsonl", format="megatron")


def test_schema_names_the_field(real: Path) -> None:
    path = real / "text_document.idx"
    assert sx.open(path, format="megatron", schema={"ids": sx.Array("uint16", (None,))})[0].ids.tolist() == WHOLE[0]
    for wrong in (sx.Array("int32", (None,)), sx.Array("uint16", (4,))):
        with pytest.raises(SchemaError, match=r"expected (one array of uint16, got|documents of 4 numbers)"):
            sx.open(path, format="megatron", schema={"ids": wrong})


# -- damage ---------------------------------------------------------------------------------------------------


def test_a_lost_file_raises(real: Path) -> None:
    (real / "text_document.bin").unlink()
    with pytest.raises(NotFoundError, match=r"expected it next to .*text_document\.idx.*text_document\.bin"):
        sx.open(real / "text_document.idx")
    (real / "empty.idx").unlink()
    with pytest.raises(NotFoundError, match=r"expected it next to .*empty\.bin.*empty\.idx"):
        sx.open(real / "empty.bin", format="megatron")


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"X", r"expected an index of Megatron-LM, which begins with b'MMIDIDX"),
        (9, b"\x02", "expected version 1 and a code of a dtype from 1 to 8, got version 2 and code 8"),
        (17, b"\x09", "got version 1 and code 9"),
        (17, b"\x00", "got version 1 and code 0"),
        (18, b"\x09", r"expected 190 bytes for 9 sequences and 6 document borders, got 178"),
        (18, b"\xff" * 8, r"expected \d+ bytes for 18446744073709551615 sequences"),
        (18, b"\x07", r"expected 166 bytes for 7 sequences and 6 document borders, got 178; the index is damaged"),
        (26, b"\x00", r"expected 130 bytes for 8 sequences and 0 document borders, got 178"),
        (34 + 12 * 8, b"\x01", "expected documents from sequence 0 to 8, got 1 to 8"),
        (170, b"\x07", "expected documents from sequence 0 to 8, got 0 to 7"),
    ],
)
def test_a_damaged_header_raises(real: Path, position: int, value: bytes, message: str) -> None:
    path = real / "text_document.idx"
    data = bytearray(path.read_bytes())
    data[position : position + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"text_document\.idx: .*{message}"):
        opened(path)


@pytest.mark.parametrize("size", [0, 5, 9, 20, 33, 34, 100, 177])
def test_a_truncated_index_raises(real: Path, size: int) -> None:
    os.truncate(real / "text_document.idx", size)
    with pytest.raises(FormatError, match=r"text_document\.idx: expected"):
        opened(real / "text_document.idx")


def test_truncated_tokens_raise(real: Path) -> None:
    rows = opened(real / "text_document.idx")
    os.truncate(real / "text_document.bin", 20)
    with pytest.raises(TruncatedShardError, match="expected 24 bytes as when it was indexed, got 20"):
        rows.sample(0)
    with pytest.raises(
        TruncatedShardError,
        match=r"text_document\.bin: expected 2 bytes from 22 on for sequence 7, as .*idx says, got a file of 20 bytes",
    ):
        opened(real / "text_document.idx")
    with pytest.raises((StaleIndexError, TruncatedShardError)):
        pickle.loads(pickle.dumps(rows))


@pytest.mark.parametrize(
    ("lengths", "borders", "pointers", "message"),
    [
        ([2, 2, 2], [0, 1, 2, 3], [0, 100, 8], r"a\.bin: expected 4 bytes from 100 on for sample 1, .* of 12 bytes"),
        ([2, 2, 2], [0, 1, 2, 3], [0, -4, 8], r"a\.bin: expected 4 bytes from -4 on for sample 1"),
        ([2, 1 << 30, 2], [0, 1, 2, 3], [0, 4, 8], r"a\.bin: expected 2147483648 bytes from 4 on for sample 1"),
        ([2, -1, 2], [0, 1, 2, 3], [0, 4, 8], r"a\.bin: expected -2 bytes from 4 on for sample 1"),
        ([2, 2, 2], [0, 1, 9, 3], [0, 4, 8], r"a\.idx: .*got one from sequence 1 to 9 - at sample 1; .* damaged"),
        ([2, 2, 2], [0, 2, 1, 3], [0, 4, 8], r"a\.idx: .*got one from sequence 2 to 1 - at sample 1"),
        ([2, 2, 2], [0, 1, 3], [0, 8, 4], r"a\.idx: expected the sequences of a document end to end .* - at sample 1"),
    ],
)
def test_a_pointer_outside_raises(
    tmp_path: Path, lengths: list[int], borders: list[int], pointers: list[int], message: str
) -> None:
    rows = opened(put(tmp_path / "a.idx", np.arange(6, dtype="u2"), index("uint16", lengths, borders, pointers)))
    for read in (lambda: rows.read(np.array([0, 1])), lambda: rows.sample(1)):
        with pytest.raises(FormatError, match=message):
            read()
    assert rows.sample(0)["tokens"].tolist()[:2] == [0, 1]
    if min(lengths) < 0 or (np.diff(borders) < 0).any():
        with pytest.raises(FormatError, match=r"a\.idx: expected"):
            rows.lengths("tokens")
    if len(borders) == 3:
        assert every(opened(tmp_path / "a.idx", unit="sequences")) == [[0, 1], [4, 5], [2, 3]]


# -- writing --------------------------------------------------------------------------------------------------


def test_documents_are_written(tmp_path: Path) -> None:
    made = sx.write(tmp_path / "d", [{"tokens": np.array(one, "u2")} for one in WHOLE], FREE, format="megatron")
    assert sorted(os.listdir(tmp_path / "d")) == ["part-00000.bin", "part-00000.idx"]
    lengths = list(map(len, WHOLE))
    assert (tmp_path / "d/part-00000.idx").read_bytes() == index("uint16", lengths, list(range(6)))
    assert every(made.rows) == every(sx.open(tmp_path / "d").rows) == WHOLE
    assert len(sx.write(tmp_path / "none", [], FREE, format="megatron")) == 0
    assert (tmp_path / "none/part-00000.idx").read_bytes() == (FIXTURES / "empty.idx").read_bytes()


def test_shards_appends_and_prefixes(tmp_path: Path) -> None:
    path, arrays = tmp_path / "d", [[1, 2, 3], [4], [5, 6], []]
    sx.write(path, [{"tokens": one} for one in arrays], FREE, format="megatron", shard_size=8, prefix="text")
    names = [f"text-0000{k}.{extension}" for k in range(2) for extension in ("bin", "idx")]
    assert sorted(os.listdir(path)) == names
    more: Any = {"schema": FREE, "format": "megatron", "mode": "append", "prefix": "text"}
    assert every(sx.write(path, [{"tokens": [7]}], **more).rows) == [*arrays, [7]]
    with pytest.raises(SchemaError, match=r"expected numbers of uint16, as in text-00000\.idx, got int32"):
        sx.create(path, {"tokens": sx.Array("int32", (None,))}, format="megatron", mode="append", prefix="text")
    assert sorted(os.listdir(tmp_path)) == ["d"]


def test_integers_are_converted_if_they_fit(tmp_path: Path) -> None:
    schema = {"tokens": sx.Array("uint32", (None,))}
    with pytest.raises(
        SchemaError, match=r"expected numbers of uint8, .*, got uint32; convert them with dtype='int32'"
    ):
        sx.create(tmp_path / "d", schema, format="megatron")
    with sx.create(tmp_path / "d", schema, format="megatron", dtype="int32") as out:
        out.append(tokens=[1, 2_000_000_000])
        with pytest.raises(
            SchemaError, match=r"expected numbers from -2147483648 to 2147483647 .*got 3000000000 .*sample 1"
        ):
            out.append(tokens=[5, 3_000_000_000])
        out.append(tokens=[])
    assert every(sx.open(tmp_path / "d").rows) == [[1, 2_000_000_000], []]
    with pytest.raises(SchemaError, match="expected integers to convert to dtype='int32'"):
        sx.create(tmp_path / "e", {"x": sx.Array("float32", (None,))}, format="megatron", dtype="int32")


@pytest.mark.parametrize(
    "schema",
    [{"a": sx.Array("uint16", (2,)), "b": sx.Array("uint16", (2,))}, {"a": str}, {"a": sx.Array("uint16", (2, 2))}, {}],
)
def test_other_fields_are_refused(tmp_path: Path, schema: Any) -> None:
    with pytest.raises(SchemaError, match=r"expected (exactly one field|arrays of one dimension)"):
        sx.create(tmp_path / "d", schema, format="megatron")
    assert not os.listdir(tmp_path)


def test_jobs_write_the_same_files(tmp_path: Path) -> None:
    arrays = [np.arange(k % 17, dtype=np.uint16) for k in range(300)]
    source = sx.write(tmp_path / "a", [{"tokens": one} for one in arrays], FREE)
    sx.write(tmp_path / "b", source, format="megatron")
    done: Any = {"transform": lambda sample: {"tokens": sample.tokens}, "workers": 2, "executor": "threads"}
    made = sx.write(tmp_path / "c", source, FREE, format="megatron", **done)
    assert every(made.rows) == [one.tolist() for one in arrays]
    for name in ("part-00000.bin", "part-00000.idx"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    with pytest.raises(ArgumentError, match='for the format megatron, got "append"'):
        sx.write(tmp_path / "c", source, FREE, format="megatron", mode="append", **done)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=3), max_size=8), st.integers(1, 20), st.data()
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], size: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("m")
    sequences = [sequence for document in documents for sequence in document]
    whole = [[token for sequence in document for token in sequence] for document in documents]
    borders = np.cumsum([0, *map(len, documents)]).tolist()
    tokens = np.array([token for sequence in sequences for token in sequence], "<u2")
    path = put(folder / "a.idx", tokens, index("uint16", list(map(len, sequences)), borders))
    assert every(opened(path)) == whole
    assert every(opened(path, unit="sequences")) == sequences
    samples = [{"tokens": np.array(one, np.uint16)} for one in whole]
    made = sx.write(folder / "b", samples, FREE, format="megatron", shard_size=size)
    assert every(made.rows) == whole
    chosen = data.draw(st.lists(st.integers(0, len(whole) - 1))) if whole else []
    found = made.rows.read(np.array(chosen, np.int64))["tokens"]
    assert [one.tolist() for one in found] == [whole[k] for k in chosen]
