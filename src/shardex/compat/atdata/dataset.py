"""Samples and datasets, under the module path of atdata."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from shardex.compat.atdata._dataset import RT, ST, Dataset
from shardex.compat.atdata._samples import DictSample, PackableSample, SampleBatch, packable
from shardex.compat.atdata._write import write_samples

__all__ = [
    "DT",
    "RT",
    "ST",
    "Dataset",
    "DictSample",
    "MsgpackRawSample",
    "PackableSample",
    "Pathlike",
    "SampleBatch",
    "SampleExportMap",
    "SampleExportRow",
    "WDSRawBatch",
    "WDSRawSample",
    "packable",
    "write_samples",
]

DT = TypeVar("DT")
Pathlike = str | os.PathLike[str]
MsgpackRawSample = dict[str, Any]
WDSRawSample = dict[str, Any]
"""A sample of WebDataset: ``__key__``, and the packed bytes under ``msgpack``."""
WDSRawBatch = dict[str, Any]
SampleExportRow = dict[str, Any]
SampleExportMap = Callable[[Any], SampleExportRow]
