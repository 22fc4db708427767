"""Compressed text files, from `open` to batches of a loader: the same samples as the plain files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import shardex as sx
from shardex.cli.commands import app
from shardex.errors import FormatError, StaleIndexError, UnknownFormatError
from shardex.sources import place_of
from shardex.sources.url import SCHEMES
from shardex.store.readable_rows import open_readable_files
from tests.compressed_files import PACKERS, fast_gzip, in_parts, text, zipped, zstd
from tests.fake_remote import fake_remote_url, open_fake_remote

SIZE = 1_500_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for each test."""
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Plain and compressed JSON lines, each of other content."""
    data = tmp_path / "data"
    data.mkdir()
    for number, (extension, pack) in enumerate(PACKERS.items()):
        (data / f"{number}.jsonl.{extension}").write_bytes(pack(text(SIZE // 5, number)))
    (data / "4.jsonl.gz").write_bytes(fast_gzip(text(SIZE, 4)))
    (data / "5.jsonl.zst").write_bytes(in_parts(zstd, text(SIZE, 5), 400_000))
    (data / "6.ndjson").write_bytes(text(SIZE // 5, 6))
    (data / "7.zip").write_bytes(zipped({"a/7.jsonl": text(SIZE // 5, 7), "README.md": b"about"}))
    return data


def samples() -> list[dict[str, object]]:
    sizes = [SIZE // 5] * 4 + [SIZE, SIZE] + [SIZE // 5] * 2
    return [json.loads(line) for seed, size in enumerate(sizes) for line in text(size, seed).splitlines()]


@pytest.mark.parametrize("way", [None, "copy"])
def test_all_kinds_in_one_folder(corpus: Path, way: str | None) -> None:
    expected, ds = samples(), sx.open(corpus, compressed=way)
    assert len(ds) == len(expected) and str(ds.features) == "id int64, text text"
    rows = np.random.default_rng(0).integers(0, len(ds), 200).tolist()
    assert [dict(ds[row]) for row in rows[:50]] == [expected[row] for row in rows[:50]]
    assert ds.read(rows)["text"] == [expected[row]["text"] for row in rows]
    again = pickle.loads(pickle.dumps(ds))
    assert again.fingerprint == ds.fingerprint == sx.open(corpus).fingerprint
    assert again[rows[0]] == ds[rows[0]]
    assert len(ds.where("id = 0")) == 8
    (corpus / "4.jsonl.gz").write_bytes(fast_gzip(text(SIZE + 1_000, 9)))
    assert sx.open(corpus, compressed=way).fingerprint != ds.fingerprint
    with pytest.raises(StaleIndexError, match="it has changed since"):
        pickle.loads(pickle.dumps(ds))


def test_a_loader_with_workers(corpus: Path) -> None:
    ds, found = sx.open(corpus), list[int]()
    with sx.Loader(ds, batch_size=64, shuffle=True, seed=0, workers=2, epochs=1) as loader:
        for batch in loader:
            found += batch.id.tolist()
    assert sorted(found) == sorted(sample["id"] for sample in samples())  # type: ignore[type-var]


def test_write_and_index(corpus: Path, tmp_path: Path, cache: Path) -> None:
    gzips = str(corpus / "*.gz")
    sx.index(gzips, attributes=["id"], workers=2)
    out = sx.write(tmp_path / "out", gzips, workers=2)
    plain = [json.loads(line) for seed, size in ((0, SIZE // 5), (4, SIZE)) for line in text(size, seed).splitlines()]
    assert [dict(sample) for sample in out] == plain
    assert not list(cache.glob("plain/*")), "access points need no copy"


def test_other_formats_of_text(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt.xz").write_bytes(PACKERS["xz"](b"\xef\xbb\xbfone\r\ntwo"))
    (folder / "b.txt.gz").write_bytes(fast_gzip(b"three\n"))
    assert [sample.text for sample in sx.open(folder)] == ["one", "two", "three"]
    assert [sample.text for sample in sx.open(folder, format="text", lines=False)] == ["one\r\ntwo", "three\n"]
    (tmp_path / "dump.gz").write_bytes(fast_gzip(b'{"a": 1}\n'))
    assert sx.open(tmp_path / "dump.gz", format="jsonl")[0].a == 1
    with pytest.raises(UnknownFormatError, match=r"1 \(no extension\)\), dump beginning with"):
        sx.open(tmp_path / "dump.gz")


def test_tokens_can_be_compressed_too(tmp_path: Path) -> None:
    tokens = [np.arange(k % 50, dtype=np.uint16) for k in range(300)]
    sx.write(tmp_path / "plain", [{"tokens": one} for one in tokens], format="tokens")
    (tmp_path / "packed").mkdir()
    for path in (tmp_path / "plain").iterdir():
        if path.is_file():
            (tmp_path / "packed" / f"{path.name}.gz").write_bytes(fast_gzip(path.read_bytes()))
    assert all((a == b["tokens"]).all() for a, b in zip(tokens, sx.open(tmp_path / "packed"), strict=True))


@pytest.mark.parametrize("way", [None, "copy"])
@pytest.mark.parametrize("extension", list(PACKERS))
def test_wrong_lines_are_named_by_file_and_line(tmp_path: Path, way: str | None, extension: str) -> None:
    path = tmp_path / f"a.jsonl.{extension}"
    path.write_bytes(PACKERS[extension](text(SIZE // 5) + b'{"id": 1, "text": \n' + text(1000)))
    line = text(SIZE // 5).count(b"\n") + 1
    ds = sx.open(path, compressed=way, schema={"id": "int64", "text": str})
    with pytest.raises(FormatError, match=rf"a\.jsonl\.{extension}, line {line}, column"):
        ds[line - 1]


def test_checksums(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(fast_gzip(text(SIZE)))
    count = len(sx.index(path, checksums=True))
    assert len(sx.open(path)) == count and sx.open(path)[count - 1].id == count - 1
    path.write_bytes(fast_gzip(text(SIZE, 1)))
    with pytest.raises(StaleIndexError, match=r"a\.jsonl\.gz: expected the file as it was when its checksums"):
        sx.open(path)


def test_readable_files_of_damaged_data_are_recovered(corpus: Path, tmp_path: Path) -> None:
    packed = (corpus / "4.jsonl.gz").read_bytes()
    (corpus / "4.jsonl.gz").write_bytes(packed[:-9])
    with open_readable_files(corpus) as found:
        lost = text(SIZE, 4).count(b"\n")
        assert len(found.dataset) == len(samples()) - lost
        ((name, why),) = found.refused
        assert name == "4.jsonl.gz" and f"the file ends at byte {len(packed) - 9}" in why


def test_sizes_on_the_command_line(corpus: Path) -> None:
    done = CliRunner().invoke(app, ["info", str(corpus), "--json"])
    assert json.loads(done.stdout)["bytes"] == sum(path.stat().st_size for path in corpus.iterdir() if path.is_file())


@pytest.mark.parametrize("way", [None, "copy"])
def test_remote_files(corpus: Path, way: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "fakeremote", open_fake_remote)
    expected = samples()
    for _ in range(2):
        ds = sx.open(fake_remote_url(corpus), compressed=way)
        rows = np.random.default_rng(0).integers(0, len(ds), 100).tolist()
        assert len(ds) == len(expected) and ds.read(rows)["id"].tolist() == [expected[row]["id"] for row in rows]


def test_an_object_store_and_workers(corpus: Path, bucket: str) -> None:
    store = place_of(bucket)
    for path in corpus.iterdir():
        store.put(path.name, path.read_bytes())
    ds, found = sx.open(bucket), list[int]()
    with sx.Loader(ds, batch_size=500, workers=2, epochs=1) as loader:
        for batch in loader:
            found += batch.id.tolist()
    assert found == [sample["id"] for sample in samples()]
    assert sx.open(bucket, compressed="copy").fingerprint == ds.fingerprint
