"""`write_split_data` and `SplitDataLoader`: files both ways with the real package, and none of its defects."""

import errno
import hashlib
import inspect
import io
import json
import multiprocessing
import os
import pickle
import random
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
import splitdataloader as original
import splitdataloader.data_writer_and_loader as original_module

import shardex as sx
from shardex.compat.formats.bins import format as bins
from shardex.compat.splitdataloader import SplitDataLoader, data_writer_and_loader, write_split_data
from shardex.compat.splitdataloader.data_writer_and_loader import (
    get_bin_file_for_index,
    get_index_file,
    read_all_size_prefixed_packets,
    read_size_prefixed,
    read_struct_unpack,
    struct_pack_write,
    write_size_prefixed,
)
from shardex.errors import FormatError, SchemaError, ShardexError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "splitdataloader"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))
PACKETS = [bytes([k]) * (k * 7 % 40) for k in range(100)]


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def written(path: Path, packets: Sequence[bytes] = PACKETS, **options: Any) -> str:
    write_split_data(str(path), packets, **{"splits": 7, **options})
    return str(path)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Names and defaults of the parameters that are not by keyword only."""
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.default) for one in found if one.kind is not one.KEYWORD_ONLY]


# -- the same results as the real package -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "utf8_json"])
def test_fixtures_are_read(name: str) -> None:
    loader, expected = SplitDataLoader(str(FIXTURES / name)), EXPECTED[name]
    assert len(loader) == expected["len"]
    for found, sums in (
        ([loader[k] for k in range(len(loader))], "sha256"),
        (loader.iterate_binwise(), "binwise_order_sha256"),
    ):
        assert [hashlib.sha256(packet).hexdigest() for packet in found] == expected[sums]


@pytest.mark.parametrize("name", ["write_split_data", "SplitDataLoader", "SplitDataLoader.iterate_binwise"])
def test_signatures(name: str) -> None:
    ours, theirs = data_writer_and_loader, original_module
    for part in name.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    assert parameters(cast(Any, ours)) == parameters(cast(Any, theirs))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [0, 3, 100])
def test_files_are_those_of_the_real_package(tmp_path: Path, shuffle: bool, count: int) -> None:
    for splits, start_clean in ((7, False), (3, False), (20, False), (5, True)):
        for write, folder in ((write_split_data, "ours"), (original.write_split_data, "theirs")):
            random.seed(splits)
            write(str(tmp_path / folder), iter(PACKETS[:count]), splits, shuffle, start_clean)
        assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")
    ours, theirs = SplitDataLoader(str(tmp_path / "theirs")), original.SplitDataLoader(str(tmp_path / "ours"))
    assert len(ours) == len(theirs) == count
    assert [ours[k] for k in range(count)] == [theirs[k] for k in range(count)] == PACKETS[:count]
    assert list(ours.iterate_binwise()) == list(theirs.iterate_binwise())


def test_default_is_256_splits_and_lazy_input(tmp_path: Path) -> None:
    def packets() -> Iterator[bytes]:
        for k in range(600):
            yield str(k).encode()

    target = tmp_path / "a" / "b"
    write_split_data(str(target), packets())
    assert len(list(target.glob("bin*.dat"))) == 256
    write_split_data(target, (memoryview(b"view"), bytearray(b"array")))  # type: ignore[arg-type]
    assert SplitDataLoader(target)[600:] == [b"view", b"array"]


def test_empty_folder_stays_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    before = os.stat(tmp_path / "d").st_ino
    assert list(SplitDataLoader(written(tmp_path / "d"))) == PACKETS
    assert os.stat(tmp_path / "d").st_ino == before, "it may be where another file system is mounted"


def test_start_clean_removes_everything_else(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "other.txt").write_text("kept")
    written(folder, [b"a"])
    assert (folder / "other.txt").exists() and SplitDataLoader(folder)[0] == b"a"
    loader = SplitDataLoader(folder)
    written(folder, loader, start_clean=True)  # type: ignore[arg-type]
    assert sorted(contents(folder)) == ["bin00000000.dat", "index.dat"]
    assert list(loader) == [b"a"], "its own packets can be read while it is replaced"


def test_reading_needs_no_folder_before_the_first_use(tmp_path: Path) -> None:
    loader = SplitDataLoader(str(tmp_path / "d"))
    for use in (lambda: len(loader), lambda: loader[0], lambda: list(loader), lambda: list(loader.iterate_binwise())):
        with pytest.raises(FileNotFoundError):
            use()
    written(tmp_path / "d", [b"a"])
    assert len(loader) == 1 and loader[0] == b"a"
    assert (loader.data_dir_path, loader.index_file) == (tmp_path / "d", tmp_path / "d" / "index.dat")


@pytest.mark.parametrize("write", [write_split_data, original.write_split_data])
def test_loader_sees_what_is_written_later(tmp_path: Path, write: Callable[..., None]) -> None:
    loader = SplitDataLoader(written(tmp_path / "d", [b"a", b"b"], splits=2))
    assert loader[1] == b"b"
    write(str(tmp_path / "d"), [b"c", b"d", b"e"], splits=2)
    assert (len(loader), loader[0], loader[-1], list(loader)[2:]) == (5, b"a", b"e", [b"c", b"d", b"e"])
    write(str(tmp_path / "d"), [b"A", b"B", b"C", b"D", b"E"], splits=2, start_clean=True)
    assert list(loader) == [b"A", b"B", b"C", b"D", b"E"]


def test_bins_that_grow_before_their_index_are_read(tmp_path: Path) -> None:
    loader = SplitDataLoader(written(tmp_path / "d", [b"a", b"b"], splits=2))
    assert loader[0] == b"a"
    with (tmp_path / "d" / "bin00000001.dat").open("ab") as growing:
        write_size_prefixed(growing, b"c")
    assert loader[1] == b"b"
    assert list(loader.iterate_binwise()) == [b"a", b"b"]


@pytest.mark.parametrize("write", [write_split_data, original.write_split_data])
def test_loop_keeps_the_packets_of_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    monkeypatch.setattr(data_writer_and_loader, "_AT_ONCE", 1)
    loader = SplitDataLoader(written(tmp_path / "d", [b"a1", b"b1", b"c1"], splits=3))
    loops = iter(loader), loader.iterate_binwise()
    assert [next(loop) for loop in loops] == [b"a1", b"a1"]
    write(str(tmp_path / "d"), [b"d1", b"e1", b"f1", b"g1"], splits=2)
    assert [list(loop) for loop in loops] == [[b"b1", b"c1"]] * 2
    loop = iter(loader)
    assert next(loop) == b"a1" and len(list(loader)) == 7, "all bins are mapped now"
    other = iter(SplitDataLoader(tmp_path / "d"))
    assert next(other) == b"a1"
    write(str(tmp_path / "d"), [b"A22"] * 9, splits=3, start_clean=True)
    assert list(loop) == [b"b1", b"c1", b"d1", b"e1", b"f1", b"g1"]
    with pytest.raises(OSError, match="the packets were replaced while they were read"):
        list(other)
    assert list(loader) == [b"A22"] * 9


# -- defects of the original that are gone --------------------------------------------------------------------------


def test_packet_that_is_no_bytes_changes_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path / "d")
    before = contents(tmp_path / "d")
    for bad in ("text", 5, None, np.zeros(3), [b"a"]):
        with pytest.raises(TypeError, match=r"expected bytes, got .* at sample 1"):
            write_split_data(folder, [b"a", cast(Any, bad)], splits=7)
    assert contents(tmp_path / "d") == before
    assert list(tmp_path.iterdir()) == [tmp_path / "d"]


@pytest.mark.parametrize(
    "kind", [bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8), partial(array, "B")]
)
def test_packets_are_all_kinds_of_bytes(tmp_path: Path, kind: Callable[[bytes], Any]) -> None:
    for folder, write in ((tmp_path / "ours", write_split_data), (tmp_path / "real", original.write_split_data)):
        write(str(folder), [b"a", kind(b"bc"), kind(b"")], splits=2)
    assert contents(tmp_path / "ours") == contents(tmp_path / "real")
    assert list(SplitDataLoader(tmp_path / "ours")) == [b"a", b"bc", b""]


def test_error_of_the_input_changes_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise RuntimeError("lost connection")

    folder = written(tmp_path / "d")
    for start_clean in (False, True):
        with pytest.raises(RuntimeError, match="lost connection"):
            write_split_data(folder, failing(), start_clean=start_clean)
    assert list(SplitDataLoader(folder)) == PACKETS


@pytest.mark.parametrize("splits", [0, -3])
def test_splits_below_one_raise(tmp_path: Path, splits: int) -> None:
    for expected in (ZeroDivisionError, ValueError, ShardexError):
        with pytest.raises(expected, match="expected at least one split"):
            write_split_data(str(tmp_path / "d"), [b"a"], splits)
    assert not (tmp_path / "d").exists()


def test_bin_beyond_4_gib_leaves_the_index_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "_LARGEST", 100)
    folder = written(tmp_path / "d", [bytes(40)], splits=1)
    for expected in (struct.error, SchemaError):
        with pytest.raises(expected, match="expected bins of at most 100 bytes, got a packet of 60 for bin 0"):
            write_split_data(folder, [b"a", bytes(60)], splits=1)
    written(tmp_path / "d", [b"b"], splits=2)
    assert list(SplitDataLoader(folder)) == [bytes(40), b"b"]


def test_packets_at_the_end_of_4_gib(tmp_path: Path) -> None:
    folder, first = tmp_path / "d", 2**32 - 20
    folder.mkdir()
    with (folder / "bin00000000.dat").open("wb") as file:  # without the bytes before, which take no room on the disk
        file.seek(first)
        write_size_prefixed(file, b"the last packet ")
    (folder / "index.dat").write_bytes(struct.pack("<III", 0, first, 16))
    with pytest.raises(struct.error, match="got a packet of 1 for bin 0, which has 4294967296"):
        write_split_data(folder, [b"a"], splits=1)
    assert list(SplitDataLoader(folder)) == [b"the last packet "]


def test_truncated_bin_raises(tmp_path: Path) -> None:
    folder = written(tmp_path / "d", [b"first", b"second", b"third"], splits=1)
    os.truncate(tmp_path / "d" / "bin00000000.dat", 25)
    loader = SplitDataLoader(folder)
    assert loader[1] == b"second"
    for expected in (ValueError, OSError, FormatError):
        with pytest.raises(expected, match=r"bin00000000\.dat: expected bytes 19 to 28 for sample 2, got a file of 25"):
            loader[2]
        with pytest.raises(expected, match="sample 2"):
            list(loader.iterate_binwise())


def test_damaged_size_and_missing_bin_raise(tmp_path: Path) -> None:
    folder = written(tmp_path / "d", [b"first", b"second"], splits=2)
    (tmp_path / "d" / "bin00000000.dat").write_bytes(b"\x06\0\0\0first")
    (tmp_path / "d" / "bin00000001.dat").unlink()
    loader = SplitDataLoader(folder)
    with pytest.raises(OSError, match=r"expected a packet of 5 bytes, as index\.dat says, got the prefix 6"):
        loader[0]
    for read in (lambda: loader[1], lambda: loader[:]):
        with pytest.raises(FileNotFoundError, match=r"there is no file bin00000001\.dat - at sample 1"):
            read()


def test_partial_index_entry_raises(tmp_path: Path) -> None:
    folder = written(tmp_path / "d")
    with (tmp_path / "d" / "index.dat").open("ab") as index:
        index.write(b"1234")
    for expected in (struct.error, ValueError):
        with pytest.raises(expected, match=r"expected 12 bytes for each sample, got 1204 bytes, .*cut it to") as found:
            SplitDataLoader(folder)[0]
        assert not isinstance(found.value, FileNotFoundError), "no bin is missing"
    with pytest.raises(ValueError, match="partial entry"):
        write_split_data(folder, [b"a"])


@pytest.mark.parametrize("position", [100, -101, 10**12, np.int64(100)])
def test_position_outside_raises_index_error(tmp_path: Path, position: int) -> None:
    loader = SplitDataLoader(written(tmp_path / "d"))
    for expected in (IndexError, ValueError):
        with pytest.raises(expected, match=r"expected a position from -100 to 99, got"):
            loader[position]


def test_positions_from_the_end_slices_and_loops(tmp_path: Path) -> None:
    loader = SplitDataLoader(written(tmp_path / "d"))
    assert loader[-1] == loader[np.int64(99)] == loader[np.uint8(99)] == PACKETS[99]
    assert loader[10:90:3] == PACKETS[10:90:3] and loader[::-1] == PACKETS[::-1] and loader[5:5] == []
    assert list(loader) == list(reversed(loader))[::-1] == PACKETS
    assert b"\x01" * 7 in loader
    for wrong in ("1", 1.0, None):
        with pytest.raises(TypeError):
            loader[cast(Any, wrong)]


def test_files_of_other_folders_are_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "d", [b"a", b"b"])
    written(tmp_path / "d" / "nested", [b"foreign"])
    (tmp_path / "d" / "binary.dat").write_bytes(b"foreign")
    loader = SplitDataLoader(folder)
    assert list(loader.iterate_binwise()) == list(loader) == [b"a", b"b"]


def test_few_files_are_opened(tmp_path: Path) -> None:
    loader = SplitDataLoader(written(tmp_path / "d"))
    assert list(loader.iterate_binwise()) and loader[0] == PACKETS[0]
    before = psutil.Process().num_fds()
    for k in range(100):
        assert loader[k] == PACKETS[k]
    assert psutil.Process().num_fds() == before


def test_shuffle_is_reproducible(tmp_path: Path) -> None:
    loader = SplitDataLoader(written(tmp_path / "d"))
    state = random.getstate()
    first, again, other = (list(loader.iterate_binwise(shuffle=True, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(PACKETS)
    assert random.getstate() == state
    for write in (False, True):
        found = []
        for _ in range(2):
            random.seed(5)
            folder = tmp_path / f"{write}"
            written(folder, shuffle=True, start_clean=True, seed=3 if write else None)
            found.append((contents(folder), list(SplitDataLoader(folder).iterate_binwise(shuffle=True))))
        assert found[0] == found[1]


def test_shuffle_keeps_the_packets_of_a_bin_together(tmp_path: Path) -> None:
    loader = SplitDataLoader(written(tmp_path / "d", [bytes([k % 5, k]) for k in range(50)], splits=5))
    shuffled = list(loader.iterate_binwise(shuffle=True, seed=0))
    bins_seen = [packet[0] for packet in shuffled][::10]
    assert [packet[0] for packet in shuffled] == [number for number in bins_seen for _ in range(10)]
    assert sorted(bins_seen) == list(range(5)) != bins_seen
    assert all([p[1] for p in shuffled[k : k + 10]] != sorted(p[1] for p in shuffled[k : k + 10]) for k in (0, 10, 20))


def test_large_packets_are_read_in_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_writer_and_loader, "_AT_ONCE", 64)
    monkeypatch.setattr(data_writer_and_loader, "_ROWS", 9)
    loader = SplitDataLoader(written(tmp_path / "d"))
    assert list(loader) == PACKETS
    assert list(loader.iterate_binwise()) == list(original.SplitDataLoader(str(tmp_path / "d")).iterate_binwise())


def test_shardex_opens_what_is_written_with_its_fields(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}], format="bins", splits=2)
    assert [sx.open(folder)[k].n for k in range(2)] == [1, 2]
    assert list(SplitDataLoader(folder)) == list(original.SplitDataLoader(str(folder)).iterate_binwise())
    with pytest.raises(SchemaError, match="expected packets as those that exist: codec 'msgpack'"):
        written(folder)


# -- processes and threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_loader_in_workers_of_torch(tmp_path: Path, method: str) -> None:
    from torch.utils.data import DataLoader

    loader = SplitDataLoader(written(tmp_path / "d"))
    assert loader[3] == PACKETS[3]
    batches = DataLoader(
        cast(Any, loader), batch_size=10, num_workers=1, multiprocessing_context=method, collate_fn=list
    )
    assert [packet for batch in batches for packet in batch] == PACKETS


def test_loader_pickles_and_serves_threads(tmp_path: Path) -> None:
    loader = SplitDataLoader(written(tmp_path / "d"))
    assert loader[3] == pickle.loads(pickle.dumps(loader))[3] == PACKETS[3]
    order = np.random.default_rng(0).integers(0, 100, 2000).tolist()
    fresh = SplitDataLoader(tmp_path / "d")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(fresh.__getitem__, order)) == [PACKETS[k] for k in order]


def _append(folder: str, number: int) -> None:
    for k in range(5):
        write_split_data(folder, [bytes([number, k])] * 3, splits=2)


def test_processes_append_at_the_same_time(tmp_path: Path) -> None:
    folder = written(tmp_path / "d", [b"first"])
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append, args=(folder, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    packets = list(SplitDataLoader(folder))
    assert packets[0] == b"first"
    assert sorted(packets[1:]) == sorted(bytes([n, k]) for n in range(3) for k in range(5) for _ in range(3))
    assert sorted(original.SplitDataLoader(folder).iterate_binwise()) == sorted(packets)


# -- helpers --------------------------------------------------------------------------------------------------------


def test_helpers_give_the_results_of_the_original(tmp_path: Path) -> None:
    ours, theirs = io.BytesIO(), io.BytesIO()
    for module, file in ((data_writer_and_loader, ours), (original_module, theirs)):
        any_module: Any = module
        any_module.struct_pack_write(file, 2**32 - 1)
        any_module.write_size_prefixed(file, b"packet")
        any_module.write_size_prefixed(file, b"")
        any_module.write_size_prefixed(file, b"last")
        file.seek(0)
    assert ours.getvalue() == theirs.getvalue()
    assert read_struct_unpack(ours) == (True, 2**32 - 1)
    assert read_size_prefixed(ours) == (True, b"packet")
    assert read_all_size_prefixed_packets(ours) == [b"", b"last"]
    assert read_struct_unpack(ours) == (False, 0) and read_size_prefixed(ours) == (False, b"")
    assert get_index_file(tmp_path) == original_module.get_index_file(tmp_path)
    for number in (0, 7, 123456789):
        assert get_bin_file_for_index(tmp_path, number) == original_module.get_bin_file_for_index(tmp_path, number)


def test_helpers_refuse_what_is_cut_off_or_no_packet(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="expected a packet of 5 bytes, got 3; the file is cut off"):
        read_size_prefixed(io.BytesIO(b"\x05\0\0\0abc"))
    path = tmp_path / "cut"
    path.write_bytes(b"\x05\0")
    for expected in (struct.error, OSError):
        with path.open("rb") as file, pytest.raises(expected, match=r"cut: expected 4 bytes of a number, got 2"):
            read_struct_unpack(file)
    out = io.BytesIO()
    with pytest.raises(TypeError, match="expected the bytes of a packet, got str"):
        write_size_prefixed(out, cast(Any, "text"))
    with pytest.raises(struct.error):
        struct_pack_write(out, 2**32)
    assert out.getvalue() == b""


def test_target_that_is_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for start_clean in (False, True):
        with pytest.raises(FileExistsError) as raised:
            write_split_data(str(tmp_path / "file"), [b"a"], start_clean=start_clean)
        assert raised.value.errno == errno.EEXIST
