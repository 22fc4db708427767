"""The names of splitdataloader, over the core of shardex."""
