"""The names of synthefy_dataset_utils that are here, and what serves them."""

_SESSION = "formats.ColumnsSession: adds samples to a columns_tar folder in place"
_LOOKUP = "formats.ColumnsLookup: samples of a columns_tar folder by id"
_TABLE = "the SQLite table of the folder"

COVERED: dict[str, str] = {
    "ShardedDatasetReader": _LOOKUP,
    "ShardedDatasetWriter": _SESSION,
    "sharded_dataset_reader.ShardedDatasetReader": _LOOKUP,
    "sharded_dataset_writer.ShardedDatasetWriter": _SESSION,
    "convert_to_sharded": "Dataset.sliding, create(format='columns_tar')",
    "ShardedDatasetWriter.COMMIT_BATCH_SIZE": "samples of a transaction of ColumnsSession, at most",
    "ShardedDatasetWriter.add_field": "ColumnsSession.add_fields",
    "ShardedDatasetWriter.add_fields": "ColumnsSession.add_fields",
    "ShardedDatasetWriter.add_sample": "ColumnsSession.put",
    "ShardedDatasetWriter.close": "ColumnsSession.close",
    "ShardedDatasetWriter.close_tars": "ColumnsSession.close_tars",
    "ShardedDatasetWriter.conn": "the connection of the session; commits sync the arrays first",
    "ShardedDatasetWriter.db_path": "the path of the table",
    "ShardedDatasetWriter.open_shard": "ColumnsSession.new_shard",
    "ShardedDatasetWriter.register_samples": "ColumnsSession.register",
    "ShardedDatasetWriter.root": "the folder",
    "ShardedDatasetWriter.samples_per_shard": "ColumnsSession.samples_per_shard",
    "ShardedDatasetWriter.update_sample": "ColumnsSession.update",
    "ShardedDatasetWriter.write_shard": "ColumnsSession.new_shard",
    "ShardedDatasetWriter._ShardHandle.add_sample": "NewShard.add",
    "ShardedDatasetWriter._ShardHandle.close": "NewShard.publish",
    "ShardedDatasetReader.close": "ColumnsLookup.close",
    "ShardedDatasetReader.get_many": "ColumnsLookup.samples, the codec of .npy",
    "ShardedDatasetReader.get_sample": "ColumnsLookup.samples, the codec of .npy",
    "ShardedDatasetReader.list_fields": _TABLE,
    "ShardedDatasetReader.query_ids": _TABLE,
    "ShardedDatasetReader.shard_counts": _TABLE,
    "ShardedDatasetReader.__len__": _TABLE,
    "convert_to_sharded.convert_parquet_to_sharded": "the functions below",
    "convert_to_sharded.create_samples_from_dataframe": "Dataset.sliding",
    "convert_to_sharded.split_samples_unified": "three rules of its own: by a column, by time, by ratios",
    "convert_to_sharded.split_samples_by_group": "by ratios, inside of each group",
    "convert_to_sharded.write_sharded_dataset": "create(format='columns_tar', mode='overwrite')",
    "convert_to_sharded.main": "python -m shardex.compat.synthefy_dataset_utils.convert_to_sharded",
}
