"""Features of images, audio and video: options, JSON form, fingerprint, and the bytes that are stored for values."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import pytest

from shardex.errors import MissingExtraError, SchemaError
from shardex.features import (
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
    conversions,
    infer,
    kinds,
)
from shardex.media import (
    audio_info,
    decode_audio,
    decode_frames,
    decode_image,
    encode_audio,
    encode_image,
    encode_video,
    image_info,
    video_info,
)

SOUND = encode_audio(np.arange(100, dtype=np.int16), "wav", rate=8000)
FILM = encode_video(np.zeros((3, 16, 16, 3), np.uint8))


@pytest.mark.parametrize(
    ("feature", "plain"),
    [
        (Image(), {"kind": "image"}),
        (Image("L", (28, 32)), {"kind": "image", "mode": "L", "size": [28, 32]}),
        (Image(None, format="jpg", decode=False), {"kind": "image", "mode": None, "format": "jpeg", "decode": False}),
        (Audio(), {"kind": "audio"}),
        (Audio(16000, mono=True), {"kind": "audio", "rate": 16000, "mono": True}),
        (Video(8, sampling="random"), {"kind": "video", "frames": 8, "sampling": "random"}),
        (Video(8, sampling="ends"), {"kind": "video", "frames": 8, "sampling": "ends"}),
        (Video(size=[2, 3], stride=4), {"kind": "video", "stride": 4, "size": [2, 3]}),
        (Audio(frames=9, sampling="random"), {"kind": "audio", "frames": 9, "sampling": "random"}),
        (Audio(frames=9, begin=1, pad="loop"), {"kind": "audio", "frames": 9, "begin": 1, "pad": "loop"}),
        (
            Video(sampling="start", begin=2, pad="loop"),
            {"kind": "video", "sampling": "start", "begin": 2, "pad": "loop"},
        ),
        (Video(format="mkv", rate=29.97), {"kind": "video", "format": "mkv", "rate": 29.97}),
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
        lambda: Video(frames=4, sampling="ends", stride=2),
        lambda: Video(frames=4, stride=2),
        lambda: Video(frames=4, sampling="center", begin=2),
        lambda: Video(frames=4, begin=2),
        lambda: Video(begin=-1),
        lambda: Video(pad="zero"),
        lambda: Video(format="gif"),
        lambda: Video(rate=0),
        lambda: Audio(frames=0),
        lambda: Audio(sampling="uniform"),
        lambda: Audio(frames=4, sampling="center", begin=2),
        lambda: Audio(pad="repeat"),
    ],
)
def test_wrong_options_raise(make: Any) -> None:
    with pytest.raises(SchemaError, match=r"^expected .*, got "):
        make()


def test_annotations_and_classes_of_features() -> None:
    assert kinds.feature_of(Annotated[np.ndarray, Image("L")]) == Image("L")
    assert kinds.feature_of(Annotated[np.ndarray | None, Image()]) == Optional(Image())
    assert kinds.feature_of(list[Annotated[bytes, Image()]]) == Sequence(Image())
    assert kinds.feature_of(Image) == Image()
    assert kinds.feature_of(PIL.Image.Image) == Image()
    with pytest.raises(SchemaError, match=r"expected a feature such as ClassLabel\(\.\.\.\), got the class ClassLabel"):
        kinds.feature_of(ClassLabel)


# -- values ---------------------------------------------------------------------------------------------------

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)
COLOUR = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
PNG, JPEG = encode_image(COLOUR), encode_image(COLOUR, "jpeg")


def test_bytes_and_files_are_stored_untouched(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(JPEG)
    given = [JPEG, bytearray(JPEG), memoryview(JPEG), tmp_path / "x.jpg", str(tmp_path / "x.jpg")]
    given += [{"bytes": JPEG, "path": "y.jpg"}, {"bytes": None, "path": str(tmp_path / "x.jpg")}]
    assert [Image().fit(one) for one in given] == [JPEG] * len(given)
    with PIL.Image.open(tmp_path / "x.jpg") as image:
        assert Image().fit(image) == JPEG
    assert Image("L").fit_column([JPEG, PNG], str, "x", stored=False) == [JPEG, PNG]
    assert Optional(Image()).fit(None) is None
    assert Sequence(Image()).fit([JPEG, COLOUR]) == [JPEG, PNG]
    assert Struct({"a": Image(), "b": Optional(Image())}).fit({"a": COLOUR}) == {"a": PNG, "b": None}


@pytest.mark.parametrize(("feature", "data"), [(Audio(), SOUND), (Video(), FILM)])
def test_bytes_of_audio_and_video_are_stored_untouched(feature: Media, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    given = [data, memoryview(data), tmp_path / "x", {"bytes": data, "path": "y"}, {"path": tmp_path / "x"}]
    assert [feature.fit(one) for one in given] == [data] * len(given)
    assert feature.fit(b"damaged", stored=True) == b"damaged"


def test_arrays_of_audio_and_video_are_encoded() -> None:
    wave = np.array([[0.5, -0.25]] * 10, np.float32)
    for value in (wave, (wave, 8000), {"array": wave, "sampling_rate": 8000}):
        data = Audio(16000, format="wav").fit(value)
        assert np.array_equal(decode_audio(data), wave)
        assert audio_info(data).rate == (16000 if value is wave else 8000)
    frames = np.arange(240, dtype=np.uint8).reshape(2, 5, 8, 3)
    data = Video(format="mkv", rate=10).fit(frames)
    assert np.array_equal(decode_frames(data), frames) and video_info(data).rate == 10


@pytest.mark.parametrize(("package", "feature", "data"), [("soundfile", Audio(), SOUND), ("av", Video(), FILM)])
def test_bytes_need_no_extra(monkeypatch: pytest.MonkeyPatch, package: str, feature: Media, data: bytes) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert feature.fit(data) == data
    with pytest.raises(SchemaError, match="cut off"):
        feature.fit(data[:-1])
    with pytest.raises(MissingExtraError, match="pip install"):
        feature.fit(np.zeros((1, 8, 8, 3), np.uint8) if package == "av" else (np.zeros(9, np.int16), 8000))


def test_arrays_are_encoded_in_the_format_of_the_feature() -> None:
    assert np.array_equal(decode_image(Image().fit(COLOUR)), COLOUR)
    assert np.array_equal(decode_image(Image("L").fit(GREY), "L")[..., 0], GREY)
    assert image_info(Image(format="webp").fit(COLOUR)).format == "webp"
    assert image_info(Image().fit(PIL.Image.fromarray(COLOUR))).format == "png"
    deep = GREY.astype(np.uint16) << 8
    assert np.array_equal(decode_image(Image(None).fit(deep), None)[..., 0], deep)


@pytest.mark.parametrize(
    ("value", "feature", "message"),
    [
        (b"", Image(), "expected an image file.*no bytes"),
        (b"no image", Image(), "expected an image file"),
        (PNG[:-40], Image(), "expected"),
        (JPEG[: len(JPEG) // 2], Image(), "expected"),
        ("no/such.jpg", Image(), "No such file"),
        (COLOUR, Image("L"), "at most 1 channels"),
        (COLOUR.astype(np.float32), Image(), "uint8"),
        (COLOUR[0, 0], Image(), "shape"),
        (GREY.astype(np.uint16), Image(), "mode='I;16' keeps"),
        (7, Image(), "got int"),
        (None, Image(), "expected image, got none"),
        ({"label": 3}, Image(), '"bytes" or a "path"'),
        (b"", Audio(), "expected an audio file"),
        (FILM, Audio(), "of the kind mp4"),
        (np.zeros(5, np.float32), Audio(), "expected a rate"),
        (np.full(5, 2.0), Audio(8000), "from -1 to 1"),
        (7, Audio(8000), "got int64"),
        (SOUND, Video(), "of the kind wav"),
        (FILM[:-9], Video(), "cut off"),
        (np.zeros((1, 8, 8, 3)), Video(), "expected a video as uint8"),
        (None, Video(), "expected video, got none"),
        ("no/such.mp4", Video(), "No such file"),
    ],
)
def test_values_that_do_not_fit_raise(value: Any, feature: Media, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        feature.fit(value)
    features = Features({"x": feature})
    with pytest.raises(SchemaError, match="sample 7, field x"):
        conversions.fit_sample({"x": value}, features, 7)


def test_stored_values_are_not_checked_and_paths_in_data_are_not_read() -> None:
    assert Image().fit(b"damaged", stored=True) == b"damaged"
    assert Image().fit(COLOUR, stored=True) is COLOUR
    for path in ("/etc/hostname", {"bytes": None, "path": "/etc/hostname"}, None):
        with pytest.raises(SchemaError, match="expected the bytes of image"):
            Image().fit(path, stored=True)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [(["RGB"], "RGB"), (["L", "1"], "L"), (["L", "RGB"], "RGB"), (["RGBA", "P"], "RGBA"), (["I;16", "RGB"], None)],
)
def test_images_of_pil_are_inferred_with_a_mode_that_keeps_their_pixels(modes: list[str], expected: str | None) -> None:
    images = [PIL.Image.new(mode, (2, 2)) for mode in modes]
    assert infer([{"x": one} for one in images]) == Features({"x": Image(expected)})
    assert infer([{"x": images}]) == Features({"x": Sequence(Image(expected))})
    assert infer([{"x": images[0]}, {"x": None}])["x"] == Optional(infer([{"x": images[0]}])["x"])
