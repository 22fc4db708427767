"""Represents samples and batches: untyped, or as classes of the user, with lenses between types.

In: columns and plain values that were read; classes and functions of users. Out: `DictSample`, `Batch`, instances of
sample classes: those that `packable` makes, dataclasses, pydantic models, named tuples and typed dicts. A `Record`
describes a class: its fields, features and conversions. `Dataset.as_type` uses the shortest path of registered lenses
between two types, or takes a subset of the fields if there is no path.

- `sample`: `DictSample` and `Batch`
- `packable`: `@packable` and `PackableSample`
- `class_record`: `Record`, and conversion between typed and plain values of a class
- `lens`: `Lens` and `@lens`
- `lens_graph`: shortest paths between types
- `field_subset`: view of samples as a class that has some of their fields
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "LENSES",
    "Batch",
    "ClassFitter",
    "DictSample",
    "FieldSubset",
    "Lens",
    "LensGraph",
    "PackableSample",
    "T_co",
    "feature_in_class",
    "fields_of",
    "is_sample_class",
    "lens",
    "packable",
    "packable_class",
    "plain_value",
    "record_of",
    "same",
    "sample_constructor",
    "sample_from",
    "schema_conflicts",
    "type_name",
]

if TYPES:
    from shardex.samples.class_record import ClassFitter, is_sample_class, plain_value, record_of, sample_from
    from shardex.samples.field_subset import FieldSubset, feature_in_class, schema_conflicts
    from shardex.samples.lens import LENSES, Lens, lens
    from shardex.samples.lens_graph import LensGraph, type_name
    from shardex.samples.packable import PackableSample, packable, packable_class
    from shardex.samples.sample import Batch, DictSample, T_co, fields_of, same, sample_constructor
else:
    import_later(
        __name__,
        {
            "class_record": "is_sample_class plain_value record_of ClassFitter sample_from",
            "field_subset": "FieldSubset feature_in_class schema_conflicts",
            "lens": "LENSES Lens lens",
            "lens_graph": "LensGraph type_name",
            "packable": "PackableSample packable packable_class",
            "sample": "Batch DictSample T_co fields_of same sample_constructor",
        },
    )
