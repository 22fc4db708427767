"""Sample classes become schema records and back; records of ATProto are read; wrong records are refused."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat import atdata
from shardex.compat.atdata import _schema_codec as codec
from shardex.compat.atdata import packable
from shardex.compat.atdata.index import LocalSchemaRecord
from shardex.compat.atdata.index._schema import _build_schema_record, _make_schema_ref, _parse_schema_ref


@packable
class Example:
    """All kinds of fields."""

    image: NDArray[np.uint8]
    label: str
    tags: list[str]
    grid: list[list[int]]
    score: Annotated[float, "seconds"]
    blob: bytes
    maybe: NDArray[Any] | None = None
    flag: bool | None = None


def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    optional = more.pop("optional", False)
    return {"name": name, "fieldType": {"$type": f"local#{kind}", **more}, "optional": optional}


def test_record_of_a_class() -> None:
    record = _build_schema_record(Example, version="1.2.0")
    assert (record["name"], record["version"], record["description"]) == ("Example", "1.2.0", "All kinds of fields.")
    text = {"$type": "local#primitive", "primitive": "str"}
    number = {"$type": "local#primitive", "primitive": "int"}
    assert record["fields"] == [
        field("image", "ndarray", dtype="uint8"),
        field("label", "primitive", primitive="str"),
        field("tags", "array", items=text),
        field("grid", "array", items={"$type": "local#array", "items": number}),
        field("score", "primitive", primitive="float"),
        field("blob", "primitive", primitive="bytes"),
        field("maybe", "ndarray", dtype="float32", optional=True),
        field("flag", "primitive", primitive="bool", optional=True),
    ]
    record["$ref"] = _make_schema_ref("Example", "1.2.0")
    assert (made := LocalSchemaRecord.from_dict(record)).to_dict() == record
    assert made["fields"][0]["name"] == made.fields[0].get("name") == record["fields"][0]["name"]
    assert (made.get("$ref"), made.get("none", 3), "version" in made) == (record["$ref"], 3, True)
    assert _parse_schema_ref(record["$ref"]) == ("Example", "1.2.0")


def test_class_of_a_record_reads_what_the_other_class_wrote(tmp_path: Path) -> None:
    sample = Example(np.ones((2, 2), np.uint8), "a", ["x"], [[1], []], 0.5, b"b", flag=True)
    atdata.write_samples([sample], tmp_path / "a.tar")
    made: Any = codec._schema_to_type(_build_schema_record(Example, version="1.0.0"))
    assert made.__name__ == "Example"
    assert made is not Example
    found = atdata.Dataset[made](str(tmp_path / "a.tar")).head(1)[0]
    assert found.to_dict().keys() == vars(sample).keys()
    assert np.array_equal(found.image, sample.image)
    assert found.maybe is None
    assert made.__schema_version__ == "1.0.0"
    assert made.__ndarray_annotations__ == {"image": {"dtype": "uint8"}, "maybe": {"dtype": "float32"}}
    assert atdata.load_dataset(str(tmp_path / "a.tar"), split="train").as_type(made).head(1)[0].label == "a"


def test_types_are_cached_by_all_that_matters() -> None:
    codec.clear_type_cache()
    records = [
        {"name": "A", "version": "1.0.0", "fields": [field("x", "primitive", primitive=kind)]}
        for kind in ("str", "int")
    ]
    first, second = map(codec._schema_to_type, records)
    assert first is not second
    assert codec._schema_to_type(records[0]) is first
    assert codec._schema_to_type(records[0], use_cache=False) is not first
    assert set(codec.get_cached_types().values()) == {first, second}
    with pytest.warns(DeprecationWarning, match="schema_to_type"):
        assert atdata.schema_to_type(records[0]) is first
    for number in range(300):
        codec._schema_to_type({**records[0], "version": f"1.0.{number}"})
    assert len(codec.get_cached_types()) == 256


def test_optional_fields_before_others() -> None:
    text = {"primitive": "str"}
    record = {"name": "A", "fields": [field("x", "primitive", optional=True, **text), field("y", "primitive", **text)]}
    made = codec._schema_to_type(record)
    assert made(y="b").x is None


def test_other_kinds_of_fields() -> None:
    frame = {"name": "A", "fields": [field("table", "dataframe"), field("record", "structured")]}
    made = codec._schema_to_type(frame)
    assert made.__field_formats__ == {"table": "dataframe", "record": "structured"}
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": [1, 2]})
    record = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    again = made.from_bytes(made(table=table, record=record).packed)
    pandas.testing.assert_frame_equal(again.table, table)
    assert again.record.dtype.names == ("a", "b")


@pytest.mark.parametrize("nested", [True, False])
def test_records_of_atproto(nested: bool) -> None:
    body = {
        "type": "object",
        "required": ["image", "label", "n"],
        "properties": {
            "image": {"$ref": "https://alt.science/ndarray.json#/$defs/ndarray", "dtype": "float32", "shape": [2]},
            "label": {"type": "string"},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "n": {"type": "integer"},
            "scores": {"type": "array", "items": {"type": "number"}},
            "safe": {"$ref": "safetensors"},
        },
    }
    record = {
        "name": "A",
        "version": "1.0.0",
        "schemaType": "jsonSchema",
        "schema": {"schemaBody": body} if nested else body,
    }
    made = codec._schema_to_type(record)
    assert made.__annotations__ == {
        "image": NDArray,
        "label": str,
        "raw": bytes | None,
        "n": int,
        "scores": list[float] | None,
        "safe": bytes | None,
    }
    assert made.__ndarray_annotations__ == {"image": {"dtype": "float32", "shape": [2]}}
    assert made.__field_formats__ == {"safe": "safetensors"}
    assert made(image=np.zeros(2), label="a", n=1).raw is None


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"name": "A", "fields": []},
        {"name": "A b", "fields": [field("x", "primitive")]},
        {"name": "class", "fields": [field("x", "primitive")]},
        {"name": "A", "fields": [field("x y", "primitive")]},
        {"name": "A", "fields": [{"name": "x"}]},
        {"name": "A", "fields": [field("x", "primitive", primitive="complex")]},
        {"name": "A", "fields": [field("x", "ref", ref="other")]},
        {"name": "A", "fields": [field("x", "graph")]},
        {"name": "A", "fields": [field("x", "primitive")], "atdataSchemaVersion": 2},
    ],
)
def test_wrong_records(record: dict[str, Any]) -> None:
    with pytest.raises(atdata.SchemaError) as caught:
        codec._schema_to_type(record)
    assert isinstance(caught.value, ValueError)


def test_types_without_a_record() -> None:
    @packable
    class Loose:
        metadata: dict[str, Any]

    with pytest.raises(TypeError, match="at field metadata of Loose"):
        _build_schema_record(Loose, version="1.0.0")
    with pytest.raises(ValueError, match="packable"):
        _build_schema_record(int, version="1.0.0")
    with pytest.raises(ValueError, match="address of a schema"):
        _parse_schema_ref("https://x@1")


def test_source_code_of_a_record() -> None:
    record = _build_schema_record(Example, version="1.0.0")
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(codec.generate_module(record), names)
    assert _build_schema_record(names["Example"], version="1.0.0")["fields"][1:6] == record["fields"][1:6]
    stub = codec.generate_stub(record)
    compile(stub, "stub", "exec")
    assert "def __init__(self, image: NDArray[Any], label: str" in stub
