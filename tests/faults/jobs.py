"""Jobs of the processes that the tests kill, race and let run out of resources; and the server that forks them.

`python jobs.py FD` imports shardex once and then forks a process for each request that it receives through the socket
FD, so that a process costs milliseconds. A process sends its number, waits for a byte, does its job and sends how it
ended: `done`, or the class and the text of an error. The content of each version follows from its number.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

import shardex as sx
from shardex.dataset.write_job import Began
from shardex.errors import CommitConflict, ShardexError, VersionExpired
from shardex.files import Scan, sample_index
from shardex.formats.lines import LineScanner
from shardex.jobs import JobFolder
from shardex.sources import Source
from shardex.store import clean, compact, restore

Sample = dict[str, Any]

SCHEMA = {"n": int, "s": str, "v": sx.Array("float32", (2,)), "t": sx.Array("int16", (None,)), "o": str | None}


def sample(k: int) -> Sample:
    """Return a sample whose number is in every field."""
    vector, ragged = np.full(2, k, np.float32), np.arange(k % 4, dtype=np.int16)
    return {"n": k, "s": f"text {k}", "v": vector, "t": ragged, "o": None if k % 3 else f"maybe {k}"}


# -- single edits -----------------------------------------------------------------------------------------------


def make(folder: str) -> None:
    """Make four versions with keys: three fragments, newer values, deleted rows, an added field."""
    sx.write(folder, map(sample, range(6)), SCHEMA, shard_rows=3, key="n", progress=False)
    with sx.edit(folder, progress=False) as tx:
        tx.extend(map(sample, range(6, 8)))
    with sx.edit(folder) as tx:
        tx.update(1, s="newer", t=[5, 6])
        tx.delete([2, 6])
    with sx.edit(folder, progress=False) as tx:
        tx.add_field("e", "int32", range(6))


def create(folder: str) -> None:
    """Create a dataset of two fragments."""
    with sx.create(folder, SCHEMA, shard_rows=2, key="n") as out:
        out.extend(map(sample, range(4)))


def overwrite(folder: str) -> None:
    """Replace all samples."""
    with sx.create(folder, SCHEMA, mode="overwrite") as out:
        out.extend(map(sample, range(50, 53)))


def append(folder: str) -> None:
    """Append two samples."""
    with sx.edit(folder, progress=False) as tx:
        tx.extend({**sample(k), "e": k} for k in (100, 101))


def update(folder: str) -> None:
    """Update two fields, one of them for the second time."""
    with sx.edit(folder) as tx:
        tx.update(1, s="newest", o="new")
        tx.update(5, s="new")


def add_field(folder: str) -> None:
    """Add a field with a file for each fragment."""
    with sx.edit(folder, progress=False) as tx:
        tx.add_field("f", str, [f"f{k}" for k in range(6)])


def delete(folder: str) -> None:
    """Delete two samples."""
    with sx.edit(folder) as tx:
        tx.delete(rows=[0, 3])


def mixed(folder: str) -> None:
    """Make all kinds of changes in one transaction."""
    with sx.edit(folder, progress=False) as tx:
        tx.add_field("f", "int8", range(6))
        tx.update(0, o="there now")
        tx.delete(7)
        tx.append({**sample(100), "e": 1, "f": 2})


def fold(folder: str) -> None:
    """Rewrite all fragments."""
    compact(folder, progress=False)


def go_back(folder: str) -> None:
    """Restore the second version."""
    restore(folder, 2)


def tidy(folder: str) -> None:
    """Remove all but the last two versions."""
    clean(folder, keep=2, grace=0)


def sweep(folder: str) -> None:
    """Remove old files that no version uses."""
    clean(folder, keep=100)


EDITS: dict[str, Callable[[str], None]] = {
    "create": create,
    "overwrite": overwrite,
    "append": append,
    "update": update,
    "add_field": add_field,
    "delete": delete,
    "mixed": mixed,
    "compact": fold,
    "restore": go_back,
    "clean": tidy,
}

# -- shards of other formats --------------------------------------------------------------------------------------

SHARDS: dict[str, dict[str, Any]] = {
    "jsonl": {"shard_rows": 3},
    "tar": {"shard_rows": 3},
    "parquet": {"shard_rows": 3},
    "tokens": {"shard_size": 100},
    "bins": {"splits": 3, "codec": "json"},
}
"""Formats that are written as several files, and options that make many of them."""


def shard_samples(first: int, last: int) -> list[Sample]:
    return [{"x": np.arange(k, k + k % 5, dtype=np.int64)} for k in range(first, last)]


def write_shards(format: str, mode: str, first: int, folder: str) -> None:
    """Write eight samples."""
    schema = {"x": sx.Array("int64", (None,))}
    new = shard_samples(first, first + 8)
    sx.write(folder, new, schema, format=format, mode=mode, progress=False, **SHARDS[format])


WRITES: dict[str, Callable[[str], None]] = {
    f"{mode} {format}": partial(write_shards, format, mode, 8)
    for format in SHARDS
    for mode in ("create", "append", "overwrite")
    if (format, mode) != ("bins", "append")
}

# -- writing in parts ---------------------------------------------------------------------------------------------

PARTS: dict[str, dict[str, Any]] = {
    "arrow": {"shard_rows": 3},
    "jsonl": {"shard_rows": 3},
    "parquet": {"shard_rows": 3},
    "tar": {"shard_rows": 3},
    "tokens": {"shard_size": 60},
    "bins": {"splits": 3},
}
"""Formats of the results, with options that make several files or parts."""


def part_samples(first: int, count: int) -> list[Sample]:
    return [{"x": np.arange(k, k + k % 5, dtype=np.int64)} for k in range(first, first + count)]


def slowly(seconds: float, one: Any) -> Sample:
    """Return the sample with numbers one higher, after a pause."""
    time.sleep(seconds)
    return {"x": one.x + 1}


def write_in_parts(
    format: str, mode: str, folder: str, count: int = 10, workers: int | None = None, seconds: float = 0.0, **more: Any
) -> None:
    """Write samples in parts through a function."""
    source = sx.open(part_samples(20, count))
    options: dict[str, Any] = {**PARTS[format], **more, "format": format, "mode": mode, "progress": False}
    sx.write(
        folder,
        source,
        {"x": sx.Array("int64", (None,))},
        transform=partial(slowly, seconds),
        workers=workers,
        **options,
    )


def run_in_parts(folder: str, say: Callable[[str], None], *arguments: Any) -> None:
    """Write in parts with more arguments, those of `write_in_parts` by name; say when it has begun, and before it ends.

    It ends when its folder is renamed; the files in it are removed later.
    """
    format, mode, more = arguments
    if "storage" in more:
        os.environ["SHARDEX_CACHE"] = more.pop("cache")
        sx.storage(*more.pop("storage"), **more.pop("settings"))
    look = Began.of

    def look_and_say(path: str, format: str) -> Began | None:
        found = look(path, format)
        say(f"looked {time.time_ns()}")
        return found

    def say_and_remove(self: JobFolder) -> None:
        say(f"ends {time.time_ns()}")
        remove(self)

    remove = JobFolder.remove
    Began.of = look_and_say  # type: ignore[method-assign]
    JobFolder.remove = say_and_remove  # type: ignore[method-assign]
    write_in_parts(format, mode, folder, **more)


def encode_slowly(seconds: float, text: str) -> list[int]:
    """Return the codes of the letters of a text, after a while."""
    time.sleep(seconds)
    return [ord(letter) for letter in text]


def tokenize_files(folder: str, say: Callable[[str], None], *arguments: Any) -> None:
    """Tokenize a folder of lines in small parts; the arguments are the folder and the seconds for each document."""
    source, seconds, workers = arguments
    encode = partial(encode_slowly, seconds)
    options: dict[str, Any] = {"dtype": "uint16", "eos": 0, "aux": ["positions"], "batch_size": 3, "shard_size": 400}
    sx.tokenize(source, encode, folder, workers=workers, progress=False, **options)


def index_files(folder: str, say: Callable[[str], None], *arguments: Any) -> None:
    """Index a folder of lines, and save often what was scanned; the argument is the seconds for each file."""
    (seconds,) = arguments
    scan = LineScanner.scan

    def scan_slowly(self: LineScanner, source: Source, path: str) -> Scan:
        time.sleep(seconds)
        return scan(self, source, path)

    LineScanner.scan = scan_slowly  # type: ignore[method-assign]
    sample_index.SAVE_BYTES = 500
    sx.index(folder, progress=False)


IN_PARTS: dict[str, Callable[[str], None]] = {
    f"parts {mode} {format}": partial(write_in_parts, format, mode)
    for format in PARTS
    for mode in ("create", "append", "overwrite")
    if (format, mode) != ("bins", "append")
}

# -- caches of generators ------------------------------------------------------------------------------------------

CACHE = {"n": int, "pixels": sx.Array("uint8", (None, None, 3)), "s": str}
CACHED = {"old": range(6), "new": range(100, 112)}
"""Numbers of the samples of two caches."""


def cache_samples(name: str, seconds: float, say: Callable[[str], None]) -> Iterator[Sample]:
    """Make samples and say so, each before a pause."""
    for n in CACHED[name]:
        say(f"made {n}")
        time.sleep(seconds)
        yield {"n": n, "pixels": np.full((9, 9, 3), n, np.uint8), "s": f"text {n}" * n}


def build_cache(name: str, folder: str, workers: int | None = None, seconds: float = 0.0, **more: Any) -> None:
    """Cache the samples of one of two generators."""
    generator = partial(cache_samples, name, seconds, more.get("say", str))
    sx.cache(generator, CACHE, folder, fingerprint=name, workers=workers, shard_size=3_000, progress=False)


def run_cache(folder: str, say: Callable[[str], None], *arguments: Any) -> None:
    """Cache with more arguments; send which sample is made."""
    name, workers, seconds = arguments
    build_cache(name, folder, workers, seconds, say=say)


CACHES: dict[str, Callable[[str], None]] = {f"cache {name}": partial(build_cache, name) for name in CACHED}

# -- an endless chain of edits ----------------------------------------------------------------------------------

TURN = 6


_KNOWN = [[sample(k) for k in range(4)]]


def after(version: int) -> list[Sample]:
    """Return the samples of a version of the chain."""
    while len(_KNOWN) < version:
        _KNOWN.append(_model(len(_KNOWN) + 1, _KNOWN[-1]))
    return _KNOWN[version - 1]


def _model(version: int, samples: list[Sample]) -> list[Sample]:
    match version % TURN:
        case 0:
            return [*samples, sample(version), sample(version + 1)]
        case 1:
            return [{**one, "s": f"by {version}"} if row % 2 else one for row, one in enumerate(samples)]
        case 2:
            return samples[:-1]
        case 3:
            return [{**one, "f": version * 100 + row} for row, one in enumerate(samples)]
        case 4:
            return [{name: value for name, value in one.items() if name != "f"} for one in samples]
    return samples


def step(folder: str, version: int) -> None:
    """Make the next version of the chain."""
    if version == 1:
        sx.write(folder, after(1), SCHEMA, shard_rows=2, progress=False)
        return
    if version % TURN == 5:
        compact(folder, progress=False)
        return
    with sx.edit(folder, progress=False) as tx:
        rows = len(tx.dataset)
        match version % TURN:
            case 0:
                tx.extend([sample(version), sample(version + 1)])
            case 1:
                for row in range(1, rows, 2):
                    tx.update(row, s=f"by {version}")
            case 2:
                tx.delete(-1)
            case 3:
                tx.add_field("f", "int64", [version * 100 + row for row in range(rows)])
            case 4:
                tx.drop_field("f")


def chain(folder: str, say: Callable[[str], None]) -> None:
    """Make one version after another without end; send each number after its commit; sometimes remove old ones."""
    number = 1 + latest(folder)
    while True:
        step(folder, number)
        say(f"made {number}")
        if number % TURN == 0:
            clean(folder, keep=TURN, grace=0)
        number += 1


def latest(folder: str) -> int:
    """Return the number of the last version, 0 if there is none."""
    names = os.listdir(f"{folder}/_shardex") if os.path.isdir(f"{folder}/_shardex") else []
    return max((int(name[:8]) for name in names if name != "latest"), default=0)


def last_made(lines: list[str]) -> int:
    """Return the last version that a process has acknowledged."""
    return max((int(words.removeprefix("made ")) for words in lines), default=0)


# -- races --------------------------------------------------------------------------------------------------------

RACE = {"who": int, "turn": int}


def race_append(folder: str, say: Callable[[str], None], who: int, turns: int) -> None:
    """Append one sample in each of many versions."""
    for turn in range(turns):
        with sx.edit(folder) as tx:
            tx.append(who=who, turn=turn)
        say(f"made {tx.version}")


def race_update(folder: str, say: Callable[[str], None], who: int, turns: int) -> None:
    """Update one row of its own in each of many versions; sometimes append a sample."""
    for turn in range(turns):
        with sx.edit(folder) as tx:
            tx.update(who * turns + turn, turn=turn)
            if turn % 10 == 0:
                tx.append(who=who, turn=turn)
        say(f"made {tx.version}")


# -- everything at the same time ------------------------------------------------------------------------------------

SAMPLE, UPDATED = {"id": int, "turn": int}, 4
"""Samples with negative ids are updated, one for each updater; the others are appended."""


def stress_append(folder: str, say: Callable[[str], None], first: int) -> None:
    """Append one sample after another without end, by transactions and by writers; send each id after its commit."""
    for id in itertools.count(first):
        if id % 3:
            with sx.edit(folder, progress=False) as tx:
                tx.append(id=id, turn=0)
        else:
            sx.write(folder, [{"id": id, "turn": 0}], SAMPLE, mode="append", progress=False)
        say(f"made {id}")


def stress_update(folder: str, say: Callable[[str], None], who: int, first: int) -> None:
    """Update one sample without end; send each number after its commit."""
    for turn in itertools.count(first):
        with suppress(CommitConflict, VersionExpired), sx.edit(folder) as tx:  # `compact` moved the sample
            (row,) = np.flatnonzero(tx.dataset.read(range(UPDATED), ["id"])["id"] == -1 - who)
            tx.update(int(row), turn=turn)
            tx.commit()
            say(f"made {turn}")


def stress_compact(folder: str, say: Callable[[str], None]) -> None:
    """Compact without end."""
    while True:
        with suppress(CommitConflict, VersionExpired):
            compact(folder, progress=False)
        say("made 0")


def stress_clean(folder: str, say: Callable[[str], None], keep: int, grace: float) -> None:
    """Remove old versions without end."""
    while True:
        clean(folder, keep, grace=grace)
        say("made 0")


def hold(folder: str, say: Callable[[str], None]) -> None:
    """Hold the lock of the progress bars without end."""
    with tqdm.get_lock():
        say("made 0")
        signal.pause()


LONG: dict[str, Callable[..., None]] = {
    "chain": chain,
    "hold": hold,
    "run_cache": run_cache,
    "race_append": race_append,
    "race_update": race_update,
    "run_in_parts": run_in_parts,
    "stress_append": stress_append,
    "stress_clean": stress_clean,
    "stress_compact": stress_compact,
    "stress_update": stress_update,
    "index_files": index_files,
    "tokenize_files": tokenize_files,
}

# -- the server -----------------------------------------------------------------------------------------------------


def within(limits: dict[str, int]) -> None:
    """Set limits of the process; that of open files is relative to those that are open."""
    if "size" in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["size"], limits["size"]))
    if "files" in limits:
        room = os.dup(0)
        os.close(room)  # the lowest number that is free
        resource.setrlimit(resource.RLIMIT_NOFILE, (room + limits["files"], room + limits["files"]))


def do(request: dict[str, Any], say: Callable[[str], None]) -> None:
    """Do a job and send how it ended."""
    name, folder, rest = request["job"], request["folder"], request["rest"]
    if not request.get("shared"):
        # Processes forked by the same one share the lock of tqdm; one that is killed with it never releases it.
        tqdm.set_lock(threading.RLock())
    if request.get("unsynced"):
        os.fsync = lambda fd: None
    try:
        within(request.get("limits", {}))
        if name in LONG:
            LONG[name](folder, say, *rest)
        else:
            {**EDITS, **WRITES, **IN_PARTS, **CACHES, "sweep": sweep}[name](folder)
    except ShardexError as error:
        say(f"{type(error).__name__} {' '.join(str(error).split())}")
        os._exit(1)
    except BaseException:
        say(f"crash {' | '.join(traceback.format_exc().splitlines())}")
        os._exit(2)
    say("done")
    os._exit(0)


def serve(requests: socket.socket) -> None:
    """Fork a process for each request, with the socket in the request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server does not wait for them
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 1)
        if not data:
            return
        with socket.socket(fileno=descriptors[0]) as line:
            if os.fork() == 0:
                requests.close()

                def say(words: str, line: socket.socket = line) -> None:
                    line.sendall(words.encode() + b"\n")

                socket.send_fds(line, [str(os.getpid()).encode()], [os.pidfd_open(os.getpid())])
                line.recv(1)
                do(json.loads(data), say)


def warm_up() -> None:
    """Import all modules that edits import lazily."""
    with tempfile.TemporaryDirectory() as folder:
        make(f"{folder}/d")
        mixed(f"{folder}/d")
        fold(f"{folder}/d")
        for name, write in WRITES.items():
            write(f"{folder}/{name}")
        write_in_parts("arrow", "create", f"{folder}/parts", count=2)
        write_in_parts("bins", "create", f"{folder}/bins", count=2)
        build_cache("old", f"{folder}/cache", workers=2)
        build_cache("new", f"{folder}/cache")


if __name__ == "__main__":
    warm_up()
    serve(socket.socket(fileno=int(sys.argv[1])))
