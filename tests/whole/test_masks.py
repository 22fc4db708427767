"""Masks for segmentation: class numbers stay as they are, and are cut like their images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import shardex as sx
from shardex.errors import FormatError, SchemaError

CLASSES = np.zeros((40, 60), np.uint8)
CLASSES[10:30, 20:50], CLASSES[0] = 7, 255
IDS = CLASSES.astype(np.uint16) * 200


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def palette(numbers: NDArray[Any]) -> bytes:
    """As PASCAL VOC has them: indices of a palette of colours."""
    image = Image.fromarray(numbers).convert("P")
    image.putpalette([value for k in range(256) for value in (255 - k, k // 2, k)])
    image.putdata(numbers.ravel().tolist())
    return png(image)


@pytest.mark.parametrize(
    ("stored", "mode", "expected"),
    [
        (palette(CLASSES), "P", CLASSES),
        (png(Image.fromarray(CLASSES)), "P", CLASSES),
        (png(Image.fromarray(CLASSES > 0)), "P", (CLASSES > 0).astype(np.uint8)),
        (png(Image.fromarray(IDS)), "I;16", IDS),
        (palette(CLASSES), "I;16", CLASSES.astype(np.uint16)),
        (CLASSES, "P", CLASSES),
        (CLASSES > 0, "P", (CLASSES > 0).astype(np.uint8)),
        (IDS, "I;16", IDS),
    ],
)
def test_numbers_are_kept_and_never_interpolated(stored: Any, mode: str, expected: Any, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"seg": stored}] * 4, {"seg": sx.Image(mode)})
    assert ds[0].seg.dtype == expected.dtype and np.array_equal(ds[0].seg[..., 0], expected)
    half = ds.decode(seg=sx.media.Resize((20, 30)))[0].seg[..., 0]
    pil = Image.fromarray(expected).resize((30, 20), Image.Resampling.NEAREST)
    assert np.array_equal(half, np.asarray(pil))
    assert {*np.unique(sx.write(tmp_path / "s", ds, {"seg": sx.Image(mode, (7, 9))})[0].seg)} <= {*np.unique(expected)}
    steps = {"seg": [sx.media.RandomResizedCrop(16), sx.media.Flip(), sx.media.Pad(20)]}
    for batch in sx.Loader(ds, 2, decode=steps, seed=0):
        assert batch.seg.shape == (2, 20, 20, 1) and batch.seg.dtype == expected.dtype
        assert {*np.unique(batch.seg)} <= {*np.unique(expected)}
    assert len(ds[:0].read(slice(None))["seg"]) == 0


@pytest.mark.parametrize("steps", [[sx.media.RandomResizedCrop(24), sx.media.Flip()], [sx.media.RandomCrop(32)]])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_and_its_mask_are_cut_alike(steps: Any, workers: int, tmp_path: Path) -> None:
    """The chances of steps depend on the sample: fields with the same steps and sizes show the same part."""
    where = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60)
    pixels = np.stack([where >> 8, where & 255, where & 0], axis=-1).astype(np.uint8)
    schema = {"image": sx.Image("I;16"), "seg": sx.Image("I;16"), "photo": sx.Image()}
    ds = sx.write(tmp_path / "d", [{"image": where, "seg": where, "photo": pixels}] * 6, schema)
    decode = dict.fromkeys(schema, steps)
    with sx.Loader(ds, 3, shuffle=True, decode=decode, seed=1, workers=workers) as loader:
        batches = list(loader)
    cuts = {batch.image[k].tobytes() for batch in batches for k in range(3)}
    assert len(cuts) == 6 and all(np.array_equal(batch.image, batch.seg) for batch in batches)
    if len(steps) == 1:  # only cut, so that the colours are exact too
        found = [batch.photo[..., 0].astype(np.uint16) << 8 | batch.photo[..., 1] for batch in batches]
        assert all(np.array_equal(one, batch.seg[..., 0]) for one, batch in zip(found, batches, strict=True))


def test_what_is_no_mask_raises(tmp_path: Path) -> None:
    colours = png(Image.fromarray(np.zeros((4, 4, 3), np.uint8)))
    for number, (stored, mode, message) in enumerate(
        [
            (colours, "P", "expected numbers for mode 'P', a palette or grey, found pixels of mode 'RGB'"),
            (colours, "I;16", "found pixels of mode 'RGB'"),
            (png(Image.fromarray(IDS)), "P", r"from 0 to 255 for mode 'P', found 51000 \(mode=\"I;16\" keeps"),
        ]
    ):
        ds = sx.write(tmp_path / str(number), [{"seg": stored}], {"seg": sx.Image(mode)})
        with pytest.raises(FormatError, match=message):
            ds[0]
    for array, message in (
        (IDS, "expected uint8 for mode 'P', got uint16"),
        (np.zeros((4, 4, 3), "u1"), "at most 1 ch"),
    ):
        with pytest.raises(SchemaError, match=message):
            sx.write(tmp_path / "x", [{"seg": array}], {"seg": sx.Image("P")})
    with pytest.raises(SchemaError, match="expected one of the formats png, tiff, bmp"):
        sx.Image("P", format="jpeg")
    assert sx.Image("P").join(sx.Image("L")) is None


def test_modes_of_masks_are_kept_by_hugging_face(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"seg": palette(CLASSES)}], {"seg": sx.Image("P")})
    hub = ds.to_huggingface()
    assert np.array_equal(np.asarray(hub[0]["seg"]), CLASSES)
    assert sx.open(hub).features == ds.features
