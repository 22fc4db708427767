"""`Schemas` and `Lenses`: records with semantic versions, with the same methods as datasets; ``catalog.schemas``.

The next version follows from a comparison with the newest one: a change that breaks readers raises the first number.
Backends store them as they store datasets; the number of a record among the versions of its name is beside the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from shardex.catalog.backend import Backend
from shardex.catalog.field_mapping import FieldMapping, compare_lenses, origins_of
from shardex.catalog.names import check_name, check_version, parse_release
from shardex.catalog.publish import MOST_NAMES, expect_kind, now, publish
from shardex.catalog.records import LensRecord, SchemaRecord
from shardex.catalog.schemas import LEVELS, SchemaChange, class_of, compare_schemas
from shardex.errors import ArgumentError, CatalogError, LensError, nearest
from shardex.features import Features
from shardex.samples import Lens, schema_conflicts

R = TypeVar("R", SchemaRecord, LensRecord)


class Releases(Generic[R]):
    """Records of one kind in a catalog, by name and semantic version."""

    _kind: type[R]
    _noun: str
    _compare: Callable[[R, R], SchemaChange]

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def get(self, ref: str) -> R:
        """Return the newest record of ``"Point"``, or that of a version, ``"Point@1.2.0"``."""
        name, version = parse_release(ref)
        if version is None:
            newest = self._backend.read(key := self._key(name))
            found = None if newest is None else expect_kind(newest, self._kind, key, self._backend)
        else:
            found = next((one for one in self._all(name) if one.version == version), None)
        if found is None:
            raise self._unknown(name, version)
        return found

    def list(self, prefix: str = "") -> Iterator[R]:
        """Yield the newest record of each name that begins with `prefix`, sorted by name."""
        return (one for one in self._backend.newest(self._key(prefix)) if isinstance(one, self._kind))

    def history(self, name: str) -> Sequence[R]:
        """Return all versions of a name, oldest first."""
        if not (found := self._all(check_name(name))):
            raise self._unknown(name, None)
        return found

    def remove(self, ref: str) -> None:
        """Remove a version (``"Point@1.2.0"``), or a name with all its versions; a version is never used again."""
        name, version = parse_release(ref)
        for one in self.history(name) if version is None else [self.get(ref)]:
            self._backend.set_tag(one.key, f"v{one.version}", one.number)
            self._backend.remove(one.key, one.number)

    def _key(self, name: str) -> str:
        return self._kind.folder + name

    def _all(self, name: str) -> Sequence[R]:
        key = self._key(name)
        return [expect_kind(one, self._kind, key, self._backend) for one in self._backend.history(key)]

    def _removed(self, name: str) -> Sequence[str]:
        """Return the versions that were removed: each has left a tag."""
        return [tag[1:] for tag in self._backend.tags(self._key(name))]

    def _unknown(self, name: str, version: str | None) -> CatalogError:
        """Return the error for a record that is not there."""
        url, found = self._backend.url, self._all(name)
        if found:
            state = f"{version} was removed" if version in self._removed(name) else f"got {version}"
            known = ", ".join(one.version for one in found)
            return CatalogError(f"{url}: expected a version of the {self._noun} {name} ({known}), {state}")
        if self._backend.head(self._key(name))[1]:
            return CatalogError(f"{url}: expected a {self._noun}, all versions of {name!r} were removed")
        names = (key.removeprefix(self._kind.folder) for key in self._backend.names(self._kind.folder))
        near = nearest(name, islice(names, MOST_NAMES))
        return CatalogError(f"{url}: expected the name of a {self._noun}, got {name!r}{near}")

    # -- publishing -------------------------------------------------------------------------------------------

    def _publish(self, name: str, given: str | None, known: Mapping[str, Any]) -> R:
        """Publish a record with these fields, of which None stands for that of the newest version."""
        if given is not None:
            check_version(given)
        told = {field: value for field, value in known.items() if value is not None}
        return publish(self._backend, self._key(check_name(name)), self._kind, partial(self._made, name, given, told))

    def _made(self, name: str, given: str | None, told: Mapping[str, Any], newest: R | None, number: int) -> R:
        """Return the record that follows the newest one, with the version that its changes need."""
        made = self._kind(name=name, version=given or "1.0.0", number=number, created=now(), **told)
        least, why = "0.0.0", ""
        if newest is not None:
            kept = {field: getattr(newest, field) for field in ("description", "code") if field not in told}
            made = msgspec.structs.replace(made, **kept)
            change = self._compare(newest, made)
            if not change.level:
                made = msgspec.structs.replace(made, extra=newest.extra, version=given or newest.version)
                if newest.says_the_same(made):
                    return newest
            least = raised(newest.version, change.level or "patch")
            why = f"{'; '.join(change.changes) or 'it differs'} since {newest}"
            why += ", which breaks readers" * (change.level == "major")
        for used in self._removed(name) if number - 1 > (newest.number if newest else 0) else ():
            if _numbers(used) >= _numbers(least):
                least, why = raised(used, "patch"), f"{used} was used, and removed"
        if given is not None and _numbers(given) < _numbers(least):
            expected = f"expected version {least} or later of the {self._noun} {name}"
            raise ArgumentError(f"{self._backend.url}: {expected}, got {given}: {why}")
        first = "1.0.0" if newest is None else least
        return msgspec.structs.replace(made, version=given or max(first, least, key=_numbers))


class Schemas(Releases[SchemaRecord]):
    """The schemas of a catalog.

    >>> import tempfile, shardex as sx; schemas = sx.Catalog(tempfile.mkdtemp() + "/catalog.db").schemas
    >>> str(schemas.put("Point", {"x": "float32"})), str(schemas.put("Point", {"x": "float32", "note": str | None}))
    ('Point@1.0.0', 'Point@1.1.0')
    >>> schemas.put("Point", {"y": "float32"}, version="1.2.0")
    Traceback (most recent call last):
    shardex.errors.ArgumentError: ...: expected version 2.0.0 or later of the schema Point, got 1.2.0: x was removed...
    >>> schemas.load("Point@1.0.0")(x=0.5)
    Point(x=0.5)
    """

    _kind, _noun = SchemaRecord, "schema"
    _compare = staticmethod(lambda old, new: compare_schemas(old.features, new.features))

    def put(
        self,
        name: str,
        what: Any,
        version: str | None = None,
        *,
        description: str | None = None,
        code: Mapping[str, str] | None = None,
    ) -> SchemaRecord:
        """Publish a schema as the next version of a name, and return the record.

        `what` is a class, `Features`, a mapping of names to features, a dataset, or a record. The next version is
        larger than the newest one by what changed: the first number if readers break, the second for new optional
        fields, the third for the rest. A `version` that is too small for the changes is an error. What is not given
        (`description`, `code`) is that of the newest version. `code` says where the source code of a class is, as
        repository, commit and path. Nothing is stored if the newest version says the same: it is returned.
        """
        own = getattr(what, "features", None)
        features = own if isinstance(own, Features) else Features.of(what)
        return self._publish(name, version, {"schema": features.to_json(), "description": description, "code": code})

    def load(self, ref: str, class_name: str | None = None) -> type[Any]:
        """Return a class for samples with the fields of a schema; its name is the last part of that of the schema.

        The names are checked; nothing of the record is executed.
        """
        record = self.get(ref)
        return class_of(record.features, class_name or record.name.rpartition("/")[2])


class Lenses(Releases[LensRecord]):
    """The lenses of a catalog: which fields of one published schema become which fields of another.

    >>> import tempfile, shardex as sx; catalog = sx.Catalog(tempfile.mkdtemp() + "/catalog.db")
    >>> _ = catalog.schemas.put("Point", {"at": sx.Struct({"x": "float32"}), "note": str})
    >>> _ = catalog.schemas.put("Mark", {"x": "float32", "unit": str})
    >>> str(catalog.lenses.put("mark", source="Point", view="Mark", fields={"x": "at.x", "unit": {"value": "m"}}))
    'mark@1.0.0'
    >>> lens = catalog.lenses.load("mark")
    >>> lens(catalog.schemas.load("Point")(at={"x": 0.5}, note="a"))
    Mark(x=0.5, unit='m')
    """

    _kind, _noun, _compare = LensRecord, "lens", staticmethod(compare_lenses)

    def put(
        self,
        name: str,
        *,
        source: str,
        view: str,
        fields: Mapping[str, Any] | None = None,
        version: str | None = None,
        description: str | None = None,
        code: Mapping[str, str] | None = None,
    ) -> LensRecord:
        """Publish a lens as the next version of a name, and return the record.

        `source` and `view` are published schemas; a name alone is its newest version. `fields` says where each field of
        the view is taken from: the name of a field of the source, or a path in a struct such as ``"at.x"``, or a
        constant ``{"value": 3}``. Fields that are not in it are those of the same name, and None if the view allows it.
        With `code` and without `fields`, the lens is code elsewhere, which `load` does not run.
        """
        ends = [Schemas(self._backend).get(one) for one in (source, view)]
        mapped = None if fields is None and code else origins_of(fields or {}, ends[0].features, ends[1].features, name)
        known = {"source": str(ends[0]), "view": str(ends[1]), "fields": mapped}
        return self._publish(name, version, {**known, "description": description, "code": code})

    def load(self, ref: str, source: type[Any] | None = None, view: type[Any] | None = None) -> Lens[Any, Any]:
        """Return the lens of a record, between classes of its schemas, or these classes, which must fit them."""
        record = self.get(ref)
        if record.fields is None:
            code = ", ".join(f"{name} {value}" for name, value in record.code.items()) or "none is named"
            raise LensError(
                f"{record}: expected a lens that maps fields, got one whose code is elsewhere ({code}), which is not "
                "run: read it, and write the lens with @sx.lens"
            )
        mapping = FieldMapping(
            self._end(record.source, source), self._end(record.view, view), record.fields, str(record)
        )
        made = Lens(mapping.get, mapping.put if mapping.two_way else None, source=mapping.source, view=mapping.view)
        made.__name__ = record.name
        return made

    def _end(self, ref: str, given: type[Any] | None) -> type[Any]:
        """Return the class of a schema: the given one if it fits."""
        schemas = Schemas(self._backend)
        if given is None:
            return schemas.load(ref)
        if problems := schema_conflicts(schemas.get(ref).features, Features.of(given)):
            raise LensError(f"expected a class that fits the schema {ref}, got {given.__name__}: {'; '.join(problems)}")
        return given

    def find(self, source: str | None = None, view: str | None = None) -> Iterator[LensRecord]:
        """Yield the newest version of each lens from a schema, or to one, or both; a name alone is any version."""
        return (one for one in self.list() if _is_of(source, one.source) and _is_of(view, one.view))


def _is_of(wanted: str | None, ref: str) -> bool:
    """Return True if the schema of a lens is the wanted one."""
    return wanted in (None, ref, ref.partition("@")[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def raised(version: str, level: str) -> str:
    """Return the next version after a change of this level; before 1.0.0 a change that breaks readers is a minor one.

    >>> raised("1.2.3", "major"), raised("1.2.3", "minor"), raised("0.2.3", "major")
    ('2.0.0', '1.3.0', '0.3.0')
    """
    numbers = [*_numbers(version)]
    at = max(LEVELS.index(level), 0 if numbers[0] else 1)
    return ".".join(map(str, [*numbers[:at], numbers[at] + 1, *[0] * (2 - at)]))
