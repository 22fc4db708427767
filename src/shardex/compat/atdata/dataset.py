"""Samples and datasets, under the module path of atdata."""

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._samples import DictSample, PackableSample, SampleBatch, packable
from shardex.compat.atdata._write import write_samples

__all__ = ["Dataset", "DictSample", "PackableSample", "SampleBatch", "packable", "write_samples"]
