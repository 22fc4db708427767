"""Names of splits, and what a builder says of one split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Split:
    """Names of the usual splits."""

    TRAIN = "train"
    TEST = "test"
    VALIDATION = "validation"


@dataclass
class SplitGenerator:
    """A split, and the keywords with which a builder's `_generate_examples` makes its examples.

    >>> SplitGenerator(name=Split.TRAIN, gen_kwargs={"data_path": "train.zip"}).name
    'train'
    """

    name: str
    gen_kwargs: dict[str, Any] = field(default_factory=dict)
