"""How files are recognised: `Signature`, the names and first bytes of the files of a format, and the table of them.

`FORMATS` has the formats of shardex. Packages add formats by entry points of the group ``shardex.formats``, which name
a `Signature`; they are read unless a folder is a native dataset. Recognising files imports no format, except to ask a
function about files whose names match (`Signature.check`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardex.errors import FormatError, PluginError, ShardexError, UnknownFormatError, nearest
from shardex.features import Audio, Image, Video
from shardex.files import STORE_FOLDER, Files
from shardex.plugins import Plugin, load, plugins
from shardex.sources import ByteRange, compression

NO, LIKELY, SURE = 0, 1, 2
"""How sure it is that files are of a format. Several may be likely; the first one that is sure is chosen."""
GROUP = "shardex.formats"
"""Group of the entry points of formats of other packages."""

_SPLITS, _SPLIT = "dataset_dict.json", "/state.json"
"""Files that Hugging Face saves in the folder of a DatasetDict, and in that of each of its splits."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """By what the files of a format are recognised, and where the format is.

    A folder with one of the `markers` is surely of the format. Files whose names match (`extensions` or `every`, and
    `without`) are likely of it; first bytes (`magic`) make that sure. Extensions are in lower case, with the dot, and
    match in any case. Hidden files, and files in hidden folders, are no data and do not count.

    >>> weather = Signature(format="weather.shards:FORMAT", extensions=(".wea",), magic=(b"WEA1",))
    """

    format: str
    """``package.module:NAME`` of the `Format`, which is imported when files are opened or written."""
    markers: tuple[str, ...] = ()
    """Files of which a folder has one; a name that ends in a slash is a folder."""
    extensions: tuple[str, ...] = ()
    """Some data file has one of these extensions."""
    every: tuple[str, ...] = ()
    """Some data file has one of these extensions, and all others one of these or of `beside`."""
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """No data file has one of these extensions."""
    magic: tuple[bytes, ...] = ()
    """What the first file begins with; files that cannot be read are only likely of the format."""
    magic_of: str = ""
    """Extension of the file that begins with `magic`, if it lies beside each data file."""
    linked: bool = False
    """True if the files may be in linked folders, which are not listed otherwise."""
    check: str | None = None
    """``package.module:NAME`` of a function that gets `Files` which match, and returns `NO`, `LIKELY` or `SURE`."""

    def match(self, files: Files) -> int:
        """Return how sure it is that the files are of this format: `NO`, `LIKELY` or `SURE`."""
        marked = any(map(files.has, self.markers))
        if not marked and not self._fits(files) and not (self.linked and files.has_linked_folders):
            return NO
        if self.check is not None:
            return int(load(self.check)(files))
        return SURE if marked else self._match_content(files) if self.magic else LIKELY

    def _fits(self, files: Files) -> bool:
        """Return True if the names of the data files match."""
        if self.without and files.having(*self.without).paths:
            return False
        if self.extensions and files.having(*self.extensions).paths:
            return True
        if not self.every or not files.having(*self.every).paths:
            return False
        allowed = self.every + self.beside
        return all(path.lower().endswith(allowed) for path in files.having("").paths)

    def _match_content(self, files: Files) -> int:
        path = files.having(*self.extensions, *self.every).paths[0]
        if self.magic_of:
            path = next(iter(files.having(self.magic_of).paths), os.path.splitext(path)[0] + self.magic_of)
        is_listed = path in files.paths
        if files.folder and not is_listed:
            return NO
        try:
            return SURE if _head(files, path, max(map(len, self.magic))).startswith(self.magic) else NO
        except (ShardexError, OSError):
            return LIKELY if is_listed else NO


_ARROW, _PARQUET, _TABLES = (".arrow", ".feather", ".ipc"), (".parquet", ".pq"), (".csv", ".tsv", ".tab")
_LINES = (".jsonl", ".ndjson", ".json-lines")
_MEDIA = tuple(f".{one}" for kind in (Image, Audio, Video) for one in kind.extensions)
_ABOUT = (".json", ".md", ".model", ".txt", ".vocab", ".yaml", ".yml")
"""Extensions of files that describe data: a tokenizer, a license."""
_NO_TABLES = (*_PARQUET, *_ARROW, *_LINES, ".sqlite", ".tar", ".tokens", ".bin", ".idx", ".npy", ".dat")
"""Extensions of shards beside which tables are no samples."""

FORMATS: dict[str, Signature] = {
    "arrow": Signature(
        format="shardex.native.format:FORMAT",
        markers=(f"{STORE_FOLDER}/", "_metadata.json", "state.json"),
        extensions=_ARROW,
        check="shardex.native.format:recognise",
    ),
    "tokens": Signature(format="shardex.formats.tokens:FORMAT", markers=("tokens.json",), extensions=(".tokens",)),
    "tar": Signature(format="shardex.formats.tar:FORMAT", extensions=(".tar",)),
    "jsonl": Signature(format="shardex.formats.jsonl:FORMAT", extensions=_LINES, every=(".json",)),
    "text": Signature(format="shardex.formats.text:FORMAT", every=(".txt",)),
    "csv": Signature(format="shardex.formats.csv:FORMAT", extensions=_TABLES, without=_NO_TABLES),
    "parquet": Signature(format="shardex.formats.parquet:FORMAT", extensions=_PARQUET),
    "megatron": Signature(
        format="shardex.formats.megatron:FORMAT",
        every=(".idx", ".bin"),
        beside=_ABOUT,
        magic=(b"MMIDIDX\x00\x00",),
        magic_of=".idx",
    ),
    "nanogpt": Signature(
        format="shardex.formats.nanogpt:FORMAT",
        every=(".bin",),
        beside=_ABOUT,
        magic=tuple(number.to_bytes(4, "little") for number in (20240520, 20240801, 20240522)),
    ),
    "npy": Signature(format="shardex.formats.npy:FORMAT", every=(".npy",), beside=_ABOUT, magic=(b"\x93NUMPY",)),
    "folder": Signature(
        format="shardex.formats.folder:FORMAT",
        extensions=_MEDIA,
        linked=True,
        check="shardex.formats.media_folders:recognise",
    ),
}
"""The formats of shardex, in the order in which they are asked; those of other packages are asked after the first."""


def format_names() -> list[str]:
    """Return the names of all formats, those of other packages last."""
    return [*FORMATS, *_others()]


def plugin_of(name: str) -> Plugin:
    """Return the entry point of a format of another package; UnknownFormatError if there is no such format."""
    found = _others().get(name)
    if found is None:
        names = sorted(format_names())
        raise UnknownFormatError(f"expected a format out of {', '.join(names)}, got {name!r}{nearest(name, names)}")
    return found


def signature_of(name: str) -> Signature:
    """Return the signature of the format of this name."""
    return FORMATS[name] if name in FORMATS else plugin_of(name).load(Signature)


def _others() -> Mapping[str, Plugin]:
    """Return the formats that packages add, among them those that shardex itself names in its metadata."""
    found = plugins(GROUP, FORMATS)
    if not any(one.package == "shardex" for one in found.values()):
        warnings.warn(
            f"expected formats in the metadata of the package shardex ({GROUP}), got none: only its sources are on the "
            "path, or other ones than were installed; install it again (pip install) to have all formats",
            stacklevel=1,
        )
    return found


def matches(files: Files) -> Iterator[tuple[str, int]]:
    """Yield the formats that the files may have, and how sure that is: `LIKELY` or `SURE`.

    Formats of other packages are asked before all of shardex but the native one, because they know files that those
    take for their own: an index beside tokens. One that cannot be asked is left out, with a warning.
    """
    native, *names = FORMATS
    if sure := FORMATS[native].match(files):
        yield native, sure
    for name, plugin in _others().items():
        if sure := _ask(plugin, files):
            yield name, sure
    for name in names:
        if sure := FORMATS[name].match(files):
            yield name, sure


def _ask(plugin: Plugin, files: Files) -> int:
    """Return how sure a format of another package is; `NO`, with a warning, if its code fails."""
    try:
        return plugin.load(Signature).match(files)
    except Exception as error:
        if isinstance(error, ShardexError | OSError) and not isinstance(error, PluginError):
            raise
        problem = error if isinstance(error, PluginError) else f"{plugin}: expected its check, got {error!r}"
        warnings.warn(f"cannot recognise the format {problem}", stacklevel=2)
        return NO


def sure_format(files: Files) -> str | None:
    """Return the name of the format that these files surely have; None if none is sure."""
    return next((name for name, sure in matches(files) if sure == SURE), None)


def recognise(files: Files) -> str:
    """Return the name of the one format that these files have."""
    likely = []
    for name, sure in matches(files):
        if sure == SURE:
            return name
        likely.append(name)
    if len(likely) == 1:
        _refuse_splits(files)
        return likely[0]
    if likely:
        likely.sort(key=format_names().index)
        raise UnknownFormatError(
            f"{files}: expected shards of one format ({', '.join(likely)}), got {_describe(files)}; choose with "
            + " or ".join(f'format="{name}"' for name in likely)
        )
    raise UnknownFormatError(
        f"{files}: expected shards of a known format ({', '.join(sorted(format_names()))}) or media files, got "
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
    if _readable_head(files).translate(None, _TEXT) == b"":
        return 'if they are lines of text or of JSON, open them with format="text" or format="jsonl"'
    return 'if they are raw numbers, open them with format="tokens" and dtype=; otherwise write them with sx.write'


_TEXT = bytes([*range(9, 14), *range(32, 127), *range(128, 256)])
"""Bytes that text can have."""


def _head(files: Files, path: str, count: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter."""
    return bytes(files.source.read(path, [ByteRange(0, min(count, files.source.stat(path).size))])[0])


def _readable_head(files: Files) -> bytes:
    try:
        return _head(files, files.paths[0], 16)
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
    head = _readable_head(files)
    compressed = ", compressed: unpack it first" if head.startswith(tuple(compression.COMPRESSED)) else ""
    count = len(files.paths)
    return f"{count} file{'s' * (count != 1)} ({counted}), {files.paths[0]} beginning with {head!r}{compressed}"
