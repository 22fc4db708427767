"""Lenses of atdata: views of samples of one type as another, and the network that `Dataset.as_type` looks in."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeVar, cast

from shardex import samples as core
from shardex.compat.atdata._exceptions import LensNotFoundError
from shardex.errors import ArgumentError, LensError
from shardex.samples import LensGraph

S = TypeVar("S")
V = TypeVar("V")
W = TypeVar("W")
LensGetter = Callable[[S], V]
LensPutter = Callable[[V, S], S]
DatasetType = type[Any]
LensSignature = tuple[DatasetType, DatasetType]


class Lens(core.Lens[S, V]):
    """A view of samples of one type as another; with a putter, a changed view is put back into its sample.

    Without a putter, `put` returns the sample if the view is what `get` returns, and raises if it was changed.

    >>> double = Lens(lambda x: 2 * x, lambda view, x: view // 2)
    >>> double(3), double.put(8, 3), (double | double).get(1), Lens(lambda x: -x).put(-3, 3)
    (6, 4, 4, 3)
    """

    def __init__(
        self,
        get: Callable[[S], V],
        put: Callable[[V, S], S] | None = None,
        *,
        source: Any = None,
        view: Any = None,
    ) -> None:
        """The types of samples and views are those of the annotations of `get`, unless they are given."""
        if source is None or view is None:
            source, view = _types_of(get, sys._getframe(1).f_locals)
        super().__init__(get, source=source, view=view)
        self._put = put

    @property
    def source_type(self) -> Any:
        """The type of the samples it takes."""
        return self.source

    @property
    def view_type(self) -> Any:
        """The type of the views it returns."""
        return self.view

    def get(self, s: S) -> V:
        """Return the view of a sample."""
        return super().get(s)

    def put(self, v: V, s: S | None = None) -> S:
        """Return the sample with a changed view put into it."""
        if self._put is not None:
            return self._put(v, s)
        sample = cast("S", s)
        if not _same(self.get(sample), v):
            raise LensError(
                f"expected an unchanged view, because {self.label} has no putter, got a changed one: give it one with "
                f"@{self.name}.putter"
            )
        return sample

    def __or__(self, other: core.Lens[V, W]) -> "Lens[S, W]":
        """Return the lens that applies this one, then the other."""
        return cast("Lens[S, W]", super().__or__(other))

    def __matmul__(self, other: core.Lens[W, S]) -> "Lens[W, V]":
        """Return the lens that applies the other one, then this one."""
        return cast("Lens[W, V]", super().__matmul__(other))

    def putter(self, put: Callable[[V, S], S]) -> Callable[[V, S], S]:  # type: ignore[override]
        """Set the putter, a function of a view and a sample, and return it: a decorator."""
        self._put = put
        return put


def lens(f: Callable[[S], V]) -> Lens[S, V]:
    """Make a lens of a function with annotated types, and register it.

    A later lens between the same types replaces it.
    """
    source, view = _types_of(f, sys._getframe(1).f_locals)
    if source is None or view is None:
        raise ArgumentError(f"expected a getter with annotated types of parameter and result, got {f!r}")
    made: Lens[S, V] = Lens(f, source=source, view=view)
    LensNetwork().register(made)
    return made


def _types_of(get: Callable[..., Any], names: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the annotated types of the only parameter and of the result, `None` where there is none."""
    try:
        signature = inspect.signature(get, locals=names, eval_str=True)
    except NameError as error:
        raise ArgumentError(f"expected types that are defined where the lens is made: {error} - at {get!r}") from None
    if len(signature.parameters) != 1:
        found = f"got {len(signature.parameters)}: {', '.join(signature.parameters)}"
        raise ArgumentError(f"expected a getter with exactly one parameter, the sample, {found} - at {get!r}")
    hints = next(iter(signature.parameters.values())).annotation, signature.return_annotation
    source, view = (None if one is inspect.Parameter.empty else one for one in hints)
    return source, view


def _same(a: Any, b: Any) -> bool:
    same = a == b
    return bool(same) if isinstance(same, bool) else bool(getattr(same, "all", lambda: same)())


@dataclasses.dataclass(frozen=True)
class FieldsOf:
    """A getter that makes samples of a class from the fields of the same names of other samples."""

    view: Any

    def __call__(self, sample: Any) -> Any:
        """Return the fields of a sample as an instance of the class; one that is missing must have a default."""
        names = [one.name for one in dataclasses.fields(self.view) if one.init]
        if isinstance(sample, Mapping):
            return self.view(**{name: sample[name] for name in names if name in sample})
        return self.view(**{name: getattr(sample, name) for name in names if hasattr(sample, name)})


class LensNetwork:
    """All lenses of this process; there is one network, which every call returns."""

    _instance: "LensNetwork | None" = None
    _graph: LensGraph

    def __new__(cls) -> "LensNetwork":
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._graph = LensGraph()
        return cls._instance

    def register(self, _lens: Lens[Any, Any]) -> None:
        """Add a lens; it replaces one between the same types."""
        self._graph.add(_lens, (_lens.source, _lens.view))

    def direct(self, source: Any, view: Any) -> Lens[Any, Any] | None:
        """Return the registered lens from one type to another, `None` if there is none."""
        found: Lens[Any, Any] | None = self._graph.get((source, view))
        return found

    def transform(self, source: Any, view: Any) -> Lens[Any, Any]:
        """Return the lens from one type to another: a registered one, or the shortest chain of them."""
        if (found := self.direct(source, view)) is not None:
            return found
        targets = [(one.view, one.name) for one in self._graph.views(source)]
        try:
            path = self._graph.path(source, view)
        except LensError as error:  # two chains of the same length
            raise LensNotFoundError(source, view, targets) from error
        if not path:
            raise LensNotFoundError(source, view, targets)
        return cast("Lens[Any, Any]", reduce(lambda a, b: a | b, path))
