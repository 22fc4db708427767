"""`ObjectSource`, beyond the contract in `test_protocols`: faults, races, forks, secrets."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.errors import (
    AccessDeniedError,
    ConditionalPutError,
    NotFoundError,
    RemoteChangedError,
    RemoteError,
    RemoteReadError,
    RemoteWriteError,
    SourceError,
)
from shardex.sources import ByteRange, export_credentials, object_client, open_source, storage
from shardex.sources.credentials import settings_for
from shardex.sources.object_store import ObjectSource
from tests.servers import KEY, SECRET
from tests.servers.faulty import FaultyServer

DATA = np.random.default_rng(0).bytes(100_000)
WANTED = ByteRange(1000, 5000)


def slice_of(data: bytes, one: ByteRange) -> bytes:
    return data[one.begin : one.end]


@pytest.fixture
def files(web: FaultyServer) -> FaultyServer:
    """The web server with a file."""
    web.files["a.bin"] = DATA
    return web


# -- requests ---------------------------------------------------------------------------------------------------------


def test_close_ranges_are_one_request(bucket: str) -> None:
    place = ObjectSource(bucket)
    data = np.random.default_rng(1).bytes(3 << 20)
    place.put("a", data)
    place.stat("a")
    before = place.traffic.requests
    near = [ByteRange(begin, 100) for begin in range(0, 1 << 20, 5000)]
    far = [ByteRange((3 << 20) - 10, 10)]
    assert [bytes(view) for view in place.read("a", near + far)] == [slice_of(data, one) for one in near + far]
    assert place.traffic.requests - before == 2


def test_a_large_range_is_read_in_pieces(bucket: str) -> None:
    place = ObjectSource(bucket)
    data = np.random.default_rng(2).bytes(20 << 20)
    place.put("a", data)
    one = ByteRange(5, (20 << 20) - 9)
    (view,) = place.read("a", [one])
    assert view == slice_of(data, one)
    assert view.readonly
    assert (place.traffic.requests, place.traffic.bytes_read) == (1 + 1 + 3, one.length)  # put, stat, three pieces


@pytest.mark.parametrize("mode", ["ok", "whole", "error2", "reset2", "short2", "stall1", "untagged"])
def test_download_of_a_whole_file(files: FaultyServer, bucket: str, tmp_path: Path, mode: str) -> None:
    for source in (ObjectSource(files.url(mode)), ObjectSource(bucket)):
        if source.url == bucket:
            source.put("a.bin", DATA)
        with open(tmp_path / "a.bin", "wb+") as out:
            source.download("a.bin", out)
        assert (tmp_path / "a.bin").read_bytes() == DATA
        with open(tmp_path / "a.bin", "wb+") as out, pytest.raises(NotFoundError):
            source.download("b.bin", out)


def test_many_threads_share_a_source(bucket: str) -> None:
    place = ObjectSource(bucket)
    place.put("a", DATA)

    def work(seed: int) -> bool:
        begins = np.random.default_rng(seed).integers(0, 90_000, 20)
        ranges = [ByteRange(int(begin), 10_000) for begin in begins]
        return [bytes(view) for view in place.read("a", ranges)] == [slice_of(DATA, one) for one in ranges]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


def test_paths_of_many_files(bucket: str) -> None:
    place = ObjectSource(bucket)
    names = [f"d{number % 7}/{number:04}" for number in range(1100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: place.put(name, b""), names))
    assert place.paths() == sorted(names)
    assert place.paths("d3/00") == sorted(name for name in names if name.startswith("d3/00"))
    assert place.traffic.requests >= 1100 + 4


# -- faults -----------------------------------------------------------------------------------------------------------

TRANSIENT = ["error2", "busy1", "reset2", "short2", "less1", "clipped1", "shifted1", "whole1", "stall1", "silent1"]


@pytest.mark.parametrize("mode", [*TRANSIENT, "ok", "untagged", "nohead", "redirect"])
def test_transient_faults_are_retried(files: FaultyServer, mode: str) -> None:
    files.targets["a.bin"] = files.url("ok") + "/a.bin"
    place = open_source(files.url(mode))
    assert bytes(place.read("a.bin", [WANTED])[0]) == slice_of(DATA, WANTED)


@pytest.mark.parametrize("mode", ["error", "busy", "reset", "short", "less", "clipped", "shifted", "whole", "stall"])
def test_permanent_faults_raise_after_all_attempts(files: FaultyServer, mode: str) -> None:
    place, attempts = ObjectSource(files.url(mode)), 3 if mode == "whole" else 4  # a server without ranges stays one
    with pytest.raises(RemoteReadError, match=rf"bytes 1000 to 6000.* in {attempts} attempts and .*/a\.bin") as caught:
        place.read("a.bin", [WANTED])
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert files.asked[f"/{mode}/a.bin"] == attempts
    assert place.traffic.requests == attempts + 1


def test_a_server_that_is_too_slow_raises(files: FaultyServer) -> None:
    storage(files.url("trickle"), timeout=0.5, retries=1)
    with pytest.raises(RemoteReadError, match="no answer in time"):
        open_source(files.url("trickle")).read("a.bin", [WANTED])


def test_the_deadline_ends_retries(files: FaultyServer) -> None:
    storage(files.url("silent"), timeout=0.4, deadline=0.6, retries=1000)
    with pytest.raises(RemoteReadError, match=r"in [12] attempts"):
        open_source(files.url("silent")).read("a.bin", [WANTED])


def test_a_failed_piece_cancels_the_others(files: FaultyServer) -> None:
    files.files["large"] = bytes(30 << 20)
    storage(files.url("error"), retries=0, concurrency=1)
    with pytest.raises(RemoteReadError, match="in 1 attempts"):
        open_source(files.url("error")).load("large")
    assert files.asked["/error/large"] < 4  # one of four pieces, and maybe the next one, if it had started


def test_a_missing_server_raises() -> None:
    storage("http://127.0.0.1:1", retries=1)
    with pytest.raises(RemoteReadError, match=r"in 2 attempts.*connection refused.*http://127\.0\.0\.1:1/x"):
        open_source("http://127.0.0.1:1").stat("x")
    storage("http://127.0.0.1:1")


def test_a_changed_file_raises(files: FaultyServer, bucket: str) -> None:
    with pytest.raises(RemoteChangedError, match=r'tag "v1".*tag "v2"; open the dataset again'):
        open_source(files.url("changed")).read("a.bin", [WANTED])
    mine, other = ObjectSource(bucket), ObjectSource(bucket)
    mine.put("a", b"first content")
    assert bytes(mine.load("a")) == b"first content"
    other.put("a", b"other content")
    for ask in (mine.load, mine.map, lambda path: mine.read(path, [ByteRange(0, 2)])):
        with pytest.raises(RemoteChangedError, match="13 bytes"):
            ask("a")
    assert mine.stat("a") == other.stat("a")
    assert bytes(ObjectSource(bucket).load("a")) == b"other content"
    mine.put("a", b"mine again")
    assert bytes(mine.load("a")) == b"mine again"


def test_listing_and_writing_on_a_web_server_raise(files: FaultyServer) -> None:
    place = open_source(files.url())
    with pytest.raises(RemoteError, match=r"does not list its files; give their names, or a pattern"):
        place.paths()
    for ask in (lambda: place.put("x", b""), lambda: place.put_if_absent("x", b""), place.draft):
        with pytest.raises(AccessDeniedError, match="only read"):
            ask()
    with pytest.raises(AccessDeniedError, match="only read"):
        place.copy("a.bin", "b.bin")
    with pytest.raises(AccessDeniedError, match="only read"):
        place.remove("a.bin")
    with pytest.raises(NotFoundError, match="missing"):
        place.load("missing")
    with pytest.raises(AccessDeniedError, match="403 Forbidden; see shardex"):
        open_source(files.url("denied")).load("a.bin")


def test_names_are_quoted_in_urls(files: FaultyServer) -> None:
    for name in ("with space/é#?.bin", "100%.bin", "a+b&c=d"):
        files.files[name] = name.encode()
        assert bytes(open_source(files.url()).load(name)) == name.encode()
    files.files["my dir/x"] = b"x"
    assert bytes(open_source(files.url() + "/my%20dir").load("x")) == b"x"


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_large_file_is_uploaded_in_parts(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "LARGEST_WRITE", 1 << 20)
    place = ObjectSource(bucket)
    data = np.random.default_rng(3).bytes(40 << 20)
    draft = place.draft()
    draft.file.write(data)
    draft.publish("large")
    assert place.stat("large").tag.rstrip('"').endswith("-3")
    assert place.load("large") == data
    place.put("again", data)
    assert place.stat("again") == ObjectSource(bucket).stat("again")


def test_a_copy_is_a_file_of_its_own(bucket: str) -> None:
    place = ObjectSource(bucket)
    place.put("a", DATA)
    place.copy("a", "b/c")
    place.remove("a")
    assert bytes(place.read("b/c", [WANTED])[0]) == slice_of(DATA, WANTED)


def test_a_store_that_ignores_conditions_raises(careless_bucket: str) -> None:
    place = ObjectSource(careless_bucket)
    place.put("a", b"content")
    with pytest.raises(ConditionalPutError, match="would lose data"):
        place.put_if_absent("b", b"x")
    requests = place.traffic.requests
    with pytest.raises(ConditionalPutError):
        ObjectSource(careless_bucket).put_if_absent("c", b"x")
    assert place.traffic.requests == requests
    assert place.paths() == ["a"]


@pytest.mark.parametrize("mode", ["ok", "lost1", "conflict1"])
def test_put_if_absent_is_right_after_a_lost_answer(web: FaultyServer, mode: str) -> None:
    storage(
        f"s3://{mode}",
        endpoint=web.url("").rstrip("/"),
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        allow_http=True,
        timeout=10,
        retries=3,
    )
    place = open_source(f"s3://{mode}")
    assert place.put_if_absent("a", b"mine")
    assert not place.put_if_absent("a", b"other")
    assert web.files["a"] == b"mine"
    storage(f"s3://{mode}")


def test_a_write_without_an_answer_raises(web: FaultyServer) -> None:
    storage("s3://lost", endpoint=web.url("").rstrip("/"), anonymous=True, allow_http=True, retries=2, timeout=10)
    with pytest.raises(RemoteWriteError, match=r"cannot write: .* in 3 attempts"):
        open_source("s3://lost").put("a", b"x")
    storage("s3://lost")


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_a_pickle_holds_no_secrets(bucket: str) -> None:
    place = ObjectSource(bucket)
    place.put("a", DATA)
    place.load("a")
    pickled = pickle.dumps(place)
    assert len(pickled) < 300
    assert KEY.encode() not in pickled and SECRET.encode() not in pickled
    client = place._connect("a")
    for secretive in (client, client.settings):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(secretive)
        assert SECRET not in repr(secretive)


def test_errors_show_no_secrets(seaweed: str, bucket: str, web: FaultyServer) -> None:
    wrong = "wrong-secret-0123456789"
    storage(
        f"{bucket}/denied",
        endpoint=seaweed,
        access_key_id="AKIAWRONGKEY",
        secret_access_key=wrong,
        region="us-east-1",
        allow_http=True,
    )
    denied = ObjectSource(f"{bucket}/denied")
    signed = ObjectSource(web.url("error") + "?X-Amz-Signature=c0ffee&token=s3cr3t")
    web.files["a"] = b"1"
    for ask in (
        denied.paths,
        lambda: denied.stat("x"),
        lambda: denied.put("x", b""),
        lambda: signed.load("a"),
        lambda: signed.load("missing"),
        signed.paths,
        lambda: signed.put("x", b""),
    ):
        with pytest.raises(SourceError) as caught:
            ask()
        text = f"{caught.value} {caught.value!r} {caught.value.filename}"
        assert not re.search(f"{wrong}|AKIAWRONGKEY|c0ffee|s3cr3t", text)
        assert caught.value.__cause__ is None and caught.value.__context__ is None
    storage(f"{bucket}/denied")


def test_a_query_is_sent_with_every_request_and_not_shown(files: FaultyServer) -> None:
    place = open_source(files.url("nohead") + "?X-Amz-Signature=c0ffee")
    assert bytes(place.load("a.bin")) == DATA
    assert repr(place) == f"ObjectSource('{files.url('nohead')}?***')"
    assert pickle.loads(pickle.dumps(place)).url == place.url


# -- processes --------------------------------------------------------------------------------------------------------


def run(code: str, *arguments: str) -> str:
    """Run Python code in a new process with the credentials of this one."""
    begin = """
import multiprocessing, os, pickle, sys, time
from shardex.errors import *
from shardex.sources import export_credentials, import_credentials, open_source
def read(url):
    try:
        return bytes(open_source(url).load("a"))
    except ForkSafetyError as error:
        assert "forkserver" in str(error) and "spawn" in str(error) and url in str(error), error
        return b"refused"
def in_child(work, *arguments):
    there, here = os.pipe()
    if not (child := os.fork()):
        os.write(here, work(*arguments)); os._exit(0)
    os.close(here); result = os.read(there, 100); os.waitpid(child, 0); return result
"""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{begin}\nimport_credentials(bytes.fromhex(sys.stdin.read()))\n{code}",
            *arguments,
        ],
        input=export_credentials().hex(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_raises_instead_of_hanging(bucket: str) -> None:
    ObjectSource(bucket).put("a", b"content")
    assert run(
        """
url = sys.argv[1]
assert in_child(read, url) == b"content"  # the parent has not used it yet
place = open_source(url)
assert bytes(place.load("a")) == b"content"
def again(place):
    try: place.load("a")
    except ForkSafetyError: return b"refused"
assert in_child(read, url) == b"refused"
assert in_child(again, place) == b"refused"
assert in_child(in_child, read, url) == b"refused"
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(read, [url] * 4) == [b"refused"] * 4
assert bytes(place.load("a")) == b"content"
print("done")
""",
        bucket,
    )


def test_a_child_forked_before_the_first_use_works(bucket: str) -> None:
    ObjectSource(bucket).put("a", b"content")
    run(
        """
def work(url):
    first = read(url)
    return first + in_child(read, url)
for _ in range(3):
    assert in_child(work, sys.argv[1]) == b"contentrefused"
""",
        bucket,
    )


SPAWNED = """
import sys
from shardex.sources import import_credentials
def work(pipe):
    import_credentials(pipe.recv_bytes())
    place = pipe.recv()
    pipe.send_bytes(place.load("a"))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_process_imports_credentials_from_a_pipe(bucket: str, tmp_path: Path, method: str) -> None:
    ObjectSource(bucket).put("a", b"content")
    (tmp_path / "spawned.py").write_text(SPAWNED)
    run(
        """
sys.path.insert(0, sys.argv[2])
import spawned
if __name__ == "__main__":
    place = open_source(sys.argv[1])
    place.stat("a")
    context = multiprocessing.get_context(sys.argv[3])
    here, there = context.Pipe()
    process = context.Process(target=spawned.work, args=(there,)); process.start()
    here.send_bytes(export_credentials()); here.send(place)
    assert here.recv_bytes() == b"content"
    process.join()
""",
        bucket,
        str(tmp_path),
        method,
    )


def test_put_if_absent_by_processes_succeeds_once_per_name(bucket: str) -> None:
    run(
        """
def work(url, number):
    place = open_source(url)
    return bytes([number]) + bytes(k for k in range(10) if place.put_if_absent(f"names/{k}", bytes([number]) * 500))
url, gate, results = sys.argv[1], os.pipe(), os.pipe()
children = []
for number in range(6):
    if not (child := os.fork()):
        os.close(gate[1]); os.read(gate[0], 1)
        os.write(results[1], work(url, number).ljust(20, b"-")); os._exit(0)
    children.append(child)
os.close(gate[1])
for child in children: os.waitpid(child, 0)
won = {}
for _ in children:
    number, *names = os.read(results[0], 20).rstrip(b"-")
    won |= {k: number for k in names if k not in won or print("twice", k)}
assert sorted(won) == list(range(10)), won
place = open_source(url)
assert all(bytes(place.load(f"names/{k}")) == bytes([number]) * 500 for k, number in won.items())
""",
        bucket,
    )


def test_a_process_can_exit_right_after_a_read(bucket: str) -> None:
    """A library thread that runs Python code at exit aborts the process: one in ten on a busy machine."""
    ObjectSource(bucket).put("a", b"content")
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda _: run("assert read(sys.argv[1]) == b'content'", bucket) == "", range(6)))


def test_an_interrupt_does_not_wait_for_the_answer(web: FaultyServer) -> None:
    web.files["a"] = b"content"
    storage(web.url("silent"), timeout=1, deadline=1000, retries=1000)
    run(
        """
import signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
place = open_source(sys.argv[1]); place.stat("a")
signal.setitimer(signal.ITIMER_REAL, 0.3)
try: place.load("a")
except KeyboardInterrupt: pass
else: raise AssertionError
""",
        web.url("silent"),
    )


def test_a_retried_listing_loses_no_files(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt times out and continues in its thread; the second one does not share its stream."""
    import obstore

    place, asked, over, real = open_source(bucket), list[int](), threading.Event(), obstore.list
    for k in range(5):
        place.put(f"f{k}", b"")

    def listed(*arguments: Any, **options: Any) -> Any:
        asked.append(1)
        pages = real(*arguments, **options)
        return late(pages) if len(asked) == 1 else pages

    def late(pages: Any) -> Any:
        over.wait(60)
        yield from pages

    monkeypatch.setattr(obstore, "list", listed)
    root = "/".join(bucket.split("/")[:3])
    storage(root, **{**settings_for(root).values, "timeout": 1})
    assert open_source(bucket).paths() == [f"f{k}" for k in range(5)] and len(asked) > 1
    over.set()
