"""Random schemas and values, written in every format and read by every route, agree with a Python list.

`tests/agreement.py` says what it means to agree. A format may refuse a schema or a value with a `ShardexError` that
names the field; it must not write something else. Samples without a schema (of Python values, or lines of JSON with
uneven keys) must agree likewise.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

import shardex as sx
from shardex.features import Array, Feature, Features, Optional, Sequence, Struct, Value, infer, unwrap_optional
from tests.agreement import ROUTES, Route, by_workers, disagreements, plain, plain_sample
from tests.strategies import JSON, LONG, arrays, examples, leaves, values

NAMES = ["a", "b c", "ö", "select", "items"]
"""Names of fields: with a blank, not ASCII, a word of SQL, a method of dicts."""
FORMATS: dict[str, dict[str, Any]] = {
    "arrow": {"shard_rows": 4},
    "parquet": {"row_group_rows": 3},
    "jsonl": {"shard_rows": 4},
    "tar": {"shard_rows": 4},
    "bins": {"splits": 3},
}
BARE = ("jsonl", "tar", "bins")
"""Formats whose files hold no schema: it is given to `open`."""

Data = tuple[Features, list[dict[str, Any]]]
Samples = list[dict[str, Any]]

# -- strategies --------------------------------------------------------------------------------------------------


def deeper(inner: st.SearchStrategy[Feature]) -> st.SearchStrategy[Feature]:
    """Features made of others: sequences of structs, structs of sequences, optional ones."""
    parts = st.dictionaries(st.sampled_from(["x", "y z", "ü"]), inner, min_size=1, max_size=2).map(Features)
    return st.one_of(st.builds(Sequence, inner), st.builds(Optional, inner), st.builds(Struct, parts))


kinds: st.SearchStrategy[Feature] = st.one_of(
    leaves, st.builds(Optional, leaves), arrays, st.recursive(leaves, deeper, max_leaves=3)
)
schemas = st.lists(kinds, min_size=1, max_size=4).map(lambda chosen: Features(dict(zip(NAMES, chosen, strict=False))))


@st.composite
def data(draw: st.DrawFn, schemas: st.SearchStrategy[Features] = schemas) -> Data:
    """A schema and up to nine samples."""
    schema = draw(schemas)
    sample = st.fixed_dictionaries({name: values(feature) for name, feature in schema.items()})
    return schema, draw(st.lists(sample, min_size=1, max_size=9))


NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN: list[st.SearchStrategy[Any]] = [
    st.booleans(),
    NUMBERS,
    FLOATS,
    st.text(max_size=8),
    st.lists(NUMBERS, max_size=3),
    st.lists(FLOATS, max_size=3),
    st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.lists(FLOATS, max_size=2), max_size=2),
    st.fixed_dictionaries({"x": NUMBERS, "y": st.none() | st.text(max_size=3)}),
    st.lists(st.fixed_dictionaries({"x": NUMBERS}), max_size=2),
    JSON,
]
"""Values of one kind each, without numpy: what people have before they know what a schema is."""


@st.composite
def records(draw: st.DrawFn, max_size: int = 9) -> Samples:
    """Samples of Python values, in which keys may be missing or None."""
    fields = draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3))
    chosen = {name: draw(st.sampled_from([one, st.none() | one])) for name, one in zip(NAMES, fields, strict=False)}
    keys = draw(st.sampled_from(["all", "some"]))
    sample = st.fixed_dictionaries(chosen) if keys == "all" else st.fixed_dictionaries({}, optional=chosen)
    return draw(st.lists(sample, min_size=1, max_size=max_size))


@st.composite
def routes(draw: st.DrawFn) -> dict[str, Route]:
    """Some routes in the short form, all of them in the long form."""
    names = sorted(ROUTES)
    some = names if LONG else sorted(draw(st.sets(st.sampled_from(names), min_size=8, max_size=8)))
    return {name: ROUTES[name] for name in some}


# -- comparison --------------------------------------------------------------------------------------------------

LISTS_ONLY = {"huggingface", "loader", "packed_loader", "workers"}
"""Routes on which lists and arrays are one: Hugging Face has no arrays of several free sizes, and batches of a loader
have lists of numbers as arrays."""
REFUSED = ("expected a feature that Hugging Face has", "expected values that Parquet can hold")
"""Errors by which another tool refuses a feature that it does not have."""


def can_take(route: str, features: Mapping[str, Feature]) -> bool:
    """Return whether a tool on the route can hold the features: polars panics at lists of the fixed size 0."""
    inside = [part for name, feature in features.items() for _, part in feature.nested(name)]
    empty = any(isinstance(part, Array) and part.fixed and 0 in (part.shape or ()) for part in inside)
    return not (route == "polars" and empty)


def loses_dtypes(schema: Features, format: str) -> bool:
    """Return whether the schema has arrays of any dtype that the format stores as JSON, which has lists of numbers."""
    places = [(name, part) for name, feature in schema.items() for _, part in feature.nested(name)]
    return any(
        isinstance(part, Array)
        and part.dtype is None
        and (format == "jsonl" or (format == "tar" and unwrap_optional(schema[name]) != part))
        for name, part in places
    )


def check(ds: sx.Dataset, samples: Samples, folder: Path, chosen: Mapping[str, Route], *, lists: bool = False) -> None:
    """Compare each route with the list. A tool may refuse a feature that it does not have."""
    wrong = []
    for name, route in chosen.items():
        as_lists = lists or name in LISTS_ONLY
        expected = [plain_sample(sample, ds.fields, lists=as_lists) for sample in samples]
        if can_take(name, ds.features):
            wrong += disagreements(ds, expected, folder, {name: route}, lists=as_lists)
    wrong = [line for line in wrong if not any(refused in line for refused in REFUSED)]
    assert not wrong, "\n".join([str(ds.features), *wrong])


def write(folder: Path, samples: Samples, schema: Features | None, format: str) -> sx.Dataset | None:
    """Write samples and open them with their schema; None if the format refuses them, naming the field."""
    names = {name for sample in samples for name in sample}
    try:
        sx.write(folder, samples, schema, format=format, **FORMATS[format])
    except sx.ShardexError as error:
        refused = str(error)
        empty = format == "tar" and "expected a sample with at least one field" in refused
        if empty or any(f"field {name}" in refused for name in names):
            return None
        raise AssertionError(f"expected an error that names the field, got: {refused}") from error
    given = format in BARE and (schema is not None or format == "tar")
    return sx.open(folder, schema=infer(samples) if schema is None else schema) if given else sx.open(folder)


# -- tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@examples(short=8, long=200)
@given(given_data=data(), chosen=routes())
def test_a_random_schema(format: str, given_data: Data, chosen: dict[str, Route]) -> None:
    schema, samples = given_data
    with tempfile.TemporaryDirectory() as folder:
        ds = write(Path(folder) / "data", samples, schema, format)
        if ds is not None:
            check(ds.select(*schema), samples, Path(folder), chosen, lists=loses_dtypes(schema, format))


@pytest.mark.parametrize("format", FORMATS)
@examples(short=8, long=200)
@given(samples=records(), chosen=routes())
@pytest.mark.filterwarnings("ignore:.*has no values in all")
def test_samples_without_a_schema(format: str, samples: Samples, chosen: dict[str, Route]) -> None:
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    assume(names)
    with tempfile.TemporaryDirectory() as folder:
        ds = write(Path(folder) / "data", samples, None, format)
        if ds is not None:
            assert {*names} <= {*ds.fields}
            check(ds.select(*names), samples, Path(folder), chosen, lists=True)


@examples(short=16, long=300)
@given(samples=records(), late=records(), chosen=routes(), many=st.booleans())
def test_uneven_lines_of_json(samples: Samples, late: Samples, chosen: dict[str, Route], many: bool) -> None:
    """Lines that other tools wrote: keys may come late, and a key may have values of several kinds."""
    every = samples * (70 if many else 1) + [{f"late {name}": value for name, value in one.items()} for one in late]
    names = list(dict.fromkeys(name for sample in every for name in sample))
    assume(names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        path.write_text("".join(json.dumps(sample) + "\n" for sample in every))
        ds = sx.open(path)
        assert {*names} == {*ds.fields}
        check(ds.select(*names), every, Path(folder), chosen, lists=True)


def unpadded(batch: Any, name: str, k: int, feature: Feature) -> list[Any]:
    """Return the elements of sample k in a padded batch, without the padding; none if the value is missing."""
    column, inner = np.asarray(batch[name]), unwrap_optional(feature)
    if isinstance(inner, Value) or (isinstance(inner, Array) and inner.fixed):
        there = inner is feature or bool(np.asarray(batch.mask_of(name))[k])
        return [plain(one) for one in np.reshape(column[k], -1)] if there else []
    return [plain(one) for one in column[k][np.asarray(batch.mask_of(name))[k]].reshape(-1)]


padded_kinds = st.one_of(
    st.builds(Value, st.sampled_from(["bool", "int8", "uint8", "int64", "float32", "float64"])),
    st.builds(
        Array,
        st.sampled_from(["bool", "int16", "uint8", "float32"]),
        st.sampled_from([(2,), (None,), (None, 2), (None, None)]),
    ),
)
padded_schemas = st.lists(padded_kinds | st.builds(Optional, padded_kinds), min_size=1, max_size=4).map(
    lambda chosen: Features(dict(zip(NAMES, chosen, strict=False)))
)


@pytest.mark.parametrize("to", ["numpy", "torch"])
@examples(short=10, long=300)
@given(given_data=data(padded_schemas), format=st.sampled_from([*FORMATS]))
def test_padded_batches(to: Any, given_data: Data, format: str) -> None:
    """The values under the mask are those of the samples, and the form of a column is the same in all batches."""
    schema, samples = given_data
    with tempfile.TemporaryDirectory() as folder:
        ds = write(Path(folder) / "data", samples, schema, format)
        assume(ds is not None)
        assert ds is not None
        seen, forms = 0, {name: set[str]() for name in schema}
        for batch in sx.Loader(ds.select(*schema), batch_size=2, ragged="pad", to=to):
            for k in range(len(batch)):
                for name, feature in schema.items():
                    value = samples[seen + k][name]
                    elements = [] if value is None else [plain(one) for one in np.reshape(np.asarray(value), -1)]
                    assert unpadded(batch, name, k, feature) == elements, (name, str(feature), value)
            for name in schema:
                forms[name].add(f"{type(batch[name]).__name__} {batch[name].dtype} {batch[name].ndim}")
            seen += len(batch)
        assert seen == len(samples) and all(len(found) == 1 for found in forms.values()), forms


@sx.packable
class Mixed:
    """A class whose arrays lie inside dicts and tuples; their types are declared."""

    by_name: dict[str, NDArray[np.int16]]
    pair: tuple[NDArray[np.uint64], int, str]
    rows: list[NDArray[np.float32]]
    note: str | None


shapes = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
mixed = st.builds(
    Mixed,
    st.dictionaries(st.text(max_size=3), npst.arrays(np.int16, shapes), max_size=2),
    st.tuples(npst.arrays(np.uint64, shapes), NUMBERS, st.text(max_size=3)),
    st.lists(
        npst.arrays(np.float32, shapes, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)), max_size=2
    ),
    st.none() | st.text(max_size=3),
)


@pytest.mark.parametrize("format", FORMATS)
@examples(short=6, long=200)
@given(samples=st.lists(mixed, min_size=1, max_size=5))
def test_arrays_inside_dicts_and_tuples_of_a_class(format: str, samples: list[Mixed]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sx.write(Path(folder) / "data", samples, format=format, **FORMATS[format])
        ds = sx.open(Path(folder) / "data", Mixed)
        expected = [plain_sample(vars(one), ds.fields) for one in samples]
        ways = ([ds[k] for k in range(len(ds))], list(ds), [one for batch in ds.ordered(2) for one in batch])
        for way in (*ways, list(ds[::-1])[::-1]):
            assert [plain_sample(vars(one), ds.fields) for one in way] == expected
        assert all(isinstance(one, Mixed) for one in ds)


@examples(short=1, long=10)
@given(given_data=data())
def test_worker_processes(given_data: Data) -> None:
    schema, samples = given_data
    with tempfile.TemporaryDirectory() as folder:
        ds = sx.write(Path(folder) / "data", samples, schema)
        check(ds, samples, Path(folder), {"workers": by_workers})
