"""Local and remote locations that a dataset can be written to, for tests that run on both."""

from __future__ import annotations

import uuid
from pathlib import Path

KINDS = ("local", "memory")


def new_location(kind: str, folder: str | Path) -> str:
    """Return a path or URL at which nothing exists."""
    return f"{folder}/d" if kind == "local" else f"memory://{uuid.uuid4().hex}/d"
