"""Doors that import a name when it is first used: no program needs all modules of all rooms.

The `__init__.py` of a room imports its names for type checkers (`TYPES`), and calls `import_later` with the same names
by module when it runs. `tests/whole/test_lazy_doors.py` checks that both say the same.

``from shardex.media import encode_image`` imports the module of this name at once. ``from shardex import media``
imports the door alone, and ``media.encode_image(...)`` the module when this line runs first: for what is not needed to
open a dataset.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

TYPES: bool = False
"""False, which type checkers do not know, so they read both branches. Of a door behind `TYPE_CHECKING`, mypy would take
the module `write` for the function of this name: where modules import each other, it reads such a branch last.
"""


class LazyDoor(ModuleType):
    """A package with names that are imported from its modules when they are first used."""

    _module_of: dict[str, str]
    _otherwise: Callable[[str], Any]

    def __getattr__(self, name: str) -> Any:
        """Import a name of a module, or a module; it is an attribute from then on."""
        module = self._module_of.get(name)
        if module is None:
            return self._otherwise(name)
        found = importlib.import_module(f"{self.__name__}.{module or name}")
        value = getattr(found, name) if module else found
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a name of the door is never the module of the same name, which Python sets on import."""
        if isinstance(value, ModuleType) and self._module_of.get(name):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self._module_of})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, as other modules are by the picklers that take modules."""
        return importlib.import_module, (self.__name__,)


def import_later(
    door: str, names: Mapping[str, str], otherwise: Callable[[str], Any] | None = None
) -> Mapping[str, str]:
    """Make a package import names when they are first used; return the module of each name.

    `names` has the names of each module of the package, separated by blanks; those of the module "" are modules.
    `otherwise` is called with any other name that is not found: it returns a value or raises an error.
    """

    def is_unknown(name: str) -> Any:
        raise AttributeError(f"module {door!r} has no attribute {name!r}")

    found = {name: module for module, some in names.items() for name in some.split()}
    package = sys.modules[door]
    vars(package).update(_module_of=found, _otherwise=otherwise or is_unknown)
    package.__class__ = LazyDoor
    return found
