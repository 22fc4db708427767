"""``atdata preview``."""

from shardex.compat.atdata.cli.inspect import run_shardex

__all__ = ["preview_dataset"]


def preview_dataset(url: str, limit: int = 5) -> int:
    """Print the first samples of a dataset, as ``shardex head`` does."""
    return run_shardex("head", url, "-n", str(limit))
