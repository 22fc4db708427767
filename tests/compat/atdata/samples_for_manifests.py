"""A sample class with every kind of field that manifests have."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from shardex.compat.atdata import ManifestField, PackableSample


class Shot(PackableSample):
    """A picture and what is known about it."""

    image: NDArray[Any]
    label: Annotated[str, ManifestField("categorical")]
    n: int
    score: float | None
    tags: list[str]
    flag: bool
    blob: bytes = b""
    secret: Annotated[str, ManifestField("categorical", exclude=True)] = "no"


def shots(count: int) -> list[Shot]:
    """Return samples, of which the one with number 3 has no score."""
    return [
        Shot(np.arange(k, dtype=np.float32), "ab"[k % 2], k, None if k == 3 else k / 2, ["é", f"t{k}"], k % 2 == 0)
        for k in range(count)
    ]
