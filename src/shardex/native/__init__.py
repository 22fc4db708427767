"""The files of the native dataset: one more format. Arrow files with checksums, and one manifest for each version.

In: paths or URLs, samples. Out: the rows of a version, data files, manifests. Data files never change: a writer adds
files under new names, then publishes a manifest that names them, by put-if-absent. What is done with datasets of this
format (edit, compact, verify, recover, cache) is in the room `store`, above `dataset`.

Describing a version:
- `fragments`: entries of data files and fragments in a manifest; the ids of rows, and which ones are not deleted
- `fragment_list`: the fragments of a version as a sequence, most of them in files that versions share
- `fragment_segments`: consecutive fragments of one shape, as arrays
- `manifest`: schema, fragments, overlays and deleted rows, as JSON; the data files that exist, and their uses
- `version_numbers`: which versions exist; no number is used twice, also if its version was removed
Reading:
- `format`: recognises and opens native datasets
- `version_reader`: the rows of one version
- `data_file_reader`: the batches of one file; damage is an error (strict) or skipped and listed (tolerant)
- `data_file_table`: where the batches and buffers of a file lie, and the checksums of its blocks
- `data_file_damage`: all damage of one file, and what can be read all the same
- `overlay_rows`: original values combined with updated ones
- `keys`: hash tables of key values, and duplicate keys
- `key_lookup`: finds samples by key
Writing:
- `writer`: creates, appends to or overwrites a dataset; parts of jobs as small native datasets
- `data_files`: writes Arrow files
- `commit`: the changes of a transaction: makes the next manifest, and finds conflicts
- `writer_heartbeat`: protects unpublished files of active writers from `clean`
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "WRITER_FILE",
    "ArrowWriter",
    "Changes",
    "Damage",
    "DataFile",
    "DataFileReader",
    "FileUse",
    "Foreign",
    "Fragment",
    "FragmentList",
    "LiveRows",
    "Manifest",
    "NativeParts",
    "RunSegment",
    "VersionReader",
    "WriterHeartbeat",
    "at_latest",
    "commit",
    "data_files",
    "examine_files",
    "existing_place",
    "file_by_name",
    "is_intact",
    "keys",
    "latest_version",
    "live_rows",
    "manifest_path",
    "named_paths",
    "native_place",
    "path_of_copy",
    "paths_of_data_files",
    "publish",
    "read_ids",
    "read_manifest",
    "read_numbers",
    "read_pieces",
    "refuse_duplicates",
    "relisted",
    "version_numbers",
    "versions_in",
]

if TYPES:
    from shardex.native import commit, data_files, keys, version_numbers
    from shardex.native.commit import Changes
    from shardex.native.data_file_damage import Damage, file_by_name, read_pieces
    from shardex.native.data_file_reader import DataFileReader, examine_files, read_ids, read_numbers
    from shardex.native.fragment_list import FragmentList
    from shardex.native.fragment_segments import RunSegment
    from shardex.native.fragments import DataFile, FileUse, Foreign, Fragment, LiveRows, path_of_copy
    from shardex.native.key_lookup import refuse_duplicates
    from shardex.native.manifest import (
        Manifest,
        existing_place,
        is_intact,
        named_paths,
        native_place,
        paths_of_data_files,
        publish,
        read_manifest,
        relisted,
    )
    from shardex.native.overlay_rows import live_rows
    from shardex.native.version_numbers import at_latest, latest_version, manifest_path, versions_in
    from shardex.native.version_reader import VersionReader
    from shardex.native.writer import ArrowWriter, NativeParts
    from shardex.native.writer_heartbeat import WRITER_FILE, WriterHeartbeat
else:
    import_later(
        __name__,
        {
            "": "commit data_files keys version_numbers",
            "commit": "Changes",
            "data_file_damage": "Damage file_by_name read_pieces",
            "data_file_reader": "DataFileReader examine_files read_ids read_numbers",
            "fragment_list": "FragmentList",
            "fragment_segments": "RunSegment",
            "fragments": "DataFile FileUse Foreign Fragment LiveRows path_of_copy",
            "key_lookup": "refuse_duplicates",
            "manifest": "Manifest existing_place is_intact named_paths native_place paths_of_data_files "
            "publish read_manifest relisted",
            "overlay_rows": "live_rows",
            "version_numbers": "at_latest latest_version manifest_path versions_in",
            "version_reader": "VersionReader",
            "writer": "ArrowWriter NativeParts",
            "writer_heartbeat": "WRITER_FILE WriterHeartbeat",
        },
    )
