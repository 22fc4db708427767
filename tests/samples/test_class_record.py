"""Dataclasses, pydantic models, named tuples and typed dicts as samples and as sample types."""

import collections
import dataclasses
import datetime
import enum
import pickle
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import SchemaError

T = TypeVar("T")


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


@dataclasses.dataclass
class Place:
    city: str
    zip: int = 0


@dataclasses.dataclass
class Data:
    x: int
    v: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
    kind: Kind = Kind.CAT
    place: Place | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    x: int
    v: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
    kind: Kind = Kind.CAT
    place: Place | None = None
    tags: list[str] = pydantic.Field(default_factory=list)


class Tuple(NamedTuple):
    x: int
    v: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
    kind: Kind = Kind.CAT
    place: Place | None = None
    tags: list[str] = []  # noqa: RUF012  # every tuple shares it, which is the user's choice


class Dict(TypedDict):
    x: int
    v: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]
    kind: Kind
    place: NotRequired[Place]
    tags: list[str]


OBJECTS = [Data, Model, Tuple]
ALL = [*OBJECTS, Dict]


def make(kind: Any, k: int) -> Any:
    values = {"x": k, "v": np.full(2, k, "f4"), "kind": Kind.DOG, "place": Place("Bern", k), "tags": ["a"] * (k % 3)}
    return kind(**values)


def field(sample: Any, name: str) -> Any:
    return sample[name] if isinstance(sample, dict) else getattr(sample, name)


@pytest.mark.parametrize("format", ["arrow", "jsonl", "parquet", "tar", "bins"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_instances_are_samples(tmp_path: Path, kind: Any, format: str) -> None:
    ds: Any = sx.write(tmp_path / "d", [make(kind, k) for k in range(5)], format=format)
    typed = sx.open(tmp_path / "d", kind, format=format)
    assert type(typed[3]) is kind and typed[3].kind is Kind.DOG and typed[3].place == Place("Bern", 3)
    assert typed[3].v.tolist() == [3.0, 3.0] and typed[4].tags == ["a"]
    assert len(ds) == 5


@pytest.mark.parametrize("kind", ALL)
def test_classes_are_sample_types(tmp_path: Path, kind: Any) -> None:
    with sx.create(tmp_path / "d", kind) as out:
        out.append(x=1, v=[1, 2], kind="dog", place={"city": "Bern", "zip": 3}, tags=["a"])
    ds = sx.open(tmp_path / "d", kind)
    assert ds.sample_type is kind and str(ds.features["v"]) == "float32[2]"
    sample = ds[0]
    assert field(sample, "kind") is Kind.DOG and field(sample, "place") == Place("Bern", 3)
    assert type(sample) is (dict if kind is Dict else kind)
    batch = next(ds.ordered(4))
    assert batch.v.shape == (1, 2) and field(batch.samples[0], "x") == 1 and field(batch[0], "x") == 1
    loaded = next(iter(sx.Loader(ds, 4)))
    assert field(loaded.samples[0], "kind") is Kind.DOG
    assert field(sx.open(tmp_path / "d").as_type(kind)[0], "x") == 1
    assert field(next(iter(ds[:1])), "x") == 1 and ds.as_type(sx.DictSample)[0].x == 1
    assert field(pickle.loads(pickle.dumps(ds))[0], "x") == 1
    assert field(ds.where("x = 1")[0], "x") == 1


@pytest.mark.parametrize("kind", OBJECTS)
def test_fields_that_the_data_lacks_take_their_defaults(kind: Any) -> None:
    sample = sx.open([{"x": 1, "v": np.zeros(2, "f4")}]).as_type(kind)[0]
    assert sample.kind is Kind.CAT and sample.place is None and sample.tags == []


def test_a_key_that_is_not_required_is_optional() -> None:
    data = [{"x": 1, "v": np.zeros(2, "f4"), "kind": "cat", "tags": []}]
    assert sx.open(data).as_type(Dict)[0]["place"] is None
    with pytest.raises(SchemaError, match=r"field x .* is missing"):
        sx.open([{"v": np.zeros(2, "f4"), "kind": "cat", "tags": []}]).as_type(Dict)


@pytest.mark.parametrize("kind", OBJECTS)
def test_samples_given_by_keywords_take_defaults_and_typed_values(tmp_path: Path, kind: Any) -> None:
    with sx.create(tmp_path / "d", kind) as out:
        out.append(x=1, v=np.zeros(2, "f4"))
        out.append({"x": 2, "v": [0, 1]}, kind=Kind.DOG)
        out.extend([{"x": 3, "v": [0, 1], "place": Place("Bern")}])
    ds = sx.open(tmp_path / "d", kind)
    assert [one.kind for one in ds] == [Kind.CAT, Kind.DOG, Kind.CAT] and ds[2].place == Place("Bern", 0)
    with pytest.raises(SchemaError, match=r"got nothing .* field v"), sx.create(tmp_path / "e", kind) as out:
        out.append(x=1)


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_list_of_instances_is_a_dataset_of_that_type(kind: Any) -> None:
    ds = sx.open([make(kind, k) for k in range(3)])
    assert type(ds[1]) is kind and ds[1].x == 1
    doubled = ds.map(lambda one: make(kind, 2 * one.x))
    assert type(doubled[2]) is kind and doubled[2].x == 4 and doubled["x"].tolist() == [0, 2, 4]


def test_a_value_that_does_not_fit_names_sample_and_field(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"expected int64, got str 'a' .*x"):
        sx.write(tmp_path / "d", [Data("a", np.zeros(2, "f4"))])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="field x is text, not int64"):
        sx.open([{"x": "a", "v": np.zeros(2, "f4")}]).as_type(Data)


def test_validators_of_a_pydantic_model_are_called() -> None:
    class Positive(pydantic.BaseModel):
        x: int = pydantic.Field(gt=0, alias="X", validation_alias="XX")

    ds = sx.open([{"x": 1}, {"x": -1}]).as_type(Positive)
    assert ds[0].x == 1
    with pytest.raises(SchemaError, match="expected values that Positive accepts"):
        ds[1]


def test_nested_and_generic_pydantic_models(tmp_path: Path) -> None:
    class Inner(pydantic.BaseModel):
        a: int

    class Outer(pydantic.BaseModel, Generic[T]):
        inner: Inner
        many: list[Inner] = []
        by_name: dict[str, Inner] = {}
        value: T
        when: datetime.date = datetime.date(2020, 1, 2)

    sample = Outer[int](inner=Inner(a=1), many=[Inner(a=2)], by_name={"k": Inner(a=3)}, value=5)
    sx.write(tmp_path / "d", [sample])
    assert sx.open(tmp_path / "d", Outer[int])[0] == sample


def test_a_named_tuple_without_annotations_is_a_sample(tmp_path: Path) -> None:
    point = collections.namedtuple("point", "x y")
    assert sx.write(tmp_path / "d", [point(1, 2.5)])[0] == {"x": 1, "y": 2.5}
    with pytest.raises(SchemaError, match="expected a sample type"):
        sx.open(tmp_path / "d", point)


def test_lenses_between_dataclasses() -> None:
    @dataclasses.dataclass
    class Small:
        x: int

    ds = sx.open([make(Data, 5)])
    assert ds.as_type(Small)[0] == Small(5)
    lens: sx.Lens[Any, Any] = sx.Lens.between(Data, Small)
    assert lens.put(Small(7), ds[0]).x == 7 and lens.put(Small(7), ds[0]).kind is Kind.DOG


def test_edits_take_instances(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [make(Data, 0)])
    with sx.edit(tmp_path / "d") as tx:
        tx.append(make(Data, 1))
    assert sx.open(tmp_path / "d", Data)[1].x == 1
