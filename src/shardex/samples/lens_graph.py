"""A network of types, and of lenses that lead from one to another: which way there is the shortest.

It knows of a lens only what it leads between and what it is called. `as_type` asks it; two ways of the same length are
an error that names both, because nothing says which one was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from shardex.errors import LensError

__all__ = ["Edge", "Network"]


class Edge(Protocol):
    """What leads from one type to another."""

    @property
    def source(self) -> Any:
        """The type it begins at."""

    @property
    def view(self) -> Any:
        """The type it ends at."""

    @property
    def label(self) -> str:
        """What tells it apart from others: module and name."""


E = TypeVar("E", bound=Edge)


class Network(Generic[E]):
    """Types and what leads between them."""

    def __init__(self) -> None:
        self._edges: dict[str, E] = {}

    def add(self, edge: E) -> None:
        """Take in one more; what had the same label, as when a cell of a notebook is run again, is replaced."""
        self._edges[edge.label] = edge

    def __len__(self) -> int:
        return len(self._edges)

    def discard(self, edge: E) -> None:
        """Take one out, if it is in."""
        if self._edges.get(edge.label) is edge:
            del self._edges[edge.label]

    def path(self, source: Any, view: Any) -> list[E] | None:
        """The shortest way; none if there is none, an error if there are several."""
        # What leads away from a class does so from those that are derived from it.
        kinds = source.__mro__[:-1] if isinstance(source, type) else (source,)
        ways = next((found for kind in kinds if (found := self._shortest(kind, view))), [])
        if len(ways) > 1:
            named = "; ".join(described(way) for way in ways[:5])
            raise LensError(
                f"expected one shortest way from {name_of(source)} to {name_of(view)}, got {len(ways)}: {named}; "
                "choose one with view(lens)"
            )
        return ways[0] if ways else None

    def sources(self, view: Any) -> list[Any]:
        """All types from which there is a way to this one, the nearest first."""
        found = [view]
        for kind in found:
            found += dict.fromkeys(e.source for e in self._edges.values() if e.view == kind and e.source not in found)
        return found[1:]

    def _shortest(self, source: Any, view: Any) -> list[list[E]]:
        """All ways of the least number of steps: one type after another, those as far away at once."""
        ways: dict[Any, list[list[E]]] = {source: [[]]}
        seen = {source}
        while ways and view not in ways:
            further: dict[Any, list[list[E]]] = {}
            for edge in list(self._edges.values()):
                if edge.source in ways and edge.view not in seen:
                    further.setdefault(edge.view, []).extend([*way, edge] for way in ways[edge.source])
            seen |= further.keys()
            ways = further
        return ways.get(view, [])


def described(way: Sequence[Edge]) -> str:
    """A way as messages name it."""
    steps = "".join(f" -> {name_of(edge.view)} ({edge.label})" for edge in way)
    return f"{name_of(way[0].source)}{steps}" if way else "stay"


def name_of(kind: Any) -> str:
    """The name of a type.

    >>> name_of(int), name_of(list[int]), name_of(None)
    ('int', 'list[int]', 'anything')
    """
    if kind is None:
        return "anything"
    return kind.__qualname__.rpartition("<locals>.")[2] if type(kind) is type else str(kind)
