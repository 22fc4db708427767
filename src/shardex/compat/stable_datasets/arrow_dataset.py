"""`StableDataset` and `StableDatasetDict` under the module name that early versions had."""

from shardex.compat.stable_datasets.dataset import StableDataset, StableDatasetDict

__all__ = ["StableDataset", "StableDatasetDict"]
