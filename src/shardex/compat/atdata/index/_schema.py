"""Schema records: the fields of a sample class as data, and the addresses of such records."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from shardex.compat.atdata._type_utils import (
    PRIMITIVE_TYPE_MAP,
    extract_ndarray_dtype,
    is_ndarray_type,
    kind_of,
    parse_semver,
    unwrap_optional,
)
from shardex.compat.atdata.index._namespace import SchemaNamespace
from shardex.errors import ArgumentError, SchemaError
from shardex.features import kinds

T = TypeVar("T")

__all__ = ["LocalSchemaRecord", "SchemaField", "SchemaFieldType", "SchemaNamespace", "kind_of"]

_ATDATA_URI_PREFIX = "atdata://local/schema/"
_LEGACY_URI_PREFIX = "local://schemas/"
_ATDATA_LENS_URI_PREFIX = "atdata://local/lens/"


@dataclass
class SchemaFieldType:
    """The type of a field: a primitive, an array, a list of items, or another kind of value."""

    kind: str
    primitive: str | None = None
    dtype: str | None = None
    ref: str | None = None
    items: "SchemaFieldType | None" = None
    shape: list[int | None] | None = None
    dimension_names: list[str] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the type in a record."""
        items = data.get("items")
        return cls(
            kind=kind_of(data) or "primitive",
            primitive=data.get("primitive"),
            dtype=data.get("dtype"),
            ref=data.get("ref"),
            items=cls.from_dict(items) if items else None,
            shape=data.get("shape"),
            dimension_names=data.get("dimensionNames"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the type as a record has it."""
        of_kind: dict[str, dict[str, Any]] = {
            "primitive": {"primitive": self.primitive},
            "ndarray": {"dtype": self.dtype, "shape": self.shape, "dimensionNames": self.dimension_names},
            "structured": {"dtype": self.dtype, "shape": self.shape, "dimensionNames": self.dimension_names},
            "ref": {"ref": self.ref},
            "array": {"items": None if self.items is None else self.items.to_dict()},
        }
        known = {name: value for name, value in of_kind.get(self.kind, {}).items() if value is not None}
        return {"$type": f"local#{self.kind}", **known}


class _Record:
    """A record whose parts can also be read by their names, as in old versions."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record."""
        raise NotImplementedError

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.to_dict()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a part by its name."""
        return self.to_dict().get(key, default)


@dataclass
class SchemaField(_Record):
    """A field: its name, its type, and whether it may be missing."""

    name: str
    field_type: SchemaFieldType
    optional: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the field in a record."""
        return cls(data["name"], SchemaFieldType.from_dict(data["fieldType"]), data.get("optional", False))

    def to_dict(self) -> dict[str, Any]:
        """Return the field as a record has it."""
        return {"name": self.name, "fieldType": self.field_type.to_dict(), "optional": self.optional}


@dataclass
class LocalSchemaRecord(_Record):
    """The schema of a sample class."""

    name: str
    version: str
    fields: list[SchemaField]
    ref: str
    description: str | None = None
    created_at: datetime | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the schema in a record; a time that cannot be read is left out."""
        try:
            created_at = datetime.fromisoformat(data["createdAt"])
        except (KeyError, ValueError, TypeError):
            created_at = None
        fields = [SchemaField.from_dict(one) for one in data.get("fields", [])]
        return cls(data["name"], data["version"], fields, data.get("$ref", ""), data.get("description"), created_at)

    def to_dict(self) -> dict[str, Any]:
        """Return the record."""
        fields = [one.to_dict() for one in self.fields]
        record: dict[str, Any] = {"name": self.name, "version": self.version, "fields": fields, "$ref": self.ref}
        if self.description:
            record["description"] = self.description
        if self.created_at:
            record["createdAt"] = self.created_at.isoformat()
        return record


def _kind_str_for_sample_type(st: type) -> str:
    """Return the name of a sample class with its module."""
    return f"{st.__module__}.{st.__name__}"


def _schema_ref_from_type(sample_type: type, version: str) -> str:
    """Return the address of the record of a sample class."""
    return _make_schema_ref(sample_type.__name__, version)


def _make_schema_ref(name: str, version: str) -> str:
    """Return the address of a record.

    >>> _make_schema_ref("Digit", "1.0.0"), _parse_schema_ref("local://schemas/lab.Digit@1.0.0")
    ('atdata://local/schema/Digit@1.0.0', ('Digit', '1.0.0'))
    """
    return f"{_ATDATA_URI_PREFIX}{name}@{version}"


def _parse_schema_ref(ref: str) -> tuple[str, str]:
    """Return the name and the version in the address of a record."""
    for prefix in (_ATDATA_URI_PREFIX, _LEGACY_URI_PREFIX):
        name, at, version = ref.removeprefix(prefix).rpartition("@")
        if ref.startswith(prefix) and at:
            return name.rpartition(".")[2], version
    raise ArgumentError(f"expected the address of a schema, {_ATDATA_URI_PREFIX}NAME@VERSION, got {ref!r}")


def _make_lens_ref(name: str, version: str) -> str:
    """Return the address of the record of a lens."""
    return f"{_ATDATA_LENS_URI_PREFIX}{name}@{version}"


def _parse_lens_ref(ref: str) -> tuple[str, str]:
    """Return the name and the version in the address of the record of a lens.

    >>> _parse_lens_ref(_make_lens_ref("to_gray", "1.0.0"))
    ('to_gray', '1.0.0')
    """
    name, at, version = ref.removeprefix(_ATDATA_LENS_URI_PREFIX).rpartition("@")
    if not ref.startswith(_ATDATA_LENS_URI_PREFIX) or not at:
        raise ArgumentError(f"Invalid lens reference: {ref}; expected {_ATDATA_LENS_URI_PREFIX}NAME@VERSION")
    return name, version


def _increment_patch(version: str) -> str:
    """Return the next version.

    >>> _increment_patch("1.2.3")
    '1.2.4'
    """
    major, minor, patch = parse_semver(version)
    return f"{major}.{minor}.{patch + 1}"


def _python_type_to_field_type(python_type: Any) -> dict[str, Any]:
    """Return the type of a field as a record has it."""
    if typing.get_origin(python_type) is typing.Annotated:
        return _python_type_to_field_type(typing.get_args(python_type)[0])
    if isinstance(python_type, type) and python_type in PRIMITIVE_TYPE_MAP:
        return {"$type": "local#primitive", "primitive": PRIMITIVE_TYPE_MAP[python_type]}
    if is_ndarray_type(python_type):
        return {"$type": "local#ndarray", "dtype": extract_ndarray_dtype(python_type)}
    if getattr(python_type, "__name__", "") == "DataFrame" and "pandas" in getattr(python_type, "__module__", ""):
        return {"$type": "local#dataframe"}
    if list in (python_type, typing.get_origin(python_type)):
        item = (*typing.get_args(python_type), str)[0]
        return {"$type": "local#array", "items": _python_type_to_field_type(item)}
    raise SchemaError(f"expected a type that schema records have, got {python_type}")


def _build_schema_record(sample_type: type, *, version: str, description: str | None = None) -> dict[str, Any]:
    """Return the record of a sample class; its docstring is the description if none is given."""
    if not dataclasses.is_dataclass(sample_type):
        raise SchemaError(f"expected a class made by @packable, got {sample_type!r}")
    fields = []
    hints = kinds.hints_of(sample_type)
    for one in dataclasses.fields(sample_type):
        inner, optional = unwrap_optional(_without_notes(hints[one.name]))
        try:
            field_type = _python_type_to_field_type(inner)
        except SchemaError as error:
            raise SchemaError(f"{error} - at field {one.name} of {sample_type.__name__}") from None
        fields.append({"name": one.name, "fieldType": field_type, "optional": optional})
    return {
        "name": sample_type.__name__,
        "version": version,
        "fields": fields,
        "description": sample_type.__doc__ if description is None else description,
        "createdAt": datetime.now(UTC).isoformat(),
    }


def _without_notes(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
