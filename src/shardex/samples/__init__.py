"""The room samples."""

from shardex.samples.class_record import record_of
from shardex.samples.field_subset import Narrow, is_packable, misfits
from shardex.samples.fit_sample import ClassFitter
from shardex.samples.lens import NETWORK, Lens, lens
from shardex.samples.lens_graph import name_of
from shardex.samples.packable import PackableSample, packable
from shardex.samples.sample import Batch, DictSample, T_co, fields_of, maker_of

__all__ = [
    "NETWORK",
    "Batch",
    "ClassFitter",
    "DictSample",
    "Lens",
    "Narrow",
    "PackableSample",
    "T_co",
    "fields_of",
    "is_packable",
    "lens",
    "maker_of",
    "misfits",
    "name_of",
    "packable",
    "record_of",
]
