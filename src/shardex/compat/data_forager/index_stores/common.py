"""`IndexStoreInterface`: what an indexer needs from a store."""

from typing import Protocol

from shardex.compat.data_forager.sample_index import SampleIndex


class IndexStoreInterface(Protocol):
    """Stores an index: `init_store`, then `add_sample` for each sample, then `close`."""

    def init_store(self) -> None:
        """Begin to write an index."""

    def add_sample(self, file_location: str, byte_offset: int, num_bytes: int) -> None:
        """Add the place of a sample."""

    def close(self) -> None:
        """End writing, after all samples were added."""

    def load(self) -> SampleIndex:
        """Read the index."""
        ...

    def exists(self) -> bool:
        """Return whether there is an index."""
        ...

    def clear(self) -> None:
        """Remove the index."""
