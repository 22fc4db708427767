"""`Dataset.sliding`: windows of rows by group and time, compared with plain lists; missing values; runs and errors."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.dataset.sliding import SlidingRows
from shardex.errors import ArgumentError, FieldError, SchemaError

Row = dict[str, Any]


def expected(rows: list[Row], length: int, horizon: int, stride: int, drop: bool) -> list[tuple[Any, list[Any]]]:
    """Return group and rows of each window: sorted by time inside of groups, in the order of their first rows."""
    found = []
    for group in dict.fromkeys(row["g"] for row in rows):
        some = sorted((row for row in rows if row["g"] == group), key=lambda row: row["t"])
        for begin in range(0, len(some) - length - horizon + 1, stride):
            window = some[begin : begin + length + horizon]
            if not drop or all(row["x"] is not None and row["x"] == row["x"] for row in window):
                found.append((group, [row["n"] for row in window]))
    return found


def of_windows(ds: sx.Dataset) -> list[tuple[Any, list[Any]]]:
    return [(s.g, [*s.n.tolist(), *(s.n_future.tolist() if "n_future" in ds.fields else [])]) for s in ds]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 9), st.none() | st.floats(-2, 2) | st.just(np.nan)), max_size=40
    ),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_windows_are_those_of_a_plain_loop(data: list[Any], length: int, horizon: int, stride: int, drop: bool) -> None:
    rows = [{"n": n, "g": g, "t": t, "x": x} for n, (g, t, x) in enumerate(data)]
    types = pa.schema([("n", pa.int64()), ("g", pa.int64()), ("t", pa.int64()), ("x", pa.float64())])
    ds = sx.open(pa.Table.from_pylist(rows, types))
    view = ds.sliding(length, horizon, stride, group="g", time="t", missing="drop" if drop else "keep")
    assert of_windows(view) == expected(rows, length, horizon, stride, drop)


def table(path: Path, count: int = 300) -> list[Row]:
    """Write rows of three groups and unsorted times as Parquet; return them."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "n": k,
            "g": f"g{k % 3}",
            "t": dt.datetime(2024, 1, 1) + dt.timedelta(hours=int(rng.integers(0, 10_000))),
            "x": None if k % 50 == 49 else float(k),
            "v": [float(k), float(-k)],
            "name": f"row {k}",
        }
        for k in range(count)
    ]
    pair = pa.list_(pa.float64(), 2)
    types = [pa.int64(), pa.string(), pa.timestamp("us"), pa.float32(), pair, pa.string()]
    schema = pa.schema(list(zip(rows[0], types, strict=True)))
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=64)
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return table(tmp_path_factory.mktemp("t") / "t.parquet")


@pytest.fixture(params=["parquet", "arrow", "jsonl"])
def ds(request: pytest.FixtureRequest, tmp_path: Path) -> sx.Dataset:
    table(tmp_path / "t.parquet")
    ds = sx.open(str(tmp_path / "t.parquet"))
    if request.param == "parquet":
        return ds
    sx.write(str(tmp_path / "d"), ds, ds.features, format=request.param)
    return sx.open(str(tmp_path / "d"), schema=ds.features if request.param == "jsonl" else None)


def test_fields_of_a_window(ds: sx.Dataset, rows: list[Row]) -> None:
    view = ds.sliding(8, 2, group="g", time="t")
    history = {"n": "int64[8]", "t": "datetime64[us][8]", "x": "float32[8]", "v": "float64[8, 2]"}
    future = {f"{name}_future": text.replace("[8", "[2") for name, text in history.items()}
    assert {name: str(one) for name, one in view.features.items()} == {"g": "text", **history, **future}
    assert of_windows(view) == expected(rows, 8, 2, 1, drop=True)
    one = view[5]
    assert one.t.tolist() == [rows[n]["t"] for n in one.n] and one.v.tolist() == [rows[n]["v"] for n in one.n]
    assert (np.diff([*one.t, *one.t_future]) >= np.timedelta64(0, "us")).all() and one.x_future.dtype == np.float32
    batch = view.read([7, 3, 7], ["x_future", "g"])
    assert batch.names == ["x_future", "g"] and batch["x_future"].shape == (3, 2)
    assert batch["x_future"][0].tolist() == view[7].x_future.tolist()


def test_views_below_and_above(ds: sx.Dataset, rows: list[Row]) -> None:
    some = ds.where("n % 2 = 0").select("n", "g", "t").sliding(4, stride=3, group="g", time="t")
    assert of_windows(some) == expected([row for row in rows if row["n"] % 2 == 0], 4, 0, 3, drop=False)
    assert [s.g for s in some.where("g = 'g1'")].count("g1") == len([w for w in of_windows(some) if w[0] == "g1"])
    assert "windows of 4 rows every 3" in repr(some) and "shard" in repr(some)
    in_order = ds.select("n").sliding(5, stride=5)
    assert [s.n.tolist() for s in in_order] == [list(range(k, k + 5)) for k in range(0, 300, 5)]


def test_time_splits_have_no_row_in_common(ds: sx.Dataset) -> None:
    parts = ds.split({"train": 0.8, "test": 0.2}, time="t", within="g").sliding(5, 1, group="g", time="t")
    seen = [{n for s in part for n in (*s.n.tolist(), *s.n_future.tolist())} for part in parts.values()]
    assert seen[0] and seen[1] and not seen[0] & seen[1]


def test_missing_values(ds: sx.Dataset) -> None:
    kept = ds.sliding(4, group="g", time="t", missing="keep")
    dropped = ds.sliding(4, group="g", time="t")
    assert len(kept) == 3 * 97 and not np.isnan(dropped["x"]).any()
    assert len(dropped) == int((~np.isnan(kept["x"]).any(axis=1)).sum()) < len(kept)
    with pytest.raises(SchemaError, match=r'got none in \d+ of 291 windows, the first is sample \d*49; missing="drop"'):
        ds.sliding(4, group="g", time="t", missing="error")
    whole = sx.open([{"n": k if k != 2 else None} for k in range(6)])
    assert [s.n.tolist() for s in whole.sliding(2)] == [[0, 1], [3, 4], [4, 5]]
    with pytest.raises(SchemaError, match=r"got none in 1 rows - at field n, which has no NaN"):
        whole.sliding(2, missing="keep").read([0, 1])
    without = sx.open([{"n": k, "t": k or None} for k in range(4)])
    with pytest.raises(SchemaError, match="for time, got none in 1 of 4, the first is sample 0"):
        without.sliding(2, time="t")


def test_groups_shorter_than_a_window_have_none() -> None:
    ds = sx.open([{"g": k, "x": j} for k in range(4) for j in range(k + 1)])
    assert [(s.g, s.x.tolist()) for s in ds.sliding(3, group="g")] == [(2, [0, 1, 2]), (3, [0, 1, 2]), (3, [1, 2, 3])]
    assert len(ds.sliding(9, group="g")) == 0 == len(ds.take(0).sliding(1))
    assert ds.sliding(9, group="g").read([])["x"].shape == (0, 9)


def test_several_group_fields_classes_and_typed_rows(tmp_path: Path) -> None:
    @sx.packable
    class Step:
        a: int
        b: str
        y: float

    ds = sx.open([{"a": k % 2, "b": "uv"[k // 2 % 2], "y": float(k)} for k in range(16)], Step)
    view = ds.sliding(4, group=["a", "b"])
    assert [(s.a, s.b, s.y.tolist()) for s in view][:2] == [(0, "u", [0, 4, 8, 12]), (1, "u", [1, 5, 9, 13])]
    labels = sx.write(str(tmp_path / "c"), [{"c": k % 2} for k in range(4)], {"c": sx.ClassLabel(["p", "q"])})
    assert labels.sliding(2, stride=2)["c"].tolist() == [[0, 1], [0, 1]]


def test_shuffled_run_is_resumed_at_the_exact_window(ds: sx.Dataset) -> None:
    def loader(**options: Any) -> sx.Loader:
        view = ds.sliding(6, 2, group="g", time="t")
        return sx.Loader(view, shuffle=True, seed=1, epochs=2, fields=["n", "n_future"], **options)

    alone = [batch.n.tolist() for batch in loader(batch_size=10)]
    first = loader(batch_size=10)
    for _ in itertools.islice(first, 7):
        pass
    resumed = loader(batch_size=5, rank=0, world_size=2)
    resumed.load_state_dict(first.state_dict())
    assert next(iter(resumed)).n.tolist() == alone[7][:5]


def test_worker_processes_get_the_plan(ds: sx.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    view = ds.sliding(6, group="g", time="t")
    with monkeypatch.context() as patched:
        patched.setattr(SlidingRows, "_plan", None)
        again = pickle.loads(pickle.dumps(view))
    assert again.fingerprint == view.fingerprint != ds.sliding(6, group="g").fingerprint
    assert again[3].n.tolist() == view[3].n.tolist()


def test_wrong_arguments() -> None:
    ds = sx.open([{"x": 1.0, "x_future": 2.0, "name": "a"}])
    for options, error, message in (
        ({"length": 0}, ArgumentError, "at least 1 for length, got 0"),
        ({"length": 10**19}, ArgumentError, "at most [0-9]+ for length, horizon and stride, got 10{19}"),
        ({"length": 1, "stride": 0}, ArgumentError, "at least 1 for stride, got 0"),
        ({"length": 1, "missing": "skip"}, ArgumentError, "one of 'drop', 'keep', 'error' for missing, got 'skip'"),
        ({"length": 1, "group": "nam"}, FieldError, "did you mean 'name'"),
        ({"length": 1, "time": "when"}, FieldError, "got 'when'"),
        ({"length": 1, "horizon": 1}, SchemaError, "the future of 'x' has, got 'x_future'; rename it"),
    ):
        with pytest.raises(error, match=message):
            ds.sliding(**options)
    with pytest.raises(SchemaError, match="a field of numbers, times or arrays of one shape"):
        ds.select("name").sliding(1)
