"""Tars exchanged with webdataset and atdata, in both directions."""

from __future__ import annotations

import gc
import json
import re
import shutil
import struct
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import webdataset
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Array, Feature, Json, Opaque, Optional, Sequence, Struct, Text

ATDATA = Path(__file__).parents[1] / "fixtures" / "atdata"
SCHEMA: dict[str, Any] = {
    "image": Array("float32", (2, 3)),
    "label": str,
    "n": int,
    "score": float,
    "flag": bool,
    "blob": bytes,
    "maybe": Optional(Array("int64", (None,))),
    "tags": list[str],
    "boxes": Sequence(Array("int16", (4,))),
    "meta": Struct({"a": Optional(Array("int8", (2,))), "b": Text()}),
    "json": Json(),
    "cls": sx.ClassLabel(("cat", "dog")),
}


def sample(k: int) -> dict[str, Any]:
    return {
        "image": np.full((2, 3), k, np.float32),
        "label": f"läbel {k}",
        "n": k * 10**9,
        "score": k / 3,
        "flag": k % 2 == 0,
        "blob": bytes([k, 255]),
        "maybe": None if k % 3 == 0 else np.arange(k),
        "tags": ["a", f"t{k}"],
        "boxes": [np.array([k, 1, 2, 3], np.int16)] * (k % 2),
        "meta": {"a": None if k % 2 else np.array([k, 1], np.int8), "b": "x"},
        "json": {"k": [k, None, {"é": 1.5}]},
        "cls": k % 2,
    }


def read_by_webdataset(what: str, decode: bool = False) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves files to the garbage collector
        found = webdataset.WebDataset(what, shardshuffle=False)
        samples = list(found.decode() if decode else found)
        del found
        gc.collect()
    return samples


def read_by_atdata_rules(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and fields of each sample by the rules of atdata: one member, whose key ends at the first dot of its name."""
    with tarfile.open(path) as tar:
        for member in tar:
            assert member.isreg() and re.fullmatch(r"[^./]+\.msgpack", member.name)
            file = tar.extractfile(member)
            assert file is not None
            yield member.name.partition(".")[0], msgspec.msgpack.decode(file.read())


def decode_array(raw: bytes) -> NDArray[Any]:
    """Decode an array of atdata: the dtype as text, the number of dimensions, the shape, the elements."""
    length = raw[0]
    dtype, count = np.dtype(raw[1 : 1 + length].decode()), raw[1 + length]
    shape = struct.unpack_from(f"<{count}q", raw, 2 + length)
    return np.frombuffer(raw[2 + length + 8 * count :], dtype).reshape(shape)


# -- one msgpack map per sample ---------------------------------------------------------------------------------------


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    with sx.create(tmp_path / "maps", SCHEMA, format="tar", layout="msgpack", shard_rows=4) as out:
        for k in range(10):
            out.append(sample(k))
    return tmp_path / "maps"


def test_msgpack_tars_follow_the_rules_of_atdata(maps: Path) -> None:
    found = [one for path in sorted(maps.glob("*.tar")) for one in read_by_atdata_rules(path)]
    assert [key for key, _ in found] == [f"{k:09d}" for k in range(10)]
    for k, (_, fields) in enumerate(found):
        expected = sample(k)
        assert list(fields) == list(SCHEMA)
        assert decode_array(fields["image"]).dtype.str == "<f4" and (decode_array(fields["image"]) == k).all()
        assert fields["maybe"] is None if k % 3 == 0 else decode_array(fields["maybe"]).tolist() == list(range(k))
        plain = ("label", "n", "score", "flag", "blob", "tags", "json", "cls")
        assert {name: fields[name] for name in plain} == {name: expected[name] for name in plain}
        assert [decode_array(box).tolist() for box in fields["boxes"]] == [[k, 1, 2, 3]] * (k % 2)


def test_webdataset_reads_msgpack_tars(maps: Path) -> None:
    found = read_by_webdataset(f"{maps}/shard-{{000000..000002}}.tar")
    assert [one["__key__"] for one in found] == [f"{k:09d}" for k in range(10)]
    assert {tuple(sorted(name for name in one if not name.startswith("__"))) for one in found} == {("msgpack",)}
    assert [msgspec.msgpack.decode(one["msgpack"])["n"] for one in found] == [k * 10**9 for k in range(10)]


def test_msgpack_tars_read_back_with_and_without_schema(maps: Path) -> None:
    ds = sx.open(maps, schema=SCHEMA)
    assert ds.fields == ["__key__", *SCHEMA]
    for k in range(10):
        assert ds[k] == {"__key__": f"{k:09d}", **sample(k)}
    assert [s for s in ds] == [ds[k] for k in range(10)]  # noqa: C416
    assert ds.read([3, 8])["image"].shape == (2, 2, 3)
    untyped = sx.open(maps)
    assert untyped[1] == ds[1] and untyped.features == ds.features


def test_append_continues_the_keys(maps: Path) -> None:
    with sx.create(maps, SCHEMA, format="tar", layout="msgpack", mode="append") as out:
        out.append(sample(10))
        out.append({**sample(11), "__key__": "mine"})
    ds = sx.open(maps, schema=SCHEMA)
    assert [ds[k]["__key__"] for k in (10, 11)] == ["000000010", "mine"] and ds[11].n == 11 * 10**9


def test_msgpack_tars_have_the_bytes_that_atdata_writes(tmp_path: Path) -> None:
    """Files that atdata wrote, read and written again, have the same members."""
    arrays = {"single": {"image": Array(), "maybe": Optional(Array())}, "sharded": {"x": Array()}}
    for name, schema in arrays.items():
        shutil.copytree(ATDATA / name, tmp_path / name)
        ds = sx.open(tmp_path / name, schema=schema)
        copied = sx.write(tmp_path / f"{name}-copy", ds, format="tar", layout="msgpack")
        assert len(copied) == len(ds)
        before = [one for path in sorted((tmp_path / name).glob("*.tar")) for one in raw_members(path)]
        after = [one for path in sorted((tmp_path / f"{name}-copy").glob("*.tar")) for one in raw_members(path)]
        assert before == after


def raw_members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            yield member.name, file.read()


# -- a member for each field --------------------------------------------------------------------------------


def test_webdataset_decodes_tars_of_parts(tmp_path: Path) -> None:
    schema = {"jpg": bytes, "cls": int, "npy": Array("float32", (2,)), "txt": str, "json": Json()}
    with sx.create(tmp_path / "tars", schema, format="tar", shard_rows=3) as out:
        for k in range(8):
            out.append(jpg=b"\xff\xd8", cls=k, npy=[k, 1], txt=f"é{k}", json={"k": [k]})
    found = read_by_webdataset(f"{tmp_path}/tars/shard-{{000000..000002}}.tar", decode=True)
    assert [(one["cls"], one["txt"], one["json"]) for one in found] == [(k, f"é{k}", {"k": [k]}) for k in range(8)]
    assert all(one["npy"].tolist() == [k, 1] and one["npy"].dtype == np.float32 for k, one in enumerate(found))


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"msgpack": bytes}, "expected a field that can be written as part of a map, got bytes - at field msgpack"),
        ({"d": Opaque("date32[day]")}, "got date32.* - at field d"),
        ({"d": Sequence(Opaque("date32[day]"))}, "at field d"),
    ],
)
def test_fields_that_no_msgpack_map_can_hold_raise(schema: dict[str, Feature], match: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=match):
        sx.create(tmp_path / "d", schema, format="tar", layout="msgpack")
    assert not (tmp_path / "d").exists()


def test_values_that_no_msgpack_map_can_hold_raise(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", {"j": Json()}, format="tar", layout="msgpack") as out:
        with pytest.raises(SchemaError, match=r"expected a value that MessagePack can hold, .* - at sample 0"):
            out.append(j=1 << 70)
        out.append(j=1)
        with pytest.raises(SchemaError, match="expected the fields j, __key__, got 'k' too"):
            out.append(j=1, k=2)
        with pytest.raises(SchemaError, match="expected a key that is a relative name without dots"):
            out.append({"__key__": "a.b", "j": 1})
    assert [s.j for s in sx.open(tmp_path / "d")] == [1]


def test_unknown_layout_raises(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected a layout out of parts, msgpack, got 'pickle'"):
        sx.create(tmp_path / "d", {"x": int}, format="tar", layout="pickle")


# -- tars of other tools ------------------------------------------------------------------------------------


def test_load_dataset_reads_tars_of_webdataset(tmp_path: Path) -> None:
    for split, count in (("train", 7), ("val", 3)):
        (tmp_path / "set").mkdir(exist_ok=True)
        with webdataset.ShardWriter(str(tmp_path / "set" / f"{split}-%06d.tar"), maxcount=3, verbose=0) as out:
            for k in range(count):
                out.write({"__key__": f"s{k}", "cls": k, "json": {"k": k}, "npy": np.arange(k), "bin": b"x"})
    splits = sx.load_dataset(tmp_path / "set")
    assert splits.num_rows == {"train": 7, "validation": 3}
    assert [s.cls for s in splits["train"]] == list(range(7)) and splits["train"][5].npy.tolist() == list(range(5))


def test_load_dataset_reads_tars_of_atdata(tmp_path: Path) -> None:
    expected = json.loads((ATDATA / "expected.json").read_text("utf-8"))
    for name in ("single", "sharded", "legacy_npy"):
        shutil.copytree(ATDATA / name, tmp_path / name)
        schema = {"x" if name == "sharded" else "image": Array()}
        ds = sx.load_dataset(tmp_path / name, split="train", schema=schema)
        assert len(ds) == expected[name]["len"]
        assert [s.label for s in ds.select("label")] == [one["label"] for one in expected[name]["samples"]]
        first = ds[0]["x" if name == "sharded" else "image"]
        assert isinstance(first, np.ndarray)
