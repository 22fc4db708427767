"""Publishes a folder of shards in one step.

Formats whose shards are plain files write them into a `Stage`, a temporary folder; their writers derive from
`StagedWriter`. Publishing moves the folder into place:

- a new dataset appears by one rename, an overwritten one by the exchange of two folders;
- appended files are synced and then linked into the existing folder, all of them or none (`append_records`), in place
  of others if `replaces` says so, or their bytes are added to existing files (`extend_files`);
- at a URL, where nothing can be renamed, the files are uploaded one by one (`upload`): each appears whole, and those
  that the format lists in `publish_last` come after all others. Existing datasets there are never replaced or extended.

Files that another writer has published at the same place in the meantime are replaced only in mode "overwrite".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any

from shardex.errors import AlreadyExistsError, ArgumentError, NotFoundError, ShardexError, storage_errors
from shardex.files.all_or_nothing import AllOrNothing
from shardex.files.append_records import CLAIM, link_together, pending_names, undo_unfinished
from shardex.files.extend_files import extend_together
from shardex.files.patterns import natural_order
from shardex.sources import LocalSource, Place, Source, make_folder, place_of, sync_file, sync_folder

MODES = ("create", "append", "overwrite")


def check_mode(
    place: Place, mode: str, *, known: bool = False, remedy: str = 'pass mode="append" or mode="overwrite"'
) -> bool:
    """Return True if something exists at `place`; raise an error if the mode does not allow that.

    `known` means that the caller has already found something there; `remedy` says what the user can do about it.
    """
    if mode not in MODES:
        raise ArgumentError(f"expected mode to be one of {', '.join(MODES)}, got {mode!r}")
    path = place.url
    with storage_errors(path, "look at"):
        exists = known or not place.is_empty()
    if exists and mode == "create":
        raise AlreadyExistsError(errno.EEXIST, f"a file or folder exists there already; {remedy}", path)
    if exists and place.root_kind() == "file":
        raise AlreadyExistsError(errno.EEXIST, "expected a folder, got a file", path)
    return exists


def check_target(place: Place, mode: str, owned: str) -> bool:
    """Return True if shards exist at `place`; raise an error if the mode, or at a URL any mode, does not allow that.

    `owned` is a regular expression of all files of the format; others must not be removed.
    """
    if place.is_remote and mode in MODES:
        if place.paths():
            problem = "files exist there already, and at a URL files of this format are not replaced or added to"
            remedy = 'in one step: write to another URL, or with format="arrow", which can be edited anywhere'
            raise AlreadyExistsError(errno.EEXIST, f"{problem} {remedy}", place.url)
        return False
    exists = check_mode(place, mode)
    if exists and mode != "create":
        _refuse_foreign(place, mode, re.compile(rf"({owned})|\.shardex/[^/]+|\.[0-9a-f]{{16}}\.tmp", re.IGNORECASE))
    return exists


def _refuse_foreign(place: Place, mode: str, owned: re.Pattern[str]) -> None:
    """Raise an error if a folder has files of another format: only those, or any that would be removed."""
    foreign = [path for path in natural_order(place.paths()) if not owned.fullmatch(path)]
    if mode == "overwrite" and foreign:
        remedy = "overwriting would remove it: choose another folder, or remove it yourself"
        full = os.path.join(place.url, foreign[0])
        raise AlreadyExistsError(errno.EEXIST, f"expected only files of this format; {remedy}", full)
    names = {*place.paths(), *pending_names(place.url)}
    if mode == "append" and names and not any(map(owned.fullmatch, names)):
        problem = "expected shards of this format to append to, got others"
        raise AlreadyExistsError(errno.EEXIST, problem, os.path.join(place.url, natural_order(list(names))[0]))


class StagedWriter(AllOrNothing):
    """Base class of writers whose files are written to a `Stage`, which `close` publishes.

    `owned` and `publish_last` are those of `Stage`. A subclass implements `append` and `_finish`. If it opens files
    itself, it overrides `_discard` to close them first.
    """

    def __init__(
        self, path: str | os.PathLike[str], mode: str, owned: str, *, publish_last: Sequence[str] = ()
    ) -> None:
        self._stage = Stage(path, mode, owned, publish_last=publish_last)
        self.path = self._stage.path

    @abstractmethod
    def _finish(self) -> None:
        """Write everything that is still buffered to the stage."""

    def _publish(self) -> None:
        self._finish()
        self._stage.publish()

    def _discard(self) -> None:
        self._stage.discard()


class Stage:
    """A temporary folder that becomes `path` when it is published; it is made with the first file.

    `owned` is a regular expression that matches all files of a dataset of this format: overwriting raises an error if
    there are other files. `publish_last` lists files that are uploaded or linked after all others: those by which
    the format recognises a dataset. `folder` is the path of the temporary folder; by default it has a new name. In mode
    "append", `replaces` is a regular expression of the files in the folder that the new ones take the place of.

    >>> import tempfile; target = os.path.join(tempfile.mkdtemp(), "new")
    >>> stage = Stage(target, "create"); stage.place.put("a.txt", b"hello"); os.path.exists(target)
    False
    >>> stage.publish(); os.listdir(target)
    ['a.txt']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str,
        owned: str = ".*",
        *,
        publish_last: Sequence[str] = (),
        folder: str | None = None,
        replaces: str | None = None,
    ) -> None:
        target = place_of(path)
        # The resolved path, so that a symbolic link to the folder stays a link.
        self._target = target if target.is_remote else LocalSource(os.path.realpath(target.url))
        self.path = self._target.url
        self.mode = mode
        self._owned = owned
        self._exists = check_target(self._target, mode, owned)
        if self._exists and mode == "append":
            undo_unfinished(self.path)
        self._publish_last = publish_last
        self._replaces = None if replaces is None else re.compile(replaces)
        if folder is None and self._target.is_remote:
            folder = os.path.join(tempfile.gettempdir(), f"shardex-{secrets.token_hex(6)}")
        parent, name = os.path.split(self.path)
        self._folder = folder or os.path.join(parent, f".{name}.{secrets.token_hex(6)}.tmp")
        _check_writable(self._folder)

    @cached_property
    def place(self) -> LocalSource:
        """The temporary folder, next to a local target, so that it can be renamed to it: files are written here."""
        with storage_errors(self._folder, "create"):
            if self._target.is_remote:
                os.mkdir(self._folder, 0o700)  # other users can read the folder of temporary files
            else:
                make_folder(self._folder)
        return LocalSource(self._folder)

    @property
    def existing(self) -> list[str]:
        """In mode "append": the files of the target in natural order, and those that another writer is adding."""
        if not self._exists or self.mode != "append":
            return []
        return natural_order(list({*self._target.paths(), *pending_names(self.path)}))

    def next_number(self, prefix: str, extension: str) -> int:
        """Return the number of the next file `{prefix}-{number}{extension}`: the highest existing one plus 1."""
        pattern = re.compile(rf"{re.escape(prefix)}-(\d+){re.escape(extension)}")
        existing = self.existing
        found = [int(match[1]) for path in existing if (match := pattern.fullmatch(path))]
        number = max(found, default=-1) + 1
        name = f"{prefix}-{number:05d}{extension}"
        shards = [path for path in existing if path.lower().endswith(extension)]
        if natural_order([*shards, name])[-1] != name:
            raise ArgumentError(
                f"{self.path}: expected shards that sort before {name}, got {natural_order(shards)[-1]}: samples would "
                "not be appended at the end; pass a prefix that sorts after it"
            )
        return number

    def append(self, path: str, pieces: Sequence[Any], size: int) -> int:
        """Write pieces after the first `size` bytes of a file and return its new size; can be repeated if it fails.

        >>> import tempfile; stage = Stage(os.path.join(tempfile.mkdtemp(), "new"), "create")
        >>> stage.append("a.txt", [b"hel", b"lo"], 0), stage.append("a.txt", [b"p"], 3)
        (5, 4)
        """
        full = self.place.path(path)
        with storage_errors(full, "write"), open(full, "ab", buffering=0) as file:
            file.truncate(size)
            data = memoryview(b"".join(pieces))
            while data:
                data = data[file.write(data) :]
            return os.fstat(file.fileno()).st_size

    def publish(self) -> None:
        """Sync all files and move them to a local target, or upload them to a URL."""
        place = self.place  # the folder is published even if it has no files
        if self._target.is_remote:
            check_target(self._target, self.mode, self._owned)
            upload(place, self._target, self._publish_last)
        else:
            self._move()
        self.discard()

    def extend(self, index: str, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
        """Publish by adding the files to those of the target with the same names, if it is there.

        A target that is empty may be the root of a file system, which cannot be replaced.

        `index` and `adjust` are those of `extend_together`.
        """
        if self._target.is_remote:
            return self.publish()
        check_target(self._target, self.mode, self._owned)
        files = [path for path in natural_order(self.place.paths()) if path != index]
        if os.path.isdir(self.path) or not self._appears():
            extend_together(self._folder, self.path, files, index, adjust, self._publish_last)
        self.discard()

    def _appears(self) -> bool:
        """Move the folder to a target that does not exist; return False if another writer was first."""
        with storage_errors(self.path, "write"):
            self._sync()
            try:
                os.rename(self._folder, self.path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
            sync_folder(os.path.dirname(self.path))
        return True

    def _sync(self) -> None:
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    sync_file(file.fileno())
            sync_folder(folder)

    def _move(self) -> None:
        with storage_errors(self.path, "write"):
            self._sync()
            exists = check_target(self._target, self.mode, self._owned)
            if exists and self.mode == "append":
                self._link()
            elif exists:
                _exchange(self._folder, self.path)
            else:
                self._rename()
            sync_folder(os.path.dirname(self.path))

    def _rename(self) -> None:
        try:
            os.rename(self._folder, self.path)
        except OSError as error:  # the target is no longer empty
            if self.mode != "append" or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._link()

    def _link(self) -> None:
        files = sorted(natural_order(self.place.paths()), key=lambda path: path in self._publish_last)
        if self._replaces is None:
            link_together(self._folder, self.path, files)
            return
        with _locked_folder(self.path):
            replaced = list(filter(self._replaces.fullmatch, os.listdir(self.path)))
            if not replaced:
                link_together(self._folder, self.path, files)
            elif len(files) == 1 and files == replaced:
                os.replace(os.path.join(self._folder, files[0]), os.path.join(self.path, files[0]))
            else:
                self._replace(files, replaced)

    def _replace(self, files: Sequence[str], replaced: Sequence[str]) -> None:
        """Link files in place of others; readers, also after a crash, never see some of both."""
        old = os.path.join(self._folder, ".replaced")
        os.mkdir(old)
        try:
            for name in replaced:
                os.rename(os.path.join(self.path, name), os.path.join(old, name))
            link_together(self._folder, self.path, files)
        except BaseException:
            for name in os.listdir(old):
                os.rename(os.path.join(old, name), os.path.join(self.path, name))
            raise

    def discard(self) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _locked_folder(path: str) -> Iterator[None]:
    """Hold a lock on a folder: of several writers that replace the same files, one comes after the other."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_writable(folder: str) -> None:
    """Raise an error if a folder cannot be made, without making it: a writer is often opened hours before its end."""
    parent = os.path.dirname(folder)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        with storage_errors(folder, "create"):
            os.mkdir(os.path.join(parent, os.path.basename(folder)))  # for the error of the system
            os.rmdir(os.path.join(parent, os.path.basename(folder)))


def _exchange(new: str, old: str) -> None:
    """Swap two folders: in one step where the system can (Linux), otherwise by three renames."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        swap = None
    at_cwd, exchange = -100, 2
    if swap is None or swap(at_cwd, os.fsencode(new), at_cwd, os.fsencode(old), exchange) != 0:
        moved = f"{new}.old"
        os.rename(old, moved)
        try:
            os.rename(new, old)
        except OSError:
            os.rename(moved, old)
            raise
        os.rename(moved, new)


def upload(folder: Source, place: Place, publish_last: Sequence[str] = ()) -> None:
    """Copy all files of a folder to a place that is empty, those in `publish_last` after all others (`put_claimed`).

    >>> from shardex.sources.memory import MemorySource; place = MemorySource()
    >>> upload(MemorySource({"index.dat": b"1", "bin2": b"2", "bin10": b"3"}), place, ["index.dat"]); list(place.files)
    ['bin2', 'bin10', 'index.dat']
    """

    def put(paths: Sequence[str]) -> None:
        for path in paths:
            place.put(path, folder.map(path))

    put_claimed(place, folder.paths(), put, publish_last)


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
