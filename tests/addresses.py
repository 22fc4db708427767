"""Places of every kind that a dataset can be written to, for tests that want the same of all of them."""

from __future__ import annotations

import uuid
from pathlib import Path

KINDS = ("local", "memory")


def new_address(kind: str, folder: str | Path) -> str:
    """A path or an address at which there is nothing yet."""
    return f"{folder}/d" if kind == "local" else f"memory://{uuid.uuid4().hex}/d"
