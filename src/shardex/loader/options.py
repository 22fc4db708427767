"""`LoaderOptions`: the options of a loader, with their defaults, checked; `LoaderArguments` for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from shardex.errors import ArgumentError
from shardex.loader.casts import Cast, casts_of
from shardex.loader.plan import BadSample
from shardex.loader.tensors import distributed_rank, find_device, require_torch
from shardex.rows import whole_number

RaggedForm = Literal["pad", "pack", "list"]
WorkerType = Literal["auto", "thread", "process"]
OutputType = Literal["numpy", "torch"]
OnError = Literal["raise", "skip"] | Callable[[BadSample], None]


class LoaderArguments(TypedDict, total=False):
    """Options of a `Loader` that do not change the type of its batches, as users pass them, for type checkers.

    They are those of `LoaderOptions`, whose defaults and checks hold when the program runs.
    """

    shuffle: bool
    seed: int
    epochs: int | None
    rank: int | None
    world_size: int | None
    drop_last: bool
    workers: int
    worker_type: WorkerType
    read_ahead: int | None
    ragged: RaggedForm | Mapping[str, RaggedForm] | None
    fill: Any
    block: int | None
    window: int | None
    on_error: OnError
    to: OutputType
    pin_memory: bool
    device: Any
    dtype: Any
    max_tokens: int | None
    bucket: int | None
    length_of: str | None
    decode: Any
    keep_position: bool


_NUMBERS = {"seed": None, "world_size": 1, "rank": None, "workers": 0}
"""Options that are whole numbers, and the least value of each."""
_NUMBERS_OR_NONE = {
    "read_ahead": 0,
    **dict.fromkeys(("batch_size", "epochs", "block", "window", "max_tokens", "bucket"), 1),
}
_WINDOW = 16
"""Blocks per window of a shuffle in blocks, by default."""
_CHOICES = {"worker_type": get_args(WorkerType), "to": get_args(OutputType)}
_FOUND: Any = None
"""Default of options whose value `LoaderOptions` finds if it is None: rank, world size, and `window` with `block`."""


@dataclass(frozen=True)
class LoaderOptions:
    """The options of a `Loader`, under the names that users pass; its documentation describes them.

    >>> LoaderOptions(batch_size=0)
    Traceback (most recent call last):
    shardex.errors.ArgumentError: expected at least 1 for batch_size, got 0
    """

    batch_size: int | None = None
    _: KW_ONLY
    shuffle: bool = False
    seed: int = 0
    epochs: int | None = 1
    rank: int = _FOUND
    world_size: int = _FOUND
    drop_last: bool = False
    workers: int = 0
    worker_type: WorkerType = "auto"
    read_ahead: int | None = None
    fields: Sequence[str] | None = None
    transform: Callable[..., Any] | None = None
    collate: Callable[..., Any] | None = None
    ragged: RaggedForm | Mapping[str, RaggedForm] | None = None
    fill: Any = None
    block: int | None = None
    window: int = _FOUND
    on_error: OnError = "raise"
    to: OutputType = "numpy"
    pin_memory: bool = False
    device: Any = None
    dtype: Any = None
    max_tokens: int | None = None
    bucket: int | None = None
    length_of: str | None = None
    decode: Any = None
    keep_position: bool = False
    casts: Mapping[str, Cast] = field(init=False)
    """The dtypes of fields that `dtype` names."""
    floats: Cast | None = field(init=False)
    """The dtype of all other fields of floats."""

    def __post_init__(self) -> None:
        self._find_values()
        for name, least in {**_NUMBERS, **_NUMBERS_OR_NONE}.items():
            if name in _NUMBERS or getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        for name in ("shuffle", "drop_last"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        for name, known in _CHOICES.items():
            _check_choice(name, getattr(self, name), known)
        self._check_sizes()
        self._check_forms()
        for name in ("transform", "collate"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise ArgumentError(f"expected a function for {name}, got {function!r:.200}")
        if not callable(self.on_error):
            _check_choice("on_error", self.on_error, ("raise", "skip"))
        if not 0 <= self.rank < self.world_size:
            raise ArgumentError(f"expected a rank from 0 to {self.world_size - 1}, got {self.rank}")
        if self.block is not None and not self.shuffle:
            raise ArgumentError("expected shuffle=True together with block=, got shuffle=False")
        if self.pin_memory and self.to != "torch":
            raise ArgumentError('expected to="torch" together with pin_memory=True, got to="numpy"')
        if self.device is not None and self.to != "torch":
            raise ArgumentError(f'expected to="torch" together with device={str(self.device)!r}, got to="numpy"')
        if self.to == "torch":
            require_torch()
        elif self.floats is not None and self.floats.only_torch:
            raise ArgumentError(f'expected to="torch" for {self.floats.dtype}, which numpy lacks')
        elif late := [name for name, cast in self.casts.items() if cast.only_torch]:
            name = late[0]
            raise ArgumentError(
                f'expected to="torch" for {self.casts[name].dtype}, which numpy lacks - at field {name}'
            )
        if self.device is not None:
            find_device(self.device)

    def _find_values(self) -> None:
        """Find the rank, world size and window if they are None, and the casts that `dtype` asks for."""
        rank, world_size = _resolve_rank(self.rank, self.world_size)
        casts, floats = casts_of(self.dtype)
        window = _find_window(self.block, self.window)
        found = {"rank": rank, "world_size": world_size, "window": window, "casts": casts, "floats": floats}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def _check_sizes(self) -> None:
        if self.batch_size is None and self.max_tokens is None:
            raise ArgumentError("expected batch_size= or max_tokens=, which limit a batch, got neither")
        if self.length_of is not None and not self.by_length:
            raise ArgumentError(f"expected max_tokens= or bucket= together with length_of={self.length_of!r}, got none")

    def _check_forms(self) -> None:
        """Check `ragged` and `fill`; `ColumnForms` compares them with the fields."""
        forms, fills = self.ragged, self.fill
        for form in forms.values() if isinstance(forms, Mapping) else [forms] * (forms is not None):
            _check_choice("ragged", form, get_args(RaggedForm))
        for name, value in fills.items() if isinstance(fills, Mapping) else [(None, fills)]:
            _check_fill_value(value, "fill" if name is None else f"fill[{name!r}]")

    @property
    def by_length(self) -> bool:
        """True if the lengths of samples decide which of them are a batch."""
        return self.max_tokens is not None or self.bucket is not None

    @property
    def batch_limits(self) -> str:
        """What limits a batch, in words.

        >>> LoaderOptions(8, max_tokens=4096).batch_limits
        '8, up to 4096 tokens'
        """
        tokens = None if self.max_tokens is None else f"up to {self.max_tokens} tokens"
        return ", ".join(str(limit) for limit in (self.batch_size, tokens) if limit is not None)

    @property
    def replaces_bad_samples(self) -> bool:
        """True if another sample takes the place of one that cannot be read or transformed."""
        return self.on_error != "raise"


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ArgumentError(f"expected one of {', '.join(map(repr, known))} for {name}, got {value!r}")


def _check_fill_value(value: Any, name: str) -> None:
    if value is not None and (isinstance(value, list | tuple | Mapping) or not _is_number(value)):
        raise ArgumentError(f"expected a number for {name}, for padding and missing values, got {value!r:.200}")


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return not array.ndim and array.dtype.kind in "biufcmM"


def _find_window(block: int | None, window: int | None) -> int | None:
    if block is None and window is not None:
        raise ArgumentError(f"expected block= together with window=, got window={window!r} and no block")
    return _WINDOW if window is None and block is not None else window


def _resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: those of `torch.distributed` if both are None."""
    if rank is None and world_size is None:
        return distributed_rank()
    if rank is None or world_size is None:
        raise ArgumentError(f"expected rank and world_size together, got rank={rank}, world_size={world_size}")
    return rank, world_size
