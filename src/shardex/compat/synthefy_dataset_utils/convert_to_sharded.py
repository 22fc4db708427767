"""Turns a Parquet file of time series into three datasets of windows: train, val and test.

A JSON file says what to do::

    {"filename": "sales.parquet",                        below the base path; its name is that of the datasets
     "timeseries": {"cols": ["sales"]},                  each of these columns gives windows
     "group_labels": {"cols": ["shop"]},                 rows of a window have the same values of these
     "discrete": {"cols": ["city"]},                     metadata, from the first row of a group
     "continuous": {"cols": ["price"]},                  covariates: the fields price and price_future
     "window_size": 256, "stride": 32,
     "history_forecast_split": {"history_length": 200},  or {"history_ratio": 0.8}
     "train_val_split": {"train": 0.8, "val": 0.1},      or by time: see `split_samples_unified`
     "seed": 42, "shuffle": true, "samples_per_shard": 10000}

As a command: ``python -m shardex.compat.synthefy_dataset_utils.convert_to_sharded --config config.json``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardex.compat.synthefy_dataset_utils._errors import FieldNameError
from shardex.dataset import create
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, FieldError, FormatError, MissingExtraError, SchemaError
from shardex.features import Array, Optional

if TYPE_CHECKING:
    import pandas as pd

Sample = tuple[NDArray[np.float32], NDArray[np.float32], dict[str, NDArray[np.float32]], dict[str, Any]]
"""History, target, covariates by field, and metadata."""
Splits = tuple[list[Sample], list[Sample], list[Sample]]
"""The samples of train, val and test."""

DEFAULT_DATASETS_BASE = os.environ.get("SYNTHEFY_DATASETS_BASE")
CUSTOM_SPLIT_COLUMN = "custom_split"
VALID_SPLIT_VALUES = {"train", "val", "test"}
DEFAULT_NUM_WORKERS = 8
DEFAULT_SAMPLES_PER_SHARD = 10000
_TIME = "window_start_timestamp"


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("pandas", "all", "reading tables of time series") from None
    return pandas


# -- windows ------------------------------------------------------------------------------------------------------


def create_samples_from_dataframe(
    df: pd.DataFrame,
    timeseries_cols: Sequence[str],
    group_cols: Sequence[str],
    discrete_cols: Sequence[str],
    continuous_cols: Sequence[str],
    dataset_name: str,
    history_length: int,
    forecast_length: int,
    stride: int,
    covariate_timeseries_cols: Sequence[str] | None = None,
    timestamp_col: str | None = None,
    has_custom_split: bool = False,
    num_workers: int | None = None,
) -> list[Sample]:
    """Return the windows of each group of rows; those in which a value or a covariate is NaN are left out.

    Metadata are the values of the other discrete and continuous columns in the first row of the group. `num_workers`
    has no effect: all windows of a column are cut at once.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"shop": ["a"] * 4 + ["b"] * 2, "sales": [1.0, 2, 3, 4, 5, 6]})
    >>> found = create_samples_from_dataframe(table, ["sales"], ["shop"], [], [], "d", 2, 1, 1)
    >>> [(history.tolist(), target.tolist(), meta["group_id"]) for history, target, _, meta in found]
    [([1.0, 2.0], [3.0], 'a'), ([2.0, 3.0], [4.0], 'a')]
    """
    covariates = [name for name in covariate_timeseries_cols or () if name in df.columns]
    series = {name: _numbers(df[name], name in discrete_cols) for name in covariates}
    metadata: dict[str, type] = {**dict.fromkeys(discrete_cols, str), **dict.fromkeys(continuous_cols, float)}
    others = {name: kind for name, kind in metadata.items() if name in df.columns and name not in covariates}
    groups = _Groups(df, [name for name in group_cols if name in df.columns], others)
    starts = _start_values(df, timestamp_col, has_custom_split)
    found: list[tuple[int, int, Sample]] = []
    for number, column in enumerate(name for name in timeseries_cols if name in df.columns):
        lengths = {"history_length": history_length, "prediction_length": forecast_length}
        fixed = {"dataset": f"{dataset_name}_{column}", "group_id": "", **lengths}
        values = [_numbers(df[column], False), *series.values()]
        rows, windows = _windows(groups.codes, values, history_length, forecast_length, stride)
        for window, row in enumerate(rows.tolist()):
            group = int(groups.codes[row])
            meta = {**fixed, **groups.metadata(group), **{name: str(one[row]) for name, one in starts.items()}}
            (history, target), *pairs = ((before[window], after[window]) for before, after in windows)
            futures: dict[str, NDArray[np.float32]] = {}
            for name, (before, after) in zip(series, pairs, strict=True):
                futures |= {name: before, f"{name}_future": after}
            found.append((group, number, (history, target, futures, meta)))
    found.sort(key=lambda one: one[:2])
    return [sample for _, _, sample in found]


class _Groups:
    """Rows with the same values of some columns, numbered as they appear; a missing value belongs to no group."""

    def __init__(self, df: pd.DataFrame, columns: list[str], others: Mapping[str, type]) -> None:
        self._df, self._columns, self._others = df, columns, others
        self.codes: NDArray[np.int64] = np.zeros(len(df), np.int64)
        if columns:
            self.codes = df.groupby(columns, sort=False, observed=True).ngroup().to_numpy()
        rows = np.flatnonzero(self.codes >= 0)
        self._first = rows[np.unique(self.codes[rows], return_index=True)[1]]
        self._metadata: dict[int, dict[str, Any]] = {}

    def metadata(self, group: int) -> dict[str, Any]:
        """Return the name of a group, and the values of other columns in its first row."""
        if group not in self._metadata:
            row = int(self._first[group])
            names = "_".join(str(self._df[name].iloc[row]) for name in self._columns) if self._columns else "all"
            values = {name: _value(self._df[name].iloc[row], kind, name) for name, kind in self._others.items()}
            self._metadata[group] = {"group_id": names, **values}
        return self._metadata[group]


def _value(value: Any, kind: type, column: str) -> Any:
    """Return a value of metadata; a missing number is NaN."""
    if kind is float and value is _pandas().NA:
        return float("nan")
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"expected a column of numbers, got {column!r}: {error}") from None


def _numbers(column: Any, encode: bool) -> NDArray[np.float32]:
    """Return a column as numbers; labels become numbers as they appear."""
    if encode:
        codes, _ = _pandas().factorize(column, use_na_sentinel=False)
        return np.asarray(codes, np.float32)
    try:
        return column.to_numpy().astype(np.float32)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise SchemaError(f"expected a column of numbers, got {column.name!r}: {error}") from None


def _start_values(df: pd.DataFrame, timestamp_col: str | None, has_custom_split: bool) -> dict[str, NDArray[Any]]:
    """Return the columns of which a sample has the value in its first row."""
    found = {}
    if timestamp_col and timestamp_col in df.columns:
        column = df[timestamp_col]
        is_time = _pandas().api.types.is_datetime64_any_dtype(column)
        found[_TIME] = (column if is_time else _times(column, f"in the column {timestamp_col}")).to_numpy()
    if has_custom_split and CUSTOM_SPLIT_COLUMN in df.columns:
        found[CUSTOM_SPLIT_COLUMN] = df[CUSTOM_SPLIT_COLUMN].to_numpy()
    return found


def _times(given: Any, where: str, **options: Any) -> Any:
    try:
        return _pandas().to_datetime(given, **options)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"expected points in time {where}: {error}") from None


def _windows(
    codes: NDArray[np.int64], series: list[NDArray[np.float32]], history: int, forecast: int, stride: int
) -> tuple[NDArray[np.int64], list[tuple[NDArray[np.float32], NDArray[np.float32]]]]:
    """Return the first row of each window, and the history and the future of each series."""
    rows = np.flatnonzero(codes >= 0)
    columns = {"row": rows, "group": codes[rows], **{f"x{k}": one[rows] for k, one in enumerate(series)}}
    view = open_dataset(columns).sliding(history, forecast, stride, group="group")
    found = view.read(np.arange(len(view)))
    nothing = np.empty((len(view), 0), np.float32)
    futures = [found[f"x{k}_future"] if forecast else nothing for k in range(len(series))]
    pairs = [(np.asarray(found[f"x{k}"]), np.asarray(future)) for k, future in enumerate(futures)]
    return np.asarray(found["row"])[:, 0], pairs


# -- splits -------------------------------------------------------------------------------------------------------


def split_samples_unified(
    samples: Sequence[Sample], split_config: Mapping[str, Any], has_custom_split: bool = False, seed: int = 42
) -> Splits:
    """Return the samples of train, val and test: by the column custom_split, by time, or by ratios inside of groups.

    By time: ``{"method": "timestamp", "timestamp_column": "day", "train_end": "2023-01-01", "val_end": "2023-06-01"}``;
    a window belongs to train if it begins before `train_end`, to val if before `val_end`, otherwise to test; times
    without a time zone are UTC. By ratios:
    ``{"train": 0.8, "val": 0.1, "shuffle": True}``; test gets the rest.
    """
    if has_custom_split:
        return _split_by_column(samples)
    if split_config.get("method", "ratio") != "timestamp":
        train, val = split_config.get("train", 0.8), split_config.get("val", 0.1)
        return split_samples_by_group(samples, train, val, split_config.get("shuffle", True), seed)
    limits = [str(split_config.get(name) or "") for name in ("timestamp_column", "train_end", "val_end")]
    if not all(limits):
        raise ArgumentError(
            f"expected timestamp_column, train_end and val_end for a split by time, got {dict(split_config)}"
        )
    return _split_by_time(samples, limits[1], limits[2])


def split_samples_by_group(
    samples: Sequence[Sample], train_ratio: float, val_ratio: float, shuffle: bool = True, seed: int = 42
) -> Splits:
    """Return the samples of train, val and test: of each group these parts, the rest is test."""
    rng = np.random.default_rng(seed)
    groups: dict[str, list[int]] = {}
    for number, (_, _, _, meta) in enumerate(samples):
        groups.setdefault(meta["group_id"], []).append(number)
    parts: list[list[int]] = [[], [], []]
    for numbers in groups.values():
        if shuffle:
            rng.shuffle(numbers)
        train = int(len(numbers) * train_ratio)
        val = train + int(len(numbers) * val_ratio)
        for part, some in zip(parts, (numbers[:train], numbers[train:val], numbers[val:]), strict=True):
            part.extend(some)
    train_part, val_part, test_part = ([samples[number] for number in part] for part in parts)
    return train_part, val_part, test_part


def _divide(samples: Sequence[Sample], parts: Sequence[str]) -> Splits:
    train, val, test = (
        [sample for sample, part in zip(samples, parts, strict=True) if part == name]
        for name in ("train", "val", "test")
    )
    return train, val, test


def _split_by_column(samples: Sequence[Sample]) -> Splits:
    parts = []
    for _, _, _, meta in samples:
        if CUSTOM_SPLIT_COLUMN not in meta:
            raise ArgumentError(f"expected {CUSTOM_SPLIT_COLUMN} in the metadata of each sample, got {meta}")
        part = str(meta[CUSTOM_SPLIT_COLUMN]).lower().strip()
        if part not in VALID_SPLIT_VALUES:
            raise ArgumentError(f"expected train, val or test in the column {CUSTOM_SPLIT_COLUMN}, got {part!r}")
        parts.append(part)
    return _divide(samples, parts)


def _split_by_time(samples: Sequence[Sample], train_end: str, val_end: str) -> Splits:
    for _, _, _, meta in samples:
        if _TIME not in meta:
            raise ArgumentError(f"expected {_TIME} in the metadata of each sample, got {meta}; set timestamp_column")
    times = _times([meta[_TIME] for _, _, _, meta in samples], f"for {_TIME}", utc=True)
    limits = [_times(one, "for train_end and val_end", utc=True) for one in (train_end, val_end)]
    is_train, is_val = np.asarray(times < limits[0]), np.asarray(times < limits[1])
    return _divide(samples, np.where(is_train, "train", np.where(is_val, "val", "test")).tolist())


# -- files --------------------------------------------------------------------------------------------------------


def write_sharded_dataset(
    samples: Sequence[Sample],
    output_dir: str,
    samples_per_shard: int = DEFAULT_SAMPLES_PER_SHARD,
    covariate_fields: Sequence[str] | None = None,
) -> None:
    """Write samples as a dataset, which takes the place of an existing one when it is complete.

    Without samples there is no new dataset; an existing one becomes empty. A folder that has other files is an error.
    """
    if not samples and not os.path.exists(output_dir):
        return
    covariates = [one for name in covariate_fields or () for one in (name, f"{name}_future")]
    features = {"history": Array(), "target": Array(), **{name: Optional(Array()) for name in covariates}}
    try:
        out = create(output_dir, features, format="columns_tar", mode="overwrite", samples_per_shard=samples_per_shard)
    except SchemaError as error:
        raise FieldNameError(*error.args) from None
    with out:
        for history, target, others, meta in samples:
            out.append({"history": history, "target": target, **others, "metadata": meta})


def convert_parquet_to_sharded(
    config_path: str,
    data_base_path: str | None = None,
    output_dir: str | None = None,
    num_workers: int | None = None,
    samples_per_shard: int | None = None,
) -> tuple[str, str, str]:
    """Convert a Parquet file as a JSON file says; return the folders of train, val and test.

    The base path is that of the variable SYNTHEFY_DATASETS_BASE by default, the folders lie in `sharded` beside the
    Parquet file. A split without samples has no folder.
    """
    base = data_base_path or os.environ.get("SYNTHEFY_DATASETS_BASE") or DEFAULT_DATASETS_BASE
    if base is None:
        raise ArgumentError("expected a base path of data: pass data_base_path, or set SYNTHEFY_DATASETS_BASE")
    config = _config(config_path)
    if "filename" not in config:
        raise FieldError(f"{config_path}: expected the entry 'filename', got {', '.join(config) or 'none'}")
    parquet = Path(base).expanduser() / config["filename"]
    target = Path(output_dir).expanduser() if output_dir else parquet.parent / "sharded"
    history, forecast = _lengths(config)
    split = {"shuffle": config.get("shuffle", True), **config.get("train_val_split", {"train": 0.8, "val": 0.1})}
    series, groups, discrete, continuous = (
        config.get(name, {}).get("cols", []) for name in ("timeseries", "group_labels", "discrete", "continuous")
    )
    if not series:
        raise ArgumentError(f"{config_path}: expected columns in timeseries.cols, got none")
    df = _pandas().read_parquet(parquet)
    if not {*series} & {*df.columns}:
        raise ArgumentError(f"{parquet}: expected one of the columns {', '.join(series)}, got {', '.join(df.columns)}")
    time = _time_column(split, list(df.columns))
    has_split = CUSTOM_SPLIT_COLUMN in df.columns
    samples = create_samples_from_dataframe(
        df,
        series,
        groups,
        discrete,
        continuous,
        parquet.stem,
        history,
        forecast,
        config.get("stride", 32),
        continuous,
        time,
        has_split,
        num_workers,
    )
    if not samples:
        raise ArgumentError(f"{parquet}: expected windows of {history + forecast} rows without NaN, got none")
    parts = split_samples_unified(samples, split, has_split, config.get("seed", 42))
    limit = samples_per_shard or config.get("samples_per_shard") or DEFAULT_SAMPLES_PER_SHARD
    train, val, test = (str(target / f"{parquet.stem}_{name}") for name in ("train", "val", "test"))
    for folder, part in zip((train, val, test), parts, strict=True):
        write_sharded_dataset(part, folder, limit, continuous)
        print(f"{folder}: {len(part)} samples")
    return train, val, test


def _config(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: expected a JSON file: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def _lengths(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows of the history and of the future of a window."""
    window, split = config.get("window_size", 256), config.get("history_forecast_split", {})
    if "history_length" not in split:
        history = int(window * split.get("history_ratio", 0.8))
        return history, window - history
    if (history := int(split["history_length"])) >= window:
        raise ArgumentError(f"history_length ({history}) must be less than window_size ({window})")
    return history, window - history


def _time_column(split: Mapping[str, Any], columns: list[str]) -> str | None:
    if split.get("method") != "timestamp":
        return None
    name = split.get("timestamp_column")
    if not name or name not in columns:
        raise ArgumentError(f"expected one of the columns {', '.join(columns)} for timestamp_column, got {name!r}")
    return str(name)


def main() -> None:
    """Convert a Parquet file from the command line."""
    parser = argparse.ArgumentParser(description="Convert a Parquet file of time series into sharded datasets")
    parser.add_argument("--config", required=True, help="path of the JSON file that says what to do")
    parser.add_argument("--data-base-path", help="folder of the data (default: $SYNTHEFY_DATASETS_BASE)")
    parser.add_argument("--output-dir", help="folder of the datasets (default: sharded/ beside the Parquet file)")
    parser.add_argument("--num-workers", type=int, help="accepted, without effect")
    parser.add_argument("--samples-per-shard", type=int, help=f"arrays of a tar (default: {DEFAULT_SAMPLES_PER_SHARD})")
    given = parser.parse_args()
    convert_parquet_to_sharded(
        given.config, given.data_base_path, given.output_dir, given.num_workers, given.samples_per_shard
    )


if __name__ == "__main__":
    main()
