"""Lists of samples as rows: features, reads and single samples."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.dataset import ListRows
from shardex.errors import FieldError, SchemaError
from shardex.features import Array, Duration, Features, Optional, Text, Value
from shardex.rows import AbstractRows, Rows

SAMPLES = [{"x": k, "a": np.arange(k), **({"note": f"n{k}"} if k % 2 else {})} for k in range(5)]


def test_list_rows() -> None:
    rows = ListRows(SAMPLES)
    assert isinstance(rows, Rows)
    assert isinstance(rows, AbstractRows)
    assert len(rows) == 5
    assert rows.features == Features({"x": Value("int64"), "a": Array("int64", (None,)), "note": Optional(Text())})
    columns = rows.read(np.array([3, 0, 3]))
    assert [list(sample) for sample in columns.to_samples()] == [["x", "a", "note"]] * 3
    assert columns["x"].tolist() == [3, 0, 3]


def test_list_rows_read_the_named_fields() -> None:
    rows = ListRows(SAMPLES)
    assert rows.read(np.array([1]), ["note", "x"]).to_samples() == [{"note": "n1", "x": 1}]
    assert rows.read(np.array([0]), ["note"]).to_samples() == [{"note": None}]
    assert rows.read(np.array([], np.int64), ["note"]).names == ["note"]
    assert rows.read(np.array([], np.int64)).names == ["x", "a", "note"]
    for wanted in ([0], []):
        with pytest.raises(FieldError, match="got 'z'"):
            rows.read(np.array(wanted, np.int64), ["z"])


@pytest.mark.parametrize(
    "values",
    [[np.int8(1), np.int16(300)], [np.float32(1), 2.5], [1, 2**63], [1, 2.5]],
    ids=["int", "float", "big", "mix"],
)
def test_list_rows_read_one_dtype(values: list[Any]) -> None:
    rows = ListRows([{"x": value} for value in values])
    feature = rows.features["x"]
    assert isinstance(feature, Value)
    for wanted in ([0], [1], [0, 1]):
        column = rows.read(np.array(wanted))["x"]
        assert column.dtype == feature.dtype and column.tolist() == [values[row] for row in wanted]


@pytest.mark.parametrize("missing", [None, np.timedelta64("NaT", "s")], ids=["none", "NaT"])
def test_list_rows_read_time_spans_in_one_unit(missing: Any) -> None:
    rows = ListRows([{"x": np.timedelta64(3, "D")}, {"x": missing}, {"x": np.timedelta64(1, "ms")}])
    assert rows.features == Features({"x": Optional(Duration("ms"))})
    for wanted in ([0], [1], [2], [0, 1], [2, 0]):
        column = rows.read(np.array(wanted))["x"]
        assert column.values.dtype == "m8[ms]" and column.mask.tolist() == [row != 1 for row in wanted]
    assert rows.sample(0) == {"x": datetime.timedelta(days=3)} and rows.sample(1) == {"x": None}


@pytest.mark.parametrize(
    "values",
    [[1, 2.5], [True, None], ["a", np.str_("b")], [b"a", bytearray(b"b")], [{"a": 1}, None], [1, 2**63], [1, "a"]],
    ids=str,
)
def test_one_sample_of_a_list_is_what_a_read_returns(values: list[Any]) -> None:
    rows = ListRows([{"x": value, "k": k} for k, value in enumerate(values)] + [{"k": 2}])
    for row in range(3):
        assert repr(rows.sample(row)) == repr(rows.read(np.array([row])).sample(0))
        assert rows.sample(row, ["k"]) == {"k": row}


def test_arrays_in_samples_of_a_list_are_copies() -> None:
    array = np.zeros(2)
    ListRows([{"x": array}]).sample(0)["x"][:] = 1
    assert not array.any()


def test_empty_list_rows() -> None:
    assert len(ListRows([])) == 0
    assert ListRows([]).features == Features({})
    assert len(ListRows([]).read(np.array([], np.int64))) == 0


def test_list_rows_that_were_read_can_be_pickled() -> None:
    rows = ListRows(SAMPLES[:1])
    assert rows.sample(0)["x"] == 0 and rows.read(np.array([0]))["x"].tolist() == [0]
    plain = ListRows([{"x": 1}])
    assert plain.sample(0) == pickle.loads(pickle.dumps(plain)).sample(0)
    assert pickle.loads(pickle.dumps(rows)).fingerprint == rows.fingerprint


def test_tensors_paths_and_nested_dicts_are_read_as_they_are_written(tmp_path: Path) -> None:
    import PIL.Image
    import torch

    for name, mode in (("a.jpg", "RGB"), ("b.png", "L")):
        PIL.Image.new(mode, (4, 3)).save(tmp_path / name)
    samples = [
        {
            "x": torch.arange(3, dtype=torch.int16) + k,
            "y": torch.tensor(k),
            "z": torch.tensor(0.5, requires_grad=True),
            "image": tmp_path / name,
            "meta": {"t": torch.ones(2), "v": [1.5] * k, "n": {"d": np.array([k], "i2")}},
            "boxes": [{"box": [k, 2], "label": "cat"}] * k,
        }
        for k, name in enumerate(("a.jpg", "b.png"))
    ]
    listed, written = sx.open(samples), sx.write(tmp_path / "d", samples)
    assert str(written.features) == (
        "x int16[3], y int64, z float32, image image, meta struct of (t float32[2], v float64[?], "
        "n struct of (d int16[1])), boxes list of struct of (box int64[?], label text)"
    )
    assert listed.features == written.features and list(listed) == list(written) == list(listed[[0, 1]])
    assert written[1].y == 1 and written[1].image.shape == (3, 4, 3) and written[1].meta["n"]["d"].dtype == np.int16
    assert len(listed.where("y = 1 AND meta.n.d[1] = 1 AND boxes[1].label = 'cat'")) == 1
    assert written.to_pandas()["meta"][1]["n"]["d"].tolist() == [1]
    assert sx.open(written.to_pandas()).features["meta"].parts().keys() == {"t", "v", "n"}
    assert sx.open(written.to_arrow()).features["meta"] == written.features["meta"]
    columns = sx.open({"image": [tmp_path / "a.jpg"], "v": torch.ones(1, 2)})
    assert columns[0].image.shape == (3, 4, 3) and str(columns.features) == "image image(format='jpeg'), v float32[2]"


def test_arrays_in_json_are_refused(tmp_path: Path) -> None:
    message = r"got an array of int16, which would become a list of .* \(in b\[0\]\) - at sample 1, field meta"
    for schema in (None, {"meta": dict}):
        with pytest.raises(SchemaError, match=message):
            sx.write(tmp_path / "d", [{"meta": {"a": 1}}, {"meta": {"b": [np.zeros(2, "i2")]}}], schema)
    ds = sx.write(tmp_path / "e", [{"meta": {"a": np.int16(3)}}, {"meta": {"b": [[1.5]]}}])
    assert ds["meta"] == [{"a": 3}, {"b": [[1.5]]}]
