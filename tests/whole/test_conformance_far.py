"""Every format answers as a Python list does when its files lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardex as sx
from shardex.formats import ShardRows
from shardex.sources.url import SCHEMES
from shardex.testing import Case, RowsSuite
from tests.far import far, open_far, poisoned
from tests.whole.test_conformance import MAKERS, MIXED, SINGLES

NO_FILES = {"a_list", "a_view", "a_shuffled_view", "concatenated", "joined", "held", "held_mixed"}
FORMATS = [make for make in MAKERS if make.__name__ not in NO_FILES]
SCHEMAS = {"jsonl_singles": SINGLES, "tar_of_maps": MIXED}


@pytest.mark.parametrize("access", ["auto", "ranged"])
@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
class TestElsewhere(RowsSuite):
    """The public suite over every format."""

    @pytest.fixture
    def case(
        self, make: Callable[[Path], Case], access: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Case]:
        monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
        monkeypatch.setitem(SCHEMES, "far", open_far)
        near = make(tmp_path / "data")
        assert isinstance(near.rows, ShardRows)
        schema = SCHEMAS.get(make.__name__)
        with poisoned():
            yield Case(sx.open(far(tmp_path / "data"), schema=schema, access=access).rows, near.samples)
