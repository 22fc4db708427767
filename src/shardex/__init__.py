"""shardex: one dataset API over sharded files.

Write samples once, or open the shards you have (tar, JSONL, token files, bins, Arrow, Parquet; local, HTTP or S3).
Then read any sample by position, iterate over globally shuffled batches, filter with SQL, and edit. Eight things to
know:

`Dataset`   samples by position; `open` makes one from files, and every view of one is a `Dataset` again
`Loader`    batches for training: shuffled, split among ranks, resumed at the exact sample
`Catalog`   names for datasets, with versions and tags: ``open("@corpus@3")``
`Writer`    takes samples and publishes all of them or none; `create` and `write` make one
`Features`  the schema of a sample: `Array`, `Value`, `Text`, `Json`, ... for each field
`packable`  turns a class of yours into a sample type; a `lens` converts between two of them, both ways
`Columns`   what a read of many rows returns: one stacked array, `Ragged` array, `Masked` column or list for each field
`Rows`      the protocol under all of this: ``len`` and ``read(rows, fields)``

Four modules have the names that fewer programs need: `media` (steps such as `Resize`, and images, audio and video
without a dataset), `store` (the versions of native datasets, and what reports consist of), `ray` and `testing`.
"""

import importlib as _importlib
import sys as _sys
import typing as _typing

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Audio",
    "Batch",
    "Bytes",
    "Cast",
    "Catalog",
    "ClassLabel",
    "Columns",
    "Dataset",
    "DatasetDict",
    "Date",
    "Decimal",
    "DictSample",
    "Duration",
    "Features",
    "Image",
    "Json",
    "Lens",
    "Loader",
    "Map",
    "Masked",
    "Null",
    "Optional",
    "PackableSample",
    "Ragged",
    "Rows",
    "Sequence",
    "ShardexError",
    "Struct",
    "Text",
    "Time",
    "Timestamp",
    "Value",
    "Video",
    "Writer",
    "adopt",
    "cache",
    "clean",
    "compact",
    "concat",
    "create",
    "edit",
    "index",
    "join",
    "lens",
    "load_dataset",
    "mix",
    "open",
    "packable",
    "prefetch",
    "recover",
    "storage",
    "temperature",
    "tokenize",
    "verify",
    "write",
]
_MODULES = ["media", "ray", "store", "testing"]


_PROBLEMS = {
    "Linux or macOS, got Windows: use Linux under Windows (WSL)": _sys.platform == "win32",
    "a little-endian processor, such as x86-64 or ARM64, got a big-endian one": _sys.byteorder != "little",
    "Python of 64 bits, got 32 bits: install the 64-bit build": _sys.maxsize < 1 << 32,
}
for _problem, _found in _PROBLEMS.items():
    if _found:
        raise _importlib.import_module("shardex.errors").UnsupportedPlatformError(f"shardex expected {_problem}")


_lazy_door = _importlib.import_module("shardex.lazy_door")

if _lazy_door.TYPES:
    from shardex import media as media
    from shardex import ray as ray
    from shardex import store as store
    from shardex import testing as testing
    from shardex.catalog import Catalog
    from shardex.dataset import (
        Dataset,
        DatasetDict,
        Writer,
        concat,
        create,
        index,
        join,
        load_dataset,
        mix,
        open,
        temperature,
        write,
    )
    from shardex.errors import ShardexError
    from shardex.features import (
        Array,
        Audio,
        Bytes,
        ClassLabel,
        Date,
        Decimal,
        Duration,
        Features,
        Image,
        Json,
        Map,
        Null,
        Optional,
        Sequence,
        Struct,
        Text,
        Time,
        Timestamp,
        Value,
        Video,
    )
    from shardex.kernel import Columns, Masked, Ragged
    from shardex.loader import Cast, Loader, prefetch
    from shardex.rows import Rows
    from shardex.samples import Batch, DictSample, Lens, PackableSample, lens, packable
    from shardex.sources import storage
    from shardex.store import adopt, cache, clean, compact, edit, recover, verify
    from shardex.text import tokenize
else:
    _INNER = {"display", "files", "formats", "jobs", "layers", "native", "order", "progress", "workers"}

    def _room_or_hint(name: str) -> _typing.Any:
        """Import a room, or say what a name of another library is called here."""
        if name in _ROOMS:
            return _importlib.import_module(f"shardex.{name}")
        other = _importlib.import_module("shardex.other_names")
        raise other.missing_name("shardex", name, other.MODULE, __all__)

    _MODULE_OF = _lazy_door.import_later(
        __name__,
        {
            "catalog": "Catalog",
            "dataset": "Dataset DatasetDict Writer concat create index join load_dataset mix open temperature write",
            "errors": "ShardexError",
            "kernel": "Columns Masked Ragged",
            "loader": "Cast Loader prefetch",
            "rows": "Rows",
            "samples": "Batch DictSample Lens PackableSample lens packable",
            "features": "Array Audio Bytes ClassLabel Date Decimal Duration Features Image Json Map Null Optional "
            "Sequence Struct Text Time Timestamp Value Video",
            "sources": "storage",
            "store": "adopt cache clean compact edit recover verify",
            "text": "tokenize",
        },
        _room_or_hint,
    )
    _ROOMS = {*_MODULE_OF.values(), *_MODULES, *_INNER}


def __dir__() -> list[str]:
    """List the public names and modules only, not the packages that the names come from."""
    return [*__all__, *_MODULES, "__doc__", "__version__"]
