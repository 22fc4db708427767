"""The backends that the tests of catalogs run over; a new one is one line here."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shardex.catalog import Content

_numbers = itertools.count()
_SERVERS = {"redis": "redis_url", "at": "pds_url"}
"""Fixtures with the URL of an empty catalog on a server."""
BACKENDS = ["sqlite", "folder", "memory", "s3", "redis", "at"]


def catalog_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Return where a new catalog of this kind is."""
    folder: Path = request.getfixturevalue("tmp_path")
    if kind == "s3":
        return f"{request.getfixturevalue('bucket')}/catalog"
    if kind == "redis":
        pytest.importorskip("redis")
    if kind in _SERVERS:
        return str(request.getfixturevalue(_SERVERS[kind]))
    return {
        "sqlite": str(folder / "catalog.db"),
        "folder": str(folder / "catalog"),
        "memory": f"memory://catalogs/{next(_numbers)}",
    }[kind]


@pytest.fixture(params=[*BACKENDS[:-1], pytest.param("at", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest) -> str:
    """Where an empty catalog is, of each kind in turn."""
    return catalog_url(request.param, request)


def content(mark: object, schema: Any = None) -> Content:
    """A dataset that nobody opens."""
    return Content(
        fingerprint=f"f{mark}", urls=[f"s3://bucket/{mark}.tar"], format="tar", samples=1, schema=schema or {}
    )
