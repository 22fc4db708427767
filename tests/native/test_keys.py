"""Hashes of keys, look-ups by key compared with a plain dict, and duplicates, with and without colliding hashes."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError, FormatError, SchemaError, ShardexError, UnknownKeyError
from shardex.kernel import Integers
from shardex.native import keys as module
from shardex.native.keys import (
    DuplicateKey,
    Hashes,
    Key,
    KeyIndex,
    Keys,
    KeyTable,
    encode_keys,
    find_duplicate,
    find_existing,
)
from shardex.native.keys import hash_key as true_hash_key
from shardex.native.keys import hash_keys as true_hash_keys

numbers = st.integers(-(2**63), 2**64 - 1) | st.integers(-5, 5)
any_keys = st.one_of(numbers, st.text(max_size=5), st.binary(max_size=5))
few_keys = st.sampled_from([-1, 0, 1, 2**64 - 1, "", "a", "ä", b"", b"a", b"\x00"])
hash_counts = st.sampled_from([None, 1, 3])
"""Number of different hashes; None: all."""


@contextmanager
def hashing(count: int | None, chunk: int = 1 << 20) -> Iterator[None]:
    """Limit the number of different hashes, and the size of the chunks in which tables are compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        if count is not None:
            patch.setattr(module, "hash_keys", lambda keys: true_hash_keys(keys) % np.uint64(count))
            patch.setattr(module, "hash_key", lambda key: true_hash_key(key) % count)
        yield


def table_of(keys: Keys) -> KeyTable:
    return KeyTable(*encode_keys(vars(module)["hash_keys"](keys)))


class Stored:
    """Keys in memory, with the functions `read` and `is_live` of `KeyIndex`."""

    def __init__(self, keys: Sequence[Any], dead: Sequence[int] = ()) -> None:
        self.keys, self.dead = keys, dead

    def read(self, rows: Integers) -> list[Key]:
        return [self.keys[row] for row in rows.tolist()]

    def is_live(self, rows: Integers) -> Any:
        return ~np.isin(rows, np.array(self.dead, np.int64))


def index_of(keys: Sequence[Key], cuts: Sequence[int] = (), dead: Sequence[int] = ()) -> KeyIndex:
    """An index of keys in fragments that end at the cuts."""
    ends = [0, *sorted(cut for cut in cuts if cut <= len(keys)), len(keys)]
    tables = [table_of(keys[begin:end]) for begin, end in pairwise(ends)]
    stored = Stored(keys, dead)
    return KeyIndex(tables, np.array(ends[:-1]), stored.read, stored.is_live if dead else None)


# -- hashes ------------------------------------------------------------------------------------------------


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
    """They are stored in files."""
    assert true_hash_key(key) == expected
    assert true_hash_keys([key, key]).tolist() == [expected] * 2


@given(st.lists(any_keys) | st.lists(numbers) | st.lists(st.text()) | st.lists(st.binary()))
def test_many_keys_have_the_hashes_of_single_ones(keys: list[Key]) -> None:
    hashes = true_hash_keys(keys)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == list(map(true_hash_key, keys))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", ">i4", ">i8", "uint8", "uint64", ">u2", "O"])
def test_integers_of_any_type_have_the_hash_of_their_value(dtype: str) -> None:
    keys = [0, 1, 100] if np.dtype(dtype).kind == "u" else [0, -1, 100, -128]
    array = np.array(keys, dtype)
    for some in (array, array[::-1][::-1], list(array), tuple(keys)):
        assert true_hash_keys(some).tolist() == list(map(true_hash_key, keys))


def test_text_of_any_type_has_the_hash_of_its_value() -> None:
    expected = list(map(true_hash_key, ["a", "bc"]))
    for array in (np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array(["a", "bc"], object)):
        assert true_hash_keys(array).tolist() == true_hash_keys(list(array)).tolist() == expected


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
def test_invalid_keys_raise(keys: Any, message: str) -> None:
    with pytest.raises((ArgumentError, SchemaError), match=message):
        true_hash_keys(keys)
    with pytest.raises((ArgumentError, SchemaError), match=message):
        KeyIndex([], np.array([], np.int64), lambda rows: []).find(keys)


@pytest.mark.parametrize("key", [1.0, True, None, 2**64, "\ud800", (1,)])
def test_invalid_single_key_raises(key: Any) -> None:
    with pytest.raises(SchemaError, match="expected a key"):
        KeyIndex([], np.array([], np.int64), lambda rows: []).get(key)


# -- one fragment ------------------------------------------------------------------------------------------

some_hashes = st.lists(st.integers(0, 6) | st.integers(0, 2**64 - 1), max_size=40).map(lambda h: np.array(h, np.uint64))


@given(some_hashes)
def test_key_table_is_sorted_by_hash_and_row(hashes: Hashes) -> None:
    hash, row = encode_keys(hashes)
    assert list(zip(hash.tolist(), row.tolist(), strict=True)) == sorted(
        zip(hashes.tolist(), range(len(hashes)), strict=True)
    )
    assert hash.dtype == row.dtype == np.uint64


@given(some_hashes, some_hashes)
def test_key_table_finds_every_row_with_a_hash(stored: Hashes, asked: Hashes) -> None:
    table = KeyTable(*encode_keys(stored))
    pairs = {(k, row) for k, hash in enumerate(asked) for row, other in enumerate(stored) if hash == other}
    for hashes in (asked, np.sort(asked)):
        which, rows = table.find(hashes)
        assert which.dtype == rows.dtype == np.int64
        assert len(which) == len(pairs)
        assert (stored[rows] == hashes[which]).all()
    which, rows = table.find(asked)
    assert set(zip(which.tolist(), rows.tolist(), strict=True)) == pairs
    for hash in asked:
        assert table.rows_with(hash) == np.flatnonzero(stored == hash).tolist()


def test_key_table_does_not_copy_the_mapped_file(tmp_path: Path) -> None:
    keys = [f"key {k}" for k in range(1000)]
    batch = pa.record_batch(list(map(pa.array, encode_keys(true_hash_keys(keys)))), ["hash", "row"])
    with pa.OSFile(str(tmp_path / "keys.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.memory_map(str(tmp_path / "keys.arrow")) as mapped:
        buffers = [column.buffers()[1] for column in pa.ipc.open_file(mapped).get_batch(0).columns]
        hash, row = (np.frombuffer(buffer, np.uint64, len(keys)) for buffer in buffers)
        table = KeyTable(hash, row)
        assert np.shares_memory(table.hash, hash) and np.shares_memory(table.row, row)
        assert not table.hash.flags.writeable
        index = KeyIndex([table], np.array([0]), Stored(keys).read)
        assert index.rows_of(keys[::-1]).tolist() == list(range(1000))[::-1]
        del index, table, hash, row, buffers


def test_columns_or_starts_of_different_lengths_raise() -> None:
    with pytest.raises(FormatError, match="as many rows as hashes in a table of keys, got 1 and 2"):
        KeyTable(np.zeros(2, np.uint64), np.zeros(1, np.uint64))
    with pytest.raises(FormatError, match="a first row for each of 0 tables of keys, got 1"):
        KeyIndex([], np.array([0]), Stored([]).read)


# -- all fragments -----------------------------------------------------------------------------------------


@given(
    st.lists(any_keys | few_keys, unique=True),
    st.lists(st.integers(0, 20), max_size=4),
    st.lists(st.integers(0, 20), max_size=4),
    st.lists(any_keys | few_keys),
    hash_counts,
)
def test_index_finds_what_a_dict_finds(
    keys: list[Key], cuts: list[int], dead: list[int], others: list[Key], hashes: int | None
) -> None:
    with hashing(hashes):
        index = index_of(keys, cuts, dead)
        expected = {key: row for row, key in enumerate(keys) if row not in dead}
        asked = [*others, *keys, *others, *keys[:3]]
        found = index.find(asked)
        assert found.dtype == np.int64
        assert found.tolist() == [expected.get(key, -1) for key in asked]
        assert [index.get(key) for key in asked] == [expected.get(key) for key in asked]
        assert index.rows_of(list(expected)).tolist() == list(expected.values())


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_keys_may_be_arrays(dtype: str) -> None:
    """Numbers with the same 64 bits and another sign are different keys."""
    stored = np.array([3, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    index = KeyIndex([table_of(stored)], np.array([0]), lambda rows: stored[rows])
    assert index.rows_of(stored[::-1]).tolist() == index.rows_of(stored.tolist()[::-1]).tolist() == [2, 1, 0]
    assert [index.get(key) for key in stored] == [index.get(key) for key in stored.tolist()] == [0, 1, 2]
    twins = [key + 2**64 if key < 0 else key - 2**64 for key in stored.tolist() if not 0 <= key < 2**63]
    assert index.find(twins).tolist() == [-1] * len(twins)
    assert not any(index.get(twin) for twin in twins)
    assert index.find(["3", b"3"]).tolist() == [-1, -1]


def test_text_and_bytes_are_different_keys() -> None:
    assert index_of(["a", b"a"]).find([b"a", "a"]).tolist() == [1, 0]
    assert index_of(["a"]).find([b"a"]).tolist() == [-1]


def test_empty_index() -> None:
    for index in (KeyIndex([], np.array([], np.int64), Stored([]).read), index_of([]), index_of([], [0, 0])):
        assert index.find(["a", 1]).tolist() == [-1, -1]
        assert index.find([]).tolist() == index.find(np.array([])).tolist() == index.rows_of([]).tolist() == []
        assert index.get("a") is None


def test_unknown_keys_are_named_and_counted() -> None:
    index = index_of(["a", "b", 5], [1], dead=[1])
    with pytest.raises(UnknownKeyError) as caught:
        index.rows_of(["a", "b", "c", "b"])
    assert str(caught.value) == "expected existing keys, got 'b' - at key 1 (3 of 4 are missing)"
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, ShardexError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnknownKeyError, match=r"^expected existing keys, got 7 - at key 0 "):
        index.rows_of(np.array([7, 5]))
    with pytest.raises(UnknownKeyError, match=r"^expected an existing key, got 'b'$"):
        index.row_of("b")
    assert index.row_of("a") == 0
    assert str(UnknownKeyError()) == ""


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_two_live_rows_with_one_key_raise(cuts: Sequence[int]) -> None:
    keys: list[Key] = ["a", "b", "c", "b"]
    for ask in (index_of(keys, cuts).get, lambda key: index_of(keys, cuts).find(["a", key])):
        with pytest.raises(FormatError, match=r"expected one row with the key 'b', got the rows \[1, 3\]"):
            ask("b")
    assert index_of(keys, cuts).get("a") == 0
    assert index_of(keys, cuts, dead=[1]).get("b") == index_of(keys, cuts, dead=[1]).find(["b"])[0] == 3


def test_fragment_with_a_second_table_for_changed_keys() -> None:
    """Row 1 has got another key; row 2 had another one for a while and has its first one again."""
    changed = table_of(["B", "c"])
    tables = [table_of(["a", "b", "c"]), KeyTable(changed.hash, changed.row + np.uint64(1))]
    index = KeyIndex(tables, np.array([0, 0]), Stored(["a", "B", "c"]).read)
    assert index.find(["a", "b", "c", "B"]).tolist() == [0, -1, 2, 1]
    assert list(map(index.get, ["a", "b", "c", "B"])) == [0, None, 2, 1]


def test_get_reads_with_read_one() -> None:
    def never(rows: Integers) -> list[Key]:
        raise AssertionError("read was called")

    keys = ["a", "b"]
    index = KeyIndex([table_of(keys)], np.array([10]), never, read_one=lambda row: keys[row - 10])
    assert index.get("b") == 11


# -- keys that are used twice ------------------------------------------------------------------------------


@given(st.lists(few_keys | any_keys, max_size=12), hash_counts, st.integers(1, 5))
def test_find_duplicate(keys: list[Key], hashes: int | None, chunk: int) -> None:
    with hashing(hashes, chunk):
        found = find_duplicate(table_of(keys), Stored(keys).read)
    assert (found is not None) == (len(set(keys)) < len(keys))
    if found:
        assert keys[found.row] == keys[found.other] == found.key
        assert found.other < found.row


unique = st.lists(few_keys | any_keys, max_size=12, unique=True)


@given(unique, unique, st.lists(st.integers(0, 12), max_size=3), st.lists(st.integers(0, 12), max_size=5), st.data())
def test_find_existing(old: list[Key], new: list[Key], cuts: list[int], dead: list[int], data: st.DataObject) -> None:
    with hashing(data.draw(hash_counts), data.draw(st.integers(1, 5))):
        found = find_existing(table_of(new), Stored(new).read, index_of(old, cuts, dead))
    assert (found is not None) == bool({*new} & {key for row, key in enumerate(old) if row not in dead})
    if found:
        assert new[found.row] == old[found.other] == found.key
        assert found.other not in dead


def test_the_duplicate_with_the_least_hash_is_returned() -> None:
    """In whatever fragment it is, so that the same data give the same message."""
    keys: list[Key] = [f"key {k}" for k in range(100)]
    least = min(keys, key=true_hash_key)
    row = keys.index(least)
    assert find_existing(table_of(keys), Stored(keys).read, index_of(keys, [10, 50])) == DuplicateKey(least, row, row)
    assert find_duplicate(table_of(keys * 2), Stored(keys * 2).read) == DuplicateKey(least, row + 100, row)


def test_duplicate_numbers_are_python_ints() -> None:
    stored = np.array([7, 7])
    found = find_duplicate(table_of(stored), lambda rows: stored[rows])
    assert repr(found) == "DuplicateKey(key=7, row=1, other=0)"
    index = KeyIndex([table_of(stored[:1])], np.array([5]), lambda rows: stored[rows - 5])
    found = find_existing(table_of(stored[1:]), lambda rows: stored[rows], index)
    assert repr(found) == "DuplicateKey(key=7, row=0, other=5)"


def test_finding_duplicates_takes_the_memory_of_a_chunk() -> None:
    entries, chunk = 1 << 20, 1 << 12
    table = KeyTable(np.arange(entries, dtype=np.uint64) * 2, np.arange(entries, dtype=np.uint64))
    others = KeyTable(table.hash + np.uint64(1), table.row)
    index = KeyIndex([others], np.array([0]), Stored([]).read)
    with hashing(None, chunk):
        tracemalloc.start()
        try:
            assert find_duplicate(table, Stored([]).read) is None
            assert find_existing(table, Stored([]).read, index) is None
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 100 * chunk
