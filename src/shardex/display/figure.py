"""`Figure`: samples as a grid of pictures, shown by a notebook or saved as HTML or PNG."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from shardex.display.html_figure import MAX_FIELDS, Card, grid_html, page_html, table_html
from shardex.display.pictures import Failed, Picture, Thumbnail, Words, cut, picture_of
from shardex.display.plots import Plot
from shardex.display.png_figure import figure_png
from shardex.errors import ArgumentError, storage_errors
from shardex.features import Feature

MAX_SAMPLES = 400
"""Samples that a figure has at most."""
_SIDE = 160
_WIDE = 240
"""Pixels that a sample is wide: with images, and with plots or text."""
_SMALL = 72
_PAGE = 1000
"""Pixels that a PNG is wide at most."""
_SHORT = 40
"""Characters of a text that needs no wide column."""
_MAX_NAME = 200
"""Characters of the name of a field."""


class Figure:
    """Samples as a grid of pictures: notebooks show it, `save` writes it to a file.

    >>> figure = Figure.of([{"x": 1, "name": "<a>"}], {})
    >>> figure
    Figure(1 sample: x, name); a notebook shows it, save("figure.html") and save("figure.png") write it to a file
    >>> "&lt;a&gt;" in figure._repr_html_()
    True
    """

    def __init__(self, title: str, cards: list[Card]) -> None:
        self.title = title
        self._cards = cards
        pictures: list[Picture] = [picture for card in cards for picture in card.values()]
        images = any(isinstance(one, Thumbnail) for one in pictures)
        plots = any(isinstance(one, Plot) for one in pictures)
        texts = any(isinstance(one, Words | Failed) and len(one.text) > _SHORT for one in pictures)
        self._width = _WIDE if plots or (texts and not images) else _SIDE

    @classmethod
    def of(
        cls, samples: Iterable[Mapping[str, Any]], features: Mapping[str, Feature], total: int | None = None
    ) -> Figure:
        """Return the figure of samples; `total` is the number of samples in the dataset."""
        cards = [_card(sample, features) for sample in islice(samples, MAX_SAMPLES)]
        names = ", ".join(dict.fromkeys(name for card in cards for name in card))
        count = f"{len(cards):,} of {total:,}" if total is not None and total > len(cards) else f"{len(cards):,}"
        plural = "s" * (max(len(cards), total or 0) != 1)
        return cls(f"{count} sample{plural}: {names[:200]}" if names else f"{count} sample{plural}", cards)

    def __len__(self) -> int:
        return len(self._cards)

    def __repr__(self) -> str:
        how = 'a notebook shows it, save("figure.html") and save("figure.png") write it to a file'
        return f"Figure({self.title}); {how}"

    def _repr_html_(self) -> str:
        return grid_html(self.title, self._cards, self._width)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure to a file, whose name ends in .html or .png; an existing file is replaced."""
        target = Path(path)
        kind = target.suffix.lower()
        if kind not in (".html", ".htm", ".png"):
            raise ArgumentError(f"expected a name that ends in .html or .png, got {str(path)!r}")
        data = self._png() if kind == ".png" else page_html(self.title, self._repr_html_()).encode()
        with storage_errors(target, "write a figure"):
            target.write_bytes(data)

    def _png(self) -> bytes:
        columns = max(1, min(_PAGE // (self._width + 24), len(self._cards)))
        if len(self._cards) > columns > 4 and len(self._cards) % 4 == 0 and len(self._cards) <= 16:
            columns = 4
        return figure_png(self.title, self._cards, self._width, columns)


def overview_html(
    title: str, kinds: Mapping[str, str], samples: Iterable[Mapping[str, Any]], features: Mapping[str, Feature]
) -> str:
    """Return a table of fields: name, what it holds (`kinds`), and small pictures of its values in some samples."""
    cards = [_card(sample, features, side=_SMALL, length=80) for sample in samples]
    return table_html(title, {cut(str(name), _MAX_NAME): kind for name, kind in kinds.items()}, cards, _SMALL)


def _card(sample: Mapping[str, Any], features: Mapping[str, Feature], side: int = _SIDE, length: int = 300) -> Card:
    """Return the pictures of a sample: images and plots first, then words."""
    shown = list(sample)[:MAX_FIELDS]
    pictures = {
        cut(str(name), _MAX_NAME): picture_of(sample[name], features.get(name), side=side, length=length)
        for name in shown
    }
    return dict(sorted(pictures.items(), key=lambda item: isinstance(item[1], Words)))
