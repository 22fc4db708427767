"""Sample classes and tars for the tests of compat.atdata."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from numpy.typing import NDArray

from shardex.compat import atdata


@atdata.packable
class Picture:
    """An image with a label."""

    image: NDArray  # type: ignore[type-arg]  # people write this
    label: str
    number: int


@atdata.packable
class Label:
    """A part of the fields of a picture."""

    label: str


@atdata.packable
class Name:
    """What a lens makes of a label."""

    name: str


@atdata.packable
class Size:
    """What a lens makes of a name."""

    size: int


@atdata.lens
def name_of(source: Label) -> Name:
    """Return the label as a name."""
    return Name(source.label.upper())


@atdata.lens
def size_of(source: Name) -> Size:
    """Return the length of a name."""
    return Size(len(source.name))


def picture(k: int) -> Any:
    """Return the picture with this number."""
    return Picture(np.full((2, 3), k, np.float32), f"label {k}", k)


def write_tar(path: Path, samples: Iterable[Any]) -> str:
    """Write samples with the writer of webdataset, as users of atdata do, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as out:
        for one in samples:
            out.write(one.as_wds)
    return str(path)


def write_shards(folder: Path, count: int = 10, per_shard: int = 4, name: str = "data") -> str:
    """Write pictures into shards and return their brace pattern."""
    shards = range(0, count, per_shard)
    for number, start in enumerate(shards):
        write_tar(folder / f"{name}-{number:06d}.tar", map(picture, range(start, min(start + per_shard, count))))
    return f"{folder}/{name}-{{000000..{len(shards) - 1:06d}}}.tar"
