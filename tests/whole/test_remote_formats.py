"""Formats over remote files: the values equal those of local files, and only the bytes that are needed are fetched."""

from __future__ import annotations

import json
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, NotFoundError, SchemaError, ShardexError
from shardex.formats.tar.members import TarScanner
from shardex.sources import ByteRange, CachedSource, LocalSource
from shardex.sources.url import SCHEMES
from tests.fake_remote import FakeRemote, FakeRemoteUrl, fake_remote_url, missing_pages_filled, open_fake_remote
from tests.waiting import becomes_true

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")

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


def jsonl_flat(folder: Path) -> None:
    """Lines that the kernel parses: without lists and objects, with a text of several pages."""
    rows = [{"t": 9 * one["t"], "k": one["k"], "y": one["k"] / 7, "some": one["some"]} for one in samples()]
    sx.write(folder, rows, format="jsonl", shard_rows=SHARD)


def tar(folder: Path) -> None:
    sx.write(folder, samples(), SCHEMA, format="tar", shard_rows=SHARD)


def bins(folder: Path) -> None:
    sx.write(folder, [{"data": one["x"].tobytes()[: 4000 + one["k"]]} for one in samples()], format="bins", splits=5)


def tokens(folder: Path) -> None:
    sx.write(folder, [{"x": one["x"]} for one in samples()], {"x": SCHEMA["x"]}, format="tokens", shard_size=300_000)


def tokens_free(folder: Path) -> None:
    rows = [{"x": one["x"][: 1000 + one["k"]]} for one in samples()]
    sx.write(folder, rows, {"x": RAGGED["x"]}, format="tokens", shard_size=300_000)


def megatron(folder: Path) -> None:
    rows = [{"x": one["x"][: 1000 + one["k"]]} for one in samples()]
    sx.write(folder, rows, {"x": RAGGED["x"]}, format="megatron", shard_size=300_000)


def npy(folder: Path) -> None:
    sx.write(folder, [{"x": one["x"]} for one in samples()], {"x": SCHEMA["x"]}, format="npy", shard_size=300_000)


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


RANGED = [
    arrow,
    arrow_ragged,
    parquet,
    jsonl,
    jsonl_flat,
    tar,
    bins,
    tokens,
    tokens_free,
    columns_tar,
    ipc,
    ipc_dictionary,
    megatron,
    npy,
]
MAKERS = [*RANGED, ipc_packed, ipc_stream]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[Path], None]], Path]:
    """Return the folder of a dataset, which is written once."""
    root, done = tmp_path_factory.mktemp("made"), dict[str, Path]()

    def get(make: Callable[[Path], None]) -> Path:
        if make.__name__ not in done:
            make(root / make.__name__)
            done[make.__name__] = root / make.__name__
        return done[make.__name__]

    return get


@pytest.fixture(autouse=True)
def remotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeRemote]:
    """The remote sources that are opened during the test; the cache is empty."""
    opened = list[FakeRemote]()

    def open_and_record(url: str, trusted: bool = True) -> FakeRemote:
        opened.append(open_fake_remote(url, trusted))
        return opened[-1]

    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SCHEMES, "fakeremote", open_and_record)
    return opened


@pytest.fixture
def _missing_pages_filled() -> Iterator[None]:
    with missing_pages_filled():
        yield


def some(ds: Dataset) -> Any:
    return list(ds[[200, 3, 77, 3]])


def one_by_one(ds: Dataset) -> Any:
    return [ds[row] for row in (5, 239, 0, 5)]


def one_field(ds: Dataset) -> Any:
    name = ds.fields[-1]
    return list(ds.select(name)[[7, 150]]), [ds.select(ds.fields[0])[row] for row in (8, 100)]


def everything(ds: Dataset) -> Any:
    return list(ds), list(pickle.loads(pickle.dumps(ds))[::50])


def as_table(ds: Dataset) -> Any:
    return ds.select(ds.fields[-1]).to_arrow()


def by_sql(ds: Dataset) -> Any:
    name = ds.fields[min(2, len(ds.fields) - 1)]
    return list(ds.where(f'"{name}" IS NOT NULL AND _row % 100 = 7'))


def after_advice(ds: Dataset) -> Any:
    ds.advise(np.arange(COUNT))
    return [*ds[[9, 230]], ds[31]]


def bytes_read(remotes: list[FakeRemote]) -> int:
    return sum(remote.bytes_read for remote in remotes)


HOW: list[dict[str, Any]] = [{}, {"access": "ranged"}, {"cache": False, "access": "ranged"}, {"access": "whole"}]
IN_EVERY_WAY = (arrow, parquet, jsonl, tar, columns_tar)
"""What `make test` reads in every way: columns, lines, members, a database; other formats it reads as by default."""
READS = [
    pytest.param(make, how, id=name, marks=[pytest.mark.long] * bool(how and make not in IN_EVERY_WAY))
    for how in HOW
    for make in MAKERS
    for name in [f"{make.__name__}-{'-'.join(map(str, how.values())) or 'auto'}"]
]


@pytest.mark.usefixtures("_missing_pages_filled")
@pytest.mark.parametrize(("make", "how"), READS)
def test_remote_reads_equal_local_reads(make: Any, how: dict[str, Any], made: Any, tmp_path: Path) -> None:
    folder = made(make)
    local = sx.open(folder)
    if how.get("cache") is False and make is columns_tar:
        with pytest.raises(ShardexError, match="because SQLite reads no other place"):
            sx.open(fake_remote_url(folder), **how)
        return
    for number, ask in enumerate((some, one_by_one, one_field, everything, as_table, by_sql, after_advice)):
        # Each has its own cache, so that none finds what another one fetched.
        options = {"cache": str(tmp_path / ask.__name__), "cache_limit": 10**10 + number, **how}
        assert ask(sx.open(fake_remote_url(folder), **options)) == ask(local), ask.__name__


@pytest.mark.parametrize("make", RANGED)
@pytest.mark.parametrize(
    ("memory", "access", "limit"), [(False, "ranged", 400_000), (False, "auto", 900_000), (True, "ranged", 400_000)]
)
def test_reads_through_a_cache_smaller_than_the_data(
    make: Any, memory: bool, access: str, limit: int, made: Any, tmp_path: Path
) -> None:
    folder = made(make)
    if memory and make is columns_tar:
        pytest.skip("needs a disk")
    expected = list(sx.open(folder))
    options: dict[str, Any] = {"cache": False} if memory else {}
    ds = sx.open(fake_remote_url(folder), cache_limit=limit, access=access, **options)

    def work(seed: int) -> None:
        for rows in np.random.default_rng(seed).integers(0, COUNT, (8, 2)):
            assert list(ds.__getitems__(rows.tolist())) == [expected[k] for k in rows]
            assert ds[int(rows[0])] == expected[rows[0]]

    work(0)
    taken = sum(file.stat().st_blocks * 512 for file in (tmp_path / "cache" / "pages").glob("*")) if not memory else 0
    assert taken < limit + 1_000_000  # of 2 MB or more; one read may take more than the limit
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))


# -- amount of data fetched --------------------------------------------------------------------------------------------


def write_tar(path: Path, sizes: Any, parts: int = 1, long_names: bool = False) -> None:
    """Write a tar of members of these sizes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:
        for k, size in enumerate(sizes):
            key = f"{'very-' * 30 if long_names else ''}{k // parts:06d}"
            info = tarfile.TarInfo(f"{key}.{'abcdefgh'[k % parts]}")
            info.size = int(size)
            out.addfile(info, BytesIO(random.bytes(int(size))))


class CountingSource(CachedSource):
    """Counts the calls of `read_scattered`."""

    rounds = 0

    def read_scattered(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.rounds += 1
        return super().read_scattered(path, ranges)


@pytest.mark.parametrize(
    ("sizes", "parts", "long_names", "share", "rounds"),
    [
        ([20_000] * 3000, 1, False, 0.05, 20),
        ([100_000, 3000] * 300, 2, False, 0.03, 30),
        ([30_000] * 400, 1, True, 0.15, 60),
        (np.random.default_rng(2).integers(15_000, 25_000, 500), 1, False, 0.08, 80),
        ([100] * 4000, 4, False, 1.01, 80),
    ],
    ids=["one size", "two sizes", "long names", "any size", "small"],
)
def test_scan_of_a_remote_tar_reads_only_headers(
    sizes: Any, parts: int, long_names: bool, share: float, rounds: int, tmp_path: Path
) -> None:
    write_tar(tmp_path / "x.tar", sizes, parts, long_names)
    remote = FakeRemote(tmp_path)
    source = CountingSource(remote, False)
    found, expected = TarScanner().scan(source, "x.tar"), TarScanner().scan(LocalSource(tmp_path), "x.tar")
    assert list(found) == list(expected) and all(np.array_equal(found[name], expected[name]) for name in expected)
    assert remote.bytes_read < share * (tmp_path / "x.tar").stat().st_size
    assert source.rounds <= rounds


def test_index_of_remote_jsonl_reads_each_byte_once(tmp_path: Path, remotes: list[FakeRemote]) -> None:
    lines = [json.dumps({"k": k, "t": "x" * (k % 3000)}) for k in range(3000)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines), "utf-8")
    ds = sx.open(fake_remote_url(tmp_path / "data"), access="ranged")
    assert [one.k for one in ds[::250]] == list(range(0, 3000, 250))
    size = (tmp_path / "data" / "a.jsonl").stat().st_size
    assert size <= bytes_read(remotes) < 1.01 * size
    remotes.clear()
    assert sx.open(fake_remote_url(tmp_path / "data"))[777].k == 777 and bytes_read(remotes) == 0


@pytest.mark.parametrize("make", [tar, bins, tokens, tokens_free])
def test_read_fetches_only_the_ranges_of_its_rows(make: Any, made: Any, remotes: list[FakeRemote]) -> None:
    folder = made(make)
    sx.open(fake_remote_url(folder))[0]
    remotes.clear()
    ds = sx.open(fake_remote_url(folder), access="ranged", cache_limit=10**12)  # another cache, which is empty
    remote = remotes[-1]
    remote.reads.clear()
    rows = [5, 60, 100, 150, 200, 239]
    assert list(ds[rows]) == list(sx.open(folder)[rows])
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 0 < remote.bytes_read < total / 8
    assert len(remote.reads) <= 3 * 6 + 3


@pytest.mark.parametrize("names", ["{}", "folders-with-long-names/" * 5 + "{}"])
@pytest.mark.parametrize("layout", ["parts", "msgpack"])
def test_all_fields_of_a_tar_are_fetched_together(
    names: str, layout: str, tmp_path: Path, remotes: list[FakeRemote]
) -> None:
    """One request for a file, by `read`, by `ds[i]` and for the keys, which may be in extended headers."""
    schema = {"__key__": str, **{name: sx.Array("float32", (9000,)) for name in "abcd"}, "e": str, "n": str | None}
    with sx.create(tmp_path / "d", schema, format="tar", layout=layout) as out:
        for k in range(40):
            values = {name: np.full(9000, k, np.float32) for name in "abcd"}
            out.append(__key__=names.format(k), e=f"{k}", n=None if k % 2 else "n", **values)
    del schema["__key__"]
    local = sx.open(tmp_path / "d", schema=schema)
    asks: list[Callable[[Dataset], Any]] = [
        lambda ds: ds.read([20, 21, 30]).to_samples(),
        lambda ds: ds[25],
        lambda ds: ds.read([23, 30], ["__key__"])["__key__"],
        lambda ds: ds.read([28, 29], ["n", "b", "e"]).to_samples(),
    ]
    for number, ask in enumerate(asks):
        ds = sx.open(fake_remote_url(tmp_path / "d"), schema=schema, access="ranged", cache=tmp_path / f"cache{number}")
        assert len(ds) == 40 and ds.fields
        remotes[-1].reads.clear()
        assert str(ask(ds)) == str(ask(local))
        assert len(remotes[-1].reads) == 1


def test_record_batches_of_several_files_are_fetched_concurrently(made: Any, remotes: list[FakeRemote]) -> None:
    ds = sx.open(fake_remote_url(made(arrow)), access="ranged")
    remote = remotes[-1]
    remote.reads.clear()
    remote.barrier = threading.Barrier(5, timeout=60)  # breaks unless five reads run at the same time
    found = ds.read([5, 60, 100, 150, 200, 239], ["x"])["x"]
    assert np.array_equal(found, [samples()[row]["x"] for row in (5, 60, 100, 150, 200, 239)])
    assert len(remote.reads) == 10  # of each file its table and the blocks of the values


def test_advise_fetches_in_the_background(made: Any, remotes: list[FakeRemote]) -> None:
    ds = sx.open(fake_remote_url(made(tar)), access="ranged", cache_limit=10**11)
    remote = remotes[-1]
    local = list(sx.open(made(tar))[[5, 60, 100]])
    remote.reads.clear()
    remote.barrier = threading.Barrier(4, timeout=60)
    ds.advise([5, 60, 100])  # returns while the three reads wait for the barrier
    remote.barrier.wait()
    assert becomes_true(lambda: not remote.running)
    fetched = remote.bytes_read
    assert list(ds[[5, 60, 100]]) == local and remote.bytes_read == fetched


# -- edited stores, loaders --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_missing_pages_filled")
def test_edited_store_reads_the_same_remotely(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", samples(), SCHEMA, shard_rows=SHARD, key="k")
    with sx.edit(tmp_path / "d") as tx:
        tx.update(3, t="changed")
        tx.delete([10, 200])
        tx.add_field("double", int, [2 * k for k in range(COUNT)])
    local, ds = sx.open(tmp_path / "d"), sx.open(fake_remote_url(tmp_path / "d"), access="ranged")
    assert list(ds) == list(local)
    assert ds.get(77) == local.get(77) and ds.fingerprint == local.fingerprint
    assert [one.k for one in ds.where("k % 50 = 7")] == [one.k for one in local.where("k % 50 = 7")]
    first = sx.open(fake_remote_url(tmp_path / "d"), version=1)
    assert list(first) == list(sx.open(tmp_path / "d", version=1))


@pytest.mark.parametrize(
    ("make", "workers", "kind"),
    [(arrow, 0, "auto"), (arrow, 2, "thread"), (jsonl, 2, "thread"), (tar, 2, "process"), (tokens, 0, "auto")],
)
def test_loader_batches_are_the_same_remotely(make: Any, workers: int, kind: Any, made: Any) -> None:
    folder = made(make)
    name = "x"
    local = [batch[name] for batch in sx.Loader(sx.open(folder), batch_size=16, shuffle=True, seed=1)]
    ds = sx.open(fake_remote_url(folder), access="ranged")
    with sx.Loader(ds, batch_size=16, shuffle=True, seed=1, workers=workers, worker_type=kind) as loader:
        found = [batch[name] for batch in loader]
    assert len(found) == len(local) and all(np.array_equal(a, b) for a, b in zip(found, local, strict=True))


# -- URLs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    for k in (0, 1, 2, 10):
        path = tmp_path / "set" / ("inner" if k == 10 else "") / f"p{k}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"k": k}) + "\n", "utf-8")
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("", [10, 0, 1, 2]),
        ("/", [10, 0, 1, 2]),
        ("/p1.jsonl", [1]),
        ("/*.jsonl", [0, 1, 2]),
        ("/**/*.jsonl", [10, 0, 1, 2]),
        ("/p[12].jsonl", [1, 2]),
        ("/p{2..0}.jsonl", [2, 1, 0]),
        ("/{inner/p10,p1}.jsonl", [10, 1]),
        (["/p2.jsonl", "/inner/p10.jsonl", "/p?.jsonl"], [2, 10, 0, 1, 2]),
        (["/inner/p10.jsonl"], [10]),
    ],
)
def test_urls_patterns_and_lists_find_files_in_order(what: Any, expected: list[int], lines: Path) -> None:
    given = (
        [FakeRemoteUrl(fake_remote_url(lines) + one) for one in what]
        if isinstance(what, list)
        else FakeRemoteUrl(fake_remote_url(lines) + what)
    )
    ds = sx.open(given)
    assert [one.k for one in ds] == expected
    assert [one.k for one in pickle.loads(pickle.dumps(ds))] == expected
    assert all(name.startswith("fakeremote://") and name.endswith(".jsonl") for name in ds.shards(np.arange(len(ds))))


@pytest.mark.parametrize("what", ["/nothing", "/nothing.jsonl", "/x*.jsonl", "/p{0..5}.jsonl", "/nothing/"])
def test_missing_files_raise_not_found(what: str, lines: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nothing|x\*|p3"):
        sx.open(FakeRemoteUrl(fake_remote_url(lines) + what))


def test_files_of_two_stores_raise(lines: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"expected files of one store, got files of fakeremote:// and this machine"
    ):
        sx.open([fake_remote_url(lines) + "/p0.jsonl", str(lines / "p1.jsonl")])
    with pytest.raises(ArgumentError, match=r"got files of memory://a and memory://b"):
        sx.open(["memory://a/x.jsonl", "memory://b/x.jsonl"])


def test_changed_file_is_indexed_again(lines: Path) -> None:
    assert [one.k for one in sx.open(fake_remote_url(lines))] == [10, 0, 1, 2]
    (lines / "p1.jsonl").write_text('{"k": 7}\n{"k": 8}\n', "utf-8")
    assert [one.k for one in sx.open(fake_remote_url(lines))] == [10, 0, 7, 8, 2]


def test_wrong_cache_options_raise(lines: Path) -> None:
    for options in ({"access": "sometimes"}, {"cache_limit": -1}, {"cache_limit": "much"}):
        with pytest.raises(ArgumentError, match="expected"):
            sx.open(fake_remote_url(lines), **options)
    ds = sx.open(fake_remote_url(lines), access="whole", cache=str(lines.parent / "own"), cache_limit="1 GB")
    assert len(ds) == 4 and (lines.parent / "own" / "pages").is_dir() and len(pickle.dumps(ds)) < 2000


def test_uneven_json_lines_have_the_same_fields_as_local_ones(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    extras: list[dict[str, float]] = [{}, {"late": 0.5}, {"late": 2}]
    for number, extra in enumerate(extras):
        (folder / f"{number}.jsonl").write_text((json.dumps({"a": number, **extra}) + "\n") * 50)
    remote, local = sx.open(fake_remote_url(folder), cache=tmp_path / "cache"), sx.open(folder)
    assert str(remote.features) == str(local.features) == "a int64, late float64 or none"
    assert list(remote) == list(local)
    assert remote[149] == {"a": 2, "late": 2.0}
    assert remote.to_arrow() == local.to_arrow()


def test_fields_of_remote_maps_are_those_of_the_first(tmp_path: Path) -> None:
    """To find all, the whole dataset would have to be downloaded."""
    folder = tmp_path / "d"
    with sx.create(folder, {"a": dict, "late": str | None}, format="tar", layout="msgpack") as out:
        out.extend({"a": 1} for _ in range(20))
    local = folder / "shard-000000.tar"
    data = bytearray(local.read_bytes())
    del data[: data.index(b"000000000.msgpack")]  # the schema
    for at in [k for k in range(len(data)) if data.startswith(b"\xa4late\xc0", k)][:16]:
        data[at : at + 6] = b"\xa4else\xc0"
    local.write_bytes(data)
    with pytest.raises(SchemaError, match=r"'late' too; the fields were found in the first 16 of 20 .* with schema="):
        sx.open(fake_remote_url(folder))[18]
    ds = sx.open(fake_remote_url(folder), schema={"late": str | None})
    assert ds[18] == {"__key__": "000000018", "a": 1, "else": None, "late": None}
    assert list(ds) == list(sx.open(folder))
