"""A schema and samples for each format: tests that run over all formats take them from here.

A format that is not named below gets arrays and text; a format that cannot hold them needs an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import shardex as sx
from shardex.formats import format_names
from shardex.media import encode_image
from shardex.testing import FormatCase

Sample = dict[str, Any]


def one_value(k: int) -> Sample:
    return {"x": k, "s": f"né {k}"}


def text(k: int) -> Sample:
    return {"text": f"né {k}"}


def array_and_text(k: int) -> Sample:
    return {"x": np.arange(k, k + 3), "s": f"né {k}"}


def with_key(k: int) -> Sample:
    return {"__key__": f"{k:09d}", **array_and_text(k)}


def array(k: int) -> Sample:
    return {"x": np.arange(k, k + 3)}


def with_id(k: int) -> Sample:
    return {"id": f"sample_{k + 1:012d}", **array(k), "metadata": {}}


def tokens(k: int) -> Sample:
    return {"tokens": np.arange(k, k + 3, dtype=np.uint16)}


def image(k: int) -> Sample:
    return {"image": encode_image(np.full((2, 2, 3), k % 256, np.uint8)), "n": k}


def with_path(k: int) -> Sample:
    return {"image": image(k)["image"], "path": f"{k:09d}.png", "n": k}


@dataclass(frozen=True)
class Kind:
    """What samples of a format have."""

    sample: Callable[[int], Sample] = one_value
    schema: Mapping[str, Any] = field(default_factory=lambda: {"x": int, "s": str})
    write: Mapping[str, Any] = field(default_factory=dict)
    open: Mapping[str, Any] = field(default_factory=dict)
    expected: Callable[[int], Sample] | None = None
    """The sample as it is read, if it is another one."""
    appends: bool = True
    """False for a format without the mode "append"."""


TOKENS = {"tokens": sx.Array("uint16", (3,))}
KINDS: dict[str, Kind] = {
    "text": Kind(text, {"text": str}),
    "tar": Kind(array_and_text, {"x": sx.Array("int64", (3,)), "s": str}, expected=with_key),
    "tokens": Kind(tokens, TOKENS),
    "megatron": Kind(tokens, TOKENS),
    "nanogpt": Kind(tokens, TOKENS, {"header": True}, {"window": 3}),
    "npy": Kind(tokens, TOKENS),
    "npz": Kind(array_and_text, {"x": sx.Array("int64", (3,)), "s": str}),
    "data_forager": Kind(tokens, TOKENS, appends=False),
    "columns_tar": Kind(array, {"x": sx.Array("int64", (3,))}, expected=with_id),
    "folder": Kind(image, {"image": sx.Image(), "n": int}, expected=with_path, appends=False),
    "bins": Kind(write={"splits": 3}),
}


def kind(format: str) -> Kind:
    """Return what the samples of a format have."""
    return KINDS.get(format, Kind())


def format_case(format: str, count: int = 7) -> FormatCase:
    """Return the first samples of a format, to be tested."""
    of = kind(format)
    samples, expected = ([make(k) for k in range(count)] for make in (of.sample, of.expected or of.sample))
    return FormatCase(format, samples, dict(of.schema), of.write, of.open, expected)


NAMES = [name for name in format_names() if name != "croissant"]
"""All formats that are written, those of installed packages too."""
WITH_BORDERS = [name for name in NAMES if not kind(name).open]
"""Formats that know where samples end; others need options to read what was written."""
