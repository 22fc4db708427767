"""`digest` is equal for equal values in every process, and different for different values."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shardex.kernel import digest


@dataclass(frozen=True)
class Point:
    x: int
    y: Any = None
    seen: int = field(default=0, compare=False)


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


DIFFERENT: list[Any] = [
    None,
    True,
    1,
    1.0,
    1j,
    "1",
    b"1",
    "",
    b"",
    "\ud800",
    [],
    (),
    {},
    [1],
    (1,),
    [1, 1],
    [[1], 1],
    [[1, 1]],
    ["a", "b"],
    ["ab"],
    ["a", ["b"]],
    {"a": 1},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {1, 2},
    frozenset({1, 2}),
    np.int64(1),
    np.int32(1),
    np.array(1.0),
    np.array([1.0]),
    np.array([[1.0]]),
    np.zeros((0, 2)),
    np.zeros((2, 0)),
    np.array(["a", "bc"]),
    np.array(["a", 1], object),
    np.array(["2020"], "M8[s]"),
    np.array(["2020"], "M8[ms]"),
    np.zeros(2, "i4,f8"),
    Point(1),
    Point(2),
    Point(1, Point(2)),
    Plain(),
    Plain(x=1),
    Plain(x=2),
    Plain(y=1),
    object(),
]


def test_different_values_have_different_digests() -> None:
    names = [digest(value) for value in DIFFERENT]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)


@pytest.mark.parametrize("value", DIFFERENT, ids=lambda value: type(value).__name__)
def test_equal_values_have_equal_digests(value: Any) -> None:
    assert digest(value) == digest(pickle.loads(pickle.dumps(value))) == digest(value)


def test_several_values_differ_from_one_sequence() -> None:
    assert len({digest(), digest("a", "b"), digest("ab"), digest(["a", "b"]), digest(("a", "b"))}) == 5


def test_memory_layout_does_not_matter() -> None:
    array = np.arange(24).reshape(4, 6)
    assert digest(array[::2, ::-1]) == digest(array[::2, ::-1].copy())
    assert digest(np.asfortranarray(array)) == digest(array)


def test_uncompared_dataclass_fields_are_ignored() -> None:
    assert digest(Point(1, seen=1)) == digest(Point(1, seen=2))


def test_object_that_contains_itself() -> None:
    one, other = Plain(name="a"), Plain(name="a")
    one.__dict__["self"], other.__dict__["self"] = one, other
    assert digest(one) == digest(other) != digest(Plain(name="a"))


def test_digest_is_the_same_in_another_process() -> None:
    code = (
        "import numpy as np; from shardex.kernel import digest; print(digest({'a': {1, 2}}, {'x', 'y'}, np.arange(3)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest({"a": {1, 2}}, {"x", "y"}, np.arange(3))
