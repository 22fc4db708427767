"""`RayExecutor`: runs a job for many tasks on the nodes of a Ray cluster.

A task becomes a Ray task of one CPU. If its process or node dies, Ray runs it again on another one. The job is pickled
once and unpickled once in each process of the cluster. Nodes need shardex, the modules of the job, and the same paths
and URLs as the driver. Secrets are not sent: each node takes them from its own environment.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from reprlib import Repr
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa

from shardex.errors import ArgumentError, ClosedError, MissingExtraError, SchemaError, WorkerError
from shardex.kernel import set_threads
from shardex.workers.process_pool import pickled
from shardex.workers.shared_arena import WorkerTraceback, dump_error, dump_value, load_error

_RETRIES = 4
"""How often Ray runs a task again whose process or node died."""
_GRACE = 1.0
"""Seconds that running tasks may take to end when the executor closes."""
_PATIENCE = 20.0
"""Seconds to wait for an answer from the address of a cluster."""
_VALUE, _RAISED, _JOB_FAILED = "value", "raised", "job failed"
_repr = Repr()
_repr.maxother = _repr.maxstring = 200


class RayExecutor:
    """Runs a job, a callable of one argument, as Ray tasks: small picklable values.

    `address` names a running cluster: "<host>:<port>", or "ray://<host>:<port>" of a Ray Client. Without one it is the
    cluster that the environment names (``RAY_ADDRESS``) or that runs here (``ray start``); if there is none, one is
    started on this machine until `close`. If this process is connected already (``ray.init``), that connection is used.

    `initializer` is called once in each process, before the job is unpickled. It is stored in the cluster like the job,
    so neither of them may contain secrets.
    """

    def __init__(
        self, job: Callable[[Any], Any], address: str | None = None, initializer: Callable[[], object] | None = None
    ) -> None:
        body = pickled("job", job)
        self._ray = ray = import_ray('executor="ray"')
        self._counted = _session.enter(ray, address)
        try:
            self._job: StoredValue | None = StoredValue(body, initializer)
            self._run = ray.remote(num_cpus=1, max_retries=_RETRIES, retry_exceptions=False)(_run_task)
        except BaseException:
            _session.leave(ray, self._counted)
            raise
        self._submitted = 0
        self._open: dict[int, tuple[Any, Any]] = {}  # reference to the result, and task, by ticket
        self._forgotten: list[Any] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def width(self) -> int:
        """Number of tasks that run at once: the CPUs of the cluster, now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def nodes(self) -> int:
        """Number of nodes of the cluster that are alive, now."""
        return sum(bool(node["Alive"]) for node in self._ray.nodes())

    def submit(self, task: Any) -> int:
        """Queue a task in the cluster; return a ticket for `result`."""
        self._check_open()
        body = pickled("task", task)
        result = self._run.remote(self._job, body)
        ticket = self._submitted
        self._submitted += 1
        self._open[ticket] = result, task
        return ticket

    def result(self, ticket: int) -> Any:
        """Wait for a task and return what the job returned, or raise what it raised. A ticket can be used once."""
        self._check_open()
        if ticket not in self._open:
            raise ArgumentError(f"expected a ticket that was not used or forgotten yet, got {_repr.repr(ticket)}")
        reference, task = self._open[ticket]
        try:
            kind, body, where = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            del self._open[ticket]
            found = f"it did not: {type(error).__name__}: {str(error).strip()}"
            raise WorkerError(f"expected the Ray cluster to run task {_repr.repr(task)}, {found}") from error
        del self._open[ticket]
        if kind == _RAISED:
            raise load_error(body, where)
        if kind == _JOB_FAILED:
            cause = WorkerTraceback("\n" + body.decode())
            raise WorkerError(
                f"expected {where} to load the job, it could not: are its modules on the node?"
            ) from cause
        try:
            return pickle.loads(body)
        except Exception as error:
            raise WorkerError(f"expected a result of {where} that can be unpickled here, got {error!r}") from error

    def forget(self) -> None:
        """Cancel all tasks whose results were not taken; those that run are interrupted."""
        self._forgotten += [reference for reference, _ in self._open.values()]
        self._open.clear()
        if self._forgotten and self._ray.is_initialized():
            self._forgotten = self._cancel(force=False, seconds=0)

    def close(self) -> None:
        """Cancel all tasks, also those that run, and leave the cluster; one that was started here is shut down."""
        if self._closed:
            return
        self._closed = True
        try:
            self.forget()
            if self._forgotten and self._ray.is_initialized():
                self._forgotten = self._cancel(force=False, seconds=_GRACE)
                self._cancel(force=True, seconds=_GRACE)
        finally:
            self._forgotten.clear()
            self._job = None
            _session.leave(self._ray, self._counted)

    def _cancel(self, force: bool, seconds: float) -> list[Any]:
        """Cancel the forgotten tasks; return those that have not ended within so many seconds."""
        for reference in self._forgotten:
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(reference, force=force)
        if not self._forgotten:
            return []
        waiting = self._ray.wait(self._forgotten, num_returns=len(self._forgotten), timeout=seconds)[1]
        return list(waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("expected an open executor, this one was closed: make a new one")


# -- the connection ---------------------------------------------------------------------------------------------


@dataclass
class _Session:
    """The connection of this process to a cluster, if an executor made it; the last executor ends it."""

    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, ray: Any, address: str | None) -> bool:
        """Connect unless this process is connected; return True if an executor has made the connection."""
        with self.lock:
            if not ray.is_initialized():
                self.users = 0
                _connect(ray, address)
            elif not self.users:
                _check_address(ray, address)
                return False
            self.users += 1
            return True

    def leave(self, ray: Any, counted: bool) -> None:
        """End the connection if an executor has made it and no other executor uses it."""
        with self.lock:
            if not counted or not self.users:
                return
            self.users -= 1
            if not self.users:
                ray.shutdown()


_session = _Session()


def _connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster. Without an address Ray takes that of the environment or of ``ray start``, or starts one."""
    try:
        if address:  # Ray itself takes minutes to find out that nothing listens there
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), _PATIENCE).close()
        with _environment(RAY_USAGE_STATS_ENABLED="0"):
            ray.init(address, logging_level="ERROR", **({} if address else {"include_dashboard": False}))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        wanted = f"a running Ray cluster at {address!r}" if address else "a Ray cluster, running or started here"
        advice = "; if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here" if address else ""
        raise WorkerError(f"expected {wanted}, could not connect: {error}{advice}") from error


def _check_address(ray: Any, address: str | None) -> None:
    """Raise if this process is connected to another cluster than the one that the user named."""
    if address is None or "://" in address:
        return
    if (found := ray.get_runtime_context().gcs_address) != address:
        advice = "call ray.shutdown() first, or pass executor='ray' to use it"
        raise ArgumentError(f"expected a connection to the Ray cluster at {address!r}, got one to {found!r}: {advice}")


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables that are not set, for the duration of the block."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def import_ray(purpose: str) -> Any:
    """Return the module `ray`; raise an error that says how to install it if it is missing."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtraError("ray", "ray", purpose) from None
    return ray


# -- in a process of the cluster ----------------------------------------------------------------------------------


_loaded: dict[str, Any] = {}
"""Values that this process of the cluster has unpickled, by key."""
_KEPT = 4


class StoredValue:
    """A value in the object store of the cluster: stored once, unpickled once in each process that asks for it.

    `initializer` is called in each process before the value is unpickled. Neither may contain secrets.
    """

    def __init__(self, body: bytes, initializer: Callable[[], object] | None = None) -> None:
        import ray

        self._key = uuid4().hex
        prepare = None if initializer is None else pickled("initializer", initializer)
        self._reference = ray.put((body, prepare))

    def get(self) -> Any:
        """Return the value."""
        if self._key not in _loaded:
            import ray

            pa.set_cpu_count(1)
            set_threads(1)
            body, prepare = ray.get(self._reference)
            if prepare is not None:
                pickle.loads(prepare)()
            value = pickle.loads(body)
            while len(_loaded) >= _KEPT:
                del _loaded[next(iter(_loaded))]
            _loaded[self._key] = value
        return _loaded[self._key]


def _run_task(job: StoredValue, task: bytes) -> tuple[str, bytes, str]:
    """Run the job for one task; return the kind of answer, the answer, and which process gives it."""
    where = f"a Ray worker (pid {os.getpid()} on {os.uname().nodename})"
    try:
        run = job.get()
    except Exception:
        return _JOB_FAILED, traceback.format_exc().encode(), where
    try:
        return _VALUE, _dump_result(run(pickle.loads(task))), where
    except BaseException as error:
        if hasattr(error, "ray_terminate_msg"):  # Ray ends this process: the task runs again elsewhere
            raise
        return _RAISED, dump_error(error), where


def _dump_result(value: Any) -> bytes:
    try:
        return dump_value(value)
    except Exception as error:
        found = f"{type(value).__name__}: {error}"
        raise SchemaError(f"expected the job to return a value that can be pickled, got {found}") from error
