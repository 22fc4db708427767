"""Entries of an index: the name, the schema and the shards of a dataset."""

from dataclasses import dataclass, field
from typing import Any

from shardex.compat.atdata._cid import generate_cid

REDIS_KEY_DATASET_ENTRY = "LocalDatasetEntry"
REDIS_KEY_SCHEMA = "LocalSchema"


@dataclass
class LocalDatasetEntry:
    """A dataset in an index; its identifier is that of its schema and shards.

    >>> LocalDatasetEntry("mnist", "atdata://local/schema/Digit@1.0.0", ["mnist.tar"]).cid[:8]
    'bafyreid'
    """

    name: str
    schema_ref: str
    data_urls: list[str]
    metadata: dict[str, Any] | None = None
    _cid: str | None = field(default=None, repr=False)
    _legacy_uuid: str | None = field(default=None, repr=False)

    @property
    def cid(self) -> str:
        """The content identifier."""
        if self._cid is None:
            self._cid = generate_cid({"schema_ref": self.schema_ref, "data_urls": self.data_urls})
        return self._cid

    @property
    def wds_url(self) -> str:
        """The URL of the first shard, the name of `data_urls` in old versions."""
        return self.data_urls[0] if self.data_urls else ""

    @property
    def sample_kind(self) -> str:
        """The name of `schema_ref` in old versions."""
        return self.schema_ref


BasicIndexEntry = LocalDatasetEntry
