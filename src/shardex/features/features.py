"""`Features`: the fields of a dataset, an immutable mapping of names to features that is stored as JSON."""

from __future__ import annotations

import hashlib
import reprlib
import types
import warnings
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import msgspec

from shardex.errors import FormatError, SchemaError, unknown_field
from shardex.features.feature import Feature
from shardex.features.kinds import feature_of, hints_of, kind_named

_MAX_DEPTH = 64
"""Levels of nested features, as many as Arrow files can have."""


def _is_unicode(name: str) -> bool:
    """Return False for a name with half of a surrogate pair, which no file format can store."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Features(Mapping[str, Feature]):
    """The fields of a dataset in order: an immutable, hashable mapping of names to features.

    >>> from shardex.features import Array
    >>> f = Features.of({"x": Array("float32", (3,)), "label": int, "note": str | None})
    >>> print(f)
    x float32[3], label int64, note text or none
    >>> Features.from_json(f.to_json()) == f
    True
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Feature]) -> None:
        for name in fields:
            if not isinstance(name, str) or not name or not (name.isascii() or _is_unicode(name)):
                raise SchemaError(f"expected a field name, got {name!r}")
        self._fields = dict(fields)

    @classmethod
    def of(cls, schema: Any) -> Features:
        """Return features of a mapping of names to features, dtypes or types, or of a class with annotations."""
        if isinstance(schema, Features):
            return schema
        if isinstance(schema, Mapping):
            return cls({name: feature_of(feature) for name, feature in schema.items()})
        if isinstance(schema, type) and (hints := hints_of(schema)):
            try:
                return cls({name: feature_of(hint) for name, hint in hints.items()})
            except RecursionError:
                raise SchemaError(f"expected a class that does not contain itself, got {schema.__name__}") from None
        raise SchemaError(f"expected a mapping of field names to features, or a class with annotations, got {schema!r}")

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._fields[name]
        except KeyError:
            raise unknown_field(name, self._fields) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(tuple(self._fields))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and list(self.items()) == list(other.items())

    def __repr__(self) -> str:
        return f"Features({self})"

    def __str__(self) -> str:
        return ", ".join(f"{name} {feature}" for name, feature in self.items())

    def select(self, names: SequenceOf[str]) -> Features:
        """Return these fields in this order."""
        return Features({name: self[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that is stored with the data."""
        return {name: feature.to_json() for name, feature in self.items()}

    @classmethod
    def from_json(cls, plain: Any, depth: int = 0) -> Features:
        """Return the features of a JSON form made by `to_json`; `depth` is the number of features around it."""
        if not isinstance(plain, dict) or "" in plain:
            raise FormatError(f"expected a schema as a JSON object of named fields, got {reprlib.repr(plain)}")
        return cls({name: _from_json(one, depth) for name, one in plain.items()})

    @property
    def fingerprint(self) -> str:
        """16 hex digits that are equal if and only if names, order and features are equal."""
        return hashlib.sha256(msgspec.json.encode(self.to_json())).hexdigest()[:16]


def _from_json(plain: Any, depth: int) -> Feature:
    if depth > _MAX_DEPTH:
        raise FormatError(f"expected features of at most {_MAX_DEPTH} levels, got more")
    try:
        rest = dict(plain)
        name, stored = rest.pop("kind"), rest.pop("stored", None)
        if (kind := kind_named(name)) is None:
            return _of_missing_kind(name, stored, depth)
        for part in ("feature", "key", "value"):
            if isinstance(rest.get(part), dict):  # kinds of other packages may have options of these names
                rest[part] = _from_json(rest[part], depth + 1)
        if isinstance(rest.get("fields"), dict):
            rest["fields"] = Features.from_json(rest["fields"], depth + 1)
        return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in rest.items()})
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"expected the JSON form of a feature, got {reprlib.repr(plain)}: {error}") from None


def _of_missing_kind(kind: Any, stored: Any, depth: int) -> Feature:
    """Return the feature as which values of a kind are stored whose package is not installed."""
    if stored is None:
        raise ValueError(f"no kind {kind!r} is known")
    found = _from_json(stored, depth + 1)
    warnings.warn(
        f"expected a package that has features of the kind {kind!r}, got none: such fields are read as {found}, as "
        f"they are stored (install the package, which has an entry point {kind!r} of shardex.features)",
        stacklevel=2,
    )
    return found


def told_apart(one: Features, other: Features) -> tuple[str, str]:
    """Return texts of features that differ, for messages: those of names of classes say which names.

    >>> told_apart(Features.of({"n": int}), Features.of({"n": float}))
    ('n int64', 'n float64')
    """
    texts = str(one), str(other)
    if texts[0] != texts[1]:
        return texts
    name = next((name for name in one if one[name] != other[name]), "")
    return f"{name} {one.get(name)!r:.300}", f"{name} {other.get(name)!r:.300}"


def contains(feature: Feature, kind: type[Feature] | types.UnionType) -> bool:
    """Return whether a feature is of a kind, or has a part of this kind.

    >>> from shardex.features import Date, Sequence
    >>> contains(Sequence(Date()), Date), contains(Sequence(str), Date)
    (True, False)
    """
    return any(isinstance(part, kind) for _, part in feature.nested(""))
