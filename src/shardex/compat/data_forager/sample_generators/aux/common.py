"""Parts of a sample, and the interface of generators of values for their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass
class Part:
    """A text of a sample, with what it is: "system", "prompt", "response", "thinking", "text" or any other word."""

    type: str
    text: str


class AuxDataGenerator(Protocol):
    """Makes one value for each token of a part, and one for the end of a document."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        ...

    def generate(self, part_type: str, num_tokens: int, *, part_tokens: list[int] | None = None) -> list[int]:
        """Return the values for the tokens of a part."""
        ...

    def generate_for_eos(self) -> int:
        """Return the value for the token at the end of a document."""
        ...
