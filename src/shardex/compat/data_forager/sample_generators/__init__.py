"""Sample generators: what becomes of a line of text."""

from shardex.compat.data_forager.sample_generators.common import (
    NOOPSampleGenerator,
    SampleData,
    SampleGeneratorInterface,
    noop_sample_processing,
)
from shardex.compat.data_forager.sample_generators.schema import ArraySpec, SampleSchema

__all__ = [
    "ArraySpec",
    "NOOPSampleGenerator",
    "SampleData",
    "SampleGeneratorInterface",
    "SampleSchema",
    "noop_sample_processing",
]
