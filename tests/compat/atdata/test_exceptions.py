"""Exceptions of atdata have the types that its users catch, say what is wrong, and cross processes."""

import pickle

import pytest

from shardex import errors
from shardex.compat.atdata._exceptions import (
    AppViewError,
    AppViewRequiredError,
    AppViewUnavailableError,
    AtdataError,
    LensNotFoundError,
    PartialFailureError,
    SampleKeyError,
    SchemaError,
    ShardError,
)

MADE: list[tuple[AtdataError, tuple[type[BaseException], ...], str]] = [
    (LensNotFoundError(int, str, [(float, "widen")]), (ValueError, errors.LensError), "float (by widen)"),
    (SchemaError("a message"), (errors.SchemaError,), "a message"),
    (SchemaError("Point", ["x", "y"], ["x", "z"]), (TypeError,), "missing: y, too many: z"),
    (SampleKeyError("k"), (KeyError, errors.UnknownKeyError), "the key 'k'"),
    (ShardError("a.tar", reason="cut off"), (), "'a.tar': cut off"),
    (PartialFailureError(["a"], ["b"], {"b": OSError("gone")}, {"a": 1}), (), "1 of 2 shards failed:\n  b: gone"),
    (AppViewUnavailableError("https://x", "timeout"), (AppViewError,), "https://x"),
    (AppViewRequiredError("search"), (AppViewError,), "search"),
]


@pytest.mark.parametrize(("error", "types", "text"), MADE, ids=[type(one[0]).__name__ for one in MADE])
def test_types_and_messages(error: AtdataError, types: tuple[type[BaseException], ...], text: str) -> None:
    assert isinstance(error, AtdataError) and isinstance(error, errors.ShardexError)
    assert all(isinstance(error, one) for one in types)
    assert text in str(error)


@pytest.mark.parametrize("error", [one[0] for one in MADE], ids=[type(one[0]).__name__ for one in MADE])
def test_errors_are_pickled(error: AtdataError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again).keys() == vars(error).keys()


def test_attributes() -> None:
    partly = PartialFailureError(["a"], ["b"], {"b": OSError("gone")}, {"a": 1})
    assert (partly.succeeded_shards, partly.failed_shards, partly.results) == (["a"], ["b"], {"a": 1})
    assert isinstance(partly.errors["b"], OSError)
    assert SampleKeyError("k").key == "k"
    assert SchemaError("Point", ["x"], []).expected_fields == ["x"]
    assert LensNotFoundError(int, str).available_targets == []
