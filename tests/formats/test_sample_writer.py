"""Writers of all formats: the same life cycle, and shards that fill up in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardex.errors import ClosedError, SchemaError, StorageFullError
from shardex.features import Features, Json
from shardex.files import Stage
from shardex.formats import format_named
from shardex.formats.sample_writer import ShardSeries
from tests.formats.cases import NAMES, kind


@pytest.mark.parametrize("format", NAMES)
def test_append_after_close_or_abort_raises(tmp_path: Path, format: str) -> None:
    features, sample = Features.of(kind(format).schema), kind(format).sample(1)
    writer = format_named(format).create(str(tmp_path / "closed"), features, mode="create")
    writer.append(sample)
    writer.close()
    writer.close()
    with pytest.raises(ClosedError, match="closed: expected an open writer, this one is closed"):
        writer.append(sample)
    writer = format_named(format).create(str(tmp_path / "aborted"), features, mode="create")
    writer.append(sample)
    writer.abort()
    writer.abort()
    with pytest.raises(ClosedError, match="this one was aborted; nothing was written"):
        writer.append(sample)
    with pytest.raises(ClosedError, match="this one was aborted; nothing was written"):
        writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["closed"]


@pytest.mark.parametrize(
    ("limits", "shards"),
    [
        ({"rows": 2}, [b"aabb", b"ccdd", b"ee"]),
        ({"size": 6}, [b"aabbcc", b"ddee"]),
        ({"size": 1}, [b"aa", b"bb", b"cc", b"dd", b"ee"]),
        ({"rows": 3, "end": lambda size: b"%d" % size}, [b"aabbcc6", b"ddee4"]),
        ({"rows": 3, "begin": b"="}, [b"=aabbcc", b"=ddee"]),
        ({"size": 1, "begin": b"=="}, [b"==aa", b"==bb", b"==cc", b"==dd", b"==ee"]),
    ],
)
def test_shards_end_at_their_limits(tmp_path: Path, limits: dict[str, Any], shards: list[bytes]) -> None:
    stage = Stage(tmp_path / "d", "create")
    series = ShardSeries(stage, "{}.bin".format, 5, **limits)
    for letter in b"abcde":
        series.write(bytes([letter]) * 2)
    series.finish()
    assert [bytes(stage.place.load(f"{5 + k}.bin")) for k in range(len(shards))] == shards
    assert len(stage.place.paths()) == len(shards)


def test_failed_write_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path / "d", "create")
    series = ShardSeries(stage, "{}.bin".format, rows=2, end=lambda size: b".")
    append, failures = Stage.append, iter([True, False, True, False])

    def failing(self: Stage, path: str, pieces: Any, size: int) -> int:
        if next(failures, False):
            append(self, path, [b"torn"], size)
            raise StorageFullError(28, "no space", path)
        return append(self, path, pieces, size)

    monkeypatch.setattr(Stage, "append", failing)
    for record in (b"a", b"b"):
        series.write(record)
    with pytest.raises(StorageFullError):
        series.write(b"c")
    series.write(b"c")
    with pytest.raises(StorageFullError):
        series.finish()
    series.finish()
    assert [bytes(stage.place.load(path)) for path in ("0.bin", "1.bin")] == [b"ab.", b"c."]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"k": 1, "o": "a"}, r"expected the fields j, o, got 'k' too - at sample 0"),
        ({"o": "a"}, r"expected json, got nothing .* - at sample 0, field j"),
        ({"j": 1, "o": 2}, r"expected text, got int 2 - at sample 0, field o"),
    ],
)
def test_sample_that_does_not_fit_raises(tmp_path: Path, sample: dict[str, Any], message: str) -> None:
    writer = format_named("jsonl").create(
        str(tmp_path / "d"), Features.of({"j": Json(), "o": str | None}), mode="create"
    )
    with pytest.raises(SchemaError, match=message):
        writer.append(sample)
    writer.append({"o": None, "j": None})
    writer.append({"j": 2})
    writer.close()
    assert (tmp_path / "d" / "part-00000.jsonl").read_text() == '{"j":null,"o":null}\n{"j":2,"o":null}\n'
