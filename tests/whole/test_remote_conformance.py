"""Every format over remote files behaves as a Python list of the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.formats import ShardRows
from shardex.sources.url import SCHEMES
from shardex.testing import Case, RowsSuite
from tests.fake_remote import fake_remote_url, missing_pages_filled, open_fake_remote
from tests.whole.test_conformance import MAKERS, MIXED, SINGLES, TOKEN_VIEWS, arrow_in_shards, bins, tar

IN_MEMORY = {"list_rows", "arrow_table", "arrow_table_mixed", "column_rows", "column_rows_mixed"}
NO_FILES = IN_MEMORY | {
    "sliced",
    "shuffled",
    "concatenated",
    "joined",
    "renamed",
    "stacked",
    "sorted_by_name",
    "sliding",
}
FORMATS = [make for make in MAKERS if make.__name__ not in NO_FILES | {"compressed"}]  # test_compressed.py has those
WHOLE = {"arrow_in_shards", "parquet", "tar", "jsonl_singles", "csv_singles", "bins", "megatron"}
"""Formats that are also read with access="auto", by which small files are fetched whole."""
OF_EACH_KIND = {"arrow_in_shards-ranged", "parquet-auto", "tar-ranged", "jsonl-ranged", "megatron-auto"}
"""The cases of `make test`: columns, columns that are fetched whole, members, lines, token files."""
CASES = [
    pytest.param(make, access, id=name, marks=[pytest.mark.long] * (name not in OF_EACH_KIND))
    for access, makes in (("ranged", FORMATS), ("auto", [make for make in FORMATS if make.__name__ in WHOLE]))
    for make in makes
    for name in [f"{make.__name__}-{access}"]
]
OPTIONS: dict[str, Any] = {
    "jsonl_singles": {"schema": SINGLES},
    "csv_singles": {"schema": {"f": SINGLES["f"], "c": SINGLES["c"]}},
    "tar_of_maps": {"schema": MIXED},
    "text_documents": {"lines": False},
    "nanogpt": {"window": 3},
    "media_folder": {"schema": {"image": bytes}},
}


@contextmanager
def remote_case(make: Callable[[Path], Case], access: str, folder: Path) -> Iterator[Case]:
    """The rows of a format over remote files; the cache is empty."""
    with pytest.MonkeyPatch.context() as patch, missing_pages_filled():
        patch.setenv("SHARDEX_CACHE", str(folder / "cache"))
        patch.setitem(SCHEMES, "fakeremote", open_fake_remote)
        local, view = make(folder / "data"), TOKEN_VIEWS.get(make.__name__)
        assert isinstance(local.rows, ShardRows) or view is not None
        remote = sx.open(fake_remote_url(folder / "data"), access=access, **OPTIONS.get(make.__name__, {}))
        yield Case(remote.rows if view is None else view(remote), local.samples)


@pytest.mark.parametrize(("make", "access"), CASES)
class TestRemoteRows(RowsSuite):
    """The public suite over every format, with files read through the page cache."""

    @pytest.fixture
    def case(self, make: Callable[[Path], Case], access: str, tmp_path: Path) -> Iterator[Case]:
        with remote_case(make, access, tmp_path) as case:
            yield case

    test_other_processes = None  # type: ignore[assignment]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_every_format(make: Callable[[Path], Case], tmp_path: Path) -> None:
    """The reads of the suite that `make test` runs for every format."""
    with remote_case(make, "ranged", tmp_path) as case:
        RowsSuite().test_ints(case)
        RowsSuite().test_iteration_and_batches(case)


@pytest.mark.parametrize(
    ("make", "access", "method"),
    [(arrow_in_shards, "ranged", "spawn"), (tar, "ranged", "fork"), (bins, "auto", "fork")],
)
def test_other_processes(make: Callable[[Path], Case], access: str, method: str, tmp_path: Path) -> None:
    with remote_case(make, access, tmp_path) as case:
        RowsSuite().test_other_processes(case, method)
