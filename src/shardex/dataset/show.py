"""What a notebook shows of a dataset: a figure of its first samples, and a table of its fields.

Samples are read one at a time; a field that cannot be read or decoded shows the error in its place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.dataset.views import headline
from shardex.display import MAX_SAMPLES, Failed, Figure, overview_html
from shardex.features import Audio, Feature, Features, Image, Video, contains
from shardex.layers import Decoding, MediaRows, with_decodings
from shardex.rows import whole_number

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

_OVERVIEW = 3
"""Samples in the table of a dataset."""
_MAX_FIELDS = 40
_SECONDS = 1.0
"""The table of a dataset reads no further sample after this time."""


def show(view: Dataset[Any], n: int, path: str | os.PathLike[str] | None) -> Figure:
    """Return a figure of the first samples, or of the error that reading them raised; write it if a path is given."""
    count = min(whole_number("n", n, 0), len(view), MAX_SAMPLES)
    try:
        fields, features = view.fields[:_MAX_FIELDS], view.features
    except Exception as error:  # of a function without a schema, which is called to know the fields
        figure = Figure.of([{"error": Failed.of(error)}] * bool(count), Features({}), len(view))
    else:
        figure = Figure.of(_samples(view, count, fields), features, len(view))
    if path is not None:
        figure.save(path)
    return figure


def overview(view: Dataset[Any]) -> str:
    """Return the HTML that a notebook shows for a dataset: fields, features, a few samples; never raises."""
    title = headline(view)
    try:
        features = view.features
        names = [name for name in features if not contains(features[name], Video)][:_MAX_FIELDS]  # videos are large
        samples = _quickly(_samples(view, min(_OVERVIEW, len(view)), names))
        return overview_html(title, {name: str(one) for name, one in features.items()}, samples, features)
    except Exception as error:
        return overview_html(f"{title}: {error}", {}, [], Features({}))


def _quickly(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield samples until a time limit is reached."""
    begin = time.monotonic()
    for sample in samples:
        yield sample
        if time.monotonic() - begin > _SECONDS:
            return


def _samples(view: Dataset[Any], count: int, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    view = _undecoded(view)
    view.advise(np.arange(count), fields)
    for position in range(count):
        try:
            yield view.sample(position, fields)
        except Exception:
            yield {name: _value(view, position, name) for name in fields}


def _undecoded(view: Dataset[Any]) -> Dataset[Any]:
    """Return the view with media as stored bytes, unless steps change them: decoding at the size of a thumbnail is
    faster.
    """
    rows = view.rows
    if not isinstance(rows, MediaRows):
        return view
    features = rows.features
    changed = {name: one for name, one in rows.decodings.items() if _is_changed(features[name], one)}
    return type(view)(with_decodings(rows.below, changed), view.order, view.chosen)


def _is_changed(feature: Feature, decoding: Decoding) -> bool:
    """Return whether decoded values show something else than the stored ones: steps, another size, some frames."""
    if decoding != Decoding(decoding.form):
        return True
    parts = [one for _, one in feature.nested("") if isinstance(one, Image | Audio | Video)]
    return any(_has_window(one) or getattr(one, "size", None) is not None for one in parts)


def _has_window(feature: Feature) -> bool:
    """Return whether only some frames are decoded; random ones differ with each read."""
    return isinstance(feature, Audio | Video) and feature.frames is not None and feature.sampling != "random"


def _value(view: Dataset[Any], position: int, name: str) -> Any:
    """Return the value of one field, or the error that reading it raised."""
    try:
        return view.sample(position, [name]).get(name)
    except Exception as error:
        return Failed.of(error)
