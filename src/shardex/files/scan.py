"""Scans many files concurrently: in threads, in processes if the scanner holds the GIL, or where the user wants.

A `Scanner` finds the samples of one file; `scan_all` runs it on many and shows a progress bar. Big files are cut into
parts that are scanned at the same time, if the scanner can do that (`RangeScanner`). Its callers, `sample_index` and
`formats.extracted_columns`, choose the files and save the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from shardex.kernel import cores
from shardex.progress import Bar
from shardex.sources import ByteRange, Source, export_credentials, import_credentials
from shardex.workers import Executor, ExecutorLike, is_local, start_executor

_MIN_BYTES_FOR_PROCESSES = 256 << 20
"""Total size of files above which starting processes (a quarter of a second each) pays off."""
PART_BYTES = 64 << 20
"""Size of the parts of a big file."""

Scan = dict[str, NDArray[Any]]
"""Result of a scanner: columns of nonnegative integers, one entry per sample."""

Found = TypeVar("Found")
Found_co = TypeVar("Found_co", covariant=True)


class FileScanner(Protocol[Found_co]):
    """Reads one file and returns what it found, for example samples. Picklable; equal scanners return equal results."""

    @property
    def name(self) -> str:
        """Format and options; saved results are reused only under the same name."""

    @property
    def in_python(self) -> bool:
        """True if scanning holds the GIL most of the time: processes speed it up, threads do not."""

    def scan(self, source: Source, path: str) -> Found_co:
        """Return what is found in one file."""


Scanner = FileScanner[Scan]
"""Finds the samples of one file."""


@runtime_checkable
class RangeScanner(FileScanner[Found_co], Protocol[Found_co]):
    """A scanner that can scan parts of a big file at the same time."""

    def scan_range(self, source: Source, path: str, part: ByteRange) -> Any:
        """Return what is found in a part of a file, which begins and ends at any byte."""

    def join(self, source: Source, path: str, parts: Iterable[Any]) -> Found_co:
        """Return what `scan` returns for a file, given the results of its parts in order, which arrive one by one."""


class _Part(NamedTuple):
    """A task: a part of a file."""

    path: str
    begin: int
    length: int


def scan_all(
    source: Source, sizes: dict[str, int], scanner: FileScanner[Found], *options: Any, **more: Any
) -> dict[str, Found]:
    """Return the result of each file, by its path; the arguments are those of `scan_each`."""
    return dict(scan_each(source, sizes, scanner, *options, **more))


def scan_each(
    source: Source,
    sizes: dict[str, int],
    scanner: FileScanner[Found],
    progress: bool | None = None,
    desc: str = "index",
    *,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> Iterator[tuple[str, Found]]:
    """Scan the files in `sizes`, which maps paths to bytes; yield path and result of each, in this order.

    The progress bar counts bytes. `workers` and `executor` are those of `start_executor`; without them the scanner and
    the sizes decide. If several scans fail, the error of the first of these files is raised.
    """
    if not sizes:
        return
    tasks = {path: _parts(path, size, scanner) for path, size in sizes.items()}
    if workers is None and executor is None:
        workers, executor = _default_workers(source, sizes, scanner, sum(map(len, tasks.values())))
    if workers == 1 or executor == "inline":
        tasks = {path: [path] for path in sizes}
    give_credentials = partial(import_credentials, export_credentials(secrets=is_local(executor)))
    running = start_executor(partial(_scan_task, scanner, source), workers, executor, initializer=give_credentials)
    disable = None if progress is None else not progress
    with (
        closing(running),
        Bar(total=sum(sizes.values()), unit="B", unit_scale=True, desc=desc, disable=disable) as bar,
    ):
        tickets = {path: [running.submit(task) for task in some] for path, some in tasks.items()}
        for path, some in tasks.items():
            found = _results(running, zip(some, tickets.pop(path), strict=True), sizes[path], bar)
            if isinstance(scanner, RangeScanner) and isinstance(some[0], _Part):
                yield path, scanner.join(source, path, found)
            else:
                yield path, next(found)


def _results(running: Executor, tasks: Iterable[tuple[str | _Part, Any]], size: int, bar: Bar) -> Iterator[Any]:
    """Yield the results of tasks and tickets of a file of this size, as they arrive."""
    for task, ticket in tasks:
        found = running.result(ticket)
        bar.update(size if isinstance(task, str) else task.length)
        yield found


def _parts(path: str, size: int, scanner: FileScanner[Any]) -> list[str | _Part]:
    """Return the tasks of a file: its path, or parts of it."""
    if size < 2 * PART_BYTES or not isinstance(scanner, RangeScanner):
        return [path]
    return [_Part(path, at, min(PART_BYTES, size - at)) for at in range(0, size, PART_BYTES)]


def _scan_task(scanner: Any, source: Source, task: str | _Part) -> Any:
    if isinstance(task, str):
        return scanner.scan(source, task)
    return scanner.scan_range(source, task.path, ByteRange(task.begin, task.length))


def _default_workers(source: Source, sizes: dict[str, int], scanner: FileScanner[Any], tasks: int) -> tuple[int, str]:
    """Return number and kind of workers: processes for much work that holds the GIL, threads for other work."""
    if source.concurrent_calls > 1:  # each scan mostly waits for downloads
        return max(1, min(source.concurrent_calls, tasks)), "threads"
    workers = max(1, min(cores(), tasks))
    if not scanner.in_python:
        return workers, "threads"
    return (workers, "processes") if workers > 1 and sum(sizes.values()) > _MIN_BYTES_FOR_PROCESSES else (1, "inline")
