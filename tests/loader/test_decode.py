"""Loaders decode images into batches; random steps depend on seed, epoch and position only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FormatError, SchemaError

SCHEMA = {"image": sx.Image(), "label": int}
RANDOM = {"image": [sx.media.RandomResizedCrop(8), sx.media.Flip()]}
COUNT = 37


def jpeg(seed: int, height: int = 12, width: int = 16) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    found: bytes = simplejpeg.encode_jpeg(pixels)
    return found


PIXELS = [simplejpeg.decode_jpeg(jpeg(k)) for k in range(COUNT)]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("media") / "jpegs"
    return sx.write(path, [{"image": jpeg(k), "label": k} for k in range(COUNT)], SCHEMA)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Images of three sizes."""
    path = tmp_path_factory.mktemp("media") / "mixed"
    samples = [{"image": jpeg(k, 12, 14 + k % 3), "label": k} for k in range(COUNT)]
    return sx.write(path, samples, SCHEMA)


def images_of(loader: Any) -> dict[int, NDArray[np.uint8]]:
    """Return the image of each label."""
    with loader:
        return {int(k): one for batch in loader for k, one in zip(batch.label, np.asarray(batch.image), strict=True)}


def assert_same_images(found: dict[int, Any], wanted: dict[int, Any]) -> None:
    assert found.keys() == wanted.keys()
    for label, image in found.items():
        np.testing.assert_array_equal(image, wanted[label])


WORKERS: list[dict[str, Any]] = [{}, {"workers": 2, "worker_type": "thread"}, {"workers": 2, "worker_type": "process"}]


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_decoded(ds: Dataset, workers: dict[str, Any]) -> None:
    found = images_of(sx.Loader(ds, 8, shuffle=True, seed=1, **workers))
    assert_same_images(found, dict(enumerate(PIXELS)))


def test_threads_are_chosen_for_images(ds: Dataset) -> None:
    assert not ds.in_python
    tar = ds.map(lambda sample: sample)
    assert tar.in_python


@pytest.mark.parametrize("workers", WORKERS[1:])
def test_chances_do_not_depend_on_workers(ds: Dataset, workers: dict[str, Any]) -> None:
    wanted = images_of(sx.Loader(ds, 8, shuffle=True, seed=1, decode=RANDOM))
    assert next(iter(wanted.values())).shape == (8, 8, 3)
    assert_same_images(images_of(sx.Loader(ds, 5, shuffle=True, seed=1, decode=RANDOM, **workers)), wanted)


def test_chances_do_not_depend_on_ranks(ds: Dataset) -> None:
    wanted = images_of(sx.Loader(ds, 8, shuffle=True, seed=1, decode=RANDOM))
    found: dict[int, Any] = {}
    for rank in range(3):
        found |= images_of(sx.Loader(ds, 4, shuffle=True, seed=1, decode=RANDOM, rank=rank, world_size=3))
    assert_same_images(found, wanted)


def test_chances_depend_on_seed_and_epoch(ds: Dataset) -> None:
    def of(seed: int, epoch: int) -> dict[int, Any]:
        loader = sx.Loader(ds, 8, seed=seed, decode=RANDOM)
        loader.seek(epoch)
        return images_of(loader)

    first = of(0, 0)
    assert_same_images(of(0, 0), first)
    for other in (of(1, 0), of(0, 1)):
        assert sum(np.array_equal(image, first[k]) for k, image in other.items()) < COUNT // 2


@pytest.mark.parametrize("workers", WORKERS)
def test_chances_after_a_resume(ds: Dataset, workers: dict[str, Any]) -> None:
    wanted = images_of(sx.Loader(ds, 8, shuffle=True, seed=2, decode=RANDOM))
    with sx.Loader(ds, 8, shuffle=True, seed=2, decode=RANDOM, **workers) as loader:
        first = next(iter(loader))
        found = {int(k): one for k, one in zip(first.label, first.image, strict=True)}
        state = loader.state_dict()
    resumed = sx.Loader(ds, 5, shuffle=True, seed=2, decode=RANDOM)
    resumed.load_state_dict(state)
    found |= images_of(resumed)
    assert_same_images(found, wanted)
    assert state["data"] == sx.Loader(ds, 8, shuffle=True, seed=2).state_dict()["data"], "steps do not change a run"


def test_replay(ds: Dataset) -> None:
    loader = sx.Loader(ds, 8, shuffle=True, seed=2, decode=RANDOM)
    second = list(loader)[1]
    np.testing.assert_array_equal(loader.replay(1).image, second.image)


def test_two_fields_with_the_same_steps_are_cut_alike(tmp_path: Path) -> None:
    samples = [{"image": jpeg(k), "seg": jpeg(k)} for k in range(4)]
    pairs = sx.write(tmp_path / "d", samples, {"image": sx.Image(), "seg": sx.Image()})
    steps = RANDOM["image"]
    for batch in sx.Loader(pairs, 4, decode={"image": steps, "seg": steps}):
        np.testing.assert_array_equal(batch["image"], batch["seg"])


def test_transform_gets_what_the_steps_made(ds: Dataset) -> None:
    def transform(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
        return {"image": sample.image, "label": sample.label, "chance": rng.random()}

    wanted = images_of(sx.Loader(ds, 8, decode=RANDOM))
    assert_same_images(images_of(sx.Loader(ds, 8, decode=RANDOM, transform=transform)), wanted)


# -- forms ------------------------------------------------------------------------------------------------------------


def test_tensors_have_their_channels_first(ds: Dataset) -> None:
    import torch

    for data in (ds, ds.decode("torch")):
        batch = next(iter(sx.Loader(data, 8, to="torch")))
        assert isinstance(batch.image, torch.Tensor) and batch.image.shape == (8, 3, 12, 16)
        assert batch.image.is_contiguous(memory_format=torch.channels_last), "no copy"
        np.testing.assert_array_equal(batch.image.movedim(1, -1).numpy(), PIXELS[:8])
    shapes = [one.shape for one in next(iter(sx.Loader(ds, 8, to="torch", ragged="list"))).image]
    assert shapes == [(3, 12, 16)] * 8


def test_batches_share_no_memory_with_a_second_copy(ds: Dataset) -> None:
    batch = next(iter(sx.Loader(ds, 8)))
    assert batch.image.flags.writeable and batch.image.flags.c_contiguous


def test_decode_by_form(ds: Dataset) -> None:
    assert next(iter(sx.Loader(ds, 4, decode=False))).image == [jpeg(k) for k in range(4)]
    assert next(iter(sx.Loader(ds, 4, decode={"image": sx.media.Resize((4, 6))}))).image.shape == (4, 4, 6, 3)
    assert next(iter(sx.Loader(ds, 4, decode={"image": "pil"}, fields=["image"]))).image[0].size == (16, 12)
    with pytest.raises(ArgumentError, match="did you mean 'image'"):
        sx.Loader(ds, 4, decode={"imag": False})
    with pytest.raises(ArgumentError, match="steps such as"):
        sx.Loader(ds, 4, decode={"image": [5]})


def test_sizes_that_differ_are_an_error_that_says_what_to_do(mixed: Dataset) -> None:
    every: list[dict[str, Any]] = [{}, {"fill": 0}, {"workers": 2}]
    for options in every:
        loader = sx.Loader(mixed, 8, **options)
        with loader, pytest.raises(SchemaError, match=r"expected images of one size.*Resize.*ragged=\{\"image\": "):
            list(loader)
    with pytest.raises(SchemaError, match="expected images of one size"):
        list(sx.Loader(mixed, 8, transform=lambda sample: {"image": sample.image}))
    assert next(iter(sx.Loader(mixed, 8, decode={"image": sx.media.CenterCrop(8)}))).image.shape == (8, 8, 8, 3)
    assert next(iter(sx.Loader(mixed, 8, decode={"image": sx.media.Pad((16, 20))}))).image.shape == (8, 16, 20, 3)
    shapes = [one.shape for one in next(iter(sx.Loader(mixed, 3, ragged={"image": "list"}))).image]
    assert shapes == [(12, 14, 3), (12, 15, 3), (12, 16, 3)]


def test_channels_that_differ_are_an_error_that_names_the_mode(tmp_path: Path) -> None:
    samples = [{"image": np.zeros((8, 8, channels), np.uint8)} for channels in (1, 3)]
    ds = sx.write(tmp_path / "d", samples, {"image": sx.Image(None)})
    with pytest.raises(SchemaError, match=r"one number of channels.*decode=\{\"image\": sx.Image\(mode="):
        list(sx.Loader(ds, 2))
    assert next(iter(sx.Loader(ds, 2, decode={"image": sx.Image(mode="RGB")}))).image.shape == (2, 8, 8, 3)


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_batches_without_any_value_have_the_form_of_others(tmp_path: Path, to: Any) -> None:
    samples = [{"image": jpeg(k), "sound": np.zeros(20, np.float32)} if k > 2 else {} for k in range(6)]
    schema = {"image": sx.Optional(sx.Image()), "sound": sx.Optional(sx.Audio(rate=8000))}
    ds = sx.write(tmp_path / "d", samples, schema)
    for options in ({"image": [sx.media.Resize((4, 4))], "sound": sx.Audio(8000, frames=5)}, {}):
        first, second = sx.Loader(ds, 3, decode=options, to=to)
        for name in ("image", "sound"):
            assert type(first[name]) is type(second[name]) and first[name].dtype == second[name].dtype
            assert not first.mask_of(name).any() and second.mask_of(name).all()
            assert len(first[name]) == 3 and (not options or first[name].shape == second[name].shape)


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_padding_by_choice(mixed: Dataset, to: Any) -> None:
    batch = next(iter(sx.Loader(mixed, 3, ragged={"image": "pad"}, to=to)))
    assert tuple(batch.image.shape) == ((3, 12, 16, 3) if to == "numpy" else (3, 3, 12, 16))
    assert batch.lengths_of("image").tolist() == [[12, 14, 3], [12, 15, 3], [12, 16, 3]]
    assert batch.mask_of("image").shape == batch.image.shape
    assert not batch.image[~batch.mask_of("image")].any()
    for part in (batch[:1], batch[1:]):  # padded to more than the largest of its own images
        assert part.mask_of("image").shape == part.image.shape
        assert part.mask_of("image").sum() == part.lengths_of("image").prod(1).sum()


def test_images_of_one_size_among_others(tmp_path: Path) -> None:
    """A batch is stacked if its own images have one size, whatever is read together with them."""
    sizes = [(4, 4)] * 4 + [(4, 6)] * 4
    samples = [{"image": jpeg(k, *size)} for k, size in enumerate(sizes)]
    data = sx.write(tmp_path / "d", samples, {"image": sx.Image()})
    shapes = [batch.image.shape for epoch in range(3) for batch in sx.Loader(data, 2, epochs=1)]
    assert shapes == ([(2, 4, 4, 3)] * 2 + [(2, 4, 6, 3)] * 2) * 3


def test_missing_images(tmp_path: Path) -> None:
    samples = [{"image": jpeg(k) if k % 3 else None} for k in range(6)]
    data = sx.write(tmp_path / "d", samples, {"image": sx.Optional(sx.Image())})
    for decode in (None, RANDOM):
        batch = next(iter(sx.Loader(data, 6, decode=decode)))
        assert batch.present_of("image").tolist() == [False, True, True, False, True, True]
        assert not np.asarray(batch.image)[[0, 3]].any()
    tensors = next(iter(sx.Loader(data, 6, to="torch"))).image
    assert tensors.shape == (6, 3, 12, 16)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Dataset:
    samples = [{"jpg": b"\xff\xd8\xff no image" if k == 5 else jpeg(k), "cls": k} for k in range(12)]
    sx.write(tmp_path / "broken", samples, {"jpg": bytes, "cls": int}, format="tar")
    return sx.open(tmp_path / "broken").rename(jpg="image", cls="label")


@pytest.mark.parametrize("workers", WORKERS)
def test_broken_images_are_replaced_and_named(broken: Dataset, workers: dict[str, Any]) -> None:
    for decode in (None, RANDOM):
        with sx.Loader(broken, 4, on_error="skip", decode=decode, **workers) as loader:
            labels = [label for batch in loader for label in batch.label.tolist()]
            (bad,) = loader.skipped
        assert len(labels) == 12 and 5 not in labels
        assert bad.row == 5 and bad.shard.endswith("shard-000000.tar") and "field image" in bad.error


def test_broken_images_raise(broken: Dataset) -> None:
    for decode in (None, RANDOM):
        with pytest.raises(FormatError, match=r"at sample 5 of .*, field image"):
            list(sx.Loader(broken, 4, decode=decode))
    assert len(list(sx.Loader(broken, 4, decode=False))) == 3


def test_steps_of_the_dataset_that_a_loader_leaves_out_are_a_warning(tmp_path: Path) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    ds = sx.write(tmp_path / "d", [{"image": image}] * 4, {"image": sx.Image()}).decode(image=[sx.media.Resize((4, 4))])
    assert next(iter(sx.Loader(ds, 2))).image.shape == (2, 4, 4, 3)
    with pytest.warns(UserWarning, match=r"takes the place of the steps of ds\.decode for image, Resize.*: name all"):
        assert next(iter(sx.Loader(ds, 2, decode={"image": [sx.media.Flip()]}))).image.shape == (2, 8, 8, 3)
    both = [sx.media.Resize((4, 4)), sx.media.Flip()]
    assert next(iter(sx.Loader(ds, 2, decode={"image": both}))).image.shape == (2, 4, 4, 3)
