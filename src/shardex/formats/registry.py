"""What a format is: the contracts `Format` and `ShardWriter`, the table of formats, and how one is recognised.

A format is a module in `formats/` that can recognise files, open them as rows, and create a dataset. It is
imported when it is first needed. `open_rows` is the one way in; what it returns pickles as a description of what
was opened (`Opened`) and opens again on the other side.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Protocol, cast, get_args, get_type_hints

from shardex.errors import FormatError, SchemaError, StaleIndexError, UnknownFormatError
from shardex.files import Files, What, check_mode, checked, find, told
from shardex.kernel import Integers
from shardex.rows import Rows
from shardex.schema import Features
from shardex.sources import ByteRange, Place

__all__ = [
    "FORMATS",
    "Format",
    "Opened",
    "ShardRows",
    "ShardWriter",
    "format_named",
    "no_existing_schema",
    "open_rows",
    "recognise",
    "stored_schema",
]

FORMATS: dict[str, str] = {
    "arrow": "shardex.store.format",
    "columns_tar": "shardex.formats.columns_tar",
    "bins": "shardex.formats.bins",
    "tokens": "shardex.formats.tokens",
    "tar": "shardex.formats.tar",
    "jsonl": "shardex.formats.jsonl",
    "parquet": "shardex.formats.parquet",
}
"""Name and module of each format, in the order in which they are asked whether they recognise something."""

_DESCRIBED = ("arrow", "parquet")
"""Formats whose files say what they hold."""

_ONCE = ("rebuild", "progress", "attributes", "checksums")
"""Options that say how to open now, and not what was opened."""
_REACH = ("cache", "cache_limit", "access", "trusted")
"""Options of every format, which say how files are read that lie elsewhere."""


class Keyed(Protocol):
    """Finds rows by the values of a field that tells samples apart."""

    @property
    def key(self) -> str:
        """The name of the field."""

    def rows_of(self, keys: Any) -> Integers:
        """The row of each key."""

    def row_of(self, key: Any) -> int:
        """The row of one key."""


class ShardWriter(Protocol):
    """Takes samples and makes shards of them; nothing is visible before `close` returns."""

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample. On an error the sample is not taken and the writer stays usable."""

    def close(self) -> None:
        """Make everything durable and visible, in one step."""

    def abort(self) -> None:
        """Leave everything as it was before."""


class Format(Protocol):
    """A module that reads and writes one kind of shard."""

    def recognise(self, files: Files) -> int:
        """Whether these files are of this format: 0 no, 1 by the names of some, 2 by something that only it has."""

    def open(self, files: Files, *, schema: Features | None = None, **options: Any) -> ShardRows:
        """The samples in these files."""

    def existing_schema(self, place: Place, mode: str) -> Features | None:
        """The features of the dataset at `place` that an append continues, if its files store them.

        An error if `mode` does not allow what is there."""

    def create(self, path: str, features: Features, *, mode: str, **options: Any) -> ShardWriter:
        """Begin a dataset at `path`; `mode` is "create", "append" or "overwrite"."""


@dataclass(frozen=True)
class Opened:
    """What was opened and how: enough to open it again in another process."""

    what: str | tuple[str, ...]
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reach: Mapping[str, Any] = field(default_factory=dict)
    """How files are read that lie elsewhere: for this machine, and not part of what the data is."""


class ShardRows:
    """Rows made by a format. Subclasses have `__len__`, `read`, `features` and `fingerprint`."""

    opened: Opened
    """Set by `open_rows`."""
    pinned: Mapping[str, Any] = {}
    """Options that opening again needs to get the same data, such as the version."""
    keys: Keyed | None = None
    """Look-ups by key, where the data has one."""
    in_python: bool = True
    """Whether reading mostly holds the interpreter."""

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Changes when the data does."""
        raise NotImplementedError

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.opened, self.fingerprint)


def _open_again(opened: Opened, fingerprint: str) -> Rows:
    rows = open_rows(opened.what, opened.format, **opened.options, **opened.reach)
    if (found := rows.fingerprint) != fingerprint:
        raise StaleIndexError(
            f"{told(opened.what)}: expected the data as it was when opened ({fingerprint}), it has changed since "
            f"({found})"
        )
    return cast(Rows, rows)


def no_existing_schema(place: Place, mode: str) -> None:
    """`Format.existing_schema` of a format whose files do not store their features."""
    check_mode(place, mode)


def stored_schema(name: str, place: Place, mode: str, *, known: bool = False) -> Features | None:
    """`Format.existing_schema` of a format whose files store their features; `known`: a dataset is there."""
    there = check_mode(place, mode, known=known)
    return open_rows(place.url, name).features if there and mode == "append" else None


def format_named(name: str) -> Format:
    """The module of a format."""
    if name not in FORMATS:
        raise UnknownFormatError(f"expected a format out of {', '.join(sorted(FORMATS))}, got {name!r}")
    return cast(Format, importlib.import_module(FORMATS[name]))


def open_rows(what: What, format: str | None = None, *, wanted: Features | None = None, **options: Any) -> ShardRows:
    """Open files as rows: by the format named, or by the first that recognises them.

    What fields are `wanted` as is the schema where files do not tell themselves and none is given.
    `cache`, `cache_limit` and `access` say how files are cached that lie elsewhere (see `find`); `checksums` that files
    are to be checked from now on (see `checked`).
    """
    reach = {option: options.pop(option) for option in _REACH if option in options}
    files, make = find(what, **reach), bool(options.pop("checksums", False))
    name = format or recognise(files)
    module = format_named(name)
    files = checked(files, make, rebuild=options.get("rebuild", False), progress=options.get("progress"))
    if make:  # there was something to show, whatever the format takes
        options = {option: options[option] for option in options if option not in ("rebuild", "progress")}
    if wanted is not None and name not in _DESCRIBED:
        options.setdefault("schema", wanted)
    check_options(module.open, name, options)
    rows = module.open(files, **options)
    kept = {option: value for option, value in options.items() if option not in _ONCE}
    rows.opened = Opened(files.what, name, {**kept, **rows.pinned}, reach)
    return rows


_PLAIN = (bool, int, float, str, NoneType)


def check_options(function: Any, name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that a format does not have, or a value of another type than it takes."""
    if not options:
        return
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = get_type_hints(function)
    for option, value in options.items():
        if option not in known:
            has = ", ".join(known) or "it has none"
            raise SchemaError(f"expected options of the format {name} ({has}), got {option!r}")
        kinds = get_args(hints[option]) or (hints[option],)
        if all(kind in _PLAIN for kind in kinds) and type(value) not in kinds:
            wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
            raise SchemaError(f"expected {wanted} for the option {option} of the format {name}, got {value!r}")


def recognise(files: Files) -> str:
    """The name of the one format that these files have."""
    likely = []
    for name in FORMATS:
        if (sure := int(format_named(name).recognise(files))) == 2:
            return name
        likely += [name] * sure
    if len(likely) == 1:
        return likely[0]
    known = ", ".join(likely or sorted(FORMATS))
    what = "one format" if likely else "a known format"
    raise UnknownFormatError(
        f"{files}: expected shards of {what} ({known}), saw {_look(files)}; say which with format="
    )


_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
"""How files begin that gzip, zstd, bzip2 and xz made."""


def _look(files: Files) -> str:
    if not files.paths:
        return "an empty folder"
    kinds: dict[str, int] = {}
    for path in files.paths:
        kind = os.path.splitext(path)[1] or "(no extension)"
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1])[:5])
    first = files.paths[0]
    try:
        head = bytes(files.source.read(first, [ByteRange(0, min(16, files.source.stat(first).size))])[0])
    except (FormatError, OSError):
        head = b""
    packed = ", compressed: unpack it first" if head.startswith(_PACKED) else ""
    return f"{len(files.paths)} files ({counted}), {first} beginning with {head!r}{packed}"
