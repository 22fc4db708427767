"""Values for a new field: arrays of every kind, also where rows of the fragment were deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardex as sx
from shardex.errors import SchemaError
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Fragment
from shardex.native.manifest import publish, read_manifest
from shardex.sources import LocalSource


@pytest.fixture(params=[False, True], ids=["all rows", "one deleted"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    sx.write(tmp_path / "d", [{"x": k} for k in range(5 if request.param else 4)])
    if request.param:
        with sx.edit(tmp_path / "d") as tx:
            tx.delete(1)
    return tmp_path / "d"


def add(folder: Path, feature: Any, values: Any) -> list[Any]:
    with sx.edit(folder, progress=False) as tx:
        tx.add_field("y", feature, values)
    return [sample["y"] for sample in sx.open(folder)]


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("int64", np.arange(4)),
        ("int64", np.arange(4).astype(">i8")),
        ("float32", np.arange(4).astype(">f4")),
        ("int64", np.arange(8)[::2]),
        (str, np.array(["a", "b", "", "d"])),
        (str, np.array(["a", "b", "", "d"], object)),
        (bytes, np.array([b"a", b"b", b"", b"d"], object)),
        (sx.Optional(sx.Text()), np.array(["a", None, "", "d"], object)),
        (sx.Json(), np.array([{"a": 1}, [2], None, "x"], object)),
    ],
)
def test_arrays_of_every_kind(folder: Path, feature: Any, values: np.ndarray[Any, Any]) -> None:
    assert add(folder, feature, values) == values.tolist()


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_in_both_byte_orders(folder: Path, order: str) -> None:
    values = np.arange(12, dtype="f4").reshape(4, 3)
    assert np.array_equal(add(folder, sx.Array("float32", (3,)), values.astype(f"{order}f4")), values)


def test_ragged_arrays_as_objects(folder: Path) -> None:
    values = np.empty(4, object)
    values[:] = [np.arange(k, dtype="i4") for k in range(4)]
    assert [row.tolist() for row in add(folder, sx.Array("int32", (None,)), values)] == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        ("float64", np.arange(12.0).reshape(4, 3), "field y"),
        ("int64", np.ma.masked_array([1, 2, 3, 4], [False, True, False, False]), "an array with a mask"),
        ("int64", np.array(3), "got one number"),
        ("int64", np.arange(3), "expected 4 values for the field y, one per sample, got 3"),
        (sx.Array("float32", (2,)), np.zeros((4, 3), "f4"), "field y"),
    ],
)
def test_values_that_do_not_fit_raise(folder: Path, feature: Any, values: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        add(folder, feature, values)
    assert sx.open(folder).fields == ["x"]


# -- two fields of equal content --------------------------------------------------------------------------------------


def test_two_fields_with_the_same_values(tmp_path: Path) -> None:
    """A field is added, renamed, and added again with the same values."""
    folder = tmp_path / "d"
    sx.write(folder, [{"x": k} for k in range(4)], shard_rows=2)
    with sx.edit(folder) as tx:
        tx.add_field("a", "int64", range(4))
    with sx.edit(folder) as tx:
        tx.rename_field("a", "b")
    with sx.edit(folder) as tx:
        tx.add_field("a", "int64", range(4))
    check_two_fields(folder)


def test_two_fields_in_one_file(tmp_path: Path) -> None:
    """Older versions of shardex named files by content, so that two fields may share one."""
    folder = tmp_path / "d"
    sx.write(folder, [{"x": k} for k in range(4)], shard_rows=2)
    with sx.edit(folder) as tx:
        tx.add_field("b", "int64", range(4))
    place, fragments = LocalSource(folder), list[Fragment]()
    manifest = read_manifest(place, 2)
    for fragment in manifest.fragments:
        base, added = fragment.groups
        again = msgspec.structs.replace(added, fields={"a": "b"})
        fragments.append(msgspec.structs.replace(fragment, groups=[base, added, again]))
    schema = {**manifest.schema, "a": manifest.schema["b"]}
    assert publish(place, 3, msgspec.structs.replace(manifest, fragments=FragmentList(fragments), schema=schema))
    check_two_fields(folder)
    with sx.edit(folder) as tx:
        tx.update(1, a=7)
        tx.drop_field("b")
    assert list(sx.open(folder).read([0, 1, 2])["a"]) == [0, 7, 2]


def check_two_fields(folder: Path) -> None:
    expected = [{"x": k, "b": k, "a": k} for k in range(4)]
    ds = sx.open(folder)
    assert [dict(ds[k]) for k in range(4)] == expected == [dict(sample) for sample in ds]
    assert ds.read([3, 0], ["a"])["a"].tolist() == [3, 0]
    assert len(ds.where("a = 2 AND b = 2")) == 1
    assert sx.verify(folder) == []
    assert sx.recover(folder, folder.parent / "saved").samples == 4
    assert [dict(sample) for sample in sx.open(folder.parent / "saved")] == expected


@pytest.mark.parametrize(
    ("feature", "values", "error"),
    [
        ("int64", [0, 1, "x", 3], "expected int64, got str 'x' - at sample 2, field f"),
        ("int64", [0, None, 2, 3], "expected int64, got None - at sample 1, field f"),
        (str, ["a", "b", "c", 3], "expected text, got int - at sample 3, field f"),
        ("int64", lambda sample: sample.x if sample.x != 3 else "x", "got str 'x' - at sample [23], field f"),
    ],
)
def test_errors_name_the_sample(folder: Path, feature: Any, values: Any, error: str) -> None:
    """Deleted rows do not count."""
    with sx.edit(folder) as tx, pytest.raises(SchemaError, match=error):
        tx.add_field("f", feature, values)


def test_errors_name_the_sample_in_later_fragments(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": k} for k in range(9)], shard_rows=3)
    with sx.edit(tmp_path / "d") as tx:
        tx.delete([0, 4])
    with sx.edit(tmp_path / "d") as tx, pytest.raises(SchemaError, match="got str 'x' - at sample 5, field f"):
        tx.add_field("f", "int64", [0, 1, 2, 3, 4, "x", 6])
