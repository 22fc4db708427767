"""The room workers."""

from shardex.workers.process_pool import ProcessPool

__all__ = [
    "ProcessPool",
]
