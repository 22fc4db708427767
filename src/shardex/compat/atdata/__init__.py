"""The names of atdata, over the core of shardex: typed samples in WebDataset tars, lenses, manifests.

Samples are packed by the types of their values; the core indexes tars, reads ranges of them, and publishes new ones.

- `dataset`: `Dataset` (`_dataset`, with `_shards`, `_steps`, `_stream`, `_export`, `_process_shards`) and samples
  (`_samples`)
- `lens`: `Lens` and `LensNetwork`
- `_hf_api`: `load_dataset` and `DatasetDict`
- `_sources`, `_protocols`: where shards are
- `_helpers`: arrays and tables as bytes
- `_exceptions`: the errors
"""

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._exceptions import (
    AppViewError,
    AppViewRequiredError,
    AppViewUnavailableError,
    AtdataError,
    LensNotFoundError,
    PartialFailureError,
    SampleKeyError,
    SchemaError,
    ShardError,
)
from shardex.compat.atdata._hf_api import DatasetDict, load_dataset
from shardex.compat.atdata._protocols import AbstractDataStore, DataSource, IndexEntry, Packable
from shardex.compat.atdata._samples import DictSample, PackableSample, SampleBatch, packable
from shardex.compat.atdata._sources import BlobSource, S3Source, URLSource
from shardex.compat.atdata.lens import Lens, LensNetwork, lens

__all__ = [
    "AbstractDataStore",
    "AppViewError",
    "AppViewRequiredError",
    "AppViewUnavailableError",
    "AtdataError",
    "BlobSource",
    "DataSource",
    "Dataset",
    "DatasetDict",
    "DictSample",
    "IndexEntry",
    "Lens",
    "LensNetwork",
    "LensNotFoundError",
    "Packable",
    "PackableSample",
    "PartialFailureError",
    "S3Source",
    "SampleBatch",
    "SampleKeyError",
    "SchemaError",
    "ShardError",
    "URLSource",
    "lens",
    "load_dataset",
    "packable",
]
