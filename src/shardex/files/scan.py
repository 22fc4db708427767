"""Scanning files for an index: in threads, or in processes of their own where a scan holds the interpreter.

A `Scanner` says where the samples of one file lie. The processes are plain ones that import this package and nothing
of the caller's program, so a script needs no ``if __name__ == "__main__"`` to index a folder of tars.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from shardex.errors import ShardexError
from shardex.progress import Bar
from shardex.sources import CachedSource, Source

__all__ = ["Scan", "Scanner", "Scans", "scan_all"]

_WORTH_PROCESSES = 256 << 20
"""Bytes of files from which on starting processes (a quarter of a second each) pays."""
_FAR = 16
"""Files that lie elsewhere and are scanned at once: each scan mostly waits."""

Scan = dict[str, NDArray[Any]]
"""What a scanner returns: equally long columns of numbers from 0 on."""


Found = TypeVar("Found")
Found_co = TypeVar("Found_co", covariant=True)


class Scans(Protocol[Found_co]):
    """Finds something in one file. Picklable, and equal scanners must give equal answers."""

    @property
    def name(self) -> str:
        """Names format and options: what was found under another name is not used."""

    @property
    def in_python(self) -> bool:
        """Whether the scan holds the interpreter, so that only processes make it parallel."""

    def scan(self, source: Source, path: str) -> Found_co:
        """What is in one file."""


Scanner = Scans[Scan]
"""Finds the samples of one file."""


def scan_all(
    source: Source, sizes: dict[str, int], scanner: Scans[Found], progress: bool | None, desc: str = "index"
) -> dict[str, Found]:
    """Scan the files of which `sizes` gives the bytes; the bar counts them."""
    if not sizes:
        return {}
    total, quiet = sum(sizes.values()), None if progress is None else not progress
    far = isinstance(source, CachedSource)
    workers = max(1, min(_FAR if far else _cores(), len(sizes)))
    apart = scanner.in_python and workers > 1 and total > _WORTH_PROCESSES and not far
    run = _in_process if apart else _in_thread
    shares = [list(sizes)[k::workers] for k in range(workers)] if apart else [[path] for path in sizes]
    if scanner.in_python and not apart and not far:
        workers = 1
    scans: dict[str, Found] = {}
    with Bar(total=total, unit="B", unit_scale=True, desc=desc, disable=quiet) as bar:

        def done(path: str, scan: Found) -> None:
            scans[path] = scan
            bar.update(sizes[path])

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda paths: run(scanner, source, paths, done), shares))
    return scans


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_thread(scanner: Scans[Found], source: Source, paths: Sequence[str], done: Callable[[str, Found], None]) -> None:
    for path in paths:
        done(path, scanner.scan(source, path))


def _in_process(
    scanner: Scans[Found], source: Source, paths: Sequence[str], done: Callable[[str, Found], None]
) -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; from shardex.files.scan import serve; serve()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            pickle.dump((scanner, source, paths), child.stdin)
            child.stdin.close()
            for path in paths:
                answer = pickle.load(child.stdout)
                if isinstance(answer, BaseException):
                    raise answer
                done(path, answer)
        except (EOFError, BrokenPipeError):
            raise ShardexError(f"expected a scan of {paths}, the process died with code {child.wait()}") from None
        finally:
            child.kill()


def serve() -> None:
    """What a process does: read what to scan from standard input, write what was found to standard output."""
    scanner, source, paths = pickle.load(sys.stdin.buffer)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not end up between the answers
    for answer in _answers(scanner, source, paths):
        pickle.dump(answer, out)
        out.flush()


def _answers(scanner: Scans[Any], source: Source, paths: Sequence[str]) -> Iterator[Any]:
    for path in paths:
        try:
            yield scanner.scan(source, path)
        except Exception as error:
            yield error
            return
