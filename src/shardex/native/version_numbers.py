"""Version numbers of a native dataset: which versions exist, and the rule that no number is used twice.

A writer commits by put-if-absent of the name of its manifest, `_shardex/00000007.json`. A number stays used only as
long as that name exists, and a writer may try any number that was the next one when it began, however long ago. So
`remove_versions` does not delete the name of a removed version: it replaces the manifest with a *tombstone*, a few
bytes under the same name, and put-if-absent fails on it like on a manifest.

Tombstones do not pile up. When a block of 1000 numbers has only tombstones, and 1000 later numbers are used, the block
is *closed*: first a file says so (`_shardex/00000999.closed`, which is never removed), then its names are removed. A
number of a closed block looks unused, so `claim_number` looks for that file after each successful put-if-absent:

- Without the file every used number of the block has its name, so the number was never used: the commit is valid.
- With the file, the names of the block were tombstones before it was created. If the name holds the new manifest, it
  was created after the block was closed: the commit is void. It was never visible, because higher numbers exist. If it
  holds a tombstone, its checksum says whether it replaced the new manifest. If the name is gone, the outcome is not
  known, which is an error; for that the writer must stop for the time of 1000 versions right after its put-if-absent.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from shardex.errors import (
    CommitConflict,
    NotFoundError,
    RemoteChangedError,
    ShardexError,
    SourceError,
    StorageFullError,
    TruncatedShardError,
)
from shardex.files import LATEST_EVERY, LATEST_VERSION, STORE_FOLDER, newest_manifests
from shardex.sources import ByteRange, Place, Source, place_of

BLOCK = 1000
"""Numbers in a block; as many later numbers are used when a block is closed."""
_NAME = re.compile(rf"{STORE_FOLDER}/([0-9]{{8}})\.(json|closed)")

_CHECKSUM = re.compile(rb'\{"(?:xxh3|removed)":"([0-9a-f]{16})"')
_HEAD = 64
"""Bytes at the beginning of a manifest or a tombstone that contain its checksum."""

Result = TypeVar("Result")


class _Owner(NamedTuple):
    """The file under the name of a version: a manifest, or the tombstone of one."""

    is_tombstone: bool
    checksum: str
    """Checksum of the manifest; empty if it is not known."""


def manifest_path(version: int) -> str:
    """Return the path of a version's manifest.

    >>> manifest_path(7)
    '_shardex/00000007.json'
    """
    return f"{STORE_FOLDER}/{version:08d}.json"


def is_version_name(path: str) -> bool:
    """Return True for the names that belong to version numbers: manifests, tombstones, closed blocks, the latest one.

    >>> is_version_name("_shardex/00000999.closed"), is_version_name("_shardex/x.json")
    (True, False)
    """
    return path == LATEST_VERSION or _NAME.fullmatch(path) is not None


def latest_version(source: Source) -> int:
    """Return the number of the current version of a dataset, 0 if there is none."""
    return latest_of(newest_manifests(source))


def latest_of(paths: Iterable[str]) -> int:
    """Return the highest number of a version among paths of manifests, 0 if there is none.

    >>> latest_of(["_shardex/00000007.json", "_shardex/00000012.json", "_shardex/x"])
    12
    """
    return max(_numbers(paths)[0], default=0)


def at_latest(source: Source, read: Callable[[int], Result], version: int | None = None) -> Result:
    """Return `read(version)`, by default for the latest version; again for the latest if `clean` removed that one."""
    version = latest_version(source) if version is None else version
    while True:
        try:
            return read(version)
        except NotFoundError:
            before, version = version, latest_of(source.paths(STORE_FOLDER + "/"))
            if version == before:
                raise


def versions_in(source: Source) -> list[int]:
    """Return the numbers of the versions that exist, damaged or not, in ascending order."""
    return list(_existing(source, *_listed(source)))


def is_tombstone(data: bytes) -> bool:
    """Return True if the content of the file under the name of a version is a tombstone."""
    return data.startswith(b'{"removed":')


def is_closed(source: Source, version: int) -> bool:
    """Return True if the block of a version number is closed: all versions of the block were removed."""
    try:
        source.stat(_closed_path(_block(version)))
    except NotFoundError:
        return False
    except SourceError:  # a writer asks after it has published, and an error would say that it has not: look again
        return _block(version) in _listed(source)[1]
    return True


def claim_number(place: Place, version: int, checksum: str, manifest: bytes) -> bool:
    """Publish a manifest with this checksum; return False if the number is used."""
    if not place.put_if_absent(manifest_path(version), manifest):
        owner = _owner(place, version)
        return owner is not None and owner.checksum == checksum  # the answer to an earlier attempt was lost
    if not is_closed(place, version):
        if version % LATEST_EVERY == 0 and place.data_folder is not None:
            with suppress(ShardexError):  # the version is published; without the file, readers list the folder
                place.put(LATEST_VERSION, b"%d\n" % version)
        return True
    owner = _owner(place, version)
    if owner is None:
        raise CommitConflict(
            f"{place.url}: expected to publish version {version} at once, but others published and removed {BLOCK} "
            "versions meanwhile, so the outcome is not known; look for your changes in the latest version, and run "
            "them again if they are missing"
        )
    if not owner.is_tombstone:
        _remove(place, version)
    return owner.is_tombstone and owner.checksum == checksum


def remove_versions(place: Place, kept: int) -> list[int]:
    """Remove all versions before `kept`, durably, and return their numbers; the numbers stay used."""
    names, closed = _listed(place)
    existing = set(_existing(place, names, closed))
    full = {block for block in range((kept - BLOCK) // BLOCK) if block not in closed}
    due = [number for number in names if number < kept and (number in existing or _block(number) in full)]
    # Versions of shardex that deleted the names left gaps.
    first = BLOCK * (1 + max(full | closed, default=-1))
    due += sorted(set(range(max(1, first), kept)).difference(names))
    owners = dict(zip(due, place.for_each(lambda number: _owner(place, number), due), strict=True))
    # The manifest of a void commit must not become a tombstone, which stands for a valid one.
    closed |= {block for block in {_block(number) for number in due} if is_closed(place, BLOCK * block)}
    left = [number for number in due if _block(number) not in closed]
    place.for_each(lambda number: _bury(place, number, owners[number]), left)
    for block in sorted(full):
        with suppress(StorageFullError):
            place.put_if_absent(_closed_path(block), b"{}\n")
            closed.add(block)
    place.for_each(lambda number: _remove(place, number), [one for one in names if _block(one) in closed])
    return [number for number in left if (owner := owners[number]) is not None and not owner.is_tombstone]


def _bury(place: Place, number: int, owner: _Owner | None) -> None:
    """Put a tombstone in the place of a manifest, or of nothing; also on a full disk, so that `clean` makes space."""
    path, tombstone = manifest_path(number), _tombstone(owner)
    try:
        if owner is None:
            place.put_if_absent(path, tombstone)
        elif not owner.is_tombstone:
            place.put(path, tombstone)
    except StorageFullError:
        if owner is not None:
            place.overwrite_start(path, tombstone)


def shrink_tombstones(place: Place, numbers: Iterable[int]) -> None:
    """Free the space of manifests that became tombstones on a full disk, when there is space again."""
    for number in numbers:
        path = manifest_path(number)
        with suppress(NotFoundError, StorageFullError):
            if place.stat(path).size > _HEAD and (owner := _owner(place, number)) is not None and owner.is_tombstone:
                place.put(path, _tombstone(owner))


def _tombstone(owner: _Owner | None) -> bytes:
    return b'{"removed":"%s"}\n' % (owner.checksum if owner else "").encode()


def _remove(place: Place, number: int) -> None:
    with suppress(NotFoundError):
        place.remove(manifest_path(number))


def _owner(source: Source, number: int) -> _Owner | None:
    """Return what is under the name of a version; None if there is nothing."""
    path = manifest_path(number)
    while True:
        try:
            size = min(source.stat(path).size, _HEAD)
            data = bytes(source.read(path, [ByteRange(0, size)])[0])
            break
        except NotFoundError:
            return None
        except TruncatedShardError:  # it became a tombstone after `stat`
            continue
        except RemoteChangedError:  # the same; the source pins what it saw first
            source = place_of(source.url)
    match = _CHECKSUM.match(data)
    return _Owner(is_tombstone(data), match[1].decode() if match else "")


def _listed(source: Source) -> tuple[list[int], set[int]]:
    return _numbers(source.paths(STORE_FOLDER + "/"))


def _numbers(paths: Iterable[str]) -> tuple[list[int], set[int]]:
    """Return all numbers with a name, in ascending order, and the blocks that are closed."""
    numbers, closed = list[int](), set[int]()
    for match in filter(None, map(_NAME.fullmatch, paths)):
        if match[2] == "json":
            numbers.append(int(match[1]))
        else:
            closed.add(_block(int(match[1])))
    return sorted(numbers), closed


def _existing(source: Source, names: Sequence[int], closed: set[int]) -> Sequence[int]:
    """Return the numbers that are not those of removed versions."""
    numbers = [number for number in names if _block(number) not in closed]

    def is_removed(number: int) -> bool:
        owner = _owner(source, number)
        return owner is None or owner.is_tombstone

    if len(numbers) < 2 or not is_removed(numbers[0]):
        return numbers
    # Only the oldest versions are removed, and the latest one never is.
    return numbers[bisect_left(numbers, True, 0, len(numbers) - 1, key=lambda number: not is_removed(number)) :]


def _block(number: int) -> int:
    return number // BLOCK


def _closed_path(block: int) -> str:
    return f"{STORE_FOLDER}/{BLOCK * block + BLOCK - 1:08d}.closed"
