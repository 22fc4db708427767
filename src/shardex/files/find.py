"""`find`: turns a path (a folder, a file, a glob, a brace pattern, a URL or a list of them) into `Files`.

Files are in natural order: `part2` before `part10`, ignoring case. Only names are used, files are not read. URLs
(``s3://bucket/train-{000..099}.tar``) are read through the page cache. A glob or a folder at a URL needs a store that
can list its files, a brace pattern does not. The rules for names are in `patterns`.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from shardex import sources
from shardex.errors import AccessDeniedError, ArgumentError, NotFoundError, PathError, ShardexError, storage_errors
from shardex.files.append_together import visible_matches, visible_paths
from shardex.files.compressed_files import present_content
from shardex.files.folder_listing import FolderListing, load_listing
from shardex.files.patterns import expand_braces, has_wildcards, literal_prefix, matching, natural_order
from shardex.sources import (
    LocalSource,
    Source,
    Stat,
    absolute_path,
    is_local,
    is_url,
    open_regular,
    open_source,
    redact_url,
)

STORE_FOLDER = "_shardex"
"""The folder of a native dataset that holds its manifests."""
LATEST_VERSION = f"{STORE_FOLDER}/latest"
"""A file with the number of a version that was the latest one; written in a local folder for some versions."""
LATEST_EVERY = 32
"""How many versions are published between two of those in the file."""

OpenRemote = Callable[[str], "sources.CachedSource"]
What = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


_NOT_DATA = re.compile(r"(^|/)[._]")
_ABOUT = re.compile(
    r"(?:.*/)?(?:"
    r"(?:readme|licen[cs]e|copying|notice|citation|changelog|contributing|authors|datasheet|dataset[-_]?card)"
    r"(?:[-_][^./]*)?(?:\.[a-z]{2})?(?:\.(?:md|txt|rst|html|pdf))?"
    r"|(?:md5|sha[0-9]*|check)[-_]?sums?(?:\.txt)?|[^/]+\.(?:md5|sha1|sha256|sha512|crc|sig|asc)"
    r"|[^/]+\.(?:ya?ml|toml|ini|cfg|cff|bib|log|lock|sh|model|vocab)|makefile|thumbs\.db|notes\.md"
    r"|(?:state|dataset_(?:infos?|dict))\.json)"
    r"|(?:(?:[^/]+[-_])?(?:stats|config)|schema|metadata|croissant|tokenizer|vocab|added_tokens|special_tokens_map)\.json"
    r"|(?:classes|labels|categories|vocab|merges|requirements)\.txt",
    re.IGNORECASE,
)
"""Files that describe data and are none: documentation, checksums, settings; others by names at the top."""
_BESIDE = re.compile(
    r"(?:.*/)?metadata\.(?:csv|jsonl)|(?:[^/]+[-_])?(?:figure|logo|banner|thumbnail|teaser)[-_0-9]*\.(?:png|jpe?g|svg)",
    re.IGNORECASE,
)
"""Files that describe other data if there is some: tables with more fields, pictures of a README."""
_PICTURES = (".png", ".jpg", ".jpeg", ".JPG", ".JPEG")
"""Extensions of which there may be very many files."""
_EXTENSION = re.compile(r"\.[^./]+")


@dataclass(frozen=True)
class Files:
    """Files of one source, and the path or list that the user passed."""

    source: Source
    listed: tuple[str, ...] | None
    """The paths, if they are already known."""
    what: str | tuple[str, ...]
    """The path or list that the user passed, with absolute paths: opens the same files again."""
    folder: bool = False
    """True if `what` is one folder; the paths are all files below it."""
    packed: Files | None = None
    """The files as they are stored, if some of them are compressed."""
    manifests: tuple[str, ...] | None = None
    """Paths of the newest manifests of a native dataset, empty for other files; None if the folder was not listed."""
    access: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Options with which `open` found the files, for other files that they name."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Paths relative to the source, in the order of their samples; a folder is listed on the first access."""
        if self.listed is not None:
            return self.listed
        if (saved := self.saved_listing) is not None:
            return saved.paths[: saved.own]
        return tuple(natural_order(visible_paths(self.source)))

    @property
    def is_native(self) -> bool:
        """True for the folder of a native dataset."""
        return bool(self.manifests)

    @property
    def is_local_folder(self) -> bool:
        """True if the paths are all files below a local folder."""
        return self.folder and self.listed is None and self.source.data_folder is not None

    @cached_property
    def saved_listing(self) -> FolderListing | None:
        """The saved list of the files of a local folder of very many, if it is up to date."""
        return load_listing(self) if self.is_local_folder else None

    def has(self, path: str) -> bool:
        """Return True if this is a folder with this file, or with files below this path if it ends in a slash."""
        if not self.folder:
            return False
        if path == f"{STORE_FOLDER}/" and self.manifests is not None:
            return self.is_native
        if self.is_local_folder and not os.path.lexists(os.path.join(self.source.url, path)):
            return False  # without listing the folder
        return any(one.startswith(path) for one in self.paths) if path.endswith("/") else path in self.paths

    @property
    def has_linked_folders(self) -> bool:
        """True for a local folder with links to folders, whose files are not among the paths."""
        if not self.is_local_folder:
            return False
        with storage_errors(self.source.url, "list"), os.scandir(self.source.url) as entries:
            return any(entry.is_symlink() and entry.is_dir() for entry in entries)

    def __str__(self) -> str:
        what = self.what if isinstance(self.what, str) else self.what[0]
        what = what.partition("?")[0] if what.startswith("http") else what  # a query may contain a secret
        return what if isinstance(self.what, str) else f"{len(self.paths)} files from {what} on"

    def name(self, number: int) -> str:
        """Return the full path of a file, for error messages."""
        return self.source.full_name(self.paths[number])

    def stats(self) -> list[Stat]:
        """Return size and tag of each file."""
        return self.source.stats(self.paths)

    def having(self, *extensions: str) -> Files:
        """Return the data files with one of these extensions; hidden files and files in hidden folders are not data."""
        if all(map(_EXTENSION.fullmatch, extensions)) and self.extensions.isdisjoint(extensions):
            return replace(self, listed=())
        if extensions == ("",):
            return replace(self, listed=tuple(self._shown))
        return replace(self, listed=tuple(path for path in self._shown if path.lower().endswith(extensions)))

    @cached_property
    def extensions(self) -> frozenset[str]:
        """What follows the last dot in the paths of data files, with the dot, in lower case."""
        return frozenset({path[path.rfind(".") :].lower() for path in self._shown})

    @cached_property
    def data(self) -> Sequence[str]:
        """Paths of files that may be samples: without a README and others that describe them; all paths of a list."""
        if not self.folder or self.extensions <= {*_PICTURES}:
            return self._shown
        found = [path for path in self._shown if path.endswith(_PICTURES) or not _ABOUT.fullmatch(path)]
        few = (path for path in found if "/" not in path or not path.endswith(_PICTURES))
        beside = set(filter(_BESIDE.fullmatch, few))
        return [path for path in found if path not in beside] or found if beside else found

    @cached_property
    def _shown(self) -> Sequence[str]:
        return [path for path in self.paths if not _NOT_DATA.search(path)] if self.folder else self.paths


def find(
    what: What,
    *,
    cache: str | os.PathLike[str] | bool | None = None,
    cache_limit: int | str | None = None,
    access: str = "auto",
    trusted: bool = True,
    compressed: str | None = None,
    progress: bool | None = None,
) -> Files:
    """Return the files that `what` refers to; raise an error if a file that is named without wildcards does not exist.

    Remote files are cached in the folder `cache` (False: in memory; default: SHARDEX_CACHE or ``~/.cache/shardex``), up
    to `cache_limit` bytes, by ranges or by whole files depending on `access` (see `CachedSource`). Pass
    ``trusted=False`` for URLs found in data and not written by the user: they must be on the public internet.

    Compressed files appear as their content, read as `compressed` says (see `present_content`).

    >>> find("/nowhere/at/all")
    Traceback (most recent call last):
    shardex.errors.NotFoundError: [Errno 2] no such file or folder: '/nowhere/at/all'
    """

    def open_remote(url: str) -> sources.CachedSource:
        # A web server for which the user has stored secrets counts as trusted.
        trust = trusted or not url.startswith(("http://", "https://")) or sources.credentials.has_credentials(url)
        return sources.CachedSource(open_source(url, trusted=trust), cache, cache_limit, access)

    found = _find(what, open_remote)
    return found if found.is_native else present_content(found, compressed, cache, cache_limit, progress)


def _find(what: What, open_remote: OpenRemote) -> Files:
    if isinstance(what, str | os.PathLike):
        one = _normalised(os.fspath(what))
        return _find_local(one) if is_local(one) else _find_url(one, open_remote)
    if not isinstance(what, Sequence) or not all(isinstance(one, str | os.PathLike) for one in what):
        raise ArgumentError(f"expected a path, a pattern or a list of them, got {type(what).__name__}")
    if not what:
        raise NotFoundError(errno.ENOENT, "expected at least one file, got an empty list", "[]")
    names = tuple(_normalised(os.fspath(one)) for one in what)
    if not all(map(is_local, names)):
        return _find_urls(names, open_remote)
    patterns = tuple(map(absolute_path, names))
    return _files([path for pattern in patterns for path in _matches(pattern)], patterns)


def _find_local(what: str) -> Files:
    path = absolute_path(what)
    if os.path.isdir(path):
        source = LocalSource(path)
        return Files(source, None, path, folder=True, manifests=tuple(newest_manifests(source)))
    return _files(_matches(path), path)


def newest_manifests(source: Source) -> list[str]:
    """Return the paths below the folder of the manifests: all of them, or in a local folder with many the newest ones.

    The newest ones are looked for after the version in `LATEST_VERSION`, because listing 10 000 names takes 5 ms.
    """
    if (folder := source.data_folder) is not None:
        with suppress(OSError, ValueError), open_regular(os.path.join(folder, LATEST_VERSION)) as descriptor:
            number = int(os.read(descriptor, 9))
            names = [f"{STORE_FOLDER}/{number + k:08d}.json" for k in range(LATEST_EVERY + 1)]
            there = [name for name in names if os.path.exists(os.path.join(folder, name))]
            if there[:1] == names[:1] and there[-1] != names[-1]:  # otherwise the file is out of date
                return there
    return source.paths(f"{STORE_FOLDER}/")


def _matches(pattern: str) -> list[str]:
    found: list[str] = []
    for one in [pattern] if os.path.exists(pattern) else expand_braces(pattern):
        some = _matches_of_one(one)
        if not some and not os.path.isdir(one):
            problem = "no such file or folder" if one == pattern else f"nothing matches a part of {pattern}"
            raise NotFoundError(errno.ENOENT, problem, one)
        found += some
    return found


def _matches_of_one(pattern: str) -> list[str]:
    """Return the files of a glob, the data files below a folder, or the file itself."""
    if os.path.isdir(pattern):
        below = natural_order(visible_paths(LocalSource(pattern)))
        return [os.path.join(pattern, path) for path in below if not _NOT_DATA.search(path)]
    if os.path.exists(pattern):
        return [pattern]
    return natural_order(visible_matches(lambda: list(filter(os.path.isfile, glob.glob(pattern, recursive=True)))))


def _files(paths: list[str], what: str | tuple[str, ...]) -> Files:
    folders = [os.path.dirname(path) for path in paths] or ([what] if isinstance(what, str) else list(what))
    root = os.path.commonpath(folders)
    relative = tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in paths)
    return Files(LocalSource(root), relative, what)


# -- URLs ---------------------------------------------------------------------------------------------------------


def _normalised(what: str) -> str:
    """Return a URL without user and password and with its scheme in lower case; a path is unchanged."""
    if not is_url(what):
        return what
    scheme, _, rest = what.partition("://")
    plain = what if scheme.islower() else f"{scheme.lower()}://{rest}"
    return sources.credentials.strip_credentials(plain) if plain.startswith(("http://", "https://")) else plain


def display_name(what: str | Sequence[str]) -> str:
    """Return paths or URLs for display: the query of a URL, which may be a signature, is hidden.

    >>> display_name("https://host/a.tar?X-Amz-Signature=0f3a"), display_name(["a", "b"])
    ('https://host/a.tar?***', "['a', 'b']")
    """
    if isinstance(what, str):
        return redact_url(what) if is_url(what) else what
    return str([display_name(one) for one in what])


def _find_url(url: str, open_remote: OpenRemote) -> Files:
    """Return the files of one URL: of a file, a pattern, or a folder."""
    root, name = _split_url(url)
    if url.endswith("/") or not name:
        return _remote_folder(url, open_remote)
    source = open_remote(root)
    is_pattern = _is_wild(name, url) or "{" in name
    try:
        if is_pattern and not url.startswith("http") and "?" not in url:
            with suppress(NotFoundError, AccessDeniedError):  # a folder may have this name, as it may on a disk
                return _remote_folder(url, open_remote)
        return Files(source, tuple(_remote_matches(source, name)), url)
    except (NotFoundError, AccessDeniedError, PathError) as missing:  # without permission to list, "forbidden"
        if url.startswith("http") and "*" in url.partition("?")[0]:
            source.paths()  # raises: a web server does not list its files
        if not is_pattern or (not _is_wild(name, url) and expand_braces(name) == [name]):
            with suppress(ShardexError):  # a store that cannot list files has no folders
                return _remote_folder(url, open_remote)
        raise missing


def _remote_folder(url: str, open_remote: OpenRemote) -> Files:
    source = open_remote(url.rstrip("/"))
    files = Files(source, None, url, folder=True, manifests=tuple(newest_manifests(source)))
    if not files.is_native and not files.paths:
        raise NotFoundError(errno.ENOENT, "no such file, and no files below it", url)
    return files


def _find_urls(urls: tuple[str, ...], open_remote: OpenRemote) -> Files:
    """Return the files of several URLs, which must be in one store: files of one dataset are fetched together."""
    stores = {"this machine" if is_local(one) else _store_of(one) for one in urls}
    if len(stores) > 1:
        raise ArgumentError(
            f"expected files of one store, got files of {' and '.join(sorted(stores))}; open them one by one and "
            "concatenate them with sx.concat"
        )
    split = [_split_url(one) for one in urls]
    if len(queries := {root.partition("?")[2] for root, _ in split}) > 1:
        raise ArgumentError(f"expected URLs with the same query, got {len(queries)} different ones")
    folders = [root.partition("?")[0].split("/") for root, _ in split]
    above = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))]
    mark = split[0][0].partition("?")[1]
    source = open_remote("/".join(above) + mark + queries.pop())
    inner = ["/".join([*folder[len(above) :], name]) for folder, (_, name) in zip(folders, split, strict=True)]
    return Files(source, tuple(path for one in inner for path in _remote_matches(source, one)), urls)


def _split_url(url: str) -> tuple[str, str]:
    """Split a URL before its last component or its first wildcard: into a folder, and a name or pattern below it.

    >>> _split_url("s3://bucket/data/part-*/x.tar"), _split_url("s3://bucket")
    (('s3://bucket/data', 'part-*/x.tar'), ('s3://bucket', ''))
    >>> _split_url("https://host/a/x.tar?key=1")
    ('https://host/a?key=1', 'x.tar')
    """
    store, query = _store_of(url), ""
    place = url[len(store) :]
    if url.startswith("http"):
        place, mark, rest = place.partition("?")
        query = mark + rest  # it applies to every file below
    place = place.rstrip("/")
    sign = re.search(r"\{" if url.startswith("http") else r"[{*?\[]", place)
    cut = place.rfind("/", 0, sign.start() if sign else None)
    return store + place[: max(cut, 0)] + query, place[cut + 1 :]


def _store_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?]', rest, maxsplit=1)[0]}"


def _is_wild(name: str, url: str) -> bool:
    """Return whether files must be listed; a web server cannot list, and in its URLs ``?`` begins the query."""
    return not url.startswith("http") and has_wildcards(name)


def _remote_matches(source: Source, pattern: str) -> list[str]:
    found: list[str] = []
    for one in expand_braces(pattern):
        if not _is_wild(one, source.url):
            found.append(one)
            continue
        some = natural_order(matching(source.paths(literal_prefix(one)), one))
        if not some:
            raise NotFoundError(errno.ENOENT, "nothing matches", f"{source.url}/{one}")
        found += some
    source.stats(found)  # raises if a file does not exist
    return found
