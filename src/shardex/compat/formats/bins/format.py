"""Packets in numbered bins, as splitdataloader stores them: ``index.dat``, ``bin00000000.dat`` and so on.

The index is mapped and used in place: bin, position and length of each packet, three little-endian uint32. A packet is
its length again, then its bytes; each read checks that both lengths agree. A packet is one field of bytes or, with
``decode=``, a sample of several fields; ``bins.json``, which shardex writes next to the bins, stores the codec and the
schema. Only bins directly in the folder are read.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Bytes, Feature, Features, Text, codecs
from shardex.files import Files, find
from shardex.formats import DictRows, Format, JoinShards, JsonEncoder, MakeDecoder, MappedIndex, SampleWriter
from shardex.kernel import Bytes as Buffer
from shardex.kernel import Columns, Integers, Ranges

INDEX = "index.dat"
HEAD = "bins.json"
_OWNED = r"index\.dat|bins\.json|bin\d{8,}\.dat"
_BIN = re.compile(r"bin(\d{8,})\.dat")
_PREFIX = 4
"""Bytes of the length before each packet."""
_LARGEST = 1 << 32
_FLUSH = 64 << 20
"""Bytes that are buffered for all bins together."""
_TRIPLE = struct.Struct("<III")
_FEATURES: dict[str, Feature] = {"raw": Bytes(), "text": Text()}
_DECODERS: dict[str, MakeDecoder] = {
    "json": lambda kind: msgspec.json.Decoder(kind).decode,
    "msgpack": lambda kind: msgspec.msgpack.Decoder(kind).decode,
}


def recognise(files: Files) -> int:
    """Recognise a folder with ``index.dat`` in which all other files are bins."""
    names = [path for path in files.having("").paths if "/" not in path]
    return 2 * (files.folder and INDEX in names and all(p in (INDEX, HEAD) or _BIN.fullmatch(p) for p in names))


def open(files: Files, *, schema: Features | None = None, decode: str | None = None) -> BinRows:
    """Open the packets of a folder; `decode` names the codec of the packets, by default that in ``bins.json``."""
    if not files.folder or INDEX not in files.paths:
        raise UnknownFormatError(f"{files}: expected a folder with {INDEX}, got none")
    numbers = sorted((int(match[1]), path) for path in files.paths if (match := _BIN.fullmatch(path)))
    bins = Files(files.source, tuple(path for _, path in numbers), files.what, files.folder)
    index = BinIndex(files, bins, np.array([number for number, _ in numbers], np.int64))
    codec, stored = _read_head(files)
    features = Features.of(schema) if schema is not None else stored if decode in (None, codec) else None
    return BinRows(bins, index, decode or codec, features)


def _read_head(files: Files) -> tuple[str, Features | None]:
    """Return codec and schema of the packets from ``bins.json``, if there is one."""
    if HEAD not in files.paths:
        return "raw", None
    name = os.path.join(files.source.url, HEAD)
    try:
        head = codecs.JSON.decode(files.source.load(HEAD))
        return str(head["decode"]), Features.from_json(head["schema"])
    except (ShardexError, KeyError, TypeError) as error:
        raise FormatError(f"{name}: expected codec and schema of the packets, got something else: {error}") from None


class BinIndex(MappedIndex):
    """Locations of packets, by ``index.dat``; offset and length are those of the bytes after the prefix."""

    def __init__(self, files: Files, bins: Files, numbers: Integers) -> None:
        super().__init__(files.source.full_name(INDEX), files.source.buffer_table((INDEX,)), "I", bins)
        self._numbers, self._stamp = numbers, (len(self), files.source.stat(INDEX).tag)
        self._file_of_bin = {number: file for file, number in enumerate(numbers.tolist())}

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one packet, checked against the bin."""
        number, position, size = self._entry(row)
        file = self._file_of_bin.get(number, -1)
        if file < 0 or position + _PREFIX + size > self.files[file].size:
            self._checked(*(np.array([value]) for value in (row, number, position, size)))
        return file, position + _PREFIX, size

    def _checked(self, rows: Integers, *entries: Integers) -> tuple[Integers, Integers, Integers]:
        number, position, size = entries
        file = np.searchsorted(self._numbers, number)
        known = file < len(self._numbers)
        known[known] = self._numbers[file[known]] == number[known]
        if not known.all():
            k = int(known.argmin())
            raise FormatError(
                f"{self.name}: expected one of {len(self._numbers)} bins, got bin {number[k]}, and there is no file "
                f"bin{number[k]:08d}.dat - at sample {rows[k]}; the bin is lost or the index damaged"
            )
        bad = position + _PREFIX + size > self._sizes[file]
        if bad.any():
            k = int(bad.argmax())
            raise TruncatedShardError(
                f"{self._data.name(int(file[k]))}: expected bytes {position[k]} to {position[k] + _PREFIX + size[k]} "
                f"for sample {rows[k]}, got a file of {self._sizes[file[k]]} bytes; the bin is cut off or the index "
                "damaged"
            )
        return file, position + _PREFIX, size


class BinRows(DictRows):
    """Packets as samples: the field `data`, or the fields of the dicts that they decode to."""

    _decode_errors = (ShardexError,)

    def __init__(self, files: Files, index: BinIndex, decode: str, schema: Features | None) -> None:
        codec, feature = codecs.codec_by_name(decode), _FEATURES.get(decode)
        if feature is not None:
            schema = Features({"data": feature}) if schema is None else schema
            if list(schema.values()) != [feature]:
                raise SchemaError(f"expected one field of {feature} for decode={decode!r}, got {schema}")
        field = next(iter(schema)) if schema is not None and len(schema) == 1 else "data"
        super().__init__(files, index, schema, field, "bins")
        self._decode, self._raw = codec.decode, codec is codecs.RAW
        self._make_decoder = _DECODERS.get(decode)
        self.in_python = not self._raw

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these packets; bytes are not decoded."""
        if not self._raw or not len(rows):
            return super().read(rows, fields)
        return Columns(dict.fromkeys(self._checked(fields) or (), self.ranges(rows).bytes()), len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one packet."""
        if fields is None and self._raw:
            return {self._value_field: self.record(row).tobytes()}
        return super().sample(row, fields)

    def ranges(self, rows: Integers) -> Ranges:
        """Return the byte ranges of these packets, their prefixes checked."""
        found = super().ranges(rows)
        prefixes, _ = Ranges(found.segments, found.which, found.begin - _PREFIX, np.full(len(rows), _PREFIX)).packed()
        wrong = prefixes.view("<u4") != found.length
        if wrong.any():
            k = int(wrong.argmax())
            self._refuse(int(rows[k]), int(prefixes.view("<u4")[k]), int(found.length[k]))
        return found

    def rows_by_bin(self) -> list[Integers]:
        """Return the rows of each bin that has packets, in the order of their bytes in it.

        A loop over these rows reads the files from beginning to end.
        """
        which, begin, _ = self.index.locate(np.arange(len(self)))
        order = np.lexsort((begin, which))
        return np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(self) else []

    def needed_ranges(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """Return the byte ranges of packets with their prefixes."""
        which, begin, length = self.index.locate(rows)
        return Ranges(self.data, which, begin - _PREFIX, length + _PREFIX)

    def record(self, row: int) -> Buffer:
        """Return the bytes of one packet, its prefix checked."""
        file, first, size = self.index.at(row)
        data = self.data.slice(file, first - _PREFIX, first + size)
        if (prefix := int.from_bytes(data[:_PREFIX], "little")) != size:
            self._refuse(row, prefix, size)
        return data[_PREFIX:]

    def _refuse(self, row: int, prefix: int, size: int) -> None:
        raise FormatError(
            f"{super().location(row)}: expected a packet of {size} bytes, as {INDEX} says, got the prefix {prefix} "
            f"- at sample {row}; the bin or the index is damaged"
        )

    def location(self, row: int) -> str:
        """File and number of a packet, for error messages."""
        return f"{super().location(row)}, sample {row}"

    def _decode_or_explain(self, record: bytes, row: int) -> Any:
        try:
            return self._decode(record)
        except ShardexError as error:
            if row < 0:  # the scan of all keys skips the packet
                raise
            raise type(error)(f"{self.location(row)}: {error}") from None


# -- writing --------------------------------------------------------------------------------------------------


def create(
    path: str,
    features: Features,
    *,
    mode: str = "create",
    splits: int | Sequence[int] = 256,
    codec: str | None = None,
) -> BinWriter:
    """Return a writer of bins. A single field of bytes is written unchanged, other samples as MessagePack or JSON.

    Packets are written to the bins in turn; `splits` is their number, or their numbers in the order of their turns.
    """
    return BinWriter(path, Features.of(features), mode, splits, codec)


class BinWriter(SampleWriter):
    """Writes packets to the bins in turn, as splitdataloader does; `create` makes one.

    `owned` matches the files that mode "overwrite" may remove.
    """

    def __init__(
        self,
        path: str,
        features: Features,
        mode: str = "create",
        splits: int | Sequence[int] = 256,
        codec: str | None = None,
        *,
        owned: str = _OWNED,
    ) -> None:
        raw = list(features.values()) == [Bytes()]
        self._codec = codec or ("raw" if raw else "msgpack")
        if self._codec not in ("raw", "msgpack", "json") or (self._codec == "raw" and not raw):
            raise ArgumentError(f'expected codec="msgpack" or "json" (or "raw" for one field of bytes), got {codec!r}')
        self._turns = range(splits) if isinstance(splits, int) else splits
        if not len(self._turns) or not (min(self._turns) >= 0 and max(self._turns) < _LARGEST):
            raise ArgumentError(f"expected at least one split, got {splits}")
        self._pack = JsonEncoder(features) if self._codec == "json" else codecs.MSGPACK.encode
        super().__init__(path, mode, features, owned, publish_last=(HEAD, INDEX))
        self._before = self._existing_bins()
        """Bytes of each bin that is appended to; others may be added to them before the new ones are published."""
        self._packets: dict[int, list[bytes]] = {}
        self._entries: list[bytes] = []
        self._buffered = 0
        """Bytes of all packets and index entries that are not written yet."""
        self._sizes: dict[int, int] = {}
        """New bytes of each bin, buffered ones included."""
        self._written: dict[str, int] = {}
        """Bytes in each file."""

    def _existing_bins(self) -> dict[int, int]:
        """Return the bytes of each bin in mode "append"; its packets must have the codec and schema of this writer."""
        if INDEX not in self._stage.existing:
            return {}
        files = find(self.path)
        codec, schema = _read_head(files)
        if codec != self._codec or (schema is not None and schema != self._features):
            fields = "" if schema is None else f", fields {schema}"
            raise SchemaError(
                f"{self.path}: expected packets as those that exist: codec {codec!r}{fields}, "
                f"got codec {self._codec!r}, fields {self._features}; pass codec= and a schema"
            )
        return {int(file.path[3:-4]): file.size for file in open(files).index.files}

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        if self._codec == "raw":
            (packet,) = sample.values()
            return bytes(packet)
        return self._pack(sample)

    def _store(self, record: bytes) -> None:
        number, length = self._turns[self._samples % len(self._turns)], len(record)
        position = self._sizes.get(number, 0)
        end = position + _PREFIX + length
        if end + self._before.get(number, 0) > _LARGEST:
            has = position + self._before.get(number, 0)
            raise SchemaError(
                f"expected bins of at most {_LARGEST} bytes, got a packet of {length} for bin {number}, "
                f"which has {has} - at sample {self._samples}; write with more than {len(self._turns)} splits"
            )
        if self._buffered >= _FLUSH:
            self._flush()
        self._packets.setdefault(number, []).append(length.to_bytes(_PREFIX, "little") + record)
        self._entries.append(_TRIPLE.pack(number, position, length))
        self._sizes[number] = end
        self._buffered += length + _PREFIX + _TRIPLE.size

    def _flush(self) -> None:
        for number in sorted(self._packets):
            self._write(_bin_name(number), self._packets[number])
            del self._packets[number]
        self._write(INDEX, self._entries)
        self._entries, self._buffered = [], 0

    def _write(self, path: str, pieces: list[bytes]) -> None:
        self._written[path] = self._stage.append(path, pieces, self._written.get(path, 0))

    def _publish(self) -> None:
        self._finish()
        if self._stage.mode == "append":
            self._stage.extend(INDEX, _moved)
        else:
            self._stage.publish()

    def _finish(self) -> None:
        self._flush()
        if self._codec != "raw" and HEAD not in self._stage.existing:
            self._stage.place.put(HEAD, codecs.JSON.encode({"decode": self._codec, "schema": self._features.to_json()}))


def _moved(entries: bytes, sizes: Mapping[str, int]) -> bytes:
    """Return the index entries of new packets, each behind the bytes that its bin has already."""
    moved = np.frombuffer(entries, "<u4").reshape(-1, 3).astype(np.int64)
    numbers, which = np.unique(moved[:, 0], return_inverse=True)
    moved[:, 1] += np.array([sizes[_bin_name(number)] for number in numbers.tolist()], np.int64)[which]
    ends = moved[:, 1] + _PREFIX + moved[:, 2]
    if len(ends) and ends.max() > _LARGEST:
        raise SchemaError(
            f"expected bins of at most {_LARGEST} bytes, got {ends.max()} for bin {moved[ends.argmax(), 0]}; "
            "write with more splits"
        )
    return moved.astype("<u4").tobytes()


def _bin_name(number: int) -> str:
    return f"bin{number:08d}.dat"


_join = JoinShards(_OWNED, ".dat", publish_last=(HEAD, INDEX))
FORMAT = Format(open, create, _join, part_format="arrow")
