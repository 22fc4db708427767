"""Lenses of atdata: getter and putter, composition, the network."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from shardex.compat import atdata
from shardex.compat.atdata.lens import Lens, LensNetwork, lens
from tests.compat.atdata.sample_classes import Label, Name, Picture, Size, name_of, picture, size_of

network = LensNetwork()


def test_get_call_and_types() -> None:
    assert name_of(Label("a")) == name_of.get(Label("a")) == Name("A")
    assert (name_of.source_type, name_of.view_type) == (Label, Name)
    assert (name_of.__name__, name_of.__doc__) == ("name_of", "Return the label as a name.")


def test_putter_returns_the_function() -> None:
    @lens
    def first(source: Label) -> str:
        return source.label[0]

    @first.putter
    def put_first(view: str, source: Label) -> Label:
        return Label(view + source.label[1:])

    assert first.put("x", Label("abc")) == Label("xbc")
    assert put_first("y", Label("abc")) == Label("ybc")


def test_put_without_a_putter_returns_the_sample_and_refuses_changes() -> None:
    """B3.4: a changed view was dropped silently."""
    source = Label("a")
    assert name_of.put(Name("A"), source) is source
    with pytest.raises(TypeError, match=r"name_of has no putter.*@name_of.putter"):
        name_of.put(Name("B"), source)
    pixels: Lens[Any, Any] = Lens(lambda one: one.image, source=Picture, view=np.ndarray)
    assert pixels.put(picture(1).image, one := picture(1)) is one


def test_putter_of_the_constructor() -> None:
    double = Lens(lambda x: 2 * x, lambda view, x: view // 2)
    assert double.put(8, 0) == 4


def test_identity() -> None:
    same = Lens.identity(Label)
    assert isinstance(same, Lens) and same.source_type is same.view_type is Label
    assert same.get(Label("a")) == Label("a") and same.put(Label("b"), Label("a")) == Label("b")


def test_composition() -> None:
    for both in (name_of | size_of, size_of @ name_of):
        assert isinstance(both, Lens) and both(Label("abc")) == Size(3)
        assert (both.source_type, both.view_type) == (Label, Size)
    halves = Lens(lambda x: x // 2, lambda view, x: view * 2 + x % 2)
    assert (halves | halves).put(3, 7) == 15
    with pytest.raises(TypeError):
        name_of | 3  # type: ignore[operator]


@pytest.mark.parametrize("get", [lambda: 1, lambda a, b: 1])
def test_getter_with_another_number_of_parameters(get: Any) -> None:
    with pytest.raises(ValueError, match="exactly one parameter"):
        Lens(get)
    with pytest.raises(ValueError, match="exactly one parameter"):
        lens(get)


def test_lens_without_types() -> None:
    with pytest.raises(ValueError, match="annotated types"):
        lens(lambda x: x)
    assert Lens(lambda x: x).source_type is None


def test_types_may_be_local_classes_and_strings() -> None:
    @atdata.packable
    class Here:
        label: str

    @lens
    def to_here(source: Label) -> Here:  # annotations are strings in this file
        return Here(source.label)

    assert (to_here.source_type, to_here.view_type) == (Label, Here)
    assert network.transform(Label, Here) is to_here


def test_network_is_one() -> None:
    assert LensNetwork() is LensNetwork() is network
    assert network.transform(Label, Name) is name_of


def test_later_lens_between_the_same_types_replaces() -> None:
    @atdata.packable
    class Other:
        x: int

    @lens
    def one(source: Label) -> Other:
        return Other(1)

    @lens
    def two(source: Label) -> Other:
        return Other(2)

    assert network.transform(Label, Other) is two
    network.register(one)
    assert network.transform(Label, Other) is one


def test_network_finds_chains() -> None:
    """B3.4: only direct lenses were found."""
    assert network.transform(Label, Size)(Label("abc")) == Size(3)


def test_unknown_lens() -> None:
    with pytest.raises(atdata.LensNotFoundError, match="Size") as caught:
        network.transform(Size, Label)
    assert isinstance(caught.value, ValueError) and (caught.value.source_type, caught.value.view_type) == (Size, Label)
    with pytest.raises(ValueError, match=r"Name \(by name_of\)"):
        network.transform(Label, int)


def test_two_chains_of_one_length_are_no_lens() -> None:
    @atdata.packable
    class End:
        x: int

    @lens
    def from_name(source: Name) -> End:
        return End(1)

    @atdata.packable
    class Second:
        x: int

    @lens
    def to_second(source: Label) -> Second:
        return Second(1)

    @lens
    def from_second(source: Second) -> End:
        return End(2)

    with pytest.raises(atdata.LensNotFoundError) as caught:
        network.transform(Label, End)
    assert "got 2" in str(caught.value.__cause__)


def test_packable_registers_a_lens_from_dict_samples() -> None:
    to_label = network.transform(atdata.DictSample, Label)
    assert to_label(atdata.DictSample(label="a", more=1)) == Label("a")
    with pytest.raises(TypeError, match="label"):
        to_label(atdata.DictSample(more=1))


def test_lenses_pickle() -> None:
    lenses: list[Lens[Any, Any]] = [name_of, name_of | size_of, network.transform(atdata.DictSample, Label)]
    for one in lenses:
        source = atdata.DictSample(label="ab") if one.source_type is atdata.DictSample else Label("ab")
        assert pickle.loads(pickle.dumps(one))(source) == one(source)
