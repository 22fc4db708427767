"""`download_file`: copies a remote file to the disk, whole or not at all, and continues where an earlier attempt ended.

The bytes are read by ranges, as all remote files are: checked against the first stat of the file, and retried. They are
appended to a temporary file whose name is made of the URL, the size and the tag of the remote file, so that bytes of
two versions are never mixed. A web server that knows no ranges is asked for the whole file; so is one that sends no
size, by a plain request, which then is all that can be done.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import unquote

from shardex.errors import (
    AddressError,
    ArgumentError,
    ChecksumError,
    RemoteChangedError,
    RemoteError,
    RemoteReadError,
    ShardexError,
    storage_errors,
)
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.credentials import redact_url
from shardex.sources.local import make_folder, sync_file, sync_folder
from shardex.sources.locks import locked_file
from shardex.sources.protocols import Source
from shardex.sources.url import parent_of, place_of

_AT_ONCE = 32 << 20
"""Bytes that are read together, in several requests, before they are written."""
_SECONDS = 60
"""How long a plain request waits for an answer."""

Advance = Callable[[int, int], object]
"""Called with the bytes that are on the disk, and all bytes of the file; 0 if their number is not known."""


def download_file(
    urls: Sequence[str],
    path: str | os.PathLike[str],
    *,
    checksum: str | None = None,
    advance: Advance | None = None,
) -> None:
    """Download a file to a local path, unless that exists; the URLs are tried in order.

    A file that exists with another checksum is replaced when the right one is there. `checksum` is an algorithm of
    `hashlib` and hex digits, such as ``"sha256:0a1b..."``. Of several processes one downloads the file, the others
    wait.

    :raises ChecksumError: if the file is another one than the checksum says
    :raises SourceError: if it cannot be read from any URL

    >>> import tempfile; place = place_of("memory://docs"); place.put("a.txt", b"hello")
    >>> path = os.path.join(tempfile.mkdtemp(), "a.txt")
    >>> download_file(["memory://docs/a.txt"], path, checksum="md5:5d41402abc4b2a76b9719d911017c592")
    >>> os.path.getsize(path)
    5
    """
    if not urls or isinstance(urls, str):
        raise ArgumentError(f"expected a list of URLs, got {urls!r}")
    target = os.path.abspath(path)
    wanted = None if checksum is None else _parsed(checksum)
    with storage_errors(target, "create"):
        make_folder(os.path.dirname(target))
    with locked_file(f"{target}.lock"):
        if os.path.exists(target) and (wanted is None or _digest(target, wanted[0]) == wanted[1]):
            return
        failed: list[ShardexError] = []
        for url in urls:
            try:
                _download(url, target, wanted, advance)
                return
            except ShardexError as error:
                failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    kind = type(failed[0]) if len({type(one) for one in failed}) == 1 else RemoteReadError
    raise kind(f"expected a file at one of {len(urls)} URLs, got none: " + "; ".join(map(str, failed)))


def _parsed(checksum: str) -> tuple[str, str]:
    algorithm, found, digits = checksum.lower().partition(":")
    if not found or algorithm not in hashlib.algorithms_available or not digits:
        raise ArgumentError(f'expected a checksum such as "sha256:" and hex digits, got {checksum!r}')
    return algorithm, digits


def _download(url: str, target: str, wanted: tuple[str, str] | None, advance: Advance | None) -> None:
    part = _fetch(url, target, advance or _ignore)
    if wanted is not None:
        _check(part, wanted, url)
    with storage_errors(target, "write"):
        _sync(part)
        os.replace(part, target)
        sync_folder(os.path.dirname(target))
    folder, name = os.path.split(target)
    own = re.compile(rf"{re.escape(name)}\.([0-9a-f]{{12}}|whole)\.tmp")  # not those of a file name.zip
    for left in filter(own.fullmatch, os.listdir(folder)):
        with suppress(OSError):
            os.unlink(os.path.join(folder, left))


def _ignore(done: int, size: int) -> None:
    pass


def _fetch(url: str, target: str, advance: Advance) -> str:
    """Download a file to a temporary one, whose path is returned."""
    is_web = url.lower().startswith(("http://", "https://"))
    try:
        folder, name = parent_of(url)
        source: Source = place_of(folder)
        stat = source.stat(name := unquote(name) if is_web else name)
    except (RemoteError, AddressError):
        if not is_web:
            raise
        return _by_one_request(url, target, advance)
    identity = hashlib.sha256(f"{url} {stat.size} {stat.tag}".encode()).hexdigest()[:12]
    part = f"{target}.{identity}.tmp"
    with storage_errors(part, "write"), open(part, "ab") as file:
        try:
            _append(file, source, name, stat.size, advance)
        except RemoteChangedError:
            raise
        except RemoteError:
            if not is_web:
                raise
            source.download(name, file)
            advance(stat.size, stat.size)
    return part


def _append(file: BinaryIO, source: Source, name: str, size: int, advance: Advance) -> None:
    """Append what is missing of a file of this size."""
    at = file.tell()
    if at > size:
        file.truncate(at := 0)
    while at < size:
        data = source.read(name, [ByteRange(at, min(_AT_ONCE, size - at))])[0]
        file.write(data)
        file.flush()
        at += len(data)
        advance(at, size)


def _by_one_request(url: str, target: str, advance: Advance) -> str:
    """Write the answer to one plain request to a new temporary file; return its path."""
    import urllib.error  # slow to import, and seldom needed
    import urllib.request
    from http.client import HTTPException

    part = f"{target}.whole.tmp"
    shown = redact_url(url)
    request = urllib.request.Request(url, headers={"User-Agent": "shardex"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer, open(part, "wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
            expected, got = int(answer.headers.get("Content-Length") or -1), file.tell()
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise RemoteReadError(f"{shown}: expected a file, got none: {error}") from None
    if expected not in (-1, got):
        raise RemoteReadError(f"{shown}: expected {expected} bytes, got {got}")
    advance(got, got)
    return part


def _check(part: str, wanted: tuple[str, str], url: str) -> None:
    algorithm, digits = wanted
    if (found := _digest(part, algorithm)) != digits:
        with suppress(OSError):
            os.unlink(part)
        raise ChecksumError(f"{redact_url(url)}: expected a file with {algorithm} {digits}, got {found}")


def _digest(path: str, algorithm: str) -> str:
    with storage_errors(path, "read"), open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        sync_file(file.fileno())
