"""Room `workers`: run one job in several processes and get large results through shared memory.

In comes a job, a callable of one argument, and tasks, small picklable values; out come the results of the job, with
arrays that are not copied on their way. What jobs and tasks mean is left to the callers: the loader (batches of
training data) and `files.scan` (indexing of files).

A `ProcessPool` starts the processes and talks to each through a socket. A worker process unpickles a task, runs the
job, and places the result in a buffer that both processes map; the buffer is reused when the last array in it is gone.

- `process_pool`: the pool, seen from the process that submits tasks
- `worker_process`: the main loop of a worker process, and the messages between pool and worker
- `shared_arena`: pickling of values and errors, and the shared buffers
"""

from shardex.workers.process_pool import ProcessPool

__all__ = ["ProcessPool"]
