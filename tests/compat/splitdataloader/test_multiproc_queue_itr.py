"""`MpQItr`: the values of a generator in another process, and none of the defects of the original."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from shardex.compat.splitdataloader import MpQItr, SplitDataLoader, write_split_data
from shardex.compat.splitdataloader.multiproc_queue_itr import MpQItr as SameClass
from shardex.errors import ShardexError, WorkerError


def squares(count: int, add: int = 0) -> Iterator[int]:
    for k in range(count):
        yield k * k + add


def processes(count: int) -> Iterator[int]:
    for _ in range(count):
        yield os.getpid()


def fails(count: int) -> Iterator[int]:
    yield from range(count)
    raise KeyError("no such batch")


def dies(count: int, received: str) -> Iterator[int]:
    yield from range(count)
    wait(lambda: os.path.exists(received))
    os.kill(os.getpid(), signal.SIGKILL)


def logged(path: str) -> Iterator[int]:
    """Count the values that were made in a file."""
    for k in range(1000):
        with open(path, "a") as file:
            file.write("x")
        yield k


def wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def test_values_come_in_order_and_again() -> None:
    values = MpQItr[int](squares, 40, add=1)
    assert list(values) == [k * k + 1 for k in range(40)] == list(values)
    assert (values.itr_func, values.args, values.kwargs, values.qsize) == (squares, (40,), {"add": 1}, 16)
    assert SameClass is MpQItr


def test_next_after_iter() -> None:
    values = MpQItr[int](squares, 3)
    for expected in (AttributeError, ShardexError):
        with pytest.raises(expected, match=r"expected iter\(\) before next\(\)"):
            next(values)
    iter(values)
    assert [next(values), next(values), next(values)] == [0, 1, 4]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(values)


class Doubled(MpQItr[int]):
    """A class of a user, with another `__next__`."""

    def __next__(self) -> int:
        return 2 * super().__next__()


def test_classes_of_users_change_values() -> None:
    assert list(Doubled(squares, 3)) == [0, 2, 8]


def random_numbers() -> Iterator[float]:
    yield np.random.rand()


def test_random_numbers_continue_those_of_this_process() -> None:
    np.random.seed(3)
    found = list(MpQItr[float](random_numbers))
    assert found == list(random_numbers()), "as in a forked process"


def test_closure_with_any_parameter_names() -> None:
    captured = [1]

    def depth_and_more(depth: int, itr_func: str = "", generator_function: str = "") -> Iterator[Any]:
        yield depth, itr_func, generator_function, captured

    assert list(MpQItr(depth_and_more, depth=2, generator_function="g")) == [(2, "", "g", [1])]


def test_error_of_the_generator_is_raised_after_its_values() -> None:
    found: list[int] = []
    with pytest.raises(KeyError, match="no such batch"):
        found.extend(MpQItr[int](fails, 3))
    assert found == [0, 1, 2]


def test_killed_process_raises(tmp_path: Path) -> None:
    loop = iter(MpQItr[int](dies, 2, str(tmp_path / "received")))
    assert [next(loop), next(loop)] == [0, 1]
    (tmp_path / "received").touch()
    with pytest.raises(WorkerError, match="killed by signal 9"):
        next(loop)


def test_break_ends_the_process() -> None:
    values = MpQItr[int](processes, 1000)
    for process in values:
        if process:
            break
    assert process != os.getpid()
    wait(lambda: not psutil.pid_exists(process))
    with MpQItr[int](processes, 1000) as values:
        iter(values)
        process = next(values)
    wait(lambda: not psutil.pid_exists(process))


def test_second_loop_ends_the_process_of_the_first() -> None:
    values = MpQItr[int](processes, 1000)
    first = iter(values)
    process = next(first)
    assert next(iter(values)) != process
    wait(lambda: not psutil.pid_exists(process))


@pytest.mark.parametrize(("qsize", "made"), [(1, 1), (5, 5)])
def test_qsize_limits_the_values_ahead(tmp_path: Path, qsize: int, made: int) -> None:
    log = tmp_path / "log"
    values = MpQItr[int](logged, str(log))
    values.qsize = qsize
    loop = iter(values)
    wait(lambda: log.exists() and log.stat().st_size >= made)
    assert log.stat().st_size == made
    assert [next(loop) for _ in range(7)] == list(range(7))


def test_qsize_zero_has_no_limit() -> None:
    values = MpQItr[int](squares, 300)
    values.qsize = 0
    assert list(values) == [k * k for k in range(300)]


def batches(folder: str, size: int) -> Iterator[Any]:
    packets = list(SplitDataLoader(folder).iterate_binwise(shuffle=True, seed=0))
    for k in range(0, len(packets), size):
        yield {"x": np.stack([np.frombuffer(packet, np.int64) for packet in packets[k : k + size]])}


def test_batches_of_a_loader(tmp_path: Path) -> None:
    write_split_data(str(tmp_path / "d"), (np.full(1000, k).tobytes() for k in range(64)), splits=4)
    found = [batch["x"] for batch in MpQItr[Any](batches, str(tmp_path / "d"), size=8)]
    assert [batch.shape for batch in found] == [(8, 1000)] * 8
    assert sorted(np.concatenate(found)[:, 0].tolist()) == list(range(64))


def test_loops_in_threads() -> None:
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(list(MpQItr[int](squares, 50)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[k * k for k in range(50)]] * 2
