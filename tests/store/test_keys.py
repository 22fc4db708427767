"""Look-ups by key are against a plain dict, with hashes that collide and hashes that do not."""

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

from shardex.errors import FormatError, ShardexError, UnknownKeyError
from shardex.kernel import Integers
from shardex.store import key_lookup as clashes
from shardex.store import keys as module
from shardex.store.key_lookup import Clash, first_clash, first_duplicate
from shardex.store.keys import Hashes, Key, KeyIndex, Keys, KeyTable, encode_keys
from shardex.store.keys import hash_key as true_hash_key
from shardex.store.keys import hash_keys as true_hash_keys

numbers = st.integers(-(2**63), 2**64 - 1) | st.integers(-5, 5)
any_keys = st.one_of(numbers, st.text(max_size=5), st.binary(max_size=5))
few_keys = st.sampled_from([-1, 0, 1, 2**64 - 1, "", "a", "ä", b"", b"a", b"\x00"])
weak_or_not = st.sampled_from([None, 1, 3])
"""How many hashes there are; None: all."""


@contextmanager
def hashing(count: int | None, chunk: int = 1 << 20) -> Iterator[None]:
    """Only so many different hashes, and tables walked in chunks of this size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clashes, "_CHUNK", chunk)
        if count is not None:
            patch.setattr(module, "hash_keys", lambda keys: true_hash_keys(keys) % np.uint64(count))
            patch.setattr(module, "hash_key", lambda key: true_hash_key(key) % count)
        yield


def table_of(keys: Keys) -> KeyTable:
    return KeyTable(*encode_keys(vars(module)["hash_keys"](keys)))


class Stored:
    """Keys in memory, as `read` and `alive` give them."""

    def __init__(self, keys: Sequence[Any], dead: Sequence[int] = ()) -> None:
        self.keys, self.dead = keys, dead

    def read(self, rows: Integers) -> list[Key]:
        return [self.keys[row] for row in rows.tolist()]

    def alive(self, rows: Integers) -> Any:
        return ~np.isin(rows, np.array(self.dead, np.int64))


def index_of(keys: Sequence[Key], cuts: Sequence[int] = (), dead: Sequence[int] = ()) -> KeyIndex:
    """An index of keys in fragments that end at the cuts."""
    ends = [0, *sorted(cut for cut in cuts if cut <= len(keys)), len(keys)]
    tables = [table_of(keys[begin:end]) for begin, end in pairwise(ends)]
    stored = Stored(keys, dead)
    return KeyIndex(tables, np.array(ends[:-1]), stored.read, stored.alive if dead else None)


# -- one fragment ------------------------------------------------------------------------------------------

some_hashes = st.lists(st.integers(0, 6) | st.integers(0, 2**64 - 1), max_size=40).map(lambda h: np.array(h, np.uint64))


@given(some_hashes)
def test_a_table_is_sorted_by_hash_and_row(hashes: Hashes) -> None:
    hash, row = encode_keys(hashes)
    assert list(zip(hash.tolist(), row.tolist(), strict=True)) == sorted(
        zip(hashes.tolist(), range(len(hashes)), strict=True)
    )
    assert hash.dtype == row.dtype == np.uint64


@given(some_hashes, some_hashes)
def test_a_table_finds_every_row_with_a_hash(stored: Hashes, asked: Hashes) -> None:
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


def test_a_table_is_what_the_file_holds_and_not_a_copy(tmp_path: Path) -> None:
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


def test_a_table_with_a_part_missing_is_refused() -> None:
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
    weak_or_not,
)
def test_an_index_is_a_dict(
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
    """Also where the sign makes the difference: numbers of the same bits are not the same key."""
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


def test_there_may_be_nothing() -> None:
    for index in (KeyIndex([], np.array([], np.int64), Stored([]).read), index_of([]), index_of([], [0, 0])):
        assert index.find(["a", 1]).tolist() == [-1, -1]
        assert index.find([]).tolist() == index.find(np.array([])).tolist() == index.rows_of([]).tolist() == []
        assert index.get("a") is None


def test_unknown_keys_are_named_and_counted() -> None:
    index = index_of(["a", "b", 5], [1], dead=[1])
    with pytest.raises(UnknownKeyError) as caught:
        index.rows_of(["a", "b", "c", "b"])
    assert str(caught.value) == "expected keys that are there, got 'b' - at key 1 (3 of 4 are missing)"
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, ShardexError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnknownKeyError, match=r"^expected keys that are there, got 7 - at key 0 "):
        index.rows_of(np.array([7, 5]))
    with pytest.raises(UnknownKeyError, match=r"^expected a key that is there, got 'b'$"):
        index.row_of("b")
    assert index.row_of("a") == 0
    assert str(UnknownKeyError()) == ""


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_two_rows_of_one_key_are_an_error_while_both_are_alive(cuts: Sequence[int]) -> None:
    keys: list[Key] = ["a", "b", "c", "b"]
    for ask in (index_of(keys, cuts).get, lambda key: index_of(keys, cuts).find(["a", key])):
        with pytest.raises(FormatError, match=r"expected one row with the key 'b', got the rows \[1, 3\]"):
            ask("b")
    assert index_of(keys, cuts).get("a") == 0
    assert index_of(keys, cuts, dead=[1]).get("b") == index_of(keys, cuts, dead=[1]).find(["b"])[0] == 3


def test_a_fragment_whose_keys_changed_has_a_second_table() -> None:
    """Row 1 had another key; row 2 had another one meanwhile, and now has the one that it was written with."""
    changed = table_of(["B", "c"])
    tables = [table_of(["a", "b", "c"]), KeyTable(changed.hash, changed.row + np.uint64(1))]
    index = KeyIndex(tables, np.array([0, 0]), Stored(["a", "B", "c"]).read)
    assert index.find(["a", "b", "c", "B"]).tolist() == [0, -1, 2, 1]
    assert list(map(index.get, ["a", "b", "c", "B"])) == [0, None, 2, 1]


def test_one_key_may_be_read_by_a_shorter_way() -> None:
    def never(rows: Integers) -> list[Key]:
        raise AssertionError("read was called")

    keys = ["a", "b"]
    index = KeyIndex([table_of(keys)], np.array([10]), never, read_one=lambda row: keys[row - 10])
    assert index.get("b") == 11


# -- no key twice ------------------------------------------------------------------------------------------


def living(keys: Sequence[Key], dead: Sequence[int]) -> list[Key]:
    return [key for row, key in enumerate(keys) if row not in dead]


rows_to_delete = st.lists(st.integers(0, 12), max_size=5)


@given(st.lists(few_keys | any_keys, max_size=12), rows_to_delete, weak_or_not, st.integers(1, 5))
def test_duplicates_are_found(keys: list[Key], dead: list[int], hashes: int | None, chunk: int) -> None:
    with hashing(hashes, chunk):
        stored = Stored(keys, dead)
        clash = first_duplicate(table_of(keys), stored.read, stored.alive)
    alive = living(keys, dead)
    assert (clash is not None) == (len(set(alive)) < len(alive))
    if clash:
        assert keys[clash.row] == keys[clash.other] == clash.key
        assert clash.other < clash.row
        assert not {clash.row, clash.other} & set(dead)


unique = st.lists(few_keys | any_keys, max_size=12, unique=True)


@given(unique, unique, st.lists(st.integers(0, 12), max_size=3), rows_to_delete, rows_to_delete, weak_or_not, st.data())
def test_clashes_are_found(
    old: list[Key],
    new: list[Key],
    cuts: list[int],
    old_dead: list[int],
    new_dead: list[int],
    hashes: int | None,
    data: st.DataObject,
) -> None:
    with hashing(hashes, data.draw(st.integers(1, 5))):
        stored = Stored(new, new_dead)
        clash = first_clash(table_of(new), stored.read, index_of(old, cuts, old_dead), stored.alive)
    assert (clash is not None) == bool({*living(new, new_dead)} & {*living(old, old_dead)})
    if clash:
        assert new[clash.row] == old[clash.other] == clash.key
        assert clash.row not in new_dead and clash.other not in old_dead


def test_the_first_clash_is_the_one_of_the_least_hash() -> None:
    """Whatever fragment it lies in, so that the same data give the same message."""
    keys: list[Key] = [f"key {k}" for k in range(100)]
    least = min(keys, key=true_hash_key)
    row = keys.index(least)
    assert first_clash(table_of(keys), Stored(keys).read, index_of(keys, [10, 50])) == Clash(least, row, row)
    assert first_duplicate(table_of(keys * 2), Stored(keys * 2).read) == Clash(least, row + 100, row)


def test_keys_of_numbers_are_given_as_python_has_them() -> None:
    stored = np.array([7, 7])
    clash = first_duplicate(table_of(stored), lambda rows: stored[rows])
    assert repr(clash) == "Clash(key=7, row=1, other=0)"
    index = KeyIndex([table_of(stored[:1])], np.array([5]), lambda rows: stored[rows - 5])
    assert repr(first_clash(table_of(stored[1:]), lambda rows: stored[rows], index)) == "Clash(key=7, row=0, other=5)"


def test_memory_is_that_of_a_chunk() -> None:
    entries, chunk = 1 << 20, 1 << 12
    table = KeyTable(np.arange(entries, dtype=np.uint64) * 2, np.arange(entries, dtype=np.uint64))
    others = KeyTable(table.hash + np.uint64(1), table.row)
    index = KeyIndex([others], np.array([0]), Stored([]).read)
    with hashing(None, chunk):
        tracemalloc.start()
        try:
            assert first_duplicate(table, Stored([]).read) is None
            assert first_clash(table, Stored([]).read, index) is None
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 100 * chunk
