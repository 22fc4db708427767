"""`StableDataset`: samples, views, columns, new data, pickling, DataLoader workers; what the original did wrong."""

from __future__ import annotations

import importlib.util
import inspect
import io
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw

from shardex.compat.stable_datasets import arrow_dataset
from shardex.compat.stable_datasets.cache import read_shard, write_sharded_arrow_cache
from shardex.compat.stable_datasets.dataset import StableDataset, StableDatasetDict
from shardex.compat.stable_datasets.iterable import StableIterableDataset
from shardex.compat.stable_datasets.samplers import ShardShuffleSampler
from shardex.compat.stable_datasets.schema import (
    Array3D,
    Array4D,
    ClassLabel,
    DatasetInfo,
    Features,
    Image,
    Sequence,
    Value,
)
from tests.compat.stable_datasets.caches import (
    EXPECTED,
    FIXTURES,
    NUMBERS,
    cache,
    digest,
    fixture,
    jpeg,
    mixed,
    mixed_rows,
    numbers,
    pixels,
)


def xs(rows: Any) -> list[int]:
    """The column x of samples."""
    return [row["x"] for row in rows]


# -- files that stable-datasets has written ---------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as `expected.json` has it."""
    if isinstance(value, bytes):
        return {"__bytes_sha256__": digest(value), "len": len(value)}
    return value


def test_fixture_of_scalars_in_shards() -> None:
    ds, expected = fixture("scalars_multishard"), EXPECTED["scalars_multishard"]
    assert len(ds) == expected["len"]
    for rows in ([ds[k] for k in range(len(ds))], list(ds), ds.__getitems__(range(len(ds)))):
        assert [{name: plain(value) for name, value in row.items()} for row in rows] == expected["rows"]
    raw = [{name: plain(value) for name, value in row.items()} for row in ds.with_format("raw")]
    assert raw == expected["raw"]
    assert [[name, str(kind)] for name, kind in zip(ds.table.column_names, ds.table.schema.types, strict=True)] == [
        one[:2] for one in expected["arrow_schema"]
    ]


def test_fixture_of_images() -> None:
    ds, expected = fixture("images"), EXPECTED["images"]
    for row, want in zip(ds, expected["rows"], strict=True):
        assert row["label"] == want["label"]
        if want["image"] is None:
            assert row["image"] is None
            continue
        image = row["image"]
        assert isinstance(image, Pillow.Image)
        assert (image.mode, image.format) == (want["image"]["pil_mode"], want["image"]["pil_format"])
        assert list(image.size) == want["image"]["size"]
        assert digest(image.tobytes()) == want["image"]["sha256_pixels"]
    for view in (ds.with_format("raw"), ds.set_decode(False)):
        assert [{name: plain(value) for name, value in row.items()} for row in view] == expected["raw"]
    assert isinstance(ds.set_decode(False).set_decode(True)[0]["image"], Pillow.Image)


def test_fixture_of_the_first_era() -> None:
    """E3.1: later versions of the original refuse these caches."""
    ds, expected = fixture("v37ff322"), EXPECTED["v37ff322"]
    assert len(ds) == expected["len"]
    arrays = ds.with_format("numpy")
    for k, want in enumerate(expected["rows"]):
        row = arrays[k]
        for name in ("image", "vol"):
            if want[name] is None:
                assert row[name] is None and ds[k][name] is None
            else:
                assert (list(row[name].shape), row[name].dtype.str) == (want[name]["shape"], want[name]["dtype"])
                assert digest(row[name].tobytes()) == want[name]["sha256"]
        assert {n: ds[k][n] for n in ("label", "video", "seq", "s")} == {
            n: want[n] for n in ("label", "video", "seq", "s")
        }


def test_constructors_of_both_eras_open_the_same_rows() -> None:
    expected, folder = EXPECTED["scalars_multishard"], FIXTURES / "scalars_multishard"
    meta = expected["metadata_json"]
    names, counts = meta["shard_filenames"], meta["shard_row_counts"]
    features = fixture("scalars_multishard").features
    info = DatasetInfo(features)
    first = StableDataset(
        features, info, shard_dir=folder, shard_paths=names, shard_row_counts=counts, num_rows=11, max_open_shards=2
    )
    paths = [str(folder / name) for name in names]
    second = StableDataset(features, info, shard_paths=paths, shard_row_counts=counts)
    bare = StableDataset(features, info, shard_paths=paths)
    table = StableDataset(features, info, table=first.table)
    assert list(first) == list(second) == list(bare) == list(table) == list(fixture("scalars_multishard"))
    assert [len(run) for run in bare.positions_by_shard()] == counts
    assert arrow_dataset.StableDataset is StableDataset


@pytest.mark.parametrize("given", [{}, {"table": pa.table({"x": [1]}), "shard_paths": ["a"]}])
def test_rows_must_be_given_once(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either shard_paths or a table"):
        StableDataset(NUMBERS, DatasetInfo(NUMBERS), **given)


def test_wrong_numbers_of_rows_and_missing_columns(tmp_path: Path) -> None:
    ds, info = numbers(tmp_path / "c"), DatasetInfo(NUMBERS)
    paths = sorted((tmp_path / "c").glob("*.arrow"))
    with pytest.raises(ValueError, match="expected 11 rows"):
        StableDataset(NUMBERS, info, shard_paths=paths, num_rows=11)
    with pytest.raises(ValueError, match="shard_row_counts"):
        StableDataset(NUMBERS, info, shard_paths=paths, shard_row_counts=[3, 3, 3, 3])
    with pytest.raises(ValueError, match="each of 4 shards"):
        StableDataset(NUMBERS, info, shard_paths=paths, shard_row_counts=[10])
    with pytest.raises(KeyError, match="'y'"):
        StableDataset(Features({"y": Value("int32")}), info, table=ds.table)
    with pytest.raises(FileNotFoundError):
        StableDataset(NUMBERS, info, shard_paths=[tmp_path / "nothing.arrow"])


# -- samples ----------------------------------------------------------------------------------------------------------


def test_samples_by_position(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    assert ds[0] == {"x": 0, "label": 0} and ds[-1] == {"x": 9, "label": 1} and ds[np.int64(3)]["x"] == 3
    assert type(ds[3]["x"]) is int
    for wrong in (10, -11):
        with pytest.raises(IndexError, match="-10 to 9"):
            ds[wrong]
    for other in ([1, 2], "x", 1.5, None):
        with pytest.raises(TypeError, match="select"):
            ds[other]  # type: ignore[call-overload]
    assert ds.column_names == ["x", "label"] and ds.num_rows == len(ds) == 10
    assert ds.info.features is NUMBERS and "num_rows=10" in repr(ds)


def test_many_samples(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    assert xs(ds.__getitems__([7, 2, -1, 7])) == [7, 2, 9, 7] and ds.__getitems__([]) == []
    with pytest.raises(IndexError):
        ds.__getitems__([0, 10])


def test_slices_are_views(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    assert (
        xs(ds[2:5]) == [2, 3, 4] and xs(ds[::-3]) == [9, 6, 3, 0] and xs(ds[2:8][1:3]) == [3, 4] and xs(ds[20:]) == []
    )
    assert isinstance(ds[2:5], StableDataset) and ds[2:5].table.column("x").to_pylist() == [2, 3, 4]


def test_empty_dataset(tmp_path: Path) -> None:
    for ds in (numbers(tmp_path / "c", 0), numbers(tmp_path / "d")[:0]):
        assert len(ds) == 0 and list(ds) == [] and list(ds.iter_epoch()) == [] and list(ds.as_iterable()) == []
        assert list(ds.make_sampler()) == [] and ds.table.num_rows == 0 and ds.table.schema.names == ["x", "label"]
        assert len(ds.shuffle()) == 0 and len(ds.filter(lambda row: True)) == 0
        mapped = ds.map(lambda row: {"y": 1})
        assert len(mapped) == 0 and mapped.column_names == ["x", "label"], "E3.5: the original raised IndexError"
        with pytest.raises(IndexError):
            ds[0]
        assert len(pickle.loads(pickle.dumps(ds))) == 0


def test_select(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    assert xs(ds.select([3, 1, 4, 1, 5]).select([0, -2])) == [3, 1]
    assert xs(ds.select(range(2, 4))) == [2, 3] and xs(ds.select(iter([5]))) == [5]
    assert xs(ds.select(np.arange(10) % 5 == 0)) == [0, 5]
    with pytest.raises(IndexError):
        ds.select([10])


def test_shuffle_and_split_choose_what_the_original_chose(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    assert xs(ds.shuffle(7)) == np.random.default_rng(7).permutation(10).tolist()
    parts = ds.train_test_split(test_size=0.3, seed=5)
    order = np.random.RandomState(5).permutation(10).tolist()
    assert isinstance(parts, StableDatasetDict) and list(parts) == ["train", "test"]
    assert xs(parts["train"]) == order[:7] and xs(parts["test"]) == order[7:]
    assert [len(one) for one in ds.train_test_split().values()] == [9, 1]
    with pytest.raises(ValueError, match="test_size"):
        ds.train_test_split(test_size=3)


def test_filter_gets_the_same_values_in_batches(tmp_path: Path) -> None:
    """E3.5: batches of the original had bytes where single samples had images."""
    ds = mixed(tmp_path / "c")
    seen: dict[str, list[Any]] = {"single": [], "batch": []}

    def keep(row: dict[str, Any]) -> bool:
        seen["single"].append((type(row["image"]), type(row["vol"]), type(row["seq"])))
        return int(row["label"]) % 2 == 1

    def keep_batch(columns: dict[str, list[Any]]) -> list[bool]:
        columns_seen = (columns["image"], columns["vol"], columns["seq"])
        seen["batch"] += [tuple(map(type, values)) for values in zip(*columns_seen, strict=True)]
        return [label % 2 == 1 for label in columns["label"]]

    one, many = ds.filter(keep), ds.filter(keep_batch, batched=True, batch_size=2)
    assert [row["label"] for row in one] == [row["label"] for row in many] == [1, 3, 5]
    assert seen["single"] == seen["batch"]
    assert xs_labels(many.filter(lambda columns: [label > 1 for label in columns["label"]], batched=True)) == [3, 5]
    with pytest.raises(ValueError, match="expected 7 results"):
        ds.filter(lambda columns: [True], batched=True)


def xs_labels(rows: Any) -> list[int]:
    return [row["label"] for row in rows]


def test_epochs_are_shuffled_without_a_seed(tmp_path: Path) -> None:
    """E3.4: without a seed the original did not shuffle."""
    ds = numbers(tmp_path / "c", 40, 1)
    orders = [xs(ds.iter_epoch()) for _ in range(3)]
    assert all(sorted(order) == list(range(40)) for order in orders) and len({*map(tuple, orders)}) == 3
    assert xs(ds.iter_epoch(seed=3)) == xs(ds.iter_epoch(seed=3)) != xs(ds)
    assert xs(ds.iter_epoch(shuffle_shards=False)) == list(range(40))


def test_epoch_keeps_shards_together_and_shuffled_views_in_order(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    shards = [xs(ds.iter_epoch(seed=seed)) for seed in range(5)]
    assert all(order[order.index(0) : order.index(0) + 3] == [0, 1, 2] for order in shards)
    view = ds.filter(lambda row: row["x"] != 4)
    assert sorted(xs(view.iter_epoch(seed=1))) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    mixed_up = ds.shuffle(1)
    assert xs(mixed_up.iter_epoch(seed=1)) == xs(mixed_up)


# -- format and transform ---------------------------------------------------------------------------------------------


def test_transform_comes_after_the_format(tmp_path: Path) -> None:
    ds = mixed(tmp_path / "c").with_format("numpy").with_transform(lambda row: (row["vol"].shape, row["label"]))
    assert ds[1] == ds.__getitems__([1])[0] == list(ds)[1] == ((2, 2, 3), 1)
    assert ds[3:][0][1] == 3 and ds.with_transform(None)[1]["label"] == 1
    with pytest.raises(TypeError, match="function"):
        ds.with_transform(3)  # type: ignore[arg-type]


def test_numpy_format_has_arrays(tmp_path: Path) -> None:
    """E3.8: lists stayed lists in the original, and arrays were read-only."""
    row = mixed(tmp_path / "c").with_format("numpy")[1]
    assert row["image"].shape == (4, 5, 3) and np.array_equal(row["image"], pixels(1))
    assert row["seq"].dtype == np.float32 and row["seq"].shape == (1,)
    assert row["nested"].dtype == np.int32 and row["nested"].shape == (2, 2)
    for name in ("image", "vol", "seq", "nested"):
        row[name][...] = 0
    default = mixed(tmp_path / "d")[1]
    default["vol"][...] = 0
    assert default["seq"] == [0.5] and type(default["seq"][0]) is float and default["nested"] == [[1, 2], [1, 1]]


def test_torch_format_keeps_integers(tmp_path: Path) -> None:
    """E3.8: the original made float32 of integer arrays."""
    torch = pytest.importorskip("torch")
    row = mixed(tmp_path / "c").with_format("torch")[1]
    assert row["image"].shape == (3, 4, 5) and row["image"].dtype == torch.float32 and row["image"].max() <= 1
    assert row["vol"].dtype == torch.uint8 and row["vol"].shape == (2, 2, 3)
    assert row["seq"].dtype == torch.float32 and row["nested"].shape == (2, 2) and row["label"].dtype == torch.int64
    assert row["s"] == "é1"


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'torch'"):
        numbers(tmp_path / "c").with_format("torhc")


# -- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_removed_and_renamed(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    assert ds.remove_columns("label").column_names == ["x"] and ds.remove_columns(["x"])[3] == {"label": 1}
    renamed = ds.rename_columns({"x": "value", "label": "target"})
    assert renamed[3] == {"value": 3, "target": 1} and renamed.column_names == ["value", "target"]
    assert isinstance(renamed.features["target"], ClassLabel)
    assert renamed.table.column_names == ["value", "target"] and renamed.table.schema.types == ds.table.schema.types
    assert ds.rename_column("x", "y").select([4])[0]["y"] == 4 and ds.column_names == ["x", "label"]
    assert xs(ds[2:5].remove_columns("label").iter_epoch(shuffle_shards=False)) == [2, 3, 4]
    with pytest.raises(KeyError, match="nothing"):
        ds.remove_columns("nothing")
    with pytest.raises(KeyError, match="nothing"):
        ds.rename_column("nothing", "y")
    with pytest.raises(ValueError, match="label"):
        ds.rename_column("x", "label")


@pytest.mark.parametrize(
    ("column", "feature"),
    [
        ([10, 20, 30], Value("int64")),
        ([1, 2.5, None], Value("float64")),
        ([True, False, None], Value("bool")),
        (["a", None, "c"], Value("string")),
        ([[1], [], [2, 3]], Sequence(Value("int64"))),
        (np.arange(3, dtype=np.int16), Value("int16")),
        (np.arange(6, dtype=np.float32).reshape(3, 2), Sequence(Value("float32"))),
        (np.zeros((3, 1, 2, 2), np.uint8), Array3D((1, 2, 2), "uint8")),
        (np.zeros((3, 1, 2, 2, 2), np.float32), Array4D((1, 2, 2, 2), "float32")),
        (pa.array([1, 2, 3], pa.int8()), Value("int8")),
        (pa.chunked_array([["a"], ["b", "c"]]), Value("string")),
    ],
    ids=str,
)
def test_columns_are_added(tmp_path: Path, column: Any, feature: Any) -> None:
    view = numbers(tmp_path / "c").select([0, 2, 4])
    ds = view.add_column("new", column)
    expected = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else list(column)
    assert repr(ds.features["new"]) == repr(feature) and xs(ds) == [0, 2, 4]
    for k, want in enumerate(expected):
        found = ds[k]["new"]
        assert np.array_equal(found, want) if isinstance(want, np.ndarray) else found == want
    assert ds.table.column_names == ["x", "label", "new"] and ds.table.num_rows == 3
    assert [np.array_equal(a["new"], b["new"]) for a, b in zip(pickle.loads(pickle.dumps(ds)), ds, strict=True)] == [
        True
    ] * 3
    assert ds.remove_columns("x").rename_column("new", "x").column_names == ["label", "x"]


def test_wrong_new_columns(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    with pytest.raises(ValueError, match="expected 10 values"):
        ds.add_column("new", [1])
    with pytest.raises(ValueError, match="no column has"):
        ds.add_column("x", range(10))
    with pytest.raises(TypeError, match="column new"):
        ds.add_column("new", [{"a": 1}] * 10)
    with pytest.raises(TypeError, match="column new"):
        ds.add_column("new", [1, "a", *range(8)])


# -- map --------------------------------------------------------------------------------------------------------------


def test_map_keeps_features_and_finds_new_ones(tmp_path: Path) -> None:
    """E3.5: a column of booleans or lists failed in the original."""
    ds = numbers(tmp_path / "c")
    found = ds.map(
        lambda row, k: {**row, "even": row["x"] % 2 == 0, "list": [k] * 2, "f": row["x"] / 2, "s": str(k)},
        with_indices=True,
        remove_columns=["label"],
    )
    types = ["int32", "bool", "Sequence(Value('int64'))", "float64", "string"]
    assert [getattr(one, "dtype", repr(one)) for one in found.features.values()] == types
    assert found[3] == {"x": 3, "even": False, "list": [3, 3], "f": 1.5, "s": "3"} and len(found) == 10
    assert found.info is ds.info


def test_map_of_batches(tmp_path: Path) -> None:
    ds, sizes = numbers(tmp_path / "c"), []

    def double(columns: dict[str, list[int]], numbers: list[int]) -> dict[str, list[Any]]:
        sizes.append(len(numbers))
        return {"x": [2 * x for x in columns["x"]] * 2, "n": numbers * 2}

    found = ds[2:9].map(double, batched=True, batch_size=4, with_indices=True, cache_dir=tmp_path / "new")
    assert sizes == [4, 3], "expected each sample once"
    assert xs(found) == [4, 6, 8, 10] * 2 + [12, 14, 16] * 2 and found[13]["n"] == 6
    again = StableDataset(found.features, found.info, shard_dir=tmp_path / "new")
    assert list(again) == list(found)


def test_map_gets_decoded_values_and_arrays_are_stored_again(tmp_path: Path) -> None:
    """E3.5: the function of the original got bytes, and every dataset with arrays failed."""
    ds = mixed(tmp_path / "c")

    def half(row: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(row["vol"], np.ndarray)
        return {**row, "vol": row["vol"] // 2, "mean": float(row["vol"].mean()), "thumbnail": row["image"]}

    found = ds.map(half)
    assert [one["mean"] for one in found] == list(range(7)) and found[6]["vol"].tolist() == [[[3] * 3] * 2] * 2
    assert isinstance(found.features["thumbnail"], Image)
    before, after = list(ds.with_format("raw")), list(found.with_format("raw"))
    for name in ("image", "seq", "nested", "label", "s"):
        assert [row[name] for row in before] == [row[name] for row in after]
    assert [row["thumbnail"] for row in after] == [row["image"] for row in before], "expected the same JPEG bytes"


@pytest.mark.parametrize("form", [None, "numpy", "torch", "raw"])
def test_map_passes_values_on_in_every_format(tmp_path: Path, form: str) -> None:
    ds = mixed(tmp_path / "c").with_format(form)
    assert list(ds.map(lambda row: row).with_format("raw")) == list(ds.with_format("raw"))
    batched = ds.map(lambda columns: columns, batched=True, batch_size=2)
    assert list(batched.with_format("raw")) == list(ds.with_format("raw"))


def test_map_stores_images_that_were_changed_in_place(tmp_path: Path) -> None:
    ds = cache(tmp_path / "c", Features({"image": Image()}), [{"image": pixels(k)} for k in range(3)])

    def draw(row: dict[str, Any]) -> dict[str, Any]:
        ImageDraw.Draw(row["image"]).rectangle((0, 0, 4, 3), fill=(1, 2, 3))
        return row

    assert np.asarray(ds.map(draw)[1]["image"]).tolist() == [[[1, 2, 3]] * 5] * 4


def test_map_with_features_and_wrong_results(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c")
    features = Features({"y": Value("float32"), "kind": ClassLabel(names=["odd", "even"])})
    found = ds.map(lambda row: {"y": row["x"] / 2, "kind": ["even", "odd"][row["x"] % 2]}, features=features)
    assert found.features is features and found[3] == {"y": 1.5, "kind": 0}
    with pytest.raises(TypeError, match="returns a dict"):
        ds.map(lambda row: 3)
    with pytest.raises(ValueError, match="one length"):
        ds.map(lambda columns: {"a": [1], "b": []}, batched=True)
    with pytest.raises(ValueError, match="batch_size"):
        ds.map(lambda row: row, batch_size=0)


def test_flattened_views_can_be_opened_again(tmp_path: Path) -> None:
    """E3.2: the original could not open what it wrote."""
    ds = mixed(tmp_path / "c")
    assert ds.flatten_indices() is ds
    view = ds.select([5, 1, 1, 3]).with_format("raw")
    flat = view.flatten_indices(tmp_path / "flat")
    again = StableDataset(ds.features, ds.info, shard_dir=tmp_path / "flat").with_format("raw")
    assert list(flat) == list(again) == list(view) and flat[3]["label"] == 3
    assert list(ds[2:4].flatten_indices().with_format("raw")) == list(ds[2:4].with_format("raw"))


# -- other processes --------------------------------------------------------------------------------------------------


def test_pickles_hold_paths(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "c", 3000, 500)
    ds[0]
    assert len(pickle.dumps(ds)) < 3000
    view = ds.select([3, 1, 4]).with_format("numpy").rename_column("x", "y")
    again = pickle.loads(pickle.dumps(view))
    assert list(again) == list(view) and again.features == view.features and again.column_names == ["y", "label"]
    memory = StableDataset(NUMBERS, DatasetInfo(NUMBERS), table=ds[:5].table)
    assert list(pickle.loads(pickle.dumps(memory))) == list(memory)


class Doubled:
    """A transform that other processes can import."""

    def __call__(self, row: dict[str, Any]) -> NDArray[np.int64]:
        return np.array([row["x"], 2 * row["x"]])


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_data_loader(tmp_path: Path, start: str, workers: int) -> None:
    data = pytest.importorskip("torch").utils.data
    ds = numbers(tmp_path / "c", 23).shuffle(1).with_transform(Doubled())
    ds[0]
    loader = data.DataLoader(ds, batch_size=4, num_workers=workers, multiprocessing_context=start)
    found = [batch.tolist() for batch in loader]
    assert [one for batch in found for one in batch] == [[x, 2 * x] for x in xs(ds.with_transform(None))]


def test_data_loader_with_formats_and_sampler(tmp_path: Path) -> None:
    data = pytest.importorskip("torch").utils.data
    rows = [{"image": pixels(k), "label": k} for k in range(6)]
    ds = cache(tmp_path / "c", Features({"image": Image(), "label": Value("int64")}), rows, 2).with_format("torch")
    loader = data.DataLoader(ds, batch_size=3, sampler=ds.make_sampler(seed=1))
    batches = list(loader)
    assert [batch["image"].shape for batch in batches] == [(3, 3, 4, 5)] * 2
    assert sorted(int(one) for batch in batches for one in batch["label"]) == list(range(6))


def test_open_datasets_survive_a_new_cache(tmp_path: Path) -> None:
    """E3.9: readers of the original broke when the cache was replaced."""
    ds = numbers(tmp_path / "c", 9)
    numbers(tmp_path / "c", 8)
    assert xs(ds) == list(range(9)) and ds[-1]["x"] == 8
    with pytest.raises(ValueError, match="changed"):
        pickle.loads(pickle.dumps(ds))
    shutil.rmtree(tmp_path / "c")
    assert xs(ds[5:]) == [5, 6, 7, 8]


def test_tensordict(tmp_path: Path) -> None:
    ds = cache(
        tmp_path / "c",
        Features({"x": Value("float32"), "seq": Sequence(Value("int64")), "s": Value("string")}),
        ({"x": k, "seq": [k, k], "s": "a"} for k in range(3)),
    )
    if importlib.util.find_spec("tensordict") is None:
        with pytest.raises(ImportError, match="tensordict"):
            ds.to_tensordict()
        return
    found = ds[1:].to_tensordict()
    assert found["x"].tolist() == [1, 2] and found["seq"].tolist() == [[1, 1], [2, 2]] and "s" not in found


def test_jpeg_bytes_are_read_as_they_were_written(tmp_path: Path) -> None:
    ds = mixed(tmp_path / "c")
    assert ds.set_decode(False)[0]["image"] == jpeg(0) and ds[0]["image"].format == "JPEG"
    assert np.array_equal(ds[0]["image"], np.asarray(Pillow.open(io.BytesIO(jpeg(0)))))
    assert [row["label"] for row in ds] == [row["label"] for row in mixed_rows(7)]


# -- all types, threads, no torch -------------------------------------------------------------------------------------

KINDS = Features(
    {
        "bools": Sequence(Value("bool")),
        "texts": Sequence(Value("string")),
        "blobs": Sequence(Value("binary")),
        "holes": Sequence(Value("int16")),
        "classes": Sequence(ClassLabel(names=["a", "b"])),
        "images": Sequence(Image()),
        "deep": Sequence(Sequence(Sequence(Value("float64")))),
        "arr4": Array4D((1, 2, 1, 2), "int16"),
        "half": Value("float16"),
    }
)


def kinds_row(k: int) -> dict[str, Any]:
    """A row of all kinds of lists; some are missing."""
    return {
        "bools": [True, False][: k % 3],
        "texts": None if k == 4 else ["ä", ""][: k % 3],
        "blobs": [b"\0", b""][: k % 3],
        "holes": [k, None, 3] if k % 2 else [],
        "classes": ["b", 0][: k % 3],
        "images": [pixels(k)] * (k % 2),
        "deep": [[[k / 3], []], []][: k % 3],
        "arr4": None if k == 3 else np.full((1, 2, 1, 2), k),
        "half": None if k == 2 else k / 4,
    }


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_stored_values_are_those_of_arrow(tmp_path: Path, compression: str | None) -> None:
    options: dict[str, Any] = {"batch_size": 3, "shard_size_bytes": 1, "compression": compression}
    meta = write_sharded_arrow_cache(((k, kinds_row(k)) for k in range(8)), KINDS, tmp_path / "c", **options)
    ds = StableDataset(KINDS, DatasetInfo(KINDS), shard_dir=tmp_path / "c")
    expected = [row for path in meta.shard_paths for row in read_shard(path).to_pylist()]
    raw = ds.with_format("raw")
    assert list(raw) == expected == [raw[k] for k in range(8)] == raw.__getitems__(range(8)) == ds.table.to_pylist()
    assert raw.select([5, 1, 4]).table.to_pylist() == [expected[k] for k in (5, 1, 4)]
    assert [type(image) for image in ds[1]["images"]] == [type(ds[1]["images"][0])] and ds[1]["images"][0].size == (
        5,
        4,
    )
    assert ds[3]["arr4"] is None and ds[1]["arr4"].dtype == np.int16 and ds[1]["holes"] == [1, None, 3]
    assert ds.with_format("numpy")[5]["bools"].dtype == np.bool_
    flat = ds.select([7, 3]).flatten_indices(tmp_path / "flat").with_format("raw")
    assert list(flat) == [expected[7], expected[3]]


def test_threads_read_one_dataset(tmp_path: Path) -> None:
    ds = mixed(tmp_path / "c", 9).with_format("numpy")

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, 9, 50).tolist()
        return all(ds[k]["label"] == k and (ds[k]["vol"] == k).all() for k in order)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(8)))


def test_no_torch_is_needed_and_temporary_caches_are_removed(tmp_path: Path) -> None:
    """E3.11: torch was a dependency of the whole package."""
    code = """
import sys
sys.modules["torch"] = None
import pyarrow as pa
from shardex.compat.stable_datasets import StableDataset
from shardex.compat.stable_datasets.schema import DatasetInfo, Features, Value
features = Features({"x": Value("int64")})
ds = StableDataset(features, DatasetInfo(features), table=pa.table({"x": list(range(6))}))
found = [ds[i]["x"] for i in ds.make_sampler(seed=1)], [row["x"] for row in ds.as_iterable(shuffle=True)]
print(*(sorted(one) == list(range(6)) for one in found), len(ds.with_format("numpy").filter(lambda row: row["x"] > 2)))
try:
    ds.with_format("torch")[0]
except ImportError as error:
    print("torch" in str(error))
print(ds.map(lambda row: {"x": row["x"] + 1})[2]["x"], len(ds[1:].flatten_indices()))
"""
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True", "3", "True", "3", "5"]
    assert list(tmp_path.iterdir()) == [], "expected caches that are removed with their process"


# -- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "signature"),
    [
        (StableDataset.iter_epoch, "(*, shuffle_shards=True, seed=None)"),
        (StableDataset.shuffle, "(seed=42)"),
        (StableDataset.filter, "(fn, *, batched=False, batch_size=1000)"),
        (StableDataset.train_test_split, "(test_size=0.1, seed=42)"),
        (
            StableDataset.map,
            "(fn, *, batched=False, batch_size=1000, with_indices=False, remove_columns=None, features=None, "
            "cache_dir=None)",
        ),
        (StableDataset.set_video_decode, "(config=None, **kwargs)"),
        (StableDataset.make_sampler, "(kind='shard_shuffle', **kwargs)"),
        (StableDataset.as_iterable, "(*, shuffle=False, seed=0, buffer_size=10000, transform=None)"),
        (StableDataset.flatten_indices, "(cache_dir=None)"),
        (StableDataset.to_tensordict, "(columns=None)"),
        (ShardShuffleSampler.__init__, "(dataset, *, seed=0, within_shard='random')"),
        (
            StableIterableDataset.__init__,
            "(dataset, *, shuffle=False, seed=0, buffer_size=10000, transform=None)",
        ),
        (
            StableDataset.__init__,
            "(features, info, *, backend=None, shard_paths=None, shard_row_counts=None, shard_dir=None, table=None, "
            "num_rows=None, max_open_shards=4)",
        ),
    ],
    ids=lambda one: getattr(one, "__qualname__", ""),
)
def test_signatures_of_the_original(method: Any, signature: str) -> None:
    found = inspect.signature(method)
    plain = [one.replace(annotation=one.empty) for name, one in found.parameters.items() if name != "self"]
    assert str(found.replace(parameters=plain, return_annotation=found.empty)) == signature
