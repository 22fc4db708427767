"""Where the tokens of documents lie: documents that lie end to end are one run; those that must be read have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.dataset import Dataset, token_stream
from shardex.dataset.token_stream import Runs, locate_runs
from shardex.kernel import ends_of
from tests.token_documents import documents, opened

SIZES = [3, 0, 17, 9, 8, 0, 1, 30, 12]


def runs_of(ds: Dataset[Any], name: str = "tokens") -> Runs | None:
    return locate_runs(ds, name, np.dtype(np.uint16), ends_of(ds.lengths(name)))


def begins(ds: Dataset[Any], name: str = "tokens") -> list[int]:
    found = runs_of(ds, name)
    assert found is not None
    starts: list[int] = found.starts.tolist()
    return starts


def test_files_are_runs(tmp_path: Path) -> None:
    with opened(documents(SIZES), "tokens", shard_size=50) as (ds, _):
        files = ds.shards(slice(None))
        ends = ends_of(ds.lengths("tokens")).tolist()
        expected = [*sorted({ends[files.index(file)] for file in files}), 80]
        assert begins(ds) == expected and len(expected) == 5
        assert begins(ds.rename(tokens="x", mask="y"), "x") == expected
        assert begins(ds[2:]) == [max(0, begin - 3) for begin in expected]
    with opened(documents(SIZES), "native") as (ds, _):
        assert begins(ds) == [0, 80]


def test_documents_in_another_order_are_runs_of_their_own() -> None:
    with opened(documents(SIZES), "native") as (ds, _):
        assert begins(ds[::-1]) == [0, 12, 42, 43, 51, 60, 77, 80]
        assert begins(ds[[0, 2, 3, 0]]) == [0, 29, 32]


def test_parts_of_a_concat_are_found_in_their_own_files() -> None:
    with opened(documents(SIZES), "concat") as (ds, _):
        found = runs_of(ds)
        assert found is not None and found.starts.tolist() == [0, 29, 80] and found.table.tolist() == [0, 1]
        both = sx.concat(ds, ds.shuffle(0))
        again = runs_of(both)
        assert again is not None and len(again.tables) == 2  # the same files


@pytest.mark.parametrize("form", ["list", "parquet", "json", "optional"])
def test_documents_that_are_not_mapped_are_not_found(form: str) -> None:
    with opened(documents(SIZES), form) as (ds, _):
        assert runs_of(ds) is None


def test_documents_with_newer_values_are_not_found(tmp_path: Path) -> None:
    sx.write(str(tmp_path / "d"), documents(SIZES))
    with sx.edit(str(tmp_path / "d")) as tx:
        tx.delete([0])
    ds = sx.open(str(tmp_path / "d"))
    assert begins(ds) == [0, 77]
    with sx.edit(str(tmp_path / "d")) as tx:
        tx.update(3, tokens=np.arange(9, dtype=np.uint16), mask=np.zeros(9, np.uint8))
    ds = sx.open(str(tmp_path / "d"))
    assert runs_of(ds) is None
    assert ds.windows(4)["tokens"].reshape(-1).tolist() == np.concatenate(ds["tokens"].to_list())[:76].tolist()


def test_no_more_documents_are_read_at_once_than_may_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stream, "_CHUNK_BYTES", 40)
    starts = ends_of(np.array(SIZES))
    chunks = [chunk.tolist() for chunk in token_stream._chunks(starts, 2)]
    assert chunks == [[0], [1, 2], [3, 4, 5, 6], [7], [8]]
    with opened(documents(SIZES), "native") as (ds, _):
        assert begins(ds) == [0, 80]
        assert ds.windows(16)["tokens"].tolist() == np.arange(1, 81).reshape(5, 16).tolist()
