"""`encode_ahead`: encodes the images, audio and video of coming samples in threads, before they are written.

In: samples of a generator, which runs in the calling thread. Out: the same samples in the same order, with encoded
bytes for media. The encoders of PNG, JPEG, FLAC and so on release the GIL, and threads need no pickled copy of a
sample. A few groups of samples for each thread are in memory, fewer if samples are large.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardex.columns import located
from shardex.errors import SchemaError
from shardex.features import Feature, Features, Media, unwrap_optional
from shardex.jobs import run_parts
from shardex.layers import copied
from shardex.samples import fields_of

_GROUP_BYTES = 2 << 20
_GROUP_SAMPLES = 32
_AHEAD_BYTES = 32 << 20
"""Bytes of unfinished samples per thread from which on the generator waits until some are finished."""


def _fit(value: Any, feature: Feature) -> Any:
    return feature.fit(value)


@dataclass(frozen=True)
class _Group:
    """Some samples, the number of the first one, and about how much memory they take."""

    first: int
    samples: list[dict[str, Any]]
    size: int


def encode_ahead(
    samples: Iterable[Any], features: Features, workers: int, encode_one: Callable[[Any, Feature], Any] = _fit
) -> Generator[Any]:
    """Yield samples; with several workers their media are encoded by `encode_one`, ahead of the caller.

    >>> list(encode_ahead([{"x": 1}], Features.of({"x": int}), 2))
    [{'x': 1}]
    """
    media = {name: one for name, one in features.items() if isinstance(unwrap_optional(one), Media)}
    if workers == 1 or not media:
        yield from samples
        return
    ahead = _Ahead(media, encode_one)

    def encode(group: _Group) -> list[dict[str, Any]]:
        encoded = [ahead.encoded(sample, group.first + k) for k, sample in enumerate(group.samples)]
        group.samples.clear()  # the group itself waits for those before it
        return encoded

    options: dict[str, Any] = {"size": lambda group: group.size, "most_ahead": workers * _AHEAD_BYTES}
    with closing(
        run_parts(encode, ahead.groups(samples), workers=workers, executor="threads", progress=False, **options)
    ) as results:
        for _, encoded in results:
            yield from encoded


@dataclass(frozen=True)
class _Ahead:
    """The fields with media, and the function that encodes one value."""

    media: dict[str, Feature]
    encode_one: Callable[[Any, Feature], Any]

    def groups(self, samples: Iterable[Any]) -> Iterator[_Group]:
        """Yield samples in groups, in a form that stays as it is when the generator goes on."""
        first, some, size = 0, list[dict[str, Any]](), 0
        for number, one in enumerate(samples):
            try:
                fields = fields_of(one)
            except SchemaError as error:
                raise located(error, f"sample {number}") from None
            some.append(self._own(fields, number))
            size += sum(map(_size, some[-1].values()))
            if len(some) == _GROUP_SAMPLES or size >= _GROUP_BYTES:
                yield _Group(first, some, size)
                first, some, size = number + 1, [], 0
        if some:
            yield _Group(first, some, size)

    def encoded(self, sample: dict[str, Any], number: int) -> dict[str, Any]:
        """Return a sample with its media encoded."""
        return {
            name: self._fitted(value, name, number) if name in self.media else value for name, value in sample.items()
        }

    def _own(self, sample: Any, number: int) -> dict[str, Any]:
        """Return a sample that stays as it is when the generator reuses its arrays and closes its files."""
        return {
            name: self._own_media(value, name, number) if name in self.media else copied(value)
            for name, value in sample.items()
        }

    def _own_media(self, value: Any, name: str, number: int) -> Any:
        """Return a copy of an array or of an image in memory; read what is in a file."""
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, tuple) or (isinstance(value, Mapping) and isinstance(value.get("array"), np.ndarray)):
            return copied(value)  # an array with its rate
        in_memory = getattr(value, "format", "") is None and hasattr(value, "copy")  # of Pillow, and not from a file
        return value.copy() if in_memory else self._fitted(value, name, number)

    def _fitted(self, value: Any, name: str, number: int) -> Any:
        try:
            return self.encode_one(value, self.media[name])
        except SchemaError as error:
            raise located(error, f"sample {number}, field {name}") from None


def _size(value: Any) -> int:
    """Return about how much memory a value takes, if it may be much."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, dict | list | tuple):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    if (size := getattr(value, "nbytes", None)) is not None:
        return int(size)
    return 4 * int(value.width * value.height) if hasattr(value, "width") else 0
