"""Shows samples: as a grid or a table of pictures, in HTML for notebooks or as a PNG.

In: samples as plain values, and their features, if known. Out: a `Figure`, which displays itself in a notebook and can
be saved, or the HTML that a dataset, a sample or a batch shows of itself. Images are thumbnails, arrays and audio are
plots, videos their first frame, all else is text. Sizes are bounded whatever the data is, text is escaped, and a value
that cannot be decoded shows the error in its place.

- `figure`: `Figure`, and tables of fields
- `pictures`: what one value looks like
- `plots`: series as lines with a bounded number of points
- `html_figure`: pictures as HTML and SVG
- `png_figure`: pictures as a PNG, by Pillow
"""

from shardex.lazy_door import TYPES, import_later

__all__ = ["MAX_SAMPLES", "Failed", "Figure", "overview_html", "sections_html"]

if TYPES:
    from shardex.display.figure import MAX_SAMPLES, Figure, overview_html
    from shardex.display.html_figure import sections_html
    from shardex.display.pictures import Failed
else:
    import_later(
        __name__,
        {
            "figure": "MAX_SAMPLES Figure overview_html",
            "html_figure": "sections_html",
            "pictures": "Failed",
        },
    )
