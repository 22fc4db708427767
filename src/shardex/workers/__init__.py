"""Runs one job in several processes and returns large results through shared memory.

In: a job (a callable of one argument) and tasks (small picklable values). Out: the results of the job, with arrays in
shared memory that the caller reads without a copy. The loader makes batches this way, `files.scan` indexes files. The
same job can run in the calling thread, in threads, in an executor of `concurrent.futures`, or on a Ray cluster.

A `ProcessPool` starts the processes and talks to each over a socket. A worker unpickles a task, runs the job and puts
the result into a buffer that both processes map. The buffer is reused once the caller has dropped all arrays in it.

- `executors`: the interface that all of them have, and `start_executor`, which chooses one
- `function_fingerprint`: changes with the code of a function and the values it uses
- `installed_code`: code of the user and code of installed packages; the globals that code names
- `generator_process`: the values of a generator that runs in a process of its own
- `process_pool`: the pool, in the process that submits tasks
- `worker_process`: the main loop of a worker, and the messages between pool and worker
- `ray_executor`: tasks of a Ray cluster
- `shared_arena`: pickles values and errors, and manages the shared buffers
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "Executor",
    "ExecutorLike",
    "InlineExecutor",
    "Prefetch",
    "PrefetchedValues",
    "ProcessPool",
    "StoredValue",
    "ThreadExecutor",
    "dump_value",
    "function_fingerprint",
    "import_ray",
    "is_local",
    "raise_if_cancelled",
    "start_executor",
    "unknown_objects",
]

if TYPES:
    from shardex.workers import process_pool as process_pool
    from shardex.workers import ray_executor as ray_executor
    from shardex.workers import shared_arena as shared_arena
    from shardex.workers.executors import (
        Executor,
        ExecutorLike,
        InlineExecutor,
        ThreadExecutor,
        is_local,
        raise_if_cancelled,
        start_executor,
    )
    from shardex.workers.function_fingerprint import function_fingerprint, unknown_objects
    from shardex.workers.generator_process import Prefetch, PrefetchedValues
    from shardex.workers.process_pool import ProcessPool
    from shardex.workers.ray_executor import StoredValue, import_ray
    from shardex.workers.shared_arena import dump_value
else:
    import_later(
        __name__,
        {
            "": "process_pool ray_executor shared_arena",
            "executors": "Executor ExecutorLike InlineExecutor ThreadExecutor is_local raise_if_cancelled "
            "start_executor",
            "function_fingerprint": "function_fingerprint unknown_objects",
            "generator_process": "Prefetch PrefetchedValues",
            "process_pool": "ProcessPool",
            "ray_executor": "StoredValue import_ray",
            "shared_arena": "dump_value",
        },
    )
