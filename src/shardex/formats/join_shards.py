"""Joins the parts of a job that are folders of numbered shards: links or copies them under their final numbers."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from shardex.errors import SchemaError
from shardex.features import Features
from shardex.files import CLAIM, Stage, check_target, natural_order, put_claimed, visible_paths
from shardex.jobs import Commit, FinishedPart, JobFolder
from shardex.sources import place_of

STAGE = "joined"
"""Name of the temporary folder inside the job folder."""


@dataclass(frozen=True)
class Listing:
    """The shards that a local folder has at one moment."""

    folder: str
    inode: int
    """That of the folder; 0 if there is none."""
    shards: frozenset[str]

    @classmethod
    def of(cls, folder: str, extension: str) -> Listing:
        """List a folder; shards that another writer is adding do not count."""
        try:
            inode, names = os.stat(folder).st_ino, visible_paths(place_of(folder))
        except OSError:
            return cls(folder, 0, frozenset())
        return cls(folder, inode, frozenset(name for name in names if name.lower().endswith(extension)))

    def added(self, later: Listing) -> Listing:
        """Return the shards that a later listing has and this one has not; all of them if the folder was replaced."""
        return replace(later, shards=later.shards - self.shards) if self.inode == later.inode else later


@dataclass(frozen=True)
class JoinShards:
    """Publishes the shards ``{prefix}-{number}{extension}`` of all parts of a job as one dataset.

    `owned` and `publish_last` are those of `Stage`. Files without a number are those of the first part.
    """

    owned: str
    extension: str
    prefix: str = "part"
    publish_last: Sequence[str] = ()

    def __call__(
        self,
        folder: JobFolder,
        parts: Sequence[FinishedPart],
        path: str,
        features: Features,
        *,
        mode: str,
        began: Listing | None = None,
        prefix: str | None = None,
        **options: Any,
    ) -> None:
        """Publish the parts at `path`; of the options of the writer only `prefix` matters here."""
        prefix = prefix or self.prefix
        if began is not None and _has_copies(folder, parts, prefix, began.added(Listing.of(path, self.extension))):
            raise folder.published_meanwhile()
        self._check_heads(folder, parts)
        commit = folder.begin_commit()
        if place_of(path).is_remote:
            return _copy_to_url(folder, _final_names(parts, prefix, 0), path, self.publish_last, commit)
        temporary = folder.path(STAGE)
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        stage = Stage(path, mode, self.owned, publish_last=self.publish_last, folder=temporary)
        names = _final_names(parts, prefix, stage.next_number(prefix, self.extension))
        existing = set(stage.existing)
        folder.copy_out({inner: name for inner, name in names.items() if name not in existing}, temporary)
        stage.publish()

    def state(self, path: str) -> Listing | None:
        """Return the shards of a local folder; None at a URL, where nothing is added to shards."""
        return None if (place := place_of(path)).is_remote else Listing.of(place.url, self.extension)

    def was_joined(self, folder: JobFolder, parts: Sequence[FinishedPart], path: str) -> bool:
        """Return True if the parts of a job were published: the target has links to the files of the parts."""
        place, commit = place_of(path), folder.commit
        if commit is None:
            return False
        if place.is_remote:
            return commit.copied and bool(paths := place.paths()) and CLAIM not in paths
        ours = [folder.path(f"{part.folder}/{file}") for part in parts[:1] for file in part.files]
        inodes = set(map(_inode, ours)) - {None}
        return any(_inode(os.path.join(place.url, file)) in inodes for file in visible_paths(place))

    def part_options(self, path: str, mode: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of the user."""
        return options

    def check(self, path: str, mode: str) -> None:
        """Raise an error if files at `path` cannot stay or be replaced."""
        check_target(place_of(path), mode, self.owned)

    def _check_heads(self, folder: JobFolder, parts: Sequence[FinishedPart]) -> None:
        """Raise an error if the files that describe the shards differ, so that no single one is right for all."""
        for name in self.publish_last:
            heads = [f"{part.folder}/{name}" for part in parts if name in part.files]
            if len(found := {bytes(head) for head in folder.place.for_each(folder.place.load, heads)}) > 1:
                raise SchemaError(
                    f"expected the same {name} in all parts of the job, got {len(found)} different ones, such as "
                    f"{max(found)!r:.200}: samples of one part may be much longer; write without workers"
                )


def _final_names(parts: Sequence[FinishedPart], prefix: str, first: int) -> dict[str, str]:
    """Return the final name of each file of the parts, by its path in the job folder."""
    numbered = re.compile(rf"{re.escape(prefix)}-(\d+)(\..+)")
    names: dict[str, str] = {}
    for part in parts:
        count = 0
        for file in part.files:
            inner = f"{part.folder}/{file}"
            if found := numbered.fullmatch(file):
                names[inner] = f"{prefix}-{first + int(found[1]):0{len(found[1])}d}{found[2]}"
                count = max(count, int(found[1]) + 1)
            elif part is parts[0]:
                names[inner] = file
        first += count
    return names


def _has_copies(folder: JobFolder, parts: Sequence[FinishedPart], prefix: str, listing: Listing) -> bool:
    """Return True if a listing has all shards of the parts, which have the same bytes in all runs of a job."""
    numbered = re.compile(rf"{re.escape(prefix)}-\d+\..+")
    ours = [folder.path(f"{part.folder}/{file}") for part in parts for file in part.files if numbered.fullmatch(file)]
    added = [
        os.path.join(listing.folder, name) for name in natural_order(list(listing.shards)) if numbered.fullmatch(name)
    ]
    return bool(ours) and any(
        all(map(_are_equal, ours, added[first : first + len(ours)])) for first in range(len(added) - len(ours) + 1)
    )


def _inode(path: str) -> int | None:
    """Return the inode of a file; None if another run has removed it meanwhile."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_ino
    return None


def _are_equal(one: str, other: str) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:  # one of them was removed meanwhile
        return False


def _copy_to_url(
    folder: JobFolder, names: dict[str, str], path: str, publish_last: Sequence[str], commit: Commit
) -> None:
    inner = {name: source for source, name in names.items()}

    def copy(some: Sequence[str]) -> None:
        folder.copy_out({inner[name]: name for name in some})

    def stored() -> None:
        folder.note(msgspec.structs.replace(commit, copied=True))

    put_claimed(place_of(path), list(inner), copy, publish_last, owner=commit.number, stored=stored)
