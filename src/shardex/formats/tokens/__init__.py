"""Raw numbers of one dtype, such as tokens: windows of one length, or samples of stored lengths.

Windows need no index: file and offset of a row are arithmetic, and `read` is one gather into one array. Stored lengths
are in a file next to the numbers and become an `Index`. Datasets that `TokenWriter` wrote are described by
``tokens.json`` (`TokensHeader`); for other files the caller passes dtype and window.

Numbers are stored one after another in ``part-00000.bin`` and so on, little-endian. Where samples differ in length, the
lengths are in ``part-00000.lengths.bin`` next to it, as uint32 (uint64 if a sample is longer). Samples may have more
arrays of the same length, for example a loss mask: each is in a file of its own, ``part-00000.loss_mask.bin``.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    SchemaError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Array, Features, codecs, hf_metadata
from shardex.files import Files, Index, Scan, Stage
from shardex.formats.join_shards import JoinShards
from shardex.formats.number_rows import (
    NumberRows,
    NumberWindowRows,
    array_fields,
    check_sizes,
    file_beside,
    is_array,
    number_dtype,
)
from shardex.formats.registry import Format
from shardex.formats.sample_writer import SeriesWriter, ShardSeries
from shardex.kernel import Columns, Ragged
from shardex.sources import ByteRange, LocalSource, Source
from shardex.workers import ExecutorLike

HEAD = "tokens.json"
OWNED = r"tokens\.json|[^/]+\.(bin|tokens)"
"""Regular expression of the files of a dataset."""
STREAMS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""Version and dtype of streams of tokens that begin with a header of llm.c, by their magic number (`nanogpt`)."""
_NARROW = (1 << 32) - 1


_MOST = 1 << 60
"""Numbers in a window: their bytes must be countable."""


@dataclass(frozen=True)
class TokensHeader:
    """Content of ``tokens.json``."""

    version: int
    dtype: str
    window: int | None
    field: str
    lengths: str | None = None
    """Dtype of the stored lengths, if there is no window."""
    arrays: dict[str, str] = dataclass_field(default_factory=dict)
    """Name and dtype of each other array of a sample."""
    metadata: dict[str, Any] = dataclass_field(default_factory=dict)
    """What the writer was told about the data, for example the tokenizer."""

    @classmethod
    def read(cls, source: Source) -> TokensHeader:
        """Read and check the file."""
        name = os.path.join(source.url, HEAD)
        try:
            head = msgspec.json.decode(source.load(HEAD), type=TokensHeader)
            for dtype in (head.dtype, *head.arrays.values()):
                number_dtype(dtype)
            check_array_names(head.arrays)
            if head.field in ("", *head.arrays):
                raise SchemaError(f"expected a field that none of the other arrays is named like, got {head.field!r}")
        except (msgspec.MsgspecError, UnicodeDecodeError, SchemaError, RecursionError) as error:
            raise FormatError(f"{name}: expected the description of token files, got something else: {error}") from None
        known = head.version in (1, 2) and head.lengths in (None, "uint32", "uint64")
        if not known or not (head.window is None or 1 <= head.window < _MOST):
            raise FormatError(
                f"{name}: expected version 1 or 2 with a window or lengths of uint32 or uint64, got {head}"
            )
        return head

    @property
    def samples(self) -> str:
        """Description of the samples, for messages."""
        return str(Features({n: Array(d, (self.window,)) for n, d in {self.field: self.dtype, **self.arrays}.items()}))

    def write(self) -> bytes:
        """Return the bytes of the file; it has version 1 if the samples have one array."""
        optional = ("lengths", "arrays", "metadata")
        return codecs.JSON.encode(
            {name: value for name, value in asdict(self).items() if name not in optional or value}
        )


def check_array_names(names: Iterable[str]) -> None:
    """Raise an error for a name that cannot be part of the name of a file."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == "lengths":
            raise SchemaError(
                f'expected names of letters, digits, "_" and "-" for all arrays but the first, not "lengths", '
                f"got {name!r}: they are part of file names"
            )


def lengths_of(path: str) -> str:
    """Return the path of the file of lengths for a file of numbers.

    >>> lengths_of("a/part-00000.bin")
    'a/part-00000.lengths.bin'
    """
    return file_beside(path, "lengths")


@dataclass(frozen=True)
class LengthScanner:
    """Finds samples by their stored lengths: `offset` and `length` in bytes."""

    item: int
    """Bytes of one number in the data."""
    dtype: str = "uint32"
    """Dtype of the lengths."""
    in_python: bool = False

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return f"lengths 1 {self.dtype} of {self.item} bytes"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the samples of one file."""
        data, width = source.load(lengths_of(path)), np.dtype(self.dtype).itemsize
        if len(data) % width:
            raise TruncatedShardError(
                f"{os.path.join(source.url, lengths_of(path))}: expected lengths of {width} bytes, "
                f"got {len(data)} bytes, which end in the middle of one"
            )
        lengths = np.frombuffer(data, np.dtype(self.dtype).newbyteorder("<"))
        size = source.stat(path).size
        whole = bool(lengths.max(initial=0) <= size // self.item)
        ends = np.cumsum(lengths.astype(np.int64)) * self.item if whole else np.array([-1])
        if int(ends[-1] if len(ends) else 0) != size:
            expected = sum(lengths.tolist()) * self.item
            raise TruncatedShardError(
                f"{os.path.join(source.url, path)}: expected {expected} bytes as its lengths say, got {size}"
            )
        return {"offset": ends - lengths.astype(np.int64) * self.item, "length": lengths.astype(np.int64) * self.item}


class _NumberShards(ShardSeries):
    """Files of numbers; next to each a file for each other array, and one of lengths if `lengths_dtype` is set."""

    def __init__(self, stage: Stage, name: Callable[[int], str], first: int, size: int, head: TokensHeader) -> None:
        super().__init__(stage, name, first, size=size)
        self.lengths_dtype = head.lengths
        self.lengths: list[int] = []
        """Lengths that are not written yet."""
        self.others: dict[str, list[bytes]] = {name: [] for name in head.arrays}
        """Other arrays that are not written yet."""
        self.sizes: dict[str, int] = {}
        """Bytes in the files next to the current one, by name."""

    def has_room(self, size: int) -> bool:
        """Return True if so many more bytes go into the current file."""
        return self.size + size <= self._most_bytes

    def flush(self, end: bytes = b"") -> None:
        """Write the buffered numbers, the other arrays and the lengths."""
        super().flush(end)
        for name, pieces in self.others.items():
            self._append(name, pieces)
            self.others[name] = []
        if self.lengths_dtype:
            self._append("lengths", [np.array(self.lengths, np.dtype(self.lengths_dtype).newbyteorder("<")).tobytes()])
        self.lengths = []

    def _append(self, name: str, pieces: list[bytes]) -> None:
        self.sizes[name] = self._stage.append(file_beside(self.path, name), pieces, self.sizes.get(name, 0))

    def _begin_next(self) -> None:
        super()._begin_next()
        self.sizes = {}


class TokenWriter(SeriesWriter):
    """Writes the arrays of samples one after another; all fields are arrays of one length in each sample.

    `metadata` is stored with the data: anything that JSON can hold.
    """

    _shards: _NumberShards

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        window: int | None = None,
        shard_size: int = 1 << 30,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        features, self._head = _features_and_header(features, window, metadata)
        self._dtype = np.dtype(self._head.dtype)
        self._dtypes = {self._head.field: self._dtype}
        self._dtypes |= {name: np.dtype(dtype) for name, dtype in self._head.arrays.items()}
        options: Any = {"prefix": "part", "extension": ".bin", "size": shard_size, "publish_last": (HEAD,)}
        super().__init__(path, mode, features, OWNED, **options)

    def _check_existing(self) -> None:
        self._appending = bool(self._stage.existing)
        if self._appending:
            self._head = self._existing_header()

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        return _NumberShards(self._stage, name, first, size, self._head)

    def _fit(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._head.arrays:
            array: Any = sample.get(self._head.field)
            known = is_array(array, self._dtype) and len(sample) == 1
            return sample if known and self._head.window in (None, len(array)) else super()._fit(sample)
        arrays: list[Any] = [sample.get(name) for name in self._dtypes]
        if len(sample) == len(arrays) and all(map(is_array, arrays, self._dtypes.values())):
            sizes = {len(array) for array in arrays}
            if len(sizes) == 1 and self._head.window in (None, *sizes):
                return sample
        return super()._fit(sample)

    def _encode(self, sample: Mapping[str, Any]) -> Any:
        arrays = [sample[name] for name in self._dtypes]
        if len(arrays) > 1 and len(sizes := {len(array) for array in arrays}) != 1:
            found = ", ".join(f"{name} of {len(array)}" for name, array in zip(self._dtypes, arrays, strict=True))
            raise SchemaError(f"expected arrays of one length, got {sizes}: {found}")
        return arrays

    def _store(self, record: Any) -> None:
        if self._head.lengths == "uint32" and len(record[0]) > _NARROW:
            self._widen()
        self._store_records(record, [len(record[0])])

    def _store_records(self, arrays: Sequence[NDArray[Any]], lengths: list[int]) -> None:
        """Add the arrays of one sample, or of several whose numbers lie end to end and go into one file."""
        first, *others = arrays
        shards = self._shards
        shards.write(first.tobytes())
        for waiting, array in zip(shards.others.values(), others, strict=True):
            waiting.append(array.tobytes())
        shards.lengths += lengths

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: the files are the same as if they were appended one by one."""
        self._check_open()
        known = list(columns.data) == list(self._dtypes) and self._head.window is None
        packed = [_ends_and_values(columns.data[name], dtype) for name, dtype in self._dtypes.items()] if known else []
        if not packed or any(one is None or not np.array_equal(one[0], packed[0][0]) for one in packed):
            for sample in columns.to_samples():
                self.append(sample)
            return
        ends, arrays = packed[0][0], [values for _, values in packed]
        lengths = np.diff(ends)
        if not len(lengths):
            return
        if self._shards.has_room(arrays[0].nbytes) and lengths.max() <= _NARROW:  # no sample begins a file
            self._store_records(arrays, lengths.tolist())
            self._samples += len(lengths)
            return
        for begin, end in pairwise(ends.tolist()):
            self._store([values[begin:end] for values in arrays])
            self._samples += 1

    def _finish(self) -> None:
        super()._finish()
        if not self._appending:
            self._stage.place.put(HEAD, self._head.write())

    def _widen(self) -> None:
        """Store lengths as uint64 from now on, and in the files that are already written."""
        if self._appending:
            raise SchemaError(f"expected samples of at most {_NARROW} numbers, as {HEAD} of this dataset says")
        place = self._stage.place
        for path in place.paths():
            if path.endswith(".lengths.bin"):
                place.put(path, np.frombuffer(place.map(path), "<u4").astype("<u8").tobytes())
        self._shards.sizes["lengths"] = 2 * self._shards.sizes.get("lengths", 0)
        self._head = replace(self._head, lengths="uint64")
        self._shards.lengths_dtype = "uint64"

    def _existing_header(self) -> TokensHeader:
        if HEAD not in self._stage.existing:
            raise SchemaError(f"{self.path}: expected a dataset with {HEAD} to append to, got other files")
        found, mine = TokensHeader.read(LocalSource(self.path)), self._head
        if (found.dtype, found.window, found.field) != (mine.dtype, mine.window, mine.field) or (
            list(found.arrays.items()) != list(mine.arrays.items())
        ):
            raise SchemaError(
                f"{self.path}: expected samples as {HEAD} says ({found.samples}), got a schema of {mine.samples}"
            )
        if mine.metadata and mine.metadata != found.metadata:
            raise hf_metadata.other_metadata(self.path, found.metadata, mine.metadata)
        return found


def _ends_and_values(column: Any, dtype: np.dtype[Any]) -> Any:
    """Return the offsets and the numbers of arrays of one dimension and this dtype; None for other columns."""
    if not isinstance(column, Ragged) or column.dtype != dtype or column.ndim != 1:
        return None
    return column.offsets, column.values


def _features_and_header(
    features: Features, window: int | None, metadata: Mapping[str, Any] | None
) -> tuple[Features, TokensHeader]:
    """Return the features to write, and the description of the files."""
    dtypes, size = array_fields(features)
    if window is not None and (window < 1 or size not in (None, window)):
        raise ArgumentError(f"expected a window of at least 1 that fits {features}, got {window}")
    size = window if size is None else size
    if size == 0:
        raise SchemaError(f"expected windows of at least one number, got {features}")
    known = {name: number_dtype(dtype).name for name, dtype in dtypes.items()}
    (first, dtype), *others = known.items()
    check_array_names(name for name, _ in others)
    header = TokensHeader(
        2 if others else 1,
        dtype,
        size,
        first,
        "uint32" if size is None else None,
        dict(others),
        hf_metadata.plain_metadata(metadata or {}),
    )
    return Features({name: Array(dtype, (size,)) for name, dtype in known.items()}), header


__all__ = [
    "DTYPES",
    "FORMAT",
    "STREAMS",
    "checked_dtype",
    "dtype_of_names",
]

DTYPES = {f".{kind}{8 * size}": f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8) if kind != "f" or size > 1}
"""Extensions that give the dtype of a file: `.u16`, `.i32`, `.f32` and so on."""
_NAMES = (".bin", ".tokens", *DTYPES)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> NumberWindowRows | NumberRows:
    """Open the samples of these files: windows of `window` numbers, or samples of stored lengths."""
    head = TokensHeader.read(files.source) if files.folder and HEAD in files.paths else None
    others: Mapping[str, str | None] = {} if head is None else head.arrays
    if schema is not None:
        dtypes, size = array_fields(Features.of(schema))
        first, others = _first_and_others(files, dtypes, head)
        field, dtype, window = field or first, dtype or dtypes.get(first), window or size
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    if head is not None:
        numbers = checked_dtype(files, dtype, head.dtype, HEAD)
        lengths, window, field = head.lengths or "uint32", window or head.window, field or head.field
    else:
        _refuse_header(files)
        lengths, numbers = "uint32", checked_dtype(files, dtype, dtype_of_names(files), "their extension")
    data = _data_files(files, others)
    arrays = {field or "tokens": numbers, **{name: number_dtype(dtype) for name, dtype in others.items()}}
    rows: NumberWindowRows | NumberRows
    if window is not None:
        rows = NumberWindowRows(data, arrays, window)
    else:
        _check_lengths(data, numbers)
        index = Index.of(
            data,
            LengthScanner(numbers.itemsize, lengths),
            rebuild=rebuild,
            progress=progress,
            workers=workers,
            executor=executor,
        )
        rows = NumberRows(data, index, arrays, None)
    rows.metadata = {} if head is None else head.metadata
    return rows


def _first_and_others(
    files: Files, dtypes: Mapping[str, str | None], head: TokensHeader | None
) -> tuple[str, Mapping[str, str | None]]:
    """Return the name of the first array, and the dtypes of the others, by a schema and the description of the files.

    Without a description all but the first field of the schema are others; with one, it says which are.
    """
    first, *others = dtypes
    if head is None:
        return first, {name: dtypes[name] for name in others}
    unknown = [name for name in dtypes if name not in head.arrays]
    if len(unknown) > 1:
        known = ", ".join([head.field, *head.arrays])
        raise SchemaError(f"{files}: expected the fields {known}, as {HEAD} says, got {', '.join(dtypes)}")
    return (unknown or [head.field])[0], head.arrays


def _data_files(files: Files, others: Iterable[str] = ()) -> Files:
    found = files.having(*_NAMES) if files.folder else files
    beside = tuple(f".{name}.bin" for name in ("lengths", *others))
    data = tuple(path for path in found.paths if not path.endswith(beside))
    if not data:
        raise UnknownFormatError(
            f"{files}: expected files that end in {', '.join(_NAMES)}, got {len(files.paths)} others"
        )
    return Files(files.source, data, files.what, files.folder)


def dtype_of_names(files: Files) -> str | None:
    """Return the dtype that the extensions of all these files give, such as `.u16`; None if they give none."""
    kinds = (
        {DTYPES.get(os.path.splitext(path)[1].lower()) for path in _data_files(files).paths} if files.paths else set()
    )
    return kinds.pop() if len(kinds) == 1 else None


def checked_dtype(files: Files, given: str | None, known: str | None, origin: str) -> np.dtype[Any]:
    """Return the dtype that the caller gives or that `origin` says; raise an error if both differ or there is none."""
    if given is None and known is None:
        raise ArgumentError(
            f'{files}: expected a dtype, which these files do not store; open with dtype="uint16" (for example)'
        )
    found = number_dtype(known if given is None else given)
    if known is not None and found != np.dtype(known):
        raise SchemaError(f"{files}: expected {np.dtype(known)}, as {origin} says, got dtype={given!r}")
    return found


def _refuse_header(files: Files) -> None:
    """Raise an error for a stream of tokens with a header, whose numbers would be read as tokens."""
    path, begin = _data_files(files).paths[0], struct.Struct("<ii")
    if files.source.stat(path).size >= begin.size:
        magic, version = begin.unpack(files.source.read(path, [ByteRange(0, begin.size)])[0])
        if STREAMS.get(magic, (None,))[0] == version:
            raise FormatError(
                f"{os.path.join(files.source.url, path)}: expected tokens and nothing else, got a header of llm.c "
                'before them; open with format="nanogpt", which knows it'
            )


def _check_lengths(files: Files, dtype: np.dtype[Any]) -> None:
    check_sizes(files, [stat.size for stat in files.stats()], dtype)
    for path in files.paths:
        try:
            files.source.stat(lengths_of(path))
        except NotFoundError:
            raise ArgumentError(
                f"{files}: expected the lengths of samples, got neither {HEAD} nor {lengths_of(path)}; "
                "open with window=1024 (for example)"
            ) from None


FORMAT = Format(
    open,
    TokenWriter,
    JoinShards(OWNED, ".bin", publish_last=(HEAD,)),
    stores_schema=True,
    only_arrays=True,
)
