"""`LanceBackend`: Lance files are not read here; the error says what to use."""

from __future__ import annotations

from typing import Any, NoReturn

from shardex.errors import ArgumentError


class LanceBackend:
    """Rows of a Lance dataset, which shardex does not read: making one raises an error that names the ways out."""

    def __init__(self, *, uri: Any = None, **options: Any) -> None:
        refuse_lance("LanceBackend", uri)


def refuse_lance(what: str, uri: Any) -> NoReturn:
    """Raise the error for a cache that was written with ``storage_format="lance"``."""
    raise ArgumentError(
        f"expected a cache of Arrow files (storage_format='arrow'), got {what} for {str(uri)!r}: shardex does not read "
        "Lance. Build the dataset again with storage_format='arrow' and use ArrowBackend; or open the Lance dataset "
        "with the package lance and pass its table: StableDataset(features, info, table=lance.dataset(uri).to_table())"
    )
