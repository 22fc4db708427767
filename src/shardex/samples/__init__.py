"""Samples and batches for users, typed samples, and lenses between types.

In: columns and plain values that were read, classes and functions of users. Out: `DictSample`, `Batch`, instances of
`packable` classes, views. A class becomes a `Record` (fields, features, conversions); `ClassFitter` makes values fit
it. `as_type` takes the shortest path of lenses, or a subset of the fields if there is none.

sample        `DictSample` and `Batch`
packable      `@packable` and `PackableSample`
class_record  conversion between the typed and the plain values of a class
fit_sample    values made to fit the fields of a class
lens          `Lens` and `@lens`
lens_graph    shortest paths between types
field_subset  views as a class that has some of the fields
"""

from shardex.samples.class_record import record_of
from shardex.samples.field_subset import FieldSubset, is_packable, schema_conflicts
from shardex.samples.fit_sample import ClassFitter
from shardex.samples.lens import LENSES, Lens, lens
from shardex.samples.lens_graph import type_name
from shardex.samples.packable import PackableSample, packable
from shardex.samples.sample import Batch, DictSample, T_co, fields_of, sample_constructor

__all__ = [
    "LENSES",
    "Batch",
    "ClassFitter",
    "DictSample",
    "FieldSubset",
    "Lens",
    "PackableSample",
    "T_co",
    "fields_of",
    "is_packable",
    "lens",
    "packable",
    "record_of",
    "sample_constructor",
    "schema_conflicts",
    "type_name",
]
