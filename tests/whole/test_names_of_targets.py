"""Names of datasets with any characters: what is written is opened under the same name, or nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import AddressError, NotFoundError, PathError, ShardexError
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
