"""Names of targets: any characters, and extensions, which decide the format and that one file is written."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import shardex as sx
from shardex.errors import (
    AddressError,
    AlreadyExistsError,
    ArgumentError,
    NotFoundError,
    PathError,
    SchemaError,
    ShardexError,
)
from shardex.sources import open_source

NAMES = ["b[0]", "b*", "b**", "b{0..1}", "b{a,b}", "{", "[", "b[!a]", "*", "b#1", "b#2", "b%20c", "b%", "b c", " b "]
NAMES += ["ü", "b+c", "b&c=d", "b;c", "b'c", 'b"c', "b@c", "$b", "b~", "b^|<>`"]


def check(path: str, format: str) -> None:
    """Write, open, append and write again in parts."""
    samples: list[Any] = [{"x": 1}, {"x": 2}]
    sx.write(path, samples, {"x": int}, format=format)
    assert [one.x for one in sx.open(path)] == [1, 2]
    assert sx.verify(path) == []
    made = sx.write(f"{path}+", sx.open(samples), {"x": int}, transform=lambda one: {"x": -one.x}, format=format)
    assert [one.x for one in made] == [-1, -2]
    if format == "arrow":
        assert len(sx.write(path, samples, mode="append")) == 4


@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_local_names(tmp_path: Path, format: str) -> None:
    for name in [*NAMES, "b?", "?", "b:c"]:
        check(str(tmp_path / name), format)


@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_names_in_a_bucket(bucket: str, format: str) -> None:
    for name in NAMES:
        check(f"{bucket}/{name}", format)
    assert {path.partition("/")[0] for path in open_source(bucket).paths()} == {*NAMES, *(f"{one}+" for one in NAMES)}


@pytest.mark.parametrize("name", ["b?x", "b\\c", "b\tc", "b\nc", "b//c", "b/../c", "b/./c", "b\0c", "b\ud800"])
def test_names_that_a_bucket_cannot_have(bucket: str, name: str) -> None:
    for options in ({}, {"format": "jsonl"}, {"transform": dict}, {"mode": "append"}, {"mode": "overwrite"}):
        with pytest.raises(ShardexError):
            sx.write(f"{bucket}/{name}", sx.open([{"x": 1}]), {"x": int}, **options)
    assert open_source(bucket).paths() == []


def test_query_of_a_bucket_is_refused_without_its_secrets() -> None:
    with pytest.raises(AddressError, match="without") as caught:
        sx.write("s3://bucket/data?token=hush", [{"x": 1}])
    assert "hush" not in str(caught.value)


def test_patterns_in_a_bucket_still_match(bucket: str) -> None:
    for number in range(3):
        open_source(bucket).put(f"a-{number}.jsonl", b'{"x": %d}\n' % number)
    assert [one.x for one in sx.open(f"{bucket}/a-[01].jsonl")] == [0, 1]
    assert [one.x for one in sx.open(f"{bucket}/a-?.jsonl")] == [0, 1, 2]
    assert [one.x for one in sx.open(f"{bucket}/a-{{0,2}}.jsonl")] == [0, 2]
    with pytest.raises(NotFoundError, match="nothing matches"):
        sx.open(f"{bucket}/b-*.jsonl")


@pytest.mark.parametrize(
    "path", ["a\0b", "a\0b/*.jsonl", "file://a\0b", "memory://a\0b", "s3://b/a\0b", "\0", "a\ud800"]
)
def test_null_characters(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    samples = [{"x": 1}]
    calls: list[Any] = [sx.open, sx.verify, sx.clean, sx.store.history, sx.compact, sx.edit, sx.load_dataset, sx.index]
    calls += [lambda path: sx.open([path, path]), lambda path: sx.create(path, {"x": int})]
    calls += [lambda path, mode=mode: sx.write(path, samples, mode=mode) for mode in ("create", "append", "overwrite")]
    calls += [lambda path: sx.write(path, samples, format="jsonl")]
    calls += [] if "://" in path else [lambda path: sx.cache(lambda: samples, {"x": int}, path)]
    calls += [lambda path: sx.write(path, sx.open(samples), transform=dict)]
    for call in calls:
        with pytest.raises(PathError, match=r"null char|that UTF-8 has|inside the dataset's folder"):
            call(path)


URLS = [
    "http://[::1",
    "http://[::1/a.jsonl",
    "https://]/x",
    "s3://[::1",
    "gs://[",
    "az://[/x",
    "http://u:secret@[::1/x",
]


@pytest.mark.parametrize("url", URLS)
def test_malformed_urls(url: str) -> None:
    calls: list[Any] = [
        sx.open,
        sx.load_dataset,
        lambda url: sx.open([url, url]),
        lambda url: sx.open(url, trusted=False),
    ]
    calls += [lambda url: sx.create(url, {"x": int}), lambda url: sx.write(url, sx.open([{"x": 1}]), transform=dict)]
    for call in calls:
        with pytest.raises(AddressError) as caught:
            call(url)
        assert "secret" not in str(caught.value)


# -- one file -----------------------------------------------------------------------------------------------------

SAMPLES: list[Any] = [{"x": k, "t": f"t{k}"} for k in range(5)]
READ: dict[str, Callable[[str], Any]] = {
    "parquet": pd.read_parquet,
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "csv": pd.read_csv,
}


@pytest.mark.parametrize("extension", READ)
def test_other_tools_read_the_one_file_that_is_written(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    made = sx.write(path, SAMPLES)
    assert [one.t for one in made] == [one["t"] for one in SAMPLES]
    assert READ[extension](str(path)).to_dict("records") == SAMPLES
    with sx.create(tmp_path / f"b.{extension}") as out:
        out.extend(SAMPLES)
    assert (tmp_path / f"b.{extension}").read_bytes() == path.read_bytes()
    assert {one.name for one in tmp_path.iterdir()} <= {path.name, f"b.{extension}", ".shardex"}


def test_texts_arrays_and_tars_in_one_file(tmp_path: Path) -> None:
    sx.write(tmp_path / "a.txt", [{"text": "one"}, {"text": "two"}])
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
    sx.write(tmp_path / "a.npy", [{"tokens": np.arange(3)}] * 4)
    assert np.load(tmp_path / "a.npy").tolist() == [[0, 1, 2]] * 4
    sx.write(tmp_path / "a.TAR", SAMPLES)
    with tarfile.open(tmp_path / "a.TAR") as tar:
        assert len(tar.getnames()) == 2 * len(SAMPLES)


def test_all_samples_are_in_the_one_file(tmp_path: Path) -> None:
    many = sx.open({"x": np.arange(1_200_000)})
    assert len(sx.write(tmp_path / "a.parquet", many)) == pd.read_parquet(tmp_path / "a.parquet").shape[0] == len(many)


def test_functions_and_workers_write_one_file(tmp_path: Path) -> None:
    made = sx.write(tmp_path / "a.jsonl", SAMPLES, transform=lambda one: {"y": 2 * one.x}, batch_size=2)
    assert (tmp_path / "a.jsonl").read_text() == "".join(f'{{"y":{2 * k}}}\n' for k in range(5)) and made.left_out == []
    assert os.listdir(tmp_path / ".shardex") and {one.name for one in tmp_path.iterdir()} == {"a.jsonl", ".shardex"}
    with pytest.warns(UserWarning, match="left out"):
        made = sx.write(tmp_path / "b.csv", SAMPLES, transform=lambda one: {"y": 1 // one.x}, on_error="skip")
    assert [one.place for one in made.left_out] != [] and len(pd.read_csv(tmp_path / "b.csv")) == 4


def test_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    sx.write(path, SAMPLES)
    before = path.read_bytes()
    functions: list[dict[str, Any]] = [{}, {"transform": dict}]
    for options in functions:
        with pytest.raises(AlreadyExistsError, match=r"a file exists there already; pass mode=\"overwrite\""):
            sx.write(path, SAMPLES, **options)
        with pytest.raises(ArgumentError, match=r'expected mode "create" or "overwrite" for one file, got "append"'):
            sx.write(path, SAMPLES, mode="append", **options)
    with pytest.raises(ArgumentError, match="expected mode to be one of"):
        sx.create(path, mode="replace")
    with pytest.raises(ZeroDivisionError), sx.create(path, mode="overwrite") as out:
        out.append(x=1 // 0)
    assert path.read_bytes() == before
    assert len(sx.write(path, SAMPLES[:1], mode="overwrite")) == len(sx.open(path)) == 1
    assert {one.name for one in tmp_path.iterdir()} == {path.name, ".shardex"}


def test_one_file_in_a_bucket(bucket: str) -> None:
    sx.write(f"{bucket}/a.jsonl", SAMPLES)
    assert open_source(bucket).paths() == ["a.jsonl"] and len(sx.open(f"{bucket}/a.jsonl")) == 5
    with pytest.raises(AlreadyExistsError):
        sx.write(f"{bucket}/a.jsonl", SAMPLES)
    assert len(sx.write(f"{bucket}/a.jsonl", SAMPLES[:2], mode="overwrite")) == 2
    assert len(sx.write(f"{bucket}/b.parquet", SAMPLES, transform=lambda one: {"y": one.x})) == 5
    assert open_source(bucket).paths() == ["a.jsonl", "b.parquet"]


def test_the_format_overrides_the_extension(tmp_path: Path) -> None:
    sx.write(tmp_path / "a.jsonl", SAMPLES, format="arrow")
    assert (tmp_path / "a.jsonl" / "_shardex").is_dir()
    sx.write(tmp_path / "b.jsonl", SAMPLES, format="jsonl")
    assert (tmp_path / "b.jsonl").is_file()
    sx.write(f"{tmp_path}/c.jsonl/", SAMPLES, shard_rows=2)
    assert len(os.listdir(tmp_path / "c.jsonl")) >= 3, "a slash makes it a folder"
    assert len(sx.write(tmp_path / "c.jsonl", SAMPLES, mode="append")) == 10, "the folder is there already"
    sx.write(tmp_path / "v1.2", SAMPLES)
    assert (tmp_path / "v1.2" / "_shardex").is_dir()


@pytest.mark.parametrize(
    "name",
    ["a.json", "a.jsonl.gz", "a.arrow", "a.npz", "a.tsv", "a.png", "a.md", "a.bin", "a.zip", "a.tar.gz", "a.tgz"],
)
def test_files_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    functions: list[dict[str, Any]] = [{}, {"transform": dict}]
    for options in functions:
        with pytest.raises(
            ArgumentError, match=r"the name of a folder, or of a file that can be written \(\.tar, \.json"
        ):
            sx.write(tmp_path / name, SAMPLES, **options)
    assert os.listdir(tmp_path) == []


def test_names_in_a_catalog_are_no_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[Any] = [sx.write, lambda path, samples: sx.write(path, samples, transform=dict), sx.create]
    for call in calls:
        with pytest.raises(ArgumentError, match="'@a', a name in a catalog: write to a path with register='@a'"):
            call("@a", SAMPLES)
    assert len(sx.write("./@a", SAMPLES)) == 5


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.tar", "a.csv"])
def test_one_file_of_a_stream_whose_types_become_wider(tmp_path: Path, name: str) -> None:
    ds = sx.write(tmp_path / name, ({"x": k if k < 200 else k + 0.5, "y": k if k < 300 else None} for k in range(400)))
    assert [(one.x, one.y) for one in ds][::199] == [(0, 0), (199, 199), (398.5, None)]
    assert [one for one in os.listdir(tmp_path) if one != ".shardex"] == [name]


def test_options_of_shards_and_one_file(tmp_path: Path) -> None:
    for options in ({"shard_rows": 2}, {"shard_size": 100}, {"prefix": "a"}):
        with pytest.raises(ArgumentError, match=f"expected no {next(iter(options))}= with a name of one file, got"):
            sx.write(tmp_path / "a.jsonl", SAMPLES, **options)
    assert os.listdir(tmp_path) == []


def test_a_schema_that_the_format_refuses_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        sx.create(tmp_path / "a.csv", {"x": sx.Array("int8", (2,))})
    assert os.listdir(tmp_path) == []


def test_tokens_in_one_file(tmp_path: Path) -> None:
    ds = sx.tokenize(
        [{"text": "ab"}, {"text": "c"}], lambda text: list(text.encode()), tmp_path / "a.parquet", dtype="u1"
    )
    assert [one.tokens.tolist() for one in ds] == [[97, 98], [99]] and (tmp_path / "a.parquet").is_file()
