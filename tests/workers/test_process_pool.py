"""Worker processes: what they return and raise, how they end, and that nothing is left of them."""

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
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from shardex.errors import ClosedError, SchemaError, WorkerError
from shardex.kernel import Columns, Ragged
from shardex.workers import ProcessPool
from shardex.workers.shared_arena import WorkerTraceback

pytestmark = pytest.mark.slow  # real processes; which kernel copies bytes makes no difference to them

SECONDS = 30.0
"""How long anything may take on a busy machine; it is a hang after that."""


def call(function: Callable[[], Any]) -> Any:
    """The job of most tests: a task says itself what to do."""
    return function()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def has_ended(pid: int) -> bool:
    """Whether it does nothing any more; who adopts an orphan may take its time to reap it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(pids: list[int]) -> None:
    """Processes that are not ours give no signal when they end: look again and again."""
    deadline = time.monotonic() + SECONDS
    while not all(map(has_ended, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if not has_ended(pid)]}"
        time.sleep(0.01)


def wait_until_dead(pid: int) -> None:
    """Wait for a child, but leave its exit code to the crew."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture(scope="module")
def crew() -> Iterator[ProcessPool]:
    with ProcessPool(call, 2) as crew:
        yield crew


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """A file that lets a job wait for the test: `open` in one waits for the other."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


def ask(crew: ProcessPool, function: Callable[[], Any]) -> Any:
    return crew.result(crew.submit(function))


class TestResults:
    def test_tickets_in_any_order(self, crew: ProcessPool) -> None:
        tickets = [crew.submit(partial(pow, number, 2)) for number in range(20)]
        assert [crew.result(ticket) for ticket in reversed(tickets)] == [number**2 for number in reversed(range(20))]

    def test_a_ticket_is_good_for_one_time(self, crew: ProcessPool) -> None:
        ticket = crew.submit(int)
        assert crew.result(ticket) == 0
        for wrong in (ticket, -1, 10**9):
            with pytest.raises(SchemaError, match=f"expected a ticket .*, got {wrong}"):
                crew.result(wrong)

    def test_all_workers_work(self) -> None:
        with ProcessPool(call, 3) as crew:
            tickets = [crew.submit(os.getpid) for _ in range(6)]
            assert len({crew.result(ticket) for ticket in tickets}) == 3

    def test_a_task_goes_to_the_worker_with_the_fewest(self, crew: ProcessPool, fifo: str) -> None:
        busy = crew.submit(lambda: (os.getpid(), Path(fifo).read_text()))
        others = {ask(crew, os.getpid) for _ in range(5)}
        Path(fifo).write_text("go")
        pid, text = crew.result(busy)
        assert text == "go"
        assert len(others) == 1 and pid not in others

    def test_closures(self, crew: ProcessPool) -> None:
        numbers = [1, 2, 3]
        with ProcessPool(lambda task: sum(numbers) + task, 1) as own:
            assert own.result(own.submit(4)) == 10
        assert ask(crew, lambda: sum(numbers)) == 6

    @pytest.mark.parametrize("size", [0, 10, 2000, 100_000])
    def test_values_come_through_unchanged(self, crew: ProcessPool, size: int) -> None:
        array = np.arange(size, dtype=np.float32)
        sent = {"a": array, "b": [array[::3], {"c": array.reshape(1, -1)}], "d": "text" * size, "e": None}
        got = ask(crew, lambda: sent)
        assert got.keys() == sent.keys()
        assert (got["d"], got["e"]) == (sent["d"], None)
        np.testing.assert_array_equal(got["a"], array)
        np.testing.assert_array_equal(got["b"][0], array[::3])
        np.testing.assert_array_equal(got["b"][1]["c"], array.reshape(1, -1))
        got["a"][:] = 5
        got["b"][0][:] = 6
        assert (got["a"] == 5).all()

    def test_columns(self, crew: ProcessPool) -> None:
        ragged = Ragged.from_arrays([np.arange(n) for n in (700, 0, 900)])
        got = ask(crew, lambda: Columns({"r": ragged, "t": ["a", None, "c"]}))
        assert got["t"] == ["a", None, "c"]
        assert [row.tolist() for row in got["r"]] == [row.tolist() for row in ragged]

    def test_errors_as_values(self, crew: ProcessPool) -> None:
        error = ask(crew, lambda: ValueError("no", 3))
        assert type(error) is ValueError and error.args == ("no", 3)

    def test_tensors(self, crew: ProcessPool) -> None:
        import torch

        def tensors() -> Any:
            import torch

            return torch.ones(30, 40), torch.full((5000,), 1.5, dtype=torch.bfloat16), torch.tensor(3)

        ones, halves, three = ask(crew, tensors)
        ones += 1
        assert torch.equal(ones, torch.full((30, 40), 2.0))
        assert (halves.dtype, halves.float().sum().item(), three.item()) == (torch.bfloat16, 7500, 3)

    def test_a_result_that_cannot_be_pickled(self, crew: ProcessPool) -> None:
        with pytest.raises(SchemaError, match=r"to return what can be pickled, got lock: cannot pickle '_thread.lock'"):
            ask(crew, threading.Lock)
        assert ask(crew, int) == 0

    def test_a_result_that_cannot_be_unpickled(self, crew: ProcessPool) -> None:
        class Hidden:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        with pytest.raises(WorkerError, match=r"of worker \d \(pid \d+\) that can be unpickled here.*no number"):
            ask(crew, Hidden)
        assert ask(crew, int) == 0

    def test_arrow_has_one_thread(self, crew: ProcessPool) -> None:
        assert ask(crew, pa.cpu_count) == 1


class TestMemory:
    def test_nothing_is_copied_and_buffers_are_used_again(self, crew: ProcessPool) -> None:
        addresses = set()
        tickets = [crew.submit(lambda: np.ones(50_000)) for _ in range(4)]
        for _ in range(100):
            array = crew.result(tickets.pop(0))
            tickets.append(crew.submit(lambda: np.ones(50_000)))
            addresses.add(array.ctypes.data)
            root = array
            while isinstance(root, np.ndarray | memoryview):
                root = root.base if isinstance(root, np.ndarray) else root.obj
            assert isinstance(root, mmap.mmap)
            assert array.sum() == 50_000
            array[:] = 0
        crew.forget()
        assert len(addresses) < 30

    def test_what_is_held_is_never_overwritten(self) -> None:
        with ProcessPool(lambda number: np.full(3000, number), 2) as crew:
            tickets = [crew.submit(number) for number in range(600)]
            held = {number: crew.result(ticket) for number, ticket in enumerate(tickets) if number % 2 == 0}
            others = [crew.submit(-1) for _ in range(50)]
            assert all((crew.result(ticket) == -1).all() for ticket in others)
        assert all((array == number).all() for number, array in held.items())

    def test_open_files_are_few_however_much_is_held(self) -> None:
        with ProcessPool(lambda number: np.full(3000, number), 2) as crew:
            held = [crew.result(crew.submit(number)) for number in range(600)]
            assert psutil.Process().num_fds() < 400
            assert [int(array[-1]) for array in held] == list(range(600))

    def test_results_that_grow_and_shrink(self, crew: ProcessPool) -> None:
        for power in [*range(10, 24), *reversed(range(10, 24))]:
            array = ask(crew, partial(np.full, 1 << power, power, np.uint8))
            assert (array == power).all()

    def test_arrays_outlive_their_crew(self) -> None:
        with ProcessPool(lambda number: np.full(5000, number), 1) as crew:
            array = crew.result(crew.submit(3))
        del crew
        gc.collect()
        array += 1
        assert (array == 4).all()


class TestFlow:
    def test_thousands_of_tasks(self, crew: ProcessPool) -> None:
        tickets = [crew.submit(lambda: None) for _ in range(3)]
        with ProcessPool(lambda number: number + 1, 2) as own:
            many = [own.submit(number) for number in range(20_000)]
            assert [own.result(ticket) for ticket in many] == list(range(1, 20_001))
        assert [crew.result(ticket) for ticket in tickets] == [None] * 3

    def test_large_tasks_and_large_results(self) -> None:
        with ProcessPool(lambda task: task, 2) as crew:
            tasks = [bytes([number]) * (1 << 20) for number in range(40)]
            tickets = [crew.submit(task) for task in tasks]
            assert [crew.result(ticket) for ticket in tickets] == tasks

    def test_a_large_job(self) -> None:
        numbers = np.arange(1 << 20)
        with ProcessPool(lambda task: int(numbers[task]), 2) as crew:
            assert crew.result(crew.submit(-1)) == (1 << 20) - 1

    def test_forgotten_tasks_are_not_begun(self, tmp_path: Path, fifo: str) -> None:
        log = tmp_path / "log"

        def note(number: int) -> int:
            with log.open("a") as file:
                file.write(f"{number}\n")
            if number == 0:
                Path(fifo).read_text()
            return number

        with ProcessPool(note, 1) as crew:
            first, *rest = [crew.submit(number) for number in range(1000)]
            with open(fifo, "w") as gate:  # the first one has begun
                crew.forget()
                gate.write("go")
            last = crew.submit(1000)
            assert crew.result(last) == 1000
            for ticket in (first, *rest[::100]):
                with pytest.raises(SchemaError, match="redeemed or forgotten"):
                    crew.result(ticket)
        assert log.read_text().split() == ["0", "1000"]

    def test_forgotten_results_give_their_memory_back(self) -> None:
        with ProcessPool(lambda number: np.full(5000, number), 1) as crew:
            addresses = set()
            for round_ in range(20):
                tickets = [crew.submit(round_) for _ in range(5)]
                array = crew.result(tickets[2])
                assert (array == round_).all()
                addresses.add(array.ctypes.data)
                del array
                crew.forget()
            assert len(addresses) < 20

    def test_an_interrupt_while_waiting(self, fifo: str) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        def job(task: int) -> int:
            Path(fifo).read_text()
            os.kill(os.getppid(), signal.SIGUSR1)
            Path(fifo).read_text()
            return task

        before = signal.signal(signal.SIGUSR1, interrupted)
        begin = threading.Thread(target=Path(fifo).write_text, args=("go",))
        try:
            with ProcessPool(job, 1) as crew:
                ticket = crew.submit(7)
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come a moment before we wait
                    begin.start()
                    crew.result(ticket)
                if crew._mates:  # an interrupt in the middle of a frame would have closed it
                    Path(fifo).write_text("go")
                    assert crew.result(ticket) == 7
        finally:
            begin.join()
            signal.signal(signal.SIGUSR1, before)


class OwnError(Exception):
    def __init__(self, what: str, where: int) -> None:
        super().__init__(what, where)


class TwoPartError(Exception):
    """One that pickle cannot make again."""

    def __init__(self, what: str, where: int) -> None:
        super().__init__(f"{what} at {where}")


def fail(error: BaseException) -> None:
    raise error


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [ValueError("no", 3), KeyError("k"), OwnError("a", 5), OSError(2, "none"), SystemExit(3), MemoryError()],
    )
    def test_the_same_error_with_its_traceback(self, crew: ProcessPool, error: BaseException) -> None:
        with pytest.raises(type(error)) as caught:
            ask(crew, lambda: fail(error))
        assert type(caught.value) is type(error) and caught.value.args == error.args
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerTraceback)
        assert "in fail\n    raise error" in str(cause)
        assert ask(crew, lambda: 7) == 7

    def test_an_error_without_a_module(self, crew: ProcessPool) -> None:
        class LocalError(Exception):
            pass

        with pytest.raises(LocalError, match="here"):
            ask(crew, lambda: fail(LocalError("here")))

    @pytest.mark.parametrize(
        ("task", "name"),
        [
            (lambda: fail(TwoPartError("a hole", 5)), "test_process_pool.TwoPartError: a hole at 5"),
            (lambda: fail(ValueError(threading.Lock())), "ValueError: <unlocked _thread.lock"),
        ],
    )
    def test_an_error_that_cannot_be_carried_over(self, crew: ProcessPool, task: Callable[[], None], name: str) -> None:
        with pytest.raises(WorkerError, match=rf"{name}.* \(raised in worker \d \(pid \d+\); the error") as caught:
            ask(crew, task)
        assert "in fail\n    raise error" in str(caught.value.__cause__)
        assert ask(crew, int) == 0

    def test_a_job_that_cannot_be_pickled(self) -> None:
        lock, before = threading.Lock(), children()
        with pytest.raises(SchemaError, match=r"expected a job that can be pickled, got .*: cannot pickle"):
            ProcessPool(lambda task: lock, 2)
        assert children() == before

    def test_a_task_that_cannot_be_pickled(self, crew: ProcessPool) -> None:
        with pytest.raises(SchemaError, match="expected a task that can be pickled"):
            crew.submit(threading.Lock())
        assert ask(crew, int) == 0

    def test_a_task_that_cannot_be_unpickled(self, crew: ProcessPool) -> None:
        class Hidden:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        with pytest.raises(ValueError, match="no number"):
            crew.result(crew.submit(Hidden()))

    def test_no_workers(self) -> None:
        with pytest.raises(SchemaError, match="expected at least one worker, got 0"):
            ProcessPool(call, 0)

    def test_a_job_that_cannot_be_loaded(self) -> None:
        class Job:
            def __reduce__(self) -> Any:
                return int, ("no number",)

            def __call__(self, task: Any) -> None: ...

        before = children()
        crew = ProcessPool(Job(), 2)
        with pytest.raises(WorkerError, match=r"expected worker \d \(pid \d+\) to load the job") as caught:
            crew.result(crew.submit(1))
        assert "ValueError: invalid literal for int() with base 10: 'no number'" in str(caught.value.__cause__)
        assert children() == before

    def test_too_many_open_files(self, fifo: str) -> None:
        def wait() -> Any:
            with open(fifo) as gate:
                gate.readline()
            return np.zeros(9999)

        crew = ProcessPool(call, 1)
        ticket = crew.submit(wait)
        with open(fifo, "w") as gate:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            least = os.dup(0)
            os.close(least)
            resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
            try:
                print("go", file=gate, flush=True)
                with pytest.raises(WorkerError, match="too many open files: see ulimit -n"):
                    crew.result(ticket)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_no_interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        crew, files = ProcessPool(call, 2), psutil.Process().num_fds()
        with pytest.raises(FileNotFoundError):
            crew.submit(int)
        assert psutil.Process().num_fds() == files
        with pytest.raises(ClosedError):
            crew.submit(int)


class TestDeath:
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
    def test_it_is_reported_and_all_others_end(self, fifo: str, end: Callable[[], None], message: str) -> None:
        crew, before = ProcessPool(call, 2), children()
        tickets = [crew.submit(lambda: Path(fifo).read_text()), crew.submit(end), crew.submit(int)]
        pids = children() - before
        with pytest.raises(WorkerError, match=rf"expected worker \d \(pid \d+\) to work on, it {message}") as caught:
            crew.result(tickets[0])
        assert int(re.findall(r"pid (\d+)", str(caught.value))[0]) in pids
        assert not pids & children()
        for again in (lambda: crew.result(tickets[1]), lambda: crew.submit(int)):
            with pytest.raises(WorkerError, match=message):
                again()
        crew.forget()
        crew.close()

    @pytest.mark.parametrize("how", ["submit", "ready", "waiting"])
    def test_an_idle_worker_that_dies(self, how: str, fifo: str) -> None:
        crew = ProcessPool(call, 2)
        ready = crew.submit(os.getpid)
        waiting = crew.submit(lambda: Path(fifo).read_text())
        pid = crew.result(ready)
        ready = crew.submit(int)
        os.kill(pid, signal.SIGKILL)
        wait_until_dead(pid)
        with pytest.raises(WorkerError, match=rf"\(pid {pid}\) to work on, it was killed by signal 9"):
            crew.submit(int) if how == "submit" else crew.result(ready if how == "ready" else waiting)
        assert not psutil.pid_exists(pid)

    def test_while_tasks_wait_to_be_sent(self, fifo: str) -> None:
        crew = ProcessPool(call, 1)
        pid = ask(crew, os.getpid)
        crew.submit(lambda: Path(fifo).read_text())
        text = "x" * 100_000
        tickets = [crew.submit(lambda: text) for _ in range(50)]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="signal 9"):
            crew.result(tickets[-1])

    def test_a_child_of_the_job_does_not_hide_it(self) -> None:
        def job(task: int) -> None:
            if os.fork() == 0:
                signal.pause()
            os._exit(3)

        before = children()
        crew = ProcessPool(job, 1)
        ticket = crew.submit(0)
        (group,) = children() - before
        try:
            with pytest.raises(WorkerError, match="exit code 3"):
                crew.result(ticket)
        finally:
            os.killpg(group, signal.SIGKILL)


class TestClosing:
    def test_processes_start_when_needed_and_are_reaped(self) -> None:
        before = children()
        with ProcessPool(call, 2) as crew:
            assert children() == before
            ask(crew, int)
            pids = children() - before
            assert len(pids) == 2
            ask(crew, int)
            assert children() - before == pids
        assert not any(map(psutil.pid_exists, pids))
        crew.close()
        for use in (lambda: crew.submit(int), lambda: crew.result(0)):
            with pytest.raises(ClosedError, match="this one was closed: make a new one"):
                use()
        crew.forget()

    def test_a_crew_that_never_worked(self) -> None:
        crew, files = ProcessPool(call, 2), psutil.Process().num_fds()
        crew.forget()
        crew.close()
        assert psutil.Process().num_fds() == files

    def test_no_file_is_left_open(self) -> None:
        gc.collect()
        files = psutil.Process().num_fds()
        with ProcessPool(call, 2) as crew:
            array = ask(crew, lambda: np.zeros(9999))
            with pytest.raises(ValueError, match="no"):
                ask(crew, lambda: fail(ValueError("no")))
        del array
        gc.collect()
        assert psutil.Process().num_fds() == files

    def test_idle_workers_end_by_themselves(self) -> None:
        with ProcessPool(call, 2) as crew:
            ask(crew, int)
            processes = [mate.process for mate in crew._mates.values()]
        assert [process.returncode for process in processes] == [0, 0]

    def test_one_in_the_middle_of_a_task_may_finish_it(self, tmp_path: Path, fifo: str) -> None:
        def job(task: int) -> None:
            Path(fifo).write_text("begun")
            (tmp_path / "done").write_text("")

        with ProcessPool(job, 1) as crew:
            crew.submit(0)
            Path(fifo).read_text()
        assert (tmp_path / "done").exists()

    def test_one_that_takes_too_long_is_killed_with_what_it_started(self, fifo: str) -> None:
        def job(task: int) -> None:
            child = subprocess.Popen(["sleep", "1000"])
            Path(fifo).write_text(f"{os.getpid()} {child.pid}")
            child.wait()

        begun = time.monotonic()
        with ProcessPool(job, 2) as crew:
            crew.submit(0)
            pid, grandchild = map(int, Path(fifo).read_text().split())
        assert not psutil.pid_exists(pid)
        assert time.monotonic() - begun < SECONDS
        wait_until_ended([grandchild])

    def test_garbage(self) -> None:
        before = children()
        crew = ProcessPool(call, 2)
        ask(crew, int)
        pids = children() - before
        del crew
        gc.collect()
        assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_workers_hold_only_their_own_ends(self, crew: ProcessPool) -> None:
        with ProcessPool(call, 3) as own:
            ask(own, int)
            for mate in [*crew._mates.values(), *own._mates.values()]:
                folder = Path(f"/proc/{mate.process.pid}/fd")
                kinds = [os.readlink(file).partition(":")[0] for file in folder.iterdir() if int(file.name) > 2]
                assert sorted(kind for kind in kinds if kind in ("pipe", "socket")) == ["pipe", "socket"]


PRELUDE = """
import os, signal, sys
import numpy as np
from shardex.workers import ProcessPool

def spin():
    print("begun", flush=True)
    while True: pass

crew = ProcessPool(lambda function: function(), 2)
tickets = [crew.submit(lambda: (os.getpid(), np.ones(9999))) for _ in range(8)]
held = [crew.result(ticket) for ticket in tickets]
print(*{pid for pid, _ in held}, flush=True)
"""


class Script:
    """A program of its own, in a session of its own, and the workers that it has told us of."""

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
        """Wait for it and its workers; nothing may be left of them."""
        out, errors = self.process.communicate(timeout=SECONDS)
        wait_until_ended(self.pids)
        assert list(self.temporary.iterdir()) == []
        return self.process.returncode, out.decode(), errors.decode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """Run a script after the prelude; a test that fails leaves nothing running."""
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
            ("sys.exit(3)", 3, ""),
            ("raise ValueError('no')", 1, "ValueError: no"),
            ("os._exit(4)", 4, ""),
            ("crew.close()", 0, ""),
            ("crew.submit(lambda: os.kill(os.getpid(), 9)); crew.result(8 + crew.submit(int))", 1, "SchemaError"),
            ("crew.result(crew.submit(lambda: os.kill(os.getpid(), 9)))", 1, "killed by signal 9"),
            ("crew.submit(spin)", 0, ""),
            ("os.execv('/bin/true', ['true'])", 0, ""),
        ],
    )
    def test_after_an_exit(self, start: Callable[[str], Script], text: str, code: int, message: str) -> None:
        returned, _, errors = start(text).end()
        assert returned == code, errors
        assert message in errors if message else errors == ""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    @pytest.mark.parametrize("busy", ["spin", "lambda: (print('begun', flush=True), signal.pause())"])
    def test_after_a_signal_to_the_group(
        self, start: Callable[[str], Script], number: signal.Signals, busy: str
    ) -> None:
        script = start(f"crew.result(crew.submit({busy}))")
        assert script.line() == "begun\n"
        os.killpg(script.process.pid, number)
        code, _, errors = script.end()
        assert code == -number
        assert errors.rstrip().endswith("KeyboardInterrupt" if number == signal.SIGINT else "")

    def test_a_fork_does_not_keep_workers_alive(self, start: Callable[[str], Script]) -> None:
        forked = "pid = os.fork()\nif pid: print(pid, flush=True); crew.result(crew.submit(spin))\nsignal.pause()"
        script = start(forked)
        pid = int(script.line())
        try:
            assert script.line() == "begun\n"
            script.process.kill()
            wait_until_ended(script.pids)
        finally:
            os.kill(pid, signal.SIGKILL)
        script.end()

    def test_what_a_job_has_started_ends_too(self, start: Callable[[str], Script]) -> None:
        text = (
            "import subprocess\ncrew.result(crew.submit(lambda: subprocess.run(['sh', '-c', 'echo $$; sleep 1000'])))"
        )
        script = start(text)
        script.pids.append(int(script.line()))
        script.process.kill()
        script.end()

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_memory_has_no_name(self, start: Callable[[str], Script]) -> None:
        script = start("sys.stdin.read(); signal.pause()")
        for pid in (script.process.pid, *script.pids):
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "/memfd:shardex (deleted)" in maps
            assert "/dev/shm/" not in maps
        script.process.kill()
        script.end()


class TestScripts:
    def test_forked_processes(self, start: Callable[[str], Script]) -> None:
        text = """
for use in (lambda: crew.submit(int), lambda: crew.result(0)):
    if not (pid := os.fork()):
        try:
            use()
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")
        crew.forget()
        crew.close()
        sys.exit(5)
    print(os.waitpid(pid, 0)[1] >> 8, flush=True)
    print(crew.result(crew.submit(lambda: 7)), flush=True)
"""
        script = start(text)
        code, out, errors = script.end()
        said = f"WorkerError: expected a crew of this process, got one of process {script.process.pid}: make a new one"
        assert (code, errors) == (0, "")
        assert out.splitlines() == [said, "5", "7"] * 2

    def test_a_crew_that_had_not_begun_works_in_a_fork(self, start: Callable[[str], Script]) -> None:
        text = """
fresh = ProcessPool(abs, 1)
if not (pid := os.fork()):
    print(fresh.result(fresh.submit(-3)), flush=True)
    sys.exit()
os.waitpid(pid, 0)
print(fresh.result(fresh.submit(-4)), flush=True)
"""
        assert start(text).end() == (0, "3\n4\n", "")

    def test_what_the_main_module_defines(self, start: Callable[[str], Script]) -> None:
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

    def test_a_traceback_shows_where_the_job_failed(self, start: Callable[[str], Script]) -> None:
        code, _, errors = start("crew.result(crew.submit(lambda: {}['key']))").end()
        assert code == 1
        assert "WorkerTraceback" in errors and "direct cause" in errors
        assert errors.count("KeyError: 'key'") == 2
