"""Which place a path or an address means, and doing something with many files there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shardex.errors import ShardexError, UnsafeError
from shardex.sources import LocalSource, drop_folders, each, is_local, place_of
from shardex.sources.memory import MemorySource


def test_paths_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "a", str(tmp_path / "a"), f"file://{tmp_path}/a", "a", "~/a"):
        place = place_of(given)
        assert is_local(place) and place.url == str(tmp_path / "a")


def test_addresses_are_places() -> None:
    place_of("memory://test-places/a/").put("x", b"1")
    place = place_of("memory://test-places/a")
    assert not is_local(place) and place.paths() == ["x"]


def test_what_is_neither() -> None:
    with pytest.raises(ShardexError, match="expected an address that begins with"):
        place_of("gopher://x")
    for command in ("pipe:cat x", "pipe:curl http://x"):
        with pytest.raises(UnsafeError, match="never runs commands"):
            place_of(command)


def test_each_keeps_the_order_and_lets_errors_through(tmp_path: Path) -> None:
    for place in (MemorySource(), LocalSource(tmp_path)):
        assert each(place, lambda k: k * 2, range(100)) == list(range(0, 200, 2))
        with pytest.raises(ZeroDivisionError):
            each(place, lambda k: 1 // k, [1, 0])


def test_each_waits_for_several_answers_at_once_where_they_take_long() -> None:
    gate = threading.Barrier(8, timeout=30)
    assert len(each(MemorySource(), lambda _: gate.wait(), range(8))) == 8


def test_only_empty_folders_are_dropped(tmp_path: Path) -> None:
    place = LocalSource(tmp_path / "d")
    for folder in ("a", "b"):
        os.makedirs(tmp_path / "d" / folder)
    place.put("b/x", b"")
    drop_folders(place, "a", "b", "c")
    assert os.listdir(tmp_path / "d") == ["b"]
    place.remove("b/x")
    drop_folders(place, "b")
    assert not (tmp_path / "d").exists()
    drop_folders(MemorySource(), "a")
