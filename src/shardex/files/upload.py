"""Publishes files at a URL, where nothing can be renamed: they are uploaded or copied one by one.

Each file appears whole. A claim file, which is there from before the first one until after the last one, keeps other
writers and readers away. Files that exist at a URL are never replaced or added to.
"""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress

from shardex.errors import AlreadyExistsError, NotFoundError, ShardexError
from shardex.files.append_records import CLAIM
from shardex.files.patterns import natural_order
from shardex.files.publication import MODES, Copy, Publication, check_mode
from shardex.sources import LocalSource, Place, place_of


class Upload(Publication):
    """Publishes files at a URL; the temporary folder is in that of the system."""

    can_append = False
    _copies: Mapping[str, str] = {}
    """Paths of files inside of the storage, by their final names."""
    _copy: Copy

    def check(self) -> bool:
        """Return False; raise an error if there are files."""
        if self.mode not in MODES:
            return check_mode(self.place, self.mode)
        if self.place.paths():
            problem = "files exist there already, and at a URL files of this format are not replaced or added to"
            remedy = 'in one step: write to another URL, or with format="arrow", which can be edited anywhere'
            raise AlreadyExistsError(errno.EEXIST, f"{problem} {remedy}", self.place.url)
        return False

    def begin(self) -> bool:
        """Check; what an earlier run of the same job has stored is continued."""
        return False if self._owner else self.check()

    def temporary_folder(self, wanted: str | None) -> str:
        """Return a new path in the folder of temporary files."""
        return os.path.join(tempfile.gettempdir(), f"shardex-{secrets.token_hex(6)}")

    def make(self, folder: str) -> None:
        """Create the temporary folder for this user alone: others can read the folder of temporary files."""
        os.mkdir(folder, 0o700)

    def existing(self) -> list[str]:
        """Return nothing: files are not added to others."""
        return []

    def add(self, names: Mapping[str, str], copy: Copy, folder: str) -> None:
        """Note the files, which are copied when they are published."""
        self._copies, self._copy = {name: path for path, name in names.items()}, copy

    def publish(self, staged: LocalSource, stored: Callable[[], None]) -> None:
        """Store all files, those in `publish_last` after the others (`put_claimed`)."""
        self.begin()

        def put(paths: Sequence[str]) -> None:
            if copies := {self._copies[path]: path for path in paths if path in self._copies}:
                self._copy(copies, None)
            for path in paths:
                if path not in self._copies:
                    self.place.put(path, staged.map(path))

        paths = [*staged.paths(), *self._copies]
        put_claimed(self.place, paths, put, self.publish_last, owner=self._owner, stored=stored)

    def extend(self, staged: LocalSource, index: str, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
        """Publish the files: there are none to add to."""
        self.publish(staged, lambda: None)

    def state(self, extension: str) -> None:
        """Return None: files are not added to others."""

    def was_made(self, files: Sequence[str], is_stored: bool) -> bool:
        """Return True if all files are stored, and the claim is removed."""
        return is_stored and bool(paths := self.place.paths()) and CLAIM not in paths


def put_claimed(
    place: Place,
    paths: Sequence[str],
    put: Callable[[Sequence[str]], None],
    publish_last: Sequence[str] = (),
    *,
    owner: str = "",
    stored: Callable[[], None] = lambda: None,
) -> None:
    """Call `put`, which stores files under these paths, for a place that is empty; `publish_last` come last.

    Of several concurrent writers only one succeeds: it creates a claim file first, and the others raise an error.
    After an error the files that were already uploaded are removed. While the claim file exists, the folder cannot be
    opened (`append_records.visible_paths`); readers that name single files see each as soon as it is uploaded.

    `owner` is a number of a job that can be continued: writers with the same one store the same files. They continue
    after the claim of a killed one, and leave all files after an error. `stored` is called before the claim is removed.

    >>> from shardex.sources.memory import MemorySource; place = MemorySource()
    >>> def put(paths): [place.put(path, b"1") for path in paths]
    >>> put_claimed(place, ["index.dat", "bin2", "bin10"], put, ["index.dat"]); list(place.files)
    ['bin2', 'bin10', 'index.dat']
    """
    last = [path for path in publish_last if path in paths]
    begun: list[str] = []
    if place.put_if_absent(CLAIM, owner.encode()):
        begun.append(CLAIM)
    elif not owner or _claimed_by(place) != owner:
        problem = "another writer is writing here, or was killed and left this file"
        raise AlreadyExistsError(errno.EEXIST, problem, f"{place.url}/{CLAIM}")
    try:
        if begun and (others := [path for path in place.paths() if path != CLAIM]):
            raise AlreadyExistsError(errno.EEXIST, "another writer wrote here meanwhile", f"{place.url}/{others[0]}")
        begun = [] if owner else begun
        for some in (natural_order([path for path in paths if path not in last]), *([path] for path in last)):
            begun += [] if owner else some
            put(some)
    except BaseException:
        for path in reversed(begun):
            with suppress(ShardexError):
                place.remove(path)
        raise
    stored()
    with suppress(NotFoundError) if owner else nullcontext():
        place.remove(CLAIM)


def _claimed_by(place: Place) -> str:
    with suppress(NotFoundError):  # it was removed meanwhile
        return bytes(place_of(place.url).load(CLAIM)).decode(errors="replace")
    return ""
