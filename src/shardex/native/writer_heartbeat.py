"""Heartbeat file of an active writer: `clean` keeps the unreferenced files of live writers.

`clean` keeps young files in any case. For writers that take longer, a thread rewrites a small file next to the
manifests every minute, so that its age shows whether the writer is alive. It contains the seconds since the writer
started; from these `clean` computes which files may belong to the writer, using only the clock of the storage.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
import weakref
from contextlib import suppress

from shardex.errors import CommitConflict, ShardexError
from shardex.files import STORE_FOLDER
from shardex.native.fragments import DATA_FILE
from shardex.native.manifest import Manifest, named_paths
from shardex.sources import Place

MARKER: str = rf"{STORE_FOLDER}/[0-9a-f]{{16}}\.live"
"""Regular expression of the paths of heartbeat files."""
WRITER_FILE = re.compile(rf"\.[0-9a-f]{{16}}\.tmp|{DATA_FILE}|{MARKER}")
"""Paths of the files that a killed writer may leave behind."""
PERIOD = 60.0
"""Seconds between two heartbeats; in a local folder a writer that ends earlier writes none."""
_SLACK = 5.0
"""Seconds by which clocks may drift during a transaction and storage may round times."""


class WriterHeartbeat:
    """Sends heartbeats of a writer until `close` is called or the object is garbage-collected.

    >>> from shardex.sources.memory import MemorySource; place = MemorySource()
    >>> heartbeat = WriterHeartbeat(place); len(place.paths("_shardex/"))
    1
    >>> heartbeat.close(); place.paths()
    []
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file = _HeartbeatFile(place)
        if place.is_remote:
            # Missing write or put-if-absent support is an error now, not after hours of writing.
            self._file.create()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=_beat, args=(self._file, self._ended), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._ended.set).atexit = False

    def check(self, new_manifest: Manifest, base: Manifest) -> None:
        """Raise an error if `clean` has removed files of a version that is about to be published."""
        self._checked = self._file.age, new_manifest, base
        if self._file.age < PERIOD:
            return
        self._file.renew()
        if gone := self._missing(new_manifest, base):
            raise CommitConflict(
                f"{self._place.url}: expected the files that this transaction wrote, {len(gone)} of them are gone, "
                f"such as {min(gone)}: `clean` took them for leftovers; run it again"
            )

    def confirm(self, version: int) -> None:
        """Raise an error if `clean` removed files of a version after `check`, because this process had stopped."""
        checked, new_manifest, base = self._checked
        if self._file.age - checked >= PERIOD and (gone := self._missing(new_manifest, base)):
            raise CommitConflict(
                f"{self._place.url}: expected to publish version {version} at once, but this process was stopped for "
                f"{self._file.age - checked:.0f} seconds, and `clean` took {len(gone)} of its files for leftovers, "
                f"such as {min(gone)}: the version was published and cannot be read; restore version {version - 1}, "
                "and run the transaction again"
            )

    def _missing(self, new_manifest: Manifest, base: Manifest) -> set[str]:
        new = named_paths([new_manifest])
        with suppress(ShardexError):  # a list of the files of `base` is damaged, and an older version is restored
            new -= named_paths([base])
        return new.difference(self._place.paths("data/"))

    def close(self) -> None:
        """Stop the heartbeats and remove the file."""
        self._ended.set()
        self._thread.join()
        self._file.remove()

    @staticmethod
    def oldest_start(place: Place, now: float, grace: float) -> float:
        """Return the earliest start of active writers: files written since then may be theirs; infinity if none is.

        `now` is the time of the storage; a writer without a heartbeat for `grace` seconds is dead.
        """
        begun = math.inf
        for path in filter(re.compile(MARKER).fullmatch, place.paths(STORE_FOLDER + "/")):
            with suppress(FileNotFoundError):
                last = place.stat(path).modified
                if now - last < grace:
                    begun = min(begun, last - _seconds(place, path) - _SLACK)
        return begun


class _HeartbeatFile:
    """The file of one writer."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = f"{STORE_FOLDER}/{secrets.token_hex(8)}.live"
        self._began = time.monotonic(), time.time()
        self._exists = False

    @property
    def age(self) -> float:
        """Seconds since the start, by two clocks: one stops while the machine sleeps, the other may be changed."""
        return max(time.monotonic() - self._began[0], time.time() - self._began[1])

    def create(self) -> None:
        self._exists = True
        self._place.put_if_absent(self._path, b"0")

    def renew(self) -> None:
        self._exists = True
        self._place.put(self._path, f"{self.age:.0f}".encode())

    def remove(self) -> None:
        if self._exists:
            with suppress(ShardexError):  # `clean` removes it when it is old
                self._place.remove(self._path)


def _beat(file: _HeartbeatFile, ended: threading.Event) -> None:
    while not ended.wait(PERIOD):
        with suppress(ShardexError):  # the writer itself will raise the same error
            file.renew()


def _seconds(place: Place, path: str) -> float:
    """Return the seconds since the writer started; infinity if the file is being written, so that all is kept."""
    try:
        return float(bytes(place.load(path)))
    except (ValueError, ShardexError):
        return math.inf
