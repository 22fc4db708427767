"""The room cli."""

from shardex.cli.commands import app, main

__all__ = ["app", "main"]
