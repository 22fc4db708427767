"""How a dataset is described so that it can be opened again: for catalogs, checkpoints and experiment trackers.

In: a dataset that was opened from files. Out: its `Content`, which the room `catalog` stores and compares. `open`
(`open.py`) opens what was described.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from shardex.catalog import Content, Parent, find_catalog, parse, to_reference
from shardex.dataset.views import source_rows
from shardex.errors import ArgumentError, ShardexError
from shardex.formats import ShardRows
from shardex.kernel import digest
from shardex.order import Span
from shardex.rows import AbstractRows
from shardex.sources import is_url

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset
    from shardex.dataset.sample_view import SampleView


def content_of(view: SampleView[Any]) -> Content:
    """Return what a dataset consists of; ArgumentError for views that cannot be opened by files and options alone."""
    rows = source_rows(view.rows)
    fields = view.chosen
    if not isinstance(rows, ShardRows) or view.fingerprint != (known := fingerprint_of(rows)):
        raise ArgumentError(
            f"expected a dataset as it was opened from files, or a select of it, got {view!r:.300}; store it with "
            "sx.write, and use what that returns"
        )
    what, features = rows.opened.what, rows.features
    if not isinstance(what, str) and len(what) == 1:
        raise ArgumentError(f"expected several files, or one path that is not in a list, got {list(what)!r:.300}")
    return Content(
        fingerprint=known,
        urls=[what] if isinstance(what, str) else list(what),
        format=rows.opened.format,
        options=_plain_options(rows.opened.options),
        fields=None if fields is None or list(fields) == list(features) else list(fields),
        schema=(features if fields is None else features.select(fields)).to_json(),
        samples=len(view),
        bytes=bytes_on_disk(rows),
        shards=rows.shard_count,
    )


def fingerprint_of(rows: ShardRows) -> str:
    """Return the fingerprint of a dataset of all of these rows, in order."""
    return digest(rows.fingerprint, Span(len(rows)))


def _plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a format as JSON values."""
    try:
        return {name: one.to_json() if name == "schema" else msgspec.to_builtins(one) for name, one in options.items()}
    except (TypeError, msgspec.MsgspecError) as error:
        raise ArgumentError(f"expected options of plain values, which JSON has, got {dict(options)!r:.300}") from error


def reference_of(view: SampleView[Any]) -> dict[str, Any]:
    """Return the small dict that opens a dataset again, with its name and version if it was opened by these."""
    rows = source_rows(view.rows)
    content = content_of(view)
    assert isinstance(rows, ShardRows)
    trusted = rows.opened.access.get("trusted", True)
    return to_reference(content, *(rows.opened.known_as or ()), trusted=trusted)


def bytes_on_disk(rows: ShardRows) -> int | None:
    """Return the total size of the files; None for remote files, whose sizes would take many requests."""
    names = dict.fromkeys(rows.shard_names())
    return None if any(map(is_url, names)) else sum(map(os.path.getsize, dict.fromkeys(map(_stored_file, names))))


def _stored_file(name: str) -> str:
    """Return the path of a file, or of the archive that a name such as ``a.zip/b.jsonl`` is in."""
    while not os.path.exists(name) and os.path.dirname(name) != name:
        name = os.path.dirname(name)
    return name


class Registration:
    """A name under which a dataset is put into a catalog as soon as it is written; wrong names raise before that."""

    def __init__(self, register: str, source: Any = None) -> None:
        self._register = register
        self._catalog, rest = find_catalog(register)
        name, which = parse(rest)
        if which is not None:
            raise ArgumentError(f"expected a name without a version, such as '@{name}', got {register!r}")
        self._name, self._parents = name, _parents(source)

    def put(self, ds: Dataset[Any]) -> None:
        """Register what was written; its parent is the dataset of a catalog that it was made from."""
        try:
            with self._catalog:
                record = self._catalog.put(self._name, ds, parents=self._parents)
        except ShardexError as error:
            error.add_note(f"the dataset is written, but not registered as {self._register}: use sx.Catalog.put")
            raise
        mark(ds, self._register[1:], record.version)


def _parents(source: Any) -> list[Parent] | None:
    """Return the dataset of a catalog that samples come from, which may be any view of it."""
    rows = source_rows(getattr(source, "rows", source)) if isinstance(source, AbstractRows) else None
    if not isinstance(rows, ShardRows) or rows.opened.known_as is None:
        return None
    name, version = rows.opened.known_as
    return [Parent(fingerprint=fingerprint_of(rows), name=name, version=version)]


def mark(ds: Dataset[Any], name: str, version: int | None) -> None:
    """Let a dataset know its name and version in a catalog."""
    rows = source_rows(ds.rows)
    assert isinstance(rows, ShardRows)
    rows.opened = replace(rows.opened, known_as=(name, version))
