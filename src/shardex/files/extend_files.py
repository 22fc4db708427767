"""Adds bytes to the ends of several files of a folder: all of them or none, also if the process is killed.

One of the files is an index: only bytes that it names belong to the dataset. The other files are extended in place
first, then the index is replaced by a longer one: this rename publishes the new bytes (`extend_together`).

Before the first byte is written, the sizes of all files are noted in the lock file ``.shardex/extend.lock``. A writer
that was killed leaves it; the next one cuts the files to these sizes, unless the index was replaced already.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from shardex.errors import AlreadyExistsError, storage_errors
from shardex.files.append_records import FOLDER
from shardex.sources import LockedFile, locked_file, make_folder, sync_file, sync_folder

LOCK = f"{FOLDER}/extend.lock"
_DRAFT = f"{FOLDER}/extend.index"


class _Before(msgspec.Struct):
    """Sizes of files before they are extended; None for those that do not exist."""

    index: str
    index_size: int | None
    sizes: dict[str, int | None]


def extend_together(
    source: str,
    target: str,
    files: Sequence[str],
    index: str,
    adjust: Callable[[bytes, Mapping[str, int]], bytes],
    heads: Sequence[str] = (),
) -> None:
    """Append files of a folder to those with the same names in another one, and then the index to its index.

    `adjust` returns the bytes to append to the index: it gets those in `source` and the sizes of all files before, as
    other writers may have extended them meanwhile. If it raises, nothing is changed. Files in `heads` describe the
    others: one that exists must be the same, and stays.
    """
    with storage_errors(target, "append to"):
        make_folder(os.path.join(target, FOLDER))
        with locked_file(os.path.join(target, LOCK)) as lock:
            assert lock is not None
            if (left := _before(lock)) is not None:
                lock.stays = True  # until all files are whole
                _undo(target, left)
                lock.stays = False
            files = [file for file in files if file not in heads or not _is_same(source, target, file)]
            before = _Before(index, _size(target, index), {file: _size(target, file) for file in files})
            lock.stays = True
            lock.note(msgspec.json.encode(before))
            try:
                _make_index(source, target, before, adjust)
                for file in files:
                    _extend(os.path.join(source, file), os.path.join(target, file), before.sizes[file] or 0)
                sync_folder(target)
                os.replace(os.path.join(target, _DRAFT), os.path.join(target, index))
            except BaseException:
                _undo(target, before)
                lock.stays = False
                raise
            lock.stays = False
            sync_folder(target)


def _before(lock: LockedFile) -> _Before | None:
    """Return what a killed writer has noted; None if it was killed earlier, when it had changed no file yet."""
    if lock.left and not lock.is_locked:
        lock.stays = True
        problem = "another writer is appending here, or was killed; if none is running, remove this file"
        raise AlreadyExistsError(errno.EEXIST, problem, lock.path)
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(lock.left, type=_Before)
    return None


def _is_same(source: str, target: str, file: str) -> bool:
    """Return whether a file exists in the target, too; raise if it has another content there."""
    path = os.path.join(target, file)
    try:
        with open(path, "rb") as there, open(os.path.join(source, file), "rb") as here:
            if there.read() == here.read():
                return True
    except FileNotFoundError:
        return False
    raise AlreadyExistsError(errno.EEXIST, "another writer wrote samples with other fields here meanwhile", path)


def _size(folder: str, file: str) -> int | None:
    try:
        return os.stat(os.path.join(folder, file)).st_size
    except FileNotFoundError:
        return None


def _make_index(source: str, target: str, before: _Before, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
    """Write the index with the new entries to a draft in the target."""
    with open(os.path.join(source, before.index), "rb") as file:
        added = adjust(file.read(), {name: size or 0 for name, size in before.sizes.items()})
    draft = os.path.join(target, _DRAFT)
    if before.index_size is None:
        open(draft, "wb").close()
    else:
        shutil.copyfile(os.path.join(target, before.index), draft)
    with open(draft, "ab") as file:
        file.write(added)
        file.flush()
        sync_file(file.fileno())


def _extend(source: str, target: str, size: int) -> None:
    with open(source, "rb") as new, open(target, "ab") as file:
        file.truncate(size)
        shutil.copyfileobj(new, file, 1 << 20)
        file.flush()
        sync_file(file.fileno())


def _undo(target: str, before: _Before) -> None:
    """Restore the sizes, unless the index was replaced: then everything was published."""
    if _size(target, before.index) == before.index_size:
        for file, size in before.sizes.items():
            full = os.path.join(target, file)
            if size is None:
                with suppress(FileNotFoundError):
                    os.unlink(full)
            elif (_size(target, file) or 0) > size:
                os.truncate(full, size)
        sync_folder(target)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(target, _DRAFT))
