"""Where bytes are stored: local folders, memory, web servers and object stores, read through a page cache.

In comes a path or a URL. Out comes a `Source` (reads byte ranges of files below a root) or a `Place` (reads and
writes). `place_of` opens a path or a URL for writing. `CachedSource(open_source(url))` reads a remote URL: files look
like local ones, mapped into memory, and ranges are downloaded into the mapping before they are read. Code above works
with the contract in `protocols` and never asks for the class of a source.

- `protocols`: the contracts `Source`, `Sink`, `Place` and `Draft`, with defaults
- `url`: which class opens a path or a URL
- `local`, `memory`, `checked_source`: a folder, a dict of files, a folder whose blocks are checked against checksums
- `object_store`: S3, Google Cloud Storage, Azure and web servers, built on
  `object_client` (single requests through obstore), `guarded_http` (requests to untrusted web URLs), `retry` (retries,
  deadlines, errors) and `credentials` (settings and secrets by URL prefix)
- `cached_source`: downloads ranges on demand, built on
  `page_cache` (the cache folder and its size limit), `page_file` (one cached file and its pages),
  `buffer_tables` (kernel tables over cached files) and `io_threads` (threads that wait for downloads)
- `byte_ranges`: merging ranges, pages of ranges, when to download a whole file
"""

from shardex.sources.byte_ranges import ByteRange
from shardex.sources.cached_source import CachedSource
from shardex.sources.checked_source import CheckedSource, Checksums, block_checksums
from shardex.sources.credentials import (
    export_credentials,
    has_credentials,
    import_credentials,
    redact_url,
    storage,
    strip_credentials,
)
from shardex.sources.io_threads import fetches_started
from shardex.sources.local import LocalSource, make_folder, sync_folder
from shardex.sources.protocols import Draft, Place, Sink, Source, Stat, check_path
from shardex.sources.url import absolute_path, is_url, open_source, place_of

__all__ = [
    "ByteRange",
    "CachedSource",
    "CheckedSource",
    "Checksums",
    "Draft",
    "LocalSource",
    "Place",
    "Sink",
    "Source",
    "Stat",
    "absolute_path",
    "block_checksums",
    "check_path",
    "export_credentials",
    "fetches_started",
    "has_credentials",
    "import_credentials",
    "is_url",
    "make_folder",
    "open_source",
    "place_of",
    "redact_url",
    "storage",
    "strip_credentials",
    "sync_folder",
]
