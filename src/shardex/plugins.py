"""What other packages add to shardex: the entry points of installed packages, read once per process.

A group of entry points, such as ``shardex.formats``, maps names to objects of packages. Only the metadata of packages
is read; an object is imported when it is needed (`Plugin.load`). Which groups there are, and what their objects are, is
left to the modules that use them.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from shardex.errors import PluginError

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """One entry point: an object that an installed package adds under a name."""

    group: str
    name: str
    package: str
    reference: str
    """Where the object is: ``package.module:NAME``."""

    def load(self, kind: type[T], reference: str | None = None) -> T:
        """Import the object, or another one of the package; raises PluginError if that fails or it is no `kind`."""
        reference = reference or self.reference
        try:
            found = load(reference)
        except Exception as error:
            raise PluginError(f"{self}: expected {reference}, its import failed: {error!r}") from error
        if not isinstance(found, kind):
            raise PluginError(f"{self}: expected {reference} to be a {kind.__name__}, got {type(found).__name__}")
        return found

    def call(self, kind: type[T], *arguments: Any) -> T:
        """Call the object, a function; raises PluginError if it returns no `kind`."""
        function = self.load(object)
        if not callable(function):
            raise PluginError(f"{self}: expected {self.reference} to be a function, got {type(function).__name__}")
        if not isinstance(made := function(*arguments), kind):
            raise PluginError(f"{self}: expected a {kind.__name__} from {self.reference}, got {type(made).__name__}")
        return made

    def __str__(self) -> str:
        return f"{self.name}, which the package {self.package} adds to {self.group}"


def load(reference: str) -> Any:
    """Return the object at ``package.module:NAME``.

    >>> load("shardex.kernel:cores").__name__
    'cores'
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def plugins(group: str, taken: Container[str] = ()) -> Mapping[str, Plugin]:
    """Return the entry points of a group by name, in alphabetical order.

    `taken` are names of shardex itself; raises PluginError if a package adds one of them, or if two add the same name.
    """
    found: dict[str, Plugin] = {}
    for one in _entry_points(group):
        if one.name in taken:
            raise PluginError(f"{one}: expected another name, as shardex has one of this name; remove the package")
        if (other := found.setdefault(one.name, one)) != one:
            raise PluginError(f"{one}: expected another name, as {other.package} adds the same; remove a package")
    return found


def forget() -> None:
    """Read the entry points again when they are needed: a package was installed while this process runs."""
    _entry_points.cache_clear()


@cache
def _entry_points(group: str) -> tuple[Plugin, ...]:
    # Its import takes 10 ms, which opening a native dataset would notice.
    from importlib.metadata import entry_points

    found = {
        Plugin(group, one.name, one.dist.name if one.dist else "?", one.value) for one in entry_points(group=group)
    }
    return tuple(sorted(found, key=lambda one: (one.name, one.package)))
