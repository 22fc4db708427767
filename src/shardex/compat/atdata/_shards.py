"""The samples of a source of shards as rows of the core: a key and packed bytes each, opened at first use."""

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

from shardex.compat.atdata._protocols import DataSource
from shardex.compat.atdata._sources import S3Source, URLSource
from shardex.dataset import Dataset, concat
from shardex.dataset import open as open_dataset
from shardex.errors import RemoteReadError
from shardex.sources import absolute_path, is_url

KEY, PACKED = "__key__", "msgpack"
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
_PIECE = 1 << 20


class Shards:
    """The shards of a source; every method returns a dataset with the fields of `KEY` and `PACKED`.

    The core reads shards with an address by ranges. Blobs, shards of other sources, and those of web servers that send
    only whole files are copied to temporary files first, which are removed with this object.
    """

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self._opened: dict[tuple[str, ...], tuple[Any, Dataset]] = {}
        self._rows_by_key: tuple[Dataset, dict[str, int]] | None = None
        self._copies: dict[str, str] = {}
        self._copying = threading.Lock()
        self._copies_web = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, (self.source,)

    def all(self) -> Dataset:
        """Return the samples of all shards."""
        return self.some(self.source.list_shards())

    def some(self, shards: Sequence[str]) -> Dataset:
        """Return the samples of these shards."""
        names = tuple(shards)
        addresses = self._addresses(names)
        state = [_state(one) for one in addresses]
        known, opened = self._opened.get(names, (None, None))
        if opened is None or known != state:  # a shard that was written again is opened again
            try:
                opened = _open(addresses)
            except RemoteReadError:
                if self._copies_web or not any(map(_is_web, addresses)):
                    raise
                self._copies_web = True
                return self.some(shards)
            self._opened[names] = state, opened
        return opened

    def part(self, number: int, count: int) -> Dataset:
        """Return one of several parts of all samples: every shard is in one, or samples if there are too few shards."""
        names = self.source.list_shards()
        return self.some(names[number::count]) if len(names) >= count else self.all()[number::count]

    def row_of(self, key: str) -> int | None:
        """Return the row of the first sample with a key, `None` if there is none."""
        rows = self.all()
        if self._rows_by_key is None or self._rows_by_key[0] is not rows:
            keys: list[str] = rows[KEY]
            self._rows_by_key = rows, {one: len(keys) - 1 - k for k, one in enumerate(reversed(keys))}
        return self._rows_by_key[1].get(key)

    def _addresses(self, shards: Sequence[str]) -> list[str]:
        if type(self.source) not in (URLSource, S3Source):
            return [self._copied(one) for one in shards]
        found = cast("URLSource", self.source).addresses(shards)
        return [self._copied(one) if _is_web(one) else one for one in found] if self._copies_web else found

    def _copied(self, shard: str) -> str:
        """Return the path of a copy of a shard."""
        with self._copying:
            if shard not in self._copies:
                if not self._copies:
                    self._folder = tempfile.mkdtemp(prefix="shardex-shards-")
                    weakref.finalize(self, _remove, self._folder, os.getpid())
                path = os.path.join(self._folder, f"{len(self._copies):06d}.tar")
                with self.source.open_shard(shard) as stream, open(path, "wb") as out:
                    shutil.copyfileobj(stream, out, _PIECE)
                self._copies[shard] = path
            return self._copies[shard]


def _remove(folder: str, pid: int) -> None:
    if pid == os.getpid():  # not a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _is_web(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _open(addresses: Sequence[str]) -> Dataset:
    """Return the samples at these paths and URLs; only those of one store are opened together."""
    groups = [list(some) for _, some in groupby(addresses, _store_of)]
    opened = [_open_together(some) for some in groups]
    return opened[0] if len(opened) == 1 else concat(*opened)


def _open_together(addresses: Sequence[str]) -> Dataset:
    options: dict[str, Any] = {"schema": {PACKED: bytes}}
    if any(one.lower().endswith(_COMPRESSED) for one in addresses):
        options["compressed"] = "copy"
    return open_dataset(addresses, format="tar", **options)


def _state(address: str) -> Any:
    """Return what changes when a local file is written again."""
    if is_url(address):
        return None
    try:
        found = os.stat(absolute_path(address))
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _store_of(address: str) -> str:
    """Return what the addresses of files that the core opens together have in common."""
    if not is_url(address):
        return ""
    place, _, query = address.partition("?")
    return f"{'/'.join(place.split('/')[:3])}?{query}"
