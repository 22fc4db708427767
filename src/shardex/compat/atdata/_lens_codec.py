"""Lenses as records: which field of a sample is which field of its view, or the name of the function that knows it.

A record is data: field mappings are made into lenses again, functions that it names are shown and never imported.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from shardex.compat.atdata.lens import Lens, LensNetwork
from shardex.errors import LensError

__all__ = ["clear_lens_cache", "generate_lens_stub", "get_cached_lenses", "lens_from_record", "lens_to_json"]

_MOST_CACHED = 256
_lenses: dict[tuple[str, Any, Any], Lens[Any, Any]] = {}


class StoredLensError(LensError, ValueError):
    """A stored lens that cannot be made again without its code."""


class _Unseen:
    """Stands for the value of a field while a lens is looked at: any use of it but passing it on raises."""

    def __getattr__(self, name: str) -> NoReturn:
        raise LensError(f"the lens uses the value: {name}")

    def _used(self, *_others: Any) -> NoReturn:
        raise LensError("the lens uses the value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __str__ = __repr__ = _used
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __getitem__ = __hash__ = __format__ = _used


class _Fields:
    """Stands for a sample."""

    def __init__(self, kind: Any) -> None:
        vars(self).update({one.name: _Unseen() for one in dataclasses.fields(kind)})


def _field_names(result: Any, *samples: _Fields) -> list[tuple[int, str, str]] | None:
    """Return for each field of a result which sample it is from, and which field it was there; None if made up."""
    known = {id(value): (k, name) for k, sample in enumerate(samples) for name, value in vars(sample).items()}
    found = [(one.name, known.get(id(getattr(result, one.name)))) for one in dataclasses.fields(result)]
    return None if any(place is None for _, place in found) else [(*place, name) for name, place in found if place]


def _detect_field_mapping(lens: Lens[Any, Any]) -> list[tuple[str, str]] | None:
    """Return the fields of the sample and of the view, if the getter only passes values on."""
    if not dataclasses.is_dataclass(lens.source) or not dataclasses.is_dataclass(lens.view):
        return None
    sample = _Fields(lens.source)
    try:
        found = _field_names(lens.get(sample), sample)
    except Exception:  # the getter is any code
        return None
    return None if found is None else [(source, view) for _, source, view in found]


def _puts_fields_back(lens: Lens[Any, Any], pairs: list[tuple[str, str]]) -> bool:
    """Return whether the putter does nothing but put the fields of the view back."""
    if lens._put is None:
        return True
    view, sample = _Fields(lens.view), _Fields(lens.source)
    try:
        found = _field_names(lens.put(view, sample), view, sample)
    except Exception:
        return False
    back = dict(pairs)
    expected = [(0, back[one], one) if one in back else (1, one, one) for one in vars(sample)]
    return found == expected


def _resolve_function_ref(function: Any) -> dict[str, str] | None:
    """Return the module and the name of a function, None for one that has no name of its own."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<none>")
    return None if not module or "<" in name else {"module": module, "qualname": name}


def _of_code(function: Any) -> dict[str, Any]:
    found = _resolve_function_ref(function)
    return {"kind": "opaque"} if found is None else {"kind": "code_reference", **found}


def _of_fields(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    mappings = [{"source_field": source, "view_field": view, "transform": None} for source, view in pairs]
    return {"kind": "field_mapping", "mappings": mappings}


def lens_to_json(
    lens_obj: Lens[Any, Any],
    *,
    name: str,
    version: str = "1.0.0",
    description: str | None = None,
    source_schema: str | None = None,
    view_schema: str | None = None,
) -> str:
    """Return the record of a lens as JSON.

    A lens that only passes fields on, also under other names, is a field mapping; of another one the record has the
    names of its functions.
    """
    pairs = _detect_field_mapping(lens_obj)
    back = pairs is not None and _puts_fields_back(lens_obj, pairs)
    record = {
        "name": name,
        "version": version,
        "source_schema": source_schema or _type_name(lens_obj.source),
        "view_schema": view_schema or _type_name(lens_obj.view),
        "getter": _of_code(lens_obj._get) if pairs is None else _of_fields(pairs),
        "putter": _of_fields((v, s) for s, v in pairs or ()) if back else _of_code(lens_obj._put),
        "created_at": datetime.now(UTC).isoformat(),
    }
    return json.dumps(record | ({"description": description} if description else {}))


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "Unknown")


def lens_from_record(
    record: Mapping[str, Any],
    *,
    source_type: Any = None,
    view_type: Any = None,
    use_cache: bool = True,
    register: bool = True,
) -> Lens[Any, Any]:
    """Return the lens of a field mapping between two sample types, or a lens of this process that the record names.

    Functions are never imported: of a lens that is code, import the module that defines it first.
    """
    key = json.dumps(record, sort_keys=True, default=str), source_type, view_type
    known = _lenses.get(key) if use_cache else None
    made = known or _lens_of(record, source_type, view_type)
    if register:
        LensNetwork().register(made)
    if use_cache:
        _lenses[key] = made
        while len(_lenses) > _MOST_CACHED:
            del _lenses[next(iter(_lenses))]
    return made


def _lens_of(record: Mapping[str, Any], source: Any, view: Any) -> Lens[Any, Any]:
    name, getter, putter = record.get("name"), record.get("getter"), record.get("putter")
    if not isinstance(getter, Mapping):
        raise StoredLensError(f"expected the record of a lens with a getter, got {getter!r:.100} - at lens {name!r}")
    if source is None or view is None:
        wanted = "source_type" if source is None else "view_type"
        raise StoredLensError(f"{wanted} is required to make the lens {name!r} again: load_lens(ref, {wanted}=...)")
    if getter.get("kind") != "field_mapping":
        return _known_lens(name, getter, source, view)
    pairs = _checked_pairs(getter.get("mappings"), source, view, f"lens {name!r}")
    put = _putter(pairs, source) if isinstance(putter, Mapping) and putter.get("kind") == "field_mapping" else None
    return Lens(lambda sample: view(**{v: getattr(sample, s) for s, v in pairs}), put, source=source, view=view)


def _checked_pairs(mappings: Any, source: Any, view: Any, where: str) -> list[tuple[str, str]]:
    try:
        pairs = [(one["source_field"], one["view_field"]) for one in mappings]
        transforms = [one.get("transform") for one in mappings]
    except (AttributeError, KeyError, TypeError):
        raise StoredLensError(f"expected source_field and view_field, got {mappings!r:.200} - at {where}") from None
    of_source, of_view = ({one.name for one in dataclasses.fields(kind)} for kind in (source, view))
    if wrong := [pair for pair in pairs if pair[0] not in of_source or pair[1] not in of_view]:
        raise StoredLensError(f"expected fields of {source.__name__} and {view.__name__}, got {wrong[0]} - at {where}")
    if any(transforms):
        raise StoredLensError(f"expected fields that are passed on, got transforms: {transforms!r:.200} - at {where}")
    return pairs


def _putter(pairs: list[tuple[str, str]], source: Any) -> Callable[[Any, Any], Any]:
    def put(view: Any, sample: Any) -> Any:
        own = {one.name: getattr(sample, one.name) for one in dataclasses.fields(source)}
        return source(**(own | {s: getattr(view, v) for s, v in pairs}))

    return put


def _known_lens(name: Any, getter: Mapping[str, Any], source: Any, view: Any) -> Lens[Any, Any]:
    """Return the registered lens between two types, if its function has the name in the record."""
    found = LensNetwork().direct(source, view)
    wanted = {key: getter.get(key) for key in ("module", "qualname")}
    if isinstance(found, Lens) and wanted == _resolve_function_ref(found._get):
        return found
    named = getter.get("kind") == "code_reference"
    code = ".".join(map(str, wanted.values())) if named else "a function without a name"
    raise StoredLensError(
        f"Cannot reconstitute lens {name!r}: it is {code}, and code that a record names is not imported. Import the "
        "module that defines it with @lens, and call this again, or use that lens itself"
    )


def generate_lens_stub(record: Mapping[str, Any]) -> str:
    """Return a module that describes a lens: constants with its name, version and schemas, and a comment per field."""
    names = ("name", "version", "source_schema", "view_schema", "description")
    titles = ("LENS_NAME", "LENS_VERSION", "SOURCE_SCHEMA", "VIEW_SCHEMA", "DESCRIPTION")
    known = [(title, str(record[key])) for key, title in zip(names, titles, strict=True) if key in record]
    constants = [f"{title}: str = {text!r}" for title, text in known]
    getter = record.get("getter") or {}
    mappings = getter.get("mappings", []) if getter.get("kind") == "field_mapping" else []
    fields = [f"# {one.get('source_field')!r} -> {one.get('view_field')!r}" for one in mappings]
    return "\n".join(['"""A lens, made from its record."""', "", *constants, *fields, ""])


def clear_lens_cache() -> None:
    """Forget the lenses that were made."""
    _lenses.clear()


def get_cached_lenses() -> dict[str, Lens[Any, Any]]:
    """Return the lenses that were made, by name and version."""
    records = [(json.loads(key[0]), lens) for key, lens in _lenses.items()]
    return {f"{record.get('name')}@{record.get('version')}": lens for record, lens in records}
