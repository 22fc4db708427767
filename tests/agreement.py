"""What it means that a dataset agrees with a Python list of samples, whatever way it is read.

`plain` is the normal form of a value: two values agree if and only if their normal forms are equal. `ROUTES` are the
ways to read a dataset; each returns positions and samples. `disagreements` compares all of them with the list.
"""

from __future__ import annotations

import datetime
import decimal
import math
import pickle
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import shardex as sx
from shardex.features import unwrap_optional
from tests.left_out_packages import LEFT_OUT

Sample = Mapping[str, Any]
Found = list[tuple[int, Sample]]
"""Positions in the dataset, and the samples that a route read there."""
Route = Callable[[sx.Dataset, Path], Found]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
UNITS = {"D": 86_400_000_000_000, "h": 3_600_000_000_000, "m": 60_000_000_000}
UNITS |= {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1, "W": 7 * 86_400_000_000_000}


def plain(value: Any, *, lists: bool = False) -> Any:
    """Return the normal form of a value: equal for two values if and only if they agree.

    Numbers agree if the kind (boolean, integer, float, complex) and the value are the same; NaN equals NaN, 0.0 differs
    from -0.0. Arrays also need the same dtype and shape. The only liberties:

    - An instant is a number of nanoseconds: `datetime`, `date` (its midnight), `datetime64` and pandas' `Timestamp`
      agree; a time without a zone counts as UTC. Durations likewise; a time of day is the duration since midnight.
      NaT is None.
    - A tuple is a list, a `UUID` its bytes, a mapping any dict.
    - With `lists`, an array is the list of its elements: that is all that Arrow and JSON tell about it.
    """
    match value:
        case None:
            return None
        case np.ndarray() if lists:
            return [plain(one, lists=True) for one in value] if value.ndim else plain(value[()])
        case np.ndarray():
            return ("array", str(value.dtype), value.shape, [plain(one) for one in value.reshape(-1)])
        case np.datetime64() | np.timedelta64():
            return _time(value)
        case np.generic():
            return plain(value.item())
        case bool() | int() | str() | bytes() | decimal.Decimal():
            return (type(value).__name__, value)
        case float():
            return ("float", "nan" if math.isnan(value) else value.hex())
        case complex():
            return ("complex", plain(value.real), plain(value.imag))
        case datetime.date() | datetime.timedelta() | datetime.time():
            return _time(value)
        case uuid.UUID():
            return ("bytes", value.bytes)
        case Mapping():
            return {name: plain(one, lists=lists) for name, one in value.items()}
        case list() | tuple():
            return [plain(one, lists=lists) for one in value]
    raise TypeError(f"expected a value that a dataset holds, got {type(value)}: {value!r}")


def _time(value: Any) -> Any:
    """Return an instant, a duration or a time of day as a number of nanoseconds."""
    nanosecond = getattr(value, "nanosecond", getattr(value, "nanoseconds", 0))  # of pandas
    match value:
        case np.datetime64() | np.timedelta64():
            if np.isnat(value):
                return None
            unit, count = np.datetime_data(value.dtype)
            kind = "instant" if isinstance(value, np.datetime64) else "duration"
            return (kind, int(value.astype(np.int64)) * UNITS[unit] * count)
        case datetime.datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return ("instant", (aware - EPOCH) // datetime.timedelta(microseconds=1) * 1000 + nanosecond)
        case datetime.date():
            return ("instant", (value - EPOCH.date()).days * UNITS["D"])
        case datetime.timedelta():
            return ("duration", value // datetime.timedelta(microseconds=1) * 1000 + nanosecond)
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return ("duration", (seconds * 1_000_000 + value.microsecond) * 1000 + nanosecond)


def plain_sample(sample: Any, fields: Iterable[str], *, lists: bool = False) -> dict[str, Any]:
    """Return the normal form of a sample; a missing field is None."""
    values = fields_of(sample)
    return {name: plain(values.get(name), lists=lists) for name in fields}


def fields_of(sample: Any) -> Sample:
    """Return the fields of a dict, or of an instance of a class made by `packable`."""
    return sample if isinstance(sample, Mapping) else vars(sample)


# -- routes: samples and views -----------------------------------------------------------------------------------


def _in_order(samples: Iterable[Any], rows: Iterable[int] | None = None) -> Found:
    every = [dict(fields_of(one)) for one in samples]
    return list(zip(range(len(every)) if rows is None else rows, every, strict=True))


def _view(ds: sx.Dataset, view: sx.Dataset) -> Found:
    """Return the samples of a view of `ds`, read in three ways that must not differ."""
    rows = view.order.rows(np.arange(len(view))).tolist()
    start = ds.order.rows(np.arange(len(ds))).tolist()
    positions = [start.index(row) for row in rows]
    return [
        *_in_order(view, positions),
        *_in_order(view.read(np.arange(len(view))).to_samples(), positions),
        *_in_order((view[k] for k in range(len(view))), positions),
    ]


def by_index(ds: sx.Dataset, folder: Path) -> Found:
    return _in_order(ds[k] for k in range(len(ds))) + [(len(ds) - k, ds[-k]) for k in range(1, len(ds) + 1)]


def by_iteration(ds: sx.Dataset, folder: Path) -> Found:
    return _in_order(ds)


def by_read(ds: sx.Dataset, folder: Path) -> Found:
    rows = [*range(len(ds)), *reversed(range(len(ds))), 0, 0] if len(ds) else []
    return _in_order(ds.read(rows).to_samples(), rows)


def by_field(ds: sx.Dataset, folder: Path) -> Found:
    """One read per field, of the dataset and of a view of the field."""
    rows = np.arange(len(ds))
    columns = {name: [one.get(name) for one in ds.read(rows, [name]).to_samples()] for name in ds.fields}
    views = {name: [one[name] for one in ds.select(name)] for name in ds.fields}
    return [(k, {name: column[k] for name, column in way.items()}) for way in (columns, views) for k in range(len(ds))]


def by_slices(ds: sx.Dataset, folder: Path) -> Found:
    return [*_view(ds, ds[1:-1]), *_view(ds, ds[::-2]), *_view(ds, ds[1:][::2]), *_view(ds, ds[:0])]


def by_lists(ds: sx.Dataset, folder: Path) -> Found:
    picked = [len(ds) - 1, 0, 0, len(ds) // 2] if len(ds) else []
    return [*_view(ds, ds[picked]), *_view(ds, ds[np.arange(len(ds)) % 2 == 1]), *_view(ds, ds[[]])]


def by_shuffle(ds: sx.Dataset, folder: Path) -> Found:
    return [*_view(ds, ds.shuffle(seed=3)), *_view(ds, ds.shuffle(seed=1)[1:])]


def by_where(ds: sx.Dataset, folder: Path) -> Found:
    return [*_view(ds, ds.where("_row % 2 = 0")), *_view(ds, ds[::-1].where("_row > 0"))]


def by_filter(ds: sx.Dataset, folder: Path) -> Found:
    kept = iter([k % 3 != 1 for k in range(len(ds))])
    return _view(ds, ds.filter(lambda sample: next(kept), progress=False))


def by_concat(ds: sx.Dataset, folder: Path) -> Found:
    half = len(ds) // 2
    both = sx.concat(ds[half:], ds[:half])
    rows = [*range(half, len(ds)), *range(half)]
    return [*_in_order(both, rows), *_in_order((both[k] for k in range(len(both))), rows)]


def by_join(ds: sx.Dataset, folder: Path) -> Found:
    first, *rest = ds.fields
    return _in_order(sx.join(ds.select(first), ds.select(*rest)) if rest else ds)


def by_map(ds: sx.Dataset, folder: Path) -> Found:
    return [*_view(ds, ds.map(same_sample)), *_view(ds, ds.map(same_batch, batched=True))]


def same_sample(sample: Any) -> Any:
    """Return the sample: `map` with this function must not change it."""
    return dict(fields_of(sample))


def same_batch(batch: Any) -> Any:
    """Return the columns of a batch as they are: `map` with this function must not change them."""
    return {**batch}


def by_pickle(ds: sx.Dataset, folder: Path) -> Found:
    return _in_order(pickle.loads(pickle.dumps(ds)))


# -- routes: batches ---------------------------------------------------------------------------------------------


def by_batches(ds: sx.Dataset, folder: Path) -> Found:
    found: Found = []
    for size in (1, 2, len(ds) + 1):
        batches = list(ds.ordered(size))
        found += _in_order(sample for batch in batches for sample in batch)
        found += _in_order(batch[k] for batch in batches for k in range(len(batch)))
    order = ds.shuffle(seed=5).order.rows(np.arange(len(ds))).tolist()
    start = ds.order.rows(np.arange(len(ds))).tolist()
    return found + _in_order((s for b in ds.shuffled(2, seed=5) for s in b), [start.index(row) for row in order])


def by_loader(ds: sx.Dataset, folder: Path) -> Found:
    return _in_order(sample for batch in sx.Loader(ds, batch_size=2, ragged="list") for sample in batch)


def by_packed_loader(ds: sx.Dataset, folder: Path) -> Found:
    return _in_order(sample for batch in sx.Loader(ds, batch_size=3, ragged="pack") for sample in batch)


def by_workers(ds: sx.Dataset, folder: Path) -> Found:
    with sx.Loader(ds, batch_size=2, ragged="list", workers=1, worker_type="process") as loader:
        return _in_order(sample for batch in loader for sample in batch)


def form(column: Any) -> tuple[Any, ...]:
    """Return the form of a column, which the data in a batch must not decide: its class, dtype and fixed sizes."""
    if isinstance(column, np.ndarray):
        return ("array", str(column.dtype), column.shape[1:])
    return (type(column).__name__, str(getattr(column, "dtype", "")))


def by_forms(ds: sx.Dataset, folder: Path) -> Found:
    """Columns have one form in all reads, and one in all batches, whatever values they hold; batches can be changed.

    Arrays without a declared shape are stacked where they are alike, and those of no dimensions are kept in lists, so
    that both are left out.
    """
    free = {name for name, one in ds.features.items() if not getattr(unwrap_optional(one), "shape", "other")}
    spans = [(a, a + size) for size in (1, 2, len(ds)) for a in range(0, len(ds), max(1, size))]
    reads = [ds.read(np.arange(a, min(b, len(ds)))) for a, b in spans]
    batches = [*ds.ordered(1), *ds.ordered(2), *ds.shuffled(3, seed=1)]
    for pieces in (reads, batches):
        for name in {*ds.fields} - free:
            forms = {form(piece[name]) for piece in pieces}
            assert len(forms) < 2, f"the column {name} has several forms: {sorted(map(str, forms))}"
    for batch in batches:
        for name in ds.fields:
            column = batch[name]
            assert not isinstance(column, np.ndarray) or column.flags.writeable, f"the column {name} is read-only"
    return []


# -- routes: other tools and copies ------------------------------------------------------------------------------


def by_arrow(ds: sx.Dataset, folder: Path) -> Found:
    back = sx.open(ds.to_arrow())
    view = sx.open(ds[::-1].to_arrow())
    stream = sx.open(pa.table(ds))
    return [*_in_order(back), *_in_order(view, reversed(range(len(ds)))), *_in_order(stream)]


def by_huggingface(ds: sx.Dataset, folder: Path) -> Found:
    return _in_order(sx.open(ds.to_huggingface()))


def by_pandas(ds: sx.Dataset, folder: Path) -> Found:
    """To pandas and back; a frame keeps less than Arrow, so that only the export is checked."""
    for view in (ds, ds[::-1], ds.where("_row > 0")):
        frame = view.to_pandas()
        assert list(frame.columns) == ds.fields and len(frame) == len(view)
    return []


def by_polars(ds: sx.Dataset, folder: Path) -> Found:
    """To polars; it has no place for features, so that only the export is checked."""
    import polars as pl

    for view in (ds, ds[::-1], ds.where("_row > 0")):
        frame = pl.DataFrame(view)
        assert frame.columns == ds.fields and len(frame) == len(view)
    return []


def by_copy(ds: sx.Dataset, folder: Path) -> Found:
    copy = sx.write(folder / "copy", ds, shard_rows=3)
    part = sx.write(folder / "part", ds[::-1])
    return [*_view(copy, copy), *_in_order(part, reversed(range(len(ds))))]


def by_parquet_copy(ds: sx.Dataset, folder: Path) -> Found:
    copy = sx.write(folder / "parquet", ds, format="parquet", row_group_rows=2)
    return [*_view(copy, copy), *_in_order(sx.write(folder / "from_parquet", copy))]


def by_map_copy(ds: sx.Dataset, folder: Path) -> Found:
    """The samples of mapped views, written and read: `map` must not change a type for good."""
    batched = ds.map(same_batch, batched=True)
    assert batched.features == ds.map(same_sample).features
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no values")  # fields of the type null
        mapped = sx.write(folder / "mapped", ds.map(same_sample))
    return [*_in_order(mapped), *_in_order(sx.write(folder / "b", batched))]


def by_edit(ds: sx.Dataset, folder: Path) -> Found:
    """A native copy whose samples were rotated by an update, a delete and an append in one edit."""
    sx.write(folder / "edited", ds)
    if not len(ds):
        return []
    with sx.edit(folder / "edited") as tx:
        tx.append(ds[0])
        tx.update(len(ds) - 1, **{name: ds[0][name] for name in ds.fields})
        tx.delete([0] if len(ds) > 1 else [])
    edited = sx.open(folder / "edited")
    rows = [*range(1, len(ds) - 1), 0, 0] if len(ds) > 1 else [0, 0]
    return _in_order(edited, rows)


_PACKAGES = {"huggingface": "datasets", "pandas": "pandas", "polars": "polars"}
"""The packages that routes need."""
ROUTES: dict[str, Route] = {
    route.__name__.removeprefix("by_"): route
    for route in (
        by_index,
        by_iteration,
        by_read,
        by_field,
        by_slices,
        by_lists,
        by_shuffle,
        by_where,
        by_filter,
        by_concat,
        by_join,
        by_map,
        by_pickle,
        by_batches,
        by_forms,
        by_loader,
        by_packed_loader,
        by_arrow,
        by_huggingface,
        by_pandas,
        by_polars,
        by_copy,
        by_parquet_copy,
        by_map_copy,
        by_edit,
    )
    if _PACKAGES.get(route.__name__.removeprefix("by_")) not in LEFT_OUT
}
"""Quick routes; `by_workers` starts processes and is apart. Those of packages that are left out are missing."""


def disagreements(
    ds: sx.Dataset,
    expected: list[dict[str, Any]],
    folder: Path,
    routes: Mapping[str, Route] = ROUTES,
    *,
    lists: bool = False,
) -> list[str]:
    """Return what differs between the list and the dataset, a line for each route that fails: nothing if they agree.

    `expected` holds normal forms. A route that raises an error has failed.
    """
    if len(ds) != len(expected):
        return [f"length: expected {len(expected)}, got {len(ds)}"]
    wrong = []
    for name, route in routes.items():
        (folder / name).mkdir()
        try:
            found = route(ds, folder / name)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}"[:400])
            continue
        for position, sample in found:
            if (got := plain_sample(sample, ds.fields, lists=lists)) != expected[position]:
                fields = [field for field in ds.fields if got[field] != expected[position][field]]
                what = f"{fields[0]}: expected {expected[position][fields[0]]}, got {got[fields[0]]}"
                wrong.append(f"{name}: sample {position}, {what}"[:400])
                break
    return wrong
