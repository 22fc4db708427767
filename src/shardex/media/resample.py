"""Audio at another sampling rate: a windowed sinc as a polyphase filter, computed by matrix products.

In: frames (frames, channels) as float32 and two rates. Out: frames at the new rate, or a window of them. The filter has
64 zero crossings on each side under a Kaiser window: frequencies up to 90 % of the lower half rate pass unchanged,
those above it are reduced by 100 dB. `audio` decodes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Frames = NDArray[np.float32]

_CROSSINGS = 64
_BETA = 10.06  # 100 dB
_PASS = 0.95  # the middle of the transition, in half rates
_PHASES = 128
"""Largest number of phases in one matrix product: more would multiply mostly zeros."""
_TABLE = 1 << 20
"""Largest number of weights of one matrix product; for a much lower rate each phase has many."""
MAX_REDUCTION = 1000
"""Largest factor by which the rate may be lowered: memory grows with the number of inputs of a frame."""
_PRODUCT = 1 << 18
"""Largest number of multiplications in one matrix product: for more, OpenBLAS starts threads, which compete with those
that decode (measured on a busy machine: 35 ms instead of 3 for five seconds from 44.1 to 16 kHz)."""


def resampled_length(frames: int, rate: int, new_rate: int) -> int:
    """Return the number of frames at the new rate.

    >>> resampled_length(44100, 44100, 16000), resampled_length(1, 44100, 16000)
    (16000, 1)
    """
    return -(-frames * new_rate // rate)


def input_range(begin: int, end: int, rate: int, new_rate: int) -> tuple[int, int]:
    """Return of which frames at `rate` the frames `begin` to `end` at `new_rate` are made; some may not exist.

    >>> input_range(0, 1, 16000, 16000)
    (0, 1)
    """
    if rate == new_rate:
        return begin, end
    up, down = _ratio(rate, new_rate)
    reach = _reach(up, down)
    return begin * down // up - reach, max(begin, end - 1) * down // up + reach + 1


def resample(
    values: Frames, rate: int, new_rate: int, *, first: int = 0, window: tuple[int, int] | None = None
) -> Frames:
    """Return audio at the new rate; frames before the first and after the last count as silence.

    :param values: the frames from number `first` on
    :param window: which frames of the result, (begin, end), instead of all; `input_range` says what they are made of

    >>> resample(np.zeros((441, 2), np.float32), 44100, 16000).shape
    (160, 2)
    """
    begin, end = window or (0, resampled_length(first + len(values), rate, new_rate))
    if rate == new_rate:
        return values[begin - first : end - first]
    up, down = _ratio(rate, new_rate)
    reach = _reach(up, down)
    cycle, channels = begin // up, values.shape[1]  # `up` frames of the result, made of `down` frames
    cycles = max(0, -(-end // up) - cycle)
    # One row for each channel, from the first input of the first cycle to the last input of the last cycle.
    padded = np.zeros((channels, cycles * down + 2 * reach + 1), np.float32)
    origin = cycle * down - reach
    low, high = max(first, origin), min(first + len(values), origin + padded.shape[1])
    if high > low:
        padded[:, low - origin : high - origin] = values[low - first : high - first].T
    out = np.empty((cycles, up, channels), np.float32)
    for phase in range(0, up, _phases(down / up)):
        _fill_phases(out, padded, up, down, phase)
    return np.ascontiguousarray(out.reshape(cycles * up, channels)[begin - cycle * up : end - cycle * up])


def _fill_phases(out: Frames, padded: Frames, up: int, down: int, phase: int) -> None:
    """Compute the frames of the phases of one matrix product, from `phase` on, in all cycles."""
    table, offset = _filter_table(up, down, phase)
    width, cycles = len(table), len(out)
    rows = max(1, _PRODUCT // table.size)
    for channel, line in enumerate(padded):
        windows = as_strided(line[offset:], (cycles, width), (down * line.itemsize, line.itemsize))
        for k in range(0, cycles, rows):
            # Overlapping rows are copied: BLAS does not take them.
            product = np.ascontiguousarray(windows[k : k + rows]) @ table
            out[k : k + rows, phase : phase + table.shape[1], channel] = product


@lru_cache(32)
def _filter_table(up: int, down: int, phase: int) -> tuple[Frames, int]:
    """Return the weights (inputs, phases) of some phases, and where their inputs begin in a cycle."""
    phases = np.arange(phase, min(up, phase + _phases(down / up)))
    reach = _reach(up, down)
    centres = phases * down / up
    offset = int(centres[0])
    inputs = np.arange(offset - reach, int(centres[-1]) + reach + 1)
    scale = min(1.0, up / down)  # the lower rate has the lower half rate
    times = (centres - inputs[:, None]) * scale
    inside = np.abs(times) < _CROSSINGS
    window = np.i0(_BETA * np.sqrt(np.where(inside, 1 - (times / _CROSSINGS) ** 2, 0))) / np.i0(_BETA)
    weights = np.where(inside, np.sinc(times * _PASS) * window, 0)
    return np.asarray(weights / weights.sum(axis=0), np.float32), offset


def _ratio(rate: int, new_rate: int) -> tuple[int, int]:
    """Return numbers of frames of the result and of the input that span the same time: a cycle."""
    shared = math.gcd(rate, new_rate)
    # Matrix products with few columns are slow (measured: 48 to 16 kHz 30 times slower with one column than with 128).
    repeats = max(1, _phases(rate / new_rate) * shared // new_rate)
    return repeats * new_rate // shared, repeats * rate // shared


def _phases(reduction: float) -> int:
    """Return the number of phases in one matrix product.

    >>> _phases(44100 / 16000), _phases(44100 / 100), _phases(1000)
    (128, 16, 7)
    """
    count, wide = _PHASES, 2 * _CROSSINGS
    while count > 1 and (count + wide) * reduction * count > _TABLE:
        count -= 1
    return count


def _reach(up: int, down: int) -> int:
    """Return how many frames on each side of its place a frame of the result is made of."""
    return math.ceil(_CROSSINGS * max(1.0, down / up))
