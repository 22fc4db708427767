"""`ProcessPool`: results and errors of jobs, memory, how workers end, and that no process, file or memory is left."""

from __future__ import annotations

import gc
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from shardex.errors import ArgumentError, ClosedError, SchemaError, WorkerError
from shardex.kernel import Columns, Ragged
from shardex.workers import ProcessPool
from shardex.workers.shared_arena import WorkerTraceback
from tests.waiting import wait_until_ended

SECONDS = 60.0
"""Time limit for every wait, generous enough for a busy machine."""


def call(function: Callable[[], Any]) -> Any:
    """The job of most tests: a task is a function to call."""
    return function()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def open_files() -> set[tuple[str, str]]:
    """Return number and target of each open file; threads of earlier tests may close some of theirs meanwhile."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return {(number, target) for number, target in found if "/proc/" not in target}


def wait_until_dead(pid: int) -> None:
    """Wait until a child has ended without reaping it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(call, 2) as pool:
        yield pool


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """A named pipe by which a job waits for the test: `open` blocks until the other side opens it."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` waits for workers as long as a busy machine needs."""
    monkeypatch.setattr("shardex.workers.process_pool._GRACE", 60.0)


def ask(pool: ProcessPool, function: Callable[[], Any]) -> Any:
    return pool.result(pool.submit(function))


class TestResults:
    def test_results_can_be_taken_in_any_order(self, pool: ProcessPool) -> None:
        tickets = [pool.submit(partial(pow, number, 2)) for number in range(20)]
        assert [pool.result(ticket) for ticket in reversed(tickets)] == [number**2 for number in reversed(range(20))]

    def test_unknown_and_used_tickets_raise(self, pool: ProcessPool) -> None:
        ticket = pool.submit(int)
        assert pool.result(ticket) == 0
        for wrong in (ticket, -1, 10**9):
            with pytest.raises(ArgumentError, match=f"expected a ticket .*, got {wrong}"):
                pool.result(wrong)

    def test_tasks_are_spread_over_all_workers(self) -> None:
        with ProcessPool(call, 3) as pool:
            tickets = [pool.submit(os.getpid) for _ in range(6)]
            assert len({pool.result(ticket) for ticket in tickets}) == 3

    def test_task_goes_to_the_worker_with_the_fewest_tasks(self, pool: ProcessPool, fifo: str) -> None:
        busy = pool.submit(lambda: (os.getpid(), Path(fifo).read_text()))
        others = {ask(pool, os.getpid) for _ in range(5)}
        Path(fifo).write_text("go")
        pid, text = pool.result(busy)
        assert text == "go"
        assert len(others) == 1 and pid not in others

    def test_closures_as_job_and_task(self, pool: ProcessPool) -> None:
        numbers = [1, 2, 3]
        with ProcessPool(lambda task: sum(numbers) + task, 1) as own:
            assert own.result(own.submit(4)) == 10
        assert ask(pool, lambda: sum(numbers)) == 6

    @pytest.mark.parametrize("size", [0, 10, 2000, 100_000])
    def test_values_are_unchanged(self, pool: ProcessPool, size: int) -> None:
        array = np.arange(size, dtype=np.float32)
        sent = {"a": array, "b": [array[::3], {"c": array.reshape(1, -1)}], "d": "text" * size, "e": None}
        got = ask(pool, lambda: sent)
        assert got.keys() == sent.keys()
        assert (got["d"], got["e"]) == (sent["d"], None)
        np.testing.assert_array_equal(got["a"], array)
        np.testing.assert_array_equal(got["b"][0], array[::3])
        np.testing.assert_array_equal(got["b"][1]["c"], array.reshape(1, -1))
        got["a"][:] = 5
        got["b"][0][:] = 6
        assert (got["a"] == 5).all()

    def test_columns_are_unchanged(self, pool: ProcessPool) -> None:
        ragged = Ragged.from_arrays([np.arange(n) for n in (700, 0, 900)])
        got = ask(pool, lambda: Columns({"r": ragged, "t": ["a", None, "c"]}))
        assert got["t"] == ["a", None, "c"]
        assert [row.tolist() for row in got["r"]] == [row.tolist() for row in ragged]

    def test_exception_can_be_returned(self, pool: ProcessPool) -> None:
        error = ask(pool, lambda: ValueError("no", 3))
        assert type(error) is ValueError and error.args == ("no", 3)

    def test_tensors_are_unchanged(self, pool: ProcessPool) -> None:
        import torch

        def tensors() -> Any:
            import torch

            return torch.ones(30, 40), torch.full((5000,), 1.5, dtype=torch.bfloat16), torch.tensor(3)

        ones, halves, three = ask(pool, tensors)
        ones += 1
        assert torch.equal(ones, torch.full((30, 40), 2.0))
        assert (halves.dtype, halves.float().sum().item(), three.item()) == (torch.bfloat16, 7500, 3)

    def test_unpicklable_result_raises(self, pool: ProcessPool) -> None:
        with pytest.raises(
            SchemaError, match=r"to return a value that can be pickled, got lock: cannot pickle '_thread.lock'"
        ):
            ask(pool, threading.Lock)
        assert ask(pool, int) == 0

    def test_result_that_cannot_be_unpickled_raises(self, pool: ProcessPool) -> None:
        class Hidden:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        with pytest.raises(WorkerError, match=r"of worker \d \(pid \d+\) that can be unpickled here.*no number"):
            ask(pool, Hidden)
        assert ask(pool, int) == 0

    def test_arrow_has_one_thread(self, pool: ProcessPool) -> None:
        assert ask(pool, pa.cpu_count) == 1


class TestMemory:
    def test_results_are_views_and_buffers_are_reused(self, pool: ProcessPool) -> None:
        addresses = set()
        tickets = [pool.submit(lambda: np.ones(50_000)) for _ in range(4)]
        for _ in range(100):
            array = pool.result(tickets.pop(0))
            tickets.append(pool.submit(lambda: np.ones(50_000)))
            addresses.add(array.ctypes.data)
            root = array
            while isinstance(root, np.ndarray | memoryview):
                root = root.base if isinstance(root, np.ndarray) else root.obj
            assert isinstance(root, mmap.mmap)
            assert array.sum() == 50_000
            array[:] = 0
        pool.forget()
        assert len(addresses) < 30

    def test_held_arrays_are_never_overwritten(self) -> None:
        with ProcessPool(lambda number: np.full(3000, number), 2) as pool:
            tickets = [pool.submit(number) for number in range(600)]
            held = {number: pool.result(ticket) for number, ticket in enumerate(tickets) if number % 2 == 0}
            others = [pool.submit(-1) for _ in range(50)]
            assert all((pool.result(ticket) == -1).all() for ticket in others)
        assert all((array == number).all() for number, array in held.items())

    def test_number_of_open_files_is_bounded(self) -> None:
        with ProcessPool(lambda number: np.full(3000, number), 2) as pool:
            held = [pool.result(pool.submit(number)) for number in range(600)]
            assert psutil.Process().num_fds() < 400
            assert [int(array[-1]) for array in held] == list(range(600))

    def test_results_of_changing_size(self, pool: ProcessPool) -> None:
        for power in [*range(10, 24), *reversed(range(10, 24))]:
            array = ask(pool, partial(np.full, 1 << power, power, np.uint8))
            assert (array == power).all()

    def test_arrays_stay_valid_after_the_pool(self) -> None:
        with ProcessPool(lambda number: np.full(5000, number), 1) as pool:
            array = pool.result(pool.submit(3))
        del pool
        gc.collect()
        array += 1
        assert (array == 4).all()


class TestTasks:
    def test_more_tasks_than_a_socket_holds(self, pool: ProcessPool) -> None:
        tickets = [pool.submit(lambda: None) for _ in range(3)]
        with ProcessPool(lambda number: number + 1, 2) as own:
            many = [own.submit(number) for number in range(5000)]
            assert [own.result(ticket) for ticket in many] == list(range(1, 5001))
        assert [pool.result(ticket) for ticket in tickets] == [None] * 3

    def test_large_tasks_and_large_results(self) -> None:
        with ProcessPool(lambda task: task, 2) as pool:
            tasks = [bytes([number]) * (1 << 20) for number in range(40)]
            tickets = [pool.submit(task) for task in tasks]
            assert [pool.result(ticket) for ticket in tickets] == tasks

    def test_large_job(self) -> None:
        numbers = np.arange(1 << 20)
        with ProcessPool(lambda task: int(numbers[task]), 2) as pool:
            assert pool.result(pool.submit(-1)) == (1 << 20) - 1

    def test_forgotten_tasks_are_not_begun(self, tmp_path: Path, fifo: str) -> None:
        log = tmp_path / "log"

        def note(number: int) -> int:
            with log.open("a") as file:
                file.write(f"{number}\n")
            if number == 0:
                Path(fifo).read_text()
            return number

        with ProcessPool(note, 1) as pool:
            first, *rest = [pool.submit(number) for number in range(1000)]
            with open(fifo, "w") as gate:  # the first one has begun
                pool.forget()
                gate.write("go")
            last = pool.submit(1000)
            assert pool.result(last) == 1000
            for ticket in (first, *rest[::100]):
                with pytest.raises(ArgumentError, match="used or forgotten"):
                    pool.result(ticket)
        assert log.read_text().split() == ["0", "1000"]

    def test_forgotten_results_free_their_buffers(self) -> None:
        with ProcessPool(lambda number: np.full(5000, number), 1) as pool:
            addresses = set()
            for round_ in range(20):
                tickets = [pool.submit(round_) for _ in range(5)]
                array = pool.result(tickets[2])
                assert (array == round_).all()
                addresses.add(array.ctypes.data)
                del array
                pool.forget()
            assert len(addresses) < 20

    def test_interrupt_while_waiting_keeps_the_ticket_valid(self, fifo: str) -> None:
        came: list[int] = []

        def interrupted(number: int, _: object) -> None:
            came.append(number)
            if len(came) == 1:
                raise KeyboardInterrupt

        def job(task: int) -> int:
            Path(fifo).read_text()
            done = threading.Event()

            def interrupt() -> None:
                """Send signals again: Python runs a handler late if the signal comes just before a call that waits."""
                os.kill(os.getppid(), signal.SIGUSR1)
                while not done.wait(0.1):
                    os.kill(os.getppid(), signal.SIGUSR1)

            sender = threading.Thread(target=interrupt)
            sender.start()
            Path(fifo).read_text()
            done.set()
            sender.join()
            return task

        before = signal.signal(signal.SIGUSR1, interrupted)
        begin = threading.Thread(target=Path(fifo).write_text, args=("go",))
        try:
            with ProcessPool(job, 1) as pool:
                ticket = pool.submit(7)
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come a moment before we wait
                    begin.start()
                    pool.result(ticket)
                if pool._workers:  # an interrupt in the middle of a frame would have closed it
                    Path(fifo).write_text("go")
                    assert pool.result(ticket) == 7
        finally:
            begin.join()
            signal.signal(signal.SIGUSR1, before)


class OwnError(Exception):
    def __init__(self, what: str, where: int) -> None:
        super().__init__(what, where)


class TwoPartError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, what: str, where: int) -> None:
        super().__init__(f"{what} at {where}")


def fail(error: BaseException) -> None:
    raise error


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [ValueError("no", 3), KeyError("k"), OwnError("a", 5), OSError(2, "none"), SystemExit(3), MemoryError()],
    )
    def test_error_of_the_job_is_raised_with_its_traceback(self, pool: ProcessPool, error: BaseException) -> None:
        with pytest.raises(type(error)) as caught:
            ask(pool, lambda: fail(error))
        assert type(caught.value) is type(error) and caught.value.args == error.args
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerTraceback)
        assert "in fail\n    raise error" in str(cause)
        assert ask(pool, lambda: 7) == 7

    def test_error_of_a_local_class(self, pool: ProcessPool) -> None:
        class LocalError(Exception):
            pass

        with pytest.raises(LocalError, match="here"):
            ask(pool, lambda: fail(LocalError("here")))

    @pytest.mark.parametrize(
        ("task", "name"),
        [
            (lambda: fail(TwoPartError("a hole", 5)), "test_process_pool.TwoPartError: a hole at 5"),
            (lambda: fail(ValueError(threading.Lock())), "ValueError: <unlocked _thread.lock"),
        ],
    )
    def test_unpicklable_error_becomes_worker_error(
        self, pool: ProcessPool, task: Callable[[], None], name: str
    ) -> None:
        with pytest.raises(WorkerError, match=rf"{name}.* \(raised in worker \d \(pid \d+\); the error") as caught:
            ask(pool, task)
        assert "in fail\n    raise error" in str(caught.value.__cause__)
        assert ask(pool, int) == 0

    def test_unpicklable_job_raises(self) -> None:
        lock, before = threading.Lock(), children()
        with pytest.raises(ArgumentError, match=r"expected a job that can be pickled, got .*: cannot pickle"):
            ProcessPool(lambda task: lock, 2)
        assert children() <= before

    def test_unpicklable_task_raises(self, pool: ProcessPool) -> None:
        with pytest.raises(ArgumentError, match="expected a task that can be pickled"):
            pool.submit(threading.Lock())
        assert ask(pool, int) == 0

    def test_task_that_cannot_be_unpickled_raises(self, pool: ProcessPool) -> None:
        class Hidden:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        with pytest.raises(ValueError, match="no number"):
            pool.result(pool.submit(Hidden()))

    def test_zero_workers_raise(self) -> None:
        with pytest.raises(ArgumentError, match="expected at least one worker, got 0"):
            ProcessPool(call, 0)

    def test_job_that_cannot_be_unpickled_raises(self) -> None:
        class Job:
            def __reduce__(self) -> Any:
                return int, ("no number",)

            def __call__(self, task: Any) -> None: ...

        before = children()
        pool = ProcessPool(Job(), 2)
        with pytest.raises(WorkerError, match=r"expected worker \d \(pid \d+\) to load the job") as caught:
            pool.result(pool.submit(1))
        assert "ValueError: invalid literal for int() with base 10: 'no number'" in str(caught.value.__cause__)
        assert children() <= before

    def test_too_many_open_files_raise(self, fifo: str) -> None:
        def wait() -> Any:
            with open(fifo) as gate:
                gate.readline()
            return np.zeros(9999)

        pool = ProcessPool(call, 1)
        ticket = pool.submit(wait)
        with open(fifo, "w") as gate:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            least = os.dup(0)
            os.close(least)
            resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
            try:
                print("go", file=gate, flush=True)
                with pytest.raises(WorkerError, match="too many open files: see ulimit -n"):
                    pool.result(ticket)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_missing_interpreter_raises_and_leaves_no_file_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        pool, files = ProcessPool(call, 2), open_files()
        with pytest.raises(FileNotFoundError):
            pool.submit(int)
        assert open_files() <= files
        with pytest.raises(ClosedError):
            pool.submit(int)


class TestWorkerDeath:
    @pytest.mark.parametrize(
        ("end", "message"),
        [
            (
                lambda: os.kill(os.getpid(), signal.SIGKILL),
                r"was killed by signal 9 \(Killed\) at task .*out of memory",
            ),
            (lambda: os.kill(os.getpid(), signal.SIGSEGV), r"was killed by signal 11 \(.*\) at task .*crashed"),
            (lambda: os._exit(3), r"ended with exit code 3 at task .*stderr"),
        ],
    )
    def test_error_says_why_and_the_other_workers_end(self, fifo: str, end: Callable[[], None], message: str) -> None:
        pool, before = ProcessPool(call, 2), children()
        tickets = [pool.submit(lambda: Path(fifo).read_text()), pool.submit(end), pool.submit(int)]
        pids = children() - before
        with pytest.raises(
            WorkerError, match=rf"expected worker \d \(pid \d+\) to keep running, it {message}"
        ) as caught:
            pool.result(tickets[0])
        assert int(re.findall(r"pid (\d+)", str(caught.value))[0]) in pids
        assert not pids & children()
        for again in (lambda: pool.result(tickets[1]), lambda: pool.submit(int)):
            with pytest.raises(WorkerError, match=message):
                again()
        pool.forget()
        pool.close()

    @pytest.mark.parametrize("how", ["submit", "ready", "waiting"])
    def test_death_of_an_idle_worker_raises(self, how: str, fifo: str) -> None:
        pool = ProcessPool(call, 2)
        ready = pool.submit(os.getpid)
        waiting = pool.submit(lambda: Path(fifo).read_text())
        pid = pool.result(ready)
        ready = pool.submit(int)
        os.kill(pid, signal.SIGKILL)
        wait_until_dead(pid)
        with pytest.raises(WorkerError, match=rf"\(pid {pid}\) to keep running, it was killed by signal 9"):
            pool.submit(int) if how == "submit" else pool.result(ready if how == "ready" else waiting)
        assert not psutil.pid_exists(pid)

    def test_death_while_tasks_wait_to_be_sent(self, fifo: str) -> None:
        pool = ProcessPool(call, 1)
        pid = ask(pool, os.getpid)
        pool.submit(lambda: Path(fifo).read_text())
        text = "x" * 100_000
        tickets = [pool.submit(lambda: text) for _ in range(50)]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="signal 9"):
            pool.result(tickets[-1])

    def test_death_is_seen_though_a_child_of_the_worker_lives(self) -> None:
        def job(task: int) -> None:
            if os.fork() == 0:
                signal.pause()
            os._exit(3)

        before = children()
        pool = ProcessPool(job, 1)
        ticket = pool.submit(0)
        (group,) = children() - before
        try:
            with pytest.raises(WorkerError, match="exit code 3"):
                pool.result(ticket)
        finally:
            os.killpg(group, signal.SIGKILL)


class TestClosing:
    def test_processes_start_when_needed_and_are_reaped(self) -> None:
        before = children()
        with ProcessPool(call, 2) as pool:
            assert children() <= before
            ask(pool, int)
            pids = children() - before
            assert len(pids) == 2
            ask(pool, int)
            assert children() - before == pids
        assert not any(map(psutil.pid_exists, pids))
        pool.close()
        for use in (lambda: pool.submit(int), lambda: pool.result(0)):
            with pytest.raises(ClosedError, match="this one was closed: make a new one"):
                use()
        pool.forget()

    def test_closing_an_unused_pool_leaves_no_file_open(self) -> None:
        pool, files = ProcessPool(call, 2), open_files()
        pool.forget()
        pool.close()
        assert open_files() <= files

    def test_closing_leaves_no_file_open(self) -> None:
        gc.collect()
        files = open_files()
        with ProcessPool(call, 2) as pool:
            array = ask(pool, lambda: np.zeros(9999))
            with pytest.raises(ValueError, match="no"):
                ask(pool, lambda: fail(ValueError("no")))
        del array
        gc.collect()
        assert open_files() <= files

    def test_idle_workers_exit_with_code_0(self, patient: None) -> None:
        with ProcessPool(call, 2) as pool:
            ask(pool, int)
            processes = [worker.process for worker in pool._workers.values()]
        assert [process.returncode for process in processes] == [0, 0]

    def test_running_task_may_finish(self, tmp_path: Path, fifo: str, patient: None) -> None:
        def job(task: int) -> None:
            Path(fifo).write_text("begun")
            (tmp_path / "done").write_text("")

        with ProcessPool(job, 1) as pool:
            pool.submit(0)
            Path(fifo).read_text()
        assert (tmp_path / "done").exists()

    def test_long_task_is_killed_with_its_child_processes(self, fifo: str) -> None:
        def job(task: int) -> None:
            child = subprocess.Popen(["sleep", "1000"])
            Path(fifo).write_text(f"{os.getpid()} {child.pid}")
            child.wait()

        with ProcessPool(job, 2) as pool:
            pool.submit(0)
            pid, grandchild = map(int, Path(fifo).read_text().split())
        assert not psutil.pid_exists(pid)
        wait_until_ended([grandchild])

    def test_garbage_collected_pool_ends_its_workers(self) -> None:
        before = children()
        pool = ProcessPool(call, 2)
        ask(pool, int)
        pids = children() - before
        del pool
        gc.collect()
        assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_worker_has_only_its_own_socket_and_pipe_open(self, pool: ProcessPool) -> None:
        with ProcessPool(call, 3) as own:
            ask(own, int)
            for worker in [*pool._workers.values(), *own._workers.values()]:
                folder = Path(f"/proc/{worker.process.pid}/fd")
                kinds = [os.readlink(file).partition(":")[0] for file in folder.iterdir() if int(file.name) > 2]
                assert sorted(kind for kind in kinds if kind in ("pipe", "socket")) == ["pipe", "socket"]


PRELUDE = """
import os, signal, sys
import numpy as np
from shardex.workers import ProcessPool

def spin():
    print("begun", flush=True)
    while True: pass

pool = ProcessPool(lambda function: function(), 2)
tickets = [pool.submit(lambda: (os.getpid(), np.ones(9999))) for _ in range(8)]
held = [pool.result(ticket) for ticket in tickets]
print(*{pid for pid, _ in held}, flush=True)
"""


class Script:
    """A script that runs in its own session and has printed the pids of its workers."""

    def __init__(self, folder: Path, text: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        (folder / "script.py").write_text(PRELUDE + text)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", folder / "script.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            start_new_session=True,
        )
        self.pids = [int(pid) for pid in self.line().split()]
        assert len(self.pids) == 2

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def end(self) -> tuple[int, str, str]:
        """Wait for the script and its workers; no temporary file may be left."""
        out, errors = self.process.communicate(timeout=SECONDS)
        wait_until_ended(self.pids)
        assert list(self.temporary.iterdir()) == []
        return self.process.returncode, out.decode(), errors.decode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """Return a function that runs a script after the prelude; scripts are killed after the test."""
    scripts: list[Script] = []

    def run(text: str) -> Script:
        scripts.append(Script(tmp_path, text))
        return scripts[-1]

    yield run
    for script in scripts:
        with suppress(ProcessLookupError):
            os.killpg(script.process.pid, signal.SIGKILL)
        script.process.communicate()


class TestNothingIsLeft:
    @pytest.mark.parametrize(
        ("text", "code", "message"),
        [
            ("", 0, ""),
            ("raise ValueError('no')", 1, "ValueError: no"),
            ("os._exit(4)", 4, ""),
            ("pool.result(pool.submit(lambda: os.kill(os.getpid(), 9)))", 1, "killed by signal 9"),
            ("pool.submit(spin)", 0, ""),
            ("os.execv('/bin/true', ['true'])", 0, ""),
        ],
    )
    def test_workers_end_when_the_script_exits(
        self, start: Callable[[str], Script], text: str, code: int, message: str
    ) -> None:
        returned, _, errors = start(text).end()
        assert returned == code, errors
        assert message in errors if message else errors == ""

    @pytest.mark.parametrize(
        ("number", "busy"),
        [
            (signal.SIGINT, "spin"),
            (signal.SIGTERM, "spin"),
            (signal.SIGKILL, "spin"),
            (signal.SIGINT, "lambda: (print('begun', flush=True), signal.pause())"),
        ],
    )
    def test_workers_end_after_a_signal_to_the_process_group(
        self, start: Callable[[str], Script], number: signal.Signals, busy: str
    ) -> None:
        script = start(f"pool.result(pool.submit({busy}))")
        assert script.line() == "begun\n"
        os.killpg(script.process.pid, number)
        code, _, errors = script.end()
        assert code == -number
        assert errors.rstrip().endswith("KeyboardInterrupt" if number == signal.SIGINT else "")

    def test_a_fork_does_not_keep_workers_alive(self, start: Callable[[str], Script]) -> None:
        forked = "pid = os.fork()\nif pid: print(pid, flush=True); pool.result(pool.submit(spin))\nsignal.pause()"
        script = start(forked)
        pid = int(script.line())
        try:
            assert script.line() == "begun\n"
            script.process.kill()
            wait_until_ended(script.pids)
        finally:
            os.kill(pid, signal.SIGKILL)
        script.end()

    def test_child_processes_of_a_job_end_with_the_script(self, start: Callable[[str], Script]) -> None:
        text = (
            "import subprocess\npool.result(pool.submit(lambda: subprocess.run(['sh', '-c', 'echo $$; sleep 1000'])))"
        )
        script = start(text)
        script.pids.append(int(script.line()))
        script.process.kill()
        script.end()

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_shared_memory_is_anonymous(self, start: Callable[[str], Script]) -> None:
        script = start("sys.stdin.read(); signal.pause()")
        for pid in (script.process.pid, *script.pids):
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "/memfd:shardex (deleted)" in maps
            assert "/dev/shm/" not in maps
        script.process.kill()
        script.end()


class TestScripts:
    def test_pool_of_the_parent_cannot_be_used_after_fork(self, start: Callable[[str], Script]) -> None:
        text = """
for use in (lambda: pool.submit(int), lambda: pool.result(0)):
    if not (pid := os.fork()):
        try:
            use()
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")
        pool.forget()
        pool.close()
        sys.exit(5)
    print(os.waitpid(pid, 0)[1] >> 8, flush=True)
    print(pool.result(pool.submit(lambda: 7)), flush=True)
"""
        script = start(text)
        code, out, errors = script.end()
        said = f"WorkerError: expected a pool of this process, got one of process {script.process.pid}: make a new one"
        assert (code, errors) == (0, "")
        assert out.splitlines() == [said, "5", "7"] * 2

    def test_unstarted_pool_works_after_fork(self, start: Callable[[str], Script]) -> None:
        text = """
fresh = ProcessPool(abs, 1)
if not (pid := os.fork()):
    print(fresh.result(fresh.submit(-3)), flush=True)
    sys.exit()
os.waitpid(pid, 0)
print(fresh.result(fresh.submit(-4)), flush=True)
"""
        assert start(text).end() == (0, "3\n4\n", "")

    def test_job_and_classes_of_the_main_module(self, start: Callable[[str], Script]) -> None:
        text = """
print("once")

class Sample:
    def __init__(self, number):
        self.number = number

class OwnError(Exception): pass

def job(sample):
    print("in", __name__, flush=True)
    if sample.number:
        raise OwnError(sample)
    return Sample(sample.number + 1)

own = ProcessPool(job, 1)
result = own.result(own.submit(Sample(0)))
assert type(result) is Sample and result.number == 1
try:
    own.result(own.submit(Sample(1)))
except OwnError as error:
    assert type(error.args[0]) is Sample
    assert 'script.py", line' in str(error.__cause__)
    print("caught", flush=True)
"""
        code, out, errors = start(text).end()
        assert (code, errors) == (0, "")
        assert sorted(out.splitlines()) == sorted(["once", "in __main__", "in __main__", "caught"])

    def test_uncaught_error_prints_the_traceback_of_the_worker(self, start: Callable[[str], Script]) -> None:
        code, _, errors = start("pool.result(pool.submit(lambda: {}['key']))").end()
        assert code == 1
        assert "WorkerTraceback" in errors and "direct cause" in errors
        assert errors.count("KeyError: 'key'") == 2
