"""Datasets: what users open, view, query, combine and write.

In come rows (from `formats`, from lists, from other tools), orders and samples; out come `Dataset` objects, batches,
Arrow tables, and new shards through the writers of `formats`. A `Dataset` is rows, an order and a choice of fields;
a view changes the order, a layer or a combination wraps the rows.

- `dataset`: the class `Dataset`
- `open`: files, rows and lists as a `Dataset`; `load_dataset`: named splits of files; `splits`: which file is in which
- `layers`: rows converted to a class or mapped by a function; `typed_views`: which layer leads to a type, and back
- `combine`: `concat` and `join`; `mix`: mixtures in exact proportions
- `sql`: checked SQL over rows; `sql_sandbox`: DuckDB without access to anything else
- `to_arrow`, `from_arrow`, `arrow_rows`, `huggingface`: exchange with other tools
- `writer`: samples into shards of any format
- `read_size`: how many rows to read at once
"""

from shardex.dataset.combine import concat, join
from shardex.dataset.dataset import Dataset
from shardex.dataset.from_arrow import from_arrow, from_huggingface
from shardex.dataset.layers import innermost_rows
from shardex.dataset.load_dataset import DatasetDict, load_dataset
from shardex.dataset.mix import MixRows, mix, temperature
from shardex.dataset.open import index, open
from shardex.dataset.read_size import ReadSize
from shardex.dataset.typed_views import changes, lens_to
from shardex.dataset.writer import Writer, create, write

__all__ = [
    "Dataset",
    "DatasetDict",
    "MixRows",
    "ReadSize",
    "Writer",
    "changes",
    "concat",
    "create",
    "from_arrow",
    "from_huggingface",
    "index",
    "innermost_rows",
    "join",
    "lens_to",
    "load_dataset",
    "mix",
    "open",
    "temperature",
    "write",
]
