"""Formatters: rows and tables of stored values in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from shardex.compat.stable_datasets.features import Array3D, Array4D, Sequence, Value
from shardex.compat.stable_datasets.formatting import (
    NumpyFormatter,
    PythonFormatter,
    RawFormatter,
    TorchFormatter,
    get_formatter,
)
from shardex.compat.stable_datasets.schema import Features
from tests.compat.stable_datasets.caches import MIXED, mixed, pixels


def test_rows_and_tables_give_the_same_samples(tmp_path: Path) -> None:
    ds = mixed(tmp_path / "c")
    raw = get_formatter("raw", MIXED)
    assert raw.format_batch(ds.table) == list(ds.with_format("raw"))
    row = raw.format_batch(ds.table)[1]
    for formatter in (get_formatter(None, MIXED), get_formatter("numpy", MIXED)):
        one, other = formatter.format_row(row), formatter.format_batch(ds.table)[1]
        assert one.keys() == other.keys() == row.keys()
        assert all(np.array_equal(one[name], other[name]) for name in ("image", "vol", "seq", "nested", "label"))
        assert np.array_equal(one["image"], pixels(1)) and one["s"] == "é1"
    assert isinstance(get_formatter(None, MIXED).format_row(row)["image"], Pillow.Image)
    assert get_formatter(None, MIXED, decode_images=False).format_row(row)["image"] == row["image"]
    assert get_formatter(None, MIXED).format_row({"other": 1}) == {"other": 1}


def test_names_of_formats() -> None:
    kinds = {None: PythonFormatter, "numpy": NumpyFormatter, "torch": TorchFormatter, "raw": RawFormatter}
    assert {name: type(get_formatter(name, MIXED)) for name in kinds} == kinds
    with pytest.raises(ValueError, match="'pandas'"):
        get_formatter("pandas", MIXED)


def test_tensors_of_float64_are_float32() -> None:
    """As numbers of Python are in torch; other types stay."""
    torch = pytest.importorskip("torch")
    features = Features(
        {"a": Array4D((1, 1, 1, 2), "float64"), "s": Sequence(Value("float64")), "n": Array3D((1, 1, 1), "int16")}
    )
    row = {"a": np.array([0.1, 0.2]).tobytes(), "s": [0.5, 1], "n": np.array([7], np.int16).tobytes()}
    found = get_formatter("torch", features).format_row(row)
    assert [found[name].dtype for name in "asn"] == [torch.float32, torch.float32, torch.int16]
    assert get_formatter("numpy", features).format_row(row)["a"].dtype == np.float64
