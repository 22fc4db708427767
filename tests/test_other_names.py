"""Names of torch, Hugging Face and others: an error says what to use instead."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

import shardex as sx
from shardex import other_names
from shardex.errors import ArgumentError, FieldError, QueryError, SchemaError

DATA = [{"x": k, "name": f"n{k}"} for k in range(10)]
TABLES = {name: table for name, table in vars(other_names).items() if name.isupper() and isinstance(table, Mapping)}
CODE = re.compile(r"\b(ds|sx)\.([\w.]*\w)")


def look_up(owner: Any, name: str) -> Any:
    return getattr(owner, name)


@pytest.mark.parametrize("name", TABLES)
def test_what_a_hint_names_exists_and_what_it_replaces_does_not(name: str) -> None:
    ds, replaced = (
        sx.open(DATA),
        {"DATASET": sx.Dataset, "MODULE": sx, "MEDIA": sx.media, "LOADER_ATTRIBUTES": sx.Loader},
    )
    for other, hint in TABLES[name].items():
        assert name not in replaced or not hasattr(replaced[name], other), other
        for owner, attribute in CODE.findall(hint):
            assert operator.attrgetter(attribute)(ds if owner == "ds" else sx), f"{other}: {hint}"
    if name == "MODULE":
        heads = [hint.partition("(")[0].removeprefix("sx.") for hint in TABLES[name].values()]
        assert all(operator.attrgetter(*heads)(sx))


@pytest.mark.parametrize("option", other_names.LOADER)
def test_arguments_of_loaders(option: str) -> None:
    unknown: dict[str, Any] = {option: 2}
    with pytest.raises(
        ArgumentError,
        match=rf"expected arguments of Loader .*, got {option}=: {re.escape(other_names.LOADER[option])[:9]}|: use ",
    ):
        sx.Loader(DATA, 2, **unknown)


def test_an_argument_of_no_library_names_the_nearest() -> None:
    misspelt: Any = {"batchsize": 2}
    with pytest.raises(ArgumentError, match=r"got batchsize=: did you mean 'batch_size'\?"):
        sx.Loader(DATA, **misspelt)
    with pytest.raises(AttributeError, match=r"Dataset has no attribute 'shufle': did you mean 'shuffle'\?"):
        look_up(sx.open(DATA), "shufle")
    with pytest.raises(AttributeError, match=r"has no attribute 'Dataloader': did you mean 'DataLoader|Loader'"):
        look_up(sx, "Dataloader")


@pytest.mark.parametrize("name", other_names.DATASET)
def test_methods_of_datasets(name: str) -> None:
    with pytest.raises(
        AttributeError, match=f"Dataset has no attribute '{name}': use {re.escape(other_names.DATASET[name])}"
    ):
        getattr(sx.open(DATA), name)


def test_attributes_of_loaders() -> None:
    loader = sx.Loader(DATA, 2)
    with pytest.raises(
        AttributeError,
        match=r"Loader has no attribute 'sampler': use .*load_state_dict\(state\), .*register_for_checkpointing.*"
        r"needs both: load_state_dict .* and ignore_data_skip=True, which alone begins the epoch again",
    ):
        look_up(loader, "sampler")
    assert loader.batch_size == 2 and not hasattr(loader, "other")


def test_methods_of_writers_and_names_of_the_module(tmp_path: Path) -> None:
    out = sx.create(tmp_path / "d", {"x": int})
    for name, hint in other_names.WRITER.items():
        assert hasattr(sx.store.Edit, hint.partition("(")[0]) and hasattr(out, hint.partition("(")[0])
        with pytest.raises(AttributeError, match=f"Writer has no attribute '{name}': use {re.escape(hint)}"):
            look_up(out, name)
    out.abort()
    with pytest.raises(
        AttributeError, match=r"no attribute 'update': use sx.edit\(path\) as tx in a with block, then tx.up"
    ):
        look_up(sx, "update")
    given = cast(dict[str, Any], {"map": dict})
    with pytest.raises(ArgumentError, match="got 'map': use transform="):
        sx.write(tmp_path / "d", DATA, **given)


def test_other_places() -> None:
    ds, given = sx.open(DATA), cast(dict[str, Any], {"num_proc": 4})
    with pytest.raises(
        ArgumentError, match=r"arguments of Dataset.map \(schema, batched\), got num_proc=: use sx.write\("
    ):
        ds.map(lambda s: s, **given)
    with pytest.raises(ArgumentError, match=r"arguments of Dataset.filter \(progress\), got num_proc=: use "):
        ds.filter(lambda s: True, **given)
    with pytest.raises(ArgumentError, match=r"got range\(0, 5\); choose samples by their positions with ds\[\.\.\.\]"):
        ds.select(range(5))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"got 'streaming': not needed: samples are read when they are used"):
        sx.open("somewhere", streaming=True)
    with pytest.raises(ArgumentError, match="got 'endpoint_url': use endpoint="):
        sx.storage("s3://bucket", endpoint_url="http://localhost")
    with pytest.raises(ArgumentError, match=r"got 'num_proc': use workers= of sx\.write"):
        sx.write("somewhere", ds, **given)
    with pytest.raises(AttributeError, match=r"Dataset has no attribute 'over_rows'$"):  # not a private name
        look_up(ds, "over_rows")
    with pytest.raises(AttributeError, match="module 'shardex' has no attribute 'load_from_disk': use open"):
        look_up(sx, "load_from_disk")


def test_an_error_inside_of_a_property_is_not_hidden() -> None:
    class Broken(sx.Dataset):
        @property
        def fields(self) -> list[str]:
            raise AttributeError("the reason")

    with pytest.raises(AttributeError, match="the reason"):
        Broken(sx.open(DATA).rows).fields  # noqa: B018


def test_fields_are_no_attributes_of_datasets() -> None:
    with pytest.raises(AttributeError, match=r"Dataset has no attribute 'name': use ds\[\"name\"\]"):
        look_up(sx.open(DATA), "name")
    with pytest.raises(AttributeError, match=r"ClassLabel has no attribute 'int2str': use name\(number\)"):
        look_up(sx.ClassLabel(["a"]), "int2str")


def test_what_is_given_in_another_place_or_form() -> None:
    ds: Any = sx.open(DATA)
    tokenize, calls = cast(Any, sx.tokenize), list[tuple[type[Exception], str, Any]]()
    calls += [
        (ArgumentError, r"got test_size=: use the shares as the first argument", lambda: ds.split(test_size=0.2)),
        (ArgumentError, r"Dataset.sort .*, got ascending=: use descending=", lambda: ds.sort("x", ascending=False)),
        (TypeError, r"^Dataset.get\(\) missing", ds.get),
        (ArgumentError, "got 'x > 0': conditions are for ds.where", lambda: ds.filter("x > 0")),
        (QueryError, "got function: functions of samples are for ds.filter", lambda: ds.where(lambda s: s.x > 0)),
        (SchemaError, r"windows of rows, one after another, are ds.sliding\(length\)", lambda: ds.windows(4)),
        (SchemaError, r"choose those that all have with .select\(...\)", lambda: ds + ds.select("x")),
        (FieldError, "messages= that of conversations", lambda: tokenize(ds, len, "tokens")),
        (ArgumentError, "the name of a field for messages=", lambda: tokenize(ds, len, "tokens", messages=True)),
    ]
    for error, message, call in calls:
        with pytest.raises(error, match=message):
            call()


def test_names_of_torchvision() -> None:
    for name, hint in other_names.MEDIA.items():
        with pytest.raises(
            AttributeError, match=re.escape(f"module 'shardex.media' has no attribute '{name}': use {hint}")
        ):
            look_up(sx.media, name)
    with pytest.raises(AttributeError, match="did you mean 'Resize'"):
        look_up(sx.media, "Resise")
