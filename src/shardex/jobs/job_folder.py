"""The finished parts of a job, next to its target, until they are published together.

The folder of a job that writes ``data/weather`` is ``data/.weather.<fingerprint>.job``. A part is written to a new path
in ``parts/`` and is finished when its record is in ``done/``; the record names the path. So a part may be run
several times, even at the same time by two runs of the same job: the first record counts, and paths without a record
are leftovers. `commit` notes that the parts are about to be published: a run that finds this note and the target knows
that only the removal of the folder is left to do.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec

from shardex.errors import FormatError
from shardex.sources import LocalSource, Place, child_of, parent_of, place_of

_RECORD = re.compile(r"done/(\d+)\.json")
_COMMIT = "commit.json"


class LeftOut(msgspec.Struct, frozen=True):
    """A sample that a job has left out because of an error."""

    row: int
    """Its position in the source."""
    place: str
    """Position and file, as error messages name them."""
    error: str


class FinishedPart(msgspec.Struct, frozen=True):
    """What is known of a finished part: where its files are in the job folder, and how many samples they hold."""

    folder: str
    files: list[str]
    rows: int
    left_out: list[LeftOut] = []


class JobFolder:
    """The folder of one job. It can be pickled: workers open it again by its path.

    >>> import tempfile; folder = JobFolder(tempfile.mkdtemp() + "/out", "0123")
    >>> part = folder.new_part(7); folder.finish(7, FinishedPart(part, ["a.txt"], rows=3)).rows
    3
    >>> sorted(folder.finished()), os.path.basename(folder.url)
    ([7], '.out.0123.job')
    >>> folder.remove(); os.path.exists(folder.url)
    False
    """

    def __init__(self, target: str, fingerprint: str) -> None:
        self._parent, self._target_name = parent_of(target)
        self.name = f".{self._target_name}.{fingerprint}.job"
        self.url = child_of(self._parent, self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, str)}  # no open places

    @cached_property
    def place(self) -> Place:
        """The folder as a place."""
        return place_of(self.url)

    @cached_property
    def _around(self) -> Place:
        """The place that holds the folder and the target: files are copied inside of it."""
        return place_of(self._parent)

    def path(self, inner: str) -> str:
        """Return the path or URL of something in the folder."""
        return child_of(self.url, inner)

    # -- parts ------------------------------------------------------------------------------------------------

    def new_part(self, number: int) -> str:
        """Return a path in the folder, never used before, for the files of a part."""
        return f"parts/{number:06d}-{secrets.token_hex(4)}"

    def finish(self, number: int, part: FinishedPart) -> FinishedPart:
        """Record a finished part; return the record that counts, which is that of another run if it was first."""
        path = f"done/{number:06d}.json"
        if self.place.put_if_absent(path, msgspec.json.encode(part)):
            return part
        self.discard(part.folder)
        return self._record(path)

    def discard(self, folder: str) -> None:
        """Remove the files of a part that is not finished."""
        if self.place.is_remote:
            self.place.remove_all(self.place.paths(f"{folder}/"))
        else:
            shutil.rmtree(os.path.join(self.url, folder), ignore_errors=True)

    def finished(self) -> dict[int, FinishedPart]:
        """Return the finished parts by their numbers."""
        records = [(int(found[1]), path) for path in self._paths("done/") if (found := _RECORD.fullmatch(path))]
        parts = self.place.for_each(lambda record: self._record(record[1]), records)
        return {number: part for (number, _), part in zip(records, parts, strict=True)}

    def _record(self, path: str) -> FinishedPart:
        data = bytes(self.place.load(path))
        try:
            return msgspec.json.decode(data, type=FinishedPart)
        except msgspec.MsgspecError as error:
            where = self.path(path)
            raise FormatError(f"{where}: expected the record of a finished part, got {error}; remove it") from None

    def _paths(self, prefix: str = "") -> list[str]:
        if self.place.is_remote or os.path.isdir(self.url):
            return self.place.paths(prefix)
        return []

    # -- the end ----------------------------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Note that the parts are about to be published."""
        self.place.put(_COMMIT, b"{}")

    @property
    def was_committing(self) -> bool:
        """True if a run was publishing the parts when it ended, or another one is."""
        return _COMMIT in self._paths(_COMMIT)

    def copy_out(self, names: Mapping[str, str], to: str | None = None) -> None:
        """Copy files inside the storage (link them, in a local folder): to the target, or to a local folder `to`."""
        if to is not None:
            inside = os.path.relpath(to, self._parent)
            return LocalSource(self._parent).copy_all({f"{self.name}/{a}": f"{inside}/{b}" for a, b in names.items()})
        self._around.copy_all({f"{self.name}/{a}": f"{self._target_name}/{b}" for a, b in names.items()})

    def remove(self, *, of_target: bool = False) -> None:
        """Remove the folder with all parts; with `of_target` also those of other jobs that wrote the same target."""
        for name in self._names() if of_target else [self.name]:
            _remove_local(os.path.join(self._parent, name)) if not self.place.is_remote else self._remove_remote(name)

    def _names(self) -> list[str]:
        """Return the names of all folders of jobs that write the target."""
        pattern = re.compile(rf"(\.{re.escape(self._target_name)}\.[0-9a-f]+\.job(\.removed)?)(/.*)?")
        around = self._around.paths(f".{self._target_name}.") if self.place.is_remote else os.listdir(self._parent)
        return sorted({found[1] for path in around if (found := pattern.fullmatch(path))})

    def _remove_remote(self, name: str) -> None:
        """Remove the records first, so that none of them names files that are gone."""
        paths = self._around.paths(f"{name}/")
        records = [path for path in paths if path.startswith(f"{name}/done/")]
        self._around.remove_all(records)
        self._around.remove_all(set(paths).difference(records))


def _remove_local(folder: str) -> None:
    """Rename a folder and then remove it, so that no run finds a part of it."""
    removed = folder if folder.endswith(".removed") else f"{folder}.removed"
    with suppress(OSError):  # it does not exist, or another run has removed it
        os.rename(folder, removed)
    shutil.rmtree(removed, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
