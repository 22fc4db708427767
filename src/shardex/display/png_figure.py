"""Pictures as one PNG: a grid of samples, drawn by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardex.display.html_figure import Card, zoom_of
from shardex.display.pictures import Failed, Picture, Thumbnail, Words
from shardex.display.plots import Plot
from shardex.errors import MissingExtraError

_GAP = 8
_BETWEEN = 2
"""Pixels between cards, and between the parts of a card."""
_MAX_PIXELS = 20_000_000
"""Size of a page, after which no more rows of samples are drawn."""
_TEXT = 12
"""Height of letters."""
_LINE = 16
_MAX_LINES = 8
"""Lines of a text."""
_PLOT_HEIGHT = 0.4
_FINE = 3
"""Plots are drawn this many times as large and then reduced, so that lines are smooth."""
_BLACK, _GREY, _RED, _EDGE = "#222222", "#808080", "#c0392b", "#d8d8d8"


def figure_png(title: str, cards: Sequence[Card], width: int, columns: int) -> bytes:
    """Return a grid of samples as the bytes of a PNG; each sample is `width` pixels wide."""
    return _Painter(width, columns).paint(title, cards)


class _Painter:
    """Draws cards; every part is an image of its own, so that heights are known before they are put together."""

    def __init__(self, width: int, columns: int) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError:
            raise MissingExtraError("Pillow", "images", "a figure as PNG") from None
        self._image: Any = Image
        self._draw: Any = ImageDraw
        self._font: Any = ImageFont.load_default(_TEXT)
        self._widths: dict[str, float] = {}
        self._width = width
        self._columns = columns

    def paint(self, title: str, cards: Sequence[Card]) -> bytes:
        """Return the figure as a PNG; cards that would make it too large are counted instead."""
        cell = self._width + 2 * _GAP
        wide = _GAP + max(1, min(self._columns, len(cards))) * (cell + _GAP)
        parts, shown, height = [self._words(title, _GREY, wide - 2 * _GAP)], 0, 0
        while shown < len(cards) and height < _MAX_PIXELS // wide:
            parts.append(self._row(cards[shown : shown + self._columns], cell, wide - 2 * _GAP))
            shown, height = min(len(cards), shown + self._columns), height + parts[-1].height
        if shown < len(cards):
            parts.append(self._words(f"{len(cards) - shown:,} more do not fit on this page", _GREY, wide - 2 * _GAP))
        out = io.BytesIO()
        self._stacked(parts, wide, _GAP, _GAP).save(out, "PNG", optimize=True)
        return out.getvalue()

    def _row(self, cards: Sequence[Card], cell: int, width: int) -> Any:
        """Return cards side by side, each in a frame."""
        painted = [self._stacked(self._parts(card), self._width, _BETWEEN) for card in cards]
        height = max(one.height for one in painted) + 2 * _GAP
        whole = self._blank(width, height)
        draw = self._draw.Draw(whole)
        for number, one in enumerate(painted):
            x = number * (cell + _GAP)
            draw.rectangle((x, 0, x + cell - 1, height - 1), outline=_EDGE)
            whole.paste(one, (x + _GAP, _GAP))
        return whole

    def _stacked(self, parts: Sequence[Any], width: int, gap: int, margin: int = 0) -> Any:
        """Return images one below the other."""
        y = margin
        whole = self._blank(width, max(1, sum(part.height + gap for part in parts) - gap + 2 * margin))
        for part in parts:
            whole.paste(part, (margin, y))
            y += part.height + gap
        return whole

    def _blank(self, width: int, height: int) -> Any:
        return self._image.new("RGB", (width, height), "white")

    def _parts(self, card: Card) -> list[Any]:
        alone = sum(isinstance(picture, Thumbnail) for picture in card.values()) == 1
        return [part for name, picture in card.items() for part in self._field(name, picture, alone)]

    def _field(self, name: str, picture: Picture, alone: bool) -> list[Any]:
        """Return the parts that show a field, one below the other; an image needs no name if it is the only one."""
        match picture:
            case Thumbnail():
                caption = [] if alone else [self._words(f"{name} {picture.note}", _GREY)]
                return [self._thumbnail(picture), *caption]
            case Plot():
                return [self._plot(picture), self._words(f"{name} {picture.note}", _GREY)]
            case Failed():
                return [self._words(f"{name} {picture.text}", _RED)]
            case Words():
                return [self._words(f"{name} {picture.text}", _BLACK, name=name)]

    def _thumbnail(self, picture: Thumbnail) -> Any:
        pixels, zoom = picture.pixels, zoom_of(picture.pixels, self._width)
        pixels = pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)
        if pixels.shape[2] == 4:  # on white
            share = pixels[:, :, 3:].astype(np.float64) / 255
            pixels = np.round(pixels[:, :, :3] * share + 255 * (1 - share)).astype(np.uint8)
        return self._image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)

    def _plot(self, plot: Plot) -> Any:
        width, height = self._width, round(self._width * _PLOT_HEIGHT)
        large = self._blank(width * _FINE, height * _FINE)
        draw = self._draw.Draw(large)
        for color, points in plot.scaled(width * _FINE, height * _FINE, 2 * _FINE):
            draw.line([tuple(point) for point in points.tolist()], fill=color, width=_FINE)
        return large.resize((width, height), self._image.Resampling.BOX)

    def _words(self, text: str, color: str, width: int | None = None, name: str = "") -> Any:
        """Return a text in lines; the name of a field before it is grey."""
        lines = self._lines(text, width or self._width)
        whole = self._blank(width or self._width, _LINE * len(lines))
        draw = self._draw.Draw(whole)
        for number, line in enumerate(lines):
            draw.text((0, _LINE * number), line, fill=color, font=self._font)
        if name and lines[0].startswith(name):
            draw.rectangle((0, 0, self._font.getlength(name), _LINE), fill="white")
            draw.text((0, 0), name, fill=_GREY, font=self._font)
        return whole

    def _lines(self, text: str, width: int) -> list[str]:
        """Cut a text into lines that fit, between words where possible."""
        lines, rest = list[str](), " ".join(_printable(text).split())
        while rest and len(lines) < _MAX_LINES:
            fits = self._fitting(rest, width)
            if fits < len(rest) and rest[fits] != " " and " " in rest[1:fits]:
                fits = rest.rindex(" ", 1, fits)
            lines.append(rest[:fits])
            rest = rest[fits:].lstrip()
        return [*lines[:-1], "..."] if rest else lines or [""]

    def _fitting(self, text: str, width: int) -> int:
        """Return how many letters of a text fit into a width, at least one."""
        used = 0.0
        for number, letter in enumerate(text):
            if letter not in self._widths:
                self._widths[letter] = self._font.getlength(letter)
            used += self._widths[letter]
            if used > width and number:
                return number
        return len(text)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
