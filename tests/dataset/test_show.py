"""`Dataset.show`, `Batch.show`, and what a notebook shows of datasets, samples and batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.columns import check_fields
from shardex.errors import ArgumentError
from shardex.features import Features
from shardex.kernel import Columns, Integers
from shardex.media import encode_image
from shardex.rows import AbstractRows

RED = np.full((30, 40, 3), (200, 10, 10), np.uint8)
LABELS = sx.ClassLabel(("cat<1>", "dog"))


@pytest.fixture
def ds(tmp_path: Path) -> sx.Dataset:
    samples = [{"image": RED + k, "label": k % 2, "wave": np.sin(np.arange(100) + k)} for k in range(20)]
    schema = {"image": sx.Array("uint8", (30, 40, 3)), "label": LABELS, "wave": sx.Array("float64", (None,))}
    return sx.write(tmp_path / "d", samples, schema, progress=False)


@pytest.mark.needs("PIL")
def test_show(ds: sx.Dataset, tmp_path: Path) -> None:
    figure = ds.show()
    page = figure._repr_html_()
    assert len(figure) == 16 and page.count("<img") == page.count("<svg") == 16
    assert page.count("cat&lt;1&gt;") == page.count(">dog<") == 8
    assert repr(figure).startswith("Figure(16 of 20 samples: image, wave, label); a notebook shows it")
    ds.show(2, path=tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8").count("<img") == 2
    ds.select("image").show(3, path=str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_show_follows_the_order_of_a_view(ds: sx.Dataset) -> None:
    page = sx.open([{"x": f"value{k}"} for k in range(9)])[::-1].show(2)._repr_html_()
    assert page.index("value8") < page.index("value7") and "value6" not in page


@pytest.mark.parametrize("n", [-1, 1.5, "many"])
def test_wrong_numbers(ds: sx.Dataset, n: Any) -> None:
    with pytest.raises(ArgumentError, match="for n, got"):
        ds.show(n)
    with pytest.raises(ArgumentError, match="for n, got"):
        next(ds.ordered(3)).show(n)


def test_empty_dataset_is_shown() -> None:
    empty = sx.open([{"x": 1}])[:0]
    assert len(empty.show()) == 0 and "x" in empty._repr_html_()


def test_batches_know_the_names_of_classes(ds: sx.Dataset) -> None:
    batch = next(ds.ordered(4))
    loaded = next(iter(sx.Loader(ds, 4)))
    tensors = next(iter(sx.Loader(ds, 4, to="torch")))
    for one in (batch, batch[1:], ds.__getitems__([0, 1, 2]), loaded, loaded[:3], tensors):
        for page in (one.show()._repr_html_(), one._repr_html_()):
            assert ">dog<" in page and "<img" in page and "<svg" in page
    assert len(batch.show(2)) == 2 and batch.show(2)._repr_html_().count("<img") == 2


def test_batch_with_missing_values() -> None:
    batch = next(sx.open([{"x": 1.5, "y": np.arange(9)}, {"x": None, "y": np.arange(20)}]).ordered(2))
    assert "none" in batch.show()._repr_html_() and "none" in batch._repr_html_()


def test_batch_of_packed_tensors() -> None:
    ragged = sx.open([{"y": np.arange(k + 9.0)} for k in range(4)])
    for form in ("pack", "pad", "list"):
        assert next(iter(sx.Loader(ragged, 4, ragged=form, to="torch"))).show()._repr_html_().count("<svg") == 4


@pytest.mark.needs("PIL")
def test_samples(ds: sx.Dataset) -> None:
    page = ds[0]._repr_html_()
    assert "<img" in page and "<svg" in page and "label" in page

    class Labelled(sx.PackableSample):
        image: np.ndarray
        label: int

    page = ds.as_type(Labelled)[1]._repr_html_()
    assert "<img" in page and "Labelled" in page
    assert Labelled(image=None, label=object())._repr_html_()  # type: ignore[arg-type]


class Counted(AbstractRows):
    """Rows that count what is read of them; one field cannot be read."""

    def __init__(self) -> None:
        self.read_rows: list[int] = []

    def __len__(self) -> int:
        return 1_000_000

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        self.read_rows += rows.tolist()
        names = check_fields(["x", "bad"], fields)
        if "bad" in names:
            raise RuntimeError("<bad> field")
        return Columns({"x": rows * 10}, len(rows))

    @property
    def features(self) -> Features:
        return Features.of({"x": int, "bad": int})


def test_overview_reads_few_samples_and_shows_errors() -> None:
    rows = Counted()
    page = sx.Dataset(rows)._repr_html_()
    assert set(rows.read_rows) == {0, 1, 2}
    assert "1,000,000 samples" in page and page.count("RuntimeError: &lt;bad&gt; field") == 3
    assert ">20<" in page
    assert page.count("sx-failed") - 1 == 3


def test_error_of_a_function_without_a_schema_is_shown(ds: sx.Dataset) -> None:
    def fail(sample: Any) -> Any:
        raise ValueError(f"wrong <{sample['label']}>")

    for view in (ds.map(fail), ds.map(fail, schema={"q": int})):
        html = view.show()._repr_html_()
        assert "sx-failed" in html and "wrong &lt;" in html


def test_overview_never_raises() -> None:
    class Broken(Counted):
        @property
        def features(self) -> Features:
            raise sx.ShardexError("<no> features")

    page = sx.Dataset(Broken())._repr_html_()
    assert "&lt;no&gt; features" in page and "<no>" not in page


def test_overview_names_many_fields(ds: sx.Dataset) -> None:
    wide = sx.open([{f"f{k}": k for k in range(3_000)}])
    assert len(wide._repr_html_()) < 200_000 and len(wide.show()._repr_html_()) < 200_000


@pytest.mark.needs("PIL")
def test_splits(ds: sx.Dataset) -> None:
    splits = sx.DatasetDict({f"<split {k}>": ds for k in range(10)})
    page = splits._repr_html_()
    assert page.count("<b>&lt;split") == 8 and page.count("<img") == 8 * 3 and "2 more" in page
    assert len(sx.DatasetDict(train=ds).show(2)) == 2
    with pytest.raises(AttributeError, match="expected a split for 'show'"):
        splits.show()


# -- media ------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> sx.Dataset:
    samples = [{"image": encode_image(RED + k, "jpeg"), "label": k % 2} for k in range(5)]
    return sx.write(tmp_path / "photos", samples, {"image": sx.Image(), "label": LABELS}, progress=False)


@pytest.mark.parametrize("form", ["numpy", "torch", "pil", False])
def test_images_are_shown_in_every_form(photos: sx.Dataset, form: Any) -> None:
    view = photos.decode(form)
    for page in (
        view.show()._repr_html_(),
        view._repr_html_(),
        view[0]._repr_html_(),
        view[:2].show()._repr_html_(),
    ):
        assert "<img" in page and 'sx-failed"' not in page
    page = photos.rename(image="photo").select("photo").show()._repr_html_()
    assert page.count("<img") == 5


def test_images_are_shown_after_their_steps(photos: sx.Dataset, tmp_path: Path) -> None:
    page = photos.decode(image=[sx.media.Resize((10, 20))]).show(1)._repr_html_()
    assert 'title="10 x 20"' in page and 'title="30 x 40"' in photos.show(1)._repr_html_()
    sized = sx.write(tmp_path / "sized", photos, {"image": sx.Image(size=(8, 9)), "label": LABELS}, progress=False)
    assert 'title="8 x 9"' in sized.show(1)._repr_html_()


def test_batches_of_images(photos: sx.Dataset) -> None:
    steps = {"image": [sx.media.RandomResizedCrop(16), sx.media.Flip()]}
    for to in ("numpy", "torch"):
        batch = next(iter(sx.Loader(photos, 4, decode=steps, to=to)))
        page = batch.show()._repr_html_()
        assert page.count("<img") == page.count('title="16 x 16"') == 4 and ">dog<" in page
        assert batch._repr_html_().count("<img") == 3


def test_broken_image_is_shown_with_its_error(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for k in range(4):
        data = encode_image(RED, "jpeg")
        (folder / f"{k}.jpg").write_bytes(data if k != 2 else data[:200])
    for view in (sx.open(folder), sx.open(folder).decode(image=[sx.media.Resize((10, 20))])):
        for page in (view.show()._repr_html_(), view[1:]._repr_html_()):
            assert page.count("<img") >= 2 and page.count('class="sx-failed"') == 1
        view.show(path=tmp_path / "a.png")


def test_audio_and_video(tmp_path: Path) -> None:
    pytest.importorskip("soundfile"), pytest.importorskip("av")
    clip = np.stack([RED // (k + 1) for k in range(6)])
    samples = [{"audio": np.sin(np.arange(800.0)), "video": clip}]
    schema = {"audio": sx.Audio(8_000), "video": sx.Video()}
    media = sx.write(tmp_path / "media", samples, schema, progress=False)
    windows = {"audio": sx.Audio(8_000, frames=80), "video": sx.Video(frames=2, size=(10, 20))}
    for form in ("numpy", "torch", False):
        page = media.decode(form).show()._repr_html_()
        assert "0.10 s at 8,000 Hz" in page and 'title="30 x 40, first frame"' in page
    page = media.decode(**windows).show()._repr_html_()
    assert "0.01 s at 8,000 Hz" in page and 'title="10 x 20, 1 of 2"' in page
    assert "<svg" in media._repr_html_() and "<img" not in media._repr_html_(), "whole videos may be large"
    random = {"audio": sx.Audio(8_000, frames=80, sampling="random"), "video": sx.Video(frames=2, sampling="random")}
    for to in ("numpy", "torch"):
        batch = next(iter(sx.Loader(media, 1, decode=random, to=to)))
        page = batch.show()._repr_html_()
        assert "<svg" in page and "<img" in page and 'class="sx-failed"' not in page
