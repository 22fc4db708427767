"""Which fields of a sample class are in manifests: those marked with `ManifestField`, and those of small values."""

import dataclasses
import typing
from typing import Any, Literal

from shardex.compat.atdata._type_utils import PRIMITIVE_TYPE_MAP, is_ndarray_type, unwrap_optional
from shardex.errors import ArgumentError, SchemaError
from shardex.features import kinds

AggregateKind = Literal["categorical", "numeric", "set"]
_KINDS = typing.get_args(AggregateKind)
_KIND_OF: dict[str, AggregateKind] = {
    "str": "categorical",
    "bool": "categorical",
    "int": "numeric",
    "float": "numeric",
}


@dataclasses.dataclass(frozen=True)
class ManifestField:
    """Mark in ``Annotated``: how the values of a field are summarised, or that the field is not in the manifest.

    >>> ManifestField("numeric")
    ManifestField(aggregate='numeric', exclude=False)
    """

    aggregate: AggregateKind
    exclude: bool = False

    def __post_init__(self) -> None:
        if self.aggregate not in _KINDS:
            raise ArgumentError(f"expected an aggregate out of {', '.join(_KINDS)}, got {self.aggregate!r}")


def resolve_manifest_fields(sample_type: type) -> dict[str, ManifestField]:
    """Return the fields of a sample class that are in its manifests.

    Without a mark, text and booleans are categorical, numbers numeric and lists sets; arrays, bytes and other values
    are left out.

    >>> @dataclasses.dataclass
    ... class Sample:
    ...     label: str
    ...     raw: bytes
    ...     score: typing.Annotated[float | None, ManifestField("numeric")]
    >>> {name: one.aggregate for name, one in resolve_manifest_fields(Sample).items()}
    {'label': 'categorical', 'score': 'numeric'}
    """
    if not (isinstance(sample_type, type) and dataclasses.is_dataclass(sample_type)):
        raise SchemaError(f"expected a class made by @packable, got {sample_type!r}")
    fields = {one.name for one in dataclasses.fields(sample_type)}
    found = {name: _field_of(hint) for name, hint in kinds.hints_of(sample_type).items() if name in fields}
    return {name: one for name, one in found.items() if one is not None and not one.exclude}


def _field_of(hint: Any) -> ManifestField | None:
    """Return the mark in an annotation, or the one that its type suggests."""
    if typing.get_origin(hint) is typing.Annotated:
        kind, *notes = typing.get_args(hint)
        marks = [one for one in notes if isinstance(one, ManifestField)]
        return marks[0] if marks else _field_of(kind)
    try:
        inner, _ = unwrap_optional(hint)
    except SchemaError:  # a union of several types
        return None
    if is_ndarray_type(inner):
        return None
    if typing.get_origin(inner) is list:
        return ManifestField("set")
    kind = _KIND_OF.get(PRIMITIVE_TYPE_MAP.get(inner, "")) if isinstance(inner, type) else None
    return None if kind is None else ManifestField(kind)
