"""The demo with few samples: its measurements, its files, and that wrong data is an error."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.cli import demo
from shardex.errors import AlreadyExistsError, FormatError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[demo.Row]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo.run(folder, samples=600, progress=False)


def test_rows(made: tuple[Path, list[demo.Row]]) -> None:
    folder, rows = made
    assert [(row.dataset, row.format, row.samples) for row in rows] == [
        ("series", "arrow", 600),
        ("images", "tar", 24),
        ("corpus", "jsonl", 600),
        ("tokens", "tokens", 50),
    ]
    for row in rows:
        ds = sx.open(folder / row.dataset)
        assert len(ds) == row.samples
        assert row.checked > 0
        assert min(row.write, row.get, row.batch, row.shuffled, row.ordered, row.shards) > 0
        assert row.open_ms >= 0


def test_report(made: tuple[Path, list[demo.Row]]) -> None:
    folder, rows = made
    text = demo.report(rows, None)
    table = [line for line in text.splitlines() if line.startswith(("dataset", *(row.dataset for row in rows)))]
    assert len(table) == 1 + len(rows)
    assert len({len(line) for line in table}) == 1, "aligned"
    assert max(map(len, text.splitlines())) <= 110
    assert "is deleted again" in text
    assert f"The data is in {folder}" in demo.report(rows, folder)


def test_images_are_png(made: tuple[Path, list[demo.Row]]) -> None:
    for sample in sx.open(made[0] / "images").decode(False):
        width, height, pixels = read_png(sample.png)
        assert (width, height, len(pixels)) == (32, 32, 32 * (1 + 3 * 32))
        assert 0 <= sample.cls < 4


def read_png(data: bytes) -> tuple[int, int, bytes]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(body),)
        chunks[body[:4]] = body[4:]
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    return width, height, zlib.decompress(chunks[b"IDAT"])


def test_generated_data_is_deterministic() -> None:
    for kind in demo._KINDS:
        assert list(map(sx.DictSample, kind.generate(20))) == list(map(sx.DictSample, kind.generate(20)))


def test_folder_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    for folder in (tmp_path, tmp_path / "precious"):
        with pytest.raises(AlreadyExistsError, match="new or empty folder"):
            demo.run(folder, samples=100)
    assert (tmp_path / "precious").read_text() == "data"


@pytest.mark.parametrize("wrong", ["values", "order", "count"])
def test_wrong_data_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def bad(path: str, **_: Any) -> Any:
        ds = sx.open(path)
        if wrong == "order":
            return ds[::-1]
        if wrong == "count":
            return ds[np.arange(len(ds)) // 2]
        return sx.open([{**sample, "station": "Atlantis"} for sample in ds])

    monkeypatch.setattr("shardex.cli.demo.open_dataset", bad)
    with pytest.raises(FormatError, match="series"):
        demo.run(tmp_path / "new", samples=100, progress=False)


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.run(tmp_path / "a", samples=100, progress=True)
    assert "tokens: check" in capsys.readouterr().err
    demo.run(tmp_path / "b", samples=100, progress=False)
    assert capsys.readouterr().err == ""
