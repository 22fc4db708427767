"""Joins the parts of a job that are folders of numbered shards: links or copies them under their final numbers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardex.files import Stage, put_claimed
from shardex.jobs import FinishedPart, JobFolder
from shardex.schema import Features
from shardex.sources import place_of

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
        prefix: str | None = None,
        **options: Any,
    ) -> None:
        """Publish the parts at `path`; of the options of the writer only `prefix` matters here."""
        prefix = prefix or self.prefix
        if place_of(path).is_remote:
            return _copy_to_url(folder, _final_names(parts, prefix, 0), path, self.publish_last)
        temporary = folder.path(STAGE)
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        stage = Stage(path, mode, self.owned, publish_last=self.publish_last, folder=temporary)
        names = _final_names(parts, prefix, stage.next_number(prefix, self.extension))
        existing = set(stage.existing)
        folder.copy_out({inner: name for inner, name in names.items() if name not in existing}, temporary)
        stage.publish()


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


def _copy_to_url(folder: JobFolder, names: dict[str, str], path: str, publish_last: Sequence[str]) -> None:
    inner = {name: source for source, name in names.items()}

    def copy(some: Sequence[str]) -> None:
        folder.copy_out({inner[name]: name for name in some})

    put_claimed(place_of(path), list(inner), copy, publish_last)
