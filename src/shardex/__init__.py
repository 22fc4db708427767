"""shardex: one dataset API over sharded files.

Write samples once, or point it at the shards you already have (tar, JSONL, token files, bins, Arrow, Parquet); then
read any sample, stream globally shuffled batches, and take views that cost nothing. Seven things to know:

`Dataset`   samples by position; `open` makes one of any shards, every view of it is one
`Loader`    a dataset as batches: shuffled, shared among ranks, resumed at the exact sample
`Writer`    takes samples and publishes a dataset whole; `create` and `write` make one
`Features`  what a sample is made of: `Array`, `Value`, `Text`, `Json`, ... by field
`packable`  a class of your own as the type of samples; a `lens` shows them as another, and puts changes back
`Columns`   what a read returns: many values of many fields, stacked or `Ragged`
rows        anything with ``len`` and ``read(rows, fields)``: the one protocol underneath
"""

from shardex.dataset import (
    Dataset,
    DatasetDict,
    Writer,
    concat,
    create,
    from_arrow,
    from_huggingface,
    index,
    join,
    load_dataset,
    mix,
    open,
    temperature,
    write,
)
from shardex.errors import ShardexError
from shardex.kernel import Columns, Ragged
from shardex.loader import Loader
from shardex.rows import Rows
from shardex.samples import Batch, DictSample, Lens, PackableSample, lens, packable
from shardex.schema import Array, Bytes, ClassLabel, Features, Json, Optional, Sequence, Struct, Text, Value
from shardex.sources import storage
from shardex.store import (
    Edit,
    Lost,
    Problem,
    Recovered,
    Version,
    adopt,
    clean,
    compact,
    edit,
    history,
    leftovers,
    recover,
    restore,
    verify,
)

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Batch",
    "Bytes",
    "ClassLabel",
    "Columns",
    "Dataset",
    "DatasetDict",
    "DictSample",
    "Edit",
    "Features",
    "Json",
    "Lens",
    "Loader",
    "Lost",
    "Optional",
    "PackableSample",
    "Problem",
    "Ragged",
    "Recovered",
    "Rows",
    "Sequence",
    "ShardexError",
    "Struct",
    "Text",
    "Value",
    "Version",
    "Writer",
    "adopt",
    "clean",
    "compact",
    "concat",
    "create",
    "edit",
    "from_arrow",
    "from_huggingface",
    "history",
    "index",
    "join",
    "leftovers",
    "lens",
    "load_dataset",
    "mix",
    "open",
    "packable",
    "recover",
    "restore",
    "storage",
    "temperature",
    "verify",
    "write",
]
