"""`FieldMapping`: the getter and putter of a lens that is data: which field of a view is taken from where.

In: the `Origin` of each field, and two classes. Out: views and samples. Nothing of a record is executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from shardex.catalog.records import LensRecord, Origin
from shardex.catalog.schemas import LEVELS, SchemaChange
from shardex.errors import LensError, SchemaError, nearest
from shardex.features import Feature, Features, Json, Optional, Struct, unwrap_optional
from shardex.samples import fields_of, same, sample_from, schema_conflicts


def origins_of(given: Mapping[str, Any], source: Features, view: Features, name: str) -> dict[str, Origin]:
    """Return the origin of each field of a view; `LensError` if one has none, or the features do not fit.

    >>> source, view = Features.of({"at": Struct({"x": float})}), Features.of({"x": float, "unit": str | None})
    >>> {field: str(one) for field, one in origins_of({"x": "at.x"}, source, view, "mark").items()}
    {'x': 'at.x', 'unit': 'the constant None'}
    """
    if unknown := [field for field in given if field not in view]:
        raise LensError(f"{name}: expected fields of the view, got {unknown[0]!r}{nearest(unknown[0], view)}")
    return {field: _origin(given.get(field, field), field, source, view[field], field in given, name) for field in view}


def _origin(told: Any, field: str, source: Features, feature: Feature, given: bool, name: str) -> Origin:
    if not given and field not in source:
        if isinstance(feature, Optional):
            return Origin()
        raise LensError(f"{name}: expected the origin of the field {field} of the view, got none: name it in fields")
    origin = _told(told, source, f"{name}: field {field}")
    if origin.path:
        have = _feature_at(source, origin.path, f"{name}: field {field}")
        problems = schema_conflicts({field: have}, {field: feature})
    else:
        try:
            feature.fit(origin.value, stored=True)
            problems = []
        except SchemaError as error:
            problems = [str(error)]
    if problems:
        raise LensError(f"{name}: expected an origin that fits the field {field}, got {origin}: {'; '.join(problems)}")
    return origin


def _told(told: Any, source: Features, where: str) -> Origin:
    """Return the origin that a user or a record tells."""
    if isinstance(told, Origin):
        return told
    if isinstance(told, str):
        return Origin(path=(told,) if told in source else tuple(told.split(".")))
    if told is None or (isinstance(told, Mapping) and told.keys() == {"value"}):
        return Origin(value=told and told["value"])
    raise LensError(f"{where}: expected the path of a field, or a constant {{'value': ...}}, got {told!r:.100}")


def _feature_at(source: Mapping[str, Feature], path: tuple[str, ...], where: str) -> Feature:
    """Return the feature at a path in structs."""
    inside = source
    for number, part in enumerate(path, 1):
        if part not in inside:
            raise LensError(f"{where}: expected a field of the source, got {'.'.join(path)}{nearest(part, inside)}")
        found = unwrap_optional(inside[part])
        if number == len(path):
            return inside[part]
        if isinstance(found, Json):
            return found
        if not isinstance(found, Struct):
            raise LensError(f"{where}: expected a struct at {'.'.join(path[:number])}, got {found}")
        inside = found.fields
    raise LensError(f"{where}: expected a path, got none")


class FieldMapping:
    """Get and put between two classes, by the origin of each field of the view."""

    def __init__(self, source: type[Any], view: type[Any], origins: Mapping[str, Origin], name: str) -> None:
        self.source, self.view, self.name = source, view, name
        features = Features.of(view)
        self._origins = origins_of(origins, Features.of(source), features, name)
        self._constants = {
            field: features[field].fit(one.value, stored=True) for field, one in self._origins.items() if not one.path
        }

    @property
    def two_way(self) -> bool:
        """True if no two fields are taken from the same place, so that each can be put back."""
        paths = sorted(one.path for one in self._origins.values() if one.path)
        return not any(b[: len(a)] == a for a, b in pairwise(paths))

    def get(self, sample: Any) -> Any:
        """Return the view of a sample."""
        fields = fields_of(sample)
        taken = {name: self._value(fields, one) for name, one in self._origins.items() if one.path}
        return sample_from(self.view, {**taken, **self._constants})

    def _value(self, fields: Any, origin: Origin) -> Any:
        for part in origin.path:
            if fields is None:
                return None
            if part not in (inside := fields_of(fields)):
                raise LensError(f"{self.name}: expected the field {origin} in the sample, got none")
            fields = inside[part]
        return fields

    def put(self, view: Any, source: Any) -> Any:
        """Return the sample with the fields of the view at their places; constants cannot be changed."""
        merged, before = fields_of(source), fields_of(self.get(source))
        for name, value in fields_of(view).items():
            origin = self._origins[name]
            if origin.path:
                merged = _replaced(merged, origin.path, value)
            elif not same(before[name], value):
                raise LensError(f"{self.name}: expected the field {name} to be {origin}, got {value!r:.80}")
        return sample_from(self.source, dict(merged))


def _replaced(fields: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return fields with the value at a path replaced."""
    if not path:
        return value
    if fields is None and value is None:
        return None
    inside = {} if fields is None else fields_of(fields)
    return {**inside, path[0]: _replaced(inside.get(path[0]), path[1:], value)}


# -- comparison -----------------------------------------------------------------------------------------------


def compare_lenses(old: LensRecord, new: LensRecord) -> SchemaChange:
    """Return what changed between two versions of a lens: the parts of versions that its schemas and fields raise."""
    found = [*_changed_end("source", old.source, new.source), *_changed_end("view", old.view, new.view)]
    before, after = old.fields or {}, new.fields or {}
    for name in {**before, **after}:
        if name not in before or after.get(name) != before[name]:
            level = "minor" if before and name not in before else "major"
            found.append((level, f"{name} is {after.get(name, 'removed')}, was {before.get(name, 'not there')}"))
    level = min((level for level, _ in found), key=LEVELS.index, default="")
    return SchemaChange(level, tuple(text for _, text in found))


def _changed_end(end: str, old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield the level of a change of one schema: that of its version, or "major" for another name."""
    if old != new:
        (name, _, before), (other, _, after) = old.partition("@"), new.partition("@")
        numbers = zip(LEVELS, before.split("."), after.split("."), strict=False)
        level = next((level for level, a, b in numbers if a != b), "major")
        yield (level if name == other else "major"), f"the {end} is {new}, was {old}"
