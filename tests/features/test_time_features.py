"""Dates and times: numbers of units, values of samples, columns, text; what is refused."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from shardex.errors import FormatError, SchemaError
from shardex.features import Date, Duration, Features, Optional, Time, TimeFeature, Timestamp, infer
from shardex.features.time_feature import from_text
from shardex.features.times import time_zone
from shardex.kernel import Columns

BERLIN = ZoneInfo("Europe/Berlin")
MOMENT = dt.datetime(2024, 7, 1, 12, 30, 1)
VALUES: list[tuple[TimeFeature, Any, int]] = [
    (Timestamp("s"), MOMENT, 1719837001),
    (Timestamp("ms"), MOMENT.replace(microsecond=5000), 1719837001005),
    (Timestamp("us"), dt.datetime(1, 1, 1), -62135596800000000),
    (Timestamp("us"), dt.datetime.max, 253402300799999999),
    (Timestamp("us", "UTC"), MOMENT.replace(tzinfo=dt.UTC), 1719837001000000),
    (Timestamp("us", "Europe/Berlin"), MOMENT.replace(tzinfo=BERLIN), 1719829801000000),
    (Timestamp("ms", "-05:30"), MOMENT.replace(tzinfo=time_zone("-05:30")), 1719856801000),
    (Timestamp("ns"), np.datetime64(1719837001000000007, "ns"), 1719837001000000007),
    (Timestamp("ns", "UTC"), np.datetime64(-7, "ns"), -7),
    (Date(), dt.date(1969, 12, 31), -1),
    (Date(), dt.date.max, 2932896),
    (Time("s"), dt.time(23, 59, 59), 86399),
    (Time("us"), dt.time(0, 0, 1, 7), 1000007),
    (Time("ns"), np.timedelta64(7, "ns"), 7),
    (Duration("s"), dt.timedelta(days=-1), -86400),
    (Duration("us"), dt.timedelta(microseconds=3), 3),
    (Duration("ns"), np.timedelta64(-3, "ns"), -3),
]


@pytest.mark.parametrize(("feature", "value", "number"), VALUES, ids=str)
def test_numbers_values_and_text(feature: TimeFeature, value: Any, number: int) -> None:
    assert feature.number(value) == number
    (again,) = feature.to_python(feature.column(np.array([number])))
    assert again == value and type(again) is type(value) and str(again) == str(value)
    assert from_text(feature.text(value), feature) == value
    assert feature.fit(feature.text(value), stored=True) == feature.fit(value) == value
    assert Features.from_json(Features({"x": feature}).to_json())["x"] == feature


def test_text_is_iso() -> None:
    assert Timestamp("us", "Europe/Berlin").text(MOMENT.replace(tzinfo=BERLIN)) == "2024-07-01T10:30:01.000000Z"
    assert Timestamp("s").text(MOMENT) == "2024-07-01T12:30:01"
    assert (Date().text(dt.date(2024, 1, 31)), Time("ms").text(dt.time(1, 2, 3, 4000))) == (
        "2024-01-31",
        "01:02:03.004",
    )


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (Timestamp("us"), MOMENT.replace(tzinfo=dt.UTC), r"with a time zone \(declare Timestamp"),
        (Timestamp("us", "UTC"), MOMENT, "without a time zone"),
        (Timestamp("s"), MOMENT.replace(microsecond=1), "which is more precise"),
        (Timestamp("us"), np.datetime64(1, "ns"), "which is more precise"),
        (Timestamp("ns"), dt.datetime(3000, 1, 1), "out of range"),
        (Timestamp("us"), np.datetime64("NaT", "us"), "got datetime64.us. NaT"),
        (Timestamp("us"), pd.NaT, "NaT"),
        (Timestamp("us"), "2024-01-01", "expected timestamp.us., got str"),
        (Timestamp("us"), dt.date(2024, 1, 1), "expected timestamp.us., got date"),
        (Date(), MOMENT, r"use .date\(\)"),
        (Date(), np.datetime64("2024-01-01T12"), "has a time of day"),
        (Date(), np.datetime64(1 << 40, "D"), "out of range"),
        (Time("us"), dt.time(1, tzinfo=dt.UTC), "with a time zone"),
        (Time("us"), np.timedelta64(24, "h"), "out of range"),
        (Time("us"), dt.timedelta(1), "expected time.us., got timedelta"),
        (Duration("us"), 5, "expected duration.us., got int"),
        (Duration("us"), np.timedelta64(1, "M"), "weeks to nanoseconds"),
    ],
    ids=str,
)
def test_values_that_do_not_fit(feature: TimeFeature, value: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        feature.fit(value)


def test_values_of_pandas_and_numpy() -> None:
    assert Timestamp("ns").number(pd.Timestamp("2024-01-01T00:00:00.000000001")) % 1000 == 1
    assert Timestamp("us", "UTC").number(pd.Timestamp("2024-07-01 02:00", tz="Europe/Berlin")) == 1719792000000000
    assert Duration("ns").number(pd.Timedelta(1001, "ns")) == 1001
    assert Date().number(np.datetime64("2024-02")) == 19754
    assert Optional(Timestamp()).fit(pd.NaT) is None and Optional(Duration()).fit(np.timedelta64("NaT", "us")) is None


@pytest.mark.parametrize(
    ("feature", "number"),
    [
        (Timestamp("s"), 1 << 50),
        (Date(), 10**7),
        (Duration("s"), 1 << 60),
        (Time("us"), -1),
        (Timestamp("us"), -(1 << 63)),
    ],
)
def test_values_that_python_cannot_hold(feature: TimeFeature, number: int) -> None:
    column = feature.column(np.array([0, number]))
    with pytest.raises(FormatError, match=r"that Python's datetime can hold, got .*(batches|to_arrow)"):
        feature.to_python(column)
    assert np.asarray(column).view(np.int64)[1] == number


def test_the_end_of_time_in_another_zone_is_an_error() -> None:
    column = Timestamp("us", "Europe/Berlin").column(np.array([Timestamp("us").number(dt.datetime.max)]))
    with pytest.raises(FormatError, match="datetime can hold"):
        column.feature.to_python(column)
    with pytest.raises(FormatError, match="expected a time zone that this machine knows, got 'Mars/Olympus'"):
        Timestamp("us", "Mars/Olympus").to_python(np.array([0], "M8[us]"))


@pytest.mark.parametrize("wrong", [{"unit": "h"}, {"zone": ""}, {"zone": 3}])
def test_bad_declarations(wrong: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="expected"):
        Timestamp(**wrong)


def test_columns_keep_the_form_of_their_values() -> None:
    feature = Timestamp("us", "Europe/Berlin")
    columns = Columns({"t": feature.column(np.arange(4) * 10**15)})
    expected = feature.to_python(columns["t"])
    assert type(columns["t"]) is np.ndarray and columns["t"].dtype == "M8[us]"
    for same in (
        columns,
        columns.select(["t"]),
        pickle.loads(pickle.dumps(columns)),
        Columns.concat([*columns.split(1)]),
    ):
        assert [one["t"] for one in same.to_samples()] == expected and same.sample(2)["t"] == expected[2]
    assert columns.take([3, 0]).sample(0)["t"].tzinfo == BERLIN
    other = Columns({"t": Timestamp("us").column(np.arange(1))})
    assert [one["t"].tzinfo for one in Columns.concat([columns.slice(0, 1), other]).to_samples()] == [BERLIN, None]


def test_inference() -> None:
    samples: list[dict[str, Any]] = [
        {
            "a": MOMENT,
            "b": MOMENT.replace(tzinfo=BERLIN),
            "c": dt.date(2024, 1, 1),
            "d": dt.time(1),
            "e": dt.timedelta(1),
        },
        {"a": np.datetime64(1, "ns"), "b": MOMENT.replace(tzinfo=dt.UTC), "c": None, "d": dt.time(2), "e": pd.NaT},
    ]
    assert str(infer(samples)) == (
        "a timestamp[ns], b timestamp[us, UTC], c date or none, d time[us], e duration[us] or none"
    )
    assert str(infer(samples[:1])) == (
        "a timestamp[us], b timestamp[us, Europe/Berlin], c date, d time[us], e duration[us]"
    )
    offset = dt.timezone(dt.timedelta(hours=-3))
    assert infer([{"x": MOMENT.replace(tzinfo=offset)}])["x"] == Timestamp("us", "-03:00")
    with pytest.raises(SchemaError, match="expected values of one kind"):
        infer([{"x": MOMENT}, {"x": MOMENT.replace(tzinfo=dt.UTC)}])
