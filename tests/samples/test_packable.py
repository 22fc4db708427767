"""Typed samples: classes, their fields, and their packed bytes."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import pickle
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Optional

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import FormatError, SchemaError, ShardexError, UnsafeError
from shardex.features import Features, codecs

FIXTURES = Path(__file__).parents[1] / "fixtures" / "atdata"


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


@sx.packable
class Inner:
    """A nested sample."""

    values: NDArray[np.int16]
    name: str = "none"


INNER: Any = Inner  # type checkers do not see what the decorator adds


@sx.packable
class Everything(sx.PackableSample):
    """All kinds of fields."""

    plain: NDArray  # type: ignore[type-arg]  # people write this
    typed: NDArray[np.float32]
    shaped: Annotated[NDArray[np.float32], sx.Array("float32", (3,))]
    maybe: Optional[NDArray[np.int64]]  # noqa: UP045
    other: NDArray[Any] | None
    inner: Inner
    many: list[Inner]
    kind: Kind
    size: Literal["s", "m", 3]
    flag: bool
    label: Annotated[str, sx.ClassLabel(("cat", "dog"))]
    pair: tuple[float, ...]
    counts: dict[str, int]
    by_number: dict[int, Kind]
    anything: Any
    blob: bytes
    known: ClassVar[int] = 7
    note: str | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


def everything(**changed: Any) -> Everything:
    values: dict[str, Any] = {
        "plain": np.array([[1, 2]], ">i2"),
        "typed": np.array([1, np.nan], np.float32),
        "shaped": np.zeros(3, np.float32),
        "maybe": None,
        "other": np.array("text"),
        "inner": Inner(np.arange(2, dtype=np.int16)),
        "many": [Inner(np.arange(0, dtype=np.int16), "a"), Inner(np.arange(3, dtype=np.int16), "b")],
        "kind": Kind.DOG,
        "size": "m",
        "flag": True,
        "label": "dog",
        "pair": (1.5, math.nan),
        "counts": {"a": 1},
        "by_number": {7: Kind.CAT},
        "anything": {"deep": [1, None, "é"]},
        "blob": b"\x00\xff",
    }
    return Everything(**{**values, **changed})


def test_default_factories_survive_a_second_dataclass() -> None:
    @dataclasses.dataclass
    class Twice(sx.PackableSample):
        number: int = 3
        tags: list[str] = dataclasses.field(default_factory=list)

    assert Twice() == Twice(3, []) == Twice.from_data({})
    assert dataclasses.fields(Twice)[1].default_factory is list


def test_packable_makes_a_dataclass_of_the_same_name() -> None:
    assert dataclasses.is_dataclass(Everything) and issubclass(Everything, sx.PackableSample)
    assert dataclasses.is_dataclass(Inner) and issubclass(INNER, sx.PackableSample)
    for kind, name, text in ((Everything, "Everything", "All kinds of fields."), (Inner, "Inner", "A nested sample.")):
        assert (kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__) == (name, name, __name__, text)
    assert [field.name for field in dataclasses.fields(Everything)][:2] == ["plain", "typed"]
    assert everything().known == 7 and "known" not in Features.of(Everything)


def test_features_come_from_annotations() -> None:
    assert str(Features.of(Everything)).split(", ")[:5] == [
        "plain any[...]",
        "typed float32[...]",
        "shaped float32[3]",
        "maybe int64[...] or none",
        "other any[...] or none",
    ]
    features = Features.of(Everything)
    assert features["kind"] == sx.Text() and features["label"] == sx.ClassLabel(("cat", "dog"))
    assert features["inner"] == sx.Struct({"values": sx.Array("int16"), "name": sx.Text()})


def test_samples_survive_packing() -> None:
    one = everything()
    again = Everything.from_bytes(one.packed)
    assert again == one and again.packed == one.packed
    assert again.kind is Kind.DOG and again.by_number == {7: Kind.CAT} and isinstance(again.many[1], Inner)
    assert isinstance(again.pair, tuple) and again.plain.dtype == ">i2" and again.tags == []


def test_packed_is_a_map_in_field_order() -> None:
    @sx.packable
    class Two(sx.PackableSample):
        x: NDArray[np.float32]
        n: int
        score: float

    packed = Two(np.array([[0, 1, 2], [3, 4, 5]], np.float32), 3, np.float64(0.5)).packed
    array = "033c66340202000000000000000300000000000000000000000000803f0000004000004040000080400000a040"
    assert msgspec.msgpack.decode(packed) == {"x": bytes.fromhex(array), "n": 3, "score": 0.5}
    assert packed[:3] == b"\x83\xa1x" and list(msgspec.msgpack.decode(packed)) == ["x", "n", "score"]


def test_npy_arrays_in_packed_samples_are_read() -> None:
    array = np.arange(6.0).reshape(2, 3)
    data = msgspec.msgpack.encode({"values": codecs.NPY.encode(array.astype(np.int16)), "name": "old"})
    assert INNER.from_bytes(data) == Inner(array.astype(np.int16), "old")
    evil = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\nx"
    with pytest.raises(UnsafeError):
        INNER.from_bytes(msgspec.msgpack.encode({"values": evil, "name": "x"}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"typed": np.full(2, 1e39)}, r"expected float32\[...\], got float64\[2\].* - at field typed of Everything"),
        ({"shaped": np.zeros(4, np.float32)}, r"expected float32\[3\], got float32\[4\] - at field shaped"),
        ({"flag": 1}, "expected bool, got int 1 - at field flag"),
        ({"kind": "cow"}, "expected a Kind, one of 'cat', 'dog', got str 'cow' - at field kind"),
        ({"size": "l"}, "expected one of 's', 'm', 3, got str 'l' - at field size"),
        ({"size": 3.0}, "expected one of 's', 'm', 3, got float 3.0 - at field size"),
        ({"label": "cow"}, "expected one of the classes cat, dog, got 'cow' - at field label"),
        ({"inner": 3}, "expected a Inner, got int 3 - at field inner"),
        ({"inner": {"values": [1], "nme": ""}}, "'nme' too - at field inner"),
        ({"many": [Inner(np.zeros(1), "x")]}, r"expected int16\[...\], got float64\[1\].* - at field many"),  # type: ignore[arg-type]
        ({"by_number": [1]}, "expected a dict, got list.* - at field by_number"),
        ({"plain": None}, "- at field plain"),
        ({"blob": "text"}, "expected bytes, got str 'text' - at field blob"),
        ({"tags": "text"}, "- at field tags"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_field(changed: dict[str, Any], message: str) -> None:
    bad = everything(**changed)
    with pytest.raises(SchemaError, match=message):
        _ = bad.packed
    data = {field.name: getattr(bad, field.name) for field in dataclasses.fields(bad)}
    with pytest.raises(SchemaError, match=message):
        Everything.from_data(data)


def test_missing_and_extra_fields() -> None:
    with pytest.raises(SchemaError, match=r"expected int16\[...\], got nothing.* - at field values of Inner"):
        INNER.from_data({"name": "x"})
    with pytest.raises(SchemaError, match="expected the fields values, name of Inner, got color, size too"):
        INNER.from_data({"values": [1], "color": 1, "size": 2})
    with pytest.raises(SchemaError, match="expected a mapping of the fields of Inner, got int 3"):
        INNER.from_data(3)
    assert INNER.from_data({"values": [1, 2]}) == Inner(np.array([1, 2], np.int16))


@sx.packable
class Sized(sx.PackableSample):
    size: int
    scale: NDArray[np.float32] | None
    name: str = "none"


@sx.packable
class Nesting(sx.PackableSample):
    by_name: dict[str, Sized]
    pair: tuple[Sized, float]
    scores: dict[str, float]
    list: tuple[float, ...]
    one: Sized


def test_classes_inside_dicts_and_tuples_are_completed() -> None:
    data = {
        "by_name": {"a": {"size": 1}},
        "pair": [{"size": 2}, 3],
        "scores": {"x": 1},
        "list": [1],
        "one": {"size": 3},
    }
    expected = Nesting({"a": Sized(1, None)}, (Sized(2, None), 3.0), {"x": 1.0}, (1.0,), Sized(3, None))
    found = Nesting.from_data(data)
    assert found == expected == Nesting.from_bytes(found.packed)
    assert [type(one) for one in (found.pair[1], found.scores["x"], found.list[0])] == [float] * 3


def test_stored_json_of_classes_is_completed_and_checked() -> None:
    @sx.packable
    class Parts(sx.PackableSample):
        of: dict[str, Sized]
        scores: dict[str, float]

    (found,) = sx.open([{"of": {"a": {"size": 1}}, "scores": {"x": 1}}]).as_type(Parts)
    assert found == Parts({"a": Sized(1, None)}, {"x": 1.0}) and type(found.scores["x"]) is float
    wrong_ones: list[Any] = [{"of": {"a": {}}, "scores": {}}, {"of": {}, "scores": {"x": "1"}}]
    for bad in wrong_ones:
        wrong = sx.open([bad]).as_type(Parts)
        with pytest.raises(
            SchemaError, match=r"expected (int64, got nothing|float64, got str '1').* at field (of|scores)"
        ):
            wrong[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scores": {"x": "1"}}, "expected float64, got str '1' - at field scores"),
        ({"pair": [Sized(1, None), "x"]}, "expected float64, got str 'x' - at field pair"),
        ({"by_name": {"a": {"name": "x"}}}, r"expected int64, got nothing.*\(in size\) - at field by_name"),
        ({"by_name": {"a": {"size": 1, "sise": 1}}}, "'sise' too - at field by_name"),
        (
            {"by_name": {"a": Sized("x", None)}},  # type: ignore[arg-type]
            "expected int64, got str 'x' - at field size of Sized - at field by_name",
        ),
    ],
)
def test_values_inside_dicts_and_tuples_are_checked(changed: dict[str, Any], message: str) -> None:
    one = Sized(1, None)
    values = {"by_name": {"a": one}, "pair": (one, 1.0), "scores": {"x": 1.0}, "list": (1.0,), "one": one, **changed}
    with pytest.raises(SchemaError, match=message):
        Nesting.from_data(values)
    with pytest.raises(SchemaError, match=message):
        _ = Nesting(**values).packed


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"text" * 9])
def test_invalid_packed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((FormatError, SchemaError)):
        INNER.from_bytes(data)


@given(st.binary(max_size=60))
def test_random_bytes_unpack_or_raise_shardex_error(data: bytes) -> None:
    for packed in (data, b"\x82\xa6values\xc4" + bytes([len(data)]) + data + b"\xa4name\xa1x"):
        with suppress(ShardexError):
            assert isinstance(INNER.from_bytes(packed), Inner)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(SchemaError, match="MessagePack"):
        _ = everything(anything=1 << 70).packed
    with pytest.raises(SchemaError, match="- at field plain"):
        _ = everything(plain=np.array([object()])).packed


def test_equality() -> None:
    assert everything() == everything()
    assert everything() != everything(typed=np.array([1, 2], np.float32))
    assert everything(shaped=np.array([np.nan] * 3, np.float32)) == everything(
        shaped=np.array([np.nan] * 3, np.float32)
    ), "NaN equals NaN"
    assert everything() != everything(many=[]) and everything() != 3
    assert Inner(np.zeros(1, np.int16)) != Inner(np.zeros(1, np.int32)), "dtypes count"
    with pytest.raises(TypeError, match="unhashable"):
        hash(everything())


def test_repr_is_short() -> None:
    assert repr(Inner(np.zeros(9, np.int16))) == "Inner(values=int16[9], name='none')"


def test_samples_can_be_pickled_and_copied() -> None:
    one = everything(plain=np.arange(3))  # pickled, arrays lose the order of their bytes
    assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(everything(), note="x").note == "x"


def test_as_wds() -> None:
    one, two = everything().as_wds, everything().as_wds
    assert set(one) == {"__key__", "msgpack"} and one["__key__"] != two["__key__"] and "." not in one["__key__"]
    assert Everything.from_bytes(one["msgpack"]) == everything()
    untyped = sx.DictSample({"__key__": "k7", "x": np.arange(2)})
    assert untyped.as_wds == {"__key__": "k7", "msgpack": untyped.packed}
    assert codecs.COMPACT.decode(msgspec.msgpack.decode(untyped.packed)["x"]).tolist() == [0, 1]


# -- how classes are made --------------------------------------------------------------------------------------


def test_options_and_subclassing() -> None:
    @sx.packable(frozen=True, kw_only=True)
    class Frozen:
        x: int

    class Derived(sx.PackableSample, frozen=True):
        x: int

    @sx.packable
    @dataclasses.dataclass
    class Both(sx.PackableSample):
        x: NDArray[np.int64]

    @dataclasses.dataclass
    class Old(sx.PackableSample):
        x: NDArray[np.int64]

    for frozen in (Frozen(x=1), Derived(x=1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            frozen.x = 2  # type: ignore[misc]
    for kind in (Both, Old):
        assert kind(np.arange(3)) == kind(np.arange(3)) and repr(kind(np.arange(3))).endswith("(x=int64[3])")
        assert kind.from_bytes(kind(np.arange(3)).packed) == kind(np.arange(3))
    with pytest.raises(SchemaError, match="expected a class with annotated fields"):
        sx.packable(3)  # type: ignore[call-overload]


def test_reserved_field_names_are_refused() -> None:
    with pytest.raises(SchemaError, match="expected other field names than packed, which every sample has"):

        @sx.packable
        class Clash:
            packed: bytes

    with pytest.raises(SchemaError, match="expected a class with annotated fields, got Empty without"):

        @sx.packable
        class Empty:
            pass


def test_a_repr_never_fails() -> None:
    class Unknown(sx.PackableSample):
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    assert repr(Unknown(3)) == "Unknown(x=3)" and Unknown(3) == Unknown(3)


def test_methods_and_inheritance() -> None:
    class Named:
        def title(self) -> str:
            return "plain"

    @sx.packable
    class First(Named):
        x: int

        def __post_init__(self) -> None:
            self.y = self.x + 1

        def title(self) -> str:
            return super().title() + "!"

    @sx.packable
    class Second(First):
        z: int = 3

    second: Any = Second
    assert Second(1).title() == "plain!" and Second(1).y == 2
    assert list(Features.of(Second)) == ["x", "z"] and second.from_data({"x": 4}) == Second(4)
    assert First(1) != Second(1)


def test_local_classes_with_string_annotations() -> None:
    @sx.packable
    class Local(sx.PackableSample):
        part: LocalPart | None  # type: ignore[name-defined]  # noqa: F821
        x: NDArray[np.int8] = dataclasses.field(default_factory=lambda: np.zeros(1, np.int8))

    class Part(sx.PackableSample):
        n: int

    @sx.packable
    class Whole(sx.PackableSample):
        part: Part
        parts: list[Part]

    one = Whole(Part(1), [Part(2)])
    assert Whole.from_bytes(one.packed) == one
    with pytest.raises(SchemaError, match=r"expected annotations that the module of Local defines, .*LocalPart"):
        _ = Local(None).packed


def test_a_class_that_contains_itself_is_refused() -> None:
    with pytest.raises(SchemaError, match="expected a class that does not contain itself, got Node"):
        _ = Node(1, None).packed


@sx.packable
class Node(sx.PackableSample):
    x: int
    next: Node | None


def test_a_field_that_cannot_be_stored_is_named() -> None:
    @sx.packable
    class Odd(sx.PackableSample):
        x: set[int]

    with pytest.raises(SchemaError, match="expected a feature, a dtype or a type"):
        _ = Odd({1}).packed


# -- datasets of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["arrow", "parquet", "tar", "jsonl"])
def test_typed_samples_are_written_and_read(tmp_path: Path, format: str) -> None:
    @sx.packable
    class Series:
        history: Annotated[NDArray[np.float32], sx.Array("float32", (3,))]
        free: Annotated[NDArray[np.int32], sx.Array("int32", (None,))]
        kind: Kind
        inner: Part
        station: str = "?"
        note: str | None = None

    samples = [
        Series(np.full(3, k, np.float32), np.arange(k, dtype=np.int32), Kind.CAT, Part(k), f"s{k}", None if k else "n")
        for k in range(5)
    ]
    sx.write(tmp_path / "d", samples, format=format)
    ds = sx.open(tmp_path / "d", Series, format=format)
    assert list(ds) == [ds[k] for k in range(5)] == samples and ds.sample_type is Series
    batch = next(ds.ordered(2))
    assert batch.history.shape == (2, 3) and batch.sample_type is Series and batch.samples == samples[:2]
    assert [type(one) for one in ds[1:3].shuffle(1)] == [Series] * 2
    again = pickle.loads(pickle.dumps(sx.open(tmp_path / "d", Inner2, format=format)))
    assert again[2] == Inner2("s2", 7)


@sx.packable
class Part:
    n: int


@sx.packable
class Inner2:
    station: str
    lacking: int = 7


def test_arrays_of_any_shape_are_stacked_in_batches(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [Inner(np.full(3, k, np.int16)) for k in range(4)])
    ds = sx.open(tmp_path / "d", Inner)
    assert next(ds.ordered(2)).values.tolist() == [[0] * 3, [1] * 3]
    assert next(iter(sx.Loader(ds, 4))).values.shape == (4, 3)
    assert sx.Batch.of(ds).samples == list(ds)


def test_arrays_in_dicts(tmp_path: Path) -> None:
    class Held(sx.PackableSample):
        parts: dict[str, NDArray[np.float32]]

    one = Held({"a": np.array([0.5, 1.5], np.float32)})
    assert Held.from_bytes(one.packed) == one
    assert sx.write(tmp_path / "d", [one]).as_type(Held)[0] == one


def test_writers_take_the_schema_from_the_class(tmp_path: Path) -> None:
    with sx.create(tmp_path / "a", Inner) as out:
        out.append(Inner(np.arange(2, dtype=np.int16)))
        out.append(values=[3], name="k")
        with pytest.raises(SchemaError, match="field values"):
            out.append(Inner(np.zeros(2)))  # type: ignore[arg-type]
    with sx.create(tmp_path / "b") as out:
        out.extend([Inner(np.arange(2, dtype=np.int16)), {"values": [3], "name": "k"}])
    for name in "ab":
        ds = sx.open(tmp_path / name)
        assert ds.features == Features.of(Inner) and ds[1] == {"values": np.array([3], np.int16), "name": "k"}
    with sx.edit(tmp_path / "a") as tx:
        tx.append(Inner(np.zeros(1, np.int16), "later"))
    assert sx.open(tmp_path / "a", Inner)[-1] == Inner(np.zeros(1, np.int16), "later")


def test_lists_of_samples_are_datasets() -> None:
    ds: sx.Dataset[Any] = sx.open([Inner(np.arange(k, dtype=np.int16), f"n{k}") for k in range(4)])
    assert ds.sample_type is Inner and ds[2].name == "n2" and ds.select("name").sample_type is sx.DictSample
    assert sx.concat(ds, ds)[5] == ds[1] and sx.concat(ds, ds).sample_type is Inner
    assert sx.open(ds, Inner).rows is ds.rows


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl"])
def test_opening_data_that_does_not_match_names_the_fields(tmp_path: Path, format: str) -> None:
    sx.write(tmp_path / "d", [{"x": 1, "name": "a"}], format=format)

    @sx.packable
    class Wrong:
        name: int
        y: float
        z: str | None

    with pytest.raises(SchemaError, match="name"):
        sx.open(tmp_path / "d", Wrong, format=format)[0]
    if format != "jsonl":
        with pytest.raises(SchemaError, match=r"field name is text, not int64; field y \(float64\) is missing$"):
            sx.open(tmp_path / "d", Wrong, format=format)
    with pytest.raises(
        SchemaError, match=r"expected a sample type \(DictSample, or a class .* a dataclass, .*\), got int"
    ):
        sx.open(tmp_path / "d", int)


def test_values_that_do_not_match_are_reported_when_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 30 + '{"n": "x"}\n{"n": null}\n{}\n')
    for ds in (sx.open(tmp_path).as_type(Part), sx.open(tmp_path, Part)):
        assert ds[29] == Part(1) and len(ds.read(range(30))["n"]) == 30
        for row, found in ((30, "str 'x'"), (31, "no"), (32, "no")):
            for read in (ds.__getitem__, lambda row, ds=ds: ds.read([0, row])):
                with pytest.raises(SchemaError, match=f"expected int64, got {found}.*a.jsonl"):
                    read(row)


def test_none_for_a_required_field(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"n": 1.5}, {"n": None}])

    @sx.packable
    class Score:
        n: float

    ds = sx.open(tmp_path / "d", Score)
    assert ds[0] == Score(1.5)
    for read in (lambda: ds[1], lambda: ds.read([0, 1])):
        with pytest.raises(SchemaError, match=r"expected float64, got nothing .* - at sample 1 of .*field n of Score"):
            read()


def test_numbers_are_widened_and_packed_arrays_decoded(tmp_path: Path) -> None:
    @sx.packable
    class Wide:
        x: float
        n: int
        a: NDArray[np.float64]

    raw = [{"x": np.float32(0.5), "n": np.int8(k), "a": np.full(2, k, np.float32)} for k in range(3)]
    sx.write(tmp_path / "d", raw)
    ds = sx.open(tmp_path / "d", Wide)
    assert ds[2] == Wide(0.5, 2, np.full(2, 2.0)) and ds.read([0, 2])["n"].dtype == np.int64
    assert ds.read([0])["x"].dtype == np.float64
    packed = sx.open([{"values": codecs.COMPACT.encode(np.arange(3, dtype=np.int16)), "name": "x"}])
    assert packed.as_type(Inner)[0] == Inner(np.arange(3, dtype=np.int16), "x")


# -- what the real systems wrote -------------------------------------------------------------------------------


class Atdata(sx.PackableSample):
    image: NDArray[Any]
    label: str
    metadata: dict[str, Any]
    maybe: NDArray[Any] | None
    score: float
    n: int
    flag: bool
    tags: list[str]
    blob: bytes


def unfolded(value: Any) -> Any:
    """A value of expected.json; arrays as dtype, shape and checksum."""
    if isinstance(value, dict) and "sha256_C" in value:
        return value["dtype"], tuple(value["shape"]), value["sha256_C"]
    return bytes.fromhex(value["__bytes__"]) if isinstance(value, dict) and "__bytes__" in value else value


def told(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    return value


@pytest.fixture
def fixtures(tmp_path: Path) -> Path:
    """Return a copy, because opening a tar writes an index next to it."""
    return Path(shutil.copytree(FIXTURES, tmp_path / "atdata"))


def test_atdata_tars_as_typed_samples(fixtures: Path) -> None:
    expected = json.loads((fixtures / "expected.json").read_text())["single"]["samples"]
    ds = sx.open(fixtures / "single", Atdata)
    assert len(ds) == len(expected) == 10
    for found in (list(ds), [ds[k] for k in range(10)], sx.open(fixtures / "single").as_type(Atdata)):
        for sample, wanted in zip(found, expected, strict=True):
            assert {name: told(getattr(sample, name)) for name in wanted} == {n: unfolded(v) for n, v in wanted.items()}


def test_packed_bytes_equal_those_of_atdata(fixtures: Path) -> None:
    with tarfile.open(fixtures / "single" / "train-data.tar") as tar:
        members = [tar.extractfile(member).read() for member in tar.getmembers()]  # type: ignore[union-attr]
    ds = sx.open(fixtures / "single", Atdata)
    assert len(members) == 10 and [sample.packed for sample in ds] == members
    assert [Atdata.from_bytes(one) for one in members] == list(ds)


@pytest.mark.parametrize("name", ["sharded", "legacy_npy"])
def test_atdata_shards_and_npy_arrays(fixtures: Path, name: str) -> None:
    expected = json.loads((fixtures / "expected.json").read_text())[name]["samples"]
    kinds = {field: type(unfolded(value)) for field, value in expected[0].items()}
    hints = {field: NDArray[Any] if kind is tuple else kind for field, kind in kinds.items()}
    made: Any = sx.packable(type("Made", (), {"__annotations__": hints}))
    for sample, wanted in zip(sx.open(fixtures / name, made), expected, strict=True):
        assert {field: told(getattr(sample, field)) for field in wanted} == {n: unfolded(v) for n, v in wanted.items()}


def test_string_annotations_of_a_script_in_worker_processes(tmp_path: Path) -> None:
    """Classes and lenses are sent to workers by value, because workers do not import the script."""
    script = tmp_path / "script.py"
    script.write_text(
        "from __future__ import annotations\n"
        "import numpy as np, shardex as sx\n"
        "from numpy.typing import NDArray\n"
        "@sx.packable\n"
        "class Series:\n"
        "    x: NDArray[np.float32]\n"
        "@sx.packable\n"
        "class Mean:\n"
        "    mean: float\n"
        "@sx.lens\n"
        "def mean(s: Series) -> Mean:\n"
        "    return Mean(float(s.x.mean()))\n"
        "if __name__ == '__main__':\n"
        "    sx.write('d', [Series(np.full(2, k, np.float32)) for k in range(8)])\n"
        "    ds = sx.open('d', Series).as_type(Mean).filter(lambda m: m.mean > 1)\n"
        "    for batch in sx.Loader(ds, 3, workers=2, worker_type='process'):\n"
        "        print(batch.mean.tolist(), batch.sample_type.__name__)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[2.0, 3.0, 4.0] Mean\n[5.0, 6.0, 7.0] Mean\n", done.stderr


class Quality(enum.Enum):
    RAW = "raw"
    CLEAN = "clean"


class Held(sx.PackableSample):
    a: NDArray[np.float32]


class Deep(sx.PackableSample):
    """Arrays, samples and enums at all depths of what is stored as JSON."""

    named: dict[str, Held]
    maybe: dict[str, NDArray[np.int16] | None]
    lists: dict[str, list[NDArray[np.float64]]]
    pair: tuple[Quality, Held]
    label: Annotated[Quality, sx.ClassLabel(("raw", "clean"))]


@pytest.mark.parametrize("format", ["arrow", "jsonl", "parquet", "tar"])
def test_values_inside_json_come_back_typed(format: str, tmp_path: Path) -> None:
    one = Held(np.array([1, 2], "f4"))
    deep = Deep(
        {"k": one}, {"x": np.array([3], "i2"), "y": None}, {"z": [np.zeros(2)]}, (Quality.CLEAN, one), Quality.CLEAN
    )
    if format != "tar":  # a tar has a file per field, and lists of samples have no codec
        sx.write(tmp_path / "d", [deep], format=format)
        found = sx.open(tmp_path / "d", Deep)[0]
        assert found == deep and found.named["k"].a.dtype == np.float32 and found.pair[0] is Quality.CLEAN
    assert Deep.from_bytes(deep.packed) == deep
