"""Fields that were written are read under their names and as their types, in every format."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import SchemaError
from shardex.formats import format_named
from tests.formats.cases import NAMES, kind

ODD = ("n", "Upper", "UPPER.case", "a.b", "json", "cls", "x.npy", "jpg", "é ß", "offset", "length", "header", "schema")
"""Names with dots and upper case, of extensions, and of what indexes have."""


def renamed(format: str, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return schema and samples of a format in which the last field has another name."""
    of = kind(format)
    last = list(of.schema)[-1]
    schema = {name if field == last else field: feature for field, feature in of.schema.items()}
    samples = [{name if f == last else f: value for f, value in of.sample(k).items()} for k in range(4)]
    return schema, samples


@pytest.mark.filterwarnings("ignore:.*do not store the name of their field")
@pytest.mark.parametrize("format", NAMES)
def test_names_and_types_are_read_again(format: str, tmp_path: Path) -> None:
    of = kind(format)
    for number, name in enumerate(ODD):
        schema, samples = renamed(format, name)
        path = tmp_path / str(number)
        if format == "columns_tar" and not name.isidentifier():
            with pytest.raises(SchemaError, match="expected a field name that SQL accepts"):
                sx.write(path, samples, schema, format=format, **of.write)
            continue
        sx.write(path, samples, schema, format=format, **of.write)
        lost = format_named(format).lost_name(sx.Features.of(schema))
        options: dict[str, Any] = {"field": lost} if lost else {}
        ds = sx.open(path, **of.open, **options)
        assert [field for field in ds.fields if field in schema] == list(schema)
        assert all(sample[name] is not None for sample in ds.stored)


@pytest.mark.filterwarnings("ignore:.*do not store the name of their field")
@pytest.mark.parametrize("format", NAMES)
def test_what_was_written_is_read_as_the_class_it_was_written_from(format: str, tmp_path: Path) -> None:
    of = kind(format)
    schema, samples = renamed(format, "Own_name")
    cls: Any = sx.packable(make_dataclass("Own", list(schema.items())))
    written = sx.write(tmp_path / "d", [cls(**one) for one in samples], cls, format=format, **of.write)
    if not of.open:  # then the files say where samples end
        assert type(written.as_type(cls)[0]) is cls
    opened = sx.open(tmp_path / "d", cls, **of.open)
    assert type(opened[0]) is cls and len(opened) == len(samples)


def test_names_that_are_lost_are_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"format text do not store .*'line' is read as 'text', unless .*field='line'"):
        ds = sx.write(tmp_path / "d", [{"line": "a"}], format="text")
    assert ds[0] == {"line": "a"} and sx.open(tmp_path / "d")[0] == {"text": "a"}
    assert sx.open(tmp_path / "d", field="line")[0] == {"line": "a"}
    with pytest.warns(UserWarning, match="'ids' is read as 'tokens'"):
        ds = sx.write(
            tmp_path / "n",
            [{"ids": np.array([1, 2], np.uint16)}],
            {"ids": sx.Array("uint16", (2,))},
            format="npy",
            workers=1,
        )
    assert ds[0].ids.tolist() == [1, 2] and sx.open(tmp_path / "n").fields == ["tokens"]
