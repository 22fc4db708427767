"""The finished parts of a job, next to its target, until they are published together.

The folder of a job that writes ``data/weather`` is ``data/.weather.<fingerprint>.job``. A part is written to a new path
in ``parts/`` and is finished when its record is in ``done/``; the record names the path. So a part may be run
several times, even at the same time by two runs of the same job: the first record counts, and paths without a record
are leftovers.

The parts are published once, whoever is killed and when. ``commit.json`` is written before they are published and
identifies the publication (`Commit`): a run that finds it asks whether that has happened (`Join.was_joined`), and if
so only removes the folder. Runs on one machine publish one at a time (`JobFolder.locked`). The end of a job is one step
(`JobFolder.remove`): the folder is renamed to ``.removed``, and a run that finds this name knows that all is done.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import xxhash

from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    FormatError,
    NotFoundError,
    PathError,
    ShardexError,
    WorkerError,
)
from shardex.sources import Place, check_path, child_of, is_url, locks, parent_of, place_of, redact_url
from shardex.workers import unknown_objects

_RECORD = re.compile(r"done/(\d+)\.json")
_COMMIT = "commit.json"
_LINKED = "linked.json"
_BASE = "base.json"
_LONGEST_NAME = 200
"""Bytes of the name of the target in the name of the folder; a longer one is cut, as names have at most 255 bytes."""

Record = TypeVar("Record")
Held = TypeVar("Held")


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
    fields: dict[str, Any] | None = None
    """JSON of the features of its samples, if they are inferred."""


class Commit(msgspec.Struct, frozen=True):
    """The publication of a job: the same for all runs of the job."""

    number: str
    """The fingerprint of the job and a random number: that of the manifest, in the native format; that of the claim, at
    a URL."""
    version: int = 0
    """The latest version of a native target when the first run began to publish."""
    copied: bool = False
    """True if all files are at a URL and only the claim is left to remove."""
    published: bool = False
    """True if only the folder is left to remove."""


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

    alone = False
    """True while no other run of the job can publish, or be in the middle of it."""
    is_outdated = False
    """True if the parts cannot be published any more."""

    def __init__(self, target: str, fingerprint: str) -> None:
        if target.startswith("memory://"):
            raise ArgumentError(f"expected a folder or a bucket, which other processes can see, got {target!r}")
        self._parent, self._target_name = parent_of(place_of(target).url)  # without a password
        check_path(self._target_name if is_url(target) else f".{self._target_name}")  # files are copied beside it
        self._stem = _stem(self._target_name)
        self.fingerprint = fingerprint
        self.name = f"{self._stem}{fingerprint}.job"
        self.url = child_of(self._parent, self.name)
        self._host = os.uname().nodename

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, str)}  # no open places

    @cached_property
    def _shared(self) -> locks.SharedFolder:
        return locks.shared_folder(self._parent, self.name)

    @property
    def place(self) -> Place:
        """The folder as a place."""
        return self._shared.place

    @property
    def _around(self) -> Place:
        """The place that holds the folder and the target: files are copied inside of it."""
        return self._shared.around

    def path(self, inner: str) -> str:
        """Return the path or URL of something in the folder."""
        return child_of(self.url, inner)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the folder open while a run lasts, so that others see it. Leftovers of killed runs are removed."""
        with self._entered(self._shared.opened(self._sweep)):
            yield

    @contextmanager
    def _entered(self, block: AbstractContextManager[Held]) -> Iterator[Held]:
        """Enter a block that needs the folder; another run of the job may have removed it."""
        with ExitStack() as stack:
            try:
                held = stack.enter_context(block)
            except FileNotFoundError:
                raise self.published_meanwhile() from None
            yield held

    def _sweep(self) -> None:
        """Remove parts without a record, and records without a part."""
        names = self.place.names("parts/")
        records = {path: self.kept(path) for path in self.place.paths("done/") if path.endswith(".json")}
        kept = {path: os.path.basename(record.folder) for path, record in records.items() if record is not None}
        self.forget([path for path in kept if kept[path] not in names])
        for name in names.difference(kept.values()):
            self.place.remove_folder(f"parts/{name}")

    # -- parts ------------------------------------------------------------------------------------------------

    def new_part(self, number: int) -> str:
        """Return a path in the folder, never used before, for the files of a part."""
        if self._host != os.uname().nodename and self._shared.is_elsewhere():
            problem = f"{self.url}: expected to find the folder of the job on {os.uname().nodename}, it is not there"
            raise WorkerError(f"{problem}: write to a bucket or to a folder that all machines share")
        return f"parts/{number:06d}-{secrets.token_hex(4)}"

    def finish(self, number: int, part: FinishedPart) -> FinishedPart:
        """Record a finished part; return the record that counts, which is that of another run if it was first."""
        return self.keep(record_path(number), part)

    def keep(self, path: str, part: FinishedPart) -> FinishedPart:
        """Record a part at a path; return the record that counts, which is that of another run if it was first."""
        if (counts := self.agreed(path, part)) != part:
            self.discard(part.folder)
        return counts

    def kept(self, path: str) -> FinishedPart | None:
        """Return the part that is recorded at a path; None if there is none."""
        return self.noted(path, FinishedPart)

    def discard(self, folder: str) -> None:
        """Remove the files of a part that is not finished."""
        self.place.remove_folder(folder)

    def finished(self) -> dict[int, FinishedPart]:
        """Return the finished parts by their numbers."""
        records = [(int(found[1]), path) for path in self.place.paths("done/") if (found := _RECORD.fullmatch(path))]
        parts = self.place.for_each(lambda record: self.kept(record[1]), records)
        return {number: part for (number, _), part in zip(records, parts, strict=True) if part is not None}

    def count(self) -> int | None:
        """Return how many parts are finished, also those whose results were not taken; None if storage fails."""
        with suppress(ShardexError):
            return sum(_RECORD.fullmatch(path) is not None for path in self.place.paths("done/"))
        return None

    def forget(self, records: Iterable[str]) -> None:
        """Remove records, so that their parts are run again."""
        self.place.remove_all(records)

    def agreed(self, path: str, value: Record) -> Record:
        """Note a value for all runs of the job; return the one that counts, which is that of the first run."""
        if self.place.put_if_absent(path, msgspec.json.encode(value)):
            return value
        found = self.noted(path, type(value))
        return value if found is None else found

    def noted(self, path: str, type: type[Record]) -> Record | None:
        """Return what is noted at a path of the folder; None if there is nothing."""
        try:
            data = bytes(place_of(self.url).load(path))  # a new place: one that has read a remote file expects no other
            return msgspec.json.decode(data, type=type)
        except NotFoundError:
            return None
        except msgspec.MsgspecError as error:
            where = redact_url(self.path(path))
            raise FormatError(f"{where}: expected the record of a finished part, got {error}; remove it") from None

    # -- the end ----------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, parts: Mapping[int, FinishedPart]) -> Iterator[None]:
        """Let one run at a time publish these parts; raise an error if another one has done so."""
        with self._entered(self._shared.locked("commit.lock")) as alone:
            self.alone = alone
            try:
                if not self._has(parts):
                    raise self.published_meanwhile()
                yield
            finally:
                self.alone = False

    def published_meanwhile(self) -> AlreadyExistsError:
        """Return the error of a run that is too late: another one has published the parts."""
        return self.outdated("another run of the same job has written it meanwhile, and has removed the finished parts")

    def outdated(self, problem: str) -> AlreadyExistsError:
        """Return the error of a run whose parts cannot be published any more."""
        self.is_outdated = True
        return AlreadyExistsError(errno.EEXIST, problem, redact_url(child_of(self._parent, self._target_name)))

    def was_removed(self, error: BaseException, parts: Mapping[int, FinishedPart]) -> bool:
        """Return True if another run has removed this folder and its finished parts, or is removing them now."""
        missing = isinstance(error, FileNotFoundError) and self.url in str(error)
        return missing or (bool(parts) and not self._has(parts))

    def _has(self, parts: Mapping[int, FinishedPart]) -> bool:
        """Return True if the folder has these parts and their records; another run may have made others since."""
        if not set(map(record_path, parts)) <= set(self.place.paths("done/")):
            return False
        return {os.path.basename(part.folder) for part in parts.values()} <= self.place.names("parts/")

    @property
    def commit(self) -> Commit | None:
        """What identifies the publication, if a run has begun to publish the parts."""
        return self.noted(_COMMIT, Commit)

    def begin_commit(self, version: int = 0) -> Commit:
        """Note that the parts are about to be published, after this version of the target; return what counts."""
        return self.agreed(_COMMIT, Commit(self.fingerprint + secrets.token_hex(8), version))

    def note(self, commit: Commit) -> None:
        """Change what is noted about the publication."""
        self.place.put(_COMMIT, msgspec.json.encode(commit))

    @property
    def linked(self) -> list[str]:
        """Files of the target that a run has linked or is about to link, and that nothing names yet."""
        return self.noted(_LINKED, list[str]) or []

    @linked.setter
    def linked(self, paths: Iterable[str]) -> None:
        self.place.put(_LINKED, msgspec.json.encode(list(paths)))

    def copy_out(self, names: Mapping[str, str], to: str | None = None) -> None:
        """Copy files inside the storage (link them, in a local folder): to the target, or to a local folder `to`."""
        inside = self._target_name if to is None else os.path.relpath(to, self._parent)
        self._around.copy_all({f"{self.name}/{a}": f"{inside}/{b}" for a, b in names.items()})

    @property
    def is_over(self) -> bool:
        """True if the parts were published, and a run was killed while it removed the folder."""
        return self._shared.is_ended or ((commit := self.commit) is not None and commit.published)

    def remove(self) -> None:
        """Remove the folder after the parts were published. One step ends the job, the rest is cleaning up."""
        self._shared.end(self._note_end, self._discard)

    def _note_end(self) -> None:
        if (commit := self.commit) is not None and not commit.published:
            self.note(msgspec.structs.replace(commit, published=True))

    def explain(self, error: BaseException, parts: int, inputs: object = None) -> None:
        """Say in a note of an error what is kept for the next run; without a finished part nothing is kept.

        `inputs` is what the fingerprint was made of. If it has unknown objects, the next run could not find the folder.
        """
        if not (finished := self.count()):
            return None if finished is None else self.remove_unused()
        if unknown := unknown_objects(inputs):
            self.discard_all()
            note = (
                f"finished parts are not kept: the job cannot be continued, because it uses {unknown[0]}, and it is "
                "not known whether that is the same in the next run"
            )
        else:
            note = (
                f"{finished} of {parts} parts are finished and kept in {redact_url(self.url)}: run the same call again "
                "to continue, or remove this folder"
            )
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def remove_unused(self) -> None:
        """Remove the folder of a run that has finished no part, unless another run has opened it."""
        if self._shared.is_unused():
            self.discard_all()

    def discard_all(self) -> None:
        """Remove the folder and its parts, which were not published."""
        self._discard(self.name)

    def discard_others(self) -> None:
        """Remove the folders of all other jobs with the same target."""
        for name in self._names() - {self.name}:
            self._discard(name)

    def exists(self) -> bool:
        """Return True if a run of the job has created the folder, and none has removed it."""
        return self._shared.exists("fields.json")

    def _names(self) -> set[str]:
        """Return the names of the folders of all jobs with the same target, also of those that are being removed."""
        pattern = re.compile(rf"{re.escape(self._stem)}[0-9a-f]+\.job({re.escape(locks.SharedFolder.ended)})?")
        return set(filter(pattern.fullmatch, self._around.names(self._stem)))

    @property
    def base(self) -> int | None:
        """The version of the target that the job began with; None if it does not depend on one."""
        return self.noted(_BASE, int)

    @base.setter
    def base(self, version: int) -> None:
        self.place.put(_BASE, msgspec.json.encode(version))

    def _discard(self, name: str) -> None:
        """Remove the records first, so that none of them names files that are gone; what was noted comes last."""
        self._around.remove_folder(name, first=("done", "parts"), last=_COMMIT)


def job_names(target: str) -> frozenset[str]:
    """Return the names of the folders of all jobs of a target, as `JobFolder.name` has them."""
    names: set[str] = set()
    with suppress(PathError, OSError):  # beside the target no folder can be, or none can be listed
        names = JobFolder(target, "0")._names()
    return frozenset(name.removesuffix(locks.SharedFolder.ended) for name in names)


def discard_outdated(target: str, version: int) -> list[str]:
    """Remove the local folders of jobs that began with an older version of a target; return their paths.

    They cannot be continued: their run was killed, maybe just after it had published. Folders that a run on this
    machine has open stay, and those that cannot be read: they may be of another user.
    """
    removed: list[str] = []
    if is_url(target) or not os.path.isdir(target):
        return removed
    names: set[str] = set()
    with suppress(OSError):
        names = JobFolder(target, "0")._names()
    for name in sorted(names):
        one = JobFolder(target, "0")
        one.name, one.url = name, child_of(one._parent, name)
        with suppress(ShardexError):
            if (base := one.base) is None or base >= version:
                continue
            with one.opened():
                one.remove_unused()
            if not os.path.exists(one.url):
                removed.append(one.url)
    return removed


def record_path(number: int) -> str:
    """Return the path of the record of a part."""
    return f"done/{number:06d}.json"


def _stem(target: str) -> str:
    """Return the beginning of the names of all folders of jobs that write a target.

    >>> _stem("weather"), len(_stem("w" * 250))
    ('.weather.', 202)
    """
    encoded = os.fsencode(target)
    if len(encoded) > _LONGEST_NAME:
        digest = xxhash.xxh3_64_hexdigest(encoded)
        target = f"{encoded[: _LONGEST_NAME - 17].decode(errors='ignore')}-{digest}"
    return f".{target}."
