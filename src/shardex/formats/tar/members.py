"""Finds (`TarScanner`, `TarKeys`) and writes (`TarWriter`) samples in tars by the rules of WebDataset; repairs tars.

This module deals with names and bytes of members; `fields` encodes and decodes the values.
"""

from __future__ import annotations

import os
import re
import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardex.errors import (
    ArgumentError,
    DuplicateKeyError,
    FormatError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnknownKeyError,
    UnsafeError,
)
from shardex.features import Features, Opaque, Optional, Struct, Text, codecs, contains
from shardex.files import Files, Index, Scan, find
from shardex.formats.sample_writer import SeriesWriter, ShardSeries
from shardex.formats.tar import fields as tar_fields
from shardex.formats.tar.blocks import (
    ADVICE,
    NPY_HEAD,
    SCHEMA,
    Member,
    MissingEndError,
    header,
    members_of,
    padding,
    shared_header,
    tar_series,
)
from shardex.formats.tar.remote_headers import header_bytes
from shardex.kernel import Integers
from shardex.sources import LocalSource, Source

if TYPE_CHECKING:
    from shardex.formats.tar import TarRows

KEY = "__key__"
OWNED = r".*\.tar"
"""Regular expression of the files of a dataset."""
LAYOUTS = ("parts", "msgpack")
"""How a sample is stored: one member for each field, or one member for all of them."""
_NO_SAMPLE = re.compile(r"__[^/]*__($|/)")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_MOST_EXTENSIONS = 256


@dataclass(frozen=True)
class TarScanner:
    """Finds the samples of a tar: where each begins, and offset (0 if there is none) and length of each field.

    With `read_truncated` a tar that was cut off has the samples before the cut.
    """

    read_truncated: bool = False
    in_python: bool = True

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return "tar 2 truncated" if self.read_truncated else "tar 2"

    def scan(self, source: Source, path: str) -> Scan:
        """Return `start`, and `.offset` (from there) and `.length` of each extension.

        `key` is a number that stands for the key, `schema` one for the schema in the tar, and `.header` one for the
        header of all `.npy` of an extension, if they are equal.
        """
        where, data = os.path.join(source.url, path), header_bytes(source, path)
        starts, rows, which, offsets, lengths, headers, keys = (array("q") for _ in range(7))
        numbers: dict[str, int] = {}
        seen: list[int] = []
        row, current, first, schema = -1, "", 0, b""
        shared: dict[str, bytes] = {}
        found, cuts = members_of(data, where, shared=shared), list[TruncatedShardError]()
        for name, start, begin, size in until_cut(found, cuts) if self.read_truncated else found:
            if (split := split_name(name, where)) is None:
                continue
            key, extension = split
            if key != current or row < 0:
                row, current, first = row + 1, key, start
                starts.append(start)
                keys.append(number_of(key.encode("utf-8", "surrogateescape")))
                if not row:
                    schema = shared.get(SCHEMA, b"")
            if (number := numbers.get(extension, -1)) < 0:
                number = _new_extension(extension, numbers, key, where)
                seen.append(-1)
            if seen[number] == row:
                raise FormatError(
                    f"{where}: expected each field of a sample once, got {extension!r} twice in sample {key!r}"
                )
            seen[number] = row
            rows.append(row)
            which.append(number)
            offsets.append(begin - first)
            lengths.append(size)
            headers.append(_npy_header_number(data, begin, size) if extension.endswith("npy") else 0)
        scan: Scan = {"start": np.array(starts), "key": np.array(keys)}
        if schema:
            scan["schema"] = np.full(len(starts), number_of(schema))
        scan |= _by_extension(numbers, len(starts), rows, which, offset=offsets, length=lengths, header=headers)
        return _without_partial_sample(scan, cuts[0]) if cuts else scan


def split_name(name: str, where: str) -> tuple[str, str] | None:
    """Split the name of a member into key and extension; None for members that WebDataset skips.

    >>> split_name("a.b/000.Seg.JSON", "x.tar"), split_name("__meta__/x.json", "x.tar"), split_name("README", "x.tar")
    (('a.b/000', 'seg.json'), None, None)
    """
    if name.startswith("/") or (".." in name and ".." in name.split("/")):
        raise UnsafeError(
            f"{where}: expected names that stay inside the tar, got {name!r}; pack it with relative names"
        )
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= 0 or dot == len(name) - 1 or (name.startswith("__") and _NO_SAMPLE.match(name)):
        return None
    if dot == base and "." in name[name.rfind("/", 0, base - 1) + 1 : base]:
        return None
    return name[:dot], name[dot + 1 :].lower()


def _new_extension(extension: str, numbers: dict[str, int], key: str, where: str) -> int:
    if extension == KEY or _NO_TEXT.search(extension):
        raise FormatError(f"{where}: expected an extension, got {extension!r} in sample {key!r}")
    if len(numbers) == _MOST_EXTENSIONS:
        raise FormatError(
            f"{where}: expected samples with the same fields, got more than {_MOST_EXTENSIONS} different ones, "
            f"such as {extension!r} in sample {key!r}; a key ends at its first dot: do your keys contain dots?"
        )
    return numbers.setdefault(extension, len(numbers))


def _by_extension(
    numbers: dict[str, int], count: int, rows: array[int], which: array[int], **columns: array[int]
) -> Scan:
    """Return these columns by extension, an entry per sample; `header` only where that of all members is equal."""
    row_of, arrays = np.array(rows), {name: np.array(column) for name, column in columns.items()}
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(np.array(which)[order], np.arange(len(numbers) + 1))
    scan: Scan = {}
    for extension, number in numbers.items():
        members = order[bounds[number] : bounds[number + 1]]
        for name, values in arrays.items():
            if name == "header":
                if (headers := values[members]).min() == headers.max() > 0:
                    scan[f"{extension}.{name}"] = np.full(count, headers[0])
                continue
            scan[f"{extension}.{name}"] = np.zeros(count, np.int64)
            scan[f"{extension}.{name}"][row_of[members]] = values[members]
    return scan


def number_of(data: bytes) -> int:
    """Return a number above 0 that differs for other bytes."""
    return xxhash.xxh3_64_intdigest(data) >> 1 | 1


def _npy_header_number(data: Any, begin: int, size: int) -> int:
    """Return the number of the header of a `.npy` member; 0 if it is unknown."""
    head = bytes(data[begin : begin + min(size, NPY_HEAD)])
    end = 10 + int.from_bytes(head[8:10], "little")
    return number_of(head[:end]) if head.startswith(codecs.NPY_MAGIC + b"\1") and end <= len(head) else 0


def record_of(data: Any, where: str) -> bytes:
    """Return the schema that is recorded at the beginning of a tar; empty if there is none."""
    shared: dict[str, bytes] = {}
    next(members_of(data, where, shared=shared), None)
    return shared.get(SCHEMA, b"")


# -- look-up by key ----------------------------------------------------------------------------------------------


class TarKeys:
    """Finds samples by `__key__`: the index has a number for each key, and keys of one number are compared."""

    key = KEY

    def __init__(self, rows: TarRows) -> None:
        self._tars = rows

    @cached_property
    def _sorted(self) -> tuple[Integers, Integers]:
        """The numbers of all keys in ascending order, and the row of each."""
        numbers = self._tars.index.read("key", np.arange(len(self._tars)))
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order

    def row_of(self, key: Any) -> int:
        """Return the row of one key; raise an error if there is none, or more than one."""
        return int(self.rows_of([key])[0])

    def rows_of(self, keys: Any) -> Integers:
        """Return the row of each key."""
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray):
            raise ArgumentError(f"expected a list or an array of keys, got {type(keys).__name__}")
        wanted = [key if isinstance(key, str) else "" for key in keys]
        numbers = np.array([number_of(key.encode("utf-8", "surrogateescape")) for key in wanted], np.int64)
        known, order = self._sorted
        first, end = (np.searchsorted(known, numbers, side) for side in ("left", "right"))
        candidates = [order[a:b] for a, b in zip(first.tolist(), end.tolist(), strict=True)]
        found = iter(self._tars.read(np.concatenate([order[:0], *candidates]), [KEY])[KEY])
        same = [
            [row for row in rows.tolist() if next(found) == key] for rows, key in zip(candidates, keys, strict=True)
        ]
        for key, rows in zip(keys, same, strict=True):
            if not rows:
                raise UnknownKeyError(f"{self._tars.files}: expected the __key__ of a sample, got {key!r:.200}")
            if len(rows) > 1:
                places = " and ".join(self._tars.location(row) for row in rows[:2])
                raise DuplicateKeyError(f"expected one sample with the key {key!r:.200}, got {len(rows)}: {places}")
        return np.array([rows[0] for rows in same], np.int64)


# -- damaged tars -------------------------------------------------------------------------------------------------

TRUNCATED = ("error", "warn")
"""Values of the option `truncated`: what happens when a tar was cut off."""


def check_truncated(truncated: str) -> bool:
    """Return whether truncated tars are read; raise an error if the option has another value."""
    if truncated not in TRUNCATED:
        raise ArgumentError(f"expected truncated to be one of {', '.join(TRUNCATED)}, got {truncated!r}")
    return truncated == "warn"


def until_cut(found: Iterator[Member], cuts: list[TruncatedShardError]) -> Iterator[Member]:
    """Yield the members of a tar up to the place where it was cut off; the error is added to `cuts`."""
    try:
        yield from found
    except TruncatedShardError as error:
        cuts.append(error)


def _without_partial_sample(scan: Scan, cut: TruncatedShardError) -> Scan:
    """Leave out the last sample of a tar that was cut off, unless the cut is after a sample that looks complete.

    It looks complete if it has each field that all the others have; the only sample never does.
    """
    fields = [column for name, column in scan.items() if name.endswith(".offset")]
    lacks_field = any(column[:-1].all() and not column[-1] for column in fields)
    is_partial = lacks_field or len(scan["start"]) < 2 or not isinstance(cut, MissingEndError)
    return {name: column[:-1] for name, column in scan.items()} if is_partial else scan


def check_end(source: Source, path: str) -> None:
    """Raise an error for a tar without the zeros at its end: it was cut off, its last sample may lack a field."""
    if path.lower().endswith(".tar"):
        for _ in members_of(header_bytes(source, path), os.path.join(source.url, path)):
            pass


def warn_if_truncated(files: Files, starts: Mapping[int, int]) -> None:
    """Warn about tars that were cut off; `starts` has the offset of a late header of each file by its number."""

    def cut_of(number: int) -> list[TruncatedShardError]:
        cuts: list[TruncatedShardError] = []
        data = header_bytes(files.source, files.paths[number])
        for _ in until_cut(members_of(data, files.name(number), starts[number]), cuts):
            pass
        return cuts

    cuts = [cut for found in files.source.for_each(cut_of, starts) for cut in found]
    if cuts:
        more = f" (and {len(cuts) - 1} more files)" if len(cuts) > 1 else ""
        warnings.warn(f"{str(cuts[0]).removesuffix(ADVICE)}; what is left is read{more}", stacklevel=5)


def keep_readable_part(path: str) -> bool:
    """Replace a damaged tar (or the link to it) by a copy of its readable samples.

    The last one is left out if it may lack fields. Returns False, and changes nothing, if no sample is left.
    """
    data, starts = _mapped(path), list[int]()
    with suppress(ShardexError):
        key = None
        for member in members_of(data, path):
            if (split := split_name(member.name, path)) is not None and split[0] != key:
                key = split[0]
                starts.append(member.start)
    with suppress(ShardexError):
        scan = TarScanner(read_truncated=True).scan(LocalSource(os.path.dirname(path)), os.path.basename(path))
        if len(scan["start"]) == len(starts):
            starts.append(len(data))
    if end := starts[-1] if len(starts) > 1 else 0:
        os.unlink(path)
        with open(path, "xb") as out:
            out.write(data[:end])
            out.write(bytes(-end % 512 + 1024))
    return end > 0


def _mapped(path: str) -> memoryview:
    return LocalSource(os.path.dirname(path)).map(os.path.basename(path))


# -- writing ------------------------------------------------------------------------------------------------------


class TarWriter(SeriesWriter):
    """Writes samples as members of ``shard-000000.tar`` and so on.

    Each tar begins with a global pax header that holds the schema, if the names of members do not tell it. With
    ``layout="msgpack"`` a sample is one member: a map of all its fields, with arrays in the compact form.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from shardex.features import Array; from shardex.formats import open_rows
    >>> out = TarWriter(folder, Features.of({"history": Array("float32", (2,)), "cls": int}), mode="create")
    >>> out.append({"history": [1, 2], "cls": 7}); out.close()
    >>> open_rows(folder).sample(0)
    {'__key__': '000000000', 'history': array([1., 2.], dtype=float32), 'cls': 7}
    """

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str,
        shard_rows: int = 10_000,
        shard_size: int = 1 << 30,
        prefix: str = "shard",
        layout: str = "parts",
    ) -> None:
        if layout not in LAYOUTS:
            raise ArgumentError(f"expected a layout out of {', '.join(LAYOUTS)}, got {layout!r}")
        fields = Features({name: feature for name, feature in features.items() if name != KEY})
        self._as_map = layout == "msgpack"
        self._extensions = _check_map_fields(fields) if self._as_map else _extensions_of(fields)
        self._told = fields
        if self._as_map and fields:
            self._told = Features({"msgpack": Struct(dict(fields))})
        self._record = tar_fields.to_record(self._told, self._extensions | {"msgpack": "msgpack"})
        features = Features({**fields, KEY: Optional(Text())})
        options: Any = {"prefix": prefix, "extension": ".tar", "rows": shard_rows, "size": shard_size, "digits": 6}
        super().__init__(path, mode, features, OWNED, **options)
        self._first_key: int | None = None
        self._last_key: str | None = None

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        begin = shared_header(self._record) if self._record else b""
        return tar_series(self._stage, name, first, rows=rows, size=size, begin=begin)

    def _check_existing(self) -> None:
        place = LocalSource(self.path)
        for path in self._stage.existing if self._told else ():
            if path.lower().endswith(".tar"):
                where = place.full_name(path)
                known, _ = tar_fields.from_record(record_of(place.load(path), where), where)
                if known and ("msgpack" in known) != self._as_map:
                    layouts = LAYOUTS if self._as_map else LAYOUTS[::-1]
                    raise SchemaError(
                        "{}: expected layout={!r} to append to this tar, got {!r}".format(where, *layouts)
                    )
                tar_fields.joined(known, self._told, where)

    def _finish(self) -> None:
        if not self._samples:  # other readers expect a member after a global header
            self._record, path = b"", self._shards.path
            self._shards = self._series(lambda _: path, 0, 1, 0)
        super()._finish()

    def _encode(self, sample: Mapping[str, Any]) -> tuple[str, bytes]:
        fields = dict(sample)
        key = self._key(fields.pop(KEY))
        blocks = b"".join(self._members(key, fields))
        if not blocks:
            raise SchemaError(f"expected a sample with at least one field, got none for key {key!r}")
        return key, blocks

    def _store(self, record: tuple[str, bytes]) -> None:
        key, blocks = record
        self._shards.write(blocks)
        self._last_key = key

    def _members(self, key: str, sample: dict[str, Any]) -> Iterator[bytes]:
        """Encode the fields that are present as one member each, or all of them as one map."""
        if self._as_map:
            yield self._member(key, "msgpack", codecs.MSGPACK.encode(sample))
            return
        for name, value in sample.items():
            if value is not None or not self._features[name].optional:
                extension = self._extensions[name]
                yield self._member(key, extension, self._encoded(value, name, extension))

    def _encoded(self, value: Any, name: str, extension: str) -> bytes:
        try:
            return self._features[name].to_file(value, extension)
        except SchemaError as error:
            raise SchemaError(f"field {name}: {error}") from None

    def _member(self, key: str, extension: str, data: bytes) -> bytes:
        member = f"{key}.{extension}"
        if not _reads_back(key, extension):
            raise SchemaError(f"expected a key and a field name that are read back, got {member!r}")
        return header(member, len(data)) + data + padding(len(data))

    def _key(self, given: str | None) -> str:
        key = self._next_key() if given is None else given
        if _NO_TEXT.search(key) or not _reads_back(key, "x"):
            raise SchemaError(f"expected a key that is a relative name without dots, got {key!r}")
        if key == self._last_key:
            raise SchemaError(f"expected a different key for each sample, got {key!r} again")
        return key

    def _next_key(self) -> str:
        if self._first_key is None:
            tars = [path for path in self._stage.existing if path.lower().endswith(".tar")]
            self._first_key = len(Index.of(find(self.path).having(".tar"), TarScanner())) if tars else 0
        return f"{self._first_key + self._samples:09d}"


def _check_map_fields(features: Features) -> dict[str, str]:
    """Return the extension msgpack for all fields; no field may be called msgpack, which means the map."""
    for field, feature in features.items():
        if contains(feature, Opaque) or field == "msgpack":
            raise SchemaError(
                f"expected a field that can be written as part of a map, got {feature} - at field {field}"
            )
    return dict.fromkeys(features, "msgpack")


def _extensions_of(features: Features) -> dict[str, str]:
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for field, feature in features.items():
        extension = names[field] = tar_fields.extension_of(field, feature)
        if "/" in extension or _NO_TEXT.search(extension):
            raise SchemaError(f"expected a field name that can be a file extension, got {field!r}")
        if (other := taken.setdefault(extension.lower(), field)) != field:
            raise SchemaError(
                f"expected fields with different names, got {other!r} and {field!r}, both read as {extension.lower()!r}"
            )
    return names


def _reads_back(key: str, extension: str) -> bool:
    """Return True if a member of this name is read back with the same key and extension.

    >>> [_reads_back(key, "txt") for key in ("a/0", "./0", "a.b", "../a", "/a", "", "__a__/0")]
    [True, True, False, False, False, False, False]
    """
    try:
        return split_name(f"{key}.{extension}", "") == (key, extension.lower())
    except UnsafeError:
        return False
