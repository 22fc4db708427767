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

from typing import TYPE_CHECKING

from shardex.lazy_door import import_later

__all__ = [
    "COMPRESSED",
    "COMPRESSED_TAR",
    "ByteRange",
    "CachedSource",
    "CompressedFile",
    "DecompressedSource",
    "Draft",
    "LocalSource",
    "LockedFile",
    "Place",
    "RangeFile",
    "SharedFolder",
    "Sink",
    "Source",
    "Stat",
    "TemporaryDraft",
    "absolute_path",
    "check_path",
    "check_text",
    "child_of",
    "download_file",
    "export_credentials",
    "fetches_started",
    "has_credentials",
    "import_credentials",
    "is_in_memory",
    "is_local",
    "is_url",
    "keyring",
    "kind_of",
    "link_or_rename",
    "locked_file",
    "make_folder",
    "member_names",
    "open_regular",
    "open_source",
    "parent_of",
    "parse_size",
    "place_of",
    "plain_name",
    "read_keyring",
    "redact_url",
    "shared_folder",
    "storage",
    "strip_credentials",
    "sync_file",
    "sync_folder",
    "tar_name",
]

if TYPE_CHECKING:
    from shardex.sources.byte_ranges import ByteRange
    from shardex.sources.cached_source import CachedSource
    from shardex.sources.compression import (
        COMPRESSED,
        COMPRESSED_TAR,
        RangeFile,
        kind_of,
        member_names,
        plain_name,
        tar_name,
    )
    from shardex.sources.credentials import (
        export_credentials,
        has_credentials,
        import_credentials,
        keyring,
        read_keyring,
        redact_url,
        storage,
        strip_credentials,
    )
    from shardex.sources.decompressed_source import CompressedFile, DecompressedSource
    from shardex.sources.download import download_file
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
    from shardex.sources.locks import LockedFile, SharedFolder, locked_file, shared_folder
    from shardex.sources.page_cache import parse_size
    from shardex.sources.protocols import Draft, Place, Sink, Source, Stat, TemporaryDraft, check_path, check_text
    from shardex.sources.url import absolute_path, child_of, is_local, is_url, open_source, parent_of, place_of
else:
    import_later(
        __name__,
        {
            "byte_ranges": "ByteRange",
            "cached_source": "CachedSource",
            "compression": "COMPRESSED COMPRESSED_TAR RangeFile kind_of member_names plain_name tar_name",
            "credentials": "export_credentials has_credentials import_credentials keyring read_keyring redact_url "
            "storage strip_credentials",
            "decompressed_source": "CompressedFile DecompressedSource",
            "download": "download_file",
            "io_threads": "fetches_started",
            "local": "LocalSource is_in_memory link_or_rename make_folder open_regular sync_file sync_folder",
            "locks": "LockedFile SharedFolder locked_file shared_folder",
            "page_cache": "parse_size",
            "protocols": "Draft Place Sink Source Stat TemporaryDraft check_path check_text",
            "url": "absolute_path child_of is_local is_url open_source parent_of place_of",
        },
    )
