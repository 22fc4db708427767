"""data-forager: samples of several arrays, made by the real package; damaged schemas."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.compat.formats.data_forager.samples import SampleArrayRows
from shardex.errors import ArgumentError, FieldError, FormatError, PathError, RowError, SchemaError, TruncatedShardError
from shardex.formats import open_rows
from tests.data_forager_process import aux_dataset, read_arrays

FIXTURES = Path(__file__).parents[3] / "fixtures" / "data-forager"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))
AUX, LINES = EXPECTED["tokens_aux"], EXPECTED["tokens_lines"]


def opened(path: Path, **options: Any) -> SampleArrayRows:
    rows = open_rows(path, **options)
    assert isinstance(rows, SampleArrayRows)
    return rows


def plain(samples: Any) -> list[dict[str, list[int]]]:
    return [{name: array.tolist() for name, array in sample.items()} for sample in samples]


def test_arrays_of_the_fixture_are_read(tmp_path: Path) -> None:
    rows = opened(shutil.copytree(FIXTURES / "tokens_aux", tmp_path / "d"))
    assert len(rows) == AUX["len"]
    assert str(rows.features) == "tokens uint32[5], loss_mask uint8[5], positions int32[5]"
    columns = rows.read(np.arange(len(rows)))
    assert {name: column.dtype.str for name, column in columns.data.items()} == AUX["dtypes"]  # type: ignore[union-attr]
    assert plain(columns.to_samples()) == plain(map(rows.sample, range(len(rows)))) == AUX["samples"]
    assert rows.read(np.array([4, 1]), ["positions"]).names == ["positions"]
    assert rows.read(np.array([4, 1]), ["positions"])["positions"].tolist() == [
        AUX["samples"][4]["positions"],
        AUX["samples"][1]["positions"],
    ]
    for array in rows.sample(0).values():
        assert array.flags.aligned and not array.flags.writeable
    assert rows.sample(0, []) == {} and rows.read(np.array([0]), []).names == []
    assert rows.lengths("loss_mask").tolist() == [5] * 11
    assert not (tmp_path / "d" / ".shardex").exists()
    ds = sx.open(tmp_path / "d")
    assert plain(pickle.loads(pickle.dumps(ds))) == AUX["samples"]
    batch = next(iter(sx.Loader(ds, batch_size=11)))
    assert batch["loss_mask"].tolist() == [one["loss_mask"] for one in AUX["samples"]]
    windows = ds.windows(10)
    assert windows[0].tokens.tolist() == AUX["samples"][0]["tokens"] + AUX["samples"][1]["tokens"]
    assert windows[1].positions.tolist() == AUX["samples"][2]["positions"] + AUX["samples"][3]["positions"]
    with pytest.raises(FieldError):
        rows.read(np.array([0]), ["x"])
    for row in (-1, 11):
        with pytest.raises(RowError):
            rows.sample(row)


def test_one_sample_a_line_of_the_fixture_is_read(tmp_path: Path) -> None:
    ds = sx.open(shutil.copytree(FIXTURES / "tokens_lines", tmp_path / "d"), dtype="uint32")
    assert [one.tokens.tolist() for one in ds] == LINES["samples"]
    assert str(ds.features) == "tokens uint32[?]"


def test_datasets_of_the_package_are_read(tmp_path: Path) -> None:
    path = aux_dataset(tmp_path / "in", tmp_path / "out")
    expected = read_arrays(path)
    assert plain(sx.open(path)) == expected
    assert len(expected) == 12
    # An index that another folder holds, with paths that leave it.
    shutil.copytree(path / "index", tmp_path / "elsewhere" / "index")
    names = tmp_path / "elsewhere" / "index" / "file_location.txt"
    for prefix in ("../out/", f"{path}/"):  # the second as versions before 0.1.6 wrote it
        names.write_text(f"{prefix}tokenized-samples/a-tokenized-samples.bin\n")
        assert read_arrays(tmp_path / "elsewhere") == expected
        with pytest.raises(PathError, match="trust_paths=True"):
            sx.open(tmp_path / "elsewhere")
        assert plain(sx.open(tmp_path / "elsewhere", trust_paths=True)) == expected


def test_a_dataset_without_samples_is_read(tmp_path: Path) -> None:
    path = aux_dataset(tmp_path / "in", tmp_path / "out", lines=0)
    assert read_arrays(path) == []
    ds = sx.open(path)
    assert len(ds) == 0
    assert str(ds.features) == "tokens uint16[4], loss_mask uint8[4]"


def test_options_of_one_array_are_refused(tmp_path: Path) -> None:
    path = shutil.copytree(FIXTURES / "tokens_aux", tmp_path / "d")
    for option in ({"dtype": "uint32"}, {"window": 5}, {"field": "ids"}):
        with pytest.raises(ArgumentError, match=r"expected no (dtype|window|field), because index/sample_schema\.json"):
            sx.open(path, **option)
    assert len(opened(path, schema=sx.Features.of({"tokens": sx.Array("uint32", (5,))}))) == 11
    for wrong in ({"tokens": sx.Array("uint16", (5,))}, {"other": sx.Array("uint32", (5,))}):
        with pytest.raises(SchemaError, match=r"expected tokens uint32\[5\], .*, as index/sample_schema\.json says"):
            opened(path, schema=sx.Features.of(wrong))


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda schema: schema.update({key: value})


def change_array(number: int, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda schema: schema["arrays"][number].update({key: value})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("sample_size", 0), "expected arrays of at least one number, got 3 arrays of 0"),
        (change("sample_size", "5"), "expected the arrays of a sample, got something else: .*sample_size"),
        (change("arrays", []), "expected arrays of at least one number, got 0 arrays of 5"),
        (change("total_bytes_per_sample", 40), "expected arrays inside a sample of 40 bytes, got positions, .* at 45"),
        (change("sample_size", 6), "expected the array loss_mask after tokens, which ends at 24, got it at 20"),
        (change_array(0, "offset", -4), "expected the array tokens inside the sample, got it at -4"),
        (change_array(1, "offset", 18), "expected the array loss_mask after tokens, which ends at 20, got it at 18"),
        (change_array(2, "offset", 1000), "expected arrays inside a sample of 45 bytes, got positions, .* at 1020"),
        (change_array(2, "offset", 1 << 70), "expected arrays inside a sample of 45 bytes, got positions"),
        (change_array(0, "dtype", "object"), "expected a .*dtype of numbers such as uint16, got 'object'"),
        (change_array(0, "dtype", "uint33"), "expected a dtype of numbers such as uint16, got 'uint33'"),
        (change_array(0, "dtype", ">u4"), "expected a little-endian dtype of numbers"),
        (change_array(1, "name", "tokens"), "expected arrays of different names, got tokens, tokens, positions"),
    ],
)
def test_a_damaged_schema_raises(tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str) -> None:
    path = shutil.copytree(FIXTURES / "tokens_aux", tmp_path / "d")
    file = path / "index" / "sample_schema.json"
    schema = json.loads(file.read_text())
    damage(schema)
    file.write_text(json.dumps(schema))
    with pytest.raises(FormatError, match=rf"sample_schema\.json: {message}"):
        sx.open(path)


def test_a_schema_of_other_data_raises(tmp_path: Path) -> None:
    path = shutil.copytree(FIXTURES / "tokens_aux", tmp_path / "d")
    table = np.fromfile(path / "index" / "sample_locations.bin", "<u8").reshape(-1, 3)
    table[3, 2] = 44
    table.tofile(path / "index" / "sample_locations.bin")
    with pytest.raises(FormatError, match=r"expected samples of 45 bytes, as .*, got 44 - at sample 3"):
        sx.open(path)
    table[3] = (0, 1 << 20, 45)
    table.tofile(path / "index" / "sample_locations.bin")
    rows = opened(path)
    for read in (lambda: rows.read(np.array([0, 3])), lambda: rows.sample(3)):
        with pytest.raises(TruncatedShardError, match="expected 45 bytes from 1048576 on for sample 3"):
            read()
    for text in (b"", b"{", b"[]", b"\xff\xff"):
        (path / "index" / "sample_schema.json").write_bytes(text)
        with pytest.raises(FormatError, match=r"sample_schema\.json: expected the arrays of a sample"):
            sx.open(path)
