"""Packets in numbered bins, the format of splitdataloader."""

from shardex.compat.formats.bins.format import BinRows, BinWriter

__all__ = [
    "BinRows",
    "BinWriter",
]
