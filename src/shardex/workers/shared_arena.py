"""Passes values from a worker process to its caller through memory that both of them map.

A worker packs the result of its job (`pack`): a pickle, and separately the memory of large arrays. It copies both
into a shared buffer of its `Arena`. The receiving process maps the same buffer (`MappedBuffers`) and unpickles the
value without a copy. A buffer is reused when the last array in it is gone. It has no name in a file system, so the
system frees it when its processes end or crash. `dump_value` and `dump_error` pickle values and errors without shared
memory. `process_pool` and `worker_process` decide when buffers are sent and freed.
"""

from __future__ import annotations

import functools
import io
import mmap
import os
import pickle
import sys
import tempfile
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from shardex.errors import WorkerError

_INLINE = 1 << 10
"""Smaller arrays are copied into the pickle: a view in shared memory would cost more."""
_SMALLEST = 1 << 16
"""Bytes of the smallest buffer, so that results of different sizes can use the same one."""
_ALIGNMENT = 64
_CachedFunction = functools._lru_cache_wrapper
"""A function with `functools.lru_cache`: cloudpickle would look for it in the script, which workers do not import."""

Span = tuple[int, int]
"""Begin and end of a part in its buffer, in bytes."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it publishes no types
    """cloudpickle's pickler, with the memory of arrays and tensors out of band (pickle protocol 5)."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return _dense(value).__reduce_ex__(5)
        if type(value) is _CachedFunction and _is_sent_by_value(value):
            return _cached_function, (value.__wrapped__, value.cache_parameters())
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is getattr(torch, "Tensor", None) and _is_plain(torch, value):
            return _as_tensor, (_as_array(torch, value), value.dtype)
        return super().reducer_override(value)


def _dense(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous array: numpy copies arrays with gaps into the pickle."""
    return array if array.flags.forc or array.dtype.hasobject else array.copy(order="K")


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Return True if the tensor is equivalent to a numpy array; torch pickles other tensors itself."""
    special = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or vars(tensor)
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous() and not special


def _as_array(torch: Any, tensor: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:  # a type that numpy lacks, such as bfloat16
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
        array = tensor.view(integers).numpy()
    return array


def _is_sent_by_value(function: Any) -> bool:
    """Return True for a function of a script, inside another one, or of a module that was registered for it."""
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    return function.__module__ in by_value or "<locals>" in function.__qualname__


def _cached_function(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _as_tensor(array: NDArray[Any], dtype: Any) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def dump_value(value: Any) -> bytes:
    """Pickle a value with everything in it; functions and classes of a script or a notebook are pickled by value.

    >>> pickle.loads(dump_value(lambda x: x + 1))(2)
    3
    """
    file = io.BytesIO()
    _Pickler(file, 5).dump(value)
    return file.getvalue()


def pack(value: Any) -> list[bytes | memoryview]:
    """Return a pickle, followed by the large buffers that were left out of it.

    >>> stream, memory = pack({"a": np.zeros(1000), "b": "text"})
    >>> len(stream) < 200, len(memory)
    (True, 8000)
    """
    file, buffers = io.BytesIO(), []

    def is_inline(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _INLINE:
            buffers.append(raw)
        return raw.nbytes < _INLINE

    _Pickler(file, 5, is_inline).dump(value)
    return [file.getvalue(), *buffers]


class WorkerTraceback(Exception):
    """Text of the traceback in the worker; set as the cause of the error that the pool raises."""


def dump_error(error: BaseException) -> bytes:
    """Pickle name and message of an error, its traceback as text and, if it can be pickled, the error itself."""
    name = "".join(traceback.format_exception_only(error)).strip()
    below = error.__traceback__.tb_next if error.__traceback__ else None  # without the line that called the job
    text = "".join(traceback.format_exception(type(error), error, below))
    try:
        return pickle.dumps((name, text, dump_value(error)))
    except Exception:
        return pickle.dumps((name, text, None))


def load_error(body: bytes, where: str) -> BaseException:
    """Return the error that `dump_error` pickled, or a `WorkerError` with its text if it cannot be unpickled.

    >>> load_error(dump_error(KeyError("a")), "a worker")
    KeyError('a')
    """
    name, text, pickled = pickle.loads(body)
    try:
        error = None if pickled is None else pickle.loads(pickled)
    except Exception:
        error = None
    if not isinstance(error, BaseException):
        error = WorkerError(f"{name} (raised in {where}; the error itself could not be pickled)")
    error.__cause__ = WorkerTraceback("\n" + text)
    return error


class Arena:
    """The shared buffers that a worker writes, at most `limit` of them at a time.

    >>> arena = Arena(limit=4)
    >>> number, (_, values), fd = arena.place(pack(np.arange(1000)))
    >>> values
    (128, 8128)
    >>> os.close(fd)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._created = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._dropped: list[int] = []

    def place(self, parts: Sequence[bytes | memoryview]) -> tuple[int, list[Span], int | None] | None:
        """Copy the parts into a buffer; returns its number, their spans, and its file descriptor if it is new.

        Return None if the receiver still uses all buffers of the limit.
        """
        spans = _layout(parts)
        number, fd = self._reuse(spans[-1][1]) or self._create(spans[-1][1]) or (None, None)
        if number is None:
            return None
        with memoryview(self._maps[number]) as view:
            for (begin, end), part in zip(spans, parts, strict=True):
                view[begin:end] = part
        return number, spans, fd

    def free(self, number: int) -> None:
        """Mark a buffer as free: the receiver does not use it any more."""
        self._free.append(number)

    def trim(self, spare: int) -> None:
        """Drop free buffers, the smallest first, until at most `spare` are left."""
        while len(self._free) > spare:
            self._drop(min(self._free, key=self._size))

    def take_dropped(self) -> list[int]:
        """Return the numbers of the buffers dropped since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _size(self, number: int) -> int:
        return len(self._maps[number])

    def _reuse(self, size: int) -> tuple[int, None] | None:
        """Return the smallest sufficient free buffer; of equal ones the last used, which may be in a CPU cache."""
        fitting = [number for number in reversed(self._free) if self._size(number) >= size]
        if not fitting:
            return None
        number = min(fitting, key=self._size)
        self._free.remove(number)
        return number, None

    def _create(self, size: int) -> tuple[int, int] | None:
        """Create a buffer and drop the free ones, which are all too small."""
        for number in list(self._free):
            self._drop(number)
        if len(self._maps) >= self._limit:
            return None
        try:
            fd, memory = _memory(1 << (max(size, _SMALLEST) - 1).bit_length())
        except OSError:  # too many open files, or no memory left
            return None
        self._created += 1
        self._maps[self._created] = memory
        return self._created, fd

    def _drop(self, number: int) -> None:
        self._free.remove(number)
        self._maps.pop(number).close()
        self._dropped.append(number)


def _layout(parts: Sequence[bytes | memoryview]) -> list[Span]:
    """Return the spans of the parts, one after the other, each at a multiple of the alignment."""
    spans, at = [], 0
    for part in parts:
        spans.append((at, at + len(part)))
        at += -(-len(part) // _ALIGNMENT) * _ALIGNMENT
    return spans


def _memory(size: int) -> tuple[int, mmap.mmap]:
    """Return file descriptor and mapping of a new anonymous file of this size."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("shardex")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        return fd, mmap.mmap(fd, 0)
    except OSError:
        os.close(fd)
        raise


class MappedBuffers:
    """The receiving side of an `Arena`: maps its buffers and notices when their arrays are gone.

    >>> arena, buffers = Arena(limit=4), MappedBuffers()
    >>> number, spans, fd = arena.place(pack(np.arange(1000)))
    >>> buffers.open(number, fd)
    >>> array = buffers.read(number, spans)
    >>> len(array), list(buffers.freed)
    (1000, [])
    >>> del array
    >>> list(buffers.freed)
    [1]
    """

    def __init__(self) -> None:
        self.freed: deque[int] = deque()
        """Numbers of buffers whose arrays are gone, not yet reported to the arena."""
        self._maps: dict[int, mmap.mmap] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._maps

    def open(self, number: int, fd: int) -> None:
        """Map a new buffer and close its file descriptor."""
        try:
            self._maps[number] = mmap.mmap(fd, 0)
        finally:
            os.close(fd)

    def read(self, number: int, spans: Sequence[Span]) -> Any:
        """Unpickle the value in a buffer; its arrays are views of the buffer."""
        root = np.frombuffer(self._maps[number], np.uint8)
        # Every array in the buffer keeps `root` alive. Any thread may drop the last one, so only the number is noted.
        weakref.finalize(root, self.freed.append, number).atexit = False
        stream, *buffers = [root.data[begin:end] for begin, end in spans]
        return pickle.loads(stream, buffers=buffers)

    def drop(self, number: int) -> None:
        """Unmap a buffer that the arena has dropped."""
        del self._maps[number]
