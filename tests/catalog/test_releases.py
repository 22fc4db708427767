"""Schemas and lenses as records of a catalog, on each backend: versions by comparison, get, list, history, remove."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.catalog.backend import backend_at
from shardex.catalog.releases import raised
from shardex.errors import ArgumentError, CatalogError, FormatError, LensError, SchemaError
from tests.catalog.backends import content
from tests.catalog.backends import url as url  # noqa: PLC0414 - a fixture

POINT: dict[str, Any] = {"x": "float32", "y": "float32"}


@sx.packable
class Point:
    x: float
    y: float


@pytest.fixture
def catalog(url: str) -> sx.Catalog:
    return sx.Catalog(url, trusted=True)


@pytest.fixture
def local(tmp_path: Path) -> sx.Catalog:
    return sx.Catalog(tmp_path / "catalog.db")


def texts(records: Any) -> list[str]:
    return [str(record) for record in records]


# -- all backends -------------------------------------------------------------------------------------------------


def test_versions_follow_from_the_changes(catalog: sx.Catalog) -> None:
    put = catalog.schemas.put
    first = put("team/Point", POINT, description="a point", code={"repository": "https://x/y", "commit": "1a2b"})
    assert (first.version, first.description, first.features) == ("1.0.0", "a point", sx.Features.of(POINT))
    assert put("team/Point", POINT) == put("team/Point", POINT, "1.0.0") == first
    assert put("team/Point", POINT, description="a point in the plane").version == "1.0.1"
    assert put("team/Point", {**POINT, "z": float | None}).version == "1.1.0"
    last = put("team/Point", {"x": "float32"})
    assert (last.version, last.description, last.code) == ("2.0.0", "a point in the plane", first.code)
    assert texts(catalog.schemas.history("team/Point")) == [
        f"team/Point@{version}" for version in ("1.0.0", "1.0.1", "1.1.0", "2.0.0")
    ]
    again = sx.Catalog(catalog.url, trusted=True).schemas
    assert again.get("team/Point") == last and again.get("team/Point@1.0.0") == first
    with pytest.raises(
        ArgumentError, match=r"expected version 3.0.0 or later of the schema team/Point, got 2.1.0: x was"
    ):
        put("team/Point", {"y": "float32"}, "2.1.0")
    assert put("team/Point", {"y": "float32"}, "4.0.0").version == "4.0.0"


def test_each_kind_has_names_of_its_own(catalog: sx.Catalog) -> None:
    catalog.put("point", content(1))
    catalog.schemas.put("point", POINT)
    catalog.schemas.put("Other", {"x": "float32"})
    catalog.lenses.put("point", source="point", view="Other")
    assert texts(catalog.list()) == texts(catalog.search("point")) == ["point@1"]
    assert texts(catalog.list("_")) == texts(catalog.search("x")) == []
    assert texts(catalog.schemas.list()) == ["Other@1.0.0", "point@1.0.0"]
    assert texts(catalog.schemas.list("O")) == ["Other@1.0.0"] and texts(catalog.lenses.list()) == ["point@1.0.0"]
    assert catalog.get("point").samples == 1
    with pytest.raises(CatalogError, match=r"expected the name of a lens, got 'Other'$"):
        catalog.lenses.get("Other")
    with pytest.raises(CatalogError, match=r"expected the name of a dataset, got 'Othe'$"):
        catalog.get("Othe")


def test_removed_versions_are_not_used_again(catalog: sx.Catalog) -> None:
    for description in "abc":
        catalog.schemas.put("Point", POINT, description=description)
    catalog.schemas.remove("Point@1.0.0")
    catalog.schemas.remove("Point@1.0.2")
    assert texts(catalog.schemas.history("Point")) == ["Point@1.0.1"]
    with pytest.raises(CatalogError, match=r"version of the schema Point \(1.0.1\), 1.0.2 was removed"):
        catalog.schemas.get("Point@1.0.2")
    with pytest.raises(ArgumentError, match=r"version 1.0.3 or later .* got 1.0.2: 1.0.2 was used, and removed"):
        catalog.schemas.put("Point", POINT, "1.0.2", description="d")
    assert catalog.schemas.put("Point", POINT, description="d").version == "1.0.3"
    catalog.schemas.remove("Point")
    with pytest.raises(CatalogError, match="all versions of 'Point' were removed"):
        catalog.schemas.get("Point")
    assert texts(catalog.schemas.list()) == [] and catalog.schemas.put("Point", POINT).version == "1.0.4"


def test_lenses_are_found_by_their_schemas(catalog: sx.Catalog) -> None:
    for name, schema in (("Point", POINT), ("X", {"x": "float32"}), ("Y", {"v": "float32"})):
        catalog.schemas.put(name, schema)
    catalog.lenses.put("x", source="Point", view="X")
    catalog.lenses.put("y", source="Point", view="Y", fields={"v": "y"}, description="the height")
    catalog.schemas.put("Point", {**POINT, "note": str | None})
    assert catalog.lenses.put("x", source="Point", view="X").version == "1.1.0"
    assert texts(catalog.lenses.find(source="Point")) == ["x@1.1.0", "y@1.0.0"]
    assert texts(catalog.lenses.find("Point@1.0.0")) == texts(catalog.lenses.find(view="Y")) == ["y@1.0.0"]
    assert texts(catalog.lenses.find("X")) == [] and len([*catalog.lenses.find()]) == 2
    assert catalog.lenses.put("y", source="Point", view="Y", fields={"v": "x"}).version == "2.0.0"
    assert catalog.lenses.get("y@1.0.0").source == "Point@1.0.0"


def test_processes_publish_at_the_same_time(catalog: sx.Catalog) -> None:
    versions = list[str]()

    def work(writer: int) -> None:
        mine = sx.Catalog(catalog.url, trusted=True)
        versions.extend(mine.schemas.put("Point", POINT, description=f"{writer} {k}").version for k in range(4))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == [f"1.0.{k}" for k in range(8)]


def test_records_of_all_kinds_are_copied(catalog: sx.Catalog, tmp_path: Path) -> None:
    local = sx.Catalog(tmp_path / "local.db")
    local.schemas.put("Point", POINT)
    local.schemas.put("Point", {**POINT, "note": str | None})
    local.lenses.put("same", source="Point@1.0.0", view="Point@1.1.0")
    records = [*local.schemas.history("Point"), *local.lenses.history("same")]
    assert catalog.copy_from(records) == 3 and catalog.copy_from(records) == 0
    assert [*catalog.schemas.history("Point"), *catalog.lenses.history("same")] == records


# -- schemas ------------------------------------------------------------------------------------------------------


def test_what_is_put(local: sx.Catalog, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": 0.5, "y": 1.0}], register="@d")
    first = local.schemas.put("Point", Point)
    for same in (ds, sx.Features.of(Point), {"x": float, "y": float}, first, sx.Catalog().get("d")):
        assert local.schemas.put("Point", same) == first, same
    for wrong in (3, "Point", int):
        with pytest.raises(SchemaError, match="expected a mapping of field names to features, or a class"):
            local.schemas.put("Point", wrong)
    with pytest.raises(ArgumentError, match=r"semantic version such as '1.2.0', three numbers, got '1.0'"):
        local.schemas.put("Point", Point, "1.0")
    with pytest.raises(ArgumentError, match=r"semantic version such as '1.2.0', three numbers, got '01.0.0'"):
        local.schemas.get("Point@01.0.0")
    with pytest.raises(ArgumentError, match="expected a name such as 'corpus'"):
        local.schemas.put("_lenses/Point", Point)


def test_before_the_first_stable_version(local: sx.Catalog) -> None:
    assert local.schemas.put("Point", POINT, "0.1.0").version == "0.1.0"
    assert local.schemas.put("Point", {"x": "float32"}).version == "0.2.0"
    assert [raised("0.2.3", level) for level in ("major", "minor", "patch")] == ["0.3.0", "0.3.0", "0.2.4"]


def test_a_loaded_class_reads_data(local: sx.Catalog, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": 0.5, "y": 1.0}])
    local.schemas.put("team/Point", ds)
    Loaded = local.schemas.load("team/Point@1.0.0")
    assert Loaded.__name__ == "Point" and sx.open(tmp_path / "d", Loaded)[0] == Loaded(x=0.5, y=1.0)
    assert local.schemas.load("team/Point") is Loaded
    local.schemas.put("two-d", {"x y": "float32"})
    with pytest.raises(SchemaError, match="names that Python allows in a class, got 'x y'"):
        local.schemas.load("two-d", "Two")
    local.schemas.put("two-d", POINT)
    assert local.schemas.load("two-d", "Two").__name__ == "Two"
    with pytest.raises(SchemaError, match="got 'two-d'"):
        local.schemas.load("two-d")


# -- lenses -------------------------------------------------------------------------------------------------------

ROW = sx.Features.of(
    {
        "at": sx.Struct({"x": "float32", "deep": sx.Optional(sx.Struct({"n": "int32"}))}),
        "label": sx.ClassLabel(("a", "b")),
        "pixels": sx.Array("uint8", (2,)),
        "any": sx.Json(),
    }
)
MARK = sx.Features.of(
    {
        "x": "float32",
        "n": int | None,
        "label": sx.ClassLabel(("a", "b")),
        "image": sx.Array("uint8", (2,)),
        "unit": str,
        "day": sx.Date(),
        "more": str | None,
    }
)
FIELDS = {"x": "at.x", "n": "at.deep.n", "image": "pixels", "unit": {"value": "m"}, "day": {"value": "2026-01-02"}}
SAMPLE = {
    "at": {"x": 0.5, "deep": None},
    "label": 1,
    "pixels": np.array([1, 2], np.uint8),
    "any": {"y": 1},
}


@pytest.fixture
def marks(local: sx.Catalog) -> sx.Catalog:
    local.schemas.put("Row", ROW)
    local.schemas.put("Mark", MARK)
    return local


def test_a_loaded_lens_maps_fields(marks: sx.Catalog, tmp_path: Path) -> None:
    record = marks.lenses.put("mark", source="Row", view="Mark", fields=FIELDS)
    lens = marks.lenses.load("mark@1.0.0")
    assert isinstance(lens, sx.Lens) and lens.source is marks.schemas.load("Row") and lens.name == "mark"
    assert record.fields and str(record.fields["n"]) == "at.deep.n" and record.fields["more"].value is None
    ds = sx.write(tmp_path / "d", [SAMPLE, {**SAMPLE, "at": {"x": 1.5, "deep": {"n": 3}}}], ROW)
    first, second = sx.open(tmp_path / "d").view(lens)
    assert (first.x, first.n, first.label, first.unit, str(first.day), first.more) == (
        0.5,
        None,
        1,
        "m",
        "2026-01-02",
        None,
    )
    assert isinstance(first, marks.schemas.load("Mark")) and first.image.tolist() == [1, 2] and second.n == 3
    assert ds.as_type(lens.source).view(lens)[1] == second


def test_a_loaded_lens_puts_back(marks: sx.Catalog) -> None:
    marks.lenses.put("mark", source="Row", view="Mark", fields=FIELDS)
    lens = marks.lenses.load("mark")
    row = lens.source(**{**SAMPLE, "at": {"x": 1.5, "deep": {"n": 3}}})
    lens.check(row)
    assert pickle.loads(pickle.dumps(lens))(row) == lens(row)
    view = lens(row)
    view.x, view.n = 2.5, 4
    lens.check(row, view)
    assert lens.put(view, row).at == {"x": 2.5, "deep": {"n": 4}} and row.at["x"] == 1.5
    view.unit = "km"
    with pytest.raises(LensError, match="expected the field unit to be the constant 'm', got 'km'"):
        lens.put(view, row)


def test_two_fields_from_one_place_are_one_way(marks: sx.Catalog) -> None:
    marks.schemas.put("Twice", {"a": "float32", "b": "float32"})
    marks.lenses.put("twice", source="Row", view="Twice", fields={"a": "at.x", "b": "at.x"})
    assert not marks.lenses.load("twice").two_way
    marks.schemas.put("Inner", {"a": "float32", "b": ROW["at"]})
    marks.lenses.put("inner", source="Row", view="Inner", fields={"a": "at.x", "b": "at"})
    assert not marks.lenses.load("inner").two_way


def test_a_lens_between_classes_of_the_user(local: sx.Catalog) -> None:
    @sx.packable
    class Place:
        lon: float
        pixels: NDArray[np.uint8]

    local.schemas.put("Point", Point)
    local.schemas.put("Place", Place)
    local.lenses.put("place", source="Point", view="Place", fields={"lon": "x", "pixels": {"value": [1, 2]}})
    lens = local.lenses.load("place", Point, Place)
    assert lens.source is Point and lens(Point(1, 2)).lon == 1 and lens(Point(1, 2)).pixels.tolist() == [1, 2]
    with pytest.raises(LensError, match=r"class that fits the schema Point@1.0.0, got Place: field lon .* is missing"):
        local.lenses.load("place", Place, Place)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "expected the origin of the field x of the view, got none"),
        ({"w": "at"}, "expected fields of the view, got 'w'"),
        ({"x": "at.y"}, "field x: expected a field of the source, got at.y"),
        ({"x": "ta"}, "field x: expected a field of the source, got ta"),
        ({"x": "label.x"}, "expected a struct at label, got class"),
        ({"x": "at"}, "expected an origin that fits the field x, got at: field x is struct"),
        ({"x": {"value": "m"}}, "origin that fits the field x, got the constant 'm': expected"),
        ({"x": "at.x", "label": None}, "origin that fits the field label, got the constant None"),
        ({"x": 3}, "expected the path of a field, or a constant {'value': ...}, got 3"),
        ({"x": {"value": 3, "more": 4}}, "expected the path of a field, or a constant"),
    ],
)
def test_fields_that_do_not_fit(marks: sx.Catalog, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(LensError) as caught:
        marks.lenses.put("mark", source="Row", view="Mark", fields=fields)
    assert told in str(caught.value) and not [*marks.lenses.list()]


def test_code_is_shown_and_not_run(marks: sx.Catalog) -> None:
    code = {"repository": "https://example.com/lab/code", "commit": "1a2b3c", "path": "os.system"}
    record = marks.lenses.put("mark", source="Row", view="Mark", code=code)
    assert record.code == code and record.fields is None
    with pytest.raises(
        LensError, match=r"whose code is elsewhere \(repository https://example.com/lab/code, commit 1a2b3c"
    ):
        marks.lenses.load("mark")
    assert marks.lenses.put("mark", source="Row", view="Mark", fields=FIELDS).version == "2.0.0"


# -- untrusted records --------------------------------------------------------------------------------------------


def stored(catalog: sx.Catalog, key: str, data: bytes) -> None:
    """Put JSON into a folder of records."""
    path = Path(catalog.url) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"kind": "schema", "name": "A", "version": "1.0.0", "number": 1}', "missing required field `schema`"),
        (b'{"kind": "schema", "name": "A", "version": "1.x", "number": 1, "schema": {}}', "at field `version`"),
        (b'{"kind": "schema", "name": "../A", "version": "1.0.0", "number": 1, "schema": {}}', "'../A'"),
        (
            b'{"kind": "lens", "name": "A", "version": "1.0.0", "number": 1, "source": "a", "view": "b"}',
            "got that of A@1.0.0",
        ),
        (b'{"kind": "schema", "name": "B", "version": "1.0.0", "number": 1, "schema": {}}', "got that of B@1.0.0"),
        (b'{"kind": [], "name": "A"}', "expected a record of a dataset"),
    ],
)
def test_damaged_records_are_named(tmp_path: Path, data: bytes, told: str) -> None:
    catalog = sx.Catalog(tmp_path / "catalog")
    stored(catalog, "_schemas/A/00000001.json", data)
    with pytest.raises(FormatError) as caught:
        catalog.schemas.get("A")
    assert told in str(caught.value)


def test_an_older_version_is_read_beside_a_damaged_one(tmp_path: Path) -> None:
    catalog = sx.Catalog(tmp_path / "catalog")
    first = catalog.schemas.put("A", POINT)
    catalog.schemas.put("A", POINT, description="damaged")
    stored(catalog, "_schemas/A/00000002.json", b"{")
    with pytest.warns(UserWarning, match="A/00000002.json: .* it is left out"):
        assert catalog.schemas.get("A@1.0.0") == first
    with pytest.raises(FormatError, match=r"A/00000002\.json"):
        catalog.schemas.get("A")


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    catalog = sx.Catalog(tmp_path / "catalog")
    plain = b'{"kind": "schema", "name": "A", "version": "1.0.0", "number": 1, "schema": {}, "rights": ["x"]}'
    stored(catalog, "_schemas/A/00000001.json", plain)
    assert catalog.schemas.get("A").extra == {"rights": ["x"]}
    assert catalog.schemas.put("A", {}, description="empty").extra == {"rights": ["x"]}
    assert catalog.schemas.put("A", {"x": int}).extra == {}


def test_names_and_fields_of_a_stranger(tmp_path: Path) -> None:
    catalog = sx.Catalog(tmp_path / "catalog", trusted=False)
    schema = b'{"x: int = print(1)": {"kind": "text"}}'
    stored(
        catalog,
        "_schemas/A/00000001.json",
        b'{"kind":"schema","name":"A","version":"1.0.0","number":1,"schema":%b}' % schema,
    )
    with pytest.raises(SchemaError, match="expected names that Python allows in a class"):
        catalog.schemas.load("A")
    stored(
        catalog,
        "_schemas/B/00000001.json",
        b'{"kind":"schema","name":"B","version":"1.0.0","number":1,"schema":{"x":{"kind":"text"}}}',
    )
    lens = (
        b'{"kind":"lens","name":"l","version":"1.0.0","number":1,"source":"B@1.0.0","view":"B@1.0.0","fields":{"x":%b}}'
    )
    for origin, told in (
        (b'{"path":["__class__"]}', "expected a field of the source, got __class__"),
        (b"{}", "constant None"),
    ):
        stored(catalog, "_lenses/l/00000001.json", lens % origin)
        with pytest.raises(LensError, match=told):
            sx.Catalog(catalog.url).lenses.load("l")


def test_a_file_of_a_catalog_without_schemas_can_have_them(tmp_path: Path) -> None:
    catalog = sx.Catalog(tmp_path / "catalog.db")
    catalog.put("d", content(1))
    assert texts(catalog.schemas.list()) == [] and catalog.schemas.put("d", POINT).number == 1
    assert [*backend_at(catalog.url).names("_schemas/")] == ["_schemas/d"]
