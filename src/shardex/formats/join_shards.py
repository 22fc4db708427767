"""Joins the parts of a job that are folders of numbered shards: links or copies them under their final numbers."""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shardex.errors import SchemaError
from shardex.features import Features
from shardex.files import Listing, Stage, natural_order, publication_at
from shardex.jobs import FinishedPart, JobFolder

STAGE = "joined"
"""Name of the temporary folder inside the job folder."""


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
        if began is not None and _has_copies(folder, parts, prefix, began.added(self.state(path))):
            raise folder.published_meanwhile()
        self._check_heads(folder, parts)
        commit = folder.begin_commit()
        folder.place.remove_folder(STAGE)  # of a run that was killed
        stage = Stage(
            path,
            mode,
            self.owned,
            publish_last=self.publish_last,
            folder=folder.path(STAGE),
            owner=commit.number,
        )
        stage.add(_final_names(parts, prefix, stage.next_number(prefix, self.extension)), folder.copy_out)
        stage.publish(stored=lambda: folder.note(msgspec.structs.replace(commit, copied=True)))

    def state(self, path: str) -> Any:
        """Return which shards are there; None at a URL, where nothing is added to shards."""
        return publication_at(path).state(self.extension)

    def can_append(self, path: str) -> bool:
        """Return True if shards may be added to those at `path`."""
        return publication_at(path).can_append

    def was_joined(self, folder: JobFolder, parts: Sequence[FinishedPart], path: str) -> bool:
        """Return True if the parts of a job were published: the target has the files of the first one."""
        if (commit := folder.commit) is None:
            return False
        ours = [folder.path(f"{part.folder}/{file}") for part in parts[:1] for file in part.files]
        return publication_at(path).was_made(ours, commit.copied)

    def part_options(self, path: str, mode: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of the user."""
        return options

    def check(self, path: str, mode: str) -> None:
        """Raise an error if files at `path` cannot stay or be replaced."""
        publication_at(path, mode, self.owned).check()

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


def _are_equal(one: str, other: str) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:  # one of them was removed meanwhile
        return False
