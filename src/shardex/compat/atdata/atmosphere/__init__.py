"""Datasets on ATProto, which wait for the catalog."""

from shardex.compat.atdata._waiting import Waiting

__all__ = [
    "Atmosphere",
    "DatasetLoader",
    "DatasetPublisher",
    "LensLoader",
    "LensPublisher",
    "PDSBlobStore",
    "SchemaLoader",
    "SchemaPublisher",
]

_INSTEAD = "shards at a URL, and load_dataset(url); BlobSource reads blobs whose references are known"


class Atmosphere(
    Waiting,
    instead=_INSTEAD,
    methods="login from_session from_env create_record get_record list_records delete_record upload_blob get_blob "
    "did handle is_authenticated has_appview export_session",
):
    """A session at a server of ATProto."""


class SchemaPublisher(Waiting, instead=_INSTEAD, methods="publish"):
    """Publishes schemas."""


class SchemaLoader(Waiting, instead=_INSTEAD, methods="get list_all"):
    """Loads schemas."""


class DatasetPublisher(Waiting, instead=_INSTEAD, methods="publish publish_with_urls publish_with_blobs"):
    """Publishes datasets."""


class DatasetLoader(Waiting, instead=_INSTEAD, methods="get list_all get_typed get_urls to_dataset"):
    """Loads datasets."""


class LensPublisher(Waiting, instead=_INSTEAD, methods="publish publish_from_lens"):
    """Publishes lenses."""


class LensLoader(Waiting, instead=_INSTEAD, methods="get list_all find_by_schemas"):
    """Loads lenses."""


class PDSBlobStore(Waiting, instead=_INSTEAD, methods="write_shards read_url supports_streaming create_source"):
    """Shards as blobs of a server of ATProto."""
