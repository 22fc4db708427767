"""A catalog in a folder or bucket: its files, links out of it, damage, and storage without conditional puts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import ConditionalPutError, FormatError, PathError
from tests.catalog.test_catalog import content


@pytest.fixture
def catalog(tmp_path: Path) -> sx.Catalog:
    catalog = sx.Catalog(tmp_path / "catalog")
    catalog.put("team/corpus", content(), description="all text")
    catalog.tag("team/corpus", "stable", 1)
    return catalog


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_files_are_plain(catalog: sx.Catalog, tmp_path: Path) -> None:
    catalog.put("team/corpus", content(1))
    catalog.tag("team/corpus", "stable", 2)
    catalog.remove("team/corpus@1")
    assert files(tmp_path / "catalog") == [
        "team/corpus/00000001.json",
        "team/corpus/00000002.json",
        "team/corpus/_tags/stable/00000001.json",
        "team/corpus/_tags/stable/00000002.json",
    ]
    plain = json.loads((tmp_path / "catalog/team/corpus/00000002.json").read_text())
    assert plain["urls"] == ["s3://data/1.tar"] and plain["description"] == "all text"
    assert json.loads((tmp_path / "catalog/team/corpus/_tags/stable/00000002.json").read_text()) == {"version": 2}
    assert (tmp_path / "catalog/team/corpus/00000001.json").read_text() == '{"removed":true}\n'


def test_other_files_are_ignored(catalog: sx.Catalog, tmp_path: Path) -> None:
    for name in (
        "README.md",
        "team/notes.json",
        "team/corpus/1.json",
        "team/corpus/00000002.json.tmp",
        ".git/00000001.json",
    ):
        path = tmp_path / "catalog" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert [str(one) for one in catalog.list()] == ["team/corpus@1"]
    assert catalog.put("team/corpus", content(1)).version == 2


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":', b"\xff"])
def test_a_damaged_file_is_named_and_can_be_removed(catalog: sx.Catalog, tmp_path: Path, data: bytes) -> None:
    catalog.put("other", content())
    path = tmp_path / "catalog/team/corpus/00000001.json"
    path.write_bytes(data)
    for call in (catalog.get, lambda name: catalog.put(name, content(1))):
        with pytest.raises(FormatError, match=r"team/corpus/00000001\.json: expected a record"):
            call("team/corpus")
    with pytest.warns(UserWarning, match=r"00000001\.json: .*left out"):
        assert [one.name for one in catalog.list()] == ["other"]
    (tmp_path / "catalog/team/corpus/_tags/stable/00000001.json").write_bytes(data)
    with pytest.raises(FormatError, match=r"stable/00000001\.json: expected the version of a tag"):
        catalog.get("team/corpus:stable")
    (tmp_path / "catalog/team/corpus/_tags/stable/00000001.json").write_bytes(b'{"version": 1}')
    catalog.remove("team/corpus@1")
    assert catalog.put("team/corpus", content(1)).version == 2


def test_a_record_of_another_name_is_refused(catalog: sx.Catalog, tmp_path: Path) -> None:
    (tmp_path / "catalog/b").mkdir()
    (tmp_path / "catalog/b/00000001.json").write_bytes((tmp_path / "catalog/team/corpus/00000001.json").read_bytes())
    with pytest.raises(FormatError, match=r"expected the record of b@1, got that of team/corpus@1"):
        catalog.get("b")


def test_a_large_file_is_not_read(catalog: sx.Catalog, tmp_path: Path) -> None:
    with open(tmp_path / "catalog/team/corpus/00000001.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="expected at most 4194304 bytes, got 1099511627776"):
        catalog.get("team/corpus")


def test_a_link_out_of_the_folder_is_not_followed(catalog: sx.Catalog, tmp_path: Path) -> None:
    other = sx.Catalog(tmp_path / "outside")
    other.put("secret", content())
    os.symlink(tmp_path / "outside/secret", tmp_path / "catalog/secret")
    with pytest.raises(PathError, match="got a link to"):
        catalog.get("secret")


def test_storage_without_conditional_puts_is_refused(careless_bucket: str) -> None:
    with pytest.raises(ConditionalPutError):
        sx.Catalog(careless_bucket).put("corpus", content())
