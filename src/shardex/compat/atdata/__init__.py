"""The names of atdata, over the core of shardex."""
