"""Native datasets with right checksums and wrong content: errors that name the file, and problems of `verify`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.native.data_file_damage import check_columns
from shardex.native.data_file_table import MAGIC_SIZE
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource
from shardex.store import recover, verify
from tests.data_files import table_of
from tests.faults.forgeries import entries, read_json, replace_file, replace_values, write_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six samples with keys in two files, with newer values and a deleted row."""
    samples = [{"k": f"key {k}", "n": k, "s": f"text {k}"} for k in range(6)]
    sx.write(tmp_path / "d", samples, {"k": str, "n": int, "s": str | None}, shard_rows=3, key="k", progress=False)
    with sx.edit(tmp_path / "d", progress=False) as tx:
        tx.update(["key 4", "key 5"], s=["newer", None])
        tx.delete("key 1")
    return tmp_path / "d"


def first_values(folder: Path) -> dict[str, Any]:
    """Return the entry of the file with the values of the first fragment."""
    found: dict[str, Any] = read_json(folder)["fragments"][0]["groups"][0]
    return found


def put(folder: Path, entry: dict[str, Any], at: int, number: int) -> None:
    """Replace a number of 8 bytes in the batches of a file."""
    data = bytearray((folder / entry["path"]).read_bytes())
    data[at : at + 8] = number.to_bytes(8, "little", signed=True)
    replace_values(folder, entry, bytes(data))


def body_of(folder: Path, entry: dict[str, Any]) -> int:
    """Return where the values of the first batch of a file begin."""
    (file,) = [one for one in _files(folder) if one.path == entry["path"]]
    return int(table_of(folder, file).buffers[0, :, 0].min())


def _files(folder: Path) -> list[Any]:
    manifest = read_manifest(LocalSource(folder), 2)
    keys = [one.keys for one in manifest.fragments if one.keys is not None]
    return [*(file for one in manifest.fragments for file in one.groups), *keys, *manifest.deleted, *manifest.overlays]


# -- data files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["deleted", "overlays"])
def test_header_of_a_batch_of_row_ids_is_not_believed(folder: Path, kind: str) -> None:
    """Readers find ids through the table at the foot; Arrow, which may crash, does not see the header."""
    entry = read_json(folder)[kind][0]
    expected, body = [dict(one) for one in sx.open(folder)], body_of(folder, entry)
    for at in range(body - 160, body, 8):
        good = (folder / entry["path"]).read_bytes()
        put(folder, entry, at, -1)
        assert [dict(one) for one in sx.open(folder)] == expected
        assert {one.file for one in verify(folder, 2)} <= {entry["path"]}
        replace_file(folder, entry["path"], good)
    assert verify(folder, 2) == []


def test_schema_before_the_first_batch_that_differs_is_a_problem(folder: Path) -> None:
    """It is not that of the foot, which readers use; or its names are not UTF-8."""
    entry = first_values(folder)
    data = (folder / entry["path"]).read_bytes()
    at = data.index(b"n\0\0\0", MAGIC_SIZE)
    for name in (b"m", b"\xff"):
        replace_values(folder, entry, data[:at] + name + data[at + 1 :])
        found = verify(folder, 2)
        assert {one.file for one in found} == {entry["path"]} and found[0].samples == range(2)
        assert recover(folder, f"{folder} {name!r}", progress=False).samples == 3


def test_null_counts_above_the_rows_are_errors(folder: Path) -> None:
    entry = read_json(folder)["overlays"][0]
    data = bytearray((folder / entry["path"]).read_bytes())
    at = data.index(b"SXTABLE2") + 64 + 16 + 5 * 16 + 8  # that of the second column, behind five buffers
    data[at : at + 8] = (9).to_bytes(8, "little")
    replace_file(folder, entry["path"], bytes(data))
    with pytest.raises(FormatError, match="expected valid Arrow data, got a damaged batch"):
        list(sx.open(folder))
    assert {one.file for one in verify(folder, 2)} == {entry["path"]}


def test_rows_of_a_table_that_no_byte_holds_are_refused(tmp_path: Path) -> None:
    """A column of nulls takes no bytes."""
    sx.write(tmp_path / "d", [{"x": None}], {"x": sx.Null()}, progress=False)
    manifest = read_json(tmp_path / "d")
    manifest["fragments"][0]["groups"][0]["rows"] = 1 << 39
    manifest["fragments"][0]["rows"] = manifest["rows"] = manifest["ids"] = 1 << 39
    write_json(tmp_path / "d", manifest)
    entry = first_values(tmp_path / "d")
    data = bytearray((tmp_path / "d" / entry["path"]).read_bytes())
    at = data.index(b"SXTABLE2") + 64
    data[at : at + 8] = (1 << 39).to_bytes(8, "little")
    replace_file(tmp_path / "d", entry["path"], bytes(data))
    with pytest.raises(FormatError, match=r"\.arrow: expected batches with as many rows as their bytes can hold"):
        sx.open(tmp_path / "d")[0]


def test_rows_in_key_tables_that_the_fragment_does_not_have_are_errors(folder: Path) -> None:
    entry = read_json(folder)["fragments"][1]["keys"]
    (file,) = [one for one in _files(folder) if one.path == entry["path"]]
    begin = int(table_of(folder, file).buffers[0, 3, 0])
    for row in (3, 1 << 40, -1):
        for place in range(3):
            put(folder, entry, begin + 8 * place, row)
        for read in (lambda: sx.open(folder).get("key 5"), lambda: sx.open(folder).rows_of(["key 5"])):
            with pytest.raises(FormatError, match=rf"{entry['path']}: expected rows below 3 in a table of keys, got"):
                read()
        assert {one.file for one in verify(folder, 2)} == {entry["path"]}


# -- manifests ------------------------------------------------------------------------------------------------------


def forged(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        manifest = read_json(folder)
        change(manifest)
        write_json(folder, manifest)

    return forge


def _huge(entry: dict[str, Any], **numbers: int) -> None:
    entry.update(numbers)


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "overlay of many rows": (lambda one: _huge(one["overlays"][0], rows=1 << 46), "expected fewer than 70368744177664"),
    "deleted rows": (lambda one: _huge(one["deleted"][0], rows=1 << 35), "expected fewer than 34359738368 rows"),
    "large overlay": (lambda one: _huge(one["overlays"][0], rows=1 << 46, size=1 << 60), "expected fewer than"),
    "many batches": (
        lambda one: _huge(one["overlays"][0], rows=1 << 33, count=1 << 33, size=1 << 60, end=1 << 60),
        "expected at most 1048576 batches",
    ),
    "large size": (
        lambda one: _huge(one["overlays"][0], size=1 << 63),
        "expected batches inside the 9223372036854775808",
    ),
    "ids": (lambda one: one.update(ids=1 << 63), "expected up to 4611686018427387904 ids"),
    "negative id": (lambda one: one["fragments"][0].update(first=-1), "expected ids below 6"),
    "key": (lambda one: one.update(key="other"), "expected the key to be one of the fields k, n, s, got 'other'"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_contradictions_in_a_manifest_are_refused_without_much_memory(folder: Path, case: str) -> None:
    change, message = MANIFESTS[case]
    forged(change)(folder)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=rf"_shardex/00000002.json: {message}"):
            sx.open(folder)
        assert [(one.file, one.versions) for one in verify(folder)] == [("_shardex/00000002.json", (2,))]
        assert recover(folder, f"{folder} saved", progress=False).samples == 6
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_many_rows_of_all_files_are_refused_without_much_memory(folder: Path) -> None:
    """Each number alone could be right."""
    manifest = read_json(folder)
    for fragment in manifest["fragments"]:
        for one in [fragment, *entries(fragment)]:
            one.update(rows=1 << 36, **({"size": 1 << 45} if "size" in one else {}))
    manifest.update(rows=(1 << 37) - 1, ids=1 << 38)
    manifest["fragments"][1]["first"] = 1 << 36
    write_json(folder, manifest)
    tracemalloc.start()
    try:
        ds = sx.open(folder)
        for read in (lambda: ds[0], lambda: ds.where("n = 1"), lambda: ds.get("key 1")):
            with pytest.raises(ShardexError):
                read()
        assert {one.file for one in verify(folder)} >= {one["path"] for one in entries(manifest["fragments"])}
        with pytest.raises(FormatError, match="expected as many rows as its bytes can hold, got 68719476736"):
            recover(folder, f"{folder} saved", progress=False)
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()


def test_fields_that_cannot_be_stored_are_a_problem_of_the_version(folder: Path) -> None:
    manifest = read_json(folder)
    large = {"kind": "optional", "feature": {"kind": "array", "dtype": "int8", "shape": [1 << 20, 1 << 20]}}
    manifest["schema"]["large"] = large
    write_json(folder, manifest)
    with pytest.raises(SchemaError, match="expected arrays of one shape with at most 2147483647 elements, got"):
        sx.open(folder)
    (problem,) = verify(folder)
    assert (problem.file, problem.versions) == ("_shardex/00000002.json", (2,))


def test_columns_of_wide_files_are_compared_in_one_pass() -> None:
    """Comparing each with all others would take minutes."""
    schema = pa.schema([pa.field(f"field {k}", pa.int8()) for k in range(40_000)])
    check_columns(schema, list(schema), "x.arrow")
    with pytest.raises(FormatError, match="expected a column other of int8"):
        check_columns(schema.remove(39_999), [pa.field("other", pa.int8())], "x.arrow")


def test_damage_of_one_file_does_not_hide_that_of_others(folder: Path) -> None:
    """An error in what the checksums do not cover is one problem; the files after it are checked all the same."""
    first, second = (read_json(folder)["fragments"][k]["groups"][0] for k in (0, 1))
    data = (folder / first["path"]).read_bytes()
    at = data.index(b"n\0\0\0", MAGIC_SIZE)
    replace_values(folder, first, data[:at] + b"\xff" + data[at + 1 :])
    other = bytearray((folder / second["path"]).read_bytes())
    other[int(np.int64(body_of(folder, second)))] ^= 1
    (folder / second["path"]).write_bytes(other)
    assert {one.file for one in verify(folder, 2)} == {first["path"], second["path"]}
