"""The names of data_forager, over the core of shardex."""
