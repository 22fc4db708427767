"""The one protocol: rows. Anything with `len` and `read(rows, fields)` is a dataset.

Shards of any format, views, joins, a list in a test: layers above know nothing else of them. Other abilities are
optional and separate protocols: to tell the features, to read one sample faster than a read of one, to begin to fetch
what is read soon, to tell the file of a row, to tell how reading spends its time, to name the data, and to give whole
fields to SQL.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import FieldError, RowError, SchemaError
from shardex.kernel import MISSING, Columns, digest
from shardex.schema import Features, infer

__all__ = [
    "Advised",
    "Attributes",
    "Decodes",
    "Described",
    "Extracted",
    "Fingerprinted",
    "ListRows",
    "Located",
    "ReadsOne",
    "Rows",
    "Sparse",
    "are_positions",
    "check_fields",
    "extracted_of",
    "features_of",
    "fingerprint_of",
    "normalise",
    "whole_number",
]

Integers = NDArray[np.int64]


@runtime_checkable
class Rows(Protocol):
    """Samples by number."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """The fields of these rows (all fields if none are named), in this order; rows are from 0 to len."""


@runtime_checkable
class Described(Protocol):
    """Rows that know their features."""

    @property
    def features(self) -> Features:
        """Name and feature of each field."""


@runtime_checkable
class ReadsOne(Protocol):
    """Rows with a shorter way to one sample than `read` of one row."""

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """The fields of one row from 0 to len."""


@runtime_checkable
class Advised(Protocol):
    """Rows that can begin to fetch what is read soon."""

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Have the storage begin to fetch what `read` will need, and do not wait for it.

        Bad data and rows that are not there are left for the read to refuse. Safe while another thread reads.
        """


@runtime_checkable
class Located(Protocol):
    """Rows that lie in files."""

    def shards(self, rows: Integers) -> list[str]:
        """The file that each row lies in, as messages name it; where fields have files of their own, the first."""


@runtime_checkable
class Decodes(Protocol):
    """Rows that know how they are decoded."""

    @property
    def in_python(self) -> bool:
        """Whether reading mostly holds the interpreter, so that threads do not make it faster, only processes do."""


@runtime_checkable
class Fingerprinted(Protocol):
    """Rows with a name for their data."""

    @property
    def fingerprint(self) -> str:
        """Changes when the data does; the same in every process."""


@runtime_checkable
class Attributes(Protocol):
    """Rows that have whole fields at hand as Arrow columns."""

    def attributes(self, names: Sequence[str]) -> pa.Table:
        """These fields of all rows in order, as SQL sees them (`attributes.py`)."""


@runtime_checkable
class Extracted(Protocol):
    """Rows that can give SQL more than their fields."""

    @property
    def extracted(self) -> Features:
        """What was taken out of the samples when they were indexed; `attributes` takes these names too."""


@runtime_checkable
class Sparse(Protocol):
    """Rows that know which of them have a field, without reading its values."""

    def present(self, name: str) -> NDArray[np.bool_]:
        """Whether each row has a value for a field."""


_SOME = 1000


class ListRows:
    """Rows around a list of dicts: for tests and for small data.

    >>> ListRows([{"x": 1}, {"x": 2}]).read(np.array([1, 0]))["x"]
    array([2, 1])
    """

    def __init__(self, samples: Sequence[Mapping[str, Any]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def features(self) -> Features:
        """What fits all samples."""
        return infer(self.samples)

    @cached_property
    def fingerprint(self) -> str:
        """Names the samples, of a long list the first and the last ones."""
        some = [*self.samples[:_SOME], *self.samples[max(_SOME, len(self) - _SOME) :]]
        return digest("samples", len(self), some)

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for sample in self.samples for name in sample))

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Pick samples and stack them."""
        names = check_fields(self._names, fields)
        samples = [self.samples[row] for row in rows.tolist()]
        return Columns({name: [sample.get(name, MISSING) for sample in samples] for name in names}, len(rows)).stack()


def features_of(rows: Rows) -> Features:
    """The features of rows: their own, or what their first samples look like."""
    if isinstance(rows, Described):
        return rows.features
    return infer(rows.read(np.arange(min(len(rows), 16))).to_samples())


def extracted_of(rows: Rows) -> Features:
    """What SQL can ask of rows besides their fields."""
    return rows.extracted if isinstance(rows, Extracted) else Features({})


def fingerprint_of(rows: Rows) -> str:
    """The name of the data of rows: their own, or else one for their type and length.

    >>> fingerprint_of(ListRows([{"x": 1}])) == fingerprint_of(ListRows([{"x": 2}]))
    False
    """
    return rows.fingerprint if isinstance(rows, Fingerprinted) else digest(type(rows).__qualname__, len(rows))


def check_fields(known: Sequence[str], fields: Sequence[str] | None) -> list[str]:
    """The fields to read: those asked for, or all; an error names one that is not there.

    >>> check_fields(["x", "y"], ["y"]), check_fields(["x", "y"], None)
    (['y'], ['x', 'y'])
    """
    if fields is None:
        return list(known)
    if isinstance(fields, str):
        raise SchemaError(f"expected a list of field names, got the text {fields!r}")
    for name in fields:
        if name not in known:
            raise FieldError(f"expected one of the fields {', '.join(known)}, got {name!r}")
    return list(fields)


def normalise(where: Any, length: int) -> Integers:
    """Row numbers for what people write between brackets: ints, slices, lists, arrays, masks; negative from the end.

    >>> normalise([0, -1], 5).tolist(), normalise(slice(None, None, 2), 5).tolist()
    ([0, 4], [0, 2, 4])
    >>> normalise([False, True, True], 3).tolist()
    [1, 2]
    """
    if isinstance(where, slice):
        return np.arange(*where.indices(length), dtype=np.int64)
    try:
        array = np.asarray(where)
    except ValueError:
        raise SchemaError(f"expected row numbers, a slice or a mask, got {type(where).__name__}") from None
    if array.size == 0 and array.ndim == 1 and array.dtype.kind == "f":
        return np.empty(0, np.int64)
    if array.ndim == 1 and array.dtype.kind == "b":
        if len(array) != length:
            raise RowError(f"expected a mask of {length} truth values, got {len(array)}")
        return np.flatnonzero(array)
    if array.ndim > 1 or array.dtype.kind not in "iu":
        raise SchemaError(f"expected row numbers, a slice or a mask, got {array.dtype} of {array.ndim} dimensions")
    return _counted(array.reshape(-1), length)


def are_positions(given: Any, length: int) -> bool:
    """Whether they can be used as they are; seen as unsigned, a negative number is a huge one, so one pass suffices.

    >>> are_positions(np.array([0, 2]), 3), are_positions(np.array([0, -1]), 3), are_positions([0], 3)
    (True, False, False)
    """
    if type(given) is not np.ndarray or given.dtype != np.int64 or given.ndim != 1:
        return False
    return not len(given) or int(given.view(np.uint64).max()) < length


def whole_number(count: Any, least: int | None = None) -> int:
    """A number of samples.

    >>> whole_number(np.int8(3)), whole_number(-2)
    (3, -2)
    """
    try:
        number = operator.index(count)
    except TypeError:
        raise SchemaError(f"expected a whole number of samples, got {count!r}") from None
    if least is not None and number < least:
        raise SchemaError(f"expected batches of at least {least} sample, got {count}")
    return number


def _counted(rows: NDArray[Any], length: int) -> Integers:
    """Rows counted from 0 on; before they are made int64, which would let the largest uint64 pass for -1."""
    least, most = (int(rows.min()), int(rows.max())) if len(rows) else (0, -1)
    if least < -length or most >= length:
        bad = least if least < -length else most
        expected = f"a row from {-length} to {length - 1}" if length else "no row, because the dataset is empty"
        raise RowError(f"expected {expected}, got {bad}")
    found = rows.astype(np.int64, copy=False)
    return np.where(found < 0, found + length, found) if least < 0 else found
