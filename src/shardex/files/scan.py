"""Scans many files concurrently: in threads, or in processes if the scanner holds the GIL.

A `Scanner` finds the samples of one file; `scan_all` runs it on many and shows a progress bar. Its callers,
`sample_index` and `formats.extracted_columns`, choose the files and save the results.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from shardex.progress import Bar
from shardex.sources import Source
from shardex.workers import ProcessPool

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
    source: Source, sizes: dict[str, int], scanner: FileScanner[Found], progress: bool | None, desc: str = "index"
) -> dict[str, Found]:
    """Scan the files in `sizes`, which maps paths to bytes; the progress bar counts these.

    If several scans fail, the error of the first of these files is raised.
    """
    if not sizes:
        return {}
    total, disable = sum(sizes.values()), None if progress is None else not progress
    remote = source.is_remote
    workers = max(1, min(_REMOTE_SCANS if remote else _cores(), len(sizes)))
    scans: dict[str, Found] = {}
    with Bar(total=total, unit="B", unit_scale=True, desc=desc, disable=disable) as bar:

        def keep(path: str, scan: Found) -> None:
            scans[path] = scan
            bar.update(sizes[path])

        if scanner.in_python and not remote and workers > 1 and total > _MIN_BYTES_FOR_PROCESSES:
            # One buffer: results that wait for that of an earlier file would keep one open each.
            with ProcessPool(partial(_pickled_scan, scanner, source), workers, buffers=1) as processes:
                tickets = {path: processes.submit(path) for path in sizes}
                for path, ticket in tickets.items():
                    keep(path, pickle.loads(processes.result(ticket)))
        else:
            with ThreadPoolExecutor(1 if scanner.in_python and not remote else workers) as threads:
                list(threads.map(lambda path: keep(path, scanner.scan(source, path)), sizes))
    return scans


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pickled_scan(scanner: FileScanner[Any], source: Source, path: str) -> bytes:
    """Scan one file; the result is pickled, because its arrays would keep shared buffers of the pool open."""
    return pickle.dumps(scanner.scan(source, path))
