"""The hashes of keys: pinned, the same for one as for many, and refused for what is no key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import SchemaError
from shardex.store.keys import Key, KeyIndex, hash_key, hash_keys

numbers = st.integers(-(2**63), 2**64 - 1) | st.integers(-5, 5)
any_keys = st.one_of(numbers, st.text(max_size=5), st.binary(max_size=5))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0x2D06800538D394C2),
        ("a", 0xE6C632B61E964E1F),
        (b"\x00", 0xC44BDFF4074EECDB),
        ("grüße", 0x5746690366EBBCAD),
        ("sample-000000001", 0xA64E50D228399219),
        ("x" * 100, 0xC90984FFDF50CE42),
        (b"y" * 1000, 0x6A7DF51DF515DBAB),
        (0, 0),
        (1, 0x5692161D100B05E5),
        (-1, 0xB4D055FCF2CBBD7B),
        (0x9E3779B97F4A7C15, 0xE220A8397B1DCDAF),  # the first number of splitmix64 with seed 0
        (2**63, 0x25C26EA579CEA98A),
        (-(2**63), 0x25C26EA579CEA98A),
    ],
)
def test_hashes_are_pinned(key: Key, expected: int) -> None:
    """Files hold them."""
    assert hash_key(key) == expected
    assert hash_keys([key, key]).tolist() == [expected] * 2


@given(st.lists(any_keys) | st.lists(numbers) | st.lists(st.text()) | st.lists(st.binary()))
def test_many_are_hashed_as_one_is(keys: list[Key]) -> None:
    hashes = hash_keys(keys)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == list(map(hash_key, keys))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", ">i4", ">i8", "uint8", "uint64", ">u2", "O"])
def test_integers_of_any_type_have_the_hash_of_their_value(dtype: str) -> None:
    keys = [0, 1, 100] if np.dtype(dtype).kind == "u" else [0, -1, 100, -128]
    array = np.array(keys, dtype)
    for some in (array, array[::-1][::-1], list(array), tuple(keys)):
        assert hash_keys(some).tolist() == list(map(hash_key, keys))


def test_text_of_any_type_has_the_hash_of_its_value() -> None:
    expected = list(map(hash_key, ["a", "bc"]))
    for array in (np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array(["a", "bc"], object)):
        assert hash_keys(array).tolist() == hash_keys(list(array)).tolist() == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([1, 2.0], r"int, str or bytes, got float 2.0 - at key 1"),
        ([True], r"got bool True - at key 0"),
        (["a", None], r"got NoneType None - at key 1"),
        ([1, [2]], r"got list \[2\] - at key 1"),
        ([0, 1, 2**64], r"from -2\*\*63 to 2\*\*64-1, got 18446744073709551616 - at key 2"),
        ([-(2**63) - 1], r"got -9223372036854775809 - at key 0"),
        (["a", "\ud800"], r"UTF-8 can encode, got '\\ud800' \(surrogates not allowed\) - at key 1"),
        (np.array([1.5]), r"got float 1.5 - at key 0"),
        (np.array([False]), r"got bool False - at key 0"),
        (np.array(["2026-01-01"], "datetime64[D]"), r"got date .* - at key 0"),
        ([np.bool_(True)], r"got bool.* - at key 0"),
        (np.array([[1]]), r"got list \[1\] - at key 0"),
        ("abc", r"expected many keys, got one, 'abc'; put it into a list"),
        (b"abc", r"expected many keys, got one"),
        (7, r"expected many keys, got one, 7"),
    ],
)
def test_what_is_no_key_is_refused(keys: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        hash_keys(keys)
    with pytest.raises(SchemaError, match=message):
        KeyIndex([], np.array([], np.int64), lambda rows: []).find(keys)


@pytest.mark.parametrize("key", [1.0, True, None, 2**64, "\ud800", (1,)])
def test_a_single_one_is_refused_too(key: Any) -> None:
    with pytest.raises(SchemaError, match="expected a key"):
        KeyIndex([], np.array([], np.int64), lambda rows: []).get(key)
