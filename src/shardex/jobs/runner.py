"""Runs the parts of a job through an executor: few at a time, results in order, with a progress bar.

`cut_rows` makes parts of rows. The cuts depend on the data and the options, never on the number of workers.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

from shardex.jobs.job_folder import FinishedPart
from shardex.progress import Bar
from shardex.sources import export_credentials, import_credentials
from shardex.workers import Executor, ExecutorLike, is_local, start_executor

Task = TypeVar("Task")
Result = TypeVar("Result")

_WAITING = 2
"""Parts that wait for each worker, so that none is idle while the result of an earlier part is awaited."""
_SHORTENED = 1_000_000
"""Totals from which numbers are shortened, so that the bar fits into a line of a terminal: 2.30M."""
_WIDE = 100
_REDRAW_SECONDS = 1.0
"""How often the bar is drawn while no part ends."""


def run_parts(
    job: Callable[[Task], Result],
    parts: Iterable[Task],
    *,
    workers: int | None = None,
    executor: ExecutorLike = None,
    size: Callable[[Task], int] = lambda task: 1,
    most_ahead: int | None = None,
    total: int | None = None,
    done: int = 0,
    count: int | None = None,
    done_count: int = 0,
    desc: str = "run",
    unit: str = " parts",
    progress: bool | None = None,
    **bar_options: Any,
) -> Generator[tuple[Task, Result]]:
    """Run a job for each part and yield each part with its result, in the order of the parts.

    `workers` and `executor` are those of `start_executor`. If the job raises for a part, the parts that have not begun
    are cancelled and the error is raised. At most a few parts for each worker are read from `parts` in advance, so
    there may be very many; with `most_ahead` fewer, if the sum of their sizes is larger than that.

    The bar counts `size(part)` of `total`, of which `done` were finished before. It also shows the number of workers
    and, with `count`, the number of parts, of which `done_count` were finished before: no more processes are started
    than there are parts, and none for one part.

    >>> list(run_parts(lambda number: number**2, range(3), progress=False))
    [(0, 0), (1, 1), (2, 4)]
    """
    give_credentials = partial(import_credentials, export_credentials(secrets=is_local(executor)))
    if executor is None and isinstance(workers, int) and workers > 1 and count is not None:
        workers = min(workers, max(1, count - done_count))  # the start of a process takes a quarter of a second
    running = start_executor(job, workers, executor, initializer=give_credentials)
    quiet = None if progress is None else not progress
    large = (total or 0) >= _SHORTENED
    options = {"desc": desc, "unit": unit, "unit_scale": large, "disable": quiet, "smoothing": 0, **bar_options}
    with closing(running):
        options["postfix"] = _postfix(running, done_count, count)
        with _PartsBar(total=total, initial=done, **options) as bar:
            for task, result in _in_order(running, parts, size, most_ahead):
                done_count += 1
                bar.set_postfix_str(_postfix(running, done_count, count), refresh=False)
                bar.update(size(task))
                yield task, result


class _PartsBar(Bar):
    """A bar that changes when a part ends, which may take long: on a terminal the time goes on in between.

    The rate is the mean of this run, up to the last part that ended. A rate that is computed at the time of drawing
    would fall while a part runs, and the remaining time would grow.
    """

    _rate: float | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._redraw, name="shardex progress", daemon=True)
        super().__init__(*arguments, **options)
        if not self.disable and getattr(self.fp, "isatty", bool)():
            self._clock.start()

    @property
    def format_dict(self) -> dict[str, Any]:
        """What is drawn, with the rate of the last update."""
        return {**super().format_dict, "rate": self._rate}

    def update(self, n: float | None = 1) -> bool | None:
        """Count finished samples."""
        if not self.disable and (elapsed := self._time() - self.start_t) > 0:
            self._rate = (self.n + (n or 0) - self.initial) / elapsed
        drawn: bool | None = super().update(n)
        return drawn

    def close(self) -> None:
        """Draw the bar for the last time."""
        self._closed.set()
        if self._clock.is_alive():
            self._clock.join()
        super().close()

    def _redraw(self) -> None:
        while not self._closed.wait(_REDRAW_SECONDS):
            self.refresh()


def _postfix(executor: Executor, done: int, count: int | None) -> str:
    """Return the number of finished parts, of machines and, if the terminal is wide enough, of workers."""
    nodes = getattr(executor, "nodes", None)
    wide = shutil.get_terminal_size().columns >= _WIDE
    words = [f"{done}/{count} parts"] if count is not None and count > 1 else []
    words += [_counted(nodes, "node")] if nodes is not None else []
    words += [_counted(executor.width, "worker")] if executor.width > 1 and wide else []
    return ", ".join(words)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def continue_parts(
    job: Callable[[Part], FinishedPart],
    parts: Sequence[Part],
    finished: dict[int, FinishedPart],
    *,
    workers: int | None = None,
    executor: ExecutorLike = None,
    desc: str = "run",
    progress: bool | None = None,
) -> Generator[tuple[Part, FinishedPart]]:
    """Yield each part with its record, in order; run the job for parts that are not `finished`, and add their records.

    The bar counts rows.

    >>> from shardex.jobs.runner import cut_rows
    >>> done = {0: FinishedPart("parts/a", [], 2)}
    >>> made = continue_parts(lambda part: FinishedPart("parts/b", [], 1), list(cut_rows(3, 2)), done, progress=False)
    >>> [(part.number, record.folder) for part, record in made], len(done)
    ([(0, 'parts/a'), (1, 'parts/b')], 2)
    """
    missing = [part for part in parts if part.number not in finished]
    total, left = (sum(part.end - part.begin for part in some) for some in (parts, missing))
    results = run_parts(
        job,
        missing,
        workers=workers,
        executor=executor,
        size=lambda part: part.end - part.begin,
        total=total,
        done=total - left,
        count=len(parts),
        done_count=len(parts) - len(missing),
        desc=desc,
        unit=" samples",
        progress=progress,
    )
    with closing(results):
        for part in parts:
            if part.number not in finished:
                _, finished[part.number] = next(results)
            yield part, finished[part.number]
        next(results, None)  # ends the bar and the executor


def _in_order(
    executor: Executor, parts: Iterable[Any], size: Callable[[Any], int], most_ahead: int | None
) -> Iterator[tuple[Any, Any]]:
    waiting: deque[tuple[Any, Any]] = deque()
    most = 1 if executor.width == 1 else executor.width * (1 + _WAITING)
    try:
        for part in parts:
            waiting.append((part, executor.submit(part)))
            while len(waiting) >= most or _too_much(waiting, size, most_ahead):
                task, ticket = waiting.popleft()
                yield task, executor.result(ticket)
        while waiting:
            task, ticket = waiting.popleft()
            yield task, executor.result(ticket)
    except BaseException:
        executor.forget()
        raise


def _too_much(waiting: Iterable[tuple[Any, Any]], size: Callable[[Any], int], most: int | None) -> bool:
    return most is not None and sum(size(task) for task, _ in waiting) > most


_PART_BYTES = 64 << 20
_LARGEST_PART_BYTES = 512 << 20
_MOST_PARTS = 256
"""Parts grow from `_PART_BYTES` to `_LARGEST_PART_BYTES` before there are more."""
_PARTS_OF_FUNCTION = 64
"""Parts of a job that calls a function, whose cost is not known."""
_ROWS_OF_FUNCTION = 64


class Part(NamedTuple):
    """A range of rows, and its place among the parts of a job."""

    number: int
    begin: int
    end: int


def cut_rows(total: int, rows: int) -> Iterator[Part]:
    """Yield the parts of `total` rows, each of `rows` rows, the last one of the rest; at least one part.

    >>> list(cut_rows(5, 2))
    [Part(number=0, begin=0, end=2), Part(number=1, begin=2, end=4), Part(number=2, begin=4, end=5)]
    """
    for number, begin in enumerate(range(0, max(1, total), rows)):
        yield Part(number, begin, min(begin + rows, total))


def rows_per_part(
    total: int, sample_bytes: float, *, shard_rows: int | None, shard_size: int | None, calls_function: bool
) -> int:
    """Return how many rows a part has; a part is stored as one shard or more.

    With `shard_rows` or `shard_size` a part is about one such shard. Otherwise a part has about 64 MiB, more if there
    would be more than 256 parts. A function may be slow for few bytes: a job that calls one is cut into at least 64
    parts, as long as a part has 64 rows.

    >>> rows_per_part(10_000, 1000.0, shard_rows=None, shard_size=None, calls_function=False)
    67108
    >>> rows_per_part(10_000, 1000.0, shard_rows=None, shard_size=None, calls_function=True)
    157
    >>> rows_per_part(10_000, 1000.0, shard_rows=500, shard_size=None, calls_function=True)
    500
    """
    if shard_size is None:
        size = min(max(_PART_BYTES, total * sample_bytes / _MOST_PARTS), _LARGEST_PART_BYTES)
    else:
        size = float(shard_size)
    rows = max(1, int(size / max(1.0, sample_bytes)))
    if shard_rows is not None:
        return max(1, min(shard_rows, rows) if shard_size is not None else shard_rows)
    if calls_function and shard_size is None:
        rows = min(rows, max(_ROWS_OF_FUNCTION, -(-total // _PARTS_OF_FUNCTION)))
    return rows
