"""Dates, times, decimals, maps and nulls from the sample to the file and back: write, edit, query, typed, exchanged."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardex as sx
from shardex.errors import FormatError, SchemaError

BERLIN = ZoneInfo("Europe/Berlin")
START = dt.datetime(2024, 3, 30, 12)
FEATURES = sx.Features.of(
    {
        "k": int,
        "moment": sx.Timestamp("us"),
        "zoned": sx.Timestamp("us", "Europe/Berlin"),
        "ns": sx.Timestamp("ns", "UTC"),
        "day": sx.Date(),
        "clock": sx.Time("ms"),
        "span": sx.Duration("s"),
        "money": sx.Decimal(12, 2),
        "counts": sx.Map(str, sx.Optional(int)),
        "places": sx.Map({"x": int, "y": int}, sx.Date()),
        "nothing": sx.Null(),
        "maybe": sx.Optional(sx.Timestamp("s")),
        "days": sx.Sequence(sx.Optional(sx.Date())),
        "inside": sx.Optional(sx.Struct({"moment": sx.Optional(sx.Timestamp("ms", "UTC")), "money": sx.Decimal(5, 1)})),
    }
)


def sample(k: int) -> dict[str, Any]:
    at = START + dt.timedelta(hours=k)
    return {
        "k": k,
        "moment": at.replace(microsecond=k),
        "zoned": at.replace(tzinfo=dt.UTC).astimezone(BERLIN),
        "ns": np.datetime64(k, "ns"),
        "day": at.date(),
        "clock": at.time().replace(microsecond=7000),
        "span": dt.timedelta(seconds=-k),
        "money": Decimal(k) / 4,
        "counts": {"a": k, "none": None},
        "places": [({"x": k, "y": 0}, at.date())],
        "nothing": None,
        "maybe": None if k % 2 else at,
        "days": [None, at.date()],
        "inside": None
        if k % 3 == 2
        else {"moment": None if k % 3 else at.replace(tzinfo=dt.UTC), "money": Decimal("0.5")},
    }


SAMPLES = [sample(k) for k in range(30)]


def as_dicts(ds: sx.Dataset) -> list[dict[str, Any]]:
    return [dict(one) for one in ds]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> sx.Dataset:
    return sx.write(tmp_path_factory.mktemp("types") / "native", SAMPLES, FEATURES)


def test_samples_and_types_of_a_native_dataset(native: sx.Dataset) -> None:
    assert native.features == FEATURES
    assert as_dicts(native) == SAMPLES == [dict(native[k]) for k in range(30)]
    assert native[3].zoned.tzinfo == BERLIN and type(native[3].ns) is np.datetime64
    kinds = {field.name: str(field.type) for field in native.to_arrow().schema}
    assert kinds["zoned"] == "timestamp[us, tz=Europe/Berlin]" and kinds["clock"] == "time32[ms]"
    assert (kinds["day"], kinds["span"], kinds["money"]) == ("date32[day]", "duration[s]", "decimal128(12, 2)")
    assert (kinds["nothing"], kinds["counts"]) == ("null", "map<large_string, int64>")


def test_batches_are_stacked(native: sx.Dataset) -> None:
    batch = next(iter(native.ordered(8)))
    dtypes = {name: str(batch[name].dtype) for name in ("moment", "zoned", "ns", "day", "clock", "span")}
    assert dtypes == {
        "moment": "datetime64[us]",
        "zoned": "datetime64[us]",
        "ns": "datetime64[ns]",
        "day": "datetime64[D]",
        "clock": "timedelta64[ms]",
        "span": "timedelta64[s]",
    }
    assert batch.zoned[0] == np.datetime64("2024-03-30T12:00:00")  # in UTC
    assert batch.money == [one["money"] for one in SAMPLES[:8]] and batch.counts[1] == {"a": 1, "none": None}
    assert [dict(one) for one in batch] == SAMPLES[:8]
    with sx.Loader(native, 10, workers=1) as loader:
        assert [dict(one) for one in next(iter(loader))] == SAMPLES[:10]


@pytest.mark.parametrize("form", ["arrow", "parquet", "jsonl", "bins", "tar"])
def test_formats(form: str, native: sx.Dataset, tmp_path: Path) -> None:
    sx.write(tmp_path / "d", native, format=form)
    found = sx.open(tmp_path / "d", schema=None if form in ("arrow", "parquet", "bins") else FEATURES)
    found = found.select(*FEATURES)
    assert found.features == FEATURES and as_dicts(found) == SAMPLES
    assert found.read([4])["day"].dtype == "datetime64[D]"


@pytest.mark.needs("pandas")
def test_views_export_what_the_whole_exports(native: sx.Dataset, tmp_path: Path) -> None:
    pq.write_table(native.to_arrow().replace_schema_metadata(), tmp_path / "x.parquet")
    for ds in (native, sx.open(native.to_arrow().replace_schema_metadata()), sx.open(tmp_path / "x.parquet")):
        whole, part = ds.to_arrow(), ds.where("k >= 0").to_arrow()
        assert part.schema.types == whole.schema.types and part.to_pylist() == whole.to_pylist()
        assert ds[::-1].to_pandas().zoned[29] == SAMPLES[0]["zoned"]
        assert str(ds.features["days"]) == "list of (date or none)"


def test_edit_and_compact(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", SAMPLES, FEATURES)
    with sx.edit(tmp_path / "d") as tx:
        tx.update(0, day=dt.date(2000, 1, 1), money=Decimal("9.99"), counts={}, maybe=None)
        tx.delete([1])
        tx.add_field("stamp", sx.Timestamp("s"), np.arange(30).astype("datetime64[s]"))
    with sx.edit(tmp_path / "d") as tx:
        tx.add_field("when", sx.Optional(sx.Date()), [None, *[dt.date(2024, 1, 1)] * 28])
    ds = sx.open(tmp_path / "d")
    before = as_dicts(ds)
    assert before[0] == {**SAMPLES[0], "day": dt.date(2000, 1, 1), "money": Decimal("9.99"), "counts": {}} | {
        "maybe": None,
        "stamp": dt.datetime(1970, 1, 1),
        "when": None,
    }
    assert (before[1]["k"], before[1]["when"], before[1]["stamp"].second) == (2, dt.date(2024, 1, 1), 2)
    assert ds.read([0, 1])["day"].tolist() == [dt.date(2000, 1, 1), SAMPLES[2]["day"]]
    sx.compact(tmp_path / "d")
    assert as_dicts(sx.open(tmp_path / "d")) == before and sx.verify(tmp_path / "d") == []


@pytest.fixture
def new_york() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("moment > '2024-03-31 12:00:00'", lambda one: one["moment"] > dt.datetime(2024, 3, 31, 12)),
        ("zoned >= '2024-03-30 12:00:00'", lambda one: one["zoned"] >= dt.datetime(2024, 3, 30, 12, tzinfo=dt.UTC)),
        ("zoned < TIMESTAMPTZ '2024-03-30 16:00:00+01:00'", lambda one: one["k"] < 3),
        ("day = DATE '2024-03-31'", lambda one: one["day"] == dt.date(2024, 3, 31)),
        ("clock < '06:00'", lambda one: one["clock"] < dt.time(6)),
        ("span <= INTERVAL '-20 seconds'", lambda one: one["k"] >= 20),
        ("money >= 2.5", lambda one: one["money"] >= Decimal("2.5")),
        ("counts['a'] = 4", lambda one: one["k"] == 4),
        ("maybe IS NULL", lambda one: one["maybe"] is None),
        ('inside."moment" IS NULL', lambda one: one["inside"] is None or one["inside"]["moment"] is None),
        ("nothing IS NULL", lambda one: True),
        ("hour(zoned) = 13", lambda one: one["zoned"].astimezone(dt.UTC).hour == 13),
    ],
)
def test_sql(condition: str, expected: Any, native: sx.Dataset) -> None:
    for view in (native, native[5:], native.shuffle(), native[[3, 4]]):
        assert sorted(one.k for one in view.where(condition)) == sorted(
            one.k for one in view if expected(SAMPLES[one.k])
        )


def test_parameters_and_answers_of_sql(native: sx.Dataset) -> None:
    moment = dt.datetime(2024, 3, 31, 12, tzinfo=dt.UTC)
    found = native.where("zoned > ? AND moment < ?", [moment, np.datetime64("2024-03-31T16:00")])
    assert [one.k for one in found] == [25, 26, 27]
    (answer,) = native.sql("SELECT max(day) AS day, sum(money) AS money FROM ds").to_pylist()
    assert answer == {"day": dt.date(2024, 3, 31), "money": sum(one["money"] for one in SAMPLES)}


class Reading(sx.PackableSample):
    moment: dt.datetime
    zoned: Annotated[dt.datetime, sx.Timestamp("us", "Europe/Berlin")]
    day: dt.date
    money: Annotated[Decimal, sx.Decimal(12, 2)]
    span: Annotated[dt.timedelta, sx.Duration("s")]
    clock: dt.time | None = None


def test_typed_classes(native: sx.Dataset, tmp_path: Path) -> None:
    typed = sx.open(str(native.select(*FEATURES).rows.shard_names()[0]).rpartition("/data/")[0], Reading)  # type: ignore[attr-defined]
    one = typed[5]
    assert (one.moment, one.zoned, one.day, one.money) == tuple(
        SAMPLES[5][n] for n in ("moment", "zoned", "day", "money")
    )
    assert typed.read([5])["zoned"].dtype == "datetime64[us]" and next(iter(typed)).clock == dt.time(12, 0, 0, 7000)
    assert Reading.from_bytes(one.packed) == one
    assert sx.write(tmp_path / "d", [one], Reading)[0].clock == one.clock
    with pytest.raises(SchemaError, match=r"without a time zone.*field zoned of Reading"):
        Reading.from_data({**one.to_dict(), "zoned": START})


def test_inferred_from_samples(tmp_path: Path) -> None:
    plain = [{n: one[n] for n in ("moment", "zoned", "ns", "day", "span", "money", "maybe")} for one in SAMPLES]
    ds = sx.write(tmp_path / "d", plain)
    assert str(ds.features) == (
        "moment timestamp[us], zoned timestamp[us, Europe/Berlin], ns timestamp[ns], day date, span duration[us], "
        "money decimal(38, 2), maybe timestamp[us] or none"
    )
    assert as_dicts(ds) == plain == as_dicts(sx.open(plain)) == as_dicts(ds.map(dict))


def test_exchange_with_other_tools(native: sx.Dataset) -> None:
    pl, datasets = pytest.importorskip("polars"), pytest.importorskip("datasets")
    some = native.select("k", "moment", "zoned", "ns", "day", "clock", "span", "money", "maybe", "days")
    assert as_dicts(sx.open(some.to_pandas()).select("k", "moment", "zoned", "day", "money")) == as_dicts(
        some.select("k", "moment", "zoned", "day", "money")
    )
    back = sx.open(pl.DataFrame(some))
    assert back.features["zoned"] == FEATURES["zoned"] and as_dicts(back.select("moment", "zoned", "day")) == as_dicts(
        some.select("moment", "zoned", "day")
    )
    hub = some.to_huggingface()
    assert hub.features["zoned"] == datasets.Value("timestamp[us, tz=Europe/Berlin]")
    assert hub.features["money"] == datasets.Value("decimal128(12, 2)") and hub.features["day"] == datasets.Value(
        "date32"
    )
    again = datasets.Dataset(hub.data, info=hub.info)
    assert as_dicts(sx.open(again)) == as_dicts(some)
    assert sx.open(again).features["clock"] == sx.Time("ms")
    assert native.select("counts").to_huggingface()[1]["counts"] == [
        {"key": "a", "value": 1},
        {"key": "none", "value": None},
    ]


def test_values_that_python_cannot_hold_name_sample_and_field(tmp_path: Path) -> None:
    table = pa.table({"moment": pa.array([0, 1 << 40], pa.timestamp("s")), "k": [0, 1]})
    pq.write_table(table, tmp_path / "x.parquet")
    ds = sx.write(tmp_path / "d", sx.open(table))
    for one in (ds, sx.open(tmp_path / "x.parquet"), sx.open(table), ds[::-1]):
        with pytest.raises(FormatError, match=r"datetime can hold, got 36812-.* to_arrow .*sample 1, field moment"):
            list(one)
        assert one.read([0, 1])["moment"].dtype.kind == "M" and one.select("k")[1].k in (0, 1)
    assert ds.to_arrow()["moment"].equals(table["moment"])


def test_maps_with_repeated_keys_are_pairs(tmp_path: Path) -> None:
    table = pa.table({"m": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(FormatError, match=r"expected each key once, got str 'a' twice \(declare it as Map.*field m"):
        sx.open(table)[0]
    pairs = sx.open(table, schema={"m": sx.Map(str, int, pairs=True)})
    assert pairs[0].m == [("a", 1), ("a", 2)] == sx.write(tmp_path / "d", pairs)[0].m
    with pytest.raises(SchemaError, match=r"expected each key once, got str 'a' twice .* - at sample 0, field m"):
        sx.write(tmp_path / "e", [{"m": [("a", 1), ("a", 2)]}], {"m": sx.Map(str, int)})


@pytest.mark.parametrize("form", ["arrow", "parquet", "jsonl", "bins", "tar"])
@pytest.mark.parametrize("value", [float("nan"), dt.date(2024, 1, 1), np.datetime64(1, "ns")], ids=str)
def test_json_refuses_what_it_would_change_and_names_the_key(form: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"that JSON can hold, got .* \(in a\.b\[1\]\) - at sample 1, field j"):
        sx.write(tmp_path / "d", [{"j": {"a": 1}}, {"j": {"a": {"b": [1, value]}}}], {"j": sx.Json()}, format=form)
