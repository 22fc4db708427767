"""The room sources."""

from shardex.sources.byte_ranges import ByteRange
from shardex.sources.cached_source import CachedSource
from shardex.sources.checked_source import CheckedSource, Sums, sums_of
from shardex.sources.credentials import adopt, export, is_vouched, shown, storage, without_secrets
from shardex.sources.io_threads import fetches_started
from shardex.sources.local import LocalSource, make_folder, sync_folder
from shardex.sources.protocols import Draft, Place, Sink, Source, Stat, inside
from shardex.sources.url import absolute, is_url, open_source, place_of

__all__ = [
    "ByteRange",
    "CachedSource",
    "CheckedSource",
    "Draft",
    "LocalSource",
    "Place",
    "Sink",
    "Source",
    "Stat",
    "Sums",
    "absolute",
    "adopt",
    "export",
    "fetches_started",
    "inside",
    "is_url",
    "is_vouched",
    "make_folder",
    "open_source",
    "place_of",
    "shown",
    "storage",
    "sums_of",
    "sync_folder",
    "without_secrets",
]
