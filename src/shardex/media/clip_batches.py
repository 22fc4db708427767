"""Many audio files or videos at once: decoded in threads, one file in each.

In: the bytes of files, the options of `decode_audio` or `decode_frames`. Out: one array if all have the same shape by
their options, otherwise a `Ragged`. soundfile and PyAV release the GIL while they decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Ragged
from shardex.media.audio import decode_audio
from shardex.media.decode_threads import Generators, decode_threads, for_each
from shardex.media.video import decode_frames


def decode_audios(
    values: Sequence[bytes], *, generators: Generators | None = None, threads: int | None = None, **options: Any
) -> NDArray[np.float32] | Ragged:
    """Decode many audio files with the options of `decode_audio`.

    With `frames` all have one length: an array (number, frames, channels). Otherwise a `Ragged` with a row for each,
    also if all happen to have one length.

    :param generators: random generators for sampling="random": one for each value, or a function of its number
    :param threads: how many threads work; by default those of `shardex.kernel.threads`
    :raises ShardexError: with the number of the file as the attribute `index`

    >>> from shardex.media import encode_audio
    >>> files = [encode_audio(np.zeros(length), rate=8000) for length in (10, 20)]
    >>> decode_audios(files).lengths, decode_audios(files, frames=5).shape
    (array([10, 20]), (2, 5, 1))
    """

    def decode(data: bytes, generator: np.random.Generator | None, _: int) -> NDArray[np.float32]:
        return decode_audio(data, generator=generator, **options)

    frames = options.get("frames")
    arrays = _decoded(values, decode, generators, threads)
    if not arrays:
        none = np.empty((0, frames or 0, 1), np.float32)
        return none if frames is not None else Ragged.from_values(none.reshape(0, 1), np.zeros(1, np.int64))
    if frames is not None and len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return Ragged.from_arrays(arrays)


def decode_videos(
    values: Sequence[bytes], *, generators: Generators | None = None, threads: int | None = None, **options: Any
) -> NDArray[np.uint8] | Ragged:
    """Decode many videos with the options of `decode_frames`; generators, threads and errors as in `decode_audios`.

    Videos of one shape are returned as one array (number, frames, height, width, 3), others as a `Ragged` with their
    shapes.

    >>> from shardex.media import encode_video
    >>> files = [encode_video(np.zeros((length, 8, 8, 3), np.uint8), "mkv") for length in (5, 9)]
    >>> decode_videos(files).shapes.tolist(), decode_videos(files, frames=2).shape
    ([[5, 8, 8, 3], [9, 8, 8, 3]], (2, 2, 8, 8, 3))
    """

    def decode(data: bytes, generator: np.random.Generator | None, inner: int) -> NDArray[np.uint8]:
        return decode_frames(data, generator=generator, threads=inner, **options)

    arrays = _decoded(values, decode, generators, threads)
    if not arrays:
        return np.empty((0, options.get("frames") or 0, *(options.get("size") or (0, 0)), 3), np.uint8)
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return Ragged.from_arrays(arrays, shaped=True)


def _decoded(
    values: Sequence[bytes],
    decode: Callable[[bytes, np.random.Generator | None, int], NDArray[Any]],
    generators: Generators | None,
    threads: int | None,
) -> list[NDArray[Any]]:
    """Decode all values; a decoder has threads of its own if there are more threads than values."""
    threads = threads or decode_threads()
    inner = max(1, threads // max(1, len(values)))
    generator_of = generators if callable(generators) or generators is None else generators.__getitem__
    arrays: list[Any] = [None] * len(values)

    def decode_one(row: int) -> None:
        arrays[row] = decode(values[row], None if generator_of is None else generator_of(row), inner)

    for_each(decode_one, range(len(values)), threads)
    return arrays
