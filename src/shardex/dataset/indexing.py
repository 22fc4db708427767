"""`index`: open shards, and have what is asked for made beside them: values for SQL, checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardex.dataset.dataset import Dataset, open
from shardex.files import What

__all__ = ["index"]


def index(
    what: What,
    attributes: Sequence[str] = (),
    *,
    format: str | None = None,
    schema: Any = None,
    checksums: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Open shards, and keep beside them what later opens of the same files find by themselves.

    `attributes` are keys of JSON Lines, or of any JSON in the samples of tars: their values are taken out of the
    samples once, now, so that `where` and `sql` need not decode them; files that change are decoded again.
    With `checksums` every block of the files is checked from now on when it is first touched; a file that changes is
    an error until they are made anew.

    >>> import os, tempfile; path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> with __builtins__["open"](path, "w") as file:
    ...     _ = file.write('{"lang": "de", "text": "..."}\\n{"lang": "en", "text": "..."}\\n')
    >>> ds = index(path, attributes=["lang"])
    >>> len(ds.where("lang = 'de'"))
    1
    """
    asked = {"attributes": attributes or None, "checksums": checksums or None, "progress": progress}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return open(what, format=format, schema=schema, **given, **options)
