"""The container formats: each recognises its files, opens them as rows, and writes samples.

In: `Files`, or a path to write to. Out: `ShardRows` and `ShardWriter`. A format is a package that defines a `Format`,
and is imported when it is first needed: `arrow`, `croissant` (which names files of others), `csv`, `folder` (of
images, audio or video), `jsonl`, `mds`, `megatron`, `nanogpt`, `npy`, `npz`, `parquet`, `tar`, `text`, `tokens`. The
native format is in the room `native`, the formats of the five systems are in `compat.formats`, and other packages add
more. The `__init__.py` of a package is the format; what several formats share is in the modules of this room.

Record formats (tar, JSON Lines, text, CSV, numbers): an index gives file, offset and length of each sample,
`record_rows` copies the bytes, and the format decodes them. Arrow and Parquet: `table_rows` reads tables of the room
`arrow`. Writers encode samples into staged shards (`sample_writer`).

- `signatures`: the table of formats; recognises files by their names and first bytes
- `media_folders`: what the names of files say in folders of images, audio or video
- `registry`: the interface of a format; opens files
- `record_rows`: rows that are byte ranges of files
- `record_fields`: the fields of records without a schema: all keys, each with a feature that fits its values
- `extracted_columns`: values of JSON keys, extracted once for SQL
- `lines`: finds lines in files, leaves wrong ones out, and reads them as rows
- `number_rows`: rows of numbers of one dtype, at places that are indexed or computed
- `number_writer`: writes numbers of one dtype
- `table_rows`: rows of Arrow and Parquet files
- `sample_writer`: base classes of writers that encode sample by sample into numbered shards, and the encoder of JSON
- `join_shards`: the shards of the parts of a job under their final numbers
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "FORMATS",
    "OPENING_OPTIONS",
    "STAGE",
    "DamagedFiles",
    "DictRows",
    "Format",
    "JoinShards",
    "JsonEncoder",
    "LineRows",
    "LineScanner",
    "MakeDecoder",
    "MappedIndex",
    "NumberRows",
    "NumberWindowRows",
    "RecordRows",
    "SampleWriter",
    "SeriesWriter",
    "ShardRows",
    "ShardSeries",
    "ShardWriter",
    "Signature",
    "TableRows",
    "array_fields",
    "check_options",
    "format_named",
    "format_names",
    "is_array",
    "map_files",
    "matches",
    "media_folders",
    "number_dtype",
    "open_rows",
    "option_types",
    "recognise",
    "saved_splits",
    "signature_of",
    "target_format",
]

if TYPES:
    from shardex.formats import media_folders
    from shardex.formats.join_shards import STAGE, JoinShards
    from shardex.formats.lines import LineRows, LineScanner
    from shardex.formats.number_rows import NumberRows, NumberWindowRows, array_fields, is_array, number_dtype
    from shardex.formats.record_fields import MakeDecoder
    from shardex.formats.record_rows import DictRows, MappedIndex, RecordRows, map_files
    from shardex.formats.registry import (
        OPENING_OPTIONS,
        DamagedFiles,
        Format,
        ShardRows,
        ShardWriter,
        check_options,
        format_named,
        open_rows,
        option_types,
    )
    from shardex.formats.sample_writer import JsonEncoder, SampleWriter, SeriesWriter, ShardSeries
    from shardex.formats.signatures import (
        FORMATS,
        Signature,
        format_names,
        matches,
        recognise,
        saved_splits,
        signature_of,
        target_format,
    )
    from shardex.formats.table_rows import TableRows
else:
    import_later(
        __name__,
        {
            "join_shards": "STAGE JoinShards",
            "lines": "LineRows LineScanner",
            "number_rows": "NumberRows NumberWindowRows array_fields is_array number_dtype",
            "record_fields": "MakeDecoder",
            "record_rows": "DictRows MappedIndex RecordRows map_files",
            "registry": "OPENING_OPTIONS DamagedFiles Format ShardRows ShardWriter check_options format_named "
            "open_rows option_types",
            "sample_writer": "JsonEncoder SampleWriter SeriesWriter ShardSeries",
            "signatures": "FORMATS Signature format_names matches recognise saved_splits signature_of target_format",
            "table_rows": "TableRows",
        },
    )
