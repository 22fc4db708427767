"""Files that are added to a folder together, and bytes that are added to the ends of its files together.

Names appear in a folder one by one. A writer that adds several files therefore first writes a record with their names,
``.shardex/append-000007.pending``, then links the files, and then renames the record to ``append-000007.done``: this
rename publishes them (`link_together`). Readers leave out the files that a pending record names (`visible_paths`), so
they see all files of an append or none, also on read-only media and in a copy of the folder.

A writer that was killed leaves a pending record, which is no longer locked. The next writer removes the files of that
append (`undo_unfinished`). The record of the last finished append stays: as numbers are never used twice, readers
notice when files were added while they listed the folder, and list it again.

At a URL, where files are uploaded one by one, the claim file of the writer (`publication.put_claimed`) has the same
purpose.

Bytes are added to several files, of which one is an index: only bytes that it names belong to the dataset. The other
files are extended in place first, then the index is replaced by a longer one: this rename publishes the new bytes
(`extend_together`). Before the first byte is written, the sizes of all files are noted in the lock file
``.shardex/extend.lock``. A writer that was killed leaves it; the next one cuts the files to these sizes, unless the
index was replaced already.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

from shardex.errors import AlreadyExistsError, FormatError, NotFoundError, SourceError, storage_errors
from shardex.sources import LocalSource, Source, link_or_rename, locks, make_folder, sync_file, sync_folder

FOLDER = ".shardex"
CLAIM = f"{FOLDER}/claim"
"""The file that a writer creates before it uploads the first file, and removes after the last."""
_RECORD = re.compile(r"append-(\d+)\.(pending|done)")
_INSIDE = re.compile(rf".+/{re.escape(FOLDER)}/{_RECORD.pattern}")
"""Path of a record of a folder inside of another one."""
_PENDING = re.compile(rf"(.*/|){re.escape(FOLDER)}/(append-\d+\.pending|claim)")
_MOST_LISTINGS = 100
_ABANDONED_AFTER = 3600.0
"""Seconds after which a record counts as abandoned on a file system without locks."""


# -- reading ------------------------------------------------------------------------------------------------------


def visible_paths(source: Source) -> list[str]:
    """Return the paths of all files, without those of appends that are not finished.

    >>> from shardex.sources.memory import MemorySource
    >>> record = b'{"record": 6, "files": {"b": 7}}'
    >>> visible_paths(MemorySource({"a": b"", "b": b"", ".shardex/append-000001.pending": record}))
    ['.shardex/append-000001.pending', 'a']
    """
    inside = set[str]()
    for _ in range(_MOST_LISTINGS):
        before, before_inside = _records(source), inside
        paths = source.paths()
        if source.data_folder is not None:
            inside = {path for path in paths if FOLDER in path and _INSIDE.fullmatch(path)}
        _refuse_claim(source, paths)
        with suppress(NotFoundError):  # a record: the append was finished meanwhile
            hidden = _hidden(source, paths)
            if before == _records(source) and inside == before_inside:
                return [path for path in paths if path not in hidden] if hidden else paths
    raise _always_changing(source.url)


def visible_matches(expand: Callable[[], list[str]]) -> list[str]:
    """Return the local files that `expand` lists, without those of appends to their folders that are not finished."""
    found = expand()
    for _ in range(_MOST_LISTINGS):
        before = _records_beside(found)
        if not any(before.values()):
            return found
        found = expand()  # again, because an append may have ended before its record was listed
        with suppress(NotFoundError):  # a record: the append was finished meanwhile
            hidden = {os.path.join(folder, name) for folder in before for name in _pending_files(folder)}
            if before == _records_beside(found):
                return [path for path in found if path not in hidden]
    raise _always_changing(", ".join(before))


def _records_beside(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the records in the folder of each file."""
    return {folder: _records(LocalSource(folder)) for folder in {os.path.dirname(path) for path in paths}}


def _pending_files(folder: str) -> Iterator[str]:
    place = LocalSource(folder)
    for record in _pending_records(place):
        yield from _unpublished(place, "", record)


def _always_changing(where: str) -> SourceError:
    return SourceError(errno.EAGAIN, "files are added to it without a pause; open it again", where)


def pending_names(folder: str) -> set[str]:
    """Return the names in the pending records of a local folder, whether these files exist or not."""
    place = LocalSource(folder)
    names: set[str] = set()
    for path in _pending_records(place):
        with suppress(NotFoundError):  # it was finished meanwhile
            names |= _decode(place, path).files.keys()
    return names


def _unpublished(source: Source, root: str, path: str) -> Iterable[str]:
    """Return the names in a pending record, relative to `root`, without files that another writer has published.

    Those have other inodes, which are compared unless the folder is remote or a copy.
    """
    found = _decode(source, path)
    if _inode(source.full_name(path)) != found.record:
        return found.files
    return [name for name, inode in found.files.items() if _inode(os.path.join(source.url, root, name)) == inode]


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def _records(source: Source) -> list[str]:
    """Return the names of all records of a local folder; none for remote files, to which nothing is appended."""
    names: list[str] = []
    if (folder := source.data_folder) is not None:
        with suppress(OSError):
            names = os.listdir(os.path.join(folder, FOLDER))
    return sorted(filter(_RECORD.fullmatch, names))


def _pending_records(place: LocalSource) -> list[str]:
    return [f"{FOLDER}/{name}" for name in _records(place) if name.endswith(".pending")]


def _hidden(source: Source, paths: Sequence[str]) -> set[str]:
    """Return the paths that are named by a pending record among them, at any depth."""
    found: set[str] = set()
    for record in filter(None, map(_PENDING.fullmatch, (path for path in paths if FOLDER in path))):
        root = record[1]
        if record[2] != "claim":
            found.update(root + name for name in _unpublished(source, root, record[0]))
        elif root:
            found.update(path for path in paths if path.startswith(root))
    return found


def _refuse_claim(source: Source, paths: Sequence[str]) -> None:
    if CLAIM in paths:
        problem = (
            "a writer is still writing here, or was killed and left this file; wait, or remove all files here and "
            "write them again"
        )
        raise NotFoundError(errno.ENOENT, problem, f"{source.url}/{CLAIM}")


class _Record(msgspec.Struct):
    record: int
    """Inode of the record itself; in a copy of the folder it is another one, and the inodes have no meaning."""
    files: dict[str, int]
    """Name and inode of each file that is added."""


def _decode(source: Source, path: str) -> _Record:
    try:
        return msgspec.json.decode(bytes(source.load(path)), type=_Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise FormatError(
            f"{os.path.join(source.url, path)}: expected the names of files that a writer was adding, got something "
            "else; if no writer is running, remove this file and the files that were added last"
        ) from None


# -- writing ------------------------------------------------------------------------------------------------------


def link_together(source: str, target: str, files: Sequence[str]) -> None:
    """Link files of a folder into another one: all of them or none, also if the process is killed meanwhile.

    A file that exists is never replaced.
    """
    if len(files) < 2:
        _link(source, target, files)
        return
    for file in files:
        if os.path.lexists(full := os.path.join(target, file)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), full)
    records = os.path.join(target, FOLDER)
    with open(draft := os.path.join(source, "append.record"), "xb") as record:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(record, fcntl.LOCK_EX)
        inodes = {file: os.stat(os.path.join(source, file)).st_ino for file in files}
        record.write(msgspec.json.encode(_Record(os.fstat(record.fileno()).st_ino, inodes)))
        record.flush()
        sync_file(record.fileno())
        pending = _publish_record(draft, records)
        try:
            _link(source, target, files)
            os.rename(pending, _done(pending))
        except BaseException:
            with suppress(OSError):  # the record stays pending, unless everything was undone
                _undo(LocalSource(target), inodes)
                os.rename(pending, _done(pending))
            raise
        with suppress(FileNotFoundError):
            sync_folder(records)
    _remove_older(records, pending)


def _link(source: str, target: str, files: Sequence[str]) -> None:
    folders = set()
    for file in files:
        full = os.path.join(target, file)
        make_folder(folder := os.path.dirname(full))
        link_or_rename(os.path.join(source, file), full)  # never replaces a file; the inode stays the same
        folders.add(folder)
    for folder in folders:
        sync_folder(folder)


def _done(pending: str) -> str:
    return pending.removesuffix(".pending") + ".done"


def _number(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _publish_record(draft: str, records: str) -> str:
    """Publish a record under the next free number, and return its path."""
    while True:
        make_folder(records)  # again, if another writer has just forgotten its appends
        with suppress(FileExistsError, *([FileNotFoundError] if os.path.exists(draft) else [])):
            found = filter(_RECORD.fullmatch, os.listdir(records))
            path = os.path.join(records, f"append-{max(map(_number, found), default=0) + 1:06d}.pending")
            link_or_rename(draft, path)
            sync_folder(records)
            return path


def _remove_older(records: str, pending: str) -> None:
    with suppress(OSError):  # leftovers do no harm
        for name in filter(_RECORD.fullmatch, os.listdir(records)):
            if name.endswith(".done") and _number(name) < _number(os.path.basename(pending)):
                os.unlink(os.path.join(records, name))


def forget_appends(target: str) -> None:
    """Remove the record of the last finished append, and the folder of records if it has nothing else.

    Only for shards that are read by their names: who lists the folder during the whole append may now miss a file.
    """
    records = os.path.join(target, FOLDER)
    with suppress(OSError):  # leftovers do no harm
        for name in _records(LocalSource(target)):
            if name.endswith(".done"):
                os.unlink(os.path.join(records, name))
        os.rmdir(records)


def undo_unfinished(target: str) -> None:
    """Remove the files of appends whose writer was killed; appends that still run are left alone."""
    place = LocalSource(target)
    for path in _pending_records(place):
        full = os.path.join(target, path)
        with storage_errors(full, "undo"), suppress(FileNotFoundError), open(full, "r+b") as record:
            found = _decode(place, path)
            is_original = found.record == os.fstat(record.fileno()).st_ino
            # If the writer ended after the record was opened, the lock is free, but the record has another name.
            if is_original and _is_abandoned(record) and _inode(full) == found.record:
                _undo(place, found.files)
                os.rename(full, _done(full))
                sync_folder(os.path.dirname(full))


def _is_abandoned(record: IO[Any]) -> bool:
    """Return whether the writer of a record is dead: it holds a lock while it lives."""
    try:
        fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - os.fstat(record.fileno()).st_mtime > _ABANDONED_AFTER
    return True


def _undo(place: LocalSource, inodes: dict[str, int]) -> None:
    """Remove the files that were linked; files of other writers under their names have other inodes."""
    inside = os.path.join(os.path.realpath(place.root), "")
    folders = set()
    for name, inode in inodes.items():
        full = place.path(name)
        if not os.path.realpath(full).startswith(inside):
            continue
        if _inode(full) == inode:
            os.unlink(full)
        folders.add(os.path.dirname(full))  # also one that was made, if the writer was killed before it linked a file
    for folder in folders:
        with suppress(FileNotFoundError):
            sync_folder(folder)
        _remove_empty(folder, place.root)


def _remove_empty(folder: str, root: str) -> None:
    """Remove a folder, and those around it up to `root`, while they have no files."""
    while folder != root:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:  # it has files
            return
        folder = os.path.dirname(folder)


# -- bytes at the ends of files -----------------------------------------------------------------------------------

LOCK = f"{FOLDER}/extend.lock"
_INDEX_DRAFT = f"{FOLDER}/extend.index"


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
        with locks.locked_file(os.path.join(target, LOCK)) as lock:
            assert lock is not None
            if (left := _before(lock)) is not None:
                lock.stays = True  # until all files are whole
                _cut_back(target, left)
                lock.stays = False
            files = [file for file in files if file not in heads or not _is_same(source, target, file)]
            before = _Before(index, _size_of(target, index), {file: _size_of(target, file) for file in files})
            lock.stays = True
            lock.note(msgspec.json.encode(before))
            try:
                _make_index(source, target, before, adjust)
                for file in files:
                    _extend_file(os.path.join(source, file), os.path.join(target, file), before.sizes[file] or 0)
                sync_folder(target)
                os.replace(os.path.join(target, _INDEX_DRAFT), os.path.join(target, index))
            except BaseException:
                _cut_back(target, before)
                lock.stays = False
                raise
            lock.stays = False
            sync_folder(target)


def _before(lock: locks.LockedFile) -> _Before | None:
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


def _size_of(folder: str, file: str) -> int | None:
    try:
        return os.stat(os.path.join(folder, file)).st_size
    except FileNotFoundError:
        return None


def _make_index(source: str, target: str, before: _Before, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
    """Write the index with the new entries to a draft in the target."""
    with open(os.path.join(source, before.index), "rb") as file:
        added = adjust(file.read(), {name: size or 0 for name, size in before.sizes.items()})
    draft = os.path.join(target, _INDEX_DRAFT)
    if before.index_size is None:
        open(draft, "wb").close()
    else:
        shutil.copyfile(os.path.join(target, before.index), draft)
    with open(draft, "ab") as file:
        file.write(added)
        file.flush()
        sync_file(file.fileno())


def _extend_file(source: str, target: str, size: int) -> None:
    with open(source, "rb") as new, open(target, "ab") as file:
        file.truncate(size)
        shutil.copyfileobj(new, file, 1 << 20)
        file.flush()
        sync_file(file.fileno())


def _cut_back(target: str, before: _Before) -> None:
    """Restore the sizes, unless the index was replaced: then everything was published."""
    if _size_of(target, before.index) == before.index_size:
        for file, size in before.sizes.items():
            full = os.path.join(target, file)
            if size is None:
                with suppress(FileNotFoundError):
                    os.unlink(full)
            elif (_size_of(target, file) or 0) > size:
                os.truncate(full, size)
        sync_folder(target)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(target, _INDEX_DRAFT))
