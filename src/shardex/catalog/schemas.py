"""What a stored schema is good for: comparing two of them, a class for typed samples, and a stub for editors.

In: the `Features` of records. Out: changes with the part of a semantic version that they raise, classes and text.
Nothing of a record is executed: a class is made of names that were checked and of features.
"""

from __future__ import annotations

import copyreg
import datetime
import decimal
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from shardex.errors import SchemaError
from shardex.features import ClassLabel, Feature, Features, Optional, Value
from shardex.samples import PackableSample

_TYPES: Mapping[str, tuple[str, type]] = {
    "array": ("np.ndarray", np.ndarray),
    "audio": ("np.ndarray", np.ndarray),
    "bytes": ("bytes", bytes),
    "class": ("int", int),
    "date": ("datetime.date", datetime.date),
    "decimal": ("decimal.Decimal", decimal.Decimal),
    "duration": ("datetime.timedelta", datetime.timedelta),
    "image": ("np.ndarray", np.ndarray),
    "map": ("dict", dict),
    "sequence": ("list", list),
    "struct": ("dict", dict),
    "text": ("str", str),
    "time": ("datetime.time", datetime.time),
    "timestamp": ("datetime.datetime", datetime.datetime),
    "video": ("np.ndarray", np.ndarray),
}
"""Python type of each kind of feature, and how it is written; numbers are in `_type_of`."""
LEVELS = ("major", "minor", "patch")
"""Parts of a semantic version."""
_SCALARS = {"b": ("bool", bool), "i": ("int", int), "u": ("int", int), "f": ("float", float), "c": ("complex", complex)}


@dataclass(frozen=True)
class SchemaChange:
    """How a schema differs from an older one."""

    level: str
    """Part of a semantic version to raise: "major" if readers break, "minor", "patch", or "" if nothing changed."""
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.level}: {'; '.join(self.changes)}" if self.changes else "the same fields"


def compare_schemas(old: Features, new: Features) -> SchemaChange:
    """Return what changed, and whether it breaks readers.

    "major": a field that was removed or has another type (also one whose values may now be missing), or a new field
    that is not optional, which samples of the old schema lack. "minor": a new optional field, new classes after the old
    ones. "patch": another order of the fields.

    >>> old, new = Features.of({"x": "float32"}), Features.of({"x": "float32", "note": str | None})
    >>> print(compare_schemas(old, new)); print(compare_schemas(new, old))
    minor: note was added (text or none)
    major: note was removed
    """
    major = [f"{name} was removed" for name in old if name not in new]
    minor = list[str]()
    for name, feature in new.items():
        if name not in old:
            (minor if isinstance(feature, Optional) else major).append(f"{name} was added ({feature})")
        elif feature != old[name]:
            added = _new_classes(old[name], feature)
            text = f"{name} has new classes {', '.join(added)}" if added else f"{name} is {feature}, was {old[name]}"
            (minor if added else major).append(text)
    patch = [] if major or minor or list(old) == list(new) else ["the order of the fields"]
    level = "major" if major else "minor" if minor else "patch" if patch else ""
    return SchemaChange(level, (*major, *minor, *patch))


def _new_classes(old: Feature, new: Feature) -> tuple[str, ...]:
    """Return the classes that were added after all old ones; none if anything else differs."""
    if isinstance(old, Optional) and isinstance(new, Optional):
        old, new = old.feature, new.feature
    if not isinstance(old, ClassLabel) or not isinstance(new, ClassLabel):
        return ()
    return new.names[len(old.names) :] if new.names[: len(old.names)] == old.names else ()


def class_of(features: Features, name: str) -> type[Any]:
    """Return a class for samples with these fields, which `open` and `as_type` take.

    >>> Reading = class_of(Features.of({"x": "float32", "note": str | None}), "Reading")
    >>> Reading(x=1.5, note=None), Features.of(Reading)
    (Reading(x=1.5, note=None), Features(x float32, note text or none))
    """
    _check_identifiers([name, *features], name)
    return _made(features, name)


class _StoredClass(type):
    """Type of the classes of stored schemas: no module has these, so they are pickled as their schema."""


@lru_cache(256)
def _made(features: Features, name: str) -> type[Any]:
    """Return the class, the same one for the same schema: samples of two lenses, or processes, have one type."""
    hints = {field: Annotated[_type_of(feature)[1], feature] for field, feature in features.items()}
    return _StoredClass(name, (PackableSample,), {"__annotations__": hints, "__module__": __name__})


def _reduced(kind: type[Any]) -> str | tuple[Any, ...]:
    is_made = kind.__module__ == __name__  # else it is a subclass that a user has written
    return (class_of, (Features.of(kind), kind.__name__)) if is_made else kind.__qualname__


copyreg.pickle(_StoredClass, _reduced)


def stub_of(features: Features, name: str) -> str:
    """Return a class with these fields as Python text, for editors and type checkers.

    >>> print(stub_of(Features.of({"x": "float32", "note": str | None}), "Reading"), end="")
    import shardex as sx
    <BLANKLINE>
    <BLANKLINE>
    class Reading(sx.PackableSample):
        x: float  # float32
        note: str | None  # text or none
    """
    _check_identifiers([name, *features], name)
    texts = {field: _type_of(feature)[0] for field, feature in features.items()}
    used = {module for text in texts.values() for module in ("datetime", "decimal") if text.startswith(module)}
    head = [f"import {module}" for module in sorted(used)]
    head += ["from typing import Any"] * any("Any" in text for text in texts.values())
    head += ["import numpy as np"] * any(text.startswith("np.") for text in texts.values())
    lines = [f"    {field}: {text}  # {_one_line(features[field])}" for field, text in texts.items()] or ["    ..."]
    return "\n".join([*head, "import shardex as sx", "", "", f"class {name}(sx.PackableSample):", *lines, ""])


def _type_of(feature: Feature) -> tuple[str, Any]:
    """Return the Python type of a feature, and how it is written."""
    if isinstance(feature, Optional):
        text, kind = _type_of(feature.feature)
        return (text, kind) if kind is Any else (f"{text} | None", kind | None)
    if isinstance(feature, Value):
        return _SCALARS.get(np.dtype(feature.dtype).kind, ("Any", Any))
    return _TYPES.get(feature.kind, ("Any", Any))


def _one_line(feature: Feature) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(feature))[:100]


def _check_identifiers(names: list[str], owner: str) -> None:
    wrong = [one for one in names if not one.isidentifier() or keyword.iskeyword(one) or one.startswith("__")]
    if wrong:
        raise SchemaError(
            f"expected names that Python allows in a class, got {', '.join(map(repr, wrong))} - at the class {owner}; "
            "give fields other names with ds.rename(...)"
        )
