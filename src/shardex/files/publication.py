"""How new files become visible at a place: `publication_at` chooses a `Publication`.

A stream of samples and the parts of a job take the same way: their files are in a temporary folder, or are copied
inside of the storage (`Publication.add`).

`LocalPublication` publishes in a local folder, by steps that the file system makes as a whole:

- a new dataset appears by one rename, an overwritten one by the exchange of two folders;
- appended files are synced and then linked into the existing folder, all of them or none, in place of others if
  `replaces` says so, or their bytes are added to existing files (`append_together`).

Files that another writer has published at the same place in the meantime are replaced only in mode "overwrite".

`Upload` publishes at a URL, where nothing can be renamed: files are uploaded or copied one by one, and each appears
whole. A claim file, which is there from before the first one until after the last one, keeps other writers and readers
away. Files that exist at a URL are never replaced or added to.

`LocalFile` and `UploadedFile` publish one file, whose path is the target.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from shardex.errors import AlreadyExistsError, ArgumentError, NotFoundError, ShardexError, storage_errors
from shardex.files.append_together import (
    CLAIM,
    extend_together,
    link_together,
    pending_names,
    undo_unfinished,
    visible_paths,
)
from shardex.files.patterns import natural_order
from shardex.files.temporary_folders import REPLACED, temporary_name
from shardex.sources import LocalSource, Place, make_folder, parent_of, place_of, sync_file, sync_folder

MODES = ("create", "append", "overwrite")
Copy = Callable[[Mapping[str, str], str | None], None]
"""Copies files inside of the storage under new names: into a local folder, or with None into the target."""


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


class Publication(ABC):
    """Publishes new files below the root of a place: all of them, or none if it fails.

    `owned` is a regular expression of all files of the format: overwriting raises an error if there are others.
    `publish_last` lists files that come after all others: those by which the format recognises a dataset. In mode
    "append", `replaces` is a regular expression of the files there that the new ones take the place of. `owner` is the
    number of a publication that several runs of a job may try to make, one after another or at the same time.
    """

    can_append: bool
    """True if files may be added to those that are there."""

    def __init__(
        self,
        place: Place,
        mode: str,
        owned: str = ".*",
        *,
        publish_last: Sequence[str] = (),
        replaces: str | None = None,
        owner: str = "",
    ) -> None:
        self.place, self.mode, self.publish_last = place, mode, publish_last
        self._owned, self._replaces, self._owner = owned, replaces, owner

    @abstractmethod
    def check(self) -> bool:
        """Return True if there are files that new ones are added to or replace; raise an error if none may be there."""

    @abstractmethod
    def begin(self) -> bool:
        """Return what `check` returns, after removing what a writer has left that was killed."""

    @abstractmethod
    def temporary_folder(self, wanted: str | None) -> str:
        """Return the path of the temporary folder: `wanted` if files can be published from there, or a new one."""

    @abstractmethod
    def make(self, folder: str) -> None:
        """Create the temporary folder."""

    @abstractmethod
    def existing(self) -> list[str]:
        """Return the files that are there, and those that another writer is adding."""

    @abstractmethod
    def add(self, names: Mapping[str, str], copy: Copy, folder: str) -> None:
        """Publish copies, too: `names` has the final name of each file, by its path for `copy`."""

    @abstractmethod
    def publish(self, staged: LocalSource, stored: Callable[[], None]) -> None:
        """Make the files in the temporary folder and those that were added durable and visible.

        `stored` is called when all files are there and other runs only have to make them visible.
        """

    @abstractmethod
    def extend(self, staged: LocalSource, index: str, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
        """Add the bytes of the files to those with the same names (`append_together.extend_together`)."""

    @abstractmethod
    def state(self, extension: str) -> Any:
        """Return which files with this extension are there now; None if files are never added to others."""

    @abstractmethod
    def was_made(self, files: Sequence[str], is_stored: bool) -> bool:
        """Return True if an earlier run has published, among others, these files, or has `stored` all of them."""


# -- in a local folder --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """The shards that a local folder has at one moment."""

    folder: str
    inode: int
    """Inode of the folder; 0 if there is no folder."""
    shards: frozenset[str]

    def added(self, later: Listing) -> Listing:
        """Return the shards that a later listing has and this one has not; all of them if the folder was replaced."""
        return replace(later, shards=later.shards - self.shards) if self.inode == later.inode else later


class LocalPublication(Publication):
    """Publishes files in a local folder; the temporary folder is next to it, so that it can be renamed."""

    can_append = True

    def check(self) -> bool:
        """Return True if there are files; raise an error if the mode does not allow them, or if they are others'."""
        exists = check_mode(self.place, self.mode)
        if exists and self.mode != "create":
            self._refuse_foreign(re.compile(rf"({self._owned})|\.shardex/[^/]+|\.[0-9a-f]{{16}}\.tmp", re.IGNORECASE))
        return exists

    def _refuse_foreign(self, owned: re.Pattern[str]) -> None:
        """Raise an error if the folder has files of another format: only those, or any that would be removed."""
        folder, paths = self.place.url, self.place.paths()
        foreign = [path for path in natural_order(paths) if not owned.fullmatch(path)]
        if self.mode == "overwrite" and foreign:
            remedy = "overwriting would remove it: choose another folder, or remove it yourself"
            full = os.path.join(folder, foreign[0])
            raise AlreadyExistsError(errno.EEXIST, f"expected only files of this format; {remedy}", full)
        names = {*paths, *pending_names(folder)}
        if self.mode == "append" and names and not any(map(owned.fullmatch, names)):
            problem = "expected shards of this format to append to, got others"
            raise AlreadyExistsError(errno.EEXIST, problem, os.path.join(folder, natural_order(list(names))[0]))

    def begin(self) -> bool:
        """Check, and undo an append whose writer was killed."""
        exists = self.check()
        if exists and self.mode == "append":
            undo_unfinished(self.place.url)
        return exists

    def temporary_folder(self, wanted: str | None) -> str:
        """Return `wanted`, or a new hidden path next to the target."""
        parent, name = os.path.split(self.place.url)
        return wanted or os.path.join(parent, temporary_name(f".{name}.", ".tmp"))

    def make(self, folder: str) -> None:
        """Create the temporary folder."""
        make_folder(folder)

    def existing(self) -> list[str]:
        """Return the files that are there, and those that another writer is adding."""
        return natural_order(list({*self.place.paths(), *pending_names(self.place.url)}))

    def add(self, names: Mapping[str, str], copy: Copy, folder: str) -> None:
        """Link the files into the temporary folder; those that are in the target already stay."""
        there = set(self.existing()) if self.mode == "append" else set()
        copy({path: name for path, name in names.items() if name not in there}, folder)

    def publish(self, staged: LocalSource, stored: Callable[[], None]) -> None:
        """Sync all files and move them to the target."""
        target = self.place.url
        with storage_errors(target, "write"):
            _sync(staged.root)
            exists = self.check()
            if exists and self.mode == "append":
                self._link(staged)
            elif exists:
                _exchange(staged.root, target)
            else:
                self._rename(staged)
            sync_folder(os.path.dirname(target))

    def _rename(self, staged: LocalSource) -> None:
        try:
            os.rename(staged.root, self.place.url)
        except OSError as error:  # the target is no longer empty
            if self.mode != "append" or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._link(staged)

    def _link(self, staged: LocalSource) -> None:
        files = sorted(natural_order(staged.paths()), key=lambda path: path in self.publish_last)
        folder, target = staged.root, self.place.url
        if self._replaces is None:
            link_together(folder, target, files)
            return
        with _locked_folder(target):
            replaced = list(filter(re.compile(self._replaces).fullmatch, os.listdir(target)))
            if not replaced:
                link_together(folder, target, files)
            elif len(files) == 1 and files == replaced:
                os.replace(os.path.join(folder, files[0]), os.path.join(target, files[0]))
            else:
                _link_in_place_of(replaced, files, folder, target)

    def extend(self, staged: LocalSource, index: str, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
        """Add the files to those of the target with the same names, if it is there.

        A target that is empty may be the root of a file system, which cannot be replaced.
        """
        self.check()
        target = self.place.url
        files = [path for path in natural_order(staged.paths()) if path != index]
        if os.path.isdir(target) or not self._appears(staged.root):
            extend_together(staged.root, target, files, index, adjust, self.publish_last)

    def _appears(self, folder: str) -> bool:
        """Move the folder to a target that does not exist; return False if another writer was first."""
        target = self.place.url
        with storage_errors(target, "write"):
            _sync(folder)
            try:
                os.rename(folder, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
            sync_folder(os.path.dirname(target))
        return True

    def state(self, extension: str) -> Listing:
        """Return the shards; those that another writer is adding do not count."""
        folder = self.place.url
        try:
            inode, names = os.stat(folder).st_ino, visible_paths(self.place)
        except OSError:
            return Listing(folder, 0, frozenset())
        return Listing(folder, inode, frozenset(name for name in names if name.lower().endswith(extension)))

    def was_made(self, files: Sequence[str], is_stored: bool) -> bool:
        """Return True if the target has a link to one of the files."""
        inodes = set(map(_inode, files)) - {None}
        return any(_inode(os.path.join(self.place.url, file)) in inodes for file in visible_paths(self.place))


def _inode(path: str) -> int | None:
    """Return the inode of a file; None if another run has removed it meanwhile."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_ino
    return None


def _sync(folder: str) -> None:
    for inner, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(inner, name), "rb") as file:
                sync_file(file.fileno())
        sync_folder(inner)


def _link_in_place_of(replaced: Sequence[str], files: Sequence[str], folder: str, target: str) -> None:
    """Link files in place of others; readers, also after a crash, never see some of both."""
    old = os.path.join(folder, REPLACED)
    os.mkdir(old)
    try:
        for name in replaced:
            os.rename(os.path.join(target, name), os.path.join(old, name))
        link_together(folder, target, files)
    except BaseException:
        for name in os.listdir(old):
            os.rename(os.path.join(old, name), os.path.join(target, name))
        raise


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


# -- at a URL -----------------------------------------------------------------------------------------------------


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
        return os.path.join(tempfile.gettempdir(), temporary_name("shardex-"))

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


# -- one file -----------------------------------------------------------------------------------------------------


class LocalFile(LocalPublication):
    """Publishes the only file of the temporary folder as the target itself, which is a file."""

    can_append = False

    def check(self) -> bool:
        """Return True if there is a file to replace."""
        return _check_file(self.place, self.mode, os.path.lexists(self.place.url))

    def publish(self, staged: LocalSource, stored: Callable[[], None]) -> None:
        """Sync the file and link it to the target, or replace the one that is there."""
        target, source = self.place.url, staged.path(_only_file(staged))
        _sync(staged.root)
        with storage_errors(target, "write"):
            (os.replace if self.mode == "overwrite" else os.link)(source, target)
            sync_folder(os.path.dirname(target))


class UploadedFile(Upload):
    """Publishes the only file of the temporary folder as one file at a URL."""

    def check(self) -> bool:
        """Return True if there is a file to replace."""
        folder, name = self._parent
        return _check_file(self.place, self.mode, name in folder.names(name))

    @property
    def _parent(self) -> tuple[Place, str]:
        folder, name = parent_of(self.place.url)
        return place_of(folder), name

    def publish(self, staged: LocalSource, stored: Callable[[], None]) -> None:
        """Store the file, which appears as a whole."""
        (folder, name), data = self._parent, staged.map(_only_file(staged))
        if self.mode == "overwrite":
            folder.put(name, data)
        elif not folder.put_if_absent(name, data):
            _check_file(self.place, self.mode, exists=True)


def _check_file(place: Place, mode: str, exists: bool) -> bool:
    if mode == "append":
        raise ArgumentError(
            f'{place.url}: expected mode "create" or "overwrite" for one file, got "append"; samples are added to '
            "folders of shards: write to a name without extension, and choose the format with format="
        )
    if mode not in MODES:
        return check_mode(place, mode)
    if exists and mode == "create":
        problem = 'a file exists there already; pass mode="overwrite" to replace it'
        raise AlreadyExistsError(errno.EEXIST, problem, place.url)
    return exists


def _only_file(staged: LocalSource) -> str:
    paths = staged.paths()
    if len(paths) != 1:
        raise ArgumentError(f"expected a format whose samples are in one file, got {len(paths)} files; write a folder")
    return paths[0]


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
    opened (`append_together.visible_paths`); readers that name single files see each as soon as it is uploaded.

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


def publication_at(
    path: str | os.PathLike[str], mode: str = "create", owned: str = ".*", *, one_file: bool = False, **options: Any
) -> Publication:
    """Return how files are published in a local folder or at a URL, or with `one_file` as the target itself.

    The other arguments are those of `Publication`.
    """
    place = place_of(path)
    if place.is_remote:
        return (UploadedFile if one_file else Upload)(place, mode, owned, **options)
    # The resolved path, so that a symbolic link to the folder stays a link.
    target = LocalSource(os.path.realpath(place.url))
    return (LocalFile if one_file else LocalPublication)(target, mode, owned, **options)
