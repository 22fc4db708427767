"""Stores of shards: a folder, a bucket on a real S3 server; and `Repo`."""

from pathlib import Path
from typing import Any

import pytest

from shardex.compat.atdata import Dataset, Index, LocalDiskStore, load_dataset, packable, write_samples
from shardex.compat.atdata._helpers import sha256_file
from shardex.compat.atdata.local import Repo
from shardex.compat.atdata.manifest import QueryExecutor
from shardex.compat.atdata.stores import S3DataStore
from shardex.compat.atdata.testing import mock_index
from shardex.sources import storage
from tests.compat.atdata.test_providers import redis_client
from tests.servers import KEY, SECRET

__all__ = ["redis_client"]


@packable
class Point:
    x: int


@pytest.fixture
def points(tmp_path: Path) -> Dataset[Any]:
    """Ten samples."""
    return write_samples([Point(k) for k in range(10)], tmp_path / "points.tar")


def test_a_folder(points: Dataset[Any], tmp_path: Path) -> None:
    store = LocalDiskStore(tmp_path / "store")
    urls = store.write_shards(points, prefix="team/points", maxcount=4, manifest=True, cache_local=True)
    assert len(urls) == 3 and all(Path(one).parent == tmp_path / "store" / "team" / "points" for one in urls)
    assert urls.checksums == {one: sha256_file(one) for one in urls}
    assert [one.x for url in urls for one in Dataset[Point](store.read_url(url))] == list(range(10))
    assert len(QueryExecutor.from_shard_urls(urls).query(lambda df: df["x"] > 7)) == 2
    assert store.supports_streaming() and store.root == tmp_path / "store"
    for wrong in ("", "/etc", "../out", "a/../b"):
        with pytest.raises(ValueError, match="relative path"):
            store.write_shards(points, prefix=wrong)


@pytest.fixture
def s3_store(bucket: str, seaweed: str, tmp_path: Path) -> S3DataStore:
    """A store in a bucket of a real server, with its keys in a file."""
    storage("s3://tests")  # only the store knows the keys
    keys = tmp_path / "keys.env"
    keys.write_text(
        f"# keys\nexport AWS_ENDPOINT={seaweed}\nAWS_ACCESS_KEY_ID='{KEY}'\nAWS_SECRET_ACCESS_KEY={SECRET}\n"
    )
    return S3DataStore(keys, bucket="tests")


def test_a_bucket(s3_store: S3DataStore, points: Dataset[Any], bucket: str, tmp_path: Path) -> None:
    prefix = bucket.removeprefix("s3://tests/")
    index = mock_index(tmp_path, data_store=s3_store)
    entry = index.insert_dataset(points, name=f"{prefix}/points", maxcount=4, manifest=True)
    assert len(entry.data_urls) == 3 and entry.data_urls[0].startswith(f"s3://tests/{prefix}/points/data--")
    assert entry.metadata is not None and list(entry.metadata["checksums"]) == entry.data_urls
    ds = load_dataset(f"@local/{prefix}/points", split="train", index=index)
    assert [one.x for one in ds] == list(range(10))
    assert len(QueryExecutor.from_shard_urls(entry.data_urls).query(lambda df: df["x"] > 7)) == 2
    endpoint = s3_store.credentials["AWS_ENDPOINT"]
    assert s3_store.read_url("s3://tests/a.tar") == f"{endpoint}/tests/a.tar"
    assert s3_store.read_url("a.tar") == "a.tar" and s3_store.supports_streaming()


def test_keys_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "keys.env").write_text("AWS_ENDPOINT=http://localhost\n")
    with pytest.raises(ValueError, match=r"Missing required keys in .*: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"):
        S3DataStore(tmp_path / "keys.env", bucket="b")
    with pytest.raises(FileNotFoundError):
        S3DataStore(tmp_path / "none.env", bucket="b")


def test_a_repo_of_old_versions(
    s3_store: S3DataStore, points: Dataset[Any], bucket: str, redis_client: Any, tmp_path: Path
) -> None:
    folder = bucket.removeprefix("s3://")
    points._metadata = {"lab": "a"}
    with pytest.warns(DeprecationWarning, match="Use Index with S3DataStore"):
        repo = Repo(s3_store.credentials, folder, redis_client)
    entry, copy = repo.insert(points, name="points")
    assert [one.x for one in copy] == list(range(10)) and copy.metadata == {"lab": "a"}
    assert repo.index.get_entry_by_name("points") == entry
    assert Index(redis=redis_client).get_dataset("points") == entry
    with pytest.warns(DeprecationWarning, match="Repo"), pytest.raises(ValueError, match="hive path"):
        Repo(s3_store.credentials, redis=redis_client)
    with pytest.warns(DeprecationWarning, match="Repo"):
        bare = Repo(redis=redis_client)
    with pytest.raises(ValueError, match="S3 credentials required"):
        bare.insert(points, name="points")
