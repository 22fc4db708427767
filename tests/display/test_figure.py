"""Figures: grids of samples as HTML and PNG, and tables of fields."""

import base64
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.display import MAX_SAMPLES, Failed, Figure, overview_html, png_figure
from shardex.errors import ArgumentError, NotFoundError
from shardex.features import ClassLabel, Image, Text
from shardex.media import decode_image, encode_image, image_info

HOSTILE = "<script>alert('\"&')</script><img src=x onerror=alert(1)>\x00\u202e\ud800"
RED = np.full((30, 40, 3), (200, 10, 10), np.uint8)


class Page(HTMLParser):
    """Tags of a page, which must be closed, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "polyline":
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += "" if self.open[-1:] == ["style"] else data


def images(page: str) -> list[np.ndarray]:
    return [decode_image(base64.b64decode(data)) for data in re.findall(r"base64,([^\"]+)", page)]


def test_grid_of_images_with_class_names() -> None:
    features = {"image": Image(), "label": ClassLabel(("cat", "dog"))}
    samples = [{"label": k % 2, "image": encode_image(RED + k, "jpeg")} for k in range(3)]
    page = Figure.of(samples, features, 10)._repr_html_()
    assert [image.shape for image in images(page)] == [(30, 40, 3)] * 3
    assert Page(page).text == "3 of 10 samples: image, labellabel catlabel doglabel cat"


def test_everything_from_data_is_escaped(tmp_path: Path) -> None:
    features = {HOSTILE: Text(), "label": ClassLabel((HOSTILE,)), "bad": Image()}
    sample = {HOSTILE: HOSTILE, "label": 0, "bad": Failed(HOSTILE), "json": {HOSTILE: [HOSTILE]}, "x": np.zeros(50)}
    figure = Figure.of([sample], features)
    figure.save(tmp_path / "a.html")
    for page in (
        figure._repr_html_(),
        (tmp_path / "a.html").read_text("utf-8"),
        overview_html(HOSTILE, dict.fromkeys(sample, HOSTILE), [sample], features),
    ):
        found = Page(page)
        assert not {"script", "img"} & set(found.tags) and "onerror" not in found.names
        assert "<script>alert('\"&')</script>" in found.text
        assert "\x00" not in page and page.encode()


def test_figure_is_bounded() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (500, 500, 3)).astype(np.uint8)
    sample = {f"{'f' * 9_000}{k}": "x" * 100_000 for k in range(100)} | {"image": noise}
    figure = Figure.of((sample for _ in range(10 * MAX_SAMPLES)), {}, 10 * MAX_SAMPLES)
    assert len(figure) == MAX_SAMPLES and "400 of 4,000 samples" in repr(figure)
    assert len(figure._repr_html_()) < 16_100_000
    assert len(overview_html("t" * 10**6, dict.fromkeys(sample, "k" * 10**6), [sample] * 3, {})) < 100_000


@pytest.mark.needs("PIL")
def test_page_is_cut_where_it_becomes_too_large() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (160, 160, 4)).astype(np.uint8)
    page = Figure.of([{"a": noise, "b": noise}] * MAX_SAMPLES, {})._repr_html_()
    assert len(page) < 16_100_000 and "more do not fit on this page" in Page(page).text


def test_broken_image_stands_beside_the_others() -> None:
    data = encode_image(RED, "jpeg")
    page = Figure.of([{"image": data}, {"image": data[:40]}, {"image": data}], {"image": Image()})._repr_html_()
    assert len(images(page)) == 2 and page.count('"sx-failed"') == 1


@pytest.mark.parametrize(
    "sample",
    [
        {"image": RED, "label": "a"},
        {"grey": RED[:, :, :1], "clear": np.dstack([RED, RED[:, :, :1]])},
        {"series": np.sin(np.arange(1000)), "two": np.zeros((40, 2)), "nan": np.full(9, np.nan)},
        {"text": "many words " * 100, "one": "x" * 1_000, "name": HOSTILE, "": "", "漢字": "漢字"},
        {"bad": Failed("a message")},
        {},
    ],
    ids="-".join,
)
@pytest.mark.parametrize("count", [0, 1, 16])
def test_png(tmp_path: Path, sample: dict[str, Any], count: int) -> None:
    Figure.of([sample] * count, {}).save(tmp_path / "a.png")
    found = decode_image((tmp_path / "a.png").read_bytes())
    assert found.shape[1] <= 1_024 and (found[0, 0] == 255).all()


def test_png_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png_figure, "_MAX_PIXELS", 2_000_000)
    Figure.of([{f"f{k}": "x" * 1_000 for k in range(100)}] * MAX_SAMPLES, {}).save(tmp_path / "a.png")
    info = image_info((tmp_path / "a.png").read_bytes())
    assert info.height * info.width < 7_000_000  # one more row than fits


def test_png_has_the_pixels_of_the_images(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (160, 160, 3)).astype(np.uint8)
    Figure.of([{"image": image, "n": 1}], {}).save(tmp_path / "a.png")
    found = decode_image((tmp_path / "a.png").read_bytes())
    row, column = np.argwhere((found == image[0, 0]).all(axis=2))[0]
    assert np.array_equal(found[row : row + 160, column : column + 160], image)


def test_without_pillow() -> None:
    code = """
import sys; sys.modules["PIL"] = None
import numpy as np
from shardex.display import Figure
figure = Figure.of([{"image": np.zeros((10, 10, 3), "uint8"), "x": np.zeros(50), "name": "a"}], {})
print(figure._repr_html_(), Figure.of([{"b": b"123", "n": None}], {})._repr_html_())
figure.save("a.png")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"MissingExtraError: .*needs Pillow.*pip install 'shardex\[images\]'", done.stderr)
    page = Page(done.stdout)
    assert "svg" in page.tags and "showing images needs Pillow" in page.text
    assert "shardex[images]" in page.text and "name a" in page.text and "b 3 bytes" in page.text


def test_save_names_what_it_expects(tmp_path: Path) -> None:
    figure = Figure.of([{"x": 1}], {})
    for name in ("a.jpg", "a", ""):
        with pytest.raises(ArgumentError, match=r"ends in \.html or \.png"):
            figure.save(tmp_path / name)
    with pytest.raises(NotFoundError, match="cannot write a figure"):
        figure.save(tmp_path / "no" / "a.html")


def test_overview_has_a_line_for_each_field() -> None:
    kinds = {f"f{k}": f"kind {k}" for k in range(100)}
    page = overview_html("title", kinds, [{"f1": 5}, {"f1": 6, "unknown": 1}], {})
    assert page.count("<tr>") == 40 and "60 more fields" in page
    assert Page(page).text.startswith("titlef0kind 0f1kind 156f2kind 2")


def test_repr_says_what_to_do() -> None:
    assert repr(Figure.of([], {})) == (
        'Figure(0 samples); a notebook shows it, save("figure.html") and save("figure.png") write it to a file'
    )


def test_png_is_readable_by_pillow(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    Figure.of([{"x": 1}], {}).save(tmp_path / "A.PNG")
    with image.open(io.BytesIO((tmp_path / "A.PNG").read_bytes())) as found:
        assert found.format == "PNG"
