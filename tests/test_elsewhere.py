"""Formats over files that lie elsewhere: what is fetched, under a small limit, in memory, by many threads."""

from __future__ import annotations

import json
import pickle
import tarfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from far import FarSource, far, poisoned

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import NotFoundError, SchemaError, ShardexError
from shardex.formats.members import TarScanner
from shardex.sources.cached import CachedSource

COUNT, SHARD = 240, 40
Samples = list[dict[str, Any]]


def samples() -> Samples:
    """About 9 KB each, so that every shard has many pages."""
    random = np.random.default_rng(7)
    return [
        {
            "x": random.random(2000, dtype=np.float32),
            "t": random.bytes(500 + k).hex(),
            "k": k,
            "some": None if k % 3 else "s" * k,
        }
        for k in range(COUNT)
    ]


SCHEMA = {"x": sx.Array("float32", (2000,)), "t": str, "k": int, "some": str | None}
RAGGED = {"x": sx.Array("float32", (None,)), "t": str, "k": int, "some": str | None}


def arrow(folder: Path) -> None:
    sx.write(folder, samples(), SCHEMA, shard_rows=SHARD, key="k")


def arrow_ragged(folder: Path) -> None:
    sx.write(folder, samples(), RAGGED, shard_rows=SHARD, key="k")


def parquet(folder: Path) -> None:
    sx.write(folder, samples(), SCHEMA, format="parquet", shard_rows=SHARD, row_group_rows=4)


def jsonl(folder: Path) -> None:
    sx.write(folder, [{**one, "x": one["x"][:300].tolist()} for one in samples()], format="jsonl", shard_rows=SHARD)


def tar(folder: Path) -> None:
    sx.write(folder, samples(), SCHEMA, format="tar", shard_rows=SHARD)


def bins(folder: Path) -> None:
    sx.write(folder, [{"data": one["x"].tobytes()[: 4000 + one["k"]]} for one in samples()], format="bins", splits=5)


def tokens(folder: Path) -> None:
    sx.write(folder, [{"x": one["x"]} for one in samples()], {"x": SCHEMA["x"]}, format="tokens", shard_size=300_000)


def tokens_free(folder: Path) -> None:
    rows = [{"x": one["x"][: 1000 + one["k"]]} for one in samples()]
    sx.write(folder, rows, {"x": RAGGED["x"]}, format="tokens", shard_size=300_000)


def columns_tar(folder: Path) -> None:
    sx.write(
        folder, [{"x": one["x"]} for one in samples()], {"x": sx.Array()}, format="columns_tar", samples_per_shard=SHARD
    )


def _tables() -> Iterator[tuple[int, pa.Table]]:
    for number in range(0, COUNT, SHARD):
        some = samples()[number : number + SHARD]
        columns: dict[str, Any] = {name: [one[name] for one in some] for name in ("t", "k", "some")}
        yield number // SHARD, pa.table({"x": pa.array([one["x"] for one in some]), **columns})


def _ipc(folder: Path, compression: str | None) -> None:
    folder.mkdir()
    for number, table in _tables():
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(folder / f"part-{number}.arrow", table.schema, options=options) as out:
            out.write_table(table, max_chunksize=4)


def ipc(folder: Path) -> None:
    _ipc(folder, None)


def ipc_packed(folder: Path) -> None:
    _ipc(folder, "zstd")


def ipc_dictionary(folder: Path) -> None:
    folder.mkdir()
    for number, table in _tables():
        words = table.append_column("word", pa.array([f"w{k % 5}" for k in range(SHARD)]).dictionary_encode())
        with pa.ipc.new_file(folder / f"part-{number}.arrow", words.schema) as out:
            out.write_table(words, max_chunksize=8)


def ipc_stream(folder: Path) -> None:
    folder.mkdir()
    for number, table in _tables():
        with pa.ipc.new_stream(folder / f"part-{number}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=4)


RANGED = [arrow, arrow_ragged, parquet, jsonl, tar, bins, tokens, tokens_free, columns_tar, ipc, ipc_dictionary]
MAKERS = [*RANGED, ipc_packed, ipc_stream]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[Path], None]], Path]:
    """The folder of each dataset, written once."""
    root, done = tmp_path_factory.mktemp("made"), dict[str, Path]()

    def get(make: Callable[[Path], None]) -> Path:
        if make.__name__ not in done:
            make(root / make.__name__)
            done[make.__name__] = root / make.__name__
        return done[make.__name__]

    return get


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def _poisoned() -> Iterator[None]:
    with poisoned():
        yield


def remote_of(ds: Dataset) -> FarSource:
    """The store behind a dataset of records."""
    rows: Any = ds.rows
    found = rows.files.source.remote
    assert isinstance(found, FarSource)
    return found


def same(one: Any, other: Any) -> None:
    """Samples are equal."""
    assert list(one) == list(other)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("how", [{}, {"access": "ranged"}, {"cache": False, "access": "ranged"}, {"access": "whole"}])
def test_some_samples(make: Any, how: dict[str, Any], made: Any) -> None:
    folder = made(make)
    near = sx.open(folder)
    if how.get("cache") is False and make is columns_tar:
        with pytest.raises(ShardexError, match="because SQLite reads no other place"):
            sx.open(far(folder), **how)
        return
    for rows in ([5], [200, 3, 77, 3], [0, 239]):
        ds = sx.open(far(folder), **how)
        same(ds[rows], near[rows])
        assert [ds[row] for row in rows] == [near[row] for row in rows]
    ds.advise(np.arange(COUNT))
    same(ds, near)
    same(pickle.loads(pickle.dumps(ds))[::50], near[::50])
    name = ds.fields[-1]
    assert ds.select(name).to_arrow().equals(near.select(name).to_arrow())


@pytest.mark.parametrize("make", RANGED)
@pytest.mark.parametrize("memory", [False, True])
def test_a_cache_smaller_than_the_data(make: Any, memory: bool, made: Any, tmp_path: Path) -> None:
    folder = made(make)
    if memory and make is columns_tar:
        pytest.skip("needs a disk")
    near = sx.open(folder)
    options: dict[str, Any] = {"cache": False} if memory else {}
    ds = sx.open(far(folder), cache_limit="700 kB" if make is columns_tar else "400 kB", access="ranged", **options)
    expected = list(near)

    def work(seed: int) -> None:
        for rows in np.random.default_rng(seed).integers(0, COUNT, (50, 2)):
            assert list(ds.__getitems__(rows.tolist())) == [expected[k] for k in rows]
            assert ds[int(rows[0])] == expected[rows[0]]

    work(0)
    taken = sum(file.stat().st_blocks * 512 for file in (tmp_path / "cache" / "pages").glob("*")) if not memory else 0
    assert taken < 1_300_000  # of 2 MB or more: what one read needs may be over the limit
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
