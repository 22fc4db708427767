"""Executors: which one the arguments name, results and errors in order, workers that are killed, executors of users."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as AnyFutures
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardex.errors import ArgumentError, ClosedError, MissingExtraError, WorkerError
from shardex.kernel import cores
from shardex.workers import Executor, InlineExecutor, ThreadExecutor, start_executor
from shardex.workers.executors import FuturesExecutor, _jobs
from shardex.workers.process_pool import RestartingPool
from tests.waiting import wait_until_ended

SECONDS = 60.0


def call(function: Callable[[], Any]) -> Any:
    return function()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def die_until(folder: Path, deaths: int, value: int) -> int:
    """Kill this process the first times; then return the value."""
    for number in range(deaths):
        with suppress(FileExistsError):
            (folder / f"{value}-{number}").touch(exist_ok=False)
            die()
    return value


class DaskLike(AnyFutures):
    """An executor as Dask has one: functions, arguments and results are pickled, and there is no number of workers."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(2)
        self.bytes_sent: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        body = pickle.dumps((fn, args))
        self.bytes_sent.append(len(body))
        return self.threads.submit(self._run, body)

    def _run(self, body: bytes) -> Any:
        fn, args = pickle.loads(body)
        return pickle.loads(pickle.dumps(fn(*args)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.threads.shutdown(wait, cancel_futures=cancel_futures)


class TestStart:
    @pytest.mark.parametrize(
        ("arguments", "kind", "width"),
        [
            ({}, InlineExecutor, 1),
            ({"workers": 1}, InlineExecutor, 1),
            ({"executor": "inline"}, InlineExecutor, 1),
            ({"workers": 3}, RestartingPool, 3),
            ({"workers": 1, "executor": "processes"}, RestartingPool, 1),
            ({"executor": "processes"}, RestartingPool, cores()),
            ({"workers": 5, "executor": "threads"}, ThreadExecutor, 5),
            ({"executor": "threads"}, ThreadExecutor, cores()),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], kind: type, width: int) -> None:
        executor = start_executor(str, **arguments)
        assert (type(executor), executor.width) == (kind, width)
        executor.close()

    def test_width_of_an_executor_of_the_user(self) -> None:
        with ThreadPoolExecutor(7) as threads, DaskLike() as dask:
            assert start_executor(str, executor=threads).width == 7
            assert start_executor(str, executor=dask).width == cores()
            assert start_executor(str, workers=9, executor=dask).width == 9

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"workers": 0}, "expected workers to be a number from 1, or None, got 0"),
            ({"workers": True}, "expected workers to be a number from 1, or None, got True"),
            ({"workers": 2.0}, "expected workers to be a number from 1, or None, got 2.0"),
            ({"executor": "process"}, "expected executor to be one of 'inline', .*did you mean 'processes'"),
            ({"executor": 4}, "expected executor to be one of .* or a concurrent.futures.Executor, got 4"),
            ({"executor": "inline", "workers": 2}, 'expected one worker with executor="inline", got workers=2'),
        ],
    )
    def test_wrong_arguments(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            start_executor(str, **arguments)

    def test_import_loads_no_pool_of_the_standard_library(self) -> None:
        heavy = {"multiprocessing", "concurrent.futures.process", "ray"}
        code = f"import sys, shardex.workers; print({heavy} & {{*sys.modules}})"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.fixture(params=["inline", "threads", "processes", "user's threads", "fork", "spawn", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """Each executor, with `call` as its job."""
    owned: AnyFutures | None = None
    if request.param in ("inline", "threads", "processes"):
        made = start_executor(call, 1 if request.param == "inline" else 2, request.param)
    else:
        if request.param in ("fork", "spawn"):
            owned = ProcessPoolExecutor(2, multiprocessing.get_context(request.param))
        else:
            owned = ThreadPoolExecutor(2) if request.param == "user's threads" else DaskLike()
        made = start_executor(call, executor=owned)
    yield made
    made.close()
    if owned is not None:
        assert owned.submit(int).result() == 0  # it still runs
        owned.shutdown()


class TestEveryExecutor:
    def test_results_errors_and_forgotten_tasks(self, executor: Executor) -> None:
        before, numbers = children(), list(range(5))
        tickets = [executor.submit(partial(lambda k: sum(numbers) + k, k)) for k in range(20)]
        assert [executor.result(ticket) for ticket in tickets] == [10 + k for k in range(20)]

        class OwnError(Exception):
            pass

        def fail() -> None:
            raise OwnError("no")

        failed, good = executor.submit(fail), executor.submit(int)
        with pytest.raises(OwnError, match="no"):
            executor.result(failed)
        assert executor.result(good) == 0
        for _ in range(10):
            executor.submit(int)
        executor.forget()
        assert executor.result(executor.submit(lambda: "after")) == "after"
        executor.close()
        if isinstance(executor, RestartingPool):
            assert children() <= before


class TestRestartingPool:
    def test_tasks_of_killed_workers_run_again_and_others_once(self, tmp_path: Path) -> None:
        def count(number: int) -> int:
            with open(tmp_path / f"runs{number}", "a") as file:
                file.write("x")
            if number % 4 == 3:
                die_until(tmp_path, 1, number)
            return number

        before = children()
        with RestartingPool(count, 2) as pool:
            tickets = [pool.submit(number) for number in range(16)]
            assert [pool.result(ticket) for ticket in tickets] == list(range(16))
            assert len(children() - before) <= 2
        runs = {number: (tmp_path / f"runs{number}").stat().st_size for number in range(16)}
        assert runs == {number: 2 if number % 4 == 3 else 1 for number in range(16)}
        assert children() <= before

    @pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
    def test_two_deaths_are_survived(self, tmp_path: Path, workers: int) -> None:
        with RestartingPool(call, workers) as pool:
            tickets = [pool.submit(partial(die_until, tmp_path, 2, value)) for value in range(2)]
            assert [pool.result(ticket) for ticket in reversed(tickets)] == [1, 0]

    @pytest.mark.parametrize(
        ("end", "how"),
        [
            (die, r"was killed by signal 9 \(Killed\) at task .*die.*; the machine may have run out of memory"),
            # test_process_pool.py has these for workers that are not replaced
            pytest.param(
                partial(die, signal.SIGSEGV), r"was killed by signal 11 \(.*\) at task", marks=pytest.mark.long
            ),
            pytest.param(partial(os._exit, 3), "ended with exit code 3 at task", marks=pytest.mark.long),
        ],
    )
    def test_third_death_at_a_task_raises(self, end: Callable[[], None], how: str) -> None:
        before = children()
        pool = RestartingPool(call, 2)
        tickets = [pool.submit(int), pool.submit(end), pool.submit(int)]
        match = rf"expected a task to finish, but its worker died 3 times; the last one, worker \d \(pid \d+\), {how}"
        with pytest.raises(WorkerError, match=match):
            [pool.result(ticket) for ticket in tickets]
        assert children() <= before
        with pytest.raises(WorkerError, match="died 3 times"):
            pool.submit(int)

    def test_workers_that_do_not_start_raise(self) -> None:
        before = children()
        pool = RestartingPool(call, 2, initializer=partial(os._exit, 4))
        with pytest.raises(
            WorkerError, match=r"to start, it ended with exit code 4.*; 6 workers in a row did not start"
        ):
            pool.result(pool.submit(int))
        assert children() <= before

    def test_deaths_before_a_worker_is_ready_are_no_fault_of_a_task(self, tmp_path: Path) -> None:
        with RestartingPool(call, 2, initializer=partial(die_until, tmp_path, 5, 0)) as pool:
            assert pool.result(pool.submit(lambda: 7)) == 7

    def test_received_results_outlive_their_worker(self, tmp_path: Path) -> None:
        pids = tmp_path / "pids"

        def job(number: int) -> bytes:
            with open(pids, "a") as file:
                print(os.getpid(), file=file)
            return bytes([number]) * 100_000

        with RestartingPool(job, 1) as pool:
            tickets = [pool.submit(number) for number in range(3)]
            last = pool.result(tickets[2])
            for pid in set(pids.read_text().split()):
                os.kill(int(pid), signal.SIGKILL)
            assert [pool.result(ticket)[0] for ticket in tickets[:2]] == [0, 1]
            assert last == b"\2" * 100_000
            assert pids.read_text().count("\n") == 3
            assert pool.result(pool.submit(7)) == b"\7" * 100_000

    def test_idle_workers_are_replaced_when_a_task_comes(self) -> None:
        with RestartingPool(call, 2) as pool:
            first = {pool.result(ticket) for ticket in [pool.submit(os.getpid) for _ in range(4)]}
            for pid in first:
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            second = {pool.result(ticket) for ticket in [pool.submit(os.getpid) for _ in range(4)]}
            assert first.isdisjoint(second)

    def test_forgotten_task_is_not_run_again(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "begun")

        def hang() -> None:
            (tmp_path / "begun").write_text(str(os.getpid()))
            signal.pause()

        with RestartingPool(call, 1) as pool:
            pool.submit(hang)
            pid = int((tmp_path / "begun").read_text())
            pool.forget()
            os.kill(pid, signal.SIGKILL)
            assert pool.result(pool.submit(lambda: 5)) == 5

    def test_errors_of_the_job_are_not_retried(self, tmp_path: Path) -> None:
        def fail(task: int) -> None:
            with open(tmp_path / "runs", "a") as file:
                file.write("x")
            raise ValueError("no")

        with RestartingPool(fail, 1) as pool, pytest.raises(ValueError, match="no"):
            pool.result(pool.submit(1))
        assert (tmp_path / "runs").read_text() == "x"

    def test_job_that_cannot_be_unpickled_is_not_retried(self, tmp_path: Path) -> None:
        class Job:
            def __reduce__(self) -> Any:
                return os.rename, (str(tmp_path / "a"), str(tmp_path / "b"))

            def __call__(self, task: Any) -> None: ...

        pool = RestartingPool(Job(), 1)
        with pytest.raises(WorkerError, match=r"expected worker 0 \(pid \d+\) to load the job"):
            pool.result(pool.submit(1))
        pool.close()

    def test_children_of_a_dead_worker_are_killed(self, tmp_path: Path) -> None:
        def start_child() -> int:
            if (tmp_path / "child").exists():
                return int((tmp_path / "child").read_text())
            (tmp_path / "child").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
            return die_until(tmp_path, 1, 0)

        with RestartingPool(call, 1) as pool:
            wait_until_ended([pool.result(pool.submit(start_child))])

    def test_long_and_short_tasks_are_shared_by_all_workers(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "gate")

        def task(number: int) -> int:
            if number == 0:
                (tmp_path / "gate").read_text()
            if number == 18:
                (tmp_path / "gate").write_text("go")
            return os.getpid()

        with RestartingPool(task, 2) as pool:
            pids = Counter([pool.result(ticket) for ticket in [pool.submit(number) for number in range(19)]])
        assert sorted(pids.values()) == [2, 17]


SCRIPT = """
import os, signal, sys
from shardex.workers import start_executor

def spin(task):
    os.write(1, b"%d\\n" % os.getpid())
    if task == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    while True: pass

executor = start_executor(spin, workers=2)
tickets = [executor.submit(task) for task in (1, 0, 1)]
executor.result(tickets[0])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=-1, stderr=-1, start_new_session=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(3)]
    os.killpg(process.pid, number)
    process.communicate(timeout=SECONDS)
    wait_until_ended(pids)
    assert process.returncode == -number


class TestFutures:
    def test_job_is_unpickled_once_in_each_process(self, tmp_path: Path) -> None:
        class Job:
            def __init__(self) -> None:
                self.loads = 0

            def __setstate__(self, state: dict[str, Any]) -> None:
                self.loads = state["loads"] + 1
                (tmp_path / f"{os.getpid()}-{time.monotonic_ns()}").touch()

            def __call__(self, task: int) -> tuple[int, int]:
                return os.getpid(), self.loads

        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as processes:
            executor = FuturesExecutor(Job(), processes)
            answers = [executor.result(ticket) for ticket in [executor.submit(k) for k in range(20)]]
        assert {loads for _, loads in answers} == {1}
        assert len(list(tmp_path.iterdir())) == len({pid for pid, _ in answers})

    def test_large_job_is_not_sent_with_every_task(self) -> None:
        table = os.urandom(1 << 20)
        with DaskLike() as dask:
            executor = FuturesExecutor(lambda task: table[task], dask, workers=2)
            tickets = [executor.submit(k) for k in range(20)]
            assert [executor.result(ticket) for ticket in tickets] == list(table[:20])
            sent = sum(size > 1 << 20 for size in dask.bytes_sent)
            assert sent == 6
            _jobs.clear()  # as in a process that was started later
            assert executor.result(executor.submit(5)) == table[5]
            assert sum(size > 1 << 20 for size in dask.bytes_sent) == sent + 1

    def test_initializer_runs_before_the_job_is_unpickled(self) -> None:
        def initialize() -> None:
            os.environ["SHARDEX_TEST_INITIALIZED"] = "yes"

        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
            executor = FuturesExecutor(lambda name: os.environ[name], processes, initializer=initialize)
            assert executor.result(executor.submit("SHARDEX_TEST_INITIALIZED")) == "yes"

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_killed_worker_raises(self, method: str) -> None:
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as processes:
            executor = FuturesExecutor(call, processes)
            ticket = executor.submit(die)
            with pytest.raises(WorkerError, match="all workers of ProcessPoolExecutor to keep running, one died"):
                executor.result(ticket)
            with pytest.raises(WorkerError, match="make a new executor"):
                executor.submit(int)
            executor.close()

    def test_close_cancels_what_has_not_begun_and_waits_for_the_rest(self) -> None:
        begun, gate, done = threading.Event(), threading.Event(), list[int]()

        def task(number: int) -> None:
            begun.set()
            gate.wait(SECONDS)
            done.append(number)

        with ThreadPoolExecutor(1) as threads:
            executor = start_executor(task, executor=threads)
            tickets = [executor.submit(number) for number in range(5)]
            begun.wait(SECONDS)
            tickets[4].add_done_callback(lambda ticket: gate.set())
            executor.close()
            assert done == [0]
            assert threads.submit(int).result() == 0

    def test_executor_that_was_shut_down_raises(self) -> None:
        threads = ThreadPoolExecutor(1)
        threads.shutdown()
        with pytest.raises(ClosedError, match=r"expected an executor that takes tasks, got .*after shutdown"):
            start_executor(str, executor=threads).submit(1)

    def test_job_that_cannot_be_pickled_raises(self) -> None:
        lock = multiprocessing.Lock()
        with DaskLike() as dask, pytest.raises(ArgumentError, match="expected a job that can be pickled"):
            start_executor(lambda task: lock, executor=dask)


def test_missing_ray_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "shardex.workers.ray_executor", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardex\[ray\]'"):
        start_executor(str, executor="ray")
