"""Data files as bytes: every damage is seen, and batches are read without what lies around them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import shardex as sx
from shardex.sources import LocalSource
from shardex.sources.memory import MemorySource
from shardex.store import data_files as fragments
from shardex.store.manifest import DataFile, read_manifest
from shardex.store.remains import IntactBatches, content_name

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


def remains(file: DataFile, content: bytes) -> IntactBatches:
    return IntactBatches(MemorySource({file.path: content}), file, COLUMNS)


def test_a_whole_file(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    seen: list[int] = []
    found = remains(file, content)
    assert found.examine(seen.append) == []
    assert (found.whole, sum(seen)) == ({0, 1, 2}, len(content))
    assert [found.batch(k).to_pylist() for k in (2, 0, 1)] == [[{"n": k, "s": f"é{k}"}] for k in (2, 0, 1)]


def test_every_flipped_byte_costs_one_batch_or_the_foot(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    for at in range(len(content)):
        found = remains(file, content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        (fault,) = found.examine()
        hit = next((k for k, batch in enumerate(file.batches) if at < batch.end), None)
        assert fault.batch == hit and found.whole == {0, 1, 2} - {hit}
        assert "as it was written, got other bytes" in fault.what
        for number in found.whole:
            assert found.batch(number).to_pylist() == [{"n": number, "s": f"é{number}"}]


def test_cut_at_every_byte_all_before_it_is_there(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    for size in range(len(content)):
        found = remains(file, content[:size])
        (fault,) = found.examine()
        whole = {k for k, batch in enumerate(file.batches) if batch.end <= size}
        assert found.whole == whole and fault.batch is None
        assert fault.what == f"expected {len(content)} bytes, got {size}; {len(whole)} of 3 batches are whole"
        for number in whole:
            assert found.batch(number).to_pylist() == [{"n": number, "s": f"é{number}"}]


def test_arrow_sees_no_byte_that_nothing_vouches_for(data: tuple[DataFile, bytes]) -> None:
    """With the first batch and the foot both damaged, no schema is left to read the others by."""
    file, content = data
    found = remains(file, b"?" + content[1:-1] + b"?")
    assert [fault.batch for fault in found.examine()] == [None, 0, None]
    assert not found.whole


def test_a_file_that_is_gone(data: tuple[DataFile, bytes]) -> None:
    (fault,) = IntactBatches(MemorySource(), data[0], COLUMNS).examine()
    assert fault.batch is None


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.field("n", pa.int16()), "expected a column n of int16, got n int8, s large_string"),
        (pa.field("z", pa.int16()), "expected a column z of int16, got n int8, s large_string"),
    ],
)
def test_columns_that_readers_do_not_expect(data: tuple[DataFile, bytes], column: pa.Field, what: str) -> None:
    file, content = data
    found = IntactBatches(MemorySource({file.path: content}), file, [column])
    assert [fault.what for fault in found.examine()] == [what]
    assert not found.whole


def test_a_whole_file_has_the_name_of_its_content(data: tuple[DataFile, bytes]) -> None:
    file, content = data
    assert content_name(MemorySource({"x": content}), "x") == file.path
    for at in range(len(content)):
        flipped = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
        assert content_name(MemorySource({"x": flipped}), "x") != file.path
        assert content_name(MemorySource({"x": content[:at]}), "x") != file.path


def test_the_name_of_a_file_with_one_large_batch(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"b": bytes(20 << 20)}])
    (path,) = ds.shards([0])
    place = LocalSource(tmp_path / "d")
    assert content_name(place, str(Path(path).relative_to(tmp_path / "d"))) == f"data/{Path(path).name}"
