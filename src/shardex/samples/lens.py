"""Lenses: typed two-way views. The getter makes a view of a sample; the putter writes a changed view back into it.

`@lens` makes a lens of a function and adds it to the graph that `as_type` searches; ``a | b`` applies a, then b. A
getter and a putter that belong together obey three laws: putting back an unchanged view changes nothing (GetPut), a
get after a put returns that view (PutGet), and a second put overwrites the first (PutPut). `check` tests them.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Generic, TypeVar, cast

from shardex.errors import LawError, LensError
from shardex.features import describe, kinds
from shardex.samples.class_record import is_sample_class
from shardex.samples.field_subset import FieldSubset
from shardex.samples.lens_graph import LensGraph, type_name
from shardex.samples.sample import DictSample, fields_of, same, short

S = TypeVar("S")
V = TypeVar("V")
W = TypeVar("W")
T = TypeVar("T")


class Lens(Generic[S, V]):
    """A view of samples of one type as another, with a getter and an optional putter.

    >>> from shardex.samples.packable import packable
    >>> @packable
    ... class Line:
    ...     start: float
    ...     end: float
    >>> @packable
    ... class Span:
    ...     length: float
    >>> length = Lens(lambda line: Span(line.end - line.start),
    ...               lambda span, line: Line(line.start, line.start + span.length), source=Line, view=Span)
    >>> length(Line(2, 5)), length.put(Span(1), Line(2, 5))
    (Span(length=3), Line(start=2, end=3))
    >>> length.check(Line(2.0, 5.0), Span(4.0))
    """

    def __init__(
        self,
        get: Callable[[S], V],
        put: Callable[..., S] | None = None,
        *,
        source: type[S] | None = None,
        view: type[V] | None = None,
    ) -> None:
        """Types that are not given are taken from the annotations of the getter, if it has any."""
        frame = sys._getframe(1)
        hints = _types_of(get, frame) if source is None or view is None else (_one_parameter(get), None)
        self.source: Any = hints[0] if source is None else source
        """The type of the samples it takes; `None` if unknown."""
        self.view: Any = hints[1] if view is None else view
        """The type of the views it returns; `None` if unknown."""
        self._get = get
        self._put = put
        self._builds = put is not None and _may_lack_source(put, _hints(put, frame))
        self.__name__ = getattr(get, "__qualname__", type(get).__name__)
        self.__module__ = getattr(get, "__module__", __name__)
        self.__doc__ = get.__doc__ if isinstance(get, types.FunctionType) else type(self).__doc__

    @classmethod
    def identity(cls, kind: type[T]) -> Lens[T, T]:
        """Return the lens whose view is the sample itself.

        >>> Lens.identity(DictSample).put(DictSample(x=2), DictSample(x=1))
        DictSample(x=2)
        """
        return cast("type[Lens[T, T]]", cls)(_get_whole, _put_whole, source=kind, view=kind)

    @classmethod
    def between(cls, source: type[T], view: type[W]) -> Lens[T, W]:
        """Return the lens that `as_type` uses: the shortest path of registered lenses, else a subset of the fields."""
        if source is view:
            return cast("Lens[T, W]", cls.identity(source))
        if path := LENSES.path(source, view):
            return cast("Lens[T, W]", reduce(lambda a, b: a | b, path))
        subset = FieldSubset(source, view)
        return Lens(subset.get, subset.put, source=source, view=view)

    # -- get and put --------------------------------------------------------------------------------------------

    def get(self, sample: S) -> V:
        """Return the view of a sample."""
        return self._get(sample)

    __call__ = get

    def put(self, view: V, source: S | None = None) -> S:
        """Return the sample with the view put into it; without a source a new sample, if the putter can make one."""
        if self._put is None:
            raise LensError(f"expected a lens with a putter, {self.label} has none: give it one, @{self.name}.putter")
        if source is None and not self.builds:
            raise LensError(
                f"expected a sample to put the view into, got none, and the putter of {self.label} needs one (if it "
                "does not, annotate its second parameter with None too)"
            )
        return self._put(view, source)

    def putter(self, put: Callable[[V, S], S]) -> Lens[S, V]:
        """Set the putter: a decorator for a function of a view and a sample that returns a sample."""
        if len(_parameters(put)) != 2:
            found = ", ".join(map(str, _parameters(put)))
            raise LensError(f"expected a putter of a view and a sample, got one of ({found}) - at {self.label}")
        hints = _hints(put, sys._getframe(1))
        view, sample = (_sample_type(hints.get(one.name)) for one in _parameters(put))
        if None not in (view, sample) and view != sample and (view, sample) == (self.source, self.view):
            raise LensError(
                f"expected a putter of a view and a sample, in this order, got one of ({type_name(view)}, "
                f"{type_name(sample)}) - at {self.label}"
            )
        self._put, self._builds = put, _may_lack_source(put, hints)
        return self

    @property
    def two_way(self) -> bool:
        """True if it has a putter."""
        return self._put is not None and bool(getattr(_owner(self._put), "two_way", True))

    @property
    def builds(self) -> bool:
        """True if its putter can make a new sample from a view alone."""
        return self._builds or bool(getattr(_owner(self._put), "builds", False))

    # -- composition ------------------------------------------------------------------------------------------

    def __or__(self, other: Lens[V, W]) -> Lens[S, W]:
        """Return the lens that applies this one, then the other."""
        if not isinstance(other, Lens):
            return NotImplemented
        if None not in (self.view, other.source) and not _is_subtype(self.view, other.source):
            raise LensError(
                f"expected a lens from {type_name(self.view)}, the view of {self.label}, got {other.label} from "
                f"{type_name(other.source)}"
            )
        both = _Composed(self, other)
        kind = cast("type[Lens[S, W]]", type(self))
        composed = kind(both.get, both.put, source=self.source, view=other.view)
        composed.__name__ = f"{self.name} | {other.name}"
        return composed

    def __matmul__(self, other: Lens[W, S]) -> Lens[W, V]:
        """Return the lens that applies the other one, then this one."""
        return other | self if isinstance(other, Lens) else NotImplemented

    # -- the laws ---------------------------------------------------------------------------------------------

    def check(self, sample: S, view: V | None = None) -> None:
        """Test the laws on a sample and, for PutGet and PutPut, another view; `LawError` names the broken law."""
        got = self.get(copy.deepcopy(sample))
        other = got if view is None else view

        def put(what: V, into: S) -> S:
            return self.put(copy.deepcopy(what), copy.deepcopy(into))  # a putter may change its arguments

        self._law("GetPut: a view that is put back unchanged changes nothing", sample, put(got, sample))
        self._law("PutGet: get after put returns the view", other, self.get(put(other, sample)))
        self._law("PutPut: of two puts the last one counts", put(other, sample), put(other, put(got, sample)))
        self._law("PutPut: of two puts the last one counts", put(got, sample), put(got, put(other, sample)))

    def _law(self, law: str, expected: Any, found: Any) -> None:
        if not same(_plain(expected), _plain(found)):
            raise LawError(f"{law}; expected {short(expected)}, got {short(found)} - at {self.label}")

    # -- description --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the getter."""
        return self.__name__.rpartition("<locals>.")[2]

    @property
    def label(self) -> str:
        """Module and name of the getter."""
        return f"{self.__module__}.{self.__name__}"

    def __repr__(self) -> str:
        ways = "" if self.two_way else ", one way"
        return f"Lens({self.name}: {type_name(self.source)} -> {type_name(self.view)}{ways})"

    def __reduce__(self) -> tuple[Any, ...]:
        by_name = self.__module__ != "__main__" or not _by_cloudpickle()
        if by_name and _lookup(self.__module__, self.__name__) is self:
            return _lookup, (self.__module__, self.__name__)
        return _empty_lens, (type(self),), vars(self)


LENSES = LensGraph()
"""All lenses made by `@lens`, which `as_type` searches."""


def lens(get: Callable[[S], V], /) -> Lens[S, V]:
    """Make a lens from a getter with annotated types, and register it for `as_type`.

    >>> from shardex.samples.packable import packable
    >>> @packable
    ... class Celsius:
    ...     degrees: float
    >>> @packable
    ... class Kelvin:
    ...     kelvins: float
    >>> @lens
    ... def absolute(c: Celsius) -> Kelvin:
    ...     return Kelvin(c.degrees + 273)
    >>> @absolute.putter
    ... def _(k: Kelvin, c: Celsius) -> Celsius:
    ...     return Celsius(k.kelvins - 273)
    >>> absolute(Celsius(20)), absolute.put(Kelvin(300), Celsius(20))
    (Kelvin(kelvins=293), Celsius(degrees=27))
    """
    types = _types_of(get, sys._getframe(1))
    if None in types:
        raise LensError(f"expected a getter with annotated parameter and return type, got {describe(get)}")
    registered = Lens(get, source=types[0], view=types[1])
    LENSES.add(registered)
    return registered


# -- signatures of functions ------------------------------------------------------------------------------------


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise LensError(f"expected a function, got {describe(function)}") from None


def _one_parameter(get: Callable[..., Any]) -> str:
    if len(parameters := _parameters(get)) != 1:
        found = ", ".join(map(str, parameters))
        raise LensError(f"expected a getter of one parameter, the sample, got ({found}) - at {describe(get)}")
    return parameters[0].name


def _types_of(get: Callable[..., Any], frame: types.FrameType) -> tuple[Any, Any]:
    """Return the annotated types of parameter and result, `None` if not annotated."""
    name = _one_parameter(get)
    hints = _hints(get, frame)
    return _sample_type(hints.get(name)), _sample_type(hints.get("return"))


def _may_lack_source(put: Callable[..., Any], hints: Mapping[str, Any]) -> bool:
    """Return whether the second parameter of a putter may be None, by its annotation or default."""
    source = [*_parameters(put), *[None] * 2][1]
    if source is None:
        return False
    hint = hints.get(source.name)
    return source.default is None or types.NoneType in (hint, *typing.get_args(hint))


def _hints(function: Any, frame: types.FrameType) -> dict[str, Any]:
    """Return the annotations of a function; strings are resolved with the names of the frame that made the lens."""
    if not isinstance(function, types.FunctionType):
        return {}
    try:
        hints = typing.get_type_hints(function, localns={**frame.f_locals})
    except NameError as error:
        where = f"at {function.__module__}.{function.__qualname__}"
        raise LensError(f"expected types that are defined where the lens is made: {error} - {where}") from None
    return {name: kinds.without_aliases(hint) for name, hint in hints.items()}


def _sample_type(hint: Any) -> Any:
    """Return the type of samples of an annotation; all mappings are untyped samples."""
    origin = typing.get_origin(hint) or hint
    return DictSample if isinstance(origin, type) and issubclass(origin, Mapping) else hint


def _is_subtype(view: Any, source: Any) -> bool:
    return view == source or (isinstance(view, type) and isinstance(source, type) and issubclass(view, source))


def _owner(method: Any) -> Any:
    return getattr(method, "__self__", None)


def _plain(value: Any) -> Any:
    """Return the fields of a sample, so that types that compare by identity can be compared."""
    return fields_of(value) if isinstance(value, Mapping) or is_sample_class(type(value)) else value


# -- functions of lenses, at module level because these can be pickled ------------------------------------------


def _get_whole(sample: Any) -> Any:
    return sample


def _put_whole(view: Any, source: Any = None) -> Any:
    return view


def _lookup(module: str, name: str) -> Any:
    """Return the object of this name in a module, `None` if there is none."""
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _by_cloudpickle() -> bool:
    """Return whether cloudpickle is the caller: it copies what ``__main__`` defines, which other machines do not have.

    Processes that multiprocessing starts have it, and pickle needs the name there: that of a getter is its lens.
    """
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        if "cloudpickle" in caller.f_globals.get("__name__", ""):
            return True
        frame = caller
    return False


def _empty_lens(kind: type[Lens[Any, Any]] = Lens) -> Lens[Any, Any]:
    """Return a lens without attributes; pickle sets them: `__init__` would resolve annotations, which may fail."""
    return kind.__new__(kind)


class _Composed:
    """Two lenses applied one after the other."""

    def __init__(self, first: Lens[Any, Any], second: Lens[Any, Any]) -> None:
        self.first = first
        self.second = second

    @property
    def two_way(self) -> bool:
        return self.first.two_way and self.second.two_way

    @property
    def builds(self) -> bool:
        return self.first.builds and self.second.builds

    def get(self, sample: Any) -> Any:
        return self.second.get(self.first.get(sample))

    def put(self, view: Any, source: Any) -> Any:
        if source is None:
            return self.first.put(self.second.put(view))
        return self.first.put(self.second.put(view, self.first.get(source)), source)
