"""Files in memory, beyond what `test_source.py` asks of every source."""

from __future__ import annotations

import pytest

from shardex.errors import PathError
from shardex.sources.memory import MemorySource


def test_it_begins_with_what_it_is_given() -> None:
    place = MemorySource({"a": b"1", "b/c": b"2"})
    assert place.paths() == ["a", "b/c"]
    assert bytes(place.map("b/c")) == b"2"


def test_it_keeps_a_copy() -> None:
    data = bytearray(b"one")
    place = MemorySource()
    place.put("a", data)
    place.put_if_absent("b", data)
    data[:] = b"two"
    assert bytes(place.map("a")) == bytes(place.map("b")) == b"one"


def test_it_checks_the_paths_it_is_given() -> None:
    with pytest.raises(PathError):
        MemorySource({"../a": b""})


def test_the_tag_tells_the_content() -> None:
    assert MemorySource({"a": b"1"}).stat("a").tag == MemorySource({"a": b"1"}).stat("a").tag
    assert MemorySource({"a": b"1"}).stat("a").tag != MemorySource({"a": b"2"}).stat("a").tag
