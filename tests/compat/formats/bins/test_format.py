"""Bins: reading what splitdataloader writes, writing what it reads, errors for damaged files."""

import hashlib
import json
import os
import pickle
import resource
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splitdataloader import SplitDataLoader, write_split_data

from shardex.compat.formats.bins import format as bins
from shardex.compat.formats.bins.format import BinRows, create, recognise
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    FieldError,
    FormatError,
    RowError,
    SchemaError,
    StaleIndexError,
    StorageFullError,
    TruncatedShardError,
    UnknownFormatError,
    UnsafeError,
)
from shardex.features import Array, Bytes, Features, Json, Optional, Text, Value, codecs
from shardex.files import Stage, find
from shardex.formats import open_rows
from shardex.rows import AbstractRows, Rows

FIXTURES = Path(__file__).parents[3] / "fixtures" / "splitdataloader"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))


def opened(path: Path, **options: Any) -> BinRows:
    rows = open_rows(path, "bins", **options)
    assert isinstance(rows, BinRows)
    return rows


def every(rows: BinRows, fields: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return all samples, checked to be the same by `read` and by `sample`."""
    samples = rows.read(np.arange(len(rows)), fields).to_samples()
    assert repr(samples) == repr([rows.sample(k, fields) for k in range(len(rows))])
    return samples


def packets(rows: BinRows) -> list[bytes]:
    return [sample["data"] for sample in every(rows)]


def write(path: Path, features: Any, samples: Sequence[dict[str, Any]], **options: Any) -> Path:
    writer = create(str(path), Features.of(features), **options)
    for sample in samples:
        writer.append(sample)
    writer.close()
    return path


def real(path: Path, *given: bytes, splits: int = 3) -> Path:
    write_split_data(str(path), given, splits=splits)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


# -- reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "utf8_json"])
def test_fixture_of_splitdataloader_is_read(name: str) -> None:
    expected = EXPECTED[name]
    rows = opened(FIXTURES / name)
    assert recognise(find(FIXTURES / name))
    assert len(rows) == expected["len"]
    found = packets(rows)
    assert [len(packet) for packet in found] == expected["lengths"]
    assert [hashlib.sha256(packet).hexdigest() for packet in found] == expected["sha256"]
    assert found[0].hex().startswith(expected["first_hex"])
    which, begin, length = rows.index.locate(np.arange(len(rows)))
    numbers = [int(os.path.basename(path)[3:11]) for path in rows.shard_names()]
    triples = [[numbers[w], b - 4, n] for w, b, n in zip(which.tolist(), begin.tolist(), length.tolist(), strict=True)]
    assert triples == expected["index_triples_bin_pos_len"]
    assert {file: len(data) for file, data in contents(FIXTURES / name).items()} == expected["files"]


def test_packets_decode_to_fields(tmp_path: Path) -> None:
    rows = opened(FIXTURES / "utf8_json", decode="json")
    assert every(rows)[0] == json.loads(packets(opened(FIXTURES / "utf8_json"))[0])
    assert str(rows.features) == "i int64, t text"
    assert cast(Any, rows.read(np.array([5, 0]), ["i"])["i"]).tolist() == [5, 0]
    with pytest.raises(FieldError, match="expected one of the fields i, t, got 'x'"):
        rows.read(np.array([0]), ["x"])
    assert opened(FIXTURES / "utf8_json", decode="text").features == Features({"data": Text()})
    assert every(opened(FIXTURES / "utf8_json", decode="text"))[0]["data"].startswith('{"i"')


def test_reads_what_splitdataloader_writes(tmp_path: Path) -> None:
    given = [b"a", b"", bytes(300), b"xyz"] * 5
    rows = opened(real(tmp_path / "d", *given))
    assert isinstance(rows, Rows)
    assert isinstance(rows, AbstractRows)
    assert packets(rows) == given
    assert rows.features == Features({"data": Bytes()})
    assert rows.read(np.array([3, 0, 3]))["data"] == [b"xyz", b"a", b"xyz"]
    assert rows.read(np.array([0]), []).names == []
    real(tmp_path / "d", b"more", b"and more", splits=7)
    assert packets(opened(tmp_path / "d")) == [*given, b"more", b"and more"]
    assert not (tmp_path / "d" / ".shardex").exists()


def test_packets_that_are_not_dicts_become_the_field_data(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b'{"a": 1}', b"[1]", b'{"a": 2, "b": "x"}')
    rows = opened(path, decode="json")
    samples: list[dict[str, Any]] = [{"a": 1}, {"data": [1]}, {"a": 2, "b": "x"}]
    assert every(rows) == [{"a": None, "data": None, "b": None, **sample} for sample in samples]
    assert every(rows, ["a", "b"])[1] == {"a": None, "b": None}


def test_arrays_in_packets_are_read(tmp_path: Path) -> None:
    arrays = [np.arange(3, dtype=np.float32) + k for k in range(4)]
    for name, codec in (("npy", codecs.NPY), ("compact", codecs.COMPACT)):
        rows = opened(real(tmp_path / name, *map(codec.encode, arrays)), decode=name)
        column = rows.read(np.arange(4))["data"]
        assert isinstance(column, np.ndarray)
        assert column.tolist() == np.stack(arrays).tolist()
        assert rows.features == Features({"data": Array("float32", (3,))})
        assert rows.sample(2)["data"].tolist() == arrays[2].tolist()


def test_schema_types_the_fields(tmp_path: Path) -> None:
    rows = opened(real(tmp_path / "d", b"x"), schema=Features.of({"payload": bytes}))
    assert every(rows) == [{"payload": b"x"}]
    with pytest.raises(SchemaError, match="expected one field of bytes for decode='raw', got n int64"):
        opened(tmp_path / "d", schema=Features.of({"n": int}))
    given = [codecs.MSGPACK.encode({"x": np.arange(2, dtype=np.int16), "n": 1}), codecs.MSGPACK.encode({"x": [1, 2]})]
    path = real(tmp_path / "e", *given)
    rows = opened(path, decode="msgpack", schema=Features.of({"x": Array("int16", (2,)), "n": int | None}))
    assert cast(Any, rows.read(np.array([0, 1]))["x"]).tolist() == [[0, 1], [1, 2]]
    assert rows.sample(1)["n"] is None
    rows = opened(path, decode="msgpack", schema=Features.of({"n": int}))
    with pytest.raises(SchemaError, match=r"expected int64, got nothing .* - at .*bin00000001\.dat, sample 1, field n"):
        rows.read(np.array([0, 1]))


def test_empty_dataset_is_read(tmp_path: Path) -> None:
    path = real(tmp_path / "d")
    assert recognise(find(path))
    for decode in ("raw", "json"):
        rows = opened(path, decode=decode)
        assert len(rows) == 0
        assert len(rows.read(np.empty(0, np.int64))) == 0
        with pytest.raises(RowError):
            rows.sample(0)
    assert rows.features == Features({})


@pytest.mark.parametrize("row", [-1, 2, 10**12])
def test_rows_out_of_range_raise(tmp_path: Path, row: int) -> None:
    rows = opened(real(tmp_path / "d", b"a", b"b"))
    for read in (lambda: rows.read(np.array([0, row])), lambda: rows.sample(row)):
        with pytest.raises(RowError):
            read()


def test_bins_in_subfolders_are_ignored(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"a", b"b", splits=1)
    real(path / "nested", b"other", splits=4)
    assert recognise(find(path))
    rows = opened(path)
    assert rows.shard_names() == [str(path / "bin00000000.dat")]
    assert packets(rows) == [b"a", b"b"]
    (path / "bin1.dat").write_bytes(b"")
    assert not recognise(find(path))
    assert packets(opened(path)) == [b"a", b"b"]
    assert not recognise(find(tmp_path))
    with pytest.raises(UnknownFormatError, match=r"expected a folder with index\.dat, got none"):
        opened(tmp_path)
    with pytest.raises(UnknownFormatError, match=r"expected a folder with index\.dat"):
        opened(path / "index.dat")


def test_rows_pickle_as_what_was_opened(tmp_path: Path) -> None:
    rows = opened(real(tmp_path / "d", b"a"))
    assert pickle.loads(pickle.dumps(rows)).sample(0) == {"data": b"a"}
    real(tmp_path / "d", b"b")
    with pytest.raises(StaleIndexError):
        pickle.loads(pickle.dumps(rows))


# -- damage ---------------------------------------------------------------------------------------------------


def refused(path: Path, row: int, error: type[Exception], message: str, **options: Any) -> None:
    rows = opened(path, **options)
    with pytest.raises(error, match=message):
        rows.read(np.array([0, row]))
    with pytest.raises(error, match=message):
        rows.sample(row)


def test_partial_index_entry_raises(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"a", b"b")
    with (path / "index.dat").open("ab") as file:
        file.write(b"1234")
    with pytest.raises(
        FormatError, match=r"index\.dat: expected 12 bytes for each sample, got 28 bytes, .* cut it to 24"
    ):
        opened(path)


def test_truncated_bin_raises(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"first", b"second", b"third", splits=2)
    os.truncate(path / "bin00000000.dat", 16)
    message = r"bin00000000\.dat: expected bytes 9 to 18 for sample 2, got a file of 16 bytes"
    refused(path, 2, TruncatedShardError, message)
    assert opened(path).sample(0) == {"data": b"first"}


def test_bin_that_shrank_while_open_raises(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"first", b"second", splits=1)
    rows = opened(path)
    os.truncate(path / "bin00000000.dat", 9)
    with pytest.raises(TruncatedShardError, match="expected 19 bytes as when it was indexed, got 9"):
        rows.read(np.array([0]))


def test_wrong_length_prefix_raises(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"first", b"second", splits=1)
    data = bytearray((path / "bin00000000.dat").read_bytes())
    data[9] ^= 8
    (path / "bin00000000.dat").write_bytes(data)
    message = r"bin00000000\.dat: expected a packet of 6 bytes, as index\.dat says, got the prefix 14 - at sample 1"
    refused(path, 1, FormatError, message)


def test_missing_bin_raises(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"first", b"second", splits=2)
    (path / "bin00000001.dat").unlink()
    refused(
        path,
        1,
        FormatError,
        r"index\.dat: expected one of 1 bins, got bin 1, and there is no file bin00000001\.dat - at sample 1",
    )
    (path / "bin00000000.dat").unlink()
    refused(path, 1, FormatError, r"expected one of 0 bins, got bin [01], and there is no file")


@pytest.mark.parametrize(("row", "number"), [(0, 1), (1, 1), (1, 2)])
def test_length_beyond_the_file_raises(tmp_path: Path, row: int, number: int) -> None:
    path = real(tmp_path / "d", bytes(500), bytes(500), splits=1)
    index = np.fromfile(path / "index.dat", "<u4").reshape(2, 3)
    index[row, number] = 3 << 30
    (path / "index.dat").write_bytes(index.tobytes())
    refused(path, row, TruncatedShardError, r"bin00000000\.dat: expected bytes .* got a file of 1008 bytes")


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=12, max_size=120))
def test_random_index_reads_or_raises_with_the_sample(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = real(tmp_path_factory.mktemp("g") / "d", b"first", b"second")
    (path / "index.dat").write_bytes(garbage[: len(garbage) // 12 * 12])
    rows = opened(path)
    for row in range(len(rows)):
        one, many = outcome(rows.sample, row), outcome(lambda k: rows.read(np.array([k])).sample(0), row)
        assert one == many
        assert isinstance(one, dict) or f"sample {row}" in one


def outcome(read: Callable[[int], dict[str, Any]], row: int) -> dict[str, Any] | str:
    """Return what was read, or the message of the error."""
    try:
        return read(row)
    except FormatError as error:
        return str(error)


@pytest.mark.parametrize(
    ("decode", "error", "message"),
    [
        ("json", FormatError, "expected JSON, got"),
        ("msgpack", FormatError, "expected MessagePack, got"),
        ("npy", FormatError, "expected the magic bytes of .npy, got"),
        ("text", FormatError, "expected UTF-8 text, got byte 0"),
    ],
)
def test_packet_that_does_not_decode_raises(tmp_path: Path, decode: str, error: type[Exception], message: str) -> None:
    good = {"json": b"{}", "msgpack": codecs.MSGPACK.encode({}), "npy": codecs.NPY.encode([1]), "text": b"x"}[decode]
    path = real(tmp_path / "d", good, b"\xc1nonsense")
    refused(path, 1, error, rf"bin00000001\.dat, sample 1: {message}", decode=decode)


def test_pickled_packets_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object))
    path = real(tmp_path / "d", codecs.NPY.encode([1]), (tmp_path / "o.npy").read_bytes())
    refused(path, 1, UnsafeError, r"bin00000001\.dat, sample 1: .* would run code", decode="npy")
    with pytest.raises(FormatError, match=r"expected one of the codecs compact, json, .*, got 'pickle'"):
        opened(path, decode="pickle")


# -- writing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [1, 3, 256])
def test_writes_the_bytes_that_splitdataloader_writes(tmp_path: Path, splits: int) -> None:
    given = [bytes([k]) * (k % 7) for k in range(50)]
    ours = write(tmp_path / "ours", {"anything": bytes}, [{"anything": packet} for packet in given], splits=splits)
    assert contents(ours) == contents(real(tmp_path / "real", *given, splits=splits))
    loader = SplitDataLoader(str(ours))
    assert [loader[k] for k in range(len(loader))] == given
    assert sorted(loader.iterate_binwise()) == sorted(given)
    assert packets(opened(ours)) == given


def test_splitdataloader_can_append_to_written_bins(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"b": bytes}, [{"b": b"ours"}], splits=2)
    real(path, b"theirs", b"and more", splits=2)
    assert packets(opened(path)) == [b"ours", b"theirs", b"and more"]


def test_writing_no_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"b": bytes}, [])
    assert contents(path) == {"index.dat": b""} == contents(real(tmp_path / "real"))
    assert len(opened(path)) == 0


def test_fields_are_written_as_msgpack_or_json(tmp_path: Path) -> None:
    features = {"x": Array("int16", (None, 2)), "s": str, "raw": bytes, "j": Json(), "o": Optional(Value("float32"))}
    samples = [
        {"x": np.full((k, 2), k, np.int16), "s": f"é{k}", "raw": bytes([k]), "j": {"k": [k]}, "o": None}
        for k in range(5)
    ]
    path = write(tmp_path / "d", features, samples, splits=2)
    rows = opened(path, decode="msgpack", schema=Features.of(features))
    for found, sample in zip(every(rows), samples, strict=True):
        assert found.pop("x").tolist() == cast(Any, sample["x"]).tolist()
        assert found == {name: value for name, value in sample.items() if name != "x"}
    path = write(tmp_path / "e", {"s": str, "x": Array("int8", (2,))}, [{"s": "a", "x": [1, 2]}], codec="json")
    assert packets(opened(path, decode="raw")) == [b'{"s":"a","x":[1,2]}']
    (found,) = every(opened(path))
    assert found.pop("x").dtype == np.int8 and found == {"s": "a"}, "what was written is known without being told"
    (path / "bins.json").write_bytes(b"{}")
    with pytest.raises(FormatError, match=r"bins\.json: expected codec and schema of the packets"):
        opened(path)


def test_buffers_are_flushed_jointly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "_FLUSH", 100)
    given = [bytes([k]) * (k % 40) for k in range(200)]
    ours = write(tmp_path / "ours", {"b": bytes}, [{"b": packet} for packet in given], splits=5)
    assert contents(ours) == contents(real(tmp_path / "real", *given, splits=5))


def test_append_after_a_full_disk_loses_no_taken_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "_FLUSH", 100)
    full = iter([False] * 4 + [True] + [False] * 3 + [True])
    append = Stage.append

    def failing(self: Stage, path: str, pieces: Sequence[Any], size: int) -> int:
        if next(full, False):
            append(self, path, [b"torn"], size)
            raise StorageFullError(28, "cannot write: no room", path)
        return append(self, path, pieces, size)

    monkeypatch.setattr(Stage, "append", failing)
    writer = create(str(tmp_path / "d"), Features.of({"b": bytes}), splits=3)
    taken = []
    for k in range(40):
        try:
            writer.append({"b": bytes([k]) * 10})
            taken.append(bytes([k]) * 10)
        except StorageFullError:
            continue
    writer.close()
    assert len(taken) == 38
    assert packets(opened(tmp_path / "d")) == taken


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 20, hard))
    try:
        given = [bytes([k]) for k in range(200)]
        path = write(tmp_path / "d", {"b": bytes}, [{"b": packet} for packet in given], splits=200)
        assert packets(opened(path)) == given
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_bin_beyond_4_gib_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "_LARGEST", 30)
    writer = create(str(tmp_path / "d"), Features.of({"b": bytes}), splits=1)
    writer.append({"b": b"x" * 10})
    with pytest.raises(
        SchemaError,
        match=r"at most 30 bytes, got a packet of 13 for bin 0, which has 14 - at sample 1; .*more than 1 splits",
    ):
        writer.append({"b": b"y" * 13})
    writer.append({"b": b"z" * 12})
    with pytest.raises(SchemaError, match="expected bins of at most 30 bytes"):
        writer.append({"b": b""})
    writer.close()
    assert packets(opened(tmp_path / "d")) == [b"x" * 10, b"z" * 12]


def test_modes_and_wrong_options(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"b": bytes}, [{"b": b"old"}])
    features = Features.of({"b": bytes})
    with pytest.raises(AlreadyExistsError):
        create(str(path), features)
    write(path, features, [{"b": b"new"}], mode="overwrite")
    assert packets(opened(path)) == [b"new"]
    for splits in (0, [], [0, -1], [1 << 32]):
        with pytest.raises(ArgumentError, match="expected at least one split"):
            create(str(tmp_path / "e"), features, splits=cast(Any, splits))
    for codec in ("npy", "pickle"):
        with pytest.raises(ArgumentError, match="expected codec="):
            create(str(tmp_path / "e"), features, codec=codec)
    with pytest.raises(ArgumentError, match='"raw" for one field of bytes'):
        create(str(tmp_path / "e"), Features.of({"n": int}), codec="raw")
    with pytest.raises(SchemaError, match="JSON has text but no bytes"):
        create(str(tmp_path / "e"), features, codec="json")
    assert os.listdir(tmp_path) == ["d"]


def test_splits_may_be_numbers_of_bins(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"b": bytes}, [{"b": bytes([k])} for k in range(5)], splits=[7, 2])
    assert sorted(contents(path)) == ["bin00000002.dat", "bin00000007.dat", "index.dat"]
    rows = opened(path)
    assert packets(rows) == [bytes([k]) for k in range(5)]
    assert [some.tolist() for some in rows.rows_by_bin()] == [[1, 3], [0, 2, 4]]
    assert opened(write(tmp_path / "e", {"b": bytes}, [])).rows_by_bin() == []


# -- appending ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 5])
def test_appends_the_bytes_that_splitdataloader_appends(tmp_path: Path, first: int) -> None:
    given = [bytes([k]) * (k % 7) for k in range(20)]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for some, splits in ((given[:first], 3), (given[first:], 5), ([], 2), (given[:4], 2)):
        write(ours, {"b": bytes}, [{"b": packet} for packet in some], splits=splits, mode="append")
        real(theirs, *some, splits=splits)
        assert contents(ours) == contents(theirs)
    assert packets(opened(ours)) == given + given[:4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours", "theirs"]


def test_append_needs_the_codec_and_schema_that_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"n": int}, [{"n": 1}], codec="json", mode="append")
    write(path, {"n": int}, [{"n": 2}], codec="json", mode="append")
    assert every(opened(path)) == [{"n": 1}, {"n": 2}]
    for features, codec in (({"n": int}, None), ({"n": float}, "json"), ({"b": bytes}, None)):
        with pytest.raises(
            SchemaError, match="expected packets as those that exist: codec 'json', fields n int64, got "
        ):
            create(str(path), Features.of(features), mode="append", codec=codec)
    with pytest.raises(SchemaError, match="expected packets as those that exist: codec 'raw', got codec 'msgpack'"):
        create(str(real(tmp_path / "e", b"x")), Features.of({"n": int}), mode="append")
    (tmp_path / "e" / "index.dat").write_bytes(bytes(13))
    with pytest.raises(FormatError, match="end in a partial entry"):
        create(str(tmp_path / "e"), Features.of({"b": bytes}), mode="append")


def test_append_beyond_4_gib_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = real(tmp_path / "d", b"x" * 10, splits=1)
    monkeypatch.setattr(bins, "_LARGEST", 30)
    first, second = (create(str(path), Features.of({"b": bytes}), splits=1, mode="append") for _ in range(2))
    with pytest.raises(SchemaError, match="got a packet of 13 for bin 0, which has 14 - at sample 0"):
        first.append({"b": b"y" * 13})
    first.append({"b": b"z" * 12})
    second.append({"b": b"z" * 12})
    first.close()
    before = contents(path)
    with pytest.raises(SchemaError, match="expected bins of at most 30 bytes, got 46 for bin 0"):
        second.close()
    assert contents(path) == before
    assert packets(opened(path)) == [b"x" * 10, b"z" * 12]


def test_two_appends_that_both_begin_without_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "d"
    writers = [create(str(path), Features.of({"b": bytes}), splits=2, mode="append") for _ in range(3)]
    for number, writer in enumerate(writers):
        for k in range(number * 3):
            writer.append({"b": bytes([k, number])})
    threads = [threading.Thread(target=writer.close) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(packets(opened(path))) == sorted(bytes([k, n]) for n in range(3) for k in range(n * 3))
    assert os.listdir(tmp_path / "new") == ["d"]


def test_two_first_appends_with_fields(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    writers = [create(path, Features.of({"n": kind}), splits=2, mode="append") for kind in (int, int, float)]
    for number, writer in enumerate(writers):
        writer.append({"n": number})
    writers[0].close()
    writers[1].close()
    with pytest.raises(AlreadyExistsError, match=r"another writer wrote samples with other fields here .*bins\.json"):
        writers[2].close()
    assert every(opened(tmp_path / "d")) == [{"n": 0}, {"n": 1}]
    assert os.listdir(tmp_path) == ["d"]


def test_two_appends_at_once_are_both_kept(tmp_path: Path) -> None:
    path = real(tmp_path / "d", b"old", b"older")
    reader = opened(path)
    writers = [create(str(path), Features.of({"b": bytes}), splits=2, mode="append") for _ in range(2)]
    for k in range(9):
        for number, writer in enumerate(writers):
            writer.append({"b": bytes([k, number])})
    for writer in writers:
        writer.close()
    assert packets(opened(path)) == [b"old", b"older"] + [bytes([k, n]) for n in range(2) for k in range(9)]
    assert len(reader) == 2
    writers = [create(str(path), Features.of({"b": bytes}), mode="append") for _ in range(2)]
    for writer in writers:
        writer.append({"b": b"not written"})
        writer.abort()
    assert len(opened(path)) == 20


def test_refused_sample_is_not_written(tmp_path: Path) -> None:
    writer = create(str(tmp_path / "d"), Features.of({"n": int, "j": Json()}))
    writer.append({"n": 1, "j": None})
    for bad, message in (
        ({"n": "x", "j": 1}, "expected int64, got str 'x' - at sample 1, field n"),
        ({"n": 1}, "expected json, got nothing .* - at sample 1, field j"),
        ({"n": 1, "j": 2**70}, "expected a value that MessagePack can hold.* - at sample 1"),
        ({"n": 1, "j": object()}, "expected a value that JSON can hold, got object .* - at sample 1, field j"),
        ({"n": 1, "j": 1, "k": 1}, "expected the fields n, j, got 'k' too"),
    ):
        with pytest.raises(SchemaError, match=message):
            writer.append(bad)
    writer.append({"n": 2, "j": [1]})
    assert not (tmp_path / "d").exists()
    writer.close()
    writer.close()
    assert every(opened(tmp_path / "d", decode="msgpack")) == [{"n": 1, "j": None}, {"n": 2, "j": [1]}]
    with pytest.raises(ClosedError):
        writer.append({"n": 3, "j": 0})
    writer = create(str(tmp_path / "e"), Features.of({"n": int}))
    writer.abort()
    assert os.listdir(tmp_path) == ["d"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 9))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, given: list[bytes], splits: int) -> None:
    folder = tmp_path_factory.mktemp("r")
    ours = write(folder / "ours", {"b": bytes}, [{"b": packet} for packet in given], splits=splits)
    assert contents(ours) == contents(real(folder / "real", *given, splits=splits))
    assert packets(opened(ours)) == given
