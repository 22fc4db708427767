"""Views samples as another type, and puts changed views back; used by datasets, writers and edits.

`typed_view` finds a path of registered lenses or matches fields by name, `lens_view` applies one lens, `mapped_view` a
function; all return rows. `sample_of_view` and `changes` go back: a whole new sample, or only the fields that change.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shardex.errors import ArgumentError, LensError, SchemaError
from shardex.features import Feature, Features, Optional, describe
from shardex.layers.added_rows import AddedRows, FieldFunctions
from shardex.layers.layers import sample_type_of
from shardex.layers.map_rows import BatchMapRows, MapRows, unchanged
from shardex.layers.media_rows import typed_rows
from shardex.rows import AbstractRows, media_in
from shardex.samples import (
    LENSES,
    ClassFitter,
    DictSample,
    FieldSubset,
    Lens,
    fields_of,
    is_sample_class,
    record_of,
    sample_from,
    schema_conflicts,
    type_name,
)


def check_type(kind: Any) -> None:
    """Raise if the argument is not a sample type."""
    if not (is_sample_class(kind) or kind is DictSample):
        if isinstance(kind, str):
            raise SchemaError(f"expected a class as the sample type, got {kind!r}; name a format with format={kind!r}")
        raise SchemaError(
            "expected a sample type (DictSample, or a class with annotated fields: one made by @packable, a dataclass, "
            f"a pydantic model, a NamedTuple or a TypedDict), got {type_name(kind)}"
        )


def check_callable(function: Any, of: str = "sample") -> None:
    """Raise if the argument is not callable."""
    if not callable(function):
        raise ArgumentError(f"expected a function of one {of}, got {describe(function)}")


def features_wanted_by(kind: Any) -> Features | None:
    """Return the features that files are decoded with for a sample type; fields with a default are optional."""
    if not is_sample_class(kind):
        return None
    record = record_of(kind)
    return Features({name: Optional(f) if name in record.defaults else f for name, f in record.features.items()})


def typed_view(rows: AbstractRows, fields: Sequence[str] | None, kind: Any) -> AbstractRows:
    """Return rows (or some of their fields) as samples of a type: by registered lenses, otherwise by field names."""
    check_type(kind)
    current = sample_type_of(rows, fields)
    if current is kind:
        return rows
    for one in LENSES.path(current, kind) or ():
        rows, fields = lens_view(rows, fields, one), None
    if sample_type_of(rows, fields) is kind:
        return rows
    if is_sample_class(current) and is_sample_class(kind):
        FieldSubset(current, kind)  # its error names the fields of the two classes that do not fit
    return typed_rows(rows, kind, fields) if is_sample_class(kind) else MapRows(rows, _untyped, fields, DictSample)


def _untyped(sample: Any) -> DictSample:
    return DictSample(fields_of(sample))


def lens_view(rows: AbstractRows, fields: Sequence[str] | None, lens: Lens[Any, Any]) -> AbstractRows:
    """Return rows through a lens; samples are converted to the type that the lens takes."""
    if not isinstance(lens, Lens):
        raise LensError(f"expected a lens, made by @lens or Lens(...), got {type_name(type(lens))}")
    current, source = sample_type_of(rows, fields), lens.source
    if is_sample_class(source) and not (current is source or issubclass(current, source)):
        rows, fields = typed_rows(rows, source, fields), None
    return MapRows(rows, lens, fields, lens.view if is_sample_class(lens.view) or lens.view is DictSample else None)


def mapped_view(
    rows: AbstractRows, fields: Sequence[str] | None, function: Any, schema: Any, batched: bool
) -> AbstractRows:
    """Return the results of a function of samples, or of batches, with the features of a schema if there is one."""
    if not isinstance(batched, bool):
        raise ArgumentError(f"expected True or False for batched, got {describe(batched)}")
    check_callable(function, "batch" if batched else "sample")
    features = None if schema is None else Features.of(schema)
    return (BatchMapRows if batched else MapRows)(rows, function, fields, schema=features)


def view_with_fields(
    rows: AbstractRows, fields: Sequence[str] | None, functions: Mapping[str, Any], schema: Any
) -> AbstractRows:
    """Return rows with fields that functions of samples compute."""
    if not functions:
        hint = ": the dict is the schema; give the functions as with_fields(**functions)" if schema is not None else ""
        raise ArgumentError(f"expected functions of samples by field, such as with_fields(z=f), got none{hint}")
    for name, function in functions.items():
        if not callable(function):
            if name == "batched" and isinstance(function, bool):
                raise ArgumentError(
                    "expected functions of one sample, got batched=: use ds.map(function, batched=True), whose "
                    "function returns all columns, or tx.add_field(..., batched=True) in sx.edit"
                )
            raise ArgumentError(
                f"expected a function of a sample, got {describe(function)} - at field {name}; for values that are "
                f'known, join columns: sx.join([ds, sx.open({{"{name}": values}})])'
            )
    features = None if schema is None else Features.of(schema)
    if features is not None and features.keys() != functions.keys():
        raise ArgumentError(
            f"expected a schema of the fields that are computed ({', '.join(functions)}), got {features}"
        )
    return AddedRows(rows, FieldFunctions(dict(functions)), fields, schema=features)


# -- putting views back ----------------------------------------------------------------------------------------


def sample_of_view(view: Any, lens: Lens[Any, Any]) -> Mapping[str, Any]:
    """Return the sample that is made from a view alone."""
    return fields_of(lens.put(_typed_view(view, lens)))


def changes(source: Mapping[str, Any], view: Any, lens: Lens[Any, Any]) -> dict[str, Any]:
    """Return the fields of a sample that change when a view is put back, with their new values.

    >>> sample = {"x": 1, "y": 2, "z": 3}
    >>> changes(sample, {"y": 2, "z": 4}, lens_to({"y": 2, "z": 4}, {}))
    {'z': 4}
    """
    before = _typed_sample(source, lens.source if is_sample_class(lens.source) else DictSample)
    after = lens.put(_typed_view(view, lens), copy.deepcopy(before))  # a putter may modify its argument
    old, new = fields_of(before), fields_of(after)
    return {name: value for name, value in new.items() if name not in old or not unchanged(old[name], value)}


def lens_to(view: Any, features: Mapping[str, Feature]) -> Lens[Any, Any]:
    """Return the lens from samples with these features to views of this type."""
    kind = type(view)
    if not is_sample_class(kind):
        return Lens(_untyped, _merged, source=DictSample, view=DictSample)
    if not (problems := _problems(features, kind)):
        return Lens.between(DictSample, kind)
    fitting = [one for one in LENSES.sources(kind) if is_sample_class(one) and not _problems(features, one)]
    if len(fitting) == 1:
        return Lens.between(fitting[0], kind)
    found = f"several, from {' and from '.join(map(type_name, fitting))}" if fitting else f"none: {'; '.join(problems)}"
    raise LensError(
        f"expected one lens to {type_name(kind)} from a type that fits the samples, got {found}; pass through="
    )


def _problems(features: Mapping[str, Feature], kind: Any) -> list[str]:
    record = record_of(kind)
    return schema_conflicts(features, record.features, record.defaults)


def _merged(view: Mapping[str, Any], source: Any) -> DictSample:
    return DictSample({**fields_of(source), **fields_of(view)})


def _typed_sample(source: Mapping[str, Any], kind: Any) -> Any:
    if kind is DictSample:
        return DictSample(source)
    record = record_of(kind)
    media = {name: source[name] for name in media_in(record.features) if name in source}  # decoded, as the view's are
    names = [name for name in record.names if name not in media]
    fitted = ClassFitter(record, stored=True).sample(source, names, lambda _: "the sample to put into")
    return record.make({**fitted, **media})


def _typed_view(view: Any, lens: Lens[Any, Any]) -> Any:
    """Return the view in the type that the lens puts back; a mapping of its fields is converted."""
    if is_sample_class(lens.view) and isinstance(view, Mapping):
        return sample_from(lens.view, view)
    if is_sample_class(lens.view) and not isinstance(view, lens.view):
        wanted, found = type_name(lens.view), type_name(type(view))
        raise LensError(f"expected a view of the type {wanted}, got {found} - at {lens.label}")
    return DictSample(view) if isinstance(view, Mapping) else view
