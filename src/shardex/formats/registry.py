"""The table of formats, the interface of a format (`Format`, `ShardWriter`), and opening files by format.

Each format is a module with a constant `FORMAT`: functions that recognise files, open them as rows and create a
dataset, and properties that other rooms use. The module is imported when it is first needed. `open_rows`
opens files as rows; the rows pickle as a description of what was opened (`Opened`) and are opened again when unpickled.
"""

from __future__ import annotations

import importlib
import inspect
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType
from typing import Any, Protocol, cast, get_args

import numpy as np

from shardex.errors import ArgumentError, FormatError, StaleIndexError, UnknownFormatError, nearest
from shardex.features import Features, dtype_text
from shardex.files import Files, What, check_mode, display_name, find, with_checksums
from shardex.jobs import FinishedPart, JobFolder
from shardex.other_names import OPEN, instead
from shardex.rows import AbstractRows, Keyed
from shardex.sources import COMPRESSED, ByteRange, Place, Source, keyring, read_keyring

FORMATS: dict[str, str] = {
    "arrow": "shardex.native.format",
    "columns_tar": "shardex.formats.columns_tar",
    "bins": "shardex.formats.bins",
    "tokens": "shardex.formats.tokens.format",
    "tar": "shardex.formats.tar.format",
    "jsonl": "shardex.formats.jsonl.format",
    "text": "shardex.formats.text.format",
    "csv": "shardex.formats.csv.format",
    "parquet": "shardex.formats.parquet.format",
    "megatron": "shardex.formats.megatron.format",
    "nanogpt": "shardex.formats.nanogpt.format",
    "npy": "shardex.formats.npy.format",
    "data_forager": "shardex.formats.data_forager_folder",
    "folder": "shardex.formats.folder.format",
}
"""Name and module of each format, in the order in which their `recognise` is called."""

_INDEXING = ("rebuild", "progress", "workers", "executor")
"""Options of formats that have an index, and of storing checksums."""
_ONCE = (*_INDEXING, "attributes", "checksums")
"""Options that have an effect while opening, and are not needed to open the same data again."""
_ACCESS = ("cache", "cache_limit", "access", "trusted", "compressed")
"""Options of all formats: how remote and compressed files are read on this machine."""
_EVERY = ("sample_type", "format", "checksums", *_ACCESS)
"""Options of `open` for every format, which an option may be a misspelling of."""

_SPLITS, _SPLIT = "dataset_dict.json", "/state.json"
"""Files that Hugging Face saves in the folder of a DatasetDict, and in that of each of its splits."""


class ShardWriter(Protocol):
    """Writes samples to shards, which become visible when `close` returns."""

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample. After an error the sample is not written and the writer stays usable."""

    # A writer may also have ``write(columns)``, which adds many samples at once; the files are the same.

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

    def was_joined(self, folder: JobFolder, parts: Sequence[FinishedPart], path: str) -> bool:
        """Return True if an earlier run of the job has published the parts."""

    def part_options(self, path: str, mode: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options for the writers of parts: those of the user, and what a dataset at `path` needs."""

    def check(self, path: str, mode: str) -> None:
        """Raise the error that publishing would raise because of files that are at `path`."""


@dataclass(frozen=True)
class Format:
    """How one kind of shard is recognised, read and written; a format module defines one as `FORMAT`."""

    name: str
    recognise: Callable[[Files], int]
    """Confidence that the files are of this format: 0 no, 1 by the names of some, 2 by content that no other has."""
    open: Callable[..., ShardRows]
    """``open(files, *, schema=None, **options)`` returns the rows of the files."""
    create: Callable[..., ShardWriter]
    """``create(path, features, *, mode, **options)``; `mode` is "create", "append" or "overwrite"."""
    join: Join
    """Publishes the parts of a job as one dataset, without reading their samples."""
    part_format: str | None = None
    """Format of the parts of a job, if not this one: their samples are written again before they are published."""
    name_field: str | None = None
    """Field with a name for each sample; the writer numbers samples that have none."""
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
    check_end: Callable[[Source, str], None] = lambda source, path: None
    """Raises an error if a file was cut off, even if it opens."""
    keep_readable_part: Callable[[str], bool] = lambda path: False
    """Replaces a damaged local file by its readable first samples; False if there are none."""
    options_for_damaged: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open` with which more of a damaged dataset can be opened."""

    def existing_schema(self, place: Place, mode: str) -> Features | None:
        """Return the features of the dataset at `place` if `mode` is "append" and the files store them.

        Raises an error if `mode` does not allow the existing files.
        """
        if self.is_dataset is not None and not self.is_dataset(place):
            return None
        there = check_mode(place, mode, known=self.is_dataset is not None)
        return open_rows(place.url, self.name).features if self.stores_schema and there and mode == "append" else None


@dataclass(frozen=True)
class Opened:
    """What was opened and how: enough to open it again in another process."""

    what: str | tuple[str, ...]
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    access: Mapping[str, Any] = field(default_factory=dict)
    """Options for reading remote files on this machine, which do not change the data."""


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
        keys = keyring()
        return _open_again, (self.opened, self.fingerprint, keys) if keys else (self.opened, self.fingerprint)


def _open_again(opened: Opened, fingerprint: str, keys: str = "") -> ShardRows:
    if keys:
        read_keyring(keys)
    rows = open_rows(opened.what, opened.format, **opened.options, **opened.access)
    if (found := rows.fingerprint) != fingerprint:
        raise StaleIndexError(
            f"{display_name(opened.what)}: expected the data that was opened ({fingerprint}), it has changed since "
            f"({found})"
        )
    return rows


def format_named(name: str) -> Format:
    """Return the format of this name; imports its module when it is first needed."""
    if name not in FORMATS:
        raise UnknownFormatError(
            f"expected a format out of {', '.join(sorted(FORMATS))}, got {name!r}{nearest(name, FORMATS)}"
        )
    return cast(Format, importlib.import_module(FORMATS[name]).FORMAT)


def open_rows(what: What, format: str | None = None, *, wanted: Features | None = None, **options: Any) -> ShardRows:
    """Open files as rows, with the format of this name, or with the one that recognises them.

    `wanted` is the schema for formats that are not self-describing, if none is passed. `cache`, `cache_limit` and
    `access` set how remote files are cached (see `find`); ``checksums=True`` stores checksums of the files, which are
    verified from now on (see `with_checksums`).
    """
    _check_names(format, options)
    access = {option: options.pop(option) for option in _ACCESS if option in options}
    files, make = find(what, **access, progress=options.get("progress")), bool(options.pop("checksums", False))
    name = format or recognise(files)
    container = format_named(name)
    files = with_checksums(files, make, **{option: options[option] for option in _INDEXING if option in options})
    if make:  # storing checksums used these options, even if the format has none of them
        options = {option: options[option] for option in options if option not in _INDEXING}
    if wanted is not None and not container.self_describing:
        options.setdefault("schema", wanted)
    options = check_options(container.open, name, options)
    rows = container.open(files, **options)
    again = {option: value for option, value in options.items() if option not in _ONCE}
    rows.opened = Opened(files.what, name, {**again, **rows.pinned}, access)
    return rows


def _check_names(format: str | None, options: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an option that `open` does not have, before files are looked for."""
    if not options.keys() - {"schema", *_EVERY}:
        return
    checksums = _INDEXING if options.get("checksums") else ()
    known = {
        *_EVERY,
        *checksums,
        *(option for name in ([format] if format else FORMATS) for option in _options_of(name)),
    }
    for option in options:
        if option not in known:
            of = f"the format {format}" if format else "open and of formats"
            has = ", ".join(sorted(known))
            raise ArgumentError(f"expected options of {of} ({has}), got {option!r}{instead(OPEN, option, known)}")


def _options_of(name: str) -> list[str]:
    parameters = inspect.signature(format_named(name).open).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


_PLAIN = (bool, int, float, str, NoneType)


def check_options(function: Any, name: str, options: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options, dtypes as text; ArgumentError for one that a format does not have, or of the wrong type.

    `others` are names of arguments that may be meant instead.
    """
    if not options:
        return {}
    options = dict(options)
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    known = {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}
    for option, given in options.items():
        if option not in known:
            has = ", ".join(known) or "none"
            hint = instead(OPEN, option, [*known, *others])
            raise ArgumentError(f"expected options of the format {name} ({has}), got {option!r}{hint}")
        kinds = get_args(known[option]) or (known[option],)
        value = options[option] = dtype_text(given) if str in kinds and isinstance(given, type | np.dtype) else given
        if all(kind in _PLAIN for kind in kinds) and type(value) not in kinds:
            wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
            raise ArgumentError(f"expected {wanted} for the option {option} of the format {name}, got {value!r}")
    return options


def recognise(files: Files) -> str:
    """Return the name of the one format that recognises these files."""
    likely = []
    for name in FORMATS:
        if (sure := int(format_named(name).recognise(files))) == 2:
            return name
        likely += [name] * sure
    if len(likely) == 1:
        _refuse_splits(files)
        return likely[0]
    if likely:
        raise UnknownFormatError(
            f"{files}: expected shards of one format ({', '.join(likely)}), got {_describe(files)}; choose with "
            + " or ".join(f'format="{name}"' for name in likely)
        )
    raise UnknownFormatError(
        f"{files}: expected shards of a known format ({', '.join(sorted(FORMATS))}) or media files, got "
        f"{_describe(files)}; {_remedy(files)}"
    )


def saved_splits(files: Files) -> list[str]:
    """Return the folders of the splits in a folder saved by ``DatasetDict.save_to_disk`` of Hugging Face."""
    if not files.folder or _SPLITS not in files.paths:
        return []
    return [folder for path in files.paths if (folder := path.removesuffix(_SPLIT)) != path and "/" not in folder]


def _refuse_splits(files: Files) -> None:
    if len(some := saved_splits(files)) > 1:
        raise UnknownFormatError(
            f"{files}: expected one dataset, got a DatasetDict of Hugging Face with the splits {', '.join(some)}; open "
            f'all of them with sx.load_dataset("{files}"), or one with sx.open("{os.path.join(str(files), some[0])}")'
        )


def _remedy(files: Files) -> str:
    """Return what to do about files that no format recognises; a format is named only if it can read them."""
    if not files.paths:
        return "check the path"
    if len({os.path.splitext(path)[1] for path in files.paths}) > 1:
        return f"name the files to read by a pattern such as {os.path.join(str(files), '*.jsonl')}"
    if _head(files).translate(None, _TEXT) == b"":
        return 'if they are lines of text or of JSON, open them with format="text" or format="jsonl"'
    return 'if they are raw numbers, open them with format="tokens" and dtype=; otherwise write them with sx.write'


_TEXT = bytes([*range(9, 14), *range(32, 127), *range(128, 256)])
"""Bytes that text can have."""


def _head(files: Files) -> bytes:
    first = files.paths[0]
    try:
        return bytes(files.source.read(first, [ByteRange(0, min(16, files.source.stat(first).size))])[0])
    except (FormatError, OSError):
        return b""


def _describe(files: Files) -> str:
    if not files.paths:
        return "an empty folder"
    kinds: dict[str, int] = {}
    for path in files.paths:
        kind = os.path.splitext(path)[1] or "(no extension)"
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1])[:5])
    head = _head(files)
    compressed = ", compressed: unpack it first" if head.startswith(tuple(COMPRESSED)) else ""
    count = len(files.paths)
    return f"{count} file{'s' * (count != 1)} ({counted}), {files.paths[0]} beginning with {head!r}{compressed}"
