"""The kinds of features: those of this package, in the order in which they are asked, and those of other packages.

Another package adds a kind by an entry point of the group ``shardex.features``: its name is the `kind` of a class, to
which it points. The class is imported when data of this kind is opened, or when no kind of this package knows a type or
a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from shardex.errors import PluginError, SchemaError
from shardex.features.feature import Feature, unfit
from shardex.kernel import MISSING
from shardex.plugins import plugins

GROUP = "shardex.features"
KINDS: dict[str, type[Feature]] = {}
"""The classes of this package by their `kind`; the door of this room fills it."""


def register(*classes: type[Feature]) -> None:
    """Add kinds of this package, which are asked after those that it has."""
    KINDS.update({one.kind: one for one in classes})


def kind_named(kind: str) -> type[Feature] | None:
    """Return the class of a kind; None if there is none."""
    if (known := KINDS.get(kind)) is not None:
        return known
    return _of_plugin(kind) if kind in plugins(GROUP, KINDS) else None


def all_kinds(last: str = "") -> Iterator[type[Feature]]:
    """Iterate over the classes of this package, then those of others; `last` is a kind that comes after these."""
    yield from (one for kind, one in KINDS.items() if kind != last)
    yield from map(_of_plugin, plugins(GROUP, KINDS))
    if last:
        yield KINDS[last]


def _of_plugin(kind: str) -> type[Feature]:
    plugin = plugins(GROUP, KINDS)[kind]
    found = plugin.load(type)
    if not issubclass(found, Feature) or found.kind != kind:
        raise PluginError(f"{plugin}: expected a class of features of the kind {kind!r}, got {found!r}")
    return found


@dataclass(frozen=True, slots=True)
class Opaque(Feature):
    """An Arrow type that has no feature of its own (unions, intervals); read as Python values, never written."""

    kind: ClassVar[str] = "opaque"
    type: str

    def __str__(self) -> str:
        return self.type

    @property
    def opaque(self) -> bool:
        """True: there is no feature of its own."""
        return True

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the value."""
        if value is MISSING:
            raise unfit(self, value)
        return value

    def blank(self) -> Any:
        """Return None."""
        return None

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for all types."""
        return True

    def file_extension(self, field: str) -> str:
        """Raise an error: opaque values are not written."""
        raise SchemaError(f"expected a feature that can be written, got {self} - at field {field}")

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the array."""
        return array
