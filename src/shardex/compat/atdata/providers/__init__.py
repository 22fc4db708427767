"""Databases of an index, which wait for the catalog."""

from shardex.compat.atdata._waiting import FILES, Waiting, waiting

__all__ = ["IndexProvider", "create_provider"]


class IndexProvider(Waiting, instead=FILES):
    """A database that keeps the entries of an index."""


create_provider = waiting("create_provider", FILES)
