"""Places the batches of a plan on a device, or in pinned memory: a few copies for many batches.

A `Staging` lets a recipe make the batches of a plan while reads are allocated in a `HostBuffer`: memory from which a
device can copy by itself. What was not read into it (what a transform made, or another process) is copied there. Then
`_Transfer` copies as few runs of bytes as possible to the device, on a stream of its own, casts values there, and cuts
the tensors of the batches from the result.

- Buffers for a device form a ring (`_Ring`): a buffer is used again when its copy is done and no array of it exists.
- Memory on the device is allocated by torch for each plan, so that tensors are valid as long as they are referenced.
- Pinned memory that users get (`pin_memory` without `device`) is allocated by torch for each plan: its allocator waits
  for the copies that users start themselves.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Columns, Integers, Ranges, Segments, allocating, byte_size, is_tensor
from shardex.loader.casts import Casts
from shardex.loader.plan import Plan, PreparedBatch
from shardex.loader.recipe import Recipe
from shardex.loader.stats import TimeSpent
from shardex.loader.tensors import map_tensors, move_channels, require_torch, to_tensors

PLAN_BYTES = 28 << 20
"""About the size of a plan: a copy of it reaches the full speed of a bus, and it fits into a buffer of 32 MiB."""
PLAN_ROWS = 1 << 16
_SMALLEST = 1 << 20
_LARGEST = 1 << 30
"""Sizes of buffers. Of a larger plan, what does not fit is copied without a buffer of the ring."""
_ALIGNMENT = 64
_GAP = 16 << 10
"""Bytes between two arrays that are copied along rather than starting another copy."""
_PART = 128 << 10
"""Bytes that one thread of the kernel copies at a time."""


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class HostBuffer:
    """Memory in which arrays are allocated one after the other.

    >>> buffer = HostBuffer(1 << 10, pin=False)
    >>> array = buffer.allocate(8); array[:] = 7
    >>> buffer.tensor[:3].tolist(), buffer.allocate(1 << 10)
    ([7, 7, 7], None)
    >>> buffer.close(); buffer.in_use
    True
    >>> del array; buffer.in_use
    False
    """

    def __init__(self, size: int, *, pin: bool) -> None:
        torch = require_torch()
        self.tensor = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        self.address: int = self.tensor.data_ptr()
        self.size = size
        self.copied: Any = None
        """Event that tells when the last copy from the buffer is done; None if it is."""
        self.used = self.wanted = 0
        self.array: NDArray[np.uint8] = self.tensor.numpy()
        self.open()

    def open(self) -> None:
        """Begin to allocate arrays, from the beginning of the buffer."""
        self.used = self.wanted = 0
        # Not a view of another numpy array, so it is the base of all arrays and lives as long as any of them.
        self._root: NDArray[np.uint8] | None = np.frombuffer(self.array.data, np.uint8)
        self._alive = weakref.ref(self._root)

    def close(self) -> None:
        """Allocate no more arrays."""
        self._root = None

    @property
    def in_use(self) -> bool:
        """True if an array in the buffer exists, so that it must not be overwritten."""
        return self._alive() is not None

    def allocate(self, size: int) -> NDArray[np.uint8] | None:
        """Return an array in the buffer; None if there is no space left."""
        begin, needed = self.used, _aligned(size)
        self.wanted += needed
        if begin + needed > self.size or self._root is None:
            return None
        self.used = begin + needed
        return self._root[begin : begin + size]

    def place_of(self, tensor: Any, size: int) -> int | None:
        """Return where the bytes of a tensor are in the buffer; None if they are elsewhere, or not aligned."""
        begin: int = tensor.data_ptr() - self.address
        inside = begin >= 0 and begin + size <= self.used
        return begin if inside and not begin % tensor.element_size() else None


def _buffer_size(wanted: int) -> int:
    """Return the size of a buffer, given the bytes that the last plan needed; the first plans are small."""
    likely = min(max(wanted, min(4 * wanted, PLAN_BYTES)), _LARGEST)
    return 1 << (max(_SMALLEST, likely) - 1).bit_length()


class _Ring:
    """Buffers that are used in turn, by several threads; at most `count` at a time."""

    def __init__(self, count: int, *, pin: bool) -> None:
        self._pin = pin
        self._wanted = _SMALLEST
        self._free: SimpleQueue[HostBuffer | None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def take(self) -> HostBuffer:
        """Return a buffer that nothing uses."""
        buffer, size = self._free.get(), _buffer_size(self._wanted)
        if buffer is not None and buffer.copied is not None:
            buffer.copied.synchronize()
            buffer.copied = None
        if buffer is None or buffer.size < size or buffer.in_use:  # what still uses it keeps its memory
            return HostBuffer(size, pin=self._pin)
        buffer.open()
        return buffer

    def put_back(self, buffer: HostBuffer) -> None:
        """Give a buffer back; it is used again when its copy is done."""
        buffer.close()
        self._wanted = max(self._wanted, buffer.wanted)
        self._free.put(buffer)


class _PinnedByTorch:
    """Buffers that become the memory of batches: a new one for each plan."""

    def __init__(self) -> None:
        self._wanted = 0

    def take(self) -> HostBuffer:
        """Return a new buffer, as large as the last plan."""
        return HostBuffer(1 << (max(_ALIGNMENT, min(self._wanted, _LARGEST)) - 1).bit_length(), pin=True)

    def put_back(self, buffer: HostBuffer) -> None:
        """Note how much memory the plan wanted."""
        buffer.close()
        self._wanted = buffer.wanted


class Ready:
    """The copies of a plan to a CUDA device, which the streams that use its batches wait for."""

    def __init__(self, torch: Any, event: Any, device: Any, tensors: Sequence[Any]) -> None:
        self._current_stream = torch.cuda.current_stream
        # The number of a stream: a tenth of the time of `current_stream`, and most batches ask in vain.
        self._number: Callable[[int], Any] = getattr(torch._C, "_cuda_getCurrentRawStream", torch.cuda.current_stream)
        self._event, self._device, self._tensors = event, device, tensors
        self._seen: Any = None

    def wait(self) -> None:
        """Let the current stream wait for the copies, and keep their memory until the stream has used it."""
        number = self._number(self._device.index)
        if number == self._seen:
            return
        stream = self._current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        self._seen = number


class Staging:
    """Makes the batches of plans as tensors on a device or, if that is None, in pinned memory."""

    def __init__(self, recipe: Recipe, device: Any, width: int) -> None:
        """
        :param device: a `torch.device`, or None
        :param width: number of threads that make batches at the same time
        """
        torch = self._torch = require_torch()
        self.recipe = recipe
        self.device = device
        self._cuda = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._buffers = _PinnedByTorch() if device is None else _Ring(width + 2, pin=self._cuda)
        self._casts = recipe.casts

    def to_tensor(self, array: NDArray[Any]) -> Any:
        """Return a mask or lengths of a batch as a tensor on the device."""
        tensor = self._torch.from_numpy(array)
        return tensor if self.device is None else tensor.to(self.device)

    def __call__(self, plan: Plan) -> tuple[list[PreparedBatch], TimeSpent]:
        """Make the batches of a plan; they are read into a buffer, unless code of the user may keep what was read."""
        if not self.recipe.reads_independently:
            batches, spent = self.recipe(plan)
            return self.stage(batches), spent
        buffer, ready = self._buffers.take(), list[Ready | None]()

        def place(columns: Columns) -> Columns:
            moved, copied = self._move([columns], buffer)
            ready.append(copied)
            return moved[0]

        try:
            with allocating(buffer.allocate):
                batches, spent = self.recipe(plan, place)
            if not ready:
                return self._staged(batches, buffer), spent
            for batch in batches:
                batch.ready = ready[0]
            return batches, spent
        finally:
            self._buffers.put_back(buffer)

    def stage(self, batches: list[PreparedBatch]) -> list[PreparedBatch]:
        """Return batches that were made elsewhere, with their tensors on the device."""
        buffer = self._buffers.take()
        try:
            return self._staged(batches, buffer)
        finally:
            self._buffers.put_back(buffer)

    def _staged(self, batches: list[PreparedBatch], buffer: HostBuffer) -> list[PreparedBatch]:
        if not batches:
            return batches
        if self.recipe.options.collate is not None:
            for batch in batches:
                with self._on_stream():
                    batch.data = _moved(batch.data, self.device)
            if self._stream is not None:
                self._stream.synchronize()
            return batches
        batches[0].size = byte_size(batches[0].data)
        columns, ready = self._move([batch.data for batch in batches], buffer)
        for batch, moved in zip(batches, columns, strict=True):
            batch.data = move_channels(moved, self.recipe.channel_axes)
            batch.ready, batch.has_tensors = ready, True
        return batches

    def _move(self, columns: list[Columns], buffer: HostBuffer) -> tuple[list[Columns], Ready | None]:
        """Return columns with their tensors on the device, and an object that tells when the copies are complete."""
        try:
            with self._on_stream():
                moved, kept = self._transfer([to_tensors(one) for one in columns], buffer)
                if self._stream is None:
                    return moved, None
                buffer.copied = self._stream.record_event()
                return moved, Ready(self._torch, buffer.copied, self.device, kept)
        except Exception as error:
            if self._stream is not None:
                with suppress(Exception):  # the device may have failed
                    self._stream.synchronize()  # copies from the buffer may have begun
            error.add_note(f"while batches were copied to {self.device or 'pinned memory'}")
            raise

    def _transfer(self, columns: list[Columns], buffer: HostBuffer) -> tuple[list[Columns], list[Any]]:
        """Return columns with their tensors on the device, and tensors that share all their memory."""
        transfer = _Transfer(self._torch, self.device, buffer)
        for one in columns:
            for name, column in one.data.items():
                map_tensors(column, partial(transfer.add, name))
        transfer.run(self._casts)
        for one in columns:
            for name, column in one.data.items():
                one.data[name] = map_tensors(column, partial(transfer.take, name))
        return columns, transfer.moved

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else self._torch.cuda.stream(self._stream)


def _moved(value: Any, device: Any) -> Any:
    """Return what `collate` returned, with the tensors in it on a device or pinned."""
    if is_tensor(value):
        return value.pin_memory() if device is None else value.to(device)
    if type(value) in (list, tuple):
        return type(value)(_moved(one, device) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(one, device) for one in value))
    if type(value) is dict:
        return {name: _moved(one, device) for name, one in value.items()}
    if device is not None and not isinstance(value, Columns) and callable(getattr(value, "to", None)):
        return value.to(device)
    return value


Key = tuple[str, bool]
"""Name of a field, and whether a tensor has its values (or the offsets of packed values)."""


@dataclass(slots=True)
class _Piece:
    """Tensors that lie end to end in memory."""

    tensors: list[Any]
    size: int
    """Bytes of all tensors together."""
    memory: HostBuffer | None = None
    begin: int = 0
    """Offset of the tensors in the buffer."""
    moved: Sequence[Any] = ()


@dataclass(slots=True)
class _Transfer:
    """The tensors of the batches of a plan: call `add` with each, then `run`, then `take` for the copy of each, in the
    same order.
    """

    torch: Any
    device: Any
    buffer: HostBuffer
    moved: list[Any] = field(default_factory=list)
    """Tensors on the device that share the memory of all others."""
    _tensors: dict[Key, list[Any]] = field(default_factory=dict)
    _results: dict[Key, Iterator[Any]] = field(default_factory=dict)

    def add(self, name: str, tensor: Any, is_values: bool) -> None:
        """Add a tensor of a field."""
        self._tensors.setdefault((name, is_values), []).append(tensor)

    def take(self, name: str, tensor: Any, is_values: bool) -> Any:
        """Return the copy on the device of the next tensor of a field."""
        return next(self._results[name, is_values])

    def run(self, casts: Casts) -> None:
        """Copy and cast all tensors."""
        pieces = {key: _pieces(tensors) for key, tensors in self._tensors.items()}
        every = [piece for some in pieces.values() for piece in some]
        self._place(every)
        placed = [piece for piece in every if piece.memory is not None]
        placed.sort(key=lambda piece: (id(piece.memory), piece.begin))
        whole = {id(piece): tensor for run in _runs(placed) for piece, tensor in self._copied(run)}
        for (name, values), some in pieces.items():
            cast = casts.of_tensor(name, some[0].tensors[0]) if values and some else None
            for piece in some:
                tensor = whole.get(id(piece))
                if tensor is None:  # without elements
                    tensor = piece.tensors[0].to(self.device or "cpu")
                if cast is not None:
                    tensor = cast.tensor(self.torch, tensor, name)
                    if self.device is None:
                        tensor = tensor.pin_memory()
                self.moved.append(tensor)
                piece.moved = [tensor] if len(piece.tensors) == 1 else tensor.split([len(t) for t in piece.tensors])
            self._results[name, values] = itertools.chain.from_iterable(piece.moved for piece in some)

    def _place(self, pieces: list[_Piece]) -> None:
        """Find each piece in the buffer, or copy it there."""
        outside = []
        for piece in pieces:
            first = piece.tensors[0]
            if piece.size and first.is_contiguous():
                begin = self.buffer.place_of(first, piece.size)
                if begin is not None:
                    piece.memory, piece.begin = self.buffer, begin
            if piece.memory is None and piece.size:
                outside.append(piece)
        needed = sum(_aligned(piece.size) for piece in outside)
        memory = self.buffer
        if needed > memory.size - memory.used:
            memory.wanted += needed
            # Of torch, which reuses pinned memory only when the copies from it are done.
            memory = HostBuffer(needed, pin=self.device is None or self.device.type == "cuda")
        places = []
        for piece in outside:
            array = memory.allocate(piece.size)
            assert array is not None
            piece.memory, piece.begin = memory, memory.used - _aligned(piece.size)
            at = piece.begin
            for tensor in piece.tensors:
                places.append((tensor, at))
                at += tensor.numel() * tensor.element_size()
        self._copy(places, memory)

    def _copy(self, places: list[tuple[Any, int]], memory: HostBuffer) -> None:
        """Copy the bytes of tensors to their places in a buffer."""
        # Not by torch: it uses a thread for each core, which takes ten times as long while workers use the cores.
        sources, which, begin, target = Segments(len(places)), list[Integers](), list[Integers](), list[Integers]()
        for number, (tensor, at) in enumerate(places):
            if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
                size = tensor.numel() * tensor.element_size()
                memory.tensor[at : at + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
                continue
            source = tensor.detach().reshape(-1).view(self.torch.uint8).numpy()
            sources.put(number, source)
            begin.append(np.arange(0, len(source), _PART))
            which.append(np.full(len(begin[-1]), number))
            target.append(begin[-1] + at)
        if begin:
            some, first = np.concatenate(which), np.concatenate(begin)
            length = np.minimum(_PART, sources.size.view(np.int64)[some] - first)
            Ranges(sources, some, first, length).copy_to(memory.array, np.concatenate(target))

    def _copied(self, run: list[_Piece]) -> Iterator[tuple[_Piece, Any]]:
        """Copy a run of pieces to the device; yield each as one tensor there."""
        memory, begin = run[0].memory, run[0].begin // _ALIGNMENT * _ALIGNMENT
        assert memory is not None
        there = memory.tensor[begin : max(piece.begin + piece.size for piece in run)]
        if self.device is not None:
            there = self.torch.empty(len(there), dtype=self.torch.uint8, device=self.device).copy_(
                there, non_blocking=True
            )
        for piece in run:
            at, first = piece.begin - begin, piece.tensors[0]
            shape = first.shape
            if len(piece.tensors) > 1:
                shape = (sum(map(len, piece.tensors)), *shape[1:])
            yield piece, there[at : at + piece.size].view(first.dtype).view(shape)


def _pieces(tensors: list[Any]) -> list[_Piece]:
    """Return tensors as one piece, if they are one after the other in memory, otherwise one by one."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    if len(tensors) > 1 and tensors[0].ndim:
        kind = tensors[0].dtype, tensors[0].shape[1:]
        at = tensors[0].data_ptr()
        for tensor, size in zip(tensors, sizes, strict=True):
            alike = tensor.ndim and (tensor.dtype, tensor.shape[1:]) == kind
            if not alike or not size or tensor.data_ptr() != at or not tensor.is_contiguous():
                break
            at += size
        else:
            return [_Piece(tensors, sum(sizes))]
    return [_Piece([tensor], size) for tensor, size in zip(tensors, sizes, strict=True)]


def _runs(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Yield pieces that are near each other in one buffer; they are given in the order of their places."""
    run: list[_Piece] = []
    end = 0
    for piece in pieces:
        if run and (piece.memory is not run[0].memory or piece.begin - end > _GAP):
            yield run
            run = []
        run.append(piece)
        end = max(end, piece.begin + piece.size) if len(run) > 1 else piece.begin + piece.size
    if run:
        yield run
