"""The errors of this package: those of shardex, which are also of the types that splitdataloader raises."""

import struct

from shardex.errors import ArgumentError, FormatError, RowError, SchemaError, ShardexError


class PacketIndexError(RowError, ValueError):
    """A position outside of the data. It ends a loop over positions, as an IndexError does."""


class PacketError(FormatError, OSError, struct.error):
    """A packet that is cut off or damaged."""


class MissingBinError(PacketError, FileNotFoundError):
    """A packet whose bin does not exist."""


class PacketSizeError(SchemaError, struct.error):
    """A packet that is too long, or does not fit into its bin: positions and lengths have 32 bits."""


class SplitsError(ArgumentError, ZeroDivisionError):
    """A number of splits below one."""


class NotStartedError(ShardexError, AttributeError):
    """A value of an `MpQItr` whose process was not started by `iter`."""
