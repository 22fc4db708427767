"""Type aliases in annotations: what they stand for, and classes and lenses that have them."""

import enum
import sys
import typing
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Required, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel
from typing_extensions import TypeAliasType, TypeVar

import shardex as sx
from shardex.errors import SchemaError
from shardex.features import Features, Json, Sequence, kinds


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


A, B = TypeVar("A"), TypeVar("B")
Vector: Any = TypeAliasType("Vector", NDArray[np.float32])
Maybe: Any = TypeAliasType("Maybe", int | None)
Label: Any = TypeAliasType("Label", Kind)
Box: Any = TypeAliasType("Box", list[A], type_params=(A,))  # type: ignore[valid-type]
Swapped: Any = TypeAliasType("Swapped", dict[B, A], type_params=(A, B))  # type: ignore[valid-type]
Same: Any = TypeAliasType("Same", A, type_params=(A,))


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Vector, NDArray[np.float32]),
        (Vector | None, NDArray[np.float32] | None),
        (list[Vector], list[NDArray[np.float32]]),
        (Annotated[Vector, "note"], Annotated[NDArray[np.float32], "note"]),
        (Required[Maybe], Required[int | None]),
        (ClassVar[Maybe], ClassVar[int | None]),
        (Box[int], list[int]),
        (Box[Box[int]], list[list[int]]),
        (Box[Maybe], list[int | None]),
        (Swapped[int, str], dict[str, int]),
        (Same[Same[int]], int),
        (tuple[Maybe, ...], tuple[int | None, ...]),
        (typing.List[Maybe], list[int | None]),  # noqa: UP006
    ],
)
def test_aliases_are_replaced(hint: Any, expected: Any) -> None:
    assert kinds.without_aliases(hint) == kinds.without_aliases(
        expected
    )  # numpy's own is an alias, too, from numpy 2.5 on


@pytest.mark.parametrize("hint", [int, None, 3, "int8", list[int], int | None, Literal["Maybe"], tuple[()], Any])
def test_other_annotations_stay(hint: Any) -> None:
    assert kinds.without_aliases(hint) is hint


def test_aliases_without_their_arguments() -> None:
    assert typing.get_origin(kinds.without_aliases(Box)) is list
    assert kinds.feature_of(NDArray) == kinds.feature_of(np.ndarray)


def test_too_few_arguments_raise() -> None:
    with pytest.raises(SchemaError, match="type alias that can be evaluated, got: Too few arguments"):
        kinds.feature_of(Swapped[int])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the statement `type`")
def test_aliases_of_the_statement_type() -> None:
    names: dict[str, Any] = {}
    for alias in ("Tree = list[Tree]", "Wrong = list[Unknown]", "Pair[T] = tuple[T, T]", "Data = dict[str, Data]"):
        exec(f"type {alias}", names)
    assert kinds.without_aliases(names["Pair"][int]) == tuple[int, int]
    assert kinds.feature_of(names["Tree"]) == Sequence(Json())  # inside of itself, an alias is any value
    assert kinds.feature_of(names["Data"]) == Json()
    with pytest.raises(SchemaError, match="'Unknown' is not defined - at alias Wrong"):
        kinds.feature_of(names["Wrong"])


class Typed(sx.PackableSample):
    history: Vector
    kind: Label
    labels: Box[Label]
    number: Maybe = None


class Tuple(NamedTuple):
    history: Vector
    kind: Label
    labels: Box[Label]
    number: Maybe


class Dict(TypedDict):
    history: Vector
    kind: Label
    labels: Box[Label]
    number: Maybe


class Model(BaseModel, arbitrary_types_allowed=True):
    history: Vector
    kind: Label
    labels: Box[Label]
    number: Maybe


@pytest.mark.parametrize("kind", [Typed, Tuple, Dict, Model])
def test_classes_have_the_features_of_what_their_aliases_stand_for(kind: type, tmp_path: Path) -> None:
    plain = {"history": NDArray[np.float32], "kind": str, "labels": list[str], "number": int | None}
    assert Features.of(kind) == Features.of(plain)
    values = {"history": np.arange(3, dtype=np.float32), "kind": Kind.DOG, "labels": [Kind.CAT], "number": None}
    with sx.create(tmp_path / "data", kind) as out:
        out.append(kind(**values))
    (found,) = sx.open(tmp_path / "data", kind)
    found = found if isinstance(found, dict) else {name: getattr(found, name) for name in values}
    assert found["history"].dtype == np.float32 and found["history"].tolist() == [0, 1, 2]
    assert (found["kind"], found["labels"], found["number"]) == (Kind.DOG, [Kind.CAT], None)


Alias: Any = TypeAliasType("Alias", Typed)


def test_lenses_of_aliases() -> None:
    def get(sample: Alias) -> Alias:
        return sample

    made = sx.lens(get)
    assert (made.source, made.view) == (Typed, Typed)
