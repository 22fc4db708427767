"""Classes that derive from one of torch if torch is installed: its DataLoader asks for these base classes.

Importing torch takes seconds, so that happens when the first object is made.
"""

from __future__ import annotations

from functools import cache
from types import new_class
from typing import Any, ClassVar, Self


class TorchDerived:
    """Base class: objects of a subclass also derive from ``torch.utils.data.<torch_base>``, if torch is installed."""

    torch_base: ClassVar[str]
    plain_class: ClassVar[type[Any] | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an object of a class that torch accepts."""
        kind: Any = cls
        made: Self = object.__new__(_with_torch_base(kind))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self.plain_class or type(self), dict(vars(self)))


@cache
def _with_torch_base(kind: type[Any]) -> type[Any]:
    try:
        from torch.utils import data
    except ImportError:
        return kind
    base: type[Any] = getattr(data, kind.torch_base)
    if issubclass(kind, base):
        return kind
    members = {"__module__": kind.__module__, "plain_class": kind}
    return new_class(kind.__name__, (kind, base), exec_body=lambda own: own.update(members))


def _made_again(kind: Any, state: dict[str, Any]) -> Any:
    made = kind.__new__(kind)
    vars(made).update(state)
    return made
