"""Writes samples as CSV files with a header each; used by `format`.

Text is quoted if another reading could change it. A missing value is an empty cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardex.errors import SchemaError
from shardex.features import Feature, Features, Text, Value, unwrap_optional
from shardex.formats.csv.cells import refuse_features
from shardex.formats.csv.records import Dialect, first_record
from shardex.formats.sample_writer import SeriesWriter, ShardSeries, check_shard_options
from shardex.sources import place_of

EXTENSION = ".csv"
OWNED = r"[^/]+-\d{5,}\.csv"
"""Regular expression of the files that the writer makes: overwriting must not remove other tables."""
_TO_QUOTE = re.compile(r'[",\n\r]|^\s|\s$|^$|^\ufeff')


class CsvWriter(SeriesWriter):
    """Writes samples as records into numbered files; made by `format.create`."""

    def __init__(self, path: str, features: Features, mode: str, shard_rows: int, shard_size: int, prefix: str) -> None:
        check_shard_options(shard_rows, shard_size, prefix)
        if not features:
            raise SchemaError("expected at least one field for the format csv, got none")
        refuse_features(features)
        super().__init__(path, mode, features, OWNED)
        with self._abort_on_error():
            refuse_other_columns(self.path, self._stage.existing, features)
            first = self._stage.next_number(prefix, EXTENSION)
        self._cells = [(name, _cell_writer(feature)) for name, feature in features.items()]
        header = _joined([_quoted(name) for name in features])
        self._shards = ShardSeries(
            self._stage,
            lambda number: f"{prefix}-{number:05d}{EXTENSION}",
            first,
            rows=shard_rows,
            size=shard_size,
            begin=header,
        )

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        cells = ["" if (value := sample[name]) is None else write(value) for name, write in self._cells]
        if cells == [""]:
            cells = [self._cell_of_nothing()]
        return _joined(cells)

    def _cell_of_nothing(self) -> str:
        """Return the cell of a sample without values; an empty line would be no sample."""
        (feature,) = self._features.values()
        if isinstance(unwrap_optional(feature), Value):
            return '""'  # a missing number, if it is quoted too
        (name,) = self._features
        raise SchemaError(
            f"expected a value, got None - at field {name}; the line of a sample without values would be blank: "
            "write another field too"
        )


def _joined(cells: Sequence[str]) -> bytes:
    try:
        return ",".join(cells).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise SchemaError(f"expected text that UTF-8 can hold, got {error.object[:60]!r}: {error.reason}") from None


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _cell_writer(feature: Feature) -> Callable[[Any], str]:
    """Return the function that writes a value that is not None."""
    inner = unwrap_optional(feature)
    if isinstance(inner, Text):
        return _quoted
    if not isinstance(inner, Value):
        return lambda value: _quoted(str(value))
    if inner.dtype == "bool":
        return lambda value: "true" if value else "false"
    return (lambda value: repr(float(value))) if inner.dtype.startswith("float") else (lambda value: str(int(value)))


def refuse_other_columns(path: str, existing: Sequence[str], features: Features) -> None:
    """Raise an error if files to append to have other columns."""
    place = place_of(path)
    for name in (name for name in existing if name.lower().endswith(EXTENSION)):
        if (record := first_record(place, name, Dialect())) is None:
            continue
        if (found := Dialect().column_names(record)) != tuple(features):
            raise SchemaError(
                f"{path}: expected the fields {', '.join(found)} to append, as in {name}, got {', '.join(features)}"
            )
        return
