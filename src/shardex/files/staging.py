"""Publishing a folder of shards in one step: written aside, then moved into place whole.

Formats whose shards are plain files write into a `Stage`. A new dataset appears by one rename, an overwritten one
by an exchange of two folders; appending links the finished files in, synced, all of them or none. What somebody
else published at the same place in the meantime is never replaced unless overwriting was asked for. At an address the
files are staged on this machine and then uploaded (`upload.py`), which can neither replace nor add to what is there.

A finished folder of shards, file by file to a place where nothing can be moved or exchanged as a whole.

Every file appears whole. Those that say what the others are come last, so that a dataset that has one is not recognised
before it is complete; of formats that have none, readers see the first shards before the last. Only one of several
writers gets the place, and one that fails takes back what it has put there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from shardex.errors import AlreadyExistsError, SchemaError, ShardexError, storage_errors
from shardex.files.find import natural_order
from shardex.sources import LocalSource, Place, Source, is_local, make_folder, place_of, sync_folder

__all__ = ["MODES", "Stage", "check_mode", "upload"]

_CLAIM = ".shardex/claim"
_LAST = ("bins.json", "tokens.json", "index.dat", "index.sqlite")
"""Files without which the shards beside them are not taken for a dataset."""


def upload(folder: Source, place: Place) -> None:
    """Copy all files of a folder; an error if anything is there, or comes meanwhile.

    >>> from shardex.sources.memory import MemorySource; place = MemorySource()
    >>> upload(MemorySource({"index.dat": b"1", "bin2": b"2", "bin10": b"3"}), place); list(place.files)
    ['bin2', 'bin10', 'index.dat']
    """
    if not place.put_if_absent(_CLAIM, b""):
        problem = "somebody else is writing here, or died and left this file"
        raise AlreadyExistsError(errno.EEXIST, problem, f"{place.url}/{_CLAIM}")
    put = [_CLAIM]
    try:
        if others := [path for path in place.paths() if path != _CLAIM]:
            raise AlreadyExistsError(errno.EEXIST, "somebody else wrote here meanwhile", f"{place.url}/{others[0]}")
        for path in sorted(natural_order(folder.paths()), key=lambda path: path in _LAST and 1 + _LAST.index(path)):
            put.append(path)
            place.put(path, folder.map(path))
    except BaseException:
        for path in reversed(put):
            with suppress(ShardexError):
                place.remove(path)
        raise
    place.remove(_CLAIM)


MODES = ("create", "append", "overwrite")


def check_mode(place: Place, mode: str, *, known: bool = False) -> bool:
    """Whether something is there already, unless that is known; an error if the mode does not allow it."""
    if mode not in MODES:
        raise SchemaError(f"expected mode to be one of {', '.join(MODES)}, got {mode!r}")
    path = place.url
    with storage_errors(path, "look at"):
        there = known or (_is_something(path) if is_local(place) else bool(place.paths()))
    if there and mode == "create":
        remedy = 'say mode="append" or mode="overwrite"'
        raise AlreadyExistsError(errno.EEXIST, f"something is there already; {remedy}", path)
    if there and is_local(place) and not os.path.isdir(path):
        raise AlreadyExistsError(errno.EEXIST, "expected a folder, got a file", path)
    return there


def _is_something(path: str) -> bool:
    return os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path))


class Stage:
    """A folder that becomes `path` when it is published.

    >>> import tempfile; target = os.path.join(tempfile.mkdtemp(), "new")
    >>> stage = Stage(target, "create"); stage.place.put("a.txt", b"hello"); os.path.exists(target)
    False
    >>> stage.publish(); os.listdir(target)
    ['a.txt']
    """

    def __init__(self, path: str | os.PathLike[str], mode: str, owns: str = ".*") -> None:
        target = place_of(path)
        # So that a link to the folder stays one.
        self._target = LocalSource(os.path.realpath(target.url)) if is_local(target) else target
        self.path = self._target.url
        self.mode = mode
        self._there = self._look()
        self._owns = re.compile(rf"({owns})|\.shardex/[^/]+", re.IGNORECASE)
        """Which files a dataset of this kind consists of: nothing else is ever removed."""
        self._refuse_foreign()
        self._aside = self._make_aside()
        self.place = LocalSource(self._aside)
        """Write here."""

    def _look(self) -> bool:
        """Whether something is there, which the mode allows to add to or to replace."""
        if is_local(self._target) or self.mode not in MODES:
            return check_mode(self._target, self.mode)
        if self._target.paths():
            problem = "something is there already, and at an address files of this format are not replaced or added to"
            remedy = 'in one step: write to another address, or with format="arrow", which can be edited anywhere'
            raise AlreadyExistsError(errno.EEXIST, f"{problem} {remedy}", self.path)
        return False

    def _make_aside(self) -> str:
        """A folder beside the target, so that it can be moved there; on this machine, if the target is elsewhere."""
        if not is_local(self._target):
            with storage_errors(tempfile.gettempdir(), "create"):
                return tempfile.mkdtemp(prefix="shardex-")
        parent, name = os.path.split(self.path)
        aside = os.path.join(parent, f".{name}.{secrets.token_hex(6)}.tmp")
        with storage_errors(aside, "create"):
            make_folder(aside)
        return aside

    def _refuse_foreign(self) -> None:
        there = self.existing
        if there and not any(map(self._owns.fullmatch, there)):
            problem = "expected shards of this format to append to, got others"
            raise AlreadyExistsError(errno.EEXIST, problem, os.path.join(self.path, there[0]))
        for path in self._target.paths() if self._there and self.mode == "overwrite" else ():
            if not self._owns.fullmatch(path):
                remedy = "overwriting would remove it: choose another folder, or remove what is there yourself"
                full = os.path.join(self.path, path)
                raise AlreadyExistsError(errno.EEXIST, f"expected a dataset of this format alone; {remedy}", full)

    @property
    def existing(self) -> list[str]:
        """When appending: the files that are there, in natural order."""
        return natural_order(self._target.paths()) if self._there and self.mode == "append" else []

    def next_number(self, prefix: str, extension: str) -> int:
        """The number for the next file `{prefix}-{number}{extension}`: one more than the highest there is."""
        pattern = re.compile(rf"{re.escape(prefix)}-(\d+){re.escape(extension)}")
        found = [int(match[1]) for path in self.existing if (match := pattern.fullmatch(path))]
        number = max(found, default=-1) + 1
        name = f"{prefix}-{number:05d}{extension}"
        shards = [path for path in self.existing if path.lower().endswith(extension)]
        if natural_order([*shards, name])[-1] != name:
            raise SchemaError(
                f"{self.path}: expected shards that come before {name}, got {natural_order(shards)[-1]}: samples would "
                "not be appended at the end; give a prefix that comes after it"
            )
        return number

    def append(self, path: str, pieces: Sequence[Any], size: int) -> int:
        """Write pieces after the first `size` bytes of a file, and give its new size; may be tried again if it fails.

        >>> import tempfile; stage = Stage(os.path.join(tempfile.mkdtemp(), "new"), "create")
        >>> stage.append("a.txt", [b"hel", b"lo"], 0), stage.append("a.txt", [b"p"], 3)
        (5, 4)
        """
        with storage_errors(full := self.place.path(path), "write"), open(full, "ab", buffering=0) as file:
            file.truncate(size)
            data = memoryview(b"".join(pieces))
            while data:
                data = data[file.write(data) :]
            return os.fstat(file.fileno()).st_size

    def publish(self) -> None:
        """Sync everything and move it into place; or upload it."""
        if is_local(self._target):
            self._move()
        else:
            self._look()
            upload(self.place, self._target)
        self.discard()

    def _move(self) -> None:
        with storage_errors(self.path, "write"):
            for folder, _, names in os.walk(self._aside):
                for name in names:
                    with open(os.path.join(folder, name), "rb") as file:
                        os.fsync(file.fileno())
                sync_folder(folder)
            there = self._look()
            self._refuse_foreign()
            if there and self.mode == "append":
                self._link_in()
            elif there:
                _exchange(self._aside, self.path)
            else:
                os.rename(self._aside, self.path)  # the system refuses if the folder is not empty any more
            sync_folder(os.path.dirname(self.path))

    def _link_in(self) -> None:
        done: list[str] = []
        try:
            for file in natural_order(self.place.paths()):
                target = os.path.join(self.path, file)
                make_folder(os.path.dirname(target))
                os.link(os.path.join(self._aside, file), target)  # unlike a rename it never replaces
                done.append(target)
        except OSError:
            for target in done:
                os.unlink(target)
            raise
        for folder in {os.path.dirname(target) for target in done}:
            sync_folder(folder)

    def discard(self) -> None:
        """Remove what was set aside."""
        shutil.rmtree(self._aside, ignore_errors=True)


def _exchange(new: str, old: str) -> None:
    """Swap two folders in one step where the system can (Linux), in two where it cannot."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        swap = None
    at_cwd, exchange = -100, 2
    if swap is None or swap(at_cwd, os.fsencode(new), at_cwd, os.fsencode(old), exchange) != 0:
        gone = f"{new}.old"
        os.rename(old, gone)
        try:
            os.rename(new, old)
        except OSError:
            os.rename(gone, old)
            raise
        os.rename(gone, new)
