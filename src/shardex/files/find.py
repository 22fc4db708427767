"""Which files a user means: a folder, a file, a glob, a brace pattern or a list becomes `Files` in natural order.

Natural order puts `part2` before `part10`, whatever the case of letters. Looks at names only, never into files. What
has a scheme (``s3://bucket/train-{000..099}.tar``) lies elsewhere and is read through a cache; a glob or a folder there
needs a store that can list its files, a brace pattern does not.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from shardex.errors import AccessDeniedError, NotFoundError, SchemaError, ShardexError
from shardex.files.patterns import expand_braces, has_wildcards, matching, natural_order, plain_start
from shardex.sources import (
    CachedSource,
    LocalSource,
    Source,
    Stat,
    absolute_path,
    has_credentials,
    is_url,
    open_source,
    redact_url,
    strip_credentials,
)

__all__ = ["STORE_FOLDER", "Files", "display_name", "expand_braces", "find", "natural_order"]

STORE_FOLDER = "_shardex"
"""The folder of a native dataset that holds its manifests."""

What = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class How(NamedTuple):
    """How files are read that lie elsewhere."""

    cache: str | os.PathLike[str] | bool | None
    limit: int | str | None
    access: str
    trusted: bool

    def open(self, url: str) -> CachedSource:
        """The files below an address. A web server that the user noted secrets for is as good as given by the user."""
        trusted = self.trusted or not url.startswith(("http://", "https://")) or has_credentials(url)
        return CachedSource(open_source(url, trusted=trusted), self.cache, self.limit, self.access)


_NOT_DATA = re.compile(r"(^|/)[._]")


@dataclass(frozen=True)
class Files:
    """Some files of one source, and what the user wrote to get them."""

    source: Source
    listed: tuple[str, ...] | None
    """The paths, if they are known already."""
    what: str | tuple[str, ...]
    """As given, made absolute: opens the same files again."""
    folder: bool = False
    """Whether `what` is one folder, and the paths all files below it."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Relative to the source, in the order of their samples; a folder is listed when they are first asked for."""
        return tuple(natural_order(self.source.paths())) if self.listed is None else self.listed

    def __str__(self) -> str:
        what, count = (self.what, 1) if isinstance(self.what, str) else (self.what[0], len(self.what))
        what = what.partition("?")[0] if what.startswith("http") else what  # there may be a secret after it
        return what if isinstance(self.what, str) else f"{count} files from {what} on"

    def name(self, number: int) -> str:
        """A file as messages name it."""
        return os.path.join(self.source.url, self.paths[number])

    def stats(self) -> list[Stat]:
        """Size and tag of each file."""
        return self.source.stats(self.paths)

    def having(self, *extensions: str) -> Files:
        """Only the data files with one of these extensions; hidden files and folders are no data."""
        kept = (p for p in self.paths if p.lower().endswith(extensions) and not (self.folder and _NOT_DATA.search(p)))
        return Files(self.source, tuple(kept), self.what, self.folder)


def find(
    what: What,
    *,
    cache: str | os.PathLike[str] | bool | None = None,
    cache_limit: int | str | None = None,
    access: str = "auto",
    trusted: bool = True,
) -> Files:
    """The files that `what` names; an error if one that is spelled out is not there.

    What lies elsewhere is kept in the folder `cache` (False: in memory; by default SHARDEX_CACHE or
    ``~/.cache/shardex``), up to `cache_limit` bytes, by ranges or by whole files as `access` says (`CachedSource`).
    An address that is not `trusted`, because data and not the user named it, must be of the public internet.

    >>> find("/nowhere/at/all")
    Traceback (most recent call last):
    shardex.errors.NotFoundError: [Errno 2] no such file or folder: '/nowhere/at/all'
    """
    how = How(cache, cache_limit, access, trusted)
    if isinstance(what, str | os.PathLike):
        one = _address(os.fspath(what))
        return _find_far(one, how) if _is_far(one) else _find_one(one)
    if not isinstance(what, Sequence) or not all(isinstance(one, str | os.PathLike) for one in what):
        raise SchemaError(f"expected a path, a pattern or a list of them, got {type(what).__name__}")
    if not what:
        raise NotFoundError(errno.ENOENT, "expected at least one file, got an empty list", "[]")
    names = tuple(_address(os.fspath(one)) for one in what)
    if any(map(_is_far, names)):
        return _find_all_far(names, how)
    given = tuple(map(absolute_path, names))
    return _files([path for one in given for path in _matches(one)], given)


def _find_one(what: str) -> Files:
    given = absolute_path(what)
    if os.path.isdir(given):
        return Files(LocalSource(given), None, given, folder=True)
    return _files(_matches(given), given)


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
    """The files of a glob, the data below a folder, or the file itself."""
    if os.path.isdir(pattern):
        below = natural_order(LocalSource(pattern).paths())
        return [os.path.join(pattern, path) for path in below if not _NOT_DATA.search(path)]
    if os.path.exists(pattern):
        return [pattern]
    return [path for path in natural_order(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]


def _files(paths: list[str], what: str | tuple[str, ...]) -> Files:
    folders = [os.path.dirname(path) for path in paths] or ([what] if isinstance(what, str) else list(what))
    root = os.path.commonpath(folders)
    relative = tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in paths)
    return Files(LocalSource(root), relative, what)


# -- elsewhere ----------------------------------------------------------------------------------------------------


def _address(what: str) -> str:
    """What was given, as it is kept: an address without user and password, its scheme in small letters."""
    if not is_url(what):
        return what
    scheme, _, rest = what.partition("://")
    plain = what if scheme.islower() else f"{scheme.lower()}://{rest}"
    return strip_credentials(plain) if plain.startswith(("http://", "https://")) else plain


def display_name(what: str | Sequence[str]) -> str:
    """What was opened, as it may be shown: an address may have a signature at its end.

    >>> display_name("https://host/a.tar?X-Amz-Signature=0f3a"), display_name(["a", "b"])
    ('https://host/a.tar?***', "['a', 'b']")
    """
    if isinstance(what, str):
        return redact_url(what) if is_url(what) else what
    return str([display_name(one) for one in what])


def _is_far(what: str) -> bool:
    return is_url(what) and not what.startswith(("file://", "pipe:"))


def _find_far(url: str, how: How) -> Files:
    """One address: a file, a pattern, or a folder."""
    root, name = _split_url(url)
    if url.endswith("/") or not name:
        return _far_folder(url, how)
    source = how.open(root)
    try:
        return Files(source, tuple(_far_matches(source, name)), url)
    except (NotFoundError, AccessDeniedError) as missing:  # who may not list is told that a key is forbidden
        if not _is_pattern(name, url):
            with suppress(ShardexError):  # a store that cannot list has no folders
                return _far_folder(url, how)
        raise missing


def _far_folder(url: str, how: How) -> Files:
    source = how.open(url.rstrip("/"))
    files = Files(source, None, url, folder=True)
    if not source.paths("_shardex/") and not files.paths:
        raise NotFoundError(errno.ENOENT, "no such file, and no files below it", url)
    return files


def _find_all_far(urls: tuple[str, ...], how: How) -> Files:
    """A list of addresses; all in one store, because what is read together is fetched together."""
    stores = {_store_of(one) if _is_far(one) else "this machine" for one in urls}
    if len(stores) > 1:
        raise SchemaError(
            f"expected files of one store, got some of {' and '.join(sorted(stores))}; open them one by one and "
            "put them together with sx.concat"
        )
    split = [_split_url(one) for one in urls]
    if len(queries := {root.partition("?")[2] for root, _ in split}) > 1:
        raise SchemaError(f"expected addresses that end alike after their question mark, got {len(queries)} kinds")
    folders = [root.partition("?")[0].split("/") for root, _ in split]
    above = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))]
    mark = split[0][0].partition("?")[1]
    source = how.open("/".join(above) + mark + queries.pop())
    inner = ["/".join([*folder[len(above) :], name]) for folder, (_, name) in zip(folders, split, strict=True)]
    return Files(source, tuple(path for one in inner for path in _far_matches(source, one)), urls)


def _split_url(url: str) -> tuple[str, str]:
    """The folder that holds everything an address means, and the rest of it.

    >>> _split_url("s3://bucket/data/part-*/x.tar"), _split_url("s3://bucket")
    (('s3://bucket/data', 'part-*/x.tar'), ('s3://bucket', ''))
    >>> _split_url("https://host/a/x.tar?key=1")
    ('https://host/a?key=1', 'x.tar')
    """
    store, query = _store_of(url), ""
    place = url[len(store) :]
    if url.startswith("http"):
        place, mark, rest = place.partition("?")
        query = mark + rest  # belongs to every file below
    place = place.rstrip("/")
    sign = re.search(r"\{" if url.startswith("http") else r"[{*?\[]", place)
    cut = place.rfind("/", 0, sign.start() if sign else None)
    return store + place[: max(cut, 0)] + query, place[cut + 1 :]


def _store_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?]', rest, maxsplit=1)[0]}"


def _is_pattern(name: str, url: str) -> bool:
    return _is_wild(name, url) or expand_braces(name) != [name]


def _is_wild(name: str, url: str) -> bool:
    """Whether files must be listed to know which are meant; a web server cannot, and question marks are its own."""
    return not url.startswith("http") and has_wildcards(name)


def _far_matches(source: Source, pattern: str) -> list[str]:
    found: list[str] = []
    for one in expand_braces(pattern):
        if not _is_wild(one, source.url):
            found.append(one)
            continue
        some = natural_order(matching(source.paths(plain_start(one)), one))
        if not some:
            raise NotFoundError(errno.ENOENT, "nothing matches", f"{source.url}/{one}")
        found += some
    source.stats(found)  # an error if one is not there
    return found
