"""Options of a loader: what is accepted, and which error each invalid value raises."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError
from shardex.loader.options import LoaderArguments, LoaderOptions


def test_numbers_and_flags_are_normalised() -> None:
    options = LoaderOptions(np.int64(4), shuffle=1, seed=np.uint8(3), epochs=None)  # type: ignore[arg-type]
    assert (options.batch_size, options.shuffle, options.seed, options.epochs) == (4, True, 3, None)
    assert type(options.batch_size) is int and type(options.shuffle) is bool


def test_type_checkers_and_the_signature_know_every_option() -> None:
    signature, checked = inspect.signature(sx.Loader), get_type_hints(LoaderArguments)
    decide_the_type = {"dataset", "batch_size", "fields", "transform", "collate"}
    assert set(signature.parameters) == decide_the_type | set(checked)
    types = get_type_hints(LoaderOptions)
    for name in checked.keys() - {"rank", "world_size", "window"}:  # None stands for a number that is found
        assert checked[name] == types[name], name
    assert signature.parameters["rank"].default is None and signature.parameters["epochs"].default == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "expected at least 1 for batch_size, got 0"),
        ({"batch_size": 2.5}, "expected a whole number for batch_size, got 2.5"),
        ({"epochs": 0}, "expected at least 1 for epochs"),
        ({"workers": -1}, "expected at least 0 for workers"),
        ({"rank": 2, "world_size": 2}, "expected a rank from 0 to 1, got 2"),
        ({"rank": 1}, "expected rank and world_size together"),
        ({"to": "jax"}, "expected one of 'numpy', 'torch' for to, got 'jax'"),
        ({"ragged": "cut"}, "expected one of 'pad', 'pack', 'list' for ragged"),
        ({"on_error": "ignore"}, "for on_error, got 'ignore'"),
        ({"worker_type": "fork"}, "for worker_type, got 'fork'"),
        ({"window": 4, "shuffle": True}, "expected block= together with window=, got window=4"),
        ({"fill": "x"}, "expected a number for fill, .*, got 'x'"),
        ({"fill": [1, 2]}, "expected a number for fill"),
        ({"fill": [[1], [2, 3]]}, "expected a number for fill"),
        ({"fill": {"x": "y"}}, r"expected a number for fill\['x'\]"),
        ({"fill": {"typo": 1}}, "expected fill for the fields x, got 'typo'"),
        ({"fill": {"X": 1}}, "got 'X': did you mean 'x'"),
        ({"block": 4}, "expected shuffle=True together with block="),
        ({"pin_memory": True}, 'expected to="torch"'),
        ({"transform": 5}, "expected a function for transform, got 5"),
        ({"on_error": "a function"}, "expected one of 'raise', 'skip' for on_error"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.Loader([{"x": 1}], **{"batch_size": 4, **options})


def test_fill_of_unknown_fields_of_a_transform_names_each_field_once() -> None:
    loader = sx.Loader([{"x": 1}], 1, transform=lambda sample: {"x": 1, "y": 2}, fill={"z": 1})
    with pytest.raises(ArgumentError, match="expected fill for the fields x, y, got 'z'"):
        next(iter(loader))


def test_fill_of_fields_that_a_transform_makes_is_not_checked() -> None:
    loader = sx.Loader([{"x": 1}], 4, transform=lambda sample: {"y": np.arange(sample.x)}, fill={"y": -1})
    assert next(iter(loader)).y.tolist() == [[0]]
