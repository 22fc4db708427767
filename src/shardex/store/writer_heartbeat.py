"""Word of a writer that is still at work, by which `clean` knows that files are somebody's though no version names any.

A file is spared for a while because it is young. What takes longer to write is spared because of a small file beside
the manifests that is put again every minute: it is young as long as its writer lives. It tells how long the writer has
been at work, so that by the clock of the storage alone one knows which files may be its own.
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
from shardex.sources import Place
from shardex.store.manifest import Manifest, files_of

__all__ = ["MARKER", "WriterHeartbeat", "oldest_at_work"]

MARKER: str = rf"{STORE_FOLDER}/[0-9a-f]{{16}}\.live"
"""What these files are called."""
PERIOD = 60.0
"""Seconds between two words; who has not been at work for so long in a folder has no need of any."""
_SLACK = 5.0
"""Seconds that two clocks may differ in while one transaction lasts, and a storage round times off by."""


class WriterHeartbeat:
    """A writer at work, from now on until `end`, or until nobody has it any more.

    >>> from shardex.sources.memory import MemorySource; place = MemorySource()
    >>> presence = WriterHeartbeat(place); len(place.paths("_shardex/"))
    1
    >>> presence.end(); place.paths()
    []
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._word = _Word(place)
        if place.is_remote:
            # What cannot be put here, or not by put-if-absent, is said now and not after hours of work.
            self._word.begin()
        self._over = threading.Event()
        self._thread = threading.Thread(target=_stay, args=(self._word, self._over), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._over.set).atexit = False

    def check(self, made: Manifest, base: Manifest) -> None:
        """Before a version is published: an error if somebody took files of it for leftovers and removed them."""
        if self._word.lasted < PERIOD:
            return
        self._word.renew()
        new = {file.path for file in files_of(made)} - {file.path for file in files_of(base)}
        if gone := new.difference(self._place.paths("data/")):
            raise CommitConflict(
                f"{self._place.url}: expected the files that this transaction wrote, {len(gone)} of them are gone, "
                f"{min(gone)} for one: somebody cleaned up and took them for leftovers; run it again"
            )

    def end(self) -> None:
        """Go; what is named now needs no word any more, what is not is waste."""
        self._over.set()
        self._thread.join()
        self._word.take_back()


class _Word:
    """The file that says so."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = f"{STORE_FOLDER}/{secrets.token_hex(8)}.live"
        self._began = time.monotonic(), time.time()
        self._said = False

    @property
    def lasted(self) -> float:
        """Seconds; one clock stands still while the machine sleeps, the other may be set."""
        return max(time.monotonic() - self._began[0], time.time() - self._began[1])

    def begin(self) -> None:
        self._said = True
        self._place.put_if_absent(self._path, b"0")

    def renew(self) -> None:
        self._said = True
        self._place.put(self._path, f"{self.lasted:.0f}".encode())

    def take_back(self) -> None:
        if self._said:
            with suppress(ShardexError):  # it grows old by itself
                self._place.remove(self._path)


def _stay(word: _Word, over: threading.Event) -> None:
    while not over.wait(PERIOD):
        with suppress(ShardexError):  # what is wrong the writer finds too
            word.renew()


def oldest_at_work(place: Place, now: float, grace: float) -> float:
    """The time from which on files may be those of a writer at work; infinite if nobody has been for long.

    `now` is the time of the storage; a writer that gave no word for `grace` seconds is no more.
    """
    begun = math.inf
    for path in filter(re.compile(MARKER).fullmatch, place.paths(STORE_FOLDER + "/")):
        with suppress(FileNotFoundError):
            said = place.stat(path).modified
            if now - said < grace:
                begun = min(begun, said - _seconds(place, path) - _SLACK)
    return begun


def _seconds(place: Place, path: str) -> float:
    """How long its writer says to have been at work; for ever, so that all is spared, if it is just saying so."""
    try:
        return float(bytes(place.load(path)))
    except (ValueError, ShardexError):
        return math.inf
