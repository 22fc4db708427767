"""Where the shards of a dataset are: URLs, a bucket with own keys, or blobs of ATProto.

Each source has the names of its shards (`list_shards`), opens them as streams, and has the addresses at which the core
reads them (`addresses`): by ranges, or from whole copies where a web server does not know ranges.
"""

import io
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from typing import IO, Any, BinaryIO, ClassVar, Self, cast
from urllib.parse import quote

from shardex.errors import ArgumentError, ShardexError, storage_errors
from shardex.files import expand_braces
from shardex.sources import absolute_path, compression, is_url, open_source, parent_of, storage

__all__ = ["BlobSource", "S3Source", "URLSource"]

PLC_DIRECTORY = "https://plc.directory"
_BUFFER = 1 << 20


class UnknownShardError(ShardexError, KeyError):
    """A shard that the source does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class _Shards:
    """What the sources have in common: shards by name, which the core reads at addresses."""

    trusted: ClassVar[bool] = True
    """False if other people name the addresses: web servers must then have public ones."""

    def list_shards(self) -> list[str]:
        """Return the names of all shards."""
        raise NotImplementedError

    def addresses(self, shards: Sequence[str]) -> list[str]:
        """Return the paths or URLs at which these shards are read."""
        known = set(self.list_shards())
        for one in shards:
            if one not in known:
                raise UnknownShardError(f"expected one of the {len(known)} shards of {self!r:.200}, got {one!r}")
        return self._addresses(shards)

    def _addresses(self, shards: Sequence[str]) -> list[str]:
        return list(shards)

    @property
    def shard_list(self) -> list[str]:
        """The names of all shards: use `list_shards`."""
        warnings.warn("shard_list is deprecated, use list_shards()", DeprecationWarning, stacklevel=2)
        return self.list_shards()

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The name and an open stream of each shard; a stream is opened when it is reached."""
        return ((shard, self.open_shard(shard)) for shard in self.list_shards())

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Return a stream of a shard; `KeyError` if there is none of this name."""
        return _stream(self.addresses([shard_id])[0], trusted=self.trusted)


@dataclass
class URLSource(_Shards):
    """Shards at a path or URL, which may be a brace pattern.

    >>> URLSource("data-{000..002}.tar").list_shards()
    ['data-000.tar', 'data-001.tar', 'data-002.tar']
    """

    url: str
    listed: tuple[str, ...] | None = field(default=None, repr=False)
    """The shards, if a pattern cannot name them."""

    def list_shards(self) -> list[str]:
        """Return all paths or URLs of the pattern."""
        return list(self.listed) if self.listed is not None else expand_braces(self.url)

    def _addresses(self, shards: Sequence[str]) -> list[str]:
        return [without_file(one) for one in shards]

    @classmethod
    def of(cls, shards: Sequence[str]) -> Self:
        """Return a source of these shards; a brace pattern of them is its URL."""
        listed = tuple(shards)
        if len(listed) == 1:
            return cls(listed[0]) if expand_braces(listed[0]) == list(listed) else cls(listed[0], listed)
        before = "".join(_common(listed))
        after = "".join(_common([one[len(before) :][::-1] for one in listed]))[::-1]
        middle = ",".join(one[len(before) : len(one) - len(after)] for one in listed)
        pattern = f"{before}{{{middle}}}{after}"
        return cls(pattern, None if expand_braces(pattern) == list(listed) else listed)


class UntrustedURLs(URLSource):
    """Shards at URLs that a record of another account names."""

    trusted = False


@dataclass
class S3Source(_Shards):
    """Shards in a bucket of S3, or of a server that speaks its protocol, with own keys.

    The keys are set for the folder of the shards with `shardex.storage` when they are read. So buckets of one name at
    two endpoints cannot be read at the same time in one process.
    """

    bucket: str
    keys: list[str]
    endpoint: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    region: str | None = None

    def list_shards(self) -> list[str]:
        """Return the URLs of the shards."""
        return [f"s3://{self.bucket}/{key}" for key in self.keys]

    def _addresses(self, shards: Sequence[str]) -> list[str]:
        folders = [one.split("/")[:-1] for one in self.list_shards()]
        if settings := self.storage_settings():
            storage("/".join(_common(folders)), **settings)
        return list(shards)

    def storage_settings(self) -> dict[str, Any]:
        """Return the settings of `shardex.storage` that these keys are."""
        given = {"endpoint": self.endpoint, "region": self.region}
        if self.access_key and self.secret_key:
            given |= {"access_key_id": self.access_key, "secret_access_key": self.secret_key}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value}
        if self.endpoint and self.endpoint.startswith("http://"):
            settings["allow_http"] = True
        if settings and not self.region and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
            settings["region"] = "us-east-1"
        return settings

    @classmethod
    def from_urls(
        cls,
        urls: Sequence[str],
        *,
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        region: str | None = None,
    ) -> Self:
        """Return a source of the shards at ``s3://`` URLs, which must be in one bucket."""
        parts = [_bucket_and_key(url) for url in urls]
        if len(buckets := dict.fromkeys(bucket for bucket, _ in parts)) != 1:
            raise ArgumentError(f"expected URLs in one bucket, got {', '.join(buckets) or 'no URLs'}")
        return cls(parts[0][0], [key for _, key in parts], endpoint, access_key, secret_key, region)

    @classmethod
    def from_credentials(cls, credentials: Mapping[str, str], bucket: str, keys: Sequence[str]) -> Self:
        """Return a source with the settings of a dict: ``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT`` and so on."""
        names = ("AWS_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
        return cls(bucket, list(keys), *map(credentials.get, names))


def _common(sequences: Sequence[Sequence[str]]) -> list[str]:
    """Return the items with which all sequences begin."""
    levels = zip(*sequences, strict=False)
    return [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]


def _bucket_and_key(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket or not key:
        raise ArgumentError(f"expected the URL of a file in a bucket, s3://bucket/key, got {url!r}")
    return bucket, key


@dataclass
class BlobSource(_Shards):
    """Shards that are blobs on a server of ATProto, each with the identifiers of its owner and of its content."""

    blob_refs: list[dict[str, str]]
    pds_endpoint: str | None = None
    _endpoint_cache: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def list_shards(self) -> list[str]:
        """Return the names of the shards: ``at://did/blob/cid``."""
        return [f"at://{one['did']}/blob/{one['cid']}" for one in self.blob_refs]

    def _addresses(self, shards: Sequence[str]) -> list[str]:
        found = [one.removeprefix("at://").split("/blob/") for one in shards]
        return [
            f"{self._endpoint(did)}/xrpc/com.atproto.sync.getBlob?did={quote(did, ':')}&cid={quote(cid)}"
            for did, cid in found
        ]

    def _endpoint(self, did: str) -> str:
        """Return the address of the server of an owner; without `pds_endpoint` the public directory is asked."""
        if self.pds_endpoint:
            return self.pds_endpoint.rstrip("/")
        if did not in self._endpoint_cache:
            if not did.startswith("did:plc:"):
                raise ArgumentError(f"expected an owner did:plc:..., or pds_endpoint=, got {did!r}")
            document = json.loads(load(f"{PLC_DIRECTORY}/{did}"))
            kind = "AtprotoPersonalDataServer"
            urls = [one.get("serviceEndpoint") for one in document.get("service", ()) if one.get("type") == kind]
            if not urls:
                raise ArgumentError(f"expected a server of {did} in {PLC_DIRECTORY}, got none; give pds_endpoint=")
            self._endpoint_cache[did] = str(urls[0]).rstrip("/")
        return self._endpoint_cache[did]

    @classmethod
    def from_refs(cls, refs: Sequence[Mapping[str, Any]], *, pds_endpoint: str | None = None) -> Self:
        """Return a source of the blobs of these references: dicts with ``did`` and ``cid``."""
        for one in refs:
            if not {"did", "cid"} <= one.keys():
                raise ArgumentError(f"expected references with 'did' and 'cid', got one with {', '.join(one)}")
        if not refs:
            raise ArgumentError("expected at least one reference, got none")
        return cls([{"did": one["did"], "cid": one["cid"]} for one in refs], pds_endpoint)


def without_file(address: str) -> str:
    """Return the path that a URL of the scheme ``file`` means, as WebDataset does; others are returned as they are.

    >>> without_file("file:///data/a.tar"), without_file("file:a.tar"), without_file("s3://bucket/a.tar")
    ('/data/a.tar', 'a.tar', 's3://bucket/a.tar')
    """
    return re.sub(r"^file:(//(localhost(?=/))?)?", "", address)


def _stream(address: str, *, trusted: bool = True) -> IO[bytes]:
    """Return a stream of a file at a path or a URL."""
    if not is_url(address := without_file(address)):
        path = absolute_path(address)
        with storage_errors(path, "open"):
            return open(path, "rb")
    parent, name = parent_of(address)
    source = open_source(parent, trusted=trusted)
    if address.startswith(("http://", "https://")):  # it may not know ranges
        with ExitStack() as on_error:
            copy = on_error.enter_context(tempfile.TemporaryFile())
            source.download(name, cast("BinaryIO", copy))
            copy.seek(0)
            on_error.pop_all()
            return copy
    return cast("IO[bytes]", io.BufferedReader(compression.RangeFile(source, name, source.stat(name).size), _BUFFER))


def load(address: str) -> bytes:
    """Return the content of a small file at a path or a URL."""
    with _stream(address) as stream:
        return stream.read()
