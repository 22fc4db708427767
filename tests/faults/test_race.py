"""Many processes edit one dataset concurrently: no version is lost or made twice, and readers see intact ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import shardex as sx
from shardex.store import history
from tests.faults import jobs as does
from tests.faults.processes import FULL, Jobs, strace, why_no_strace
from tests.faults.states import Models, signature

PROCESSES, TURNS = (8, 40) if FULL else (4, 10)

pytestmark = pytest.mark.timeout(900)


def race(jobs: Jobs, job: str, folder: Path, look: Callable[[sx.Dataset], None]) -> list[int]:
    """Run processes concurrently, read the dataset meanwhile, and return the versions that they made."""
    versions: list[int] = []
    with ExitStack() as stack:
        running = [stack.enter_context(jobs.start(job, folder, who, TURNS)) for who in range(PROCESSES)]
        for one in running:
            one.go()
        for one in running:
            while (words := one.hear(0)) != "done":
                if words is None:
                    look(sx.open(folder))
                else:
                    versions.append(int(words.removeprefix("made ")))
    return sorted(versions)


def check_turns(ds: sx.Dataset) -> None:
    """Check that the samples of each process are its first ones, in order."""
    turns: dict[int, list[int]] = {}
    for sample in ds:
        turns.setdefault(sample.who, []).append(sample.turn)
    assert all(some == list(range(len(some))) for some in turns.values())


def test_concurrent_appends(jobs: Jobs, room: Path) -> None:
    """Each version has one sample more, and the last one has all."""
    sx.write(room / "d", [], does.RACE)
    total = PROCESSES * TURNS
    assert race(jobs, "race_append", room / "d", check_turns) == list(range(2, total + 2))
    check_turns(ds := sx.open(room / "d"))
    assert len(ds) == total
    assert [(one.number, one.samples) for one in history(room / "d")] == [(k + 1, k) for k in range(total + 1)]


def test_concurrent_updates_of_different_rows(jobs: Jobs, room: Path) -> None:
    """Each row has the old value, then the new one, and never the old one again."""
    total, extra = PROCESSES * TURNS, PROCESSES * -(-TURNS // 10)
    rows = [{"who": row // TURNS, "turn": -1} for row in range(total)]
    sx.write(room / "d", rows, does.RACE, shard_rows=7, progress=False)
    seen = [0]

    def look(ds: sx.Dataset) -> None:
        table = ds.read(range(total))
        changed = table["turn"] >= 0
        assert (table["who"] == [row["who"] for row in rows]).all()
        assert (table["turn"] == [row % TURNS if new else -1 for row, new in enumerate(changed)]).all()
        for who in range(PROCESSES):
            mine = changed[who * TURNS : (who + 1) * TURNS].tolist()
            assert mine == sorted(mine, reverse=True)  # its first turns
        assert changed.sum() >= seen[0]
        seen[0] = int(changed.sum())

    assert race(jobs, "race_update", room / "d", look) == list(range(2, total + 2))
    look(ds := sx.open(room / "d"))
    assert seen[0] == total and len(ds) == total + extra
    assert [one.number for one in history(room / "d")] == list(range(1, total + 2))


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
@pytest.mark.parametrize("name", ["append", "update", "delete", "compact"])
def test_others_publish_just_before_a_process_does(name: str, jobs: Jobs, models: Models, room: Path) -> None:
    """Others take the number that a process is about to publish, again and again: all edits are kept."""
    models.begin(name, room / "d")
    held, others = "link,linkat,rename,renameat,renameat2:delay_enter=300000", 0
    with jobs.start(name, room / "d") as one, strace(one.pid, room / "log", "-e", f"inject={held}"):
        one.go()
        while (words := one.hear(0.03 if others < 3 else None)) is None:
            with sx.edit(room / "d") as tx:
                tx.append({**does.sample(200 + others), "e": others})
            others += 1
    assert words == "done" and others >= 1
    samples = list(sx.open(room / "d"))
    assert [sample.e for sample in samples if sample.n >= 200] == list(range(others))
    assert signature(one for one in samples if one.n < 200) == models.new(name)[5]
    assert [one.number for one in history(room / "d")] == list(range(1, 6 + others))


def test_row_deleted_by_two_transactions_counts_once(room: Path) -> None:
    """Two transactions delete the same row, a third one appends: every version can be opened."""
    sx.write(room / "d", [{"who": 0, "turn": turn} for turn in range(10)], does.RACE)
    first, second, third = sx.edit(room / "d"), sx.edit(room / "d"), sx.edit(room / "d")
    first.delete([1, 2])
    second.delete([2, 3])
    third.append(who=0, turn=10)
    for tx in (first, second, third):
        tx.commit()
    assert [one.samples for one in history(room / "d")] == [10, 8, 7, 8]
    assert [sample.turn for sample in sx.open(room / "d")] == [0, *range(4, 11)]
