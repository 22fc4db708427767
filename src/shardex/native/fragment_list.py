"""The fragments of a version as a sequence that decodes a fragment only when it is used.

A manifest lists its newest fragments itself. Older ones are in *runs*: consecutive fragments with the same groups of
fields, whose files are listed in a data file of their own (`Run` in `fragment_segments`). Versions share runs: a
commit names them again and writes only what is new. `FragmentList.stored_in_runs` moves fragments into a run when the
manifest lists many, and merges runs so that there are few: a long one, and a short one with newer fragments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, overload

import msgspec
import numpy as np

from shardex.errors import FormatError
from shardex.kernel import Integers
from shardex.native.fragment_segments import (
    Fields,
    FileColumns,
    FileEntries,
    FragmentSegment,
    InlineSegment,
    Load,
    Run,
    RunSegment,
    Write,
    inline_segments,
    moved_file,
    paths_of,
    shape_of,
    written_run,
)
from shardex.native.fragments import DataFile, Foreign, Fragment

MOST_INLINE = 32
"""Most fragments that a manifest lists itself before they become a run."""
MOST_INLINE_KEYED = 16
"""Most fragments with keys that a manifest lists itself: an append searches the key table of each for its keys."""
_FEWEST = 8
"""Fewest fragments of a run: another file to read costs as much as some fragments in the manifest."""
_SHORT, _SHORT_PART = 1024, 32
"""A run that is shorter than this, or than this part of the run before it, is written again with newer fragments."""


class FragmentList(Sequence[Fragment]):
    """The fragments of a version, in order: a sequence of `Fragment`, and their numbers as arrays."""

    def __init__(self, fragments: Iterable[Fragment] = ()) -> None:
        self.segments: Sequence[FragmentSegment] = inline_segments(fragments)
        """The pieces of the sequence."""
        self.written: list[str] = []
        """Paths of the runs that `stored_in_runs` has written."""

    @staticmethod
    def of(segments: Iterable[FragmentSegment]) -> FragmentList:
        """Return the fragments of some segments; neighbours that the manifest lists itself are joined."""
        made, joined, waiting = FragmentList(), list[FragmentSegment](), list[Fragment]()
        for segment in segments:
            if isinstance(segment, InlineSegment):
                waiting += segment.fragments
            else:
                joined += [*inline_segments(waiting), segment]
                waiting = []
        made.segments = [*joined, *inline_segments(waiting)]
        return made

    @staticmethod
    def stored(inline: Sequence[Fragment], runs: Sequence[Run], load: Load, ids: int) -> FragmentList:
        """Return the fragments of a manifest that lists some itself and the others in runs; ids are below `ids`."""
        made, at = FragmentList(), 0
        segments: list[FragmentSegment] = []
        for run in runs:
            if not at <= run.after <= len(inline) or run.fragments < 1 or run.rows < 0:
                raise FormatError(f"expected runs in order, after the fragments that come before them, got {run}")
            segments += [*inline_segments(inline[at : run.after]), RunSegment(run, load, ids)]
            at = run.after
        made.segments = [*segments, *inline_segments(inline[at:])]
        return made

    # -- the sequence ------------------------------------------------------------------------------------------

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.segments)))

    def __len__(self) -> int:
        return self._ends[-1] if self.segments else 0

    @overload
    def __getitem__(self, where: int) -> Fragment: ...
    @overload
    def __getitem__(self, where: slice) -> FragmentList: ...
    def __getitem__(self, where: int | slice) -> Fragment | FragmentList:
        if isinstance(where, slice):
            return self._slice(*where.indices(len(self)))
        number = range(len(self))[where]
        at = bisect_right(self._ends, number)
        return self.segments[at].fragment(number - (self._ends[at] - len(self.segments[at])))

    def _slice(self, start: int, stop: int, step: int) -> FragmentList:
        if step != 1:
            return FragmentList([self[number] for number in range(start, stop, step)])
        found: list[FragmentSegment] = []
        for end, segment in zip(self._ends, self.segments, strict=True):
            begin = end - len(segment)
            first, last = max(start, begin) - begin, min(stop, end) - begin
            if first <= 0 and last >= len(segment):
                found.append(segment)
            elif first < last:
                some = [segment.fragment(number) for number in range(first, last)]
                found.append(InlineSegment(some, shape_of(some[0])))
        return FragmentList.of(found)

    def __iter__(self) -> Iterator[Fragment]:
        return (segment.fragment(number) for segment in self.segments for number in range(len(segment)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FragmentList) and self._content == other._content:
            return True
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def _content(self) -> list[Any]:
        return [one.fragments if isinstance(one, InlineSegment) else one.identity for one in self.segments]

    def __repr__(self) -> str:
        return f"FragmentList({list(self)})"

    # -- columns -----------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Rows of all fragments; reads no file."""
        return sum(segment.total for segment in self.segments)

    @cached_property
    def rows(self) -> Integers:
        """Rows of each fragment."""
        return np.concatenate([np.empty(0, np.int64), *(one.rows for one in self.segments)])

    @cached_property
    def firsts(self) -> Integers:
        """Id of the first row of each fragment."""
        return np.concatenate([np.empty(0, np.int64), *(one.firsts for one in self.segments)])

    @property
    def sizes(self) -> Integers:
        """Bytes of the files of each fragment that hold values."""
        found = [np.zeros(len(one), np.int64) for one in self.segments]
        for total, segment in zip(found, self.segments, strict=True):
            for group in range(len(segment.groups)):
                np.add(total, segment.files(group).sizes, out=total)
        return np.concatenate([np.empty(0, np.int64), *found])

    @property
    def inline(self) -> list[Fragment]:
        """The fragments that the manifest lists itself."""
        return [one for segment in self.segments if isinstance(segment, InlineSegment) for one in segment.fragments]

    @property
    def runs(self) -> list[Run]:
        """The runs, each with its place among the fragments that the manifest lists itself."""
        found, before = [], 0
        for segment in self.segments:
            if isinstance(segment, RunSegment):
                found.append(msgspec.structs.replace(segment.run, after=before))
            else:
                before += len(segment)
        return found

    @property
    def adopted(self) -> Foreign | None:
        """The adopted shards that hold some fields."""
        return next((one.adopted for one in self.segments if one.adopted is not None), None)

    def load(self, for_each: Callable[[Callable[[RunSegment], None], Iterable[RunSegment]], Any] = map) -> None:
        """Read the files of all runs; `for_each` is that of their source."""
        list(for_each(RunSegment.load, self.run_segments))

    @property
    def run_segments(self) -> list[RunSegment]:
        """The segments that are runs."""
        return [one for one in self.segments if isinstance(one, RunSegment)]

    def key_files(self) -> list[tuple[DataFile, int, int]]:
        """Return the files with the hashes of all keys, each with its first physical row and its number of rows."""
        found: list[tuple[DataFile, int, int]] = []
        for segment, start in zip(self.segments, accumulate([0, *(one.total for one in self.segments)]), strict=False):
            if not segment.shape[1]:
                continue
            starts = [start, *(start + np.cumsum(segment.rows)).tolist()]
            at = 0
            for one in [*(segment.run.tables if isinstance(segment, RunSegment) else []), None]:
                until = len(segment) if one is None else one.begin
                keys = segment.files(len(segment.groups))
                found += [(keys.file(k), starts[k], starts[k + 1] - starts[k]) for k in range(at, until)]
                if one is not None:
                    found.append((one.file, starts[one.begin], starts[one.end] - starts[one.begin]))
                    at = one.end
        return found

    def files_of(self, names: Iterable[str]) -> list[tuple[FieldFiles, list[str]]]:
        """Return the files that hold these fields, each with the fields that are in the same files."""
        groups: dict[tuple[int, ...], list[str]] = {}
        held = [{name: k for k, fields in enumerate(segment.groups) for name in fields} for segment in self.segments]
        for name in names:
            groups.setdefault(tuple(one.get(name, -1) for one in held), []).append(name)
        return [(FieldFiles(self.segments, numbers), some) for numbers, some in groups.items()]

    # -- changes -----------------------------------------------------------------------------------------------

    def with_appended(self, fragments: Sequence[Fragment]) -> FragmentList:
        """Return the fragments with others after them."""
        more = fragments.segments if isinstance(fragments, FragmentList) else inline_segments(fragments)
        return FragmentList.of([*self.segments, *more])

    def with_new(self, fragments: Iterable[Fragment], used: int) -> tuple[FragmentList, int]:
        """Add new fragments with the next ids, given the number of ids in use; return it with all fragments."""
        added = []
        for fragment in fragments:
            added.append(msgspec.structs.replace(fragment, first=used))
            used += fragment.rows
        return self.with_appended(added), used

    def renamed(self, rename: Callable[[Fields], Fields]) -> FragmentList:
        """Return the fragments with other names of fields; `rename` leaves out those that are dropped."""
        return FragmentList.of(segment.renamed(rename) for segment in self.segments)

    def with_paths(self, paths: Mapping[str, str]) -> FragmentList:
        """Return the fragments with other paths of files; a run of which files have moved is not a run any more."""
        found: list[FragmentSegment] = []
        for segment in self.segments:
            if isinstance(segment, RunSegment) and not any(path in paths for path in paths_of(segment)):
                found.append(segment.moved(paths))
                continue
            some = [
                msgspec.structs.replace(
                    one,
                    groups=[moved_file(file, paths) for file in one.groups],
                    keys=one.keys and moved_file(one.keys, paths),
                )
                for one in map(segment.fragment, range(len(segment)))
            ]
            found += inline_segments(some)
        return FragmentList.of(found)

    def stored_in_runs(self, write: Write) -> FragmentList:
        """Return the fragments with at most some that the manifest lists itself, if they can be in a run.

        The last one is always listed: so every fragment that is appended alone is in a manifest before it is in a run,
        from which `recover` makes a damaged run again.
        """
        storable = [one for one in self.segments if isinstance(one, InlineSegment) and one.shape[2]]
        if sum(map(len, storable)) <= (MOST_INLINE_KEYED if any(one.shape[1] for one in storable) else MOST_INLINE):
            return self
        found: list[FragmentSegment] = []
        written = []
        listed = 0 if isinstance(self.segments[-1], RunSegment) else 1
        for segment in self[: len(self) - listed].segments:
            if not isinstance(segment, InlineSegment) or not segment.shape[2] or len(segment) < _FEWEST:
                found.append(segment)
                continue
            merged: list[FragmentSegment] = [segment]
            while found and isinstance(found[-1], RunSegment) and found[-1].shape == segment.shape:
                older = found[-2] if found[:-1] and found[-2].shape == segment.shape else ()
                run, after = len(found[-1]), sum(map(len, merged))
                if run >= _least_long(len(older)) and after < _least_long(run):
                    break
                merged.insert(0, found.pop())
            found.append(joined := written_run(merged, write))
            written.append(joined.run.file.path)
        made = FragmentList.of([*found, *self[len(self) - listed :].segments])
        made.written = written
        return made


def _least_long(before: int) -> int:
    """Return the least length with which a run is kept as it is when fragments are added, given the run before it."""
    return max(_SHORT, before // _SHORT_PART)


class FieldFiles(Sequence[DataFile | None]):
    """The file of each fragment that holds some fields; None for fragments that have no values for them.

    `groups` is the number of the group in each segment, -1 for none.
    """

    def __init__(self, segments: Sequence[FragmentSegment], groups: Sequence[int]) -> None:
        self._ends = list(accumulate(map(len, segments)))
        self._parts = [
            (len(segment), None if group < 0 else segment.files(group))
            for segment, group in zip(segments, groups, strict=True)
        ]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, where: int) -> DataFile | None: ...
    @overload
    def __getitem__(self, where: slice) -> list[DataFile | None]: ...
    def __getitem__(self, where: int | slice) -> DataFile | list[DataFile | None] | None:
        if isinstance(where, slice):
            return [self[number] for number in range(*where.indices(len(self)))]
        number = range(len(self))[where]
        at = bisect_right(self._ends, number)
        length, files = self._parts[at]
        return None if files is None else files.file(number - (self._ends[at] - length))

    def column(self, of: Callable[[FileColumns | FileEntries], Integers], without: int) -> Integers:
        """Return a number of each file; `without` for fragments that have no file."""
        return np.concatenate(
            [
                np.empty(0, np.int64),
                *(np.full(length, without) if files is None else of(files) for length, files in self._parts),
            ]
        )

    @property
    def paths(self) -> Sequence[str]:
        """The path of each file, empty for fragments that have none; decoded when it is used."""
        return _Paths(self)


class _Paths(Sequence[str]):
    def __init__(self, files: FieldFiles) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, where: int) -> str: ...
    @overload
    def __getitem__(self, where: slice) -> list[str]: ...
    def __getitem__(self, where: int | slice) -> str | list[str]:
        if isinstance(where, slice):
            return [self[number] for number in range(*where.indices(len(self)))]
        file = self._files[where]
        return "" if file is None else file.path
