"""The protocol of features: its names, delegation by `Optional`, and kinds that other packages add."""

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from shardex.errors import PluginError
from shardex.features import Feature, Features, Optional, StoredAs, Text, Value, kinds
from shardex.features.kinds import GROUP, KINDS, all_kinds
from shardex.plugins import Plugin

PROTOCOL = {name for name in vars(Feature) if not name.startswith("_")}
OF_THE_FIELD = {
    *("kind", "arrow_field", "nested", "stored_form", "opaque", "blank", "fit_at", "quick_column"),
    *("stack", "join", "of_value", "of_arrow", "in_list", "in_arrow_list", "to_json"),
}
"""What `Optional` does not ask the feature of its values."""


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
def test_options_do_not_hide_methods(kind: type[Feature]) -> None:
    assert PROTOCOL.isdisjoint(field.name for field in dataclasses.fields(kind))


def test_optional_asks_the_feature_of_its_values() -> None:
    missing = {name for name in PROTOCOL - OF_THE_FIELD if name not in vars(Optional)}
    assert not missing


def test_each_kind_has_a_method_for_what_it_redefines() -> None:
    for kind in KINDS.values():
        for name, one in inspect.getmembers(kind, inspect.isfunction):
            if name in PROTOCOL:
                expected = inspect.signature(getattr(Feature, name)).parameters
                assert list(inspect.signature(one).parameters) == list(expected), f"{kind.__name__}.{name}"


def added(monkeypatch: pytest.MonkeyPatch, name: str, what: Any) -> None:
    monkeypatch.setattr(__name__ + ".ADDED", what)
    plugin = Plugin(GROUP, name, "a-package", f"{__name__}:ADDED")
    monkeypatch.setattr("shardex.plugins._entry_points", lambda group: (plugin,) if group == GROUP else ())


ADDED: Any = None


def test_plugins_must_be_classes_of_features_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, "other", Text)
    with pytest.raises(PluginError, match=r"expected a class of features of the kind 'other', got .*Text"):
        list(all_kinds())
    assert kinds.feature_of(int) == Value("int64"), "known types import no package"


def test_a_missing_kind_is_read_as_it_is_stored() -> None:
    plain = {"x": {"kind": "optional", "feature": {"kind": "not.there", "size": 3, "stored": {"kind": "bytes"}}}}
    with pytest.warns(UserWarning, match="expected a package that has features of the kind 'not.there', got none"):
        found = Features.from_json(plain)
    assert str(found) == "x bytes or none"


@dataclass(frozen=True, slots=True)
class Labelled(StoredAs):
    """Text, with options that have the names of parts of other kinds."""

    kind: ClassVar[str] = "labelled"
    key: str
    value: int | None = None
    fields: tuple[str, ...] = ()

    def storage(self) -> Feature:
        """Return text."""
        return Text()


def test_options_of_other_packages_may_have_the_names_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, "labelled", Labelled)
    features = Features({"x": Optional(Labelled("a", 1, ("b", "c")))})
    assert Features.from_json(features.to_json()) == features
