"""Publishes files in a local folder, by steps that the file system makes as a whole.

- a new dataset appears by one rename, an overwritten one by the exchange of two folders;
- appended files are synced and then linked into the existing folder, all of them or none (`append_records`), in place
  of others if `replaces` says so, or their bytes are added to existing files (`extend_files`).

Files that another writer has published at the same place in the meantime are replaced only in mode "overwrite".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from shardex.errors import AlreadyExistsError, storage_errors
from shardex.files.append_records import link_together, pending_names, undo_unfinished, visible_paths
from shardex.files.extend_files import extend_together
from shardex.files.patterns import natural_order
from shardex.files.publication import Copy, Publication, check_mode
from shardex.sources import LocalSource, make_folder, sync_file, sync_folder


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
        return wanted or os.path.join(parent, f".{name}.{secrets.token_hex(6)}.tmp")

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
    old = os.path.join(folder, ".replaced")
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
