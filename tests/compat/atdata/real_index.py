"""A program for the real atdata: reads the indexes that shardex wrote, adds to them, and prints what it saw.

Arguments: a folder with ``index.db``, the port and the password of a Redis. It is run by `test_real_index`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import atdata  # type: ignore[import-not-found]
import numpy as np
import redis
from atdata.stores import LocalDiskStore  # type: ignore[import-not-found]
from numpy.typing import NDArray


@atdata.packable
class Digit:
    """A picture of a digit."""

    image: NDArray  # type: ignore[type-arg]
    label: int
    note: str | None = None


@atdata.packable
class Label:
    """A part of the fields."""

    label: int


DIGIT: Any = Digit
LABEL: Any = Label


def to_label(digit: Digit) -> Label:
    """Return a part of the fields."""
    made: Label = LABEL(label=digit.label)
    return made


def seen(index: Any) -> dict[str, Any]:
    """Return what an index has under the names that shardex wrote."""
    entry = index.get_dataset("ours")
    lens = index.load_lens("atdata://local/lens/label@1.0.0", source_type=Digit, view_type=Label)
    ref = "atdata://local/schema/Digit@1.0.0"
    return {
        "entries": {one.name: [one.cid, one.schema_ref, one.data_urls] for one in index.list_datasets()},
        "metadata": entry.metadata,
        "labels": sorted(index.list_labels(), key=str),
        "version": index.get_label("ours", "1.0.0").cid,
        "schemas": [[one["name"], one["version"]] for one in index.list_schemas()],
        "fields": index.get_schema(ref)["fields"],
        "type": list(index.get_schema_type(ref).__dataclass_fields__),
        "samples": [
            [one.image.tolist(), one.label]
            for one in atdata.load_dataset("@local/ours", Digit, split="train", index=index).ordered()
        ],
        "lens": lens.get(DIGIT(image=np.zeros(2), label=7)).label,
        "found": [one.name for one in index.search(tags=["small"], include_atmosphere=False).items],
        "checksums": list(atdata.verify_checksums(entry).values()),
    }


def add(index: Any, folder: Path) -> None:
    """Add a dataset, labels, a schema and a lens."""
    samples = [DIGIT(image=np.full((2, 2), k, np.uint8), label=k) for k in range(4)]
    entry = index.write_samples(
        samples, name="theirs", metadata={"lab": "b"}, data_store=LocalDiskStore(folder / "store-of-atdata")
    )
    index.label("theirs", entry.cid, version="2.0.0", description="the second")
    index.publish_schema(Label, version="1.2.0", description="only labels")
    index.store_lens(atdata.lens(to_label), name="to-label", source_schema="a", view_schema="b")


def main(folder: Path, port: int, password: str) -> dict[str, Any]:
    """Read both indexes, then add to them."""
    client = redis.Redis(port=port, password=password, db=9)
    indexes = {
        "sqlite": atdata.Index("sqlite", path=folder / "index.db", atmosphere=None),
        "redis": atdata.Index(redis=client, atmosphere=None),
    }
    found = {name: seen(index) for name, index in indexes.items()}
    for index in indexes.values():
        add(index, folder)
    return found


print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
