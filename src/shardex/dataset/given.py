"""What people give to `open`: the names of files, rows of any kind, or samples that are there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardex.dataset.layers import TypedRows
from shardex.dataset.typed_views import check_type, wanted_by
from shardex.errors import SchemaError
from shardex.files import What
from shardex.formats import open_rows
from shardex.rows import ListRows, Rows
from shardex.samples import PackableSample, fields_of
from shardex.schema import Features

__all__ = ["Given", "rows_of"]

Given = What | Rows | Sequence[Any]


def rows_of(what: Any, sample_type: Any, format: str | None, schema: Any, options: dict[str, Any]) -> Any:
    """The rows; where files leave open what is in them, read as the type of the samples says."""
    if sample_type is not None:
        check_type(sample_type)
    samples = isinstance(what, list | tuple) and len(what) > 0 and all(isinstance(one, _SAMPLES) for one in what)
    if samples or (isinstance(what, Rows) and not isinstance(what, Sequence)):
        if format is not None or schema is not None or options:
            raise SchemaError("expected no format, schema or options for samples that are there already, got some")
        return _rows_of_samples(what) if samples else what
    if schema is not None:
        options["schema"] = Features.of(schema)
    return open_rows(what, format, wanted=wanted_by(sample_type), **options)


_SAMPLES = (Mapping, PackableSample)


def _rows_of_samples(samples: Sequence[Any]) -> Rows:
    """Typed if all are of one class."""
    kinds = {type(one) for one in samples}
    if any(issubclass(kind, PackableSample) for kind in kinds):
        rows = ListRows([fields_of(one) for one in samples])
        return TypedRows(rows, kinds.pop()) if len(kinds) == 1 else rows
    return ListRows(samples)
