"""WebDataset tars: consecutive files with one key make a sample, each extension a field.

The key of ``dir/000123.seg.json`` is ``dir/000123`` and its part ``seg.json``, as WebDataset has it: all up to the
first dot of the file's name, and all after it in lower case. A sample has the field `__key__` and one field per
part, decoded by its last extension (``json``, ``txt``, ``cls``, ``npy``, ``msgpack``; the rest stays bytes) or as
the schema says. Where the only part is ``msgpack`` (as atdata writes), the fields of that map are the fields.

Writing turns a field into the part ``name.ext``, because a tar tells nothing but names: ``history`` of arrays becomes
``history.npy``, and that is its name when it is read, unless the schema given to `open` calls it ``history``. As one
map per sample, fields keep their names, and only the schema tells which of the bytes in it are arrays.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import FormatError, NotFoundError, SchemaError
from shardex.files import Files, Index
from shardex.formats import tar_fields as parts
from shardex.formats.extracted_columns import Extraction
from shardex.formats.record_rows import RecordRows
from shardex.formats.registry import Format
from shardex.formats.tar_blocks import members, plain_name
from shardex.formats.tar_fields import Where
from shardex.formats.tar_members import KEY, TarScanner, TarWriter, check_end, keep_readable_part
from shardex.formats.tar_remote_headers import headers
from shardex.kernel import MISSING, Column, Columns, Integers, Ranges
from shardex.schema import (
    MSGPACK,
    Feature,
    Features,
    Json,
    Optional,
    Text,
    check_fields,
    infer_or_json,
    to_columns,
    to_sample,
)
from shardex.sources import Source

__all__ = ["FORMAT", "TarRows", "create", "one_file", "open", "recognise"]

_LOOK_AT = 16


def recognise(files: Files) -> int:
    """Whether there are tars among them."""
    return bool(files.having(".tar").paths)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    attributes: Sequence[str] | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
) -> TarRows:
    """The samples of these tars; `schema` says how to decode fields whose extension does not tell.

    `attributes` names keys of the JSON in samples whose values are taken out now, for SQL.
    """
    tars = files.having(".tar") if files.folder else files
    if not tars.paths:
        raise NotFoundError(errno.ENOENT, "expected a folder with .tar files, got one without", str(files))
    index = Index.of(tars, TarScanner(), rebuild=rebuild, progress=progress)
    rows = TarRows(tars, index, None if schema is None else Features.of(schema))
    if attributes or rebuild:
        rows.extraction.take(attributes or (), rebuild=rebuild, progress=progress)
    return rows


def one_file(source: Source, path: str) -> TarRows:
    """The samples of one tar, indexed in memory only."""
    files = Files(source, (path,), os.path.join(source.url, path))
    return TarRows(files, Index.in_memory(files, TarScanner()), None)


def create(
    path: str,
    features: Features,
    *,
    mode: str,
    shard_rows: int = 10_000,
    shard_size: int = 1 << 30,
    prefix: str = "shard",
    layout: str = "parts",
) -> TarWriter:
    """Begin a folder of tars, each with at most so many samples and bytes.

    With ``layout="msgpack"`` a sample is one member, a map of all its fields with arrays in the compact form.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from shardex.schema import Array; from shardex.files.find import find
    >>> out = create(folder, Features.of({"history": Array("float32", (2,)), "cls": int}), mode="create")
    >>> out.append({"history": [1, 2], "cls": 7}); out.close()
    >>> open(find(folder)).sample(0)
    {'__key__': '000000000', 'history.npy': array([1., 2.], dtype=float32), 'cls': 7}
    """
    return TarWriter(path, features, mode, shard_rows, shard_size, prefix, layout)


class TarRows(RecordRows):
    index: Index
    """The samples of some tars."""

    def __init__(self, files: Files, index: Index, schema: Features | None) -> None:
        super().__init__(files, index)
        self._schema = Features({} if schema is None else {n: f for n, f in schema.items() if n != KEY})
        offsets = [name for name in index.columns if name.endswith(".offset") and index.spans[name][1]]
        self.parts = [name.removesuffix(".offset") for name in offsets]
        self._flat = self.parts == ["msgpack"] and "msgpack" not in self._schema
        self._part_of = {} if self._flat else self._match_schema()
        self.extraction = Extraction(files, index.files, "tar")

    def _match_schema(self) -> dict[str, str | None]:
        """The part of each field: of its own name, or of the name that it would be written as."""
        found: dict[str, str | None] = {}
        for name, feature in self._schema.items():
            candidates = (name.lower(), parts.part_name(name, feature).lower())
            found[name] = next((part for part in candidates if part in self.parts), None)
            if found[name] is None and not isinstance(feature, Optional) and len(self):
                raise SchemaError(
                    f"{self.files}: expected the part {name!r}, got only {', '.join(self.parts)} in the tars"
                )
        field_of = {part: name for name, part in found.items()}
        ordered: dict[str, str | None] = {field_of.get(part, part): part for part in self.parts}
        return {**ordered, **found}

    @cached_property
    def features(self) -> Features:
        """`__key__` and the parts, or what the first maps hold."""
        if self._flat:
            first = np.arange(min(_LOOK_AT, len(self)))
            return Features({KEY: Text(), **infer_or_json(self._maps(first, self._where(first))), **self._schema})
        return Features({KEY: Text(), **{name: self._feature(name, part) for name, part in self._part_of.items()}})

    @cached_property
    def _names(self) -> list[str]:
        return list(self.features)

    def _feature(self, name: str, part: str | None) -> Feature:
        if part is None or name in self._schema:
            return self._schema[name]
        feature = parts.feature_of_part(part)
        return feature if self.index.spans[f"{part}.offset"][0] else Optional(feature)

    def location(self, row: int) -> str:
        """The file and the key of a row, for messages."""
        number, start, _ = self.index.at(row, "start", "start")
        return f"{self.files.name(number)}, sample {self._key(number, start)!r}"

    def _where(self, rows: Integers) -> Where:
        return lambda k: self.location(int(rows[k]))

    def needed_ranges(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """The parts of these fields, and the headers that the keys are in."""
        start = self.index.read("start", rows)  # refuses rows outside
        which = self.index.file(rows)
        places = [
            (which, start + self.index.read(f"{part}.offset", rows), self.index.read(f"{part}.length", rows))
            for part in self._parts_of(fields)
        ]
        if fields is None or KEY in fields:
            places.append((which, start, np.full(len(rows), 512)))
        return Ranges.concat(self.data, places)

    def _parts_of(self, fields: Sequence[str] | None) -> set[str]:
        """The parts that these fields lie in."""
        if self._flat:
            return set() if fields is not None and set(fields) <= {KEY} else {"msgpack"}
        return {part for name, part in self._part_of.items() if part and (fields is None or name in fields)}

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """One gather per part."""
        rows = np.asarray(rows, np.int64)
        names = check_fields(self._names, fields)
        start = self.index.read("start", rows)  # refuses rows outside
        which = self.index.file(rows) if len(self) else rows
        columns: dict[str, Column] = self._from_maps(rows, [n for n in names if n != KEY]) if self._flat else {}
        for name in names:
            if name == KEY:
                columns[name] = self._keys(which, start)
            elif name not in columns:
                columns[name] = self._column(name, rows, which, start)
        return Columns({name: columns[name] for name in names}, len(rows))

    def _column(self, name: str, rows: Integers, which: Integers, start: Integers) -> Column:
        feature, part = self.features[name], self._part_of[name]
        if part is None:
            return [None] * len(rows)
        return self._part(part, feature, rows, which, start)

    def _part(self, part: str, feature: Feature, rows: Integers, which: Integers, start: Integers) -> Column:
        offset, length = self.index.read(f"{part}.offset", rows), self.index.read(f"{part}.length", rows)
        present = offset != 0
        if present.all():
            return parts.column(Ranges(self.data, which, start + offset, length), part, feature, self._where(rows))
        if not isinstance(feature, Optional):
            raise self._lacking(int(rows[present.argmin()]), part)
        ranges = Ranges(self.data, which[present], (start + offset)[present], length[present])
        return parts.with_gaps(present, parts.column(ranges, part, feature, self._where(rows[present])))

    def _lacking(self, row: int, part: str) -> FormatError:
        return FormatError(
            f"{self.location(row)}: expected the part {part!r}, the sample has none; declare it optional"
        )

    def _keys(self, which: Integers, start: Integers) -> list[Any]:
        blocks = Ranges(self.data, which, start, np.full(len(start), 512)).bytes()
        files, starts = which.tolist(), start.tolist()
        return [self._key_in(block, files[k], starts[k]) for k, block in enumerate(blocks)]

    def _key(self, number: int, start: int) -> str:
        """The key of the sample whose first header lies there."""
        return self._key_in(self.data.slice(number, start, start + 512).tobytes(), number, start)

    def _key_in(self, block: bytes, number: int, start: int) -> str:
        name = plain_name(block)
        if name is None:
            data = headers(self.files.source, self.files.paths[number], self.data.open(number))
            name = next(members(data, self.files.name(number), start)).name
        return name[: name.find(".", name.rfind("/") + 1)]

    def _from_maps(self, rows: Integers, names: list[str]) -> dict[str, Column]:
        if not names:
            return {}
        maps, where = self._maps(rows, self._where(rows)), self._where(rows)
        typed = {n: [one.get(n, MISSING) for one in maps] for n in names if n in self._schema}
        plain = {n: [one.get(n) for one in maps] for n in names if n not in self._schema}
        declared = to_columns(typed, len(rows), self._schema, where)
        return {**declared.data, **to_columns(plain, len(rows), None, where).data}

    def _maps(self, rows: Integers, where: Where) -> list[dict[str, Any]]:
        if not len(rows):
            return []
        start = self.index.read("start", rows)  # refuses rows outside
        which = self.index.file(rows)
        offset, length = self.index.read("msgpack.offset", rows), self.index.read("msgpack.length", rows)
        views = Ranges(self.data, which, start + offset, length).views()
        return [_map(view, k, where) for k, view in enumerate(views)]

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One sample, without the arrays that many need."""
        names = check_fields(self._names, fields)
        number, at = self.index.values(row)
        if self._flat:
            return self._from_map(row, number, at, names)
        return {
            name: self._key(number, at["start"]) if name == KEY else self._value(name, row, number, at)
            for name in names
        }

    def values(self, rows: Integers, keys: Sequence[str]) -> dict[str, list[Any]]:
        """The values of these keys in the JSON of some samples; where several parts have one, in the first of them."""
        if self._flat:
            maps = self._maps(rows, self._where(rows))
            return {key: [one.get(key) for one in maps] for key in keys}
        which, start = self.index.file(rows), self.index.read("start", rows)
        found: dict[str, list[Any]] = {key: [None] * len(rows) for key in keys}
        for part in reversed([part for part in self.parts if parts.feature_of_part(part) == Json()]):
            for k, value in enumerate(self._part(part, Optional(Json()), rows, which, start)):
                if isinstance(value, dict):
                    for key in keys & value.keys():
                        found[key][k] = value[key]
        return found

    @property
    def extracted(self) -> Features:
        """The keys that were taken out; those that fields are called like stay fields."""
        return Features({key: f for key, f in self.extraction.features.items() if key not in self._names})

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """What was taken out, and of fields what is read."""
        return self.extraction.table(names, self.extracted, super().sql_columns)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which samples have the part of a field, as the index knows."""
        if name in self.extracted:
            return self.extraction.present(name)
        if self._flat:
            return super().present(name)
        if (part := self._part_of.get(name)) is None:
            return np.full(len(self), name == KEY)
        there: NDArray[np.bool_] = self.index.read(f"{part}.offset", np.arange(len(self))) != 0
        return there

    @cached_property
    def _decoders(self) -> dict[str, Callable[[memoryview], Any]]:
        return {name: parts.decoder(part, self.features[name]) for name, part in self._part_of.items() if part}

    def _value(self, name: str, row: int, number: int, at: dict[str, int]) -> Any:
        part = self._part_of[name]
        if part is not None and at[f"{part}.offset"]:
            return parts.value(self._decoders[name], self._view(part, number, at), part, lambda _: self.location(row))
        if part is not None and not isinstance(self.features[name], Optional):
            raise self._lacking(row, part)
        return None

    def _from_map(self, row: int, number: int, at: dict[str, int], names: list[str]) -> dict[str, Any]:
        one = _map(self._view("msgpack", number, at), 0, lambda _: self.location(row))
        declared = [name for name in names if name in self._schema]
        found = {**one, **to_sample(one, declared, self._schema, lambda _: self.location(row))}
        return {name: self._key(number, at["start"]) if name == KEY else found.get(name) for name in names}

    def _view(self, part: str, number: int, at: dict[str, int]) -> memoryview:
        begin = at["start"] + at[f"{part}.offset"]
        return self.data.slice(number, begin, begin + at[f"{part}.length"]).data


def _map(view: memoryview, k: int, where: Where) -> dict[str, Any]:
    one = parts.value(MSGPACK.decode, view, "msgpack", where, k)
    if not isinstance(one, dict) or not all(isinstance(name, str) for name in one):
        raise FormatError(f"expected a map with text as keys, got {type(one).__name__} - at {where(k)}, field msgpack")
    return one


FORMAT = Format(
    "tar", recognise, open, create, one_file=one_file, check_end=check_end, keep_readable_part=keep_readable_part
)
