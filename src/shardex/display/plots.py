"""Series as lines: a bounded number of points for each channel, whatever the length of the series.

`plot_of` makes a `Plot` from an array; `html_figure` and `png_figure` draw it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLORS = ("#1f77b4", "#d9730d", "#2a9d4a", "#c0392b", "#8455b8", "#8c6d31", "#c2559d", "#5f6b7a")
"""Colors of the channels, which can be told apart on light and dark backgrounds."""
_MAX_CHANNELS = len(COLORS)
_BUCKETS = 150
"""Parts of a long series; of each the lowest and the highest value are drawn."""
_MAX_READ = 1 << 22
"""Values of a channel that are looked at; of longer series every second, third, ... one."""

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines through points (x, y), x from 0 to 1, and the lowest and highest y of all of them."""

    lines: tuple[tuple[int, Points], ...]
    """Number of the channel and points of each line; a channel with gaps has several lines."""
    low: float
    high: float
    note: str

    def scaled(self, width: float, height: float, margin: float = 2) -> list[tuple[str, NDArray[np.float64]]]:
        """Return color and points of each line in pixels, y from top to bottom."""
        low, span = self.low / 2, self.high / 2 - self.low / 2  # half of each: the difference may be too large
        inner = np.array([width - 2 * margin, height - 2 * margin])
        found = []
        for channel, points in self.lines:
            share = (points[:, 1] / 2 - low) / span if span > 0 else np.full(len(points), 0.5)
            found.append((COLORS[channel], margin + np.stack([points[:, 0], 1 - share], axis=1) * inner))
        return found


def plot_of(values: NDArray[Any], note: str = "") -> Plot:
    """Return the plot of a series with one dimension, or of several channels: values in rows, channels in columns.

    Missing and infinite values are gaps.

    >>> plot = plot_of(np.array([0.0, 1.0, np.nan, 3.0, 2.0]), "a")
    >>> [points.tolist() for _, points in plot.lines], plot.high, plot.note
    ([[[0.0, 0.0], [0.25, 1.0]], [[0.75, 3.0], [1.0, 2.0]]], 3.0, 'a, 0 to 3')
    """
    channels = values.reshape(len(values), -1)[:: len(values) // _MAX_READ + 1, :_MAX_CHANNELS]
    series = np.abs(channels) if channels.dtype.kind == "c" else channels
    lines = []
    for number in range(series.shape[1]):
        x, y = _outline(series[:, number].astype(np.float64))
        lines += [(number, np.stack([x[part], y[part]], axis=1)) for part in _without_gaps(y)]
    every = np.concatenate([points[:, 1] for _, points in lines] or [np.zeros(1)])
    low, high = float(every.min()), float(every.max())
    shown = f"{_number(low)} to {_number(high)}" if lines else "no finite value"
    return Plot(tuple(lines), low, high, f"{note}, {shown}" if note else shown)


def _number(value: float) -> str:
    """Return a number with few digits.

    >>> _number(49_812.0), _number(0.123456)
    ('49,812', '0.123')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def _outline(values: Points) -> tuple[Points, Points]:
    """Return the points to draw: all of a short series, the lowest and the highest of each part of a long one."""
    values = np.where(np.isfinite(values), values, np.nan)
    count = len(values)
    if count <= 2 * _BUCKETS:
        return np.arange(count) / max(1, count - 1), values
    starts = np.linspace(0, count, _BUCKETS, endpoint=False).astype(np.int64)
    ends = np.stack([np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)], axis=1)
    return np.linspace(0, 1, 2 * _BUCKETS), ends.ravel()


def _without_gaps(values: Points) -> list[slice]:
    """Return the runs of values that are there.

    >>> _without_gaps(np.array([1.0, np.nan, 2.0, 3.0]))
    [slice(0, 1, None), slice(2, 4, None)]
    """
    there = np.concatenate([[False], ~np.isnan(values), [False]])
    turns = np.flatnonzero(there[1:] != there[:-1])
    return [slice(int(a), int(b)) for a, b in turns.reshape(-1, 2)]
