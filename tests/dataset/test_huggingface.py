"""Conversion from and to Hugging Face datasets with the real package: equal values in the same memory."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from pyarrow import parquet

import shardex as sx
from shardex.dataset.huggingface import HuggingFaceRows
from shardex.dataset.splits import parse_splits
from shardex.errors import ArgumentError, FormatError, MissingExtraError, SchemaError, UnknownFormatError
from shardex.features import (
    Array,
    Audio,
    ClassLabel,
    Features,
    Image,
    Json,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    Video,
    contains,
)
from shardex.features.hf_metadata import media_of_hf
from shardex.media import encode_image
from tests.strategies import datasets as any_dataset

FEATURES = datasets.Features(
    {
        "i": datasets.Value("int32"),
        "s": datasets.Value("string"),
        "c": datasets.ClassLabel(names=["a", "b"]),
        "l": datasets.List(datasets.Value("float32"), length=3),
        "r": datasets.List(datasets.Value("int64")),
        "big": datasets.LargeList(datasets.Value("int8")),
        "m": datasets.Array2D((2, 3), "float32"),
        "cube": datasets.Array3D((2, 1, 2), "uint8"),
        "free": datasets.Array2D((None, 3), "int8"),
        "flags": datasets.Array2D((1, 2), "bool"),
        "st": {"a": datasets.Value("int64"), "c": datasets.ClassLabel(names=["x", "y"])},
        "q": datasets.List({"t": datasets.Value("string"), "j": datasets.Json()}),
        "j": datasets.Json(),
        "when": datasets.Value("timestamp[us]"),
    }
)
OURS = {
    "i": Optional(Value("int32")),
    "s": Optional(Text()),
    "c": ClassLabel(("a", "b")),
    "l": Array("float32", (3,)),
    "r": Array("int64", (None,)),
    "big": Array("int8", (None,)),
    "m": Array("float32", (2, 3)),
    "cube": Array("uint8", (2, 1, 2)),
    "free": Array("int8", (None, 3)),
    "flags": Sequence(Sequence(Value("bool"))),
    "st": Struct({"a": Optional(Value("int64")), "c": ClassLabel(("x", "y"))}),
    "q": Sequence(Struct({"t": Text(), "j": Json()})),
    "j": Json(),
}


def example(k: int) -> dict[str, Any]:
    return {
        "i": None if k == 2 else k,
        "s": None if k == 3 else f"né{k}",
        "c": k % 2,
        "l": [k, k + 1, k + 2.5],
        "r": [*range(k % 4)],
        "big": [1] * (k % 3),
        "m": [[k, 1, 2], [3, 4, 5]],
        "cube": [[[1, 2]], [[3, k]]],
        "free": [[k, 0, 0]] * (k % 3),
        "flags": [[True, k % 2 == 0]],
        "st": {"a": None if k == 4 else k, "c": 1},
        "q": [{"t": "x", "j": {"k": [k, None]}}] * (k % 2),
        "j": {"k": k} if k % 2 else [k],
        "when": np.datetime64("2020-01-01T00:00:00") + np.timedelta64(k, "s"),
    }


def theirs(count: int = 12) -> Any:
    samples = [example(k) for k in range(count)]
    return datasets.Dataset.from_dict({name: [s[name] for s in samples] for name in FEATURES}, features=FEATURES)


@pytest.fixture
def on_disk(tmp_path: Path) -> Any:
    theirs().save_to_disk(str(tmp_path / "hub"))
    return datasets.load_from_disk(str(tmp_path / "hub"))


def plain(value: Any) -> Any:
    """Lists instead of arrays, at any depth."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def assert_same(ours: sx.Dataset, hub: Any) -> None:
    assert len(ours) == len(hub)
    expected = [plain(dict(one)) for one in hub]
    assert [plain(dict(one)) for one in ours] == expected
    assert [plain(dict(ours[k])) for k in range(len(ours))] == expected


# -- theirs ---------------------------------------------------------------------------------------------------------


def test_features_and_values() -> None:
    ds = sx.open(theirs())
    assert dict(ds.select(*OURS).features) == OURS
    assert_same(ds, theirs())
    assert ds.read([1, 5])["m"].shape == (2, 2, 3) and ds.read([1, 5])["m"].dtype == np.float32


def test_hugging_face_views_become_views(on_disk: Any) -> None:
    for hub in (
        on_disk,
        on_disk.select([3, 1, 1]),
        on_disk.select(range(2, 7)),
        on_disk.shuffle(seed=1),
        on_disk.shuffle(seed=1).select(range(4)),
        on_disk.filter(lambda one: one["c"] == 1),
        on_disk.train_test_split(0.3, seed=0)["test"],
        datasets.concatenate_datasets([on_disk, theirs(3)]),
        on_disk.select([]),
        on_disk.with_format("numpy").with_format(None),
        on_disk.remove_columns(["m", "s"]),
    ):
        assert_same(sx.open(hub), hub)


def test_nothing_is_copied(on_disk: Any) -> None:
    assert isinstance(
        on_disk.data.blocks[0][0] if hasattr(on_disk.data, "blocks") else on_disk.data, datasets.table.MemoryMappedTable
    )
    ds = sx.open(on_disk.shuffle(seed=3))
    held = on_disk.data.table
    for name in ("l", "m", "cube"):
        values = held.column(name).chunk(0)
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        while hasattr(values, "values"):
            values = values.values
        first = [s.i for s in ds].index(0)
        assert ds[first][name].__array_interface__["data"][0] == values.buffers()[1].address


def test_mapped_hugging_face_dataset_pickles_as_file_names(tmp_path: Path) -> None:
    many = datasets.Dataset.from_dict({"x": np.arange(100_000)})
    many.save_to_disk(str(tmp_path / "hub"))
    ds = sx.open(datasets.load_from_disk(str(tmp_path / "hub")))
    packed = pickle.dumps(ds)
    assert len(packed) < 20_000
    again = pickle.loads(packed)
    assert again.fingerprint == ds.fingerprint and again[99_999].x == 99_999


def test_loader_over_a_hugging_face_dataset(on_disk: Any) -> None:
    ds = sx.open(on_disk).select("m", "c")
    batches = list(sx.Loader(ds, batch_size=5, shuffle=True, seed=0))
    assert [len(batch) for batch in batches] == [5, 5, 2] and batches[0].m.shape == (5, 2, 3)


def test_a_saved_dataset_dict_is_loaded_by_splits(tmp_path: Path) -> None:
    saved = {"test": theirs(2), "train": theirs(3), "train_more": theirs(4), "validation": theirs(0)}
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "hub"))
    splits = sx.load_dataset(tmp_path / "hub")
    assert splits.num_rows == {"train": 3, "validation": 0, "test": 2, "train_more": 4}
    assert [one.i for one in splits["train_more"].select("i")] == [example(k)["i"] for k in range(4)]
    assert len(sx.load_dataset(tmp_path / "hub", split="train_more[:2]")) == 2
    with pytest.raises(UnknownFormatError, match=r"splits test, .*; open one .*, all of them with sx\.load_dataset\("):
        sx.open(tmp_path / "hub")
    assert len(sx.open(tmp_path / "hub" / "train")) == 3


def test_caches_beside_a_saved_dataset_are_no_samples(tmp_path: Path) -> None:
    """`map` and `filter` of Hugging Face write Arrow files, with the same fields too, into the folder they read."""
    folder = tmp_path / "hub"
    datasets.Dataset.from_dict({"x": list(range(10))}).save_to_disk(str(folder))
    saved = datasets.load_from_disk(str(folder))
    saved.map(lambda row: {"x": row["x"] + 100})
    saved.filter(lambda row: row["x"] > 5)
    assert len(list(folder.glob("*.arrow"))) == 3
    assert sx.open(folder)["x"].tolist() == list(range(10))
    assert sx.load_dataset(folder, split="train")["x"].tolist() == list(range(10))


def test_a_saved_selection_of_the_shards_is_refused(tmp_path: Path) -> None:
    """Early versions of Hugging Face datasets saved the row numbers of a selection beside the shards."""
    datasets.Dataset.from_dict({"x": list(range(10))}).save_to_disk(str(tmp_path / "hub"))
    state = json.loads((tmp_path / "hub" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "hub" / "state.json").write_text(json.dumps(state))
    with pytest.raises(FormatError, match=r"state\.json: expected the samples of all shards, got a selection"):
        sx.open(tmp_path / "hub")


def test_dataset_dict_round_trip() -> None:
    hub = datasets.DatasetDict({"train": theirs(4), "test": theirs(2)})
    splits = sx.load_dataset(hub)
    assert isinstance(splits, sx.DatasetDict) and splits.num_rows == {"train": 4, "test": 2}
    back = splits.to_huggingface()
    assert isinstance(back, datasets.DatasetDict) and list(back) == ["train", "test"]
    assert back["test"][1] == hub["test"][1]
    assert list(sx.load_dataset(hub, split="train[:1]+test")) == [*splits["train"].take(1), *splits["test"]]
    with pytest.raises(ArgumentError, match="expected one split, got all of train, test: pass one of them"):
        sx.open(hub)
    with pytest.raises(ArgumentError, match=r"a datasets\.DatasetDict and no data_files"):
        sx.load_dataset(hub, data_files="x")
    paths: Any = {"train": "a.jsonl"}
    with pytest.raises(ArgumentError, match="got a dict; pass a dict of paths as data_files="):
        sx.load_dataset(paths)


def test_nulls_in_arrays_and_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"file")
    image = pa.array([{"bytes": b"png", "path": None}, None, {"bytes": None, "path": str(tmp_path / "a.png")}])
    features = datasets.Features(
        {
            "image": datasets.Image(decode=False),
            "m": datasets.Array2D((1, 2), "int32"),
            "f": datasets.Array2D((None, 2), "int32"),
        }
    )
    lists = pa.array([[[1, 2]], None, [[3, 4]]], pa.list_(pa.list_(pa.int32())))
    held = pa.table({"image": image, "m": lists, "f": lists}).cast(
        pa.schema([("image", datasets.Image()()), ("m", lists.type), ("f", lists.type)])
    )
    kinds = features.arrow_schema.types
    arrays = [held.column(0), *(pa.ExtensionArray.from_storage(kind, lists) for kind in kinds[1:])]
    hub = datasets.Dataset(
        datasets.table.InMemoryTable(pa.table(arrays, names=list(features))),
        info=datasets.DatasetInfo(features=features),
    )
    ds = sx.open(hub)
    assert str(ds.features) == (
        "image image(mode=None, decode=False) or none, m int32[1, 2] or none, f int32[?, 2] or none"
    )
    assert [s.image for s in ds] == ds.read([0, 1, 2])["image"] == [b"png", None, b"file"]
    for name in ("m", "f"):
        assert [plain(s[name]) for s in ds] == [[[1, 2]], None, [[3, 4]]]
    assert ds.to_huggingface().features == features
    assert [plain(s) for s in sx.open(hub.select([2, 1]))][1]["m"] is None


PNG, JPEG = (encode_image(np.arange(36, dtype=np.uint8).reshape(3, 4, 3), form) for form in ("png", "jpeg"))
MEDIA = datasets.Features(
    {
        "image": datasets.Image(decode=False),
        "label": datasets.ClassLabel(names=["a", "b"]),
        "many": datasets.List(datasets.Image(mode="L", decode=False)),
        "part": {"image": datasets.Image(decode=False), "n": datasets.Value("int32")},
    }
)
OUR_MEDIA = Features(
    {
        "image": Optional(Image(None, decode=False)),
        "label": ClassLabel(("a", "b")),
        "many": Sequence(Optional(Image("L", decode=False))),
        "part": Struct({"image": Image(None, decode=False), "n": Value("int32")}),
    }
)
IMAGES = [JPEG, None, PNG]
LISTS = [[PNG, JPEG], [], [None]]


def their_images(folder: Path) -> Any:
    (folder / "x.png").write_bytes(PNG)
    images = [JPEG, None, {"bytes": None, "path": str(folder / "x.png")}]
    columns = {"image": images, "label": [0, 1, 0], "many": LISTS, "part": [{"image": PNG, "n": 1}] * 3}
    return datasets.Dataset.from_dict(columns, features=MEDIA)


def assert_our_images(ds: sx.Dataset) -> None:
    assert ds.features == OUR_MEDIA
    assert [sample["image"] for sample in ds] == IMAGES and ds.read([2, 1, 0])["image"] == IMAGES[::-1]
    assert [sample["many"] for sample in ds] == LISTS and ds.read([2, 0])["many"] == [LISTS[2], LISTS[0]]
    assert [sample["part"]["image"] for sample in ds] == [PNG] * 3
    table = ds.to_arrow()
    assert table.column("image").to_pylist() == IMAGES and table.column("many").to_pylist() == LISTS
    assert table.schema.field("image").type == pa.large_binary()
    assert ds.where("image IS NULL")[0]["label"] == 1


def test_images_keep_their_features_and_bytes(tmp_path: Path) -> None:
    hub = their_images(tmp_path)
    ds = sx.open(hub)
    assert_our_images(ds)
    hub.to_parquet(tmp_path / "hub.parquet")  # which keeps paths
    assert_our_images(sx.open(tmp_path / "hub.parquet"))
    hub.save_to_disk(tmp_path / "disk")  # which stores the files
    (tmp_path / "x.png").unlink()
    assert_our_images(sx.open(tmp_path / "disk"))
    native = sx.write(tmp_path / "native", sx.open(tmp_path / "disk"))
    assert_our_images(native)
    back = native.to_huggingface()
    assert back.features == MEDIA
    assert [one and one["bytes"] for one in back["image"]] == IMAGES
    back.save_to_disk(tmp_path / "again")
    assert_our_images(sx.open(tmp_path / "again"))
    assert back.cast_column("image", datasets.Image())[2]["image"].size == (4, 3)


def test_options_of_media_that_hugging_face_lacks_come_back(tmp_path: Path) -> None:
    schema = {
        "image": Image("L", (28, 28), "jpeg", decode=False),
        "audio": Audio(8000, mono=True, format="wav", decode=False),
        "video": Video(3, sampling="random", rate=30, decode=False),
    }
    sample = {"image": PNG, "audio": np.zeros(9, np.int16), "video": np.zeros((3, 8, 8, 3), np.uint8)}
    ds = sx.write(tmp_path / "d", [sample], schema=schema)
    hub = ds.to_huggingface()
    assert hub.features["image"].mode == "L" and hub.features["audio"].sampling_rate == 8000
    assert sx.open(hub).features == Features(schema)
    hub.save_to_disk(tmp_path / "hub")
    assert sx.open(tmp_path / "hub").features == Features(schema)
    for identity in ("shardex", "shardex nonsense", "shardex {}", "shardex []", 'shardex {"size": 3}', "other"):
        assert media_of_hf({"_type": "Image", "id": identity}) == Image(None)


@pytest.mark.parametrize(
    ("path", "message"), [("no/such.png", "No such file"), ("https://host/x.png", "expected the path of a local file")]
)
def test_files_that_are_missing_or_remote_raise(path: str, message: str) -> None:
    images = [{"bytes": PNG, "path": None}, {"bytes": None, "path": path}]
    features = datasets.Features({"image": datasets.Image(decode=False)})
    ds = sx.open(datasets.Dataset.from_dict({"image": images}, features=features))
    assert ds[0]["image"] == PNG
    with pytest.raises(FormatError, match=rf"{message}.*sample 1, field image"):
        ds[1]
    with pytest.raises(FormatError, match=rf"{message}.*sample 1, field image"):
        ds.read([0, 1])


@pytest.mark.parametrize("bad", [[[1, 2], [3]], [[1, 2], [3, 4], [5, 6]], [[1, 2, 3], [4]], [], [[1, 2], None]])
def test_lists_of_the_wrong_shape_raise(bad: Any) -> None:
    kind = datasets.Array2D((2, 2), "int32")()
    lists = pa.array([[[1, 2], [3, 4]], bad], pa.list_(pa.list_(pa.int32())))
    held = pa.table({"m": pa.ExtensionArray.from_storage(kind, lists)})
    ds = sx.open(datasets.Dataset(datasets.table.InMemoryTable(held)))
    with pytest.raises(FormatError, match=r"expected int32\[2, 2\], got lists of length .* instead of 2 - at field m"):
        ds[0]


def test_streams_have_no_random_access() -> None:
    with pytest.raises(ArgumentError, match="got IterableDataset, which has no random access: store it with write"):
        sx.open(theirs().to_iterable_dataset())


# -- ours -----------------------------------------------------------------------------------------------------------


def test_hugging_face_round_trip_is_identical(on_disk: Any) -> None:
    ds = sx.open(on_disk)
    back = ds.to_huggingface()
    assert back.features == FEATURES and list(back) == list(on_disk)
    assert back.data.table.column("m").chunk(0).equals(on_disk.data.table.column("m").chunk(0))
    for view in (ds[2:5], ds.shuffle(seed=2), ds[::-2], ds.select("s", "m")[3:]):
        assert_same(view, view.to_huggingface())
    assert ds.select("s", "m").to_huggingface().column_names == ["s", "m"]
    assert isinstance(ds.shuffle(seed=1).rows, HuggingFaceRows)


def native(folder: Path) -> sx.Dataset:
    schema = {
        "x": "int16",
        "ok": bool,
        "name": str | None,
        "raw": bytes,
        "c": ClassLabel(("u", "v")),
        "v": Array("float32", (3,)),
        "m": Array("float64", (2, 3)),
        "r": Array("int32", (None,)),
        "p": Array("int16", (None, 2)),
        "z": Array("float32", ()),
        "flags": Array("bool", (2, 2)),
        "maybe": Optional(Array("int8", (2, 2))),
        "odd": Array("uint8", (None, None)),
        "tags": list[str],
        "boxes": Sequence(Array("int16", (2,))),
        "st": Struct({"a": Value("int64"), "m": Array("int8", (1, 2))}),
        "j": Json(),
    }
    with sx.create(folder, schema, shard_rows=7) as out:
        for k in range(20):
            out.append(
                x=k,
                ok=k % 2 == 0,
                name=None if k == 3 else f"né{k}",
                raw=bytes([k]),
                c=k % 2,
                v=[k, 1, 2],
                m=np.full((2, 3), k),
                r=np.arange(k % 4, dtype="i4"),
                p=np.full((k % 3, 2), k, "i2"),
                z=np.array(k + 0.5, "f4"),
                flags=[[True, False], [k % 2 == 0, True]],
                maybe=None if k % 5 == 0 else np.full((2, 2), k, "i1"),
                odd=np.ones((k % 2 + 1, k % 3), "u1"),
                tags=["t"] * (k % 3),
                boxes=[np.array([k, 1], "i2")] * (k % 2),
                st={"a": k, "m": [[k, 2]]},
                j={"k": [k, None, "é"]},
            )
    return sx.open(folder)


def test_to_huggingface_of_a_native_dataset(tmp_path: Path) -> None:
    ds = native(tmp_path / "d")
    before = sorted(tmp_path.rglob("*"))
    for view in (ds, ds[3:11], ds.shuffle(seed=1), ds[::-1], ds[:0]):
        hub = view.to_huggingface()
        assert_same(view, hub)
        hub.data.table.validate(full=True)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"
    hub = ds.to_huggingface()
    assert hub.features["c"] == datasets.ClassLabel(names=["u", "v"])
    assert hub.features["m"] == datasets.Array2D((2, 3), "float64") and hub.features["name"] == datasets.Value("string")
    assert hub.features["p"] == datasets.Array2D((None, 2), "int16") and hub.features["j"] == datasets.Json()
    assert hub.features["v"] == datasets.List(datasets.Value("float32"), length=3)
    assert hub.features["odd"] == datasets.List(datasets.List(datasets.Value("uint8")))
    assert hub.with_format("numpy")[4]["m"].shape == (2, 3)
    assert hub.map(lambda one: {"y": one["x"] + 1})[5]["y"] == 6
    hub.save_to_disk(str(tmp_path / "saved"))
    assert_same(ds, datasets.load_from_disk(str(tmp_path / "saved")))


def test_native_dataset_round_trip_through_hugging_face(tmp_path: Path) -> None:
    ds = native(tmp_path / "d").select("x", "name", "raw", "c", "v", "m", "r", "p", "maybe", "tags", "j")
    again = sx.open(ds.to_huggingface())
    assert list(again) == list(ds)
    assert again.features == ds.features


def test_elements_are_not_copied(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"v": np.arange(600.0), "m": np.ones((20, 30), "f4")} for _ in range(10)])
    held = ds.to_huggingface().data.table
    for name in ("v", "m"):
        values = held.column(name).chunk(0)
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        while hasattr(values, "values"):
            values = values.values
        assert values.buffers()[1].address == ds[0][name].__array_interface__["data"][0]


@settings(deadline=None, max_examples=50)
@given(any_dataset())
def test_any_schema_converts_or_raises(data: tuple[Features, list[dict[str, Any]]]) -> None:
    features, samples = data
    assume(not any(contains(feature, sx.Map) for feature in features.values()))  # they become lists of structs
    ds = sx.open(sx.Dataset(_Rows(features, samples)).to_arrow())
    try:
        hub = ds.to_huggingface()
    except SchemaError:
        return
    again = sx.open(hub)
    assert [sx.DictSample(plain(dict(one))) for one in again] == [sx.DictSample(plain(dict(one))) for one in ds]


class _Rows:
    def __init__(self, features: Features, samples: list[dict[str, Any]]) -> None:
        self.features, self.samples = features, samples

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, rows: Any, fields: Any = None) -> sx.Columns:
        names = list(self.features) if fields is None else fields
        return sx.Columns({name: [self.samples[row][name] for row in rows.tolist()] for name in names}, len(rows))


@pytest.mark.parametrize("feature", [Array(), Array("float32"), Array("complex64", (2,))])
def test_features_without_a_hugging_face_counterpart_raise(feature: Array, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": np.ones(2, feature.dtype)}], {"x": feature})
    with pytest.raises(
        SchemaError, match=r"expected a feature that Hugging Face has, got .* - at field x; leave it out"
    ):
        ds.to_huggingface()


def test_to_huggingface_of_json_lines_and_joins(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "s": "a"}\n{"x": 2, "s": "b"}\n')
    lines = sx.open(tmp_path / "a.jsonl")
    assert list(sx.join(lines, sx.open([{"y": 1.5}, {"y": 2.5}])).to_huggingface()) == [
        {"x": 1, "s": "a", "y": 1.5},
        {"x": 2, "s": "b", "y": 2.5},
    ]


# -- the package ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["train", "train[:3]", "train[10%:35%]", "train[-7%:]", "train[3:-2]", "train[:33%]", "train[:200]"]
)
@pytest.mark.parametrize("length", [0, 1, 7, 150, 1001])
def test_split_slices_equal_those_of_hugging_face(text: str, length: int) -> None:
    (piece,) = parse_splits(text)
    if text == "train[-7%:]" and 0 < length < 8:  # less than a sample from the end: theirs turn around to all of it
        assert not range(length)[piece.of(length)]
        return
    told = datasets.ReadInstruction.from_spec(text).to_absolute({"train": length})
    (theirs,) = told
    begin, end = theirs.from_ or 0, length if theirs.to is None else theirs.to
    assert range(length)[piece.of(length)] == range(begin, max(begin, end)) or begin >= end == 0


def test_without_the_package_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\nimport shardex as sx\n"
        "try: sx.open([{'x': 1}]).to_huggingface()\n"
        "except sx.ShardexError as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    advice = "needs datasets, which is not installed: pip install 'shardex[huggingface]'"
    assert done.stdout == f"{MissingExtraError.__name__} to_huggingface {advice}\n"


def test_equal_fingerprints_mean_equal_data(tmp_path: Path) -> None:
    """`datasets` caches results by fingerprint: other fields or other rows must have another one."""
    datasets.Dataset.from_dict({"a": list(range(1000)), "b": list(range(1000, 2000))}).save_to_disk(
        str(tmp_path / "hf")
    )
    there = datasets.load_from_disk(str(tmp_path / "hf"))
    ds = sx.open(there)

    def first(row: dict[str, int]) -> dict[str, int]:
        return {"out": next(iter(row.values()))}

    one, two = (ds.select(name).to_huggingface().map(first)["out"][:2] for name in ("a", "b"))
    assert (list(one), list(two)) == ([0, 1], [1000, 1001])
    changed = there.map(lambda row: {"a": -1 if row["a"] == 500 else row["a"]})
    assert sx.open(changed).fingerprint != ds.fingerprint
    assert sx.open(changed).to_huggingface().map(first)["out"][500] == -1


def test_saved_files_and_streams_keep_classes_and_types(tmp_path: Path) -> None:
    classes = datasets.ClassLabel(names=["cat", "dog"])
    features = {
        "label": classes,
        "x": datasets.Value("float32"),
        "i": datasets.Value("int8"),
        "tags": datasets.List(classes),
        "inner": {"c": classes, "n": datasets.Value("int16")},
        "note": datasets.Value("string"),
    }
    samples = [
        {"label": k % 2, "x": k / 3, "i": k, "tags": [0, 1], "inner": {"c": 1, "n": k}, "note": "a" if k else None}
        for k in range(5)
    ]
    made = datasets.Dataset.from_list(samples, features=datasets.Features(features))
    made.save_to_disk(tmp_path / "saved")
    made.to_parquet(tmp_path / "a.parquet")
    expected = sx.open(made)
    assert str(expected.features["tags"]) == "list of class of 2" and isinstance(expected.features["label"], ClassLabel)
    opened = [sx.open(tmp_path / "saved"), sx.open(tmp_path / "a.parquet")]
    written = [
        sx.write(tmp_path / "w", made.to_iterable_dataset()),
        sx.write(tmp_path / "p", opened[0], format="parquet"),
    ]
    for ds in (*opened, *written):
        assert ds.features == expected.features
        assert list(map(repr, ds)) == list(map(repr, expected))
        assert ds.to_huggingface().features == made.features


def test_stream_without_features_is_inferred(tmp_path: Path) -> None:
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"x": 1}, {"x": 2}]))
    assert str(sx.write(tmp_path / "w", stream).features) == "x int64"


@pytest.mark.parametrize("metadata", [b"", b"{}", b'{"info": 3}', b'{"info": {"features": {"x": {"_type": 3}}}}', b"["])
def test_metadata_that_is_no_description_is_ignored(tmp_path: Path, metadata: bytes) -> None:
    table = pa.table({"x": [1, 2]}).replace_schema_metadata({"huggingface": metadata})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert str(sx.open(tmp_path / "a.parquet").features) == "x int64"


NULLS = datasets.Features(
    {
        "t": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["x", "y"]),
        "v": datasets.List(datasets.Value("int32")),
        "st": {"a": datasets.Value("int64"), "b": {"c": datasets.Value("string")}},
        "l": datasets.List({"q": datasets.Value("int8")}),
        "m": datasets.Array2D((2, 2), "int16"),
        "classes": datasets.List(datasets.ClassLabel(names=["x", "y"])),
        "row": datasets.Value("int64"),
    }
)


def _with_nulls(first: int) -> Any:
    """Yield samples; from a number on all parts are null in some sample."""
    none: dict[str, Any] = {
        "t": None,
        "label": None,
        "v": [1, None],
        "st": {"a": None, "b": {"c": None}},
        "l": [{"q": None}],
    }
    full: dict[str, Any] = {"t": "a", "label": 1, "v": [1, 2], "st": {"a": 1, "b": {"c": "x"}}, "l": [{"q": 2}]}
    none |= {"m": None, "classes": [0, None]}
    full |= {"m": [[1, 2], [3, 4]], "classes": [1]}
    for row in range(first + 9):
        yield {**full, "row": row} if row < first or row % 2 else {**none, "row": row}
    yield {**full, "v": None, "row": first + 9}


@pytest.mark.parametrize("first", [2, 100])
def test_streams_with_nulls_have_the_features_of_the_data(first: int, tmp_path: Path) -> None:
    stream = datasets.IterableDataset.from_generator(_with_nulls, gen_kwargs={"first": first}, features=NULLS)
    whole = datasets.Dataset.from_list(list(_with_nulls(first)), features=NULLS)
    written = sx.write(tmp_path / "stream", stream)
    assert written.features == sx.open(whole).features == sx.write(tmp_path / "whole", whole).features
    assert written.features["t"] == Optional(Text()) and written.features["row"] == Value("int64")
    assert list(written) == list(sx.open(whole)) == list(sx.open(tmp_path / "whole"))
    back = written.to_huggingface()
    assert back.features == NULLS and back[:] == whole[:]
    assert sx.write(tmp_path / "stream", stream, mode="append").features == written.features
    assert len(written.where("st.b.c IS NULL")) == len(written.where("label IS NULL"))


def test_a_stream_with_other_values_than_its_features_raises(tmp_path: Path) -> None:
    stream = datasets.IterableDataset.from_generator(
        lambda: ({"x": k if k < 80 else "text"} for k in range(90)),
        features=datasets.Features({"x": datasets.Value("int64")}),
    )
    with pytest.raises((SchemaError, ValueError)):
        sx.write(tmp_path / "d", stream)
    assert not (tmp_path / "d").exists()


def test_classes_of_other_names_are_written_by_name(tmp_path: Path) -> None:
    hub = datasets.Dataset.from_dict({"c": [1, 0, None]}).cast_column("c", datasets.ClassLabel(names=["b", "a"]))
    assert sx.write(tmp_path / "text", hub, {"c": str | None})["c"] == ["a", "b", None]
    assert sx.write(tmp_path / "other", hub, {"c": sx.Optional(ClassLabel(["a", "b"]))})["c"].to_list() == [0, 1, None]


def test_no_label_of_hugging_face_is_none(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["a", "b"])
    given = datasets.Dataset.from_dict({"label": [0, -1, 1]}, datasets.Features({"label": names}))
    label = sx.Optional(sx.ClassLabel(["a", "b"]))
    for number, source in enumerate([given, given.to_iterable_dataset(), sx.open(given)]):
        made = sx.write(tmp_path / f"{number}", source)
        assert made.features["label"] == label and [one.label for one in made] == [0, None, 1]
    assert sx.open(given).to_huggingface()["label"] == [0, -1, 1], "unchanged"
    given.to_parquet(tmp_path / "a.parquet")
    stored = sx.open(tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"got -1, which is no label: declare the field as sx.Optional\(.*sample 1"):
        sx.write(tmp_path / "b", stored)
    given_samples: list[Any] = [stored, [{"label": -1}, {"label": np.int8(-1)}, {"label": "b"}]]
    for number, samples in enumerate(given_samples):
        found = [one.label for one in sx.write(tmp_path / f"c{number}", samples, {"label": label})]
        assert found == [[0, None, 1], [None, None, 1]][number]


@pytest.mark.parametrize("late", [3, 100])
def test_a_late_number_for_no_label_in_a_stream_is_none(late: int, tmp_path: Path) -> None:
    values = [k % 2 for k in range(late)] + [-1]
    features = datasets.Features({"label": datasets.ClassLabel(names=["a", "b"])})
    made = sx.write(tmp_path / "d", datasets.Dataset.from_dict({"label": values}, features).to_iterable_dataset())
    assert [one.label for one in made] == [*values[:-1], None]
