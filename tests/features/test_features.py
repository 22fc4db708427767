"""Features from annotations and from JSON; the annotations of this module are strings (PEP 563)."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import typing
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.errors import FieldError, FormatError, SchemaError
from shardex.features import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Json,
    Opaque,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    kinds,
)

INT, FLOAT = Value("int64"), Value("float64")

# -- from types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "feature"),
    [
        (bool, Value("bool")),
        (int, INT),
        (float, FLOAT),
        (str, Text()),
        (bytes, Bytes()),
        (dict, Json()),
        (list, Json()),
        (Any, Json()),
        (np.ndarray, Array()),
        (np.float32, Value("float32")),
        (np.bool_, Value("bool")),
        (np.dtype("uint16"), Value("uint16")),
        ("int8", Value("int8")),
        ("float", FLOAT),
        ("int", INT),
        ("bool", Value("bool")),
        ("str", Text()),
        ("text", Text()),
        ("bytes", Bytes()),
        ("json", Json()),
        ("string", Text()),
        ("binary", Bytes()),
        (typing.Optional[int], Optional(INT)),  # noqa: UP045 - people still write it
        (typing.Union[None, str], Optional(Text())),  # noqa: UP007
        (int | None, Optional(INT)),
        (None | NDArray[np.int8], Optional(Array("int8"))),
        (NDArray, Array()),
        (NDArray[Any], Array()),
        (NDArray[np.float32], Array("float32")),
        (NDArray[np.bool_], Array("bool")),
        (NDArray[np.datetime64], Array("datetime64")),
        (NDArray[np.floating[Any]], Array()),
        (NDArray[np.integer], Array()),
        (NDArray[np.str_], Array()),
        (np.ndarray[Any, np.dtype[np.int16]], Array("int16")),
        (Annotated[NDArray[Any], Array("float32", (3,))], Array("float32", (3,))),
        (Annotated[NDArray[Any] | None, "a note", Array("float32", (3,))], Optional(Array("float32", (3,)))),
        (Annotated[int, "a note"], INT),
        (Annotated[int | None, "a note"], Optional(INT)),
        (Annotated[int, Value("uint8")], Value("uint8")),
        (Literal["a", "b"], Text()),
        (Literal[1, 2], INT),
        (Literal["a", None], Optional(Text())),
        (Literal[1, "a"], Json()),
        (list[int], Sequence(INT)),
        (list[list[str] | None], Sequence(Optional(Sequence(Text())))),
        (tuple[float, ...], Sequence(FLOAT)),
        (tuple[int, str], Json()),
        (dict[str, int], Json()),
        (list[Any], Sequence(Json())),
        ({"a": int, "b": {"c": str}}, Struct({"a": INT, "b": Struct({"c": Text()})})),
    ],
)
def test_features_of_types_and_annotations(hint: Any, feature: Feature) -> None:
    assert kinds.feature_of(hint) == feature


@pytest.mark.parametrize(
    "hint",
    [
        complex,
        set,
        object,
        None,
        3,
        np.dtype(">i4"),
        np.dtype("U3"),
        np.str_,
        np.floating,
        np.datetime64,
        "complex64",
        "nonsense",
        int | str,
        int | str | None,
        set[int],
    ],
)
def test_other_types_are_refused(hint: Any) -> None:
    with pytest.raises(SchemaError):
        kinds.feature_of(hint)


@dataclass
class Inner:
    x: NDArray[np.float32]
    y: str | None = None


@dataclass
class Outer:
    kind: ClassVar[str] = "not a field"
    inner: Inner
    many: list[Inner]
    label: Annotated[int, ClassLabel(("cat", "dog"))]
    _: KW_ONLY
    maybe: Inner | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def not_a_field(self) -> int:
        return 0


INNER = {"x": Array("float32"), "y": Optional(Text())}


def test_features_of_a_dataclass() -> None:
    assert Features.of(Outer) == Features(
        {
            "inner": Struct(INNER),
            "many": Sequence(Struct(INNER)),
            "label": ClassLabel(("cat", "dog")),
            "maybe": Optional(Struct(INNER)),
            "more": Json(),
        }
    )


class Derived(Inner):
    """A subclass without new fields."""


class Named(NamedTuple):
    a: int
    b: str


class Typed(TypedDict):
    a: int
    b: str


class Bare:
    plain: ClassVar = 1
    a: int
    b: str


@pytest.mark.parametrize("kind", [Named, Typed, Bare])
def test_features_of_other_classes_with_annotations(kind: type) -> None:
    assert Features.of(kind) == Features({"a": INT, "b": Text()})


def test_inherited_annotations() -> None:
    assert Features.of(Derived) == Features(INNER)
    assert kinds.feature_of(Derived) == Struct(INNER)


def test_annotations_with_undefined_names_are_refused() -> None:
    class Local:
        a: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SchemaError, match="Local defines, got: name 'Nowhere' is not defined"):
        Features.of(Local)


@pytest.mark.parametrize("schema", [int, 3, "x", None, type("Empty", (), {}), [("a", int)]])
def test_other_values_are_refused_as_schema(schema: Any) -> None:
    with pytest.raises(SchemaError):
        Features.of(schema)


@pytest.mark.parametrize("name", ["", 1, None])
def test_field_names_are_text(name: Any) -> None:
    with pytest.raises(SchemaError, match="expected a field name"):
        Features.of({name: int})


# -- features --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Value("str"),
        lambda: Value("complex64"),
        lambda: Array("object"),
        lambda: Array("U3"),
        lambda: Array(">f4"),
        lambda: Array("i4,f4"),
        lambda: Array("nonsense"),
        lambda: Array("float32", (-1,)),
        lambda: Array("float32", (1.5,)),  # type: ignore[arg-type]
        lambda: Array("float32", 3),  # type: ignore[arg-type]
        lambda: Array("float32", ("3",)),  # type: ignore[arg-type]
        lambda: Array(None, (3,)),
        lambda: ClassLabel(("a", "a")),
        lambda: ClassLabel("cat"),
        lambda: ClassLabel(3),  # type: ignore[arg-type]
        ClassLabel,
        lambda: ClassLabel(num_classes=-1),
        lambda: ClassLabel(num_classes=2.0),  # type: ignore[arg-type]
        lambda: ClassLabel(["a"], num_classes=2),
        lambda: Value("string"),
        lambda: ClassLabel((1, 2)),  # type: ignore[arg-type]
    ],
)
def test_invalid_features_are_refused(make: typing.Callable[[], Feature]) -> None:
    with pytest.raises(SchemaError, match="expected"):
        make()


def test_fixed_and_ragged_shapes() -> None:
    assert Array("f4", [np.int64(3), None]) == Array(np.float32, (3, None)) == Array(np.dtype("<f4"), (3, None))
    assert Value(np.int8) == Value(np.dtype("int8")) == Value("int8") and Value(float) == Value("float64")
    shapes: list[tuple[int | None, ...] | None] = [
        (),
        (3,),
        (0,),
        (3, 2),
        (None,),
        (None, 2),
        (None, 0),
        (2, None),
        None,
    ]
    assert [Array("i1", shape).fixed for shape in shapes] == [True, True, True, True, *[False] * 5]
    assert [Array("i1", shape).ragged for shape in shapes] == [*[False] * 4, True, True, False, False, False]


def test_class_labels() -> None:
    label = ClassLabel(["cat", "dog"])
    assert [label.number(name) for name in label.names] == [0, 1]
    assert [label.name(number) for number in range(2)] == ["cat", "dog"]
    with pytest.raises(SchemaError, match="expected one of the classes cat, dog, got 'cow'"):
        label.number("cow")
    for number in (2, -1):
        with pytest.raises(SchemaError, match="expected a class number below 2"):
            label.name(number)


def test_nested_optionals_collapse() -> None:
    assert Optional(Optional(INT)) == Optional(INT)


def test_features_are_a_mapping_in_order() -> None:
    features = Features.of({"b": int, "a": str})
    assert list(features) == ["b", "a"]
    assert dict(features) == {"b": INT, "a": Text()}
    assert features != Features.of({"a": str, "b": int})
    assert features != {"b": INT, "a": Text()}
    assert features.select(["a"]) == Features.of({"a": str})
    assert len({features, Features.of({"b": int, "a": str})}) == 1
    with pytest.raises(FieldError, match="expected one of the fields b, a, got 'c'"):
        features["c"]
    assert "c" not in features
    assert repr(features) == "Features(b int64, a text)"


def test_features_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        INT.dtype = "int8"  # type: ignore[misc]


# -- JSON and fingerprint ----------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=5)
leaves: st.SearchStrategy[Feature] = st.one_of(
    st.sampled_from([Value("bool"), Value("int8"), FLOAT, Text(), Bytes(), Json(), Array(), Opaque("timestamp[us]")]),
    st.builds(ClassLabel, st.lists(st.text(max_size=3), unique=True, max_size=4).map(tuple)),
    st.builds(
        Array,
        st.sampled_from(["float32", "datetime64[s]", "complex128"]),
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=3).map(tuple)),
    ),
)
features_ = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Sequence, inner),
        st.builds(Optional, inner),
        st.builds(Struct, st.dictionaries(names, inner, max_size=3)),
    ),
    max_leaves=8,
)
schemas = st.dictionaries(names, features_, max_size=4).map(Features)


@given(schemas)
def test_features_survive_json_and_pickle(schema: Features) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(schema.to_json()))
    for again in (Features.from_json(plain), pickle.loads(pickle.dumps(schema))):
        assert again == schema
        assert hash(again) == hash(schema)
        assert again.fingerprint == schema.fingerprint
        assert str(again) == str(schema)


@given(schemas, schemas)
def test_fingerprints_are_equal_iff_schemas_are(one: Features, other: Features) -> None:
    assert (one.fingerprint == other.fingerprint) == (one == other)


def test_every_change_changes_the_fingerprint() -> None:
    schemas = [
        {},
        {"a": int},
        {"b": int},
        {"a": float},
        {"a": int | None},
        {"a": list[int]},
        {"a": {"b": int}},
        {"a": {"c": int}},
        {"a": {"b": int, "c": int}},
        {"a": {"c": int, "b": int}},
        {"a": int, "b": int},
        {"b": int, "a": int},
        {"a": Array()},
        {"a": Array("int64")},
        {"a": Array("int64", ())},
        {"a": Array("int64", (1,))},
        {"a": Array("int64", (None,))},
        {"a": Array("int64", (None, 1))},
        {"a": ClassLabel(("x", "y"))},
        {"a": ClassLabel(("y", "x"))},
        {"a": ClassLabel(("x", "z"))},
        {"a": Opaque("x")},
        {"a": str},
        {"a": bytes},
        {"a": dict},
    ]
    prints = [Features.of(schema).fingerprint for schema in schemas]
    assert len(set(prints)) == len(schemas)
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in prints)


def test_json_form_and_fingerprint_byte_by_byte() -> None:
    schema = Features.of(
        {"x": Array("float32", (3, None)), "label": ClassLabel(("a", "b")), "s": {"t": list[str | None]}, "n": "uint8"}
    )
    written = (
        b'{"x":{"kind":"array","dtype":"float32","shape":[3,null]},"label":{"kind":"class","names":["a","b"]},'
        b'"s":{"kind":"struct","fields":{"t":{"kind":"sequence","feature":{"kind":"optional","feature":{"kind":"text"}}}}},'
        b'"n":{"kind":"value","dtype":"uint8"}}'
    )
    assert msgspec.json.encode(schema.to_json()) == written
    assert schema.fingerprint == hashlib.sha256(written).hexdigest()[:16]


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        "x",
        {"a": None},
        {"a": 3},
        {"a": {}},
        {"a": {"kind": "nonsense"}},
        {"a": {"kind": ["value"]}},
        {"a": {"kind": "value"}},
        {"a": {"kind": "value", "dtype": "str"}},
        {"a": {"kind": "value", "dtype": "int8", "more": 1}},
        {"a": {"kind": "value", "dtype": []}},
        {"a": {"kind": "array", "dtype": "int8", "shape": [-1]}},
        {"a": {"kind": "array", "dtype": "int8", "shape": 3}},
        {"a": {"kind": "class", "names": ["a", "a"]}},
        {"a": {"kind": "class", "names": 3}},
        {"a": {"kind": "sequence"}},
        {"a": {"kind": "sequence", "feature": {"kind": "x"}}},
        {"a": {"kind": "struct", "fields": []}},
        {"a": {"kind": "struct", "fields": {"": {"kind": "text"}}}},
        {"": {"kind": "text"}},
    ],
)
def test_invalid_json_schemas_raise_format_error(plain: Any) -> None:
    with pytest.raises(FormatError, match="expected"):
        Features.from_json(plain)


def test_deeply_nested_json_schema_raises_format_error() -> None:
    plain: dict[str, Any] = {"kind": "text"}
    for _ in range(100_000):
        plain = {"kind": "sequence", "feature": plain}
    with pytest.raises(FormatError):
        Features.from_json({"a": plain})
    while "feature" in plain:  # level by level: freeing it at once would need a deep stack
        plain = plain["feature"]


@dataclasses.dataclass
class Tree:
    """A class that contains itself."""

    children: list[Tree]


def test_a_schema_that_contains_itself_raises() -> None:
    with pytest.raises(SchemaError, match="expected a class that does not contain itself, got Tree"):
        Features.of(Tree)
    with pytest.raises(SchemaError, match="expected a class that does not contain itself, got Tree"):
        Features.of({"tree": Tree})


@pytest.mark.parametrize("name", ["strings", "timestamp[us]", "object"])
def test_names_that_are_no_dtypes_raise_with_advice(name: str) -> None:
    with pytest.raises(SchemaError, match=r"expected one of the dtypes .*; for others pass a type such as str"):
        Features.of({"x": name})


def test_class_labels_by_number_have_digits_as_names() -> None:
    label = ClassLabel(num_classes=3)
    assert label == ClassLabel(("0", "1", "2")) and label.num_classes == 3
    assert label.to_json() == {"kind": "class", "names": ["0", "1", "2"]}
    assert pickle.loads(pickle.dumps(label)) == dataclasses.replace(ClassLabel(["a"]), names=("0", "1", "2")) == label
