"""Media are decoded when they are read, in the form that was chosen; whatever copies them keeps the stored bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import pytest
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.kernel import Masked, Ragged
from shardex.layers.map_rows import unchanged
from shardex.layers.media_rows import MediaRows

SCHEMA = {"image": sx.Image(), "label": int}


def jpeg(seed: int, height: int = 8, width: int = 12) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    found: bytes = simplejpeg.encode_jpeg(pixels)
    return found


JPEGS = [jpeg(k) for k in range(10)]
PIXELS = [simplejpeg.decode_jpeg(one) for one in JPEGS]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("media") / "jpegs"
    sx.write(path, [{"image": data, "label": k} for k, data in enumerate(JPEGS)], SCHEMA)
    return path


@pytest.fixture
def ds(path: Path) -> Dataset:
    return sx.open(path)


def stored_images(data: Dataset[Any], name: str = "image") -> list[bytes]:
    found: list[bytes] = data.stored[name]
    return found


# -- reading ------------------------------------------------------------------------------------------------------


def test_every_way_to_read_gives_the_same_pixels(ds: Dataset) -> None:
    np.testing.assert_array_equal(ds[3].image, PIXELS[3])
    np.testing.assert_array_equal(ds.read([3, 1])["image"], [PIXELS[3], PIXELS[1]])
    np.testing.assert_array_equal(ds["image"], PIXELS)
    for k, sample in enumerate(ds[::-1]):
        np.testing.assert_array_equal(sample.image, PIXELS[9 - k])
    np.testing.assert_array_equal(np.concatenate([batch.image for batch in ds.ordered(4)]), PIXELS)
    np.testing.assert_array_equal(ds.select("image").read([2])["image"], [PIXELS[2]])
    assert dict(ds.features) == {"image": sx.Image(), "label": sx.Value("int64")}
    assert not ds.in_python


def test_fields_without_media_are_read_without_decoding(tmp_path: Path) -> None:
    data = broken(tmp_path)
    assert data.select("label").read([0, 1, 2])["label"].tolist() == [0, 1, 2]
    assert data["label"].tolist() == [0, 1, 2]
    assert len(data.where("label > 0")) == 2
    assert data.sql("SELECT octet_length(image) AS n FROM ds ORDER BY n")["n"].to_pylist()[0] < 100


def test_data_without_media_has_no_layer(tmp_path: Path) -> None:
    plain = sx.write(tmp_path / "d", [{"x": 1}])
    assert not isinstance(plain.rows, MediaRows) and plain.stored is plain
    raw = sx.write(tmp_path / "e", [{"image": JPEGS[0]}], {"image": sx.Image(decode=False)})
    assert raw[0].image == JPEGS[0] and not isinstance(raw.rows, MediaRows)
    np.testing.assert_array_equal(raw.decode("numpy")[0].image, PIXELS[0])


def test_different_sizes_are_ragged(tmp_path: Path) -> None:
    sizes = [(8, 12), (5, 7), (8, 12)]
    data = sx.write(tmp_path / "d", [{"image": jpeg(k, *size)} for k, size in enumerate(sizes)], {"image": sx.Image()})
    column = data.read([0, 1, 2])["image"]
    assert isinstance(column, Ragged) and column.shapes is not None
    assert column.shapes.tolist() == [[8, 12, 3], [5, 7, 3], [8, 12, 3]]
    assert [sample.image.shape for sample in data] == [(8, 12, 3), (5, 7, 3), (8, 12, 3)]
    assert data.read([0, 2])["image"].shape == (2, 8, 12, 3)


def test_missing_images_stay_missing(tmp_path: Path) -> None:
    schema = {"image": sx.Optional(sx.Image()), "label": int}
    samples = [{"image": None if k % 2 else data, "label": k} for k, data in enumerate(JPEGS)]
    data = sx.write(tmp_path / "d", samples, schema)
    assert data[1].image is None and data[2].image.shape == (8, 12, 3)
    column = data.read([1, 2, 3, 4])["image"]
    assert isinstance(column, Masked) and column.mask.tolist() == [False, True, False, True]
    np.testing.assert_array_equal(column.values[1], PIXELS[2])
    assert data.read([1, 3])["image"] == [None, None]
    assert [sample.image is None for sample in data] == [k % 2 == 1 for k in range(10)]
    assert stored_images(sx.write(tmp_path / "e", data)) == [one["image"] for one in samples]


def test_columns_of_missing_images_have_one_form(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"image": None}, {"image": JPEGS[1]}], {"image": sx.Optional(sx.Image())})
    steps = ds.decode(image=[sx.media.Resize((4, 4))])
    mapped = ds.map(lambda sample: {"image": sample.image}, schema={"image": sx.Optional(sx.Image())})
    for view, shape in ((steps, (1, 4, 4, 3)), (ds, (1, 0, 0, 3)), (mapped, (1, 0, 0, 3))):
        column = view.read([0])["image"]
        assert isinstance(column, Masked) and column.mask.tolist() == [False] and column.column.shape == shape
        assert column.to_list() == [None] and view[0].image is None
        assert view.read([0, 1])["image"].mask.tolist() == [False, True]


def test_images_in_lists_and_structs(tmp_path: Path) -> None:
    schema = {"many": sx.Sequence(sx.Image()), "pair": {"left": sx.Image(), "name": str}}
    data = sx.write(tmp_path / "d", [{"many": JPEGS[:2], "pair": {"left": JPEGS[2], "name": "x"}}], schema)
    np.testing.assert_array_equal(data[0].many, PIXELS[:2])
    np.testing.assert_array_equal(data.read([0])["pair"][0]["left"], PIXELS[2])
    assert data[0].pair["name"] == "x"
    copy = sx.write(tmp_path / "e", data)
    assert copy.stored[0].many == JPEGS[:2] and copy.stored[0].pair["left"] == JPEGS[2]
    assert data.decode(False)[0].many == JPEGS[:2]


def broken(folder: Path) -> Dataset:
    """Three samples, of which the second has bytes that are no image, as a file may have after damage."""
    samples = [{"jpg": data, "cls": k} for k, data in enumerate([JPEGS[0], b"\xff\xd8\xff no image", JPEGS[2]])]
    sx.write(folder / "broken", samples, {"jpg": bytes, "cls": int}, format="tar")
    return sx.open(folder / "broken").rename(jpg="image", cls="label").drop("__key__")


def test_errors_name_sample_file_and_field(tmp_path: Path) -> None:
    data = broken(tmp_path)
    reads: list[Callable[[], Any]] = [lambda: data[1], lambda: data.read([2, 0, 1]), lambda: list(data)]
    for read in reads:
        with pytest.raises(FormatError, match=r"at sample 1 of .*shard-000000.tar, field image; ds.decode\(False\)"):
            read()
    assert data.decode(False)[1].image == b"\xff\xd8\xff no image"
    np.testing.assert_array_equal(data.read([2, 0])["image"], [PIXELS[2], PIXELS[0]])


# -- forms --------------------------------------------------------------------------------------------------------


def test_forms(ds: Dataset) -> None:
    import torch

    tensor = ds.decode("torch")[1].image
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.movedim(0, -1).numpy(), PIXELS[1])
    picture = ds.decode(image="pil")[1].image
    assert isinstance(picture, PIL.Image.Image)
    np.testing.assert_array_equal(np.asarray(picture), PIXELS[1])
    assert all(isinstance(one, torch.Tensor) for one in ds.decode("torch").read([1, 2])["image"])
    for form in (False, "bytes"):
        assert ds.decode(form)[1].image == JPEGS[1] and ds.decode(form).read([1])["image"] == [JPEGS[1]]
        assert ds.decode(form).features["image"] == sx.Image(decode=False)
    np.testing.assert_array_equal(ds.decode(False).decode(True)[1].image, PIXELS[1])
    assert ds.decode()[1].image.shape == (8, 12, 3)


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    data = sx.write(tmp_path / "d", [{"image": np.zeros((4, 6), np.uint8)}], {"image": sx.Image("L")})
    assert data[0].image.shape == (4, 6, 1) and data.decode("torch")[0].image.shape == (1, 4, 6)
    assert data.decode("pil")[0].image.mode == "L"


def test_masks_are_images_of_pillow_with_their_palette(tmp_path: Path) -> None:
    coloured = PIL.Image.new("P", (6, 4), 2)
    coloured.putpalette([value for k in range(256) for value in (k, 255 - k, 7)])
    grey = PIL.Image.new("L", (6, 4), 2)
    data = sx.write(tmp_path / "d", [{"seg": coloured}, {"seg": grey}], {"seg": sx.Image(mode="P")})
    found = [one.seg for one in data.decode(seg=[sx.media.CenterCrop(3)]).decode("pil")]
    assert [(one.mode, one.size) for one in found] == [("P", (6, 4))] * 2
    assert (
        found[0].convert("RGB").getpixel((0, 0)) == (2, 253, 7) and found[1].convert("RGB").getpixel((0, 0)) == (2,) * 3
    )
    assert [one.getpixel((0, 0)) for one in found] == [2, 2]


def test_size_of_the_feature_and_steps(tmp_path: Path, ds: Dataset) -> None:
    assert ds.decode(image=[sx.media.Resize((4, 4))]).read([0, 1])["image"].shape == (2, 4, 4, 3)
    assert ds.decode(image=sx.media.CenterCrop(6))[0].image.shape == (6, 6, 3)
    assert ds.decode("torch", image=[sx.media.Resize((4, 4))])[0].image.shape == (3, 4, 4)
    small = sx.write(tmp_path / "d", ds, {"image": sx.Image(size=(6, 5)), "label": int})
    assert small[0].image.shape == (6, 5, 3) and stored_images(small) == JPEGS


def test_wrong_arguments(ds: Dataset) -> None:
    with pytest.raises(ArgumentError, match="did you mean 'image'"):
        ds.decode(imge=False)
    with pytest.raises(ArgumentError, match="forms 'numpy', 'torch', 'pil', 'bytes'"):
        ds.decode("tensor")
    with pytest.raises(ArgumentError, match="steps such as"):
        ds.decode(image=[3])
    with pytest.raises(ArgumentError, match="give it to the loader"):
        ds.decode(image=[sx.media.Flip()])
    with pytest.raises(ArgumentError, match="call decode before map"):
        ds.map(lambda sample: sample).decode(False)
    with pytest.raises(ArgumentError, match="a dataset with fields of media"):
        sx.open([{"x": 1}]).decode(x=False)


def test_fingerprint(path: Path, ds: Dataset) -> None:
    assert ds.fingerprint == ds.stored.fingerprint == sx.open(path).fingerprint
    small = ds.decode(image=[sx.media.Resize((4, 4))])
    assert small.fingerprint != ds.fingerprint and small.fingerprint != ds.decode(False).fingerprint
    assert small.fingerprint == sx.open(path).decode(image=[sx.media.Resize((4, 4))]).fingerprint


def test_pickle(ds: Dataset) -> None:
    for view in (ds, ds.decode(image=[sx.media.Resize((4, 4))]), ds.rename(image="x").map(lambda_of_label)):
        again = pickle.loads(pickle.dumps(view))
        np.testing.assert_array_equal(again[0][again.fields[0]], view[0][view.fields[0]])
        assert again.fingerprint == view.fingerprint


def lambda_of_label(sample: Any) -> dict[str, Any]:
    return {**sample, "label": sample.label + 1}


# -- views --------------------------------------------------------------------------------------------------------


@sx.packable
class Labelled:
    image: Annotated[NDArray[np.uint8], sx.Image()]
    label: int


def test_views_decode_once_and_keep_the_bytes(ds: Dataset) -> None:
    halves = ds[:4], ds[4:]
    views: list[tuple[Dataset[Any], str]] = [
        (ds.rename(image="x"), "x"),
        (sx.concat(*halves), "image"),
        (halves[0] + halves[1], "image"),
        (sx.mix(halves, [4, 6], length=10).sort("label"), "image"),
        (sx.join(ds.select("label"), ds.select("image")), "image"),
        (ds.as_type(Labelled), "image"),
        (sx.concat(*(half.as_type(Labelled) for half in halves)), "image"),
        (ds.rename(image="x").rename(x="y").select("y"), "y"),
    ]
    for view, name in views:
        assert isinstance(view.rows, MediaRows), view
        assert not isinstance(view.rows.below.stored, MediaRows)
        np.testing.assert_array_equal(view.read([9, 0])[name], [PIXELS[9], PIXELS[0]])
        np.testing.assert_array_equal(getattr(view[5], name), PIXELS[5])
        assert stored_images(view, name) == JPEGS, view
    typed = ds.as_type(Labelled)
    assert isinstance(typed[0], Labelled) and typed[0].label == 0 and "Labelled" in repr(typed)


def test_parts_that_are_decoded_in_different_ways(ds: Dataset) -> None:
    both = sx.concat(ds[:2], ds.decode("pil")[2:])
    assert isinstance(both[3].image, PIL.Image.Image) and isinstance(both[0].image, np.ndarray)
    assert stored_images(both) == JPEGS


def test_forms_survive_views(ds: Dataset) -> None:
    raw = ds.decode(False)
    assert raw.rename(image="x")[0].x == JPEGS[0]
    assert sx.concat(raw[:1], raw[1:])[1].image == JPEGS[1]
    assert raw.select("image").shuffle(0)[0].image in JPEGS


def test_concat_refuses_other_options(tmp_path: Path, ds: Dataset) -> None:
    grey = sx.write(tmp_path / "d", [{"image": JPEGS[0], "label": 0}], {"image": sx.Image("L"), "label": int})
    with pytest.raises(SchemaError, match="expected image"):
        sx.concat(ds, grey)
    other = sx.write(
        tmp_path / "e", [{"image": JPEGS[0], "label": 0}], {"image": sx.Image(format="jpeg"), "label": int}
    )
    assert len(sx.concat(ds, other)) == 11


# -- functions ------------------------------------------------------------------------------------------------------


def test_map_gets_decoded_images_and_keeps_their_feature(ds: Dataset) -> None:
    for batched in (False, True):
        view = ds.map(lambda one: {**one, "label": one.label + 1}, batched=batched)
        assert view.features["image"] == sx.Image()
        np.testing.assert_array_equal(view[3].image, PIXELS[3])
        np.testing.assert_array_equal(view.read([3, 4])["image"], PIXELS[3:5])
        assert stored_images(view) == JPEGS
        again = view.map(lambda one: {**one, "label": one.label + 1}, batched=batched)
        assert stored_images(again) == JPEGS and again[0].label == 2


def test_map_that_changes_images(ds: Dataset) -> None:
    view = ds.map(lambda sample: {"image": sample.image[::2], "label": sample.label}, schema=SCHEMA)
    np.testing.assert_array_equal(view[3].image, PIXELS[3][::2])
    np.testing.assert_array_equal(view.read([3, 4])["image"], [one[::2] for one in PIXELS[3:5]])
    assert view.stored[3].image[:4] == b"\x89PNG"
    made = sx.open([{"k": k} for k in range(3)]).map(lambda one: {"image": PIXELS[one.k]}, schema={"image": sx.Image()})
    assert made.to_arrow()["image"][1].as_py()[:4] == b"\x89PNG" and made.to_huggingface()[1]["image"].size == (12, 8)
    inferred = ds.map(lambda sample: {"image": sample.image[::2]})
    assert inferred.features["image"] == sx.Array("uint8", (4, 12, 3))


@pytest.mark.parametrize("decoding", [[sx.media.Resize((4, 4))], sx.Image("L"), sx.Image(size=(4, 4))])
@pytest.mark.parametrize("batched", [False, True])
def test_results_with_steps_or_other_options_are_stored_as_they_are(
    ds: Dataset, tmp_path: Path, decoding: Any, batched: Any
) -> None:
    small, result = ds.decode(image=decoding), {"image": sx.Image(None), "label": int}
    view = small.map(lambda one: {"image": one.image, "label": one.label}, schema=result, batched=batched)
    written = sx.write(tmp_path / "a", view)
    functions = sx.write(tmp_path / "b", small, result, transform=dict, batched=batched)
    again = view.map(dict, schema=result).rename(label="other")
    for found in (written, functions, sx.write(tmp_path / "c", again)):
        for k in range(10):
            np.testing.assert_array_equal(found[k].image, small[k].image)
    assert view.to_huggingface()[3]["image"].size[::-1] == small[3].image.shape[:2]
    shown = PIL.Image.open(io.BytesIO(view.to_arrow()["image"][3].as_py()))
    assert shown.size[::-1] == small[3].image.shape[:2]


def test_results_of_parts_with_other_steps_are_stored_as_they_are(ds: Dataset, tmp_path: Path) -> None:
    both = sx.concat([ds, ds.decode(image=[sx.media.Resize((4, 4))])]).rename(image="picture")
    view = both.map(lambda one: {"picture": one.picture}, schema={"picture": sx.Image()})
    for k, sample in enumerate(sx.write(tmp_path / "a", view)):
        np.testing.assert_array_equal(sample.picture, both[k].picture)
    assert sample.picture.shape == (4, 4, 3)


def test_results_with_the_options_of_the_decoding_keep_the_bytes(ds: Dataset, tmp_path: Path) -> None:
    grey = ds.decode(image=sx.Image("L"))
    assert stored_images(grey.map(relabelled, schema={"image": sx.Image("L", format="webp"), "label": int})) == JPEGS
    steps = ds.decode(image=[sx.media.Resize((4, 4))])
    assert stored_images(sx.write(tmp_path / "a", steps, SCHEMA, filter=lambda sample: True)) == JPEGS


@pytest.mark.parametrize("batched", [False, True])
def test_map_of_tensors(ds: Dataset, tmp_path: Path, batched: Any) -> None:
    import torch

    tensors = ds.decode("torch")
    same = tensors.map(lambda one: {"image": one.image, "label": one.label}, batched=batched)
    assert same.features["image"] == sx.Image() and stored_images(same) == JPEGS
    np.testing.assert_array_equal(same[3].image, PIXELS[3])

    def inverted(one: Any) -> dict[str, Any]:
        return {"image": [255 - image for image in one.image] if batched else 255 - one.image}

    other = tensors.map(inverted, schema={"image": sx.Image()}, batched=batched)
    for found in (other, sx.write(tmp_path / "a", other)):
        np.testing.assert_array_equal(found[3].image, 255 - PIXELS[3])
        np.testing.assert_array_equal(found.read([3, 4])["image"], [255 - PIXELS[3], 255 - PIXELS[4]])
    large = torch.zeros(3, 40, 40, dtype=torch.uint8)
    middle = large.clone()
    middle[1, 20, 20] = 1
    assert repr(large) == repr(middle) and not unchanged(large, middle)


def test_map_to_a_class(ds: Dataset) -> None:
    view = ds.map(lambda sample: Labelled(sample.image, sample.label + 1))
    np.testing.assert_array_equal(view[3].image, PIXELS[3])
    np.testing.assert_array_equal(view.read([3, 4])["image"], PIXELS[3:5])
    assert stored_images(view) == JPEGS


def test_map_that_returns_bytes(ds: Dataset) -> None:
    view = ds.decode(False).map(lambda sample: {"image": sample.image}, schema={"image": sx.Image()})
    np.testing.assert_array_equal(view[3].image, PIXELS[3])
    np.testing.assert_array_equal(view.read([3, 4])["image"], PIXELS[3:5])


def test_lenses_see_decoded_images(ds: Dataset, tmp_path: Path) -> None:
    @sx.packable
    class Bright:
        image: Annotated[NDArray[np.uint8], sx.Image()]
        mean: float

    def brightness(sample: Labelled) -> Bright:
        return Bright(sample.image, float(sample.image.mean()))

    view = ds.view(sx.Lens(brightness, source=Labelled, view=Bright))
    np.testing.assert_array_equal(view[3].image, PIXELS[3])
    assert view[3].mean == PIXELS[3].mean()
    np.testing.assert_array_equal(view.read([3, 4])["image"], PIXELS[3:5])
    assert stored_images(sx.write(tmp_path / "d", view)) == JPEGS


def test_rows_of_a_user() -> None:
    class Rows:
        features = sx.Features({"image": sx.Image()})

        def __len__(self) -> int:
            return len(JPEGS)

        def read(self, rows: Any, fields: Any = None) -> Any:
            return sx.Columns({"image": [JPEGS[row] for row in rows]}, len(rows))

    data = sx.open(Rows())
    np.testing.assert_array_equal(data[3].image, PIXELS[3])
    assert stored_images(data) == JPEGS


def test_filter_sees_decoded_images(ds: Dataset) -> None:
    bright = ds.filter(lambda sample: sample.image.mean() > PIXELS[0].mean())
    assert [sample.label for sample in bright] == [k for k in range(10) if PIXELS[k].mean() > PIXELS[0].mean()]


# -- copies -----------------------------------------------------------------------------------------------------------


def relabelled(sample: Any) -> dict[str, Any]:
    return {**sample, "label": sample.label + 1}


def darkened(sample: Any) -> Any:
    if sample.label == 4:
        sample.image[:] = 0
    return sample


@pytest.mark.parametrize("format", ["arrow", "parquet", "tar", "bins"])
def test_write_copies_the_bytes(ds: Dataset, tmp_path: Path, format: str) -> None:
    named = ds.rename(image="jpg", label="cls") if format == "tar" else ds
    out = sx.write(tmp_path / "d", named, format=format)
    assert stored_images(out, named.fields[0]) == JPEGS
    np.testing.assert_array_equal(out[2][named.fields[0]], PIXELS[2])


def test_write_with_functions_keeps_the_bytes_of_unchanged_images(ds: Dataset, tmp_path: Path) -> None:
    assert stored_images(sx.write(tmp_path / "a", ds, transform=relabelled)) == JPEGS
    assert stored_images(sx.write(tmp_path / "b", ds, transform=relabelled, batched=True, batch_size=4)) == JPEGS
    assert stored_images(sx.write(tmp_path / "c", ds, filter=lambda sample: sample.image.shape[0] == 8)) == JPEGS
    some = sx.write(tmp_path / "d", ds, filter=lambda batch: batch.label % 2 == 0, batched=True)
    assert stored_images(some) == JPEGS[::2]
    dark = sx.write(tmp_path / "e", ds, SCHEMA, transform=darkened)
    assert [a == b for a, b in zip(stored_images(dark), JPEGS, strict=True)] == [k != 4 for k in range(10)]
    assert not dark[4].image.any() and dark.features["image"] == sx.Image()
    raw = sx.write(tmp_path / "g", ds, transform=darkened)
    assert raw.features["image"] == sx.Array("uint8", (8, 12, 3)), "as some of the first images are changed"
    assert stored_images(sx.write(tmp_path / "f", ds, transform=relabelled, workers=2)) == JPEGS


def test_writer_and_edit_keep_the_bytes(ds: Dataset, tmp_path: Path) -> None:
    with sx.create(tmp_path / "a", SCHEMA) as out:
        out.extend(ds[:5])
        out.extend(ds.as_type(Labelled)[5:])
    assert stored_images(sx.open(tmp_path / "a")) == JPEGS
    with sx.edit(tmp_path / "a") as tx:
        tx.add_field("mean", "float64", lambda sample: sample.image.mean())
    with sx.edit(tmp_path / "a") as tx:
        tx.delete([0])
        tx.update(1, label=7)
    edited = sx.open(tmp_path / "a")
    assert stored_images(edited) == JPEGS[1:] and edited[0].label == 7
    np.testing.assert_allclose(edited["mean"], [one.mean() for one in PIXELS[1:]])
    with sx.edit(tmp_path / "a") as tx:
        tx.put(0, Labelled(edited[0].image, 8))
        tx.extend(ds[:1].map(lambda sample: {**sample, "mean": 0.5}))
    edited = sx.open(tmp_path / "a")
    assert edited[0].label == 8 and stored_images(edited) == [*JPEGS[1:], JPEGS[0]]
    with sx.edit(tmp_path / "a") as tx:
        tx.add_field("again", sx.Image(), edited.select("image"))
    sx.compact(tmp_path / "a")
    edited = sx.open(tmp_path / "a")
    assert stored_images(edited) == stored_images(edited, "again") == [*JPEGS[1:], JPEGS[0]]


def test_putting_views_back_keeps_the_bytes(ds: Dataset, tmp_path: Path) -> None:
    lens = sx.Lens(lambda sample: {"label": sample["label"]}, lambda view, sample: {**sample, "label": view["label"]})
    views = [{"label": -k} for k in range(10)]
    out = sx.write(tmp_path / "d", views, through=lens, onto=ds)
    assert stored_images(out) == JPEGS and out["label"].tolist() == [-k for k in range(10)]


def test_other_tools_get_the_bytes(ds: Dataset) -> None:
    assert ds.to_arrow()["image"].to_pylist() == JPEGS
    assert ds.to_pandas()["image"].tolist() == JPEGS
    assert sx.open(ds.to_arrow()).features == ds.features
    np.testing.assert_array_equal(sx.open(ds.to_arrow())[3].image, PIXELS[3])
    hf = ds.to_huggingface()
    assert stored_images(sx.open(hf)) == JPEGS
    assert sx.open(hf).features["image"] == sx.Image()
    np.testing.assert_array_equal(sx.open(hf)[3].image, PIXELS[3])
    np.testing.assert_array_equal(np.asarray(hf[3]["image"]), PIXELS[3])


def test_lists_of_pil_images(tmp_path: Path) -> None:
    pictures = [PIL.Image.open(io.BytesIO(data)) for data in JPEGS[:3]]
    data = sx.open([{"image": one, "label": k} for k, one in enumerate(pictures)])
    assert data.features["image"] == sx.Image()
    np.testing.assert_array_equal(data.read([2, 0])["image"], [PIXELS[2], PIXELS[0]])
    np.testing.assert_array_equal(data[1].image, PIXELS[1])
    assert stored_images(sx.write(tmp_path / "d", data)) == JPEGS[:3]


def test_windows_of_documents_with_images(tmp_path: Path) -> None:
    schema = {"image": sx.Image(), "tokens": sx.Array("int64", (None,))}
    data = sx.write(tmp_path / "d", [{"image": JPEGS[k], "tokens": np.arange(k + 2)} for k in range(3)], schema)
    assert data.windows(3)["tokens"].tolist() == [[0, 1, 0], [1, 2, 0], [1, 2, 3]]
    assert data.lengths("tokens").tolist() == [2, 3, 4]
