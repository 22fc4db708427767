"""The room workers."""

from shardex.workers.process_pool import Crew

__all__ = [
    "Crew",
]
