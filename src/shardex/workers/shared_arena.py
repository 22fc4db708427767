"""Values on their way from one process to another, through memory that both of them map.

A worker packs what its job returned: a pickle, and beside it the large buffers of its arrays. It lays both into a
buffer of its `Arena`; the process that asked looks at the same memory through a `Window`, and copies nothing. A buffer
is written again when the last array in it is gone. It has no name in any file system, so it ends with its processes,
however they end. The small messages beside it are `frames.py`; who says what and when is up to `crew.py` and
`worker.py`.
"""

from __future__ import annotations

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

__all__ = [
    "Arena",
    "Span",
    "Window",
    "WorkerTraceback",
    "carry",
    "carry_error",
    "pack",
    "revive",
]

_IN_STREAM = 1 << 10
"""Bytes below which an array is copied with the pickle: a view would cost more."""
_LEAST = 1 << 16
"""Bytes of the smallest buffer, so that results of changing size can use the same one."""
_ALIGNMENT = 64

Span = tuple[int, int]
"""Where a part begins in its buffer, and where it ends."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it publishes no types
    """Takes what cloudpickle takes, and leaves the memory of arrays and tensors where it is."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return _dense(value).__reduce_ex__(5)
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is getattr(torch, "Tensor", None) and _is_plain(torch, value):
            return _as_tensor, (_as_array(torch, value), value.dtype)
        return super().reducer_override(value)


def _dense(array: NDArray[Any]) -> NDArray[Any]:
    """Without gaps: numpy copies an array that has some into the pickle."""
    return array if array.flags.forc or array.dtype.hasobject else array.copy(order="K")


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Whether numpy could hold it; torch knows what to do with the others."""
    special = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or vars(tensor)
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous() and not special


def _as_array(torch: Any, tensor: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:  # a type that numpy lacks, such as bfloat16
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
        array = tensor.view(whole).numpy()
    return array


def _as_tensor(array: NDArray[Any], dtype: Any) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def carry(value: Any) -> bytes:
    """One pickle with everything in it, of functions and classes of a script or a notebook too.

    >>> pickle.loads(carry(lambda x: x + 1))(2)
    3
    """
    file = io.BytesIO()
    _Pickler(file, 5).dump(value)
    return file.getvalue()


def pack(value: Any) -> list[bytes | memoryview]:
    """A pickle, and after it the large buffers that were left out of it.

    >>> stream, memory = pack({"a": np.zeros(1000), "b": "text"})
    >>> len(stream) < 200, len(memory)
    (True, 8000)
    """
    file, buffers = io.BytesIO(), []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _IN_STREAM:
            buffers.append(raw)
        return raw.nbytes < _IN_STREAM

    _Pickler(file, 5, stays_inside).dump(value)
    return [file.getvalue(), *buffers]


class WorkerTraceback(Exception):
    """The text of the traceback that an error had in its worker: the cause of that error."""


def carry_error(error: BaseException) -> bytes:
    """Name and message of an error, its traceback as text and, if it can be pickled, the error itself."""
    name = "".join(traceback.format_exception_only(error)).strip()
    below = error.__traceback__.tb_next if error.__traceback__ else None  # without the line that called the job
    text = "".join(traceback.format_exception(type(error), error, below))
    try:
        return pickle.dumps((name, text, carry(error)))
    except Exception:
        return pickle.dumps((name, text, None))


def revive(body: bytes, where: str) -> BaseException:
    """The error that was carried, or a `WorkerError` with what is known of it.

    >>> revive(carry_error(KeyError("a")), "a worker")
    KeyError('a')
    """
    name, text, carried = pickle.loads(body)
    try:
        error = None if carried is None else pickle.loads(carried)
    except Exception:
        error = None
    if not isinstance(error, BaseException):
        error = WorkerError(f"{name} (raised in {where}; the error itself could not be carried over)")
    error.__cause__ = WorkerTraceback("\n" + text)
    return error


class Arena:
    """The buffers that a worker fills, at most `most` of them at a time.

    >>> arena = Arena(most=4)
    >>> number, (_, values), fd = arena.place(pack(np.arange(1000)))
    >>> values
    (128, 8128)
    >>> os.close(fd)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._dropped: list[int] = []

    def place(self, parts: Sequence[bytes | memoryview]) -> tuple[int, list[Span], int | None] | None:
        """Copy the parts into a buffer: its number, where they lie, and its file if the other side has not seen it.

        None means that there is no room: the other side holds on to all the buffers there may be.
        """
        spans = _layout(parts)
        number, fd = self._reuse(spans[-1][1]) or self._make(spans[-1][1]) or (None, None)
        if number is None:
            return None
        with memoryview(self._maps[number]) as view:
            for (begin, end), part in zip(spans, parts, strict=True):
                view[begin:end] = part
        return number, spans, fd

    def free(self, number: int) -> None:
        """Nobody looks at this buffer any more."""
        self._free.append(number)

    def trim(self, spare: int) -> None:
        """Give free buffers up, the smallest first, until no more than these are left."""
        while len(self._free) > spare:
            self._drop(min(self._free, key=self._size))

    def take_dropped(self) -> list[int]:
        """The buffers given up since this was last asked."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _size(self, number: int) -> int:
        return len(self._maps[number])

    def _reuse(self, size: int) -> tuple[int, None] | None:
        """The smallest free buffer that is large enough; of equal ones the last used, which may be in a cache."""
        fitting = [number for number in reversed(self._free) if self._size(number) >= size]
        if not fitting:
            return None
        number = min(fitting, key=self._size)
        self._free.remove(number)
        return number, None

    def _make(self, size: int) -> tuple[int, int] | None:
        """A new buffer, in place of the free ones, which are too small."""
        for number in list(self._free):
            self._drop(number)
        if len(self._maps) >= self._most:
            return None
        try:
            fd, memory = _memory(1 << (max(size, _LEAST) - 1).bit_length())
        except OSError:  # too many open files, or no memory left
            return None
        self._made += 1
        self._maps[self._made] = memory
        return self._made, fd

    def _drop(self, number: int) -> None:
        self._free.remove(number)
        self._maps.pop(number).close()
        self._dropped.append(number)


def _layout(parts: Sequence[bytes | memoryview]) -> list[Span]:
    """One part after the other, each at a multiple of the alignment."""
    spans, at = [], 0
    for part in parts:
        spans.append((at, at + len(part)))
        at += -(-len(part) // _ALIGNMENT) * _ALIGNMENT
    return spans


def _memory(size: int) -> tuple[int, mmap.mmap]:
    """A file of this size that no folder lists, and its memory."""
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


class Window:
    """What one process sees of the arena of another.

    >>> arena, window = Arena(most=4), Window()
    >>> number, spans, fd = arena.place(pack(np.arange(1000)))
    >>> window.open(number, fd)
    >>> array = window.look(number, spans)
    >>> len(array), list(window.freed)
    (1000, [])
    >>> del array
    >>> list(window.freed)
    [1]
    """

    def __init__(self) -> None:
        self.freed: deque[int] = deque()
        """Buffers that nobody looks at any more; the arena does not know it yet."""
        self._maps: dict[int, mmap.mmap] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._maps

    def open(self, number: int, fd: int) -> None:
        """Map a new buffer; closes its file."""
        try:
            self._maps[number] = mmap.mmap(fd, 0)
        finally:
            os.close(fd)

    def look(self, number: int, spans: Sequence[Span]) -> Any:
        """The value in a buffer, its arrays where they lie."""
        root = np.frombuffer(self._maps[number], np.uint8)
        # Every array in the buffer holds on to this one. The last may go in any thread, so only a note is left.
        weakref.finalize(root, self.freed.append, number).atexit = False
        stream, *buffers = [root.data[begin:end] for begin, end in spans]
        return pickle.loads(stream, buffers=buffers)

    def drop(self, number: int) -> None:
        """The arena has given this buffer up."""
        del self._maps[number]
