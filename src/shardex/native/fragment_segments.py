"""Segments: consecutive fragments of one shape, with their rows, first ids and files as arrays.

The fragments of an `InlineSegment` are listed in the manifest. Those of a `RunSegment` are listed in a data file of
their own, by columns of numbers, which is read when it is first needed. `fragment_list` makes a sequence of segments.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError
from shardex.kernel import Integers
from shardex.native.fragments import DataFile, Foreign, Fragment, content_of

LARGEST = 1 << 62
"""Largest size of a file, and largest id."""
MOST_ROWS = 1 << 40
"""Most rows of a file and of a fragment. Reading allocates memory for rows, so larger numbers are refused."""
_PATH = re.compile(r"data/([0-9a-f]{16})([0-9a-f]{16})-([0-9a-f]{16})\.arrow")
_PARTS = ("content_high", "content_low", "number", "size", "end", "count", "foot")
"""Columns of a run for each group of fields: the two halves of the checksum in the name of the file, the number in its
name, its size, the end of its last batch, its number of batches, and the checksum of its foot."""
MOST_BATCHES = 1 << 20
"""Most batches of a file, for the same reason."""

Numbers = NDArray[np.uint64]
Fields = dict[str, str]
Shape = tuple[tuple[tuple[tuple[str, str], ...], ...], bool, bool]
"""Fields and columns of each file of a fragment, whether it has a key table, and whether it can be in a run."""


class KeyRange(msgspec.Struct, frozen=True):
    """A key table of the fragments of a run from `begin` to `end`; its rows count from the first row of `begin`."""

    file: DataFile
    begin: int
    end: int


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """Consecutive fragments that are listed in a file."""

    file: DataFile
    """The file with the columns."""
    fragments: int
    rows: int
    """Rows of all fragments."""
    groups: list[Fields]
    """The column of each field, for each file of a fragment; a file whose fields were all dropped has an empty dict
    here.
    """
    keys: bool = False
    """True if each fragment has a key table."""
    tables: list[KeyRange] = []
    """Key tables of several fragments, in order: with them, a key is looked for in few files."""
    after: int = 0
    """Number of fragments before the run that the manifest lists itself."""

    @property
    def own_files(self) -> list[DataFile]:
        """The files that belong to the run and not to one of its fragments."""
        return [self.file, *(one.file for one in self.tables)]

    @property
    def prefixes(self) -> list[str]:
        """For each file the beginning of the names of its columns."""
        return [f"{number}." for number in range(len(self.groups))] + ["keys."] * self.keys

    @property
    def columns(self) -> list[str]:
        """Names of the columns of numbers in the file."""
        return ["rows", "first", *(prefix + part for prefix in self.prefixes for part in _PARTS)]


Load = Callable[[DataFile, Sequence[str]], Mapping[str, Numbers]]
"""Returns columns of a data file."""
Write = Callable[[Mapping[str, Numbers]], DataFile]
"""Writes columns to a data file."""


class FileColumns:
    """One data file of each fragment of a segment, by columns; `fields` are those of all these files."""

    __slots__ = ("fields", "parts", "rows")

    def __init__(self, fields: Fields, rows: Integers, parts: Mapping[str, Numbers]) -> None:
        self.fields = fields
        self.rows = rows
        self.parts = parts

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Integers:
        """Size of each file."""
        return self.parts["size"].view(np.int64)

    @property
    def ends(self) -> Integers:
        """End of the last batch of each file."""
        return self.parts["end"].view(np.int64)

    @property
    def counts(self) -> Integers:
        """Number of batches of each file."""
        return self.parts["count"].view(np.int64)

    def file(self, number: int) -> DataFile:
        """Return one file."""
        high, low, random, size, end, count, foot = (int(self.parts[part][number]) for part in _PARTS)
        return DataFile(
            f"data/{high:016x}{low:016x}-{random:016x}.arrow",
            size,
            self.fields,
            foot=f"{foot:016x}",
            end=end,
            count=count,
            rows=int(self.rows[number]),
        )

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        names = np.stack([self.parts[part] for part in _PARTS[:3]], axis=1).astype(">u8").tobytes().hex()
        return [f"data/{names[k : k + 32]}-{names[k + 32 : k + 48]}.arrow" for k in range(0, len(names), 48)]

    def contents(self) -> Numbers:
        """Return the checksum of the content of each file, two numbers per file."""
        return np.stack([self.parts[part] for part in _PARTS[:2]], axis=1)

    def check(self, name: str) -> None:
        """Raise an error for numbers that no file has."""
        size, end, count = (self.parts[part] for part in ("size", "end", "count"))
        if (size > LARGEST).any() or (end > size).any() or (end == 0).any():
            raise FormatError(f"expected batches inside of files in the columns {name}, got others")
        if (count == 0).any() or (count > MOST_BATCHES).any() or (count > self.rows.view(np.uint64)).any():
            raise FormatError(f"expected batches with rows in the columns {name}, got others")


class FileEntries:
    """One data file of each fragment of a segment, as the manifest lists them."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files
        self.fields = files[0].fields

    def __len__(self) -> int:
        return len(self._files)

    @cached_property
    def sizes(self) -> Integers:
        """Size of each file."""
        return np.array([file.size for file in self._files], np.int64)

    @cached_property
    def ends(self) -> Integers:
        """End of the last batch of each file."""
        return np.array([file.end for file in self._files], np.int64)

    @cached_property
    def counts(self) -> Integers:
        """Number of batches of each file."""
        return np.array([file.count for file in self._files], np.int64)

    def file(self, number: int) -> DataFile:
        """Return one file."""
        return self._files[number]

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        return [file.path for file in self._files]

    def contents(self) -> Numbers:
        """Return the checksum of the content of each file, two numbers per file."""
        found = [content_of(file.path) for file in self._files]
        return np.array([(int(one[:16], 16), int(one[16:], 16)) for one in found], np.uint64)

    @property
    def parts(self) -> Mapping[str, Numbers]:
        """The columns of a run for these files, which have numbers in their names."""
        names = [found for file in self._files if (found := _PATH.fullmatch(file.path))]
        numbers = [
            (int(n[1], 16), int(n[2], 16), int(n[3], 16), file.size, file.end, file.count, int(file.foot, 16))
            for n, file in zip(names, self._files, strict=True)
        ]
        return dict(zip(_PARTS, np.array(numbers, np.uint64).reshape(-1, len(_PARTS)).T, strict=True))


class FragmentSegment(ABC):
    """Consecutive fragments of one shape."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def total(self) -> int:
        """Rows of all fragments."""

    @property
    @abstractmethod
    def rows(self) -> Integers:
        """Rows of each fragment."""

    @property
    @abstractmethod
    def firsts(self) -> Integers:
        """Id of the first row of each fragment."""

    @property
    @abstractmethod
    def groups(self) -> Sequence[Fields]:
        """Column of each field, for each file of a fragment."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The shape of the fragments."""

    @property
    def adopted(self) -> Foreign | None:
        """The adopted shards that hold some fields; never in a run."""
        return None

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """Equal for two segments with the same files; None if it is not known."""
        return None

    @abstractmethod
    def fragment(self, number: int) -> Fragment:
        """Return one fragment."""

    @abstractmethod
    def files(self, group: int) -> FileColumns | FileEntries:
        """Return the files of a group of fields; the last group may be the key tables."""

    @abstractmethod
    def renamed(self, rename: Callable[[Fields], Fields]) -> FragmentSegment:
        """Return the segment with other names of fields; files without fields are left out."""

    def columns(self) -> dict[str, Numbers]:
        """Return the columns that a run has for these fragments."""
        shape = self.shape
        found = {"rows": self.rows.view(np.uint64), "first": self.firsts.view(np.uint64)}
        prefixes = [f"{number}." for number in range(len(shape[0]))] + ["keys."] * shape[1]
        for number, prefix in enumerate(prefixes):
            files = self.files(number)
            found |= {prefix + part: files.parts[part] for part in _PARTS}
        return found


class InlineSegment(FragmentSegment):
    """Fragments that the manifest lists itself."""

    def __init__(self, fragments: Sequence[Fragment], shape: Shape) -> None:
        self.fragments = fragments
        self._shape = shape

    @staticmethod
    def of_file(file: DataFile) -> InlineSegment:
        """Return a segment of one fragment, which has this file."""
        return InlineSegment(only := [Fragment(file.rows, [file])], shape_of(only[0]))

    def __len__(self) -> int:
        return len(self.fragments)

    @cached_property
    def total(self) -> int:
        """Rows of all fragments."""
        return sum(one.rows for one in self.fragments)

    @cached_property
    def rows(self) -> Integers:
        """Rows of each fragment."""
        return np.array([one.rows for one in self.fragments], np.int64)

    @cached_property
    def firsts(self) -> Integers:
        """Id of the first row of each fragment."""
        return np.array([one.first for one in self.fragments], np.int64)

    @property
    def groups(self) -> Sequence[Fields]:
        """Column of each field, for each file of a fragment."""
        return [file.fields for file in self.fragments[0].groups]

    @property
    def adopted(self) -> Foreign | None:
        """The adopted shards that hold some fields."""
        return next((one.adopted for one in self.fragments if one.adopted is not None), None)

    @property
    def shape(self) -> Shape:
        """The shape of the fragments."""
        return self._shape

    def fragment(self, number: int) -> Fragment:
        """Return one fragment."""
        return self.fragments[number]

    def files(self, group: int) -> FileEntries:
        """Return the files of a group of fields; the last group may be the key tables."""
        return FileEntries([([*one.groups, one.keys] if one.keys else one.groups)[group] for one in self.fragments])

    def renamed(self, rename: Callable[[Fields], Fields]) -> FragmentSegment:
        """Return the segment with other names of fields; files without fields are left out."""
        changed = []
        for one in self.fragments:
            groups = [msgspec.structs.replace(file, fields=rename(file.fields)) for file in one.groups]
            foreign = one.foreign and msgspec.structs.replace(one.foreign, fields=rename(one.foreign.fields))
            kept = [file for file in groups if file.fields]
            changed.append(msgspec.structs.replace(one, groups=kept, foreign=foreign))
        return InlineSegment(changed, shape_of(changed[0]))


class RunSegment(FragmentSegment):
    """Fragments of a run; its file is read when it is first needed."""

    def __init__(self, run: Run, load: Load, ids: int) -> None:
        self.run = run
        self._load = load
        self._ids = ids

    def __len__(self) -> int:
        return self.run.fragments

    @property
    def total(self) -> int:
        """Rows of all fragments."""
        return self.run.rows

    @cached_property
    def _columns(self) -> Mapping[str, Numbers]:
        run = self.run
        columns = self._load(run.file, run.columns)
        rows, firsts = columns["rows"], columns["first"]
        if len(rows) != run.fragments or (rows == 0).any() or (rows > MOST_ROWS).any() or not _adds_up(rows, run.rows):
            found = f"{len(rows)} with {int(rows.sum())}"
            raise FormatError(f"{run.file.path}: expected {run.fragments} fragments with {run.rows} rows, got {found}")
        if (firsts > LARGEST).any() or int((firsts + rows).max()) > self._ids:
            raise FormatError(f"{run.file.path}: expected ids below {self._ids}, got {int((firsts + rows).max()) - 1}")
        for prefix in run.prefixes:
            parts = {part: columns[prefix + part] for part in _PARTS}
            FileColumns({}, rows.view(np.int64), parts).check(f"{prefix}* of {run.file.path}")
        return columns

    def with_tables(self, tables: list[KeyRange]) -> RunSegment:
        """Return the segment with other key tables of several fragments."""
        return self._with(msgspec.structs.replace(self.run, tables=tables))

    def load(self, known: RunSegment | None = None) -> None:
        """Read the file, if that has not happened yet; `known` is a segment of another version that has read it."""
        if known is not None:
            self.__dict__["_columns"] = known._columns
        _ = self._columns

    @property
    def rows(self) -> Integers:
        """Rows of each fragment."""
        return self._columns["rows"].view(np.int64)

    @property
    def firsts(self) -> Integers:
        """Id of the first row of each fragment."""
        return self._columns["first"].view(np.int64)

    @property
    def groups(self) -> Sequence[Fields]:
        """Column of each field, for each file of a fragment."""
        return [fields for fields in self.run.groups if fields]

    @property
    def shape(self) -> Shape:
        """The shape of the fragments."""
        return tuple(tuple(fields.items()) for fields in self.groups), self.run.keys, True

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two segments with the same files."""
        names = tuple(file.path for file in self.run.own_files)
        return names, *(tuple(fields.items()) for fields in self.run.groups)

    @cached_property
    def _files(self) -> list[FileColumns]:
        """The files of each group that has fields, and the key tables, if there are some."""
        fields = [*self.run.groups, *([{"hash": "hash", "row": "row"}] if self.run.keys else [])]
        return [
            FileColumns(one, self.rows, {part: self._columns[prefix + part] for part in _PARTS})
            for prefix, one in zip(self.run.prefixes, fields, strict=True)
            if one
        ]

    def fragment(self, number: int) -> Fragment:
        """Return one fragment."""
        files = [one.file(number) for one in self._files]
        keys = files.pop() if self.run.keys else None
        return Fragment(int(self.rows[number]), files, int(self.firsts[number]), keys)

    def files(self, group: int) -> FileColumns | FileEntries:
        """Return the files of a group of fields; the last group may be the key tables."""
        return self._files[group]

    def renamed(self, rename: Callable[[Fields], Fields]) -> FragmentSegment:
        """Return the segment with other names of fields; files without fields are left out."""
        return self._with(msgspec.structs.replace(self.run, groups=[rename(one) for one in self.run.groups]))

    def moved(self, paths: Mapping[str, str]) -> RunSegment:
        """Return the segment with other paths of the files of the run itself."""
        tables = [msgspec.structs.replace(one, file=moved_file(one.file, paths)) for one in self.run.tables]
        return self._with(msgspec.structs.replace(self.run, file=moved_file(self.run.file, paths), tables=tables))

    def _with(self, run: Run) -> RunSegment:
        other = RunSegment(run, self._load, self._ids)
        if "_columns" in self.__dict__:
            other.__dict__["_columns"] = self._columns
        return other


def written_run(segments: Sequence[FragmentSegment], write: Write) -> RunSegment:
    """Write the fragments of some segments of one shape as a run."""
    some = [segment.columns() for segment in segments]
    columns = {name: np.concatenate([one[name] for one in some]) for name in some[0]}
    shape = segments[0].shape
    file = msgspec.structs.replace(write(columns), fields={})
    tables, at = list[KeyRange](), 0
    for segment in segments:
        known = segment.run.tables if isinstance(segment, RunSegment) else []
        tables += [KeyRange(one.file, at + one.begin, at + one.end) for one in known]
        at += len(segment)
    groups = [dict(one) for one in shape[0]]
    run = Run(file, at, int(columns["rows"].sum()), groups, keys=shape[1], tables=tables)
    return RunSegment(run, lambda _, names: columns, LARGEST)


def _adds_up(rows: Numbers, total: int) -> bool:
    return float(rows.sum(dtype=np.float64)) < LARGEST and int(rows.sum()) == total


def moved_file(file: DataFile, paths: Mapping[str, str]) -> DataFile:
    """Return a file with its new path, if it has one."""
    return msgspec.structs.replace(file, path=paths[file.path]) if file.path in paths else file


def inline_segments(fragments: Iterable[Fragment]) -> list[FragmentSegment]:
    """Return segments of consecutive fragments with equal shapes."""
    return [InlineSegment(list(some), shape) for shape, some in groupby(fragments, key=shape_of)]


def shape_of(fragment: Fragment) -> Shape:
    files = fragment.groups if fragment.keys is None else [*fragment.groups, fragment.keys]
    in_run = fragment.foreign is None and fragment.rows > 0
    in_run = in_run and all(file.rows == fragment.rows and _PATH.fullmatch(file.path) is not None for file in files)
    return tuple(tuple(file.fields.items()) for file in fragment.groups), fragment.keys is not None, in_run


def paths_of(segment: FragmentSegment) -> list[str]:
    """Return the paths of all data files of the fragments of a segment."""
    groups, keys, _ = segment.shape
    return [path for group in range(len(groups) + keys) for path in segment.files(group).paths()]


def own_paths(segment: FragmentSegment) -> list[str]:
    """Return the paths of the files that belong to a run and not to one of its fragments."""
    return [file.path for file in segment.run.own_files] if isinstance(segment, RunSegment) else []
