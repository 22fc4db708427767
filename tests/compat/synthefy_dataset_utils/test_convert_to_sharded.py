"""convert_to_sharded: windows and splits compared with loops, the three datasets, the command."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shardex.compat.synthefy_dataset_utils import ShardedDatasetReader
from shardex.compat.synthefy_dataset_utils import convert_to_sharded as convert
from shardex.errors import AlreadyExistsError


def table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sales = rng.random(rows)
    sales[13] = np.nan
    price = rng.random(rows)
    price[40] = np.nan
    return pd.DataFrame(
        {
            "shop": ["b", "a", "c"] * (rows // 3),
            "region": [1, 1, 2] * (rows // 3),
            "city": ["B", "A", "C"] * (rows // 3),
            "size": [2.5, 1.5, 3.5] * (rows // 3),
            "sales": sales,
            "visits": np.arange(rows),
            "price": price,
            "day": pd.date_range("2023-01-01", periods=rows),
        }
    )


def in_loops(df: pd.DataFrame, series: list[str], history: int, forecast: int, stride: int) -> list[Any]:
    """Windows of each shop, as the documentation describes them."""
    found = []
    for shop in ("b", "a", "c"):
        group = df[df["shop"] == shop].reset_index(drop=True)
        for name in series:
            for start in range(0, len(group) - history - forecast + 1, stride):
                rows = group.iloc[start : start + history + forecast]
                if not rows[[name, "price"]].isna().any().any():
                    values = rows[name].to_numpy(np.float32), rows["price"].to_numpy(np.float32)
                    found.append((name, shop, values, rows["day"].iloc[0]))
    return found


def test_windows_are_those_of_loops() -> None:
    df = table()
    found = convert.create_samples_from_dataframe(
        df, ["sales", "visits", "nothing"], ["shop", "region"], ["city", "none"], ["price", "size"], "d", 4, 2, 3,
        covariate_timeseries_cols=["price"], timestamp_col="day",
    )  # fmt: skip
    expected = in_loops(df, ["sales", "visits"], 4, 2, 3)
    assert len(found) == len(expected) > 20
    for (history, target, covariates, meta), (name, shop, (values, prices), day) in zip(found, expected, strict=True):
        assert history.dtype.name == target.dtype.name == "float32"
        assert np.array_equal(np.concatenate([history, target]), values)
        assert [*covariates] == ["price", "price_future"]
        assert np.array_equal(np.concatenate([covariates["price"], covariates["price_future"]]), prices)
        region, size = {"b": (1, 2.5), "a": (1, 1.5), "c": (2, 3.5)}[shop]
        assert meta == {
            "dataset": f"d_{name}",
            "group_id": f"{shop}_{region}",
            "history_length": 4,
            "prediction_length": 2,
            "city": shop.upper(),
            "size": size,
            "window_start_timestamp": str(day.to_datetime64()),
        }


def test_labels_without_groups() -> None:
    df = pd.DataFrame({"x": [1, 2, 3], "label": ["u", "v", "u"], "custom_split": ["train", "val", "test"]})
    found = convert.create_samples_from_dataframe(
        df, ["x"], [], ["label"], [], "d", 1, 1, 1, covariate_timeseries_cols=["label"], has_custom_split=True
    )
    assert [(c["label"].tolist(), c["label_future"].tolist()) for _, _, c, _ in found] == [([0], [1]), ([1], [0])]
    assert [(m["group_id"], m["custom_split"]) for _, _, _, m in found] == [("all", "train"), ("all", "val")]
    with pytest.raises(ValueError, match="expected a column of numbers, got 'label'"):
        convert.create_samples_from_dataframe(df, ["label"], [], [], [], "d", 1, 1, 1)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_split_by_time_with_a_time_zone(zone: str) -> None:
    """Also over a change of the clock."""
    df = pd.DataFrame({"x": np.arange(6.0), "t": pd.date_range("2023-03-24T12:00", periods=6, tz=zone)})
    found = convert.create_samples_from_dataframe(df, ["x"], [], [], [], "d", 1, 1, 1, timestamp_col="t")
    limits = {"train_end": "2023-03-26", "val_end": "2023-03-27T00:00:00+00:00"}
    parts = convert.split_samples_unified(found, {"method": "timestamp", "timestamp_column": "t", **limits})
    assert [len(part) for part in parts] == [2, 1, 2]


@pytest.mark.filterwarnings("ignore:Could not infer format")
def test_values_that_are_no_numbers_or_times() -> None:
    df = pd.DataFrame({"x": [1.0, 2.0], "n": pd.array([None, 3], "Int64"), "s": ["u", "v"]})

    def make(numbers: list[str], time: str | None = None) -> list[convert.Sample]:
        return convert.create_samples_from_dataframe(df, ["x"], [], [], numbers, "d", 1, 1, 1, timestamp_col=time)

    assert np.isnan(make(["n"])[0][3]["n"])
    with pytest.raises(ValueError, match="expected a column of numbers, got 's'"):
        make(["s"])
    with pytest.raises(ValueError, match="expected points in time in the column s"):
        make([], "s")
    split = {"method": "timestamp", "timestamp_column": "x", "train_end": "u", "val_end": "2023"}
    with pytest.raises(ValueError, match="expected points in time for train_end and val_end"):
        convert.split_samples_unified(make([], "x"), split)


def test_groups_of_a_categorical_column() -> None:
    """Categories that no row has are no groups."""
    df = pd.DataFrame({"g": pd.Categorical(["b", "a"] * 2, categories=["z", "a", "b"]), "x": np.arange(4.0)})
    found = convert.create_samples_from_dataframe(df, ["x"], ["g"], [], [], "d", 1, 1, 1)
    assert [(history.tolist(), meta["group_id"]) for history, _, _, meta in found] == [([0.0], "b"), ([1.0], "a")]


def samples(count: int, **metadata: list[Any]) -> list[convert.Sample]:
    one = np.zeros(1, np.float32)
    return [(one, one, {}, {"group_id": "g", "n": n, **{k: v[n] for k, v in metadata.items()}}) for n in range(count)]


def numbers(splits: convert.Splits) -> list[list[int]]:
    return [[meta["n"] for _, _, _, meta in part] for part in splits]


def test_split_by_ratio() -> None:
    some = samples(20, group_id=["a", "b"] * 10)
    assert numbers(convert.split_samples_unified(some, {"train": 0.5, "val": 0.2, "shuffle": False})) == [
        [0, 2, 4, 6, 8, 1, 3, 5, 7, 9],
        [10, 12, 11, 13],
        [14, 16, 18, 15, 17, 19],
    ]
    first, *rest = numbers(convert.split_samples_unified(some, {}))
    rng = np.random.default_rng(42)
    order = [*range(0, 20, 2)], [*range(1, 20, 2)]
    for one in order:
        rng.shuffle(one)
    assert [first, *rest] == [[*order[0][:8], *order[1][:8]], [order[0][8], order[1][8]], [order[0][9], order[1][9]]]
    assert numbers(convert.split_samples_by_group(some, 0.8, 0.1)) == [first, *rest]


def test_split_by_column_and_by_time() -> None:
    some = samples(3, custom_split=["train", " VAL", "test"])
    assert numbers(convert.split_samples_unified(some, {"method": "timestamp"}, has_custom_split=True)) == [
        [0],
        [1],
        [2],
    ]
    with pytest.raises(ValueError, match="expected train, val or test in the column custom_split, got 'x'"):
        convert.split_samples_unified(samples(1, custom_split=["x"]), {}, has_custom_split=True)
    with pytest.raises(ValueError, match="expected custom_split in the metadata"):
        convert.split_samples_unified(samples(1), {}, has_custom_split=True)
    config = {"method": "timestamp", "timestamp_column": "day", "train_end": "2023-01-02", "val_end": "2023-01-03"}
    days = [f"2023-01-0{n}T00:00:00.000000000" for n in (1, 2, 3)]
    some = samples(3, window_start_timestamp=days)
    assert numbers(convert.split_samples_unified(some, config)) == [[0], [1], [2]]
    with pytest.raises(ValueError, match="expected timestamp_column, train_end and val_end"):
        convert.split_samples_unified(some, {"method": "timestamp"})
    with pytest.raises(ValueError, match="expected window_start_timestamp in the metadata"):
        convert.split_samples_unified(samples(1), config)


def test_write_replaces_a_dataset_but_no_other_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert.write_sharded_dataset([], str(out))
    assert not out.exists()
    convert.write_sharded_dataset(samples(3), str(out), 2)
    convert.write_sharded_dataset(samples(2), str(out), 2)
    with ShardedDatasetReader(out) as reader:
        assert [meta["n"] for _, meta in reader.get_many(reader.query_ids())] == [0, 1]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"notes\.txt"):
        convert.write_sharded_dataset(samples(1), str(out))
    (out / "notes.txt").unlink()
    convert.write_sharded_dataset([], str(out))
    with ShardedDatasetReader(out) as reader:
        assert len(reader) == 0
    with pytest.raises(sqlite3.OperationalError, match="expected a field name"):
        convert.write_sharded_dataset(samples(1), str(out), covariate_fields=["a b"])


def config(folder: Path, **entries: Any) -> str:
    table().to_parquet(folder / "shops.parquet")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "filename": "shops.parquet",
                "timeseries": {"cols": ["sales"]},
                "group_labels": {"cols": ["shop"]},
                "discrete": {"cols": ["city"]},
                "continuous": {"cols": ["price"]},
                "window_size": 5,
                "stride": 1,
                **entries,
            }
        )
    )
    return str(folder / "config.json")


def test_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SYNTHEFY_DATASETS_BASE", str(tmp_path))
    folders = convert.convert_parquet_to_sharded(config(tmp_path))
    assert folders == tuple(str(tmp_path / "sharded" / f"shops_{name}") for name in ("train", "val", "test"))
    count, text = 0, capsys.readouterr().out
    for folder in folders:
        with ShardedDatasetReader(folder) as reader:
            count += len(reader)
            assert f"{folder}: {len(reader)} samples" in text
            for arrays, meta in reader.get_many(reader.query_ids()):
                shapes = {name: one.shape for name, one in arrays.items()}
                assert shapes == {"history": (4,), "target": (1,), "price": (4,), "price_future": (1,)}
                assert meta["city"] == meta["group_id"].upper()
                assert meta["dataset"] == "shops_sales"
    assert count == len(in_loops(table(), ["sales"], 4, 1, 1))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"timeseries": {}}, "expected columns in timeseries.cols, got none"),
        ({"timeseries": {"cols": ["nothing"]}}, "expected one of the columns nothing, got shop, region"),
        ({"history_forecast_split": {"history_length": 5}}, "must be less than window_size"),
        ({"window_size": 500}, "expected windows of 500 rows without NaN, got none"),
        ({"train_val_split": {"method": "timestamp", "timestamp_column": "x"}}, "for timestamp_column, got 'x'"),
        ({"train_val_split": {"method": "timestamp"}}, "for timestamp_column, got None"),
    ],
)
def test_wrong_configuration(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert.convert_parquet_to_sharded(config(tmp_path, **entries), str(tmp_path))


def test_missing_base_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNTHEFY_DATASETS_BASE", raising=False)
    with pytest.raises(ValueError, match="expected a base path of data"):
        convert.convert_parquet_to_sharded(config(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(KeyError, match="expected the entry 'filename', got none"):
        convert.convert_parquet_to_sharded(str(tmp_path / "config.json"), str(tmp_path))
    for text, message in (("{", "expected a JSON file"), ("[]", "expected a JSON object, got list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=rf"config\.json: {message}"):
            convert.convert_parquet_to_sharded(str(tmp_path / "config.json"), str(tmp_path))


def test_command(tmp_path: Path) -> None:
    split = {"method": "timestamp", "timestamp_column": "day", "train_end": "2023-02-01", "val_end": "2023-02-05"}
    entries = {"history_forecast_split": {"history_length": 2}, "train_val_split": split}
    module = "shardex.compat.synthefy_dataset_utils.convert_to_sharded"
    given = ["--config", config(tmp_path, **entries), "--data-base-path", str(tmp_path)]
    options = ["--output-dir", str(tmp_path / "out"), "--num-workers", "2", "--samples-per-shard", "7"]
    subprocess.run([sys.executable, "-m", module, *given, *options], check=True, capture_output=True)
    with ShardedDatasetReader(tmp_path / "out" / "shops_train") as reader:
        assert max(meta["window_start_timestamp"] for _, meta in reader.get_many(reader.query_ids())) < "2023-02-01"
        assert reader.shard_counts("history")[0] == 7
        assert reader.get_sample(reader.query_ids()[0])[0]["history"].shape == (2,)
