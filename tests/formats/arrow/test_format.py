"""Arrow files and streams of other tools: read in any encoding; damaged ones raise errors and never crash."""

from __future__ import annotations

import datetime
import hashlib
import json
import pickle
import struct
import subprocess
import sys
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyarrow import feather

import shardex as sx
from shardex.columns import BatchBuilder, DecodedTable, MappedTable
from shardex.columns.ipc import open_ipc_file
from shardex.errors import FormatError, NotFoundError, PathError, SchemaError, StaleIndexError, TruncatedShardError
from shardex.features import Features, arrow_schema
from shardex.sources import LocalSource
from tests.strategies import datasets

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stable-datasets"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))


def put(path: Path, *batches: Any, stream: bool = False, compression: str | None = None, **columns: Any) -> Path:
    """An Arrow file of these batches, or of one batch of these columns."""
    batches = batches or (pa.record_batch(columns),)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, new(file, batches[0].schema, options=options) as out:
        for batch in batches:
            out.write_batch(batch)
    return path


def read(path: Path | list[Path], **options: Any) -> list[sx.DictSample]:
    """All samples, which must be the same whichever way they are read."""
    ds = sx.open(path, **options)
    one_by_one = [ds[k] for k in range(len(ds))]
    assert list(ds) == one_by_one
    assert list(sx.open(path, **options).__getitems__(range(len(ds)))) == one_by_one
    return one_by_one


# -- files of stable-datasets ---------------------------------------------------------------------------------


def png(data: bytes) -> NDArray[np.uint8]:
    """The pixels of a plain PNG."""
    at, parts = 8, []
    while at < len(data):
        (size,), kind = struct.unpack_from(">I", data, at), data[at + 4 : at + 8]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack_from(">IIBB", data, at + 8)
        elif kind == b"IDAT":
            parts.append(data[at + 8 : at + 8 + size])
        at += size + 12
    assert depth == 8
    channels = {0: 1, 2: 3, 6: 4}[color]
    lines = np.frombuffer(zlib.decompress(b"".join(parts)), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height + 1, width + 1, channels), np.int64)
    for y, line in enumerate(lines, 1):
        for x, pixel in enumerate(line[1:].reshape(width, channels).astype(np.int64), 1):
            left, up, corner = out[y, x - 1], out[y - 1, x], out[y - 1, x - 1]
            guess = left + up - corner
            distance = np.abs(np.stack([guess - left, guess - up, guess - corner])).argmin(axis=0)
            paeth = np.choose(distance, [left, up, corner])
            out[y, x] = (pixel + [0 * left, left, up, (left + up) // 2, paeth][line[0]]) % 256
    return out[1:, 1:].astype(np.uint8)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plain(value: Any) -> Any:
    """Convert a value to the form in expected.json."""
    if isinstance(value, bytes):
        return {"__bytes_sha256__": digest(value), "len": len(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


def test_stable_datasets_scalars_in_shards() -> None:
    found = read(FIXTURES / "scalars_multishard")
    expected = EXPECTED["scalars_multishard"]
    assert [{name: plain(value) for name, value in sample.items()} for sample in found] == expected["rows"]
    assert expected["rows"][0]["nested"] is None
    schema = {"label": sx.ClassLabel(("cat", "dög")), "seq": sx.Sequence(sx.Value("float32"))}
    told = sx.open(FIXTURES / "scalars_multishard", schema=schema)
    assert told[3].seq == [0.0, 1.0, 2.0]
    assert str(told.features["label"]) == "class of 2"


def test_stable_datasets_images() -> None:
    found, expected = read(FIXTURES / "images", schema={"image": bytes}), EXPECTED["images"]
    assert [{name: plain(value) for name, value in sample.items()} for sample in found] == expected["raw"]
    for sample, row in zip(found, expected["rows"], strict=True):
        if row["image"] is not None and row["image"]["pil_format"] == "PNG":
            pixels = png(sample.image)
            assert [pixels.shape[1], pixels.shape[0]] == row["image"]["size"]
            assert digest(pixels.tobytes()) == row["image"]["sha256_pixels"]


def test_stable_datasets_images_decoded() -> None:
    """A column that is marked as images is one, also if its schema is not declared."""
    names = tuple("abcdefghij")
    ds = sx.open(FIXTURES / "images", schema={"label": sx.ClassLabel(names)})
    assert dict(ds.features) == {"image": sx.Optional(sx.Image(None)), "label": sx.ClassLabel(names)}
    for sample, row in zip(ds, EXPECTED["images"]["rows"], strict=True):
        if row["image"] is None:
            assert sample.image is None
        else:
            assert [sample.image.shape[1], sample.image.shape[0]] == row["image"]["size"]
            assert sample.image.shape[2] == {"L": 1, "RGB": 3, "RGBA": 4}[row["image"]["pil_mode"]]
            assert digest(sample.image.tobytes()) == row["image"]["sha256_pixels"]
    rgb = sx.open(FIXTURES / "images", schema={"image": sx.Image(size=(8, 6))})
    assert [sample.image.shape for sample in rgb[:5]] == [(8, 6, 3)] * 5 and rgb[5].image is None


EMPTY = {"cache_format_version": 1, "schema_fingerprint": "697da224a9618283", "num_rows": 0, "num_shards": 0}
EMPTY |= {"shard_row_counts": [], "shard_filenames": []}


@pytest.mark.parametrize(
    "era", [{"shard_size_target_bytes": 268435456}, {"format": "arrow", "layout": "arrow-shards"}], ids=["first", "new"]
)
def test_stable_datasets_empty_cache(tmp_path: Path, era: dict[str, Any]) -> None:
    """There are no shards, so the fields are those that the user declares."""
    (tmp_path / "_metadata.json").write_text(json.dumps({**EMPTY, **era}, indent=2))
    fields = {"image": sx.Image(), "label": sx.ClassLabel(("cat", "dog")), "x": sx.Array("uint8", (2, 3, 4))}
    ds = sx.open(tmp_path, schema=fields)
    assert len(ds) == 0 and list(ds) == [] and ds.features == Features.of(fields)
    assert ds["x"].shape == (0, 2, 3, 4) and len(ds.read([])["label"]) == 0
    assert len(pickle.loads(pickle.dumps(ds))) == 0
    assert list(sx.Loader(ds, 4)) == [] and len(ds.where("label = 1")) == 0
    undeclared = sx.open(tmp_path)
    assert len(undeclared) == 0 and list(undeclared.features) == []
    put(tmp_path / "shard-00000.arrow", n=[1])
    assert len(sx.open(tmp_path)) == 0, "expected the shards that _metadata.json names"


def test_stable_datasets_of_the_first_format() -> None:
    expected = EXPECTED["v37ff322"]["rows"]
    schema = {"vol": sx.Array("float32", (2, 2, 2)), "label": sx.ClassLabel(("a", "b")), "seq": list[int]}
    ds = sx.open(FIXTURES / "v37ff322", schema={**schema, "image": sx.Image()})
    assert len(ds) == EXPECTED["v37ff322"]["len"]
    for sample, row in zip(ds, expected, strict=True):
        for name in ("vol", "image"):
            if row[name] is None:
                assert sample[name] is None
            else:
                assert (list(sample[name].shape), sample[name].dtype.str) == (row[name]["shape"], row[name]["dtype"])
                assert digest(sample[name].tobytes()) == row[name]["sha256"]
        rest = ("label", "video", "seq", "s")
        assert {name: sample[name] for name in rest} == {name: row[name] for name in rest}
    stored = read(FIXTURES / "v37ff322", schema=schema)
    assert [one.image is not None and digest(png(one.image).tobytes()) for one in stored] == [
        row["image"] is not None and row["image"]["sha256"] for row in expected
    ]


def test_metadata_json_gives_order_and_row_counts(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / f"shard-{number}.arrow", n=[number])
    put(tmp_path / "not-named.arrow", n=[9])
    named = {"shard_filenames": ["shard-2.arrow", "shard-0.arrow"]}
    metadata = tmp_path / "_metadata.json"
    metadata.write_text(json.dumps(named))
    assert [sample.n for sample in read(tmp_path)] == [2, 0]
    metadata.write_text(json.dumps({**named, "shard_row_counts": [1, 2]}))
    with pytest.raises(TruncatedShardError, match=r"shard-0.arrow: expected 2 rows as _metadata.json says, got 1"):
        sx.open(tmp_path)
    metadata.write_text(json.dumps({"of": "another tool"}))
    assert [sample.n for sample in read(tmp_path)] == [9, 0, 1, 2]
    for content, error in [
        ('{"shard_filenames": ["gone.arrow"]}', NotFoundError),
        ('{"shard_filenames": ["../x.arrow"]}', PathError),
        ('{"shard_filenames": ["/etc/passwd"]}', PathError),
        ('{"shard_filenames": [1]}', FormatError),
        ('{"shard_filenames": ', FormatError),
    ]:
        metadata.write_text(content)
        with pytest.raises(error):
            sx.open(tmp_path)


# -- files and streams of any kind ----------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(datasets(), st.integers(1, 5), st.sampled_from([None, "lz4", "zstd"]), st.booleans(), st.booleans())
def test_plain_files_of_any_schema_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    data: tuple[Features, list[dict[str, Any]]],
    size: int,
    compression: str | None,
    stream: bool,
    bare: bool,
) -> None:
    features, samples = data
    builder, batches = BatchBuilder(features, arrow_schema(features)), []
    for k, sample in enumerate(samples, 1):
        builder.append(sample)
        if k % size == 0:
            batches.append(builder.finish())
    batches.append(builder.finish())
    if bare:  # without what the file says of itself the schema must be told
        batches = [batch.replace_schema_metadata(None) for batch in batches]
    path = put(tmp_path_factory.mktemp("any") / "x.arrow", *batches, stream=stream, compression=compression)
    found = read(path, **({"schema": features} if bare else {}))
    assert found == samples
    if not bare:
        assert sx.open(path).features == features


def rows_of(ds: sx.Dataset) -> Any:
    return ds.rows._only  # type: ignore[attr-defined]


def test_compressed_batches_are_decoded_on_read(tmp_path: Path) -> None:
    batches = [pa.record_batch({"n": [k] * 1000, "s": [f"text {k}"] * 1000}) for k in range(5)]
    for compression in ("lz4", "zstd"):
        ds = sx.open(put(tmp_path / f"{compression}.arrow", *batches, compression=compression))
        assert isinstance(rows_of(ds), DecodedTable)
        assert (ds[4999].n, ds[0].s, ds.read([2500])["n"]) == (4, "text 0", [2])
        assert str(ds.features) == "n int64, s text"  # the headers of the batches count the nulls
    feather.write_feather(pa.Table.from_batches(batches), tmp_path / "x.feather")
    assert sx.open(tmp_path / "x.feather")[4999] == {"n": 4, "s": "text 4"}
    ds = sx.open(put(tmp_path / "plain.arrow", *batches))
    assert isinstance(rows_of(ds), MappedTable)
    mixed = sx.open([tmp_path / "plain.arrow", tmp_path / "zstd.arrow"])
    assert (len(mixed), mixed[9999].n, mixed[0].n) == (10000, 4, 0)


def test_streams_are_read(tmp_path: Path) -> None:
    put(tmp_path / "data-00000-of-00002.arrow", stream=True, text=["a", "b"])
    put(tmp_path / "data-00001-of-00002.arrow", stream=True, text=["c"])
    (tmp_path / "state.json").write_text("{}")  # as huggingface datasets saves them
    assert [sample.text for sample in read(tmp_path)] == ["a", "b", "c"]


def test_types_that_only_arrow_has_are_read(tmp_path: Path) -> None:
    day = datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC)
    path = put(
        tmp_path / "x.arrow",
        when=pa.array([day, None], pa.timestamp("us", "UTC")),
        nano=pa.array([1000, 2000], pa.timestamp("ns")),
        price=pa.array([Decimal("1.50"), Decimal("2.25")]),
        word=pa.array(["x", "y"]).dictionary_encode(),
        view=pa.array(["short", "rather a long one"], pa.string_view()),
        runs=pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["r"])),
        pairs=pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        nothing=pa.nulls(2),
        tensor=pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8, dtype=np.float32).reshape(2, 2, 2)),
        key=pa.array([b"0" * 16, b"1" * 16], pa.uuid()),
    )
    first, second = read(path)
    assert (first.when, first.price, first.word, first.view, first.runs) == (day, Decimal("1.50"), "x", "short", "r")
    assert (second.when, second.nano, second.word, second.nothing) == (None, np.datetime64(2000, "ns"), "y", None)
    assert (second.view, second.pairs, second.key) == ("rather a long one", {}, b"1" * 16)
    assert second.tensor.tolist() == [[4, 5], [6, 7]]
    ds = sx.open(path)
    assert [str(ds.features[n]) for n in ("when", "price", "word", "tensor", "nothing")] == [
        "timestamp[us, UTC] or none",
        "decimal(3, 2)",
        "text",
        "float32[2, 2]",
        "null",
    ]
    assert ds.to_arrow(["when", "nano"]).to_pydict()["when"] == [day, None]
    assert ds.to_arrow().column("pairs").to_pylist() == [[("a", 1)], []]


def test_nulls_are_read_as_none(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "n": [1, None, 3],
        "b": [True, None, False],
        "s": ["a", None, ""],
        "raw": [b"a", None, b""],
        "lists": [[1, 2], None, []],
        "holes": [[1, None], None, [None]],
        "texts": [["a", None], None, []],
        "parts": [{"x": 1, "y": None}, None, {"x": None, "y": "z"}],
    }
    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["sized"] = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2))
    for compression in (None, "zstd"):
        found = read(put(tmp_path / "x.arrow", pa.record_batch(arrays), compression=compression))
        for name, values in [*columns.items(), ("sized", [[1, 2], None, [3, 4]])]:
            assert [plain(sample[name]) for sample in found] == [plain(value) for value in values], name
    ds = sx.open(put(tmp_path / "y.arrow", pa.record_batch(arrays)))
    assert str(ds.features["lists"]) == "int64[?] or none"
    copy = sx.write(tmp_path / "copy", ds.select("n", "b", "s", "raw", "lists", "sized"))
    assert [plain(sample.lists) for sample in copy] == columns["lists"]


def test_shards_of_different_schemas_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "1.arrow", n=[1], s=["a"])
    put(tmp_path / "2.arrow", n=[1.5], s=["a"])
    expected = r"2.arrow: expected the schema of the first shard \(n int64, s string\), got n double, s string"
    with pytest.raises(FormatError, match=expected):
        sx.open(tmp_path)


def test_shards_may_differ_in_nullability_and_metadata(tmp_path: Path) -> None:
    for number, nullable in enumerate((True, False)):
        schema = pa.schema([pa.field("n", pa.int64(), nullable=nullable)], metadata={"made by": str(number)})
        put(tmp_path / f"{number}.arrow", pa.record_batch([pa.array([number])], schema=schema))
    assert [sample.n for sample in read(tmp_path)] == [0, 1]


def test_columns_of_equal_names_raise(tmp_path: Path) -> None:
    twice = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(FormatError, match=r"x.arrow: .* expected columns of different names, got 'a', 'a'"):
        sx.open(put(tmp_path / "x.arrow", twice))


def test_empty_files_and_batches_are_read(tmp_path: Path) -> None:
    empty = pa.record_batch({"n": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    full = pa.record_batch({"n": [1], "s": ["a"]})
    for stream in (False, True):
        path = put(tmp_path / f"{stream}.arrow", empty, full, empty, full, stream=stream)
        assert [sample.n for sample in read(path)] == [1, 1]
        assert read(put(tmp_path / f"none-{stream}.arrow", empty, stream=stream)) == []
    (tmp_path / "zero.arrow").write_bytes(b"")
    with pytest.raises(FormatError, match=r"zero.arrow: expected an Arrow IPC file or stream, got b''"):
        sx.open(tmp_path / "zero.arrow")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError, match="expected at least one Arrow file, got none"):
        sx.open(tmp_path / "folder", format="arrow")


def test_schema_that_does_not_fit_raises(tmp_path: Path) -> None:
    path = put(tmp_path / "x.arrow", raw=[b"\1\2", b"\3"], n=[1, 2])
    with pytest.raises(SchemaError, match="expected a feature that int64 can be read as, got text - at field n"):
        sx.open(path, schema={"n": str})
    ds = sx.open(path, schema={"raw": sx.Array("uint8", (2,))})
    assert ds[0].raw.tolist() == [1, 2]
    with pytest.raises(FormatError, match=r"uint8\[2\], got 1 bytes - at .*x.arrow, batch 0, sample 1, field raw"):
        list(ds)


def test_unpickling_after_a_file_changed_raises(tmp_path: Path) -> None:
    path = put(tmp_path / "x.arrow", n=[1])
    pickled = pickle.dumps(sx.open(path))
    assert pickle.loads(pickled)[0].n == 1
    put(path, n=[1, 2])
    with pytest.raises(StaleIndexError, match="expected the data that was opened"):
        pickle.loads(pickled)


# -- damaged files --------------------------------------------------------------------------------------------


READ = """
import sys
import shardex as sx
from shardex.errors import ShardexError
for path in sys.argv[1:]:
    for read in (lambda ds: [ds[k] for k in range(len(ds))], list, lambda ds: ds.to_arrow()):
        try:
            read(sx.open(path))
            print("read")
        except ShardexError as error:
            print(error)
"""


def in_a_process(*paths: Path) -> list[str]:
    """Read in a subprocess, which may crash, and return its output."""
    command = [sys.executable, "-c", READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("stream", [False, True])
def test_invalid_offset_raises_and_does_not_crash(tmp_path: Path, stream: bool) -> None:
    good = put(tmp_path / "good.arrow", stream=stream, s=["aaa", "bbb", "ccc"]).read_bytes()
    at = good.find(struct.pack("<4i", 0, 3, 6, 9))
    paths: list[Path] = []
    for bad in ((0, 3, 6, 0x7FFFFF00), (0, 0x7FFFFF00, 6, 9), (0, 6, 3, 9), (-1, 3, 6, 9)):
        paths.append(tmp_path / f"bad{len(paths)}.arrow")
        paths[-1].write_bytes(good[:at] + struct.pack("<4i", *bad) + good[at + 16 :])
    messages = in_a_process(*paths)
    assert len(messages) == 3 * len(paths)
    assert all(".arrow, batch 0: expected valid Arrow data, got a damaged batch" in message for message in messages)


FLIP = """
import sys
from pathlib import Path
import shardex as sx
from shardex.errors import ShardexError
path, step = Path(sys.argv[1]), int(sys.argv[2])
good = path.read_bytes()
errors = 0
for at in range(0, len(good), step):
    for flip in (0x01, 0x80, 0xFF):
        path.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
        try:
            ds = sx.open(path)
            list(ds), [ds[k] for k in range(len(ds))]
        except (ShardexError, MemoryError):
            errors += 1
for size in range(0, len(good), step):
    path.write_bytes(good[:size])
    try:
        list(sx.open(path))
    except ShardexError:
        errors += 1
print(errors)
"""


@pytest.mark.parametrize("kind", ["file", "stream", "lz4"])
def test_damaged_bytes_never_crash_the_process(tmp_path: Path, kind: str) -> None:
    """These files have no checksums, so wrong values may be read; but only shardex errors are raised, and no crash."""
    columns = {"n": [1, 2], "s": ["ab", None], "x": [[1.5], []], "d": pa.array(["u", "v"]).dictionary_encode()}
    path = put(tmp_path / "x.arrow", stream=kind == "stream", compression="lz4" if kind == "lz4" else None, **columns)
    command = [sys.executable, "-X", "faulthandler", "-c", FLIP, str(path), "13"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 20


def test_file_that_is_not_arrow_raises(tmp_path: Path) -> None:
    good = put(tmp_path / "good.arrow", n=[1]).read_bytes()
    bad = tmp_path / "bad.arrow"
    for content, message in [
        (b"PAR1 and so on", "expected an Arrow IPC file or stream, got b'PAR1 and': "),
        (
            b"ARROW1" + bytes(100),
            "expected an Arrow IPC file, got one without the magic bytes at its end; is it cut off?",
        ),
        (good[:-1], "expected an Arrow IPC file, got one without the magic bytes at its end; is it cut off?"),
        (
            good[: len(good) // 2],
            "expected an Arrow IPC file, got one without the magic bytes at its end; is it cut off?",
        ),
    ]:
        bad.write_bytes(content)
        with pytest.raises(FormatError) as caught:
            sx.open(bad)
        assert str(caught.value).startswith(f"{bad}: {message}")


def test_reader_of_some_columns(tmp_path: Path) -> None:
    put(tmp_path / "a.arrow", n=[1], m=[2])
    reader = open_ipc_file(LocalSource(tmp_path).map("a.arrow"), "a.arrow", [1])
    assert reader.get_batch(0).to_pydict() == {"m": [2]}
