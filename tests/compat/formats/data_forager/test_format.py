"""Folders of data-forager: recognised, and lines and tokens read at the places that the index says."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.compat.formats.data_forager.format import recognise
from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    PathError,
    RowError,
    SchemaError,
    TruncatedShardError,
)
from shardex.features import Array, Features
from shardex.files import find
from shardex.formats import open_rows
from shardex.formats.jsonl import JsonLines
from shardex.formats.lines import LineRows
from shardex.formats.number_rows import NumberRows, NumberWindowRows

FIXTURES = Path(__file__).parents[3] / "fixtures" / "data-forager"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))
TOKENS = EXPECTED["tokens_fixed"]
FREE = Features.of({"tokens": Array("uint16", (None,))})


def put(path: Path, *parts: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def dump(path: Path, *samples: Any) -> Path:
    return put(path, *(json.dumps(sample).encode() + b"\n" for sample in samples))


def lines(path: Path, **options: Any) -> JsonLines:
    rows = open_rows(path, **options)
    assert isinstance(rows, JsonLines) and rows.opened.format == "data_forager"
    return rows


def raw_lines(path: Path, **options: Any) -> LineRows:
    rows = open_rows(path, **options)
    assert isinstance(rows, LineRows)
    return rows


def windows(path: Path, **options: Any) -> NumberWindowRows:
    rows = open_rows(path, **options)
    assert isinstance(rows, NumberWindowRows)
    return rows


def stored(path: Path, **options: Any) -> NumberRows:
    rows = open_rows(path, **options)
    assert isinstance(rows, NumberRows) and rows.opened.format == "data_forager"
    return rows


def every(rows: Any) -> list[dict[str, Any]]:
    """Return all samples, checked to be the same by `read` and by `sample`."""
    samples: list[dict[str, Any]] = rows.read(np.arange(len(rows))).to_samples()
    assert repr(samples) == repr([rows.sample(k) for k in range(len(rows))])
    return samples


def arrays(rows: NumberRows) -> list[list[int]]:
    """Return the arrays of all samples, checked to be the same by `read` and by `sample`."""
    samples = [array.tolist() for array in rows.read(np.arange(len(rows)))["tokens"]]
    assert samples == [rows.sample(k)["tokens"].tolist() for k in range(len(rows))]
    return samples


# -- lines ----------------------------------------------------------------------------------------------------


def test_index_of_lines_is_used(tmp_path: Path) -> None:
    expected = EXPECTED["jsonl_basic"]
    folder = shutil.copytree(FIXTURES / "jsonl_basic", tmp_path / "d")
    assert recognise(find(folder)) == 2
    rows = lines(folder)
    assert len(rows) == expected["len"]
    assert every(rows) == expected["samples"]
    which, begin, length = rows.index.locate(np.arange(len(rows)))
    assert np.stack([which, begin, length], 1).tolist() == expected["sample_locations"]
    raw = raw_lines(folder, decode="bytes")
    assert [hashlib.sha256(sample["data"]).hexdigest() for sample in every(raw)] == expected["sha256"]
    assert not (folder / ".shardex").exists()
    assert [os.path.relpath(name, folder) for name in rows.shard_names()] == expected["file_location_txt"].split()
    assert pickle.loads(pickle.dumps(rows)).sample(3) == expected["samples"][3]
    with pytest.raises(RowError):
        rows.sample(15)
    with pytest.raises(RowError):
        rows.read(np.array([15]))


def test_empty_index() -> None:
    assert recognise(find(FIXTURES / "empty")) == 2
    rows = lines(FIXTURES / "empty")
    assert len(rows) == EXPECTED["empty"]["len"] == 0
    assert len(rows.read(np.empty(0, np.int64))) == 0


def forager(folder: Path, names: list[str], triples: list[tuple[int, int, int]], extra: bytes = b"") -> Path:
    put(folder / "index" / "file_location.txt", "".join(f"{name}\n" for name in names).encode())
    put(folder / "index" / "sample_locations.bin", np.array(triples, "<u8").tobytes(), extra)
    return folder


def test_lines_are_not_trimmed(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"n": 1}\r\n\n{"n": 2}\n')
    forager(tmp_path, ["a.jsonl"], [(0, 14, 9), (0, 0, 13), (0, 13, 1)])
    rows = lines(tmp_path)
    assert rows.sample(0) == {"n": 2}
    assert rows.sample(1) == {"n": 1}
    with pytest.raises(
        FormatError, match=r"a\.jsonl, line 2, column 2 \(byte 14 of the file\): expected JSON, got b'\\n'"
    ):
        rows.read(np.array([2]))


@pytest.mark.parametrize(
    ("triple", "error", "message"),
    [
        ((1, 0, 5), FormatError, r"sample_locations\.bin: expected the number of a file below 1, got 1 - at sample 1"),
        ((2**63, 0, 5), FormatError, "expected the number of a file below 1, got -"),
        (
            (0, 0, 3 << 30),
            TruncatedShardError,
            r"a\.jsonl: expected 3221225472 bytes from 0 on for sample 1, .* of 9 bytes",
        ),
        ((0, 9, 1), TruncatedShardError, r"a\.jsonl: expected 1 bytes from 9 on for sample 1"),
        ((0, 2**63, 1), TruncatedShardError, r"a\.jsonl: expected 1 bytes from -"),
        ((0, 1, 2**64 - 1), TruncatedShardError, r"a\.jsonl: expected -1 bytes from 1 on"),
        ((0, 2**63 - 1, 2**63 - 1), TruncatedShardError, r"if the file changed, make the index again"),
    ],
)
def test_location_outside_its_file_raises(tmp_path: Path, triple: Any, error: type[Exception], message: str) -> None:
    dump(tmp_path / "a.jsonl", {"n": 1})
    rows = lines(forager(tmp_path, ["a.jsonl"], [(0, 0, 9), triple]))
    with pytest.raises(error, match=message):
        rows.read(np.array([0, 1]))
    with pytest.raises(error, match=message):
        rows.sample(1)
    assert rows.sample(0) == {"n": 1}


def test_partial_entry_raises(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", {"n": 1})
    forager(tmp_path, ["a.jsonl"], [(0, 0, 9)], b"\0" * 8)
    with pytest.raises(FormatError, match=r"sample_locations\.bin: expected 24 bytes for each sample, got 32 bytes"):
        lines(tmp_path)


def test_paths_outside_the_folder_need_trust_paths(tmp_path: Path) -> None:
    outside = dump(tmp_path / "a.jsonl", {"n": 1})
    for name in ("../a.jsonl", str(outside)):
        folder = forager(tmp_path / "d", ["in.jsonl", name], [(1, 0, 9)])
        dump(folder / "in.jsonl", {"n": 0})
        with pytest.raises(
            PathError, match=r"file_location\.txt, line 2: expected a relative path .* trust_paths=True"
        ):
            lines(folder)
        rows = lines(folder, trust_paths=True)
        assert every(rows) == [{"n": 1}]
        assert pickle.loads(pickle.dumps(rows)).sample(0) == {"n": 1}


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"gone\.jsonl"):
        lines(forager(tmp_path, ["gone.jsonl"], [(0, 0, 1)]))


# -- tokens ---------------------------------------------------------------------------------------------------


def test_tokens_are_read(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "tokens_fixed", tmp_path / "d")
    assert recognise(find(folder)) == 2
    rows = stored(folder, dtype="uint16")
    assert len(rows) == TOKENS["len"]
    column = rows.read(np.arange(len(rows)))["tokens"]
    assert isinstance(column, np.ndarray)
    assert column.dtype.str == "<u2"
    for array, expected in zip(column, TOKENS["samples"], strict=True):
        assert array.tolist() == expected["values"]
        assert hashlib.sha256(array.tobytes()).hexdigest() == expected["sha256"]
    assert [hashlib.sha256(array.tobytes()).hexdigest() for array in column] == TOKENS["sha256"]
    assert arrays(rows) == [sample["values"] for sample in TOKENS["samples"]]
    assert rows.features == Features({"tokens": Array("uint16", (5,))})
    which, begin, length = rows.index.locate(np.arange(len(rows)))
    assert np.stack([which, begin, length], 1).tolist() == TOKENS["sample_locations"]
    assert len(windows(folder, dtype="uint16", window=3)) == 10
    with pytest.raises(ArgumentError, match='open with dtype="uint16"'):
        stored(folder)
    assert not (folder / ".shardex").exists()


def test_locations_of_tokens_are_used(tmp_path: Path) -> None:
    put(tmp_path / "a.bin", np.arange(10, dtype=np.uint16).tobytes())
    rows = stored(forager(tmp_path, ["a.bin"], [(0, 0, 4), (0, 8, 2), (0, 3, 2), (0, 0, 0)]), dtype="uint16")
    assert arrays(rows) == [[0, 1], [4], [1 << 9], []]
    assert rows.features == FREE
    rows = stored(forager(tmp_path, ["a.bin"], [(0, 0, 4), (0, 8, 3)]), dtype="uint16")
    message = r"a\.bin: expected a multiple of 2 bytes for numbers of uint16, got 3 - at sample 1; is the dtype right\?"
    for read in (lambda: rows.read(np.array([0, 1])), lambda: rows.sample(1)):
        with pytest.raises(FormatError, match=message):
            read()
    rows = stored(forager(tmp_path, ["a.bin"], [(0, 0, 3)] * 2), dtype="uint16")
    with pytest.raises(FormatError, match=r"got 3 - at sample 0"):
        rows.read(np.array([0]))


def test_an_index_over_files_of_the_format_tokens_is_used_and_is_no_tokens(tmp_path: Path) -> None:
    sx.write(tmp_path, [{"tokens": np.arange(4, dtype=np.uint16)}], {"tokens": Array("uint16", (4,))}, format="tokens")
    forager(tmp_path, ["part-00000.bin"], [(0, 2, 4)])
    ds = sx.open(tmp_path, dtype="uint16")
    assert "data_forager" in repr(ds) and ds["tokens"].tolist() == [[1, 2]]


def test_damaged_index_of_tokens_raises(tmp_path: Path) -> None:
    put(tmp_path / "a.bin", np.arange(500, dtype=np.uint16).tobytes())
    rows = stored(forager(tmp_path, ["a.bin"], [(0, 0, 3 << 30), (9, 0, 2)]), dtype="uint16")
    with pytest.raises(
        TruncatedShardError, match=r"a\.bin: expected 3221225472 bytes from 0 on for sample 0, .* of 1000 bytes"
    ):
        rows.read(np.array([0]))
    with pytest.raises(FormatError, match="expected the number of a file below 1, got 9 - at sample 1"):
        rows.read(np.array([1]))
    put(tmp_path / "b" / "x.bin", b"")
    with pytest.raises(PathError, match="trust_paths=True"):
        stored(forager(tmp_path / "b", ["../a.bin"], [(0, 0, 4)]), dtype="uint16")
    assert arrays(stored(tmp_path / "b", dtype="uint16", trust_paths=True)) == [[0, 1]]


# -- options --------------------------------------------------------------------------------------------------


def test_options_of_other_samples_are_refused(tmp_path: Path) -> None:
    text = forager(tmp_path / "text", ["a.jsonl"], [(0, 0, 9)])
    dump(text / "a.jsonl", {"n": 1})
    with pytest.raises(ArgumentError, match=r"expected no window, because index/file_location\.txt names JSON lines"):
        sx.open(text, window=4)
    with pytest.raises(ArgumentError, match='expected decode to be "json", "text" or "bytes"'):
        sx.open(text, decode="yaml")
    numbers = forager(tmp_path / "numbers", ["a.u16"], [(0, 0, 4)])
    put(numbers / "a.u16", bytes(4))
    with pytest.raises(ArgumentError, match=r"expected no decode, because .* names files of tokens, got decode='text'"):
        sx.open(numbers, decode="text")
    two = Features.of({"a": Array("uint16", (2,)), "b": Array("uint16", (2,))})
    with pytest.raises(SchemaError, match=r"expected one array, as there is no index/sample_schema\.json"):
        open_rows(numbers, schema=two)
    with pytest.raises(ArgumentError, match="expected a window of at least 1, got 0"):
        sx.open(numbers, window=0)
    rows = stored(numbers, schema=Features.of({"ids": Array("uint16", (None,))}))
    assert str(rows.features) == "ids uint16[2]"


def test_folders_are_not_appended_to_as_lines(tmp_path: Path) -> None:
    """The new lines would not be in the index."""
    sx.write(tmp_path, [{"n": 1}], format="data_forager", mode="overwrite")
    with pytest.raises(SchemaError, match="expected JSON lines to append to, got a folder of the format data_forager"):
        sx.create(tmp_path, {"n": int}, format="jsonl", mode="append")
    assert [one.n for one in sx.open(tmp_path)] == [1]
    assert [one.n for one in sx.open(tmp_path, format="jsonl")] == [1], "without the index"


def test_other_formats_say_which_one_the_folder_has(tmp_path: Path) -> None:
    put(tmp_path / "a.bin", bytes(4))
    forager(tmp_path, ["a.bin"], [(0, 0, 4)])
    with pytest.raises(ArgumentError, match="expected the lengths of samples") as error:
        sx.open(tmp_path, format="tokens", dtype="uint16")
    assert error.value.__notes__ == ['the files have the format data_forager: open them with format="data_forager"']
