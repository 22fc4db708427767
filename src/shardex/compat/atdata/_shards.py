"""The samples of a source of shards as rows of the core: a key and packed bytes each, opened at first use."""

import os
import random
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, cast

import pyarrow as pa

from shardex.compat.atdata._exceptions import BrokenTarError, CutTarError
from shardex.compat.atdata._protocols import DataSource
from shardex.compat.atdata._sources import S3Source, UntrustedURLs, URLSource
from shardex.dataset import Dataset, concat, from_table
from shardex.dataset import open as open_dataset
from shardex.errors import FormatError, RemoteReadError, ShardexError, TruncatedShardError
from shardex.sources import absolute_path, is_url

KEY, PACKED = "__key__", "msgpack"
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
_PIECE = 1 << 20
_PREFIX = "shardex-shards-"


class Shards:
    """The shards of a source, as datasets with the fields `KEY` and `PACKED`.

    The core reads shards with an address by ranges. Blobs, shards of other sources, and those of web servers that send
    only whole files are copied to temporary files first: by `in_turn` a few at once, for random access all of them,
    until this object is removed.
    """

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self._copied = type(source) not in (URLSource, UntrustedURLs, S3Source)
        self._trusted: bool = getattr(source, "trusted", True)
        self._opened: dict[tuple[str, ...], tuple[Any, Dataset]] = {}
        self._rows_by_key: tuple[Dataset, dict[str, int]] | None = None
        self._copies: dict[str, str] = {}
        self._copying = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, (self.source,)

    # -- random access ----------------------------------------------------------------------------------------------

    def all(self) -> Dataset:
        """Return the samples of all shards."""
        names = tuple(self.source.list_shards())
        if not names:
            return from_table(pa.table({KEY: pa.array([], pa.string()), PACKED: pa.array([], pa.binary())}))
        if (found := self._read_in_place(names)) is not None:
            return found
        return self._open_again(names, [self._copy_of(one) for one in names], self._folder)

    def row_of(self, key: str) -> int | None:
        """Return the row of the first sample with a key, `None` if there is none."""
        rows = self.all()
        if self._rows_by_key is None or self._rows_by_key[0] is not rows:
            keys: list[str] = rows[KEY]
            self._rows_by_key = rows, {one: len(keys) - 1 - k for k, one in enumerate(reversed(keys))}
        return self._rows_by_key[1].get(key)

    # -- one after the other ----------------------------------------------------------------------------------------

    def in_turn(
        self, shards: Sequence[str], at_least: int = 1, shuffle: random.Random | None = None, *, keep: bool = True
    ) -> Iterator[Dataset]:
        """Yield the samples of these shards: all together, or if they are copied at least so many of them at once.

        Copied shards can be shuffled. With `keep` files stay open for the next time.
        """
        names = tuple(shards)
        if not names:
            return
        try:
            found = self._read_in_place(names, keep)
        except ShardexError:
            if len(names) == 1 or shuffle is not None:
                raise
            for one in names:  # those before the broken one
                yield from self.in_turn([one], keep=False)
            return
        if found is not None:
            yield found
        elif self._copies.keys() >= set(names):
            yield _open([self._copies[one] for one in names], self._folder)
        else:
            left = list(names)
            if shuffle is not None:
                shuffle.shuffle(left)
            yield from self._copied_in_turn(left, at_least)

    def _copied_in_turn(self, left: list[str], at_least: int) -> Iterator[Dataset]:
        while left:
            with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
                group: list[Dataset] = []
                while (left and sum(map(len, group)) < at_least) or not group:
                    path = os.path.join(folder, f"{len(group):06d}.tar")
                    self._copy(left.pop(0), path)
                    group.append(_open([path], folder))
                yield group[0] if len(group) == 1 else concat(*group)

    # -- files ------------------------------------------------------------------------------------------------------

    def _read_in_place(self, names: tuple[str, ...], keep: bool = True) -> Dataset | None:
        """Return shards that the core can read where they are, `None` for those that must be copied."""
        if self._copied:
            return None
        addresses = cast("URLSource", self.source).addresses(names)
        try:
            return self._open_again(names, addresses) if keep else _open(addresses, trusted=self._trusted)
        except RemoteReadError:
            if not any(one.startswith(("http://", "https://")) for one in addresses):
                raise
        self._copied = True  # the server may not know ranges
        return None

    def _open_again(self, names: tuple[str, ...], addresses: Sequence[str], cache: str | None = None) -> Dataset:
        """Return what was opened before; a shard that was written again since then is opened again."""
        state = [_state(one) for one in addresses]
        known, opened = self._opened.get(names, (None, None))
        if opened is None or known != state:
            opened = _open(addresses, cache, trusted=self._trusted or cache is not None)
            self._opened[names] = state, opened
        return opened

    def _copy_of(self, shard: str) -> str:
        """Return the path of a copy of a shard that stays."""
        with self._copying:
            if shard not in self._copies:
                if not self._copies:
                    self._folder = tempfile.mkdtemp(prefix=_PREFIX)
                    weakref.finalize(self, _remove, self._folder, os.getpid())
                path = os.path.join(self._folder, f"{len(self._copies):06d}.tar")
                self._copy(shard, path)
                self._copies[shard] = path
            return self._copies[shard]

    def _copy(self, shard: str, path: str) -> None:
        with self.source.open_shard(shard) as stream, open(path, "wb") as out:
            shutil.copyfileobj(stream, out, _PIECE)


def _remove(folder: str, pid: int) -> None:
    if pid == os.getpid():  # not a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _open(addresses: Sequence[str], cache: str | None = None, *, trusted: bool = True) -> Dataset:
    """Return the samples at these paths and URLs; only those of one store are opened together.

    `cache` is the folder for the content of compressed files, if it is not the usual one. Without `trusted` URLs must
    be public.
    """
    groups = [list(some) for _, some in groupby(addresses, _store_of)]
    try:
        opened = [_open_together(some, cache, trusted) for some in groups]
    except FormatError as error:
        kind = CutTarError if isinstance(error, TruncatedShardError) else BrokenTarError
        raise kind(str(error)) from error
    return opened[0] if len(opened) == 1 else concat(*opened)


def _open_together(addresses: Sequence[str], cache: str | None, trusted: bool) -> Dataset:
    options: dict[str, Any] = {"format": "tar", "schema": {PACKED: bytes}, "trusted": trusted}
    if not any(one.lower().endswith(_COMPRESSED) for one in addresses):
        try:
            return open_dataset(addresses, **options)
        except FormatError:  # not a tar, or a compressed one with the name of another
            pass
    return open_dataset(addresses, compressed="copy", cache=cache, **options)


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
