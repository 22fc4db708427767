"""`SchemaNamespace`: sample classes by name, ``index.types.Digit``."""

from collections.abc import Iterator
from typing import Any


class SchemaNamespace:
    """The classes that `Index.get_schema_type` returned, as attributes."""

    def __init__(self) -> None:
        self._types: dict[str, type[Any]] = {}

    def _register(self, name: str, cls: type[Any]) -> None:
        self._types[name] = cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._types:
            raise AttributeError(f"Schema '{name}' not loaded. Call index.get_schema_type() first.")
        return self._types[name]

    def __dir__(self) -> list[str]:
        return [*self._types, "get"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __repr__(self) -> str:
        return f"SchemaNamespace({', '.join(sorted(self._types)) or 'empty'})"

    def get(self, name: str, default: Any = None) -> Any:
        """Return a class by its name."""
        return self._types.get(name, default)
