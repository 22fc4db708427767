"""Reads the intact samples of damaged shards of any format, for `verify` and `recover`.

`read_readable` reads rows and bisects reads that fail, so that only unreadable rows are left out. `open_readable_files`
opens a dataset without the files that cannot be opened: through links in a temporary folder (or copies of remote
files), so that the damaged dataset and its index are not changed.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.dataset import Dataset, ListRows, ReadSize
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, SchemaError, ShardexError
from shardex.files import Files, What, find
from shardex.formats import format_named, recognise, signature_of
from shardex.kernel import Columns, Integers, byte_size
from shardex.native import read_pieces
from shardex.progress import Bar
from shardex.sources import LocalSource

Read = Callable[[Integers], Columns]


@dataclass(frozen=True)
class UnreadableRows:
    """Rows that cannot be read, and the error message."""

    rows: Integers
    why: str


def read_readable(read: Read, rows: Integers | range) -> Iterator[Columns | UnreadableRows]:
    """Read rows in chunks; yield the columns of readable rows, then the unreadable rows of the same chunk.

    >>> def read(rows): return Columns({"x": rows}) if 3 not in rows else 1 / 0
    >>> [len(one) if isinstance(one, Columns) else one.rows.tolist() for one in read_readable(read, np.arange(6))]
    [1, 3, [3], 1]
    """
    at, size = 0, ReadSize(1)
    while at < len(rows):
        some = np.asarray(rows[at : at + size.batches], np.int64)
        found = list(_halve(read, some))
        if good := [one for one in found if isinstance(one, Columns)]:
            yield (columns := Columns.concat(good))
            size.measure(len(columns), byte_size(columns))
        yield from (one for one in found if isinstance(one, UnreadableRows))
        at += len(some)


def with_bar(
    found: Iterable[Columns | UnreadableRows], total: int, title: str, progress: bool | None
) -> Iterator[Columns | UnreadableRows]:
    """Yield what `read_readable` found, and show a progress bar of `total` rows."""
    quiet = None if progress is None else not progress
    with Bar(total=total, unit=" samples", desc=title, disable=quiet) as bar:
        for one in found:
            yield one
            bar.update(len(one if isinstance(one, Columns) else one.rows))


def _halve(read: Read, rows: Integers) -> Iterator[Columns | UnreadableRows]:
    """Read rows, or if that fails each half of them, down to single rows."""
    try:
        found = read(rows)
    except MemoryError:
        raise
    except Exception as error:
        why = _message(error)
    else:
        yield found
        return
    if len(rows) == 1 or _all_fail_alike(read, rows, why):
        yield UnreadableRows(rows, why)
        return
    half = len(rows) // 2
    yield from _halve(read, rows[:half])
    yield from _halve(read, rows[half:])


def _all_fail_alike(read: Read, rows: Integers, why: str) -> bool:
    """Return True if all rows fail because of something that contains them all, such as a Parquet row group.

    Errors about samples name the sample, so the same message for the first, middle and last row is about the container.
    """
    return all(_failure(read, rows[[at]]) == why for at in (0, len(rows) // 2, -1))


def _failure(read: Read, rows: Integers) -> str | None:
    try:
        read(rows)
    except MemoryError:
        raise
    except Exception as error:
        return _message(error)
    return None


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, ShardexError) else f"{type(error).__name__}: {error}"


def unreadable_ranges(found: Iterable[UnreadableRows]) -> Iterator[tuple[range, str]]:
    """Yield ranges of rows with the reason; neighbours with the same reason are one range.

    >>> bad = [UnreadableRows(np.array(rows), "a") for rows in ([1], [2, 3], [7])]
    >>> list(unreadable_ranges(bad))
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


def runs_of_fields(lost: Mapping[str, NDArray[np.bool_]]) -> Iterator[tuple[range, tuple[str, ...]]]:
    """Yield runs of rows that have lost the same fields, with these fields, given which rows have lost each field.

    >>> lost = {"x": np.array([False, True, True]), "s": np.array([False, False, True])}
    >>> list(runs_of_fields(lost))
    [(range(1, 2), ('x',)), (range(2, 3), ('x', 's'))]
    """
    names, every = list(lost), np.array(list(lost.values()), np.bool_)
    cuts = np.flatnonzero((every[:, 1:] != every[:, :-1]).any(axis=0)) + 1
    bounds = [0, *cuts.tolist(), every.shape[1]]
    for begin, end in pairwise(bounds):
        if begin < end and every[:, begin].any():
            yield range(begin, end), tuple(name for name, one in zip(names, every[:, begin], strict=True) if one)


# -- files that open --------------------------------------------------------------------------------------------


@dataclass
class ReadableFiles:
    """A dataset of the files that can be opened, and why the others cannot."""

    dataset: Dataset
    root: str
    """Folder or URL that paths of files are relative to."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Path of each file that cannot be opened, or only in part, and the reason."""
    links: str = ""
    """Temporary folder through which the files were opened; empty if they were opened directly."""

    def split_error(self, why: str, file: str = "") -> tuple[str, str]:
        """Split an error message into the path of the file that it is about and the rest."""
        if self.links:
            why, file = why.replace(self.links, self.root), file.replace(self.links, self.root)
        root = f"{self.root}/"
        if not file and why.startswith(root):
            file = root + re.split(": |, ", why.removeprefix(root), maxsplit=1)[0]
        return file.removeprefix(root), re.sub(r"^[:,] ", "", why.removeprefix(file))

    def split_row_error(self, row: int, why: str) -> tuple[str, str]:
        """Split the error message of a row into the path of its file and the rest."""
        try:
            return self.split_error(why, self.dataset.shards([row])[0])
        except ShardexError:  # the file of the row is not known because the index is damaged
            return self.split_error(why)

    def original_rows(self, rows: range) -> range | None:
        """Return the rows in the damaged dataset; None if files are left out, so that they are not known."""
        return None if self.refused else rows


@contextmanager
def open_readable_files(what: What, **options: Any) -> Iterator[ReadableFiles]:
    """Open a dataset, or if that fails the files of it that can be opened (possibly none)."""
    files = find(what)
    format = options.pop("format", None) or recognise(files)
    try:
        dataset = open_dataset(what, format=format, **options).stored
        files.source.for_each(partial(format_named(format).damaged.check_end, files.source), files.paths)
    except (ArgumentError, SchemaError):  # the options are wrong, not the files
        raise
    except ShardexError as error:
        whole = error
    else:
        yield ReadableFiles(dataset, files.source.url)
        return
    with tempfile.TemporaryDirectory(prefix="shardex-") as folder:
        yield _open_files(files, format, options, folder, whole)


def _open_files(files: Files, format: str, options: dict[str, Any], folder: str, whole: ShardexError) -> ReadableFiles:
    """Try to open each file alone, then open all that can be opened as one dataset."""
    good, errors, links = list[str](), list[str](), os.path.join(folder, "all")
    damaged, signature = format_named(format).damaged, signature_of(format)
    for number, path in enumerate(files.paths):
        if not signature.match(Files(files.source, (path,), files.name(number))):
            continue
        stored = _stored_path(files, number)
        alone = _with_folder(os.path.join(folder, str(number), stored))
        try:
            _link_or_copy(files, number, alone)
            open_dataset([alone], format=format, **options)
            damaged.check_end(LocalSource(os.path.dirname(alone)), os.path.basename(alone))
        except ShardexError as error:
            errors.append(str(error).replace(os.path.join(folder, str(number)), files.source.url))
            if not damaged.keep_readable_part(alone):
                continue
            errors[-1] += "; the samples before that can be read"
        good.append(_with_folder(os.path.join(links, stored)))
        os.rename(alone, good[-1])
    try:
        if good:
            dataset = open_dataset(links if files.folder else good, format=format, **options).stored
        else:  # the files belong together
            dataset = _open_damaged(files, format, {**options, **damaged.options})
    except ShardexError:
        dataset = Dataset(ListRows([]))
    found = ReadableFiles(dataset, files.source.url, links=links)
    found.refused = [found.split_error(why) for why in errors or [str(whole)]]
    return found


def _open_damaged(files: Files, format: str, options: dict[str, Any]) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller reports what is damaged
        return open_dataset(files.what, format=format, **options).stored


def _link_or_copy(files: Files, number: int, target: str) -> None:
    """Make a file available at a local path: by a link, or by a copy if it is remote or a member of an archive."""
    if files.source.data_folder is not None and os.path.isfile(files.name(number)):
        os.symlink(files.name(number), target)
        return
    path = files.paths[number]
    with open(target, "xb") as out:
        out.writelines(read_pieces(files.source, path, 0, files.source.stat(path).size))


def _stored_path(files: Files, number: int) -> str:
    """Return the path of a file in its folder, with the extension of its compression if it has one."""
    folder, name = files.source.data_folder, files.name(number)
    return os.path.relpath(name, folder) if folder is not None and os.path.isfile(name) else files.paths[number]


def _with_folder(path: str) -> str:
    """Create the folder of a path and return the path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
