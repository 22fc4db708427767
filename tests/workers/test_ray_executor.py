"""`RayExecutor`: results and errors of jobs, processes and nodes that die, cancelled tasks, secrets, connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

import shardex as sx
from shardex.errors import ArgumentError, ClosedError, SchemaError, WorkerError
from shardex.sources import export_credentials, import_credentials
from shardex.workers import ray_executor
from shardex.workers.ray_executor import RayExecutor
from shardex.workers.shared_arena import WorkerTraceback, dump_value
from tests.servers.faulty import FaultyServer
from tests.waiting import becomes_true, wait_until_ended


def call(function: Callable[[], Any]) -> Any:
    """The job of most tests: a task is a function to call."""
    return function()


@pytest.fixture
def executor(ray_cluster: Any) -> Iterator[RayExecutor]:
    with RayExecutor(call) as executor:
        yield executor


def test_results_in_any_order(executor: RayExecutor) -> None:
    tickets = [executor.submit(partial(pow, number, 2)) for number in range(20)]
    assert [executor.result(ticket) for ticket in reversed(tickets)] == [number**2 for number in reversed(range(20))]
    with pytest.raises(ArgumentError, match="a ticket that was not used"):
        executor.result(tickets[0])


def test_arrays_are_writable(executor: RayExecutor) -> None:
    found = executor.result(executor.submit(lambda: {"x": np.arange(100_000)}))
    found["x"] += 1
    assert found["x"][[0, -1]].tolist() == [1, 100_000]


def test_width_and_nodes(executor: RayExecutor) -> None:
    assert (executor.width, executor.nodes) == (2, 1)


def test_arrow_has_one_thread(executor: RayExecutor) -> None:
    assert executor.result(executor.submit(pa.cpu_count)) == 1


def fail(kind: type[Exception], note: str) -> None:
    error = kind("the message")
    error.add_note(note)
    raise error


def test_errors_of_the_job_arrive_as_they_are(executor: RayExecutor) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        executor.result(executor.submit(partial(fail, ZeroDivisionError, "at sample 7")))
    assert type(raised.value) is ZeroDivisionError and raised.value.args == ("the message",)
    assert raised.value.__notes__ == ["at sample 7"]
    assert isinstance(raised.value.__cause__, WorkerTraceback) and "in fail" in str(raised.value.__cause__)


def test_error_of_a_class_that_cannot_be_pickled(executor: RayExecutor) -> None:
    def job() -> None:
        class Odd(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("no")

        raise Odd("what happened")

    with pytest.raises(WorkerError, match=r"what happened \(raised in a Ray worker \(pid "):
        executor.result(executor.submit(job))


def test_exit_of_the_job_is_an_error(executor: RayExecutor) -> None:
    with pytest.raises(SystemExit):
        executor.result(executor.submit(partial(sys.exit, 3)))


def test_result_that_cannot_be_pickled(executor: RayExecutor) -> None:
    with pytest.raises(SchemaError, match="expected the job to return a value that can be pickled"):
        executor.result(executor.submit(lambda: (one for one in "ab")))


def test_task_and_job_that_cannot_be_pickled(executor: RayExecutor) -> None:
    generator = (one for one in "ab")
    with pytest.raises(ArgumentError, match="expected a task that can be pickled"):
        executor.submit(generator)
    with pytest.raises(ArgumentError, match="expected a job that can be pickled"):
        RayExecutor(partial(next, generator))


class Unloadable:
    """A job whose modules are not on the node."""

    def __reduce__(self) -> Any:
        return __import__, ("a_module_that_is_not_there",)

    def __call__(self, task: Any) -> Any: ...


def test_job_that_a_node_cannot_load(ray_cluster: Any) -> None:
    with RayExecutor(Unloadable()) as executor, pytest.raises(WorkerError, match="to load the job") as raised:
        executor.result(executor.submit(1))
    assert "a_module_that_is_not_there" in str(raised.value.__cause__)


def count_loads(folder: Path) -> Any:
    """Unpickled in a process: makes a file."""
    (folder / f"{os.getpid()}-{len(list(folder.iterdir()))}").touch()
    return lambda task: (os.getpid(), task)


class Counted:
    """A job that makes a file when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return count_loads, (self.folder,)

    def __call__(self, task: Any) -> Any: ...


def test_job_and_initializer_are_loaded_once_in_a_process(ray_cluster: Any, tmp_path: Path) -> None:
    jobs, starts = tmp_path / "jobs", tmp_path / "starts"
    jobs.mkdir()
    starts.mkdir()
    with RayExecutor(Counted(jobs), initializer=partial(count_loads, starts)) as executor:
        answers = [executor.result(ticket) for ticket in [executor.submit(number) for number in range(30)]]
    assert [task for _, task in answers] == list(range(30))
    processes = {pid for pid, _ in answers}
    assert len(list(jobs.iterdir())) == len(list(starts.iterdir())) == len(processes)


def die_unless(flag: Path) -> str:
    """End the process, the first time."""
    if flag.exists():
        return "finished"
    flag.touch()
    os._exit(1)


def test_task_runs_again_if_its_process_dies(executor: RayExecutor, tmp_path: Path) -> None:
    others = [executor.submit(partial(pow, number, 2)) for number in range(4)]
    assert executor.result(executor.submit(partial(die_unless, tmp_path / "flag"))) == "finished"
    assert [executor.result(ticket) for ticket in others] == [0, 1, 4, 9]


def test_task_that_always_kills_its_process(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "_RETRIES", 1)
    executor = RayExecutor(call)
    with pytest.raises(WorkerError, match=r"expected the Ray cluster to run task functools.partial\(<.*_exit>, 1\)"):
        executor.result(executor.submit(partial(os._exit, 1)))
    assert executor.result(executor.submit(partial(pow, 2, 2))) == 4


def wait_for(flag: Path, begun: Path) -> None:
    begun.touch()
    assert becomes_true(flag.exists)


def test_node_that_dies(ray_cluster: Any, tmp_path: Path) -> None:
    """A node is killed while it runs a task: the task ends on another one."""
    second = ray_cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    go = tmp_path / "go"
    with RayExecutor(call) as executor:
        assert becomes_true(lambda: executor.width == 3) and executor.nodes == 2
        begun = [tmp_path / f"begun{number}" for number in range(3)]
        tickets = [executor.submit(partial(wait_for, go, flag)) for flag in begun]
        assert becomes_true(lambda: all(flag.exists() for flag in begun))
        ray_cluster.remove_node(second, allow_graceful=False)
        assert becomes_true(lambda: executor.nodes == 1)
        go.touch()
        assert [executor.result(ticket) for ticket in tickets] == [None] * 3


def test_forget_cancels_what_has_not_begun(executor: RayExecutor, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", [tmp_path / f"begun{number}" for number in range(8)]
    tickets = [executor.submit(partial(wait_for, go, flag)) for flag in begun]
    assert becomes_true(lambda: sum(flag.exists() for flag in begun) == 2)
    executor.forget()
    with pytest.raises(ArgumentError, match="a ticket that was not used or forgotten"):
        executor.result(tickets[0])
    go.touch()
    assert executor.result(executor.submit(partial(pow, 3, 2))) == 9
    assert sum(flag.exists() for flag in begun) == 2


def hang(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def test_close_ends_tasks_that_hang(ray_cluster: Any, tmp_path: Path) -> None:
    """The CPUs of tasks that hang are free after `close`; Ray may keep their processes for other tasks."""
    executor = RayExecutor(hang)
    for _ in range(4):
        executor.submit(tmp_path)
    assert becomes_true(lambda: len(list(tmp_path.iterdir())) == 2)
    executor.close()
    executor.close()
    with pytest.raises(ClosedError):
        executor.submit(tmp_path)
    one, other = tmp_path / "one", tmp_path / "other"
    with RayExecutor(call) as later:  # two tasks that wait for each other need both CPUs
        tickets = [later.submit(partial(wait_for, one, other)), later.submit(partial(wait_for, other, one))]
        assert [later.result(ticket) for ticket in tickets] == [None, None]


def test_connection_of_the_caller_is_left(ray_cluster: Any) -> None:
    import ray

    with RayExecutor(call) as one, RayExecutor(call, ray_cluster.address) as other:
        assert one.result(one.submit(int)) == other.result(other.submit(int)) == 0
    assert ray.is_initialized()
    with pytest.raises(ArgumentError, match=r"expected a connection to the Ray cluster at '10\.9\.8\.7:6379', got"):
        RayExecutor(call, "10.9.8.7:6379")


OWN_CLUSTER = """
import os, sys, time
import psutil, ray
from shardex.workers.ray_executor import RayExecutor

def hang(task):
    open(task, "w").close()
    time.sleep(600)

with RayExecutor(hang) as outer:
    with RayExecutor(lambda task: (task, os.environ.get("RAY_USAGE_STATS_ENABLED"))) as inner:
        assert inner.result(inner.submit(1)) == (1, "0"), "the cluster reports no usage"
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ
    ticket = outer.submit(sys.argv[1])
    try:
        print("children", *[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
        outer.result(ticket)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
assert not ray.is_initialized()
"""


def test_cluster_that_the_executor_starts(ray_cluster: Any) -> None:
    """The executor starts a cluster and two use it; Ctrl-C ends the task, and `close` the cluster."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_USAGE_STATS_ENABLED"}
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as own:  # where no running cluster is noted
        environment["RAY_TMPDIR"] = own
        command = [sys.executable, "-c", OWN_CLUSTER, f"{own}/begun"]
        with Popen(command, stdout=PIPE, stderr=STDOUT, text=True, env=environment, process_group=0) as process:
            try:
                assert process.stdout is not None
                children = next(line for line in process.stdout if line.startswith("children"))
                workers = [psutil.Process(int(pid)) for pid in children.split()[1:] if psutil.pid_exists(int(pid))]
                assert len(workers) > 2
                assert becomes_true((Path(own) / "begun").exists)
                os.killpg(process.pid, signal.SIGINT)
                assert "interrupted" in process.stdout.read()
                assert process.wait() == 0
            finally:
                process.kill()
        wait_until_ended(workers)


def test_address_where_nothing_runs(ray_cluster: Any) -> None:
    code = "from shardex.workers.ray_executor import RayExecutor\nRayExecutor(print, '127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "WorkerError: expected a running Ray cluster at '127.0.0.1:1', could not connect" in done.stderr


def test_secrets_do_not_leave_this_process(ray_cluster: Any, web: FaultyServer) -> None:
    """Settings without secrets travel to the nodes, and a dataset in a task has its URL only."""
    import ray

    web.files["a.jsonl"] = b'{"x": 1}\n{"x": 2}\n'
    sx.storage(web.url(), token="s3cret-0123", timeout=7)
    try:
        data = sx.open(f"{web.url()}/a.jsonl")
        assert any("s3cret-0123" in str(headers) for headers in web.headers)
        web.headers.clear()
        task = partial(data.__getitem__, 1)
        with RayExecutor(call, initializer=partial(import_credentials, export_credentials(secrets=False))) as executor:
            assert executor.result(executor.submit(task)).x == 2
            assert executor._job is not None
            stored = [*ray.get(executor._job._reference), dump_value(task)]
    finally:
        sx.storage(web.url())
    assert b"timeout" in stored[1] and b"s3cret" not in b"".join(stored)
    assert web.headers and not any("s3cret" in str(headers) for headers in web.headers)
