"""The real atdata reads the indexes in SQLite and Redis that we wrote, and we read what it wrote there."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.catalog import Catalog
from shardex.compat.atdata import Index, Lens, LocalDiskStore, load_dataset
from shardex.compat.atdata.testing import make_dataset
from tests.compat.atdata.test_index import Digit, Label, digits
from tests.compat.atdata.test_providers import redis_client
from tests.compat.atdata.test_real_atdata import python_with_atdata
from tests.servers.redis_server import RedisServer

__all__ = ["redis_client"]

PROGRAM = Path(__file__).with_name("real_index.py")


def fill(index: Index) -> list[Any]:
    """Add datasets, labels, a schema and a lens; return the entries."""
    first = index.write_samples(digits(2), name="ours", tags=["small"], metadata={"n": 2})
    index.label("ours", first.cid, version="1.0.0")  # type: ignore[attr-defined]
    second = index.insert_dataset(make_dataset(index.data_store.root, digits(3)), name="other")  # type: ignore[union-attr]
    lens: Lens[Any, Any] = Lens(lambda digit: Label(digit.label), source=Digit, view=Label)
    index.store_lens(lens, name="label")
    return [first, second]


def test_both_read_what_the_other_wrote(running_redis: RedisServer, redis_client: Any, tmp_path: Path) -> None:
    python, packages = python_with_atdata()
    store = LocalDiskStore(tmp_path / "store")
    indexes = {
        "sqlite": Index("sqlite", path=tmp_path / "index.db", data_store=store, atmosphere=None),
        "redis": Index(redis=redis_client, data_store=store, atmosphere=None),
    }
    filled = {name: fill(index) for name, index in indexes.items()}
    done = subprocess.run(
        [python, PROGRAM, tmp_path, str(running_redis.port), running_redis.password],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(packages), "PYTHONWARNINGS": "ignore", "HOME": str(tmp_path)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, index in indexes.items():
        check_what_atdata_saw(found[name], index, filled[name])
        check_what_atdata_wrote(index)


def check_what_atdata_saw(seen: dict[str, Any], index: Index, filled: list[Any]) -> None:
    assert seen["entries"] == {one.name: [one.cid, one.schema_ref, one.data_urls] for one in filled}
    first = filled[0]
    assert seen["metadata"] == first.metadata
    assert seen["labels"] == [["other", filled[1].cid, None], ["ours", first.cid, "1.0.0"], ["ours", first.cid, None]]
    assert seen["version"] == first.cid
    assert seen["schemas"] == [["Digit", "1.0.0"]]
    assert seen["fields"] == index.get_schema("atdata://local/schema/Digit@1.0.0")["fields"]
    assert seen["type"] == ["image", "label", "note"]
    assert seen["samples"] == [[one.image.tolist(), one.label] for one in digits(2)]
    assert (seen["lens"], seen["found"], set(seen["checksums"])) == (7, ["ours"], {"ok"})


def check_what_atdata_wrote(index: Index) -> None:
    entry = index.get_dataset("theirs")
    assert entry.metadata is not None and entry.metadata["lab"] == "b"
    assert index.get_label("theirs", "2.0.0") == entry == index.get_entry_by_name("theirs")
    assert list(load_dataset("@local/theirs@2.0.0", Digit, split="train", index=index)) == digits(4)
    untyped = load_dataset("@local/theirs", split="train", index=index)
    assert [np.asarray(one.image).max() for one in untyped] == [0, 1, 2, 3]
    assert index.get_schema("atdata://local/schema/Label@1.2.0")["description"] == "only labels"
    (lens,) = index.find_lenses("a", "b")
    assert lens["getter"]["kind"] == "field_mapping"
    loaded = index.load_lens(lens["$ref"], source_type=Digit, view_type=Label)
    assert loaded.get(digits(3)[2]) == Label(2)


def test_the_catalog_reads_what_an_index_put_in_redis(
    running_redis: RedisServer, redis_client: Any, tmp_path: Path
) -> None:
    index = Index(redis=redis_client, data_store=LocalDiskStore(tmp_path), atmosphere=None)
    entry = index.write_samples(digits(2), name="ours")
    record = Catalog(running_redis.url("9")).get("ours")
    assert record.urls == entry.data_urls
    with pytest.raises(KeyError):
        index.get_dataset("theirs")
