"""Sample classes made of schema records, so that samples have a type without its source code."""

import json
import keyword
import types
import warnings
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from shardex.compat.atdata._exceptions import SchemaError
from shardex.compat.atdata._samples import PackableSample, packable
from shardex.compat.atdata._type_utils import PRIMITIVE_TYPE_MAP, kind_of

__all__ = [
    "_schema_to_type",
    "clear_type_cache",
    "generate_module",
    "generate_stub",
    "get_cached_types",
    "schema_to_type",
]

_MAX_SUPPORTED_SCHEMA_VERSION = 1
_MOST_CACHED = 256
_PRIMITIVES = {name: kind for kind, name in PRIMITIVE_TYPE_MAP.items()}
_ENCODED = ("sparse", "structured", "arrow_tensor", "safetensors", "dataframe")
"""Kinds of values that are stored as bytes in an encoding of their own."""
_REFERENCES = {
    "ndarray": "ndarray",
    "sparse": "sparse",
    "structured": "structured",
    "safetensors": "safetensors",
    "arrow": "arrow_tensor",
    "tensor": "arrow_tensor",
    "dataframe": "dataframe",
}
"""Words in references of JSON schemas, and the kinds that they mean; the first that is found counts."""
_JSON_TYPES = {"integer": "int", "number": "float", "boolean": "bool"}
_types: dict[str, type[Any]] = {}


def _schema_to_type(schema: Mapping[str, Any], *, use_cache: bool = True) -> type[Any]:
    """Return a sample class with the fields of a record; the same record gives the same class.

    >>> point = {"$type": "local#primitive", "primitive": "float"}
    >>> record = {"name": "Point", "version": "1.0.0", "fields": [{"name": "x", "fieldType": point}]}
    >>> _schema_to_type(record)(x=0.5)
    Point(x=0.5)
    """
    record = _local_record(schema)
    key = json.dumps([record.get(name) for name in ("name", "version", "fields", "$ref")], sort_keys=True, default=str)
    if use_cache and key in _types:
        return _types[key]
    made = _class_of(record)
    if use_cache:
        _types[key] = made
        while len(_types) > _MOST_CACHED:
            del _types[next(iter(_types))]
    return made


def schema_to_type(schema: Mapping[str, Any], *, use_cache: bool = True) -> type[Any]:
    """Return a sample class with the fields of a record (deprecated in atdata, where an index does it)."""
    warnings.warn("schema_to_type() is deprecated, an index returns the type of a schema", DeprecationWarning, 2)
    return _schema_to_type(schema, use_cache=use_cache)


def clear_type_cache() -> None:
    """Forget the classes that were made."""
    _types.clear()


def get_cached_types() -> dict[str, type[Any]]:
    """Return the classes that were made."""
    return dict(_types)


def _class_of(record: Mapping[str, Any]) -> type[Any]:
    name, fields = _checked_name(record), _checked_fields(record)
    annotations = {one["name"]: _field_type_to_python(one["fieldType"], bool(one.get("optional"))) for one in fields}
    kinds = {one["name"]: kind_of(one["fieldType"]) for one in fields}
    arrays = {one["name"]: _array_notes(one["fieldType"]) for one in fields if kinds[one["name"]] == "ndarray"}
    body: dict[str, Any] = {
        "__annotations__": annotations,
        "__module__": __name__,
        "__schema_version__": record.get("version", "1.0.0"),
        "__schema_ref__": record.get("$ref"),
        "__field_formats__": {name: kind for name, kind in kinds.items() if kind in _ENCODED},
        "__ndarray_annotations__": {name: notes for name, notes in arrays.items() if notes},
    }
    optional = [bool(one.get("optional")) for one in fields]
    body |= {one["name"]: None for one in fields if one.get("optional")}
    # A field without a default after one with a default can be given by its name only.
    options = {} if optional == sorted(optional) else {"kw_only": True}
    return packable(types.new_class(name, (PackableSample,), options, lambda namespace: namespace.update(body)))


def _array_notes(field_type: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dtype", "shape", "dimensionNames")
    return {name: field_type[name] for name in names if field_type.get(name) is not None}


def _checked_name(record: Mapping[str, Any]) -> str:
    name = record.get("name")
    if not isinstance(name, str) or not all(map(_is_name, name.split("."))):
        raise SchemaError(f"expected a schema whose name is that of a class, got {name!r}")
    return name.rpartition(".")[2]


def _checked_fields(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = record.get("fields") or []
    if not fields:
        raise SchemaError(f"expected a schema with at least one field, got none - at {record.get('name')}")
    for one in fields:
        name = one.get("name") if isinstance(one, Mapping) else None
        if not isinstance(name, str) or not _is_name(name) or not isinstance(one.get("fieldType"), Mapping):
            raise SchemaError(f"expected fields with a name of Python and a fieldType, got {one!r}")
    return list(fields)


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _field_type_to_python(field_type: Mapping[str, Any], optional: bool = False) -> Any:
    """Return the annotation of a field."""
    found = _python_type(field_type)
    return found | None if optional else found


def _python_type(field_type: Mapping[str, Any]) -> Any:
    kind = kind_of(field_type)
    if kind == "primitive":
        name = field_type.get("primitive", "str")
        if name not in _PRIMITIVES:
            raise SchemaError(f"expected a primitive out of {', '.join(_PRIMITIVES)}, got {name!r}")
        return _PRIMITIVES[name]
    if kind in ("ndarray", "structured"):
        return NDArray
    if kind in _ENCODED:
        return bytes
    if kind == "array":
        items = field_type.get("items")
        return list[_python_type(items)] if items else list  # type: ignore[misc]
    if kind == "ref":
        raise SchemaError(f"expected fields without references to other schemas, got {field_type.get('ref')!r}")
    raise SchemaError(f"expected a field of a kind that schema records have, got {kind!r}")


def _local_record(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record with a list of fields; those of ATProto have a JSON schema instead."""
    version = schema.get("atdataSchemaVersion", schema.get("$atdataSchemaVersion", 1))
    if version > _MAX_SUPPORTED_SCHEMA_VERSION:
        raise SchemaError(f"expected a schema record of version {_MAX_SUPPORTED_SCHEMA_VERSION}, got version {version}")
    inner = schema.get("schema")
    nested = isinstance(inner, Mapping) and "schemaBody" in inner
    if schema.get("schemaType") != "jsonSchema" and not nested:
        return schema
    body = (inner or {}).get("schemaBody", inner or {})
    required = set(body.get("required", ()))
    fields = [
        {"name": name, "fieldType": _json_field_type(one), "optional": name not in required}
        for name, one in body.get("properties", {}).items()
    ]
    return {**{name: schema.get(name) for name in ("name", "version", "description", "$ref")}, "fields": fields}


def _json_field_type(prop: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a field as a local record has it."""
    reference = prop.get("$ref", "").lower()
    for word, kind in _REFERENCES.items():
        if word in reference:
            return {"$type": f"local#{kind}", **(_array_notes(prop) if kind == "ndarray" else {})}
    if prop.get("type") == "array":
        return {"$type": "local#array", "items": _json_field_type(prop.get("items") or {"type": "string"})}
    encoded = prop.get("format") == "byte" or prop.get("contentEncoding") == "base64"
    name = "bytes" if encoded else _JSON_TYPES.get(prop.get("type", ""), "str")
    return {"$type": "local#primitive", "primitive": name}


def generate_module(schema: Mapping[str, Any]) -> str:
    """Return the source code of a module with the class of a record."""
    record = _local_record(schema)
    return _source(record, "@packable\n")


def generate_stub(schema: Mapping[str, Any]) -> str:
    """Return a stub file (.pyi) with the class of a record, for type checkers."""
    record = _local_record(schema)
    parameters = [
        f"{one['name']}: {_text_of(one)}{' = ...' if one.get('optional') else ''}" for one in _checked_fields(record)
    ]
    return _source(record, "") + f"    def __init__(self, {', '.join(parameters)}) -> None: ...\n"


def _source(record: Mapping[str, Any], decorator: str) -> str:
    name = _checked_name(record)
    fields = "".join(
        f"    {one['name']}: {_text_of(one)}{' = None' if one.get('optional') and decorator else ''}\n"
        for one in _checked_fields(record)
    )
    base, used = ("", "packable") if decorator else ("(PackableSample)", "PackableSample")
    return (
        f'"""{name}, version {str(record.get("version", "1.0.0"))!r}, made from its schema."""\n\n'
        "from typing import Any\n\nfrom numpy.typing import NDArray\n\n"
        f'from shardex.compat.atdata import {used}\n\n__all__ = ["{name}"]\n\n\n'
        f"{decorator}class {name}{base}:\n{fields}"
    )


def _text_of(field: Mapping[str, Any]) -> str:
    found = _python_type(field["fieldType"])
    text = "NDArray[Any]" if found is NDArray else found.__name__ if isinstance(found, type) else str(found)
    return f"{text} | None" if field.get("optional") else text
