"""`Prefetch`: values and errors of a generator in another process, how much waits, and that no process is left."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import ArgumentError, ClosedError, SchemaError, WorkerError
from shardex.workers.shared_arena import WorkerTraceback
from tests.waiting import becomes_true, wait_until_ended
from tests.workers.test_process_pool import children, open_files


@dataclass
class Pair:
    left: NDArray[Any]
    right: list[NDArray[Any]]


def pids(count: int = 1 << 30) -> Iterator[int]:
    for _ in range(count):
        yield os.getpid()


def in_shared_memory(array: NDArray[Any]) -> bool:
    root: Any = array
    while isinstance(root, np.ndarray | memoryview):
        root = root.base if isinstance(root, np.ndarray) else root.obj
    return isinstance(root, mmap.mmap)


class TestValues:
    def test_order_and_a_new_run_for_every_loop(self) -> None:
        values = sx.prefetch(lambda count, times: (times * k for k in range(count)), 50, depth=3, times=2)
        assert list(values) == list(values) == list(range(0, 100, 2))

    def test_two_loops_at_once_have_processes_of_their_own(self) -> None:
        with sx.prefetch(pids, 3) as values:
            pairs = list(zip(values, values, strict=True))
        assert len(pairs) == 3 and len({left for left, _ in pairs}) == len({right for _, right in pairs}) == 1
        assert pairs[0][0] != pairs[0][1] and os.getpid() not in pairs[0]

    @pytest.mark.parametrize("depth", [1, 200])
    def test_fewer_and_more_values_than_depth(self, depth: int) -> None:
        assert list(sx.prefetch(range, 20, depth=depth)) == list(range(20))

    def test_generator_without_values(self) -> None:
        assert list(sx.prefetch(list)) == []

    def test_arrays_in_any_structure_come_through_shared_memory(self) -> None:
        def generate() -> Iterator[Any]:
            array = np.arange(5000.0)
            yield {"a": array, "b": [array[::2], (array.reshape(50, 100),)], "c": Pair(array, [array]), "d": "text"}

        (value,) = sx.prefetch(generate)
        arrays = value["a"], value["b"][0], value["b"][1][0], value["c"].left, value["c"].right[0]
        assert [array.shape for array in arrays] == [(5000,), (2500,), (50, 100), (5000,), (5000,)]
        assert all(in_shared_memory(array) and array.flat[-1] >= 4998 for array in arrays) and value["d"] == "text"
        assert type(value["c"]) is Pair

    def test_held_arrays_are_not_overwritten_and_can_be_changed(self) -> None:
        def generate() -> Iterator[Any]:
            array = np.zeros(3000, np.int64)
            for number in range(400):
                array[:] = number  # the same array for every value
                yield array

        held = list(sx.prefetch(generate, depth=4))
        gc.collect()
        assert all((array == number).all() for number, array in enumerate(held))
        held[0] += 1
        assert (held[0] == 1).all() and (held[1] == 1).all()

    def test_at_most_depth_values_wait(self, tmp_path: Path) -> None:
        log = tmp_path / "log"

        def generate() -> Iterator[int]:
            for number in range(100):
                with log.open("a") as file:
                    file.write("x")
                yield number

        def written(count: int) -> bool:
            return log.exists() and len(log.read_text()) >= count

        with sx.prefetch(generate, depth=5) as values:
            iterator = iter(values)
            for taken in (0, 1, 2, 3):
                assert becomes_true(partial(written, taken + 5))
                assert len(log.read_text()) == taken + 5
                assert next(iterator) == taken


class TestErrors:
    def test_error_comes_after_the_values_before_it_with_its_traceback(self) -> None:
        def generate() -> Iterator[int]:
            yield from range(3)
            raise KeyError("missing")

        taken: list[int] = []
        values = iter(sx.prefetch(generate))
        with pytest.raises(KeyError, match="missing") as caught:
            taken.extend(values)  # extend keeps what came before the error
        assert isinstance(caught.value.__cause__, WorkerTraceback)
        text = str(caught.value.__cause__)
        assert "in generate" in text and 'raise KeyError("missing")' in text
        assert taken == [0, 1, 2] and list(values) == []

    def test_exit_of_the_generator_ends_the_values(self) -> None:
        def generate() -> Iterator[int]:
            yield 1
            sys.exit(3)

        before = children()
        values = iter(sx.prefetch(generate))
        assert next(values) == 1
        with pytest.raises(SystemExit):
            next(values)
        assert list(values) == [] and not children() - before

    def test_error_before_the_first_value(self) -> None:
        with pytest.raises(TypeError, match="not iterable"):
            list(sx.prefetch(int))  # type: ignore[arg-type]

    def test_stop_iteration_of_the_function_is_not_the_end(self) -> None:
        def function() -> Iterator[int]:
            return iter([next(iter([]))])

        with pytest.raises(RuntimeError, match="StopIteration"):
            list(sx.prefetch(function))

    def test_value_that_cannot_be_pickled(self) -> None:
        def generate() -> Iterator[Any]:
            yield threading.Lock()

        with pytest.raises(SchemaError, match="can be pickled, got lock"):
            list(sx.prefetch(generate))

    def test_arguments_are_checked(self) -> None:
        with pytest.raises(ArgumentError, match=r"got a generator; pass .*prefetch\(pids, \.\.\.\)"):
            sx.prefetch(pids(3))  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="at least 1 for depth, got 0"):
            sx.prefetch(pids, depth=0)
        with pytest.raises(ArgumentError, match=r"can be pickled, got pids\(<unlocked"):
            iter(sx.prefetch(pids, threading.Lock()))

    @pytest.mark.parametrize(
        ("end", "message"),
        [
            (lambda: os.kill(os.getpid(), signal.SIGKILL), r"signal 9 \(Killed\)"),
            (lambda: os.kill(os.getpid(), signal.SIGSEGV), r"signal 11 \(Segmentation fault\)"),
            (lambda: os._exit(0), "exit code 0"),
        ],
    )
    def test_death_of_the_process_is_an_error(self, end: Callable[[], None], message: str) -> None:
        def generate() -> Iterator[int]:
            yield 1
            end()

        before = children()
        with pytest.raises(WorkerError, match=message):
            list(sx.prefetch(generate))
        assert not children() - before

    def test_process_that_is_killed_while_the_loop_waits(self) -> None:
        def generate() -> Iterator[int]:
            yield os.getpid()
            signal.pause()

        values = iter(sx.prefetch(generate))
        os.kill(next(values), signal.SIGKILL)
        with pytest.raises(WorkerError, match="signal 9"):
            next(values)
        assert list(values) == []


class TestEnd:
    def test_break_close_and_garbage_leave_no_process_and_no_file(self) -> None:
        before, files = children(), open_files()
        for _ in sx.prefetch(pids):
            break
        assert not children() - before
        iterator = iter(sx.prefetch(pids))
        assert {next(iterator)} == children() - before
        iterator.close()
        assert not children() - before
        with pytest.raises(ClosedError):
            next(iterator)
        with sx.prefetch(pids) as values:
            kept = iter(values)
            next(kept)
        assert not children() - before
        iterator = iter(sx.prefetch(pids))
        next(iterator)
        del iterator
        gc.collect()
        assert not children() - before
        assert open_files() <= files  # idle connections of earlier tests may have been closed meanwhile

    def test_end_of_the_values_ends_the_process(self) -> None:
        before = children()
        values = iter(sx.prefetch(pids, 2))
        assert {*values} and not children() - before

    def test_generator_is_closed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shardex.workers.process_pool._GRACE", 60.0)

        def generate() -> Iterator[int]:
            try:
                yield from range(1000)
            finally:
                (tmp_path / "closed").touch()

        for _ in sx.prefetch(generate, depth=2):
            break
        assert (tmp_path / "closed").exists()

    def test_generator_that_never_returns_is_killed(self) -> None:
        def generate() -> Iterator[int]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            yield os.getpid()
            while True:
                signal.pause()

        with sx.prefetch(generate) as values:
            pid = next(iter(values))
        assert not psutil.pid_exists(pid)

    @pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
    def test_exit_of_the_program_ends_the_process(self, tmp_path: Path, end: str) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent(f"""
            import dataclasses, os, signal
            import numpy as np
            import shardex as sx

            factor = 2

            @dataclasses.dataclass
            class Own:  # of __main__, which the process does not import
                pid: int
                array: np.ndarray

            def generate():
                yield Own(os.getpid(), factor * np.ones(1000))
                while True:
                    signal.pause()

            values = iter(sx.prefetch(generate))
            value = next(values)
            assert isinstance(value, Own) and value.array.sum() == 2000
            print(value.pid, flush=True)
            {end}
            """)
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == "" and done.returncode == (-9 if "kill" in end else 0)
        wait_until_ended([int(done.stdout)])
