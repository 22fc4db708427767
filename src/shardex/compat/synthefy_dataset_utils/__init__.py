"""The names of synthefy_dataset_utils, over the core of shardex."""
