"""The room dataset."""

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
