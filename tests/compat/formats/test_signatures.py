"""The formats of the five systems register as those of other packages do."""

import subprocess
import sys

import pytest

from shardex.formats import FORMATS, Format, format_named, format_names, signature_of

NAMES = ("bins", "columns_tar", "data_forager")


@pytest.mark.parametrize("name", NAMES)
def test_entry_points_name_the_formats(name: str) -> None:
    assert name in format_names() and name not in FORMATS, "install shardex again: its metadata names the formats"
    assert isinstance(format_named(name), Format) and signature_of(name).markers


def test_imports_are_light() -> None:
    formats = ", ".join(f"shardex.compat.formats.{name}" for name in ("signatures", *NAMES))
    systems = ["atdata", "data_forager", "splitdataloader", "stable_datasets", "synthefy_dataset_utils"]
    code = f"import sys, {formats}; print([one for one in {systems} if f'shardex.compat.{{one}}' in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
