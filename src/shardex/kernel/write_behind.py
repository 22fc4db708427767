"""`file_writer`: writes buffers to a file in a thread of C (`_write_behind.c`), while Python makes the next ones."""

from __future__ import annotations

from typing import Any

from shardex.kernel.buffers import KERNEL
from shardex.kernel.threads import threads

try:
    from shardex.kernel import _write_behind  # type: ignore[attr-defined]
except ImportError:  # it was installed without a compiler
    _write_behind = None


def file_writer(descriptor: int, most: int, sync_every: int) -> Any | None:
    """Return an object that writes to an open file in a thread; None if this process should use one thread only.

    ``write(buffers)`` takes a list of buffers that do not change until ``drain()`` returns. At most `most` bytes wait.
    The system starts to write pages to the disk after every `sync_every` bytes. An `OSError` is raised by a later call.
    ``close()`` ends the thread.

    >>> import os, tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     writer = file_writer(file.fileno(), 1 << 20, 0)
    ...     if writer is not None:
    ...         writer.write([b"ab", b"c"]); writer.drain(); writer.close(); assert os.fstat(file.fileno()).st_size == 3
    """
    if _write_behind is None or KERNEL == "numpy" or threads() == 1:
        return None
    try:
        return _write_behind.FileWriter(descriptor, most, sync_every)
    except RuntimeError:  # no thread can be started
        return None
