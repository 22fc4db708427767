"""`MemorySource`, beyond the contract in `test_protocols`."""

from __future__ import annotations

import pytest

from shardex.errors import PathError
from shardex.sources.memory import MemorySource


def test_files_of_the_constructor() -> None:
    place = MemorySource({"a": b"1", "b/c": b"2"})
    assert place.paths() == ["a", "b/c"]
    assert bytes(place.map("b/c")) == b"2"


def test_put_copies_the_data() -> None:
    data = bytearray(b"one")
    place = MemorySource()
    place.put("a", data)
    place.put_if_absent("b", data)
    data[:] = b"two"
    assert bytes(place.map("a")) == bytes(place.map("b")) == b"one"


def test_paths_of_the_constructor_are_checked() -> None:
    with pytest.raises(PathError):
        MemorySource({"../a": b""})


def test_the_tag_depends_on_the_content() -> None:
    assert MemorySource({"a": b"1"}).stat("a").tag == MemorySource({"a": b"1"}).stat("a").tag
    assert MemorySource({"a": b"1"}).stat("a").tag != MemorySource({"a": b"2"}).stat("a").tag
