"""The names of stable_datasets, over the core of shardex."""

from shardex.compat.stable_datasets.dataset import StableDataset, StableDatasetDict

__all__ = ["StableDataset", "StableDatasetDict"]
