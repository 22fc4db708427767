"""The names of atdata, over the core of shardex: typed samples in WebDataset tars, lenses, manifests.

Samples are packed by the types of their values; the core indexes tars, reads ranges of them, and publishes new ones.

- `dataset`: `Dataset` (`_dataset`, with `_shards`, `_steps`, `_stream`, `_export`, `_process_shards`) and samples
  (`_samples`)
- `lens`: `Lens` and `LensNetwork`
- `_hf_api`: `load_dataset` and `DatasetDict`
- `_sources`, `_protocols`: where shards are
- `_helpers`: arrays and tables as bytes, checksums (`_checksums`)
- `_exceptions`: the errors
- `_write`: `write_samples`
- `manifest`: what is in shards, and queries over it
- `_schema_codec`, `_type_utils`: sample classes made of schema records
- `_cid`: content identifiers
- `_logging`: the logger, which can be replaced
- `testing`: datasets for tests
- `cli`: the command line
- `index` (`local` is its old place), `providers`, `repository`, `stores`: datasets, schemas, lenses, labels by name
- `atmosphere`, `promote`, `_appview_search`: datasets, schemas, lenses and labels on ATProto
- `search`: search in indexes
- `_named`: the default index, and datasets by name
- `_lens_codec`, `_stub_manager`: lenses as records, sample classes as source code for editors
"""

import warnings
from typing import Any

from shardex.compat.atdata import _protocols, atmosphere, dataset
from shardex.compat.atdata._checksums import ShardWriteResult, verify_checksums
from shardex.compat.atdata._cid import generate_cid, verify_cid
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
from shardex.compat.atdata._helpers import configure_arrays
from shardex.compat.atdata._hf_api import DatasetDict, get_default_index, load_dataset, set_default_index
from shardex.compat.atdata._logging import configure_logging, get_logger, log_operation
from shardex.compat.atdata._protocols import AbstractDataStore, DataSource, IndexEntry, Packable
from shardex.compat.atdata._samples import DictSample, PackableSample, SampleBatch, packable
from shardex.compat.atdata._schema_codec import schema_to_type
from shardex.compat.atdata._sources import BlobSource, S3Source, URLSource
from shardex.compat.atdata._write import write_samples
from shardex.compat.atdata.cli import main
from shardex.compat.atdata.index import Index
from shardex.compat.atdata.lens import Lens, LensNetwork, lens
from shardex.compat.atdata.manifest import (
    ManifestBuilder,
    ManifestField,
    ManifestWriter,
    QueryExecutor,
    SampleLocation,
    ShardManifest,
    query_fields,
)
from shardex.compat.atdata.promote import promote_to_atmosphere
from shardex.compat.atdata.repository import Repository, create_repository
from shardex.compat.atdata.search import (
    AppViewSearchBackend,
    LocalSearchBackend,
    SearchAggregator,
    SearchBackend,
    SearchResult,
    SearchResults,
)
from shardex.compat.atdata.stores import LocalDiskStore

__all__ = [
    "AbstractDataStore",
    "AppViewError",
    "AppViewRequiredError",
    "AppViewSearchBackend",
    "AppViewUnavailableError",
    "AtdataError",
    "BlobSource",
    "DataSource",
    "Dataset",
    "DatasetDict",
    "DictSample",
    "Index",
    "IndexEntry",
    "Lens",
    "LensNetwork",
    "LensNotFoundError",
    "LocalDiskStore",
    "LocalSearchBackend",
    "ManifestBuilder",
    "ManifestField",
    "ManifestWriter",
    "Packable",
    "PackableSample",
    "PartialFailureError",
    "QueryExecutor",
    "Repository",
    "S3Source",
    "SampleBatch",
    "SampleKeyError",
    "SampleLocation",
    "SchemaError",
    "SearchAggregator",
    "SearchBackend",
    "SearchResult",
    "SearchResults",
    "ShardError",
    "ShardManifest",
    "ShardWriteResult",
    "URLSource",
    "atmosphere",
    "configure_arrays",
    "configure_logging",
    "create_repository",
    "dataset",
    "generate_cid",
    "get_default_index",
    "get_logger",
    "lens",
    "load_dataset",
    "log_operation",
    "main",
    "packable",
    "promote_to_atmosphere",
    "query_fields",
    "schema_to_type",
    "set_default_index",
    "verify_checksums",
    "verify_cid",
    "write_samples",
]


def __getattr__(name: str) -> Any:
    if name == "AbstractIndex":
        warnings.warn("AbstractIndex is deprecated, use Index as the annotation", DeprecationWarning, stacklevel=2)
        return _protocols.AbstractIndex
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
