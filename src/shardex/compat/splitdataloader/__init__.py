"""The names of splitdataloader, over the core of shardex.

- `data_writer_and_loader`: `write_split_data`, `SplitDataLoader`, and functions for single packets
- `multiproc_queue_itr`: `MpQItr`, a generator that runs in another process
- `exceptions`: the errors of both
"""

from shardex.compat.splitdataloader.data_writer_and_loader import SplitDataLoader, write_split_data
from shardex.compat.splitdataloader.multiproc_queue_itr import MpQItr

__all__ = ["MpQItr", "SplitDataLoader", "write_split_data"]
