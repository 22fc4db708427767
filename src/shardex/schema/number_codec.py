"""One number as decimal text, as WebDataset keeps class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardex.errors import FormatError, SchemaError


def encode(value: Any) -> bytes:
    """Decimal digits.

    >>> encode(7), encode(0.5)
    (b'7', b'0.5')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(f"expected a number, got {type(value).__name__}")
    return repr(value).encode()


def decode(data: Any) -> int | float:
    """An integer where the digits are one, else a float."""
    raw = bytes(data)
    for kind in (int, float):
        try:
            return kind(raw)
        except ValueError:
            continue
    raise FormatError(f"expected a number in decimal digits, got {raw[:40]!r}")
