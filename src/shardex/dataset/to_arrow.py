"""Exports a dataset as Arrow data for other tools: a stream of record batches, or one table.

Batches are made on demand, all with one schema that is known before the first of them. The features are stored in the
metadata, so data that comes back from another tool keeps its types. Fields that are stored as Arrow columns (mapped
shards, tables of other tools) are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from shardex.columns import arrow_types, encoders, number_array, to_table
from shardex.dataset.memory_rows import ArrowRows
from shardex.errors import FormatError, MissingExtraError, SchemaError
from shardex.features import ClassLabel, Feature, Features, Opaque, arrow_schema, contains, unwrap_optional
from shardex.kernel import Columns
from shardex.order import Span

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

_MIN_ROWS = 16
T = TypeVar("T", pa.Table, pa.RecordBatch)


def batches(view: Dataset[Any]) -> pa.RecordBatchReader:
    """Return all samples as a stream of record batches.

    >>> from shardex import open
    >>> batches(open([{"x": 1}, {"x": 2}])).read_all().to_pydict()
    {'x': [1, 2]}
    """
    view = view.stored
    if isinstance(view.rows, ArrowRows) and (stored := stored_table(view)) is not None:
        return stored.to_reader()
    features, chunks = view.features, view.chunks(size=_MIN_ROWS)
    types = {name: _type(feature) or _stored_type(view, name) for name, feature in features.items()}
    if None in types.values() and (first := next(chunks, None)) is not None:
        guessed = to_table(first, features, stored=True)
        types = {name: guessed.schema.field(name).type if kind is None else kind for name, kind in types.items()}
        chunks = chain([first], chunks)
    fields = [pa.field(name, pa.null() if kind is None else kind) for name, kind in types.items()]
    schema = pa.schema(fields, metadata=_metadata(features))
    return pa.RecordBatchReader.from_batches(schema, _batches(chunks, features, schema))


def capsule(view: Dataset[Any], requested_schema: object = None) -> Any:
    """Return the stream as a PyCapsule of the Arrow C interface; raise for names with a NUL, which it cannot hold."""
    reader = batches(view)
    check_names(reader.schema)
    if labels := _labels(view.features):
        schema = _with_class_names(reader.schema.empty_table(), labels).schema
        named = (_with_class_names(batch, labels) for batch in reader)
        reader = pa.RecordBatchReader.from_batches(schema, named)
    return reader.__arrow_c_stream__(requested_schema)


def check_names(schema: pa.Schema) -> None:
    """Raise for names with a NUL, which the C interface would truncate."""
    if "\0" in (shown := schema.to_string(show_field_metadata=False, show_schema_metadata=False)):
        raise SchemaError(f"expected names that other tools can read, got one with a NUL - at {shown!r:.200}")


def _batches(chunks: Iterable[Columns], features: Features, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    types = {field.name: field.type for field in schema}
    first = 0
    for columns in chunks:
        yield from arrow_types.with_schema(to_table(columns, features, types, first, stored=True), schema).to_batches()
        first += len(columns)


def table(view: Dataset[Any]) -> pa.Table:
    """Return all samples as one table; stored Arrow columns of the right types are not copied."""
    return batches(view).read_all() if (stored := stored_table(view)) is None else stored


def to_pandas(view: Dataset[Any]) -> Any:
    """Return all samples as a `pandas.DataFrame`.

    Classes are categories. Integers with missing values are floats, as in pandas, unless these cannot hold them.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("pandas", "pandas", "to_pandas") from None
    found = _with_class_names(table(view), _labels(view.features))
    # Python's time has no nanoseconds, so these stay in their Arrow type.
    exact = {pa.time64("ns"): pandas.ArrowDtype(pa.time64("ns"))}
    frame = found.to_pandas(types_mapper=exact.get)
    nullable = {pa.int64(): pandas.Int64Dtype(), pa.uint64(): pandas.UInt64Dtype()}
    for name in filter(lambda name: _exceeds_float(found[name]), found.column_names):
        frame[name] = found[name].to_pandas(types_mapper=nullable.get)
    return frame


def _exceeds_float(column: pa.ChunkedArray) -> bool:
    """Return whether a column has missing values, and integers that are not exact as float64."""
    if column.type not in (pa.int64(), pa.uint64()) or not column.null_count:
        return False
    import pyarrow.compute as pc  # a tenth of the time of `import shardex`

    ends = pc.min_max(column).as_py()
    return any(abs(one or 0) > 1 << 53 for one in ends.values())


# -- names of classes -----------------------------------------------------------------------------------------
#
# `to_arrow` has the numbers of classes, as files have; streams and pandas get the names, as the coded text of Arrow.

CLASSES = {b"shardex.classes": b""}
"""Metadata of fields of coded text that are classes."""


def _labels(features: Features) -> dict[str, ClassLabel]:
    """Return the fields of classes that have names."""
    plain = {name: unwrap_optional(feature) for name, feature in features.items()}
    return {name: one for name, one in plain.items() if isinstance(one, ClassLabel) and one.names}


def _with_class_names(data: T, labels: Mapping[str, ClassLabel]) -> T:
    """Return a table or batch with the names of classes in the place of numbers; -1 is no class."""
    columns, fields = list(data.columns), list(data.schema)
    for name, label in labels.items():
        place, names = data.schema.get_field_index(name), pa.array(label.names)
        kind = pa.dictionary(pa.int32(), names.type)
        chunks = getattr(columns[place], "chunks", [columns[place]])
        found = [_class_names(chunk, names, name) for chunk in chunks]
        columns[place] = pa.chunked_array(found, kind) if isinstance(data, pa.Table) else found[0]
        fields[place] = pa.field(name, kind, metadata=CLASSES)
    return type(data).from_arrays(columns, schema=pa.schema(fields, metadata=data.schema.metadata))


def _class_names(numbers: pa.Array, names: pa.Array, field: str) -> pa.Array:
    numbers = numbers.cast(pa.int32())
    if numbers.null_count:
        numbers = numbers.fill_null(-1)
    codes = numbers.to_numpy()
    if codes.max(initial=-1) >= len(names) or codes.min(initial=0) < -1:
        raise FormatError(f"expected numbers of {len(names)} classes, got others - at field {field}")
    present = codes >= 0
    indices = number_array(codes) if present.all() else encoders.with_nulls(number_array(codes), present)
    return pa.DictionaryArray.from_arrays(indices, names, safe=False)


# -- stored columns -------------------------------------------------------------------------------------------


def stored_table(view: Dataset[Any]) -> pa.Table | None:
    """Return the stored Arrow columns of a view of consecutive rows, in the types of `batches`; None if one lacks."""
    view = view.stored
    rows, order = view.rows, view.order
    if not isinstance(order, Span) or order.step != 1:
        return None
    columns = {}
    for name, feature in view.features.items():
        if (whole := rows.column(name)) is None:
            return None
        column, kind = whole.slice(order.start, order.length), _type(feature)
        try:
            columns[name] = column if kind in (None, column.type) else column.cast(kind)
        except pa.ArrowException:
            return None
    return pa.table(columns).replace_schema_metadata(_metadata(view.features))


# -- types ----------------------------------------------------------------------------------------------------


def _type(feature: Feature) -> pa.DataType | None:
    """Return the Arrow type of a field; None if it depends on the values."""
    inner = unwrap_optional(feature)
    return None if contains(inner, Opaque) else inner.arrow_type()


def _stored_type(view: Dataset[Any], name: str) -> pa.DataType | None:
    """Return the type of the stored Arrow column of a field whose feature has no Arrow type; None without column."""
    column = view.rows.column(name)
    return None if column is None else column.type


def _metadata(features: Features) -> dict[bytes, bytes]:
    """Return the features as metadata of an Arrow schema."""
    known = Features({name: feature for name, feature in features.items() if not contains(feature, Opaque)})
    found: dict[bytes, bytes] = arrow_schema(known).metadata
    return found
