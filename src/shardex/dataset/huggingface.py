"""Converts Hugging Face `datasets` to rows over their Arrow tables, and shardex datasets to Hugging Face ones.

Their arrays of several dimensions (`Array2D` to `Array5D`) are nested lists, ours are flat, so only offsets are
computed; their text, bytes and lists have 32-bit offsets; their images, audio and video are structs of bytes and a
path, ours are bytes. Features that Arrow types do not express (classes, shapes, JSON, media) are converted both ways.
`from_table.py` makes datasets of the rows. `datasets` is imported when it is needed.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardex.columns import arrow_types, arrow_values, number_array
from shardex.dataset.memory_rows import ArrowRows
from shardex.dataset.to_arrow import check_names, table
from shardex.errors import ArgumentError, FormatError, MissingExtraError, SchemaError, storage_errors
from shardex.features import Array, ClassLabel, Feature, Features, Optional, features_of_arrow, hf_metadata
from shardex.formats import ShardRows
from shardex.kernel import Integers, digest
from shardex.order import Order, Pick, Span
from shardex.sources import is_url

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

_INFER_FROM = 64
_MAX_BYTES = (1 << 31) - 1
"""Limit of 32-bit offsets."""


def import_datasets(purpose: str) -> Any:
    """Return the package `datasets`; an error that names what needs it if it is not installed."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "huggingface", purpose) from None
    return datasets


# -- from Hugging Face --------------------------------------------------------------------------------------------


def rows_of(data: Any) -> tuple[HuggingFaceRows, Order]:
    """Return the rows of the table of a `datasets.Dataset`, and the order of its indices."""
    rows = HuggingFaceRows(data.data, data.features, data._fingerprint)
    if data._indices is None:
        return rows, Span(len(rows))
    chosen = data._indices.table.column(0).to_numpy().astype(np.int64)
    if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(rows):
        raise FormatError(f"expected indices below {len(rows)}, got {int(chosen.max())} - at the indices of {data}")
    return rows, Pick(chosen)


class HuggingFaceRows(ArrowRows):
    """Rows of a Hugging Face table. A table that is mapped from files pickles as the names of the files."""

    def __init__(self, data: Any, hf_features: Any, hf_fingerprint: str) -> None:
        self.hf_fingerprint = hf_fingerprint
        self.data = data
        """The `datasets.table.Table`, which has the names of its files."""
        self.hf_features = hf_features
        given = _given_features(hf_features, data.table.schema)
        table = _without_no_labels(data.table, given)
        arrays = {name: feature for name, feature in given.items() if isinstance(feature, Array)}
        flat = {name: _flat_type(feature, table.column(name)) for name, feature in arrays.items()}
        schema = pa.schema([field.with_type(flat.get(field.name, field.type)) for field in table.schema])

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = dict(zip(schema.names, batch.columns, strict=True))
            for name, kind in flat.items():
                columns[name] = _flat(columns[name], arrays[name], kind, name)
            return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)

        super().__init__(table, given, schema, convert, _read_file)

    def __reduce__(self) -> tuple[Any, ...]:
        return HuggingFaceRows, (self.data, self.hf_features, self.hf_fingerprint)

    @property
    def fingerprint(self) -> str:
        """Made from the Hugging Face fingerprint."""
        return digest("hub", self.hf_fingerprint, len(self))


def _without_no_labels(table: pa.Table, features: Features) -> pa.Table:
    """Return a table with nulls for -1 in fields of classes, which is no label."""
    import pyarrow.compute as pc  # a tenth of the time of `import shardex`

    for number, name in enumerate(table.column_names):
        if isinstance(features.get(name), ClassLabel):
            none = pc.equal(column := table.column(number), -1)
            if pc.any(none).as_py():
                table = table.set_column(number, table.field(number), pc.if_else(none, None, column))
    return table


def _read_file(path: str) -> bytes:
    """Return the content of a local file that a dataset of this process names."""
    if is_url(path) or "::" in path:
        raise ArgumentError(
            f"expected the path of a local file, got {path!r}: download it first, for example by save_to_disk, which "
            "stores the bytes"
        )
    with storage_errors(path, "read the file"), open(path, "rb") as file:
        return file.read()


def _given_features(hf_features: Any, schema: pa.Schema) -> Features:
    """Return the features that Arrow types do not determine."""
    plain = hf_features.to_dict()
    found = {
        name: hf_metadata.feature_of_hf(plain[name], schema.field(name).type, _feature_of_type) for name in hf_features
    }
    return Features({name: feature for name, feature in found.items() if feature is not None})


def is_stream(data: Any) -> bool:
    """Return whether this is a Hugging Face dataset without random access."""
    return type(data).__module__.partition(".")[0] == "datasets" and type(data).__name__ == "IterableDataset"


class HubStream:
    """Samples of a stream with features. All of these are nullable; here those are optional in which None was found.

    The number -1 of a class is None, too. If a sample does not fit because of a None that is the first one in its
    field, or in a part of it, `widen` makes that optional, and the stream is read again.
    """

    def __init__(self, data: Any) -> None:
        self._data = data.decode(False) if hasattr(data, "decode") else data  # images stay bytes
        schema = data.features.arrow_schema
        self._given = _given_features(data.features, schema)
        self._schema = pa.schema([field for field in schema if not isinstance(self._given.get(field.name), Array)])
        self._names = schema.names
        self._last: Any = None
        samples = iter(self._data)
        first = list(islice(samples, _INFER_FROM))
        self._begun: Iterator[Any] | None = chain(first, samples)
        """The samples, until they are taken for the first time."""
        self._nulls = {path for sample in first for path in self._missing(sample)}

    @property
    def features(self) -> Features:
        """The features that fit the samples so far."""
        arrays = {name: one for name, one in self._given.items() if isinstance(one, Array)}
        others = Features({name: one for name, one in self._given.items() if name not in arrays})
        found = {**arrays, **features_of_arrow(self._schema, others, self._nulls)}
        return Features({n: Optional(found[n]) if (n,) in self._nulls else found[n] for n in self._names})

    def __iter__(self) -> Iterator[Any]:
        samples, self._begun = self._begun or iter(self._data), None
        for sample in samples:
            self._last = sample
            yield sample

    def widen(self) -> bool:
        """Make optional what is None in the last sample; return False if it was."""
        before = self.features
        self._nulls.update(self._missing(self._last))
        return self.features != before

    def _missing(self, sample: Mapping[str, Any]) -> Iterator[arrow_types.Path]:
        yield from _none_paths(sample)
        labels = (name for name, feature in self._given.items() if isinstance(feature, ClassLabel))
        yield from ((name,) for name in labels if sample.get(name) == -1)


def _none_paths(value: Any, path: arrow_types.Path = ()) -> Iterator[arrow_types.Path]:
    """Return the paths of the fields, and of the parts inside them, in which a sample has None."""
    if value is None:
        yield path
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _none_paths(one, (*path, name))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _none_paths(one, (*path, "item"))


def _feature_of_type(kind: pa.DataType) -> Feature:
    return features_of_arrow(pa.schema([("x", kind)]))["x"]


def _flat_type(feature: Array, column: pa.ChunkedArray) -> pa.DataType:
    item = pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.fixed and not column.null_count:
        return pa.list_(item, math.prod(size or 0 for size in feature.shape or ()))
    return pa.large_list(item)


def _flat(array: pa.ExtensionArray, feature: Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return nested lists as flat lists: the same elements with other offsets."""
    lists = array.storage
    bounds, values, shape = arrow_values.list_bounds(lists), lists.values, feature.shape or ()
    if feature.fixed:
        _check_lengths(np.diff(bounds), lists.is_valid(), shape[0], feature, name)
    for size in shape[1:]:
        inner = arrow_values.list_bounds(values)
        _check_lengths(np.diff(inner[bounds[0] : bounds[-1] + 1]), None, size, feature, name)
        bounds, values = inner[bounds], values.values
    values = values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    return pa.LargeListArray.from_arrays(
        number_array(bounds - bounds[0]), values, type=kind, mask=lists.is_null() if lists.null_count else None
    )


def _check_lengths(
    lengths: Integers, there: pa.BooleanArray | None, size: int | None, feature: Array, name: str
) -> None:
    if there is not None:
        lengths = lengths[there.to_numpy(zero_copy_only=False)]
    if (lengths != size).any():
        found = ", ".join(map(str, np.unique(lengths)[:5]))
        raise FormatError(f"expected {feature}, got lists of length {found} instead of {size} - at field {name}")


# -- to Hugging Face ----------------------------------------------------------------------------------------------


def to_huggingface(view: Dataset[Any]) -> Any:
    """Return a `datasets.Dataset` of all samples; nothing is written to disk.

    Data that came from Hugging Face is returned unchanged, with the order as indices.
    """
    datasets, view = import_datasets("to_huggingface"), view.stored
    if isinstance(view.rows, HuggingFaceRows):
        return _back_to_hf(view, view.rows)
    arrow = table(view)
    check_names(arrow.schema)
    features = {name: _feature_to_hf(feature, arrow.schema.field(name)) for name, feature in view.features.items()}
    types = datasets.Features(features).arrow_schema.types
    columns = [
        pa.chunked_array([_array_to_hf(part, view.features[name], kind) for part in _small_chunks(column)], kind)
        for name, column, kind in zip(arrow.column_names, arrow.columns, types, strict=True)
    ]
    whole = pa.Table.from_arrays(columns, names=arrow.column_names)
    info = datasets.DatasetInfo(features=datasets.Features(features))
    # `datasets` caches results under this fingerprint, so it must be that of exactly this data, or a random one.
    fingerprint = secrets.token_hex(8)
    if isinstance(view.rows, ShardRows):
        fingerprint = digest("shardex", view.rows.fingerprint, list(view.features), view.order)
    return datasets.Dataset(datasets.table.InMemoryTable(whole), info=info, fingerprint=fingerprint)


def _back_to_hf(view: Dataset[Any], rows: HuggingFaceRows) -> Any:
    datasets = import_datasets("to_huggingface")
    fingerprint = digest("shardex", rows.hf_fingerprint, list(view.features), view.order)
    info = datasets.DatasetInfo(features=datasets.Features({name: rows.hf_features[name] for name in view.features}))
    data, order = rows.data.select(list(view.features)), view.order
    if isinstance(order, Span) and order.step == 1:
        return datasets.Dataset(data.slice(order.start, order.length), info=info, fingerprint=fingerprint)
    chosen = pa.table({"indices": number_array(order.rows(np.arange(len(order))).astype(np.uint64))})
    indices = datasets.table.InMemoryTable(chosen)
    return datasets.Dataset(data, info=info, indices_table=indices, fingerprint=fingerprint)


def _feature_to_hf(feature: Feature, field: pa.Field) -> Any:
    """Return the Hugging Face feature for the same values."""
    datasets = import_datasets("to_huggingface")
    if feature.opaque:
        return datasets.Features.from_arrow_schema(pa.schema([field]))[field.name]
    try:
        return datasets.Features.from_dict({"x": feature.to_hf()})["x"]
    except SchemaError as error:
        raise SchemaError(
            f"{error} - at field {field.name}; leave it out with select, or open the data with a schema that has shape "
            "and dtype"
        ) from None


def _small_chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return the chunks, cut to sizes that 32-bit offsets can address."""
    waiting, found = list(reversed(column.chunks)), []
    while waiting:
        one = waiting.pop()
        if one.nbytes > _MAX_BYTES and len(one) > 1:
            waiting += [one.slice(len(one) // 2), one.slice(0, len(one) // 2)]
        else:
            found.append(one)
    return found


def _array_to_hf(array: pa.Array, feature: Feature, kind: pa.DataType) -> pa.Array:
    return array if feature.opaque else feature.array_to_hf(array, kind)
