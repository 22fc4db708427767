"""The names of synthefy_dataset_utils, over the core of shardex.

Folders and tables on the disk are those of the original, in both directions.

- `sharded_dataset_writer`: adds and changes samples; over `formats.ColumnsSession`
- `sharded_dataset_reader`: reads samples by id; over `formats.ColumnsLookup`
- `convert_to_sharded`: windows of time series in Parquet files as datasets; over `Dataset.sliding` and `create`
"""

from shardex.compat.synthefy_dataset_utils.sharded_dataset_reader import ShardedDatasetReader
from shardex.compat.synthefy_dataset_utils.sharded_dataset_writer import ShardedDatasetWriter

__all__ = ["ShardedDatasetReader", "ShardedDatasetWriter"]
