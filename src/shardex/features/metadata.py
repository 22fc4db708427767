"""Metadata of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shardex.errors import ArgumentError, SchemaError


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata of a dataset as it will be read again; raise an error if JSON cannot hold it.

    >>> plain_metadata({"eos": 3, "roles": ("user", "assistant")})
    {'eos': 3, 'roles': ['user', 'assistant']}
    """
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(metadata)))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ArgumentError(f"expected metadata that JSON can hold, got {metadata!r:.200}: {error}") from None
    return plain


MADE_BY = "cache"
"""Key of the metadata that say which generator has made exactly these samples."""


def copied_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for a copy of a dataset, which may have other samples: without what `cache` relies on.

    >>> copied_metadata({"eos": 3, "cache": {"generator": "squares"}})
    {'eos': 3}
    """
    return {name: value for name, value in metadata.items() if name != MADE_BY}


def other_metadata(path: str, here: Mapping[str, Any], given: Mapping[str, Any]) -> SchemaError:
    """Return the error for data that is appended with other metadata than that of the dataset."""
    names = [name for name in {**here, **given} if here.get(name) != given.get(name)]
    found = ", ".join(f"{name}: {here.get(name)!r} and {given.get(name)!r}"[:200] for name in names)
    return SchemaError(f"{path}: expected data with the metadata of this dataset, got other ({found})")
