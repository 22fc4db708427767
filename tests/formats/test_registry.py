"""The table of formats: modules are imported when needed, and stored schemas are found for appends."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, ArgumentError, SchemaError, UnknownFormatError
from shardex.features import Features
from shardex.formats import format_named, format_names, open_rows, signature_of
from shardex.sources import place_of
from tests.formats.cases import NAMES, kind


@pytest.mark.parametrize("format", NAMES)
def test_existing_schema(tmp_path: Path, format: str) -> None:
    container, place = format_named(format), place_of(str(tmp_path / "d"))
    assert container.existing_schema(place, "append") is None
    features, sample = Features.of(kind(format).schema), kind(format).sample(1)
    writer = container.create(place.url, features, mode="create")
    writer.append(sample)
    writer.close()
    found = container.existing_schema(place, "append")
    if container.name_field is not None and found is not None:  # the keys of tars, which the writer makes
        found = Features({name: one for name, one in found.items() if name != container.name_field})
    assert found == (features if container.stores_schema else None)
    assert container.existing_schema(place, "overwrite") is None
    with pytest.raises(AlreadyExistsError):
        container.existing_schema(place, "create")


def test_unknown_format_raises() -> None:
    with pytest.raises(UnknownFormatError, match=r"expected a format out of arrow, bins, .*, got 'xml'"):
        format_named("xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fromat": "tokens"}, "expected options of open and of formats .*, got 'fromat': did you mean 'format'?"),
        ({"chace": "x"}, "got 'chace': did you mean 'cache'?"),
        ({"format": "tokens", "dtyp": "uint16"}, "of the format tokens .*, got 'dtyp': did you mean 'dtype'?"),
        ({"format": "tokens", "nothing_like_it": 1}, "got 'nothing_like_it'$"),
        ({"format": "jsnl"}, "got 'jsnl': did you mean 'jsonl'?"),
    ],
)
def test_a_misspelt_option_names_the_nearest_one(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(20))
    with pytest.raises((ArgumentError, UnknownFormatError), match=message.replace("?", r"\?")):
        sx.open(tmp_path / "a.bin", **options)


def test_a_misspelt_option_of_create_names_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="got 'shardsize': did you mean 'shard_size'"):
        sx.write(tmp_path / "d", [{"x": 1}], shardsize=3)


def test_a_format_as_the_second_argument_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="got 'tar'; name a format with format='tar'"):
        sx.open(tmp_path, "tar")  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", [np.uint16, np.dtype("uint16"), "uint16"])
def test_dtypes_are_given_as_text_or_as_numpy_types(tmp_path: Path, dtype: Any) -> None:
    np.arange(20, dtype=np.uint16).tofile(tmp_path / "a.bin")
    ds = sx.open(tmp_path / "a.bin", format="tokens", dtype=dtype, window=10)
    assert ds[1].tokens[0] == 10 and pickle.loads(pickle.dumps(ds))[1].tokens[0] == 10


def test_format_modules_are_imported_when_needed() -> None:
    formats = (signature_of(name).format.partition(":")[0] for name in format_names())
    modules = sorted({"pyarrow.parquet", "sqlite3", *formats})
    code = f"import sys, shardex.formats; print([name for name in {modules} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_the_name_of_an_option_of_other_libraries(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(ArgumentError, match=r"got 'dtype': use schema="):
        sx.open(tmp_path / "a.jsonl", dtype="int64")
    with pytest.raises(ArgumentError, match=r"got 'max_shard_size': use shard_size="):
        sx.write(tmp_path / "b", [{"x": 1}], format="jsonl", max_shard_size=5)


@pytest.mark.parametrize("format", ["arrow", "jsonl", "csv", "text", "tar"])
def test_sizes_of_shards_as_text(tmp_path: Path, format: str) -> None:
    samples = [{"text": "abcd" * 100}] * 200
    sx.write(tmp_path / "text", samples, format=format, shard_size="1 KB")
    sx.write(tmp_path / "number", samples, format=format, shard_size=1000)
    assert len(open_rows(str(tmp_path / "text")).shard_names()) == len(
        open_rows(str(tmp_path / "number")).shard_names()
    )
    with pytest.raises(ArgumentError, match=r'expected a size such as 5_000_000 or "50 GB"'):
        sx.write(tmp_path / "other", samples, format=format, shard_size="much")
