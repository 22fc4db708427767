"""Builders: made once, reused, made again when the features change; downloads from a real web server."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import shardex as sx
from shardex.compat.stable_datasets import cache as cache_module
from shardex.compat.stable_datasets.cache import cache_fingerprint, open_cache
from shardex.compat.stable_datasets.dataset import StableDatasetDict
from shardex.compat.stable_datasets.schema import (
    BuilderConfig,
    ClassLabel,
    DatasetInfo,
    DatasetSource,
    DownloadInfo,
    Features,
    Image,
    Value,
    Version,
    Video,
)
from shardex.compat.stable_datasets.splits import Split, SplitGenerator
from shardex.compat.stable_datasets.utils import BaseDatasetBuilder, bulk_download, download
from shardex.errors import ShardexError
from tests.compat.stable_datasets.test_cache import fixture_features
from tests.compat.stable_datasets.test_schema import FIXTURES
from tests.servers.faulty import FaultyServer

SOURCE = {"homepage": "https://example.org", "assets": {}, "citation": "@misc{x}"}
Examples = Iterator[tuple[int, dict[str, Any]]]
CALLS: list[str] = []
"""Splits whose examples were made."""


class Numbers(BaseDatasetBuilder):
    """A dataset that needs no download."""

    VERSION = Version("1.0.0")
    SOURCE: ClassVar[Any] = SOURCE
    FEATURES: ClassVar[Any] = {"n": Value("int64"), "label": ClassLabel(list("abcdef")), "image": Image()}

    def _info(self) -> DatasetInfo:
        return DatasetInfo(Features(self.FEATURES), "numbers")

    def _split_generators(self) -> list[SplitGenerator]:
        return [
            SplitGenerator(Split.TRAIN, {"split": "train", "count": 10}),
            SplitGenerator(Split.VALIDATION, {"split": "validation", "count": 3}),
        ]

    def _generate_examples(self, split: str = "", count: int = 0, **kwargs: Any) -> Examples:
        CALLS.append(split)
        for n in range(count):
            yield n, {"n": n, "label": "b", "image": np.full((2, 2, 3), n, np.uint8)}


def build(builder: Any, *args: Any, **kwargs: Any) -> Any:
    """What calling a builder returns, which is no builder."""
    return builder(*args, **kwargs)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Folders for a builder."""
    CALLS.clear()
    return {"processed_cache_dir": tmp_path / "processed", "download_dir": tmp_path / "downloads"}


def test_built_once_and_reused(places: dict[str, Path]) -> None:
    import torch

    splits = build(Numbers, **places)
    assert isinstance(splits, StableDatasetDict) and {name: len(one) for name, one in splits.items()} == {
        "train": 10,
        "validation": 3,
    }
    assert CALLS == ["train", "validation"]
    ds: Any = build(Numbers, split="validation", **places)
    assert type(ds).__name__ == "StableDataset" and CALLS == ["train", "validation"]
    assert ds[2]["n"] == 2 and ds[2]["label"] == 1 and np.asarray(ds[2]["image"]).max() == 2
    assert ds.info.description == "numbers" and ds.info.config_name == "default"
    assert ds._stable_datasets_processed_cache_dir == places["processed_cache_dir"]
    assert sorted(os.listdir(places["processed_cache_dir"])) == sorted(
        cache_fingerprint("Numbers", "1.0.0", "default", split, "arrow") for split in splits
    )
    batch = next(iter(torch.utils.data.DataLoader(ds.with_format("torch"), batch_size=3, num_workers=0)))
    assert batch["n"].tolist() == [0, 1, 2] and batch["image"].shape == (3, 3, 2, 2)


def test_only_the_wanted_split_is_built(places: dict[str, Path]) -> None:
    build(Numbers, split="validation", **places)
    assert CALLS == ["validation"]
    assert set(build(Numbers, **places)) == {"train", "validation"}, (
        "the splits are not taken from the caches that exist"
    )
    assert CALLS == ["validation", "train"]
    with pytest.raises(ValueError, match="'train', 'validation', got 'test'") as raised:
        build(Numbers, split="test", **places)
    assert isinstance(raised.value, ShardexError)


def test_rebuilt_if_features_have_changed(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    before = build(Numbers, split="validation", **places)
    for name, feature in (("n", Value("int32")), ("label", ClassLabel(list("zbcdef")))):
        monkeypatch.setattr(Numbers, "FEATURES", {**Numbers.FEATURES, name: feature})
        CALLS.clear()
        after = build(Numbers, split="validation", **places)
        assert CALLS == ["validation"] and after.features[name] == feature
        build(Numbers, split="validation", **places)
        assert CALLS == ["validation"]
    assert [row["n"] for row in before] == [0, 1, 2], "those who have the old one open keep it"


def test_rebuilt_if_files_are_damaged(places: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    build(Numbers, split="validation", **places)
    folder = places["processed_cache_dir"] / cache_fingerprint("Numbers", "1.0.0", "default", "validation", "arrow")
    (folder / "shard-00000.arrow").unlink()
    assert len(build(Numbers, split="validation", **places)) == 3
    (message,) = caplog.messages
    assert "is made again" in message and "got no such file" in message
    (folder / "_metadata.json").write_text("{")
    assert len(build(Numbers, split="validation", **places)) == 3
    assert CALLS == ["validation"] * 3


def test_a_failed_build_leaves_nothing(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, **kwargs: Any) -> Examples:
        yield 0, {"n": 0, "label": 0, "image": None}
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "_generate_examples", failing)
        with pytest.raises(ZeroDivisionError):
            build(Numbers, split="train", **places)
    assert os.listdir(places["processed_cache_dir"]) == []
    assert len(build(Numbers, split="train", **places)) == 10


BUILD = """
import sys
from shardex.compat.stable_datasets.schema import DatasetInfo, Features, Value, Version
from shardex.compat.stable_datasets.splits import SplitGenerator
from shardex.compat.stable_datasets.utils import BaseDatasetBuilder

class Shared(BaseDatasetBuilder):
    VERSION = Version("1.0.0")
    SOURCE = {"homepage": "https://example.org", "assets": {}, "citation": "@misc{x}"}

    def _info(self):
        return DatasetInfo(Features({"n": Value("int64")}))

    def _split_generators(self):
        return [SplitGenerator("train")]

    def _generate_examples(self):
        with open(sys.argv[1] + "/built", "a") as file:
            file.write("built\\n")
        for n in range(1000):
            yield n, {"n": n}

assert len(Shared(split="train", processed_cache_dir=sys.argv[1] + "/processed")) == 1000
"""


def test_several_processes_build_once(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert (tmp_path / "built").read_text() == "built\n"


def test_caches_of_both_versions_of_the_real_package_are_found(places: dict[str, Path]) -> None:
    class Cifar(BaseDatasetBuilder):
        VERSION = Version("1.0.0")
        SOURCE: ClassVar[Any] = {**SOURCE, "assets": {"train": "https://example.org/none"}}

        def _info(self) -> DatasetInfo:
            return DatasetInfo(fixture_features(self.config.name))

    for name, newer in (("v37ff322", ()), ("images", ("arrow",)), ("scalars_multishard", ("arrow",))):
        folder = cache_fingerprint("Cifar", "1.0.0", name, "train", *newer)
        shutil.copytree(FIXTURES / name, places["processed_cache_dir"] / folder)
        splits = build(Cifar, name, **places)
        assert len(splits["train"]) == json.loads((FIXTURES / name / "_metadata.json").read_text())["num_rows"]
        assert next(iter(splits["train"])).keys() == fixture_features(name).keys()
    assert not places["download_dir"].exists()


# -- what a builder declares ----------------------------------------------------------------------------------------


def test_configs(places: dict[str, Path]) -> None:
    class Several(Numbers):
        BUILDER_CONFIGS: ClassVar[list[Any]] = [BuilderConfig("small"), BuilderConfig("large", Version("2.0.0"))]
        DEFAULT_CONFIG_NAME = "large"

        def _generate_examples(self, split: str = "", count: int = 0, **kwargs: Any) -> Examples:
            yield 0, {"n": len(self.config.name), "label": 0, "image": None}

    assert build(Several, split="train", **places)[0]["n"] == 5
    small = build(Several, config_name="small", split="train", **places)
    assert small[0]["n"] == 5 and small.info.config_name == "small"
    assert len(os.listdir(places["processed_cache_dir"])) == 2
    with pytest.raises(ValueError, match="'small', 'large', got 'huge'"):
        build(Several, "huge", **places)


def test_wrong_declarations() -> None:
    with pytest.raises(TypeError, match="VERSION"):
        type("NoVersion", (BaseDatasetBuilder,), {"SOURCE": SOURCE})
    with pytest.raises(TypeError, match="SOURCE"):
        type("NoSource", (BaseDatasetBuilder,), {"VERSION": Version("1.0.0")})
    for wrong in ({}, {**SOURCE, "homepage": None}, {**SOURCE, "assets": None}, 3):
        with pytest.raises(TypeError, match="expected"):
            type("WrongSource", (BaseDatasetBuilder,), {"VERSION": Version("1.0.0"), "SOURCE": wrong})
    made: Any = type("Good", (BaseDatasetBuilder,), {"VERSION": Version("1.0.0"), "SOURCE": SOURCE})
    assert isinstance(made.SOURCE, DatasetSource)
    for method in ("_info", "_generate_examples"):
        with pytest.raises(NotImplementedError, match=method):
            getattr(object.__new__(made), method)()


def test_source_of_a_method(places: dict[str, Path]) -> None:
    class Dynamic(Numbers):
        def _source(self) -> Any:
            return {**SOURCE, "homepage": f"https://example.org/{self.config.name}"} if self.config else 3

    assert len(build(Dynamic, split="train", **places)) == 10
    made = object.__new__(Dynamic)
    made.config = BuilderConfig("x")
    assert made._source().homepage == "https://example.org/x"


def test_lance_is_refused(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match="storage_format='arrow'"):
        build(Numbers, split="train", storage_format="lance", **places)
    with pytest.raises(ValueError, match="storage_format"):
        build(Numbers, split="train", storage_format="csv", **places)
    monkeypatch.setattr(Numbers, "FEATURES", {"v": Video("frames")})
    with pytest.raises(ValueError, match="decode_video="):
        build(Numbers, split="train", **places)


def test_default_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STABLE_DATASETS_CACHE_DIR", str(tmp_path))
    ds = build(Numbers, split="train")
    assert ds._stable_datasets_download_dir == tmp_path / "downloads"
    assert len(os.listdir(tmp_path / "processed")) == 1


def test_open_cache(tmp_path: Path) -> None:
    for name in ("images", "v37ff322", "scalars_multishard"):
        opened = open_cache(FIXTURES / name, fixture_features(name))
        assert opened.layout == "arrow-shards" and opened.backend.num_rows == opened.num_rows
        assert opened.metadata.num_shards == opened.backend.num_shards
    with pytest.raises(FileNotFoundError):
        open_cache(tmp_path, Features({"n": Value("int8")}))
    for layout in ("lance-rows", "lance-video-frames"):
        (tmp_path / "_metadata.json").write_text(json.dumps({"format": "lance", "layout": layout, "num_rows": 1}))
        with pytest.raises(ValueError, match="Lance"):
            open_cache(tmp_path, Features({"n": Value("int8")}), backend_kwargs={"batch_readahead": 2})
    (tmp_path / "_metadata.json").write_text('{"layout": "other"}')
    with pytest.raises(ValueError, match="'other'"):
        open_cache(tmp_path, Features({"n": Value("int8")}))
    assert cache_module.CacheOpenResult(backend=1, num_rows=2, layout="x", metadata=None).num_rows == 2


# -- downloads ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(web: FaultyServer) -> FaultyServer:
    """A web server with files, of which requests are not retried."""
    web.files |= {"train.txt": b"1 2 3", "val.txt": b"4", "no extension": b"5"}
    sx.storage(web.url("")[:-1], retries=0)
    return web


def sha256(data: bytes) -> str:
    """A checksum as builders have it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_download(server: FaultyServer, tmp_path: Path) -> None:
    url = f"{server.url()}/train.txt"
    path = download(url, tmp_path, progress_bar=False, checksum=sha256(b"1 2 3"))
    assert path == tmp_path / f"train.{hashlib.sha256(url.encode()).hexdigest()[:10]}.txt"
    assert path.read_bytes() == b"1 2 3"
    asked = sum(server.asked.values())
    assert download(url, tmp_path, progress_bar=False) == path and sum(server.asked.values()) == asked
    assert os.listdir(tmp_path) == [path.name]
    steps: dict[str, Any] = {}
    named = download(DownloadInfo(url, filename="other.bin"), tmp_path / "b", False, steps, "task")
    assert named.name.startswith("other.") and named.suffix == ".bin"
    assert steps == {"task": {"progress": 5, "total": 5}}
    by_key = download(url, tmp_path / "b", False, cache_key_url="https://example.org/key.zip")
    assert by_key.name.startswith("key.") and by_key.suffix == ".zip"


def test_fallbacks_and_checksums(server: FaultyServer, tmp_path: Path) -> None:
    bad, good = f"{server.url('error')}/train.txt", f"{server.url()}/train.txt"
    assert download(bad, tmp_path, False, fallbacks=[f"{server.url()}/none", good]).read_bytes() == b"1 2 3"
    info = DownloadInfo(f"{server.url()}/val.txt", [good], checksum=sha256(b"1 2 3"))
    assert download(info, tmp_path, False).read_bytes() == b"1 2 3", "the first one is another file"
    with pytest.raises(ValueError, match="sha256"):
        download(f"{server.url()}/no%20extension", tmp_path, False, checksum=sha256(b""))
    with pytest.raises(RuntimeError, match="none"):
        download(f"{server.url()}/none", tmp_path, False)
    with pytest.raises(TypeError):
        download(3, tmp_path)  # type: ignore[arg-type]
    assert len(os.listdir(tmp_path)) == 2


def test_bulk_download(server: FaultyServer, tmp_path: Path) -> None:
    urls = [f"{server.url()}/{name}" for name in ("train.txt", "val.txt", "train.txt")]
    paths = bulk_download([urls[0], DownloadInfo(urls[1]), urls[2]], tmp_path, {urls[0]: sha256(b"1 2 3")})
    assert [path.read_bytes() for path in paths] == [b"1 2 3", b"4", b"1 2 3"] and paths[0] == paths[2]
    assert bulk_download([], tmp_path) == []
    with pytest.raises(ValueError, match="sha256"):
        bulk_download([urls[0]], tmp_path / "b", {urls[0]: sha256(b"")})


def test_a_file_for_each_split(server: FaultyServer, places: dict[str, Path]) -> None:
    class Lines(BaseDatasetBuilder):
        VERSION = Version("1.0.0")
        SOURCE: ClassVar[Any] = {
            **SOURCE,
            "assets": {name: f"{server.url()}/{name}.txt" for name in ("train", "val")},
            "checksums": {"val": sha256(b"4")},
        }

        def _info(self) -> DatasetInfo:
            return DatasetInfo(Features({"n": Value("int64")}))

        def _generate_examples(self, data_path: Path, split: str) -> Examples:
            for key, word in enumerate(data_path.read_text().split()):
                yield key, {"n": int(word)}

    splits = build(Lines, **places)
    assert {name: [row["n"] for row in one] for name, one in splits.items()} == {"train": [1, 2, 3], "validation": [4]}
    asked = sum(server.asked.values())
    shutil.rmtree(places["download_dir"])
    assert len(build(Lines, **places)["train"]) == 3
    assert sum(server.asked.values()) == asked, "caches need no raw files"
