"""What users do with a catalog, on each backend: put, get, tags, history, search, remove."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardex as sx
from shardex.catalog import Content, DatasetRecord
from shardex.catalog.backend import SCHEMES, backend_at
from shardex.errors import AddressError, ArgumentError, CatalogError, ConflictError
from tests.catalog.backends import url as url  # noqa: PLC0414 - a fixture


def content(number: int = 0, **fields: Any) -> Content:
    """A content that differs by its number."""
    known: dict[str, Any] = {
        "fingerprint": f"{number:016x}",
        "urls": [f"s3://data/{number}.tar"],
        "format": "tar",
        "samples": 10 + number,
        "schema": {"image": {"kind": "image"}, "label": {"kind": "value", "dtype": "int64"}},
    }
    return Content(**{**known, **fields})


@pytest.fixture
def catalog(url: str) -> sx.Catalog:
    return sx.Catalog(url, trusted=True)


def versions(records: Any) -> list[str]:
    return [str(record) for record in records]


# -- put and get --------------------------------------------------------------------------------------------------


def test_put_gives_the_next_version_and_get_finds_each(catalog: sx.Catalog) -> None:
    assert versions(catalog.put("corpus", content(k)) for k in range(3)) == ["corpus@1", "corpus@2", "corpus@3"]
    assert [catalog.get(ref).samples for ref in ("corpus", "corpus@3", "corpus@2", "corpus@1")] == [12, 12, 11, 10]
    again = sx.Catalog(catalog.url, trusted=True)
    assert again.get("corpus@1") == catalog.get("corpus@1") and again.get("corpus").urls == ["s3://data/2.tar"]


def test_what_is_not_given_is_that_of_the_newest_version(catalog: sx.Catalog) -> None:
    catalog.put("corpus", content(), description="all text", tags=["text", "text"], license="MIT")
    second = catalog.put("corpus", content(1))
    assert (second.description, second.tags, second.license) == ("all text", ["text"], "MIT")
    third = catalog.put("corpus", content(1), description="", tags=[])
    assert (third.version, third.description, third.tags, third.license) == (3, "", [], "MIT")


def test_the_same_again_is_the_same_version(catalog: sx.Catalog) -> None:
    first = catalog.put("corpus", content(), description="x")
    assert catalog.put("corpus", content()) == catalog.put("corpus", content(), expect=1) == first
    assert catalog.put("corpus", content(), description="y").version == 2
    assert catalog.put("corpus", content(urls=["s3://other/0.tar"])).version == 3
    fourth = catalog.put("corpus", content(1), parents=["corpus@1"])
    assert catalog.put("corpus", content(1)) == fourth and catalog.put("corpus", content(2)).parents == []


def test_a_record_of_another_catalog_is_put_with_what_it_says(catalog: sx.Catalog, tmp_path: Path) -> None:
    first = catalog.put("corpus", content(), description="all text", tags=["text"], license="MIT")
    other = sx.Catalog(tmp_path / "other.db")
    copied = other.put("team/corpus", first, license="CC0")
    assert (copied.description, copied.tags, copied.license) == ("all text", ["text"], "CC0")
    assert copied.fingerprint == first.fingerprint and str(copied) == "team/corpus@1"


def test_expect_is_compare_and_swap(catalog: sx.Catalog) -> None:
    assert catalog.put("corpus", content(), expect=0).version == 1
    with pytest.raises(ConflictError, match=r"expected version 0 to be the newest one of corpus, got 1: .*expect=1"):
        catalog.put("corpus", content(1), expect=0)
    with pytest.raises(ConflictError, match="expected version 3 to be the newest one of other, got no version"):
        catalog.put("other", content(1), expect=3)
    assert catalog.put("corpus", content(1), expect=1).version == 2
    assert versions(catalog.history("corpus")) == ["corpus@1", "corpus@2"]


def test_names_inside_of_names(catalog: sx.Catalog) -> None:
    for name in ("team", "team/corpus", "team/corpus/en", "teams"):
        catalog.put(name, content())
    catalog.put("team", content(1))
    catalog.tag("team/corpus", "stable", 1)
    assert versions(catalog.list()) == ["team@2", "team/corpus@1", "team/corpus/en@1", "teams@1"]
    assert versions(catalog.list("team/")) == ["team/corpus@1", "team/corpus/en@1"]
    assert versions(catalog.list("none")) == [] and versions(catalog.history("team")) == ["team@1", "team@2"]


def test_unknown_names_versions_and_tags(catalog: sx.Catalog) -> None:
    catalog.put("corpus", content())
    catalog.tag("corpus", "stable", 1)
    for ref, message in {
        "corpsu": r"expected the name of a dataset, got 'corpsu': did you mean 'corpus'\?",
        "corpus@2": "expected a version of corpus up to 1, got version 2",
        "corpus:stabel": r"expected a tag of corpus \(stable\), got 'stabel': did you mean 'stable'\?",
    }.items():
        with pytest.raises(CatalogError, match=message) as caught:
            catalog.get(ref)
        assert catalog.url in str(caught.value) and isinstance(caught.value, KeyError)
    for call in (catalog.history, catalog.remove):
        with pytest.raises(CatalogError, match="expected the name of a dataset"):
            call("nothing")


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", "../a", "a/../b", ".a", "_a", "a b", "a@1", "a:b", "é", "a" * 101, "a/1.json"]
)
def test_wrong_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="expected a name such as 'corpus'"):
        sx.Catalog(tmp_path / "c.db").put(name, content())


@pytest.mark.parametrize(
    "ref", ["a@", "a@0", "a@x", "a@1:b", "a:b@1", "a@-1", "a@123456789", "a:", "a:1", "a:b/c", "@a"]
)
def test_wrong_references_are_refused(tmp_path: Path, ref: str) -> None:
    with pytest.raises(ArgumentError, match=r"expected a (name|tag)"):
        sx.Catalog(tmp_path / "c.db").get(ref)
    with pytest.raises(ArgumentError, match="got int"):
        sx.Catalog(tmp_path / "c.db").get(3)  # type: ignore[arg-type]


def test_parents(catalog: sx.Catalog, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "raw", [{"x": 1}])
    catalog.put("raw", content())
    clean = catalog.put("clean", content(1), parents=["raw@1", catalog.get("raw"), ds, ds.reference()])
    first, second, third, fourth = clean.parents
    assert first == second and str(first) == "raw@1" and third == fourth
    assert (third.fingerprint, third.name, third.version) == (ds.fingerprint, "", None)
    assert catalog.get("clean").parents == clean.parents


# -- tags and removal ---------------------------------------------------------------------------------------------


def test_tags_can_be_moved_and_removed(catalog: sx.Catalog) -> None:
    for k in range(3):
        catalog.put("corpus", content(k))
    catalog.tag("corpus", "stable", 1)
    catalog.tag("corpus", "best", 3)
    assert catalog.get("corpus:stable").version == 1
    catalog.tag("corpus", "stable", 2)
    assert catalog.get("corpus:stable").version == 2 and catalog.tags("corpus") == {"best": 3, "stable": 2}
    catalog.tag("corpus", "best", None)
    assert catalog.tags("corpus") == {"stable": 2} and catalog.tags("other") == {}
    with pytest.raises(CatalogError, match="up to 3, got version 4"):
        catalog.tag("corpus", "stable", 4)
    with pytest.raises(ArgumentError, match="expected a tag"):
        catalog.tag("corpus", "2nd", 1)


def test_a_removed_number_is_never_used_again(catalog: sx.Catalog) -> None:
    for k in range(3):
        catalog.put("corpus", content(k))
    catalog.tag("corpus", "best", 3)
    catalog.remove("corpus@3")
    assert catalog.get("corpus").version == 2 and catalog.tags("corpus") == {}
    with pytest.raises(CatalogError, match="up to 2, version 3 was removed"):
        catalog.get("corpus@3")
    assert catalog.put("corpus", content(3), expect=2).version == 4
    assert versions(catalog.history("corpus")) == ["corpus@1", "corpus@2", "corpus@4"]
    catalog.remove("corpus")
    assert versions(catalog.list()) == [] and versions(catalog.search("corpus")) == []
    with pytest.raises(CatalogError, match="all versions of 'corpus' were removed"):
        catalog.get("corpus")
    assert catalog.put("corpus", content(), expect=0).version == 5


def test_a_tag_of_a_version_that_was_removed_says_so(catalog: sx.Catalog) -> None:
    for k in range(2):
        catalog.put("corpus", content(k))
    catalog._backend.set_tag("corpus", "stable", 1)
    catalog._backend.remove("corpus", 1)  # another process has set the tag meanwhile
    with pytest.raises(CatalogError, match="expected corpus@1, which has the tag stable; it was removed"):
        catalog.get("corpus:stable")
    with pytest.raises(ArgumentError, match=r"tag\(\.\.\., None\) removes a tag"):
        catalog.remove("corpus:stable")


# -- search -------------------------------------------------------------------------------------------------------


def test_search(catalog: sx.Catalog) -> None:
    photos = {"photo": {"kind": "image"}, "width_px": {"kind": "value", "dtype": "int64"}}
    catalog.put("imagenet-1k", content(), description="Pictures of 1,000 classes", tags=["vision", "big data"])
    catalog.put("team/photos", content(schema=photos), description="Straßen, pictures", tags=["vision"])
    catalog.put("corpus", content(), description="old")
    catalog.put("corpus", content(1), description='quotes " OR * NEAR(', tags=["text"])

    def found(*args: Any, **options: Any) -> list[str]:
        return [record.name for record in catalog.search(*args, **options)]

    assert found() == ["corpus", "imagenet-1k", "team/photos"]
    assert found("pict") == found("PICTURES") == ["imagenet-1k", "team/photos"]
    assert found("pictures classes") == found("1k") == found("imagenet-1k") == ["imagenet-1k"]
    assert found("strassen") == found("width px") == found("photos") == ["team/photos"]
    assert found("old") == found("ictures") == [] and found('"quotes"') == found("near or") == ["corpus"]
    assert found(tags=["vision"]) == ["imagenet-1k", "team/photos"] and found(tags=["big data"]) == ["imagenet-1k"]
    assert found(tags=["big"]) == found(tags=["vision", "text"]) == []
    assert found(fields=["label"]) == ["corpus", "imagenet-1k"] and found(fields=["width_px"]) == ["team/photos"]
    assert found("pictures", tags=["vision"], fields=["photo"]) == ["team/photos"]
    for wrong in ({"tags": "vision"}, {"fields": "label"}):
        with pytest.raises(ArgumentError, match="to be a list of texts"):
            found(**wrong)
    with pytest.raises(ArgumentError, match="expected words to search for"):
        found("*")


def test_search_without_full_text_index_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.catalog.sqlite_file._has_full_text", lambda connection: False)
    test_search(sx.Catalog(tmp_path / "c.db"))


# -- many at once -------------------------------------------------------------------------------------------------


def test_threads_put_versions_of_one_name(catalog: sx.Catalog) -> None:
    """No version is lost or used twice."""
    made: list[DatasetRecord] = []

    def put(worker: int) -> None:
        made.extend(catalog.put("corpus", content(), description=f"{worker} {k}") for k in range(5))

    threads = [threading.Thread(target=put, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.version for record in made) == [*range(1, 16)]
    assert catalog.history("corpus") == sorted(made, key=lambda record: record.version)


def test_list_goes_on_while_others_write(catalog: sx.Catalog) -> None:
    for k in range(5):
        catalog.put(f"a{k}", content(k))
    listing = catalog.list()
    first = next(listing)
    catalog.put("b", content())
    catalog.remove("a4")
    assert first.name == "a0" and [one.name for one in listing][:3] == ["a1", "a2", "a3"]


def test_the_answer_to_a_put_is_lost(catalog: sx.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is stored, but the storage says that the number is used: it is the put's own."""
    append = catalog._backend.append
    monkeypatch.setattr(catalog._backend, "append", lambda *args: append(*args) and False)
    assert catalog.put("corpus", content(), expect=0).version == 1
    assert versions(catalog.history("corpus")) == ["corpus@1"]

    def others_put_too(name: str, version: int, record: DatasetRecord | None) -> bool:
        append(name, version, record)
        assert record is not None
        return append(name, version + 1, msgspec.structs.replace(record, version=version + 1)) and False

    monkeypatch.setattr(catalog._backend, "append", others_put_too)
    assert catalog.put("corpus", content(1)).version == 2
    assert len(catalog.history("corpus")) == 3


# -- the object ---------------------------------------------------------------------------------------------------


def test_a_catalog_can_be_pickled_shown_and_closed(catalog: sx.Catalog) -> None:
    catalog.put("corpus", content())
    with pickle.loads(pickle.dumps(catalog)) as again:
        assert again.get("corpus").samples == 10 and again.trusted
    assert again.get("corpus").samples == 10
    assert repr(catalog) == f"Catalog({catalog.url!r})"
    assert repr(sx.Catalog(catalog.url, trusted=False)) == f"Catalog({catalog.url!r}, trusted=False)"
    again.close()
    catalog.close()


def test_reading_makes_no_files(tmp_path: Path) -> None:
    for where in ("c.db", "c"):
        catalog = sx.Catalog(tmp_path / where)
        assert [*catalog.list()] == [*catalog.search("x")] == []
        with pytest.raises(CatalogError):
            catalog.get("corpus")
    assert os.listdir(tmp_path) == []


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sx.Catalog().url == os.environ["SHARDEX_CATALOG"]
    assert sx.Catalog(f"sqlite://{tmp_path}/c").url == f"{tmp_path}/c"
    assert sx.Catalog("sqlite:///~/c.db").url == os.path.expanduser("~/c.db")
    monkeypatch.delenv("SHARDEX_CATALOG")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert sx.Catalog().url == str(tmp_path / "shardex" / "catalog.db")
    assert sx.Catalog().trusted and not sx.Catalog("s3://bucket/catalog").trusted
    with pytest.raises(AddressError, match=r"expected a catalog: .* sqlite://, .*, got 'gopher://x'"):
        sx.Catalog("gopher://x")
    with pytest.raises(ArgumentError, match="got an empty text"):
        sx.Catalog("")


def test_every_scheme_has_a_backend() -> None:
    local = {"file": "file:///tmp/x", "sqlite": "sqlite:///tmp/x/c.db"}
    for scheme in SCHEMES:
        assert backend_at(local.get(scheme, f"{scheme}://b.example")).url


# -- copies -------------------------------------------------------------------------------------------------------


def test_copy_keeps_versions_and_their_gaps(catalog: sx.Catalog, tmp_path: Path) -> None:
    for k in range(4):
        catalog.put("corpus", content(k), description=str(k))
    catalog.remove("corpus@2")
    catalog.remove("corpus@4")
    other = sx.Catalog(tmp_path / "other.db")
    assert other.copy_from(catalog.history("corpus"), trusted=True) == 2
    assert other.history("corpus") == catalog.history("corpus")
    assert other.copy_from(catalog.history("corpus"), trusted=True) == 0
    changed = [msgspec.structs.replace(catalog.get("corpus@3"), description="other")]
    with pytest.raises(ConflictError, match="expected no version corpus@3, or the same, got another one"):
        other.copy_from(changed, trusted=True)
    with pytest.raises(ArgumentError, match="with a version near 3, the last one here, got corpus@99999999"):
        other.copy_from([msgspec.structs.replace(changed[0], version=99_999_999)], trusted=True)
    with pytest.raises(ConflictError, match="got one that was removed"):
        other.copy_from([msgspec.structs.replace(changed[0], version=2)], trusted=True)


def test_what_is_no_dataset_and_names_with_the_sign_of_open(tmp_path: Path) -> None:
    catalog = sx.Catalog(tmp_path / "c.db")
    wrong: Any
    for wrong in ("t.csv", None, [{"x": 1}]):
        with pytest.raises(ArgumentError, match=r"expected a dataset that sx.open or sx.write has returned, got"):
            catalog.put("name", wrong)
    for call in (catalog.get, catalog.history, lambda name: catalog.tag(name, "stable", 1)):
        with pytest.raises(ArgumentError, match=r"expected a name without the @|expected a name such as"):
            call("@my/set")
