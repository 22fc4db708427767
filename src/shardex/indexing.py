"""`index`: open shards and have values taken out of their samples, so that SQL finds them without decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import shardex.index  # noqa: F401  # before the function takes its name in the package, or it would take it back later
from shardex.dataset import Dataset, open
from shardex.shards import What

__all__ = ["index"]


def index(
    what: What,
    attributes: Sequence[str] = (),
    *,
    format: str | None = None,
    schema: Any = None,
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Open JSON Lines or tars, and have the values of some keys taken out of the samples for `where` and `sql`.

    The keys are those of the lines, or of any JSON in the samples of tars. They are decoded once, now, and kept beside
    the index; later opens of the same files find them by themselves, and decode files that changed again.

    >>> import os, tempfile; path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> with __builtins__["open"](path, "w") as file:
    ...     _ = file.write('{"lang": "de", "text": "..."}\\n{"lang": "en", "text": "..."}\\n')
    >>> ds = index(path, attributes=["lang"])
    >>> len(ds.where("lang = 'de'"))
    1
    """
    return open(what, format=format, schema=schema, attributes=attributes, progress=progress, **options)
