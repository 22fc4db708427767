"""Packets in numbered bins, as splitdataloader keeps them: ``index.dat`` and ``bin00000000.dat`` and so on.

The index is used as it is, mapped: bin, position and length of each packet, three little-endian uint32. A packet is
its length once more and then its bytes, so every read checks that both lengths agree. A packet is one field of bytes,
or, with ``decode=``, a sample of many; ``bins.json``, which we write beside them, says which and of what fields. Only
bins that lie directly in the folder count.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    RowError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.files import Files, IndexedFile
from shardex.formats.jsonl_lines import refuse_bytes, to_json
from shardex.formats.record_rows import PlacedRows
from shardex.formats.registry import Format
from shardex.formats.sample_writer import SampleWriter, ShardSeries
from shardex.kernel import MISSING, Columns, Integers, Ranges, take
from shardex.kernel import Bytes as Buffer
from shardex.schema import (
    JSON,
    MSGPACK,
    RAW,
    Bytes,
    Feature,
    Features,
    Text,
    check_fields,
    codec_by_name,
    infer_or_json,
    to_columns,
    to_sample,
)

__all__ = ["FORMAT", "BinRows", "BinTable", "BinWriter", "create", "open", "recognise"]

INDEX = "index.dat"
HEAD = "bins.json"
_BIN = re.compile(r"bin(\d{8,})\.dat")
_WIDTH, _PREFIX = 12, 4
_LARGEST = 1 << 32
_FLUSH = 64 << 20
_FIRST = 16
_TRIPLE = struct.Struct("<III")
_KINDS: dict[str, Feature] = {"raw": Bytes(), "text": Text()}


def recognise(files: Files) -> int:
    """A folder with ``index.dat`` and nothing but bins beside it."""
    beside = [path for path in files.having("").paths if "/" not in path]
    return 2 * (files.folder and INDEX in beside and all(p in (INDEX, HEAD) or _BIN.fullmatch(p) for p in beside))


def open(files: Files, *, schema: Features | None = None, decode: str | None = None) -> BinRows:
    """The packets of a folder; `decode` names a codec that makes values of them, if it is not the one they have."""
    if not files.folder or INDEX not in files.paths:
        raise UnknownFormatError(f"{files}: expected a folder with {INDEX}, got none")
    numbers = sorted((int(match[1]), path) for path in files.paths if (match := _BIN.fullmatch(path)))
    bins = Files(files.source, tuple(path for _, path in numbers), files.what, files.folder)
    table = BinTable(files, bins, np.array([number for number, _ in numbers], np.int64))
    written, fields = _head(files)
    told = Features.of(schema) if schema is not None else fields if decode in (None, written) else None
    return BinRows(bins, table, decode or written, told)


def _head(files: Files) -> tuple[str, Features | None]:
    """How packets were encoded and of what fields, if that was written down."""
    if HEAD not in files.paths:
        return "raw", None
    where = os.path.join(files.source.url, HEAD)
    try:
        head = JSON.decode(files.source.load(HEAD))
        return str(head["decode"]), Features.from_json(head["schema"])
    except (ShardexError, KeyError, TypeError) as error:
        raise FormatError(f"{where}: expected how the packets are encoded, got something else: {error}") from None


class BinTable:
    """Where packets lie, by ``index.dat``; `offset` and `length` are those of the bytes after the prefix."""

    def __init__(self, files: Files, bins: Files, numbers: Integers) -> None:
        self.name = os.path.join(files.source.url, INDEX)
        self._table = files.source.buffer_table((INDEX,))
        size = self._table.open(0).size
        if size % _WIDTH:
            raise FormatError(
                f"{self.name}: expected {_WIDTH} bytes for each packet, got {size} bytes, which end in a partial "
                f"record; cut it to {size // _WIDTH * _WIDTH} bytes to read the packets before it"
            )
        self._bins, self._numbers, self._tag = bins, numbers, files.source.stat(INDEX).tag
        self._starts: Integers = np.array([0, size // _WIDTH], np.int64)
        stats = zip(bins.paths, bins.stats(), strict=True)
        self.files = tuple(IndexedFile(path, stat.size, stat.tag, 0) for path, stat in stats)
        self._sizes: Integers = np.array([file.size for file in self.files], np.int64)
        self._place = {number: place for place, number in enumerate(numbers.tolist())}

    def __len__(self) -> int:
        return int(self._starts[1])

    @cached_property
    def fingerprint(self) -> str:
        """Names index and bins, their sizes and times."""
        files = [(file.path, file.size, file.tag) for file in self.files]
        return hashlib.sha256(repr((len(self), self._tag, files)).encode()).hexdigest()[:16]

    def file(self, rows: Integers) -> Integers:
        """The place of each row's bin among the bins."""
        return self.locate(rows)[0]

    def locate(
        self, rows: Integers, begin: str = "offset", length: str = "length"
    ) -> tuple[Integers, Integers, Integers]:
        """File, begin and length of each packet, checked against the bins."""
        out = np.empty((len(rows), 3), "<u4")
        take(self._table, self._starts, rows, _WIDTH, out)
        number, position, size = (column.astype(np.int64) for column in out.T)
        return self._checked(rows, number, position, size)

    def at(self, row: int, begin: str = "offset", length: str = "length") -> tuple[int, int, int]:
        """The same for one packet."""
        if not 0 <= row < len(self):
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        number, position, size = _TRIPLE.unpack(self._table.slice(0, row * _WIDTH, (row + 1) * _WIDTH).data)
        place = self._place.get(number, -1)
        if place < 0 or position + _PREFIX + size > self.files[place].size:
            self._checked(*(np.array([value]) for value in (row, number, position, size)))
        return place, position + _PREFIX, size

    def _checked(
        self, rows: Integers, number: Integers, position: Integers, size: Integers
    ) -> tuple[Integers, Integers, Integers]:
        place = np.searchsorted(self._numbers, number)
        known = place < len(self._numbers)
        known[known] = self._numbers[place[known]] == number[known]
        if not known.all():
            k = int(known.argmin())
            raise FormatError(
                f"{self.name}: expected one of {len(self._numbers)} bins, got bin {number[k]}, and there is no file "
                f"bin{number[k]:08d}.dat - at sample {rows[k]}; the bin is lost or the index damaged"
            )
        bad = position + _PREFIX + size > self._sizes[place]
        if bad.any():
            k = int(bad.argmax())
            raise TruncatedShardError(
                f"{self._bins.name(int(place[k]))}: expected bytes {position[k]} to {position[k] + _PREFIX + size[k]} "
                f"for sample {rows[k]}, got a file of {self._sizes[place[k]]} bytes; the bin is cut off or the index "
                "damaged"
            )
        return place, position + _PREFIX, size


class BinRows(PlacedRows):
    """Packets as samples: the field `data`, or the fields of the dicts that they decode to."""

    def __init__(self, files: Files, index: BinTable, decode: str, schema: Features | None) -> None:
        super().__init__(files, index)
        self._codec, self._kind, self._schema = codec_by_name(decode), _KINDS.get(decode), schema
        if schema is not None and self._kind is not None and list(schema.values()) != [self._kind]:
            raise SchemaError(f"expected one field of {self._kind} for decode={decode!r}, got {schema}")
        self._field = next(iter(schema)) if schema is not None and len(schema) == 1 else "data"
        self.in_python = self._codec is not RAW

    @cached_property
    def features(self) -> Features:
        """The schema given, or what the first packets look like."""
        if self._schema is not None:
            return self._schema
        if self._kind is not None:
            return Features({self._field: self._kind})
        rows = np.arange(min(len(self), _FIRST))
        return infer_or_json(self._samples(self.ranges(rows).bytes(), rows)) if len(rows) else Features({})

    @cached_property
    def _known(self) -> list[str]:
        return list(self.features)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """These packets."""
        names = self._names(fields)
        if not len(rows):
            return to_columns({n: [] for n in (self.features if names is None else names)}, 0, self.features, str)
        packets = self.ranges(rows).bytes()
        if self._codec is RAW:
            return Columns(dict.fromkeys(names or (), packets), len(rows))
        samples = self._samples(packets, rows)
        missing = None if self._schema is None else MISSING
        values: Mapping[str, Any] = (
            Columns.from_samples(samples).data
            if names is None
            else {name: [sample.get(name, missing) for sample in samples] for name in names}
        )
        return to_columns(values, len(rows), self._schema, lambda k: self._at(int(rows[k])))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One packet."""
        if fields is None and self._codec is RAW:
            return {self._field: self.record(row).tobytes()}
        names = self._names(fields)
        value = self._decode(self.record(row).tobytes(), row)
        sample = value if type(value) is dict else {self._field: value}
        return to_sample(sample, names, self._schema, lambda _: self._at(row))

    def ranges(self, rows: Integers, begin: str = "offset", length: str = "length") -> Ranges:
        """Where these packets lie, their prefixes checked."""
        found = super().ranges(rows, begin, length)
        prefixes, _ = Ranges(found.segments, found.which, found.begin - _PREFIX, np.full(len(rows), _PREFIX)).packed()
        wrong = prefixes.view("<u4") != found.length
        if wrong.any():
            k = int(wrong.argmax())
            self._refuse(int(rows[k]), int(prefixes.view("<u4")[k]), int(found.length[k]))
        return found

    def touched(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """The packets with their prefixes."""
        which, begin, length = self.index.locate(rows)
        return Ranges(self.data, which, begin - _PREFIX, length + _PREFIX)

    def record(self, row: int, begin: str = "offset", length: str = "length") -> Buffer:
        """The bytes of one packet, its prefix checked."""
        place, first, size = self.index.at(row)
        data = self.data.slice(place, first - _PREFIX, first + size)
        if (prefix := int.from_bytes(data[:_PREFIX], "little")) != size:
            self._refuse(row, prefix, size)
        return data[_PREFIX:]

    def _refuse(self, row: int, prefix: int, size: int) -> None:
        raise FormatError(
            f"{self.where(row)}: expected a packet of {size} bytes, as {INDEX} says, got the prefix {prefix} "
            f"- at sample {row}; the bin or the index is damaged"
        )

    def _at(self, row: int) -> str:
        return f"{self.where(row)}, sample {row}"

    def _names(self, fields: Sequence[str] | None) -> list[str] | None:
        if fields is None and self._schema is None and self._kind is None:
            return None
        return check_fields(self._known, fields)

    def _samples(self, packets: list[bytes], rows: Integers) -> list[dict[str, Any]]:
        values = [self._decode(packet, row) for packet, row in zip(packets, rows.tolist(), strict=True)]
        return [value if type(value) is dict else {self._field: value} for value in values]

    def _decode(self, packet: bytes, row: int) -> Any:
        try:
            return self._codec.decode(packet)
        except ShardexError as error:
            raise type(error)(f"{self._at(row)}: {error}") from None


# -- writing --------------------------------------------------------------------------------------------------


def create(
    path: str, features: Features, *, mode: str = "create", splits: int = 256, codec: str | None = None
) -> BinWriter:
    """Begin bins; one field of bytes is written as it is, other samples as MessagePack (or ``codec="json"``)."""
    if mode == "append":
        raise ArgumentError('expected mode "create" or "overwrite", got "append": bins cannot be appended to yet')
    return BinWriter(path, Features.of(features), mode, splits, codec)


class BinWriter(SampleWriter):
    """Writes packets to the bins in turn, as splitdataloader does; made by `create`."""

    def __init__(self, path: str, features: Features, mode: str, splits: int, codec: str | None) -> None:
        raw = list(features.values()) == [Bytes()]
        self._codec = codec or ("raw" if raw else "msgpack")
        if self._codec not in ("raw", "msgpack", "json") or (self._codec == "raw" and not raw):
            raise ArgumentError(f'expected codec="msgpack" or "json" (or "raw" for one field of bytes), got {codec!r}')
        if not 1 <= splits <= _LARGEST:
            raise ArgumentError(f"expected at least one split, got {splits}")
        if self._codec == "json":
            for name, feature in features.items():
                refuse_bytes(feature, name)
        owned = r"index\.dat|bins\.json|bin\d{8,}\.dat"
        super().__init__(path, mode, features, owned, publish_last=(HEAD, INDEX))
        self._splits = splits
        self._bins: dict[int, ShardSeries] = {}
        self._index = self._file(INDEX)
        self._waiting = 0
        """Bytes in the buffers of all files."""

    def _file(self, path: str) -> ShardSeries:
        return ShardSeries(self._stage, lambda _: path, buffer=2 * _FLUSH)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        if self._codec == "raw":
            (packet,) = sample.values()
            return bytes(packet)
        return to_json(sample) if self._codec == "json" else MSGPACK.encode(sample)

    def _store(self, record: bytes) -> None:
        number = self._samples % self._splits
        if (file := self._bins.get(number)) is None:
            file = self._bins[number] = self._file(f"bin{number:08d}.dat")
        position, length = file.size, len(record)
        if position + _PREFIX + length > _LARGEST:
            raise SchemaError(
                f"expected bins of at most {_LARGEST} bytes, got a packet of {length} for bin {number}, "
                f"which has {position} - at sample {self._samples}; write with more than {self._splits} splits"
            )
        if self._waiting >= _FLUSH:
            self._flush()
        file.write(length.to_bytes(_PREFIX, "little") + record)
        self._index.write(_TRIPLE.pack(number, position, length))
        self._waiting += length + _PREFIX + _WIDTH

    def _flush(self) -> None:
        for file in self._bins.values():
            if file.size:
                file.flush()
        self._index.flush()
        self._waiting = 0

    def _finish(self) -> None:
        self._flush()
        if self._codec != "raw":
            self._stage.place.put(HEAD, JSON.encode({"decode": self._codec, "schema": self._features.to_json()}))


FORMAT = Format("bins", recognise, open, create)
