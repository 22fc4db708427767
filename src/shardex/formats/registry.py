"""The interface of a format (`Format`, `ShardWriter`), and opening files by format.

Each format is a package with a constant `FORMAT`: functions that open files as rows and create a dataset, and
properties that other rooms use. It is imported when it is first needed; `signatures` has the table of formats and
recognises files. `open_rows` opens files as rows; the rows pickle as a description of what was opened (`Opened`) and
are opened again when unpickled.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import numpy as np

import shardex.files
from shardex.errors import ArgumentError, PluginError, ShardexError, StaleIndexError
from shardex.features import Features, dtypes
from shardex.files import What, display_name, find
from shardex.formats.signatures import FORMATS, Signature, format_names, plugin_of, recognise, sure_format
from shardex.other_names import CREATE, OPEN, instead
from shardex.plugins import load
from shardex.rows import AbstractRows, Keyed
from shardex.sources import Place, Source, credentials, parse_size

if TYPE_CHECKING:
    from shardex.jobs import FinishedPart, JobFolder

_INDEXING = ("rebuild", "progress", "workers", "executor")
"""Options of formats that have an index, and of storing checksums."""
_ONCE = (*_INDEXING, "attributes", "checksums")
"""Options that have an effect while opening, and are not needed to open the same data again."""
_ACCESS = ("cache", "cache_limit", "access", "trusted", "compressed")
"""Options of all formats: how remote and compressed files are read on this machine."""
_EVERY = ("sample_type", "format", "checksums", *_ACCESS)
"""Options of `open` for every format, which an option may be a misspelling of."""


class ShardWriter(Protocol):
    """Writes samples to shards, which become visible when `close` returns."""

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample. After an error the sample is not written and the writer stays usable."""

    # A writer may also have ``write(columns)``, which adds many samples at once; the files are the same.

    def written(self) -> AbstractRows | str:
        """Return the samples that were added, as rows or as a folder to open; `abort` comes next.

        They are written again by another writer if the fields of a stream turn out to need other features.
        """

    def close(self) -> None:
        """Make everything durable and visible in one step."""

    def abort(self) -> None:
        """Discard everything; the target stays unchanged."""


class Join(Protocol):
    """Publishes the parts of a job as one dataset."""

    def __call__(
        self,
        folder: JobFolder,
        parts: Sequence[FinishedPart],
        path: str,
        features: Features,
        *,
        mode: str,
        began: Any = None,
        **options: Any,
    ) -> None:
        """Publish the parts at `path`, in one step.

        `began` is the `state` when the run began: raises an error if another run of the job has published since then.
        """

    def state(self, path: str) -> Any:
        """Return what is at `path` now, with which publications after this moment are recognised."""

    def can_append(self, path: str) -> bool:
        """Return True if samples may be added to a dataset at `path`."""

    def was_joined(self, folder: JobFolder, parts: Sequence[FinishedPart], path: str) -> bool:
        """Return True if an earlier run of the job has published the parts."""

    def part_options(self, path: str, mode: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options for the writers of parts: those of the user, and what a dataset at `path` needs."""

    def check(self, path: str, mode: str) -> None:
        """Raise the error that publishing would raise because of files that are at `path`."""


@dataclass(frozen=True)
class DamagedFiles:
    """What is known of the damaged files of a format, for `recover`."""

    check_end: Callable[[Source, str], None] = lambda source, path: None
    """Raises an error if a file was cut off, even if it opens."""
    keep_readable_part: Callable[[str], bool] = lambda path: False
    """Replaces a damaged local file by its readable first samples; False if there are none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open` with which more of a damaged dataset can be opened."""


@dataclass(frozen=True)
class Format:
    """How one kind of shard is read and written; its `Signature` says where it is and how its files are recognised.

    The first three members are needed, the defaults of the others are right for most formats. The keyword-only
    arguments of `open` and `create` are the options of users; those annotated with plain types are checked.

    >>> jsonl = format_named("jsonl")
    >>> mine = Format(jsonl.open, jsonl.create, jsonl.join)
    """

    open: Callable[..., ShardRows]
    """``open(files, *, schema=None, **options)`` returns the rows of the files."""
    create: Callable[..., ShardWriter]
    """``create(path, features, *, mode, **options)``; `mode` is "create", "append" or "overwrite"."""
    join: Join
    """Publishes the parts of a job as one dataset, without reading their samples: `JoinShards` for numbered shards."""
    part_format: str | None = None
    """Format of the parts of a job, if not this one: their samples are written again before they are published."""
    name_field: str | None = None
    """Field with a name for each sample; the writer numbers samples that have none."""
    only_field: str | None = None
    """Name that the only field gets when it is read, if files do not store it and `open` has an option `field`."""
    stores_schema: bool = False
    """True if the files store their features, so that an append needs no schema."""
    self_describing: bool = False
    """True if the files fully determine their features: the fields that a caller expects are not passed as schema."""
    only_arrays: bool = False
    """True if samples that have arrays of tokens have nothing else."""
    is_dataset: Callable[[Place], bool] | None = None
    """Returns True if a place holds a dataset and not only leftovers of a killed writer; by default any file counts."""
    one_file: Callable[[Source, str], Any] | None = None
    """Rows of one file, indexed in memory only; for formats whose samples hold JSON (see `extracted_columns`)."""
    damaged: DamagedFiles = field(default_factory=DamagedFiles)

    def lost_name(self, features: Features) -> str | None:
        """Return the name of the only field if files do not store it, and it is read under another one."""
        name = next(iter(features), None)
        return name if self.only_field not in (None, name) else None

    def existing_schema(self, place: Place, mode: str) -> Features | None:
        """Return the features of the dataset at `place` if `mode` is "append" and the files store them.

        Raises an error if `mode` does not allow the existing files.
        """
        if self.is_dataset is not None and not self.is_dataset(place):
            return None
        there = shardex.files.check_mode(place, mode, known=self.is_dataset is not None)
        return self.open(find(place.url)).stored_features if self.stores_schema and there and mode == "append" else None


@dataclass(frozen=True)
class Opened:
    """What was opened and how: enough to open it again in another process."""

    what: str | tuple[str, ...]
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    access: Mapping[str, Any] = field(default_factory=dict)
    """Options for reading remote files on this machine, which do not change the data."""
    known_as: tuple[str, int | None] | None = None
    """Name and version in a catalog, if the data were opened by these."""


class ShardRows(AbstractRows):
    """Rows in files, made by a format."""

    opened: Opened
    """Set by `open_rows`."""
    pinned: Mapping[str, Any] = {}
    """Options that are needed to open the same data again, such as the version."""
    key_lookup: Keyed | None = None
    in_python: bool = True
    metadata: Mapping[str, Any] = {}

    def line(self, row: int) -> str:
        """Return where in its file a row is, for messages: its line, if files have lines; else nothing."""
        return ""

    @cached_property
    def features(self) -> Features:
        """Name and feature of each field; subclasses define it or set it."""
        raise NotImplementedError

    @property
    def stored_features(self) -> Features | None:
        """The features that samples to append must have; None if the files do not store them."""
        return self.features

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the data changes; subclasses define it or set it."""
        raise NotImplementedError

    @abstractmethod
    def shard_names(self) -> list[str]:
        """Paths of the files, as error messages show them."""

    @property
    def shard_count(self) -> int:
        """Number of files."""
        return len(self.shard_names())

    def __reduce__(self) -> tuple[Any, ...]:
        keys = credentials.keyring()
        return _open_again, (self.opened, self.fingerprint, keys) if keys else (self.opened, self.fingerprint)


def _open_again(opened: Opened, fingerprint: str, keys: str = "") -> ShardRows:
    if keys:
        credentials.read_keyring(keys)
    rows = open_rows(opened.what, opened.format, **opened.options, **opened.access)
    if (found := rows.fingerprint) != fingerprint:
        raise StaleIndexError(
            f"{display_name(opened.what)}: expected the data that was opened ({fingerprint}), it has changed since "
            f"({found})"
        )
    rows.opened = opened
    return rows


def format_named(name: str) -> Format:
    """Return the format of this name; imports its module when it is first needed."""
    if name in FORMATS:
        return cast(Format, load(FORMATS[name].format))
    plugin = plugin_of(name)
    return plugin.load(Format, plugin.load(Signature).format)


def open_rows(what: What, format: str | None = None, *, wanted: Features | None = None, **options: Any) -> ShardRows:
    """Open files as rows, with the format of this name, or with the one that recognises them.

    `wanted` is the schema for formats that are not self-describing, if none is passed. `cache`, `cache_limit` and
    `access` set how remote files are cached (see `find`); ``checksums=True`` stores checksums of the files, which are
    verified from now on (see `with_checksums`).
    """
    access = {option: options[option] for option in _ACCESS if option in options}
    try:
        if format is not None:
            _check_names(format, options)
        files = replace(find(what, **access, progress=options.get("progress")), access=access)
        name = format or recognise(files)
    except ShardexError:
        _check_names(format, options)
        raise
    container, make = format_named(name), bool(options.get("checksums", False))
    if (others := options.keys() - {"schema", *_EVERY}) and not others <= {*_options_of(container)}:
        _check_names(format, options)
    options = {option: value for option, value in options.items() if option not in ("checksums", *_ACCESS)}
    if make or not files.is_native:
        indexing = {option: options[option] for option in _INDEXING if option in options}
        files = shardex.files.with_checksums(files, make, **indexing)
    if make:  # storing checksums used these options, even if the format has none of them
        options = {option: options[option] for option in options if option not in _INDEXING}
    if wanted is not None and not container.self_describing:
        options.setdefault("schema", wanted)
    options = check_options(container.open, name, options, hints=OPEN)
    try:
        rows = container.open(files, **options)
    except ShardexError as error:
        with suppress(ShardexError):
            if (other := sure_format(files)) not in (None, name):
                error.add_note(f'the files have the format {other}: open them with format="{other}"')
        raise
    again = {option: value for option, value in options.items() if option not in _ONCE}
    rows.opened = Opened(files.what, name, {**again, **rows.pinned}, access)
    return rows


def _check_names(format: str | None, options: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an option that neither `open` has nor the format, or without one any format."""
    if not options.keys() - {"schema", *_EVERY}:
        return
    checksums = _INDEXING if options.get("checksums") else ()
    formats = [format_named(format)] if format else _usable_formats()
    known = {*_EVERY, *checksums, *(option for one in formats for option in _options_of(one))}
    for option in options:
        if option not in known:
            of = f"the format {format}" if format else "open and of formats"
            has = ", ".join(sorted(known))
            raise ArgumentError(f"expected options of {of} ({has}), got {option!r}{instead(OPEN, option, known)}")


def _usable_formats() -> Iterator[Format]:
    """Yield all formats but those of packages that cannot be used."""
    for name in format_names():
        with suppress(PluginError):
            yield format_named(name)


def _options_of(format: Format) -> list[str]:
    parameters = inspect.signature(format.open).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def option_types(function: Any) -> dict[str, Any]:
    """Return the options of a format with their types: the keyword-only arguments of its `open` or its writer."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}


OPENING_OPTIONS = frozenset(("what", *_EVERY, *_ONCE))
"""Arguments of `open` that are the user's: they say how files are read on this machine, not what the data are."""
_PLAIN = (bool, int, float, str, NoneType)


def check_options(
    function: Any,
    name: str,
    options: Mapping[str, Any],
    others: Iterable[str] = (),
    hints: Mapping[str, str] = CREATE,
) -> dict[str, Any]:
    """Return the options, dtypes as text; ArgumentError for one that a format does not have, or of the wrong type.

    `others` are names of arguments that may be meant instead, `hints` say what other libraries call options.
    """
    if not options:
        return {}
    options, known = dict(options), option_types(function)
    for option, given in options.items():
        if option not in known:
            has = ", ".join(known) or "none"
            hint = instead(hints, option, [*known, *others])
            raise ArgumentError(f"expected options of the format {name} ({has}), got {option!r}{hint}")
        kinds = get_args(known[option]) or (known[option],)
        value = given
        if option == "shard_size" and isinstance(given, str):
            value = parse_size(given)
        elif str in kinds and isinstance(given, type | np.dtype):
            value = dtypes.dtype_text(given)
        options[option] = value
        if all(kind in _PLAIN for kind in kinds) and type(value) not in kinds:
            wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
            raise ArgumentError(f"expected {wanted} for the option {option} of the format {name}, got {value!r}")
    return options
