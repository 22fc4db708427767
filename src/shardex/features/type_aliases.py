"""`without_aliases`: annotations with their type aliases replaced by what these stand for.

An alias is made by ``type X = ...`` (Python 3.12) or `TypeAliasType`; numpy's `NDArray` is one from numpy 2.5 on. The
modules that read annotations know only what an alias stands for.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from shardex.errors import SchemaError


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
