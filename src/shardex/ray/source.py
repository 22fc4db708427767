"""`source`: a dataset as a `ray.data.Datasource`.

A read task reads a range of positions; ranges end at the ends of shards where these are near. The dataset is pickled
once and stored in the cluster: URLs, orders and functions, not data (unless the data is in memory). Ray's projections
choose fields, its filters become conditions of SQL that each task applies to its range.

Only filters that mean the same in both are translated: comparisons of fields with numbers, texts and truth values,
``is_in``, ``is_null``, and, or, not. Ray itself applies all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.expressions import BinaryExpr, ColumnExpr, Expr, LiteralExpr, Operation, UnaryExpr

from shardex.dataset import Dataset, open
from shardex.features import Features, Text, Value, unwrap_optional
from shardex.ray.blocks import block_of
from shardex.sources import export_credentials, import_credentials
from shardex.workers import StoredValue, dump_value

_COMPARISONS = {
    Operation.EQ: "=",
    Operation.NE: "<>",
    Operation.LT: "<",
    Operation.LE: "<=",
    Operation.GT: ">",
    Operation.GE: ">=",
}
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_JOINED = {Operation.AND: "AND", Operation.OR: "OR"}
_LARGEST = 1 << 63


def sql_condition(expression: Expr, features: Features) -> tuple[str, list[Any]] | None:
    """Return a condition and its parameters that keep the same samples as a filter of Ray; None if there is none.

    >>> from ray.data.expressions import col
    >>> sql_condition((col("x") > 3) & col("s").is_in(["a"]), Features.of({"x": int, "s": str}))
    ('(("x" > ?) AND coalesce("s" IN (?), false))', [3, 'a'])
    """
    translation = _Translation(features)
    text = translation.condition(expression)
    return None if text is None else (text, translation.values)


class _Translation:
    """Writes the text of a condition and collects its parameters."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self.values: list[Any] = []

    def condition(self, expression: Expr) -> str | None:
        """Return the text of a condition; None if it cannot be translated."""
        if isinstance(expression, UnaryExpr):
            return self._unary(expression)
        if not isinstance(expression, BinaryExpr):
            return None
        if expression.op in _JOINED:
            left, right = self.condition(expression.left), self.condition(expression.right)
            return None if left is None or right is None else f"({left} {_JOINED[expression.op]} {right})"
        if expression.op in (Operation.IN, Operation.NOT_IN):
            return self._membership(expression)
        if expression.op in _COMPARISONS:
            return self._comparison(expression)
        return None

    def _unary(self, expression: UnaryExpr) -> str | None:
        if expression.op == Operation.NOT:
            inner = self.condition(expression.operand)
            return None if inner is None else f"(NOT {inner})"
        name = self._column(expression.operand)
        if name is None or expression.op not in (Operation.IS_NULL, Operation.IS_NOT_NULL):
            return None
        return f"({name} IS {'NOT ' * (expression.op == Operation.IS_NOT_NULL)}NULL)"

    def _comparison(self, expression: BinaryExpr) -> str | None:
        operator, left, right = _COMPARISONS[expression.op], expression.left, expression.right
        if isinstance(left, LiteralExpr):
            operator, left, right = _SWAPPED[operator], right, left
        name = self._column(left)
        if name is None or not isinstance(right, LiteralExpr) or not self._fits(left, right.value):
            return None
        self.values.append(right.value)
        text = f"({name} {operator} ?)"
        # In SQL, NaN is larger than all numbers; in Arrow a comparison with it is false.
        floats = operator in (">", ">=") and self._kind(left) == "float"
        return f"({text} AND NOT isnan({name}))" if floats else text

    def _membership(self, expression: BinaryExpr) -> str | None:
        name, right = self._column(expression.left), expression.right
        values = right.value if isinstance(right, LiteralExpr) else None
        if name is None or self._kind(expression.left) == "float" or not isinstance(values, list) or not values:
            return None  # in Arrow, 0.0 is not in a list with -0.0
        if not all(self._fits(expression.left, value) for value in values):
            return None
        self.values += values
        # In Arrow, a missing value is in no list; in SQL it is unknown whether it is.
        text = f"coalesce({name} IN ({', '.join('?' * len(values))}), false)"
        return f"(NOT {text})" if expression.op == Operation.NOT_IN else text

    def _column(self, expression: Expr) -> str | None:
        if not isinstance(expression, ColumnExpr) or expression.name == "_row" or not self._kind(expression):
            return None  # `_row` is the position in SQL
        quoted = expression.name.replace('"', '""')
        return f'"{quoted}"'

    def _kind(self, expression: ColumnExpr) -> str:
        """Return "text", "bool", "int" or "float" for a field; empty for others."""
        feature = self._features.get(expression.name)
        inner = None if feature is None else unwrap_optional(feature)
        if isinstance(inner, Value):
            return {"b": "bool", "i": "int", "u": "int", "f": "float"}.get(np.dtype(inner.dtype).kind, "")
        return "text" if type(inner) is Text else ""

    def _fits(self, column: ColumnExpr, value: Any) -> bool:
        """Return True if a value can be compared with a field without a conversion of its meaning."""
        kind = self._kind(column)
        if kind == "text":
            return isinstance(value, str) and "\0" not in value
        if kind == "bool" or isinstance(value, bool):
            return kind == "bool" and isinstance(value, bool)
        if isinstance(value, float):
            return math.isfinite(value)
        return isinstance(value, int) and abs(value) < _LARGEST


_BLOCK_BYTES = 16 << 20
"""Size of the blocks that a task yields; Ray merges and splits them to its own size."""
_NO_FIELDS = "__bsp_stub"
"""Name that Ray gives to the column of a block that has rows and no fields."""
_MEASURED = 16
"""Samples from which the size of all is estimated."""


def source(data: Any) -> ShardexDatasource:
    """Return a source of Ray Data over a dataset, a view of one, or anything that `open` takes.

    ``ray.data.read_datasource(sx.ray.source(ds))`` reads it in parallel: fields of a fixed shape are tensors, the
    number of rows is known without reading, and `select_columns` and filters by expressions read only what they need.
    Images and other media are their stored bytes. Secrets are not sent to the nodes; set them in the environment of
    the cluster (``AWS_ACCESS_KEY_ID``, ...).
    """
    return ShardexDatasource((data if isinstance(data, Dataset) else open(data)).stored)


class ShardexDatasource(Datasource):  # type: ignore[misc]  # Ray is not type-checked
    """Reads ranges of a dataset; see `source`."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__()
        self._dataset = dataset
        self._projection_map: dict[str, str] | None = None
        self._conditions: tuple[tuple[str, list[Any]], ...] = ()
        self._stored: tuple[str, StoredValue] | None = None

    def get_name(self) -> str:
        """Return the name of the read tasks."""
        return "Shardex"

    def __getstate__(self) -> dict[str, Any]:
        return {name: None if name == "_stored" else one for name, one in self.__dict__.items() if name != "_probe"}

    # -- pushed down --------------------------------------------------------------------------------------------

    def supports_projection_pushdown(self) -> bool:
        """Return True: tasks read the chosen fields only."""
        return True

    def apply_projection(self, projection_map: dict[str, str] | None) -> ShardexDatasource:
        """Return a source of the chosen fields."""
        found: ShardexDatasource = super().apply_projection(projection_map)
        found.__dict__.pop("_probe", None)
        return found

    def supports_predicate_pushdown(self) -> bool:
        """Return True: `apply_predicate` decides for each filter."""
        return True

    def apply_predicate(self, predicate_expr: Any) -> ShardexDatasource:
        """Return a source of the samples that a filter keeps; this source itself if SQL cannot express the filter."""
        condition = sql_condition(predicate_expr, self._dataset.features)
        if condition is None:
            return self
        found = copy(self)
        found._predicate_expr = (
            predicate_expr if self._predicate_expr is None else self._predicate_expr & predicate_expr
        )
        found._conditions = (*self._conditions, condition)
        return found

    # -- reading ------------------------------------------------------------------------------------------------

    def estimate_inmemory_data_size(self) -> int:
        """Return the size of the chosen fields in memory, estimated from a few samples, before filters."""
        return int(len(self._dataset) * self._sample_bytes)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return about `parallelism` tasks, each for a range of positions."""
        stored, schema = self._store(), self._probe.schema
        rows = max(1, int(_BLOCK_BYTES / max(1.0, self._sample_bytes)))
        tasks = []
        for begin, end in read_ranges(self._dataset, parallelism):
            metadata = BlockMetadata(
                num_rows=None if self._conditions else end - begin,
                size_bytes=int((end - begin) * self._sample_bytes),
                input_files=None,
                exec_stats=None,
            )
            read = partial(_read, stored, begin, end, rows, self._fields, self._conditions)
            tasks.append(ReadTask(read, metadata, schema=schema, per_task_row_limit=per_task_row_limit))
        return tasks

    def _store(self) -> StoredValue:
        """Store the dataset in the cluster, once for each connection to it."""
        if not ray.is_initialized():
            ray.init()
        connection = ray.get_runtime_context().get_job_id()
        if self._stored is None or self._stored[0] != connection:
            settings = partial(import_credentials, export_credentials(secrets=False))
            self._stored = connection, StoredValue(dump_value(self._dataset), settings)
        return self._stored[1]

    @cached_property
    def _probe(self) -> pa.Table:
        """A block of a few samples."""
        some = np.unique(np.linspace(0, max(0, len(self._dataset) - 1), _MEASURED).astype(np.int64))
        view = self._dataset[some if len(self._dataset) else slice(0)]
        return _chosen_block(view, self._fields)

    @property
    def _fields(self) -> list[str] | None:
        """The chosen fields; None for all."""
        return None if self._projection_map is None else list(self._projection_map)

    @property
    def _sample_bytes(self) -> float:
        return float(self._probe.nbytes / max(1, self._probe.num_rows))


def _read(
    stored: StoredValue,
    begin: int,
    end: int,
    rows: int,
    fields: list[str] | None,
    conditions: tuple[tuple[str, list[Any]], ...],
) -> Iterator[pa.Table]:
    """In a task: yield the samples from `begin` to `end` as blocks of `rows` samples."""
    dataset: Dataset[Any] = stored.get()
    view = dataset[begin:end]
    for text, values in conditions:
        view = view.where(text, values)
    for first in range(0, max(1, len(view)), rows):
        yield _chosen_block(view[first : first + rows], fields)


def _chosen_block(view: Dataset[Any], fields: list[str] | None) -> pa.Table:
    if fields == []:  # Ray counts the rows
        return pa.table({_NO_FIELDS: pa.nulls(len(view))})
    return block_of(view if fields is None else view.select(*fields))


# -- ranges -----------------------------------------------------------------------------------------------------


def read_ranges(dataset: Dataset[Any], count: int) -> list[tuple[int, int]]:
    """Cut a dataset into about `count` ranges of positions; a cut is moved to the end of a shard that is near.

    >>> read_ranges(open([{"x": k} for k in range(10)]), 3)
    [(0, 3), (3, 7), (7, 10)]
    """
    total = len(dataset)
    size = total / max(1, min(count, total))
    ideal = [round(number * size) for number in range(1, max(1, min(count, total)))]
    inner = sorted({_near_shard_end(dataset, cut, int(size / 4)) for cut in ideal})
    cuts = [0, *inner, total]
    return [(begin, end) for begin, end in pairwise(cuts) if begin < end]


def _near_shard_end(dataset: Dataset[Any], cut: int, distance: int) -> int:
    """Return the position nearest to `cut` at which a shard begins, if it is within a distance; else `cut`."""
    low, high = max(0, cut - distance), min(len(dataset) - 1, cut + distance)
    before, own, after = dataset.shards([low, cut, high])
    found = []
    if before != own:
        found.append(_first(low, cut, lambda position: dataset.shards([position])[0] == own))
    if after != own:
        found.append(_first(cut, high, lambda position: dataset.shards([position])[0] != own))
    return min(found, key=lambda position: abs(position - cut), default=cut)


def _first(low: int, high: int, is_behind: Callable[[int], bool]) -> int:
    """Return the first position at which a condition is true, which is false at `low` and true at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_behind(middle) else (middle, high)
    return high
