"""Images as structs of bytes and a path, as Hugging Face writes them to Arrow and Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardex as sx
from shardex.columns import no_file
from shardex.errors import FormatError, SchemaError
from shardex.features import Bytes, Feature, Features, Image, Map, Optional, Sequence, Struct, Text

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
