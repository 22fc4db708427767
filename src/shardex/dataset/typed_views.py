"""How samples of one type are seen as another, and how a changed view gets back: what datasets and writers ask for.

`typed_view` finds the way (a registered lens, several, or just the fields), `lens_view` goes it; both return rows,
which the dataset puts its order on. `put_views` and `changes` go back: whole new samples, or the fields of one that are
different now.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardex.dataset.layers import MappedRows, TypedRows, sample_type_of
from shardex.dataset.read_size import read_chunks
from shardex.errors import LensError, SchemaError
from shardex.order import Span
from shardex.rows import AbstractRows, Rows
from shardex.samples import (
    LENSES,
    ClassFitter,
    DictSample,
    FieldSubset,
    Lens,
    fields_of,
    is_packable,
    record_of,
    schema_conflicts,
    type_name,
)
from shardex.schema import Feature, Features, Optional, describe

__all__ = [
    "changes",
    "check_callable",
    "check_type",
    "features_wanted_by",
    "lens_to",
    "lens_view",
    "plain_samples",
    "put_views",
    "source_schema",
    "typed_view",
]


def check_type(kind: Any) -> None:
    """An error if it is no type of samples."""
    if not (is_packable(kind) or kind is DictSample):
        raise SchemaError(f"expected a type of samples, DictSample or a class made by @packable, got {type_name(kind)}")


def check_callable(function: Any) -> None:
    """An error if it cannot be called."""
    if not callable(function):
        raise SchemaError(f"expected a function of one sample, got {describe(function)}")


def features_wanted_by(kind: Any) -> Features | None:
    """What a class says of its fields, to those that decode them; fields that have a default may lack."""
    if not is_packable(kind):
        return None
    record = record_of(kind)
    return Features({name: Optional(f) if name in record.defaults else f for name, f in record.features.items()})


def typed_view(rows: AbstractRows, fields: Sequence[str] | None, kind: Any) -> AbstractRows:
    """Rows (or some of their fields) with samples of this type: through lenses, or else by the fields it has."""
    check_type(kind)
    own = sample_type_of(rows, fields)
    if own is kind:
        return rows
    for one in LENSES.path(own, kind) or ():
        rows, fields = lens_view(rows, fields, one), None
    if sample_type_of(rows, fields) is kind:
        return rows
    if is_packable(own) and is_packable(kind):
        FieldSubset(own, kind)  # says what is in the way, in the words of the two classes
    return TypedRows(rows, kind, fields) if is_packable(kind) else MappedRows(rows, _untyped, fields, DictSample)


def _untyped(sample: Any) -> DictSample:
    return DictSample(fields_of(sample))


def lens_view(rows: AbstractRows, fields: Sequence[str] | None, lens: Lens[Any, Any]) -> AbstractRows:
    """Rows as a lens shows them; if it looks at another type, the samples are made that first."""
    if not isinstance(lens, Lens):
        raise LensError(f"expected a lens, made by @lens or Lens(...), got {type_name(type(lens))}")
    own, source = sample_type_of(rows, fields), lens.source
    if is_packable(source) and not issubclass(own, source):
        rows, fields = TypedRows(rows, source, fields), None
    return MappedRows(rows, lens, fields, lens.view if is_packable(lens.view) or lens.view is DictSample else None)


# -- the way back ---------------------------------------------------------------------------------------------


def source_schema(lens: Lens[Any, Any]) -> Features | None:
    """The features of what a lens looks at; none if they are not known."""
    return record_of(lens.source).features if is_packable(lens.source) else None


def plain_samples(rows: Rows) -> Iterator[dict[str, Any]]:
    """All samples as plain values, some read at a time."""
    for columns in read_chunks(rows, Span(len(rows)), 1):
        yield from columns.to_samples()


def put_views(
    views: Iterable[Any], lens: Lens[Any, Any], sources: Iterable[Mapping[str, Any]] | None
) -> Iterator[Mapping[str, Any]]:
    """Each view put back into its sample, all of whose other fields stay; into none if there are no samples."""
    if sources is None:
        for view in views:
            yield fields_of(lens.put(_viewed(view, lens)))
        return
    try:
        for view, source in zip(views, sources, strict=True):
            yield {**source, **changes(source, view, lens)}
    except ValueError as error:
        if not str(error).startswith("zip()"):
            raise
        raise SchemaError(f"expected as many views as samples to put them into, got another number: {error}") from None


def changes(source: Mapping[str, Any], view: Any, lens: Lens[Any, Any]) -> dict[str, Any]:
    """The fields of a sample that putting a view back changes, with their new values.

    >>> sample = {"x": 1, "y": 2, "z": 3}
    >>> changes(sample, {"y": 2, "z": 4}, lens_to({"y": 2, "z": 4}, {}))
    {'z': 4}
    """
    before = _as(source, lens.source if is_packable(lens.source) else DictSample)
    after = lens.put(_viewed(view, lens), copy.deepcopy(before))  # a putter may change what it is given
    old, new = fields_of(before), fields_of(after)
    return {name: value for name, value in new.items() if name not in old or not _unchanged(old[name], value)}


def _unchanged(old: Any, new: Any) -> bool:
    """Whether a value is stored as before: 1 is not True, 0.0 not -0.0.

    >>> _unchanged({"a": 1}, {"a": True}), _unchanged(0.0, -0.0), _unchanged(np.float64(1.5), 1.5)
    (False, False, True)
    """
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        return old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes()
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return list(old) == list(new) and all(_unchanged(value, new[name]) for name, value in old.items())
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_unchanged, old, new))
    a, b = (one.item() if isinstance(one, np.generic) else one for one in (old, new))
    return type(a) is type(b) and repr(a) == repr(b)


def lens_to(view: Any, features: Mapping[str, Feature]) -> Lens[Any, Any]:
    """The lens by which samples with these features would be seen as a view like this one."""
    kind = type(view)
    if not is_packable(kind):
        return Lens(_untyped, _merged, source=DictSample, view=DictSample)
    if not (problems := _problems(features, kind)):
        return Lens.between(DictSample, kind)
    fitting = [one for one in LENSES.sources(kind) if is_packable(one) and not _problems(features, one)]
    if len(fitting) == 1:
        return Lens.between(fitting[0], kind)
    several = f"several, from {' and from '.join(map(type_name, fitting))}"
    found = several if fitting else f"none: {'; '.join(problems)}"
    raise LensError(
        f"expected one lens to {type_name(kind)} from a type that the samples fit, got {found}; say through="
    )


def _problems(features: Mapping[str, Feature], kind: Any) -> list[str]:
    record = record_of(kind)
    return schema_conflicts(features, record.features, record.defaults)


def _merged(view: Mapping[str, Any], source: Any) -> DictSample:
    return DictSample({**fields_of(source), **fields_of(view)})


def _as(source: Mapping[str, Any], kind: Any) -> Any:
    if kind is DictSample:
        return DictSample(source)
    record = record_of(kind)
    return record.make(
        ClassFitter(record, stored=True).sample(source, record.names, lambda _: "the sample to put into")
    )


def _viewed(view: Any, lens: Lens[Any, Any]) -> Any:
    """The view in the type that the putter takes: plain fields may stand for it."""
    if is_packable(lens.view) and isinstance(view, Mapping):
        return lens.view.from_data(view)
    if is_packable(lens.view) and not isinstance(view, lens.view):
        wanted, found = type_name(lens.view), type_name(type(view))
        raise LensError(f"expected a view of the type {wanted}, got {found} - at {lens.label}")
    return DictSample(view) if isinstance(view, Mapping) else view
