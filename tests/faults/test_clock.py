"""Wrong clocks and slow writers: versions are ordered by number, and `clean` removes no file that is needed.

The clock of a process is shifted by a day with libfaketime; that of the storage, which sets file times, is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import ShardexError
from shardex.native.commit import Changes, publish_next
from shardex.native.data_files import FragmentWriter
from shardex.native.manifest import read_manifest
from shardex.native.writer_heartbeat import WriterHeartbeat
from shardex.sources import LocalSource
from shardex.store import clean, history
from tests.faults import jobs as does
from tests.faults.processes import Jobs, strace, why_no_strace
from tests.faults.states import Models, check_usable, drafts, signature, state
from tests.waiting import becomes_true

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
HOUR, DAY = 3600, 86400
STRAY = [f"data/{'0' * 32}.arrow", f".{'0' * 16}.tmp"]

needs_faketime = pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime (Debian: apt-get install libfaketime)")


@pytest.fixture(scope="module", params=["-1d", "+1d"])
def elsewhen(request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """Processes with a wrong clock."""
    with Jobs({"LD_PRELOAD": str(LIBRARY), "FAKETIME": request.param, "NO_FAKE_STAT": "1"}) as started:
        yield started


def aged(path: Path, seconds: float) -> Path:
    """Make a file so many seconds older."""
    when = time.time() - seconds
    os.utime(path, (when, when))
    return path


@needs_faketime
def test_versions_are_ordered_by_number(elsewhen: Jobs, jobs: Jobs, room: Path) -> None:
    """Edits by processes with different clocks give the same versions as by one process."""
    does.make(str(room / "model"))
    does.make(str(room / "d"))
    for turn, name in enumerate(["update", "compact", "clean", "append", "delete"]):
        does.EDITS[name](str(room / "model"))
        assert (elsewhen if turn % 2 else jobs).run(name, room / "d") == "done"
    found = state(room / "d")
    assert found == state(room / "model")
    made = [version.made for version in history(room / "d")]
    assert made != sorted(made) or made[-1] > time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + HOUR))
    check_usable(room / "d", found)


@needs_faketime
def test_clean_uses_the_clock_of_the_storage(elsewhen: Jobs, models: Models, room: Path) -> None:
    """Unused files are kept for an hour by the clock of the storage, whatever the clock of the process is."""
    expected = models.begin("append", room / "d")
    for age, stays in ((0, True), (HOUR / 2, True), (2 * HOUR, False), (-DAY, True)):
        for name in STRAY:
            (room / "d" / name).write_bytes(b"perhaps somebody's")
            aged(room / "d" / name, age)
        assert elsewhen.run("sweep", room / "d") == "done"
        assert [(room / "d" / name).exists() for name in STRAY] == [stays, stays]
        assert state(room / "d") == expected


def test_commit_raises_if_clean_removed_its_files(models: Models, room: Path) -> None:
    """The clock jumps a day, so temporary files look old and are removed: the writer raises and commits nothing."""
    old = models.begin("append", room / "d")
    tx = sx.edit(room / "d", progress=False)
    tx.add_field("f", "int8", range(6))
    tx.update(0, s="x")
    for name in drafts(room / "d"):
        aged(room / "d" / name, DAY)
    assert clean(room / "d", keep=100)
    with pytest.raises(ShardexError):
        tx.commit()
    assert state(room / "d") == old and not drafts(room / "d")
    check_usable(room / "d", old)


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
def test_clean_while_an_old_version_is_restored(jobs: Jobs, room: Path) -> None:
    """The files are old, and versions with them are removed just before the new one is published: it is readable."""
    does.make(str(room / "d"))
    does.fold(str(room / "d"))
    before = state(room / "d")
    for path in (room / "d" / "data").iterdir():
        aged(path, 2 * HOUR)
    held = "inject=link:delay_enter=1000000"
    with jobs.start("restore", room / "d") as one, strace(one.pid, room / "log", "-e", held):
        one.go()
        # until its manifest is written, and not yet linked
        assert becomes_true(lambda: any((room / "d" / name).stat().st_size for name in drafts(room / "d")))
        clean(room / "d")
        assert one.end() == "done"
    assert state(room / "d") == {5: before[5], 6: before[2]}


def test_published_file_is_young_even_if_writing_took_long(room: Path) -> None:
    """`clean` runs between the publication of a file written hours ago and that of its manifest."""
    sx.write(room / "d", [{"n": 0}], {"n": int})
    place = LocalSource(room / "d")
    base = read_manifest(place, 1)
    writer = FragmentWriter(place, base.features, shard_rows=1)
    writer.append({"n": 1})
    for name in drafts(room / "d"):
        aged(room / "d" / name, 2 * HOUR)
    writer.append({"n": 2})
    changes = Changes(writer.finish(), words="append")
    assert clean(room / "d") == []
    with closing(WriterHeartbeat(place)) as heartbeat:
        publish_next(place, 1, lambda version: (changes.apply(place, base, base), base), heartbeat)
    assert signature(sx.open(room / "d")) == signature([{"n": k} for k in range(3)])
