"""An index with a session of ATProto: names there, beside those of its database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardex.compat.atdata import Index, LocalDiskStore, load_dataset, write_samples
from shardex.compat.atdata.atmosphere import Atmosphere
from shardex.errors import UnknownSplitError
from tests.compat.atdata.test_index import Digit, Label, digits
from tests.servers.scripted_pds import HANDLE


@pytest.fixture
def index(atmo: Atmosphere, tmp_path: Path) -> Index:
    """An index with an account on a server."""
    return Index("sqlite", path=tmp_path / "index.db", data_store=LocalDiskStore(tmp_path / "store"), atmosphere=atmo)


def test_datasets_of_an_account(index: Index, tmp_path: Path) -> None:
    shards = write_samples(digits(), tmp_path / "a.tar")
    entry: Any = index.insert_dataset(shards, name=f"@{HANDLE}/mnist", tags=["small"], metadata={"n": 3})
    assert entry.uri.startswith("at://") and (entry.name, entry.metadata) == ("mnist", {"n": 3})
    assert index.get_dataset(f"@{HANDLE}/mnist").uri == index.get_dataset(entry.uri).uri == entry.uri  # type: ignore[attr-defined]
    assert index.get_label(f"@{HANDLE}/mnist").schema_ref == entry.schema_ref
    assert [one.name for one in index.list_datasets("_atmosphere")] == ["mnist"]
    assert index.list_datasets() == []
    assert index.get_schema(entry.schema_ref)["name"] == "Digit"
    assert list(load_dataset(f"@{HANDLE}/mnist", Digit, split="train", index=index)) == digits()
    untyped = load_dataset(f"@{HANDLE}/mnist", index=index)["train"]
    assert [one.label for one in untyped] == [0, 1, 2]
    assert list(load_dataset(entry.uri, Digit, split="train", atmosphere=index.atmosphere)) == digits()
    for name in (entry.uri, f"@{HANDLE}/mnist"):
        with pytest.raises(UnknownSplitError, match="train"):
            load_dataset(name, Digit, split="test", index=index, atmosphere=index.atmosphere)
    with pytest.raises(KeyError, match="No label 'none'"):
        index.get_dataset(f"@{HANDLE}/none")
    with pytest.raises(KeyError, match="without a handle"):
        index.get_dataset("@mnist")


def test_samples_for_an_account(index: Index) -> None:
    entry: Any = index.write_samples(digits(), name=f"@{HANDLE}/mnist", maxcount=2)
    assert len(entry.data_urls) == 2
    assert list(load_dataset(f"@{HANDLE}/mnist", Digit, split="train", index=index)) == digits()
    with pytest.raises(ValueError, match=r"exceeds PDS blob limit.*force=True"):
        index.write_samples(digits(), name=f"@{HANDLE}/mnist", maxsize=1 << 30)


def test_promotion(index: Index, tmp_path: Path) -> None:
    index.write_samples(digits(), name="mnist")
    with pytest.warns(DeprecationWarning, match="insert_dataset"):
        first = index.promote_entry("mnist", name="public", description="Digits")
    assert list(load_dataset(f"@{HANDLE}/public", Digit, split="train", index=index)) == digits()
    shards = write_samples([Label(k) for k in range(3)], tmp_path / "a.tar")
    with pytest.warns(DeprecationWarning, match="insert_dataset"):
        second = index.promote_dataset(shards, name="labels", schema_version="2.0.0")
    assert {first, second} == {one.uri for one in index.list_datasets("_atmosphere")}  # type: ignore[attr-defined]
    assert index.get_label(f"@{HANDLE}/labels", "2.0.0").name == "labels"


def test_search_needs_an_app_view(index: Index) -> None:
    index.write_samples(digits(), name="mnist")
    assert [one.source for one in index.search("mnist").items] == ["local"]
