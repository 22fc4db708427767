"""``atdata inspect``, and how commands of `shardex` are run."""

import importlib
from typing import Any

__all__ = ["inspect_dataset"]


def inspect_dataset(url: str) -> int:
    """Print the format, the size and the fields of a dataset, as ``shardex info`` does."""
    return run_shardex("info", url)


def run_shardex(*arguments: str) -> int:
    """Run a command of `shardex`, and return its exit code."""
    app: Any = importlib.import_module("shardex.cli").app  # imports typer, which only commands need
    code = app(list(arguments), prog_name="shardex", standalone_mode=False)
    return code if isinstance(code, int) else 0
