"""The native dataset: Arrow files with checksums and one manifest per version; append, edit, look up keys, verify.

In come paths or URLs of datasets, samples to write and edits; out come rows (through `shardex.open`, which finds
`store.format` in the table of formats), new versions, and lists of problems. Data files never change: a writer or a
transaction writes new ones under the name of their content, then publishes one manifest by put-if-absent.

Describing a version: `manifest` (schema, fragments, overlays, deleted rows), `row_ids` (ids, physical and live rows),
`inventory` (versions and data files that exist). Reading: `format` (recognise and open), `version_reader` (rows of one
version), `data_file_reader` (checked batches of one file, strict or tolerant), `overlay_rows` (base values combined
with newer ones), `keys` and `key_lookup` (hash tables, samples by key). Writing: `writer` (new dataset, append,
overwrite), `edit` (transactions), `updates` and `new_field` (their new values), `adopt` (fields for other shards),
`data_files` (Arrow files), `commit` (next manifest, conflicts), `writer_heartbeat` (protects unpublished files from
`clean`). Upkeep: `versions` (history, restore, clean, compact), `verify` (find damage), `recover` (copy what is
intact), `readable_rows` (what can be read of other formats).
"""

from shardex.store.adopt import adopt
from shardex.store.edit import Edit, edit
from shardex.store.inventory import native_place, versions_in
from shardex.store.recover import Lost, Recovered, recover
from shardex.store.verify import Problem, leftovers, verify
from shardex.store.versions import GRACE, Version, clean, compact, history, restore

__all__ = [
    "GRACE",
    "Edit",
    "Lost",
    "Problem",
    "Recovered",
    "Version",
    "adopt",
    "clean",
    "compact",
    "edit",
    "history",
    "leftovers",
    "native_place",
    "recover",
    "restore",
    "verify",
    "versions_in",
]
