"""Catalogs that are mounted under a name, in a file and in the environment, and the rule for names with slashes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import ArgumentError, CatalogError
from tests.catalog.test_catalog import content


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the mounted catalogs, which is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "shardex").mkdir()
    return tmp_path / "shardex" / "catalogs.toml"


def test_the_first_part_of_a_name_is_a_mount_or_it_is_not(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = sx.write(tmp_path / "ds", [{"x": 1}])
    sx.Catalog().put("team/corpus", ds)
    sx.Catalog().put("lab", ds)
    assert sx.open("@team/corpus").reference()["name"] == "team/corpus"
    config.write_text(f'team = "{tmp_path}/team"\nlab = {{ url = "{tmp_path}/lab.db", trusted = false }}\n')
    with pytest.raises(CatalogError, match=rf"{tmp_path}/team: expected the name of a dataset, got 'corpus'"):
        sx.open("@team/corpus")  # it is not looked up in the default catalog
    more = sx.write(tmp_path / "more", [{"x": 1}, {"x": 2}], register="@team/corpus")
    assert len(sx.open("@team/corpus")) == len(more) == 2 and more.reference()["name"] == "team/corpus"
    assert sx.Catalog("@team").get("corpus").samples == 2 and sx.Catalog("@team").trusted
    assert not sx.Catalog("@lab").trusted and sx.Catalog("@lab", trusted=True).trusted
    assert len(sx.open("@lab")) == 1, "a name without a slash is one in the default catalog"
    with pytest.raises(ArgumentError, match=r"the mounted catalog 'team', got 'team/x': .*Catalog\('@team'\)"):
        sx.Catalog().put("team/x", ds)
    monkeypatch.setenv("SHARDEX_CATALOGS", f"team={tmp_path}/other, new=memory://new")
    assert sx.Catalog("@team").url == f"{tmp_path}/other" and sx.Catalog("@new").url == "memory://new"
    monkeypatch.setenv("SHARDEX_CATALOG", "@lab")
    assert sx.Catalog().url == f"{tmp_path}/lab.db"


def test_an_unknown_mount(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"a mounted catalog \(none is mounted\), got 'team'; mount it in .*toml"):
        sx.Catalog("@team")
    monkeypatch.setenv("SHARDEX_CATALOGS", "team=/x")
    with pytest.raises(ArgumentError, match=r"\(team\), got 'taem': did you mean 'team'"):
        sx.Catalog("@taem")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("team = [", "expected a TOML file of catalogs by name"),
        ("team = 3", "expected catalogs by name with a url"),
        ("team = { path = '/x' }", "expected catalogs by name with a url"),
        ("'a/b' = '/x'", "expected catalogs by name with a url"),
        ("team = 'relative'", "expected a URL or an absolute path for the catalog team, got 'relative'"),
        ("team = { url = '/x', trusted = 'yes' }", "expected true or false for trusted of the catalog team"),
    ],
)
def test_wrong_entries_are_named(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    with pytest.raises(ArgumentError, match=f"{config}: {message}"):
        sx.open("@team/x")


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("team", "=/x", "team="):
        monkeypatch.setenv("SHARDEX_CATALOGS", text)
        with pytest.raises(ArgumentError, match="SHARDEX_CATALOGS: expected"):
            sx.Catalog("@team")


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CATALOGS", "team=~/team")
    assert sx.Catalog("@team").url == os.path.expanduser("~/team")


def test_paths_that_begin_like_a_mount_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sx.Catalog("./@team").put("corpus", content())
    assert os.listdir(tmp_path) == ["@team"]
