"""Stored schemas: which changes break readers, classes for samples, stubs."""

from __future__ import annotations

import datetime
import decimal
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.catalog import class_of, compare_schemas, stub_of
from shardex.errors import SchemaError

OLD = {"x": "float32", "label": sx.ClassLabel(("a", "b")), "note": str | None}


@pytest.mark.parametrize(
    ("new", "level", "text"),
    [
        (OLD, "", "the same fields"),
        ({"note": str | None, "x": "float32", "label": OLD["label"]}, "patch", "patch: the order of the fields"),
        ({**OLD, "y": int | None}, "minor", "minor: y was added (int64 or none)"),
        ({**OLD, "y": int}, "major", "major: y was added (int64)"),
        ({"x": "float32", "label": OLD["label"]}, "major", "major: note was removed"),
        ({**OLD, "x": "float64"}, "major", "major: x is float64, was float32"),
        ({**OLD, "x": float | None}, "major", "major: x is float64 or none, was float32"),
        ({**OLD, "label": sx.ClassLabel(("a", "b", "c"))}, "minor", "minor: label has new classes c"),
        ({**OLD, "label": sx.ClassLabel(("b", "a"))}, "major", "major: label is"),
        ({"y": int}, "major", "major: x was removed; label was removed; note was removed; y was added (int64)"),
    ],
)
def test_changes_and_whether_they_break_readers(new: dict[str, Any], level: str, text: str) -> None:
    change = compare_schemas(sx.Features.of(OLD), sx.Features.of(new))
    assert change.level == level and str(change).startswith(text)


SCHEMA = sx.Features.of(
    {
        "x": sx.Array("float32", (2,)),
        "label": sx.ClassLabel(("a", "b")),
        "note": str | None,
        "day": datetime.date,
        "words": sx.Sequence(str),
        "place": sx.Struct({"lat": "float32"}),
        "any": sx.Json(),
        "raw": bytes,
        "n": "uint8",
        "ok": bool,
        "price": sx.Decimal(10, 2),
    }
)
SAMPLE = {
    "x": np.ones(2, np.float32),
    "label": 1,
    "note": None,
    "day": datetime.date(2026, 1, 2),
    "words": ["a"],
    "place": {"lat": 1.0},
    "any": {"y": [1]},
    "raw": b"r",
    "n": 3,
    "ok": True,
    "price": decimal.Decimal("1.50"),
}


def test_a_class_of_a_stored_schema_reads_the_data(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [SAMPLE], SCHEMA, register="@d")
    Sample = class_of(sx.Catalog().get("d").features, "Sample")
    assert sx.Features.of(Sample) == SCHEMA
    one = sx.open("@d", Sample)[0]
    assert isinstance(one, Sample) and one.note is None and one.x.tolist() == [1, 1] and one.label == 1
    assert one == sx.open("@d").as_type(Sample)[0]


def test_a_class_of_a_stored_schema_is_pickled() -> None:
    Sample = class_of(SCHEMA, "Sample")
    one = Sample(**SAMPLE)
    assert pickle.loads(pickle.dumps(one)) == one and pickle.loads(pickle.dumps(Sample)) is Sample
    assert class_of(SCHEMA, "Sample") is Sample and class_of(SCHEMA, "Other") is not Sample
    assert type(pickle.loads(pickle.dumps(Own(x=1)))) is Own and Own(x=1).double == 2
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).label)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(one), capture_output=True, check=True)
    assert done.stdout == b"1\n"


class Own(class_of(sx.Features.of({"x": int}), "Base")):  # type: ignore[misc]
    """A class that a user derives from that of a schema."""

    @property
    def double(self) -> int:
        return int(2 * self.x)


def test_a_stub_is_a_module_that_python_reads() -> None:
    text = stub_of(SCHEMA, "Sample")
    scope: dict[str, Any] = {}
    exec(compile(text, "stub", "exec"), scope)
    hints = scope["Sample"].__annotations__
    assert list(hints) == list(SCHEMA) and hints["note"] == str | None and hints["any"] is Any
    assert "    x: np.ndarray  # float32[2]\n" in text and text.startswith("import datetime\nimport decimal\n")
    exec(stub_of(sx.Features({}), "Empty"), {})


@pytest.mark.parametrize("name", ["a b", "class", "1x", "x-y", "__init__", "x\n    y", "x: int = print(1)", "é é"])
def test_names_that_python_does_not_allow_are_refused(name: str) -> None:
    for make in (class_of, stub_of):
        with pytest.raises(SchemaError, match="expected names that Python allows in a class"):
            make(sx.Features.of({name: int}), "Sample")
        with pytest.raises(SchemaError, match="expected names that Python allows in a class"):
            make(sx.Features.of({"x": int}), name)


def test_features_in_a_stub_are_on_one_line() -> None:
    text = stub_of(sx.Features.of({"x": sx.ClassLabel(("a\nimport os", "b"))}), "Sample")
    assert "\nimport os" not in text
