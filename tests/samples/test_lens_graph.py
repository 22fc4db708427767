"""Shortest paths between types."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import LensError
from shardex.samples.lens_graph import LensGraph


@dataclass(frozen=True)
class Step:
    source: str
    view: str
    label: str


def network(*steps: str) -> LensGraph:
    """Return a graph of edges such as "a>b"."""
    made = LensGraph()
    for number, step in enumerate(steps):
        source, _, view = step.partition(">")
        made.add(Step(source, view, f"{step}#{number}"))
    return made


def way(found: list[Step] | None) -> str | None:
    return None if found is None else "".join(step.source for step in found) + found[-1].view


def test_shortest_path() -> None:
    known = network("a>b", "b>c", "c>d", "a>c", "d>a")
    assert way(known.path("a", "d")) == "acd" and way(known.path("a", "b")) == "ab"
    assert known.path("b", "x") is None and known.path("x", "a") is None and known.path("a", "a") == []


def test_two_shortest_paths_are_an_error() -> None:
    known = network("a>b", "a>c", "b>d", "c>d")
    expected = r"one shortest path from a to d, got 2: a -> b \(a>b#0\) -> d \(b>d#2\); a -> c \(a>c#1\) -> d \(c>d#3\)"
    with pytest.raises(LensError, match=expected):
        known.path("a", "d")
    assert way(known.path("a", "c")) == "ac"
    known.add(Step("a", "d", "direct"))
    assert way(known.path("a", "d")) == "ad"


def test_two_lenses_between_the_same_types_are_ambiguous() -> None:
    with pytest.raises(LensError, match=r"got 2: a -> b .*#0.*a -> b .*#1"):
        network("a>b", "a>b").path("a", "b")


def test_adding_the_same_label_replaces() -> None:
    known = network("a>b")
    known.add(Step("a", "c", "a>b#0"))
    assert known.path("a", "b") is None and way(known.path("a", "c")) == "ac"


def test_sources_nearest_first() -> None:
    assert network("a>b", "b>c", "d>c", "c>a").sources("c") == ["b", "d", "a"]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_path_lengths_match_exhaustive_search(edges: set[tuple[int, int]]) -> None:
    known = LensGraph()
    for a, b in edges:
        known.add(Step(str(a), str(b), f"{a}>{b}"))
    distance = {0: 0}
    for _ in range(7):
        for a, b in edges:
            if a in distance:
                distance[b] = min(distance.get(b, 99), distance[a] + 1)
    for end in range(7):
        try:
            found = known.path("0", str(end))
        except LensError:
            assert distance[end] >= 2
            continue
        assert (None if found is None else len(found)) == distance.get(end)


def test_identity_takes_the_place_of_the_label() -> None:
    known = LensGraph()
    first, second = Step("a", "b", "f"), Step("a", "b", "g")
    known.add(first, ("a", "b"))
    known.add(second, ("a", "b"))
    assert known.path("a", "b") == known.views("a") == [second]
    assert known.get(("a", "b")) is second and known.get("f") is None
