"""What other code may give to this package: samples, entries of an index, stores and sources of data."""

from collections.abc import Iterator
from typing import IO, Any, Protocol, Self, runtime_checkable

__all__ = ["AbstractDataStore", "AbstractIndex", "DataSource", "IndexEntry", "Packable"]


@runtime_checkable
class Packable(Protocol):
    """A sample that can be packed into bytes: what `packable` makes of a class."""

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Return a sample of these fields."""

    @classmethod
    def from_bytes(cls, bs: bytes) -> Self:
        """Return the sample that was packed into these bytes."""

    @property
    def packed(self) -> bytes:
        """The sample as MessagePack."""

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample for a WebDataset writer: a key, and the packed bytes."""


@runtime_checkable
class IndexEntry(Protocol):
    """A dataset in an index: its name, its schema and its shards."""

    @property
    def name(self) -> str:
        """The name of the dataset."""

    @property
    def schema_ref(self) -> str:
        """The address of the schema."""

    @property
    def data_urls(self) -> list[str]:
        """The addresses of the shards."""

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What was stored about the whole dataset."""


class AbstractDataStore(Protocol):
    """A place where shards are stored."""

    def write_shards(self, ds: Any, *, prefix: str, **kwargs: Any) -> list[str]:
        """Store the samples of a dataset, and return the addresses of its shards."""

    def read_url(self, url: str) -> str:
        """Return the address at which a shard is read."""

    def supports_streaming(self) -> bool:
        """Return whether shards can be read without downloading them first."""


class AbstractIndex(Protocol):
    """An index of datasets and schemas."""

    @property
    def data_store(self) -> AbstractDataStore | None:
        """Where shards of new datasets are stored."""

    @property
    def datasets(self) -> Iterator[IndexEntry]:
        """All datasets."""

    @property
    def schemas(self) -> Iterator[Any]:
        """All schemas."""

    def write_samples(self, samples: Any, *, name: str, **kwargs: Any) -> IndexEntry:
        """Write samples to shards, and add them."""

    def decode_schema(self, ref: str) -> type[Packable]:
        """Return the sample class of a schema: the former name of `get_schema_type`."""

    def get_dataset(self, ref: str) -> IndexEntry:
        """Return a dataset by its name."""

    def get_schema(self, ref: str) -> dict[str, Any]:
        """Return a schema by its address."""

    def get_schema_type(self, ref: str) -> type[Packable]:
        """Return the sample class of a schema."""

    def insert_dataset(self, ds: Any, *, name: str, **kwargs: Any) -> IndexEntry:
        """Add a dataset."""

    def publish_schema(self, sample_type: type[Packable], *, version: str = "1.0.0", **kwargs: Any) -> str:
        """Add the schema of a sample class, and return its address."""

    def list_datasets(self) -> list[IndexEntry]:
        """Return all datasets."""

    def list_schemas(self) -> list[dict[str, Any]]:
        """Return all schemas."""


@runtime_checkable
class DataSource(Protocol):
    """Shards with names, each of which can be opened as a stream of bytes."""

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The name and an open stream of each shard."""

    def list_shards(self) -> list[str]:
        """Return the names of all shards."""

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Return a stream of a shard; `KeyError` if there is none of this name."""
