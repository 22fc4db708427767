"""Edits that are killed, or get an error, at each of their system calls: the dataset is the old or the new one."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import ShardexError
from tests.faults import jobs as does
from tests.faults.processes import FULL, Call, Jobs, calls, hit, why_no_strace
from tests.faults.states import Models, State, check_usable, drafts, state

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace()),
]

FAULTS = {
    "write": ["error=ENOSPC", "error=EIO", "error=EINTR", "retval=1"],
    "openat": ["error=EMFILE", "error=EIO"],
    "fsync": ["error=EIO", "error=EDQUOT"],
    "rename": ["error=ENOSPC", "error=EIO"],
    "link": ["error=ENOSPC", "error=EIO"],
    "mkdir": ["error=ENOSPC", "error=EROFS"],
    "unlink": ["error=EIO", "error=EROFS"],
    "mmap": ["error=ENOMEM"],
    "getdents64": ["error=EIO"],
    "newfstatat": ["error=EIO"],
}
OURS = "SourceError|StorageFullError|AccessDeniedError"


class Case:
    """A job, its dataset, and the state of that before and after."""

    def __init__(self, jobs: Jobs, models: Models, name: str, room: Path) -> None:
        self.jobs, self.models, self.name = jobs, models, name
        self.folder, self.log = room / "d", room / "log"
        self.old, self.new = models.begin(name, self.folder), models.new(name)
        self.calls = calls(jobs, name, self.folder, self.log)
        assert state(self.folder) == self.new != self.old
        assert not drafts(self.folder)

    def hit(self, call: Call, fault: str) -> str:
        """Run the job with a fault and return its last line."""
        self.models.begin(self.name, self.folder)
        return hit(self.jobs, self.name, self.folder, self.log, call, fault)

    def only_syncs(self, call: Call) -> bool:
        """True if the call only syncs a manifest that is already visible."""
        links = [k for k, one in enumerate(self.calls) if one.name == "link"]
        published = bool(links) and self.calls.index(call) > links[-1]
        return published and call.name in ("openat", "fsync") and "_shardex>" in call.words

    def found(self) -> State:
        """Return the current state: the old, the new, or for `clean` one between them."""
        found = state(self.folder)
        if self.name == "clean":
            assert self.new.items() <= found.items() <= self.old.items()
        else:
            assert found in (self.old, self.new)
        return found

    def check_usable(self, found: State) -> None:
        """Check that the next edit works, or `create` if there is no dataset yet."""
        if not found:
            with pytest.raises(ShardexError):
                sx.open(self.folder)
            assert self.jobs.run(self.name, self.folder) == "done"
            found = state(self.folder)
            assert found == self.new
        check_usable(self.folder, found)


@pytest.fixture(params=list(does.EDITS))
def case(request: pytest.FixtureRequest, jobs: Jobs, models: Models, room: Path) -> Case:
    return Case(jobs, models, request.param, room)


def test_killed_at_every_call(case: Case) -> None:
    """The dataset is old or new, the next edit works, and nothing committed is lost."""
    seen: set[tuple[tuple[int, str], ...]] = set()
    for call in chosen([call for call in case.calls if call.changes]):
        assert case.hit(call, "signal=KILL") in ("", "done"), call
        found = case.found()
        case.check_usable(found)
        seen.add(tuple(found.items()))
    assert len(seen) == 2 or case.name == "clean"


def test_error_at_every_call(case: Case) -> None:
    """A job that reports success has succeeded; one that failed raises a ShardexError and leaves no temporary file.

    The only case between: the manifest is written, but syncing its folder failed. It may not survive a power loss, so
    the job must report an error.
    """
    for call in chosen([call for call in case.calls if faults(call)]):
        for fault in faults(call):
            words = case.hit(call, fault)
            where = f"{call.words} with {fault}: {words}"
            found = case.found()
            if words == "done":
                assert found == case.new, where
            else:
                assert re.match(OURS if call.changes else r"[A-Z]\w+", words) and str(case.folder) in words, where
                assert found == case.old or case.name == "clean" or case.only_syncs(call), where
            if call.name != "unlink":
                assert not drafts(case.folder), where
            case.check_usable(found)


class Shards:
    """A writer of shards of another format, and the samples before and after."""

    def __init__(self, jobs: Jobs, name: str, room: Path) -> None:
        self.jobs, self.name = jobs, name
        self.mode, self.format = name.split()
        self.room, self.log = room, room / "log"
        self.old = [] if self.mode == "create" else numbers(0, 8)
        self.new = numbers(0 if self.mode == "append" else 8, 16)
        self.begin()
        self.calls = calls(jobs, name, self.folder, self.log)

    def begin(self) -> None:
        """Make the old dataset, with an index, in a new folder: indexes of older ones may be in the cache folder."""
        self.folder = Path(tempfile.mkdtemp(dir=self.room)) / "d"
        if self.mode != "create":
            does.write_shards(self.format, "create", 0, str(self.folder))
            assert self.found() == self.old

    def hit(self, call: Call, fault: str) -> str:
        """Write with a fault and return the last line."""
        self.begin()
        return hit(self.jobs, self.name, self.folder, self.log, call, fault)

    def found(self) -> list[Any]:
        """Return the samples."""
        if not self.folder.exists():
            return []
        schema = {"x": sx.Array("int64", (None,))} if self.format in ("jsonl", "tar") else None
        return [list(sample["x"]) for sample in sx.open(self.folder, format=self.format, schema=schema)]

    def check_usable(self) -> None:
        """Check that the next writer works."""
        before = self.found() if self.format != "bins" else []
        does.write_shards(self.format, "overwrite" if self.format == "bins" else "append", 50, str(self.folder))
        assert self.found() == before + numbers(50, 58)


@pytest.mark.parametrize("name", does.WRITES)
def test_writer_of_shards_killed_at_every_call(name: str, jobs: Jobs, room: Path) -> None:
    """The samples are the old or the new ones, and the next writer works."""
    case, seen = Shards(jobs, name, room), []
    for call in chosen([call for call in case.calls if call.changes]):
        assert case.hit(call, "signal=KILL") in ("", "done"), call
        seen.append(case.found())
        assert seen[-1] in (case.old, case.new), call
        case.check_usable()
    assert case.old in seen and case.new in seen


@pytest.mark.parametrize("name", [name for name in does.WRITES if name.startswith("append")])
def test_append_of_shards_with_an_error_at_every_call(name: str, jobs: Jobs, room: Path) -> None:
    """An append that reports success has succeeded; one that failed before it was published has changed nothing."""
    case = Shards(jobs, name, room)
    publishes = next(number for number, call in enumerate(case.calls) if ".done" in call.words)
    for call in chosen([call for call in case.calls if faults(call)]):
        for fault in faults(call):
            if fault == "retval=1":  # bytes are lost without an error: the checksums of the index find that
                continue
            words = case.hit(call, fault)
            where = f"{call.words} with {fault}: {words}"
            if words != "done":
                assert re.match(OURS if call.changes else r"[A-Z]\w+", words), where
            is_new = words == "done" or case.calls.index(call) > publishes
            assert case.found() == (case.new if is_new else case.old), where
            case.check_usable()


def numbers(first: int, last: int) -> list[Any]:
    return [sample["x"].tolist() for sample in does.shard_samples(first, last)]


def chosen(calls: list[Call]) -> list[Call]:
    """All calls; in the short form every eighth one, those that publish a manifest, and the last one."""
    return [
        call
        for number, call in enumerate(calls)
        if FULL or number % 16 == 0 or call.name == "link" or call is calls[-1]
    ]


def faults(call: Call) -> list[str]:
    """Return the errors to inject: all of them, or the first one for calls that change something."""
    all_ways = FAULTS.get(call.name, [])
    return all_ways if FULL else all_ways[: call.changes]
