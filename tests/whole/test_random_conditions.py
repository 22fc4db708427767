"""Random SQL conditions select the samples that a Python filter with three-valued logic selects, in every format.

A condition is a tree; `text` writes it as SQL, `truth` evaluates it on a sample: True, False or None (unknown).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from tests.strategies import examples

Sample = dict[str, Any]
Truth = bool | None

SCHEMA = {
    "n": "int32",
    "x": sx.Optional(sx.Value("float64")),
    "small": sx.Optional(sx.Value("int8")),
    "big": "uint64",
    "ok": sx.Optional(sx.Value("bool")),
    "name": str,
    "note": sx.Optional(sx.Text()),
    "meta": sx.Optional(sx.Json()),
    "j": sx.Json(),
    "ids": sx.Array("int32", (None,)),
    "tags": sx.Optional(sx.Sequence(sx.Text())),
}
NAMES = ["", "a", "ab", "b", "dög", "A", "a%", "it's", "null"]


def samples(count: int) -> list[Sample]:
    """Samples with missing values of all kinds, and with JSON of several shapes."""
    random = np.random.default_rng(7)
    metas: list[Any] = [
        None,
        {"k": 1, "s": "a"},
        {"k": 2.5, "s": "b", "deep": {"k": 3}},
        {"k": None, "s": None},
        {"s": "dög", "list": [1, 2, 3]},
        {},
        {"k": -4, "s": "", "deep": {"k": None}},
        {"k": 7, "list": []},
    ]

    def pick(values: list[Any]) -> Any:
        return values[int(random.integers(len(values)))]

    return [
        {
            "n": k,
            "x": pick([None, None, 0.0, -1.5, 2.25, 1e300, k / 4]),
            "small": pick([None, 0, 1, -128, 127]),
            "big": pick([0, 1, 2**63, 2**64 - 1]),
            "ok": pick([None, True, False]),
            "name": pick(NAMES),
            "note": pick([None, *NAMES]),
            "meta": pick(metas),
            "j": pick([None, 0, "", "a", [], [None], {"k": None}, False]),
            "ids": np.arange(int(random.integers(4)), dtype=np.int32),
            "tags": pick([None, [], ["a"], ["a", "b"], ["dög", "a", "a"]]),
        }
        for k in range(count)
    ]


# -- conditions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A condition as SQL and as a function of a sample."""

    text: str
    truth: Callable[[Sample], Truth]


def json_of(sample: Sample, path: str) -> Any:
    """Return the value at a path such as `deep.k`; None if there is none or it is null."""
    value = sample["meta"]
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def json_number(sample: Sample, path: str) -> float | None:
    """Return the value at a path as `->>` with a cast to a number gives it."""
    value = json_of(sample, path)
    return None if value is None else float(value)


NUMBERS: dict[str, Callable[[Sample], Any]] = {
    "n": lambda s: s["n"],
    "x": lambda s: s["x"],
    "small": lambda s: s["small"],
    "big": lambda s: s["big"],
    "len(ids)": lambda s: len(s["ids"]),
    "ids[1]": lambda s: int(s["ids"][0]) if len(s["ids"]) else None,
    "len(tags)": lambda s: None if s["tags"] is None else len(s["tags"]),
    "length(name)": lambda s: len(s["name"]),
    "length(note)": lambda s: None if s["note"] is None else len(s["note"]),
    "CAST(meta->>'$.k' AS DOUBLE)": lambda s: json_number(s, "k"),
    "CAST(meta->>'$.deep.k' AS DOUBLE)": lambda s: json_number(s, "deep.k"),
    "CAST(json_array_length(meta, '$.list') AS BIGINT)": lambda s: (
        len(found) if isinstance(found := json_of(s, "list"), list) else None
    ),
}
TEXTS: dict[str, Callable[[Sample], Any]] = {
    "name": lambda s: s["name"],
    "note": lambda s: s["note"],
    "tags[1]": lambda s: s["tags"][0] if s["tags"] else None,
    "meta->>'$.s'": lambda s: json_of(s, "s"),
}
FIELDS: dict[str, Callable[[Sample], Any]] = {name: operator.itemgetter(name) for name in SCHEMA}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

numbers = st.sampled_from([*NUMBERS])
texts = st.sampled_from([*TEXTS])
constants = st.sampled_from([-129, -128, -1.5, -1, 0, 0.5, 1, 2, 2.25, 3, 20, 127, 128])
words = st.sampled_from(NAMES)


def quoted(word: str) -> str:
    """Return text as a constant of SQL."""
    return "'" + word.replace("'", "''") + "'"


def compare(left: Any, symbol: str, right: Any) -> Truth:
    """Compare as SQL does: unknown if a side is NULL."""
    return None if left is None or right is None else COMPARISONS[symbol](left, right)


def both(a: Truth, b: Truth) -> Truth:
    """AND of three values."""
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    """OR of three values."""
    return invert(both(invert(a), invert(b)))


def invert(a: Truth) -> Truth:
    """NOT of three values."""
    return None if a is None else not a


def one_of(value: Any, options: list[Any]) -> Truth:
    """IN: unknown if nothing matches and the value or an option is NULL."""
    if value is None:
        return None
    return True if value in [o for o in options if o is not None] else None if None in options else False


def like(value: Any, pattern: str) -> Truth:
    """LIKE with % and _."""
    parts = {"%": ".*", "_": "."}
    expression = "".join(parts.get(letter, re.escape(letter)) for letter in pattern)
    return None if value is None else re.fullmatch(expression, value, re.DOTALL) is not None


def comparisons_of(
    sides: st.SearchStrategy[str], table: dict[str, Callable[[Sample], Any]], values: st.SearchStrategy[Any]
) -> Iterator[st.SearchStrategy[Condition]]:
    """Yield comparisons, BETWEEN and IN of expressions of one kind."""

    def literal(value: Any) -> str:
        return quoted(value) if isinstance(value, str) else "NULL" if value is None else repr(value)

    def with_constant(side: str, symbol: str, value: Any) -> Condition:
        return Condition(f"{side} {symbol} {literal(value)}", lambda s: compare(table[side](s), symbol, value))

    def with_field(side: str, symbol: str, other: str) -> Condition:
        return Condition(f"{side} {symbol} {other}", lambda s: compare(table[side](s), symbol, table[other](s)))

    def between(side: str, low: Any, high: Any) -> Condition:
        return Condition(
            f"{side} BETWEEN {literal(low)} AND {literal(high)}",
            lambda s: both(compare(table[side](s), ">=", low), compare(table[side](s), "<=", high)),
        )

    def among(side: str, options: list[Any], inverted: bool) -> Condition:
        symbol = "NOT IN" if inverted else "IN"
        return Condition(
            f"{side} {symbol} ({', '.join(map(literal, options))})",
            lambda s: invert(one_of(table[side](s), options)) if inverted else one_of(table[side](s), options),
        )

    symbols = st.sampled_from([*COMPARISONS])
    options = st.lists(st.none() | values, min_size=1, max_size=3)
    yield st.builds(with_constant, sides, symbols, values)
    yield st.builds(with_field, sides, symbols, sides)
    yield st.builds(between, sides, values, values)
    yield st.builds(among, sides, options, st.booleans())


def is_null(side: str, value: Callable[[Sample], Any], inverted: bool) -> Condition:
    """Return IS NULL or IS NOT NULL of an expression."""
    return Condition(f"{side} IS {'NOT ' * inverted}NULL", lambda s: (value(s) is None) != inverted)


def matches(side: str, pattern: str) -> Condition:
    """Return LIKE of an expression."""
    return Condition(f"{side} LIKE {quoted(pattern)}", lambda s: like(TEXTS[side](s), pattern))


def contains_tag(tag: str) -> Condition:
    """Return whether a list contains a text."""
    return Condition(f"list_contains(tags, {quoted(tag)})", lambda s: None if s["tags"] is None else tag in s["tags"])


expressions = {**FIELDS, **NUMBERS, **TEXTS}
leaves = st.one_of(
    *comparisons_of(numbers, NUMBERS, constants),
    *comparisons_of(texts, TEXTS, words),
    st.builds(lambda side, no: is_null(side, expressions[side], no), st.sampled_from([*expressions]), st.booleans()),
    st.builds(matches, texts, st.sampled_from(["%", "a%", "%b", "_", "d_g", "", "%''%"])),
    st.builds(contains_tag, words),
    st.sampled_from([Condition("ok", lambda s: s["ok"]), Condition("NOT ok", lambda s: invert(s["ok"]))]),
    st.builds(lambda row: Condition(f"n % {row} = 0", lambda s: s["n"] % row == 0), st.integers(1, 5)),
)


def nested(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    """Conditions made of others."""
    return st.one_of(
        st.builds(
            lambda a, b: Condition(f"({a.text} AND {b.text})", lambda s: both(a.truth(s), b.truth(s))), inner, inner
        ),
        st.builds(
            lambda a, b: Condition(f"({a.text} OR {b.text})", lambda s: either(a.truth(s), b.truth(s))), inner, inner
        ),
        st.builds(lambda a: Condition(f"NOT ({a.text})", lambda s: invert(a.truth(s))), inner),
        st.builds(lambda a: Condition(f"({a.text}) IS NULL", lambda s: a.truth(s) is None), inner),
    )


conditions = st.recursive(leaves, nested, max_leaves=5)

# -- datasets ----------------------------------------------------------------------------------------------------

COUNT = 60


def native(folder: Path) -> sx.Dataset:
    return sx.write(folder, samples(COUNT), SCHEMA, shard_rows=17)


def edited(folder: Path) -> sx.Dataset:
    """Written with other values first, then updated, deleted and appended until it holds the samples."""
    right, count = samples(COUNT), COUNT // 2
    wrong = [{**sample, "x": 99.0, "note": "old", "meta": {"k": 99}} for sample in right[:count]]
    sx.write(folder, [wrong[0], *wrong], SCHEMA, shard_rows=8)
    with sx.edit(folder) as tx:
        for k, sample in enumerate(right[:count]):
            tx.update(k + 1, x=sample["x"], note=sample["note"], meta=sample["meta"])
        tx.delete([0])
    with sx.create(folder, SCHEMA, mode="append") as out:
        out.extend(right[count:])
    return sx.open(folder)


def parquet(folder: Path) -> sx.Dataset:
    return sx.write(folder, samples(COUNT), SCHEMA, format="parquet", row_group_rows=13)


def jsonl(folder: Path) -> sx.Dataset:
    sx.write(folder, samples(COUNT), SCHEMA, format="jsonl", shard_rows=25)
    return sx.open(folder, schema=SCHEMA)


def tar(folder: Path) -> sx.Dataset:
    sx.write(folder, samples(COUNT), SCHEMA, format="tar", shard_rows=25)
    return sx.open(folder, schema=SCHEMA)


def adopted(folder: Path) -> sx.Dataset:
    """JSON lines in place, with a field added beside them."""
    rest = {name: feature for name, feature in SCHEMA.items() if name != "note"}
    lines = [{name: sample[name] for name in rest} for sample in samples(COUNT)]
    sx.write(folder / "lines", lines, rest, format="jsonl", shard_rows=25)
    sx.adopt(folder / "lines", folder / "adopted", schema=rest)
    with sx.edit(folder / "adopted", trust_paths=True) as tx:
        tx.add_field("note", SCHEMA["note"], [sample["note"] for sample in samples(COUNT)])
    return sx.open(folder / "adopted", trust_paths=True)


def in_memory(folder: Path) -> sx.Dataset:
    return sx.open(native(folder).to_arrow())


def joined(folder: Path) -> sx.Dataset:
    whole, half = native(folder / "a"), len(SCHEMA) // 2
    names = list(SCHEMA)
    return sx.join(whole.select(*names[:half]), parquet(folder / "b").select(*names[half:]))


def concatenated(folder: Path) -> sx.Dataset:
    return sx.concat(native(folder / "a")[:20], parquet(folder / "b")[20:])


MAKERS: list[Callable[[Path], sx.Dataset]] = [
    native,
    edited,
    parquet,
    jsonl,
    tar,
    adopted,
    in_memory,
    joined,
    concatenated,
]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> sx.Dataset:
    """The samples, stored in some way."""
    made: sx.Dataset = request.param(tmp_path_factory.mktemp("conditions") / "data")
    return made


def views(ds: sx.Dataset) -> Iterator[tuple[sx.Dataset, list[int]]]:
    """Yield views and the numbers of their samples."""
    whole = list(range(COUNT))
    yield ds, whole
    yield ds[7:40:3], whole[7:40:3]
    shuffled = ds.shuffle(seed=2)
    yield shuffled, [int(sample["n"]) for sample in shuffled.select("n")]
    yield ds[[5, 5, 59, 0]], [5, 5, 59, 0]


def check(ds: sx.Dataset, condition: Condition) -> None:
    """Compare the condition over the whole and over views."""
    known = samples(COUNT)
    for view, rows in views(ds):
        expected = [row for row in rows if condition.truth(known[row]) is True]
        found = view.where(condition.text)
        assert [int(sample["n"]) for sample in found.select("n")] == expected, condition.text


@pytest.mark.parametrize("field", FIELDS)
def test_null_is_what_python_reads_as_none(ds: sx.Dataset, field: str) -> None:
    check(ds, is_null(field, FIELDS[field], inverted=False))


@examples(short=20, long=200)
@given(condition=conditions, repeated=conditions)
def test_the_same_samples_as_a_python_filter(ds: sx.Dataset, condition: Condition, repeated: Condition) -> None:
    """Over the whole and views; then again over the result of a shuffled one."""
    check(ds, condition)
    known, shuffled = samples(COUNT), ds.shuffle(seed=2)
    order = [int(sample["n"]) for sample in shuffled.select("n")]
    again = [row for row in order if condition.truth(known[row]) is True and repeated.truth(known[row]) is True]
    found = shuffled.where(condition.text).where(repeated.text)
    assert [int(sample["n"]) for sample in found] == again, (condition.text, repeated.text)
