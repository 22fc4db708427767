"""Damaged shards of any format: the files that still open, and of those the samples that can be read.

`sift` halves what fails until only samples that cannot be read are left out. `what_opens` is for datasets that do not
open at all because some of their files do not: it opens the others, through links in a temporary folder (or copies, if
they lie elsewhere), so that the damaged dataset stays as it is, its index included.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardex.dataset import Dataset, ReadSize
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, SchemaError, ShardexError
from shardex.files import Files, What, find
from shardex.formats import format_named, recognise
from shardex.kernel import Columns, Integers
from shardex.rows import ListRows
from shardex.sources import ByteRange

__all__ = ["Bad", "Survey", "runs", "sift", "sift_all", "what_opens"]

Take = Callable[[Integers], Columns]

_PIECE = 8 << 20


@dataclass(frozen=True)
class Bad:
    """Rows that cannot be read."""

    rows: Integers
    why: str


def sift(take: Take, rows: Integers) -> Iterator[Columns | Bad]:
    """These rows in their order: columns of those that can be taken, and word of the others.

    >>> def take(rows): return Columns({"x": 1 // (rows != 3)}) if 3 not in rows else 1 / 0
    >>> [(len(one), ) if isinstance(one, Columns) else one.rows.tolist() for one in sift(take, np.arange(6))]
    [(3,), [3], (2,)]
    """
    try:
        found = take(rows)
    except MemoryError:
        raise
    except Exception as error:
        why = _words(error)
    else:
        yield found
        return
    if len(rows) == 1 or _is_one_thing(take, rows, why):
        yield Bad(rows, why)
        return
    half = len(rows) // 2
    yield from sift(take, rows[:half])
    yield from sift(take, rows[half:])


def _is_one_thing(take: Take, rows: Integers, why: str) -> bool:
    """Whether all rows fail because of one thing that holds them all, such as a row group of a Parquet file: errors
    about samples name the sample, so the same words at both ends and in the middle are about what lies around."""
    return all(_failure(take, rows[[at]]) == why for at in (0, len(rows) // 2, -1))


def _failure(take: Take, rows: Integers) -> str | None:
    try:
        take(rows)
    except MemoryError:
        raise
    except Exception as error:
        return _words(error)
    return None


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, ShardexError) else f"{type(error).__name__}: {error}"


def sift_all(take: Take, rows: Integers) -> Iterator[Columns | Bad]:
    """The same for any number of rows, some at a time; what can be taken of these comes as one."""
    at, pace = 0, ReadSize(1)
    while at < len(rows):
        some = rows[at : at + pace.batches]
        found = list(sift(take, some))
        if good := [one for one in found if isinstance(one, Columns)]:
            yield (columns := Columns.concat(good))
            pace.measure(columns)
        yield from (one for one in found if isinstance(one, Bad))
        at += len(some)


def runs(found: Iterable[Bad]) -> Iterator[tuple[range, str]]:
    """Bad rows as ranges: neighbours that fail for one reason together.

    >>> list(runs([Bad(np.array([1]), "a"), Bad(np.array([2, 3]), "a"), Bad(np.array([7]), "a")]))
    [(range(1, 4), 'a'), (range(7, 8), 'a')]
    """
    begin, end, why = 0, 0, ""
    for one in found:
        for run in np.split(one.rows, np.flatnonzero(np.diff(one.rows) != 1) + 1):
            if (int(run[0]), one.why) != (end, why):
                if end > begin:
                    yield range(begin, end), why
                begin, why = int(run[0]), one.why
            end = int(run[-1]) + 1
    if end > begin:
        yield range(begin, end), why


# -- files that open --------------------------------------------------------------------------------------------


@dataclass
class Survey:
    """A dataset of the files that open, and why the others do not."""

    dataset: Dataset
    root: str
    """What files are named from."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Files that do not open, or only in part, and why."""
    links: str = ""
    """Where the files were opened, if not in their own place."""

    def blame(self, why: str, file: str = "") -> tuple[str, str]:
        """The file that an error is about, as the user knows it, and the error without the name."""
        if self.links:
            why, file = why.replace(self.links, self.root), file.replace(self.links, self.root)
        root = f"{self.root}/"
        if not file and why.startswith(root):
            file = root + re.split(": |, ", why.removeprefix(root), maxsplit=1)[0]
        return file.removeprefix(root), re.sub(r"^[:,] ", "", why.removeprefix(file))

    def blame_row(self, row: int, why: str) -> tuple[str, str]:
        """The same for an error about a sample."""
        try:
            return self.blame(why, self.dataset.shards([row])[0])
        except ShardexError:  # where it lies is what is damaged
            return self.blame(why)

    def rows(self, found: range) -> range | None:
        """The numbers of samples in all of it; where a file did not open, nobody knows those in the others."""
        return None if self.refused else found


@contextmanager
def what_opens(what: What, **options: Any) -> Iterator[Survey]:
    """All of it, or if it does not open as a whole, those files that do; there may be none."""
    files = find(what)
    format = options.pop("format", None) or recognise(files)
    try:
        dataset = open_dataset(what, format=format, **options)
    except (ArgumentError, SchemaError):  # the options are wrong, not the files
        raise
    except ShardexError as error:
        whole = error
    else:
        yield Survey(dataset, files.source.url)
        return
    with tempfile.TemporaryDirectory(prefix="shardex-") as folder:
        yield _survey(files, format, options, folder, whole)


def _survey(files: Files, format: str, options: dict[str, Any], folder: str, whole: ShardexError) -> Survey:
    """Try each file alone, then open together those that opened."""
    good, errors, links = list[str](), list[str](), os.path.join(folder, "all")
    container = format_named(format)
    for number, path in enumerate(files.paths):
        if not container.recognise(Files(files.source, (path,), files.name(number))):
            continue
        alone = _room_for(os.path.join(folder, str(number), path))
        _bring(files, number, alone)
        try:
            open_dataset([alone], format=format, **options)
            container.check_end(alone)
        except ShardexError as error:
            errors.append(str(error).replace(os.path.join(folder, str(number)), files.source.url))
            if not container.keep_readable_part(alone):
                continue
            errors[-1] += "; samples before that are there"
        good.append(_room_for(os.path.join(links, path)))
        os.rename(alone, good[-1])
    try:
        dataset = open_dataset(links if files.folder else good, format=format, **options)
    except ShardexError:
        dataset = Dataset(ListRows([]))
    found = Survey(dataset, files.source.url, links=links)
    found.refused = [found.blame(why) for why in errors or [str(whole)]]
    return found


def _bring(files: Files, number: int, target: str) -> None:
    """Have a file be there under another name: as a link, or as a copy if it lies elsewhere."""
    if not files.source.is_remote:
        os.symlink(files.name(number), target)
        return
    path = files.paths[number]
    size = files.source.stat(path).size
    with open(target, "xb") as out:
        for at in range(0, size, _PIECE):
            out.write(files.source.read(path, [ByteRange(at, min(_PIECE, size - at))])[0])


def _room_for(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
