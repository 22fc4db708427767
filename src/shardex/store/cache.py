"""`cache`: runs a generator of samples once, stores them as a native dataset, and opens that from then on.

A cache is a native dataset whose metadata say what made it. A new one is published as the next version: readers that
have the old one open keep it, and a build that fails or is killed leaves it as it was. The process that builds holds a
lock (`sources.locked_file`), the others wait and then open what it has made. If it dies, the file of the lock stays:
that is how the next start knows that there may be leftovers. Only cleaning up relies on the lock, never the data.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack, closing, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from typing import Any

import msgspec

from shardex.dataset import Dataset, Writer
from shardex.dataset import open as open_dataset
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    CacheChangedError,
    FormatError,
    NotFoundError,
    ShardexError,
    VersionExpired,
    storage_errors,
)
from shardex.features import Features, hf_metadata
from shardex.files import STORE_FOLDER
from shardex.kernel import digest
from shardex.native import WRITER_FILE, is_intact, latest_version, read_manifest, versions_in
from shardex.progress import Bar
from shardex.samples import is_sample_class
from shardex.sources import LocalSource, absolute_path, is_url, locks, make_folder, path_text, redact_url
from shardex.store.encode_ahead import encode_ahead
from shardex.store.versions import GRACE, clean
from shardex.workers import function_fingerprint, unknown_objects

_building: ContextVar[frozenset[str]] = ContextVar("_building", default=frozenset())
"""Folders of the caches that this thread is building."""
_begun: deque[Iterator[Any]] = deque(maxlen=16)
"""Iterators that builds have begun; those of builtins cannot have weak references."""
_NOT_A_CACHE = "expected a cache, or no files, got a dataset that `cache` has not made; choose another folder"
_CHANGES = ("rebuild", "error")
_log = logging.getLogger("shardex")


def cache(
    generator: Callable[[], Iterable[Any]] | Iterable[Any],
    features: Any,
    folder: str | os.PathLike[str],
    *,
    fingerprint: str | None = None,
    workers: int | None = None,
    on_change: str = "rebuild",
    shard_size: int = 512 << 20,
    keep: int = 2,
    progress: bool | None = None,
) -> Dataset:
    """Run a generator once and store its samples in a folder; open the folder if they are there already.

    `generator` is a function that returns an iterator of samples (give it arguments with `functools.partial`), or an
    iterable; an iterator, which runs once, needs a `fingerprint`. Samples are those of `write`; of pairs
    ``(key, sample)`` the key is dropped. `features` are the fields.

    The samples are made again if `features` have changed, or the code of the function or a value that it uses;
    ``on_change="error"`` raises `CacheChangedError` instead. A text in `fingerprint` stands for the generator: then
    only another text counts as a change. Readers of the old samples can go on; the last `keep` versions stay.

    One process at a time builds the cache, others wait for it. The generator runs in this thread. `workers` threads
    encode images, audio and video. A shard has at most `shard_size` bytes.

    >>> import tempfile; folder = tempfile.mkdtemp() + "/squares"
    >>> def squares(count):
    ...     for n in range(count):
    ...         print("compute", n)
    ...         yield {"n": n, "square": n * n}
    >>> ds = cache(partial(squares, 2), {"n": int, "square": int}, folder)
    compute 0
    compute 1
    >>> cache(partial(squares, 2), {"n": int, "square": int}, folder)[1]
    DictSample(n=1, square=1)
    """
    place = _local_place(folder)
    origin = _Origin(generator, features, fingerprint)
    _check_options(on_change, shard_size, keep, workers)
    lock_path = _lock_path(place)
    found, problem = _find(place, origin)
    if found is not None:
        if os.path.exists(lock_path):
            _finish_interrupted(place, lock_path, keep)
        return found
    if not os.path.exists(lock_path):  # else another process may be building it
        _refuse_change(place, problem, on_change)
    _check_place(place)
    if place.root in _building.get():
        raise ArgumentError(f"{place.root}: expected a generator that does not use the cache which it makes")
    with storage_errors(place.root, "create"):
        make_folder(os.path.dirname(place.root))
    with locks.locked_file(lock_path, waiting=_Waiting(place.root, progress)) as lock:
        assert lock is not None
        builder = _Builder(place, lock, keep)
        found, problem = _find(place, origin)
        if found is None:
            _refuse_change(place, problem, on_change)
            builder.build(origin, workers=workers, shard_size=shard_size, progress=progress)
        elif lock.left:
            builder.clean_up()
    return open_dataset(place.root, format="arrow") if found is None else found


def _local_place(folder: str | os.PathLike[str]) -> LocalSource:
    path = path_text(folder)
    if is_url(path) and not path.startswith("file://"):
        raise ArgumentError(
            "expected a local folder for a cache, because one process at a time builds it, got "
            f"{redact_url(path)!r}; write a finished cache to a URL with write(url, dataset)"
        )
    if os.path.isfile(path := os.path.realpath(absolute_path(path))):
        raise AlreadyExistsError(errno.EEXIST, "expected a folder for a cache, got a file", path)
    return LocalSource(path)


def _check_options(on_change: str, shard_size: int, keep: int, workers: int | None) -> None:
    if on_change not in _CHANGES:
        raise ArgumentError(f"expected on_change to be one of {', '.join(map(repr, _CHANGES))}, got {on_change!r}")
    for name, value in (("shard_size", shard_size), ("keep", keep), ("workers", 1 if workers is None else workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"expected {name} to be a number from 1, got {value!r}")


# -- what makes the samples -------------------------------------------------------------------------------------


class _Origin:
    """A generator, the fields of its samples, and the fingerprint of both."""

    def __init__(self, generator: Any, features: Any, fingerprint: str | None) -> None:
        if not callable(generator) and not isinstance(generator, Iterable):
            raise ArgumentError(
                f"expected a function that returns an iterator of samples, or an iterable, got {generator!r}"
            )
        if fingerprint is not None and not isinstance(fingerprint, str):
            raise ArgumentError(f"expected fingerprint to be a text, got {fingerprint!r}")
        if fingerprint is None and isinstance(generator, Iterator) and not isgenerator(generator):
            raise ArgumentError(
                f"expected a function or an iterable, which can be run again, got the iterator {generator!r:.200}; "
                "pass a function that makes it, or a text that changes with the samples, fingerprint='v1'"
            )
        self.generator = generator
        self.schema = features
        self.features = Features.of(features)
        self.name = _name(generator)
        self._given = fingerprint

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What is stored with the samples."""
        return {
            "generator": self.name,
            "fingerprint": function_fingerprint(self.generator) if self._given is None else self._given,
            "features": digest(msgspec.json.encode(self.features.to_json())),
        }

    def check_known(self) -> None:
        """Raise an error if it can never be known whether the generator has changed."""
        if self._given is None and (unknown := unknown_objects(self.generator)):
            raise ArgumentError(
                f"expected a generator of which can be told whether it changed, but {self.name} uses {unknown[0]}; "
                "pass a function that makes the generator, or a text that changes with the samples, fingerprint='v1'"
            )

    def samples(self, where: str) -> Generator[Any]:
        """Run the generator; yield its samples without keys. Its errors get a note with the number of the sample."""
        number = 0
        try:
            is_function = callable(self.generator) and not isinstance(self.generator, Iterable)
            made = self.generator() if is_function else self.generator
            if not isinstance(made, Iterable):
                raise ArgumentError(f"expected {self.name} to return an iterator of samples, got {made!r}")
            made = made.stored if isinstance(made, Dataset) else made  # media are copied as they are
            if isinstance(made, Iterator):
                _begin(made, self.name)
            with ExitStack() as stack:
                if isgenerator(made):
                    stack.callback(made.close)
                for one in made:
                    yield _without_key(one)
                    number += 1
        except Exception as error:
            error.add_note(f"raised by {self.name} at sample {number}; {where} is as it was before")
            raise


def _name(generator: Any) -> str:
    if isinstance(generator, partial):
        return _name(generator.func)
    return str(getattr(generator, "__qualname__", None) or type(generator).__qualname__)


def _begin(iterator: Iterator[Any], name: str) -> None:
    """Raise an error if an iterator was begun before: its first samples are gone, and the rest would look complete."""
    if isgenerator(iterator):
        used = getgeneratorstate(iterator) != GEN_CREATED
    else:
        used = any(one is iterator for one in _begun)
    if used:
        raise ArgumentError(
            f"expected a generator that has not begun, but some samples of {name} were taken before; make a new one, "
            "or pass a function that makes it"
        )
    if not isgenerator(iterator):
        _begun.append(iterator)


def _without_key(one: Any) -> Any:
    """Return the sample of a pair of key and sample."""
    if type(one) is tuple and len(one) == 2 and (isinstance(one[1], Mapping) or is_sample_class(type(one[1]))):
        return one[1]
    return one


# -- what is there ----------------------------------------------------------------------------------------------


def _find(place: LocalSource, origin: _Origin) -> tuple[Dataset | None, str]:
    """Return the cache if it is valid; otherwise a text about how it differs, empty if there are no files."""
    if not latest_version(place):
        return None, ""
    try:
        found = open_dataset(place.root, format="arrow")
    except FormatError as error:
        _check_made_by_cache(place, error)
        return None, f"a valid cache, got damaged files ({error})"
    made_by = found.metadata.get(hf_metadata.MADE_BY)
    if not isinstance(made_by, Mapping):
        raise AlreadyExistsError(errno.EEXIST, _NOT_A_CACHE, place.root)
    if made_by.get("features") != origin.metadata["features"]:
        return None, _other_fields(origin.features, found.features)
    if made_by.get("fingerprint") != origin.metadata["fingerprint"]:
        wanted, got = origin.metadata, dict(made_by)
        return None, (
            f"samples of {wanted['generator']} with the fingerprint {wanted['fingerprint']}, got those of "
            f"{got.get('generator')} with {got.get('fingerprint')}"
        )
    if made_by.get("edited"):
        return None, f"the samples of {origin.name} as it made them, got edited ones"
    if damaged := _missing_file(place, found):
        return None, f"a valid cache, got damaged files ({damaged})"
    return found, ""


def _check_made_by_cache(place: LocalSource, error: FormatError) -> None:
    """Raise an error unless the newest version that can be read says that `cache` has made these files.

    The files of a dataset that cannot be opened may be all that the user has of it.
    """
    for version in reversed(versions_in(place)):
        try:
            metadata = read_manifest(place, version).metadata
        except VersionExpired:
            continue
        except FormatError as unread:
            if not is_intact(place, version):
                continue
            problem = f"expected a cache of this version of shardex ({unread}); choose another folder"
            raise AlreadyExistsError(errno.EEXIST, problem, place.root) from None
        if not (metadata and isinstance(metadata.get(hf_metadata.MADE_BY), Mapping)):
            raise AlreadyExistsError(errno.EEXIST, _NOT_A_CACHE, place.root)
        return
    problem = (
        f"expected a cache, or no files, got damaged files that may be of another dataset ({error}); remove the folder "
        "if it is a cache, save its samples with recover() if not, or choose another folder"
    )
    raise AlreadyExistsError(errno.EEXIST, problem, place.root) from None


def _other_fields(wanted: Features, found: Features) -> str:
    """Return how fields differ; two features may have the same short text, such as labels with other names."""
    for name, feature in wanted.items():
        if (other := found.get(name)) is not None and other != feature and str(other) == str(feature):
            return f"the field {name} to be {feature!r}, got {other!r}"
    return f"the fields {wanted}, got {found}"


def _missing_file(place: LocalSource, found: Dataset) -> str:
    """Return the path of a file of a dataset that is missing or has another size; empty if there is none."""
    for file in read_manifest(place, found.version or 0).files():
        try:
            if place.stat(file.path).size != file.size:
                return place.path(file.path)
        except NotFoundError:
            return place.path(file.path)
    return ""


def _refuse_change(place: LocalSource, problem: str, on_change: str) -> None:
    if problem and on_change == "error":
        raise CacheChangedError(
            f'{place.root}: expected {problem}; on_change="rebuild" makes the samples again, or choose another folder'
        )


def _check_place(place: LocalSource) -> None:
    """Raise an error if the folder has files of others."""
    foreign = [] if latest_version(place) else [path for path in place.paths() if not WRITER_FILE.fullmatch(path)]
    if foreign:
        problem = "expected a cache, or no files, got others; choose another folder"
        raise AlreadyExistsError(errno.EEXIST, problem, place.path(foreign[0]))


# -- building ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Builder:
    """Builds a cache while it holds the lock."""

    place: LocalSource
    lock: locks.LockedFile
    keep: int

    def build(self, origin: _Origin, *, workers: int | None, shard_size: int, progress: bool | None) -> None:
        """Publish the samples as a new version, or leave everything as it was."""
        origin.check_known()
        if self.lock.left:
            self.clean_up()
        elsewhere = [one for one in self.lock.left.split() if _host(one) != _host(_identity())]
        self.lock.note(b" ".join([_identity(), *elsewhere]))
        self.lock.stays = True  # until all is removed that may be left over
        entered = _building.set(_building.get() | {self.place.root})
        try:
            mode = "overwrite" if latest_version(self.place) else "create"
            options = {
                "shard_size": shard_size,
                "exact_shards": True,
                "metadata": {hf_metadata.MADE_BY: origin.metadata},
            }
            with Writer(self.place.root, origin.schema, "arrow", mode, options) as out:
                _write(origin, out, workers, progress)
        finally:
            _building.reset(entered)
            self.clean_up()

    def clean_up(self) -> None:
        """Remove old versions and files that no version names; of other machines only those that are old.

        If this fails or is interrupted, the file of the lock stays, so that the next start tries again. It also stays
        for some time if a process of another machine may be building: that machine may not see our locks.
        """
        self.lock.stays = True
        builders = [*self.lock.left.split(), *self.lock.noted().split()]
        alone = self.lock.is_locked and all(_host(one) == _host(_identity()) for one in builders)
        with suppress(ShardexError):
            if latest_version(self.place):
                _clean(self.place.root, self.keep, 0.0 if alone else GRACE)
            elif alone:
                self.place.remove_all(filter(WRITER_FILE.fullmatch, self.place.paths()))
                self.place.remove_empty_folders("data", STORE_FOLDER)
            self.lock.stays = not alone and self.lock.age < GRACE


def _clean(folder: str, keep: int, grace: float) -> None:
    try:
        clean(folder, keep, grace=grace)
    except FormatError:  # a damaged version among those to keep
        clean(folder, 1, grace=grace)


def _write(origin: _Origin, out: Writer, workers: int | None, progress: bool | None) -> None:
    total = len(origin.generator) if isinstance(origin.generator, Sized) else None
    options = {"desc": f"cache {os.path.basename(out.path)}", "unit": " samples", "total": total}
    quiet = None if progress is None else not progress
    with closing(origin.samples(out.path)) as samples:
        encoded = encode_ahead(samples, origin.features, workers or 1)
        with closing(encoded), Bar(encoded, disable=quiet, **options) as bar:
            out.extend(bar)


def _finish_interrupted(place: LocalSource, lock_path: str, keep: int) -> None:
    """Remove what a process that died while it built has left behind."""
    with suppress(ShardexError), locks.locked_file(lock_path, wait=False) as lock:
        if lock is not None and lock.left:
            _Builder(place, lock, keep).clean_up()


# -- other processes ----------------------------------------------------------------------------------------------


def _identity() -> bytes:
    """Return the identity that a builder writes into its lock file, before those of builders on other machines."""
    return f"{os.getpid()}@{os.uname().nodename}".encode()


_IDENTITIES = re.compile(rb"([0-9]+@\S*( |\Z))*")
"""Type of the content of a lock file."""


def _lock_path(place: LocalSource) -> str:
    """Return the path of the lock, beside the folder; an error if the user has a file there."""
    folder, name = os.path.split(place.root)
    path = os.path.join(folder, f".{name}.shardex-cache.lock")
    with suppress(FileNotFoundError), storage_errors(path, "read"), open(path, "rb") as file:
        if not _IDENTITIES.fullmatch(file.read(1 << 16)):
            problem = "expected the lock of a cache, or no file, got another file; move it, or choose another folder"
            raise AlreadyExistsError(errno.EEXIST, problem, path)
    return path


def _host(identity: bytes) -> bytes:
    return identity.partition(b"@")[2]


class _Waiting:
    """Says once that another process builds the cache."""

    def __init__(self, folder: str, progress: bool | None) -> None:
        self._folder = folder
        self._shown = progress is not False and (progress or sys.stderr.isatty())
        self._said = False

    def __call__(self, noted: bytes) -> None:
        if not self._said:
            self._said = True
            process, _, host = noted.decode(errors="replace").partition(" ")[0].partition("@")
            who = f"process {process} on {host}" if host else "another process"
            text = f"{self._folder}: waiting for {who}, which builds this cache"
            _log.info("%s", text)
            if self._shown:
                Bar.write(f"shardex: {text}", file=sys.stderr)
