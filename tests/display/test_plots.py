"""Series as lines."""

import numpy as np
import pytest

from shardex.display.plots import plot_of


def test_long_series_has_few_points_and_keeps_its_extremes() -> None:
    values = np.zeros(1_000_000, np.float32)
    values[123_456], values[-1] = 7, -3
    plot = plot_of(values)
    assert sum(len(points) for _, points in plot.lines) == 300
    assert (plot.low, plot.high, plot.note) == (-3, 7, "-3 to 7")


def test_channels_are_columns_of_which_eight_are_shown() -> None:
    plot = plot_of(np.arange(60).reshape(5, 12))
    assert [channel for channel, _ in plot.lines] == list(range(8))
    assert plot.lines[1][1][:, 1].tolist() == [1, 13, 25, 37, 49]


@pytest.mark.parametrize(
    "values",
    [
        np.full(20, np.nan),
        np.full(20, np.inf),
        np.zeros(20),
        np.array([1.0]),
        np.zeros((20, 0)),
        np.ones(20, np.bool_),
        np.ones(20, np.complex64) * 1j,
        np.array([1e308, -1e308] * 10),
    ],
    ids=repr,
)
def test_points_are_inside_the_drawing(values: np.ndarray) -> None:
    with np.errstate(all="raise"):
        for _, points in plot_of(values).scaled(100, 50):
            assert np.isfinite(points).all() and points.min() >= 0
            assert points[:, 0].max() <= 100 and points[:, 1].max() <= 50


def test_gaps() -> None:
    plot = plot_of(np.array([1, np.nan, 2, 3, np.inf, 4]))
    assert [len(points) for _, points in plot.lines] == [1, 2, 1]
    assert plot_of(np.full(9, np.nan)).note == "no finite value"
