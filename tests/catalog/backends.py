"""The backends that the tests of catalogs run over; a new one is one line here."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

_numbers = itertools.count()
BACKENDS = ["sqlite", "folder", "memory", "s3", "redis"]


def catalog_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Return where a new catalog of this kind is."""
    folder: Path = request.getfixturevalue("tmp_path")
    if kind == "s3":
        return f"{request.getfixturevalue('bucket')}/catalog"
    if kind == "redis":
        pytest.importorskip("redis")
        return str(request.getfixturevalue("redis_url"))
    return {
        "sqlite": str(folder / "catalog.db"),
        "folder": str(folder / "catalog"),
        "memory": f"memory://catalogs/{next(_numbers)}",
    }[kind]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str:
    """Where an empty catalog is, of each kind in turn."""
    return catalog_url(request.param, request)
