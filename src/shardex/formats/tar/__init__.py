"""WebDataset tars: consecutive members with the same key are one sample, each extension is a field.

The key of ``dir/000123.seg.json`` is ``dir/000123``, its extension ``seg.json``, as in WebDataset: the key ends at the
first dot of the file's name, the rest is the extension in lower case. A sample has the field `__key__` and one field
per extension, decoded by the last part of it (``json``, ``txt``, ``cls``, ``npy``, ``npz``, ``msgpack``, images, audio
and video; others stay bytes) or as the schema says: ``schema={"jpg": bytes}`` keeps bytes. If ``msgpack`` is the only
extension (as atdata writes), the fields of that map are the fields.

A field is written with the extension ``name.type``, as others expect it: an array ``history`` becomes ``history.npy``.
The schema in a global pax header at the beginning of the tar says that it is called ``history``; in tars of other
writers, the schema given to `open` may say so. With ``layout="msgpack"`` fields keep their names, and only the schema
determines which bytes are arrays.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import FormatError, NotFoundError, SchemaError
from shardex.features import (
    Array,
    Feature,
    Features,
    Json,
    Media,
    Optional,
    Struct,
    Text,
    codecs,
    conversions,
    unwrap_optional,
)
from shardex.files import Files, Index
from shardex.formats.extracted_columns import ExtractedRows, Extraction
from shardex.formats.join_shards import JoinShards
from shardex.formats.record_fields import (
    MAX_KEYS,
    KeyScan,
    RecordFields,
    float_fields,
    inferred_column,
    integers_to_floats,
    record_fields,
    refuse_misfit,
)
from shardex.formats.registry import DamagedFiles, Format
from shardex.formats.tar import fields
from shardex.formats.tar import fields as tar_fields
from shardex.formats.tar.blocks import (
    BLOCK,
    end_of_tar,
    header,
    is_header_of,
    members_of,
    padding,
    plain_name,
    tar_series,
)
from shardex.formats.tar.fields import Where
from shardex.formats.tar.members import (
    KEY,
    OWNED,
    TarKeys,
    TarScanner,
    TarWriter,
    check_end,
    check_truncated,
    keep_readable_part,
    record_of,
    until_cut,
    warn_if_truncated,
)
from shardex.formats.tar.remote_headers import header_bytes
from shardex.kernel import MISSING, Bytes, Column, Columns, Integers, Ranges, Segments
from shardex.rows import media_in
from shardex.sources import Source, compression
from shardex.workers import ExecutorLike

__all__ = [
    "BLOCK",
    "FORMAT",
    "check_end",
    "check_truncated",
    "end_of_tar",
    "fields",
    "header",
    "header_bytes",
    "is_header_of",
    "members_of",
    "padding",
    "tar_series",
    "until_cut",
    "warn_if_truncated",
]

_LONGEST_HEADER = 64 << 10
"""Maximum bytes that are fetched to read a key."""


def open(
    files: Files,
    *,
    schema: Features | None = None,
    attributes: Sequence[str] | None = None,
    truncated: str = "error",
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> TarRows:
    """Open the samples of these tars; `schema` gives the types of fields that their extension does not determine.

    `attributes` names keys of the JSON in samples whose values are extracted now into columns for SQL. A tar that was
    cut off raises an error; with ``truncated="warn"`` there is a warning, and the samples before the cut are read.
    """
    read_truncated = check_truncated(truncated)
    tars = files.having(".tar") if files.folder else files
    if packed := [path for path in files.paths if compression.tar_name(path) not in (None, *tars.paths)]:
        where = files.source.full_name(packed[0])
        raise FormatError(f"{where}: expected plain tars, got a compressed one; {compression.COMPRESSED_TAR}")
    if not tars.paths:
        raise NotFoundError(errno.ENOENT, "expected a folder with .tar files, got one without", str(files))
    index = Index.of(
        tars, TarScanner(read_truncated), rebuild=rebuild, progress=progress, workers=workers, executor=executor
    )
    if read_truncated:
        warn_if_truncated(tars, _last_starts(index))
    rows = TarRows(tars, index, None if schema is None else Features.of(schema))
    if attributes or rebuild:
        rows.extraction.extract(
            attributes or (), rebuild=rebuild, progress=progress, workers=workers, executor=executor
        )
    return rows


def _last_starts(index: Index) -> dict[int, int]:
    """Return the offset of the last sample of each file; 0 for files without samples."""
    ends = dict(zip(index.file_of_block.tolist(), index.starts[1:].tolist(), strict=True))
    starts = index.read("start", np.array([end - 1 for end in ends.values()], np.int64)).tolist()
    return {**dict.fromkeys(range(len(index.files)), 0), **dict(zip(ends, starts, strict=True))}


def one_file(source: Source, path: str) -> TarRows:
    """Open the samples of one tar, indexed in memory only."""
    files = Files(source, (path,), os.path.join(source.url, path))
    return TarRows(files, Index.in_memory(files, TarScanner(read_truncated=True)), None)


class TarRows(ExtractedRows):
    """Samples of tars."""

    index: Index

    def __init__(self, files: Files, index: Index, schema: Features | None) -> None:
        super().__init__(files, index)
        self._schema = Features({} if schema is None else {n: f for n, f in schema.items() if n != KEY})
        offsets = [name for name in index.columns if name.endswith(".offset") and index.spans[name][1]]
        self.extensions = [name.removesuffix(".offset") for name in offsets]
        self._as_map = self.extensions == ["msgpack"] and "msgpack" not in self._schema
        self._recorded, self._order = self._recorded_schema()
        self._is_typed = index.spans.get("schema", (0, 0))[0] > 0
        """True if all tars have a recorded schema: otherwise some values may be only as their extension says."""
        if self._as_map and self._is_typed and isinstance(recorded := self._recorded.get("msgpack"), Struct):
            self._schema = Features({**recorded.fields, **self._schema})
        self._extension_of = {} if self._as_map else self._match_schema()
        declared = {name: tar_fields.as_member(one, self._extension_of.get(name)) for name, one in self._schema.items()}
        self._schema = Features(declared)
        self.extraction = Extraction(files, index.files, "tar")
        self.key_lookup = TarKeys(self)

    def _recorded_schema(self) -> tuple[Features, list[str]]:
        """Return the features that the writer has recorded in the tars, and the names of fields in their order."""
        if not self.index.spans.get("schema", (0, 0))[1]:
            return Features({}), []
        records = self.index.read("schema", self.index.starts[:-1]).tolist()
        file_with = dict(zip(reversed(records), reversed(self.index.file_of_block.tolist()), strict=True))
        found: Features | None = None
        names: list[str] = []
        for file in sorted(file for record, file in file_with.items() if record):
            where = self.files.name(file)
            more, ordered = tar_fields.from_record(record_of(_FileBytes(self.data, file), where), where)
            names += ordered
            found = more if found is None else tar_fields.joined(found, more, where, self._schema)
        assert found is not None
        return found, list(dict.fromkeys(names))

    def _match_schema(self) -> dict[str, str | None]:
        """Return the extension of each field: its name, or the extension that it would be written with."""
        written = {name: tar_fields.extension_of(name, feature).lower() for name, feature in self._recorded.items()}
        found: dict[str, str | None] = {}
        for name, feature in self._schema.items():
            known = [written[name]] if name in written else tar_fields.candidates(name, feature)
            found[name] = next((extension for extension in known if extension in self.extensions), None)
            if found[name] is None and not feature.optional and len(self):
                raise SchemaError(
                    f"{self.files}: expected the field {name!r}, got only {', '.join(self.extensions)} in the tars"
                )
        field_of = {extension: name for name, extension in found.items()}
        for name in self._recorded.keys() - found.keys():
            if written[name] in self.extensions:
                field_of.setdefault(written[name], name)
            elif self._recorded[name].optional:
                found[name] = None
        taken = {name for name in field_of.values() if name in self.extensions and name not in field_of}
        field_of = {extension: name for extension, name in field_of.items() if name not in taken}
        ordered: dict[str, str | None] = {field_of.get(ext, ext): ext for ext in self.extensions}
        every = {**ordered, **found}
        # Without a record of all names the order is that of the members of the first samples.
        return {name: every[name] for name in (self._order if {*self._order} >= {*every} else every) if name in every}

    @cached_property
    def features(self) -> Features:
        """`__key__` and one field per extension, or the keys of all MessagePack maps."""
        if self._as_map:
            return Features({KEY: Text(), **self._found_in_maps.features("msgpack"), **self._schema})
        fields = {name: self._feature(name, extension) for name, extension in self._extension_of.items()}
        return Features({KEY: Text(), **fields})

    @property
    def stored_features(self) -> Features | None:
        """All features, if the tars have a recorded schema."""
        return self.features if self._is_typed else None

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with media, by their extension or the schema; keys of MessagePack maps have none."""
        return media_in(self._schema if self._as_map else self.features)

    @cached_property
    def _found_in_maps(self) -> RecordFields:
        found = record_fields(self, "tar", None)
        if found.as_map:
            what = "an empty key" if "" in found.kinds else f"more than {MAX_KEYS} different keys"
            raise SchemaError(f"{self.files}: expected maps of fields, got {what}")
        return found

    def _refuse_misfit(self, one: dict[str, Any], row: int) -> None:
        found = {name: value for name, value in one.items() if name not in self._schema}
        first = f"the fields were found in the first {self._found_in_maps.rows} of {len(self)} samples"
        refuse_misfit(found, self.features, lambda: self.location(row), f"{first}: name the fields with schema=")

    def key_scan(self) -> KeyScan:
        """Return a scan without maps."""
        return KeyScan(lambda kind: msgspec.msgpack.Decoder(kind).decode, _map_or_none)

    def scan_keys(self, rows: Integers, scan: KeyScan) -> None:
        """Add the keys of these maps."""
        scan.add(self.needed_ranges(rows, ["msgpack"]).bytes())

    @cached_property
    def _float_fields(self) -> list[str]:
        return [name for name in float_fields(self.features) if name not in self._schema]

    def _feature(self, name: str, extension: str | None) -> Feature:
        if name in self._schema:
            return self._schema[name]
        if extension is None:
            return self._recorded[name]
        if self._is_typed and name in self._recorded:
            feature = self._recorded[name]
        elif codecs.codec_for_extension(extension) in (codecs.NPY, codecs.NPZ):
            feature = self._feature_of_first(name, extension)
        else:
            feature = tar_fields.feature_of_extension(extension)
        return feature if self.index.spans[f"{extension}.offset"][0] else Optional(feature)

    def _feature_of_first(self, name: str, extension: str) -> Feature:
        """Return the feature of the first `.npz` of an extension; of the first `.npy` if all headers are equal."""
        of_value: Callable[[memoryview], Feature] = tar_fields.npz_feature
        if codecs.codec_for_extension(extension) is codecs.NPY:
            of_value = tar_fields.npy_feature
            low, high = self.index.spans.get(f"{extension}.header", (0, 0))
            if not 0 < low == high:
                return Array()
        row = int(np.argmax(self.index.read(f"{extension}.offset", np.arange(len(self))) != 0))
        number, at = self.index.values(row)
        held = self.hold(np.array([row]), [name])
        view = self._view(extension, number, at)
        feature: Feature = tar_fields.value(of_value, view, extension, lambda _: self.location(row))
        del held
        return feature

    def location(self, row: int) -> str:
        """File and key of a row, for error messages."""
        number, at = self.index.values(row)
        return f"{self.files.name(number)}, sample {self._key(number, at['start'])!r}"

    def needed_ranges(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """Return the byte ranges of these fields, and of the headers, which hold the keys."""
        start = self.index.read("start", rows)  # raises for rows outside
        which = self.index.file(rows)
        places = [
            (which, start + self.index.read(f"{extension}.offset", rows), self.index.read(f"{extension}.length", rows))
            for extension in self._extensions_of(fields)
        ]
        if fields is None or KEY in fields:
            places.append((which, start, self._header_sizes(rows)))
        return Ranges.concat(self.data, places)

    def _header_sizes(self, rows: Integers) -> Integers:
        """Return the size of the first header of each sample, with extended ones: they end at its first member."""
        sizes = np.full(len(rows), _LONGEST_HEADER)
        for extension in self.extensions:
            offset = self.index.read(f"{extension}.offset", rows)
            np.minimum(sizes, offset, out=sizes, where=offset > 0)
        return sizes

    def _extensions_of(self, fields: Sequence[str] | None) -> set[str]:
        """Return the extensions that hold these fields."""
        if self._as_map:
            return set() if fields is not None and set(fields) <= {KEY} else {"msgpack"}
        return {ext for name, ext in self._extension_of.items() if ext and (fields is None or name in fields)}

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these samples, with one gather per field."""
        return self.read_views(rows, fields, ())

    def read_views(self, rows: Integers, fields: Sequence[str] | None, views: Collection[str]) -> Columns:
        """Read these samples; values of bytes in the fields `views` are views of the tars."""
        rows = np.asarray(rows, np.int64)
        names = check_fields(self._field_names, fields)
        start = self.index.read("start", rows)  # raises for rows outside
        which = self.index.file(rows) if len(self) else rows
        held = self.hold(rows, names)
        columns: dict[str, Column] = self._from_maps(rows, [n for n in names if n != KEY]) if self._as_map else {}
        for name in names:
            if name == KEY:
                columns[name] = self._keys(which, start)
            elif name not in columns:
                columns[name] = self._column(
                    self._extension_of[name], self.features[name], rows, which, start, name in views
                )
        del held
        return Columns({name: columns[name] for name in names}, len(rows))

    def _column(
        self,
        extension: str | None,
        feature: Feature,
        rows: Integers,
        which: Integers,
        start: Integers,
        view: bool = False,
    ) -> Column:
        if extension is None:
            return feature.fit_column([None] * len(rows), str, "", stored=True)
        offset, length = self.index.read(f"{extension}.offset", rows), self.index.read(f"{extension}.length", rows)
        ranges = Ranges(self.data, which, start + offset, length)
        mapped = not self.data.closable  # cached pages without a view may be evicted
        if view and mapped and isinstance(feature, Media) and (offset != 0).all():
            return cast(Column, ranges.views())
        return tar_fields.optional_column(ranges, offset != 0, extension, feature, self._where(rows))

    def _keys(self, which: Integers, start: Integers) -> list[Any]:
        blocks = Ranges(self.data, which, start, np.full(len(start), 512)).bytes()
        files, starts = which.tolist(), start.tolist()
        return [self._key_in(block, files[k], starts[k]) for k, block in enumerate(blocks)]

    def _key(self, number: int, start: int) -> str:
        """Return the key of the sample whose first header is at `start`."""
        return self._key_in(self.data.slice(number, start, start + 512).tobytes(), number, start)

    def _key_in(self, block: bytes, number: int, start: int) -> str:
        name = plain_name(block)
        if name is None:
            name = next(members_of(_FileBytes(self.data, number), self.files.name(number), start)).name
        return name[: name.find(".", name.rfind("/") + 1)]

    def _from_maps(self, rows: Integers, names: list[str]) -> dict[str, Column]:
        if not names:
            return {}
        maps, where = self._maps(rows), self._where(rows)
        if not self._found_in_maps.complete:
            for one, row in zip(maps, rows.tolist(), strict=True):
                self._refuse_misfit(one, row)
        typed = {n: [one.get(n, MISSING) for one in maps] for n in names if n in self._schema}
        plain = {n: [one.get(n) for one in maps] for n in names if n not in self._schema}
        declared = conversions.to_columns(typed, len(rows), self._schema, where)
        return {**declared.data, **{n: inferred_column(column, self.features[n]) for n, column in plain.items()}}

    def _maps(self, rows: Integers) -> list[dict[str, Any]]:
        where, views = self._where(rows), self.needed_ranges(rows, ["msgpack"]).views() if len(rows) else []
        return [_map(view, k, where) for k, view in enumerate(views)]

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample."""
        names = check_fields(self._field_names, fields)
        number, at = self.index.values(row, None if fields is None else self._columns_of(names))
        held = self.hold(np.array([row]), names) if self.data.closable else None
        if self._as_map:
            found = self._from_map(row, number, at, names)
        else:
            found = {
                name: self._key(number, at["start"]) if name == KEY else self._value(name, row, number, at)
                for name in names
            }
        del held
        return found

    def _columns_of(self, names: list[str]) -> list[str]:
        """Return the columns of the index that samples of these fields need."""
        extensions = ["msgpack"] if self._as_map else [self._extension_of[name] for name in names if name != KEY]
        return ["start", *(column for one in extensions if one for column in self._index_columns[one])]

    @cached_property
    def _index_columns(self) -> dict[str, tuple[str, str]]:
        return {one: (f"{one}.offset", f"{one}.length") for one in self.extensions}

    def values(self, rows: Integers, keys: Sequence[str]) -> dict[str, list[Any]]:
        """Return the values of these keys in the JSON of samples; if several fields have a key, the first counts."""
        if self._as_map:
            maps = self._maps(rows)
            return {key: [one.get(key) for one in maps] for key in keys}
        which, start = self.index.file(rows), self.index.read("start", rows)
        found: dict[str, list[Any]] = {key: [None] * len(rows) for key in keys}
        json = [one for one in self.extensions if tar_fields.feature_of_extension(one) == Json()]
        held = self.hold(rows, [name for name, extension in self._extension_of.items() if extension in json])
        for extension in reversed(json):
            for k, value in enumerate(self._column(extension, Optional(Json()), rows, which, start)):
                if isinstance(value, dict):
                    for key in keys & value.keys():
                        found[key][k] = value[key]
        del held
        return found

    @property
    def extracted(self) -> Features:
        """The extracted keys, without those that are also names of fields."""
        return Features({key: f for key, f in self.extraction.features.items() if key not in self._field_names})

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each sample whether it has a field, from the index."""
        if name in self.extracted or self._as_map or unwrap_optional(self.features[name]) == Json():
            return super().present(name)  # null is a value of JSON, read as None
        if (extension := self._extension_of.get(name)) is None:
            return np.full(len(self), name == KEY)
        there: NDArray[np.bool_] = self.index.read(f"{extension}.offset", np.arange(len(self))) != 0
        return there

    @cached_property
    def _decoders(self) -> dict[str, Callable[[memoryview], Any]]:
        return {name: self.features[name].of_file(ext) for name, ext in self._extension_of.items() if ext}

    def _value(self, name: str, row: int, number: int, at: dict[str, int]) -> Any:
        extension = self._extension_of[name]
        if extension is not None and at[f"{extension}.offset"]:
            view = self._view(extension, number, at)
            return tar_fields.value(self._decoders[name], view, extension, lambda _: self.location(row))
        if extension is None or self.features[name].optional:
            return None
        return self.read(np.array([row]), [name]).data[name]  # raises an error that names the sample

    def _from_map(self, row: int, number: int, at: dict[str, int], names: list[str]) -> dict[str, Any]:
        one = _map(self._view("msgpack", number, at), 0, lambda _: self.location(row))
        if not self._found_in_maps.complete:
            self._refuse_misfit(one, row)
        declared = [name for name in names if name in self._schema]
        found = {**one, **conversions.to_sample(one, declared, self._schema, lambda _: self.location(row))}
        integers_to_floats(found, self._float_fields)
        return {name: self._key(number, at["start"]) if name == KEY else found.get(name) for name in names}

    def _view(self, extension: str, number: int, at: dict[str, int]) -> memoryview:
        begin = at["start"] + at[f"{extension}.offset"]
        return self.data.slice(number, begin, begin + at[f"{extension}.length"]).data


class _FileBytes:
    """The bytes of a file in a table, for reading headers: they are fetched if necessary."""

    def __init__(self, table: Segments, number: int) -> None:
        self._table, self._number = table, number

    def __len__(self) -> int:
        return int(self._table.open(self._number).size)

    def __getitem__(self, where: slice) -> Bytes:
        return self._table.slice(self._number, where.start, where.stop)


def _map_or_none(record: bytes) -> dict[str, Any] | None:
    """Return the map of a record; None if it is something else, which a read refuses."""
    try:
        return _map(memoryview(record), 0, str)
    except FormatError:
        return None


def _map(view: memoryview, k: int, where: Where) -> dict[str, Any]:
    one = tar_fields.value(codecs.MSGPACK.decode, view, "msgpack", where, k)
    if not isinstance(one, dict) or not all(isinstance(name, str) for name in one):
        raise FormatError(f"expected a map with text as keys, got {type(one).__name__} - at {where(k)}, field msgpack")
    return one


FORMAT = Format(
    open,
    TarWriter,
    JoinShards(OWNED, ".tar", "shard"),
    name_field=KEY,
    stores_schema=True,
    one_file=one_file,
    damaged=DamagedFiles(check_end, keep_readable_part),
)
