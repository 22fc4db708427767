"""shardex: one dataset API over sharded files.

Write samples once, or open the shards you have (tar, JSONL, token files, bins, Arrow, Parquet; local, HTTP or S3).
Then read any sample by position, iterate over globally shuffled batches, filter with SQL, and edit. Seven things to
know:

`Dataset`   samples by position; `open` makes one from files, and every view of one is a `Dataset` again
`Loader`    batches for training: shuffled, split among ranks, resumed at the exact sample
`Writer`    takes samples and publishes all of them or none; `create` and `write` make one
`Features`  the schema of a sample: `Array`, `Value`, `Text`, `Json`, ... for each field
`packable`  turns a class of yours into a sample type; a `lens` converts between two of them, both ways
`Columns`   what a read of many rows returns: one stacked array, `Ragged` array, `Masked` column or list for each field
`Rows`      the protocol under all of this: ``len`` and ``read(rows, fields)``
"""

import importlib as _importlib
import sys as _sys
import typing as _typing

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Array2D",
    "Array3D",
    "Array4D",
    "Audio",
    "Batch",
    "Bytes",
    "Cast",
    "CenterCrop",
    "ClassLabel",
    "Columns",
    "Dataset",
    "DatasetDict",
    "Date",
    "Decimal",
    "DictSample",
    "Duration",
    "Edit",
    "Features",
    "Flip",
    "Image",
    "Json",
    "Lens",
    "Loader",
    "Lost",
    "Map",
    "Masked",
    "Null",
    "Optional",
    "PackableSample",
    "Pad",
    "Problem",
    "Ragged",
    "RandomCrop",
    "RandomResizedCrop",
    "Recovered",
    "Resize",
    "Rows",
    "Sequence",
    "ShardexError",
    "Struct",
    "Text",
    "Time",
    "Timestamp",
    "Value",
    "Version",
    "Video",
    "Writer",
    "adopt",
    "audio_info",
    "cache",
    "clean",
    "compact",
    "concat",
    "create",
    "decode_audio",
    "decode_frames",
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
    "prefetch",
    "recover",
    "restore",
    "storage",
    "temperature",
    "tokenize",
    "verify",
    "video_info",
    "write",
]


_PROBLEMS = {
    "Linux or macOS, got Windows: use Linux under Windows (WSL)": _sys.platform == "win32",
    "a little-endian processor, such as x86-64 or ARM64, got a big-endian one": _sys.byteorder != "little",
    "Python of 64 bits, got 32 bits: install the 64-bit build": _sys.maxsize < 1 << 32,
}
for _problem, _found in _PROBLEMS.items():
    if _found:
        raise _importlib.import_module("shardex.errors").UnsupportedPlatformError(f"shardex expected {_problem}")


if _typing.TYPE_CHECKING:
    from shardex import ray as ray
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
    from shardex.features import (
        Array,
        Array2D,
        Array3D,
        Array4D,
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
    from shardex.media import (
        CenterCrop,
        Flip,
        Pad,
        RandomCrop,
        RandomResizedCrop,
        Resize,
        audio_info,
        decode_audio,
        decode_frames,
        video_info,
    )
    from shardex.rows import Rows
    from shardex.samples import Batch, DictSample, Lens, PackableSample, lens, packable
    from shardex.sources import storage
    from shardex.store import (
        Edit,
        Lost,
        Problem,
        Recovered,
        Version,
        adopt,
        cache,
        clean,
        compact,
        edit,
        history,
        leftovers,
        recover,
        restore,
        verify,
    )
    from shardex.text import tokenize
else:
    _LATER = {
        "dataset": "Dataset DatasetDict Writer concat create from_arrow from_huggingface index join load_dataset "
        "mix open temperature write",
        "errors": "ShardexError",
        "kernel": "Columns Masked Ragged",
        "loader": "Cast Loader prefetch",
        "media": "CenterCrop Flip Pad RandomCrop RandomResizedCrop Resize audio_info decode_audio decode_frames "
        "video_info",
        "rows": "Rows",
        "samples": "Batch DictSample Lens PackableSample lens packable",
        "features": "Array Array2D Array3D Array4D Audio Bytes ClassLabel Date Decimal Duration Features Image Json "
        "Map Null Optional Sequence Struct Text Time Timestamp Value Video",
        "sources": "storage",
        "store": "Edit Lost Problem Recovered Version adopt cache clean compact edit history leftovers recover "
        "restore verify",
        "text": "tokenize",
    }
    _MODULE_OF = {name: module for module, names in _LATER.items() for name in names.split()}
    _ROOMS = {*_LATER, "arrow", "display", "files", "formats", "jobs", "native", "order", "progress", "ray", "workers"}

    def __getattr__(name: str) -> _typing.Any:
        """Import the module of a public name, or a room, when it is first used: no program needs all of them."""
        if name in _MODULE_OF:
            value = getattr(_importlib.import_module(f"shardex.{_MODULE_OF[name]}"), name)
            globals()[name] = value
            return value
        if name in _ROOMS:
            return _importlib.import_module(f"shardex.{name}")
        other = _importlib.import_module("shardex.other_names")
        hint = "" if name.startswith("_") else other.instead(other.MODULE, name, __all__)
        raise AttributeError(f"module 'shardex' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """List the public names only, not the packages they come from."""
    return [*__all__, "__doc__", "__version__"]
