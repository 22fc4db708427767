"""Names of atdata that wait for the catalog: they exist, and using them raises `CatalogUnavailableError`."""

from collections.abc import Callable
from typing import Any, NoReturn

from shardex.compat.atdata._exceptions import needs_catalog

FILES = "write_samples(samples, path) and load_dataset(path) with paths and URLs of shards"
"""What to use now instead of names for datasets."""
WRITING = "write_samples(samples, path)"


def waiting(name: str, instead: str) -> Callable[..., NoReturn]:
    """Return a function that raises the error of a name that waits for the catalog."""

    def raises(*_args: Any, **_kwargs: Any) -> NoReturn:
        needs_catalog(name, instead)

    raises.__name__ = raises.__qualname__ = name.rpartition(".")[2]
    raises.__doc__ = "Raise `CatalogUnavailableError`: this waits for the catalog."
    return raises


class Waiting:
    """Base of classes that wait for the catalog; `methods` are names, separated by spaces.

    >>> class Shelf(Waiting, instead="a list", methods="add"): pass
    >>> try: Shelf.add()
    ... except NotImplementedError as error: print(str(error)[:31], str(error)[-16:])
    Shelf.add waits for the catalog Now, use: a list
    """

    def __init_subclass__(cls, instead: str = FILES, methods: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__init__", *methods.split()):
            title = cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"
            setattr(cls, name, waiting(title, instead))
