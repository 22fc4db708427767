"""MDS: shards that MosaicML Streaming wrote, damaged ones, and what is written."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

import shardex as sx
from shardex.errors import FormatError, NotFoundError, SchemaError, TruncatedShardError
from shardex.formats.mds.encodings import encoding

FIXTURES = Path(__file__).parents[2] / "fixtures" / "mds"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())["samples"]


def plain(value: Any) -> Any:
    """Return a value as `expected.json` has it."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def as_expected(name: str, value: Any, expected: Any) -> Any:
    """Return a value as `expected.json` has it: pictures as their pixels, compressed ones are decoded."""
    if isinstance(expected, list) and expected and isinstance(expected[0], dict):
        return [as_expected(name, one, first) for one, first in zip(value, expected, strict=True)]
    if isinstance(expected, dict) and "pixels" in expected:
        pixels = value if isinstance(value, np.ndarray) else np.asarray(Image.open(io.BytesIO(value)))
        return {"pixels": pixels.tolist()}
    return plain(value)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Shards of MosaicML Streaming."""
    return shutil.copytree(FIXTURES, tmp_path / "real")


@pytest.mark.parametrize("name", ["plain", "gz", "bz2", "zstd"])
def test_all_encodings_of_mosaicml_streaming_are_read(real: Path, name: str) -> None:
    ds = sx.open(real / name).decode(False)
    assert len(ds) == len(EXPECTED)
    columns = ds.read(np.arange(len(ds)))
    for row, expected in enumerate(EXPECTED):
        one = {field: as_expected(field, value, expected[field]) for field, value in ds[row].items()}
        assert one == expected
        assert {field: as_expected(field, columns[field][row], expected[field]) for field in ds.fields} == expected
    assert [dict(one) for one in pickle.loads(pickle.dumps(ds)).select("a_int", "b_str")] == [
        {"a_int": one["a_int"], "b_str": one["b_str"]} for one in EXPECTED
    ]


def test_fields_have_the_types_of_their_encodings(real: Path) -> None:
    features = sx.open(real / "plain").features
    assert str(features).startswith("a_int int64, b_str text, c_bytes bytes, d_f32 float32, e_u8 uint8, f_si int64, ")
    assert str(features["k_nds"]) == "float32[2, 3]" and str(features["p_lj"]) == "list of image"
    assert sx.open(real / "plain").where("a_int > 0 AND b_str LIKE '%4'")[0].a_int == 1
    with pytest.raises(FormatError, match=r"a\.mds: expected an encoding of MDS, got 'ndarray:text'"):
        encoding("ndarray:text", "a.mds")


def test_a_schema_gives_columns_other_types(real: Path, tmp_path: Path) -> None:
    tokens = [np.arange(k, k + 4, dtype=np.uint16) for k in range(3)]
    sx.write(tmp_path / "d", [{"tokens": one.tobytes(), "n": 1} for one in tokens], format="mds")
    for shape in ((None,), (4,), (2, 2)):
        ds = sx.open(tmp_path / "d", schema={"tokens": sx.Array("uint16", shape)})
        assert ds.read([2, 0])["tokens"][0].ravel().tolist() == tokens[2].tolist() == ds[2].tokens.ravel().tolist()
    assert sx.open(real / "plain", schema={"a_int": float})[0].a_int == -3.0
    with pytest.raises(SchemaError, match=r"expected int64\[3\], got int64\[1\] - at .*mds, sample 0, field tokens"):
        _ = sx.open(tmp_path / "d", schema={"tokens": sx.Array("int64", (3,))})[0]
    with pytest.raises(sx.ShardexError, match="'nothing'"):
        sx.open(real / "plain", schema={"nothing": int})


def test_partitions_are_read_in_the_order_of_the_index(real: Path) -> None:
    ds = sx.open(real / "nested")
    assert [one.n for one in ds] == list(range(10))
    assert ds[7].tokens.tolist() == [7, 8, 9, 10, 11]
    (real / "nested" / "index.json").unlink()
    assert [one.n for one in sx.open(real / "nested" / "**" / "*.mds")] == list(range(10))
    assert [one.n for one in sx.open(real / "nested" / "1" / "*.mds")] == list(range(5, 10))
    assert [one.n for one in sx.open(real / "nested" / "0" / "shard.00001.mds")] == [0]


def test_pickles_are_bytes(real: Path) -> None:
    with pytest.warns(UserWarning, match="the column x has pickled objects, which shardex never unpickles"):
        ds = sx.open(real / "pickled")
    assert pickle.loads(ds[2].x) == {"a": 2} and ds[2].n == 2


def test_shards_that_the_index_does_not_list_are_left_out_with_a_warning(real: Path) -> None:
    shutil.copy(real / "plain" / "shard.00000.mds", real / "plain" / "more.mds")
    with pytest.warns(UserWarning, match=r"1 shards are not listed in index\.json and are left out: more\.mds"):
        assert len(sx.open(real / "plain")) == len(EXPECTED)


def test_a_missing_shard_is_an_error(real: Path) -> None:
    (real / "plain" / "shard.00001.mds").unlink()
    with pytest.raises(NotFoundError, match=r"which index\.json lists.*shard\.00001\.mds"):
        sx.open(real / "plain")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{", "expected an index of MDS shards"),
        (b'{"shards": [{"format": "jsonl", "raw_data": {"basename": "a.mds"}}]}', "format mds, got 'jsonl'"),
        (
            b'{"shards": [{"format": "mds", "raw_data": {"basename": "../a.mds"}}]}',
            r"in this folder, got '\.\./a\.mds'",
        ),
        (b'{"shards": [{"format": "mds", "raw_data": {"basename": "/etc/a.mds"}}]}', "in this folder, got '/etc/a"),
    ],
)
def test_a_wrong_index_is_refused(real: Path, index: bytes, message: str) -> None:
    (real / "plain" / "index.json").write_bytes(index)
    with pytest.raises(FormatError, match=message):
        sx.open(real / "plain")


def shard(records: list[bytes], names: list[str], encodings: list[str], sizes: list[int | None]) -> bytes:
    """Return a shard, by the documented layout."""
    about = {"column_names": names, "column_encodings": encodings, "column_sizes": sizes, "version": 2}
    config = msgspec.json.encode(about)
    ends = np.cumsum([4 * (len(records) + 2) + len(config), *map(len, records)])
    return struct.pack("<I", len(records)) + ends.astype("<u4").tobytes() + config + b"".join(records)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"\1\0\0", TruncatedShardError, "expected an MDS shard, got a file of 3 bytes"),
        (b"\xff\xff\xff\xff" * 3, TruncatedShardError, "expected the offsets of 4294967295 samples"),
        (shard([text(b"a")], ["s"], ["str"], [None])[:-1], TruncatedShardError, "expected a file of"),
        (shard([text(b"a")], ["s"], ["str"], [None]) + b"x", FormatError, "expected a file of"),
        (shard([text(b"a"), b"\5\0\0\0a"], ["s"], ["str"], [None]), FormatError, "values that fill sample 1"),
        (shard([b"a"], ["s"], ["str"], [None]), FormatError, "values that fill sample 0"),
        (shard([text(b"\xff")], ["s"], ["str"], [None]), FormatError, "sample 0, field s: expected text"),
        (shard([text(b"1x")], ["s"], ["str_int"], [None]), FormatError, "field s: expected int64, got b'1x'"),
        (shard([text(b"9" * 20)], ["s"], ["str_int"], [None]), FormatError, "it does not fit into 64 bits"),
        (shard([text(b"{")], ["s"], ["json"], [None]), FormatError, "field s: expected json, got b'{'"),
        (shard([text(b"\1")], ["s"], ["ndarray"], [None]), FormatError, "field s: expected any"),
        (shard([text(b"\2\0\0\0\1\0\0\0")], ["s"], ["jpeg_array"], [None]), FormatError, "expected list of image"),
        (
            shard([text(b"\1\0\0\0" * 2 + b"\2\0\0\0XXq")], ["s"], ["pil"], [None]),
            FormatError,
            "mode 'XX' are not read",
        ),
        (shard([b"abc"], ["s"], ["int"], [3]), FormatError, "field s: expected 8 bytes, got 3"),
        (shard([b"a"], ["s"], ["nothing"], [1]), FormatError, "expected an encoding of MDS, got 'nothing'"),
        (shard([b"a"], ["s"], ["str"], []), FormatError, "with a size and an encoding for each column"),
    ],
)
def test_damaged_shards_are_refused(tmp_path: Path, data: bytes, error: type[Exception], message: str) -> None:
    (tmp_path / "a.mds").write_bytes(data)
    with pytest.raises(error, match=rf"a\.mds.*{message}"):
        _ = list(sx.open(tmp_path))


def test_shards_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mds").write_bytes(shard([text(b"a")], ["s"], ["str"], [None]))
    (tmp_path / "b.mds").write_bytes(shard([text(b"a")], ["s"], ["bytes"], [None]))
    with pytest.raises(SchemaError, match=r"b\.mds: expected the columns of .*a\.mds, got others"):
        sx.open(tmp_path)


@pytest.mark.parametrize("name", ["zstd", "plain"])
def test_verify_compares_the_hashes_of_the_index(real: Path, name: str) -> None:
    folder = real / name
    assert sx.verify(folder, progress=False) == []
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1]["raw_data"]["hashes"] = {"xxh64": "0"}
    (folder / "index.json").write_text(json.dumps(index))
    (problem,) = sx.verify(folder, progress=False)
    assert (
        problem.file.startswith("shard.00001.mds") and "expected the xxh64 0, as index.json says, got " in problem.what
    )
    index["shards"][1]["raw_data"]["hashes"] = {"nothing": "0"}
    (folder / "index.json").write_text(json.dumps(index))
    assert "expected hashes that are known, got nothing" in sx.verify(folder, progress=False)[0].what
    assert sx.recover(folder, real / "new", progress=False).samples == len(EXPECTED)


# -- writing --------------------------------------------------------------------------------------------------


def sample(k: int) -> dict[str, Any]:
    return {
        "n": k,
        "b": k % 2 == 0,
        "name": f"né {k}",
        "raw": bytes([k]),
        "fixed": np.full((2, 3), k, np.float32),
        "free": np.arange(k, dtype=np.uint16),
        "wide": np.zeros((1, 300 * k), np.int8),
        "more": {"a": [k, None]},
    }


def test_what_was_written_is_read(tmp_path: Path) -> None:
    samples = [sample(k) for k in range(9)]
    made = sx.write(tmp_path / "d", samples, format="mds", shard_size=2000)
    index = json.loads((tmp_path / "d" / "index.json").read_text())
    assert len(index["shards"]) > 2 and sum(one["samples"] for one in index["shards"]) == 9
    for one in index["shards"]:
        assert (tmp_path / "d" / one["raw_data"]["basename"]).stat().st_size == one["raw_data"]["bytes"]
    sx.write(tmp_path / "d", [sample(k) for k in range(9, 12)], format="mds", mode="append")
    ds = sx.open(tmp_path / "d")
    assert ds.fields == made.fields == list(sample(0))
    for k, one in enumerate(ds):
        assert {name: plain(value) for name, value in one.items()} == {n: plain(v) for n, v in sample(k).items()}
    with pytest.raises(SchemaError):
        sx.write(tmp_path / "d", [{"n": "text"}], format="mds", mode="append")


def test_images_are_stored_as_they_are(tmp_path: Path) -> None:
    data = sx.open(FIXTURES / "plain").decode(False)[1].m_jpeg
    ds = sx.write(
        tmp_path / "d", [{"x": data, "y": data}], {"x": sx.Image(format="jpeg"), "y": sx.Image()}, format="mds"
    )
    assert ds.decode(False)[0].x == data and ds[0].x.shape == (7, 8, 3)
    assert json.loads((tmp_path / "d" / "index.json").read_text())["shards"][0]["column_encodings"] == ["jpeg", "png"]


@pytest.mark.parametrize("value", [None, [b"a"], [np.zeros(2), np.zeros(3)]])
def test_what_mds_cannot_hold_is_refused(tmp_path: Path, value: Any) -> None:
    schema = {"x": sx.Optional(bytes)} if value is None else None
    with pytest.raises(SchemaError, match=r"expected a field that MDS can hold, got .* at field x"):
        sx.write(tmp_path / "d", [{"x": value}], schema, format="mds")
    assert not (tmp_path / "d").exists()
