"""Lenses: get and put, composition, the laws, and datasets viewed and edited through them."""

from __future__ import annotations

import enum
import importlib.util
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import ArgumentError, LawError, LensError, SchemaError
from shardex.samples import LENSES


@sx.packable
class Line:
    start: float
    end: float
    name: str = ""


@sx.packable
class Span:
    length: float


@sx.packable
class Minutes:
    minutes: float


@sx.packable
class Ends:
    end: float
    start: float


@sx.packable
class Far:
    nothing: bytes


@sx.lens
def span(line: Line) -> Span:
    """The length of a line."""
    return Span(line.end - line.start)


@span.putter
def put_span(view: Span, line: Line) -> Line:
    return Line(line.start, line.start + view.length, line.name)


@sx.lens
def minutes(span: Span) -> Minutes:
    return Minutes(span.length / 60)


@minutes.putter
def put_minutes(view: Minutes, span: Span | None) -> Span:
    return Span(view.minutes * 60)


LINE = Line(10.0, 70.0, "a")


@pytest.fixture(autouse=True)
def only_own_lenses() -> Iterator[None]:
    """Remove the lenses that a test registered."""
    before = dict(LENSES._edges)
    yield
    LENSES._edges.clear()
    LENSES._edges.update(before)


def test_get_and_put() -> None:
    assert span(LINE) == span.get(LINE) == Span(60) and span.put(Span(5), LINE) == Line(10, 15, "a")
    assert (span.source, span.view, span.name, span.__doc__) == (Line, Span, "span", "The length of a line.")
    assert repr(span) == "Lens(span: Line -> Span)" and span.two_way and put_span is span


def test_composition() -> None:
    for both in (span | minutes, minutes @ span):
        assert both(LINE) == Minutes(1) and both.put(Minutes(2), LINE) == Line(10, 130, "a")
        assert both.source is Line and both.view is Minutes and both.two_way
        assert repr(both) == "Lens(span | minutes: Line -> Minutes)"
        both.check(LINE, Minutes(7))
    with pytest.raises(LensError, match=r"expected a lens from Minutes, .*minutes, got .*span from Line"):
        minutes | span  # type: ignore[operator]
    with pytest.raises(TypeError):
        span | 3  # type: ignore[operator]
    same = sx.Lens.identity(Line)
    assert (same | span)(LINE) == span(LINE) and same.put(Line(1, 2), LINE) == Line(1, 2)


def test_put_without_a_putter_is_an_error() -> None:
    @sx.lens
    def name(line: Line) -> Far:
        return Far(line.name.encode())

    for one in (name, sx.Lens.identity(Line) | name):
        assert not one.two_way
        with pytest.raises(LensError, match=r"expected a lens with a putter, .*name has none"):
            one.put(Far(b"x"), LINE)
        with pytest.raises(LensError, match="has none"):
            one.check(LINE)


def test_a_putter_that_makes_new_samples() -> None:
    assert minutes.builds and minutes.put(Minutes(1)) == Span(60)
    assert not span.builds and not (span | minutes).builds
    with pytest.raises(LensError, match=r"expected a sample to put the view into, got none, and the putter of .*span"):
        span.put(Span(3))

    lens: sx.Lens[Any, Any] = sx.Lens(lambda s: s, lambda v, s=None: v)
    assert lens.builds and lens.put({"x": 1}) == {"x": 1}


@pytest.mark.parametrize(
    ("put", "law"),
    [
        (lambda v, s: Line(s.start, s.start + v.length + 1, s.name), "GetPut: .*expected Line.* got Line"),
        (lambda v, s: s, "PutGet: get after put returns the view; expected Span.length=5.0., got Span.length=60.0."),
        (lambda v, s: Line(s.start, s.start + v.length, s.name + ("x" if v.length != 60 else "")), "PutPut"),
    ],
)
def test_broken_laws_are_named(put: Any, law: str) -> None:
    broken = sx.Lens(span.get, put, source=Line, view=Span)
    with pytest.raises(LawError, match=law):
        broken.check(Line(10.0, 70.0, "a"), Span(5.0))
    span.check(LINE)
    span.check(LINE, Span(5.0))


def test_laws_for_arrays_and_for_functions_that_change_arguments() -> None:
    def put(view: NDArray[Any], sample: sx.DictSample) -> sx.DictSample:
        sample["x"][:] = 7
        return sample

    lens: sx.Lens[Any, Any] = sx.Lens(lambda s: s["x"], put)
    sample = sx.DictSample(x=np.array([1.0, math.nan]))
    with pytest.raises(LawError, match="GetPut"):
        lens.check(sample)
    sx.Lens(lambda s: s["x"], lambda v, s: sx.DictSample(x=v)).check(sample, np.array([math.nan]))


def test_invalid_getters_and_putters_are_refused() -> None:
    with pytest.raises(LensError, match=r"expected a getter of one parameter, the sample, got \(a: .*, b: .*\)"):

        @sx.lens  # type: ignore[arg-type]
        def two(a: Line, b: Line) -> Span:
            return Span(1.0)

    with pytest.raises(LensError, match="expected a getter with annotated parameter and return type"):
        sx.lens(lambda s: s)
    with pytest.raises(LensError, match="expected types that are defined where the lens is made: name 'Nowhere'"):

        @sx.lens
        def unknown(a: Nowhere) -> Span:  # type: ignore[name-defined]  # noqa: F821
            return Span(1.0)

    with pytest.raises(LensError, match="expected a putter of a view and a sample, got one of"):
        span.putter(lambda v: v)  # type: ignore[misc, arg-type]

    def swapped(line: Line, span: Span) -> Line:
        return line

    with pytest.raises(LensError, match=r"a view and a sample, in this order, got one of \(Line, Span\) - at .*span"):
        span.putter(swapped)  # type: ignore[arg-type]
    with pytest.raises(LensError, match="expected a function, got int 3"):
        sx.Lens(3)  # type: ignore[arg-type]


def test_types_come_from_annotations() -> None:
    @sx.packable
    class InlineExecutor:
        x: int

    @sx.lens
    def local(s: InlineExecutor) -> Span:
        return Span(float(s.x))

    assert local.source is InlineExecutor and sx.open([InlineExecutor(3)]).as_type(Span)[0] == Span(3.0)


def test_lenses_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(span)) is span
    both = pickle.loads(pickle.dumps(span | minutes))
    assert both(LINE) == Minutes(1) and both.put(Minutes(2), LINE) == Line(10, 130, "a")
    fields = pickle.loads(pickle.dumps(sx.Lens.between(Line, Ends)))
    assert fields(LINE) == Ends(70, 10)


PROGRAM = """
import multiprocessing, pickle, sys
import {module} as library

@library.packable
class Line:
    end: int

@library.packable
class Span:
    length: int

@library.lens
def span(line: Line) -> Span:
    return Span(line.end * 2)

def length(of, line):
    return of(line).length

if __name__ == "__main__":
    if sys.argv[1:]:
        import cloudpickle
        open(sys.argv[1], "wb").write(cloudpickle.dumps(span))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pickle.loads(pickle.dumps(span)) is span, pool.apply(length, (span, Line(3))))
"""


@pytest.mark.parametrize("module", ["shardex", "shardex.compat.atdata"])
def test_lenses_of_a_program_go_to_other_processes_and_programs(tmp_path: Path, module: str) -> None:
    cloudpickle = importlib.util.find_spec("cloudpickle") is not None
    (tmp_path / "program.py").write_text(PROGRAM.format(module=module))
    command = [sys.executable, "program.py", *(["packed"] if cloudpickle else [])]
    assert subprocess.check_output(command, cwd=tmp_path, text=True) == "True 6\n"
    if cloudpickle:
        program = "import pickle; print(pickle.load(open('packed', 'rb')).name)"
        assert subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, text=True) == "span\n"


# -- datasets --------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> sx.Dataset[Line]:
    sx.write(tmp_path / "lines", [Line(float(k), k * 60.0, f"n{k}") for k in range(10)])
    return sx.open(tmp_path / "lines", Line)


def test_view_and_as_type(lines: sx.Dataset[Line]) -> None:
    assert lines.view(span)[3] == lines.as_type(Span)[3] == Span(177.0)
    assert lines.as_type(Minutes)[3] == Minutes(177 / 60), "over two lenses"
    assert lines.as_type(Span).as_type(Minutes)[3] == lines.view(span | minutes)[3]
    assert lines.as_type(Line).rows is lines.rows
    untyped = lines.as_type(sx.DictSample)
    assert untyped[1] == {"start": 1.0, "end": 60.0, "name": "n1"} and untyped.sample_type is sx.DictSample


def test_as_type_of_a_view(lines: sx.Dataset[Line]) -> None:
    some = lines.filter(lambda line: line.start > 3)[::-1].as_type(Span)
    assert len(some) == 6 and some[0] == Span(531.0) and some.sample_type is Span
    doubled = lines.map(lambda line: Line(line.start, 2 * line.end)).as_type(Span)
    assert doubled[1] == Span(119.0)
    assert list(lines.as_type(Span).filter(lambda s: s.length > 450)) == [Span(472.0), Span(531.0)]


def test_view_of_an_untyped_dataset_converts_samples(lines: sx.Dataset[Line]) -> None:
    raw = lines.as_type(sx.DictSample)
    assert raw.view(span)[3] == Span(177.0)
    with pytest.raises(SchemaError, match=r"with the fields of Line .*: field end \(float64\) is missing"):
        raw.select("start").view(span)
    with pytest.raises(LensError, match="expected a lens, made by @lens or Lens"):
        raw.view(lambda s: s)  # type: ignore[arg-type]


def test_as_type_without_a_lens_takes_a_subset_of_fields(lines: sx.Dataset[Line]) -> None:
    ends = lines.as_type(Ends)
    assert ends[2] == Ends(120.0, 2.0) and ends.fields == ["end", "start"]
    assert ends.read([1, 2])["end"].tolist() == [60.0, 120.0]
    with pytest.raises(LensError, match=r"from Line to Far, or all fields of Far in Line, .*field nothing"):
        lines.as_type(Far)
    fields = sx.Lens.between(Line, Ends)
    fields.check(LINE, Ends(1.0, 2.0))
    assert fields.put(Ends(1.0, 2.0), LINE) == Line(2.0, 1.0, "a")


def test_two_lenses_between_two_types_are_ambiguous(lines: sx.Dataset[Line]) -> None:
    @sx.lens
    def other(line: Line) -> Span:
        return Span(0.0)

    with pytest.raises(
        LensError, match=r"expected one shortest path from Line to Span, got 2: .*test_lens.span.*other"
    ):
        lines.as_type(Span)
    assert lines.view(other)[0] == Span(0.0)


def test_a_lens_of_the_same_name_replaces_the_first(lines: sx.Dataset[Line]) -> None:
    for factor in (2.0, 3.0):

        @sx.lens
        def again(line: Line) -> Far:
            return Far(b"x" * int(factor))  # noqa: B023

    assert lines.as_type(Far)[0] == Far(b"xxx")


def test_a_lens_to_numbers_gives_no_samples(lines: sx.Dataset[Line]) -> None:
    number: sx.Lens[Line, float] = sx.Lens(lambda line: line.end, source=Line, view=float)
    assert number(LINE) == 70.0
    with pytest.raises(SchemaError, match=r"expected a sample as a mapping of fields, .* got float"):
        lines.view(number)[0]


# -- the way back ----------------------------------------------------------------------------------------------


def test_a_put_updates_the_fields_that_changed(tmp_path: Path, lines: sx.Dataset[Line]) -> None:
    path = tmp_path / "lines"
    with sx.edit(path) as tx:
        tx.put(3, Span(1.0), through=span)
        tx.put(4, Minutes(1.0), through=span | minutes)
        tx.put(5, Ends(0.5, 5.0))
        tx.put(6, {"name": "six"})
        tx.put(7, span(lines[7]), through=span)
        tx.put(8, Minutes(1.0))
    after = sx.open(path, Line)
    assert [after[k] for k in range(3, 9)] == [
        Line(3.0, 4.0, "n3"),
        Line(4.0, 64.0, "n4"),
        Line(5.0, 0.5, "n5"),
        Line(6.0, 360.0, "six"),
        lines[7],
        Line(8.0, 68.0, "n8"),
    ]
    assert "update: 5 samples" in str(sx.store.history(path))


def test_putting_an_unchanged_view_makes_no_version(tmp_path: Path, lines: sx.Dataset[Line]) -> None:
    with sx.edit(tmp_path / "lines") as tx:
        tx.put(0, span(lines[0]), through=span)
    assert tx.version is None


def test_puts_by_key(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", Line, key="name") as out:
        out.append(Line(1.0, 2.0, "a"))
        out.append(Line(3.0, 4.0, "b"))
    with sx.edit(tmp_path / "d") as tx:
        tx.put("b", Span(10.0), through=span)
    ds = sx.open(tmp_path / "d", Line)
    assert ds.get("b") == Line(3.0, 13.0, "b") and ds.as_type(Span).get("b") == Span(10.0)


def test_invalid_puts_are_refused(tmp_path: Path, lines: sx.Dataset[Line]) -> None:
    with sx.edit(tmp_path / "lines") as tx:
        with pytest.raises(LensError, match=r"expected one lens to Far from a type .*, got none: field nothing"):
            tx.put(0, Far(b""))
        with pytest.raises(LensError, match="expected a view of the type Span, got Minutes"):
            tx.put(0, Minutes(1.0), through=span)
        with pytest.raises(IndexError):
            tx.put(10, Span(1.0), through=span)
        tx.update(1, end=5.0)
        with pytest.raises(ArgumentError, match="expected a sample that this transaction has not updated yet, got 1"):
            tx.put(1, Span(1.0), through=span)
        with pytest.raises(KeyError):
            tx.put(2, {"other": 1})
    assert sx.open(tmp_path / "lines", Line)[1].end == 5.0 and len(sx.store.history(tmp_path / "lines")) == 2


def test_views_are_written_through_a_lens(tmp_path: Path, lines: sx.Dataset[Line]) -> None:
    views = lines.as_type(Span).map(lambda s: Span(2 * s.length))
    written = sx.write(tmp_path / "new", views, through=span, onto=lines)
    assert written.features == lines.features and written.as_type(Line)[3] == Line(3.0, 3.0 + 2 * 177, "n3")
    built = sx.write(tmp_path / "built", [Minutes(1.0), Minutes(2.0)], through=minutes)
    assert list(built.as_type(Span)) == [Span(60.0), Span(120.0)]
    with pytest.raises(LensError, match="expected a sample to put the view into"):
        sx.write(tmp_path / "no", views, through=span)
    with pytest.raises(ArgumentError, match="expected as many views as samples"):
        sx.write(tmp_path / "no", [Span(1.0)], through=span, onto=lines)
    with pytest.raises(ArgumentError, match="expected through="):
        sx.write(tmp_path / "no", [Span(1.0)], onto=lines)
    assert not (tmp_path / "no").exists()


def test_fields_unknown_to_the_lens_stay(tmp_path: Path) -> None:
    raw = [{"start": 0.0, "end": 1.0, "name": "x", "extra": np.arange(3)}]
    ds = sx.write(tmp_path / "d", raw)
    written = sx.write(tmp_path / "new", [Span(5.0)], through=span, onto=ds)
    assert written[0] == {**raw[0], "end": 5.0}


def test_a_putter_may_change_its_arguments(tmp_path: Path) -> None:
    """The putter gets a copy of the sample, whose arrays are writable."""

    @sx.packable
    class Named:
        name: str
        values: Annotated[NDArray[np.float32], sx.Array("float32", (2,))]

    def put(view: Named, source: Any) -> Any:
        source["name"] = view.name
        source["values"][:] = view.values
        return source

    way: Any = sx.Lens(lambda s: Named(s["name"], s["values"]), put, source=sx.DictSample, view=Named)
    schema = {"name": str, "values": sx.Array("float32", (2,)), "rest": int}
    ds = sx.write(tmp_path / "d", [{"name": "a", "values": np.zeros(2, "f4"), "rest": k} for k in range(2)], schema)
    new = Named("b", np.ones(2, "f4"))
    with sx.edit(tmp_path / "d") as tx:
        tx.put(1, new, through=way)
    found = sx.open(tmp_path / "d")[1]
    assert (found.name, found["values"].tolist(), found.rest) == ("b", [1, 1], 1)
    written = sx.write(tmp_path / "o", [new, new], through=way, onto=ds)
    assert [sample.name for sample in written] == ["b", "b"] and [sample.rest for sample in written] == [0, 1]


def test_values_that_compare_equal_but_differ_are_put(tmp_path: Path) -> None:
    @sx.packable
    class Anything:
        j: Any
        x: float

    sx.write(tmp_path / "d", [{"j": {"a": 1}, "x": 0.0}], {"j": sx.Json(), "x": float})
    with sx.edit(tmp_path / "d") as tx:
        tx.put(0, Anything({"a": True}, -0.0))
    found = sx.open(tmp_path / "d")[0]
    assert found.j["a"] is True and np.signbit(found.x)


def test_samples_that_were_read_can_be_put_back(tmp_path: Path) -> None:
    """Also if the default of a missing field is not a plain value."""

    class Kind(enum.Enum):
        RAW = "raw"

    @sx.packable
    class View:
        n: int
        kind: Kind = Kind.RAW

    ds = sx.write(tmp_path / "d", [{"n": 1}], {"n": int})
    with sx.edit(tmp_path / "d") as tx:
        view = ds.as_type(View)[0]
        view.n = 55
        tx.put(0, view)
    assert sx.open(tmp_path / "d")[0].n == 55


def test_lenses_of_a_class_apply_to_subclasses() -> None:
    @sx.packable
    class Base:
        n: int

    @sx.packable
    class Derived(Base):
        m: int

    @sx.packable
    class Shown:
        text: str

    @sx.lens
    def shown(sample: Base) -> Shown:
        return Shown(str(sample.n))

    assert sx.open([Derived(1, 2)]).as_type(Shown)[0].text == "1"
