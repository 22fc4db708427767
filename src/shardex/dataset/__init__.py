"""Opens, views, queries, combines and writes datasets: the classes and functions that users call.

In: rows (of `formats`, of lists, of other tools), orders and samples. Out: `Dataset`, batches, Arrow tables, and new
shards. A `Dataset` is rows, an order and a choice of fields. A view of it changes the order or the fields; `map` and
`as_type` wrap its rows in a layer; `concat`, `join` and `mix` combine the rows of several.

- `dataset`: the class `Dataset`; `sample_view` has its ways to read, `subset_view` those to choose samples
- `open`: files, rows and lists to a `Dataset`; `index` also saves an index for SQL or checksums
- `views`: sorted views, field errors, the text that describes a view, and iterators over batches
- `show`: a figure of the first samples, for notebooks
- `split_views`: splits by class, group or time; samplings by class or weight
- `sliding`: windows over rows that are sorted by time, as samples
- `dataset_dict`: several datasets by name
- `load_dataset`: named splits (train, test, ...) of files
- `splits`: which files belong to which split
- `media_rows`: rows whose images, audio and video are decoded
- `field_decoders`: how a field of media is decoded
- `layers`: rows converted to a class, or with other names for their fields; the base class of windows
- `stacked_rows`: several fields as one array
- `map_rows`: rows mapped by a function of a sample or of a batch
- `added_rows`: rows with more fields, which functions compute
- `function_calls`: calls functions of users on samples and batches, and checks what they return
- `typed_views`: finds the layer for a type or lens, and writes changed views back
- `combine`, `combined_rows`: `concat` and `join`
- `mix`: mixtures in exact proportions
- `token_stream`, `token_runs`: the documents of a dataset as one stream of tokens, and where it lies in files
- `windows`, `pack`: windows of tokens, and pieces of documents packed together, as samples
- `sql`: parses a query, reads the columns it uses, and runs it
- `sql_syntax`: what a statement reads, and where it compares text inside JSON and names of classes
- `sql_sandbox`: DuckDB without access to files, network or settings
- `to_arrow`, `from_table`: exchange with Arrow, pandas, polars and DuckDB
- `arrow_rows`: rows of an Arrow table in memory
- `memory_rows`: rows of lists of samples and of columns in memory
- `huggingface`: exchange with Hugging Face datasets
- `create`: samples to shards of any format
- `write`: everything in one call: functions, workers
- `write_steps`: functions between reading and writing
- `write_job`: the parts that workers write, and how they are published
- `read_size`: how many rows to read at once
"""

from typing import TYPE_CHECKING

from shardex.lazy_door import import_later

__all__ = [
    "DataIterator",
    "Dataset",
    "DatasetDict",
    "ListRows",
    "MediaRows",
    "MixRows",
    "ReadSize",
    "SampleFailure",
    "Writer",
    "byte_size",
    "call_function",
    "changes",
    "column_result",
    "column_table",
    "concat",
    "copied",
    "create",
    "decode_view",
    "from_table",
    "in_classes_of",
    "index",
    "innermost_rows",
    "join",
    "lens_to",
    "load_dataset",
    "mix",
    "open",
    "place_of_rows",
    "publish_parts",
    "samples_of",
    "temperature",
    "time_in_functions",
    "write",
]

if TYPE_CHECKING:
    from shardex.dataset.combine import concat, join
    from shardex.dataset.create import Writer, create, samples_of
    from shardex.dataset.dataset import Dataset
    from shardex.dataset.dataset_dict import DatasetDict
    from shardex.dataset.from_table import column_table, from_table
    from shardex.dataset.function_calls import (
        SampleFailure,
        call_function,
        column_result,
        copied,
        place_of_rows,
        time_in_functions,
    )
    from shardex.dataset.layers import in_classes_of, innermost_rows
    from shardex.dataset.load_dataset import load_dataset
    from shardex.dataset.media_rows import MediaRows, decode_view
    from shardex.dataset.memory_rows import ListRows
    from shardex.dataset.mix import MixRows, mix, temperature
    from shardex.dataset.open import index, open
    from shardex.dataset.read_size import ReadSize, byte_size
    from shardex.dataset.typed_views import changes, lens_to
    from shardex.dataset.views import DataIterator
    from shardex.dataset.write import write
    from shardex.dataset.write_job import publish_parts
else:
    import_later(
        __name__,
        {
            "combine": "concat join",
            "create": "Writer create samples_of",
            "dataset": "Dataset",
            "dataset_dict": "DatasetDict",
            "from_table": "column_table from_table",
            "function_calls": "SampleFailure call_function column_result copied place_of_rows time_in_functions",
            "layers": "in_classes_of innermost_rows",
            "load_dataset": "load_dataset",
            "media_rows": "MediaRows decode_view",
            "memory_rows": "ListRows",
            "mix": "MixRows mix temperature",
            "open": "index open",
            "read_size": "ReadSize byte_size",
            "typed_views": "changes lens_to",
            "views": "DataIterator",
            "write": "write",
            "write_job": "publish_parts",
        },
    )
