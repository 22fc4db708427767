"""The graph of types and lenses between them, and the shortest path from one type to another.

`as_type` uses it. Of a lens (an edge) it uses only source, view and label (module and name, which identify it). Two
shortest paths raise an error that lists both, because neither is preferred.
"""

from __future__ import annotations

from typing import Any

from shardex.errors import LensError


class LensGraph:
    """A graph of types (nodes) and lenses (edges)."""

    def __init__(self) -> None:
        self._edges: dict[Any, Any] = {}

    def add(self, edge: Any, identity: Any = None) -> None:
        """Add a lens; it replaces one with the same label, for example when a notebook cell is run again.

        An `identity` takes the place of the label.
        """
        self._edges[edge.label if identity is None else identity] = edge

    def get(self, identity: Any) -> Any:
        """Return the lens with this identity, `None` if there is none."""
        return self._edges.get(identity)

    def views(self, source: Any) -> list[Any]:
        """Return the lenses that take this type."""
        return [edge for edge in self._edges.values() if edge.source == source]

    def path(self, source: Any, view: Any) -> list[Any] | None:
        """Return the shortest path, `None` if there is none; `LensError` if there are several."""
        # A lens from a class also accepts its subclasses.
        kinds = source.__mro__[:-1] if isinstance(source, type) else (source,)
        paths = next((found for kind in kinds if (found := self._shortest(kind, view))), [])
        if len(paths) > 1:
            named = "; ".join(
                type_name(path[0].source) + "".join(f" -> {type_name(edge.view)} ({edge.label})" for edge in path)
                for path in paths[:5]
            )
            raise LensError(
                f"expected one shortest path from {type_name(source)} to {type_name(view)}, got {len(paths)}: {named}; "
                "choose one with view(lens)"
            )
        return paths[0] if paths else None

    def sources(self, view: Any) -> list[Any]:
        """Return all types from which there is a path to this one, nearest first."""
        found = [view]
        for kind in found:
            found += dict.fromkeys(e.source for e in self._edges.values() if e.view == kind and e.source not in found)
        return found[1:]

    def _shortest(self, source: Any, view: Any) -> list[list[Any]]:
        """Return all paths of the least number of lenses (breadth-first search)."""
        paths: dict[Any, list[list[Any]]] = {source: [[]]}
        seen = {source}
        while paths and view not in paths:
            next_paths: dict[Any, list[list[Any]]] = {}
            for edge in list(self._edges.values()):
                if edge.source in paths and edge.view not in seen:
                    next_paths.setdefault(edge.view, []).extend([*path, edge] for path in paths[edge.source])
            seen |= next_paths.keys()
            paths = next_paths
        return paths.get(view, [])


def type_name(kind: Any) -> str:
    """Return the name of a type for messages.

    >>> type_name(int), type_name(list[int]), type_name(None)
    ('int', 'list[int]', 'anything')
    """
    if kind is None:
        return "anything"
    return kind.__qualname__.rpartition("<locals>.")[2] if type(kind) is type else str(kind)
