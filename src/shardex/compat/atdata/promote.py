"""Publishing local datasets to ATProto, which waits for the catalog."""

from shardex.compat.atdata._waiting import waiting

__all__ = ["promote_to_atmosphere"]

promote_to_atmosphere = waiting("promote_to_atmosphere", "shards at a URL, and load_dataset(url)")
