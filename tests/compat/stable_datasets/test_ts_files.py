"""Files of the UCR and UEA archives: series with labels, of several dimensions, with times and missing values."""

from pathlib import Path

import numpy as np
import pytest

from shardex.compat.stable_datasets.utils import load_from_tsfile_to_dataframe
from shardex.errors import FormatError

pandas = pytest.importorskip("pandas")


def written(folder: Path, text: str) -> Path:
    (folder / "a.ts").write_text(text, "utf-8")
    return folder / "a.ts"


def test_series_with_labels(tmp_path: Path) -> None:
    text = "# made by hand\n@problemName a\n@timeStamps false\n@classLabel true up down\n\n@data\n"
    path = written(tmp_path, f"{text}1,2.5,?:3,4:up\n5:6,7,8:down\n")
    series, labels = load_from_tsfile_to_dataframe(path)
    assert list(series) == ["dim_0", "dim_1"] and labels.tolist() == ["up", "down"]
    assert np.array_equal(series["dim_0"][0], [1, 2.5, np.nan], equal_nan=True)
    assert series["dim_1"][1].tolist() == [6, 7, 8] and series["dim_0"][1].dtype == np.float64
    whole = load_from_tsfile_to_dataframe(path, return_separate_X_and_y=False, replace_missing_vals_with="0")
    assert whole["class_vals"].tolist() == ["up", "down"] and whole["dim_0"][0].tolist() == [1, 2.5, 0]


def test_series_with_times_and_without_labels(tmp_path: Path) -> None:
    text = "@timeStamps true\n@classLabel false\n@data\n"
    found = load_from_tsfile_to_dataframe(written(tmp_path, f"{text}(0,1.5),(3,2):(1,9)\n"))
    assert list(found) == ["dim_0", "dim_1"]
    assert found["dim_0"][0].to_dict() == {0: 1.5, 3: 2.0}
    dated = load_from_tsfile_to_dataframe(written(tmp_path, f"{text}(2004-10-01 00:30:00,4),(2004-10-01 01:00:00,5)\n"))
    assert dated["dim_0"][0].index.tolist() == pandas.to_datetime(["2004-10-01 00:30", "2004-10-01 01:00"]).tolist()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@data\n1,x\n", "line 2"),
        ("@data\n1:2\n1\n", "expected 2 series, got 1 - at line 3"),
        ("@classLabel true a b\n@data\n1,2:c\n", "one of the classes a, b, got 'c'"),
        ("@timeStamps true\n@data\n(1,2),3\n", "pairs of a time and a value"),
        ("1,2\n", "expected a line such as @data"),
        ("@classLabel false\n", "got none"),
    ],
)
def test_other_files_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=problem):
        load_from_tsfile_to_dataframe(written(tmp_path, text))
