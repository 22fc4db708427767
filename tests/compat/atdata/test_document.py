"""The code blocks of the document of atdata run, with only import lines changed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.compat import atdata
from shardex.sources import open_source, storage
from tests.compat.atdata.sample_classes import write_tar
from tests.compat.document import code_blocks
from tests.servers import KEY, SECRET, seaweed

__all__ = ["seaweed"]

SHARDS = 10


def placeholders(endpoint: str) -> dict[str, str]:
    """What the document leaves out: the address of a server, and its keys."""
    return {
        "https://my-account.r2.cloudflarestorage.com": endpoint,
        'access_key="..."': f'access_key="{KEY}"',
        'secret_key="..."': f'secret_key="{SECRET}"',
    }


@pytest.fixture
def buckets(seaweed: str) -> Iterator[list[Any]]:
    """The two buckets of the document, with keys set."""
    with ExitStack() as after:
        places = []
        for name in ("my-bucket", "bucket"):
            keys = {"access_key_id": KEY, "secret_access_key": SECRET}
            storage(f"s3://{name}", endpoint=seaweed, region="us-east-1", allow_http=True, **keys)
            after.callback(storage, f"s3://{name}")
            places.append(open_source(f"s3://{name}"))
            places[-1].put("here", b"")  # makes the bucket
        yield places


def test_every_code_block_runs(
    tmp_path: Path,
    buckets: list[Any],
    seaweed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[Any, Any]] = []
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "process_batch": lambda image, label: seen.append((image, label)),
        "extract_features": lambda image: image.reshape(-1)[:2],
    }
    blocks = code_blocks("001.md", "atdata", placeholders(seaweed))
    assert len(blocks) == 9
    first, schemas, typed, lenses, untyped, samples, two_way, sources, splits = blocks

    write_tar(tmp_path / "path" / "to" / "data.tar", [exploring(k) for k in range(3)])
    first.run(namespace)
    assert capsys.readouterr().out == "['text', 'image', 'label', 'metadata']\ntext 0\nlabel 0\n"

    schemas.run(namespace)
    image_sample = namespace["ImageSample"]
    assert issubclass(image_sample, atdata.PackableSample)
    write_images(tmp_path / "path" / "to", image_sample)
    many = atdata.load_dataset("path/to/data-{000000..000009}.tar", image_sample, split="train")
    typed.run(namespace)
    assert capsys.readouterr().out == "".join(f"Label: label {k}, Image shape: (4, 4)\n" for k in range(3))
    assert [(image.shape, sorted(label)) for image, label in seen] == [((3, 4, 4), [f"label {k}" for k in range(3)])]
    assert len(list(many.shuffled(batch_size=32))) == 2

    namespace["dataset"] = many
    lenses.run(namespace)
    assert capsys.readouterr().out == "(2,)\n" * 4 * SHARDS
    assert next(iter(namespace["processed_ds"])).label == "label 0"

    write_tar(tmp_path / "data.tar", [atdata.DictSample(field_name=k) for k in range(2)])
    untyped.run(namespace)
    assert capsys.readouterr().out == "".join(f"{k}\n{k}\n['field_name']\n{{'field_name': {k}}}\n" for k in range(2))

    samples.run(namespace)
    for array in (np.arange(3), None):
        one = namespace["MySample"](np.arange(2.0), array, "text")
        back = namespace["MySample"].from_bytes(one.packed)
        assert back == one and (back.optional_array is None) == (array is None)

    namespace |= {"SourceType": atdata.packable(SourceType), "ViewType": atdata.packable(ViewType)}
    two_way.run(namespace)
    source, view = namespace["SourceType"](1), namespace["ViewType"](...)
    assert namespace["my_lens"](source) == view and namespace["my_lens"].put(view, source).x is ...

    write_images(tmp_path, image_sample)
    for number in range(2):
        buckets[0].put(f"data-{number:06d}.tar", (tmp_path / f"data-{number:06d}.tar").read_bytes())
    storage("s3://my-bucket")  # no keys: the document gives them
    sources.run(namespace)
    assert isinstance(namespace["source"], atdata.S3Source)
    assert [one.metadata["k"] for one in namespace["dataset"]] == list(range(8))

    write_splits(tmp_path / "data", image_sample)
    tar = (tmp_path / "data-000000.tar").read_bytes()
    buckets[1].for_each(lambda number: buckets[1].put(f"data-{number:06d}.tar", tar), range(100))
    splits.run(namespace)
    assert [len(namespace[name]) for name in ("train_ds", "test_ds", "ds")] == [12, 4, 4]
    assert type(namespace["ds"].head(1)[0]) is image_sample
    remote = atdata.load_dataset("s3://bucket/data-{000000..000099}.tar", image_sample, split="train")
    assert len(remote) == 400 and remote.select([399])[0].label == "label 3"


class SourceType:
    """A type that the document only names."""

    x: Any


class ViewType:
    """Another one."""

    y: Any


def exploring(k: int) -> atdata.DictSample:
    """Return a sample with the fields that the document reads without a schema, and with those of its schema."""
    return atdata.DictSample(text=f"text {k}", image=np.full((4, 4), k), label=f"label {k}", metadata={"k": k})


def image(kind: Any, k: int) -> Any:
    """Return a sample of the document's schema."""
    return kind(image=np.full((4, 4), k), label=f"label {k}", metadata={"k": k})


def write_images(folder: Path, kind: Any) -> None:
    """Write the shards data-000000.tar and so on, with 4 samples each."""
    for number in range(SHARDS):
        write_tar(folder / f"data-{number:06d}.tar", [image(kind, 4 * number + k) for k in range(4)])


def write_splits(folder: Path, kind: Any) -> None:
    """Write the files of the document's splits."""
    for name in ("train-000", "train-001", "train", "test-000"):
        write_tar(folder / f"{name}.tar", [image(kind, k) for k in range(4)])
