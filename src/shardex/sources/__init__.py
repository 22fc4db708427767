"""Reads and writes bytes where they are stored: local folders, memory, web servers and object stores.

In: a path or a URL. Out: a `Source` (reads byte ranges of files below a root) or a `Place` (reads and writes).
`place_of` opens a path or a URL for writing. `CachedSource(open_source(url))` reads a remote URL through a page cache:
its files are memory-mapped like local ones, and ranges are downloaded into the mapping before they are read. Code in
other rooms uses the methods of `protocols` and never tests the class of a source.

- `protocols`: the contracts `Source`, `Sink`, `Place` and `Draft`, with defaults
- `url`: chooses the class that opens a path or a URL
- `local`: a local folder
- `memory`: a dict of files, for tests
- `object_store`: S3, Google Cloud Storage, Azure and web servers
- `object_client`: single requests, through obstore
- `guarded_http`: requests to web servers that untrusted data names
- `retry`: retries, deadlines and the errors they end in
- `credentials`: settings and secrets by URL prefix
- `cached_source`: downloads ranges of remote files on demand, also for kernel tables
- `page_cache`: the cache folder and its size limit
- `page_file`: one cached file and which of its pages are present
- `io_threads`: the threads that download
- `decompressed_source`: compressed files as their content, by access points or by copies
- `compression`: recognises and decompresses gzip, bzip2, xz, zstd and zip archives
- `access_points`: reads parts of compressed files from positions that `find_points` finds
- `plain_copies`: decompressed copies in the cache folder
- `locks`: a lock between processes, and a temporary folder that several runs use at the same time
- `download`: copies remote files to the disk
- `byte_ranges`: merges ranges, divides them into pages, decides when to download a whole file
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "ByteRange",
    "CachedSource",
    "CompressedFile",
    "DecompressedSource",
    "LocalSource",
    "Place",
    "RetryableError",
    "Source",
    "Stat",
    "TemporaryDraft",
    "WholeAnswer",
    "absolute_path",
    "ask_server",
    "check_path",
    "check_text",
    "check_untrusted",
    "child_of",
    "compression",
    "credentials",
    "download_file",
    "export_credentials",
    "fetches_started",
    "import_credentials",
    "is_in_memory",
    "is_local",
    "is_url",
    "link_or_rename",
    "locks",
    "make_folder",
    "open_regular",
    "open_source",
    "parent_of",
    "parse_size",
    "path_text",
    "place_of",
    "redact_url",
    "storage",
    "sync_file",
    "sync_folder",
]

if TYPES:
    from shardex.sources import compression, credentials, locks
    from shardex.sources import memory as memory
    from shardex.sources import object_store as object_store
    from shardex.sources.byte_ranges import ByteRange
    from shardex.sources.cached_source import CachedSource
    from shardex.sources.credentials import export_credentials, import_credentials, redact_url, storage
    from shardex.sources.decompressed_source import CompressedFile, DecompressedSource
    from shardex.sources.download import download_file
    from shardex.sources.guarded_http import WholeAnswer, ask_server, check_untrusted
    from shardex.sources.io_threads import fetches_started
    from shardex.sources.local import (
        LocalSource,
        is_in_memory,
        link_or_rename,
        make_folder,
        open_regular,
        sync_file,
        sync_folder,
    )
    from shardex.sources.page_cache import parse_size
    from shardex.sources.protocols import Place, Source, Stat, TemporaryDraft, check_path, check_text
    from shardex.sources.retry import RetryableError
    from shardex.sources.url import (
        absolute_path,
        child_of,
        is_local,
        is_url,
        open_source,
        parent_of,
        path_text,
        place_of,
    )
else:
    import_later(
        __name__,
        {
            "": "compression credentials locks memory object_store",
            "byte_ranges": "ByteRange",
            "cached_source": "CachedSource",
            "credentials": "export_credentials import_credentials redact_url storage",
            "decompressed_source": "CompressedFile DecompressedSource",
            "download": "download_file",
            "guarded_http": "WholeAnswer ask_server check_untrusted",
            "io_threads": "fetches_started",
            "local": "LocalSource is_in_memory link_or_rename make_folder open_regular sync_file sync_folder",
            "page_cache": "parse_size",
            "protocols": "Place Source Stat TemporaryDraft check_path check_text",
            "retry": "RetryableError",
            "url": "absolute_path child_of is_local is_url open_source parent_of path_text place_of",
        },
    )
