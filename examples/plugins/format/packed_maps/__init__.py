"""The format "packed_maps": MessagePack maps, each after its length. Recognising files imports only this module."""

from shardex.formats import Signature

MAGIC = b"MAPS1\n"
SIGNATURE = Signature(format="packed_maps.shards:FORMAT", extensions=(".maps",), magic=(MAGIC,))
