"""`LossMaskGenerator`: which tokens the loss leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardex.compat.data_forager.sample_generators.aux.common import AuxDataGenerator


class LossMaskGenerator(AuxDataGenerator):
    """Masks parts of some types: 1 for tokens that the loss leaves out, 0 for those to train on.

    `masked_types` is ``{"system", "prompt"}`` by default; `mask_eos` masks the token at the end of documents too.
    """

    def __init__(self, masked_types: set[str] | None = None, mask_eos: bool = False) -> None:
        self._masked_types = {"system", "prompt"} if masked_types is None else masked_types
        self._mask_eos = mask_eos

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a mask, uint8."""
        return np.dtype(np.uint8)

    def generate(self, part_type: str, num_tokens: int, *, part_tokens: list[int] | None = None) -> list[int]:
        """Return the mask of a part."""
        return [int(part_type in self._masked_types)] * num_tokens

    def generate_for_eos(self) -> int:
        """Return the mask of the token at the end of a document."""
        return int(self._mask_eos)
