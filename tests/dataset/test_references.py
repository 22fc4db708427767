"""Names of catalogs and references: what `open`, `load_dataset`, `write` and `create` do with them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import (
    AddressError,
    ArgumentError,
    CatalogError,
    FormatError,
    NotFoundError,
    ShardexError,
    StaleIndexError,
)
from shardex.sources import place_of


def samples(count: int = 6) -> list[dict[str, Any]]:
    return [{"x": k, "name": f"n{k}"} for k in range(count)]


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return sx.write(tmp_path / "ds", samples())


def names(ds: Any) -> list[str]:
    return [sample.name for sample in ds]


# -- open ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "tar", "csv"])
def test_a_name_opens_what_was_registered(tmp_path: Path, format: str) -> None:
    ds = sx.write(tmp_path / "ds", samples(), format=format)
    record = sx.Catalog().put("numbers", ds)
    assert (record.format, record.samples, record.fingerprint) == (format, 6, ds.fingerprint)
    assert record.features == ds.features and record.shards == 1
    again = sx.open("@numbers")
    assert [*again] == [*ds] and again.fingerprint == ds.fingerprint and again.features == ds.features
    assert again.reference() == {**ds.reference(), "name": "numbers", "version": 1}
    assert [*sx.open(json.loads(json.dumps(again.reference())))] == [*ds]
    assert pickle.loads(pickle.dumps(again)).reference() == again.reference()


def test_versions_of_a_native_dataset(ds: Dataset, tmp_path: Path) -> None:
    catalog = sx.Catalog()
    catalog.put("numbers", ds)
    more = sx.write(tmp_path / "ds", samples(2), mode="append")
    catalog.put("numbers", more)
    catalog.tag("numbers", "stable", 1)
    assert [len(sx.open(f"@numbers{which}")) for which in ("", "@1", "@2", ":stable")] == [8, 6, 8, 6]
    assert sx.open("@numbers:stable").reference()["version"] == 1
    assert len(sx.open(ds.reference())) == 6


def test_options_and_schema_are_those_that_were_registered(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "t.tokens")
    sx.Catalog().put("lines", sx.open(tmp_path / "a.jsonl", schema={"x": "float32"}))
    sx.Catalog().put("tokens", sx.open(tmp_path / "t.tokens", dtype="uint16", window=5))
    assert sx.open("@lines").features == sx.Features.of({"x": "float32"})
    assert sx.open("@tokens")["tokens"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    with pytest.raises(StaleIndexError, match="@tokens: expected the data that were registered"):
        sx.open("@tokens", window=2)
    with pytest.raises(ArgumentError, match="@lines: expected no format, or jsonl as it has, got 'tar'"):
        sx.open("@lines", format="tar")


def test_patterns_and_lists_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sx.write(tmp_path / "d", samples(), format="jsonl", shard_rows=2)
    monkeypatch.chdir(tmp_path)
    files = sorted(str(path) for path in Path("d").glob("*.jsonl"))
    assert len(files) == 3
    for number, what in enumerate(["d", "d/*.jsonl", files[:2], files[0]]):
        opened = sx.open(what)
        record = sx.Catalog().put(f"d{number}", opened)
        assert all(os.path.isabs(url) for url in record.urls)
        assert names(sx.open(f"@d{number}")) == names(opened)
    with pytest.raises(ArgumentError, match="expected several files, or one path that is not in a list"):
        sx.Catalog().put("d", sx.open(files[:1]))


def test_typed_samples_and_chosen_fields(ds: Dataset) -> None:
    @sx.packable
    class Named:
        name: str

    sx.Catalog().put("typed", ds.as_type(Named))
    sx.Catalog().put("chosen", ds.select("name"))
    sx.Catalog().put("turned", ds.select("name", "x"))
    assert sx.open("@typed").fields == ["x", "name"] and sx.open("@typed", Named)[1] == Named("n1")
    assert sx.open("@chosen").fields == ["name"] and sx.open("@chosen", Named)[1] == Named("n1")
    assert sx.open("@turned").fields == ["name", "x"] and "fields" not in ds.reference()
    assert sx.open(ds.select("name").reference()).fields == ["name"]


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds.shuffle(0),
        lambda ds: ds[1:],
        lambda ds: ds.where("x > 2"),
        lambda ds: ds.rename(x="y"),
        lambda ds: ds.map(lambda sample: {"y": sample.x}),
        lambda ds: ds + ds,
        lambda ds: sx.join(ds, ds.rename(x="y", name="z")),
        lambda ds: ds.stack(both=["x"]),
        lambda ds: sx.open([{"x": 1}]),
    ],
    ids=["shuffle", "slice", "where", "rename", "map", "concat", "join", "stack", "memory"],
)
def test_a_view_that_cannot_be_opened_again_is_refused(ds: Dataset, view: Any) -> None:
    for use in (lambda one: sx.Catalog().put("view", one), lambda one: one.reference()):
        with pytest.raises(ArgumentError, match=r"expected a dataset as it was opened.*store it with sx\.write"):
            use(view(ds))


def test_data_that_changed_are_refused(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", samples(), format="jsonl")
    reference = sx.Catalog().put("d", sx.open(tmp_path / "d")).reference()
    sx.write(tmp_path / "d", samples(3), format="jsonl", mode="overwrite")
    found = sx.open(tmp_path / "d").fingerprint
    with pytest.raises(StaleIndexError) as caught:
        sx.open("@d")
    assert reference["fingerprint"] in str(caught.value) and found in str(caught.value)
    with pytest.raises(StaleIndexError, match=r"d@1: expected the data that were .*6 samples.*got .*3 samples"):
        sx.open(reference)
    os.rename(tmp_path / "d", tmp_path / "e")
    with pytest.raises(NotFoundError):
        sx.open("@d")


def test_identity_is_the_content_not_the_place(ds: Dataset, tmp_path: Path) -> None:
    first = ds[0]
    os.rename(tmp_path / "ds", tmp_path / "moved")
    moved = sx.open(tmp_path / "moved")
    assert moved.reference()["fingerprint"] == ds.reference()["fingerprint"]
    assert sx.open({**ds.reference(), "urls": [str(tmp_path / "moved")]})[0] == first


def test_names_that_are_unknown_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sx.write("./@d", samples())
    with pytest.raises(CatalogError, match="expected the name of a dataset, got 'd'") as caught:
        sx.open("@d")
    assert caught.value.__notes__ == ["to open the file or folder of this name, write './@d'"]
    assert len(sx.open("./@d")) == len(sx.open(Path("@d"))) == 6
    with pytest.raises(ArgumentError, match="expected a name such as 'corpus'"):
        sx.open("@")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shardex_reference": 2}, "expected version 1, got 2"),
        ({"samples": "6"}, "Expected `int`, got `str` - at field `samples`"),
        ({"urls": []}, "field `urls`"),
        ({"fingerprint": None}, "field `fingerprint`"),
        ({"options": [1]}, "field `options`"),
        ({"name": 5}, "got `int`"),
    ],
)
def test_wrong_references_are_named(ds: Dataset, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        sx.open({**ds.reference(), **change})


def test_a_column_may_be_called_like_anything_else() -> None:
    assert len(sx.open({"fingerprint": [1], "urls": ["a"]})) == 1


# -- load_dataset -------------------------------------------------------------------------------------------------


def test_load_dataset_by_name(ds: Dataset, tmp_path: Path) -> None:
    sx.Catalog().put("team/numbers", ds)
    assert sx.load_dataset("@team/numbers").num_rows == {"train": 6}
    assert names(sx.load_dataset("@team/numbers@1", split="train[:2]")) == ["n0", "n1"]
    assert sx.load_dataset(ds.reference()).num_rows == {"train": 6}
    with pytest.raises(ArgumentError, match="expected no data_files with a name"):
        sx.load_dataset("@team/numbers", data_files="x")


def test_load_dataset_finds_the_splits_of_a_registered_pattern(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("test", 2)):
        sx.write(tmp_path / "d" / split, samples(count), format="jsonl")
    sx.Catalog().put("d", sx.open(tmp_path / "d/**/*.jsonl").select("name"))
    found = sx.load_dataset("@d")
    assert found.num_rows == {"train": 4, "test": 2} and found["test"].fields == ["name"]
    sx.write(tmp_path / "d" / "test", samples(1), format="jsonl", mode="append")
    with pytest.raises(StaleIndexError):
        sx.load_dataset("@d")


# -- register -----------------------------------------------------------------------------------------------------


def test_write_and_create_register(tmp_path: Path) -> None:
    raw = sx.write(tmp_path / "raw", samples(), register="@raw")
    assert raw.reference()["name"] == "raw" and sx.open("@raw@1").fingerprint == raw.fingerprint
    clean = sx.write(tmp_path / "clean", raw.where("x > 2"), transform=lambda s: {"y": s.x}, register="@team/clean")
    record = sx.Catalog().get("team/clean")
    assert [str(parent) for parent in record.parents] == ["raw@1"] and record.samples == len(clean) == 3
    assert record.parents[0].fingerprint == raw.fingerprint
    with sx.create(tmp_path / "raw", mode="append", register="@raw") as out:
        out.append(x=6, name="n6")
    assert sx.Catalog().get("raw").version == 2 and len(sx.open("@raw")) == 7
    sx.write(tmp_path / "lines", samples(), format="jsonl", register="@raw")
    assert sx.open("@raw").reference()["format"] == "jsonl" and sx.Catalog().get("raw").parents == []


@pytest.mark.parametrize("name", ["raw", "@raw@2", "@raw:stable", "@", "@../x"])
def test_a_wrong_name_raises_before_anything_is_written(tmp_path: Path, name: str) -> None:
    for use in (
        lambda: sx.write(tmp_path / "d", samples(), register=name),
        lambda: sx.create(tmp_path / "d", {"x": int}, register=name),
    ):
        with pytest.raises(ArgumentError, match="expected a name"):
            use()
    assert not os.path.exists(tmp_path / "d")


def test_a_writer_that_fails_registers_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sx.create(tmp_path / "d", {"x": int}, register="@d"):
        raise ZeroDivisionError
    assert [*sx.Catalog().list()] == []


def test_a_catalog_that_fails_leaves_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CATALOG", "/proc/none/catalog.db")
    with pytest.raises(ShardexError) as caught:
        sx.write(tmp_path / "d", samples(), register="@d")
    assert caught.value.__notes__ == ["the dataset is written, but not registered as @d: use sx.Catalog.put"]
    assert len(sx.open(tmp_path / "d")) == 6


# -- what untrusted records may name ------------------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> str:
    """A catalog that others write to, mounted as "shared"."""
    monkeypatch.setenv("SHARDEX_CATALOGS", "shared=memory://shared/catalog")
    place_of("memory://shared/catalog").files.clear()  # type: ignore[attr-defined]
    return "memory://shared/catalog"


def test_a_record_of_a_shared_catalog_names_no_local_file(ds: Dataset, shared: str) -> None:
    sx.Catalog(shared).put("numbers", ds)
    assert not sx.Catalog("@shared").trusted and not sx.Catalog(shared).get("numbers").trusted
    for what in ("@shared/numbers", sx.Catalog(shared).get("numbers").reference()):
        with pytest.raises(AddressError, match=r"expected a URL in a record .*got the local path.*trusted=True"):
            sx.open(what)
    assert len(sx.open("@shared/numbers", trusted=True)) == 6
    assert len(sx.open(ds.reference())) == 6
    with pytest.raises(AddressError, match="got the local path"):
        sx.open(ds.reference(), trusted=False)


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "file:///etc/passwd",
        "pipe:id",
        "memory://other/data",
        "http://127.0.0.1:1/a.jsonl",
        "http://0x7f000001/a.jsonl",
        "http://[::1]/a.jsonl",
        "http://169.254.169.254/latest/meta-data/a.jsonl",
        "http://localhost/a.jsonl",
        "gopher://host/a.jsonl",
    ],
)
def test_urls_of_untrusted_records_are_public(ds: Dataset, shared: str, url: str) -> None:
    content = msgspec.structs.replace(ds.content(), urls=[url], format="jsonl", options={})
    sx.Catalog(shared).put("bad", content)
    with pytest.raises(AddressError):
        sx.open("@shared/bad")


def test_options_of_untrusted_records_lift_no_limit(ds: Dataset, shared: str) -> None:
    content = msgspec.structs.replace(ds.content(), urls=["s3://bucket/d"], options={"trust_paths": True})
    sx.Catalog(shared).put("bad", content)
    with pytest.raises(AddressError, match="expected no option trust_paths in a record"):
        sx.open("@shared/bad")


@pytest.mark.parametrize(
    "options",
    [
        {"executor": "ray://host:10001"},
        {"workers": 64},
        {"cache": "/home/me"},
        {"trusted": True},
        {"what": "/etc/passwd"},
        {"sample_type": "x"},
        {"rebuild": True},
        {"checksums": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_record_sets_what_is_the_users(ds: Dataset, options: dict[str, Any]) -> None:
    sx.Catalog().put("bad", msgspec.structs.replace(ds.content(), options=options))
    for what in ("@bad", {**ds.reference(), "options": options}):
        with pytest.raises(AddressError, match=f"got {next(iter(options))}, which only the user sets"):
            sx.open(what)


def test_wrong_options_of_a_record_are_named(ds: Dataset) -> None:
    sx.Catalog().put("bad", msgspec.structs.replace(ds.content(), options={"windw": 5}))
    with pytest.raises(ArgumentError, match="windw"):
        sx.open("@bad")


def test_untrusted_data_stay_untrusted_in_references(web: Any, ds: Dataset, shared: str) -> None:
    """A server for which the user has settings with secrets is trusted; everything else about the record is not."""
    web.files["a.jsonl"] = b'{"x": 1}\n'
    url = web.url("ok/a.jsonl")
    sx.storage(url.rpartition("/")[0], token="t", allow_http=True)
    try:
        sx.Catalog(shared).put("lines", sx.open(url))
        assert sx.open("@shared/lines").reference()["trusted"] is False
        assert "trusted" not in sx.open("@shared/lines", trusted=True).reference()
    finally:
        sx.storage(url.rpartition("/")[0])


def test_imported_records_stay_untrusted(ds: Dataset, shared: str) -> None:
    there, here = sx.Catalog(shared), sx.Catalog()
    there.put("numbers", ds)
    with pytest.raises(AddressError, match="numbers@1: expected a URL in a record"):
        here.copy_from(there.history("numbers"))
    there.put("remote", msgspec.structs.replace(ds.content(), urls=["http://localhost/ds"]))
    assert here.copy_from(there.history("remote")) == 1 and not here.get("remote").trusted
    with pytest.raises(AddressError, match=r"localhost"):
        sx.open("@remote")
    assert here.put("own", here.get("remote")).trusted is False
    here.copy_from(there.history("numbers"), trusted=True)
    assert len(sx.open("@numbers")) == 6


@pytest.mark.parametrize(
    "url", ["https://me:pw@host/a.tar", "https://host/a.tar?X-Amz-Signature=0f3a", "s3://key:secret@bucket/a.tar",
            "az://container/a.tar?sig=0f3a", "https://host/a.tar?token"]
)  # fmt: skip
def test_secrets_in_urls_are_not_stored(ds: Dataset, url: str) -> None:
    with pytest.raises(ArgumentError, match="expected a URL without user, password and query") as caught:
        sx.Catalog().put("secret", msgspec.structs.replace(ds.content(), urls=[url]))
    assert "0f3a" not in str(caught.value) and "secret@" not in str(caught.value) and "pw" not in str(caught.value)


def test_one_file_and_parts_are_registered(tmp_path: Path) -> None:
    raw = sx.write(tmp_path / "raw.jsonl", samples(), register="@raw")
    assert sx.Catalog().get("raw").urls == [str(tmp_path / "raw.jsonl")] and len(raw) == 6
    made = sx.write(tmp_path / "double.jsonl", raw, transform=lambda s: {"x": 2 * s.x}, register="@double")
    assert sx.open("@double")["x"].tolist() == made["x"].tolist() == [0, 2, 4, 6, 8, 10]
    assert [str(parent) for parent in sx.Catalog().get("double").parents] == ["raw@1"]
    with sx.create(tmp_path / "more.csv", {"x": int}, register="@more") as out:
        out.append(x=1)
    assert sx.open("@more").reference()["format"] == "csv"
