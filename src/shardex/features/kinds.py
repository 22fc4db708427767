"""The kinds of features: those of this package, in the order in which they are asked, and those of other packages.

`KINDS` is filled by the door of this room, so that features that contain others can ask all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardex.features.feature import Feature

KINDS: dict[str, type[Feature]] = {}
"""The classes by their `kind`; the first one that knows a type or value decides."""


def register(*classes: type[Feature]) -> None:
    """Add kinds of features, after those that are known."""
    KINDS.update({one.kind: one for one in classes})


def kind_named(kind: str) -> type[Feature] | None:
    """Return the class of a kind; None if there is none."""
    return KINDS.get(kind)


def all_kinds() -> Iterator[type[Feature]]:
    """Iterate over the classes."""
    return iter(KINDS.values())
