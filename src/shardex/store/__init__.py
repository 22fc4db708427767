"""The native dataset: Arrow files with checksums, and one manifest for each version.

In: paths or URLs, samples and edits. Out: rows (through `shardex.open`, which finds `store.format` in the table of
formats), new versions, and lists of problems. Data files never change: a writer adds files under new names, then
publishes a manifest that names them, by put-if-absent.

Describing a version:
- `fragments`: entries of data files and fragments in a manifest
- `fragment_list`: the fragments of a version as a sequence, most of them in files that versions share
- `fragment_segments`: consecutive fragments of one shape, as arrays
- `manifest`: schema, fragments, overlays and deleted rows, as JSON
- `version_numbers`: which versions exist; no number is used twice, also if its version was removed
- `row_ids`: permanent ids of rows, and which rows are not deleted
- `inventory`: the versions and data files that exist
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
- `cache`: samples of a generator, which runs once
- `encode_ahead`: encodes media in threads before they are written
- `writer`: creates, appends to or overwrites a dataset
- `edit`: transactions
- `updates`, `new_field`: the new values of a transaction
- `computed_field`: values of a new field that a function computes, by workers if asked
- `job_parts`: parts of jobs as small native datasets
- `adopt`: datasets whose samples stay in shards of another format
- `data_files`: writes Arrow files
- `commit`: makes the next manifest, and finds conflicts
- `writer_heartbeat`: protects unpublished files of active writers from `clean`
Maintenance:
- `versions`: history, restore, clean
- `compact`: merges edits and small files into few large ones
- `verify`: finds damage
- `recover`: copies all intact samples to a new dataset
- `readable_rows`: reads the intact samples of damaged files in other formats
"""

from shardex.store.adopt import adopt
from shardex.store.cache import cache
from shardex.store.compact import compact
from shardex.store.edit import Edit, edit
from shardex.store.encode_ahead import encode_ahead
from shardex.store.inventory import native_place
from shardex.store.recover import Lost, Recovered, recover
from shardex.store.verify import Problem, leftovers, verify
from shardex.store.version_numbers import versions_in
from shardex.store.versions import GRACE, Version, clean, history, restore

__all__ = [
    "GRACE",
    "Edit",
    "Lost",
    "Problem",
    "Recovered",
    "Version",
    "adopt",
    "cache",
    "clean",
    "compact",
    "edit",
    "encode_ahead",
    "history",
    "leftovers",
    "native_place",
    "recover",
    "restore",
    "verify",
    "versions_in",
]
