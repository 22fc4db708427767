"""Places of every kind that a dataset can be written to, for tests that run on all of them."""

from __future__ import annotations

import uuid
from pathlib import Path

KINDS = ("local", "memory")


def new_address(kind: str, folder: str | Path) -> str:
    """Return a path or URL at which nothing exists."""
    return f"{folder}/d" if kind == "local" else f"memory://{uuid.uuid4().hex}/d"
