"""The names of stable_datasets, over the core of shardex."""
