"""The fields of records without a schema (JSON lines, MessagePack): all keys, each with a feature that fits its values.

Every record is decoded once, by a decoder that accepts only the keys and types found so far, which is as fast as
decoding to dicts; a record that it refuses adds its keys and types (`KeyScan`). A key that some records lack is
optional; a key whose values are lists, objects or of several types is `Json`. The result is a sidecar file next to the
index, and only data files that changed are read again. Of data above `COMPLETE_BYTES`, a sample of the records is read,
unless the user asks for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from shardex.errors import ArgumentError, SchemaError
from shardex.features import Bytes, Date, Feature, Features, Json, Optional, Text, Timestamp, Value, unwrap_optional
from shardex.files import (
    Files,
    Index,
    IndexedFile,
    Sidecar,
    decode_sidecar,
    load_related_sidecars,
    load_sidecars,
    save_sidecar,
)
from shardex.jobs import run_parts
from shardex.kernel import Column, Integers, cores, with_missing

VERSION = 1
COMPLETE_BYTES = 2 << 30
"""Total size of records up to which all are read: about five seconds, once."""
_SAVED_BYTES = 1 << 20
"""Total size of records from which on the result is saved; reading fewer takes no longer than reading the result."""
MAX_KEYS = 4096
"""Objects with more different keys are maps, not samples: each is one value."""
_BLOCK_ROWS = 1 << 14
_TASK_BYTES = 64 << 20
_BYTES_FOR_PROCESSES = 512 << 20
_SECONDS_FOR_PROCESSES = 1.0
"""Size of data, and time that it takes, from which on processes pay off: they start in a quarter of a second."""
_SAMPLED_BLOCKS, _SAMPLED_ROWS = 400, 256
"""Number and length of the runs of records that are read if not all are."""
_FIRST_ROWS = 16
"""Number of records that are downloaded to find the fields."""

MakeDecoder = Callable[[Any], Callable[[bytes], Any]]
"""Returns a function that decodes a record as a type of msgspec."""
Kinds = dict[str, list[str]]
"""For each key the kinds of its values, and "missing" if a record lacks it."""

_TYPES: dict[str, Any] = {
    "null": None,
    "bool": bool,
    "int": Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)],
    "long": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    "big": int,
    "float": float,
    "text": str,
    "bytes": bytes,
    "list": list,
    "object": dict,
}
"""Types of msgspec for each kind; integers by whether float64 and int64 hold them."""
_INTEGERS = ("int", "long", "big")
_FEATURES: dict[frozenset[str], Feature] = {
    frozenset({"bool"}): Value("bool"),
    frozenset({"int"}): Value("int64"),
    frozenset({"long"}): Value("int64"),
    frozenset({"int", "long"}): Value("int64"),
    frozenset({"float"}): Value("float64"),
    frozenset({"int", "float"}): Value("float64"),
    frozenset({"text"}): Text(),
    frozenset({"bytes"}): Bytes(),
    frozenset({"date"}): Date(),
    frozenset({"time"}): Timestamp(),
    frozenset({"date", "time"}): Timestamp(),
    frozenset({"nano"}): Timestamp("ns"),
    frozenset({"time", "nano"}): Timestamp("ns"),
    frozenset({"instant"}): Timestamp(zone="UTC"),
}
"""Features for each set of kinds; those of dates and times are kinds of cells of CSV files."""
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)


def feature_of_kinds(kinds: Iterable[str]) -> Feature:
    """Return the feature that fits all values of these kinds.

    >>> str(feature_of_kinds(["int", "float", "missing"])), str(feature_of_kinds(["int", "text"]))
    ('float64 or none', 'json')
    """
    found = frozenset(kinds)
    feature = _FEATURES.get(found - {"null", "missing"}, Json())
    return Optional(feature) if found & {"null", "missing"} else feature


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int" if abs(value) <= 1 << 53 else "long" if -(1 << 63) <= value < 1 << 63 else "big"
        case float():
            return "float"
        case str():
            return "text"
        case bytes():
            return "bytes"
    return "list" if isinstance(value, list) else "object"


class KeyScan:
    """Keys and kinds of values of the records that were added.

    >>> scan = KeyScan(lambda kind: msgspec.json.Decoder(kind).decode, msgspec.json.decode)
    >>> scan.add([b'{"a": 1}', b'{"a": 2.5, "b": "x"}']); scan.kinds
    {'a': ['float', 'int'], 'b': ['missing', 'text']}
    """

    def __init__(self, make_decoder: MakeDecoder, decode: Callable[[bytes], Mapping[str, Any] | None]) -> None:
        self.rows = 0
        self._make_decoder, self._decode = make_decoder, decode
        self._found: dict[str, set[str]] = {}
        self._accepts: Callable[[bytes], Any] = self._refuse
        self._seen, self._changed = False, False
        self._refused, self._patience = 0, 1

    @property
    def kinds(self) -> Kinds:
        """For each key the kinds of its values."""
        return {name: sorted(kinds) for name, kinds in self._found.items()}

    @property
    def seen(self) -> bool:
        """True if a record could be decoded."""
        return self._seen

    def add(self, records: Sequence[bytes]) -> None:
        """Add records; those that cannot be decoded are skipped, a read of them raises an error."""
        rest = iter(records)
        while len(self._found) <= MAX_KEYS:
            try:
                accepts = self._accepts
                for record in rest:
                    accepts(record)
            except _REFUSALS:
                self._add(self._decode(record))
                self._rebuild()
            else:
                break
        self.rows += len(records)

    def _add(self, sample: Mapping[str, Any] | None) -> None:
        if sample is None:
            return
        for name, value in sample.items():
            if (kinds := self._found.get(name)) is None:
                kinds = self._found[name] = {"missing"} if self._seen else set()
                self._changed = True
            if (kind := _kind(value)) not in kinds:
                kinds.add(kind)
                self._changed = True
        self._seen = True
        if len(sample) < len(self._found):
            for name in self._found.keys() - sample.keys():
                self._changed |= "missing" not in self._found[name]
                self._found[name].add("missing")

    def _rebuild(self) -> None:
        """Make a decoder that accepts all that was found; each time after twice as many refused records."""
        self._refused += 1
        if self._refused < self._patience or not self._changed:
            return
        self._patience, self._changed = 2 * self._refused, False
        fields: list[Any] = []
        for number, kinds in enumerate(self._found.values()):
            field = (f"f{number}", _type_of(kinds))
            fields.append((*field, None) if "missing" in kinds else field)
        names = {f"f{number}": name for number, name in enumerate(self._found)}
        try:
            kind = msgspec.defstruct("Record", fields, rename=names, kw_only=True, forbid_unknown_fields=True, gc=False)
            self._accepts = self._make_decoder(kind)
        except (ValueError, TypeError):  # a name with a quote, or types that msgspec cannot tell apart
            self._accepts = self._refuse

    def _refuse(self, record: bytes) -> None:
        raise ValueError


def _type_of(kinds: set[str]) -> Any:
    """Return the type of msgspec that accepts values of these kinds only."""
    if "float" in kinds and not kinds & {*_INTEGERS}:
        kinds = kinds | {"int"}  # a float alone would accept any integer
    widest = next((kind for kind in reversed(_INTEGERS) if kind in kinds), None)
    types = [kind for name, kind in _TYPES.items() if name in kinds and (name not in _INTEGERS or name == widest)]
    joined = types[0] if types else None
    for kind in types[1:]:
        joined = joined | kind if joined is not None else kind | None
    return joined


# -- the fields of a dataset ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordFields:
    """What was found in the records of a dataset."""

    kinds: Kinds
    rows: int
    """Number of records that were read."""
    complete: bool
    """True if all records were read."""

    @property
    def as_map(self) -> bool:
        """True if objects are maps, not samples: there are too many different keys, or one that no field can have."""
        return len(self.kinds) > MAX_KEYS or "" in self.kinds

    def features(self, value_field: str) -> Features:
        """Return the features of all keys; of maps, one field of JSON."""
        if self.as_map:
            return Features({value_field: Json()})
        return Features({name: feature_of_kinds(kinds) for name, kinds in self.kinds.items()})


class FieldScan(Protocol):
    """Keys and kinds of values of records: `KeyScan`, or that of a format whose records are no objects."""

    rows: int

    @property
    def kinds(self) -> Kinds:
        """For each key the kinds of its values."""

    @property
    def seen(self) -> bool:
        """True if a record could be decoded."""


AnyScan = TypeVar("AnyScan", bound=FieldScan)


class Records(Protocol[AnyScan]):
    """Rows whose records are scanned."""

    files: Files
    index: Any

    def __len__(self) -> int:
        """Number of records."""

    def key_scan(self) -> AnyScan:
        """Return a scan without records."""

    def scan_keys(self, rows: Integers, scan: AnyScan) -> None:
        """Add the records of these rows."""


def record_fields(
    rows: Records[Any], format: str, infer_from: str | None, *, options: str = "", rebuild: bool = False
) -> RecordFields:
    """Return the fields of all records: saved ones if they are up to date, otherwise they are found now and saved.

    `infer_from` is "all" or "sample"; None reads all records if they are not too large, and only the first ones if they
    must be downloaded for that. Saved ones have the same `options`; `rebuild` ignores them.
    """
    size = sum(file.size for file in rows.index.files)
    if infer_from is None and _must_be_downloaded(rows, format):
        scan = rows.key_scan()
        rows.scan_keys(np.arange(min(_FIRST_ROWS, len(rows))), scan)
        return RecordFields(scan.kinds, scan.rows, complete=len(rows) <= _FIRST_ROWS)
    complete = infer_from == "all" or (infer_from is None and size <= COMPLETE_BYTES)
    kind = f"{format}-fields 1{options}"
    files = list(rows.index.files) if isinstance(rows.index, Index) else []
    saved: list[_Saved] = []
    for one in [] if rebuild else _load(rows.files, kind):
        is_current = one.fingerprint == rows.index.fingerprint and one.files == files
        if is_current and (one.complete or not complete):
            return one.fields
        saved.append(one)
    known = {file: found for one in saved if one.complete for file, found in one.found.items()} if complete else {}
    parts = _scan(rows, known) if complete else [_sampled(rows, rows.key_scan())]
    head = {
        "version": VERSION,
        "kind": kind,
        "fingerprint": rows.index.fingerprint,
        "complete": complete,
        "files": [asdict(file) for file in files],
        "found": [{"rows": count, "kinds": kinds} for count, kinds in parts],
        "blocks": [],
    }
    if size >= _SAVED_BYTES:
        save_sidecar(rows.files, kind, Sidecar(head, pa.schema([]), []))
    return _joined(parts, complete)


def _load(files: Files, kind: str) -> Iterator[_Saved]:
    """Yield the saved fields: those of this path, then those of other paths to the same files."""
    yield from load_sidecars(files, kind, _Saved, "finding the fields again")
    yield from (one for one in load_related_sidecars(files, kind, _Saved) if one.kind == kind)


def _must_be_downloaded(rows: Records[Any], format: str) -> bool:
    """Return whether records are remote and the index was made without reading them, as that of lines is not."""
    return rows.files.source.is_remote and not (format in ("jsonl", "csv") and isinstance(rows.index, Index))


Part = tuple[int, Kinds]
"""Number of records and the kinds of their values."""


class _Saved:
    def __init__(self, data: memoryview, name: str) -> None:
        _, head = decode_sidecar(data, name, VERSION, lambda head: pa.schema([]))
        self.kind: str | None = head.get("kind")
        self.fingerprint: str = head["fingerprint"]
        self.complete: bool = head["complete"]
        parts: list[Part] = [(part["rows"], part["kinds"]) for part in head["found"]]
        self.fields = _joined(parts, self.complete)
        self.files = [IndexedFile(**file) for file in head["files"]]
        self.found = dict(zip(self.files, parts, strict=False))


def _joined(parts: Sequence[Part], complete: bool) -> RecordFields:
    kinds = _joined_kinds([(rows > 0, found) for rows, found in parts])
    return RecordFields(kinds, sum(rows for rows, _ in parts), complete)


def _joined_kinds(parts: Sequence[tuple[bool, Kinds]]) -> Kinds:
    """Return the kinds of the values of several parts; a key that a part with records lacks is missing in these."""
    kinds: dict[str, set[str]] = {}
    for _, found in parts:
        for name, some in found.items():
            kinds.setdefault(name, set()).update(some)
    for has_records, found in parts:
        if has_records:
            for name in kinds.keys() - found.keys():
                kinds[name].add("missing")
    return {name: sorted(some) for name, some in kinds.items()}


class _Task(NamedTuple):
    """Rows of a file that are scanned together."""

    file: int
    begin: int
    end: int


class _Found(NamedTuple):
    rows: int
    kinds: Kinds
    seen: bool
    """True if a record could be decoded."""


def _scan(rows: Records[Any], known: Mapping[IndexedFile, Part]) -> list[Part]:
    """Read all records of each file that is not known; all at once if the index does not go file by file.

    Much data that is decoded slowly is read in processes: decoding holds the GIL. The tasks depend on the files alone,
    and so does the result.
    """
    files = rows.index.files if isinstance(rows.index, Index) else (IndexedFile("", 0, "", len(rows)),)
    starts = np.cumsum([0, *(file.rows for file in files)]).tolist()
    todo = [number for number, file in enumerate(files) if file not in known]
    tasks = [task for number in todo for task in _tasks(number, starts[number], files[number])]
    found: dict[int, list[_Found]] = {number: [] for number in todo}
    workers = _workers(rows, sum(files[number].size for number in todo))
    if workers > 1 and tasks:
        begin, first = perf_counter(), tasks.pop(0)
        found[first.file].append(_scan_task(rows, first))
        workers = workers if (perf_counter() - begin) * len(tasks) > _SECONDS_FOR_PROCESSES else 1
    for task, one in run_parts(
        partial(_scan_task, rows),
        tasks,
        workers=workers,
        count=len(tasks),
        size=lambda task: task.end - task.begin,
        total=sum(task.end - task.begin for task in tasks),
        desc="fields",
        unit=" samples",
        delay=1,
    ):
        found[task.file].append(one)
    return [known[file] if file in known else _part(found[number]) for number, file in enumerate(files)]


def _tasks(number: int, start: int, file: IndexedFile) -> Iterator[_Task]:
    """Yield tasks of about `_TASK_BYTES` each for a file whose first row is `start`."""
    step = max(_BLOCK_ROWS, file.rows * _TASK_BYTES // max(file.size, 1))
    for begin in range(start, start + file.rows, step):
        yield _Task(number, begin, min(begin + step, start + file.rows))


def _scan_task(rows: Records[Any], task: _Task) -> _Found:
    scan = rows.key_scan()
    for first in range(task.begin, task.end, _BLOCK_ROWS):
        rows.scan_keys(np.arange(first, min(first + _BLOCK_ROWS, task.end)), scan)
    return _Found(scan.rows, scan.kinds, scan.seen)


def _part(found: Sequence[_Found]) -> Part:
    return sum(one.rows for one in found), _joined_kinds([(one.seen, one.kinds) for one in found])


def _workers(rows: Records[Any], size: int) -> int:
    """Return the number of processes: all cores for much local data that has a saved index, otherwise 1."""
    can_open = hasattr(rows, "opened") and isinstance(rows.index, Index) and os.path.isfile(rows.index.name)
    is_local = rows.files.source.data_folder is not None
    return cores() if size >= _BYTES_FOR_PROCESSES and can_open and is_local else 1


def _sampled(rows: Records[AnyScan], scan: AnyScan) -> Part:
    """Read runs of records that are spread evenly, the first and the last included."""
    last = max(0, len(rows) - _SAMPLED_ROWS)
    starts = np.unique(np.linspace(0, last, _SAMPLED_BLOCKS).astype(np.int64))
    runs = starts[:, None] + np.arange(min(_SAMPLED_ROWS, len(rows)))
    for some in np.array_split(np.unique(runs), 8):
        rows.scan_keys(some, scan)
    return scan.rows, scan.kinds


def check_infer_from(infer_from: str | None) -> None:
    """Raise an error for a value that the option does not have."""
    if infer_from not in (None, "all", "sample"):
        raise ArgumentError(f'expected infer_from to be "all" or "sample", got {infer_from!r}')


# -- values ----------------------------------------------------------------------------------------------------


def inferred_column(values: list[Any], feature: Feature) -> Column:
    """Return values that fit a feature as a column, in a form that depends on the feature alone.

    >>> inferred_column([1, 0.5], Value("float64")), inferred_column([1, None], Optional(Value("float64")))
    (array([1. , 0.5]), Masked(1 of 2 rows: array([ 1., nan])))
    """
    inner = unwrap_optional(feature)
    if not inner.stacked:
        return values
    if inner is feature:
        return (
            np.array(values, inner.dtype)
            if isinstance(inner, Value)
            else inner.fit_column(values, str, "", stored=True)
        )
    mask = np.array([value is not None for value in values], np.bool_)
    return with_missing(inferred_column([value for value in values if value is not None], inner), mask)


def float_fields(features: Features) -> list[str]:
    """Return the names of the fields of floats, in which a record may have an integer."""
    return [name for name, feature in features.items() if unwrap_optional(feature) == Value("float64")]


def integers_to_floats(sample: dict[str, Any], names: Sequence[str]) -> None:
    """Convert integers in these fields of a sample to floats."""
    for name in names:
        if type(sample.get(name)) is int:
            sample[name] = float(sample[name])


def refuse_misfit(sample: Mapping[str, Any], features: Features, place: Callable[[], str], remedy: str) -> None:
    """Raise an error if a record has a key that the features lack, or a value that does not fit."""
    for name, value in sample.items():
        if name not in features:
            raise SchemaError(f"{place()}: expected the fields {', '.join(features)}, got {name!r} too; {remedy}")
        try:
            features[name].fit(value, stored=True)
        except SchemaError as error:
            raise SchemaError(f"{place()}: {error} - at field {name}; {remedy}") from None
