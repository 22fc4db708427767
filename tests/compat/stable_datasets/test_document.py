"""What document 004 promises, function by function.

The document is a module's source text with its docstrings, and has no code blocks. So each test here names what the
document says of a function and checks it; only the import lines are those of shardex.
"""

import hashlib
import inspect
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PILImage

from shardex.compat.stable_datasets import cache
from shardex.compat.stable_datasets.schema import Array3D, ClassLabel, Features, Image, Sequence, Value, Video


def rows(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A generator as the document wants it: pairs of a key and an example."""
    for n in range(count):
        yield f"key {n}", {"n": n}


NUMBERS = Features({"n": Value("int64")})


def test_names_and_signatures() -> None:
    parameters = inspect.signature(cache.write_sharded_arrow_cache).parameters
    assert list(parameters)[:5] == ["generator", "features", "cache_dir", "shard_size_bytes", "batch_size"]
    assert cache.DEFAULT_SHARD_SIZE_BYTES == parameters["shard_size_bytes"].default == 256 * 1024 * 1024
    assert parameters["batch_size"].default == 1000
    assert parameters["shard_size_bytes"].kind is inspect.Parameter.KEYWORD_ONLY
    for function, first in (
        (cache.encode_example, ["example", "features"]),
        (cache.cache_fingerprint, ["cls_name", "version", "config_name", "split"]),
        (cache.validate_sharded_cache, ["cache_dir", "features"]),
        (cache.read_sharded_cache_meta, ["cache_dir"]),
        (cache.read_shard, ["shard_path"]),
    ):
        assert list(inspect.signature(function).parameters)[: len(first)] == first


def test_images_are_encoded_as_documented(tmp_path: Path) -> None:
    """Bytes as they are; files as they are; PIL images in their format, else PNG; arrays PNG; others a TypeError."""

    def encoded(value: Any) -> Any:
        return cache.encode_example({"image": value}, Features({"image": Image()}))["image"]

    def format_of(value: Any) -> str | None:
        return PILImage.open(io.BytesIO(encoded(value))).format

    file = io.BytesIO()
    PILImage.new("RGB", (8, 8), "red").save(file, "JPEG")
    (tmp_path / "a.jpg").write_bytes(file.getvalue())
    assert encoded(None) is None
    assert encoded(b"raw bytes") == b"raw bytes"
    assert encoded(tmp_path / "a.jpg") == encoded(str(tmp_path / "a.jpg")) == file.getvalue()
    assert format_of(PILImage.open(file)) == "JPEG"
    assert format_of(PILImage.new("RGB", (8, 8))) == "PNG"
    for mode in ("RGBA", "LA", "P"):
        assert format_of(PILImage.new(mode, (8, 8))) == "PNG"
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert format_of(pixels) == "PNG"
    assert np.array_equal(np.asarray(PILImage.open(io.BytesIO(encoded(pixels)))), pixels)
    with pytest.raises(TypeError):
        encoded(object())


def test_other_values_are_encoded_as_documented() -> None:
    features = Features(
        {
            "volume": Array3D((1, 2, 2), "float32"),
            "label": ClassLabel(names=["cat", "dog"]),
            "video": Video(),
            "list": Sequence(Value("int64")),
            "number": Value("float64"),
        }
    )
    example = {"volume": [[[1, 2], [3, 4]]], "label": "dog", "video": Path("a.mp4"), "list": np.array([1, 2])}
    assert cache.encode_example({**example, "number": np.float64(0.5), "unknown": np.int8(3)}, features) == {
        "volume": np.array([1, 2, 3, 4], np.float32).tobytes(),
        "label": 1,
        "video": "a.mp4",
        "list": [1, 2],
        "number": 0.5,
        "unknown": 3,
    }
    nothing = dict.fromkeys(("volume", "label", "video", "list", "number"))
    assert cache.encode_example(nothing, features) == nothing
    assert cache.encode_example({"label": 1, "list": (1, 2)}, features) == {"label": 1, "list": [1, 2]}
    with pytest.raises(KeyError):
        cache.encode_example({"label": "bird"}, features)


def test_videos_are_stored_as_they_are_given(tmp_path: Path) -> None:
    """The path as text; the file need not exist."""
    rows: list[tuple[int, dict[str, Any]]] = [
        (0, {"video": "clips/1.mp4"}),
        (1, {"video": Path("no/2.xyz")}),
        (2, {"video": None}),
    ]
    cache.write_sharded_arrow_cache(rows, Features({"video": Video()}), tmp_path / "a")
    column = cache.read_shard(tmp_path / "a" / "shard-00000.arrow").column("video")
    assert (column.type, column.to_pylist()) == (pa.string(), ["clips/1.mp4", "no/2.xyz", None])
    assert sorted(os.listdir(tmp_path / "a")) == ["_metadata.json", "shard-00000.arrow"]


def test_names_of_folders() -> None:
    digest = hashlib.sha256(b"MNIST:1.0.0:plain:test").hexdigest()[:16]
    assert cache.cache_fingerprint("MNIST", "1.0.0", "plain", "test") == f"mnist_plain_test_{digest}"


def test_folder_is_as_documented(tmp_path: Path) -> None:
    """Batches of batch_size rows; a shard is closed when it is over its size; `_metadata.json` lists all."""
    meta = cache.write_sharded_arrow_cache(rows(10), NUMBERS, tmp_path / "a", shard_size_bytes=48, batch_size=3)
    assert sorted(os.listdir(tmp_path / "a")) == ["_metadata.json", "shard-00000.arrow", "shard-00001.arrow"]
    metadata = json.loads((tmp_path / "a" / "_metadata.json").read_text())
    fingerprint = hashlib.sha256(repr(dict(NUMBERS)).encode()).hexdigest()[:16]
    documented = {
        "cache_format_version": 1,
        "schema_fingerprint": fingerprint,
        "num_rows": 10,
        "num_shards": 2,
        "shard_row_counts": [6, 4],
        "shard_filenames": ["shard-00000.arrow", "shard-00001.arrow"],
        "shard_size_target_bytes": 48,
    }
    assert metadata == documented | {"format": "arrow", "layout": "arrow-shards"}
    assert (meta.cache_dir, meta.num_rows, meta.num_shards) == (tmp_path / "a", 10, 2)
    assert (meta.shard_filenames, meta.shard_row_counts) == (documented["shard_filenames"], [6, 4])
    assert meta.schema_fingerprint == fingerprint
    with pa.memory_map(str(tmp_path / "a" / "shard-00000.arrow")) as file:
        assert [pa.ipc.open_file(file).get_batch(k).num_rows for k in range(2)] == [3, 3]
    tables = [cache.read_shard(tmp_path / "a" / name) for name in meta.shard_filenames]
    assert pa.concat_tables(tables).column("n").to_pylist() == list(range(10))


def test_no_examples_are_no_shards(tmp_path: Path) -> None:
    meta = cache.write_sharded_arrow_cache(rows(0), NUMBERS, tmp_path / "a")
    assert (meta.num_shards, meta.num_rows, meta.shard_filenames) == (0, 0, [])
    assert cache.validate_sharded_cache(tmp_path / "a", NUMBERS).num_shards == 0


def test_no_shard_is_empty(tmp_path: Path) -> None:
    """The next shard is opened when the next batch is ready, so the last one is never empty."""
    meta = cache.write_sharded_arrow_cache(rows(6), NUMBERS, tmp_path / "a", shard_size_bytes=1, batch_size=3)
    assert meta.shard_row_counts == [3, 3]


def test_an_existing_cache_is_replaced(tmp_path: Path) -> None:
    cache.write_sharded_arrow_cache(rows(6), NUMBERS, tmp_path / "a", shard_size_bytes=1, batch_size=1)
    cache.write_sharded_arrow_cache(rows(2), NUMBERS, tmp_path / "a")
    assert sorted(os.listdir(tmp_path / "a")) == ["_metadata.json", "shard-00000.arrow"]


def test_a_failure_removes_the_temporary_folder(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from rows(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.write_sharded_arrow_cache(failing(), NUMBERS, tmp_path / "deep" / "a")
    assert os.listdir(tmp_path / "deep") == []


def test_another_schema_is_a_value_error(tmp_path: Path) -> None:
    cache.write_sharded_arrow_cache(rows(3), NUMBERS, tmp_path / "a")
    assert cache.validate_sharded_cache(tmp_path / "a", NUMBERS).num_rows == 3
    with pytest.raises(ValueError, match="fingerprint"):
        cache.validate_sharded_cache(tmp_path / "a", Features({"n": Value("float32")}))
    (tmp_path / "a" / "shard-00000.arrow").unlink()
    with pytest.raises(ValueError, match=r"shard-00000\.arrow"):
        cache.validate_sharded_cache(tmp_path / "a", NUMBERS)
    with pytest.raises(FileNotFoundError):
        cache.read_sharded_cache_meta(tmp_path / "none")
