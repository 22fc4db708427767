"""Room `files`: which files a dataset consists of, where each sample is in them, and publishing new ones whole.

Reading: in comes what the user wrote (a folder, a glob, a URL); `find` makes `Files` of it, and `Index.of` finds the
position of every sample by a scanner of the format, which `scan` runs on many files at once. The index is saved next
to the data (`sidecar`). `with_checksums` adds checksums to files that have none.
Writing: formats write files to a `Stage` and publish it in one step; `AllOrNothing` is the life cycle of all writers.
What is inside a file is left to `formats`; how bytes are read and stored is left to `sources`.

- `find`: paths, globs, brace patterns and URLs as `Files`
- `patterns`: natural order, braces and wildcards of names
- `scan`: scanning many files in threads or processes
- `sample_index`: the saved index with the position of every sample
- `sidecar`: derived files next to the data or in the cache folder
- `checksums`: checksums for files of other formats
- `staging`: temporary folders that are published in one step
- `all_or_nothing`: open, closed and aborted writers
"""

from shardex.files.all_or_nothing import AllOrNothing
from shardex.files.checksums import with_checksums
from shardex.files.find import STORE_FOLDER, Files, What, display_name, expand_braces, find, natural_order
from shardex.files.sample_index import Index, IndexedFile
from shardex.files.scan import Scan, scan_all
from shardex.files.sidecar import decode_sidecar, encode_sidecar, load_sidecars, save_sidecar
from shardex.files.staging import MODES, Stage, StagedWriter, check_mode

__all__ = [
    "MODES",
    "STORE_FOLDER",
    "AllOrNothing",
    "Files",
    "Index",
    "IndexedFile",
    "Scan",
    "Stage",
    "StagedWriter",
    "What",
    "check_mode",
    "decode_sidecar",
    "display_name",
    "encode_sidecar",
    "expand_braces",
    "find",
    "load_sidecars",
    "natural_order",
    "save_sidecar",
    "scan_all",
    "with_checksums",
]
