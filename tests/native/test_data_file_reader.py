"""Reading data files: all damage is found, and intact batches are read from a damaged file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import xxhash

import shardex as sx
from shardex.errors import ChecksumError, FormatError, ShardexError, TruncatedShardError, VersionExpired
from shardex.native import data_file_reader
from shardex.native import data_files as fragments
from shardex.native.data_file_damage import Damage, file_by_name
from shardex.native.data_file_reader import DataFileReader
from shardex.native.data_file_table import END_OF_STREAM
from shardex.native.fragments import DataFile
from shardex.native.manifest import read_manifest
from shardex.sources import ByteRange, LocalSource, Source
from shardex.sources.memory import MemorySource

COLUMNS = [pa.field("n", pa.int8(), nullable=False), pa.field("s", pa.large_string(), nullable=False)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFile, bytes]:
    """A file of three batches, one sample each."""
    folder = tmp_path_factory.mktemp("remains") / "d"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "BATCH_BYTES", 1)
        sx.write(folder, [{"n": k, "s": f"é{k}"} for k in range(3)], {"n": "int8", "s": str})
    (file,) = read_manifest(LocalSource(folder), 1).fragments[0].groups
    return file, (folder / file.path).read_bytes()


def reader(file: DataFile, content: bytes) -> DataFileReader:
    return DataFileReader(MemorySource({file.path: content}), file, COLUMNS)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def check_readable(found: DataFileReader, intact: set[int]) -> None:
    """All intact batches are read, the others are errors."""
    assert set(found.readable) == intact
    for number in range(3):
        if number in intact:
            assert found.batch(number).to_pylist() == [{"n": number, "s": f"é{number}"}]
        else:
            with pytest.raises(FormatError, match=f"batch {number} to be intact"):
                found.batch(number)


def test_intact_file(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    seen: list[int] = []
    found = reader(file, content)
    assert [found.batch(k).to_pylist() for k in (2, 0, 1)] == [[{"n": k, "s": f"é{k}"}] for k in (2, 0, 1)]
    assert found.examine(seen.append) == [] and sum(seen) == len(content)
    check_readable(found, {0, 1, 2})


def test_file_that_is_closed_during_a_read_is_read_to_the_end(data: tuple[DataFile, bytes]) -> None:
    """The page cache closes a file that it evicts, which may happen in another thread."""
    file, content = data

    class EvictingSource(MemorySource):
        def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
            found.close()

    found = DataFileReader(EvictingSource({file.path: content}), file, COLUMNS)
    assert [found.batch(k).to_pylist() for k in range(3)] == [[{"n": k, "s": f"é{k}"}] for k in range(3)]


def test_flipped_byte_damages_one_batch_or_the_foot(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    ends = reader(file, content).table.end.tolist()
    for at in range(len(content)):
        found = reader(file, flipped(content, at))
        hit = next((k for k, end in enumerate(ends) if at < end), None)
        with pytest.raises(ChecksumError, match=r"as it was written, got other bytes"):
            found.batch(hit or 0)
        (damage,) = found.examine()
        assert damage.batch == hit and "as it was written, got other bytes" in damage.what
        check_readable(found, {0, 1, 2} - {hit})


def test_truncated_file_keeps_the_batches_before_the_cut(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    ends = reader(file, content).table.end.tolist()
    whole_table = content.index(b"SXTABLE2") + int.from_bytes(content[file.end + 16 : file.end + 24], "little")
    for size in range(len(content)):
        found = reader(file, content[:size])
        with pytest.raises(TruncatedShardError, match=f"expected {len(content)} bytes, got {size}"):
            found.batch(0)
        intact = {k for k, end in enumerate(ends) if end <= size}
        how = (
            "are intact"
            if size >= whole_table or not intact
            else "can be read, but not checked, because the foot had their checksums"
        )
        what = f"expected {len(content)} bytes, got {size}; {len(intact)} of 3 batches {how}"
        assert found.examine() == [Damage(what)]
        assert list(found.unchecked) == ([] if size >= whole_table else sorted(intact))
        check_readable(found, intact)


def test_no_batch_is_read_without_a_checked_schema(data: tuple[DataFile, bytes]) -> None:
    """The schema is in the first batch's bytes and in the foot; both are damaged."""
    file, content = data
    found = reader(file, b"?" + content[1:-1] + b"?")
    assert [damage.batch for damage in found.examine()] == [None, 0, None]
    check_readable(found, set())


def test_missing_file(data: tuple[DataFile, bytes]) -> None:
    found = DataFileReader(MemorySource(), data[0], COLUMNS)
    with pytest.raises(VersionExpired):
        found.batch(0)
    (damage,) = found.examine()
    assert damage.batch is None


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.field("n", pa.int16()), "expected a column n of int16, got n int8, s large_string"),
        (pa.field("z", pa.int16()), "expected a column z of int16, got n int8, s large_string"),
    ],
)
def test_unexpected_columns(data: tuple[DataFile, bytes], column: pa.Field, what: str) -> None:
    file, content = data
    found = DataFileReader(MemorySource({file.path: content}), file, [column])
    with pytest.raises(FormatError, match=what):
        found.batch(1)
    assert found.examine() == [Damage(what)]
    assert not found.readable


def matches_its_name(source: Source, path: str) -> bool:
    """Return True if the file matches its name and is intact."""
    found = file_by_name(source, path)
    return found is not None and not DataFileReader(source, found[0], list(found[1])).examine()


@pytest.mark.parametrize("numbered", [True, False])
def test_only_an_intact_file_matches_its_name(data: tuple[DataFile, bytes], numbered: bool) -> None:
    file, content = data
    path = file.path if numbered else re.sub("-[0-9a-f]{16}", "", file.path)
    assert (path == file.path) == numbered
    assert matches_its_name(MemorySource({path: content}), path)
    assert not matches_its_name(MemorySource({"data/x.arrow": content}), "data/x.arrow")
    for at in range(len(content)):
        assert not matches_its_name(MemorySource({path: flipped(content, at)}), path)
        assert not matches_its_name(MemorySource({path: content[:at]}), path)


def test_a_large_batch_matches_its_name(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"b": bytes(20 << 20)}])
    (path,) = ds.shards([0])
    assert matches_its_name(LocalSource(tmp_path / "d"), str(Path(path).relative_to(tmp_path / "d")))


def test_a_file_that_states_the_checksum_of_another_schema_changes_no_other_file(
    data: tuple[DataFile, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_reader, "_SCHEMAS", {})
    sx.write(tmp_path / "d", [{"s": "a", "n": 1}], {"s": str, "n": "int8"})
    (file,) = read_manifest(LocalSource(tmp_path / "d"), 1).fragments[0].groups
    wrong = bytearray((tmp_path / "d" / file.path).read_bytes())
    stated = slice(file.end + len(END_OF_STREAM) + 56, file.end + len(END_OF_STREAM) + 64)
    honest = data[1][data[0].end + len(END_OF_STREAM) :][56:64]
    assert wrong[stated] != honest
    wrong[stated] = honest
    changed = msgspec.structs.replace(file, foot=xxhash.xxh3_64_hexdigest(bytes(wrong[file.end :])))
    assert reader(changed, bytes(wrong)).schema.names == ["s", "n"]
    assert reader(*data).schema.names == ["n", "s"]
    check_readable(reader(*data), {0, 1, 2})


def test_damage_names_the_next_step(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": k} for k in range(10)])
    (path,) = (tmp_path / "d/data").iterdir()
    whole, step = path.read_bytes(), [f'sx.verify("{tmp_path}/d") lists all damage; sx.recover("{tmp_path}/d", target)']

    def opened(content: bytes | None) -> BaseException:
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ShardexError) as caught:
            sx.open(tmp_path / "d").read([0])
        assert [note[: len(step[0])] for note in caught.value.__notes__] == step
        return caught.value

    for at in (600, len(whole) - 100):
        assert isinstance(opened(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]), ChecksumError)
    opened(whole[:-1])
    assert "if that has the same error, the file is lost" in str(opened(None))
    (tmp_path / "d/_shardex/00000001.json").write_bytes(b"x")
    with pytest.raises(FormatError) as caught:
        sx.open(tmp_path / "d")
    assert caught.value.__notes__[0].startswith(step[0])
