"""The container formats: each recognises its files, opens them as rows, and writes samples.

In: `Files`, or a path to write to. Out: `ShardRows` and `ShardWriter`. Each format is a package that defines a `Format`
and is imported when it is first needed. The native format is one of them, in `native.format`.

Record formats (tar, JSONL, text, CSV, tokens, bins): an index gives file, offset and length of each sample,
`record_rows` copies the bytes, and the format decodes them. Arrow and Parquet: `table_rows` reads tables of the room
`arrow`. Writers encode samples into staged shards (`sample_writer`).

- `signatures`: the table of formats; recognises files by their names and first bytes
- `registry`: the interface of a format; opens files
- `record_rows`: rows that are byte ranges of files
- `record_fields`: the fields of records without a schema: all keys, each with a feature that fits its values
- `table_rows`: rows of Arrow and Parquet files
- `sample_writer`: base class of writers that encode sample by sample into numbered shards
- `join_shards`: the shards of the parts of a job under their final numbers
- `extracted_columns`: values of JSON keys, extracted once for SQL
- `arrow_files`: Arrow IPC files and streams of other tools
- `arrow_writer`: writes Arrow IPC files of a given Arrow schema
- `parquet`: Parquet files
- `parquet_pages`: how much memory Parquet columns take, computed before they are decoded
- `partitions`: columns from the names of folders (``year=2024/``)
- `lines`: finds lines in files
- `line_rows`: rows whose records are lines
- `json_text`: encodes samples as JSON
- `jsonl`: JSON Lines, and `.json` files that hold one array
- `text`: text files, by lines or as whole documents
- `wrong_lines`: leaves wrong lines out of an index
- `csv_files`: CSV and TSV files as rows
- `csv_records`: finds the records of CSV files, splits them into cells
- `csv_cells`: parses records as Arrow columns, finds the types of columns
- `csv_writer`: writes CSV files
- `tar`: WebDataset tars as rows
- `tar_members`: scans tars for samples, writes tars, reads damaged ones
- `tar_fields`: encodes and decodes one field of a sample in a tar
- `tar_blocks`: parses and writes tar headers
- `tar_remote_headers`, `tar_lanes`: read the headers of remote tars in few round trips, from several places at once
- `columns_tar`, `columns_tar_writer`: a SQLite table and tars for each field (synthefy-dataset-utils)
- `columns_tar_session`, `columns_tar_lookup`: add samples to such a folder in place, read them by id meanwhile
- `columns_tar_table`: the SQLite table of such a folder
- `growing_tar`: tars that members are appended to, and that are complete at every moment
- `tokens`, `token_files`: files of raw numbers as windows or samples; `token_files` scans and writes them
- `bins`: length-prefixed records in numbered bins (splitdataloader)
- `number_records`: what the next three share: places by arithmetic, writers of numbers
- `megatron`: `.bin` and `.idx` files of Megatron-LM
- `nanogpt`: streams of tokens of nanoGPT and llm.c
- `numpy_files`: `.npy` files
- `media_folder`: folders of images, audio or video as rows; labels, captions
- `media_files`: what the names of media files mean
- `media_metadata`: tables with more fields of media files
- `media_writer`: writes folders of media files
- `data_forager`: the index files of data-forager, and samples of several arrays
- `data_forager_index`: index files of data-forager for files anywhere: written, and read as the bytes of samples
- `data_forager_folder`: the format data_forager: opens such folders by what they hold, and writes them
"""

import importlib
from typing import TYPE_CHECKING, Any

from shardex.formats.arrow.files import EXTENSIONS, is_empty_cache, map_table, open_files
from shardex.formats.arrow.writer import ArrowFilesWriter
from shardex.formats.folder.files import classes_of_splits, is_metadata, split_folders
from shardex.formats.join_shards import STAGE
from shardex.formats.registry import (
    Format,
    ShardRows,
    ShardWriter,
    check_options,
    format_named,
    open_rows,
)
from shardex.formats.signatures import (
    FORMATS,
    Signature,
    format_names,
    matches,
    recognise,
    saved_splits,
    signature_of,
)
from shardex.formats.table_rows import TableRows

__all__ = [
    "EXTENSIONS",
    "FORMATS",
    "STAGE",
    "ArraySpec",
    "ArrowFilesWriter",
    "BinRows",
    "BinWriter",
    "ColumnsLookup",
    "ColumnsSession",
    "Format",
    "IndexRecord",
    "IndexTable",
    "NewShard",
    "SampleBytes",
    "SampleSchema",
    "ShardRows",
    "ShardWriter",
    "Signature",
    "StoredSample",
    "TableError",
    "TableRows",
    "check_options",
    "classes_of_splits",
    "decode_json",
    "decompressed_lines",
    "find_lines_of",
    "format_named",
    "format_names",
    "is_empty_cache",
    "is_metadata",
    "load_locations",
    "load_schema",
    "map_table",
    "matches",
    "metadata_json",
    "open_files",
    "open_rows",
    "open_samples",
    "recognise",
    "resolved",
    "saved_splits",
    "signature_of",
    "split_folders",
    "state_of",
]

if TYPE_CHECKING:
    from shardex.formats.bins import BinRows, BinWriter
    from shardex.formats.columns_tar_lookup import ColumnsLookup, StoredSample
    from shardex.formats.columns_tar_session import ColumnsSession, NewShard
    from shardex.formats.columns_tar_table import TableError, metadata_json
    from shardex.formats.data_forager import ArraySpec, SampleSchema, resolved
    from shardex.formats.data_forager_index import (
        IndexRecord,
        IndexTable,
        SampleBytes,
        decompressed_lines,
        find_lines_of,
        load_locations,
        load_schema,
        open_samples,
        state_of,
    )
    from shardex.formats.jsonl.format import decode_json
else:
    _LATER = {
        "bins": "BinRows BinWriter",
        "columns_tar_lookup": "ColumnsLookup StoredSample",
        "columns_tar_session": "ColumnsSession NewShard",
        "columns_tar_table": "TableError metadata_json",
        "data_forager": "ArraySpec SampleSchema resolved",
        "data_forager_index": "IndexRecord IndexTable SampleBytes decompressed_lines find_lines_of load_locations "
        "load_schema open_samples state_of",
        "jsonl.format": "decode_json",
    }
    _MODULE_OF = {name: module for module, names in _LATER.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        """Import the modules of single formats when they are first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
