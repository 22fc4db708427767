"""Datasets, schemas, lenses and labels on ATProto, as records ``science.alt.dataset.*``; older ones are read too.

- `client`: `Atmosphere`, an account
- `schema`, `records`, `lens`, `labels`, `verification`: publishers and loaders, over `_publishing`
- `store`: shards as blobs
- `_index`: datasets and schemas by address
- `_lexicon_types`, `_types`: records and their addresses
"""

from shardex.compat.atdata.atmosphere._index import AtmosphereIndex, AtmosphereIndexEntry
from shardex.compat.atdata.atmosphere._lexicon_types import (
    BlobEntry,
    DatasetMetadata,
    DatasetSize,
    HttpShardEntry,
    JsonSchemaFormat,
    LexCodeHash,
    LexCodeReference,
    LexDatasetEntry,
    LexLabelRecord,
    LexLensRecord,
    LexLensVerification,
    LexSchemaRecord,
    S3ShardEntry,
    ShardChecksum,
    ShardManifestRef,
    StorageBlobs,
    StorageHttp,
    StorageS3,
    StorageUnion,
    storage_from_record,
)
from shardex.compat.atdata.atmosphere._types import LEXICON_NAMESPACE, AtUri
from shardex.compat.atdata.atmosphere.client import Atmosphere, AtmosphereClient
from shardex.compat.atdata.atmosphere.labels import LabelLoader, LabelPublisher
from shardex.compat.atdata.atmosphere.lens import LensLoader, LensPublisher
from shardex.compat.atdata.atmosphere.records import DatasetLoader, DatasetPublisher
from shardex.compat.atdata.atmosphere.schema import SchemaLoader, SchemaPublisher
from shardex.compat.atdata.atmosphere.store import PDSBlobStore
from shardex.compat.atdata.atmosphere.verification import VerificationLoader, VerificationPublisher

__all__ = [
    "LEXICON_NAMESPACE",
    "AtUri",
    "Atmosphere",
    "AtmosphereClient",
    "AtmosphereIndex",
    "AtmosphereIndexEntry",
    "BlobEntry",
    "DatasetLoader",
    "DatasetMetadata",
    "DatasetPublisher",
    "DatasetSize",
    "HttpShardEntry",
    "JsonSchemaFormat",
    "LabelLoader",
    "LabelPublisher",
    "LensLoader",
    "LensPublisher",
    "LexCodeHash",
    "LexCodeReference",
    "LexDatasetEntry",
    "LexLabelRecord",
    "LexLensRecord",
    "LexLensVerification",
    "LexSchemaRecord",
    "PDSBlobStore",
    "S3ShardEntry",
    "SchemaLoader",
    "SchemaPublisher",
    "ShardChecksum",
    "ShardManifestRef",
    "StorageBlobs",
    "StorageHttp",
    "StorageS3",
    "StorageUnion",
    "VerificationLoader",
    "VerificationPublisher",
    "storage_from_record",
]
