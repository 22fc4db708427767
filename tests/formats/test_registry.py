"""The table of formats: modules are imported when needed, and stored schemas are found for appends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardex.errors import AlreadyExistsError, UnknownFormatError
from shardex.formats import FORMATS, format_named
from shardex.schema import Array, Features
from shardex.sources import place_of

FEATURES, SAMPLE = Features({"x": Array("int64", (2,))}), {"x": [1, 2]}


@pytest.mark.parametrize("format", FORMATS)
def test_existing_schema(tmp_path: Path, format: str) -> None:
    container, place = format_named(format), place_of(str(tmp_path / "d"))
    assert container.name == format
    assert container.existing_schema(place, "append") is None
    writer = container.create(place.url, FEATURES, mode="create")
    writer.append(SAMPLE)
    writer.close()
    assert container.existing_schema(place, "append") == (FEATURES if container.stores_schema else None)
    assert container.existing_schema(place, "overwrite") is None
    with pytest.raises(AlreadyExistsError):
        container.existing_schema(place, "create")


def test_unknown_format_raises() -> None:
    with pytest.raises(UnknownFormatError, match=r"expected a format out of arrow, bins, .*, got 'csv'"):
        format_named("csv")


def test_format_modules_are_imported_when_needed() -> None:
    modules = sorted({"pyarrow.parquet", "sqlite3", *FORMATS.values()})
    code = f"import sys, shardex.formats; print([name for name in {modules} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
