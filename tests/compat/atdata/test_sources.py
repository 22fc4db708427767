"""Sources of atdata: shards at URLs, in buckets, as blobs, and from code of the user."""

import gc
import gzip
import io
import json
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from shardex.compat import atdata
from shardex.compat.atdata import _sources
from shardex.compat.atdata._sources import BlobSource, S3Source, URLSource
from shardex.sources import open_source, storage
from tests.compat.atdata.sample_classes import Label, Picture, picture, write_shards, write_tar
from tests.servers import KEY, SECRET, bucket, seaweed, web
from tests.servers.faulty import FaultyServer

__all__ = ["bucket", "seaweed", "web"]

PICTURE: Any = Picture


def numbers(samples: Any) -> list[int]:
    return [one.number for one in samples]


def test_url_source(tmp_path: Path) -> None:
    source = URLSource(write_shards(tmp_path))
    names = [f"{tmp_path}/data-{k:06d}.tar" for k in range(3)]
    assert source.list_shards() == names and isinstance(source, atdata.DataSource)
    with pytest.warns(DeprecationWarning, match="list_shards"):
        assert source.shard_list == names
    for name, stream in source.shards:
        with stream:
            assert stream.read() == Path(name).read_bytes()
    with source.open_shard(names[1]) as stream:
        assert stream.read(5) == Path(names[1]).read_bytes()[:5]
    with pytest.raises(KeyError, match="nowhere"):
        source.open_shard("nowhere.tar")
    assert URLSource("a/{train,val}/d-{00..01}.tar").list_shards() == [
        f"a/{split}/d-0{k}.tar" for split in ("train", "val") for k in (0, 1)
    ]
    assert source == URLSource(source.url) and eval(repr(source), {"URLSource": URLSource}) == source


def test_commands_are_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    source = URLSource(f"pipe:touch {ran}")
    with pytest.raises(ValueError, match="never runs commands"):
        list(atdata.Dataset[PICTURE](source))
    with pytest.raises(ValueError, match="never runs commands"):
        source.open_shard(source.url)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("shards", "url"),
    [
        (["d-0.tar"], "d-0.tar"),
        (["d-000.tar", "d-001.tar", "d-002.tar"], "d-00{0,1,2}.tar"),
        (["a.tar", "ab.tar"], "a{,b}.tar"),
        (["x/a.tar", "y/b.tar"], "{x/a,y/b}.tar"),
        (["a,b.tar", "a.tar"], None),
        (["{a}.tar", "b.tar"], None),
        (["a{1,2}.tar"], None),
        (["a.tar", "a.tar"], None),
    ],
)
def test_list_of_shards_as_a_pattern(shards: list[str], url: str | None) -> None:
    source = URLSource.of(shards)
    assert source.list_shards() == shards and (url is None or source == URLSource(url))


def test_web_server(tmp_path: Path, web: FaultyServer) -> None:
    for path in map(Path, URLSource(write_shards(tmp_path)).list_shards()):
        web.files[path.name] = path.read_bytes()
    ds = atdata.Dataset[PICTURE](web.url() + "/data-{000000..000002}.tar")
    assert numbers(ds) == list(range(10)) and numbers(ds.select([9, 0])) == [9, 0]
    with ds.source.open_shard(ds.list_shards()[2]) as stream:
        assert stream.read() == web.files["data-000002.tar"]


def test_places_of_several_stores_in_one_dataset(tmp_path: Path, web: FaultyServer) -> None:
    path = write_tar(tmp_path / "a.tar", [picture(1)])
    web.files["b.tar"] = Path(write_tar(tmp_path / "b.tar", [picture(2)])).read_bytes()
    assert numbers(atdata.Dataset[PICTURE](URLSource.of([path, f"{web.url()}/b.tar"]))) == [1, 2]


def test_web_server_without_ranges(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    pattern = write_shards(tmp_path / "files", 6)
    atdata.write_samples(map(picture, range(3)), tmp_path / "files" / "listed.tar", manifest=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "files"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        ds = atdata.Dataset[PICTURE](pattern.replace(f"{tmp_path}/files", root))
        assert numbers(ds) == list(range(6)) and numbers(ds.select([5])) == [5]
        assert ds.process_shards(len) == dict(zip(ds.list_shards(), [4, 2], strict=True))
        missing = atdata.Dataset[PICTURE](f"{root}/nowhere.tar")
        with pytest.raises(FileNotFoundError, match="nowhere"):
            list(missing)
        listed = atdata.Dataset[PICTURE](f"{root}/listed.tar")
        assert len(listed.query(listed.fields.number > 0)) == 2
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    """Answers every request with the whole file."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


# -- S3 -------------------------------------------------------------------------------------------------------------


def test_bucket_with_own_keys(bucket: str, seaweed: str, tmp_path: Path) -> None:
    place, folder = open_source(bucket), bucket.removeprefix("s3://tests/")
    for path in map(Path, URLSource(write_shards(tmp_path)).list_shards()):
        place.put(path.name, path.read_bytes())
    storage("s3://tests")  # no keys are set
    keys = [f"{folder}/data-{k:06d}.tar" for k in range(3)]
    source = S3Source("tests", keys, seaweed, KEY, SECRET)
    assert source.list_shards() == [f"s3://tests/{key}" for key in keys]
    ds = atdata.Dataset[PICTURE](source)
    assert ds.url == f"s3://tests/{keys[0]}" and numbers(ds) == list(range(10))
    with source.open_shard(source.list_shards()[1]) as stream:
        assert stream.read() == (tmp_path / "data-000001.tar").read_bytes()
    with pytest.raises(KeyError, match="nowhere"):
        source.open_shard("s3://tests/nowhere.tar")

    view = ds.filter(lambda one: one.number % 2).as_type(
        Label
    )  # B3.11: shards were opened without keys, lens and filter
    assert list(view.process_shards(len).values()) == [2, 2, 1]

    storage(bucket)
    again = S3Source.from_urls(source.list_shards()[:1], endpoint=seaweed, access_key=KEY, secret_key=SECRET)
    assert numbers(pickle.loads(pickle.dumps(atdata.Dataset[PICTURE](again)))) == [0, 1, 2, 3]
    storage(bucket)
    given = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT": seaweed}
    assert numbers(atdata.Dataset[PICTURE](S3Source.from_credentials(given, "tests", keys[2:]))) == [8, 9]
    with pytest.raises(PermissionError):
        list(atdata.Dataset[PICTURE](S3Source("tests", keys, seaweed, KEY, "wrong")))
    storage(bucket)


def test_keys_are_not_shown() -> None:
    source = S3Source("tests", ["a.tar"], "http://127.0.0.1:1", "my-key", "my-secret")
    assert "my-" not in repr(source)


@pytest.mark.parametrize("urls", [[], ["s3://a/x.tar", "s3://b/y.tar"], ["http://a/x.tar"], ["s3://a"], ["s3:///x"]])
def test_urls_of_no_bucket_or_several(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        S3Source.from_urls(urls)


# -- blobs ----------------------------------------------------------------------------------------------------------

OWNER = "did:plc:abc123"


class _Blobs(BaseHTTPRequestHandler):
    """A server of ATProto: blobs by the query, whole ones only, and documents of owners."""

    server: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        if where.path == "/xrpc/com.atproto.sync.getBlob" and query.get("did") == OWNER:
            body = self.server.blobs.get(query["cid"])
        elif where.path == f"/{OWNER}":
            here = f"http://127.0.0.1:{self.server.server_port}"
            services = [{"type": "Other"}, {"type": "AtprotoPersonalDataServer", "serviceEndpoint": here}]
            body = json.dumps({"service": services}).encode()
        else:
            body = None
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    do_HEAD = do_GET


@contextmanager
def blob_server(blobs: dict[str, bytes]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Blobs)
    server.blobs = blobs  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_tar(tmp_path / f"{k}.tar", [picture(k), picture(k + 10)]) for k in range(2)]
    blobs = {f"bafy{k}": Path(path).read_bytes() for k, path in enumerate(paths)}
    refs = [{"did": OWNER, "cid": cid} for cid in blobs]
    with blob_server(blobs) as endpoint:
        monkeypatch.setattr(_sources, "PLC_DIRECTORY", endpoint)
        for source in (BlobSource(refs, endpoint), BlobSource(refs), BlobSource.from_refs(refs, pds_endpoint=endpoint)):
            assert source.list_shards() == [f"at://{OWNER}/blob/{cid}" for cid in blobs]
            ds = atdata.Dataset[PICTURE](source)
            assert numbers(ds) == [0, 10, 1, 11] and numbers(ds.select([2])) == [1]
            for (_, stream), blob in zip(source.shards, blobs.values(), strict=True):
                with stream:
                    assert stream.read() == blob
            with pytest.raises(KeyError, match="other"):
                source.open_shard(f"at://{OWNER}/blob/other")


def test_wrong_references_of_blobs() -> None:
    for refs in ([], [{"cid": "x"}], [{"ref": {"$link": "x"}}]):
        with pytest.raises(ValueError, match="expected"):
            BlobSource.from_refs(refs)
    with pytest.raises(ValueError, match="pds_endpoint"):
        list(atdata.Dataset[PICTURE](BlobSource([{"did": "did:web:x", "cid": "y"}])))


# -- sources of the user --------------------------------------------------------------------------------------------


class InMemory:
    """A source that a user has written."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.opened: list[str] = []

    def list_shards(self) -> list[str]:
        """Return the names."""
        return list(self.files)

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The names and streams."""
        return ((name, self.open_shard(name)) for name in self.files)

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Return a stream."""
        self.opened.append(shard_id)
        return io.BytesIO(self.files[shard_id])


@pytest.fixture
def own(tmp_path: Path) -> InMemory:
    """A source with four shards of two pictures each."""
    paths = [Path(write_tar(tmp_path / f"{k}.tar", [picture(2 * k), picture(2 * k + 1)])) for k in range(4)]
    return InMemory({f"shard {path.stem}": path.read_bytes() for path in paths})


def test_source_of_the_user_is_read_shard_by_shard(
    own: InMemory, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def copies() -> list[str]:
        return os.listdir(folder)

    ds = atdata.Dataset[PICTURE](own)
    assert ds.url == "shard 0" and own.opened == []
    samples = iter(ds)
    assert next(samples).number == 0 and own.opened == ["shard 0"] and len(copies()) == 1
    assert numbers(samples) == list(range(1, 8)) and own.opened == own.list_shards()
    assert copies() == []  # each copy is removed when its samples are read
    assert [batch.number for batch in ds.ordered(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert ds.filter(lambda one: one.number > 5).process_shards(numbers)["shard 3"] == [6, 7]
    stopped = iter(ds)
    next(stopped)
    del stopped
    assert copies() == []


def test_source_of_the_user_is_shuffled(own: InMemory) -> None:
    ds = atdata.Dataset[PICTURE](own)
    assert {tuple(sorted(numbers(ds.shuffled(buffer_samples=size)))) for size in (0, 1, 3, 99)} == {tuple(range(8))}
    orders = {tuple(numbers(ds.shuffled(buffer_samples=3))) for _ in range(10)}
    assert len(orders) > 5
    pairs = [[k // 2 for k in order] for order in orders]
    assert all(sorted(order[:4]) == sorted(2 * sorted(set(order[:4]))) for order in pairs)  # two shards at once
    assert numbers(ds.shuffled(seed=1)) == numbers(ds.shuffled(seed=1))


def test_random_access_to_a_source_of_the_user(own: InMemory) -> None:
    ds = atdata.Dataset[PICTURE](own)
    assert len(ds) == 8 and numbers(ds.select([7, 0])) == [7, 0]
    assert own.opened == own.list_shards()  # each is copied once
    folder = Path(ds._shards._folder)
    assert len(list(folder.glob("*.tar"))) == 4
    assert numbers(ds) == list(range(8)) and own.opened == own.list_shards()
    del ds
    gc.collect()  # Python 3.12 has a cycle where 3.11 has none
    assert not folder.exists()
    assert numbers(pickle.loads(pickle.dumps(atdata.Dataset[PICTURE](own)))) == list(range(8))


def test_source_of_the_user_in_workers_of_torch(own: InMemory) -> None:
    from torch.utils.data import DataLoader

    ds = atdata.Dataset[PICTURE](own)
    for stream in (ds.ordered(), ds.shuffled(buffer_samples=2)):
        loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert sorted(numbers(loader)) == list(range(8))
    one = atdata.Dataset[PICTURE](InMemory({"shard 0": own.files["shard 0"]}))
    loader = DataLoader(one.ordered(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(numbers(loader)) == [0, 1]


def test_source_without_shards() -> None:
    ds = atdata.Dataset[PICTURE](InMemory({}))
    assert list(ds) == list(ds.shuffled()) == [] and ds.url == "" and len(ds) == 0 and ds.select([]) == []
    with pytest.raises(IndexError):
        ds.select([0])
    with pytest.raises(atdata.SampleKeyError):
        ds.get("a")


def test_source_of_the_user_with_compressed_shards(own: InMemory) -> None:
    packed = InMemory({name: gzip.compress(data) for name, data in own.files.items()})
    ds = atdata.Dataset[PICTURE](packed)
    assert numbers(ds) == list(range(8)) and numbers(ds.select([7, 0])) == [7, 0]
    assert sorted(numbers(ds.shuffled(buffer_samples=3))) == list(range(8))
