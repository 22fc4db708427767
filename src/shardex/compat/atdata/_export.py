"""Samples as rows and columns of other tools: dicts, DataFrames and Parquet files."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shardex.errors import SchemaError, storage_errors
from shardex.features import describe
from shardex.rows import whole_number


def row_of(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample."""
    if isinstance(sample, Mapping):
        return dict(sample)
    if not dataclasses.is_dataclass(sample):
        raise SchemaError(f"expected samples with fields, got {describe(sample)}; sample_map= makes a dict of each")
    return {one.name: getattr(sample, one.name) for one in dataclasses.fields(sample)}


def columns_of(samples: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the values of each field; None for samples that lack it."""
    rows = [row_of(one) for one in samples]
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def write_parquet(
    samples: Iterable[Any],
    path: str | os.PathLike[str],
    to_row: Callable[[Any], Mapping[str, Any]],
    maxcount: int | None,
    names: Sequence[str],
    options: Mapping[str, Any],
) -> None:
    """Write samples into one Parquet file, or several of at most `maxcount`; each file is there when it is complete."""
    whole, every = Path(path), iter(samples)
    if maxcount is None:
        _write_file(whole, [to_row(one) for one in every], names, options)
        return
    size, number = whole_number("maxcount", maxcount, 1), 0
    while rows := [to_row(one) for one in islice(every, size)]:
        _write_file(whole.with_name(f"{whole.stem}-{number:06d}{whole.suffix}"), rows, names, options)
        number += 1


def _write_file(
    path: Path, rows: Sequence[Mapping[str, Any]], names: Sequence[str], options: Mapping[str, Any]
) -> None:
    import pandas

    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    table = pandas.DataFrame(plain) if plain else pandas.DataFrame(columns=list(names))
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with storage_errors(path, "write"):
            table.to_parquet(draft, **options)
            os.replace(draft, path)
    finally:
        if draft.is_file():
            draft.unlink()


def _plain(value: Any) -> Any:
    """Return arrays of several dimensions as lists, which Parquet has."""
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim != 1 else value
