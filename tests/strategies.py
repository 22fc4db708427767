"""Hypothesis strategies for schemas and their samples: every kind of feature, nested, with unusual dtypes and sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.features import (
    Array,
    Audio,
    Bytes,
    ClassLabel,
    Date,
    Decimal,
    Duration,
    Feature,
    Features,
    Image,
    Json,
    Map,
    Media,
    Null,
    Optional,
    Sequence,
    Struct,
    Text,
    Time,
    TimeFeature,
    Timestamp,
    Value,
)
from shardex.features.decimals import scaled
from shardex.features.time_feature import UNITS
from shardex.media import encode_audio, encode_image
from tests.left_out_packages import LEFT_OUT

LONG = os.environ.get("SHARDEX_FAULTS") == "full"
"""True in `make faults`: random tests take minutes and other examples each time; False: seconds, always the same."""


def examples(*, short: int, long: int) -> Callable[[Any], Any]:
    """Return the decorator of a random test that sets its number of examples in `make test` and in `make faults`."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=long if LONG else short,
        derandomize=not LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=quiet,
    )


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = {"float16": 16, "float32": 32, "float64": 64}
TIMES = ["datetime64[us]", "datetime64[D]", "timedelta64[s]"]
DTYPES = ["bool", *INTEGERS, *FLOATS, "complex64", "complex128", *TIMES]
NAMES = st.text(min_size=1, max_size=8)

MEDIA: list[Feature] = []
"""Empty where the packages that encode media are left out."""
if not LEFT_OUT & {"PIL", "simplejpeg", "soundfile"}:
    MEDIA += [Image(decode=False), Image("L", (2, 3), "jpeg", decode=False), Audio(8000, decode=False)]
    IMAGES = [encode_image(np.full((2, 3), n, np.uint8), form) for n, form in enumerate(("png", "jpeg", "gif"))]
    SOUNDS = [encode_audio(np.full(n, n, np.int16), form, rate=8000) for n, form in ((3, "wav"), (9, "flac"))]

shapes = st.lists(st.none() | st.integers(0, 3), max_size=3).map(tuple)
arrays = st.builds(Array, st.sampled_from(DTYPES), st.none() | shapes)
times = st.one_of(
    st.builds(Timestamp, st.sampled_from(UNITS), st.sampled_from([None, "UTC", "Europe/Berlin"])),
    st.builds(Time, st.sampled_from(UNITS)),
    st.builds(Duration, st.sampled_from(UNITS)),
    st.just(Date()),
)
leaves = st.one_of(
    st.builds(Value, st.sampled_from(["bool", *INTEGERS, *FLOATS])),
    st.sampled_from([Text(), Bytes(), Json(), Array(), ClassLabel(("cat", "dög")), *MEDIA]),
    arrays,
    arrays,
    times,
    st.sampled_from([Decimal(9, 2), Decimal(38, 0), Null()]),
)


def nested(inner: st.SearchStrategy[Feature]) -> st.SearchStrategy[Feature]:
    """Features made of others."""
    return st.one_of(
        st.builds(Sequence, inner),
        st.builds(Optional, inner),
        st.builds(Map, st.sampled_from([Text(), Value("int8"), Date()]), inner, st.booleans()),
        st.builds(Struct, st.dictionaries(NAMES, inner, max_size=3).map(Features)),
    )


rare = st.sampled_from([Decimal(60, 20), Decimal(5, -3), Timestamp("ms", "-05:30")])
"""Features that polars and Parquet lack."""
features: st.SearchStrategy[Feature] = st.one_of(
    leaves, rare, st.builds(Optional, leaves), st.recursive(leaves, nested)
)
schemas = st.dictionaries(NAMES, features, min_size=1, max_size=4).map(Features)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def array_values(draw: st.DrawFn, feature: Array) -> NDArray[Any]:
    """An array of the feature's dtype and shape."""
    if feature.dtype is None:
        dtype = np.dtype(draw(st.sampled_from([*DTYPES, ">f4", "<U3", "S2", "i4,f8"])))
    else:
        dtype = np.dtype(feature.dtype)
    sizes = draw(st.lists(st.none(), max_size=3)) if feature.shape is None else feature.shape
    shape = [draw(st.integers(0, 3)) if size is None else size for size in sizes]
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind in "US":
        return random.integers(0, 100, shape).astype(dtype)
    if dtype.kind in "iufc":  # any bits, also those of NaN and infinity
        return np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return random.integers(0, 2 if dtype.kind == "b" else 10**6, shape).astype(dtype)


def time_values(feature: TimeFeature) -> st.SearchStrategy[Any]:
    """Dates and times that Python can hold, over the whole range of most features."""
    seconds = range(86400) if isinstance(feature, Time) else range(-(2**31), 2**31)
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.get(getattr(feature, "unit", "s"), 1)
    numbers = st.integers(seconds[0] * per_second, seconds[-1] * per_second)
    days = st.integers(-700_000, 2_900_000)
    return (days if isinstance(feature, Date) else numbers).map(
        lambda number: feature.to_python(feature.column(np.array([number])))[0]
    )


def values(feature: Feature) -> st.SearchStrategy[Any]:
    """Values that fit a feature, in the form in which they are read."""
    match feature:
        case Value(dtype="bool"):
            return st.booleans()
        case Value() if feature.dtype in FLOATS:
            return st.floats(width=FLOATS[feature.dtype])  # type: ignore[arg-type]
        case Value():
            limits = np.iinfo(feature.dtype)
            return st.integers(int(limits.min), int(limits.max))
        case Text():
            return st.text(max_size=20)
        case Image():
            return st.sampled_from(IMAGES)
        case Media():
            return st.sampled_from(SOUNDS)
        case Bytes():
            return st.binary(max_size=20)
        case Json():
            return JSON
        case ClassLabel():
            return st.integers(0, len(feature.names) - 1)
        case Array():
            return array_values(feature)
        case Sequence():
            return st.lists(values(feature.feature), max_size=3)
        case Struct():
            return st.fixed_dictionaries({name: values(inner) for name, inner in feature.fields.items()})
        case Optional():
            return st.none() | values(feature.feature)
        case TimeFeature():
            return time_values(feature)
        case Decimal():
            most = 10**feature.precision - 1
            return st.integers(-most, most).map(lambda whole: scaled(whole, feature))
        case Map():
            pairs = st.dictionaries(values(feature.key), values(feature.value), max_size=3)
            return pairs if feature.is_dict else pairs.map(lambda found: list(found.items()))
        case Null():
            return st.none()
    raise TypeError(feature)


@st.composite
def datasets(
    draw: st.DrawFn, schema: st.SearchStrategy[Features] = schemas, max_size: int = 12
) -> tuple[Features, list[dict[str, Any]]]:
    """A schema and samples of it."""
    chosen = draw(schema)
    sample = st.fixed_dictionaries({name: values(feature) for name, feature in chosen.items()})
    return chosen, draw(st.lists(sample, max_size=max_size))
