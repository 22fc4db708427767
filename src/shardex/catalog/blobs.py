"""`AccountBlobs`: blobs of an account of ATProto as files, ``at://account/blob/CID``.

Servers of accounts send a blob only as a whole, of at most 50 MB. It is checked against its CID, which is its name.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

from shardex.catalog.xrpc import Account, XrpcClient, find_account
from shardex.errors import AddressError, RemoteError, TruncatedShardError
from shardex.sources import ByteRange, Place, Stat, credentials

_MOST_HELD = 128 << 20
"""Bytes of blobs that are kept in memory until the page cache has read them."""
_ROOT = re.compile(r"at://([^/?#@]+)/blob(/[a-z2-7]+)?")


class AccountBlobs(Place):
    """The blobs of an account, which is looked for when the first one is read; they are not listed or written.

    >>> AccountBlobs("at://alice.example.com/blob").full_name("bafkrei")
    'at://alice.example.com/blob/bafkrei'
    """

    def __init__(self, url: str, trusted: bool = True) -> None:
        """An account is the same whether the URL is trusted or not: its server must be public, or named by the user."""
        found = _ROOT.fullmatch(url)
        if found is None:
            raise AddressError(f"expected blobs of an account, at://account/blob/CID, got {url!r:.300}")
        self.url, self._name, self._trusted = url, found[1], trusted
        self._held: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., AccountBlobs], tuple[()]]:
        return partial(AccountBlobs, self.url, self._trusted), ()

    @cached_property
    def _account(self) -> Account:
        return find_account(self._name)

    def _get(self, cid: str) -> bytes:
        with self._lock:
            found = self._held.get(cid)
        if found is None:
            client = XrpcClient(self._account.server, credentials.settings_for(self.url), trusted=self._account.trusted)
            found = client.get_blob(self._account.did, cid)
            with self._lock:
                self._held[cid] = found
                while sum(map(len, self._held.values())) > _MOST_HELD and len(self._held) > 1:
                    del self._held[next(iter(self._held))]
        return found

    def stat(self, path: str) -> Stat:
        """Return the size of a blob; its tag is its CID."""
        return Stat(len(self._get(path)), path)

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return ranges of a blob."""
        data = memoryview(self._get(path))
        if short := [one for one in ranges if one.end > len(data)]:
            found = f"expected bytes up to {short[0].end}, got a blob of {len(data)} bytes"
            raise TruncatedShardError(f"{self.full_name(path)}: {found}")
        return [data[one.begin : one.end] for one in ranges]

    def map(self, path: str) -> memoryview:
        """Return a blob."""
        return memoryview(self._get(path))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise RemoteError(errno.EROFS, "blobs are read by their CIDs; they are not listed, and not written", self.url)

    paths = put = put_if_absent = draft = copy = remove = _refuse
