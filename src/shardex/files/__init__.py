"""Finds the files of a dataset, locates each sample in them, and publishes new files in one step.

Reading: `find` turns a folder, a glob, a list or a URL into `Files`. For record formats `Index.of` runs the format's
scanner over all files; it returns the offset and length of each sample. The index is saved next to the data or in the
cache folder.
Writing: a format writes its shards into a `Stage`, a temporary folder that becomes the dataset in one step.

- `find`: paths, globs, brace patterns and URLs to `Files`
- `folder_listing`: the files of a local folder with sizes and times, saved for later opens
- `compressed_files`: presents compressed files as their content
- `patterns`: natural order, braces, wildcards and words for splits in names
- `scan`: scans many files in threads or processes
- `sample_index`: the saved index: file, offset and length of each sample
- `packed_columns`: the columns of an index, stored in few bytes for each sample
- `sidecar`: saves derived data next to the files, or in the cache folder
- `saved_checksums`: saved checksums for files whose format has none, and the source that checks them
- `staging`: writers that publish all or nothing, and the temporary folder of their files
- `temporary_folders`: their names, their locks, and removal of those that killed writers left
- `publication`: how files become visible: in a local folder by renames and links, at a URL one by one under a claim
- `append_together`: files, and bytes at the ends of files, that are added to a folder become visible together
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "LATEST_EVERY",
    "LATEST_VERSION",
    "MODES",
    "STORE_FOLDER",
    "AllOrNothing",
    "Files",
    "FolderListing",
    "Index",
    "IndexedFile",
    "Listing",
    "Scan",
    "Sidecar",
    "Stage",
    "StagedWriter",
    "What",
    "check_mode",
    "decode_sidecar",
    "display_name",
    "expand_braces",
    "find",
    "forget",
    "forget_appends",
    "list_folder",
    "load_related_sidecars",
    "load_sidecars",
    "named_split",
    "natural_key",
    "natural_order",
    "newest_manifests",
    "pattern_of_split",
    "probe",
    "publication_at",
    "save_sidecar",
    "scan_all",
    "scan_each",
    "undo_unfinished",
    "visible_paths",
    "with_checksums",
]

if TYPES:
    from shardex.files.append_together import forget_appends, undo_unfinished, visible_paths
    from shardex.files.find import (
        LATEST_EVERY,
        LATEST_VERSION,
        STORE_FOLDER,
        Files,
        What,
        display_name,
        find,
        newest_manifests,
    )
    from shardex.files.folder_listing import FolderListing, forget, list_folder
    from shardex.files.patterns import expand_braces, named_split, natural_key, natural_order, pattern_of_split
    from shardex.files.publication import MODES, Listing, check_mode, publication_at
    from shardex.files.sample_index import Index, IndexedFile, probe
    from shardex.files.saved_checksums import with_checksums
    from shardex.files.scan import Scan, scan_all, scan_each
    from shardex.files.sidecar import Sidecar, decode_sidecar, load_related_sidecars, load_sidecars, save_sidecar
    from shardex.files.staging import AllOrNothing, Stage, StagedWriter
else:
    import_later(
        __name__,
        {
            "append_together": "forget_appends undo_unfinished visible_paths",
            "find": "LATEST_EVERY LATEST_VERSION STORE_FOLDER Files What display_name find newest_manifests",
            "folder_listing": "FolderListing forget list_folder",
            "patterns": "expand_braces named_split natural_key natural_order pattern_of_split",
            "publication": "MODES Listing check_mode publication_at",
            "sample_index": "Index IndexedFile probe",
            "saved_checksums": "with_checksums",
            "scan": "Scan scan_all scan_each",
            "sidecar": "Sidecar decode_sidecar load_related_sidecars load_sidecars save_sidecar",
            "staging": "AllOrNothing Stage StagedWriter",
        },
    )
