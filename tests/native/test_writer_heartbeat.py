"""Heartbeats: `clean` keeps files of live writers, however old they are, and removes those of dead ones."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import CommitConflict, ShardexError
from shardex.native import commit, writer_heartbeat
from shardex.native.manifest import Manifest, publish
from shardex.native.version_numbers import latest_version
from shardex.native.writer_heartbeat import WriterHeartbeat
from shardex.sources import LocalSource, Place, place_of
from shardex.sources.memory import MemorySource
from tests.locations import KINDS, new_location
from tests.waiting import becomes_true

HOUR = 3600.0


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    address = new_location(request.param, tmp_path)
    sx.write(address, [{"x": k} for k in range(6)], shard_rows=2)
    return place_of(address)


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers send a heartbeat every 10 ms."""
    monkeypatch.setattr(writer_heartbeat, "PERIOD", 0.01)


def markers(place: Place) -> list[str]:
    return [path for path in place.paths("_shardex/") if path.endswith(".live")]


def age(place: Place, seconds: float) -> None:
    """Set the age of all files to so many seconds, and that of heartbeat files to one."""
    for path in place.paths():
        when = time.time() - (seconds if path not in markers(place) else 1)
        if isinstance(place, LocalSource):
            with suppress(FileNotFoundError):  # a heartbeat that is being written
                os.utime(place.path(path), (when, when))
        elif isinstance(place, MemorySource):
            place._times[path] = when


def wait_for_heartbeat(place: Place) -> None:
    assert becomes_true(lambda: markers(place))


def set_start(tx: sx.store.Edit, seconds: float) -> None:
    """Make a transaction believe that it began so many seconds ago."""
    tx._heartbeat._file._began = time.monotonic() - seconds, time.time() - seconds


def test_clean_keeps_files_of_a_live_writer(place: Place, frequent: None) -> None:
    tx = sx.edit(place.url)
    set_start(tx, 3 * HOUR)
    tx.add_field("y", "int64", range(6))
    tx.update(0, x=100)
    tx.append(x=6, y=6)
    wait_for_heartbeat(place)
    tx._heartbeat._ended.set()  # stop the thread, so that the age of its file can be set
    tx._heartbeat._thread.join()
    tx._heartbeat._file.renew()
    age(place, 2 * HOUR)
    assert sx.clean(place.url) == []
    tx.commit()
    assert [(s.x, s.y) for s in sx.open(place.url)] == [(100, 0), *((k, k) for k in range(1, 7))]
    assert markers(place) == [] and sx.verify(place.url) == []


def test_heartbeat_of_a_long_transaction_is_renewed(place: Place, frequent: None) -> None:
    tx = sx.edit(place.url)
    set_start(tx, 3 * HOUR)
    tx.add_field("y", "int64", range(6))
    wait_for_heartbeat(place)
    age(place, 2 * HOUR)
    (marker,) = markers(place)
    before = place.stat(marker).modified
    assert becomes_true(lambda: place.stat(marker).modified > before)
    assert sx.clean(place.url) == []
    tx.commit()
    assert [s.y for s in sx.open(place.url)] == list(range(6))


def test_clean_removes_files_without_a_heartbeat_and_commit_raises(place: Place) -> None:
    tx = sx.edit(place.url)
    tx.add_field("y", "int64", range(6))
    for path in markers(place):
        place.remove(path)
    age(place, 2 * HOUR)
    assert len(sx.clean(place.url)) == 3
    set_start(tx, HOUR)
    with pytest.raises(ShardexError) as caught:
        tx.commit()
    assert not place.is_remote or (
        isinstance(caught.value, CommitConflict) and "3 of them are gone" in str(caught.value)
    )
    assert latest_version(place) == 1 and sx.open(place.url).fields == ["x"] and markers(place) == []


def test_clean_removes_files_and_heartbeat_of_a_dead_writer(place: Place) -> None:
    place.put(f"_shardex/{'0' * 16}.live", b"7200")
    place.put(f"data/{'0' * 32}.arrow", b"theirs")
    assert sx.clean(place.url) == []
    for path in place.paths():
        if isinstance(place, LocalSource):
            os.utime(place.path(path), (time.time() - 2 * HOUR,) * 2)
        elif isinstance(place, MemorySource):
            place._times[path] = time.time() - 2 * HOUR
    assert sx.clean(place.url) == [f"_shardex/{'0' * 16}.live", f"data/{'0' * 32}.arrow"]
    assert len(sx.open(place.url)) == 6


def test_clean_removes_files_older_than_the_oldest_writer(place: Place) -> None:
    place.put(f"data/{'0' * 32}.arrow", b"waste")
    age(place, 2 * HOUR)
    place.put(f"_shardex/{'1' * 16}.live", b"60")
    assert sx.clean(place.url) == [f"data/{'0' * 32}.arrow"]


def test_unreadable_heartbeat_keeps_all_files() -> None:
    place = MemorySource({f"_shardex/{'0' * 16}.live": b"?"})
    now = place.stat(f"_shardex/{'0' * 16}.live").modified
    assert WriterHeartbeat.oldest_start(place, now, HOUR) == -float("inf")
    assert WriterHeartbeat.oldest_start(place, now + HOUR, HOUR) == float("inf")


def test_short_transaction_in_a_folder_writes_no_heartbeat(tmp_path: Path) -> None:
    writer = WriterHeartbeat(LocalSource(tmp_path))
    assert os.listdir(tmp_path) == []
    writer.close()
    assert os.listdir(tmp_path) == []


def test_threads_end_with_their_writers(place: Place) -> None:
    edits = [sx.edit(place.url) for _ in range(4)]
    threads = [tx._heartbeat._thread for tx in edits]
    assert all(thread.is_alive() for thread in threads)
    edits[0].commit()
    edits[1].abort()
    del edits
    gc.collect()
    assert becomes_true(lambda: not any(thread.is_alive() for thread in threads))


def test_heartbeat_goes_on_after_a_storage_error(frequent: None) -> None:
    class FailingAtFirst(MemorySource):
        puts = 0

        def put(self, path: str, data: object) -> None:
            self.puts += 1
            if self.puts < 3:
                raise ShardexError("not now")
            super().put(path, data)

    place = FailingAtFirst()
    writer = WriterHeartbeat(place)
    assert becomes_true(lambda: place.puts >= 4)
    writer.close()
    assert place.paths() == []


def test_process_that_stops_just_before_its_commit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clean` takes its files for leftovers: the commit raises an error that says what to do."""
    tx = sx.edit(place.url)
    tx.append(x=6)

    def after_two_hours(there: Place, version: int, manifest: Manifest, number: str | None) -> bool:
        for path in markers(place):
            place.remove(path)
        age(place, 2 * HOUR)
        assert len(sx.clean(place.url)) == 1
        set_start(tx, 2 * HOUR)
        return publish(there, version, manifest, number)

    monkeypatch.setattr(commit, "publish", after_two_hours)
    with pytest.raises(CommitConflict, match="the version was published and cannot be read; restore version 1"):
        tx.commit()
    monkeypatch.undo()
    assert sx.verify(place.url) != []
    assert sx.store.restore(place.url, 1) == 3
    assert [s.x for s in sx.open(place.url)] == list(range(6))
