"""A folder of images with a class per subfolder: into a dataset, batches of decoded images of one size."""

import io
import pathlib

import numpy as np

import shardex as sx

# The folder as one finds it: <class>/<name>.npy stands for the encoded image files.
rng = np.random.default_rng(0)
for kind in ("cat", "dog"):
    for k in range(6):
        folder = pathlib.Path("pictures", kind)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{k}.npy", rng.integers(0, 255, (8 + k, 10, 3), dtype="uint8"))

files = sorted(pathlib.Path("pictures").glob("*/*.npy"))
schema = {"image": bytes, "label": sx.ClassLabel(["cat", "dog"]), "file": str}
with sx.create("images", schema) as out:
    for file in files:
        out.append(image=file.read_bytes(), label=file.parent.name, file=file.name)

ds = sx.open("images")
label = ds.features["label"]
assert len(ds) == 12 and isinstance(label, sx.ClassLabel) and label.name(ds[-1].label) == "dog"
assert len(ds.where("label = 1 AND file = '0.npy'")) == 1


def decoded(sample: sx.DictSample) -> dict[str, object]:
    return {"pixels": np.load(io.BytesIO(sample.image))[:8], "label": sample.label}


# The crop above makes one array of each batch. Without it, arrays of several sizes need a choice.
shapes = []
with sx.Loader(ds, batch_size=5, shuffle=True, seed=0, transform=decoded, workers=1) as loader:
    for batch in loader:
        shapes.append(batch.pixels.shape)
        assert batch.pixels.dtype == np.uint8
assert sorted(shapes) == [(2, 8, 10, 3), (5, 8, 10, 3), (5, 8, 10, 3)]

raw = sx.open([{"a": np.ones((k, 5 - k))} for k in range(1, 5)])
try:
    next(iter(sx.Loader(raw, 4)))
    problem = ""
except sx.ShardexError as error:
    problem = str(error)
assert "field a; resize them in transform=" in problem and 'ragged="pad"' in problem
assert next(iter(sx.Loader(raw, 4, ragged="pad"))).a.shape == (4, 4, 4)

# Decode once and keep the arrays: arrays of varying height are a ragged field.
pixels = ds.map(lambda sample: {"pixels": np.load(io.BytesIO(sample.image)), "label": sample.label})
stored = sx.write("pixels", pixels, {"pixels": sx.Array("uint8", (None, 10, 3)), "label": ds.features["label"]})
assert stored[5].pixels.shape == (13, 10, 3) and stored.features["label"] == ds.features["label"]
batch = next(iter(sx.Loader(stored, 12)))
assert batch.pixels.shape == (12, 13, 10, 3) and batch.lengths_of("pixels").max() == 13
