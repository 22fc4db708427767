"""Pictures as HTML: a grid of samples, and a table of fields with the first samples.

Everything that comes from data is escaped, images are data URLs that are made here, and there are no scripts and no
links. The size of a page is bounded: what does not fit is counted instead.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence

from shardex.display.pictures import Failed, Picture, Pixels, Thumbnail, Words, cut
from shardex.display.plots import Plot
from shardex.errors import MissingExtraError, ShardexError
from shardex.media import encode_image

Card = Mapping[str, Picture]
"""The pictures of a sample, by field."""
MAX_FIELDS = 40
"""Fields of a sample that are shown."""
_MAX_BYTES = 16_000_000
_MAX_TITLE, _MAX_KIND = 1000, 200
"""Characters of a title, and of the description of a field."""
_MAX_PNG = 96
"""Larger color images are JPEGs, a tenth of the size."""
_PLOT_HEIGHT = 0.4
_STYLE = """<style>
.shardex{font:13px/1.35 system-ui,sans-serif}
.shardex .sx-grid{display:flex;flex-wrap:wrap;gap:10px;align-items:flex-start}
.shardex .sx-card{border:1px solid rgba(128,128,128,.35);border-radius:4px;padding:6px}
.shardex .sx-word{overflow-wrap:anywhere;white-space:pre-wrap;unicode-bidi:isolate}
.shardex .sx-name{color:#888;unicode-bidi:isolate;overflow-wrap:anywhere}
.shardex .sx-failed{color:#c0392b;overflow-wrap:anywhere}
.shardex img,.shardex svg{display:block;max-width:none}
.shardex .sx-zoom{image-rendering:pixelated}
.shardex table{border-collapse:collapse}
.shardex th,.shardex td{text-align:left;vertical-align:top;padding:3px 10px 3px 0;max-width:26em}
</style>"""


def grid_html(title: str, cards: Sequence[Card], width: int) -> str:
    """Return a grid of samples, each `width` pixels wide."""
    parts, used, shown = [], 0, 0
    for card in cards:
        alone = sum(isinstance(picture, Thumbnail) for picture in card.values()) == 1
        body = "".join(_field(name, picture, width, alone) for name, picture in card.items())
        part = f'<div class="sx-card" style="width:{width}px">{body}</div>'
        if used + len(part) > _MAX_BYTES:
            break
        parts.append(part)
        used, shown = used + len(part), shown + 1
    left = f"<div>{len(cards) - shown:,} more do not fit on this page</div>" if shown < len(cards) else ""
    return _framed(f'<div>{escape(cut(title, _MAX_TITLE))}</div><div class="sx-grid">{"".join(parts)}</div>{left}')


def table_html(title: str, kinds: Mapping[str, str], cards: Sequence[Card], width: int) -> str:
    """Return a table with a line for each field: its name, what it holds, and its pictures in some samples."""
    lines = []
    for name in list(kinds)[:MAX_FIELDS]:
        cells = (f"<td>{_picture(card[name], width) if name in card else ''}</td>" for card in cards)
        kind = f"<td>{escape(cut(kinds[name], _MAX_KIND))}</td>" if kinds[name] else ""
        lines.append(f'<tr><td class="sx-name">{escape(name)}</td>{kind}{"".join(cells)}</tr>')
    left = f"<div>{len(kinds) - MAX_FIELDS:,} more fields</div>" if len(kinds) > MAX_FIELDS else ""
    return _framed(f"<div>{escape(cut(title, _MAX_TITLE))}</div><table>{''.join(lines)}</table>{left}")


def sections_html(parts: Mapping[str, str], total: int) -> str:
    """Return HTML one below the other, each part under its name; `total` is the number of all parts."""
    shown = "".join(f"<div><b>{escape(name)}</b></div>{part}" for name, part in parts.items())
    left = f"<div>{total - len(parts):,} more</div>" if total > len(parts) else ""
    return f"<div>{shown}{left}</div>"


def page_html(title: str, body: str) -> str:
    """Return a whole document with this content."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>{body}</body></html>\n"


def escape(text: str) -> str:
    """Return a text as HTML that shows it, without control characters and halves of surrogate pairs.

    >>> escape("<b>\\x00 & \\ud800")
    '&lt;b&gt;\\ufffd &amp; ?'
    """
    plain = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" if c < " " else c for c in text)
    return html.escape(plain.encode("utf-8", "replace").decode())


def _framed(body: str) -> str:
    return f'<div class="shardex">{_STYLE}{body}</div>'


def _field(name: str, picture: Picture, width: int, alone: bool) -> str:
    """Return the part of a card that shows a field; an image needs no name if it is the only one."""
    label = f'<span class="sx-name">{escape(name)}</span> '
    if isinstance(picture, Words | Failed):
        return f"<div>{label}{_picture(picture, width)}</div>"
    caption = f'<div>{label}<span class="sx-name">{escape(picture.note)}</span></div>'
    return _picture(picture, width) + ("" if alone and isinstance(picture, Thumbnail) else caption)


def _picture(picture: Picture, width: int) -> str:
    match picture:
        case Thumbnail():
            try:
                return _img(picture, width)
            except MissingExtraError:  # JPEG files can be read without Pillow, but small images are stored as PNG
                return _picture(Failed.of(MissingExtraError("Pillow", "images", "showing images")), width)
            except ShardexError as error:
                return _picture(Failed.of(error), width)
        case Plot():
            return _svg(picture, width, round(width * _PLOT_HEIGHT))
        case Failed():
            return f'<span class="sx-failed">{escape(picture.text)}</span>'
        case Words():
            return f'<span class="sx-word">{escape(picture.text)}</span>'


def zoom_of(pixels: Pixels, width: int) -> int:
    """Return how many times an image fits into a width: small ones are enlarged."""
    return max(1, width // int(max(pixels.shape[:2])))


def _img(picture: Thumbnail, width: int) -> str:
    pixels, zoom = picture.pixels, zoom_of(picture.pixels, width)
    form = "jpeg" if pixels.shape[2] == 3 and max(pixels.shape) > _MAX_PNG else "png"
    data = base64.b64encode(encode_image(pixels, form)).decode()
    size = f'width="{pixels.shape[1] * zoom}" height="{pixels.shape[0] * zoom}"'
    zoomed = ' class="sx-zoom"' if zoom > 1 else ""
    return f'<img{zoomed} {size} title="{escape(picture.note)}" alt="" src="data:image/{form};base64,{data}">'


def _svg(plot: Plot, width: int, height: int) -> str:
    lines = "".join(
        f'<polyline fill="none" stroke="{color}" points="{_points(points)}"/>'
        for color, points in plot.scaled(width, height)
    )
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">{lines}</svg>'


def _points(points: Iterable[Iterable[float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
