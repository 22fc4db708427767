"""Natural order and brace patterns of file names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError
from shardex.files.patterns import expand_braces, matching, natural_order

# -- natural order --------------------------------------------------------------------------------------------------


def test_natural_order() -> None:
    names = [
        "part10",
        "part9",
        "Part2",
        "part1",
        "part",
        "part1b",
        "part1a2",
        "part1a10",
        "part01",
        "10",
        "9",
        "x/2/a",
        "x/10/a",
    ]
    assert natural_order(names) == [
        *["9", "10", "part", "part01", "part1", "part1a2", "part1a10", "part1b", "Part2", "part9", "part10"],
        *["x/2/a", "x/10/a"],
    ]


@given(st.lists(st.text(alphabet="aB1209/.²٣", max_size=8)), st.randoms())
def test_natural_order_does_not_depend_on_the_input_order(names: list[str], random: Any) -> None:
    ordered = natural_order(names)
    assert sorted(ordered) == sorted(names)
    random.shuffle(names)
    assert natural_order(names) == ordered


@given(st.lists(st.integers(0, 10**20), unique=True))
def test_natural_order_of_numbers(numbers: list[int]) -> None:
    assert natural_order([f"s-{k}.tar" for k in numbers]) == [f"s-{k}.tar" for k in sorted(numbers)]


# -- braces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain", ["plain"]),
        ("", [""]),
        ("{a,b}", ["a", "b"]),
        ("{a,}x", ["ax", "x"]),
        ("x{1..3}y", ["x1y", "x2y", "x3y"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{008..010}", ["008", "009", "010"]),
        ("{1..010}", ["001", "002", "003", "004", "005", "006", "007", "008", "009", "010"]),
        ("{0..2}", ["0", "1", "2"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{5..5}", ["5"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{a,b{1..2}}.x", ["a.x", "b1.x", "b2.x"]),
        ("{x{1,2},y}", ["x1", "x2", "y"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{a..c}", ["a", "b", "c"]),
        ("{C..A}", ["C", "B", "A"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("{0..8..4}", ["0", "4", "8"]),
        ("{08..0..3}", ["08", "05", "02"]),
        ("{1..3..0}", ["1", "2", "3"]),
        ("{a..C}", ["{a..C}"]),
        ("{aa..ac}", ["{aa..ac}"]),
        ("{a}{1..2}", ["{a}1", "{a}2"]),
        ("{{1..2}}", ["{{1..2}}"]),
        ("{1..2", ["{1..2"]),
        ("1..2}", ["1..2}"]),
        ("}{1,2}{", ["}1{", "}2{"]),
    ],
)
def test_expand_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


@given(st.text(alphabet="{},.12a", max_size=14))
def test_expand_braces_of_any_text_terminates(pattern: str) -> None:
    assert expand_braces(pattern)


# -- wildcards --------------------------------------------------------------------------------------------------


def test_invalid_wildcard_raises() -> None:
    with pytest.raises(ArgumentError, match="expected a pattern such as"):
        matching(["a"], "[z-a]")


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("s-{0..99999999999}.tar", "100,000,000,000"),
        ("{0..9999}{0..9999}", "100,000,000"),
        ("{0..9999}" * 40, "100,000,000"),
        ("{a,{0..9999999}}", "10,000,000"),
        ("{0..99999999999999999999999}", "1,000,000,000,000,000,000"),
        ("{0.." + "9" * 5000 + "}", "1,000,000,000,000,000,000"),
        ("{0..2.." + "1" * 5000 + "}", "1,000,000,000,000,000,000"),
        ("x" * 5000 + "{0..999999}", "1,000,000"),
        ("{a," * 3000 + "b" + "}" * 3000, "braces in braces"),
    ],
    ids=range(9),
)
def test_patterns_of_too_many_names_are_refused(pattern: str, count: str) -> None:
    with pytest.raises(ArgumentError, match=f"at most 1,000,000 names, got .*{count}") as caught:
        expand_braces(pattern)
    assert pattern[:100] in str(caught.value)


def test_a_million_names_and_many_commas() -> None:
    assert len(expand_braces("{000000..999999}")) == 1_000_000
    assert len(expand_braces("{" + "a," * 100_000 + "{b,c}}")) == 100_002
    assert expand_braces("{0..9..99999999}") == ["0"]
