"""Which frames of a video, or which window of an audio, are decoded: arithmetic on the number of frames.

In: the number of frames there are and the options of the feature. Out: frame numbers. "random" takes its numbers from a
`numpy.random.Generator`, which the caller makes for each sample. `video` and `audio` decode the frames.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, nearest

SAMPLINGS = ("uniform", "ends", "start", "center", "random")
WINDOW_SAMPLINGS = ("start", "center", "random")


def choose_frames(
    total: int,
    *,
    frames: int | None = None,
    stride: int = 1,
    sampling: str = "uniform",
    begin: int = 0,
    pad: str = "error",
    generator: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Return the numbers of the frames to decode, of a video that has `total` frames.

    Without `frames`: every `stride`-th frame from `begin` on. With it: "uniform" takes the centers of as many equal
    parts; "ends" the first frame, the last one, and those at equal distances between them; "start" (at `begin`),
    "center" and "random" take frames at distance `stride`, one after the other.

    :param pad: what follows where the video has too few frames: "error", "repeat" (the last one), "loop" (all again)

    >>> choose_frames(100, frames=4).tolist(), choose_frames(9, stride=4).tolist()
    ([12, 37, 62, 87], [0, 4, 8])
    >>> choose_frames(100, frames=4, sampling="ends").tolist(), choose_frames(100, frames=1, sampling="ends").tolist()
    ([0, 33, 66, 99], [0])
    >>> choose_frames(100, frames=3, stride=2, sampling="center").tolist()
    [47, 49, 51]
    >>> choose_frames(3, frames=5, pad="repeat").tolist(), choose_frames(3, frames=5, pad="loop").tolist()
    ([0, 1, 2, 2, 2], [0, 1, 2, 0, 1])
    """
    one_of(sampling, SAMPLINGS, "sampling")
    one_of(pad, ("error", "repeat", "loop"), "pad")
    at_least(stride, 1, "stride")
    if total < 1:
        raise FormatError("expected a video with frames, got one without")
    if begin and sampling not in ("start", "uniform", "ends"):
        raise ArgumentError(f"expected begin only with sampling='start', got begin={begin} and sampling={sampling!r}")
    if frames is None:
        return np.arange(at_least(begin, 0, "begin"), total, stride)
    at_least(frames, 1, "frames")
    if sampling in ("uniform", "ends"):
        return _spread(total, frames, stride, begin, pad, sampling)
    span = (frames - 1) * stride + 1
    first = begin_of_window(total, span, sampling, begin, generator)
    numbers = first + np.arange(frames) * stride
    return _padded(numbers[numbers < total], frames, pad, total, f"{span} frames from number {first} on")


def _spread(total: int, frames: int, stride: int, begin: int, pad: str, sampling: str) -> NDArray[np.int64]:
    if stride != 1 or begin:
        raise ArgumentError(
            f"expected no stride and no begin with frames={frames} and sampling={sampling!r}, which spreads them over "
            f"the whole video, got stride={stride}, begin={begin}: give sampling='start', 'center' or 'random'"
        )
    if total < frames:
        return _padded(np.arange(total), frames, pad, total, f"{frames} frames")
    if sampling == "ends":
        return np.rint(np.linspace(0, total - 1, frames)).astype(np.int64)
    return (2 * np.arange(frames) + 1) * total // (2 * frames)


def _padded(numbers: NDArray[np.int64], frames: int, pad: str, total: int, wanted: str) -> NDArray[np.int64]:
    """Return `frames` numbers: those given, and after them what `pad` says."""
    if len(numbers) == frames:
        return numbers
    if pad == "error" or not len(numbers):
        advice = "" if pad != "error" else ": give fewer frames, pad='repeat' or pad='loop'"
        raise FormatError(f"expected a video with {wanted}, got {total} frames{advice}")
    if pad == "loop":
        return np.resize(numbers, frames)
    return np.concatenate([numbers, np.full(frames - len(numbers), numbers[-1])])


def begin_of_window(
    total: int, span: int, sampling: str, begin: int = 0, generator: np.random.Generator | None = None
) -> int:
    """Return where a window of `span` frames begins; 0 ("start": `begin`) if there are fewer.

    >>> begin_of_window(10, 4, "center"), begin_of_window(10, 4, "start", 5), begin_of_window(3, 4, "center")
    (3, 5, 0)
    """
    one_of(sampling, WINDOW_SAMPLINGS, "sampling")
    if sampling == "start":
        return at_least(begin, 0, "begin")
    if begin:
        raise ArgumentError(f"expected begin only with sampling='start', got begin={begin} and sampling={sampling!r}")
    room = max(0, total - span)
    if sampling == "center":
        return room // 2
    if generator is None:
        raise ArgumentError(
            "expected a generator of random numbers for sampling='random': a Loader makes one for each sample from "
            "seed, epoch and position; give sampling='start' or 'center' where no loader reads"
        )
    return int(generator.integers(room + 1))


def one_of(given: object, known: tuple[str, ...], what: str) -> None:
    """Raise an error if an option has none of the known values."""
    if given not in known:
        raise ArgumentError(f"expected {what} to be one of {', '.join(known)}, got {given!r}{nearest(given, known)}")


def at_least(given: int, least: int, what: str) -> int:
    """Return a whole number that is large enough; raise an error otherwise."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < least:
        raise ArgumentError(f"expected {what} to be a whole number of {least} or more, got {given!r}")
    return int(given)
