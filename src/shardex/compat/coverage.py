"""Lists the names of the five systems that `shardex.compat` has, with what serves each of them.

Every system's package has a module ``_covered`` with one dictionary, `COVERED`: the dotted name below the package, and
in a few words which part of shardex serves it.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Final, NamedTuple

from shardex.errors import ArgumentError, nearest

SYSTEMS: Final = ("synthefy_dataset_utils", "atdata", "data_forager", "splitdataloader", "stable_datasets")


class Covered(NamedTuple):
    """One name of a system and what serves it."""

    system: str
    name: str
    served_by: str


def covered(system: str) -> list[Covered]:
    """The names of one system, in the order of its documentation.

    >>> covered("splitdataloader")[0].name
    'write_split_data'
    """
    if system not in SYSTEMS:
        hint = nearest(system.replace("-", "_"), SYSTEMS)
        raise ArgumentError(f"expected one of the systems {', '.join(SYSTEMS)}, got {system!r}{hint}")
    module = importlib.import_module(f"shardex.compat.{system}._covered")
    return [Covered(system, name, served_by) for name, served_by in module.COVERED.items()]


def resolve(system: str, name: str) -> object:
    """The object that a dotted name means: modules are imported, then attributes are read.

    An attribute that only instances have is its annotation in the class.

    >>> resolve("splitdataloader", "SplitDataLoader.iterate_binwise").__name__
    'iterate_binwise'
    >>> resolve("splitdataloader", "SplitDataLoader.iterate")
    Traceback (most recent call last):
    AttributeError: shardex.compat.splitdataloader has no SplitDataLoader.iterate
    """
    root = path = f"shardex.compat.{system}"
    found: object = importlib.import_module(root)
    parts = name.split(".")
    for number, part in enumerate(parts, 1):
        path = f"{path}.{part}"
        module = _module(path) if hasattr(found, "__path__") else None  # of a package
        if module is not None and (number < len(parts) or not hasattr(found, part)):
            found = module  # also where the package has a function of the same name, as atdata.lens
        elif hasattr(found, part):
            found = getattr(found, part)
        elif isinstance(found, type) and part in (annotated := _instance_attributes(found)):
            found = annotated[part]
        else:
            raise AttributeError(f"{root} has no {name}")
    return found


def _module(path: str) -> ModuleType | None:
    """Import a module; None if there is none of this name."""
    return importlib.import_module(path) if importlib.util.find_spec(path) else None


def _instance_attributes(of: type) -> dict[str, object]:
    """Attributes that instances have and the class has not: it annotates them."""
    return {name: kind for one in of.__mro__ for name, kind in vars(one).get("__annotations__", {}).items()}


def lines(systems: Iterable[str] = SYSTEMS) -> Iterator[str]:
    """The coverage as text: a headline for each system, then a line for each name."""
    for number, (system, names) in enumerate([(system, covered(system)) for system in systems]):
        if number:
            yield ""
        yield from _lines(system, names)


def _lines(system: str, names: Sequence[Covered]) -> Iterator[str]:
    yield f"{system}: {len(names)} names"
    width = max((len(one.name) for one in names), default=0)
    for one in names:
        yield f"  {one.name:{width}}  {one.served_by}"
