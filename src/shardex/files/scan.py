"""Scans many files concurrently: in threads, in processes if the scanner holds the GIL, or where the user wants.

A `Scanner` finds the samples of one file; `scan_all` runs it on many and shows a progress bar. Its callers,
`sample_index` and `formats.extracted_columns`, choose the files and save the results.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from shardex.progress import Bar
from shardex.sources import Source, export_credentials, import_credentials
from shardex.workers import ExecutorLike, cores, is_local, start_executor

_MIN_BYTES_FOR_PROCESSES = 256 << 20
"""Total size of files above which starting processes (a quarter of a second each) pays off."""
_REMOTE_SCANS = 16
"""Remote files that are scanned at once: each scan mostly waits for downloads."""

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


def scan_all(
    source: Source,
    sizes: dict[str, int],
    scanner: FileScanner[Found],
    progress: bool | None = None,
    desc: str = "index",
    *,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> dict[str, Found]:
    """Scan the files in `sizes`, which maps paths to bytes; the progress bar counts these.

    `workers` and `executor` are those of `start_executor`; without them the scanner and the sizes decide. If several
    scans fail, the error of the first of these files is raised.
    """
    if not sizes:
        return {}
    if workers is None and executor is None:
        workers, executor = _default_workers(source, sizes, scanner)
    give_credentials = partial(import_credentials, export_credentials(secrets=is_local(executor)))
    running = start_executor(partial(scanner.scan, source), workers, executor, initializer=give_credentials)
    disable, scans = None if progress is None else not progress, {}
    with (
        closing(running),
        Bar(total=sum(sizes.values()), unit="B", unit_scale=True, desc=desc, disable=disable) as bar,
    ):
        tickets = {path: running.submit(path) for path in sizes}
        for path, ticket in tickets.items():
            scans[path] = running.result(ticket)
            bar.update(sizes[path])
    return scans


def _default_workers(source: Source, sizes: dict[str, int], scanner: FileScanner[Any]) -> tuple[int, str]:
    """Return number and kind of workers: processes for much work that holds the GIL, threads for other work."""
    workers = max(1, min(_REMOTE_SCANS if source.is_remote else cores(), len(sizes)))
    if not scanner.in_python or source.is_remote:
        return workers, "threads"
    return (workers, "processes") if workers > 1 and sum(sizes.values()) > _MIN_BYTES_FOR_PROCESSES else (1, "inline")
