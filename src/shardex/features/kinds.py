"""The kinds of features: those of this package, in the order in which they are asked, and those of other packages.

Another package adds a kind by an entry point of the group ``shardex.features``: its name is the `kind` of a class, to
which it points. The class is imported when data of this kind is opened, or when no kind of this package knows a type or
a value. Types and annotations that stand for a feature (`feature_of`) are asked of the kinds in their order.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex.errors import PluginError, SchemaError
from shardex.features.dtypes import SCALARS
from shardex.features.feature import Feature, unfit
from shardex.kernel import MISSING
from shardex.plugins import plugins

GROUP = "shardex.features"
KINDS: dict[str, type[Feature]] = {}
"""The classes of this package by their `kind`; the door of this room fills it."""


def register(*classes: type[Feature]) -> None:
    """Add kinds of this package, which are asked after those that it has."""
    KINDS.update({one.kind: one for one in classes})


def kind_named(kind: str) -> type[Feature] | None:
    """Return the class of a kind; None if there is none."""
    if (known := KINDS.get(kind)) is not None:
        return known
    return _of_plugin(kind) if kind in plugins(GROUP, KINDS) else None


def all_kinds(last: str = "") -> Iterator[type[Feature]]:
    """Iterate over the classes of this package, then those of others; `last` is a kind that comes after these."""
    yield from (one for kind, one in KINDS.items() if kind != last)
    yield from map(_of_plugin, plugins(GROUP, KINDS))
    if last:
        yield KINDS[last]


def _of_plugin(kind: str) -> type[Feature]:
    plugin = plugins(GROUP, KINDS)[kind]
    found = plugin.load(type)
    if not issubclass(found, Feature) or found.kind != kind:
        raise PluginError(f"{plugin}: expected a class of features of the kind {kind!r}, got {found!r}")
    return found


@dataclass(frozen=True, slots=True)
class Opaque(Feature):
    """An Arrow type that has no feature of its own (unions, intervals); read as Python values, never written."""

    kind: ClassVar[str] = "opaque"
    type: str

    def __str__(self) -> str:
        return self.type

    @property
    def opaque(self) -> bool:
        """True: there is no feature of its own."""
        return True

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the value."""
        if value is MISSING:
            raise unfit(self, value)
        return value

    def blank(self) -> Any:
        """Return None."""
        return None

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for all types."""
        return True

    def file_extension(self, field: str) -> str:
        """Raise an error: opaque values are not written."""
        raise SchemaError(f"expected a feature that can be written, got {self} - at field {field}")

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the array."""
        return array


def feature_of(hint: Any) -> Feature:
    """Return the feature for a feature, dtype, type or annotation.

    >>> str(feature_of("float32")), str(feature_of(list[int])), str(feature_of(np.typing.NDArray[np.int8]))
    ('float32', 'list of int64', 'int8[...]')
    """
    if isinstance(hint, Feature):
        return hint
    hint = str(hint) if isinstance(hint, str | np.dtype) else without_aliases(hint)
    if isinstance(hint, type) and issubclass(hint, Feature):
        return _of_feature_class(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_constants(member.value for member in hint)
    if typing.get_origin(hint) is typing.Literal:
        return _of_constants(typing.get_args(hint))
    if not hasattr(type(hint), "__array__"):  # arrays compare with the hints of kinds in odd ways
        for kind in all_kinds("struct"):  # which takes any class with annotations
            if (found := kind.of_hint(hint)) is not None:
                return found
    if typing.get_origin(hint) is typing.Annotated:
        return feature_of_annotated(hint)
    if isinstance(hint, str):
        raise SchemaError(
            f"expected one of the dtypes {', '.join(SCALARS)}, got {hint!r}; for others pass a type such as str or "
            "datetime.datetime, or a feature such as Timestamp"
        )
    raise SchemaError(f"expected a feature, a dtype or a type such as int, str or list[int], got {hint!r}")


def _of_feature_class(kind: type[Feature]) -> Feature:
    try:
        return kind()
    except TypeError:  # also a SchemaError
        raise SchemaError(f"expected a feature such as {kind.__name__}(...), got the class {kind.__name__}") from None


def _of_constants(values: Iterable[Any]) -> Feature:
    """Return the feature of values of one type, or of one type and None; that of any value for several types."""
    kinds = {type(value) for value in values}
    rest = kinds - {types.NoneType}
    if len(rest) != 1:
        return feature_of(Any)
    (kind,) = rest
    return feature_of(kind if len(kinds) == 1 else kind | None)


def feature_of_annotated(hint: Any) -> Feature:
    """Return the feature among the notes of `Annotated`, else that of the type."""
    kind, *notes = typing.get_args(hint)
    return next((note for note in notes if isinstance(note, Feature)), None) or feature_of(kind)


def hints_of(schema: type) -> dict[str, Any]:
    """Return the fields of a class with their types; annotations that are strings or type aliases are resolved.

    >>> class Point:
    ...     x: "int"
    >>> hints_of(Point)
    {'x': <class 'int'>}
    """
    return {name: without_aliases(hint) for name, hint in _hints_of(schema).items()}


def _hints_of(schema: type) -> dict[str, Any]:
    if isinstance(fields := getattr(schema, "model_fields", None), Mapping):  # of a pydantic model, which resolved them
        return {name: _of_pydantic(one.annotation, one.metadata) for name, one in fields.items()}
    try:
        hints = typing.get_type_hints(schema, include_extras=True)
    except NameError as error:
        raise SchemaError(f"expected annotations that the module of {schema.__name__} defines, got: {error}") from None
    if dataclasses.is_dataclass(schema):
        return {field.name: hints[field.name] for field in dataclasses.fields(schema) if field.init}
    if typing.is_typeddict(schema):
        return {name: _of_typed_dict(hint, name in vars(schema)["__required_keys__"]) for name, hint in hints.items()}
    return {name: hint for name, hint in hints.items() if ClassVar not in (hint, typing.get_origin(hint))}


def _of_pydantic(hint: Any, notes: SequenceOf[Any]) -> Any:
    """Return the type of a field of a pydantic model, which takes ``Annotated`` apart."""
    return typing.Annotated[(hint, *notes)] if notes else hint


def _of_typed_dict(hint: Any, required: bool) -> Any:
    """Return the type of a key of a typed dict; one that may be missing is optional."""
    while typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
    return hint if required else typing.Optional[hint]  # noqa: UP045


def without_aliases(hint: Any, within: frozenset[Any] = frozenset()) -> Any:
    """Return an annotation without type aliases; inside of itself (`within`), an alias stands for any value.

    >>> from typing_extensions import TypeAliasType
    >>> Vector = TypeAliasType("Vector", list[float])
    >>> without_aliases(dict[str, Vector])
    dict[str, list[float]]
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:  # its arguments are values
        return hint
    replaced = tuple(without_aliases(one, within) for one in arguments)
    for alias in (hint, origin):
        if type(alias).__name__ == "TypeAliasType":  # of typing, or of typing_extensions
            return Any if alias in within else without_aliases(_value_of(alias, replaced), within | {alias})
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    if origin is typing.Annotated:
        return typing.Annotated[(replaced[0], *hint.__metadata__)]
    # `|` has no subscripts before Python 3.14; a special form such as `Required` takes one argument, not a tuple.
    form = typing.Union if origin is types.UnionType else origin
    return form[replaced if len(replaced) != 1 else replaced[0]]


def _value_of(alias: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what an alias stands for, with these arguments in place of its parameters."""
    try:
        value = alias.__value__  # evaluated when it is first used
        # The parameters of a subscripted tuple are in the order of their first use: here that of the alias.
        whole: Any = tuple.__class_getitem__((*alias.__parameters__, value))
        return whole[arguments].__args__[-1] if arguments else value
    except (NameError, TypeError) as error:
        raise SchemaError(f"expected a type alias that can be evaluated, got: {error} - at alias {alias}") from None
