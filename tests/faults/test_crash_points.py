"""Every system call of every edit in turn: killed there, or refused; a dataset is as it was, or as it was to become."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import ShardexError
from tests.faults import jobs as does
from tests.faults.processes import FULL, Call, Jobs, calls, hit, why_no_strace
from tests.faults.states import Models, State, check_usable, drafts, state

pytestmark = [
    pytest.mark.slow,
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
    """A job, the dataset it runs on, and what that holds before and after."""

    def __init__(self, jobs: Jobs, models: Models, name: str, room: Path) -> None:
        self.jobs, self.models, self.name = jobs, models, name
        self.folder, self.log = room / "d", room / "log"
        self.old, self.new = models.begin(name, self.folder), models.new(name)
        self.calls = calls(jobs, name, self.folder, self.log)
        assert state(self.folder) == self.new != self.old
        assert not drafts(self.folder)

    def hit(self, call: Call, fault: str) -> str:
        """Run the job with a fault; gives the last it said."""
        self.models.begin(self.name, self.folder)
        return hit(self.jobs, self.name, self.folder, self.log, call, fault)

    def only_syncs(self, call: Call) -> bool:
        """Whether all that the call is for is to make durable a manifest that is there."""
        links = [k for k, one in enumerate(self.calls) if one.name == "link"]
        published = bool(links) and self.calls.index(call) > links[-1]
        return published and call.name in ("openat", "fsync") and "_shardex>" in call.words

    def found(self) -> State:
        """The dataset as it is now: old, new, or for `clean` in between."""
        found = state(self.folder)
        if self.name == "clean":
            assert self.new.items() <= found.items() <= self.old.items()
        else:
            assert found in (self.old, self.new)
        return found

    def check_usable(self, found: State) -> None:
        """The next edit works; where there is no dataset yet, that is to make it."""
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
    """Old or new; the next edit works, and nothing that was committed is lost."""
    seen: set[tuple[tuple[int, str], ...]] = set()
    for call in case.calls:
        if call.changes:
            assert case.hit(call, "signal=KILL") in ("", "done"), call
            found = case.found()
            case.check_usable(found)
            seen.add(tuple(found.items()))
    assert len(seen) == 2 or case.name == "clean"


def test_refused_at_every_call(case: Case) -> None:
    """What says that it was done was done; what was not says so by an error of ours, and leaves no temporary file.

    One thing lies between: a manifest that is there, in a folder that could not be synced. It may not outlive the next
    power cut, so it must not be called done.
    """
    for call in case.calls:
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


def faults(call: Call) -> list[str]:
    """How a call may fail: in all ways, or in the first one where it changes something."""
    all_ways = FAULTS.get(call.name, [])
    return all_ways if FULL else all_ways[: call.changes]
