"""Fields of media from the values that users write to the bytes in files: every format, edits, classes of samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import SchemaError
from shardex.features import Audio, ClassLabel, Features, Image, Optional, Sequence, Struct
from shardex.media import encode_audio, encode_image

PIXELS = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
PNG, JPEG = encode_image(PIXELS), encode_image(PIXELS, "jpeg")
GREY = encode_image(PIXELS[..., 0])
WAV = encode_audio(np.zeros((8, 1), np.float32), "wav", rate=8000)
SCHEMA = {
    "image": Image(decode=False),
    "label": ClassLabel(num_classes=3),
    "thumb": Optional(Image("L", (2, 2), decode=False)),
    "many": Sequence(Image(decode=False)),
    "part": Struct({"image": Image(decode=False), "sound": Optional(Audio(8000, decode=False))}),
}


def given(folder: Path) -> list[dict[str, Any]]:
    """Return samples in the forms that users have."""
    (folder / "x.jpg").write_bytes(JPEG)
    return [
        {"image": PIXELS, "label": 0, "thumb": None, "many": [PIXELS, JPEG], "part": {"image": PNG}},
        {"image": folder / "x.jpg", "label": 1, "thumb": PIXELS[..., 0], "many": [], "part": {"image": PIXELS}},
        {"image": PIL.Image.fromarray(PIXELS), "label": 2, "many": [JPEG], "part": {"image": JPEG, "sound": WAV}},
    ]


EXPECTED = [
    {"image": PNG, "label": 0, "thumb": None, "many": [PNG, JPEG], "part": {"image": PNG, "sound": None}},
    {"image": JPEG, "label": 1, "thumb": GREY, "many": [], "part": {"image": PNG, "sound": None}},
    {"image": PNG, "label": 2, "thumb": None, "many": [JPEG], "part": {"image": JPEG, "sound": WAV}},
]


def plain(ds: sx.Dataset[Any]) -> list[dict[str, Any]]:
    return [dict(sample) for sample in ds]


@pytest.mark.parametrize("format", ["arrow", "parquet", "bins"])
def test_values_of_all_forms_are_stored_as_bytes_with_their_features(format: str, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", given(tmp_path), SCHEMA, format=format)
    assert ds.features == Features.of(SCHEMA) and plain(ds) == EXPECTED
    columns = ds.read([2, 0])
    assert columns["image"] == [PNG, PNG] and columns["thumb"] == [None, None]
    again = sx.write(tmp_path / "again", sx.open(tmp_path / "d"), format=format)
    assert again.features == ds.features and plain(again) == EXPECTED


def test_a_tar_holds_the_bytes(tmp_path: Path) -> None:
    samples = [{"jpg": JPEG, "png": PIXELS}, {"jpg": JPEG, "png": None}]
    schema = {"jpg": Image(decode=False), "png": Optional(Image(decode=False))}
    sx.write(tmp_path / "d", samples, schema, format="tar")
    ds = sx.open(tmp_path / "d", schema=schema)
    assert [(one["jpg"], one["png"]) for one in ds] == [(JPEG, PNG), (JPEG, None)]


@pytest.mark.parametrize(("format", "message"), [("jsonl", "JSON has text but no bytes"), ("csv", "choose another")])
def test_formats_without_bytes_refuse_media(format: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=rf"field image.*{message}|{message}.*field image|{message}"):
        sx.write(tmp_path / "d", [{"image": PNG}], {"image": Image()}, format=format)


@pytest.mark.parametrize("format", ["arrow", "tar", "bins", "parquet"])
@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"image": b"broken"}, "sample 3, field image"),
        ({"image": PNG[:-40]}, "sample 3, field image"),
        ({"image": PIXELS.astype(np.float32)}, "sample 3, field image"),
        ({"image": PIXELS[None]}, "sample 3, field image"),
        ({"label": 3}, "sample 3, field label"),
        ({"thumb": PIXELS}, "sample 3, field thumb"),
        ({"image": None}, "sample 3, field image"),
    ],
)
def test_wrong_values_raise_when_they_are_written(
    format: str, wrong: dict[str, Any], place: str, tmp_path: Path
) -> None:
    schema = {name: SCHEMA[name] for name in ("image", "label", "thumb")}
    right = {"image": PIXELS, "label": 0, "thumb": None}
    with sx.create(tmp_path / "d", schema, format=format) as out:
        for _ in range(3):
            out.append(right)
        with pytest.raises(SchemaError, match=f"expected .*{place}"):
            out.append({**right, **wrong})
    with pytest.raises(SchemaError, match=f"expected .*{place}"):
        sx.write(tmp_path / "e", [right] * 3 + [{**right, **wrong}], schema, format=format)
    assert len(sx.open(tmp_path / "d")) == 3 and not (tmp_path / "e").exists()


def test_columns_are_checked_too(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", {"image": Image(decode=False)}) as out:
        out.extend({"image": [PIXELS, JPEG]})
        with pytest.raises(SchemaError, match=r"expected an image file.*sample 3, field image"):
            out.extend({"image": [PNG, b"broken"]})
        with pytest.raises(SchemaError, match=r"expected an image file.*sample 3, field image"):
            out.extend({"image": one} for one in (PNG, b"broken"))
    assert sx.open(tmp_path / "d")["image"] == [PNG, JPEG, PNG]  # of samples those before the wrong one


def test_edits_take_values_of_all_forms(tmp_path: Path) -> None:
    samples = given(tmp_path)
    sx.write(tmp_path / "d", samples, SCHEMA)
    with sx.edit(tmp_path / "d") as edit:
        edit.update(0, image=tmp_path / "x.jpg", many=[PIXELS])
        edit.delete([1])
    with sx.edit(tmp_path / "d") as edit:
        edit.add_field("given", Image("L", decode=False), [PIXELS[..., 0], JPEG])
        edit.add_field("pair", Struct({"image": Image(decode=False), "n": int}), [{"image": PIXELS, "n": 1}] * 2)
        edit.add_field("made", Image(decode=False), lambda sample: PIXELS)
        with pytest.raises(SchemaError, match=r"expected an image file.*sample 1, field wrong"):
            edit.add_field("wrong", Image(), [PNG, b"broken"])
        with pytest.raises(SchemaError, match=r"expected an image file.*sample 0, field image"):
            edit.update(0, image=b"broken")
        edit.append(**samples[1], given=PNG, pair={"image": PNG, "n": 2}, made=PIXELS)
    expected = [
        {**EXPECTED[0], "image": JPEG, "many": [PNG], "given": GREY, "pair": {"image": PNG, "n": 1}, "made": PNG},
        {**EXPECTED[2], "given": JPEG, "pair": {"image": PNG, "n": 1}, "made": PNG},
        {**EXPECTED[1], "given": PNG, "pair": {"image": PNG, "n": 2}, "made": PNG},
    ]
    assert plain(sx.open(tmp_path / "d")) == expected
    sx.compact(tmp_path / "d")
    assert plain(sx.open(tmp_path / "d")) == expected and not list(sx.verify(tmp_path / "d"))


def test_media_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="expected a key of whole numbers, text or bytes, got image"):
        sx.create(tmp_path / "d", {"image": Image()}, key="image")


def test_plain_arrow_reads_what_is_written(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"image": JPEG, "label": 2}], {"image": Image(), "label": ClassLabel(num_classes=3)})
    (file,) = (tmp_path / "d").glob("**/*.arrow")
    table = pa.ipc.open_file(file).read_all()
    assert table.to_pylist() == [{"image": JPEG, "label": 2}] and table.schema.field("image").type == pa.large_binary()


def test_images_of_pil_are_written_without_a_schema(tmp_path: Path) -> None:
    samples = [{"image": PIL.Image.fromarray(PIXELS)}, {"image": PIL.Image.fromarray(PIXELS[..., 0])}]
    ds = sx.write(tmp_path / "d", samples)
    assert ds.features == Features({"image": Image()})
    assert ds.to_arrow().column("image").to_pylist() == [PNG, GREY]
    for opened in (sx.open(samples), sx.open({"image": [one["image"] for one in samples]})):
        assert opened.features == ds.features and opened.to_arrow().column("image").to_pylist() == [PNG, GREY]


# -- classes of samples -------------------------------------------------------------------------------------------


@sx.packable
class Picture:
    image: Annotated[np.ndarray, Image(decode=False)]
    label: Annotated[int, ClassLabel(num_classes=3)] = 0
    many: list[Annotated[np.ndarray, Image(decode=False)]] | None = None
    thumb: Annotated[np.ndarray | None, Image("L", decode=False)] = None


@dataclass
class Encoded:
    image: bytes


@dataclass
class Words:
    image: str


def test_classes_of_samples_have_images(tmp_path: Path) -> None:
    make: Any = Picture  # which takes bytes too
    with sx.create(tmp_path / "d", Picture) as out:
        out.append(make(PIXELS, 1, [PIXELS, JPEG]))
        out.append(make(JPEG, thumb=PIXELS[..., 0]))
        out.append(image=PIXELS)
        with pytest.raises(SchemaError, match=r"expected an image file.*sample 3, field image"):
            out.append(make(b"broken"))
    ds: Any = sx.open(tmp_path / "d", Picture)
    assert [one.image for one in ds] == [PNG, JPEG, PNG]
    assert [one.many for one in ds] == [[PNG, JPEG], None, None]
    assert [one.thumb for one in ds] == [None, GREY, None]
    assert sx.open(tmp_path / "d").as_type(Picture)[0].image == ds.as_type(Encoded)[0].image == PNG
    with pytest.raises(SchemaError, match=r"field image is image\(decode=False\), not text"):
        sx.open(tmp_path / "d").as_type(Words)


@dataclass
class Arrays:
    image: NDArray[np.uint8]
    many: list[np.ndarray]
    thumb: np.ndarray | None = None


@dataclass
class Floats:
    image: NDArray[np.float32]


def test_classes_have_images_as_arrays(tmp_path: Path) -> None:
    schema = {"image": Image(), "many": Sequence(Image()), "thumb": Optional(Image("L")), "label": int}
    sample = {"image": PIXELS, "many": [PIXELS], "thumb": None, "label": 3}
    sx.write(tmp_path / "d", [sample, {**sample, "thumb": PIXELS[..., 0]}], schema)
    views: list[Any] = [sx.open(tmp_path / "d", Arrays), sx.open(tmp_path / "d").as_type(Arrays)]
    for ds in views:
        assert np.array_equal(ds[0].image, PIXELS) and np.array_equal(ds[1].many[0], PIXELS)
        assert ds[0].thumb is None and np.array_equal(ds[1].thumb[..., 0], PIXELS[..., 0])
        assert np.array_equal(ds.read([1, 0])["image"], [PIXELS, PIXELS])
        assert ds.features == Features.of({name: schema[name] for name in ("image", "many", "thumb")})
    with pytest.raises(SchemaError, match=r"field image is image, not float32\[\.\.\.\]"):
        sx.open(tmp_path / "d", Floats)


def test_an_instance_keeps_the_image_that_it_was_given() -> None:
    kind: Any = Picture
    picture = kind.from_data({"image": PIXELS, "label": 2})
    assert picture.image is PIXELS
    assert kind.from_bytes(picture.packed).image == PNG


# -- tensors ------------------------------------------------------------------------------------------------------


def test_tensors_are_written_with_channels_first(tmp_path: Path) -> None:
    import torch

    tensor = torch.from_numpy(PIXELS.copy()).permute(2, 0, 1)
    samples = [{"image": tensor}, {"image": tensor[0]}, {"image": tensor[:1]}]
    ds = sx.write(tmp_path / "d", samples, {"image": Image(decode=False)})
    assert ds["image"] == [PNG, GREY, GREY]
    decoded = sx.write(tmp_path / "e", samples, {"image": Image()}).decode("torch")
    assert torch.equal(decoded[0]["image"], tensor)
    flipped = decoded.map(lambda sample: {"image": sample["image"].flip(-1)}, schema={"image": Image()})
    again: Any = sx.write(tmp_path / "f", flipped)
    assert np.array_equal(again[0]["image"], PIXELS[:, ::-1])
    sound = torch.linspace(-0.5, 0.5, 16).reshape(2, 8)
    heard: Any = sx.write(tmp_path / "s", [{"sound": sound}], {"sound": Audio(8000, format="wav")})
    assert torch.allclose(heard.decode("torch")[0]["sound"], sound, atol=1e-4)
    with pytest.raises(SchemaError, match=r"expected a tensor .*channels first.*float32.*sample 0, field image"):
        sx.write(tmp_path / "g", [{"image": tensor.float()}], {"image": Image()})
    with pytest.raises(SchemaError, match=r"expected a tensor .*channels first.*sample 0, field image"):
        sx.write(tmp_path / "g", [{"image": torch.zeros(8, 9, 3, dtype=torch.uint8)}], {"image": Image()})
