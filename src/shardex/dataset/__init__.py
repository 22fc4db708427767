"""Opens, views, queries, combines and writes datasets: the classes and functions that users call.

In: rows (of `formats`, of lists, of other tools), orders and samples. Out: `Dataset`, batches, Arrow tables, and new
shards. A `Dataset` is rows, an order and a choice of fields. A view of it changes the order or the fields; `map` and
`as_type` wrap its rows in one of `layers`; `concat`, `join` and `mix` combine the rows of several.

- `dataset`: the class `Dataset`; `sample_view` has its ways to read, `subset_view` those to choose samples
- `open`: files, rows and lists to a `Dataset`; `index` also saves an index for SQL or checksums
- `references`: how a dataset is described, for catalogs and trackers, so that it can be opened again
- `views`: how many rows to read at once, sorted views, field errors, the text that describes a view, and iterators;
  the base class of windows
- `show`: a figure of the first samples, for notebooks
- `split_views`: splits by class, group or time; samplings by class or weight
- `sliding`: windows over rows that are sorted by time, as samples
- `dataset_dict`: several datasets by name
- `load_dataset`: named splits (train, test, ...) of files
- `splits`: which files belong to which split
- `combine`: `concat` and `join`; mixtures in exact proportions
- `token_stream`: the documents of a dataset as one stream of tokens, and where it lies in files
- `windows`: windows of tokens, and pieces of documents packed together, as samples
- `sql`: parses a query, reads the columns it uses, and runs it
- `sql_syntax`: what a statement reads, where it compares values inside JSON and names of classes; DuckDB without access
  to files or network
- `to_arrow`, `from_table`: exchange with Arrow, pandas, polars and DuckDB
- `to_croissant`: metadata for search engines and people: Croissant, and cards of Hugging Face
- `memory_rows`: rows of lists of samples, of columns and of Arrow tables in memory
- `huggingface`: exchange with Hugging Face datasets
- `create`: samples to shards of any format
- `write`: everything in one call: functions, workers
- `write_steps`: functions between reading and writing
- `write_job`: the parts that workers write, and how they are published
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "DataIterator",
    "Dataset",
    "DatasetDict",
    "ListRows",
    "MixRows",
    "ReadSize",
    "Writer",
    "bytes_on_disk",
    "column_table",
    "concat",
    "create",
    "from_table",
    "in_classes_of",
    "index",
    "join",
    "load_dataset",
    "mix",
    "open",
    "publish_parts",
    "samples_of",
    "temperature",
    "write",
]

if TYPES:
    from shardex.dataset import combine as combine
    from shardex.dataset import huggingface as huggingface
    from shardex.dataset import show as show
    from shardex.dataset import sliding as sliding
    from shardex.dataset import split_views as split_views
    from shardex.dataset import sql as sql
    from shardex.dataset import to_arrow as to_arrow
    from shardex.dataset import to_croissant as to_croissant
    from shardex.dataset import windows as windows
    from shardex.dataset.combine import MixRows, concat, join, mix, temperature
    from shardex.dataset.create import Writer, create, in_classes_of, samples_of
    from shardex.dataset.dataset import Dataset
    from shardex.dataset.dataset_dict import DatasetDict
    from shardex.dataset.from_table import column_table, from_table
    from shardex.dataset.from_table import from_columns as from_columns
    from shardex.dataset.from_table import is_table as is_table
    from shardex.dataset.load_dataset import load_dataset
    from shardex.dataset.memory_rows import ListRows
    from shardex.dataset.open import index, open
    from shardex.dataset.references import bytes_on_disk
    from shardex.dataset.views import DataIterator, ReadSize
    from shardex.dataset.write import write
    from shardex.dataset.write_job import publish_parts
else:
    import_later(
        __name__,
        {
            "": "combine huggingface references show sliding split_views sql to_arrow to_croissant windows",
            "combine": "MixRows concat join mix temperature",
            "create": "Writer create in_classes_of samples_of",
            "dataset": "Dataset",
            "dataset_dict": "DatasetDict",
            "from_table": "column_table from_columns from_table is_table",
            "load_dataset": "load_dataset",
            "memory_rows": "ListRows",
            "open": "index open",
            "references": "bytes_on_disk",
            "views": "DataIterator ReadSize",
            "write": "write",
            "write_job": "publish_parts",
        },
    )
