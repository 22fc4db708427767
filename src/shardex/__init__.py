"""shardex: one dataset API over sharded files."""
