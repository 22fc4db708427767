"""Token ids as tokenizers return them, and as they are stored: lists, tuples, arrays, tensors and objects to one array.

`one_ids` and `batch_ids` bring what a function has returned into lists or arrays; `JoinedIds` joins the ids of many
documents without a Python object for each token, adds the tokens at begin and end, and checks that all fit a dtype.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.dataset import SampleFailure
from shardex.errors import SchemaError
from shardex.features import describe
from shardex.kernel import Integers

Ids = list[int] | NDArray[Any]
"""Ids of the tokens of one document."""

WIDEST = (1 << 32) - 1
"""The highest id."""


def one_ids(result: Any, tokenizer: object) -> Ids:
    """Return the ids that a function has returned for one text: a list, an array, a tensor, or an object with ids.

    >>> one_ids((1, 2), "t"), one_ids({"input_ids": [3]}, "t"), one_ids(np.array([[4, 5]]), "t")
    ([1, 2], [3], array([4, 5]))
    """
    if type(result) is list:
        return result
    if isinstance(result, np.ndarray):
        return result[0] if result.ndim == 2 and len(result) == 1 else result
    if isinstance(result, tuple | range | array):
        return list(result)
    if isinstance(result, Mapping) and "input_ids" in result:
        return one_ids(result["input_ids"], tokenizer)
    if hasattr(type(result), "ids"):
        return list(result.ids)
    if _is_tensor(result):
        return one_ids(result.detach().cpu().numpy(), tokenizer)
    if hasattr(result, "__array__"):
        return one_ids(np.asarray(result), tokenizer)
    raise SchemaError(f"expected token ids (a list or array of integers) from {tokenizer!r}, got {describe(result)}")


def batch_ids(result: Any, count: int, tokenizer: object) -> list[Ids]:
    """Return the ids that a function has returned for `count` texts.

    >>> batch_ids({"input_ids": [[1, 2], [3]]}, 2, "t")
    [[1, 2], [3]]
    """
    if isinstance(result, Mapping) and "input_ids" in result:
        result = result["input_ids"]
    if _is_tensor(result):
        result = result.detach().cpu().numpy()
    sized = isinstance(result, list | tuple) or (isinstance(result, np.ndarray) and result.ndim >= 1)
    if not sized or len(result) != count:
        found = f"{len(result)}" if sized else describe(result)
        raise SchemaError(f"expected token ids for each of {count} texts from {tokenizer!r}, got {found}")
    return [one_ids(one, tokenizer) for one in result]


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


class JoinedIds:
    """The ids of many documents end to end in `values` (uint32), with the `offsets` of documents.

    >>> joined = JoinedIds(bos=None, eos=0); joined.extend([[5, 6], np.array([7])]); joined.values, joined.offsets
    (array([5, 6, 0, 7, 0], dtype=uint32), array([0, 3, 5]))
    """

    def __init__(self, bos: int | None, eos: int | None) -> None:
        self._bos, self._eos = bos, eos
        self._joined = array("I")
        self._ends = [0]

    def extend(self, documents: Sequence[Ids]) -> None:
        """Add documents."""
        joined, ends, first = self._joined, self._ends, len(self._ends) - 1
        bos, eos, fromlist, append, end = self._bos, self._eos, joined.fromlist, joined.append, ends.append
        try:
            for ids in documents:
                if bos is not None:
                    append(bos)
                if type(ids) is list:
                    fromlist(ids)
                else:
                    joined.frombytes(_checked(ids).tobytes())
                if eos is not None:
                    append(eos)
                end(len(joined))
        except (TypeError, OverflowError, ValueError):
            number = len(ends) - 1
            raise SampleFailure(number, _wrong_ids(documents[number - first])) from None

    @property
    def values(self) -> NDArray[np.uint32]:
        """All ids; nothing can be added any more."""
        return np.frombuffer(self._joined, np.uint32) if self._joined else np.zeros(0, np.uint32)

    @property
    def offsets(self) -> Integers:
        """Begin of each document, and the end of the last one."""
        return np.array(self._ends, np.int64)


def _checked(ids: Any) -> NDArray[np.uint32]:
    """Return an array of ids as uint32, or raise one of the errors of `array`."""
    found = np.asarray(ids)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        raise TypeError
    if found.size and found.dtype != np.uint32 and (found.min() < 0 or found.max() > WIDEST):
        raise OverflowError
    return found.astype(np.uint32, copy=False)


def _wrong_ids(ids: Any) -> SchemaError:
    """Return the error for ids that are not integers from 0 to 2**32 - 1, which names the first wrong one."""
    if isinstance(ids, np.ndarray) and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
        return SchemaError(f"expected token ids in an array of integers of one dimension, got {describe(ids)}")
    for number, one in enumerate(ids):
        if not isinstance(one, int | np.integer):
            return SchemaError(f"expected token ids (integers), got {describe(one)} at token {number}")
        if not 0 <= one <= WIDEST:
            return SchemaError(f"expected token ids from 0 to {WIDEST}, got {one} at token {number}")
    return SchemaError(f"expected token ids, got {describe(ids)}")
