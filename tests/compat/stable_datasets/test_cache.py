"""Caches: those of the real package are read, ours have the same layout, replacing one is all or nothing."""

import hashlib
import io
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PILImage

import shardex as sx
from shardex.compat.stable_datasets.cache import (
    LanceCacheMeta,
    ShardedCacheMeta,
    cache_fingerprint,
    detect_cache_format,
    detect_cache_layout,
    encode_example,
    open_cache,
    read_lance_cache_meta,
    read_shard,
    read_sharded_cache_meta,
    validate_sharded_cache,
    write_lance_cache,
    write_lance_video_frames_cache,
    write_sharded_arrow_cache,
)
from shardex.compat.stable_datasets.dataset import StableDataset
from shardex.compat.stable_datasets.schema import (
    Array3D,
    ClassLabel,
    DatasetInfo,
    Features,
    FeatureType,
    Image,
    Sequence,
    Value,
    Video,
)
from shardex.errors import ShardexError
from shardex.media import encode_video
from tests.compat.stable_datasets.test_schema import EXPECTED, FIXTURES, features_of

NUMBERS = Features({"n": Value("int64")})


def numbers(count: int, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Pairs of key and example."""
    return ((n, {"n": n}) for n in range(first, first + count))


def stored_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of a cache as plain pyarrow reads them."""
    names = json.loads((folder / "_metadata.json").read_text())["shard_filenames"]
    tables = [pa.ipc.open_file(str(folder / name)).read_all() for name in names]
    return [row for table in tables for row in table.to_pylist()]


def fixture_features(name: str) -> Features:
    """Features of a fixture."""
    return features_of(EXPECTED[name].get("fingerprint_data") or EXPECTED[name]["fingerprint_source"])


# -- caches of the real package -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(EXPECTED))
def test_metadata_of_real_caches(name: str) -> None:
    """Defect 1 of E3: newer versions could not open caches of early ones."""
    meta = validate_sharded_cache(FIXTURES / name, fixture_features(name))
    expected = EXPECTED[name]["metadata_json"]
    assert meta == ShardedCacheMeta(
        FIXTURES / name,
        expected["num_rows"],
        expected["num_shards"],
        expected["shard_filenames"],
        expected["shard_row_counts"],
        expected["schema_fingerprint"],
    )
    assert (detect_cache_format(FIXTURES / name), detect_cache_layout(FIXTURES / name)) == ("arrow", "arrow-shards")
    assert [read_shard(path).num_rows for path in meta.shard_paths] == meta.shard_row_counts


def digested(value: Any) -> Any:
    """A value as expected.json has it."""
    if isinstance(value, bytes):
        return {"__bytes_sha256__": hashlib.sha256(value).hexdigest(), "len": len(value)}
    return value


@pytest.mark.parametrize("name", ["images", "scalars_multishard"])
def test_rows_of_real_caches(name: str) -> None:
    tables = [read_shard(path) for path in read_sharded_cache_meta(FIXTURES / name).shard_paths]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [{key: digested(value) for key, value in row.items()} for row in rows] == EXPECTED[name]["raw"]


def test_rows_of_an_early_cache() -> None:
    features = fixture_features("v37ff322")
    meta = validate_sharded_cache(FIXTURES / "v37ff322", features)
    rows = [row for path in meta.shard_paths for row in read_shard(path).to_pylist()]
    for row, expected in zip(rows, EXPECTED["v37ff322"]["rows"], strict=True):
        found = {name: features[name].format(value, format_type="default") for name, value in row.items()}
        for name in ("image", "vol"):
            if expected[name] is not None:
                array = np.asarray(found[name])
                assert list(array.shape) == expected[name]["shape"]
                assert hashlib.sha256(array.tobytes()).hexdigest() == expected[name]["sha256"]
            else:
                assert found[name] is None
        assert all(found[name] == expected[name] for name in ("label", "video", "seq", "s"))


def test_images_of_a_real_cache() -> None:
    features = fixture_features("images")
    rows = stored_rows(FIXTURES / "images")
    for row, expected in zip(rows, EXPECTED["images"]["rows"], strict=True):
        image = features["image"].format(row["image"], format_type="default")
        if expected["image"] is None:
            assert image is None
            continue
        found = {
            "pil_mode": image.mode,
            "pil_format": image.format,
            "size": list(image.size),
            "sha256_pixels": hashlib.sha256(np.asarray(image).tobytes()).hexdigest(),
        }
        assert found == expected["image"]


# -- caches written here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images", "scalars_multishard"])
def test_same_files_as_the_real_package(name: str, tmp_path: Path) -> None:
    """The metadata has the same bytes; the shards have the same columns and batches, and one more schema entry."""
    features = fixture_features(name)
    sizes: dict[str, Any] = {"batch_size": 4, "shard_size_bytes": 1} if name == "scalars_multishard" else {}
    rows = enumerate(stored_rows(FIXTURES / name))
    write_sharded_arrow_cache(rows, features, tmp_path / "a", **{"single_file": not sizes, **sizes})
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(FIXTURES / name))
    assert (tmp_path / "a" / "_metadata.json").read_bytes() == (FIXTURES / name / "_metadata.json").read_bytes()
    for path in read_sharded_cache_meta(FIXTURES / name).shard_paths:
        real, ours = (pa.ipc.open_file(str(one)) for one in (path, tmp_path / "a" / path.name))
        assert real.schema.metadata is None and list(ours.schema.metadata) == [b"shardex"]
        assert ours.schema.remove_metadata().equals(real.schema, check_metadata=True)
        assert real.num_record_batches == ours.num_record_batches
        for number in range(real.num_record_batches):
            assert _body(ours.get_batch(number)) == _body(real.get_batch(number))


def _body(batch: pa.RecordBatch) -> bytes:
    """The bytes of a batch in a file, without the schema."""
    return bytes(batch.replace_schema_metadata(None).serialize())


def test_metadata_with_options(tmp_path: Path) -> None:
    meta = write_sharded_arrow_cache(
        numbers(3), NUMBERS, tmp_path / "a", compression="zstd", lineage={"made": "by hand"}, shard_size_bytes=100
    )
    assert (meta.compression, meta.num_rows) == ("zstd", 3)
    assert json.loads((tmp_path / "a" / "_metadata.json").read_text()) == {
        "cache_format_version": 1,
        "format": "arrow",
        "layout": "arrow-shards",
        "schema_fingerprint": hashlib.sha256(b"{'n': Value('int64')}").hexdigest()[:16],
        "num_rows": 3,
        "num_shards": 1,
        "shard_row_counts": [3],
        "shard_filenames": ["shard-00000.arrow"],
        "shard_size_target_bytes": 100,
        "compression": "zstd",
        "lineage": {"made": "by hand"},
    }
    for options in ({"shard_size_bytes": math.inf}, {"single_file": True, "shard_size_bytes": 1}):
        meta = write_sharded_arrow_cache(numbers(3), NUMBERS, tmp_path / "b", batch_size=1, **options)
        assert meta.num_shards == 1
        assert json.loads((tmp_path / "b" / "_metadata.json").read_text())["shard_size_target_bytes"] is None
    assert read_sharded_cache_meta(tmp_path / "a").compression == "zstd"


def test_cache_tells_shardex_what_it_holds(tmp_path: Path) -> None:
    features = Features(
        {
            "image": Image(),
            "label": ClassLabel(names=["cat", "dog"]),
            "volume": Array3D((1, 2, 2), "float32"),
            "series": Sequence(Value("float32")),
            "name": Value("string"),
        }
    )
    example = {
        "image": np.full((2, 3, 3), 7, np.uint8),
        "label": "dog",
        "volume": np.ones((1, 2, 2)),
        "series": [1, 2],
        "name": "é",
    }
    write_sharded_arrow_cache([("key", example), ("key", {**example, "image": None})], features, tmp_path / "a")
    ds = sx.open(tmp_path / "a")
    sample = ds[0]
    assert ds.features["label"] == sx.ClassLabel(["cat", "dog"]) and sample.label == 1
    assert np.array_equal(sample.image, example["image"])  # type: ignore[arg-type]
    assert sample.volume.dtype == np.float32 and sample.volume.shape == (1, 2, 2)
    assert list(sample.series) == [1, 2] and sample.name == "é" and ds[1].image is None


def test_videos_are_in_the_folder_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_bytes(b"video")
    for _ in range(2):  # the second one replaces the first
        features = Features({"v": Video("path"), "w": Video("bytes")})
        rows: list[tuple[int, dict[str, Any]]] = [
            (0, {"v": tmp_path / "v.mp4", "w": b"other"}),
            (1, {"v": None, "w": None}),
        ]
        write_sharded_arrow_cache(rows, features, tmp_path / "a")
    row = stored_rows(tmp_path / "a")[0]
    ref = features["v"].format(row["v"], format_type="default", cache_dir=tmp_path / "a")
    assert ref.bytes == b"video" and ref.path.parent == tmp_path / "a" / "_assets" / "video"
    assert features["w"].format(row["w"], format_type="default").bytes == b"other"
    assert stored_rows(tmp_path / "a")[1] == {"v": None, "w": None}


def test_videos_of_one_path_are_different_files(tmp_path: Path) -> None:
    """A builder extracts one video after the other to the same path."""
    path, features = tmp_path / "v.mp4", Features({"v": Video("path")})

    def extracted() -> Iterator[tuple[int, dict[str, Any]]]:
        for number in range(3):
            path.write_bytes(b"video %d" % number)  # overwrites the same file
            yield number, {"v": path}

    write_sharded_arrow_cache(extracted(), features, tmp_path / "a")
    path.write_bytes(b"changed")
    ds = StableDataset(features, DatasetInfo(features), shard_dir=tmp_path / "a")
    assert [row["v"].bytes for row in ds] == [b"video 0", b"video 1", b"video 2"]
    names = sorted(f"{hashlib.sha256(b'video %d' % n).hexdigest()}.mp4" for n in range(3))
    assert sorted(os.listdir(tmp_path / "a" / "_assets" / "video")) == names
    copy = ds[::-1].flatten_indices(tmp_path / "b")
    assert [row["v"].bytes for row in copy] == [b"video 2", b"video 1", b"video 0"]
    assert all(os.path.samefile(ds[k]["v"].path, copy[2 - k]["v"].path) for k in range(3)), "no bytes are copied"


def test_relative_paths_stay_valid_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.mp4").write_bytes(b"video")
    features = Features({"v": Video("path")})
    write_sharded_arrow_cache([(0, {"v": "v.mp4"})], features, "a")
    backend = open_cache("a", features).backend
    ds = StableDataset(features, DatasetInfo(features), backend=backend)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert ds[0]["v"].bytes == b"video"
    assert pickle.loads(pickle.dumps(backend)).get_row(0)["v"]["size"] == 5


def test_images_are_encoded_in_threads(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)

    def examples() -> Iterator[tuple[int, dict[str, Any]]]:
        for n in range(100):
            pixels[:] = n  # the same array again and again
            (tmp_path / "one.png").write_bytes(b"file %d" % n)
            yield n, {"image": pixels, "bytes": b"any %d" % n, "path": tmp_path / "one.png", "none": None, "n": n}

    features = Features({**dict.fromkeys(["image", "bytes", "path", "none"], Image()), "n": Value("int8")})
    for workers in (0, 1, 3):
        write_sharded_arrow_cache(examples(), features, tmp_path / "a", num_encode_workers=workers, batch_size=7)
        for n, row in enumerate(stored_rows(tmp_path / "a")):
            assert np.asarray(PILImage.open(io.BytesIO(row["image"]))).flat[0] == n
            assert row["bytes"] == b"any %d" % n and row["path"] == b"file %d" % n and row["none"] is None


@pytest.mark.parametrize("other", [Video("path"), Video("bytes"), Sequence(Image())])
def test_files_that_a_generator_overwrites_are_read_before(tmp_path: Path, other: FeatureType) -> None:
    path, features = tmp_path / "v.mp4", Features({"image": Image(), "other": other})

    def examples() -> Iterator[tuple[int, dict[str, Any]]]:
        for n in range(10):
            path.write_bytes(b"file %d" % n)
            yield n, {"image": np.zeros((2, 2), np.uint8), "other": [path] if isinstance(other, Sequence) else path}
            path.unlink()

    write_sharded_arrow_cache(examples(), features, tmp_path / "a", num_encode_workers=3)
    found = StableDataset(features, DatasetInfo(features), shard_dir=tmp_path / "a").set_decode(False)
    values = [row["other"][0] if isinstance(other, Sequence) else row["other"].bytes for row in found]
    assert values == [b"file %d" % n for n in range(10)]


def test_buffers_that_a_generator_fills_again_are_copied(tmp_path: Path) -> None:
    import torch

    series = Sequence(Sequence(Value("int64")))
    features = Features({"data": Value("binary"), "many": Sequence(Value("binary")), "a": series, "b": series})
    data, inner, array = bytearray(1), [0], np.zeros(1, np.int64)

    def examples() -> Iterator[tuple[int, dict[str, Any]]]:
        for n in range(3):
            data[0] = inner[0] = array[0] = n
            yield n, {"data": data, "many": [data], "a": [inner], "b": [array, torch.tensor([n])]}

    write_sharded_arrow_cache(examples(), features, tmp_path / "a")
    wanted = [{"data": bytes([n]), "many": [bytes([n])], "a": [[n]], "b": [[n], [n]]} for n in range(3)]
    assert stored_rows(tmp_path / "a") == wanted


class Squares(Image):
    """A feature of a user that derives from one of the package."""

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> bytes | None:
        return super().encode(np.full((value, value), value, np.uint8))


def test_features_that_derive_from_image_encode_themselves(tmp_path: Path) -> None:
    features = Features({"a": Squares(), "b": Image()})
    examples: list[dict[str, Any]] = [{"a": n, "b": np.zeros((2, 2), np.uint8)} for n in (1, 2, 3)]
    write_sharded_arrow_cache(enumerate(examples), features, tmp_path / "a", num_encode_workers=2)
    found = StableDataset(features, DatasetInfo(features), shard_dir=tmp_path / "a")
    assert [row["a"].size for row in found] == [(1, 1), (2, 2), (3, 3)]


# -- wrong input --------------------------------------------------------------------------------------------------


def test_missing_columns_are_null(tmp_path: Path) -> None:
    """As document 004 says; a name that no example has is probably wrong."""
    features = Features({"a": Value("int8"), "b": Value("int8")})
    write_sharded_arrow_cache([(0, {"a": 1, "b": 2}), (1, {"a": 3})], features, tmp_path / "a")
    assert stored_rows(tmp_path / "a") == [{"a": 1, "b": 2}, {"a": 3, "b": None}]
    with pytest.warns(UserWarning, match="no example has the columns b"):
        write_sharded_arrow_cache([(0, {"a": 1}), (1, {})], features, tmp_path / "a")
    assert stored_rows(tmp_path / "a") == [{"a": 1, "b": None}, {"a": None, "b": None}]


def test_fingerprint_is_that_of_the_version_whose_features_they_are(tmp_path: Path) -> None:
    """Features without options are those of document 004, with options those of newer versions."""
    for features, text in (
        (Features({"i": Image(), "v": Video()}), "{'i': Image(), 'v': Video()}"),
        (
            Features({"i": Image("PNG"), "v": Video("path")}),
            "{'i': Image(encode_format='PNG'), 'v': Video(storage='path')}",
        ),
    ):
        write_sharded_arrow_cache([(0, {"i": None, "v": None})], features, tmp_path / "a")
        written = json.loads((tmp_path / "a" / "_metadata.json").read_text())["schema_fingerprint"]
        assert written == hashlib.sha256(text.encode()).hexdigest()[:16]
        for other in (features, Features({"i": Image("PNG"), "v": Video()})):
            assert validate_sharded_cache(tmp_path / "a", other).num_rows == 1


def test_other_keys_are_left_out(tmp_path: Path) -> None:
    write_sharded_arrow_cache([(0, {"n": 1, "other": np.zeros(3), "more": object()})], NUMBERS, tmp_path / "a")
    assert stored_rows(tmp_path / "a") == [{"n": 1}]


def test_wrong_values_are_named(tmp_path: Path) -> None:
    features = Features({"volume": Array3D((1, 1, 2)), "n": Value("int8")})
    good = {"volume": [[[1, 2]]], "n": 1}
    for wrong, where in (
        ({**good, "volume": np.zeros((1, 2, 2))}, r"expected uint8\[1, 1, 2\].*sample 1, field volume"),
        ({**good, "n": 1000}, "sample 1, field n"),
        ({**good, "n": "text"}, "sample 1, field n"),
    ):
        with pytest.raises(ValueError, match=where) as raised:
            write_sharded_arrow_cache([(0, good), (1, wrong)], features, tmp_path / "a")
        assert isinstance(raised.value, ShardexError)
    with pytest.raises(ValueError, match="pairs of a key and an example"):
        write_sharded_arrow_cache([good], features, tmp_path / "a")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one column"):
        write_sharded_arrow_cache([], Features(), tmp_path / "a")
    with pytest.raises(ValueError, match="expected batches"):
        write_sharded_arrow_cache([], NUMBERS, tmp_path / "a", batch_size=0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_format_version": 2}, "format version 1, got 2"),
        ({"num_shards": 2}, "expected 2 shards"),
        ({"num_rows": 4}, "4 rows in all, got 3"),
        ({"shard_filenames": ["shard-00001.arrow"]}, "got no such file"),
        ({"shard_filenames": ["../a/shard-00000.arrow"]}, "same folder"),
        ({"shard_row_counts": ["x"]}, "got something else"),
        ({"format": "lance", "layout": "lance-rows"}, "expected an Arrow cache, got the format 'lance'"),
    ],
)
def test_wrong_metadata(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_sharded_arrow_cache(numbers(3), NUMBERS, tmp_path / "a")
    path = tmp_path / "a" / "_metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_sharded_cache_meta(tmp_path / "a")


def test_no_metadata(tmp_path: Path) -> None:
    for call in (read_sharded_cache_meta, detect_cache_format, detect_cache_layout, read_lance_cache_meta):
        with pytest.raises(FileNotFoundError, match=r"_metadata\.json"):
            call(tmp_path)
    (tmp_path / "_metadata.json").write_bytes(b"{")
    with pytest.raises(ValueError, match="got something else"):
        read_sharded_cache_meta(tmp_path)


def test_metadata_without_format_is_read(tmp_path: Path) -> None:
    """Defect 2 of E3: `flatten_indices` wrote such metadata, and then could not open it."""
    write_sharded_arrow_cache(numbers(3), NUMBERS, tmp_path / "a")
    path = tmp_path / "a" / "_metadata.json"
    known = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("format", "layout")}
    path.write_text(json.dumps(known))
    assert validate_sharded_cache(tmp_path / "a", NUMBERS).num_rows == 3


def test_changed_columns_are_noticed(tmp_path: Path) -> None:
    write_sharded_arrow_cache(numbers(3), NUMBERS, tmp_path / "a")
    with pytest.raises(ValueError, match="columns have changed"):
        validate_sharded_cache(tmp_path / "a", Features({"n": Value("int32")}))


def test_renamed_classes_are_noticed(tmp_path: Path) -> None:
    """Defect 6 of E3: with more than five classes the fingerprint has only their number."""
    before, after = ClassLabel(list("abcdef")), ClassLabel(list("abcdeg"))
    write_sharded_arrow_cache([(0, {"c": "f"})], Features({"c": before}), tmp_path / "a")
    assert validate_sharded_cache(tmp_path / "a", Features({"c": before})).num_rows == 1
    with pytest.raises(ValueError, match="the column c"):
        validate_sharded_cache(tmp_path / "a", Features({"c": after}))


# -- replacing ----------------------------------------------------------------------------------------------------


def test_names_with_dots_have_locks_of_their_own(tmp_path: Path) -> None:
    """Defect 9 of E3: ``my.data`` and ``my.test`` shared ``my.lock``, and building one inside the other hung."""

    def outer() -> Iterator[tuple[int, dict[str, Any]]]:
        write_sharded_arrow_cache(numbers(2), NUMBERS, tmp_path / "my.test")
        yield 0, {"n": 0}

    write_sharded_arrow_cache(outer(), NUMBERS, tmp_path / "my.data")
    assert sorted(os.listdir(tmp_path)) == ["my.data", "my.test"]


def test_an_error_leaves_the_old_cache(tmp_path: Path) -> None:
    write_sharded_arrow_cache(numbers(3), NUMBERS, tmp_path / "a")

    def failing() -> Iterator[tuple[int, dict[str, Any]]]:
        yield from numbers(2, first=10)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_sharded_arrow_cache(failing(), NUMBERS, tmp_path / "a", batch_size=1)
    assert os.listdir(tmp_path) == ["a"]
    assert stored_rows(tmp_path / "a") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_readers_keep_a_replaced_cache(tmp_path: Path) -> None:
    """Defect 9 of E3: replacing removed the files first, and open readers failed."""
    write_sharded_arrow_cache(numbers(6), NUMBERS, tmp_path / "a", batch_size=2, shard_size_bytes=1)
    ds = sx.open(tmp_path / "a")
    write_sharded_arrow_cache(numbers(6, first=100), NUMBERS, tmp_path / "a")
    assert [one.n for one in ds] == list(range(6))
    assert stored_rows(tmp_path / "a")[0] == {"n": 100}


BUILD = """
import os, sys
from shardex.compat.stable_datasets.cache import write_sharded_arrow_cache
from shardex.compat.stable_datasets.schema import Features, Value

def examples():
    for n in range(10):
        if n == 5:
            print("half", flush=True)
            sys.stdin.readline()
        yield n, {"n": int(sys.argv[2]) + n}

write_sharded_arrow_cache(examples(), Features({"n": Value("int64")}), sys.argv[1], batch_size=1)
"""


def start(folder: Path, first: int) -> "subprocess.Popen[str]":
    """Start a process that writes a cache and stops in the middle of it."""
    command = [sys.executable, "-c", BUILD, str(folder), str(first)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    return process


def test_a_killed_writer_leaves_the_old_cache(tmp_path: Path) -> None:
    write_sharded_arrow_cache(numbers(3), NUMBERS, tmp_path / "a")
    with start(tmp_path / "a", 100) as process:
        assert any(name.startswith(".a.") for name in os.listdir(tmp_path))
        process.send_signal(signal.SIGKILL)
    assert stored_rows(tmp_path / "a") == [{"n": 0}, {"n": 1}, {"n": 2}]
    write_sharded_arrow_cache(numbers(1), NUMBERS, tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"], "what the killed process left is removed"


def test_a_writer_leaves_the_temporary_folders_of_others(tmp_path: Path) -> None:
    with start(tmp_path / "a.b", 100) as process:
        write_sharded_arrow_cache(numbers(1), NUMBERS, tmp_path / "a")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
    assert len(stored_rows(tmp_path / "a.b")) == 10 and len(stored_rows(tmp_path / "a")) == 1


def test_a_second_writer_waits(tmp_path: Path) -> None:
    with start(tmp_path / "a", 100) as process:
        done = threading.Event()

        def second() -> None:
            write_sharded_arrow_cache(numbers(2), NUMBERS, tmp_path / "a")
            done.set()

        thread = threading.Thread(target=second)
        thread.start()
        assert not (tmp_path / "a").exists() and not done.is_set()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
        thread.join()
    assert stored_rows(tmp_path / "a") == [{"n": 0}, {"n": 1}], "the one that came second"


# -- names, examples, Lance -----------------------------------------------------------------------------------------


class Celsius(FeatureType):
    """A feature of a user: texts such as "3.5 C", stored as numbers."""

    def to_arrow_type(self) -> pa.DataType:
        return pa.float32()

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> float:
        return float(value.removesuffix(" C"))

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        return value if format_type == "raw" else f"{value} C"

    def __repr__(self) -> str:
        return "Celsius()"


@pytest.mark.parametrize("feature", [Celsius(), Sequence(Celsius())])
def test_features_of_users(tmp_path: Path, feature: FeatureType) -> None:
    features = Features({"t": feature})
    value: Any = "3.5 C" if isinstance(feature, Celsius) else ["3.5 C", "4.5 C"]
    write_sharded_arrow_cache(enumerate([{"t": value}]), features, tmp_path / "a", num_encode_workers=2)
    found = StableDataset(features, DatasetInfo(features), backend=open_cache(tmp_path / "a", features).backend)
    assert found[0] == {"t": value} and found.with_format("raw")[0]["t"] in (3.5, [3.5, 4.5])


def test_names_of_both_versions() -> None:
    name = cache_fingerprint("CIFAR10", "1.0.0", "default", "train")
    assert name == EXPECTED["v37ff322"]["cache_fingerprint"]
    newer = cache_fingerprint("CIFAR10", "1.0.0", "default", "train", "arrow")
    assert newer == "cifar10_default_train_" + hashlib.sha256(b"CIFAR10:1.0.0:default:train:arrow").hexdigest()[:16]


def test_encode_example() -> None:
    features = Features({"n": Value("int8"), "v": Video(), "q": Sequence(Value("int8"))})
    example = {
        "n": np.int8(3),
        "v": Path("/videos/0.mp4"),
        "q": np.array([1, 2]),
        "other": np.zeros(2),
        "x": np.float32(2),
    }
    encoded = encode_example(example, features)
    assert encoded.pop("other").tolist() == [0, 0], "the original raised an error for arrays in other keys"
    assert encoded == {"n": 3, "v": "/videos/0.mp4", "q": [1, 2], "x": 2.0}
    assert encode_example({"v": None, "q": None}, features) == {"v": None, "q": None}


def test_lance_says_what_to_use_instead(tmp_path: Path) -> None:
    for call in (write_lance_cache, write_lance_video_frames_cache):
        with pytest.raises(NotImplementedError, match="use write_sharded_arrow_cache"):
            call(numbers(1), NUMBERS, tmp_path / "a")
    (tmp_path / "_metadata.json").write_text('{"format": "lance", "layout": "lance-rows", "num_rows": 3}')
    assert read_lance_cache_meta(tmp_path) == LanceCacheMeta(tmp_path, 3, "")
    assert (detect_cache_format(tmp_path), detect_cache_layout(tmp_path)) == ("lance", "lance-rows")
    write_sharded_arrow_cache(numbers(1), NUMBERS, tmp_path / "b")
    with pytest.raises(ValueError, match="expected a Lance cache"):
        read_lance_cache_meta(tmp_path / "b")


def test_shardex_reads_the_videos_of_a_cache(tmp_path: Path) -> None:
    pytest.importorskip("av")
    frames = np.zeros((3, 16, 16, 3), np.uint8)
    frames[1] = 200
    path = tmp_path / "v.mkv"
    path.write_bytes(encode_video(frames, "mkv", rate=25))
    features = Features({"file": Video("path"), "bytes": Video("bytes")})
    examples: list[dict[str, Any]] = [{"file": path, "bytes": path.read_bytes()}, {"file": None, "bytes": None}]
    write_sharded_arrow_cache(enumerate(examples), features, tmp_path / "a")
    path.unlink()
    ds = sx.open(tmp_path / "a")
    assert isinstance(ds.features["file"], sx.Optional) and ds[1].file is None
    assert np.array_equal(ds[0].file, frames) and np.array_equal(ds[0].bytes, frames)
    assert ds.stored[0].file == ds.stored[0].bytes
    shard = tmp_path / "a" / "shard-00000.arrow"
    table = pa.ipc.open_file(str(shard)).read_all().replace_schema_metadata(None)  # as the real package writes it
    with pa.OSFile(str(shard), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    assert np.array_equal(sx.open(tmp_path / "a")[0].file, frames)
