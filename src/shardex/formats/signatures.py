"""How files are recognised: `Signature`, the names and first bytes of the files of a format, and the table of them.

`FORMATS` has the formats of shardex. Packages add formats by entry points of the group ``shardex.formats``, which name
a `Signature`; they are read unless a folder is a native dataset. Recognising files imports no format, except to ask a
function about files whose names match (`Signature.check`).
"""

from __future__ import annotations

import errno
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardex.errors import (
    AccessDeniedError,
    ArgumentError,
    FormatError,
    PluginError,
    ShardexError,
    UnknownFormatError,
    nearest,
)
from shardex.features import Audio, Image, Video
from shardex.files import STORE_FOLDER, Files, display_name, named_split, pattern_of_split
from shardex.plugins import Plugin, load, plugins
from shardex.sources import ByteRange, compression, place_of

NO, LIKELY, SURE = 0, 1, 2
"""How sure it is that files are of a format. Several may be likely; the first one that is sure is chosen."""
GROUP = "shardex.formats"
"""Group of the entry points of formats of other packages."""

_SPLITS, _SPLIT = "dataset_dict.json", "/state.json"
"""Files that Hugging Face saves in the folder of a DatasetDict, and in that of each of its splits."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """By what the files of a format are recognised, and where the format is.

    A folder with one of the `markers` is surely of the format. Files whose names match (`extensions` or `every`) are
    likely of it; first bytes (`magic`) make that sure. Extensions are in lower case, with the dot, and match in any
    case. Hidden files, files in hidden folders, and files that describe data (`Files.data`) do not count. If no marker
    says that a folder is of the format, other files in it are an error (see `recognise`).

    >>> weather = Signature(format="weather.shards:FORMAT", extensions=(".wea",), magic=(b"WEA1",))
    """

    format: str
    """``package.module:NAME`` of the `Format`, which is imported when files are opened or written."""
    markers: tuple[str, ...] = ()
    """Files of which a folder has one; a name that ends in a slash is a folder."""
    extensions: tuple[str, ...] = ()
    """Some data file has one of these extensions."""
    every: tuple[str, ...] = ()
    """All data files have one of these extensions."""
    beside: tuple[str, ...] = ()
    """Extensions of other files of the format, which have the name of a data file: captions of images."""
    one_file: tuple[str, ...] = ()
    """A target with one of these extensions is written as one file, which holds all samples."""
    magic: tuple[bytes, ...] = ()
    """What the first file begins with; files that cannot be read are only likely of the format."""
    magic_of: str = ""
    """Extension of the file that begins with `magic`, if it lies beside each data file."""
    linked: bool = False
    """True if the files may be in linked folders, which are not listed otherwise."""
    alone: bool = False
    """True if a dataset is opened by one file, which has one of the extensions, and never by its folder."""
    check: str | None = None
    """``package.module:NAME`` of a function that gets `Files` which match, and returns `NO`, `LIKELY` or `SURE`."""

    def match(self, files: Files) -> int:
        """Return how sure it is that the files are of this format: `NO`, `LIKELY` or `SURE`."""
        marked = self.is_marked(files)
        if not marked and not self._fits(files) and not (self.linked and files.has_linked_folders):
            return NO
        if self.check is not None:
            return int(load(self.check)(files))
        return SURE if marked else self._match_content(files) if self.magic else LIKELY

    def is_marked(self, files: Files) -> bool:
        """Return True for a folder with one of the markers."""
        return any(map(files.has, self.markers))

    def _fits(self, files: Files) -> bool:
        """Return True if the names of the data files match."""
        if self.alone and (files.folder or len(files.paths) != 1 or files.packed is not None):
            return False
        return _has(files, self.extensions) or (_has(files, self.every) and not self.left_out(files))

    def reads(self, files: Files) -> list[str]:
        """Return the data files that the format reads: those with one of its extensions."""
        wanted = self.extensions if _has(files, self.extensions) else self.every
        return [path for path in files.data if path.lower().endswith(wanted)] if _has(files, wanted) else []

    def left_out(self, files: Files) -> list[str]:
        """Return the data files that the format does not read, and which have not the name of one that it reads."""
        known = self.extensions if _has(files, self.extensions) else self.every
        others = [] if files.extensions <= {*known} else [p for p in files.data if not p.lower().endswith(known)]
        if not others or not self.beside:
            return others
        stems = {os.path.splitext(path)[0] for path in self.reads(files)}
        named = (path for path in others if path.lower().endswith(self.beside))
        return sorted({*others} - {path for path in named if os.path.splitext(path)[0] in stems})

    def _match_content(self, files: Files) -> int:
        path = self.reads(files)[0]
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
_PROSE = (".md", ".rst", ".tex", ".html", ".htm")
_PROGRAMS = (".py", ".js", ".ts", ".java", ".c", ".h", ".cpp", ".go", ".rs")
DOCUMENTS = (*_PROSE, *_PROGRAMS)
"""Extensions of texts and programs that are one sample each."""
_MEDIA = tuple(f".{one}" for kind in (Image, Audio, Video) for one in kind.extensions)

FORMATS: dict[str, Signature] = {
    "arrow": Signature(
        format="shardex.native.format:FORMAT",
        markers=(f"{STORE_FOLDER}/", "_metadata.json", "state.json"),
        extensions=_ARROW,
        check="shardex.native.format:recognise",
    ),
    "croissant": Signature(
        format="shardex.formats.croissant:FORMAT",
        every=(".json", ".jsonld"),
        alone=True,
        check="shardex.formats.croissant:recognise",
    ),
    "tokens": Signature(format="shardex.formats.tokens:FORMAT", markers=("tokens.json",), extensions=(".tokens",)),
    "tar": Signature(
        format="shardex.formats.tar:FORMAT", extensions=(".tar",), beside=(".idx", ".index"), one_file=(".tar",)
    ),
    "jsonl": Signature(format="shardex.formats.jsonl:FORMAT", extensions=_LINES, every=(".json",), one_file=_LINES),
    "text": Signature(format="shardex.formats.text:FORMAT", every=(".txt", *DOCUMENTS), one_file=(".txt",)),
    "csv": Signature(format="shardex.formats.csv:FORMAT", extensions=_TABLES, one_file=(".csv",)),
    "parquet": Signature(format="shardex.formats.parquet:FORMAT", extensions=_PARQUET, one_file=_PARQUET),
    "megatron": Signature(
        format="shardex.formats.megatron:FORMAT",
        every=(".idx", ".bin"),
        magic=(b"MMIDIDX\x00\x00",),
        magic_of=".idx",
    ),
    "nanogpt": Signature(
        format="shardex.formats.nanogpt:FORMAT",
        every=(".bin",),
        magic=tuple(number.to_bytes(4, "little") for number in (20240520, 20240801, 20240522)),
    ),
    "npy": Signature(format="shardex.formats.npy:FORMAT", every=(".npy",), one_file=(".npy",), magic=(b"\x93NUMPY",)),
    "mds": Signature(
        format="shardex.formats.mds:FORMAT",
        markers=("index.json",),
        extensions=(".mds",),
        check="shardex.formats.mds:recognise",
    ),
    "npz": Signature(format="shardex.formats.npz:FORMAT", every=(".npz",)),
    "folder": Signature(
        format="shardex.formats.folder:FORMAT",
        extensions=_MEDIA,
        beside=(".txt", ".json"),
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


_OTHER_DATA = (".h5", ".hdf5", ".pkl", ".pt", ".safetensors", ".sqlite", ".db", ".xlsx", ".tfrecord", ".orc")
"""Extensions of files of data that no format reads."""


def target_format(path: str, format: str | None = None, default: str = "arrow") -> tuple[str, bool]:
    """Return the format in which a target is written, and whether it is one file.

    The extension decides: ``a.parquet`` is one file, unless there is a folder of this name or `format` is another one.
    Names without a known extension are folders, of the format `default`.

    >>> target_format("a.csv"), target_format("a.csv", "arrow"), target_format("weather"), target_format("v1.2")
    (('csv', True), ('arrow', False), ('arrow', False), ('arrow', False))
    """
    if path.startswith("@"):
        raise ArgumentError(
            f"expected a path or a URL to write to, got {path!r}, a name in a catalog: write to a path with "
            f"register={path!r}, or to the folder './{path}'"
        )
    if path.startswith(("http://", "https://")):
        place_of(path)  # raises for malformed ones
        remedy = "a web server is only read; write to a folder, or to a bucket: s3://, gs:// or az://"
        raise AccessDeniedError(errno.EROFS, remedy, display_name(path))
    name = path.partition("?")[0]
    extension = os.path.splitext(name.rstrip("/"))[1].lower()
    signatures = FORMATS if format is None else {format: signature_of(format)}
    if (chosen := next((one for one, known in signatures.items() if extension in known.one_file), None)) is not None:
        place = place_of(path)
        there = place.root_kind() == "folder" and (not place.is_remote or not place.is_empty())
        return chosen, not there and not name.endswith("/")
    if format is not None:
        return format, False
    known = {*_OTHER_DATA, *(one for signature in FORMATS.values() for one in signature.extensions + signature.every)}
    if extension in known or compression.plain_name(name) or compression.tar_name(name):
        written = ", ".join(one for signature in FORMATS.values() for one in signature.one_file)
        raise ArgumentError(
            f"{display_name(path)}: expected the name of a folder, or of a file that can be written ({written}), got "
            f"{extension}; choose another name, or the format of a folder of this name with format="
        )
    return default, False


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
    """Return the name of the one format that these files have.

    The rule for a folder: all files in it are of one format and of one split, or describe the data (`Files.data`). Of a
    list or a pattern all files are of one format.
    """
    likely = []
    for name, sure in matches(files):
        if sure == SURE:
            likely = [name]
            break
        likely.append(name)
    if len(likely) == 1:
        if files.is_native:  # its folder is not listed
            return likely[0]
        signature = signature_of(likely[0])
        _refuse_saved_splits(files)
        if signature.is_marked(files):
            return likely[0]
        if signature.left_out(files):
            raise UnknownFormatError(_mixed(files, _formats_of_some(files)))
        if "folder" not in likely:  # which knows folders of classes
            _refuse_splits(files, signature.reads(files))
        return likely[0]
    if some := {*likely, *_formats_of_some(files)}:
        raise UnknownFormatError(_mixed(files, sorted(some, key=format_names().index)))
    if files.folder and files.paths and not files.having("").paths:
        raise UnknownFormatError(
            f"{files}: expected a finished dataset, got only hidden or temporary files such as {files.paths[0]}: "
            "its writer did not finish, or its files were removed; remove the folder and write it again"
        )
    raise UnknownFormatError(
        f"{files}: expected shards of a known format ({', '.join(sorted(format_names()))}) or media files, got "
        f"{_describe(files)}; {_remedy(files)}"
    )


def _formats_of_some(files: Files) -> list[str]:
    """Return the formats of shardex that some of the data files may have, by their extensions."""
    return [name for name, one in FORMATS.items() if not one.alone and _has(files, one.extensions + one.every)]


def _has(files: Files, extensions: tuple[str, ...]) -> bool:
    """Return True if some data file has one of these extensions."""
    return not files.extensions.isdisjoint(extensions) and any(path.lower().endswith(extensions) for path in files.data)


def _mixed(files: Files, names: list[str]) -> str:
    """Return the message for files of several formats, or of one and others."""
    choices = " or ".join(f'format="{name}"' for name in names)
    which = "the files in this folder to have" if files.folder else "files of"
    tars = all(path.lower().endswith(".tar") or compression.tar_name(path) for path in files.data)
    return (
        f"{files}: expected {which} one format, got {_counted(files.data)}; choose what to read with {choices}, or "
        f"name the files by a pattern such as {_pattern(files)}{f'; {compression.COMPRESSED_TAR}' * tars}"
    )


def _pattern(files: Files) -> str:
    """Return a pattern for some of the files of a folder or a list."""
    below = "**/" if any("/" in path for path in files.data) else ""
    ((extension, _),) = Counter(os.path.splitext(path)[1] for path in files.data or [".jsonl"]).most_common(1)
    return f'"{os.path.join(str(files) if files.folder else files.source.url, below)}*{extension}"'


def _refuse_splits(files: Files, paths: list[str]) -> None:
    """Raise an error for a folder whose files are of several splits: joined, they would train a model on its tests."""
    if not files.folder:
        return
    names = (f"{os.path.dirname(path)}/" if path.lower().endswith(DOCUMENTS) else path for path in paths)
    found = {split: name for name in names if (split := named_split(name))}
    if len(found) > 1:
        one = pattern_of_split(found.get("train") or next(iter(found.values())))
        raise UnknownFormatError(
            f"{files}: expected the files of one split, got {', '.join(found)}; open one with "
            f'sx.open("{os.path.join(str(files), one)}"), all of them with sx.load_dataset("{files}"), or all files as '
            f"one dataset by a pattern such as {_pattern(files)}"
        )


def saved_splits(files: Files) -> list[str]:
    """Return the folders of the splits in a folder saved by ``DatasetDict.save_to_disk`` of Hugging Face."""
    if not files.folder or _SPLITS not in files.paths:
        return []
    return [folder for path in files.paths if (folder := path.removesuffix(_SPLIT)) != path and "/" not in folder]


def _refuse_saved_splits(files: Files) -> None:
    if len(some := saved_splits(files)) > 1:
        raise UnknownFormatError(
            f"{files}: expected one dataset, got a DatasetDict of Hugging Face with the splits {', '.join(some)}; open "
            f'one with sx.open("{os.path.join(str(files), some[0])}"), all of them with sx.load_dataset("{files}")'
        )


def _remedy(files: Files) -> str:
    """Return what to do about files that no format recognises; a format is named only if it can read them."""
    if not files.paths:
        return "check the path"
    if not files.folder and files.source.url.startswith("http") and not any("." in path for path in files.paths):
        return (
            "if it is a folder, a web server does not list its files: give the names of files, or a pattern such as "
            "part-{000..127}.tar; native datasets are not read from web servers"
        )
    if len({os.path.splitext(path)[1] for path in files.data}) > 1:
        return f"name the files to read by a pattern such as {_pattern(files)}"
    if _readable_head(files).translate(None, _TEXT) == b"":
        return 'if they are lines of text or of JSON, open them with format="text" or format="jsonl"'
    return 'if they are raw numbers, open them with format="tokens" and dtype=; otherwise write them with sx.write'


_MOST_KINDS = 5
_TEXT = bytes([*range(9, 14), *range(32, 127), *range(128, 256)])
"""Bytes that text can have."""


def _head(files: Files, path: str, count: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter."""
    return bytes(files.source.read(path, [ByteRange(0, min(count, files.source.stat(path).size))])[0])


def _readable_head(files: Files) -> bytes:
    try:
        return _head(files, _shown(files)[0], 16)
    except (FormatError, OSError):
        return b""


def _describe(files: Files) -> str:
    if not files.paths:
        return "an empty folder"
    head = _readable_head(files)
    compressed = ", compressed: unpack it first" if head.startswith(tuple(compression.COMPRESSED)) else ""
    if any(map(compression.tar_name, files.paths)):
        compressed = f"; {compression.COMPRESSED_TAR}"
    return f"{_counted(_shown(files))}, {_shown(files)[0]} beginning with {head!r}{compressed}"


def _counted(paths: Sequence[str]) -> str:
    """Return how many files of each kind there are."""
    kinds = Counter(os.path.splitext(path)[1] or "(no extension)" for path in paths).most_common()
    more = f", {len(kinds) - _MOST_KINDS} more kinds" * (len(kinds) > _MOST_KINDS)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds[:_MOST_KINDS])
    return f"{len(paths)} file{'s' * (len(paths) != 1)} ({counts}{more})"


def _shown(files: Files) -> Sequence[str]:
    """Return the files without hidden ones, or those if there are no others."""
    return files.having("").paths or files.paths
