"""A program for the real atdata, on another Python: reads what shardex wrote, writes the same, and prints what it saw.

Arguments: the folder to read, the folder to write. It is run by `test_real_atdata`, never imported.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import atdata  # type: ignore[import-not-found]
import numpy as np
from atdata import atmosphere
from atdata.index._schema import _build_schema_record  # type: ignore[import-not-found]
from atdata.manifest import ManifestField, QueryExecutor  # type: ignore[import-not-found]
from atdata.testing import MockAtmosphere  # type: ignore[import-not-found]
from numpy.typing import NDArray


@atdata.packable
class Shot:
    """A picture and what is known about it."""

    image: NDArray  # type: ignore[type-arg]
    label: Annotated[str, ManifestField("categorical")]
    n: int
    score: float | None
    tags: list[str]
    flag: bool
    blob: bytes = b""
    secret: Annotated[str, ManifestField("categorical", exclude=True)] = "no"


@atdata.packable
class Short:
    """A part of the fields."""

    label: str
    n: int


@atdata.packable
class One:
    """One array, or none."""

    array: NDArray | None  # type: ignore[type-arg]


def array_of(kind: str, shape: list[int]) -> Any:
    """Return an array of this dtype and shape."""
    return np.arange(int(np.prod(shape))).reshape(shape).astype(kind)


def seen(sample: Any) -> dict[str, Any]:
    """Return a sample as JSON has it."""
    image = [sample.image.dtype.str, sample.image.tolist()]
    names = ("label", "n", "score", "tags", "flag", "secret")
    return {"image": image, "blob": sample.blob.hex(), **{name: getattr(sample, name) for name in names}}


LEXICON = {
    "entry": atmosphere.LexDatasetEntry,
    "schema": atmosphere.LexSchemaRecord,
    "lens": atmosphere.LexLensRecord,
    "label": atmosphere.LexLabelRecord,
    "lensVerification": atmosphere.LexLensVerification,
}


def published() -> dict[str, Any]:
    """Return the records that atdata's own publishers write, by address."""
    client = MockAtmosphere()
    schema = atmosphere.SchemaPublisher(client).publish(Shot)
    about = {"name": "shots", "metadata": {"split": "train", "model": "bert"}, "tags": ["a"], "license": "MIT"}
    atmosphere.DatasetPublisher(client).publish_with_urls(["https://h.example/a.tar"], schema, **about)
    atmosphere.DatasetPublisher(client).publish_with_s3("bucket", ["a.tar"], schema, name="s3", region="eu")
    atmosphere.LabelPublisher(client).publish("shots", "at://x/y/z", version="1.0.0")
    return dict(client._records)


def main(ours: Path, theirs: Path) -> dict[str, Any]:
    """Read, then write; return what was seen."""
    sharded = f"{ours}/train-{{000000..000002}}.tar"
    single = atdata.Dataset[Shot](f"{ours}/single.tar")
    first = single.head(1)[0]
    executor = QueryExecutor.from_directory(ours)
    found = {
        "version": sys.version_info[:2],
        "single": [seen(one) for one in single.ordered()],
        "sharded": [seen(one) for one in atdata.Dataset[Shot](sharded).ordered()],
        "shuffled": sorted(one.n for one in atdata.Dataset[Shot](sharded).shuffled()),
        "batches": [[len(b.samples), b.label] for b in single.ordered(batch_size=4)],
        "fields": list(atdata.load_dataset(f"{ours}/single.tar", split="train").head(1)[0].keys()),
        "as_type": [one.n for one in atdata.Dataset[Shot](sharded).as_type(Short).ordered()],
        "counts": {m.shard_id: [m.num_samples, m.aggregates["n"]["max"]] for m in executor._manifests},
        "tags": [list(tags) for m in executor._manifests for tags in m.samples["tags"]],
        "query": [[one.shard, one.key] for one in executor.query(lambda df: (df["n"] >= 6) & (df["label"] == "b"))],
        "keys": [
            single.get(one.key).n for one in atdata.Dataset[Shot](f"{ours}/single.tar").query(lambda df: df["n"] == 5)
        ],
        "packed": first.packed.hex(),
        "cids": [atdata.generate_cid(one) for one in json.loads(sys.argv[3])],
        "record": _build_schema_record(Shot, version="1.0.0"),
        "records": [
            LEXICON[one["$type"].rpartition(".")[2]].from_record(one).to_record()
            for one in json.loads((ours / "records.json").read_text())
        ],
        "published": published(),
        "arrays": [
            None if one.array is None else [one.array.dtype.str, one.array.shape, one.array.tobytes().hex()]
            for one in atdata.Dataset[One](f"{ours}/arrays.tar").ordered()
        ],
    }
    kind: Any = Shot
    samples = [
        kind(np.arange(k, dtype=np.float32), "ab"[k % 2], k, None if k == 3 else k / 2, ["é", f"t{k}"], k % 2 == 0)
        for k in range(10)
    ]
    atdata.write_samples(samples, theirs / "single.tar", manifest=True)
    atdata.write_samples(samples, theirs / "train.tar", maxcount=4)
    atdata.write_samples(samples, theirs / "wrong" / "train.tar", maxcount=4, manifest=True)
    only: Any = One
    arrays = [only(None), *(only(array_of(*one)) for one in json.loads(sys.argv[4]))]
    atdata.write_samples(arrays, theirs / "arrays.tar")
    return {**found, "packed_arrays": [one.packed.hex() for one in arrays]}


print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
