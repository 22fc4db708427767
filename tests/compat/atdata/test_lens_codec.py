"""Lenses as records: fields that are passed on, or names of functions, which are never imported."""

import json
import sys
from typing import Any

import pytest

from shardex.compat.atdata import Lens, LensNetwork, packable
from shardex.compat.atdata._lens_codec import (
    clear_lens_cache,
    generate_lens_stub,
    get_cached_lenses,
    lens_from_record,
    lens_to_json,
)
from shardex.errors import LensError


@packable
class Full:
    name: str
    size: int
    note: str | None = None


@packable
class Part:
    title: str
    size: int


def doubled(full: Full) -> Part:
    return Part(full.name, 2 * full.size)


def halved(part: Part, full: Full) -> Full:
    return Full(part.title, part.size // 2, full.note)


def renamed(full: Full) -> Part:
    return Part(size=full.size, title=full.name)


def record_of(lens: Any, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lens_to_json(lens, name="part", **options))
    return found


def test_fields_that_are_passed_on() -> None:
    record = record_of(Lens(renamed), description="the title")
    assert record["getter"] == {
        "kind": "field_mapping",
        "mappings": [
            {"source_field": "name", "view_field": "title", "transform": None},
            {"source_field": "size", "view_field": "size", "transform": None},
        ],
    }
    assert record["putter"]["mappings"][0] == {"source_field": "title", "view_field": "name", "transform": None}
    assert (record["source_schema"], record["view_schema"], record["version"]) == ("Full", "Part", "1.0.0")
    made = lens_from_record(record, source_type=Full, view_type=Part, register=False)
    assert made.get(Full("a", 1, "n")) == Part("a", 1)
    assert made.put(Part("b", 5), Full("a", 1, "n")) == Full("b", 5, "n")
    assert lens_from_record(record, source_type=Full, view_type=Part) is made
    assert LensNetwork().transform(Full, Part).get(Full("a", 1)) == Part("a", 1)


def test_a_getter_that_computes_is_no_field_mapping() -> None:
    """Fields with the same names do not say that a lens copies them."""

    @packable
    class Size:
        size: int

    computed = [
        lambda full: Size(full.size + 1),
        lambda full: Size(full.size if full.note else 0),
        lambda full: Size(0),
        lambda full: Size(len(full.name)),
    ]
    for one in computed:
        assert record_of(Lens(one, source=Full, view=Size))["getter"] == {"kind": "opaque"}
    record = record_of(Lens(doubled, halved))
    assert record["getter"] == {"kind": "code_reference", "module": __name__, "qualname": "doubled"}
    assert record["putter"]["qualname"] == "halved"
    mixed = record_of(Lens(renamed, halved))
    assert (mixed["getter"]["kind"], mixed["putter"]["kind"]) == ("field_mapping", "code_reference")
    made = lens_from_record(mixed, source_type=Full, view_type=Part, register=False)
    with pytest.raises(LensError, match="no putter"):
        made.put(Part("b", 5), Full("a", 1))


def test_code_is_never_imported() -> None:
    record = record_of(Lens(doubled), version="2.0.0")
    record["getter"] = {"kind": "code_reference", "module": "antigravity", "qualname": "fly"}
    with pytest.raises(ValueError, match=r"antigravity\.fly, and code that a record names is not imported"):
        lens_from_record(record, source_type=Full, view_type=Part)
    assert "antigravity" not in sys.modules
    known = Lens(doubled)
    LensNetwork().register(known)
    assert lens_from_record(record_of(known), source_type=Full, view_type=Part) is known
    with pytest.raises(LensError, match="without a name"):
        lens_from_record({**record, "getter": {"kind": "opaque"}}, source_type=Full, view_type=Part)


@pytest.mark.parametrize(
    ("getter", "text"),
    [
        (None, "with a getter"),
        ({"mappings": None}, "expected source_field and view_field"),
        ({"kind": "field_mapping", "mappings": [{"source_field": "name"}]}, "expected source_field and view_field"),
        (
            {"kind": "field_mapping", "mappings": [{"source_field": "__class__", "view_field": "title"}]},
            "fields of Full",
        ),
        (
            {
                "kind": "field_mapping",
                "mappings": [{"source_field": "name", "view_field": "title", "transform": "upper"}],
            },
            "passed on",
        ),
    ],
)
def test_wrong_records(getter: Any, text: str) -> None:
    getter = getter and {"kind": "field_mapping", **getter}
    with pytest.raises(ValueError, match=text):
        lens_from_record({"name": "wrong", "getter": getter}, source_type=Full, view_type=Part)


def test_types_are_needed() -> None:
    record = record_of(Lens(renamed))
    for given, missing in (({"view_type": Part}, "source_type"), ({"source_type": Full}, "view_type")):
        with pytest.raises(ValueError, match=f"{missing} is required"):
            lens_from_record(record, **given)


def test_cache_and_stub() -> None:
    clear_lens_cache()
    record = record_of(Lens(renamed), description='a "quote"\n')
    made = lens_from_record(record, source_type=Full, view_type=Part)
    assert lens_from_record(record, source_type=Full, view_type=Part) is made
    assert get_cached_lenses() == {"part@1.0.0": made}
    names: dict[str, Any] = {}
    text = generate_lens_stub(record)
    exec(text, names)
    assert (names["LENS_NAME"], names["DESCRIPTION"]) == ("part", 'a "quote"\n')
    assert "# 'name' -> 'title'" in text
    clear_lens_cache()
    assert get_cached_lenses() == {}
