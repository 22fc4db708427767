"""The room files."""

from shardex.files.all_or_nothing import AllOrNothing
from shardex.files.checksums import checked
from shardex.files.find import STORE_FOLDER, Files, What, expand_braces, find, natural_order, told
from shardex.files.sample_index import Index, IndexedFile
from shardex.files.scan import Scan, scan_all
from shardex.files.sidecar import keep, kept, sealed, unsealed
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
    "checked",
    "expand_braces",
    "find",
    "keep",
    "kept",
    "natural_order",
    "scan_all",
    "sealed",
    "told",
    "unsealed",
]
