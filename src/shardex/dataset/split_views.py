"""Parts and samplings of a view by the values of fields: `Dataset.split`, `balanced` and `weighted`.

The fields are read as whole columns (`sql_columns`), so that no other field is read, and become arrays of numbers: a
code for each different value (`codes_of`), or weights. `shardex.order` computes parts and draws from them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.dataset.dataset_dict import DatasetDict
from shardex.dataset.views import field_names, note, single_values, sorted_rows
from shardex.errors import ArgumentError, SchemaError
from shardex.kernel import Integers, ends_of
from shardex.order import (
    Balanced,
    Order,
    Pick,
    Shuffle,
    Weighted,
    WeightedOnce,
    parts_by_class,
    parts_by_group,
    parts_by_time,
    renumbered,
    share_list,
    split_bounds,
)
from shardex.rows import whole_number

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset
    from shardex.dataset.subset_view import SubsetView

By = str | Sequence[str] | NDArray[Any]
"""What divides samples: a field, several fields together, or an array with a value for each sample."""


# -- columns of fields ------------------------------------------------------------------------------------------


def codes_of(view: SubsetView[Any], by: By, what: str, *, optional: bool = False) -> tuple[Integers, int]:
    """Return a code for each sample, equal for equal values of `by`, counted from 0 as they appear; and their number.

    `what` is the name of the argument for errors. With `optional` a missing value is a value like the others.
    """
    if isinstance(by, np.ndarray):
        if by.shape != (len(view),):
            raise ArgumentError(f"expected an array of {len(view)} values for {what}, got shape {by.shape}")
        return _array_codes(by, what, optional)
    columns = column_values(view, field_names([by]), what, optional=optional)
    codes, count = _column_codes(columns[0])
    for column in columns[1:]:
        more, different = _column_codes(column)
        codes, count = renumbered(codes * different + more)
    return codes, count


def column_values(
    view: SubsetView[Any], names: Sequence[str], what: str, *, optional: bool = False
) -> list[pa.ChunkedArray]:
    """Return whole fields of single values; a missing value is an error unless it is `optional`."""
    if not names:
        raise ArgumentError(f"expected at least one field for {what}, got none")
    table = single_values(view, names, partial(_not_single, what))
    for name in names if not optional else ():
        _check_present(table[name], name, what)
    return [table[name] for name in names]


def _check_present(column: pa.ChunkedArray, name: str, what: str) -> None:
    import pyarrow.compute as pc

    missing = pc.is_null(column, nan_is_null=True)
    if count := pc.sum(missing).as_py():
        raise SchemaError(
            f"expected a value in every sample for {what}, got none in {count} of {len(column)}, the first is sample "
            f"{pc.index(missing, True).as_py()} - at field {name}; leave them out by ds.where('\"{name}\" IS NOT NULL')"
        )


def _array_codes(by: NDArray[Any], what: str, optional: bool) -> tuple[Integers, int]:
    """Return a number for each value of an array. None, NaN, NaT and masked values are missing, all the same."""
    if isinstance(by, np.ma.MaskedArray):
        by, hidden = by.data.astype(object), np.ma.getmaskarray(by)
        by[hidden] = None
    if by.dtype.kind == "O":
        missing = np.array([_is_missing(value) for value in by.tolist()], bool)
        values = [None if gone else value for gone, value in zip(missing, by.tolist(), strict=True)]
        numbers: dict[Any, int] = {}
        try:
            codes = np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
        except TypeError as error:
            raise ArgumentError(f"expected an array of numbers, text, bytes or times for {what}: {error}") from None
    else:
        missing = np.not_equal(by, by)
        codes = np.unique(by, return_inverse=True)[1]
    if not optional and missing.any():
        raise SchemaError(
            f"expected a value in every sample for {what}, got none in {missing.sum()} of {len(by)}, the first is "
            f"sample {missing.argmax()}; leave them out of the dataset and of the array"
        )
    return renumbered(codes)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(operator.ne(value, value))
    except TypeError:  # NA of pandas is neither equal nor different
        return True
    except ValueError:  # an array, which no class or group can be
        return False


def _not_single(what: str, name: str, feature: object) -> SchemaError:
    return SchemaError(f"expected a field of numbers, text, bytes or times for {what}, got {feature} - at field {name}")


def _column_codes(column: pa.ChunkedArray) -> tuple[Integers, int]:
    """Return a code for each value, counted as they appear, the highest for missing ones; and the number of codes."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = column.dictionary_encode().unify_dictionaries()
    count = len(encoded.chunk(0).dictionary) if encoded.num_chunks else 0
    parts = [numbers_of(one.indices.fill_null(count), np.int32) for one in encoded.chunks]
    return np.concatenate([np.empty(0, np.int64), *parts]), count + bool(column.null_count)


def numbers_of(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the numbers of an Arrow array without nulls; its to_numpy would import pandas."""
    return np.frombuffer(array.buffers()[1] or b"", dtype)[array.offset :][: len(array)]


# -- splits -----------------------------------------------------------------------------------------------------


def split_view(
    view: SubsetView[Any],
    shares: Sequence[Any],
    *,
    seed: int | None = None,
    stratify: By | None = None,
    group: By | None = None,
    time: str | None = None,
    within: By | None = None,
    at: Any = None,
) -> Any:
    """Return the parts of a view: a tuple, or a `DatasetDict` if they have names. `Dataset.split` describes them."""
    given = shares[0] if len(shares) == 1 and isinstance(shares[0], Mapping | Sequence) else shares
    if time is None and (within is not None or at is not None):
        raise ArgumentError(f"expected time= together with {'at' if within is None else 'within'}=, got none")
    if time is not None:
        if not (seed is None and stratify is None and group is None):
            raise ArgumentError(
                "expected no seed=, stratify= or group= together with time=, which orders the samples, got one; "
                "within= cuts every group by itself"
            )
        return _split_by_time(view.fixed(), given, time, within, at)
    if stratify is not None or group is not None:
        return _split_by_value(view.fixed(), given, seed, stratify, group)
    shuffled = view if seed is None else view.shuffle(seed)
    bounds = split_bounds(len(view), _numbers(given))
    return _named(given, [shuffled[a:b] for a, b in itertools.pairwise(bounds)])


def _split_by_value(view: SubsetView[Any], given: Any, seed: int | None, stratify: By | None, group: By | None) -> Any:
    shares, order = share_list(_numbers(given)), np.arange(len(view))
    if seed is not None:
        seed = whole_number("seed", seed)
        order = Shuffle(len(view), seed).rows(order)
    classes = None if stratify is None else codes_of(view, stratify, "stratify", optional=True)[0]
    if group is not None:
        groups, count = codes_of(view, group, "group")
        parts = parts_by_group(groups, shares, classes, seed)
        _check_groups(parts, shares, count)
        return _parts_of(view, given, order, parts[order])
    assert classes is not None
    return _parts_of(view, given, order, parts_by_class(classes[order], shares))


def _numbers(given: Any) -> list[float]:
    return list(given.values()) if isinstance(given, Mapping) else list(given)


def _parts_of(view: SubsetView[Any], given: Any, order: Integers, parts: Integers) -> Any:
    """Return a view for each part; `order` has positions, `parts` the part of each."""
    count = len(share_list(_numbers(given)))
    return _named(given, [view.through(Pick(order[parts == part])) for part in range(count)])


def _named(given: Any, parts: Sequence[Dataset[Any]]) -> Any:
    if not isinstance(given, Mapping):
        return tuple(parts)
    if len(parts) != len(given):
        raise ArgumentError(f"expected named shares that add up to 1, got {dict(given)}")
    return DatasetDict(dict(zip(given, parts, strict=True)))


def _check_groups(parts: Integers, shares: Sequence[float], count: int) -> None:
    """Raise if there are too few groups for every part to have one."""
    empty = [part for part, share in enumerate(shares) if share > 0 and not (parts == part).any()]
    if empty and len(parts):
        raise ArgumentError(
            f"expected at least one group for each part with the shares {tuple(shares)}, got {count} in {len(parts)} "
            f"samples: part {empty[0]} would be empty"
        )


# -- splits by time ---------------------------------------------------------------------------------------------


def _split_by_time(view: SubsetView[Any], given: Any, time: str, within: By | None, at: Any) -> Any:
    if not isinstance(time, str):
        raise ArgumentError(f"expected the name of a field for time, got {time!r:.200}")
    if at is not None:
        if len(given) or within is not None:
            raise ArgumentError("expected neither shares nor within= together with at=, got one of them")
        return _cut_at(view, time, at)
    column, by_time = _sorted_times(view, time)
    order, starts = _by_group(view, within, by_time, "within")
    parts = np.empty(len(view), np.int64)
    parts[order] = parts_by_time(starts, _changes(column, order), share_list(_numbers(given)))
    return _parts_of(view, given, by_time, parts[by_time])


def sorted_runs(view: SubsetView[Any], group: By | None, time: str | None) -> tuple[Integers, Integers]:
    """Return the positions of a view sorted by group, then by time, and where each group begins among them.

    Groups come in the order of their first samples. Without a time the samples of a group stay in order.
    """
    return _by_group(view, group, np.arange(len(view)) if time is None else _sorted_times(view, time)[1], "group")


def _sorted_times(view: SubsetView[Any], time: str) -> tuple[pa.ChunkedArray, Integers]:
    """Return a field of times and the positions in their order; a missing time is an error."""
    (column,) = column_values(view, [time], "time")
    return column, sorted_rows(pa.table({time: column}), [time])


def _by_group(view: SubsetView[Any], group: By | None, order: Integers, what: str) -> tuple[Integers, Integers]:
    """Return positions sorted by group, otherwise in this order, and where each group begins among them."""
    if group is None:
        return order, np.array([0, len(view)])
    groups, count = codes_of(view, group, what)
    keys = groups.astype(np.uint16) if count <= 1 << 16 else groups  # numpy sorts small numbers much faster
    return order[np.argsort(keys[order], kind="stable")], ends_of(np.bincount(groups, minlength=count))


def _changes(column: pa.ChunkedArray, order: Integers) -> Integers:
    """Return where the value of sorted samples differs from the value before."""
    import pyarrow.compute as pc

    values = column.take(pa.array(order)).combine_chunks()
    return np.flatnonzero(numbers_of(pc.not_equal(values[1:], values[:-1]).cast(pa.int8()), np.int8)) + 1


def _cut_at(view: SubsetView[Any], field: str, at: Any) -> Any:
    """Return the parts between given times: each begins at its time, the first of a list at the earliest one."""
    import pyarrow.compute as pc

    if isinstance(at, np.ndarray):
        at = list(np.atleast_1d(at))
    begins = list(at.values()) if isinstance(at, Mapping) else [None, *(at if isinstance(at, list | tuple) else [at])]
    column, order = _sorted_times(view, field)
    bounds = [
        0 if one is None else int(pc.sum(pc.less(column, _as_time(one, column.type, field))).as_py() or 0)
        for one in begins
    ]
    if bounds != sorted(bounds) or None in begins[1:]:
        raise ArgumentError(f"expected times that ascend for at, got {begins!r:.200}")
    parts = [view.through(Pick(order[a:b])) for a, b in itertools.pairwise([*bounds, len(view)])]
    return _named(at, parts)


def _as_time(value: Any, kind: pa.DataType, field: str) -> pa.Scalar:
    """Return a time as a scalar of the type of its field; text is read in ISO form, a date as its midnight.

    A time has a zone exactly if the times of the field have one, be it text or an object: none is guessed.
    """
    if isinstance(value, np.generic):
        value = value.astype("datetime64[us]").item() if value.dtype.kind == "M" else value.item()
    if isinstance(value, date):
        value = _as_field(value, kind, field)
    elif _is_missing(value) or (isinstance(value, int | float) and pa.types.is_temporal(kind)):
        raise ArgumentError(f"expected a time of the type {kind} for at, as the field {field} has them, got {value!r}")
    try:
        return pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"expected a time of the type {kind} for at, got {value!r:.200}: {error}") from None


def _as_field(value: date, kind: pa.DataType, field: str) -> date:
    """Return a date or time in the type of the field; raise if its zone does not fit."""
    if pa.types.is_date(kind):
        if not isinstance(value, datetime):
            return value
        if value.tzinfo is not None or value.time() != datetime.min.time():
            raise ArgumentError(f"expected a date for at, as the field {field} has them, got {value}")
        return value.date()
    if not pa.types.is_timestamp(kind):
        return value
    value = value if isinstance(value, datetime) else datetime.combine(value, datetime.min.time())
    if kind.tz is not None and value.tzinfo is None:
        raise ArgumentError(
            f"expected a time with a zone for at, as the field {field} has them ({kind.tz}), got {value}; add the "
            "zone, as value.replace(tzinfo=...) does"
        )
    if kind.tz is None and value.tzinfo is not None:
        raise ArgumentError(f"expected a time without a zone for at, as the field {field} has them, got {value}")
    return value


# -- sampling ---------------------------------------------------------------------------------------------------


def balanced_order(view: SubsetView[Any], by: By, length: int | None, seed: int) -> tuple[Order, str]:
    """Return an order that draws equally often from every class, and a text for the `repr`."""
    classes, count = codes_of(view, by, "balanced", optional=True)
    length = len(view) if length is None else whole_number("length", length, 0)
    _check_not_empty(view, length)
    chosen = np.argsort(classes, kind="stable")
    starts = ends_of(np.bincount(classes, minlength=count))
    what = "an array" if isinstance(by, np.ndarray) else ", ".join(field_names([by]))
    order = Balanced(length=length, seed=whole_number("seed", seed), chosen=chosen, starts=starts)
    return order, note("balanced by", what)


def weighted_order(
    view: SubsetView[Any], weights: Any, length: int | None, seed: int, replacement: bool
) -> tuple[Order, str]:
    """Return an order that draws by weights, and a text for the `repr`."""
    values = _weights(view, weights)
    seed = whole_number("seed", seed)
    count = int(np.count_nonzero(values))
    what = note("weighted by", weights if isinstance(weights, str) else "an array")
    if replacement:
        length = len(view) if length is None else whole_number("length", length, 0)
        _check_not_empty(view, length)
        return Weighted(length=length, seed=seed, ends=np.cumsum(values)), what
    length = count if length is None else whole_number("length", length, 0)
    if length > count:
        raise ArgumentError(
            f"expected a length of at most {count} without replacement, as many samples as have a weight above 0, got "
            f"{length}"
        )
    return WeightedOnce(length=length, seed=seed, weights=values), f"{what}, without replacement"


def _check_not_empty(view: SubsetView[Any], length: int) -> None:
    if length and not len(view):
        raise ArgumentError(f"expected a dataset with samples to draw {length} from, got an empty one")


def _weights(view: SubsetView[Any], weights: Any) -> NDArray[np.float64]:
    """Return the weight of each sample as a float, checked."""
    if isinstance(weights, str):
        (column,) = column_values(view, [weights], "weighted")
        try:
            found = column.cast(pa.float64())
        except pa.ArrowException:
            raise SchemaError(
                f"expected a field of numbers for weighted, got {column.type} - at field {weights}"
            ) from None
        values = np.concatenate([np.empty(0), *(numbers_of(one, np.float64) for one in found.chunks)])
    else:
        try:
            values = np.array(weights, np.float64)
        except (TypeError, ValueError):
            raise ArgumentError(f"expected a field or {len(view)} numbers as weights, got {weights!r:.200}") from None
        if values.shape != (len(view),):
            raise ArgumentError(f"expected a weight for each of {len(view)} samples, got shape {values.shape}")
    if len(bad := np.flatnonzero(~((values >= 0) & (values < np.inf)))):
        raise ArgumentError(f"expected weights of 0 or more, got {values[bad[0]]} - at sample {bad[0]}")
    if len(view) and not (0 < values.sum() < np.inf):
        raise ArgumentError(f"expected weights of which at least one is above 0, got a sum of {values.sum()}")
    return values
