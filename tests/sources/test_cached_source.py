"""Remote files read through the page cache: correct bytes, whatever happens to cache, store or process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardex.errors import ArgumentError, NotFoundError, SourceError, StaleIndexError, TruncatedShardError
from shardex.sources import ByteRange, CachedSource, Source, Stat, cached_source, page_cache
from shardex.sources.memory import MemorySource
from shardex.sources.page_file import PAGE, PagedFile
from tests.fake_remote import FakeRemote, missing_pages_filled
from tests.waiting import becomes_true

SIZE = 60 * PAGE + 123
DATA = np.random.default_rng(3).bytes(SIZE)
_others = count(10**12)


@pytest.fixture
def remote(tmp_path: Path) -> FakeRemote:
    """A store with some files."""
    source = FakeRemote(tmp_path / "store")
    for name in ("a", "b", "folder/a"):
        source.put(name, DATA if name == "a" else DATA[::-1])
    return source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache folder."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _missing_pages_filled() -> Iterator[None]:
    with missing_pages_filled():
        yield


def opened(remote: Source, folder: Path | bool, access: str = "ranged") -> CachedSource:
    """A source with a cache of its own, as in a new process."""
    return CachedSource(remote, folder, next(_others), access)


def look(source: CachedSource, begin: int, length: int, path: str = "a") -> bytes:
    """Hold, fetch, read."""
    view = source.map(path)
    source.fetch(path, [ByteRange(begin, length)])
    return bytes(view[begin : begin + length])


def page_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "pages").iterdir() if path.suffix != ".journal")


# -- downloads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
@given(fetches=st.lists(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 5 * PAGE)), max_size=6), max_size=6))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_fetched_ranges_are_present(in_memory: bool, fetches: list[list[tuple[int, int]]], tmp_path: Path) -> None:
    remote = MemorySource({"a": DATA}, f"memory://{next(_others)}")
    source = opened(remote, False if in_memory else tmp_path / "cache")
    view, asked = source.map("a"), set[int]()
    for some in fetches:
        ranges = [ByteRange(begin, min(length, SIZE - begin)) for begin, length in some]
        source.fetch("a", ranges)
        asked |= {page for one in ranges if one.length for page in range(one.begin // PAGE, (one.end - 1) // PAGE + 1)}
        assert all(view[one.begin : one.end] == DATA[one.begin : one.end] for one in ranges)
        assert source.fetched == sum(min(PAGE, SIZE - page * PAGE) for page in asked)
    again = opened(remote, False if in_memory else tmp_path / "cache")
    whole = again.map("a")
    for one in [one for some in fetches for one in some]:
        wanted = ByteRange(one[0], min(one[1], SIZE - one[0]))
        again.fetch("a", [wanted])
        assert whole[wanted.begin : wanted.end] == DATA[wanted.begin : wanted.end]
    assert again.fetched == (source.fetched if in_memory else 0)


def test_ranges_of_a_file_are_one_read(remote: FakeRemote, folder: Path) -> None:
    source = opened(remote, folder)
    view = source.map("a")
    source.fetch("a", [ByteRange(k * 7 * PAGE + 10, 20) for k in range(8)])
    assert [len(ranges) for _, ranges in remote.reads] == [8]
    assert all(
        view[k * 7 * PAGE + 10 : k * 7 * PAGE + 30] == DATA[k * 7 * PAGE + 10 : k * 7 * PAGE + 30] for k in range(8)
    )
    source.fetch("a", [ByteRange(7 * PAGE, PAGE), ByteRange(14 * PAGE + 5, 3)])
    assert len(remote.reads) == 1


def test_gaps_grow_with_the_part_of_the_file_that_is_cached(remote: FakeRemote, folder: Path) -> None:
    """The first pages are read alone; when much of a file is cached, its rest will be read, too."""
    remote.gap = PAGE  # type: ignore[attr-defined]
    (Path(remote.root) / "large").write_bytes(bytes(1024 * PAGE))
    cached = CachedSource(remote, folder, access="ranged")
    view = cached.map("large")
    for first in range(0, 512, 8):
        cached.fetch("large", [ByteRange((first + k) * PAGE, 1) for k in (0, 4)])
    read = [one.length // PAGE for _, ranges in remote.reads for one in ranges]
    assert set(read[:8]) == {1} and read[-1] == 5 and sum(read) < 1024
    del view


def test_gaps_that_the_store_reads_are_kept(remote: FakeRemote, folder: Path) -> None:
    """A store that reads small gaps sends their bytes; nothing else is fetched."""
    remote.gap = 4 * PAGE  # type: ignore[attr-defined]
    source = opened(remote, folder)
    view = source.map("a")
    source.fetch("a", [ByteRange(2 * PAGE, 1), ByteRange(6 * PAGE, 1), ByteRange(11 * PAGE, 1)])
    source.fetch("a", [ByteRange(3 * PAGE, 3 * PAGE)])
    assert view[2 * PAGE : 7 * PAGE] == DATA[2 * PAGE : 7 * PAGE]
    assert [[(one.begin, one.length) for one in ranges] for _, ranges in remote.reads] == [
        [(2 * PAGE, 5 * PAGE), (11 * PAGE, PAGE)]
    ]


def test_files_are_fetched_concurrently(remote: FakeRemote, folder: Path) -> None:
    remote.barrier = threading.Barrier(3, timeout=60)
    source = opened(remote, folder)
    held = {path: source.map(path) for path in ("a", "b", "folder/a")}
    begin = np.array([5])
    assert not source.fetch_many([(path, begin, begin + 10) for path in held])
    assert held["a"][5:15] == DATA[5:15] and held["folder/a"][5:15] == DATA[::-1][5:15]
    assert source.fetch_many([(path, begin, begin + 10) for path in held])


def test_read_copies_ranges_and_refuses_ranges_past_the_end(remote: FakeRemote, folder: Path) -> None:
    source = opened(remote, folder)
    wanted = [ByteRange(3, 5), ByteRange(SIZE, 0), ByteRange(SIZE - 9, 9), ByteRange(2 * PAGE - 1, 2)]
    assert [bytes(part) for part in source.read("a", wanted)] == [DATA[one.begin : one.end] for one in wanted]
    assert bytes(source.load("b")) == DATA[::-1]
    with pytest.raises(TruncatedShardError, match=f"got a file of {SIZE} bytes"):
        source.read("a", [ByteRange(SIZE - 1, 2)])
    with pytest.raises(NotFoundError, match="c"):
        source.map("c")
    assert source.paths("folder/") == ["folder/a"] and source.stat("a").size == SIZE


def test_an_empty_file_needs_no_read(remote: FakeRemote, folder: Path) -> None:
    remote.put("nothing", b"")
    source = opened(remote, folder)
    source.fetch("nothing", [ByteRange(0, 0)])
    assert bytes(source.map("nothing")) == bytes(source.load("nothing")) == b"" and not remote.reads


@pytest.mark.parametrize(("access", "fetched"), [("ranged", PAGE), ("whole", SIZE), ("auto", SIZE)])
def test_access_modes(remote: FakeRemote, folder: Path, access: str, fetched: int) -> None:
    source = opened(remote, folder, access)
    assert look(source, 5, 9) == DATA[5:14] and source.fetched == fetched


def test_the_rest_of_a_large_file_is_fetched_in_the_background(remote: FakeRemote, folder: Path) -> None:
    large = np.random.default_rng(4).bytes(20 << 20)
    remote.put("large", large)
    source = opened(remote, folder, "auto")
    file, view = source.hold("large")
    source.fetch("large", [ByteRange(0, 4 << 20)])
    assert not file.rest_requested and source.fetched == 4 << 20
    source.fetch("large", [ByteRange(8 << 20, 2 << 20)])
    assert becomes_true(lambda: file.is_complete)  # the count of bytes runs ahead of the pages
    assert view == large and source.fetched == len(large)


def test_wrong_access_and_limit_raise() -> None:
    with pytest.raises(ArgumentError, match="expected access to be one of auto, ranged, whole, got 'all'"):
        CachedSource(MemorySource(), False, access="all")
    with pytest.raises(ArgumentError, match="such as 5_000_000 or \"50 GB\", got 'many'"):
        CachedSource(MemorySource(), False, limit="many")


# -- in the background ----------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_a_running_download(remote: FakeRemote, folder: Path) -> None:
    remote.delay = 0.3
    source = opened(remote, folder)
    view = source.map("a")
    source.fetch("a", [ByteRange(0, 10 * PAGE)], wait=False)
    source.fetch("a", [ByteRange(PAGE, 2 * PAGE), ByteRange(30 * PAGE, 1)])
    assert view[PAGE : 3 * PAGE] == DATA[PAGE : 3 * PAGE]
    assert sorted(one.begin for _, ranges in remote.reads for one in ranges) == [0, 30 * PAGE]


def test_many_threads_fetch_each_page_once(remote: FakeRemote, folder: Path) -> None:
    remote.delay = 0.05
    source = opened(remote, folder)

    def work(seed: int) -> bool:
        begin = int(np.random.default_rng(seed).integers(0, SIZE - 9 * PAGE))
        return look(source, begin, 9 * PAGE) == DATA[begin : begin + 9 * PAGE]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))
    assert source.fetched <= SIZE


def test_background_errors_are_ignored_and_others_raised(remote: FakeRemote, folder: Path) -> None:
    source = opened(remote, folder)
    view = source.map("a")
    remote.failures_left = 1
    source.fetch("a", [ByteRange(0, 10)], wait=False)
    assert becomes_true(lambda: remote.reads and not remote.running)
    assert look(source, 0, 10) == DATA[:10]
    remote.failures_left = 1
    with pytest.raises(SourceError, match="the store is out of order"):
        source.fetch("a", [ByteRange(20 * PAGE, 10)])
    remote.failures_left = 1
    with pytest.raises(SourceError, match="the store is out of order"):
        source.fetch_many([("a", np.array([30 * PAGE]), np.array([SIZE])), ("b", np.array([0]), np.array([9]))])
    source.fetch("a", [ByteRange(20 * PAGE, 10)])
    assert view[20 * PAGE : 20 * PAGE + 10] == DATA[20 * PAGE : 20 * PAGE + 10]


def test_a_failed_background_download_is_repeated(remote: FakeRemote, folder: Path) -> None:
    remote.delay, remote.failures_left = 0.3, 1
    source = opened(remote, folder)
    source.fetch("a", [ByteRange(0, 10)], wait=False)
    assert look(source, 0, 10) == DATA[:10] and len(remote.reads) == 2


class Short(MemorySource):
    """A store that returns fewer bytes than requested."""

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [part[:-1] for part in super().read(path, ranges)]


def test_a_short_answer_raises(folder: Path) -> None:
    source = opened(Short({"a": DATA}), folder)
    for _ in range(2):
        with pytest.raises(TruncatedShardError, match="got another number of bytes"):
            look(source, 5, 9)


# -- the cache folder -----------------------------------------------------------------------------------------------


def test_the_cache_folder_is_private(remote: FakeRemote, folder: Path) -> None:
    look(opened(remote, folder), 0, 9)
    assert (folder / "pages").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder / "pages").iterdir())
    os.chmod(folder / "pages", 0o777)
    look(opened(remote, folder), 0, 9)
    assert (folder / "pages").stat().st_mode & 0o777 == 0o700


def test_files_of_the_same_name_are_kept_apart(remote: FakeRemote, folder: Path, tmp_path: Path) -> None:
    other = FakeRemote(tmp_path / "other")
    other.put("a", DATA[::-1])
    one, two = opened(remote, folder), opened(other, folder)
    assert look(one, 0, 50) == DATA[:50] and look(two, 0, 50) == DATA[::-1][:50]
    assert look(one, 0, 50, "folder/a") == DATA[::-1][:50]
    assert len(page_files(folder)) == 3


def test_a_changed_file_gets_a_new_cache_file(remote: FakeRemote, folder: Path) -> None:
    first = opened(remote, folder)
    view = first.map("a")
    assert look(first, 0, 50) == DATA[:50]
    remote.put("a", DATA[::-1])
    assert look(opened(remote, folder), 0, 50) == DATA[::-1][:50]
    assert view[:50] == DATA[:50] and len(page_files(folder)) == 2


def test_a_flipped_byte_is_fetched_again(remote: FakeRemote, folder: Path) -> None:
    look(opened(remote, folder), 0, SIZE)
    (path,) = page_files(folder)
    with path.open("r+b") as file:
        file.seek(30 * PAGE + 7)
        file.write(bytes([DATA[30 * PAGE + 7] ^ 1]))
    source = opened(remote, folder)
    assert look(source, 0, SIZE) == DATA
    assert 0 < source.fetched <= 16 * PAGE
    source = opened(remote, folder)
    assert look(source, 0, SIZE) == DATA and source.fetched == 0


def test_a_damaged_journal_does_no_harm(remote: FakeRemote, folder: Path) -> None:
    source = opened(remote, folder)
    for begin in (0, 9 * PAGE, 40 * PAGE):
        look(source, begin, 2 * PAGE)
    (journal,) = (folder / "pages").glob("*.journal")
    whole = journal.read_bytes()
    for at in range(len(whole)):
        journal.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        assert look(opened(remote, folder), 0, SIZE) == DATA
    for size in range(len(whole)):
        journal.write_bytes(whole[:size])
        assert look(opened(remote, folder), 0, SIZE) == DATA
        with suppress(FileNotFoundError):
            assert journal.stat().st_size % 24 == 0 or size % 24


@pytest.mark.parametrize("planted", ["", ".journal"])
def test_a_planted_link_is_not_followed(remote: FakeRemote, folder: Path, tmp_path: Path, planted: str) -> None:
    look(opened(remote, folder), 0, 9)
    (path,) = page_files(folder)
    target = tmp_path / "precious"
    target.write_bytes(b"precious" * 1000)
    link = Path(f"{path}{planted}")
    link.unlink()
    link.symlink_to(target)
    source = opened(remote, folder)
    with pytest.warns(UserWarning, match="expected a folder to cache remote files in"):
        assert look(source, 0, SIZE) == DATA
    assert target.read_bytes() == b"precious" * 1000


def test_a_linked_cache_folder_is_not_used(remote: FakeRemote, folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "pages").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="and not a link"):
        assert look(opened(remote, folder), 0, SIZE) == DATA
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_impossible_cache_folder_is_replaced_by_memory(remote: FakeRemote, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    source = opened(remote, tmp_path / "file")
    with pytest.warns(UserWarning, match="kept in memory"):
        assert look(source, 5, 9) == DATA[5:14]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert look(source, 0, SIZE, "b") == DATA[::-1]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 96 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cannot mount here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_replaced_by_memory(remote: FakeRemote, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # filled pages would take all the space
    remote.put("small", DATA[: 4 * PAGE])
    for name in ("a", "b"):
        remote.put(name, DATA if name == "a" else DATA[::-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "shardex.sources.page_file.PagedFile._grow", lambda self, descriptor: os.ftruncate(descriptor, self.size)
        )
        source = opened(remote, mounted)
        view = source.map("a")
        assert look(source, 0, 9 * PAGE) == DATA[: 9 * PAGE]
        with pytest.warns(UserWarning, match="No space left"):
            assert look(source, 0, SIZE) == DATA
        assert view == DATA
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert look(source, 0, SIZE, "b") == DATA[::-1]
            assert look(source, 7, SIZE - 7) == DATA[7:]
        assert look(opened(remote, mounted), 0, 9 * PAGE) == DATA[: 9 * PAGE]


def test_a_read_only_disk_is_replaced_by_memory(remote: FakeRemote, mounted: Path) -> None:
    (mounted / "pages").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    with pytest.warns(UserWarning, match="kept in memory"):
        assert look(opened(remote, mounted), 0, SIZE) == DATA


# -- eviction -------------------------------------------------------------------------------------------------------


def taken(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (folder / "pages").iterdir())


def test_the_least_recently_used_file_is_evicted(remote: FakeRemote, folder: Path) -> None:
    for k in range(9):
        remote.put(f"f{k}", DATA)
    source = CachedSource(remote, folder, 5 * SIZE, "ranged")
    for k in range(9):
        assert look(source, 0, SIZE, f"f{k}") == DATA
    assert taken(folder) <= 5 * SIZE + 2 * SIZE
    before = source.fetched
    look(source, 0, SIZE, "f8")
    assert source.fetched == before
    look(source, 0, SIZE, "f0")
    assert source.fetched == before + SIZE


@pytest.mark.parametrize("in_memory", [False, True])
def test_held_files_stay_valid(remote: FakeRemote, folder: Path, in_memory: bool) -> None:
    for k in range(9):
        remote.put(f"f{k}", DATA[k:] + DATA[:k])
    source = CachedSource(remote, False if in_memory else folder, 2 * SIZE + in_memory, "ranged")
    views = [source.map(f"f{k}") for k in range(9)]
    for k in range(9):
        source.fetch(f"f{k}", [ByteRange(0, SIZE)])
    assert all(views[k] == DATA[k:] + DATA[:k] for k in range(9))
    del views
    for k in (0, 3, 8, 0, 3, 8):
        assert look(source, 0, SIZE, f"f{k}") == DATA[k:] + DATA[:k]
    assert look(source, 0, SIZE, "b") == DATA[::-1]
    assert in_memory or taken(folder) <= 3 * SIZE


def test_a_file_removed_by_another_process(remote: FakeRemote, folder: Path) -> None:
    source = opened(remote, folder)
    view = source.map("a")
    source.fetch("a", [ByteRange(0, 9 * PAGE)])
    for path in (folder / "pages").iterdir():
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source.fetch("a", [ByteRange(20 * PAGE, 9 * PAGE), ByteRange(SIZE - 5, 5)])
        assert view[20 * PAGE : 29 * PAGE] == DATA[20 * PAGE : 29 * PAGE] and view[-5:] == DATA[-5:]
        assert view[: 9 * PAGE] == DATA[: 9 * PAGE]
        del view
        assert look(source, 0, SIZE) == DATA
    assert page_files(folder)


# -- processes ------------------------------------------------------------------------------------------------------

WORKER = """
import sys, numpy as np
sys.path.insert(0, sys.argv[4])
from tests.fake_remote import FakeRemote
from shardex.sources import ByteRange, CachedSource
source = CachedSource(FakeRemote(sys.argv[1], 0.002), sys.argv[2], access="ranged")
view, random, data = source.map("a"), np.random.default_rng(int(sys.argv[3])), open(sys.argv[1] + "/a", "rb").read()
for _ in range(300):
    begin = int(random.integers(0, len(data)))
    end = min(len(data), begin + int(random.integers(1, 30_000)))
    source.fetch("a", [ByteRange(begin, end - begin)])
    assert view[begin:end] == data[begin:end], (begin, end)
print(source.fetched)
"""


def start(remote: FakeRemote, folder: Path, seed: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    arguments = [sys.executable, "-c", WORKER, remote.root, str(folder), str(seed), tests]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_concurrent_processes(remote: FakeRemote, folder: Path) -> None:
    children = [start(remote, folder, seed) for seed in range(3)]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        assert int(out) <= SIZE
    source = opened(remote, folder)
    assert look(source, 0, SIZE) == DATA


def test_a_killed_process(remote: FakeRemote, folder: Path) -> None:
    for seed in range(4):
        child = start(remote, folder, seed)
        while not (folder / "pages").is_dir() or not list((folder / "pages").glob("*.journal")):
            assert child.poll() in (None, 0)
            time.sleep(0.005)
        time.sleep(0.02 * seed)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        assert look(opened(remote, folder), 0, SIZE) == DATA
        for path in (folder / "pages").iterdir():
            path.unlink()


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_forked_child(remote: FakeRemote, folder: Path, in_memory: bool) -> None:
    source = opened(remote, False if in_memory else folder)
    view = source.map("a")
    remote.delay = 0.2
    source.fetch("a", [ByteRange(0, 9 * PAGE)])
    source.fetch("a", [ByteRange(50 * PAGE, 9)], wait=False)
    child = os.fork()
    if child == 0:
        fine = False
        with suppress(BaseException):
            source.fetch("a", [ByteRange(0, 9 * PAGE)])
            fine = (
                view[: 9 * PAGE] == DATA[: 9 * PAGE] and look(source, 50 * PAGE, 9) == DATA[50 * PAGE : 50 * PAGE + 9]
            )
            source.fetch("a", [ByteRange(30 * PAGE, 9)], wait=False)
            fine = fine and look(source, 30 * PAGE, 9 * PAGE) == DATA[30 * PAGE : 39 * PAGE]
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert look(source, 0, SIZE) == DATA


def test_pickle_holds_only_the_arguments(remote: FakeRemote, folder: Path) -> None:
    source = CachedSource(remote, folder, "5 GB", "whole")
    look(source, 0, SIZE)
    data = pickle.dumps(source)
    assert len(data) < 500
    assert look(pickle.loads(data), 5, 9) == DATA[5:14]


def test_an_interrupted_fetch_releases_its_pages(
    remote: FakeRemote, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an exception between claiming pages and fetching them, the next reader fetches them."""
    source, claims = opened(remote, folder), []
    claim = CachedSource._claim

    def interrupted(self: CachedSource, *arguments: Any) -> Any:
        found = claim(self, *arguments)
        claims.append(found)
        if len(claims) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(CachedSource, "_claim", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.fetch("a", [ByteRange(0, PAGE)])
    assert look(source, 0, PAGE) == DATA[:PAGE]


def test_fetch_many_returns_whether_nothing_was_missing(remote: FakeRemote, folder: Path) -> None:
    source = opened(remote, folder)
    wanted = [("a", np.array([0]), np.array([PAGE]))]
    held = source.map("a")
    assert not source.fetch_many(wanted, wait=False)  # the download has only started
    assert not source.fetch_many(wanted) or held[:PAGE] == DATA[:PAGE]
    assert source.fetch_many(wanted) and source.fetch_many(wanted, wait=False)


def test_whole_files_are_loaded_together(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_source, "_LOADED_AT_ONCE", 8)
    (tmp_path / "store").mkdir()
    for number in range(20):
        (tmp_path / "store" / f"{number}").write_bytes(bytes([number]) * (number * 1000))
    remote = FakeRemote(tmp_path / "store", delay=0.01)
    source = CachedSource(remote, folder)
    names = [f"{number}" for number in (*range(19, -1, -1), 3, 3)]
    known = source.stats(names)
    for _ in range(2):
        assert source.load_all(names, known) == [bytes([int(name)]) * (int(name) * 1000) for name in names]
    assert len(remote.reads) == 19 and remote.most_running > 1  # an empty file needs no request
    with pytest.raises(StaleIndexError, match="store/5: expected the file as when it was opened"):
        source.load_all(["5"], [Stat(5000, "another tag")])


@pytest.mark.parametrize("on_disk", [True, False])
def test_many_files_cost_no_more_than_few(on_disk: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that nobody reads are forgotten, and a download does not look at all other files."""
    counted = count()
    resident: Any = PagedFile.resident
    monkeypatch.setattr(PagedFile, "resident", property(lambda file: (next(counted), resident.fget(file))[1]))
    monkeypatch.setattr(page_cache, "_MANY_FILES", 8)
    remote = MemorySource({str(k): bytes([k]) * 100 for k in range(60)})
    source = CachedSource(remote, folder if on_disk else False)
    source._cache._sweep_at = 8
    names = list(remote.files)
    for k in range(0, 60, 4):
        source.load_all(names[k : k + 4], source.stats(names[k : k + 4]))
    assert next(counted) == 0
    assert len(source._cache._files) <= (16 if on_disk else 60)
    fetched = source.fetched
    assert source.load_all(names, source.stats(names)) == [bytes([k]) * 100 for k in range(60)]
    assert source.fetched == fetched
