"""Lists the names of the five systems that `shardex.compat` has, with what serves each of them.

Every system's package has a module ``_covered`` with one dictionary, `COVERED`: the dotted name below the package, and
in a few words which part of shardex serves it. Names that raise until there is a catalog begin with `WAITS`.
"""

import importlib
from collections.abc import Iterator
from typing import Final, NamedTuple

SYSTEMS: Final = ("synthefy_dataset_utils", "atdata", "data_forager", "splitdataloader", "stable_datasets")
WAITS: Final = "waits for the catalog"


class Covered(NamedTuple):
    """One name of a system and what serves it."""

    system: str
    name: str
    served_by: str

    @property
    def waits(self) -> bool:
        """Whether the name exists and raises an error that says what it waits for."""
        return self.served_by.startswith(WAITS)


def covered(system: str) -> list[Covered]:
    """The names of one system, in the order of its documentation."""
    module = importlib.import_module(f"shardex.compat.{system}._covered")
    return [Covered(system, name, served_by) for name, served_by in module.COVERED.items()]


def resolve(system: str, name: str) -> object:
    """The object that a dotted name means: modules are imported, then attributes are read.

    >>> resolve("splitdataloader", "SplitDataLoader.iterate_binwise").__name__
    'iterate_binwise'
    """
    found: object = importlib.import_module(f"shardex.compat.{system}")
    path = f"shardex.compat.{system}"
    for part in name.split("."):
        path = f"{path}.{part}"
        if isinstance(found, type) and part in _instance_attributes(found):
            return part
        found = getattr(found, part) if hasattr(found, part) else _in_module(path)
    return found


def _in_module(path: str) -> object:
    """Return a module, or what the module of this path has: a function of the package may have the module's name."""
    parent, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(parent)
    except ModuleNotFoundError:
        return importlib.import_module(path)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def _instance_attributes(of: type) -> set[str]:
    """Attributes that instances have and the class has not: it annotates them."""
    return {name for one in of.__mro__ for name in vars(one).get("__annotations__", ())}


def lines() -> Iterator[str]:
    """The coverage as text: a headline for each system, then a line for each name."""
    for system in SYSTEMS:
        names = covered(system)
        waiting = sum(one.waits for one in names)
        yield f"{system}: {len(names) - waiting} names work, {waiting} wait for the catalog"
        width = max((len(one.name) for one in names), default=0)
        for one in names:
            yield f"  {one.name:{width}}  {one.served_by}"
