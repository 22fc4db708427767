"""Writers at work: what they wrote is theirs however old it is, and what they left behind is not."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import CommitConflict, ShardexError
from shardex.sources import LocalSource, Place, place_of
from shardex.sources.memory import MemorySource
from shardex.store import writer_heartbeat as presence
from shardex.store.manifest import latest_version
from shardex.store.writer_heartbeat import WriterHeartbeat, oldest_at_work
from tests.addresses import KINDS, new_address

HOUR = 3600.0


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    address = new_address(request.param, tmp_path)
    sx.write(address, [{"x": k} for k in range(6)], shard_rows=2)
    return place_of(address)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers give word of themselves all the time."""
    monkeypatch.setattr(presence, "PERIOD", 0.01)


def markers(place: Place) -> list[str]:
    return [path for path in place.paths("_shardex/") if path.endswith(".live")]


def age(place: Place, seconds: float) -> None:
    """All files but the word of writers, as if they had been written so long ago; and that as if a moment ago."""
    for path in place.paths():
        when = time.time() - (seconds if path not in markers(place) else 1)
        if isinstance(place, LocalSource):
            os.utime(place.path(path), (when, when))
        elif isinstance(place, MemorySource):
            place._times[path] = when


def wait_for_word(place: Place) -> None:
    while not markers(place):
        time.sleep(0.01)


def begun(tx: sx.Edit, seconds: float) -> None:
    """As if the transaction had begun so long ago."""
    tx._presence._word._began = time.monotonic() - seconds, time.time() - seconds


def test_what_a_writer_at_work_has_written_stays(place: Place, often: None) -> None:
    tx = sx.edit(place.url)
    begun(tx, 3 * HOUR)
    tx.add_field("y", "int64", range(6))
    tx.update(0, x=100)
    tx.append(x=6, y=6)
    wait_for_word(place)
    tx._presence._over.set()  # its thread says no more, so that what it said can be made a moment older
    tx._presence._thread.join()
    tx._presence._word.renew()
    age(place, 2 * HOUR)
    assert sx.clean(place.url) == []
    tx.commit()
    assert [(s.x, s.y) for s in sx.open(place.url)] == [(100, 0), *((k, k) for k in range(1, 7))]
    assert markers(place) == [] and sx.verify(place.url) == []


def test_a_transaction_that_takes_longer_than_the_grace(place: Place, often: None) -> None:
    tx = sx.edit(place.url)
    tx.add_field("y", "int64", range(6))
    wait_for_word(place)
    for _ in range(5):
        time.sleep(0.2)
        assert sx.clean(place.url, grace=0.5) == []
    tx.commit()
    assert [s.y for s in sx.open(place.url)] == list(range(6))


def test_without_word_it_would_have_been_taken_for_a_leftover(place: Place) -> None:
    tx = sx.edit(place.url)
    tx.add_field("y", "int64", range(6))
    for path in markers(place):
        place.remove(path)
    time.sleep(0.3)
    assert len(sx.clean(place.url, grace=0.2)) == 3
    begun(tx, HOUR)
    with pytest.raises(ShardexError) as caught:
        tx.commit()
    assert not place.is_remote or (
        isinstance(caught.value, CommitConflict) and "3 of them are gone" in str(caught.value)
    )
    assert latest_version(place) == 1 and sx.open(place.url).fields == ["x"] and markers(place) == []


def test_what_the_dead_left_goes_with_the_word_they_gave(place: Place) -> None:
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


def test_older_files_than_the_oldest_writer_are_waste(place: Place) -> None:
    place.put(f"data/{'0' * 32}.arrow", b"waste")
    age(place, 2 * HOUR)
    place.put(f"_shardex/{'1' * 16}.live", b"60")
    assert sx.clean(place.url) == [f"data/{'0' * 32}.arrow"]


def test_word_that_cannot_be_read_spares_everything() -> None:
    place = MemorySource({f"_shardex/{'0' * 16}.live": b"?"})
    now = place.stat(f"_shardex/{'0' * 16}.live").modified
    assert oldest_at_work(place, now, HOUR) == -float("inf")
    assert oldest_at_work(place, now + HOUR, HOUR) == float("inf")


def test_short_transactions_in_a_folder_give_no_word(tmp_path: Path) -> None:
    writer = WriterHeartbeat(LocalSource(tmp_path))
    assert os.listdir(tmp_path) == []
    writer.end()
    assert os.listdir(tmp_path) == []


def test_no_thread_outlives_its_writer(place: Place) -> None:
    before = threading.active_count()
    edits = [sx.edit(place.url) for _ in range(4)]
    assert threading.active_count() == before + 4
    edits[0].commit()
    edits[1].abort()
    threads = [tx._presence._thread for tx in edits]
    del edits
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert threading.active_count() == before


def test_storage_that_refuses_for_a_while_is_asked_again(often: None) -> None:
    class Moody(MemorySource):
        asked = 0

        def put(self, path: str, data: object) -> None:
            self.asked += 1
            if self.asked < 3:
                raise ShardexError("not now")
            super().put(path, data)

    place = Moody()
    writer = WriterHeartbeat(place)
    while place.asked < 4:
        time.sleep(0.01)
    writer.end()
    assert place.paths() == []
