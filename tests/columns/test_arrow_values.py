"""Values of Arrow arrays of all types, with nulls at any depth.
Images as structs of bytes and a path, as Hugging Face writes them to Arrow and Parquet files."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardex as sx
from shardex.columns import decode_array
from shardex.columns.arrow_types import storage_array, storage_type
from shardex.columns.arrow_values import decode_value, no_file, take_rows
from shardex.errors import FormatError, SchemaError
from shardex.features import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Image,
    Json,
    Map,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    features_of_arrow,
)
from shardex.features.array_arrow import decode_array_bytes
from shardex.kernel import Ragged, values_of
from shardex.samples import DictSample

UTC = datetime.UTC


def suggested(array: pa.Array) -> Feature:
    return features_of_arrow(pa.schema([("x", array.type)]))["x"]


CASES: dict[str, tuple[pa.Array, list[Any]]] = {
    "bool": (pa.array([True, False]), [True, False]),
    "half": (pa.array(np.array([0.5, 1.5], np.float16)), [0.5, 1.5]),
    "text": (pa.array(["a", "é"]), ["a", "é"]),
    "view": (pa.array(["a", "b" * 20], pa.string_view()), ["a", "b" * 20]),
    "bytes view": (pa.array([b"a", b"b" * 20], pa.binary_view()), [b"a", b"b" * 20]),
    "fixed bytes": (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "runs": (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", "y"])), ["x", "x", "y"]),
    "uuid": (pa.array([b"0" * 16], pa.uuid()), [b"0" * 16]),
    "date": (pa.array([datetime.date(2020, 2, 3)]), [datetime.date(2020, 2, 3)]),
    "time": (pa.array([datetime.time(1, 2)]), [datetime.time(1, 2)]),
    "time in ns": (pa.array([1, 2], pa.time64("ns")), [np.timedelta64(1, "ns"), np.timedelta64(2, "ns")]),
    "timestamp": (pa.array([0], pa.timestamp("s", "UTC")), [datetime.datetime(1970, 1, 1, tzinfo=UTC)]),
    "timestamp in ns": (pa.array([1], pa.timestamp("ns")), [np.datetime64(1, "ns")]),
    "duration in ns": (pa.array([1], pa.duration("ns")), [np.timedelta64(1, "ns")]),
    "decimal": (pa.array([Decimal("1.50")]), [Decimal("1.50")]),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())), [{"a": 1}, {}]),
    "map with other keys": (
        pa.array([[([1], 2)]], pa.map_(pa.list_(pa.int8()), pa.int8())),
        [[(np.array([1], "i1"), 2)]],
    ),
    "null": (pa.nulls(2), [None, None]),
    "lists of text": (pa.array([["a"], [], ["b", "c"]]), [["a"], [], ["b", "c"]]),
    "sized lists of text": (pa.array([["a", "b"]] * 2, pa.list_(pa.string(), 2)), [["a", "b"]] * 2),
    "sized lists of truth": (pa.array([[True, False]], pa.list_(pa.bool_(), 2)), [[True, False]]),
    "structs": (pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}]), [{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
    "no parts": (pa.array([{}, {}], pa.struct([])), [{}, {}]),
    "lists of structs": (pa.array([[{"a": [1, 2]}], None]), [[{"a": np.array([1, 2])}], None]),
    "numbers with holes": (pa.array([[1, None], [2]]), [[1, None], np.array([2])]),
    "sized numbers with holes": (
        pa.array([[1, None], [2, 3]], pa.list_(pa.int8(), 2)),
        [[1, None], np.array([2, 3], np.int8)],
    ),
    "lists of dictionaries": (
        pa.array([["a"], ["b", "a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        [["a"], ["b", "a"]],
    ),
}


@pytest.mark.parametrize(("array", "expected"), CASES.values(), ids=CASES)
def test_values_of_all_arrow_types(array: pa.Array, expected: list[Any]) -> None:
    feature = suggested(array)
    assert DictSample(v=values_of(decode_array(array, feature))) == {"v": expected}
    assert DictSample(v=[decode_value(array, k, feature) for k in range(len(array))]) == {"v": expected}
    empty = array.slice(0, 0)
    assert values_of(decode_array(empty, feature)) == []


@pytest.mark.parametrize(("array", "expected"), CASES.values(), ids=CASES)
def test_nulls_of_all_arrow_types(array: pa.Array, expected: list[Any]) -> None:
    if pa.types.is_run_end_encoded(array.type):
        pytest.skip("Arrow cannot put a null between runs")
    with_null = pa.concat_arrays([array, pa.nulls(1, array.type), array])
    found = values_of(decode_array(with_null, Optional(suggested(array))))
    assert DictSample(v=found) == {"v": [*expected, None, *expected]}


def test_slices_of_arrays() -> None:
    for array, expected in CASES.values():
        found = values_of(decode_array(array.slice(1), suggested(array)))
        assert DictSample(v=found) == {"v": expected[1:]}


def test_storage_arrays_have_the_storage_type() -> None:
    for array, _ in CASES.values():
        assert storage_array(array).type == storage_type(array.type)


def test_arrays_are_stacked_or_ragged() -> None:
    fixed = decode_array(pa.array([[1, 2, 3, 4]] * 2, pa.list_(pa.int8(), 4)), Array("int8", (2, 2)))
    assert isinstance(fixed, np.ndarray)
    assert fixed.tolist() == [[[1, 2], [3, 4]]] * 2
    ragged = decode_array(pa.array([[1, 2, 3, 4], []], pa.list_(pa.int8())), Array("int8", (None, 2)))
    assert isinstance(ragged, Ragged)
    assert [row.tolist() for row in ragged] == [[[1, 2], [3, 4]], []]
    listed = decode_array(pa.array([[1, 2], [3, 4]], pa.list_(pa.int8())), Array("int8", (2,)))
    assert isinstance(listed, np.ndarray)
    assert listed.tolist() == [[1, 2], [3, 4]]
    points = decode_array(pa.array([[5], [6]], pa.list_(pa.int8())), Array("int8", ()))
    assert DictSample(v=points) == {"v": [np.array(5, np.int8), np.array(6, np.int8)]}


@pytest.mark.parametrize(
    ("array", "feature", "message"),
    [
        (
            pa.array([[1, 2, 3]], pa.list_(pa.int8())),
            Array("int8", (2,)),
            r"expected int8\[2\], got lists of 3 elements",
        ),
        (pa.array([[1, 2, 3], [1]]), Array("int64", (None, 2)), r"expected int64\[\?, 2\], got lists of 1, 3 elements"),
        (pa.array([b"abc"]), Array("int16", (2,)), r"expected the bytes of int16\[2\], got 3 bytes"),
        (pa.array([b"abc"]), Array("int16", (None,)), r"expected the bytes of int16\[\?\], got 3 bytes"),
        (pa.array([b""]), Array("int16", (None, None)), r"expected the bytes of int16\[\?, \?\], got 0 bytes"),
        (pa.array([b""]), Array("int16", (None, 0)), r"expected the bytes of int16\[\?, 0\], got 0 bytes"),
        (pa.array([b"abc"]), Array(), "expected"),
        (pa.array([b"\xff"]), Text(), "expected UTF-8"),
        (pa.array(["{"]), Json(), "expected .*JSON"),
        (
            pa.array([10**7], pa.date32()),
            suggested(pa.array([0], pa.date32())),
            "expected date that Python's datetime can hold, got 29349-01-26",
        ),
        (
            pa.array(
                [{"values": [1, 2], "shape": [3]}],
                pa.struct({"values": pa.list_(pa.int8()), "shape": pa.list_(pa.int64())}),
            ),
            Array("int8"),
            r"expected an array of shape \[3\], got 2 elements",
        ),
    ],
)
def test_bad_values_are_errors(array: pa.Array, feature: Feature, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        values_of(decode_array(array, feature))


def test_arrays_stored_as_bytes() -> None:
    raw = np.arange(6, dtype=np.int16).tobytes()
    assert decode_array_bytes(raw, Array("int16", (2, 3))).shape == (2, 3)
    assert decode_array_bytes(raw, Array("int16", (None, 3))).shape == (2, 3)
    assert decode_array_bytes(raw[:2], Array("int16", ())).shape == ()
    assert decode_array(pa.array([raw, None]), Optional(Array("int16", (6,))))[1] is None


def test_declared_features_decode() -> None:
    assert decode_array(pa.array([b'{"a":1}']), Json()) == [{"a": 1}]
    assert decode_array(pa.array(["é"]), Bytes()) == ["é".encode()]
    assert decode_array(pa.array([b"x"]), Text()) == ["x"]
    assert values_of(decode_array(pa.array([1, 0]), ClassLabel(("a", "b")))) == [1, 0]
    assert decode_array(pa.array([[b"\1"]]), Sequence(Array("int8", (1,)))) == [[np.array([1], np.int8)]]
    nested = Struct(Features({"j": Json()}))
    assert decode_array(pa.array([{"j": "[1]"}]), nested) == [{"j": [1]}]


def test_rows_are_taken_from_chunks_in_any_order() -> None:
    chunks = [pa.array([0, 1, 2]), pa.array([], pa.int64()), pa.array([3]), pa.array([4, 5])]
    starts = np.array([0, 3, 3, 4, 6])
    opened: list[int] = []

    def arrays(chunk: int) -> dict[str, pa.Array]:
        opened.append(chunk)
        return {"x": chunks[chunk]}

    rows = np.array([5, 0, 3, 5, 2])
    found = take_rows(rows, starts, {"x": Value("int64")}, arrays, str)
    assert values_of(found["x"]) == [5, 0, 3, 5, 2]
    assert opened == [0, 2, 3]
    assert len(take_rows(rows[:0], starts, {"x": Value("int64")}, arrays, str)) == 0


def test_a_bad_value_is_located() -> None:
    chunks = [pa.array([b"ab"]), pa.array([b"cd", b"e"])]
    with pytest.raises(FormatError) as caught:
        take_rows(
            np.array([1, 2, 0]),
            np.array([0, 1, 3]),
            {"x": Array("int8", (2,))},
            lambda chunk: {"x": chunks[chunk]},
            lambda chunk: f"file {chunk}",
        )
    assert str(caught.value) == "expected the bytes of int8[2], got 1 bytes - at file 1, sample 2, field x"


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
IMAGE = Image(decode=False)
METADATA = json.dumps({"info": {"features": {"image": {"_type": "Image", "decode": False}}}})


def held(*values: bytes | str | None) -> list[Any]:
    """Return structs: bytes as such, text as the path of a file."""
    return [
        None
        if one is None
        else {"bytes": one if isinstance(one, bytes) else None, "path": one if isinstance(one, str) else None}
        for one in values
    ]


@pytest.mark.parametrize(
    ("feature", "kind", "values", "expected"),
    [
        (IMAGE, STRUCT, held(b"a", b"b"), [b"a", b"b"]),
        (Optional(IMAGE), STRUCT, held(b"a", None, "f"), [b"a", None, b"<f>"]),
        (Sequence(IMAGE), pa.list_(STRUCT), [held("f", b"b"), [], held(b"c")], [[b"<f>", b"b"], [], [b"c"]]),
        (
            Sequence(Optional(IMAGE)),
            pa.list_(STRUCT, 2),
            [held(None, b"b"), held("f", b"c")],
            [[None, b"b"], [b"<f>", b"c"]],
        ),
        (
            Struct({"i": IMAGE, "s": Text()}),
            pa.struct([("i", STRUCT), ("s", pa.string())]),
            [{"i": held("f")[0], "s": "x"}],
            [{"i": b"<f>", "s": "x"}],
        ),
        (Map(str, IMAGE), pa.map_(pa.string(), STRUCT), [[("k", held("f")[0])]], [[("k", b"<f>")]]),
        (IMAGE, pa.binary(), [b"a"], [b"a"]),
    ],
)
def test_structs_become_bytes(feature: Feature, kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    array = pa.array(values, kind)

    def read(path: str) -> bytes:
        return f"<{path}>".encode()

    assert feature.without_structs(array, read).to_pylist() == expected
    for row in range(len(array)):
        assert feature.without_structs(array.slice(row, 1), read).to_pylist() == expected[row : row + 1]


def test_bytes_are_not_copied() -> None:
    array = pa.array(held(b"abc", b"def"), STRUCT)
    assert IMAGE.without_structs(array, no_file).buffers()[2].address == array.field("bytes").buffers()[2].address


def write_arrow(table: pa.Table, folder: Path, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(folder / "t.arrow", table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    return folder / "t.arrow"


def write_parquet(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "t.parquet", row_group_size=2)
    return folder / "t.parquet"


WRITERS = [write_arrow, lambda table, folder: write_arrow(table, folder, "lz4"), write_parquet]


@pytest.mark.parametrize("write", WRITERS)
def test_files_hold_bytes_and_paths_in_their_folder(write: Callable[[pa.Table, Path], Path], tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "x").write_bytes(b"file")
    expected = [b"a", b"file", None, b"file", b"", b"z"]
    values = held(b"a", "img/x", None, str(tmp_path / "img" / "x"), b"", b"z")
    table = pa.table({"image": pa.array(values, STRUCT)}).replace_schema_metadata({"huggingface": METADATA})
    ds = sx.open(write(table, tmp_path))
    assert ds.features == Features({"image": Optional(Image(None, decode=False))})
    assert [sample["image"] for sample in ds] == expected
    assert ds.read([5, 1, 2, 0, 1])["image"] == [b"z", b"file", None, b"a", b"file"]
    assert ds.to_arrow().column("image").to_pylist() == expected
    assert len(ds.where("image IS NULL")) == 1 and len(ds.where("octet_length(image) = 4")) == 2
    declared = sx.open(write(table.replace_schema_metadata(None), tmp_path), schema={"image": IMAGE})
    assert declared.features == Features({"image": Optional(IMAGE)})
    assert [sample["image"] for sample in declared] == expected


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/hostname", r"expected bytes, or the path of a file in .*, got the path '/etc/hostname'"),
        ("../secret", "expected bytes, or the path of a file in"),
        ("link", "expected bytes, or the path of a file in"),
        ("https://host/x.png", ""),
        ("no.png", "No such file"),
        (None, "expected the bytes or the path of image"),
    ],
)
def test_other_files_are_not_read(
    write: Callable[[pa.Table, Path], Path], path: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    values = [{"bytes": b"a", "path": None}, {"bytes": None, "path": path}]
    table = pa.table({"image": pa.array(values, STRUCT)}).replace_schema_metadata({"huggingface": METADATA})
    ds = sx.open(write(table, folder))
    assert ds[0]["image"] == b"a"
    for read in (lambda: ds[1], lambda: ds.read([0, 1])):
        with pytest.raises(FormatError, match=rf"{message}.*sample 1, field image"):
            read()


def test_tables_in_memory_have_no_folder() -> None:
    table = pa.table({"image": pa.array(held(b"a", "x"), STRUCT)})
    ds = sx.open(table, schema={"image": IMAGE})
    assert ds[0]["image"] == b"a"
    with pytest.raises(FormatError, match=r"expected the bytes of a file, got only its path 'x' .*sample 1"):
        ds[1]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.struct([("bytes", pa.binary())]), pa.struct([("bytes", pa.string()), ("path", pa.string())])],
)
def test_other_types_are_no_media(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"expected a feature that .* can be read as, got image"):
        sx.open(pa.table({"image": pa.nulls(1, kind)}), schema={"image": IMAGE})
    assert sx.open(pa.table({"x": [b"a"]})).features == Features({"x": Bytes()})


def test_null_paths_in_parquet_do_not_make_images_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.formats.parquet._PROBE_BYTES", 0)  # nothing is decoded to find nulls
    values = [{"bytes": b"a", "path": "x.png"}, {"bytes": b"b", "path": None}]
    table = pa.table({"image": pa.array(values, STRUCT)}).replace_schema_metadata({"huggingface": METADATA})
    assert sx.open(write_parquet(table, tmp_path)).features == Features({"image": Image(None, decode=False)})
    table = table.set_column(0, "image", pa.array([*values[:1], None], STRUCT))
    assert sx.open(write_parquet(table, tmp_path)).features == Features({"image": Optional(Image(None, decode=False))})
