"""Features of images, audio and video: options, JSON form, fingerprint."""

from __future__ import annotations

import pickle
from typing import Annotated, Any

import numpy as np
import pytest

from shardex.errors import SchemaError
from shardex.schema import (
    Audio,
    Bytes,
    ClassLabel,
    Features,
    Image,
    Media,
    Optional,
    Sequence,
    Struct,
    Video,
    feature_of,
)


@pytest.mark.parametrize(
    ("feature", "plain"),
    [
        (Image(), {"kind": "image"}),
        (Image("L", (28, 32)), {"kind": "image", "mode": "L", "size": [28, 32]}),
        (Image(None, format="jpg", decode=False), {"kind": "image", "mode": None, "format": "jpeg", "decode": False}),
        (Audio(), {"kind": "audio"}),
        (Audio(16000, mono=True), {"kind": "audio", "rate": 16000, "mono": True}),
        (Video(8, sampling="random"), {"kind": "video", "frames": 8, "sampling": "random"}),
        (Video(size=[2, 3], stride=4), {"kind": "video", "stride": 4, "size": [2, 3]}),
    ],
)
def test_json_form_has_the_options_that_are_not_the_default_and_reads_back(
    feature: Media, plain: dict[str, Any]
) -> None:
    features = Features({"x": feature, "many": Sequence(feature), "part": Struct({"y": Optional(feature)})})
    assert feature.to_json() == plain
    assert Features.from_json(features.to_json()) == features
    assert pickle.loads(pickle.dumps(features)) == features


def test_options_are_part_of_the_fingerprint() -> None:
    several = [Image(), Image("L"), Image(size=(1, 1)), Image(format="webp"), Image(decode=False), Audio(), Bytes()]
    assert len({Features({"x": one}).fingerprint for one in several}) == len(several)
    assert Features({"x": Image()}).fingerprint == "7b0254e3ae83b24f"


def test_repr_and_text_show_what_is_not_the_default() -> None:
    assert repr(Image()) == "Image()"
    assert repr(Image("L", (28, 28), decode=False)) == "Image(mode='L', size=(28, 28), decode=False)"
    assert str(Features({"x": Optional(Audio(8000))})) == "x audio(rate=8000) or none"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Image("CMYK"),
        lambda: Image(size=224),  # type: ignore[arg-type]
        lambda: Image(size=(0, 3)),
        lambda: Image(size=(1, 2, 3)),
        lambda: Image(format="heic"),
        lambda: Image(format=["png"]),  # type: ignore[arg-type]
        lambda: Image(decode="pil"),  # type: ignore[arg-type]
        lambda: Audio(0),
        lambda: Audio(16000.0),  # type: ignore[arg-type]
        lambda: Audio(mono=1),  # type: ignore[arg-type]
        lambda: Audio(format="png"),
        lambda: Video(frames=-1),
        lambda: Video(stride=0),
        lambda: Video(stride=None),  # type: ignore[arg-type]
        lambda: Video(sampling="best"),
    ],
)
def test_wrong_options_raise(make: Any) -> None:
    with pytest.raises(SchemaError, match=r"^expected .*, got "):
        make()


def test_annotations_and_classes_of_features() -> None:
    assert feature_of(Annotated[np.ndarray, Image("L")]) == Image("L")
    assert feature_of(Annotated[np.ndarray | None, Image()]) == Optional(Image())
    assert feature_of(list[Annotated[bytes, Image()]]) == Sequence(Image())
    assert feature_of(Image) == Image()
    assert feature_of(pytest.importorskip("PIL.Image").Image) == Image()
    with pytest.raises(SchemaError, match=r"expected a feature such as ClassLabel\(\.\.\.\), got the class ClassLabel"):
        feature_of(ClassLabel)
