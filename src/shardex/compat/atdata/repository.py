"""Repositories of an index, which wait for the catalog."""

from shardex.compat.atdata._waiting import FILES, Waiting, waiting

__all__ = ["Repository", "create_repository"]


class Repository(Waiting, instead=FILES, methods="provider data_store"):
    """A database of an index, with a store of shards."""


create_repository = waiting("create_repository", FILES)
