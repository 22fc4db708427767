"""The room loader."""

from shardex.loader.loader import Loader

__all__ = [
    "Loader",
]
