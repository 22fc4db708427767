"""What is done to every sample when it is read: lenses, functions and conditions, in the order they were added."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from shardex.compat.atdata._exceptions import LensNotFoundError
from shardex.compat.atdata._samples import DictSample
from shardex.compat.atdata.lens import FieldsOf, LensNetwork

DROPPED: Final = object()
"""The result for a sample that a condition leaves out."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A function of a sample: it returns another one, or whether to keep this one."""

    kind: Literal["view", "map", "filter"]
    function: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Steps:
    """The class that samples were packed from, and the steps that follow."""

    stored_type: Any
    steps: tuple[Step, ...] = ()

    def and_then(self, kind: Literal["view", "map", "filter"], function: Callable[[Any], Any]) -> "Steps":
        """Return these steps and another one."""
        return Steps(self.stored_type, (*self.steps, Step(kind, function)))

    @property
    def filters(self) -> bool:
        """True if samples may be left out."""
        return any(step.kind == "filter" for step in self.steps)

    @property
    def maps(self) -> bool:
        """True if the type of the samples is not known: a function changed them after the last view."""
        last = next((step.kind for step in reversed(self.steps) if step.kind != "filter"), "view")
        return last == "map"

    def typed(self) -> "Steps":
        """Return the steps that make a sample of the dataset's type, without conditions and later functions."""
        last = max((k for k, step in enumerate(self.steps) if step.kind == "view"), default=-1)
        return Steps(self.stored_type, tuple(step for step in self.steps[: last + 1] if step.kind != "filter"))

    def __call__(self, packed: bytes) -> Any:
        """Return the sample of packed bytes after all steps, or `DROPPED`."""
        value = self.stored_type.from_bytes(packed)
        for step in self.steps:
            if step.kind != "filter":
                value = step.function(value)
            elif not step.function(value):
                return DROPPED
        return value


def view_of(source: Any, view: Any) -> Callable[[Any], Any]:
    """Return the function from one sample type to another.

    It is a registered lens; if there is none, one that takes the fields of the same names; else a chain of lenses.
    """
    if (direct := LensNetwork().direct(source, view)) is not None:
        return direct
    if source is not DictSample and not _missing(source, view):
        return FieldsOf(view)
    try:
        return LensNetwork().transform(source, view)
    except LensNotFoundError:
        if isinstance(source, type) and issubclass(source, Mapping) and dataclasses.is_dataclass(view):
            return FieldsOf(view)
        raise


def _missing(source: Any, view: Any) -> set[str] | bool:
    """Return the fields of a class, except those with a default, that another class has not."""
    if not (dataclasses.is_dataclass(source) and dataclasses.is_dataclass(view)):
        return True
    has = {one.name for one in dataclasses.fields(source)}
    return {one.name for one in dataclasses.fields(view) if _is_required(one)} - has


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class ViewOfAny:
    """Makes samples of a class from results of functions, whose type is known only when they are there."""

    view: Any

    def __call__(self, sample: Any) -> Any:
        """Return the view of a sample of any type."""
        return sample if isinstance(sample, self.view) else view_of(type(sample), self.view)(sample)
