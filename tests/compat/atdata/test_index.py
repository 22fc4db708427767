"""An index of datasets, schemas, lenses and labels by name, and datasets loaded by name."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat import atdata
from shardex.compat.atdata import (
    Dataset,
    DictSample,
    Index,
    Repository,
    create_repository,
    get_default_index,
    load_dataset,
    local,
    packable,
    set_default_index,
    verify_checksums,
    write_samples,
)
from shardex.compat.atdata.index import SchemaNamespace
from shardex.compat.atdata.stores import LocalDiskStore
from shardex.compat.atdata.testing import mock_index, tmp_index
from shardex.errors import UnknownSplitError
from tests.compat.atdata.test_providers import redis_client

__all__ = ["redis_client", "tmp_index"]


@packable
class Digit:
    """A picture of a digit."""

    image: NDArray[Any]
    label: int
    note: str | None = None


@packable
class Label:
    label: int


def digits(n: int = 3) -> list[Any]:
    return [Digit(np.full((2, 2), k, np.uint8), k) for k in range(n)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """An index with a store, in a temporary folder."""
    return mock_index(tmp_path, data_store=LocalDiskStore(tmp_path / "store"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder without an index."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    set_default_index(None)
    yield tmp_path / "home"
    set_default_index(None)


def test_write_samples_and_load_them_by_name(index: Index) -> None:
    entry = index.write_samples(digits(), name="mnist", tags=["small"], description="Digits", metadata={"n": 3})
    assert entry.schema_ref == "atdata://local/schema/Digit@1.0.0"
    assert entry.metadata is not None and entry.metadata["n"] == 3 and entry.metadata["tags"] == ["small"]
    assert list(verify_checksums(entry).values()) == ["ok"]
    ds = load_dataset("@local/mnist", Digit, split="train", index=index)
    assert list(ds) == digits()
    untyped = load_dataset("@local/mnist", index=index)
    assert list(untyped) == ["train"]
    assert untyped.sample_type is index.types.Digit
    assert [one.label for one in untyped["train"]] == [0, 1, 2]
    with pytest.raises(UnknownSplitError, match="train"):
        load_dataset("@local/mnist", split="test", index=index)


def test_names_of_datasets(index: Index, tmp_path: Path) -> None:
    shards = write_samples(digits(), tmp_path / "a.tar")
    index = Index(index.provider, repos={"lab": create_repository(path=tmp_path / "lab.db")}, atmosphere=None)
    here = index.insert_dataset(shards, name="d")
    there = index.insert_dataset(shards, name="@lab/d")
    assert here.data_urls == there.data_urls == [str(tmp_path / "a.tar")]
    for name in ("d", "@local/d", "local/d", "atdata://local/dataset/d"):
        assert index.get_dataset(name) == here, name
    for name in ("@lab/d", "lab/d", "atdata://lab/dataset/d"):
        assert index.get_dataset(name) == there, name
    assert [one.name for one in index.datasets] == ["d", "d"]
    assert index.list_datasets("lab") == [there]
    assert index.list_entries() == index.all_entries == [here]
    assert len(list(load_dataset("@lab/d", Digit, split="train", index=index))) == 3
    for wrong in ("none", "@lab/none", "@local/none@1.0.0"):
        with pytest.raises(KeyError, match="none"):
            index.get_dataset(wrong)
    with pytest.raises(KeyError, match=r"Unknown repository 'team'.*local, lab"):
        index.list_datasets("team")
    assert index.list_datasets("_atmosphere") == []


def test_names_on_the_network_need_a_session(index: Index, tmp_path: Path) -> None:
    shards = write_samples(digits(), tmp_path / "a.tar")
    for call in (index.get_dataset, index.get_label, index.get_schema):
        with pytest.raises(ValueError, match="Atmosphere backend required"):
            call("@alice.example/d")
    with pytest.raises(ValueError, match="Atmosphere backend required"):
        index.insert_dataset(shards, name="@alice.example/d")
    with pytest.raises(ValueError, match="Atmosphere backend required"):
        load_dataset("@alice.example/d", split="train", index=index)
    for wrong in ("@mnist", "@/mnist", "@local/", "@local/m@"):
        with pytest.raises(ValueError, match="Invalid indexed path format"):
            load_dataset(wrong, index=index)


def test_versions_of_a_name(index: Index, tmp_path: Path) -> None:
    one, two = (cast("Any", index.write_samples(digits(n), name="mnist")) for n in (1, 2))
    index.label("mnist", one.cid, version="1.0.0", description="the first")
    assert index.get_label("mnist", "1.0.0") == one
    assert index.get_dataset("mnist") == one  # the label that was stored last
    assert index.get_entry_by_name("mnist") == two
    index.label("mnist", two.cid, version="2.0.0")
    assert index.get_entry(two.cid) == two
    assert len(list(load_dataset("@local/mnist@1.0.0", Digit, split="train", index=index))) == 1
    assert len(list(load_dataset("@local/mnist", Digit, split="train", index=index))) == 2
    assert {version for _, _, version in index.labels} == {"1.0.0", "2.0.0", None}
    assert index.list_labels("local") == index.list_labels() == list(index.labels)
    with pytest.raises(KeyError, match=r"version: '3\.0\.0'"):
        load_dataset("@local/mnist@3.0.0", index=index)


def test_schemas(index: Index) -> None:
    assert index.publish_schema(Digit) == "atdata://local/schema/Digit@1.0.0"
    ref = index.publish_schema(Digit, description="Pictures")
    assert ref == "atdata://local/schema/Digit@1.0.1"
    assert index.publish_schema(Digit, version="3.0.0").endswith("@3.0.0")
    record = index.get_schema(ref)
    assert (record["description"], record["$ref"]) == ("Pictures", ref)
    assert index.get_schema_record(ref).fields[1].field_type.primitive == "int"
    assert [one.version for one in index.schemas] == ["1.0.0", "1.0.1", "3.0.0"]
    assert [one["$ref"] for one in index.list_schemas()][1] == ref
    assert "Digit" not in index.types and repr(index.types) == "SchemaNamespace(empty)"
    kind = index.get_schema_type(ref)
    assert index.types.Digit is kind and list(index.types) == dir(index.types)[:1] == ["Digit"]
    assert kind(image=np.zeros(2), label=1).label == 1
    for name in ("load_schema", "decode_schema"):
        with pytest.warns(DeprecationWarning, match="get_schema_type"):
            assert getattr(index, name)(ref) is kind
    with pytest.warns(DeprecationWarning, match="get_schema_type"):
        index.decode_schema_as(ref, Digit)
    with pytest.raises(AttributeError, match="'None_' not loaded"):
        _ = SchemaNamespace().None_
    with pytest.raises(KeyError, match="Schema not found"):
        index.get_schema("atdata://local/schema/Digit@9.0.0")
    with pytest.raises(TypeError, match="Packable protocol"):
        index.publish_schema(int)
    with pytest.raises(TypeError, match="Packable"):
        index.publish_schema(3)  # type: ignore[arg-type]


def test_records_that_are_no_json_are_errors(index: Index) -> None:
    index.provider.store_schema("Bad", "1.0.0", "[1]")
    with pytest.raises(atdata.SchemaError, match=r"JSON object.*Bad@1\.0\.0"):
        index.get_schema("atdata://local/schema/Bad@1.0.0")


def test_a_schema_version_with_other_fields_is_a_warning(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    index.publish_schema(Label, version="1.0.0")

    @packable
    class Other:
        label: str

    Other.__name__ = "Label"
    with caplog.at_level("WARNING", "atdata"):
        index.publish_schema(Other, version="1.0.0")
    assert "Label@1.0.0 is replaced" in caplog.text


def test_stubs(tmp_path: Path) -> None:
    index = mock_index(tmp_path, stub_dir=tmp_path / "stubs")
    ref = index.publish_schema(Digit)
    assert index.get_import_path(ref) == "local.Digit_1_0_0"
    kind = index.get_schema_type(ref)
    stub = tmp_path / "stubs" / "local" / "Digit_1_0_0.py"
    names: dict[str, Any] = {}
    exec(stub.read_text(), names)
    assert names["Digit"](np.zeros(2), 1).label == kind(np.zeros(2), 1).label == 1
    stub.write_text("raise SystemExit('run')")  # what is in the folder is never run
    assert index.get_schema_type(ref) is kind
    assert index.clear_stubs() == 1 and not stub.exists()
    assert index.stub_dir == tmp_path / "stubs"
    bare = mock_index(tmp_path)
    assert (bare.stub_dir, bare.get_import_path(ref), bare.clear_stubs()) == (None, None, 0)


@pytest.mark.parametrize("change", [{"name": "../x"}, {"version": "../../1"}, {"name": "x.__class__()"}])
def test_records_name_no_files_outside_of_the_stubs(tmp_path: Path, change: dict[str, str]) -> None:
    index = mock_index(tmp_path, stub_dir=tmp_path / "stubs")
    record = {"name": "A", "version": "1.0.0", "fields": [{"name": "x", "fieldType": {"kind": "primitive"}}], **change}
    index.provider.store_schema("A", "1.0.0", json.dumps(record))
    with pytest.raises(ValueError, match="expected a"):
        index.get_schema("atdata://local/schema/A@1.0.0")
    assert not list(tmp_path.glob("**/*.py"))


def test_lenses(index: Index, tmp_path: Path) -> None:
    lens: atdata.Lens[Any, Any] = atdata.Lens(lambda digit: Label(digit.label), source=Digit, view=Label)
    ref = index.store_lens(lens, name="label", source_schema="a", view_schema="b", description="only the label")
    assert ref == "atdata://local/lens/label@1.0.0"
    assert index.store_lens(lens, name="label") == "atdata://local/lens/label@1.0.1"
    assert index.get_lens(ref)["description"] == "only the label"
    assert [one["$ref"] for one in index.find_lenses("a", "b")] == [ref]
    assert len(index.list_lenses()) == 2 and index.find_lenses("b") == []
    loaded = index.load_lens(ref, source_type=Digit, view_type=Label)
    assert loaded.get(digits(3)[2]) == Label(2)
    with pytest.raises(KeyError, match="Lens not found"):
        index.get_lens("atdata://local/lens/label@7.0.0")
    with pytest.raises(ValueError, match="Invalid lens reference"):
        index.get_lens("label")
    writes = mock_index(tmp_path, stub_dir=tmp_path / "stubs")
    writes.store_lens(lens, name="label")
    assert "'label' -> 'label'" in (tmp_path / "stubs" / "local" / "lens_label_1_0_2.py").read_text()


def test_the_default_index(home: Path) -> None:
    assert get_default_index() is get_default_index()
    entry = get_default_index().write_samples(digits(), name="mnist")
    assert (home / ".atdata" / "index.db").exists()
    assert entry.data_urls[0].startswith(str(home / ".atdata" / "data" / "mnist"))
    assert list(load_dataset("@local/mnist", Digit, split="train")) == digits()
    other = mock_index()
    set_default_index(other)
    assert get_default_index() is other
    with pytest.raises(KeyError, match="mnist"):
        load_dataset("@local/mnist")


def test_arguments_of_an_index(tmp_path: Path) -> None:
    provider = mock_index(tmp_path).provider
    assert Index(provider).provider is provider
    assert Index("sqlite", path=tmp_path / "other.db").data_store is None
    assert local.Index is local.LocalIndex is Index
    assert list(Index(provider, repos={"lab": Repository(provider)}).repos) == ["local", "lab"]
    assert Index(provider, atmosphere=None).atmosphere is None
    with pytest.raises(ValueError, match='"local" is reserved'):
        Index(provider, repos={"local": Repository(provider)})
    with pytest.raises(TypeError, match="must be a Repository, got str"):
        Index(provider, repos={"lab": "lab.db"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="must be an IndexProvider or backend name string, got int"):
        Index(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="only available with a Redis provider"):
        _ = Index(provider)._redis


def test_former_names(index: Index, tmp_path: Path) -> None:
    shards = write_samples(digits(), tmp_path / "a.tar")
    with pytest.warns(DeprecationWarning, match="insert_dataset"):
        entry = index.add_entry(shards, name="d", metadata={"n": 3})
    assert (entry.data_urls, entry.metadata) == ([str(tmp_path / "a.tar")], {"n": 3})
    with pytest.warns(DeprecationWarning, match="write_samples"):
        index.write(digits(), name="e")
    with pytest.warns(DeprecationWarning, match="insert_dataset"), pytest.raises(ValueError, match="Atmosphere"):
        index.promote_entry("d")
    with pytest.warns(DeprecationWarning, match="insert_dataset"), pytest.raises(ValueError, match="Atmosphere"):
        index.promote_dataset(shards, name="d")


def test_redis_of_old_versions(redis_client: Any, tmp_path: Path) -> None:
    """In versions 0.2 an index was in Redis: its client was the first argument, or made of other arguments."""
    shards = write_samples([DictSample(x=1)], tmp_path / "a.tar")
    index = local.LocalIndex(redis_client)
    index.publish_schema(Label)
    typed = Dataset[Label](str(tmp_path / "a.tar"))
    entry = index.insert_dataset(typed, name="old")
    assert index._redis is redis_client
    arguments = redis_client.connection_pool.connection_kwargs
    again = Index(host="127.0.0.1", **{key: arguments[key] for key in ("port", "password", "db")})
    assert again.get_dataset("old") == entry
    assert index.types is not again.types and len(shards.list_shards()) == 1


def test_fixture(tmp_index: Index) -> None:
    assert tmp_index.list_entries() == []


def test_shards_that_a_pattern_does_not_name(index: Index, tmp_path: Path) -> None:
    for name in ("train/a.tar", "train/b-c.tar", "test/a.tar"):
        write_samples(digits(2), tmp_path / "data" / name)
    found = load_dataset(str(tmp_path / "data"), Digit, split="train")
    index = Index(index.provider, atmosphere=None)
    index.insert_dataset(found, name="d")
    again = load_dataset("@local/d", Digit, split="train", index=index)
    assert again.list_shards() == found.list_shards() and len(list(again)) == 4
    for view in (found.filter(lambda one: one.label == 0), found.as_type(Label), found.map(lambda one: one)):
        with pytest.raises(ValueError, match="copy=True"):
            index.insert_dataset(view, name="view")
    kept = index.insert_dataset(
        found.filter(lambda one: one.label == 1), name="view", data_store=LocalDiskStore(tmp_path / "kept")
    )
    assert [one.label for one in Dataset[Digit](kept.data_urls[0])] == [1, 1]


def test_another_name_for_the_same_shards_is_a_warning(
    index: Index, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = write_samples(digits(), tmp_path / "a.tar")
    index = Index(index.provider, atmosphere=None)
    index.insert_dataset(shards, name="a")
    with caplog.at_level("WARNING", "atdata"):
        second = index.insert_dataset(shards, name="b")
    assert "the dataset a has the same shards, and becomes the dataset b" in caplog.text
    assert index.get_dataset("a") == index.get_dataset("b") == second


def test_copies_leave_nothing_if_they_fail(index: Index, tmp_path: Path) -> None:
    empty = Dataset[Digit](str(tmp_path / "gone.tar"))
    with pytest.raises(FileNotFoundError):
        index.insert_dataset(empty, name="d")
    with pytest.raises(ValueError, match="at least one"):
        index.write_samples([], name="d")
    assert not (index.list_entries() or index.list_schemas() or index.list_labels())
    assert not [one for one in (tmp_path / "store").rglob("*") if one.is_file()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.write_samples(digits(), name="team/digits")
    with pytest.raises(ValueError, match="relative path"):
        index.write_samples(digits(), name="../digits")
