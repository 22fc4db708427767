"""WebDataset tars: reading as WebDataset does, writing for other tools, errors for damaged files."""

import gc
import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image as Pillow

import shardex as sx
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    DuplicateKeyError,
    FieldError,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
    UnknownKeyError,
    UnsafeError,
)
from shardex.features import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Json,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    codecs,
)
from shardex.files import Files, Scan, find
from shardex.formats import FORMATS, format_named, open_rows, tar
from shardex.formats.tar import TarRows
from shardex.formats.tar.blocks import header, padding, shared_header
from shardex.formats.tar.members import TarScanner, TarWriter, split_name
from shardex.kernel import Ragged
from shardex.rows import AbstractRows, Rows
from shardex.sources import CachedSource, LocalSource, Source, open_source
from tests.fake_remote import FakeRemote

FIXTURES = Path(__file__).parents[2] / "fixtures" / "atdata"
Parts = Mapping[str, bytes]


def npy(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asanyarray(value), allow_pickle=True)
    return out.getvalue()


def member(name: str, data: bytes) -> bytes:
    return header(name, len(data)) + data + padding(len(data))


def pack(path: Path, files: Parts, format: int = tarfile.USTAR_FORMAT) -> Path:
    """Write a tar with Python's tarfile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def open_tar(what: Any, **options: Any) -> TarRows:
    return cast(TarRows, open_rows(what, "tar", **options))


def members(folder: Path) -> set[str]:
    """Return the names of the members of the only tar of a folder."""
    with tarfile.open(next(folder.glob("*.tar"))) as tar:
        return set(tar.getnames())


def all_samples(rows: TarRows) -> list[dict[str, Any]]:
    """Return all samples, checked to be the same read together and one by one."""
    many = rows.read(np.arange(len(rows))).to_samples()
    for row, sample in enumerate(many):
        assert_same(rows.sample(row), sample)
    return many


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, dict):
        assert set(one) == set(other)
        for name in one:
            assert_same(one[name], other[name])
    else:
        assert type(one) is type(other)
        assert one == other or (np.isnan(one) and np.isnan(other))


def by_webdataset(path: Path, decode: bool = False) -> list[dict[str, Any]]:
    """Read with WebDataset, which leaves closing its file to the garbage collector."""
    import webdataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        dataset = webdataset.WebDataset(str(path), shardshuffle=False)
        found = list(dataset.decode() if decode else dataset)
        del dataset
        gc.collect()
    return [{name: value for name, value in one.items() if name not in ("__url__", "__local_path__")} for one in found]


# -- files of other tools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["single", "sharded", "legacy_npy"])
def test_fixture_of_atdata_is_read(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / name)
    expected = json.loads((FIXTURES / "expected.json").read_text("utf-8"))[name]["samples"]
    arrays: dict[str, Feature] = {"x": Array()} if name == "sharded" else {"image": Array()}
    rows = open_tar(
        tmp_path / name, schema=Features({**arrays, **({"maybe": Optional(Array())} if name == "single" else {})})
    )
    found = all_samples(rows)
    assert len(found) == len(expected)
    for sample, plain in zip(found, expected, strict=True):
        assert sample.pop("__key__").endswith("-8000-000000000000")
        assert set(sample) == set(plain)
        for field, value in plain.items():
            assert_as_expected(sample[field], value)


def assert_as_expected(value: Any, expected: Any) -> None:
    if isinstance(expected, dict) and "sha256_C" in expected:
        assert isinstance(value, np.ndarray)
        assert (value.dtype.str, list(value.shape)) == (expected["dtype"], expected["shape"])
        assert hashlib.sha256(value.tobytes()).hexdigest() == expected["sha256_C"]
    elif isinstance(expected, dict) and "__bytes__" in expected:
        assert value == bytes.fromhex(expected["__bytes__"])
    else:
        assert value == expected
        assert type(value) is type(expected)


def test_arrays_in_maps_stay_bytes_without_a_schema(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "sharded", tmp_path / "sharded")
    rows = open_tar(tmp_path / "sharded")
    assert str(rows.features) == "__key__ text, x bytes, label text, score float64, tags json"
    columns = rows.read(np.array([10, 0]), ["x", "score"])
    assert columns.names == ["x", "score"]
    assert codecs.COMPACT.decode(cast(list[bytes], columns["x"])[0]).tolist() == [10, 10, 10]
    np.testing.assert_array_equal(columns["score"], [1.0, 0.0])


@sx.packable
class Nested:
    """Arrays inside a dict and a tuple of different types."""

    named: dict[str, NDArray[Any]]
    pair: tuple[NDArray[Any], int]


def test_arrays_inside_dicts_and_tuples_of_a_class(tmp_path: Path) -> None:
    """They are lists of numbers in all formats, and may be compact bytes in MessagePack of other writers."""
    one = Nested(named={"x": np.arange(3)}, pair=(np.ones(2), 5))
    writers: list[tuple[str, dict[str, Any]]] = [
        ("tar", {"layout": "msgpack"}),
        ("tar", {}),
        ("bins", {}),
        ("jsonl", {}),
    ]
    for number, (format, options) in enumerate(writers):
        sx.write(tmp_path / str(number), [one, one], Nested, format=format, **options)
        assert str(sx.open(tmp_path / str(number), Nested)[1]) == str(one)
        plain = list(sx.open(tmp_path / str(number))[0].values())
        assert plain[-2:] == [{"x": [0, 1, 2]}, [[1.0, 1.0], 5]]
    packed = codecs.MSGPACK.encode({"named": {"x": np.arange(3, dtype="int16")}, "pair": [np.ones(2, "float32"), 5]})
    found = sx.open(pack(tmp_path / "x.tar", {"0.msgpack": packed}), Nested)[0]
    assert_same(found.named["x"], np.arange(3, dtype="int16"))
    assert_same(found.pair[0], np.ones(2, "float32"))


NAMES = [
    "0",
    "a/b/1",
    "d.x/2",
    "l" * 140,
    "é日本/ü",
    "/".join(["folder" * 8] * 5),
    "p" * 50 + "/" + "q" * 90,
    "ü" * 100,
]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_python_tarfile_are_read(format: int, tmp_path: Path) -> None:
    fits = [n for n in NAMES if format != tarfile.USTAR_FORMAT or len(n.encode()) < 95]
    files = {f"{name}.{part}": f"{name} {part}".encode() for name in fits for part in ("txt", "Bin.X")}
    path = pack(tmp_path / "x.tar", files, format)
    found = all_samples(open_tar(path))
    assert found == [{"__key__": n, "txt": f"{n} txt", "bin.x": f"{n} Bin.X".encode()} for n in fits]
    raw = [{"__key__": s["__key__"], "txt": s["txt"].encode(), "bin.x": s["bin.x"]} for s in found]
    assert raw == by_webdataset(path)


def test_ustar_prefix_is_read(tmp_path: Path) -> None:
    name = "p" * 50 + "/" + "q" * 90
    path = pack(tmp_path / "x.tar", {f"{name}.txt": b"1"})
    assert len(path.read_bytes()) == 10240
    assert open_tar(path).sample(0) == {"__key__": name, "txt": "1"}


def test_tars_of_webdataset_are_read(tmp_path: Path) -> None:
    import webdataset

    path = tmp_path / "x.tar"
    samples = [
        {"__key__": f"k/{n}", "cls": n, "json": {"n": [n, None]}, "npy": np.arange(n + 1), "txt": f"é{n}"}
        for n in range(5)
    ]
    with webdataset.TarWriter(str(path)) as out:
        for sample in samples:
            out.write(sample)
    rows = open_tar(path)
    assert str(rows.features) == "__key__ text, cls int64, json json, npy any[...], txt text"
    for found, sample in zip(all_samples(rows), samples, strict=True):
        assert_same(found, sample)


def test_members_that_webdataset_skips_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        folder = tarfile.TarInfo("a/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in [
            "__index__",
            "__meta__/x.json",
            "README",
            "a/README",
            ".top",
            "d.x/.h",
            "a/0.txt",
            "a/__x__",
            "a/0.b",
            "__x__.c",
        ]:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    found = open_tar(path).read(np.arange(2))
    assert found["__key__"] == [sample["__key__"] for sample in by_webdataset(path)] == ["a/0", "__x__"]


PIECES = st.text(st.sampled_from("ab./_A"), max_size=12)


@given(PIECES)
def test_names_are_split_as_webdataset_does(name: str) -> None:
    from webdataset.tariterators import base_plus_ext

    key, part = base_plus_ext(name)
    try:
        found = split_name(name, "x.tar")
    except UnsafeError:
        assert name.startswith("/") or ".." in name.split("/")
        return
    skipped = key is None or not part or (name.startswith("__") and "__" in name.partition("/")[0][2:])
    if skipped:
        assert found is None or (key is not None and found == (key, part.lower()))
    else:
        assert found == (key, part.lower())


# -- fields -----------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_media_by_extension(tmp_path: Path) -> None:
    extensions = ("jpg", "left.JPEG", "webp", "flac", "wav", "mp3", "mp4", "webm", "bin")
    rows = open_tar(pack(tmp_path / "x.tar", {f"0.{one}": b"data" for one in extensions}))
    kinds = {name: feature.kind for name, feature in rows.features.items()}
    assert kinds == {
        "__key__": "text",
        **dict.fromkeys(("jpg", "left.jpeg", "webp"), "image"),
        **dict.fromkeys(("flac", "wav", "mp3"), "audio"),
        **dict.fromkeys(("mp4", "webm"), "video"),
        "bin": "bytes",
    }
    assert rows.read(np.array([0]), ["jpg"])["jpg"] == [b"data"], "rows have the stored bytes"
    assert rows.read_views(np.array([0]), ["jpg", "bin"], ["jpg"])["jpg"] == [memoryview(b"data")]
    raw = sx.open(tmp_path / "x.tar", schema={"jpg": bytes, "left.jpeg": bytes, "webp": bytes})
    assert raw.select("jpg", "left.jpeg", "webp")[0] == {"jpg": b"data", "left.jpeg": b"data", "webp": b"data"}
    named = open_tar(tmp_path / "x.tar", schema={"left": sx.Image("L")})
    assert named.features["left"] == sx.Image("L") and "left.jpeg" not in named.features


def test_npz(tmp_path: Path) -> None:
    files = {f"{k}.npz": npz(a=np.arange(k), b=np.float32(k)) for k in range(3)}
    rows = open_tar(pack(tmp_path / "x.tar", files))
    assert str(rows.features["npz"]) == "struct of (a int64[...], b float32[...])"
    found = all_samples(rows)
    assert found[2]["npz"]["a"].tolist() == [0, 1] and found[2]["npz"]["b"] == np.float32(2)
    copy = sx.write(tmp_path / "copy", sx.open(tmp_path / "x.tar"), format="tar")
    assert_same(copy[2].npz, found[2]["npz"])
    native = sx.write(tmp_path / "native", sx.open(tmp_path / "x.tar"))
    assert_same(native[2].npz, found[2]["npz"])
    with tarfile.open(tmp_path / "copy" / "shard-000000.tar") as tar:
        member = tar.extractfile("2.npz")
        assert member is not None and np.load(io.BytesIO(member.read()))["a"].tolist() == [0, 1]
    bad = open_tar(pack(tmp_path / "bad.tar", {"0.npz": npz(a=[1]), "1.npz": b"no archive"}))
    with pytest.raises(FormatError, match=r"arrays of an .npz.*sample '1', field npz"):
        bad.sample(1)


def test_fields_of_images_are_written_with_an_extension(tmp_path: Path) -> None:
    image = np.zeros((4, 6, 3), np.uint8)
    schema = {"image": sx.Image(format="jpeg"), "png": sx.Image(), "mask": sx.Optional(sx.Image("L"))}
    data = sx.write(tmp_path / "d", [{"image": image, "png": image, "mask": image[..., 0]}], schema, format="tar")
    assert {"000000000.image.jpg", "000000000.png", "000000000.mask.png"} == members(tmp_path / "d")
    assert data.stored[0]["image"][:2] == b"\xff\xd8" and data.features["mask"] == schema["mask"]
    again = sx.open(tmp_path / "d", schema=schema)
    assert again.fields == ["__key__", "image", "png", "mask"] and again[0].mask.shape == (4, 6, 1)


def test_extension_gives_the_field_type(tmp_path: Path) -> None:
    files = {
        "0.json": b'{"a": 1}',
        "0.txt": "é".encode(),
        "0.cls": b"7",
        "0.npy": npy([1.5]),
        "0.jpg": b"\xff\xd8",
        "0.seg.json": b"3",
        "1.json": b"[]",
        "1.txt": b"",
        "1.cls": b"8",
        "1.npy": npy([2.5]),
        "1.seg.json": b"null",
    }
    rows = open_tar(pack(tmp_path / "x.tar", files))
    typed = "json json, txt text, cls int64, npy float64[1], jpg image(format='jpeg') or none, seg.json json"
    assert str(rows.features) == f"__key__ text, {typed}"
    columns = rows.read(np.array([1, 0, 1]))
    assert columns["__key__"] == ["1", "0", "1"]
    assert columns["json"] == [[], {"a": 1}, []]
    assert columns["txt"] == ["", "é", ""]
    np.testing.assert_array_equal(columns["cls"], [8, 7, 8])
    np.testing.assert_array_equal(columns["npy"], [[2.5], [1.5], [2.5]])
    assert columns["jpg"] == [None, b"\xff\xd8", None]
    assert columns["seg.json"] == [None, 3, None]
    all_samples(rows)
    assert isinstance(rows, Rows)
    assert isinstance(rows, AbstractRows)


def test_only_requested_fields_are_read(tmp_path: Path) -> None:
    rows = open_tar(pack(tmp_path / "x.tar", {"0.txt": b"a", "0.bin": b"b"}))
    assert rows.read(np.array([0]), ["bin"]).to_samples() == [{"bin": b"b"}] == [rows.sample(0, ["bin"])]
    assert rows.read(np.array([0]), ["__key__"]).to_samples() == [{"__key__": "0"}]
    assert len(rows.read(np.empty(0, np.int64))) == 0
    with pytest.raises(FieldError, match="expected one of the fields __key__, txt, bin, got 'nothing'"):
        rows.read(np.array([0]), ["nothing"])


def test_schema_types_the_fields(tmp_path: Path) -> None:
    files = {
        "0.a.npy": npy(np.array([1, 2], np.float32)),
        "0.b": codecs.COMPACT.encode(np.arange(3)),
        "0.c": b"2.5",
        "0.d.json": b"true",
        "0.e": b"text",
        "0.f.json": b"[1, 2]",
        "0.g.cls": b"1",
        "0.j": b'{"x": 1}',
        "0.h.txt": b"h",
    }
    schema = Features.of(
        {
            "a": Array("float32", (2,)),
            "b": Array(),
            "c": Value("float32"),
            "d": Optional(Value("bool")),
            "e": Text(),
            "f": Sequence(Value("int8")),
            "g": ClassLabel(("x", "y")),
            "j": Json(),
            "h.txt": Bytes(),
            "none": Optional(Array()),
        }
    )
    rows = open_tar(pack(tmp_path / "x.tar", files), schema=schema)
    assert dict(rows.features) == {"__key__": Text(), **schema}
    (sample,) = all_samples(rows)
    assert_same(sample.pop("a"), np.array([1, 2], np.float32))
    assert_same(sample.pop("b"), np.arange(3))
    assert sample == {
        "__key__": "0",
        "c": 2.5,
        "d": True,
        "e": "text",
        "f": [1, 2],
        "g": 1,
        "h.txt": b"h",
        "j": {"x": 1},
        "none": None,
    }


def test_schema_that_does_not_fit_raises(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"0.x.npy": npy(np.zeros(3)), "1.y": b"1"})
    with pytest.raises(SchemaError, match=r"expected the field 'z', got only x\.npy, y in the tars"):
        open_tar(path, schema=Features({"z": Array()}))
    rows = open_tar(path, schema=Features({"x": Array("float64", (4,)), "y": Value("int64")}))
    for read in (lambda: rows.read(np.array([0]), ["x"]), lambda: rows.sample(0, ["x"])):
        with pytest.raises(
            SchemaError, match=r"expected float64\[4\], got float64\[3\] - at .*x\.tar, sample '0', field x\.npy"
        ):
            read()
    for read in (lambda: rows.read(np.array([1, 0]), ["y"]), lambda: rows.sample(0, ["y"])):
        with pytest.raises(
            FormatError, match=r"x\.tar, sample '0': expected the field 'y', the sample has none; declare it optional"
        ):
            read()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
@pytest.mark.parametrize("dtype", ["<f4", ">i2", "|b1", "<U5", "|S2", "<M8[D]", "<c8"])
def test_equal_arrays_are_stacked(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    arrays = [np.arange(n, n + int(np.prod(shape))).reshape(shape).astype("i8").astype(dtype) for n in range(4)]
    rows = open_tar(pack(tmp_path / "x.tar", {f"{n}.npy": npy(array) for n, array in enumerate(arrays)}))
    column = rows.read(np.array([2, 0, 3]), ["npy"])["npy"]
    assert isinstance(column, np.ndarray) == (shape != ())
    for found, n in zip(column, [2, 0, 3], strict=True):
        assert_same(found, arrays[n])
    if isinstance(column, np.ndarray) and column.size:
        assert column.flags.writeable


def test_different_arrays_are_a_list(tmp_path: Path) -> None:
    arrays = [
        np.arange(3.0),
        np.arange(4.0),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6).reshape(2, 3),
        np.float64(1),
    ]
    rows = open_tar(pack(tmp_path / "x.tar", {f"{n}.npy": npy(array) for n, array in enumerate(arrays)}))
    for sample, array in zip(all_samples(rows), arrays, strict=True):
        np.testing.assert_array_equal(sample["npy"], array)
    assert isinstance(rows.read(np.array([0, 1]))["npy"], Ragged)
    same = rows.read(np.array([2, 3]))["npy"]
    assert isinstance(same, np.ndarray)
    assert same.shape == (2, 2, 3)
    np.testing.assert_array_equal(same[0], same[1])


def test_msgpack_with_other_extensions_stays_one_field(tmp_path: Path) -> None:
    rows = open_tar(pack(tmp_path / "x.tar", {"0.msgpack": b"\x81\xa1a\x01", "0.txt": b"t"}))
    assert all_samples(rows) == [{"__key__": "0", "msgpack": {"a": 1}, "txt": "t"}]


def test_msgpack_maps_are_fields(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"0.msgpack": b"\x81\xa1a\x01", "1.msgpack": b"\x82\xa1a\x02\xa1b\xa1x"})
    rows = open_tar(path)
    assert all_samples(rows) == [{"__key__": "0", "a": 1, "b": None}, {"__key__": "1", "a": 2, "b": "x"}]
    assert open_tar(path, schema=Features({"msgpack": Json()})).sample(1) == {
        "__key__": "1",
        "msgpack": {"a": 2, "b": "x"},
    }
    rows = open_tar(path, schema=Features({"b": Text()}))
    with pytest.raises(SchemaError, match=r"expected text, got nothing .* - at .*x\.tar, sample '0', field b"):
        rows.read(np.array([1, 0]))
    bad = open_tar(pack(tmp_path / "bad.tar", {"0.msgpack": b"\x81\xa1a\x01", "1.msgpack": b"\x01"}))
    for read in (lambda: bad.read(np.array([0, 1]), ["a"]), lambda: bad.sample(1, ["a"])):
        with pytest.raises(
            FormatError, match=r"expected a map with text as keys, got int - at .*bad\.tar, sample '1', field msgpack"
        ):
            read()


@pytest.mark.parametrize(
    ("name", "data", "error", "message"),
    [
        ("json", b"{", FormatError, "expected JSON"),
        ("txt", b"\xff", FormatError, "expected UTF-8 text"),
        ("cls", b"x", FormatError, "expected a number in decimal digits"),
        ("cls", b"0.5", SchemaError, "expected int64, got float 0.5"),
        ("npy", b"short", FormatError, "expected a compact array"),
        ("npy", npy(np.zeros(3))[:-1], FormatError, "expected 24 bytes"),
        ("npy", npy(np.array([{}], object)), UnsafeError, "got dtype object: loading it would run code"),
        ("msgpack", b"\xc1", FormatError, "expected MessagePack"),
    ],
)
def test_undecodable_value_error_names_sample_and_field(
    name: str, data: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    good = {"cls": b"1", "npy": npy(np.zeros(3)), "msgpack": b"\x80", "txt": b""}.get(name, b"1")
    rows = open_tar(pack(tmp_path / "x.tar", {f"a/0.{name}": good, f"a/1.{name}": data, "a/1.b": b""}))
    for read in (lambda: rows.read(np.array([0, 1])), lambda: rows.sample(1)):
        with pytest.raises(error) as caught:
            read()
        assert message in str(caught.value)
        assert f"x.tar, sample 'a/1', field {name}" in str(caught.value)
    assert rows.sample(0, ["__key__"]) == {"__key__": "a/0"}


# -- bad files --------------------------------------------------------------------------------------------------


def test_truncated_tar_raises(tmp_path: Path) -> None:
    whole = member("0.txt", b"x" * 700) + member("1.txt", b"y" * 700)
    for end, message in (
        (1536 + 512 + 699, r"x\.tar: expected 700 bytes from offset 2048 on, the file ends at 2747"),
        (1536 + 100, r"x\.tar: expected a header of 512 bytes at offset 1536, the file ends at 1636"),
        (len(whole), r"x\.tar: expected a block of zeros at offset 3072, which ends a tar, the file ends at 3072"),
        (len(whole) - 100, r"expected a block of zeros at offset 3072, .* ends at 2972: it was cut off"),
        (1536, r"expected a block of zeros at offset 1536, .* ends at 1536: .* samples may be missing"),
        (0, r"expected a block of zeros at offset 0, .* ends at 0: .*; copy it again, or .* truncated=\"warn\""),
    ):
        (tmp_path / "x.tar").write_bytes(whole[:end])
        with pytest.raises(TruncatedShardError, match=message):
            open_tar(tmp_path / "x.tar", rebuild=True)
    (tmp_path / "x.tar").write_bytes(whole + bytes(512))
    assert len(open_tar(tmp_path / "x.tar", rebuild=True)) == 2


def test_tars_of_other_writers_are_whole(tmp_path: Path) -> None:
    """Python's tarfile as a stream, WebDataset, and GNU tar: small records, appended, concatenated."""
    import webdataset

    with tarfile.open(tmp_path / "stream.tar", "w|") as out:
        out.addfile(tarfile.TarInfo("0.txt"))
    with webdataset.TarWriter(str(tmp_path / "web.tar")) as sink:
        sink.write({"__key__": "0", "txt": "x"})
    (tmp_path / "0.txt").write_text("0")
    (tmp_path / "1.txt").write_text("1")
    if shutil.which("tar"):
        for arguments in ("-b1 -cf gnu.tar 0.txt", "-cf more.tar 1.txt", "-cf grown.tar 0.txt", "-rf grown.tar 1.txt"):
            subprocess.run(["tar", *arguments.split()], cwd=tmp_path, check=True)
        shutil.copy(tmp_path / "gnu.tar", tmp_path / "both.tar")
        subprocess.run(["tar", "-Af", "both.tar", "more.tar"], cwd=tmp_path, check=True)
    counts = {path.name: len(open_tar(path)) for path in tmp_path.glob("*.tar")}
    assert counts == {name: 2 if name in ("grown.tar", "both.tar") else 1 for name in counts}
    for path in tmp_path.glob("*.tar"):
        end = len(path.read_bytes().rstrip(b"\0"))
        os.truncate(path, end + -end % 512)
        with pytest.raises(TruncatedShardError):
            open_tar(path, rebuild=True)


def one_tar(remote: bool, folder: Path, size: int) -> Files:
    """Return the tar in a folder, with an own index for each size."""
    place = CachedSource(FakeRemote(folder), folder / "cache") if remote else LocalSource(folder)
    return Files(place, ("x.tar",), f"{place.url}/{size}")


@pytest.mark.parametrize("size", [3, 20_000])
@pytest.mark.parametrize("remote", [False, True])
def test_truncated_tar_is_read_up_to_the_cut(size: int, remote: bool, tmp_path: Path) -> None:
    """With a warning, which is repeated when the saved index is used; half a sample is never read."""
    parts = [(f"{n}.{part}", bytes([n]) * size) for n in range(4) for part in ("a", "b") if (n, part) != (1, "b")]
    whole = b"".join(member(*part) for part in parts) + bytes(1024)
    one = len(member(*parts[0]))
    for end, count in [
        (len(whole) - 1025, 4),  # in the padding of the last member
        (len(whole) - 1024, 4),  # before the zeros
        (len(whole) - 1024 - one + 100, 3),  # in the last header
        (len(whole) - 1024 - one + 513, 3),  # in the last data
        (len(whole) - 1024 - one, 4),  # between two members; sample 1 has no b either, so the last one may be complete
        (4 * one + 1, 2),  # in the second header of sample 2
        (3 * one, 1),  # between the samples 1 and 2, and the only other sample has b
        (2 * one, 0),  # between the samples 0 and 1: nothing shows that the only one is complete
        (one - 1 - (512 - size) % 512, 0),  # in the first data
        (0, 0),
    ]:
        (tmp_path / "x.tar").write_bytes(whole[:end])
        files = one_tar(remote, tmp_path, end)
        for _ in range(2):
            with pytest.warns(UserWarning, match=rf"x\.tar: expected .*, the file ends at {end}"):
                rows = tar.open(files, truncated="warn")
            assert [rows.sample(row, ["__key__"])["__key__"] for row in range(len(rows))] == list("0123")[:count]
        with pytest.raises(TruncatedShardError):
            tar.open(files)
    (tmp_path / "x.tar").write_bytes(whole)
    assert len(tar.open(one_tar(remote, tmp_path, len(whole)), truncated="warn")) == 4
    with pytest.raises(ArgumentError, match="expected truncated to be one of error, warn, got 'ignore'"):
        tar.open(files, truncated="ignore")


def test_size_beyond_the_file_raises(tmp_path: Path) -> None:
    for size in (1 << 30, 8**11 - 1, 1 << 62):
        path = tmp_path / "x.tar"
        path.write_bytes(header("0.txt", size) + bytes(512))
        with pytest.raises(
            TruncatedShardError, match=rf"x\.tar: expected {size} bytes from offset \d+ on, the file ends at"
        ):
            open_tar(path, rebuild=True)


def test_flipped_header_byte_raises(tmp_path: Path) -> None:
    tar = bytearray(member("0.txt", b"hello") + member("1.txt", b"world") + bytes(1024))
    tar[1100] ^= 1
    (tmp_path / "x.tar").write_bytes(tar)
    with pytest.raises(FormatError, match=r"x\.tar: expected a tar header at offset 1024"):
        open_tar(tmp_path / "x.tar")


def test_data_after_the_end_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(member("0.txt", b"") + bytes(1024) + member("1.txt", b""))
    with pytest.raises(
        FormatError,
        match=r"x\.tar: expected only zeros after the end of the tar at offset 512, got data at offset 1536",
    ):
        open_tar(path)


def test_compressed_tar_raises(tmp_path: Path) -> None:
    for name, size in (("x.tar", 2000), ("x.tar.gz", 20)):
        path = tmp_path / name
        path.write_bytes(gzip.compress(os.urandom(size)))
        with pytest.raises(FormatError, match=r'got (a compressed one|one compressed with gzip); .* compressed="copy"'):
            open_tar(path)
    with pytest.raises(FormatError, match="got one compressed with gzip"):  # x.tar is the content of x.tar.gz
        open_tar(tmp_path)
    (tmp_path / "x.tar").rename(tmp_path / "y.tar")
    with pytest.raises(FormatError, match=r"x\.tar\.gz: expected plain tars, got a compressed one; .*copy"):
        open_tar(tmp_path)


def test_compressed_tars_say_the_same_after_they_were_read(tmp_path: Path) -> None:
    """The index of the content is no index of the compressed file, which is shorter."""
    packed = tmp_path / "d" / "a.tar.gz"
    packed.parent.mkdir()
    content = pack(tmp_path / "a.tar", {f"{k}.txt": str(k).encode() for k in range(30)}).read_bytes()
    packed.write_bytes(gzip.compress(content))
    (tmp_path / "d" / "b.tgz").write_bytes(gzip.compress(content))
    (tmp_path / "hidden.tar").write_bytes(gzip.compress(content))
    options: list[dict[str, Any]] = [{}, {"format": "tar"}]
    for _ in range(2):
        for what in (packed, packed.parent, packed.parent / "*.t*", [packed], tmp_path / "hidden.tar"):
            count = 60 if what in (packed.parent, packed.parent / "*.t*") else 30
            for option in options:
                with pytest.raises(
                    ShardexError, match='compressed tars have no random access: open them with compressed="c'
                ):
                    sx.open(what, **option)
                for how in ("copy", "access_points"):
                    assert (
                        len(sx.open(what, compressed=how, cache=tmp_path / "cache", progress=False, **option)) == count
                    )


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "pipe"),
    ],
)
def test_links_and_devices_raise(kind: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("0.txt"))
        info = tarfile.TarInfo("1.txt")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(
        UnsafeError, match=rf"x\.tar: expected regular files, got a {word} named '1\.txt' at offset 512"
    ):
        open_tar(path)


@pytest.mark.parametrize("name", ["/etc/passwd.txt", "../0.txt", "a/../../0.txt", "a/.."])
def test_absolute_and_parent_paths_raise(name: str, tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"0.txt": b"", name: b""})
    with pytest.raises(UnsafeError, match=rf"x\.tar: expected names that stay inside the tar, got '{name}'"):
        open_tar(path)


def test_field_twice_in_a_sample_raises(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"a/0.txt": b"", "a/0.b": b"", "a/0.TXT": b""})
    with pytest.raises(
        FormatError, match=r"x\.tar: expected each field of a sample once, got 'txt' twice in sample 'a/0'"
    ):
        open_tar(path)
    assert len(open_tar(pack(tmp_path / "y.tar", {"0.txt": b"", "1.txt": b"", "./0.txt": b""}))) == 3
    with pytest.raises(FormatError, match="expected an extension, got '__key__' in sample '0'"):
        open_tar(pack(tmp_path / "z.tar", {"0.__key__": b""}))


def test_keys_with_dots_raise(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {f"v1.{n}.txt": b"" for n in range(300)})
    with pytest.raises(FormatError, match="do your keys contain dots"):
        open_tar(path)


# -- the index --------------------------------------------------------------------------------------------------


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return a function that returns the files scanned since its last call."""
    paths: list[str] = []
    scan = TarScanner.scan

    def noted(self: TarScanner, source: Source, path: str) -> Scan:
        paths.append(path)
        return scan(self, source, path)

    def looks() -> Iterator[list[str]]:
        while True:
            seen, paths[:] = list(paths), []
            yield seen

    monkeypatch.setattr(TarScanner, "scan", noted)
    return looks()


def test_only_changed_tars_are_scanned_again(tmp_path: Path, scanned: Iterator[list[str]]) -> None:
    for n in range(3):
        pack(tmp_path / f"s{n}.tar", {f"{n}.txt": b"x"})
    assert len(open_tar(tmp_path)) == 3
    assert next(scanned) == ["s0.tar", "s1.tar", "s2.tar"]
    assert len(open_tar(tmp_path)) == 3
    assert next(scanned) == []
    pack(tmp_path / "s1.tar", {f"1{n}.txt": b"y" * 4000 for n in range(5)})
    pack(tmp_path / "s10.tar", {"9.txt": b"z", "9.npy": npy([1])})
    rows = open_tar(tmp_path)
    assert next(scanned) == ["s1.tar", "s10.tar"]
    assert rows.read(np.arange(8), ["__key__"])["__key__"] == ["0", "10", "11", "12", "13", "14", "2", "9"]
    assert str(rows.features) == "__key__ text, txt text, npy any[...] or none"
    assert [sample["npy"] is None for sample in all_samples(rows)] == [True] * 7 + [False]
    pack(tmp_path / "s10.tar", {"9.txt": b"z" * 20000})
    assert str(open_tar(tmp_path).features) == "__key__ text, txt text"


def test_vanished_and_shortened_tars_raise(tmp_path: Path) -> None:
    for n in range(2):
        pack(tmp_path / f"s{n}.tar", {f"{n}.txt": b"x" * 20000})
    rows = open_tar(tmp_path)
    os.truncate(tmp_path / "s1.tar", 512)
    with pytest.raises(
        TruncatedShardError, match=r"s1\.tar: expected at least \d+ bytes as when it was indexed, got 512"
    ):
        open_tar(tmp_path)
    with pytest.raises(TruncatedShardError, match=r"s1\.tar: expected \d+ bytes as when it was indexed, got 512"):
        rows.read(np.array([1]))
    (tmp_path / "s1.tar").unlink()
    with pytest.raises(StaleIndexError, match=r"s1\.tar: expected this file with 1 samples, it is gone"):
        open_tar(tmp_path)
    assert len(open_tar(tmp_path, rebuild=True)) == 1


def test_index_is_small(tmp_path: Path) -> None:
    count = 20_000
    blocks = [member(f"{n:09d}.{part}", b"12345678") for n in range(count) for part in ("cls", "bin")]
    (tmp_path / "x.tar").write_bytes(b"".join(blocks) + bytes(1024))
    rows = open_tar(tmp_path)
    assert len(rows) == count
    assert rows.index.nbytes <= 24 * count
    assert set(rows.index.spans) == {"start", "key", "cls.offset", "cls.length", "bin.offset", "bin.length"}
    picked = np.random.default_rng(0).permutation(count)[:1000]
    assert rows.read(picked, ["__key__"])["__key__"] == [f"{n:09d}" for n in picked]


def test_rows_pickle_as_what_was_opened(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"0.x.npy": npy([1, 2])})
    rows = open_tar(path, schema=Features({"x": Array()}))
    again = pickle.loads(pickle.dumps(rows))
    assert_same(again.sample(0), rows.sample(0))
    assert again.features == rows.features
    assert rows.shard_names() == [str(path)]


def test_recognise_by_extension(tmp_path: Path) -> None:
    pack(tmp_path / "a" / "x.tar", {})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.json").write_text("{}")
    assert FORMATS["tar"].match(find(tmp_path / "a"))
    assert FORMATS["tar"].match(find(tmp_path / "a" / "*.tar"))
    assert not FORMATS["tar"].match(find(tmp_path / "b"))
    with pytest.raises(NotFoundError, match=r"expected a folder with \.tar files, got one without"):
        open_tar(tmp_path / "b")
    empty = open_tar(tmp_path / "a")
    assert (len(empty), len(empty.read(np.empty(0, np.int64))), list(empty.features)) == (0, 0, ["__key__"])


# -- writing ----------------------------------------------------------------------------------------------------

FEATURES = Features.of(
    {
        "history": Array("float32", (3,)),
        "any": Array(),
        "caption": str,
        "meta": dict,
        "label": ClassLabel(("cat", "dog")),
        "count": int,
        "score": float,
        "flag": bool,
        "jpg": bytes,
        "tags": list[str],
        "box": Struct({"x": Value("int32"), "y": Value("float32")}),
        "maybe": Optional(Text()),
    }
)
PARTS = [
    "history.npy",
    "any.npy",
    "caption.txt",
    "meta.json",
    "label.cls",
    "count",
    "score.json",
    "flag.json",
    "jpg",
    "tags.json",
    "box.json",
    "maybe.txt",
]

SAMPLES = st.fixed_dictionaries(
    {
        "history": st.lists(st.floats(width=32), min_size=3, max_size=3).map(lambda some: np.array(some, np.float32)),
        "any": st.one_of(
            st.binary(max_size=9).map(lambda raw: np.frombuffer(raw, "u1")),
            st.lists(st.text(max_size=3), min_size=1, max_size=3).map(np.array),
            st.floats().map(np.array),
        ),
        "caption": st.text(),
        "meta": st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text() | st.none() | st.booleans()),
        "label": st.integers(0, 1),
        "count": st.integers(-(2**63), 2**63 - 1),
        "score": st.floats(allow_infinity=False),
        "flag": st.booleans(),
        "jpg": st.binary(max_size=1500),
        "tags": st.lists(st.text()),
        "box": st.fixed_dictionaries(
            {"x": st.integers(-9, 9), "y": st.floats(width=32, allow_nan=False, allow_infinity=False)}
        ),
        "maybe": st.none() | st.text(),
    }
)


def write(path: Path, features: Any, samples: Any, mode: str = "create", **options: Any) -> None:
    out = TarWriter(str(path), Features.of(features), mode=mode, **options)
    for sample in samples:
        out.append(sample)
    out.close()


@settings(deadline=None, max_examples=40)
@given(st.lists(SAMPLES, max_size=4))
def test_round_trip(samples: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "out", FEATURES, samples, shard_rows=3)
        rows = open_tar(Path(folder) / "out", schema=FEATURES)
        assert dict(rows.features) == {"__key__": Text(), **FEATURES}
        found = all_samples(rows)
    assert len(found) == len(samples)
    for n, (sample, original) in enumerate(zip(found, samples, strict=True)):
        assert sample.pop("__key__") == f"{n:09d}"
        assert_same(sample, original)


def one_sample(**changes: Any) -> dict[str, Any]:
    return {
        "history": np.array([1, 2, 3], np.float32),
        "any": np.arange(2),
        "caption": "é",
        "meta": {"a": None},
        "label": "dog",
        "count": 3,
        "score": 0.5,
        "flag": True,
        "jpg": b"\xff",
        "tags": ["t"],
        "box": {"x": 1, "y": 2.0},
        **changes,
    }


def test_tarfile_and_webdataset_read_written_tars(tmp_path: Path) -> None:
    long = "key/" + "ü" * 90
    write(tmp_path / "out", FEATURES, [one_sample(), one_sample(__key__=long, maybe="m")])
    path = tmp_path / "out" / "shard-000000.tar"
    expected = {
        "any.npy": npy(np.arange(2)),
        "box.json": b'{"x":1,"y":2.0}',
        "caption.txt": "é".encode(),
        "count": b"3",
        "flag.json": b"true",
        "history.npy": npy(np.array([1, 2, 3], np.float32)),
        "jpg": b"\xff",
        "label.cls": b"1",
        "meta.json": b'{"a":null}',
        "score.json": b"0.5",
        "tags.json": b'["t"]',
    }
    assert by_webdataset(path) == [
        {"__key__": "000000000", **{name: expected[name] for name in PARTS if name in expected}},
        {"__key__": long, **{name: expected[name] for name in PARTS if name in expected}, "maybe.txt": b"m"},
    ]
    with tarfile.open(path) as tar:
        infos = tar.getmembers()
        assert [info.name for info in infos[:11]] == [f"000000000.{part}" for part in PARTS[:-1]]
        assert infos[-1].name == f"{long}.maybe.txt"
        assert {(info.mtime, info.mode, info.uid, info.gid, info.uname) for info in infos} == {(0, 0o644, 0, 0, "")}
    assert path.stat().st_size % 10240 == 0
    decoded = by_webdataset(path, decode=True)[0]
    assert decoded["meta.json"] == {"a": None}
    assert decoded["label.cls"] == 1


def test_equal_samples_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, FEATURES, [one_sample(), one_sample(__key__="é")])
    one, two = ((tmp_path / name / "shard-000000.tar").read_bytes() for name in ("one", "two"))
    assert one == two
    write(
        tmp_path / "plain",
        {"txt": str, "bin": bytes},
        [{"__key__": key, "txt": "hi", "bin": b"\0"} for key in ("a", "é")],
    )
    plain = (tmp_path / "plain" / "shard-000000.tar").read_bytes()
    assert hashlib.sha256(plain).hexdigest() == "f14a268cc8f655b28a7b8ef575bd1cdc4820b21375dad22b6f0083b395f97ef3"


def test_shards_by_rows_and_by_size(tmp_path: Path) -> None:
    samples = [{"bin": bytes(600)} for _ in range(7)]
    write(tmp_path / "rows", {"bin": bytes}, samples, shard_rows=3, prefix="train")
    assert sorted(os.listdir(tmp_path / "rows")) == ["train-000000.tar", "train-000001.tar", "train-000002.tar"]
    assert open_tar(tmp_path / "rows").read(np.arange(7))["__key__"] == [f"{n:09d}" for n in range(7)]
    write(tmp_path / "size", {"bin": bytes}, samples, shard_size=10240)
    assert [os.path.getsize(tmp_path / "size" / f"shard-00000{n}.tar") for n in range(2)] == [10240, 10240]
    assert len(open_tar(tmp_path / "size")) == 7
    write(tmp_path / "tiny", {"bin": bytes}, samples, shard_size=1)
    assert len(os.listdir(tmp_path / "tiny")) == 7


def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, {"txt": str}, [{"txt": "a"}, {"txt": "b"}])
    with pytest.raises(AlreadyExistsError):
        TarWriter(str(path), Features.of({"txt": str}), mode="create")
    write(path, {"txt": str, "cls": int}, [{"txt": "c", "cls": 1}], mode="append")
    rows = open_tar(path)
    assert rows.read(np.arange(3)).to_samples() == [
        {"__key__": "000000000", "txt": "a", "cls": None},
        {"__key__": "000000001", "txt": "b", "cls": None},
        {"__key__": "000000002", "txt": "c", "cls": 1},
    ]
    write(path, {}, [], mode="append")
    assert [name for name in sorted(os.listdir(path)) if name.endswith(".tar")] == [
        "shard-000000.tar",
        "shard-000001.tar",
    ]
    with pytest.raises(ArgumentError, match=r"expected shards that sort before a-00000\.tar, got shard-000001\.tar"):
        TarWriter(str(path), Features.of({"txt": str}), mode="append", prefix="a")
    write(path, {"txt": str}, [{"txt": "new"}], mode="overwrite")
    assert all_samples(open_tar(path)) == [{"__key__": "000000000", "txt": "new"}]
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_writing_no_samples(tmp_path: Path) -> None:
    write(tmp_path / "out", {"txt": str}, [])
    rows = open_tar(tmp_path / "out", schema=Features.of({"txt": str}))
    assert (len(rows), rows.read(np.empty(0, np.int64)).names) == (0, ["__key__", "txt"])


@pytest.mark.parametrize("key", ["a.b", "..", "../a", "a/../b", "/a", "", "a\0", "__a__/b", "a/b.c", 7, "\ud800"])
def test_invalid_keys_raise(key: Any, tmp_path: Path) -> None:
    out = TarWriter(str(tmp_path / "out"), Features.of({"txt": str}), mode="create")
    with pytest.raises(SchemaError, match=r"expected (a key that is a relative name|text).* - at sample 0"):
        out.append({"__key__": key, "txt": ""})
    out.append({"__key__": "d.x/good", "txt": ""})
    with pytest.raises(
        SchemaError, match=r"expected a different key for each sample, got 'd\.x/good' again - at sample 1"
    ):
        out.append({"__key__": "d.x/good", "txt": ""})
    out.close()
    assert open_tar(tmp_path / "out").read(np.array([0]))["__key__"] == ["d.x/good"]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": [1, 2], "s": "a"}, r"expected float32\[3\], got .* - at sample 1, field x"),
        ({"s": "a"}, r"expected float32\[3\], got nothing .* - at sample 1, field x"),
        ({"x": [1, 2, 3], "s": 5}, "expected text, got int 5 - at sample 1, field s"),
        ({"x": [1, 2, 3], "t": 5}, "expected the fields x, s, f, __key__, got 't' too - at sample 1"),
        (
            {"x": [1, 2, 3], "f": float("inf")},
            "field f: expected a number that JSON can hold, got inf .* - at sample 1",
        ),
    ],
)
def test_refused_sample_is_not_written(sample: dict[str, Any], message: str, tmp_path: Path) -> None:
    features = Features.of({"x": Array("float32", (3,)), "s": Optional(Text()), "f": Optional(Value("float64"))})
    out = TarWriter(str(tmp_path / "out"), features, mode="create")
    out.append({"x": [1, 2, 3]})
    with pytest.raises(SchemaError, match=message):
        out.append(sample)
    out.append({"x": [4, 5, 6], "s": "b", "f": float("nan")})
    out.close()
    found = all_samples(open_tar(tmp_path / "out", schema=features))
    assert [(sample["__key__"], sample["x"].tolist(), sample["s"]) for sample in found] == [
        ("000000000", [1, 2, 3], None),
        ("000000001", [4, 5, 6], "b"),
    ]


@settings(deadline=None, max_examples=50)
@given(
    st.text(st.sampled_from("ab._/"), min_size=1, max_size=9), st.text(st.sampled_from("ab._"), min_size=1, max_size=4)
)
def test_accepted_keys_and_fields_are_read_back(key: str, part: str) -> None:
    from webdataset.tariterators import base_plus_ext

    with tempfile.TemporaryDirectory() as folder:
        try:
            write(Path(folder) / "out", {part: bytes}, [{"__key__": key, part: b""}])
        except SchemaError:
            return
        path = Path(folder) / "out" / "shard-000000.tar"
        assert all_samples(open_tar(path, schema=Features({part: Bytes()}))) == [{"__key__": key, part: b""}]
    assert base_plus_ext(f"{key}.{part}") == (key, part)


def test_fields_that_cannot_be_extensions_raise(tmp_path: Path) -> None:
    for features, message in [
        ({"a/b": str}, "expected a field name that can be a file extension, got 'a/b'"),
        ({"x": Array(), "X": Array()}, "got 'x' and 'X', both read as 'x.npy'"),
        (
            {"x": Sequence(Bytes())},
            r"expected values that JSON can hold, got list of bytes - at field x \(name it x.msgpack\)",
        ),
    ]:
        with pytest.raises(SchemaError, match=message):
            TarWriter(str(tmp_path / "out"), Features.of(features), mode="create")
    with pytest.raises(SchemaError, match="expected a sample with at least one field"):
        write(tmp_path / "none", {"s": Optional(Text())}, [{"s": None}])
    for options in ({"shard_rows": 0}, {"shard_size": 0}, {"prefix": "../x"}, {"prefix": ".x"}):
        with pytest.raises(ArgumentError, match="expected"):
            TarWriter(str(tmp_path / "out"), Features.of({"s": str}), mode="create", **cast(Any, options))
    assert not (tmp_path / "out").exists()


def test_msgpack_maps_are_written_like_atdata(tmp_path: Path) -> None:
    write(tmp_path / "out", {"msgpack": Json()}, [{"__key__": "k", "msgpack": {"x": np.arange(2), "s": "é"}}])
    rows = open_tar(tmp_path / "out", schema=Features({"x": Array()}))
    (sample,) = all_samples(rows)
    assert_same(sample.pop("x"), np.arange(2))
    assert sample == {"__key__": "k", "s": "é"}
    nested = Features.of({"m.msgpack": list[bytes], "txt": str})
    write(tmp_path / "nested", nested, [{"m.msgpack": [b"\0", b"\xff"], "txt": ""}])
    assert open_tar(tmp_path / "nested", schema=nested).sample(0)["m.msgpack"] == [b"\0", b"\xff"]


def test_nothing_is_visible_before_close(tmp_path: Path) -> None:
    out = format_named("tar").create(str(tmp_path / "out"), Features.of({"s": str}), mode="create")
    out.append({"s": "a"})
    assert not (tmp_path / "out").exists()
    out.abort()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ClosedError, match="expected an open writer"):
        out.append({"s": "a"})
    assert os.listdir(tmp_path) == []


def test_empty_arrays_inside_structs_keep_their_shape_or_are_refused(tmp_path: Path) -> None:
    """JSON holds lists: the shape of an array without elements must follow from the feature."""
    known, free = {"s": sx.Struct({"a": sx.Array("int8", (None, 2))})}, {"s": sx.Struct({"a": sx.Array("int8")})}
    sample = {"s": {"a": np.zeros((0, 2), np.int8)}}
    sx.write(tmp_path / "known", [sample], known, format="tar")
    assert sx.open(tmp_path / "known", schema=known)[0].s["a"].shape == (0, 2)
    with pytest.raises(SchemaError, match=r"whose shape a list cannot hold - at field s"):
        sx.write(tmp_path / "free", [sample], free, format="tar")


# -- the schema in a tar --------------------------------------------------------------------------------------------

DECLARED: dict[str, Any] = {
    "d": dict,
    "n": "int32",
    "Label": sx.ClassLabel(["a", "b"]),
    "x": sx.Array("float32", (3,)),
    "note": str | None,
    "ok": bool,
    "X": bytes,
    "cls": int,
}


def declared(k: int) -> dict[str, Any]:
    return {
        "d": {"k": k},
        "n": k,
        "Label": k % 2,
        "x": np.full(3, k, "float32"),
        "note": None,
        "ok": k > 1,
        "X": b"x",
        "cls": k,
    }


def test_a_tar_alone_has_the_names_and_types_it_was_written_with(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", map(declared, range(5)), DECLARED, format="tar", shard_rows=2)
    (tmp_path / "moved").mkdir()
    shutil.copy(tmp_path / "d" / "shard-000001.tar", tmp_path / "moved" / "mine.tar")
    alone = sx.open(tmp_path / "moved" / "mine.tar")
    assert {name: alone.features[name] for name in DECLARED} == dict(Features.of(DECLARED))
    assert [sample.n for sample in alone] == [2, 3] and alone[1].note is None
    place = open_source("memory://moved/tar")
    place.put("mine.tar", (tmp_path / "moved" / "mine.tar").read_bytes())
    remote = sx.open(place.url, access="ranged", cache=tmp_path / "cache")
    assert remote.features == alone.features and remote[1].x.tolist() == [3, 3, 3]
    names = [member.partition(".")[2] for member in members(tmp_path / "moved") if member.startswith("000000003")]
    assert sorted(names) == ["Label.cls", "X", "cls", "d.json", "n.cls", "ok.json", "x.npy"]
    (one, _) = by_webdataset(tmp_path / "moved" / "mine.tar")
    assert one["d.json"] == b'{"k":2}' and one["x.npy"] == npy(np.full(3, 2, "float32"))


def test_tars_that_their_extensions_describe_have_no_schema(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"cls": 1, "txt": "a", "jpg": b"\xff\xd8"}], format="tar")
    assert (tmp_path / "d" / "shard-000000.tar").read_bytes().startswith(b"000000000.cls")
    assert str(sx.open(tmp_path / "d").features) == "__key__ text, cls int64, txt text, jpg image(format='jpeg')"


def test_other_tools_and_old_tars_keep_their_names(tmp_path: Path) -> None:
    pack(tmp_path / "d" / "a.tar", {"0.x.npy": npy([1.5, 2]), "0.json": b"{}"})
    assert open_tar(tmp_path / "d").extensions == ["x.npy", "json"] and "x.npy" in open_tar(tmp_path / "d").features
    write(tmp_path / "d", {"x": Array("float32", (2,)), "json": Json()}, [{"x": [3, 4], "json": 1}], "append")
    both = open_tar(tmp_path / "d")  # the name that was written; types are those of the extensions
    assert str(both.features) == "__key__ text, x any[...], json json"
    assert [one["x"].dtype for one in all_samples(both)] == ["float64", "float32"]


@pytest.mark.parametrize("layout", ["parts", "msgpack"])
def test_fields_that_the_first_sample_lacks_keep_their_place(tmp_path: Path, layout: str) -> None:
    schema = {"a": int | None, "cls": int, "txt": str | None, "b.x": Array("int8", (2,)), "jpg": bytes, "z": str | None}
    samples = [dict(a=k or None, cls=k, txt=None, jpg=b"j", z=f"{k}", **{"b.x": [k, k]}) for k in range(2)]
    write(tmp_path / "d", schema, samples, layout=layout)
    assert list(open_tar(tmp_path / "d").features) == ["__key__", *schema]
    if layout == "parts":
        write(tmp_path / "d", {"n": int | None, **schema}, [{"n": 1, **samples[1]}], "append")
        assert list(open_tar(tmp_path / "d").features) == ["__key__", *schema, "n"]


def test_appended_fields_fit_those_of_the_tars(tmp_path: Path) -> None:
    write(tmp_path / "d", {"x": Array("float32", (2,)), "n": int}, [{"x": [1, 2], "n": 1}])
    with pytest.raises(SchemaError, match=r"shard-000000\.tar: expected the field 'x' as float32\[2\].*got text"):
        write(tmp_path / "d", {"x": str}, [], "append")
    with pytest.raises(SchemaError, match="expected layout='parts' to append to this tar, got 'msgpack'"):
        write(tmp_path / "d", {"y": str}, [], "append", layout="msgpack")
    write(tmp_path / "d", {"x": Array("float32", (2,)), "y": str}, [{"x": [3, 4], "y": "b"}], "append")
    rows = open_tar(tmp_path / "d")
    assert str(rows.features) == "__key__ text, x float32[2], n int64 or none, y text or none"
    assert [(one["n"], one["y"]) for one in all_samples(rows)] == [(1, None), (None, "b")]
    with sx.create(tmp_path / "d", format="tar", mode="append") as out:  # the schema is that of the tars
        out.append(x=[5, 6])
        with pytest.raises(SchemaError, match="expected the fields"):
            out.append(x=[5, 6], other=1)
    write(tmp_path / "e", {"x": str}, [{"x": "a"}])
    with pytest.raises(SchemaError, match=r"e/shard-000000\.tar: expected the field 'x' as float32\[2\].*schema="):
        open_tar([str(tmp_path / "d" / "shard-000000.tar"), str(tmp_path / "e" / "shard-000000.tar")])


def test_fields_of_maps_keep_their_types(tmp_path: Path) -> None:
    schema = {"x": Array("float32", (2,)), "Note": str | None, "n": int}
    write(tmp_path / "d", schema, [{"x": [1, 2], "n": 3}], layout="msgpack")
    rows = open_tar(tmp_path / "d")
    assert {name: rows.features[name] for name in schema} == dict(Features.of(schema))
    assert all_samples(rows)[0]["x"].tolist() == [1, 2]


def test_members_that_were_removed_or_added_later(tmp_path: Path) -> None:
    write(tmp_path / "d", {"x": Array("float32", (2,)), "y": str}, [{"x": [1, 2], "y": "a"}])
    path = tmp_path / "d" / "shard-000000.tar"
    with tarfile.open(path) as tar:
        head = tar.pax_headers
    added = {"0.x.npy": npy(np.array([1, 2], "f4")), "0.x": b"other"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers=head) as tar:
        for name, data in added.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert list(open_tar(tmp_path / "d", rebuild=True).features) == ["__key__", "x.npy", "x"]


@pytest.mark.parametrize("record", [b"[]", b"{", b'{"x": 1}', b'{"x": {"kind": "value", "dtype": "no"}}', b"\xff"])
def test_a_bad_schema_in_a_tar_raises(record: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shared_header(record) + member("0.x.npy", npy([1])) + bytes(1024))
    with pytest.raises(FormatError, match=r"a\.tar: expected a schema in the tar"):
        open_tar(tmp_path / "a.tar")


# -- arrays of one dtype and shape --------------------------------------------------------------------------------


def test_equal_npy_members_are_typed(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {f"{k}.npy": npy(np.full((2, 3), k, "int16")) for k in range(3)})
    pack(tmp_path / "b.tar", {f"{k}.{one}": npy(np.ones((2, 3), "int16")) for k in (3, 4) for one in ("npy", "z.npy")})
    for what in (tmp_path / "a.tar", tmp_path):
        rows = open_tar(what)
        assert rows.features["npy"] == Array("int16", (2, 3))
        all_samples(rows)
    assert rows.features["z.npy"] == Optional(Array())  # not in all tars
    table = sx.open(tmp_path / "a.tar").to_arrow()
    assert sx.open(table)[2]["npy"].tolist() == [[2] * 3] * 2
    assert len(sx.open(tmp_path / "a.tar").where("npy[1][1] = 2")) == 1


@pytest.mark.parametrize(
    "other",
    [
        np.ones((3, 2), "int16"),
        np.ones((2, 3), "uint16"),
        np.ones(6, "int16"),
        np.asfortranarray(np.ones((2, 3), "i2")),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_npy_members_that_differ_stay_of_any_kind(other: Any, together: bool, tmp_path: Path) -> None:
    """They have the same size in bytes."""
    first = {f"{k}.npy": npy(np.full((2, 3), k, "int16")) for k in range(3)}
    more = {"9.npy": npy(other)}
    pack(tmp_path / "a.tar", {**first, **(more if together else {})})
    if not together:
        pack(tmp_path / "b.tar", more)
    rows = open_tar(tmp_path)
    assert rows.features["npy"] == Array()
    np.testing.assert_array_equal(all_samples(rows)[3]["npy"], other)


# -- samples by key -----------------------------------------------------------------------------------------------


def test_samples_are_found_by_their_key(tmp_path: Path) -> None:
    keys = [f"{folder}/{k:04d}" for folder in ("a", "é") for k in range(50)]
    sx.write(tmp_path / "d", [{"__key__": key, "n": k} for k, key in enumerate(keys)], format="tar", shard_rows=30)
    ds = sx.open(tmp_path / "d")
    assert [ds.get(key).n for key in keys] == list(range(100))
    assert ds.rows_of(keys[::-1]).tolist() == list(range(100))[::-1] and ds.rows_of([]).tolist() == []
    assert ds[10:].rows_of(np.array(["a/0011"])).tolist() == [1] and ds.select("n").get("a/0003") == {"n": 3}
    for key in ("a/50", "", "a/00", 7, None, b"a/0001"):
        with pytest.raises(UnknownKeyError, match="expected the __key__ of a sample, got"):
            ds.get(key)
    with pytest.raises(KeyError):
        ds[50:].get("a/0001")
    with pytest.raises(ArgumentError, match="expected a list or an array of keys, got str"):
        ds.rows_of("a/0001")
    with pytest.raises(UnknownKeyError):
        sx.open(pack(tmp_path / "e.tar", {})).get("x")


def test_a_key_of_two_samples_raises(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pack(tmp_path / f"{name}.tar", {"0.txt": name.encode(), f"{name}.txt": b""})
    ds = sx.open(tmp_path)
    assert ds.get("b").txt == ""
    with pytest.raises(DuplicateKeyError, match=r"one sample with the key '0', got 2: .*a\.tar, .* and .*b\.tar, "):
        ds.get("0")


def test_numbers_of_keys_need_not_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.formats.tar.members.number_of", lambda data: 5)
    monkeypatch.setattr("shardex.formats.tar.members.number_of", lambda data: 5)
    ds = sx.open(pack(tmp_path / "a.tar", {f"{k}.txt": str(k).encode() for k in range(3)}))
    assert [ds.get(str(k)).txt for k in range(3)] == ["0", "1", "2"]
    with pytest.raises(UnknownKeyError):
        ds.get("3")


@dataclass
class Picture:
    jpg: NDArray[np.uint8]


@dataclass
class Stored:
    jpg: bytes


def test_images_of_foreign_tars_are_arrays_or_bytes_as_a_class_says(tmp_path: Path) -> None:
    data = io.BytesIO()
    Pillow.fromarray(np.full((8, 6, 3), 90, np.uint8)).save(data, "JPEG")
    tar = str(pack(tmp_path / "a.tar", {"0.jpg": data.getvalue()}))
    assert sx.open(tar, Picture)[0].jpg.shape == next(sx.open(tar, Picture).ordered(1)).jpg[0].shape == (8, 6, 3)
    for ds in (sx.open(tar, Stored), sx.open(tar).decode(False).as_type(Stored), sx.open(tar).as_type(Stored)):
        assert ds[0].jpg == next(ds.ordered(1)).jpg[0] == data.getvalue()
