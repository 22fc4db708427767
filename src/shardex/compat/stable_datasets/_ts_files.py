"""Reads the time series of ``.ts`` files, in which the UCR and UEA archives are published."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from shardex.errors import FormatError, storage_errors

_PAIR = re.compile(r"\(([^,()]+),([^()]+)\)")
"""A time and a value."""


def load_from_tsfile_to_dataframe(
    full_file_path_and_name: str | os.PathLike[str],
    return_separate_X_and_y: bool = True,
    replace_missing_vals_with: str = "NaN",
) -> Any:
    """Return the series of a file as a pandas DataFrame, whose columns ``dim_0``, ``dim_1`` have a Series in each cell.

    If the file has class labels, they are returned as an array beside the DataFrame, or as its column ``class_vals``.
    Missing values are ``?`` in the file. Series with times have them as index: whole numbers or dates.
    """
    import pandas

    path = os.fspath(full_file_path_and_name)
    with storage_errors(path, "read"), open(path, encoding="utf-8") as file:
        lines = enumerate((line.strip() for line in file), 1)
        header = _header(path, lines)
        has_labels, *known = header.get("classlabel", ["false"])
        is_timed, labelled = header.get("timestamps") == ["true"], has_labels == "true"
        rows, labels = list[list[Any]](), list[str]()
        for number, line in lines:
            if not line or line[0] in "#%":
                continue
            parts = _parts(line.replace("?", replace_missing_vals_with), is_timed)
            try:
                if labelled:
                    labels.append(_label(parts.pop().strip(), known))
                rows.append([_series(part, is_timed) for part in parts])
            except ValueError as error:
                raise FormatError(
                    f"{path}: expected series of numbers, got {line:.80}: {error} - at line {number}"
                ) from None
            if len(rows[-1]) != len(rows[0]):
                raise FormatError(f"{path}: expected {len(rows[0])} series, got {len(rows[-1])} - at line {number}")
    frame = pandas.DataFrame({f"dim_{k}": list(column) for k, column in enumerate(zip(*rows, strict=True))})
    if labelled and return_separate_X_and_y:
        return frame, np.asarray(labels)
    return frame.assign(class_vals=labels) if labelled else frame


def _header(path: str, lines: Iterable[tuple[int, str]]) -> dict[str, list[str]]:
    """Return the words after each name, in lower case but for class labels, up to the line ``@data``."""
    found: dict[str, list[str]] = {}
    for number, line in lines:
        if not line or line[0] in "#%":
            continue
        name, *words = line.split()
        if name.lower() == "@data":
            return found
        if name[0] != "@":
            raise FormatError(f"{path}: expected a line such as @data, got {line:.80} - at line {number}")
        found[name[1:].lower()] = [words[0].lower(), *words[1:]] if words else []
    raise FormatError(f"{path}: expected a line @data, got none")


def _parts(line: str, is_timed: bool) -> list[str]:
    """Return the series of a line, and its label; colons in times do not count."""
    return re.split(r":(?![^(]*\))", line) if is_timed else line.split(":")


def _label(text: str, known: list[str]) -> str:
    if known and text not in known:
        raise ValueError(f"expected one of the classes {', '.join(known)}, got {text!r}")
    return text


def _series(part: str, is_timed: bool) -> Any:
    import pandas

    if not is_timed:
        return pandas.Series([float(one) for one in part.split(",")] if part.strip() else [], dtype="float64")
    pairs = _PAIR.findall(part)
    if _PAIR.sub("", part).strip(", "):
        raise ValueError(f"expected pairs of a time and a value, got {part:.40}")
    return pandas.Series([float(value) for _, value in pairs], index=_times(time.strip() for time, _ in pairs))


def _times(texts: Iterator[str]) -> Any:
    import pandas

    given = list(texts)
    return [int(one) for one in given] if all(one.isdigit() for one in given) else pandas.to_datetime(given)
